"""Datasets divided between the replicas of a strategy."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, TypeVar

import jax

from .._specs import PerReplicaSpec, TensorSpec
from .._topology import Topology
from ..data import Dataset, _ops
from ..data._background import State
from ..data._elements import map_specs, nothing_of
from ..data._passes import Passes
from ..data._randomness import fresh_seed, mix
from ..errors import UnimplementedError
from ..tracing import leave_trace
from ._agreement import AgreedElements, Peers
from ._context import InputContext, InputOptions, InputReplicationMode
from ._feed import DatasetFeed, Feed, FunctionFeed
from ._iterator import DistributedIterator, refuse_in_replica
from ._place import Placement
from ._placed import PlacedSteps
from ._rebatch import Layout
from ._sources import Distributed, as_op
from ._steps import Step, Steps

__all__ = ["DistributedDataset", "InputSetting", "distribute", "distribute_from_function"]

_Feed = TypeVar("_Feed", DatasetFeed, FunctionFeed)

_log = logging.getLogger("jaxtribute")


@dataclass(frozen=True)
class InputSetting:
    """The devices of a worker, its place among the workers, and a way to ask the others."""

    topology: Topology
    context: InputContext
    peers: Peers | None = None
    # What is distributed is numbered: alike on all workers, which run the same program.
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def layout(self) -> Layout:
        """How elements are divided."""
        context = self.context
        return Layout.of(
            context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync
        )


class DistributedDataset(Distributed):
    """A dataset whose elements have a part for each replica.

    Made by `Strategy.experimental_distribute_dataset` and `distribute_datasets_from_function`.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.experimental_distribute_dataset(jt.data.Dataset.range(6).batch(4))
    >>> for x in dataset:
    ...     print(strategy.experimental_local_results(x))
    (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))
    (Array([4], dtype=int32), Array([5], dtype=int32))

    Every example is delivered exactly once in a pass, whatever the number of replicas and workers;
    a replica for which nothing is left gets an empty batch. It is iterated, and nothing else:
    `map`, `batch` and the like belong before the distribution.
    """

    def __init__(self, feed: Feed, setting: InputSetting, options: InputOptions) -> None:
        self.feed = feed
        self.layout = setting.layout
        self._setting = setting
        self._options = options
        self.passes = Passes()
        self._number = next(setting.numbers)
        self._openings = 0

    @cached_property
    def element_spec(self) -> Any:
        """The structure of the elements, with a `PerReplicaSpec` for each component.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.experimental_distribute_dataset(
        ...     jt.data.Dataset.range(8).batch(4, drop_remainder=True)
        ... )
        >>> dataset.element_spec
        PerReplicaSpec(TensorSpec(shape=(2,), dtype=int32, name=None), \
TensorSpec(shape=(2,), dtype=int32, name=None))

        It can be used as an `input_signature` of `jt.function`. A size that may vary is None.
        """
        return map_specs(self._spec_of, self.feed.spec())

    def _spec_of(self, spec: TensorSpec) -> Any:
        dtype = spec.dtype
        if self._fetches and dtype.kind != "O":
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        if self.layout.replicas_in_sync == 1:
            return TensorSpec(spec.shape, dtype)
        own = TensorSpec(self._shape_of(spec.shape), dtype)
        return PerReplicaSpec(*[own] * self.layout.replicas)

    def _shape_of(
        self, shape: tuple[int | str | None, ...] | None
    ) -> tuple[int | str | None, ...] | None:
        """Return the shape of one replica's part."""
        if not shape:
            return shape
        size, *others = shape
        if not isinstance(size, int) or self.layout.workers > 1:
            return (None, *others)
        return (self.feed.part_size(size), *others)

    @property
    def _fetches(self) -> bool:
        options = self._options
        return options.experimental_fetch_to_device or options.experimental_place_dataset_on_device

    def cardinality(self) -> int:
        """Return the number of steps, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""
        return self.feed.cardinality()

    def __iter__(self) -> DistributedIterator:
        refuse_in_replica("iter")
        leave_trace()
        return DistributedIterator(self)

    def __len__(self) -> int:
        size = self.cardinality()
        if size < 0:
            raise TypeError("The number of steps of this distributed dataset is not known.")
        return size

    def __bool__(self) -> bool:
        return True  # not by its length, which may be unknown

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Return what is left after combining a state with each element in turn.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.experimental_distribute_dataset(jt.data.Dataset.range(10).batch(4))
        >>> dataset.reduce(0, lambda total, x: total + strategy.reduce("SUM", x, axis=0))
        Array(45, dtype=int32)
        """
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state

    def reseed(self, number: int) -> None:
        """Replace seeds that nobody gave, as a copy elsewhere does with another number."""
        self.feed = self.feed.with_seeds([mix(seed, number) for seed in self.feed.seeds()])

    # --- For its iterators -----------------------------------------------------------------

    @property
    def buffer_size(self) -> int:
        """How many elements may wait for their use."""
        return self._options.experimental_per_replica_buffer_size

    def elements(
        self, open_steps: Callable[[], Steps], done: int, state: State | None
    ) -> PlacedSteps | AgreedElements:
        """Return what this worker's replicas get, on their devices."""
        wrap = self.layout.replicas_in_sync > 1
        copy = not self.feed.is_in_own_memory()
        placement = Placement(self._setting.topology, wrap, self._fetches, copy)
        own = PlacedSteps(open_steps, placement, done, state)
        peers = self._setting.peers
        if peers is None:
            if state is not None:
                own.open()  # so that a state that does not fit is refused at once
            return own
        return AgreedElements(own, peers, self._name_of_reading, self._nothing)

    def go_on_with(self, feed: Feed, number: int) -> None:
        """Take note that a pass is going on that was begun elsewhere, so that others follow it."""
        self.feed = feed
        self.passes.go_on_with(number)

    def _name_of_reading(self) -> str:
        """Return a name for what one iterator asks, the same on all workers."""
        self._openings += 1
        return f"input/{self._number}/{self._openings}"

    def _nothing(self) -> Step:
        """Return the step of a worker that has nothing left."""
        return Step(elements=(nothing_of(self.feed.spec()),) * self.layout.replicas)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self.layout}: {self.feed.summary()}>"

    def __getattr__(self, name: str) -> Any:
        if name in _TRANSFORMATIONS:
            raise AttributeError(
                f"A distributed dataset cannot be transformed: call {name!r} on the dataset before "
                "it is distributed."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_TRANSFORMATIONS = frozenset(name for name in dir(Dataset) if not name.startswith("_"))


def distribute(
    dataset: Any, setting: InputSetting, options: InputOptions | None
) -> DistributedDataset:
    """Divide a dataset of global batches between workers and replicas."""
    options = _checked(options)
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise UnimplementedError(
            "InputReplicationMode.PER_REPLICA makes a dataset for each replica, so it is for "
            "distribute_datasets_from_function. experimental_distribute_dataset divides one."
        )
    feed = _with_common_seeds(DatasetFeed(as_op(dataset), setting.layout), setting)
    _tell(str(feed.plan), setting.layout)
    return DistributedDataset(feed, setting, options)


def distribute_from_function(
    dataset_fn: Callable[[InputContext], Any],
    setting: InputSetting,
    options: InputOptions | None,
) -> DistributedDataset:
    """Give replicas what the datasets deliver that a function makes for each worker."""
    options = _checked(options)
    if not callable(dataset_fn):
        raise TypeError(
            "distribute_datasets_from_function takes a function of an InputContext that returns a "
            f"dataset, got {dataset_fn!r}. A dataset goes to experimental_distribute_dataset."
        )
    per_replica = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    if per_replica and setting.layout.workers > 1:
        raise UnimplementedError(
            "InputReplicationMode.PER_REPLICA is for the replicas of one worker; with several "
            "workers use PER_WORKER."
        )

    def make(layout: Layout) -> list[_ops.Op]:
        replicas = layout.replicas_in_sync
        if per_replica:
            contexts = [InputContext(replicas, i, replicas) for i in range(replicas)]
        else:
            contexts = [InputContext(layout.workers, layout.worker, replicas)]
        return [as_op(dataset_fn(context)) for context in contexts]

    feed = FunctionFeed(make, setting.layout, fresh_seed())
    return DistributedDataset(_with_common_seeds(feed, setting), setting, options)


def _with_common_seeds(feed: _Feed, setting: InputSetting) -> _Feed:
    """Return a feed with the seeds of worker 0 where none were given.

    Workers that shuffled in different orders would lose and repeat examples.
    """
    seeds = feed.seeds()
    if setting.peers is None or not seeds:
        return feed
    about = f"input/{next(setting.numbers)}/seeds"
    agreed = setting.peers.exchange(about, json.dumps(seeds), threading.Event())
    return feed.with_seeds(json.loads(agreed[0]))


def _checked(options: Any) -> InputOptions:
    if options is None:
        return InputOptions()
    if not isinstance(options, InputOptions):
        raise TypeError(f"options must be jt.InputOptions, got {options!r}.")
    options.check()
    return options


def _tell(plan: str, layout: Layout) -> None:
    if layout.workers > 1:
        print(plan, file=sys.stderr, flush=True)
    else:
        _log.info(plan)
