"""Nested structures: everything JAX treats as one, and dataclasses and subclasses of dict as well.

JAX sees an unregistered dataclass as a single leaf. Here one that holds arrays is opened, so that
step functions may take and return ordinary dataclasses; and so are objects of classes derived from
dict, list and tuple. None is a leaf, as it may stand for the result of one replica only. So is an
object of another library that has state, such as an NNX module: JAX would make another object of
its arrays, and what is assigned to that would be lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

IsLeaf = Callable[[Any], bool]


class Leaf:
    """Marks objects that count as one leaf here, although JAX can see the array inside."""


@dataclasses.dataclass
class References:
    """How objects of a library are told apart that have state, and count as one leaf for it."""

    is_reference: Callable[[Any], bool]
    is_values: Callable[[Any], bool]
    """Tells whether something is a structure of values, whatever there is in it."""
    key: Callable[[Any], Hashable]
    """Returns what programs that use a leaf are told apart by."""
    captured: Callable[[Any], Callable[[], Hashable]]
    """Returns, for a function, what tells the state of what it captures at any time."""
    entered: Callable[[Any], Entered]
    """Takes arguments, or other structures, into a trace or a replica that has begun."""


class Entered(Protocol):
    """Arguments as they are to be used in a trace, or a replica, that has begun."""

    tree: Any

    def left(self, result: Any) -> Any:
        """Return what the function has returned as it is outside.

        Raises:
          ValueError: when something was done to the arguments that would be lost.
        """
        ...


_libraries: list[References] = []


def register(references: References) -> None:
    """Have objects of a library passed by reference."""
    _libraries.append(references)


def is_reference(value: Any) -> bool:
    """Tell whether something is an object of another library that has state."""
    return any(each.is_reference(value) for each in _libraries)


def reference_key(leaf: Any) -> Hashable | None:
    """Return what tells a leaf that is a reference from another one; None for other leaves."""
    return next((each.key(leaf) for each in _libraries if each.is_reference(leaf)), None)


class Captured:
    """What tells one state from another in which the references are that a function captures."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._keys: list[Callable[[], Hashable]] = []

    def key(self) -> Hashable:
        """Return what tells the present state."""
        while len(self._keys) < len(_libraries):  # some may have been imported since
            self._keys.append(_libraries[len(self._keys)].captured(self._function))
        return tuple(key() for key in self._keys)


