"""The workers that train together, as seen from one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from typing import Any, Protocol


class Group(Protocol):
    """Processes that run the same program, in which all do the same things in the same order."""

    @property
    def index(self) -> int:
        """The number of this worker; 0 is the chief."""
        ...

    @property
    def tasks(self) -> Sequence[str]:
        """The names of all workers, such as `worker:1`, by number."""
        ...

    def exchange(self, about: str, report: str, cancelled: Event | None = None) -> list[str]:
        """Send a short text to all workers, and return those of all, by number.

        May be called from any thread: what is asked at the same time is told apart by `about`.

        Raises:
          WorkerLostError: when a worker is lost before it has answered.
          CancelledError: when `cancelled` is set before all have answered.
        """
        ...

    def agree(self, what: str, report: str) -> list[str]:
        """Exchange in the main flow of the program, where all workers come by in the same order."""
        ...

    def tell(self, about: str) -> None:
        """Let the others know of something that they do not wait for."""
        ...

    def hear(self, about: str, listener: Callable[[int], None]) -> None:
        """Have a function called when another worker tells of something, or has done so before.

        Args:
          about: what was given to `tell`.
          listener: gets the number of the worker. Called in any thread, once or more often, it
            returns at once and does not raise.
        """
        ...

    def give_up(self, why: str) -> None:
        """Have all workers fail with an `AbortedError`, also those that wait in a collective."""
        ...

    def limited(self, seconds: float | None) -> AbstractContextManager[None]:
        """Wait no longer than this for others to come to what is done inside; None changes nothing.

        Raises:
          DeadlineExceededError: inside, naming those who did not come.
        """
        ...

    def carry_out(
        self, program: Callable[..., Any], *args: Any, what: str, timeout: float | None = None
    ) -> Any:
        """Run a program in which all workers take part, and wait until it is done.

        Raises:
          WorkerLostError: when a worker is lost before or while it runs.
          DeadlineExceededError: when others have not come after `timeout` seconds.
        """
        ...


class _Alone:
    """The group of a process that trains by itself."""

    index = 0
    tasks = ("worker:0",)

    def exchange(self, about: str, report: str, cancelled: Event | None = None) -> list[str]:
        return [report]

    def agree(self, what: str, report: str) -> list[str]:
        return [report]

    def tell(self, about: str) -> None:
        """Tell nobody: there are no others."""

    def hear(self, about: str, listener: Callable[[int], None]) -> None:
        """Never call anything: there is nobody to tell of it."""

    def give_up(self, why: str) -> None:
        """Do nothing: no other worker is to fail."""

    def limited(self, seconds: float | None) -> AbstractContextManager[None]:
        return nullcontext()

    def carry_out(
        self, program: Callable[..., Any], *args: Any, what: str, timeout: float | None = None
    ) -> Any:
        return program(*args)


ALONE = _Alone()
