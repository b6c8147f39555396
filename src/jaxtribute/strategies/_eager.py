"""Replicas as threads that take turns: the eager way to `run`.

Each replica's function runs in a thread of its own, on its own device, until it finishes or needs
the others. Only one thread runs at a time, in the order of the replicas, so side effects happen in
a fixed order; when all wait, the merge function runs in the caller's thread.

Replicas write variables into a frame. Frames are stored when the replicas meet and when all have
finished; a failure puts back what the variables were before.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _tree
from .._jax_compat import is_staging, is_tracing
from .._options import CommunicationOptions
from .._reduce import ReduceOp
from .._topology import Topology
from .._wide import asarray
from ..collectives._gather import first_component, gather
from ..errors import TracerLeakError
from ..values import PerReplica
from ..values._per_replica import is_array_like
from ..values._regroup import check_components, check_numbers, regroup, select
from ..variables import _frames
from . import _empty_parts
from ._exchange import nested_call_error, on_device
from ._replica_context import ReplicaContext

MergeCall = tuple[str, Callable[..., Any], Sequence[Any], dict[str, Any]]  # the first: its name


def run_eagerly(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run `fn` on each replica, one after the other, and merge what they return."""
    topology: Topology = strategy.topology
    check_components((args, kwargs), topology)
    check_numbers((args, kwargs), "A replica")
    copies = _Copies()
    replicas = [
        _Replica(strategy, i, fn, *copies.on_device(select(i, (args, kwargs)), device))
        for i, device in enumerate(topology.local_devices)
    ]
    empty = _empty_parts.without_examples((args, kwargs), topology)
    uneven = any(leaf.is_uneven for leaf in _per_replica(args, kwargs))
    try:
        with _frames.all_or_nothing() as journal:
            for replica in replicas:
                replica.journal = journal
                replica.uneven = uneven
            while True:
                for replica, is_empty in zip(replicas, empty, strict=True):
                    with _empty_parts.explained(replica.context, is_empty):
                        replica.advance()
                _store_writes(replicas, journal, empty, topology)
                if all(replica.finished for replica in replicas):
                    results = [copies.replaced(replica.result) for replica in replicas]
                    _empty_parts.warn(results, empty, topology)
                    return regroup(results, topology)
                _check_all_wait(replicas, topology)
                _merge(strategy, topology, replicas, empty, copies)
    finally:
        for replica in replicas:
            replica.stop()


def _per_replica(args: Any, kwargs: Any) -> list[PerReplica]:
    return [leaf for leaf in _tree.flatten((args, kwargs))[0] if isinstance(leaf, PerReplica)]


class _Copies:
    """Copies of arguments on the devices of replicas, which stand for what was passed to `run`.

    So one array that all replicas were given is still the same for all of them.
    """

    def __init__(self) -> None:
        self._originals: dict[int, tuple[Any, Any]] = {}  # with the copy, which is to stay alive

    def on_device(self, arguments: Any, device: jax.Device) -> Any:
        def copy(leaf: Any) -> Any:
            placed = on_device(leaf, device)
            if placed is not leaf:
                self._originals[id(placed)] = (placed, leaf)
            return placed

        return _tree.map_leaves(copy, arguments)

    def replaced(self, tree: Any) -> Any:
        """Return the arrays that copies in a structure stand for."""
        if not self._originals:
            return tree
        return _tree.map_leaves(lambda leaf: self._originals.get(id(leaf), (None, leaf))[1], tree)


def _nothing() -> None:
    pass


class _Stopped(BaseException):
    """Ends a replica's thread after another one failed."""


