"""Which closures' updates were carried out.

Closures are numbered by their coordinator. What is below the watermark is settled and forgotten,
so only the closures on their way are remembered, one by one and in any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Applied:
    """A set of closure numbers that forgets what is settled.

    Args:
      settled: closures with a smaller number are settled.
      closures: those among the others whose updates were carried out.
    """

    def __init__(self, settled: int = 0, closures: Iterable[int] = ()) -> None:
        self.settled = settled
        self._numbers = set(closures)
        self._smallest_first = sorted(self._numbers)  # a sorted list is a heap

    def __contains__(self, closure: int) -> bool:
        # A settled closure's update can only be a late copy of one that was sent again.
        return closure < self.settled or closure in self._numbers

    @property
    def closures(self) -> list[int]:
        """The closures that are remembered one by one."""
        return sorted(self._numbers)

    def add(self, closure: int) -> None:
        """Remember that the update of a closure was carried out."""
        if closure not in self:
            self._numbers.add(closure)
            heapq.heappush(self._smallest_first, closure)

    def settle(self, settled: int) -> None:
        """Forget closures below `settled`, whose updates never come again."""
        self.settled = max(self.settled, settled)
        while self._smallest_first and self._smallest_first[0] < self.settled:
            self._numbers.remove(heapq.heappop(self._smallest_first))
