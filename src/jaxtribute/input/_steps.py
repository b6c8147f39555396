"""What the replicas of one worker get in each step, still in host memory.

Each class here is an iterator over `Step`s with `get_state` and `set_state`. It ends when the
worker has nothing left; `_agreement` deals with workers that end at different times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data._background import State
from ..data._elements import batch_size, concatenate, cut, fingerprint, nothing_like
from ..data._ops import cannot_fail
from ..data._tables import BatchTable, table
from ._autoshard import ShardPlan, global_batch_size, without_prefetch
from ._rebatch import Layout, cut_evenly, piece_sizes, sizes_everywhere

if TYPE_CHECKING:
    from ..data._streams import Stream


@dataclass(frozen=True)
class Step:
    """What each replica of a worker gets: pieces of one batch, or elements of their own."""

    batch: Any = None
    sizes: tuple[int, ...] = ()
    elements: tuple[Any, ...] | None = None
    everywhere: tuple[int, ...] | None = None  # the sizes on all workers, where they are known

    @property
    def pieces(self) -> tuple[Any, ...]:
        """The element of each replica."""
        if self.elements is not None:
            return self.elements
        bounds = pairwise(accumulate(self.sizes, initial=0))
        return tuple(cut(self.batch, start, stop) for start, stop in bounds)

    @property
    def is_even(self) -> bool:
        """Whether the pieces of one batch are equally large."""
        return self.elements is None and len(set(self.sizes)) == 1


class Steps(ABC):
    """The steps of one worker."""

    fingerprint = ""  # of the batch the last step was cut from, where workers are to compare it

    # Whether each worker knows what all of them get, and that none of them can fail to read it.
    known_to_all = False

    @abstractmethod
    def __next__(self) -> Step: ...

    @abstractmethod
    def get_state(self) -> State:
        """Return where the next step is found."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Go on from a state."""

    @abstractmethod
    def close(self) -> None:
        """Release files and threads."""


def steps_of(plan: ShardPlan, epoch: int) -> Steps:
    """Start reading what a plan gives to one worker."""
    from ..data._streams import stream  # which imports Grain

    op = without_prefetch(plan.op)
    if plan.layout.replicas_in_sync == 1:
        return _WholeSteps(stream(op, epoch))
    if not plan.cuts_each_batch:
        size = global_batch_size(plan.whole)
        return _FilledSteps(stream(op, epoch), piece_sizes(size, plan.layout), plan.layout)
    by_position = table(op, epoch)
    if isinstance(by_position, BatchTable):
        return _GatheredSteps(by_position, plan.layout, cannot_fail(op))
    return _CutSteps(stream(op, epoch), plan.layout)


class _GatheredSteps(Steps):
    """The worker's part of each batch, fetched from a table without the rest of the batch."""

    def __init__(self, batches: BatchTable, layout: Layout, cannot_fail: bool) -> None:
        self._batches = batches
        self._layout = layout
        self._position = 0
        self.known_to_all = cannot_fail
        # Compared once, as nothing is asked afterwards.
        self.fingerprint = f"of {batches.size} x {batches.batch_size}" if cannot_fail else ""

    def __next__(self) -> Step:
        if self._batches.size is not None and self._position >= self._batches.size:
            raise StopIteration
        size = self._batches.size_of(self._position)
        bounds = cut_evenly(size, self._layout)
        sizes = tuple(stop - start for start, stop in bounds)
        if any(sizes):
            own = np.concatenate([np.arange(start, stop) for start, stop in bounds])
            batch = self._batches.part(self._position, own)
        else:
            batch = nothing_like(self._batches.part(self._position, np.arange(1)))
        self._position += 1
        return Step(batch, sizes, everywhere=sizes_everywhere(size, self._layout))

    def get_state(self) -> State:  # as that of a stream over the table
        return {"batches": {"position": self._position}, "number": self._position}

    def set_state(self, state: State) -> None:
        self._position = state["batches"]["position"]

    def close(self) -> None:
        pass


class _BatchSteps(Steps):
    """Steps of which each takes one element of a stream, whatever the number of replicas."""

    def __init__(self, batches: Stream) -> None:
        self._batches = batches
        self._number = 0

    def _next_batch(self) -> Any:
        _, batch = next(self._batches)
        self._number += 1
        return batch

    def get_state(self) -> State:
        return {"batches": self._batches.get_state(), "number": self._number}

    def set_state(self, state: State) -> None:
        self._batches.set_state(state["batches"])
        self._number = state["number"]

    def close(self) -> None:
        self._batches.close()


