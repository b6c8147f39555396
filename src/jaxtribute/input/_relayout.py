"""Going on with a dataset that other workers began to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data import _ops
from ..data._background import State
from ..data._elements import batch_size, concatenate, cut, has_batch_dimension, stack
from ..data._randomness import epoch_of_pass
from ..data._states import FUNCTION, opens_divided
from ..errors import InvalidArgumentError
from ._feed import DatasetFeed, Feed
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
            next(self, None)  # some of them may have been empty

    def get_state(self) -> State:
        return {"earlier": [steps.get_state() for steps in self._earlier]}

    def set_state(self, state: State) -> None:
        for steps, own in zip(self._earlier, state["earlier"], strict=True):
            steps.set_state(own)

    def close(self) -> None:
        for steps in self._earlier:
            steps.close()


def relaid_state(state: State) -> State | None:
    """Return the state of the relaid steps to go on with; None if `open_relaid` finds the place."""
    pipeline = state["pipeline"]
    if state["relaid"] or pipeline is None:
        return pipeline
    return {"earlier": [pipeline]} if state["workers"] == 1 else None


def open_relaid(feed: Feed, state: State, layout: Layout) -> RelaidSteps:
    """Start reading for all of the workers a state was saved on, in steps divided anew."""
    workers, epoch = state["workers"], epoch_of_pass(state["pass"])
    earlier = [Layout(workers, worker, state["replicas"]) for worker in range(workers)]
    steps = RelaidSteps([feed.open(epoch, one) for one in earlier], layout)
    if relaid_state(state) is None:  # it tells of one of the earlier workers, or only how far
        steps.skip(state["steps"])
    return steps


class _InOnePiece:
    """The steps of an earlier layout, each as the one batch it was."""

    def __init__(self, steps: RelaidSteps) -> None:
        self._steps = steps
        self.get_state, self.set_state, self.close = steps.get_state, steps.set_state, steps.close

    def __next__(self) -> tuple[int, Any]:
        return 0, next(self._steps).batch  # nobody asks for the id of what is delivered


@opens_divided
def open_whole(op: _ops.Op, state: State) -> _InOnePiece:
    """Start reading on, for an iterator that is not distributed, what workers began to read."""
    alone = Layout(1, 0, 1)
    feed = DatasetFeed(op, alone)
    check_sharding(state, feed)
    steps = open_relaid(feed, state, alone)
    pipeline = relaid_state(state)
    if pipeline is not None:
        steps.set_state(pipeline)
    return _InOnePiece(steps)


def check_sharding(state: State, feed: Feed) -> None:
    """Refuse a state of a dataset that is divided in another way.

    Raises:
      InvalidArgumentError: when it is one.
    """
    found = state.get("sharding")
    if found == feed.name:
        return
    of = "a dataset that is not distributed" if found is None else f"one with {found} sharding"
    if FUNCTION in (found, feed.name):
        advice = (
            "Datasets that a function makes for each worker (FUNCTION) have states of their own: "
            "restore it into an iterator of what it was saved from."
        )
    else:
        advice = (
            f"Its steps are not batches of the dataset as a whole, so that only {found} sharding "
            "goes on with them: set that AutoShardPolicy with `with_options`."
        )
    raise InvalidArgumentError(
        f"The state was saved from an iterator of {of}, and this one has {feed.name}. {advice}"
    )
