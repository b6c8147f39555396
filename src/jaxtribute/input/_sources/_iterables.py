"""Anything that can be iterated again and again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp

from ... import _tree
from ...data import _ops
from ...data._elements import as_element


class IterableSource:
    """Anything that can be iterated again and again."""

    spec = None

    def __init__(self, iterable: Iterable[Any], name: str = "") -> None:
        self._iterable = iterable
        self.name = name or f"the iterable {type(iterable).__name__}"
        try:
            self.size = len(iterable)  # pyright: ignore[reportArgumentType]
        except TypeError:
            self.size = _ops.UNKNOWN_CARDINALITY

    def open(self) -> Iterator[Any]:
        """Start reading."""
        return Converted(iter(self._iterable))


class Converted:
    """An iterator whose elements become NumPy arrays, with the state of the original, if any."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        if hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
            self.get_state = iterator.get_state
            self.set_state = iterator.set_state
        if hasattr(iterator, "close"):
            self.close = iterator.close

    def __iter__(self) -> Converted:
        return self

    def __next__(self) -> Any:
        return _tree.map_leaves(as_numpy, next(self._iterator), _is_text)


def _is_text(node: Any) -> bool:
    """Tell a list of texts, which is what PyTorch makes of a batch of them: one array."""
    return isinstance(node, list) and bool(node) and all(isinstance(t, (str, bytes)) for t in node)


def as_numpy(leaf: Any) -> Any:
    if type(leaf).__module__.partition(".")[0] == "torch":
        return from_tensor(leaf.detach().cpu())
    return as_element(leaf)


def from_tensor(tensor: Any) -> Any:
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type of its own
        torch = sys.modules["torch"]
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()
