"""Flax NNX in functions and arguments that are sent to workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import nnx

from . import _reducers


def _reduced(value: Any) -> Any:
    """Return what `__reduce__` would for what NNX has made, or NotImplemented for others.

    Raises:
      TypeError: for a variable, which would become another one there.
    """
    if isinstance(value, nnx.State):
        flat = [(tuple(way), _taken_apart(held)) for way, held in nnx.to_flat_state(value)]
        return _state, (flat,)
    if isinstance(value, nnx.Variable):
        raise TypeError(
            f"an nnx.{type(value).__name__} of shape {value.shape} exists on the coordinator only, "
            "so workers would have copies of it, and what they assign would be lost. Pass the "
            "state that nnx.split returns, and return the new one; or keep what is trained in "
            "jt.Variables, which are on the parameter servers."
        )
    return NotImplemented


def _taken_apart(held: Any) -> tuple[type | None, Any, dict[str, Any]]:
    if not isinstance(held, nnx.Variable):
        return None, held, {}
    return type(held), held.get_raw_value(), held.get_metadata()


def _state(flat: Sequence[tuple[tuple[Any, ...], tuple[Any, Any, dict[str, Any]]]]) -> Any:
    return nnx.from_flat_state(
        [
            (way, value if kind is None else kind.from_metadata(value, metadata))
            for way, (kind, value, metadata) in flat
        ]
    )


_reducers.register(_reduced)
