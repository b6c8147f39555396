"""Checking what the methods of a dataset are given."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError


def as_seed(method: str, seed: Any) -> int:
    """Return a seed as a Python number."""
    try:
        return operator.index(seed)
    except TypeError:
        raise InvalidArgumentError(
            f"Dataset.{method}: seed must be an int, got {seed!r}."
        ) from None


def check_callable(method: str, value: Any) -> None:
    """Refuse what is no function."""
    if not callable(value):
        raise TypeError(f"Dataset.{method} takes a function, got {value!r}.")


def check_count(method: str, name: str, value: Any, at_least: int) -> None:
    """Refuse what is no whole number, or too small a one."""
    is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_number or value < at_least:
        raise InvalidArgumentError(
            f"Dataset.{method}: {name} must be a number of at least {at_least}, got {value!r}."
        )
