"""The closures waiting for, or given to, a worker.

`ClosureQueue` starts no threads and sends no messages. A dispatcher calls `take`, and later tells
what became of each closure with `settle`, `fail`, `give_back` or, for a whole worker, `lose`.

Always true between calls:
  * scheduled == waiting + running + settled;
  * after the first `fail`, `take` yields nothing, and nothing waits, until `raise_error`;
  * what was running at a `fail` never waits again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = ["CAPACITY", "STRIKES", "ClosureQueue", "Lost"]

CAPACITY = 262144
STRIKES = 5  # workers that are killed at random now and then must not add up to that


class Item(Protocol):
    """What is queued."""

    number: int
    lost_on: list[str]
    """The workers that were lost while they had it."""
    cancelled: bool
    """Whether another failed while it waited or ran."""


T = TypeVar("T", bound=Item)


@dataclass(frozen=True)
class Lost(Generic[T]):
    """What becomes of the closures of a worker that was lost."""

    put_back: list[T] = field(default_factory=list[T])
    cancelled: list[T] = field(default_factory=list[T])
    given_up: list[T] = field(default_factory=list[T])


class ClosureQueue(Generic[T]):
    """First in, first out; what comes back goes to the end.

    Any of the closures that a worker had when it was lost may be to blame. So each is given to a
    worker that has nothing else from then on, until it is over or was there at too many losses.

    Args:
      capacity: how many closures may wait.
      first: the number of the first one.
    """

    def __init__(self, capacity: int = CAPACITY, first: int = 0) -> None:
        self._capacity = capacity
        self._waiting: deque[T] = deque()
        self._suspects: deque[T] = deque()
        self._suspected: set[int] = set()
        self._unsettled: dict[int, T] = {}
        self._in_line: set[int] = set()
        self._held: dict[str, dict[int, T]] = {}
        self._holders: dict[int, int] = {}
        self._next = first
        self._watermark = first
        self._out_of_order: set[int] = set()
        self._error: BaseException | None = None

    # --- What there is ---------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many closures no worker has."""
        return len(self._in_line)

    @property
    def running(self) -> int:
        """How many closures workers have."""
        return len(self._unsettled) - len(self._in_line)

    @property
    def next(self) -> int:
        """The number of the next closure."""
        return self._next

    @property
    def is_empty(self) -> bool:
        """Whether all closures are settled."""
        return not self._unsettled

    @property
    def is_full(self) -> bool:
        """Whether no other closure may be put."""
        return len(self._in_line) >= self._capacity

    @property
    def settled(self) -> int:
        """A number: all closures with smaller ones are settled."""
        return self._watermark

    @property
    def error(self) -> BaseException | None:
        """The first error since `raise_error`, for which everything else was cancelled."""
        return self._error

    def held(self, worker: str) -> int:
        """Return how many closures a worker has."""
        return len(self._held.get(worker, ()))

    def held_numbers(self, worker: str) -> list[int]:
        """Return which closures a worker has, in the order in which it runs them."""
        return list(self._held.get(worker, ()))

    def get(self, number: int) -> T | None:
        """Return a closure that is not settled."""
        return self._unsettled.get(number)

    def all_running(self) -> list[T]:
        """Return the closures that workers have."""
        return [item for number, item in self._unsettled.items() if number not in self._in_line]

    # --- What happens ----------------------------------------------------------------------

    def put(self, item: T) -> None:
        """Let a closure wait, and give it its number."""
        item.number = self._next
        self._next += 1
        self._unsettled[item.number] = item
        self._in_line.add(item.number)
        self._waiting.append(item)

    def take(self, worker: str, count: int) -> list[T]:
        """Give a worker up to so many closures."""
        held = self._held.setdefault(worker, {})
        taken: list[T] = []
        while self._suspects and self._suspects[0].number not in self._in_line:
            self._suspects.popleft()  # settled by an outcome that came late
        if self._suspects:
            count = 0 if held else 1
            line = self._suspects
        elif len(held) == 1 and next(iter(held)) in self._suspected:
            return []  # the suspect that it runs stays alone
        else:
            line = self._waiting
        while line and len(taken) < count:
            item = line.popleft()
            if item.number in self._in_line:
                self._in_line.remove(item.number)
                held[item.number] = item
                self._holders[item.number] = self._holders.get(item.number, 0) + 1
                taken.append(item)
        return taken

    def settle(self, worker: str, number: int) -> T | None:
        """Note that a closure is over, and return it unless it was over before.

        It does not matter whether the worker was to have it: it may have been lost for a while.
        """
        self._release(worker, number)
        item = self._unsettled.pop(number, None)
        if item is not None:
            self._in_line.discard(number)
            self._holders.pop(number, None)
            self._advance(number)
        return item

    def fail(self, error: BaseException) -> list[T]:
        """Store an error unless there is one, and return those that waited, which are cancelled."""
        if self._error is None:
            self._error = error
        cancelled = [self._unsettled[number] for number in sorted(self._in_line)]
        for item in self._unsettled.values():
            item.cancelled = True
        for item in cancelled:
            self._drop(item)
        self._waiting.clear()
        self._suspects.clear()
        return cancelled

    def give_back(self, worker: str, number: int) -> Lost[T]:
        """Let a closure wait again that a worker had, at the end; a cancelled one is over."""
        item = self._unsettled.get(number)
        self._release(worker, number)
        lost: Lost[T] = Lost()
        if item is not None and number not in self._in_line and not self._holders.get(number):
            self._return(item, lost)
        return lost

    def lose(self, worker: str) -> Lost[T]:
        """Take everything back from a worker that was lost."""
        held = self._held.pop(worker, {})
        lost: Lost[T] = Lost()
        for number, item in held.items():
            self._holders[number] = self._holders.get(number, 1) - 1
            if number not in self._unsettled or self._holders[number] > 0:
                continue  # over, or another worker has it as well
            item.lost_on.append(worker)
            if len(item.lost_on) >= STRIKES and not item.cancelled:
                self._drop(item)
                lost.given_up.append(item)
            else:
                self._return(item, lost, suspect=True)
        return lost

    def drop_running(self) -> list[T]:
        """Settle what workers have, and return it."""
        dropped = self.all_running()
        for item in dropped:
            self._drop(item)
        self._held.clear()
        return dropped

    def raise_error(self) -> BaseException | None:
        """Return the error and forget it."""
        error, self._error = self._error, None
        return error

    # --- Inside ----------------------------------------------------------------------------

    def _return(self, item: T, lost: Lost[T], suspect: bool = False) -> None:
        if item.cancelled:
            self._drop(item)
            lost.cancelled.append(item)
            return
        self._in_line.add(item.number)
        if suspect:
            self._suspected.add(item.number)
        (self._suspects if item.number in self._suspected else self._waiting).append(item)
        lost.put_back.append(item)

    def _drop(self, item: T) -> None:
        """Settle a closure that no worker has."""
        del self._unsettled[item.number]
        self._in_line.discard(item.number)
        self._holders.pop(item.number, None)
        self._advance(item.number)

    def _release(self, worker: str, number: int) -> None:
        if self._held.get(worker, {}).pop(number, None) is not None and number in self._holders:
            self._holders[number] -= 1

    def _advance(self, number: int) -> None:
        self._suspected.discard(number)
        self._out_of_order.add(number)
        while self._watermark in self._out_of_order:
            self._out_of_order.remove(self._watermark)
            self._watermark += 1
