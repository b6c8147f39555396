"""What tells one compiled program of a function from another."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .. import _tree
from .._topology import Topology
from .._tree import Structure
from .._wide import asarray, check_fits
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


def sort_arguments(leaves: list[Any], structure: Structure, context: Hashable) -> Call:
    """Sort the leaves of a call.

    Arrays are inputs; everything else is a constant, told apart by type and value, or by identity
    where it cannot be hashed.

    Raises:
      RaggedValue: when a per-replica value cannot be one array.
      InvalidArgumentError: for whole numbers of 64 bits that JAX has no room for.
      TracerLeakError: for a tracer; nothing is being traced when a call is sorted.
    """
    learn_types([v for v in leaves if isinstance(v, PerReplica) and not v.is_constant])
    signature: list[Hashable] = [context]
    constants: list[Any] = []
    inputs: list[Any] = []
    kinds: list[str | None] = []
    topology: Topology | None = None
    feeders: list[Feeder] = []
    for leaf in leaves:
        kind: str | None = _PLAIN
        value: Any = leaf
        if isinstance(leaf, Tracer):
            raise TracerLeakError.kept("A jt.function")
        if isinstance(leaf, jax.Array):
            pass
        elif isinstance(leaf, (np.ndarray, np.generic)):
            check_fits(leaf, "A jt.function")
        elif isinstance(leaf, PerReplica) and not leaf.is_constant:
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


def as_array(leaf: Any) -> Any:
    """Return what a compiled function sees of `leaf`: NumPy arrays become JAX arrays."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return asarray(leaf, "A jt.function")
    if isinstance(leaf, PerReplica) and not leaf.is_constant:
        return PerReplica([as_array(component) for component in leaf.values], leaf.topology)
    return leaf


def _devices_of(value: PerReplica) -> Topology:
    if value.topology is None:
        raise RaggedValue  # made by hand; what runs on which device is up to `run`
    return value.topology


def _identity(leaf: Any) -> Hashable:
    if isinstance(leaf, Variable):
        return ("variable", id(leaf))
    if isinstance(leaf, PerReplica):
        return ("per replica", _identity(leaf.values[0]))
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