class _WholeSteps(_BatchSteps):
    """The elements of a stream, for the only replica there is."""

    def __next__(self) -> Step:
        return Step(elements=(self._next_batch(),))


class _CutSteps(_BatchSteps):
    """The worker's part of each batch of a stream."""

    def __init__(self, batches: Stream, layout: Layout) -> None:
        super().__init__(batches)
        self._layout = layout

    def __next__(self) -> Step:
        batch = self._next_batch()
        bounds = cut_evenly(batch_size(batch, f"Element {self._number - 1}"), self._layout)
        if self._layout.workers > 1:
            # All workers are to see the same batches: what the first of a pass shows.
            self.fingerprint = fingerprint(batch) if self._number == 1 else ""
            batch = concatenate([cut(batch, start, stop) for start, stop in bounds])
        return Step(batch, tuple(stop - start for start, stop in bounds))


class _FilledSteps(Steps):
    """Pieces of given sizes, filled from the worker's own batches one after the other."""

    def __init__(self, batches: Stream, sizes: Sequence[int], layout: Layout) -> None:
        self._batches = batches
        self._sizes = sizes
        self._layout = layout
        self._slot = 0
        self._number = 0
        self._left: Any = None  # the batch whose examples are being delivered
        self._before: State = batches.get_state()  # the state before it was read
        self._used = self._held = 0

    def __next__(self) -> Step:
        wanted = self._sizes[self._slot : self._slot + self._layout.replicas]
        if not any(wanted):  # more replicas than examples in a batch: a turn without any
            if not self._has_more():
                raise StopIteration
            self._advance()
            return Step(cut(self._left, 0, 0), tuple(wanted))
        parts: list[Any] = []
        missing = sum(wanted)
        while missing and self._has_more():
            count = min(missing, self._held - self._used)
            parts.append(cut(self._left, self._used, self._used + count))
            self._used += count
            missing -= count
        if not parts:
            raise StopIteration
        self._advance()
        return Step(concatenate(parts), _filled(wanted, sum(wanted) - missing))

    def _advance(self) -> None:
        self._slot = (self._slot + self._layout.replicas) % len(self._sizes)

    def _has_more(self) -> bool:
        while self._left is None or self._used == self._held:
            before = self._batches.get_state()
            item = next(self._batches, None)
            if item is None:
                return False
            self._before = before
            self._left, self._used = item[1], 0
            self._held = batch_size(self._left, f"Element {self._number}")
            self._number += 1
        return True

    def get_state(self) -> State:
        return {
            "batches": self._before,
            "used": self._used,
            "slot": self._slot,
            "number": self._number,
        }

    def set_state(self, state: State) -> None:
        self._batches.set_state(state["batches"])
        self._before = state["batches"]
        self._left, self._used, self._held = None, 0, 0
        self._number = state["number"]
        if state["number"]:
            self._number -= 1
            self._has_more()
            self._used = state["used"]
        self._slot = state["slot"]

    def close(self) -> None:
        self._batches.close()


def _filled(sizes: Sequence[int], available: int) -> tuple[int, ...]:
    """Return what `available` examples make of pieces, the first of which are filled first."""
    filled: list[int] = []
    for size in sizes:
        filled.append(min(size, available))
        available -= filled[-1]
    return tuple(filled)


class ElementSteps(Steps):
    """One whole element for each replica, of one stream in turn or of a stream for each."""

    def __init__(self, streams: Sequence[Stream], replicas: int) -> None:
        self._streams = streams
        self._replicas = replicas

    def __next__(self) -> Step:
        one_each = len(self._streams) == self._replicas
        elements: list[Any] = []
        for replica in range(self._replicas):
            source = self._streams[replica if one_each else 0]
            item = next(source, None)
            elements.append(None if item is None else item[1])
        present = [element for element in elements if element is not None]
        if not present:
            raise StopIteration
        nothing = nothing_like(present[0]) if len(present) < len(elements) else None
        return Step(elements=tuple(nothing if e is None else e for e in elements))

    def get_state(self) -> State:
        return {"streams": [source.get_state() for source in self._streams]}

    def set_state(self, state: State) -> None:
        for source, own in zip(self._streams, state["streams"], strict=True):
            source.set_state(own)

    def close(self) -> None:
        for source in self._streams:
            source.close()
