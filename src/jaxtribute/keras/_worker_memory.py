"""Whether a worker has room for what a step of a model reads."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import keras

from .. import _host_memory
from .._host_memory import gibibytes
from ..errors import ResourceExhaustedError
from . import _private

_NAMED = 3


def memory_of_this_machine() -> int:
    """Return how many bytes of memory this process may use at most."""
    return _host_memory.limit() or _host_memory.installed()


def check_memory(model: keras.Model, memory: int, *, training: bool) -> None:
    """Refuse a model of which a step reads more than a worker can hold.

    Args:
      model: the model.
      memory: how many bytes a worker has.
      training: whether there are gradients, too.

    Raises:
      ResourceExhaustedError: when it is too large.
    """
    variables = sorted(_read_whole(model), key=_size_of, reverse=True)
    needed = sum(map(_size_of, variables))
    if training:
        needed += sum(_size_of(variable) for variable in variables if variable.trainable)
    if needed <= memory:
        return
    named = ", ".join(f"{v.path} ({gibibytes(_size_of(v))})" for v in variables[:_NAMED])
    what = "the values and their gradients take" if training else "which take"
    raise ResourceExhaustedError(
        f"A step of the model {model.name!r} reads {len(variables)} variables as a whole: {what} "
        f"{gibibytes(needed)}, and a worker has {gibibytes(memory)} of memory. The largest are "
        f"{named}. Only tables that keras.layers.Embedding looks up are read in rows and may be "
        "larger than a worker: use one for what is looked up, make the other layers smaller, or "
        "give the workers more memory."
    )


def _size_of(variable: Any) -> int:
    return math.prod(variable.shape) * jnp.dtype(variable.dtype).itemsize


def _read_whole(model: keras.Model) -> list[Any]:
    looked_up = {
        id(variable)
        for layer in _private.layers_of(model)
        if isinstance(layer, keras.layers.Embedding)
        for variable in layer.variables
    }
    return [variable for variable in model.variables if id(variable) not in looked_up]
