"""Going through a distributed dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _context
from ..data._background import Background, State
from ..data._randomness import epoch_of_pass
from ..data._states import (
    FUNCTION,
    check_is_of,
    check_is_state,
    refusing_other_states,
    whole_position,
)
from ..tracing import Feeder
from ._feed import Feed
from ._rebatch import Layout
from ._relayout import check_sharding, open_relaid, relaid_state
from ._steps import Steps

if TYPE_CHECKING:
    from ._dataset import DistributedDataset

__all__ = ["DistributedIterator"]


class DistributedIterator(Feeder):
    """The elements of a `DistributedDataset`, read ahead and brought to the devices in a thread.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.experimental_distribute_dataset(jt.data.Dataset.range(8).batch(4))
    >>> iterator = iter(dataset)
    >>> next(iterator)
    PerReplica:{
      0: Array([0, 1], dtype=int32),
      1: Array([2, 3], dtype=int32)
    }

    Inside a `jt.function` the elements are inputs of the compiled program, taken before it runs.
    The iterator may be captured or passed as an argument. At its end the call raises
    `OutOfRangeError`.

    Its state can be saved and restored, in another process and on another number of workers, too:

    >>> state = iterator.get_state()
    >>> restored = iter(dataset)
    >>> restored.set_state(state)
    >>> next(restored)
    PerReplica:{
      0: Array([4, 5], dtype=int32),
      1: Array([6, 7], dtype=int32)
    }
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._number = number = dataset.passes.begin()
        self._unread: deque[tuple[Any, State]] = deque()  # elements, and the states before them
        self._begin(dataset.feed, lambda: dataset.feed.open(epoch_of_pass(number), dataset.layout))

    def _begin(
        self,
        feed: Feed,
        open_steps: Callable[[], Steps],
        done: int = 0,
        state: State | None = None,
        relaid_from: Layout | None = None,
    ) -> None:
        elements = self._dataset.elements(open_steps, done, state)
        self._begin_naming = elements.begin
        self._ahead: Background[Any] = Background(elements, self._dataset.buffer_size)
        self._feed = feed
        self._relaid_from = relaid_from
        self._unread.clear()

    # --- Elements --------------------------------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """The structure of the elements; see `DistributedDataset.element_spec`."""
        return self._dataset.element_spec

    def check_place(self, method: str) -> None:
        """Refuse to deliver the elements of all replicas to one of them."""
        refuse_in_replica(method)

    def read(self) -> Any:
        """Return the next element, wherever this is called; `next` is what users call."""
        if self._unread:
            return self._unread.popleft()[0]
        self._begin_naming()
        return next(self._ahead)

    def unread(self, element: Any, before: State) -> None:
        """Put back the element that was read last, before which the position was `before`."""
        self._unread.appendleft((element, before))

    @property
    def position(self) -> State:
        """Where the next element is found."""
        return self._unread[0][1] if self._unread else self._ahead.get_state()

    # --- State -----------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return where the next element is found, as a dict that can be written as JSON.

        With `AutoShardPolicy.DATA` the state is the same on all workers; with others each has its
        own.
        """
        layout = self._relaid_from or self._dataset.layout
        position = self.position
        return {
            "dataset": self._feed.fingerprint(),
            "pass": self._number,
            "seeds": self._feed.seeds(),
            "sharding": self._feed.name,
            "workers": layout.workers,
            "worker": layout.worker,
            "replicas": layout.replicas,
            "relaid": self._relaid_from is not None,
            "steps": position["number"],
            "pipeline": position["steps"],
        }

    def set_state(self, state: State) -> None:
        """Go on exactly after the element before which, or with which, a state was saved.

        On another number of workers or replicas than it was saved on, the rest of the pass has the
        same global batches as it would have had there. So it has after a state of an iterator of
        the dataset itself, which is not distributed.

        Raises:
          InvalidArgumentError: when the state is one of a dataset that is divided in another way.
        """
        feed = self._dataset.feed
        check_is_state(state)
        before = self._ahead
        with refusing_other_states():
            state = _divided_by(feed, state)
            check_sharding(state, feed)
            check_is_of(state, feed.fingerprint())
            feed = feed.with_seeds(state["seeds"])
            self._go_on(feed, state)
        before.close()
        self._number = state["pass"]
        self._dataset.go_on_with(feed, self._number)

    def _go_on(self, feed: Feed, state: State) -> None:
        epoch, done, pipeline = epoch_of_pass(state["pass"]), state["steps"], state["pipeline"]
        saved = Layout(state["workers"], state["worker"], state["replicas"])
        own = self._dataset.layout

        def open_own() -> Steps:
            return feed.open(epoch, own)

        def open_skipping() -> Steps:
            steps = open_own()
            for _ in range(done):
                next(steps, None)  # some of them may have been empty
            return steps

        same_size = (saved.workers, saved.replicas) == (own.workers, own.replicas)
        if state["relaid"] or not (same_size or feed.goes_on_anywhere):
            relaid = partial(open_relaid, feed, state, own)
            self._begin(feed, relaid, done, relaid_state(state), saved)
        elif pipeline is not None and (saved == own or feed.goes_on_anywhere):
            self._begin(feed, open_own, done, pipeline)
        else:  # the state of another worker, or one that only tells how far it was
            self._begin(feed, open_skipping, done)

    def __repr__(self) -> str:
        done = self.position["number"]
        return f"<{type(self).__name__} after {done} steps of {self._dataset!r}>"

    def close(self) -> None:
        """Stop reading ahead; also done when the iterator is no longer used."""
        self._ahead.close()


def refuse_in_replica(method: str) -> None:
    """Refuse what means the elements of all replicas where there is one of them."""
    if _context.has_strategy() and _context.get_replica_context() is not None:
        raise ValueError(
            f"{method} of a distributed dataset was called inside a replica, where it would mean "
            "the elements of all replicas. Call it outside, and pass the element through the "
            "`args` of `run`."
        )


def _divided_by(feed: Feed, state: State) -> State:
    """Return a state in batches of the whole dataset as that of a worker who is alone."""
    if feed.name == FUNCTION or state.get("sharding") == FUNCTION:
        return state
    position = whole_position(state)
    if position is None:
        return state
    done, batches = position["steps"], position["stream"]
    return {
        **{name: state[name] for name in ("dataset", "pass", "seeds")},
        "sharding": feed.name,
        "workers": 1,
        "worker": 0,
        "replicas": 1,
        "relaid": False,
        "steps": done,
        "pipeline": None if batches is None else {"batches": batches, "number": done},
    }
