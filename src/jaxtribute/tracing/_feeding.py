"""Elements of input iterators inside compiled functions.

A compiled program cannot read files. So what `next(iterator)` returns inside a `jt.function` is an
input of the program. While the function is traced, real elements are read, to know what they are
like, and it gets inputs that stand for them. From then on they are read before each run.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .._jax_compat import is_staging, is_tracing
from ..errors import InvalidArgumentError, OutOfRangeError

__all__ = ["Feeder", "Optional", "leave_trace"]

_MANY = 100


class Optional:
    """The next element of an iterator, if there was one.

    >>> strategy = jt.OneDeviceStrategy("CPU:0")
    >>> dataset = strategy.experimental_distribute_dataset(jt.data.Dataset.range(1).batch(1))
    >>> iterator = iter(dataset)
    >>> [iterator.get_next_as_optional().has_value() for _ in range(2)]
    [True, False]
    """

    def __init__(self, elements: tuple[Any, ...], iterator: Feeder) -> None:
        self._elements = elements
        self._iterator = iterator

    def has_value(self) -> bool:
        """Tell whether there was an element."""
        return bool(self._elements)

    def get_value(self) -> Any:
        """Return the element.

        Raises:
          InvalidArgumentError: when there was none.
        """
        if not self._elements:
            raise InvalidArgumentError(
                "The iterator has ended, so this Optional has no value. Ask has_value() first."
            )
        return self._elements[0]

    @property
    def element_spec(self) -> Any:
        """The description of the element."""
        return self._iterator.element_spec


class Feeder(ABC):
    """An iterator whose elements can be inputs of compiled functions."""

    @property
    @abstractmethod
    def element_spec(self) -> Any:
        """The structure of the elements."""

    @property
    @abstractmethod
    def position(self) -> Any:
        """Where the next element is found."""

    @abstractmethod
    def read(self) -> Any:
        """Return the next element itself; StopIteration at the end."""

    @abstractmethod
    def unread(self, element: Any, before: Any) -> None:
        """Put back the element that was read last, before which the position was `before`."""

    def check_place(self, method: str) -> None:
        """Refuse to deliver elements where they would have no meaning; by default nowhere."""
        return

    def __iter__(self) -> Feeder:
        self.check_place("iter")
        leave_trace()
        return self

    def __next__(self) -> Any:
        """Return the next element.

        Raises:
          StopIteration: at the end; `OutOfRangeError` inside a `jt.function`.
          ValueError: inside a replica, for the elements of all replicas.
        """
        self.check_place("next")
        elements = _take(self, is_optional=False)
        if not elements:
            raise StopIteration
        return elements[0]

    def get_next(self) -> Any:
        """Return the next element.

        Raises:
          OutOfRangeError: at the end.
          ValueError: inside a replica, for the elements of all replicas.
        """
        self.check_place("get_next")
        elements = _take(self, is_optional=False)
        if not elements:
            raise ended()
        return elements[0]

    def get_next_as_optional(self) -> Optional:
        """Return the next element, or an `Optional` without a value at the end.

        Raises:
          ValueError: inside a replica, for the elements of all replicas.
        """
        self.check_place("get_next_as_optional")
        return Optional(_take(self, is_optional=True), self)


class StandIn(Feeder):
    """Takes the place of an iterator that is an argument, while a function is traced.

    The program must not keep the iterator of its first call: the next one may bring another.
    """

    def __init__(self, number: int, feeder: Feeder) -> None:
        self.number = number
        self._feeder = weakref.ref(feeder)

    def _original(self) -> Feeder:
        feeder = self._feeder()
        if feeder is None:
            raise RuntimeError("The iterator a function was traced with no longer exists.")
        return feeder

    @property
    def element_spec(self) -> Any:
        """The structure of the elements."""
        return self._original().element_spec

    @property
    def position(self) -> Any:
        """Where the next element is found."""
        return self._original().position

    def read(self) -> Any:
        """Return the next element itself."""
        return self._original().read()

    def unread(self, element: Any, before: Any) -> None:
        """Put back the element that was read last."""
        self._original().unread(element, before)


@dataclass(frozen=True)
class Reading:
    """One element that was read for a program, or the end that was found instead."""

    feeder: Feeder
    is_optional: bool
    before: Any
    elements: tuple[Any, ...]

    @classmethod
    def of(cls, feeder: Feeder, is_optional: bool) -> Reading:
        """Read the next element."""
        before = feeder.position
        try:
            return cls(feeder, is_optional, before, (feeder.read(),))
        except StopIteration:
            return cls(feeder, is_optional, before, ())


def unread(readings: Sequence[Reading]) -> None:
    """Put back what was read."""
    for reading in reversed(readings):
        if reading.elements:
            reading.feeder.unread(reading.elements[0], reading.before)


class FeedingPlan:
    """Which elements a program needs: of iterators it captured, or of some of its arguments."""

    def __init__(self, needs: Sequence[tuple[Feeder, bool]]) -> None:
        self._needs = needs

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> FeedingPlan:
        """Return the plan of a program that was traced with these."""
        return cls([(reading.feeder, reading.is_optional) for reading in readings])

    def read(self, arguments: Sequence[Feeder]) -> list[Reading]:
        """Read what is needed.

        Raises:
          OutOfRangeError: when there is nothing left to read.
          LoopsInPython: when there is too little, so that the function has to see how far it gets.
        """
        readings: list[Reading] = []
        try:
            for feeder, is_optional in self._needs:
                if isinstance(feeder, StandIn):
                    feeder = arguments[feeder.number]
                reading = Reading.of(feeder, is_optional)
                if not reading.elements and not is_optional:
                    raise LoopsInPython(always=False) if readings else ended()
                readings.append(reading)
        except BaseException:
            unread(readings)
            raise
        return readings


class LoopsInPython(BaseException):
    """A function that is being traced goes through a whole dataset, so it has to run as Python.

    Not an Exception, which the function might catch.
    """

    def __init__(self, always: bool = True) -> None:
        super().__init__()
        self.always = always  # not only this time


Lift = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Supply:
    """The elements a program is traced with, and those it turned out to need as well.

    Args:
      fed: elements that are inputs already.
      lift: makes inputs of what is read.
    """

    def __init__(self, fed: Sequence[tuple[Any, ...]], lift: Lift) -> None:
        self._fed = fed
        self._lift = lift
        self.used = 0
        self.readings: list[Reading] = []

    def take(self, feeder: Feeder, is_optional: bool) -> tuple[Any, ...]:
        """Return the next element, or nothing at the end if that is allowed."""
        if self.used < len(self._fed):
            self.used += 1
            return self._fed[self.used - 1]
        if len(self.readings) >= _MANY:
            raise LoopsInPython
        reading = Reading.of(feeder, is_optional)
        if not reading.elements and not is_optional:
            if self.used or self.readings:  # it has done some steps before: so let it do them
                raise LoopsInPython(always=False)
            raise ended()
        self.readings.append(reading)
        return self._lift(reading.elements)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.supplies: list[Supply] = []


_thread = _Thread()


@contextmanager
def supplied(fed: Sequence[tuple[Any, ...]], lift: Lift) -> Generator[Supply]:
    """Give elements to the function that is traced; what it read besides goes back on failure."""
    supply = Supply(fed, lift)
    _thread.supplies.append(supply)
    try:
        yield supply
    except BaseException:
        unread(supply.readings)
        raise
    finally:
        _thread.supplies.pop()


class _Replay(Supply):
    """The elements a function takes, the same ones each time it is run."""

    def __init__(self, supply: Supply) -> None:
        super().__init__((), lambda elements: elements)
        self._supply = supply
        self._taken: list[tuple[Any, ...]] = []
        self._next = 0

    def restart(self) -> None:
        """Begin again."""
        self._next = 0

    def take(self, feeder: Feeder, is_optional: bool) -> tuple[Any, ...]:
        if self._next == len(self._taken):
            self._taken.append(self._supply.take(feeder, is_optional))
        self._next += 1
        return self._taken[self._next - 1]


@contextmanager
def replaying() -> Generator[Callable[[], None]]:
    """Yield what to call before a function is run again, so that it takes the same elements."""
    supplies = _thread.supplies
    if not supplies:
        yield lambda: None
        return
    replay = _Replay(supplies[-1])
    supplies.append(replay)
    try:
        yield replay.restart
    finally:
        supplies.pop()


def _take(feeder: Feeder, is_optional: bool) -> tuple[Any, ...]:
    if not _thread.supplies and not is_staging():  # also while a gradient is taken eagerly
        try:
            return (feeder.read(),)
        except StopIteration:
            return ()
    if not _thread.supplies:
        raise _in_foreign_trace("An element of a dataset was asked for")
    return _thread.supplies[-1].take(feeder, is_optional)


def leave_trace() -> None:
    """Have the function that is being traced run as Python instead, if one is."""
    if is_tracing():
        if not _thread.supplies:
            raise _in_foreign_trace("A dataset was iterated")
        raise LoopsInPython


def ended() -> OutOfRangeError:
    """Return the error for the end of an iterator."""
    return OutOfRangeError(
        "The iterator has no more elements. Make a new one with iter(dataset) for the "
        "next pass, or `repeat` the dataset."
    )


def _in_foreign_trace(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} inside a JAX transformation that is not a jt.function, such as jax.jit, where "
        "only its first element would ever be seen. Use jt.function, or take the element outside."
    )
