"""How long this process waits for others, and how it says so."""

from __future__ import annotations

import os
import sys


def join_limit() -> float:
    """Return how many seconds workers wait for each other at the start."""
    return seconds("JAXTRIBUTE_JOIN_TIMEOUT", 300.0)


def silence_limit() -> float:
    """Return after how many seconds without a sign of life a process counts as lost."""
    return seconds("JAXTRIBUTE_SILENCE_TIMEOUT", 10.0)


def seconds(variable: str, default: float) -> float:
    """Return the seconds that an environment variable says.

    Raises:
      ValueError: when it says something else.
    """
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:  # neither is one that is not a number
        raise ValueError(f"{variable} must be a positive number of seconds, got {text!r}.")
    return number


def say(text: str) -> None:
    """Tell the user something that is no result of the program."""
    print(f"jaxtribute: {text}", file=sys.stderr, flush=True)
