"""Errors as messages: what a handler raises is raised again where it was asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import errors
from ..errors import InternalError, JaxtributeError

Argument = str | int | float | bool | None | list[str]


class Failure(msgspec.Struct, tag="failure", tag_field="message", frozen=True):
    """An exception: the name of its class, what it was made with, and its text."""

    name: str
    arguments: list[Argument]
    text: str


_LONGEST_TEXT = 100_000


def failure_of(error: Exception) -> Failure:
    """Return an exception as it is sent: one of ours as what it is, another as internal."""
    text = str(error)[:_LONGEST_TEXT]
    if not isinstance(error, JaxtributeError):
        return Failure("InternalError", [f"{type(error).__name__}: {text}"], text)
    known = next(c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES)
    arguments: list[Any] = [list(a) if isinstance(a, tuple) else a for a in error.args]
    if known != type(error).__name__ or not all(_is_plain(a) for a in arguments):
        arguments = [text]
    return Failure(known, arguments, text)


def error_of(failure: Failure, task: str) -> JaxtributeError:
    """Return the exception that a task has answered with."""
    try:
        error = _CLASSES[failure.name](*failure.arguments)
    except (KeyError, TypeError, ValueError):  # of a version that knows others
        error = InternalError(f"{failure.name}: {failure.text}")
    error.add_note(f"This happened on {task}.")
    return error


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(v, str) for v in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    return value is None or isinstance(value, int | float)


_CLASSES: dict[str, type[JaxtributeError]] = {
    name: getattr(errors, name) for name in errors.__all__
}
