"""What a checkpoint consists of: the state found by going through objects, each part with a name.

A name is the way to it, such as `model/layers/0/w`: attributes, positions in lists, keys of dicts.
An object that can be reached in several ways is found once, and the other ways are noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _tree
from .._array_files import can_store
from .._group import Group
from ..module import Module
from ..optimizers import Optimizer
from ..sharded import ShardedVariable
from ..tracing import Feeder
from ..values import DistributedValues
from ..variables import Variable
from . import _adapters
from ._adapters import FoundOptimizer, OtherOptimizer, OtherVariable
from ._optimizers import optimized, slots
from ._together import group_of

ROOT = "_root"
_SCALARS = (bool, int, float, str)
_VARIABLES = (Variable, ShardedVariable, OtherVariable)
_ARRAYS = (jax.Array, np.ndarray, np.generic)
_WHAT_IS_KEPT = (
    "It keeps variables, modules, optimizers, metrics, iterators, objects of Keras and Flax NNX, "
    "arrays and numbers, and nested structures of them."
)


class Holder:
    """An object whose public attributes are kept, also when they hold arrays and numbers.

    What its attribute `_root` holds is kept as if the holder held it itself.
    """


def can_be_root(value: Any) -> bool:
    """Tell whether something consists of parts that have names."""
    if isinstance(value, (Module, Holder, dict, list, tuple)):
        return True
    _adapters.load()
    adapter = _adapters.adapter_of(value)
    return adapter is not None and adapter.variable is None


def held(holder: Holder) -> dict[str, Any]:
    """Return what an object holds, by attribute."""
    kept = [name for name in sorted(vars(holder)) if name == ROOT or not name.startswith("_")]
    return {name: vars(holder)[name] for name in kept}


def owners(holder: Holder) -> list[Any]:
    """Return the objects that somebody holds and that may be given parts of their own later."""
    found: list[Any] = []
    for value in held(holder).values():
        for _, leaf in leaves(value):
            adapter = _adapters.adapter_of(leaf)
            if isinstance(leaf, (Module, Holder)) or (adapter is not None and adapter.has_room):
                found.append(leaf)
    return found


@dataclass(frozen=True)
class Plain:
    """An array or a number in an attribute: what cannot change, and is replaced when restored."""

    holder: Holder
    attribute: str
    position: int  # among the leaves of what the attribute holds
    value: Any


@dataclass
class Found:
    """The state of objects, by name."""

    # Of this package, also divided ones, or an `OtherVariable`.
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    iterators: dict[str, Any] = field(default_factory=dict[str, Any])
    plain: dict[str, Plain] = field(default_factory=dict[str, Plain])
    # Of this package, or a `FoundOptimizer`.
    optimizers: dict[str, Any] = field(default_factory=dict[str, Any])
    # Other ways to what was found already, each with the name it was found by.
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    # The lists and dicts on the way, to which something may be added.
    containers: list[Any] = field(default_factory=list[Any])

    def names(self) -> set[str]:
        """Return the names of all state."""
        return self.variables.keys() | self.iterators.keys() | self.plain.keys()

    def group(self) -> Group:
        """Return the workers that have this state in common."""
        return group_of(self.variables.values())

    @property
    def sharded(self) -> list[ShardedVariable]:
        """The variables that are divided."""
        return [v for v in self.variables.values() if isinstance(v, ShardedVariable)]

    def names_of(self, variables: Iterable[Variable]) -> list[str] | None:
        """Return the names of variables; None if some are not part of this."""
        names = {id(variable): name for name, variable in self.variables.items()}
        own = [names.get(id(variable)) for variable in variables]
        return None if None in own else [name for name in own if name is not None]


def find(holder: Holder) -> Found:
    """Return the state of everything an object holds.

    Raises:
      ValueError: when two parts have the same name, or something cannot be kept.
    """
    _adapters.load()
    finder = _Finder()
    finder.visit(holder, "")
    finder.add_states()
    return finder.found


class _Finder:
    def __init__(self) -> None:
        self.found = Found()
        self._seen: dict[int, tuple[str, Any]] = {}  # and the object, which must not go away
        self._taken: set[str] = set()
        # Variables of other libraries: how they are kept, and what is behind what is kept.
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._originals: dict[int, Any] = {}
        self._others: dict[str, OtherOptimizer] = {}

    def visit(self, value: Any, path: str) -> None:
        """Note what an object holds, unless it was met before."""
        if isinstance(value, (list, tuple)):
            self.found.containers.append(value)
            for index, item in enumerate(value):
                self.visit(item, _join(path, index))
        elif isinstance(value, dict):
            self.found.containers.append(value)
            for key, item in value.items():
                self.visit(item, _join(path, key))
        elif is_stateful(value):
            kept = self._as_kept(value)
            if kept is None:  # a variable that has no value yet
                return
            first, _ = self._seen.setdefault(id(kept), (path, kept))
            if first != path:
                self.found.aliases[path] = first
            else:
                self._open(kept, path)

    def _as_kept(self, value: Any) -> Any:
        """Return a variable of another library as what is kept, and other things as they are."""
        adapter = _adapters.adapter_of(value)
        if adapter is None or adapter.variable is None:
            return value
        if id(value) not in self._kept:
            kept = adapter.variable(value)
            self._kept[id(value)] = value, kept
            self._originals[id(kept)] = value
        return self._kept[id(value)][1]

    def _open(self, value: Any, path: str) -> None:
        if isinstance(value, _VARIABLES):  # of divided ones the parts are not told apart
            self._add(self.found.variables, path, value)
        elif isinstance(value, Optimizer):
            self.found.optimizers[path] = value
            self._add(self.found.variables, _join(path, "iterations"), value.iterations)
        elif isinstance(value, Module):
            for name, item in sorted(vars(value).items()):
                self.visit(item, _join(path, name))
        elif isinstance(value, Holder):
            for name, item in held(value).items():
                self._visit_held(value, name, item, path if name == ROOT else _join(path, name))
        elif (adapter := _adapters.adapter_of(value)) is not None:
            self._open_other(adapter, value, path)
        else:
            self._add(self.found.iterators, path, value)

    def _open_other(self, adapter: _adapters.Adapter, value: Any, path: str) -> None:
        if adapter.optimizer is not None:
            optimizer = self._others[path] = adapter.optimizer(value)
            # Its variables are not known before all is found; the place is that of the optimizer.
            self.found.optimizers[path] = None
            parts = optimizer.parts()
        else:
            parts = adapter.parts(value) if adapter.parts is not None else ()
        for way, part in parts:
            self.visit(part, "/".join(filter(None, [path, *map(_escape, way)])))

    def _visit_held(self, holder: Holder, attribute: str, value: Any, path: str) -> None:
        self._note_containers(value)
        for position, (keys, leaf) in enumerate(leaves(value)):
            name = "/".join(filter(None, [path, *map(_part, keys)]))
            if is_stateful(leaf):
                self.visit(leaf, name)
            elif leaf is not None:
                self._add(self.found.plain, name, Plain(holder, attribute, position, leaf))

    def _note_containers(self, value: Any) -> None:
        if isinstance(value, (list, tuple, dict)):
            held: Any = value
            self.found.containers.append(held)
            for item in held.values() if isinstance(held, dict) else held:
                self._note_containers(item)

    def add_states(self) -> None:
        """Note the state of optimizers, each part by the name of the variable it belongs to."""
        names = {id(variable): name for name, variable in self.found.variables.items()}
        for path in self.found.optimizers:
            if path in self._others:
                self._add_other_state(path, self._others[path], names)
            else:
                self._add_state(path, self.found.optimizers[path], names)

    def _add_state(self, path: str, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        positions = {id(variable): str(i) for i, variable in enumerate(optimized(optimizer))}
        for keys, owner, slot in slots(optimizer, self.found.sharded):
            parts = [_part(key) for key in keys]
            if owner is not None:
                parts.append(names.get(id(owner)) or positions[id(owner)])
            self._add(self.found.variables, "/".join([state_name(path), *parts]), slot)

    def _add_other_state(
        self, path: str, optimizer: OtherOptimizer, names: Mapping[int, str]
    ) -> None:
        variables = [self._as_kept(variable) for variable in optimizer.optimized()]
        self.found.optimizers[path] = FoundOptimizer(optimizer, self._originals, variables)
        positions = {id(variable): str(i) for i, variable in enumerate(variables)}
        for what, owner, slot in optimizer.slots():
            own = id(self._as_kept(owner))
            name = names.get(own) or positions[own]
            self.visit(slot, "/".join([state_name(path), _escape(what), name]))

    def _add(self, kind: dict[str, Any], path: str, value: Any) -> None:
        if path in self._taken:
            raise ValueError(
                f"Two different things would have the name {path!r} in a checkpoint. Rename the "
                "attribute or the key of one of them."
            )
        self._taken.add(path)
        kind[path] = value


# --- Leaves of what an attribute holds -----------------------------------------------------


def leaves(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return what a nested structure consists of, each with the way to it."""
    return jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_leaf)[0]


