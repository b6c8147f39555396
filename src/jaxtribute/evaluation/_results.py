"""What was evaluated: a file of which each line is a result, written so that it lasts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._durable import sync_directory

__all__ = ["Result", "Results", "checked_metrics"]


@dataclass(frozen=True)
class Result:
    """What came out for one checkpoint."""

    step: int
    checkpoint: str
    """The path."""
    metrics: Mapping[str, float]
    time: float
    """When, in seconds since 1970."""
    seconds: float
    """How long restoring and evaluating took."""
    id: str
    """Tells checkpoints apart that were saved to the same path one after the other."""

    def line(self) -> str:
        """Return it in one line of JSON, in which a number that is not finite is null."""
        finite = {k: v if math.isfinite(v) else None for k, v in self.metrics.items()}
        return json.dumps(asdict(self) | {"metrics": finite}, allow_nan=False)


class Results:
    """The results of an evaluator, with those of its earlier lives.

    Args:
      path: the file; it is made with the first result.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: list[tuple[str, int]] = []
        self._ends_with_a_line = True
        try:
            contents = path.read_bytes()
        except FileNotFoundError:
            return
        self._ends_with_a_line = contents.endswith(b"\n") or not contents
        self._known = [known for line in contents.splitlines() if (known := _parse(line))]

    def __len__(self) -> int:
        return len(self._known)

    @property
    def evaluated(self) -> set[str]:
        """The ids of the checkpoints that were evaluated."""
        return {each for each, _ in self._known}

    @property
    def last_step(self) -> int | None:
        """The step of the last result."""
        return self._known[-1][1] if self._known else None

    def append(self, result: Result) -> None:
        """Write a result; it is on the disk when this returns."""
        is_new = not self._path.exists()
        # A line that a process was killed in stays behind, and is no line of this result.
        start = "" if self._ends_with_a_line else "\n"
        with self._path.open("ab") as file:
            file.write(f"{start}{result.line()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_directory(self._path.parent)
        self._ends_with_a_line = True
        self._known.append((result.id, result.step))


def checked_metrics(metrics: Any) -> dict[str, float]:
    """Return what an evaluation came to as numbers.

    Raises:
      TypeError: when it is no dict of numbers.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"`evaluate` has to return a dict of numbers, such as {{'loss': 0.1}}, got {metrics!r}."
        )
    return {str(name): _number(str(name), value) for name, value in metrics.items()}


def _number(name: str, value: Any) -> float:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None or array.size != 1:
        raise TypeError(
            f"`evaluate` has to return a dict of numbers, and {name!r} is {value!r}. Return one "
            "number for each name."
        )
    return float(array.reshape(()))


def _parse(line: bytes) -> tuple[str, int] | None:
    """Return the id and the step of a result, None for a line that was not written to its end."""
    try:
        fields = json.loads(line)
        return str(fields["id"]), int(fields["step"])
    except (ValueError, TypeError, KeyError):
        return None
