"""Where a distributed dataset gets its steps from, for any layout of workers and replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..data import _ops
from ..data._element_spec import element_spec, first_element
from ._autoshard import ShardPlan, plan
from ._rebatch import Layout
from ._steps import ElementSteps, Steps, steps_of


class Feed(Protocol):
    """A dataset, or several, of which each worker reads its part."""

    name: str
    workers_end_together: bool  # by what they read, without asking each other
    goes_on_anywhere: bool  # the state of one worker is good for any other layout

    def open(self, epoch: int, layout: Layout) -> Steps:
        """Start reading for one worker."""
        ...

    def example(self) -> Any:
        """Return an element, to know what an empty one looks like."""
        ...

    def spec(self) -> Any:
        """Return what the elements look like before they are divided."""
        ...

    def cardinality(self) -> int:
        """Return the number of elements before they are divided."""
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
        self.name = self.plan.policy.name
        alone = layout.workers == 1
        self.workers_end_together = self.plan.cuts_each_batch or alone
        self.goes_on_anywhere = self.plan.cuts_each_batch

    def open(self, epoch: int, layout: Layout) -> Steps:
        """Start reading for one worker."""
        return steps_of(plan(self._op, layout), epoch)

    def example(self) -> Any:
        """Return a global batch."""
        return first_element(self.plan.whole)

    def spec(self) -> Any:
        """Return what a global batch looks like."""
        return element_spec(self.plan.whole)

    def cardinality(self) -> int:
        """Return the number of global batches."""
        return _ops.cardinality(self.plan.whole)

    def seeds(self) -> list[int]:
        """Return the seeds that were drawn because none were given."""
        return _ops.unset_seeds(self._op)

    def with_seeds(self, seeds: Sequence[int]) -> DatasetFeed:
        """Return the feed with other seeds where none were given."""
        return DatasetFeed(_ops.with_unset_seeds(self._op, seeds), self.plan.layout)


class FunctionFeed:
    """Datasets made by a function for each worker, or for each replica; they are not divided."""

    name = "FUNCTION"
    goes_on_anywhere = False

    def __init__(
        self,
        make: Callable[[Layout], list[_ops.Op]],
        layout: Layout,
        own: list[_ops.Op] | None = None,
    ) -> None:
        self._make = make
        self._layout = layout
        self._own = make(layout) if own is None else own
        self.workers_end_together = layout.workers == 1

    def open(self, epoch: int, layout: Layout) -> Steps:
        """Start reading for one worker, for which the function is called if it is another one."""
        from ..data._streams import stream  # which imports Grain

        ops = self._own if layout == self._layout else self._make(layout)
        return ElementSteps([stream(op, epoch) for op in ops], layout.replicas)

    def example(self) -> Any:
        """Return an element for one replica."""
        return first_element(self._own[0])

    def spec(self) -> Any:
        """Return what the element of a replica looks like."""
        return element_spec(self._own[0])

    def cardinality(self) -> int:
        """Return the number of elements of the first dataset."""
        return _ops.cardinality(self._own[0])

    def seeds(self) -> list[int]:
        """Return the seeds that were drawn because none were given."""
        return [seed for op in self._own for seed in _ops.unset_seeds(op)]

    def with_seeds(self, seeds: Sequence[int]) -> FunctionFeed:
        """Return the feed with other seeds where none were given."""
        remaining = list(seeds)
        changed: list[_ops.Op] = []
        for op in self._own:
            count = len(_ops.unset_seeds(op))
            changed.append(_ops.with_unset_seeds(op, remaining[:count]))
            remaining = remaining[count:]
        return FunctionFeed(self._make, self._layout, changed)
