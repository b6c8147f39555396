"""Compiling each `run` of a function that itself runs as Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any

_KEPT = 64


class CompiledRuns:
    """The compiled forms of the functions that one Python function gives to `run`.

    A function that is defined anew each time, with the same code and the same captured objects,
    counts as the same one.
    """

    def __init__(self, compile: Callable[[Callable[..., Any]], Any]) -> None:
        self._compile = compile
        self._compiled: dict[Hashable, Any] = {}

    def of(self, fn: Callable[..., Any]) -> Any:
        """Return a function in its compiled form."""
        key = _identity(fn)
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(self._compiled) == _KEPT:
                del self._compiled[next(iter(self._compiled))]
            # It holds on to `fn`, so what `key` names by identity stays what it is.
            compiled = self._compiled[key] = self._compile(fn)
        return compiled

    @contextmanager
    def opened(self) -> Generator[None]:
        """Compile what is given to `run` in this thread."""
        outer, _thread.runs = _thread.runs, self
        try:
            yield
        finally:
            _thread.runs = outer


class _Thread(threading.local):
    def __init__(self) -> None:
        self.runs: CompiledRuns | None = None


_thread = _Thread()


def compiled(fn: Callable[..., Any]) -> Any:
    """Return `fn`, compiled where a function runs as Python whose runs are to be compiled."""
    if _thread.runs is None or hasattr(getattr(fn, "__self__", fn), "run_under"):
        return fn  # or it is compiled already
    return _thread.runs.of(fn)


def _identity(fn: Any) -> Hashable:
    code = getattr(fn, "__code__", None)
    if code is None or hasattr(fn, "__self__"):  # not a plain function
        return (type(fn), id(getattr(fn, "__self__", fn)), id(getattr(fn, "__func__", None)))
    captured = tuple(id(_contents(cell)) for cell in fn.__closure__ or ())
    defaults = tuple(map(id, fn.__defaults__ or ()))
    return (code, captured, defaults, id(fn.__kwdefaults__), id(fn.__globals__))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return cell
