"""Who makes the variables that Keras asks for, and for what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

Maker = Callable[[type], Any]  # as `__new__`


class _Thread(threading.local):
    maker: Maker | None = None
    reference: Any = None


_thread = _Thread()


@contextmanager
def by(maker: Maker) -> Generator[None]:
    """Have Keras variables made by `maker`, whatever scope is open."""
    before, _thread.maker = _thread.maker, maker
    try:
        yield
    finally:
        _thread.maker = before


def maker() -> Maker | None:
    """Return what makes Keras variables, if it is said."""
    return _thread.maker


def reference() -> Any | None:
    """Return the variable for which an optimizer is making another one."""
    return _thread.reference


def add_variable_from_reference(
    own: Callable[..., Any], optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    """Make a variable for another one, and let it be known for which."""
    before, _thread.reference = _thread.reference, reference_variable
    try:
        return own(optimizer, reference_variable, *args, **kwargs)
    finally:
        _thread.reference = before
