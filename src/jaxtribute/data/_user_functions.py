"""Calling the functions users give to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ._elements import as_element
from ._randomness import element_key

CALLS_A_THREAD = 4  # at a time, so that threads seldom wait for the slowest


def call(fn: Callable[..., Any], element: Any, *more: Any) -> Any:
    """Call a function with an element; one that is a tuple becomes several arguments."""
    return fn(*element, *more) if type(element) is tuple else fn(element, *more)


class Mapped:
    """The function given to `map`, for one epoch."""

    def __init__(self, fn: Callable[..., Any], seed: int | None) -> None:
        self._fn = fn
        self._seed = seed
        self.is_random = seed is not None

    def __call__(self, number: int, element_id: int, element: Any) -> Any:
        """Return the function's result for the `number`-th element."""
        try:
            if self._seed is None:
                return as_element(call(self._fn, element))
            return as_element(call(self._fn, element, element_key(self._seed, element_id)))
        except Exception as error:
            raise blamed(error, "map", self._fn, number) from error.__cause__

    def each(
        self, numbers: Iterable[int], ids: Iterable[int], elements: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield the function's result for each element; faster than calling this for each."""
        fn, number = self._fn, 0
        if self._seed is not None:
            yield from map(self, numbers, ids, elements)
            return
        try:
            for number, element in zip(numbers, elements, strict=False):  # noqa: B007 - see below
                yield as_element(fn(*element) if type(element) is tuple else fn(element))
        except Exception as error:
            raise blamed(error, "map", fn, number) from error.__cause__


def map_in_threads(
    fn: Callable[..., Any], threads: int, *arguments: Iterable[Any]
) -> Iterator[Any]:
    """Yield the results of `fn`, in order, called by threads that end with the iterator."""
    pool = ThreadPoolExecutor(threads, "jaxtribute-map")
    try:
        yield from pool.map(fn, *arguments)
    finally:
        pool.shutdown(cancel_futures=True)


def blamed(error: Exception, method: str, fn: Callable[..., Any], number: int) -> Exception:
    """Return an error with a note on which function raised it, and for which element."""
    name = getattr(fn, "__qualname__", None) or repr(fn)
    if isinstance(error, StopIteration):  # would pass for the end of the dataset
        error = RuntimeError(f"{name!r} raised StopIteration; to leave out elements, use `filter`.")
    error.add_note(f"Raised in {name!r}, given to Dataset.{method}, for element {number}.")
    return error
