"""What a name of TensorFlow is called here."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from ._names import ENTRIES, Code, Entry, Person, Renamed, Topic

__all__ = ["exists", "look_up"]

_TENSORFLOW = "tensorflow"


@cache
def look_up(name: str) -> Entry | None:
    """Return what becomes of a name, or `None` if it is not one of TensorFlow's to decide on.

    Args:
      name: the whole name, such as `tensorflow.distribute.MirroredStrategy`.
    """
    if not name.startswith(f"{_TENSORFLOW}."):
        return None
    path = name.removeprefix(f"{_TENSORFLOW}.").removeprefix("compat.v2.")
    entry = _longest(path)
    if entry is None and path.startswith("compat.v1."):
        entry = _longest(path.removeprefix("compat.v1."))
    if entry is None:
        return Person("has no counterpart here", Topic.NAMES)
    if isinstance(entry, Renamed) and not exists(entry.target):
        return Person("has no counterpart here", Topic.NAMES)
    return entry


def _longest(path: str) -> Entry | None:
    """Return the entry that most of `path` belongs to, for all of `path`."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        entry = ENTRIES.get(".".join(parts[:length]))
        rest = parts[length:]
        if entry is not None and rest and isinstance(entry, Renamed):
            return Renamed(".".join([entry.target, *rest]))
        if entry is not None:
            return None if rest and isinstance(entry, Code) else entry
    return None


def exists(target: str) -> bool:
    """Tell whether something has this name; Keras, which may be missing, is not asked."""
    parts = target.split(".")
    if parts[0] == "keras" or target.startswith("jaxtribute.keras."):
        return True
    found: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=1):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[: number + 1]))
            except ModuleNotFoundError:
                return False
    return True