def with_leaves(value: Any, replaced: Mapping[int, Any]) -> Any:
    """Return a structure with other leaves at some positions; lists and dicts change in place."""
    old, structure = jax.tree_util.tree_flatten(value, is_leaf=_is_leaf)
    new = [replaced.get(position, leaf) for position, leaf in enumerate(old)]
    return _put(value, jax.tree_util.tree_unflatten(structure, new))


def _put(old: Any, new: Any) -> Any:
    if type(old) is dict:
        for key in old:
            old[key] = _put(old[key], new[key])
    elif type(old) is list:
        old[:] = map(_put, old, new)
    else:
        return new
    return old


def _is_leaf(value: Any) -> bool:
    if value is None or isinstance(value, (_tree.Leaf, DistributedValues)):
        return True
    return _adapters.adapter_of(value) is not None  # also of what JAX could look into


def is_stateful(value: Any) -> bool:
    """Tell whether an object is restored by changing it, rather than replaced."""
    if isinstance(value, (*_VARIABLES, Module, Holder)):
        return True
    return _adapters.adapter_of(value) is not None or _is_iterator(value)


def _is_iterator(value: Any) -> bool:
    if isinstance(value, Feeder):
        return True
    # Iterators of other libraries, such as Grain's.
    return all(hasattr(type(value), name) for name in ("__next__", "get_state", "set_state"))


