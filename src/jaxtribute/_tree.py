"""Nested structures: everything JAX treats as one, and plain dataclasses as well.

JAX sees an unregistered dataclass as a single leaf. Here one that holds arrays is opened, so that
step functions may take and return ordinary dataclasses. None is a leaf, as it may stand for the
result of one replica only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

IsLeaf = Callable[[Any], bool]


class Leaf:
    """Marks objects that count as one leaf here, although JAX can see the array inside."""


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Leaf)


@jax.tree_util.register_pytree_node_class
class _Opened:
    """A dataclass instance taken apart, in a form JAX can flatten."""

    def __init__(self, cls: type, fields: dict[str, Any]) -> None:
        self.cls = cls
        self.fields = fields

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[type, tuple[str, ...]]]:
        return tuple(self.fields.values()), (self.cls, tuple(self.fields))

    @classmethod
    def tree_unflatten(cls, aux: tuple[type, tuple[str, ...]], children: Sequence[Any]) -> _Opened:
        return cls(aux[0], dict(zip(aux[1], children, strict=True)))

    def close(self) -> Any:
        # Not through __init__, which may compute or refuse.
        instance = object.__new__(self.cls)
        for name, value in self.fields.items():
            object.__setattr__(instance, name, value)
        return instance


def _is_opened(value: Any) -> bool:
    return isinstance(value, _Opened) or _is_leaf(value)


def _either(is_leaf: IsLeaf) -> IsLeaf:
    return lambda value: _is_leaf(value) or is_leaf(value)


def _is_structure(value: Any) -> bool:
    """Tell whether a leaf is a dataclass that holds arrays; others are objects like any other."""
    return hasattr(type(value), "__dataclass_fields__") and any(
        isinstance(leaf, (jax.Array, np.ndarray, np.generic, Leaf)) or _is_structure(leaf)
        for attribute in _attributes(value).values()
        for leaf in jax.tree.leaves(attribute, is_leaf=_is_leaf)
    )


def _attributes(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance, and what else was stored in it."""
    if hasattr(instance, "__dict__"):
        return vars(instance)
    return {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}


@dataclasses.dataclass(frozen=True)
class Structure:
    """The shape of a nested value: all of it but the leaves."""

    treedef: jax.tree_util.PyTreeDef
    has_dataclasses: bool

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Rebuild a value of this structure from its leaves."""
        tree = jax.tree.unflatten(self.treedef, leaves)
        return _close(tree) if self.has_dataclasses else tree


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of `tree`, and its structure, which can rebuild it from leaves."""
    is_leaf = _is_leaf if is_leaf is None else _either(is_leaf)
    leaves, treedef = jax.tree.flatten(tree, is_leaf)
    if any(_is_structure(leaf) and not is_leaf(leaf) for leaf in leaves):
        leaves, treedef = jax.tree.flatten(_open(tree, is_leaf), is_leaf)
        return leaves, Structure(treedef, has_dataclasses=True)
    return leaves, Structure(treedef, has_dataclasses=False)


def map_leaves(fn: Callable[..., Any], tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Apply `fn` to each leaf of `tree`."""
    leaves, structure = flatten(tree, is_leaf)
    return structure.unflatten([fn(leaf) for leaf in leaves])


def _open(tree: Any, is_leaf: IsLeaf) -> Any:
    def open_leaf(leaf: Any) -> Any:
        if is_leaf(leaf) or not _is_structure(leaf):
            return leaf
        return _Opened(type(leaf), {k: _open(v, is_leaf) for k, v in _attributes(leaf).items()})

    return jax.tree.map(open_leaf, tree, is_leaf=is_leaf)


def _close(tree: Any) -> Any:
    def close_node(node: Any) -> Any:
        if not isinstance(node, _Opened):
            return node
        return _Opened(node.cls, {k: _close(v) for k, v in node.fields.items()}).close()

    return jax.tree.map(close_node, tree, is_leaf=_is_opened)
