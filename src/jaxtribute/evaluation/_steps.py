"""The step at which a checkpoint was saved."""

from __future__ import annotations

import re

import jax.numpy as jnp

from ..checkpoint import load_checkpoint

__all__ = ["number_in_name", "saved_step"]

# What counts steps, by the end of its name: optimizers' counts before a program's own. The last is
# that of an optimizer in the files of Keras, which number its variables.
_COUNTERS = ("iterations", "iteration", "step", "global_step", "optimizer/vars/0")


def saved_step(path: str) -> int | None:
    """Return the count of steps that is saved in a checkpoint, whatever else is; None without one.

    It is that of an optimizer, or something called `step`.

    Raises:
      NotFoundError: when there is no checkpoint.
      DataLossError: when it is damaged.
    """
    reader = load_checkpoint(path)
    types = reader.get_variable_to_dtype_map()
    counters = [
        (rank, name.count("/"), name)
        for name, shape in reader.get_variable_to_shape_map().items()
        for rank, counter in enumerate(_COUNTERS)
        if f"/{name}".endswith(f"/{counter}")
        if not shape and jnp.issubdtype(types[name], jnp.integer)
    ]
    return int(reader.get_tensor(min(counters)[-1])) if counters else None


def number_in_name(name: str) -> int | None:
    """Return the last number in the name of a checkpoint, such as 12 of `ckpt-12`."""
    numbers = re.findall(r"\d+", re.sub(r"\.h5$", "", name))
    return int(numbers[-1]) if numbers else None
