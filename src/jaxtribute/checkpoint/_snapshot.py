"""A copy of the state on the host, from which a checkpoint is written.

Taking it and writing it are separate, so that training can go on while it is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .._group import Group
from .._reduce import VariableAggregation
from ..errors import InvalidArgumentError
from ..variables import SyncOnReadVariable
from . import _arrays, _files
from ._objects import Found, is_random_key, is_scalar
from ._optimizers import whole

ARRAYS = "arrays"  # the name of a directory, and of a part of the index


@dataclass(frozen=True)
class Snapshot:
    """Arrays by name, and everything else as JSON."""

    arrays: Mapping[str, np.ndarray[Any, Any]]
    index: dict[str, Any]


def own_states(found: Found) -> dict[str, Any]:
    """Return the state of this worker's iterators, after checking that all can be saved.

    Raises:
      ValueError: when something cannot be saved.
    """
    for name, variable in found.variables.items():
        if (
            isinstance(variable, SyncOnReadVariable)
            and variable.aggregation is VariableAggregation.NONE
        ):
            raise ValueError(
                f"{name!r} cannot be saved: the variable {variable.name!r} has synchronization "
                "ON_READ and VariableAggregation.NONE, which does not say how the replicas' values "
                "are to be combined into one. Create it with SUM, MEAN or ONLY_FIRST_REPLICA."
            )
    for name, plain in found.plain.items():
        value = plain.value
        if isinstance(value, jax.Array) and not (
            value.is_fully_addressable or value.is_fully_replicated
        ):
            raise ValueError(
                f"{name!r} cannot be saved: parts of the array are in other processes. Keep it in "
                "a jt.Variable of the strategy, or gather it first."
            )
    states = {name: iterator.get_state() for name, iterator in found.iterators.items()}
    for name, state in states.items():
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name!r} cannot be saved: the state of {found.iterators[name]!r} cannot be "
                f"written as JSON ({error}). Use an iterator of jt.data or Grain's datasets."
            ) from error
    return states


def take(
    found: Found, states: Sequence[Mapping[str, Any]], number: int, writes: bool
) -> Snapshot | None:
    """Copy the state to the host.

    Reading a variable that is combined when read is something all workers do together; the rest
    is copied by the worker that writes.

    Args:
      found: the state.
      states: those of the iterators, by worker.
      number: how many checkpoints were saved, with this one.
      writes: whether this worker writes; others get None.
    """
    kept: dict[str, Any] = {
        name: variable.value()
        for name, variable in found.variables.items()
        if writes or isinstance(variable, SyncOnReadVariable)
    }
    if not writes:
        return None
    described: dict[str, dict[str, Any]] = {}
    scalars: dict[str, Any] = {}
    for name, plain in found.plain.items():
        if is_scalar(plain.value):
            scalars[name] = plain.value
        elif is_random_key(plain.value):
            kept[name] = jax.random.key_data(plain.value)
            described[name] = {"key": str(jax.random.key_impl(plain.value))}
        else:
            kept[name] = plain.value
    for array in kept.values():
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    # A variable whose array was handed out is not updated in place, so these stay what they are.
    arrays = {name: np.asarray(array) for name, array in kept.items()}
    for name, array in arrays.items():
        described.setdefault(name, {}).update(shape=array.shape, dtype=str(array.dtype))
    index = {
        ARRAYS: described,
        "scalars": scalars,
        "iterators": {name: [own[name] for own in states] for name in found.iterators},
        "aliases": found.aliases,
        "optimizers": {
            name: found.names_of(whole(optimizer, found.sharded))
            for name, optimizer in found.optimizers.items()
        },
        "save_counter": number,
    }
    return Snapshot(arrays, index)


def write(path: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write a checkpoint, which comes into being at the end and as a whole."""
    _files.clear_neighbours(path)
    data = _files.begin(path)
    try:
        _arrays.save(data / ARRAYS, snapshot.arrays)
        _files.commit(path, data, snapshot.index, time.time())
    finally:
        _files.clear(path)  # the contents it replaces, or those that did not become a checkpoint


# --- The same objects on all workers ---------------------------------------------------------


def digest(found: Found) -> str:
    """Return a short text that tells whether workers save the same objects."""
    return hashlib.sha256("\n".join(_described(found)).encode()).hexdigest()


def check_same_objects(group: Group, found: Found, digests: Sequence[str]) -> None:
    """Refuse to save what differs between workers.

    Raises:
      InvalidArgumentError: when workers have different objects.
    """
    if len(set(digests)) == 1:
        return
    reports = group.agree("compare what is to be saved", json.dumps(_described(found)))
    own = [set(json.loads(report)) for report in reports]
    for task, others in zip(group.tasks[1:], own[1:], strict=True):
        if only := sorted(own[0] ^ others):
            raise InvalidArgumentError(
                f"{group.tasks[0]} and {task} save different objects, so one checkpoint cannot "
                f"stand for both. Only one of them has: {', '.join(only[:10])}. Create the same "
                "objects on all workers."
            )


def _described(found: Found) -> list[str]:
    variables = [f"{n} {list(v.shape)} {v.dtype}" for n, v in found.variables.items()]
    return sorted([*variables, *found.iterators, *found.plain])