class _Replica:
    """One replica's thread, and where it stands."""

    def __init__(
        self, strategy: Any, index: int, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        self._call = (fn, args, kwargs)
        self._index = index  # among the replicas of this process
        self._device = strategy.topology.local_devices[index]
        replica_id = strategy.topology.first_local + index
        self._go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._stopping = False
        self._running = False
        self._error: BaseException | None = None
        self._answer: Any = None
        self.context = ReplicaContext(strategy, replica_id, EagerExchange(self, strategy))
        self._outer_frame = _frames.current()
        self.frame: _frames.EagerReplicaFrame
        self.journal: _frames.Journal | None = None
        self.merge_call: MergeCall | None = None
        self.uneven = False  # whether replicas are known to have different numbers of examples
        self.finished = False
        self.result: Any = None
        self._stack = [*_context.stack(), _context.Side(strategy, self.context)]
        inherited = contextvars.copy_context()
        self._thread = threading.Thread(
            target=inherited.run, args=(self._main,), name=f"replica-{replica_id}", daemon=True
        )

    def advance(self) -> None:
        """Let the replica run until it finishes or waits; raise what it raised."""
        self._running = True
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._stands.acquire()
        self._running = False
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread where it stands; one that was interrupted ends when it next waits."""
        if self._thread.ident is not None and self._thread.is_alive():
            self._stopping = True
            self._go.release()
            if not self._running:
                self._thread.join()
        # Thread, context and exchange refer to each other; arrays must not wait for the collector.
        self._call = (_nothing, (), {})
        self._answer = self.result = self.merge_call = None

    def answer(self, value: Any) -> None:
        """Give the replica what its merge call returned."""
        self._answer = value

    def wait_for_others(self, merge_call: MergeCall) -> Any:
        """Called in the replica's thread: stand still until the others have come as far."""
        if self._stopping:  # and cleaning up: nobody will come
            raise _Stopped
        self.merge_call = merge_call
        self._stands.release()
        self._go.acquire()
        if self._stopping:
            raise _Stopped
        self.frame.renew_cache()  # the others may have changed variables
        return self._answer

    def _main(self) -> None:
        fn, args, kwargs = self._call
        try:
            _context.adopt(self._stack)
            self.frame = _frames.EagerReplicaFrame(self._index, self._outer_frame)
            with (
                jax.default_device(self._device),
                _frames.sharing(self.journal),
                _frames.opened(self.frame),
            ):
                self.result = _tree.call_inside(fn, args, kwargs)
        except _Stopped:
            return
        except BaseException as error:
            self._error = _with_device_advice(error)
        self.finished = True
        self._stands.release()


def _with_device_advice(error: BaseException) -> BaseException:
    if isinstance(error, ValueError) and "incompatible devices" in str(error):
        error.add_note(
            "Replicas run on different devices. Pass arrays to them through the `args` of `run`, "
            "which copies them to each device, instead of capturing them."
        )
    return error


def _check_all_wait(replicas: list[_Replica], topology: Topology) -> None:
    if any(replica.finished for replica in replicas):
        done = [i for i, replica in enumerate(replicas) if replica.finished]
        waiting = [i for i, replica in enumerate(replicas) if not replica.finished]
        raise RuntimeError(
            f"The replicas made a different number of merge calls: replicas {done} have finished "
            f"while replicas {waiting} wait for them in an all_reduce, all_gather, merge_call or "
            "an aggregated assignment, or a compute_average_loss without global_batch_size. All "
            "replicas have to make the same ones, also one that has no examples."
        )
    # Of this process only: asking the others would be one more meeting, with a time limit.
    names = [replica.merge_call[0] for replica in replicas if replica.merge_call]
    if len(set(names)) > 1:
        raise RuntimeError(
            "The replicas made different merge calls: "
            + "; ".join(
                f"replica {i} waits in {name}" for i, name in enumerate(names, topology.first_local)
            )
            + ". All replicas have to make the same ones, in the same order, also one that has no "
            "examples. (Of what does not depend on the variables no gradient is taken. JAX makes a "
            "constant of table[ids] if there are no ids; jt.nn.embedding_lookup does not.)"
        )


def _merge(
    strategy: Any,
    topology: Topology,
    replicas: list[_Replica],
    empty: list[bool],
    copies: _Copies,
) -> None:
    calls = [replica.merge_call for replica in replicas if replica.merge_call]
    name, fn, *_ = calls[0]
    given = [copies.replaced((args, kwargs)) for _, _, args, kwargs in calls]
    _wait_for(given)
    if name not in _KEEP_APART:
        _empty_parts.check(f"What goes into {name}", given, empty, topology)
    try:
        args, kwargs = regroup(given, topology, of_one_worker=True)
    except AssertionError as error:
        raise RuntimeError(
            f"The replicas made different merge calls: what they pass to {name} has different "
            "structures. All replicas have to make the same ones, in the same order."
        ) from error
    with _context.opened(_context.Side(strategy)):
        result = fn(strategy, *args, **kwargs)
    for i, replica in enumerate(replicas):
        replica.answer(select(i, result))


_ASSIGNMENT = "an aggregated assignment"
_SIZES = "counting examples, as for compute_average_loss without global_batch_size"
_GATHER = "all_gather"
_KEEP_APART = (_GATHER, _SIZES)  # what replicas have is not combined into one


def _wait_for(values: Any) -> None:
    """Raise what went wrong in computing arrays, such as in a callback.

    Later it would be in what one device holds, and the others would wait for that for ever.
    """
    arrays = [leaf for leaf in _tree.flatten(values)[0] if isinstance(leaf, jax.Array)]
    jax.block_until_ready([array for array in arrays if not isinstance(array, Tracer)])


def _store_writes(
    replicas: list[_Replica], journal: _frames.Journal, empty: list[bool], topology: Topology
) -> None:
    written = {id(v): v for replica in replicas for v, _ in replica.frame.written}
    for variable in written.values():
        copies = [replica.frame.read(variable) for replica in replicas]
        _wait_for(copies)
        if variable.differs_between_replicas:  # others are combined when they are assigned
            what = f"What was assigned to the variable {variable.name!r}"
            _empty_parts.check(what, copies, empty, topology)
        journal.note(variable)
        variable.store(variable.join_components(copies), shared=True)
    _frames.current().record(replicas[0].frame.effects)  # which all replicas have in common
    for replica in replicas:
        replica.frame.clear()


class EagerExchange:
    """Deals with the other replicas by waiting for them."""

    def __init__(self, replica: _Replica, strategy: Any) -> None:
        self._replica = replica
        self._strategy = strategy
        self._meetings = 0

    def all_reduce(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        arrays = tuple(asarray(value, "all_reduce") for value in values)
        return list(self._combined("all_reduce", op, arrays, options))

    def _combined(
        self, name: str, op: ReduceOp, arrays: Any, options: CommunicationOptions | None = None
    ) -> tuple[jax.Array, ...]:
        gradient = self._gradient_of(name)

        @jax.custom_vjp
        def combine(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            return self._meet(name, _reduce_each, op, _concrete("all_reduce", arrays), options)

        def forward(arrays: tuple[jax.Array, ...]) -> tuple[Any, None]:
            return combine(arrays), None

        def backward(_: None, cotangents: tuple[jax.Array, ...]) -> tuple[Any]:
            return (self._combined(gradient, op, cotangents, options),)

        combine.defvjp(forward, backward)
        return combine(arrays)

    def all_gather(self, value: Any, axis: int) -> Any:
        replica_id = self._replica.context.replica_id_in_sync_group
        array = asarray(value, "all_gather")
        size = array.shape[axis]
        gradient = self._gradient_of("all_gather")

        @jax.custom_vjp
        def collect(array: jax.Array) -> jax.Array:
            return self._meet(_GATHER, _gather_to_all, _concrete("all_gather", array), axis)

        def forward(array: jax.Array) -> tuple[jax.Array, int]:
            return collect(array), size_before

        def backward(start: int, cotangent: jax.Array) -> tuple[jax.Array]:
            (total,) = self._combined(gradient, ReduceOp.SUM, (cotangent,))
            return (jax.lax.dynamic_slice_in_dim(total, start, size, axis),)

        collect.defvjp(forward, backward)
        # Asked for whether or not there is a gradient: of no examples there may be none.
        size_before = sum(self._meet(_GATHER, _sizes, size)[:replica_id]) if is_tracing() else 0
        return collect(array)

    def _gradient_of(self, name: str) -> str:
        """Return a name for what replicas do together while a gradient is taken.

        It has a number, as a replica leaves out what does not depend on what it differentiates by,
        and must not meet the others in another place.
        """
        self._meetings += 1
        return f"the gradient of {name}, meeting {self._meetings}"

    def sizes(self, size: int) -> tuple[int, ...] | None:
        if not is_staging():
            return self._meet(_SIZES, _sizes, size)
        # A program is made once and used for all parts of its shape, so nobody can be asked.
        uneven = self._replica.uneven
        return None if uneven else (size,) * self._replica.context.num_replicas_in_sync

    def from_first(self, value: Any) -> Any:
        # Replicas can only pass tracers on by all_reduce; of no examples a gradient's may be none.
        if is_tracing() and is_array_like(value):
            is_first = self._replica.context.replica_id_in_sync_group == 0
            return self.all_reduce(ReduceOp.SUM, [value if is_first else jnp.zeros_like(value)])[0]
        return self._meet(_ASSIGNMENT, _first_to_all, value)

    def expect_sum(self, value: Any) -> None:
        pass  # what is added up is not known beforehand, and speed is not the point here

    def common(self, value: Any) -> bool:
        if isinstance(value, Tracer):
            # Others may have none, of no examples: they are met with what is this replica's own.
            value = np.array(self._replica.context.replica_id_in_sync_group)
        return self._meet(_ASSIGNMENT, _is_common, value)

    def merge_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if not _frames.current().here:
            raise nested_call_error("merge_call")
        _concrete("merge_call", (args, kwargs))

        def merged(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = _told_apart((args, kwargs), strategy.topology)
            return fn(strategy, *args, **kwargs)

        return self._meet("merge_call", merged, *args, **kwargs)

    def _meet(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._replica.wait_for_others((name, fn, args, kwargs))


def _concrete(method: str, arrays: Any) -> Any:
    if any(isinstance(leaf, Tracer) for leaf in _tree.flatten(arrays)[0]):
        if is_tracing():
            raise nested_call_error(method)
        raise TracerLeakError.kept(method)
    return arrays


def _reduce_each(
    strategy: Any, op: ReduceOp, values: tuple[Any, ...], options: CommunicationOptions | None
) -> tuple[Any, ...]:
    topology = strategy.topology
    ops = strategy.cross_device_ops.with_options(options)
    with topology.group.limited(ops.timeout):
        pairs = [(_of_each(value, topology), topology) for value in values]
        return tuple(ops.batch_reduce_implementation(op, pairs, options))


def _of_each(value: Any, topology: Topology) -> PerReplica:
    """Return a value that local replicas may have in common as one that each of them has."""
    if isinstance(value, PerReplica):
        return value
    return PerReplica([value] * topology.num_local, topology)


def _gather_to_all(strategy: Any, value: Any, axis: int) -> Any:
    topology = strategy.topology
    gathered = gather(_of_each(value, topology), axis, topology)
    return strategy.cross_device_ops.broadcast_implementation(gathered, topology)


def _sizes(strategy: Any, size: Any) -> tuple[int, ...]:
    topology = strategy.topology
    return tuple(topology.all_of("the sizes of an all_gather", _of_each(size, topology).components))


def _first_to_all(strategy: Any, value: Any) -> Any:
    topology: Topology = strategy.topology

    def spread(leaf: Any) -> Any:
        if topology.spans_workers and is_array_like(leaf):
            leaf = _of_each(leaf, topology)
        if not isinstance(leaf, PerReplica):
            return leaf
        return strategy.cross_device_ops.broadcast_implementation(
            first_component(leaf, topology), topology
        )

    return jax.tree.map(spread, value)


def _is_common(strategy: Any, value: Any) -> bool:
    return _are_common([value], strategy.topology)[0]


def _told_apart(tree: Any, topology: Topology) -> Any:
    """Return merged arguments with a `PerReplica` where only local replicas have one value."""
    if not topology.spans_workers:
        return tree
    leaves, structure = _tree.flatten(tree)
    common = _are_common(leaves, topology)
    return structure.unflatten(
        [
            leaf if same or not is_array_like(leaf) else _of_each(leaf, topology)
            for leaf, same in zip(leaves, common, strict=True)
        ]
    )


def _are_common(values: Sequence[Any], topology: Topology) -> list[bool]:
    """Tell for each value that local replicas were merged to whether all others have it, too."""
    own = [_fingerprint(value, topology) for value in values]
    if not topology.spans_workers or not any(map(_may_differ, values)):
        return [fingerprint is not None for fingerprint in own]
    # Asked even if the answer is known here: on another worker it may not be.
    reports = topology.group.agree("what replicas have in common", json.dumps(own))
    everywhere = zip(*(json.loads(report) for report in reports), strict=True)
    return [None not in column and len(set(column)) == 1 for column in everywhere]


def _may_differ(value: Any) -> bool:
    return isinstance(value, PerReplica) or is_array_like(value)


def _fingerprint(value: Any, topology: Topology) -> str | None:
    """Return a text that tells values apart, or None for what replicas have each for itself."""
    if isinstance(value, PerReplica):
        return None
    if not is_array_like(value):
        return ""
    if topology.num_local == 1 and isinstance(value, (jax.Array, np.ndarray, np.generic)):
        # Several replicas that have one object were given it; one may have computed it.
        return None if topology.spans_workers else ""
    return hashlib.sha256(np.asarray(value).tobytes()).hexdigest() if topology.spans_workers else ""