def check_can_hold(attribute: str, value: Any) -> None:
    """Refuse what cannot be kept.

    Raises:
      ValueError: when it cannot.
    """
    _adapters.load()
    for keys, leaf in leaves(value):
        adapter = _adapters.adapter_of(leaf)
        if adapter is not None and adapter.variable is not None:
            adapter.variable(leaf)  # which may refuse
        if leaf is not None and not is_stateful(leaf) and not is_plain(leaf):
            name = "/".join([attribute, *map(_part, keys)])
            advice = getattr(type(leaf), "instead_of_saving", _WHAT_IS_KEPT)
            raise ValueError(
                f"A checkpoint cannot keep {name!r}, which is {leaf!r} of type "
                f"{type(leaf).__name__}. {advice}"
            )


def is_plain(value: Any) -> bool:
    """Tell whether something is an array, a random key, a number or a text."""
    if isinstance(value, DistributedValues):
        return False
    if is_random_key(value):
        return True
    if isinstance(value, _ARRAYS):
        return can_store(value.dtype)
    return isinstance(value, _SCALARS)


def is_scalar(value: Any) -> bool:
    """Tell whether something is kept as it is, and not as an array."""
    return isinstance(value, _SCALARS) and not isinstance(value, np.generic)


def is_random_key(value: Any) -> bool:
    """Tell whether something is an array of `jax.random.key`."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


# --- Names ---------------------------------------------------------------------------------


def state_name(optimizer: str) -> str:
    """Return what the names of an optimizer's state begin with."""
    return _join(optimizer, "state")


def _join(path: str, part: Any) -> str:
    return f"{path}/{_escape(part)}" if path else _escape(part)


def _part(key: Any) -> str:
    return _escape(jax.tree_util.keystr((key,), simple=True))


def _escape(part: Any) -> str:
    return str(part).replace("%", "%25").replace("/", "%2F")


def all_names(name: str, aliases: Mapping[str, str]) -> Iterator[str]:
    """Yield how something may be called when what is on the way to it has several names.

    Args:
      name: its name, which comes first.
      aliases: names, and other names of the same objects.
    """
    yield name
    for alias, first in aliases.items():
        for before, after in ((alias, first), (first, alias)):
            if (other := _rename(name, before, after)) is not None:
                yield other


def _rename(name: str, before: str, after: str) -> str | None:
    if name == before:
        return after
    return f"{after}/{name[len(before) + 1 :]}" if name.startswith(before + "/") else None
