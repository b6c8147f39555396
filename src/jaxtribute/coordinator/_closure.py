"""One scheduled call of a function."""

from __future__ import annotations

import weakref

from ._messages import Work
from ._packing import Blob, Packed, PackedFunction, Resource
from ._remote_value import RemoteValue

__all__ = ["Closure"]


class Closure:
    """A packed function with its packed arguments, and who wants its result.

    Args:
      function: what to call.
      arguments: what to call it with.
      epoch: values of variables that are older than this are too old for it.
      value: where its result goes, as long as somebody holds it.
    """

    __slots__ = (
        "_value",
        "arguments",
        "cancelled",
        "epoch",
        "function",
        "lost_on",
        "number",
        "servers_lost",
    )

    def __init__(
        self, function: PackedFunction, arguments: Packed, epoch: int, value: RemoteValue
    ) -> None:
        self.number = -1
        self.function = function
        self.arguments = arguments
        self.epoch = epoch
        self.lost_on: list[str] = []
        self.servers_lost = 0  # how often it could not reach a server
        self.cancelled = False  # whether another failed while it waited or ran
        self._value = weakref.ref(value)

    @property
    def value(self) -> RemoteValue | None:
        """Where its result goes, if anybody wants it."""
        return self._value()

    @property
    def resources(self) -> tuple[Resource, ...]:
        """What it needs that is made on workers, each after what it is made of."""
        return (*self.function.resources, *self.arguments.resources)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """What it needs on the worker, the function first."""
        return (self.function.blob, *self.function.blobs, *self.arguments.blobs)

    def work(self) -> Work:
        """Return the message that describes it."""
        return Work(
            self.number,
            self.function.blob.digest,
            [blob.digest for blob in (*self.function.blobs, *self.arguments.blobs)],
            self.epoch,
            self.value is not None,
            len(self.arguments.frames),
        )