def call_inside(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function in a trace, or a replica, that has begun, with arguments from outside."""
    entered: list[Entered] = []
    for library in _libraries:
        entered.append(library.entered((args, kwargs)))
        args, kwargs = entered[-1].tree
    result = fn(*args, **kwargs)
    for each in reversed(entered):
        result = each.left(result)
    return result


def _is_own_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Leaf)


def _is_leaf(value: Any) -> bool:
    return _is_own_leaf(value) or (bool(_libraries) and _is_foreign(value))


def _is_foreign(value: Any) -> bool:
    return any(each.is_reference(value) or each.is_values(value) for each in _libraries)


def _is_values(value: Any) -> bool:
    return any(each.is_values(value) for each in _libraries)


@jax.tree_util.register_pytree_node_class
class _Opened:
    """An object taken apart, in a form JAX can flatten: its attributes, and what it contains."""

    def __init__(self, cls: type, fields: dict[str, Any], contents: dict[Any, Any]) -> None:
        self.cls = cls
        self.fields = fields
        self.contents = contents  # by key, or position

    @classmethod
    def of(cls, value: Any) -> _Opened:
        return cls(type(value), _attributes(value), _contents(value))

    def map(self, fn: Callable[[Any], Any]) -> _Opened:
        fields = {name: fn(value) for name, value in self.fields.items()}
        return _Opened(self.cls, fields, {key: fn(value) for key, value in self.contents.items()})

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[type, tuple[Any, ...], tuple[Any, ...]]]:
        children = (*self.fields.values(), *self.contents.values())
        return children, (self.cls, tuple(self.fields), tuple(self.contents))

    @classmethod
    def tree_unflatten(
        cls, aux: tuple[type, tuple[Any, ...], tuple[Any, ...]], children: Sequence[Any]
    ) -> _Opened:
        made, names, keys = aux
        fields = dict(zip(names, children, strict=False))
        return cls(made, fields, dict(zip(keys, children[len(names) :], strict=True)))

    def close(self) -> Any:
        # Not through __init__, which may compute or refuse.
        instance: Any
        if issubclass(self.cls, tuple):
            instance = tuple.__new__(self.cls, self.contents.values())
        elif issubclass(self.cls, list):
            instance = list.__new__(self.cls)
            list[Any].extend(instance, self.contents.values())
        elif issubclass(self.cls, dict):
            instance = dict.__new__(self.cls)
            dict[Any, Any].update(instance, self.contents)
        else:
            instance = object.__new__(self.cls)
        for name, value in self.fields.items():
            object.__setattr__(instance, name, value)
        return instance


@jax.tree_util.register_pytree_node_class
class _OpenedValues:
    """A structure of values of another library, taken apart as far as it goes."""

    def __init__(self, treedef: jax.tree_util.PyTreeDef, leaves: Sequence[Any]) -> None:
        self.treedef = treedef
        self.leaves = leaves

    def tree_flatten(self) -> tuple[Sequence[Any], jax.tree_util.PyTreeDef]:
        return self.leaves, self.treedef

    @classmethod
    def tree_unflatten(cls, aux: jax.tree_util.PyTreeDef, children: Sequence[Any]) -> _OpenedValues:
        return cls(aux, children)

    @classmethod
    def of(cls, value: Any) -> _OpenedValues:
        leaves, treedef = jax.tree.flatten(value, _is_own_leaf)
        return cls(treedef, leaves)

    def close(self) -> Any:
        return jax.tree.unflatten(self.treedef, self.leaves)


def _is_opened(value: Any) -> bool:
    return isinstance(value, (_Opened, _OpenedValues)) or _is_leaf(value)


def _either(is_leaf: IsLeaf) -> IsLeaf:
    return lambda value: _is_leaf(value) or is_leaf(value)


def _is_structure(value: Any) -> bool:
    """Tell whether a leaf is a container, or a dataclass that holds arrays.

    Other dataclasses are objects like any other.
    """
    return isinstance(value, _CONTAINERS) or (
        hasattr(type(value), "__dataclass_fields__")
        and any(
            isinstance(leaf, (jax.Array, np.ndarray, np.generic, Leaf)) or _is_structure(leaf)
            for attribute in _attributes(value).values()
            for leaf in jax.tree.leaves(attribute, is_leaf=_is_leaf)
        )
    )


_CONTAINERS = (dict, list, tuple)  # of classes of their own; JAX opens the others


def _attributes(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance, and what else was stored in it."""
    if hasattr(instance, "__dict__"):
        return vars(instance)
    if not dataclasses.is_dataclass(instance):
        return {}
    return {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}


def _contents(instance: Any) -> dict[Any, Any]:
    if isinstance(instance, dict):
        return dict[Any, Any](instance)
    items: list[Any] = list(instance) if isinstance(instance, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType]
    return dict(enumerate(items))


@dataclasses.dataclass(frozen=True)
class Structure:
    """The shape of a nested value: all of it but the leaves."""

    treedef: jax.tree_util.PyTreeDef
    is_opened: bool

    def path(self, index: int) -> tuple[Any, ...]:
        """Return the way to a leaf, by its number, as JAX has it."""
        numbers = jax.tree.unflatten(self.treedef, range(self.treedef.num_leaves))
        return jax.tree_util.tree_leaves_with_path(numbers)[index][0]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Rebuild a value of this structure from its leaves."""
        tree = jax.tree.unflatten(self.treedef, leaves)
        return _close(tree) if self.is_opened else tree


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of `tree`, and its structure, which can rebuild it from leaves."""
    is_leaf = _is_leaf if is_leaf is None else _either(is_leaf)
    leaves, treedef = jax.tree.flatten(tree, is_leaf)
    if any(_is_to_be_opened(leaf, is_leaf) for leaf in leaves):
        leaves, treedef = jax.tree.flatten(_open(tree, is_leaf), is_leaf)
        return leaves, Structure(treedef, is_opened=True)
    return leaves, Structure(treedef, is_opened=False)


def _is_to_be_opened(leaf: Any, is_leaf: IsLeaf) -> bool:
    return _is_values(leaf) or (_is_structure(leaf) and not is_leaf(leaf))


def map_leaves(fn: Callable[..., Any], tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Apply `fn` to each leaf of `tree`."""
    leaves, structure = flatten(tree, is_leaf)
    return structure.unflatten([fn(leaf) for leaf in leaves])


def _open(tree: Any, is_leaf: IsLeaf) -> Any:
    def open_leaf(leaf: Any) -> Any:
        if _is_values(leaf):
            return _OpenedValues.of(leaf)
        if is_leaf(leaf) or not _is_structure(leaf):
            return leaf
        return _Opened.of(leaf).map(lambda part: _open(part, is_leaf))

    return jax.tree.map(open_leaf, tree, is_leaf=is_leaf)


def _close(tree: Any) -> Any:
    def close_node(node: Any) -> Any:
        if isinstance(node, _OpenedValues):
            return node.close()
        if not isinstance(node, _Opened):
            return node
        return node.map(_close).close()

    return jax.tree.map(close_node, tree, is_leaf=_is_opened)
