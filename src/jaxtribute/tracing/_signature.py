"""What tells one compiled program of a function from another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .. import _tree
from .._topology import Topology
from .._tree import Structure
from .._wide import asarray, check_fits, check_numeric, is_text
from ..errors import TracerLeakError
from ..values import Mirrored, PerReplica
from ..values._per_replica import learn_types
from ..variables import Variable
from ._feeding import Feeder, StandIn

_PLAIN, _PER_REPLICA = "plain", "per replica"


@dataclass(eq=False)
class Call:
    """The arguments of one call, sorted into inputs of the program and constants in it."""

    key: tuple[Hashable, ...]
    structure: Structure
    constants: list[Any]  # one a leaf, None where an input goes
    inputs: list[Any]
    kinds: list[str | None]  # one a leaf, None for a constant
    topology: Topology | None
    feeders: list[Feeder]  # the iterators among the arguments

    def leaves(self, inputs: list[Any]) -> list[Any]:
        """Return the leaves, with `inputs` in the place of the arrays."""
        remaining = iter(inputs)
        leaves: list[Any] = []
        for kind, constant in zip(self.kinds, self.constants, strict=True):
            if kind is None:
                leaves.append(constant)
            elif kind is _PER_REPLICA:
                assert self.topology is not None
                leaves.append(PerReplica.from_stacked(next(remaining), self.topology))
            else:
                leaves.append(next(remaining))
        return leaves


class RaggedValue(Exception):
    """A per-replica value has no common shape and type, so nothing can be compiled for it."""


def sort_arguments(
    leaves: list[Any],
    structure: Structure,
    context: Hashable,
    function: Callable[..., Any] | None = None,
) -> Call:
    """Sort the leaves of a call.

    Arrays are inputs; everything else is a constant, told apart by type and value, or by identity
    where it cannot be hashed.

    Args:
      leaves: those of the arguments and keywords, and of elements that were read; or of elements.
      structure: that of all of it.
      context: what else programs are told apart by.
      function: whose arguments they are; None for elements.

    Raises:
      RaggedValue: when a per-replica value cannot be one array.
      InvalidArgumentError: for whole numbers of 64 bits that JAX has no room for.
      TypeError: for arrays of text.
      TracerLeakError: for a tracer; nothing is being traced when a call is sorted.
    """
    learn_types([v for v in leaves if isinstance(v, PerReplica) and not v.is_constant])
    signature: list[Hashable] = [context]
    constants: list[Any] = []
    inputs: list[Any] = []
    kinds: list[str | None] = []
    topology: Topology | None = None
    feeders: list[Feeder] = []
    for index, leaf in enumerate(leaves):
        kind: str | None = _PLAIN
        value: Any = leaf
        if isinstance(leaf, Tracer):
            raise TracerLeakError.kept("A jt.function")
        if isinstance(leaf, jax.Array):
            pass
        elif isinstance(leaf, (np.ndarray, np.generic)):
            if is_text(leaf):
                refuse_text([leaf], index, structure, function)
            check_fits(leaf, "A jt.function")
        elif isinstance(leaf, PerReplica) and not leaf.is_constant:
            if leaf.is_of_host:
                refuse_text(leaf.values, index, structure, function)
            kind = _PER_REPLICA
            topology = _devices_of(leaf)
            value = leaf.stacked(topology)
            if value is None:
                raise RaggedValue
        elif isinstance(leaf, Mirrored):
            value = leaf.component(None)
        else:
            kind = None
        kinds.append(kind)
        if isinstance(leaf, Feeder):
            constants.append(StandIn(len(feeders), leaf))
            signature.append((type(leaf), len(feeders)))
            feeders.append(leaf)
        elif kind is None:
            constants.append(leaf)
            signature.append(_identity(leaf))
        else:
            constants.append(None)
            inputs.append(value)
            signature.append((kind, value.shape, value.dtype, getattr(value, "weak_type", False)))
    key = (structure, *signature)
    return Call(key, structure, constants, inputs, kinds, topology, feeders)


def check_no_text(leaves: list[Any], structure: Structure, function: Callable[..., Any]) -> None:
    """Refuse arrays of text among the arguments of what is, or would be, compiled.

    Args:
      leaves: those of the positional arguments and the keywords.
      structure: that of both.
      function: what is called with them.

    Raises:
      TypeError: naming the argument.
    """
    for index, leaf in enumerate(leaves):
        of_replicas = isinstance(leaf, PerReplica) and leaf.is_of_host and not leaf.is_constant
        refuse_text(leaf.values if of_replicas else [leaf], index, structure, function)


def refuse_text(
    values: Sequence[Any], index: int, structure: Structure, function: Callable[..., Any] | None
) -> None:
    """Refuse a leaf whose values, one or one for each replica, are arrays of text.

    The arguments are those of `check_no_text`, or else `function` is None.

    Raises:
      TypeError: naming the argument.
    """
    for value in values:
        if is_text(value):
            check_numeric(value, _described(function, structure.path(index)))


def _described(function: Callable[..., Any] | None, path: tuple[Any, ...]) -> str:
    """Return how messages call a leaf: by the name of its parameter, if it has one."""
    if function is None or path[0].idx > 1:
        return "A compiled function that reads from a dataset"
    name = getattr(function, "__name__", None) or type(function).__name__
    by_keyword = path[0].idx == 1
    parameter = path[1].key if by_keyword else _parameter(function, path[1].idx)
    return f"The argument {parameter}{jax.tree_util.keystr(path[2:])} of {name!r}"


def _parameter(function: Callable[..., Any], position: int) -> str:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # it is not written in Python
        return str(position)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in kinds]
    return positional[position] if position < len(positional) else str(position)


def as_array(leaf: Any) -> Any:
    """Return what a compiled function sees of `leaf`: NumPy arrays become JAX arrays."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return asarray(leaf, "A jt.function")
    if isinstance(leaf, PerReplica) and not leaf.is_constant:
        return PerReplica([as_array(component) for component in leaf.components], leaf.topology)
    return leaf


def _devices_of(value: PerReplica) -> Topology:
    if value.topology is None:
        raise RaggedValue  # made by hand; what runs on which device is up to `run`
    return value.topology


def _identity(leaf: Any) -> Hashable:
    if isinstance(leaf, Variable):
        return ("variable", id(leaf))
    if isinstance(leaf, PerReplica):
        return ("per replica", _identity(leaf.components[0]))
    reference = _tree.reference_key(leaf)
    if reference is not None:
        return reference
    if isinstance(leaf, float):  # 0.0 and -0.0 are equal and not the same; nan is the same
        return (type(leaf), leaf.hex())
    try:
        hash(leaf)
    except TypeError:
        return ("object", id(leaf))
    return (type(leaf), leaf)
