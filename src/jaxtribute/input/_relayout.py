"""Going on with a dataset that other workers began to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data._background import State
from ..data._elements import batch_size, concatenate, cut, has_batch_dimension, stack
from ._rebatch import Layout, cut_evenly
from ._steps import Step, Steps


def _stacked(pieces: Sequence[Any]) -> Any:
    """Return elements that are no batches as one; those that are, are the empty ones."""
    return stack([piece for piece in pieces if not has_batch_dimension(piece)])


class RelaidSteps(Steps):
    """The steps of an earlier layout, each divided anew between the replicas there are now.

    Every worker reads for all of the earlier ones until the pass is over, so that nothing is read
    twice or left out whatever the two layouts are.
    """

    def __init__(self, earlier: Sequence[Steps], layout: Layout) -> None:
        self._earlier = earlier
        self._layout = layout

    def __next__(self) -> Step:
        pieces = [
            piece
            for steps in self._earlier
            if (step := next(steps, None)) is not None
            for piece in step.pieces
        ]
        if not pieces:
            raise StopIteration
        batch = concatenate(pieces) if has_batch_dimension(pieces[0]) else _stacked(pieces)
        bounds = cut_evenly(batch_size(batch, "A step of the earlier workers"), self._layout)
        own = concatenate([cut(batch, start, stop) for start, stop in bounds])
        return Step(own, tuple(stop - start for start, stop in bounds))

    def skip(self, count: int) -> None:
        """Read steps that were delivered already."""
        for _ in range(count):
            next(self)

    def get_state(self) -> State:
        return {"earlier": [steps.get_state() for steps in self._earlier]}

    def set_state(self, state: State) -> None:
        for steps, own in zip(self._earlier, state["earlier"], strict=True):
            steps.set_state(own)

    def close(self) -> None:
        for steps in self._earlier:
            steps.close()
