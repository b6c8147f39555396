"""Where a distributed dataset gets its steps from, for any layout of workers and replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..data import _ops
from ..data._cardinality import cardinality
from ..data._element_spec import element_spec
from ..data._randomness import mix
from ..data._states import FUNCTION
from ._autoshard import ShardPlan, delivers_all, is_in_own_memory, plan
from ._rebatch import Layout
from ._steps import ElementSteps, Steps, steps_of


class Feed(Protocol):
    """A dataset, or several, of which each worker reads its part."""

    name: str
    goes_on_anywhere: bool  # the state of one worker is good for any other layout

    def open(self, epoch: int, layout: Layout) -> Steps:
        """Start reading for one worker."""
        ...

    def spec(self) -> Any:
        """Return what the elements look like before they are divided."""
        ...

    def part_size(self, size: int) -> int | None:
        """Return how much of elements of one size each replica gets, if it is always the same."""
        ...

    def cardinality(self) -> int:
        """Return the number of steps, or a cardinality that is not a number."""
        ...

    def is_in_own_memory(self) -> bool:
        """Tell whether nobody else can write to the memory of elements."""
        ...

    def summary(self) -> str:
        """Return what the dataset, or the first one, consists of."""
        ...

    def fingerprint(self) -> str:
        """Return what decides which elements the dataset, or the first one, has."""
        ...

    def seeds(self) -> list[int]:
        """Return the seeds that were drawn because none were given."""
        ...

    def with_seeds(self, seeds: Sequence[int]) -> Feed:
        """Return the feed with other seeds where none were given."""
        ...


class DatasetFeed:
    """One dataset of global batches, divided between the workers and their replicas."""

    def __init__(self, op: _ops.Op, layout: Layout) -> None:
        self._op = op
        self.plan: ShardPlan = plan(op, layout)
        self._plans = {layout: self.plan}  # made once, as they hold the caches of files
        self.name = self.plan.policy.name
        self.goes_on_anywhere = self.plan.cuts_each_batch

    def open(self, epoch: int, layout: Layout) -> Steps:
        """Start reading for one worker."""
        if layout not in self._plans:
            self._plans[layout] = plan(self._op, layout)
        return steps_of(self._plans[layout], epoch)

    def spec(self) -> Any:
        """Return what a global batch looks like."""
        return element_spec(self.plan.whole)

    def part_size(self, size: int) -> int | None:
        """Return how much of batches of one size each replica gets, if it is always the same."""
        part, left_over = divmod(size, self.plan.layout.replicas_in_sync)
        return None if left_over else part

    def cardinality(self) -> int:
        """Return the number of steps, or a cardinality that is not a number."""
        one_batch_each = self.plan.cuts_each_batch or self.plan.layout.replicas_in_sync == 1
        size = cardinality(self.plan.whole)
        if one_batch_each or size == _ops.INFINITE_CARDINALITY:
            return size
        if self.plan.layout.workers == 1 and delivers_all(self.plan.whole):
            return size
        return _ops.UNKNOWN_CARDINALITY

    def is_in_own_memory(self) -> bool:
        """Tell whether nobody else can write to the memory of elements."""
        return is_in_own_memory(self._op)

    def summary(self) -> str:
        """Return what the dataset consists of."""
        return _ops.summary(self._op)

    def fingerprint(self) -> str:
        """Return what decides which elements the dataset has."""
        return _ops.fingerprint(self._op)

    def seeds(self) -> list[int]:
        """Return the seeds that were drawn because none were given."""
        return _ops.unset_seeds(self._op)

    def with_seeds(self, seeds: Sequence[int]) -> DatasetFeed:
        """Return the feed with other seeds where none were given."""
        changed = _ops.with_unset_seeds(self._op, seeds)
        return self if changed is self._op else DatasetFeed(changed, self.plan.layout)


class FunctionFeed:
    """Datasets made by a function for each worker, or for each replica; they are not divided."""

    name = FUNCTION
    goes_on_anywhere = False

    def __init__(
        self,
        make: Callable[[Layout], list[_ops.Op]],
        layout: Layout,
        seed: int,
        made: list[_ops.Op] | None = None,
    ) -> None:
        self._make = make
        self._layout = layout
        self._seed = seed  # for what was given none
        self._made = make(layout) if made is None else made
        self._own = self._seeded(self._made, layout)

    def _seeded(self, made: list[_ops.Op], layout: Layout) -> list[_ops.Op]:
        seed = mix(self._seed, layout.worker)
        return [_ops.reseeded(op, mix(seed, number)) for number, op in enumerate(made)]

    def open(self, epoch: int, layout: Layout) -> Steps:
        """Start reading for one worker, for which the function is called if it is another one."""
        from ..data._streams import stream  # which imports Grain

        is_own = layout == self._layout
        ops = self._own if is_own else self._seeded(self._make(layout), layout)
        return ElementSteps([stream(op, epoch) for op in ops], layout.replicas)

    def spec(self) -> Any:
        """Return what the element of a replica looks like."""
        return element_spec(self._own[0])

    def part_size(self, size: int) -> int | None:
        """Return how large the element of a replica is, if there is always one."""
        return size if self.cardinality() == _ops.INFINITE_CARDINALITY else None

    def cardinality(self) -> int:
        """Return the number of steps, or a cardinality that is not a number."""
        sizes = [cardinality(op) for op in self._own]
        if _ops.INFINITE_CARDINALITY in sizes:
            return _ops.INFINITE_CARDINALITY
        if _ops.UNKNOWN_CARDINALITY in sizes or self._layout.workers > 1:
            return _ops.UNKNOWN_CARDINALITY
        if len(sizes) == self._layout.replicas:
            return max(sizes)
        return -(-sizes[0] // self._layout.replicas)

    def is_in_own_memory(self) -> bool:
        """Tell whether nobody else can write to the memory of elements."""
        return all(is_in_own_memory(op) for op in self._own)

    def summary(self) -> str:
        """Return what the first dataset consists of."""
        return _ops.summary(self._own[0])

    def fingerprint(self) -> str:
        """Return the same, as the rest depends on the worker it is for."""
        return self.summary()

    def seeds(self) -> list[int]:
        """Return the seed that stands for those that were not given."""
        return [self._seed]

    def with_seeds(self, seeds: Sequence[int]) -> FunctionFeed:
        """Return the feed with another such seed; the function is not called again."""
        (seed,) = seeds
        if seed == self._seed:
            return self
        return FunctionFeed(self._make, self._layout, seed, self._made)
