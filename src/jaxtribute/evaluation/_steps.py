"""The step at which a checkpoint was saved."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import jax.numpy as jnp
import numpy as np

from ..checkpoint import Checkpoint, _files
from ..checkpoint._snapshot import ARRAYS

__all__ = ["number_in_name", "saved_step"]

# What counts steps, by the last part of its name: optimizers' counts before a program's own.
_COUNTERS = ("iterations", "iteration", "step", "global_step")


def saved_step(path: str) -> int | None:
    """Return the count of steps that is saved in a checkpoint, whatever else is; None without one.

    It is that of an optimizer, or something called `step`.

    Raises:
      NotFoundError: when there is no checkpoint.
      DataLossError: when it is damaged.
    """
    index = _files.read_index(path, _files.find(path))
    candidates = [name for name in (*index["scalars"], *index[ARRAYS]) if _is_count(index, name)]
    if not candidates:
        return None
    name = min(candidates, key=lambda each: (_rank(each), each.count("/"), each))
    if name in index["scalars"]:
        return index["scalars"][name]
    value: Any = np.zeros((), jnp.dtype(index[ARRAYS][name]["dtype"]))
    first, *others = [unquote(part) for part in name.split("/")]
    for part in reversed(others):
        value = {part: value}
    counter = Checkpoint(**{first: value})
    counter.read(path).expect_partial()
    found = getattr(counter, first)
    for part in others:
        found = found[part]
    return int(found)


def number_in_name(name: str) -> int | None:
    """Return the last number in the name of a checkpoint, such as 12 of `ckpt-12`."""
    numbers = re.findall(r"\d+", re.sub(r"\.h5$", "", name))
    return int(numbers[-1]) if numbers else None


def _rank(name: str) -> int:
    return _COUNTERS.index(name.rpartition("/")[2])


def _is_count(index: dict[str, Any], name: str) -> bool:
    if name.rpartition("/")[2] not in _COUNTERS:
        return False
    if name in index["scalars"]:
        value = index["scalars"][name]
        return isinstance(value, int) and not isinstance(value, bool)
    described = index[ARRAYS][name]
    is_integer = jnp.issubdtype(jnp.dtype(described["dtype"]), jnp.integer)
    return not described["shape"] and is_integer and "key" not in described
