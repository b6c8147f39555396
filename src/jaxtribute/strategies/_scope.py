"""The context manager of `Strategy.scope`."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from .. import _context, _integrations


class Scope(AbstractContextManager[Any]):
    """Keeps a strategy in force; may be entered again, also inside itself."""

    def __init__(self, strategy: Any, side: _context.Side | None = None) -> None:
        self._strategy = strategy
        self._side = side or _context.Side(strategy)
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> Any:
        with _context.cross_replica(self._strategy, "Strategy.scope"):
            pass  # raises where the scope must not be entered
        _integrations.load()
        entered = _context.opened(self._side)
        entered.__enter__()
        self._entered.append(entered)
        return self._strategy

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._entered:
            raise RuntimeError(
                f"A scope of {self._strategy!r} was left more often than it was entered. Use it in "
                "`with` blocks."
            )
        self._entered.pop().__exit__(exc_type, exc, traceback)
        late = _integrations.load()
        if late and exc is None:
            warnings.warn(
                f"The scope of {self._strategy!r} did not know of {late[0]}, which was imported "
                f"inside it, so what was created with {late[0]} there is not the strategy's. Write "
                f"`import {late[0]}` before the scope is entered.",
                RuntimeWarning,
                stacklevel=2,
            )
