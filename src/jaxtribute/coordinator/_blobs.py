"""What a worker was sent once, and keeps in a bounded amount of memory.

A blob is known by the digest of its bytes. What is pinned stays; of the rest, what was not used for
the longest time goes first. Whoever misses a blob asks the coordinator for it again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..rpc import Buffer

__all__ = ["BlobStore"]


class BlobStore(Mapping[str, Buffer]):
    """Blobs by their digest; for any thread.

    Args:
      limit: how many bytes to keep at most, apart from what is pinned.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._frames: dict[str, Buffer] = {}  # the one used last at the end
        self._pins: Counter[str] = Counter()
        self._size = 0

    def __getitem__(self, digest: str) -> Buffer:
        with self._lock:
            frame = self._frames.pop(digest)
            self._frames[digest] = frame
            return frame

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._frames))

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, digest: str, frame: Buffer) -> list[str]:
        """Keep a blob, and return the digests of those that were dropped for it."""
        with self._lock:
            if self._frames.pop(digest, None) is None:
                self._size += memoryview(frame).nbytes
            self._frames[digest] = frame
            return self._shrink(spared=digest)

    def pin(self, digests: Iterable[str]) -> None:
        """Keep these, now or when they come, until each is unpinned as often."""
        with self._lock:
            self._pins.update(digests)

    def unpin(self, digests: Iterable[str]) -> list[str]:
        """Take back one `pin`, and return the digests of those that were dropped."""
        with self._lock:
            for digest in digests:
                self._pins[digest] -= 1
                if self._pins[digest] <= 0:
                    del self._pins[digest]
            return self._shrink()

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return which of these are not there, each once."""
        with self._lock:
            return [digest for digest in dict.fromkeys(digests) if digest not in self._frames]

    def _shrink(self, spared: str = "") -> list[str]:
        dropped: list[str] = []
        if self._size <= self._limit:
            return dropped
        for digest, frame in list(self._frames.items()):
            if self._size <= self._limit:
                break
            if digest != spared and digest not in self._pins:
                del self._frames[digest]
                self._size -= memoryview(frame).nbytes
                dropped.append(digest)
        return dropped
