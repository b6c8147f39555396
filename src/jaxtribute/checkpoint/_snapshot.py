"""The state at one moment, from which a checkpoint is written while training goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import _array_files
from .._array_files import Checksums, Part
from .._group import Group
from .._reduce import VariableAggregation
from ..errors import InvalidArgumentError
from ..remote import RemoteVariable
from ..remote._files import Saving, place_of
from ..variables import SyncOnReadVariable
from . import _files, _sources
from ._objects import Found, is_random_key, is_scalar
from ._optimizers import whole
from ._pieces import Piece, pieces_of
from ._sources import ARRAYS


@dataclass(frozen=True)
class Snapshot:
    """Values of this process, those that parameter servers hold, and everything else as JSON."""

    local: list[tuple[str, int, Any]]  # names, first rows, arrays
    remote: list[tuple[str, int, RemoteVariable]]
    session: Any
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
    """Take the state as it is now; on CPUs without waiting until it is computed.

    Reading a variable that is combined when read is something all workers do together; the rest
    is taken by the worker that writes.

    Args:
      found: the state.
      states: those of the iterators, by worker.
      number: how many checkpoints were saved, with this one.
      writes: whether this worker writes; others get None.
    """
    pieces = {
        name: pieces_of(variable)
        for name, variable in found.variables.items()
        if writes or isinstance(variable, SyncOnReadVariable)
    }
    local = [
        (name, piece.start, _kept(piece.variable.value()))
        for name, own in pieces.items()
        for piece in own
        if not piece.is_remote
    ]
    if not writes:
        return None
    described = {
        name: _described_array(
            found.variables[name],
            [Part(_place(piece), piece.start, piece.stop) for piece in own],
        )
        for name, own in pieces.items()
    }
    scalars: dict[str, Any] = {}
    for name, plain in found.plain.items():
        value = plain.value
        if is_scalar(value):
            scalars[name] = value
            continue
        array: Any = jax.random.key_data(value) if is_random_key(value) else value
        rows = array.shape[0] if array.shape else 1
        described[name] = _described_array(array, [Part(ARRAYS, 0, rows)])
        if is_random_key(value):
            described[name]["key"] = str(jax.random.key_impl(value))
        local.append((name, 0, _kept(array)))
    for _, _, array in local:
        if _is_on_accelerator(array):
            array.copy_to_host_async()
    # Kept on an accelerator, it would take memory there that the next step needs.
    local = [(n, start, np.asarray(a) if _is_on_accelerator(a) else a) for n, start, a in local]
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
    remote = [(n, p.start, p.variable) for n, own in pieces.items() for p in own if p.is_remote]
    return Snapshot(local, remote, remote[0][2].session if remote else None, index)


def _kept(array: Any) -> Any:
    """Return an array as it is now, and stays.

    A variable whose array was handed out is not updated in place, so that needs no copy.
    """
    return array if isinstance(array, jax.Array) else np.array(array)


def _is_on_accelerator(array: Any) -> bool:
    return isinstance(array, jax.Array) and any(d.platform != "cpu" for d in array.devices())


def _place(piece: Piece) -> str:
    return place_of(piece.variable) if piece.is_remote else ARRAYS


def _described_array(array: Any, parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "shape": list(array.shape),
        "dtype": str(np.dtype(array.dtype)),
        "parts": [[part.place, part.start, part.stop] for part in parts],
    }


def begin_writing(path: str, snapshot: Snapshot) -> Callable[[], None]:
    """Have parameter servers begin to write what they hold now, and return what does the rest.

    A checkpoint comes into being at the end of that, and as a whole.
    """
    _files.clear_neighbours(path)
    data = _files.begin(path)
    try:
        remote = Saving(snapshot.session, data, snapshot.remote) if snapshot.remote else None
    except BaseException:
        _files.clear(path)
        raise

    def finish() -> None:
        try:
            try:
                _array_files.write(data / ARRAYS, snapshot.local)
            finally:  # nothing is removed below while a server still writes
                if remote is not None:
                    remote.wait()
            sums = {} if remote is None else dict(remote.checksums)
            for name, start, array in snapshot.local:
                sums[name, start] = _array_files.checksums(array)
            index = snapshot.index | {ARRAYS: _with_checksums(snapshot.index[ARRAYS], sums)}
            damaged = _sources.is_damaged(path)  # what it replaces
            _files.commit(path, data, index, time.time(), damaged)
        finally:
            _files.clear(path)  # the contents it replaces, or those that became no checkpoint

    return finish


def _with_checksums(
    described: Mapping[str, Any], sums: Mapping[tuple[str, int], Checksums]
) -> dict[str, Any]:
    """Add to the parts of arrays what tells them from all others."""

    def with_own(name: str, part: list[Any]) -> list[Any]:
        own = sums[name, part[1]]
        return [*part, own.rows, own.values]

    return {
        name: array | {"parts": [with_own(name, part) for part in array["parts"]]}
        for name, array in described.items()
    }


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
