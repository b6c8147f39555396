"""A worker's connection to the meeting point of all: what it says there, and what it is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

from .._limits import say
from ..errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    JaxtributeError,
    UnauthenticatedError,
    UnavailableError,
    WorkerLostError,
)
from . import _wire
from ._facts import differing
from ._roster import ENDED, FINISHED
from ._watch import Place, diverged, judge

_RETRY = 0.1
_NOTICE_EVERY = 10.0
_REMEMBERED = 10_000  # things done together, to compare with those of other workers


class Link:
    """Sends this worker's part of exchanges and its place, and learns what became of the others.

    Coroutines run in the loop's thread; everything else may be called from any.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        index: int,
        silence_limit: float,
        beat: float,
        on_broken: Callable[[], None],
    ) -> None:
        self.tasks = tuple(tasks)
        self.index = index
        self._silence_limit = silence_limit
        self._beat = beat
        self._on_broken = on_broken
        self._loop: asyncio.AbstractEventLoop
        self._writer: asyncio.StreamWriter
        self._running: list[asyncio.Task[None]] = []
        self._heard = 0.0
        self._noticed = 0.0
        self._place = Place()
        self._changed = threading.Condition()
        self._awaited: set[str] = set()
        self._answers: dict[str, list[str]] = {}
        self._listeners: dict[str, Callable[[int], None]] = {}
        self._unheard: dict[str, int] = {}  # who told of what nobody listens for yet
        self._missing: list[str] = list(tasks)
        self._begun = False
        self._finished: set[int] = set()
        self._places: Sequence[Any] = ()
        self._trails: dict[int, int] = {}
        self._verdict: JaxtributeError | None = None
        self.was_raised = False  # what went wrong, so that the program knows of it
        self._farewell = asyncio.Event()

    # --- Joining ---------------------------------------------------------------------------

    async def join(self, host: str, port: int, facts: dict[str, Any], timeout: float) -> None:
        """Connect to the chief, trying again until it is there.

        Raises:
          DeadlineExceededError: when the chief does not come.
        """
        self._loop = asyncio.get_running_loop()
        started = self._noticed = time.monotonic()
        while True:
            try:
                reader, self._writer = await self._reach(host, port, facts, timeout)
                break
            except UnauthenticatedError:
                raise
            except (OSError, EOFError, UnavailableError) as reason:
                error = reason if str(reason) else "it does not answer as a worker would"
                waited = time.monotonic() - started
                chief = f"{self.tasks[0]} at {host}:{port}"
                if waited > timeout:
                    raise DeadlineExceededError(
                        f"{self.tasks[self.index]} has waited {waited:.0f} s for {chief}, which "
                        f"cannot be reached: {error}. Start it, and check that its address in the "
                        "cluster's description is right and no firewall is in between."
                    ) from reason
                self._notice_every(f"has waited {waited:.0f} s for {chief}: {error}")
                await asyncio.sleep(_RETRY)
        self._heard = time.monotonic()
        self._running = [
            asyncio.create_task(self._listen(reader)),
            asyncio.create_task(self._watch()),
        ]

    async def _reach(
        self, host: str, port: int, facts: dict[str, Any], timeout: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        request = {"kind": "link", "worker": self.index, "facts": facts}
        reader, writer = await asyncio.open_connection(host, port)
        try:
            answer = _wire.greet(reader, writer, request)
            await asyncio.wait_for(answer, min(timeout, self._silence_limit))
        except BaseException:
            writer.close()
            raise
        return reader, writer

    def wait_for_all(self, timeout: float) -> None:
        """Wait until all workers have come, and agree with each other.

        Raises:
          DeadlineExceededError: naming those who have not come.
          FailedPreconditionError: naming who differs in what.
        """
        started = time.monotonic()
        with self._changed:
            while not self._begun:
                self._check()
                waited = time.monotonic() - started
                missing = ", ".join(self._missing)
                if waited > timeout:
                    raise DeadlineExceededError(
                        f"{self.tasks[self.index]} has waited {waited:.0f} s for {missing}, which "
                        "did not come. Start them with the same cluster description, or describe "
                        "a cluster without them."
                    )
                self._notice_every(f"has waited {waited:.0f} s for {missing}")
                self._changed.wait(0.1)

    # --- Talking ---------------------------------------------------------------------------

    def exchange(self, about: str, report: str, cancelled: Event | None = None) -> list[str]:
        """Send a text to all workers, and return those of all."""
        with self._changed:
            self._check()
            self._awaited.add(about)
        self._send({"do": "report", "about": about, "report": report})
        with self._changed:
            try:
                while about not in self._answers:
                    self._check()
                    if 0 in self._finished:  # nobody is left to answer
                        raise WorkerLostError([self.tasks[0]], FINISHED)
                    if cancelled is not None and cancelled.is_set():
                        raise CancelledError(f"The exchange {about!r} was cancelled.")
                    self._changed.wait(None if cancelled is None else 0.05)
                return self._answers.pop(about)
            finally:
                self._awaited.discard(about)

    def tell(self, about: str) -> None:
        """Let the others know of something."""
        self._send({"do": "tell", "about": about})

    def hear(self, about: str, listener: Callable[[int], None]) -> None:
        """Have a function called with the number of each worker that tells of something."""
        with self._changed:
            self._listeners[about] = listener
            teller = self._unheard.pop(about, None)
        if teller is not None:
            listener(teller)

    def enter(self, what: str, timeout: float | None) -> None:
        """Begin something that all workers do together."""
        self._place = place = self._place.next(what, time.monotonic(), timeout)
        self._trails[place.count] = place.trail
        self._trails.pop(place.count - _REMEMBERED, None)

    def leave(self) -> None:
        """End what was begun."""
        self._place = Place(self._place.count, trail=self._place.trail)

    @property
    def joined(self) -> bool:
        """Whether the chief was reached."""
        return bool(self._running)

    @property
    def place(self) -> Place:
        """Where this worker is."""
        return self._place

    @property
    def is_waiting(self) -> bool:
        """Whether this worker is in something that all do together."""
        return bool(self._place.what)

    @property
    def is_broken(self) -> bool:
        """Whether something has gone wrong."""
        return self._verdict is not None

    def check(self) -> None:
        """Raise what has gone wrong, if something has."""
        with self._changed:
            self._check()

    def verdict_within(self, seconds: float) -> JaxtributeError | None:
        """Wait until it is known what went wrong, and return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._verdict or self._finished, seconds)
            if self._verdict is None and self._finished:
                return WorkerLostError([self.tasks[i] for i in sorted(self._finished)], FINISHED)
            return self._verdict

    def give_up(self, error: JaxtributeError) -> None:
        """End all waiting in this process."""
        with self._changed:
            if self._verdict is not None:
                return
            self._verdict = error
            self._changed.notify_all()
        self._on_broken()

    async def others_out(self, limit: float) -> None:
        """Wait until nobody is in what this worker has left already, which its end could break.

        The chief tells where the others are. Once it has finished, which it does after such a wait
        of its own, they are out of all that they could do together.
        """
        self._places = ()
        until = time.monotonic() + limit
        while time.monotonic() < until and self._verdict is None and 0 not in self._finished:
            await asyncio.sleep(self._beat / 5)
            inside = [
                place
                for i, place in enumerate(self._places)
                if i not in self._finished and place and place["what"]
            ]
            if self._places and not any(p["count"] <= self._place.count for p in inside):
                return

    def tell_end(self, why: str | None) -> None:
        """Tell the others that this process is about to end."""
        self._send({"do": "leave", "why": why})

    def tell_broken(self, why: str) -> None:
        """Tell all that they cannot go on; they give up when they hear it, as does this worker."""
        self._send({"do": "broke", "why": why})

    async def close(self) -> None:
        """Part from the others, who have been told."""
        with suppress(TimeoutError):  # the chief may be gone already
            await asyncio.wait_for(self._farewell.wait(), 2.0)
        for task in self._running:
            task.cancel()
        self._writer.close()

    # --- In the loop's thread --------------------------------------------------------------

    def _send(self, message: _wire.Message) -> None:
        self._loop.call_soon_threadsafe(self._write, message)

    def _write(self, message: _wire.Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(_wire.packed(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await _wire.receive(reader)
                self._heard = time.monotonic()
                self._told(message)
        except (EOFError, OSError):
            self._farewell.set()
            if 0 not in self._finished:
                self.give_up(WorkerLostError([self.tasks[0]], ENDED))

    def _told(self, message: _wire.Message) -> None:
        say = message["say"]
        if say == "lost":
            own = message["worker"] == self.index
            why = "the others have given up on this worker: " if own else ""
            self.give_up(WorkerLostError([self.tasks[message["worker"]]], why + message["why"]))
        elif say == "broke":
            self.give_up(AbortedError(f"{self.tasks[message['by']]} gave up: {message['why']}"))
        elif say == "beats":
            self._places = message["places"]
            self._judge(message["places"])
        elif say == "bye":
            self._farewell.set()
        elif say == "told":
            self._hears(message["about"], message["by"])
        else:
            with self._changed:
                self._note(say, message)
                self._changed.notify_all()

    def _hears(self, about: str, teller: int) -> None:
        with self._changed:
            listener = self._listeners.get(about)
            if listener is None:
                self._unheard[about] = teller
        if listener is not None:
            listener(teller)

    def _note(self, say: str, message: _wire.Message) -> None:
        if say == "finished":
            self._finished.add(message["worker"])
        elif say == "closed":
            self._finished.add(0)
            self._farewell.set()
        elif say == "missing":
            self._missing = message["tasks"]
        elif say == "begin":
            self._begun = True
            if message["differences"] is not None:
                self._verdict = differing(message["differences"])
        elif say == "refused":
            self._verdict = AlreadyExistsError(message["why"])
        elif say == "all" and message["about"] in self._awaited:
            self._answers[message["about"]] = message["reports"]

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(self._beat)
            self._write({"do": "beat", "place": self._place.as_message()})
            now = time.monotonic()
            slept_through = now - before > self._silence_limit / 2  # this process was stopped
            silent = now - self._heard > self._silence_limit and 0 not in self._finished
            if silent and not slept_through:
                why = f"it has not answered for {now - self._heard:.0f} s"
                self.give_up(WorkerLostError([self.tasks[0]], why + "; it may be stopped"))

    def _judge(self, places: Sequence[Any]) -> None:
        now = time.monotonic()
        judgement = judge(self._place, self.tasks, places, now, self._noticed)
        if judgement.notice is not None:
            self._notice_every(judgement.notice)
        error = judgement.error or diverged(self._trails, self.tasks, places)
        if error is not None and self._verdict is None:
            self._write({"do": "broke", "why": str(error)})
            self.give_up(error)

    def _check(self) -> None:
        if self._verdict is not None:
            self.was_raised = True
            raise _again(self._verdict)

    def _notice_every(self, text: str) -> None:
        now = time.monotonic()
        if now - self._noticed >= _NOTICE_EVERY:
            self._noticed = now
            say(f"{self.tasks[self.index]} {text}")


def _again(error: JaxtributeError) -> JaxtributeError:
    """Return an error like one that may have been raised elsewhere, without its traceback."""
    return type(error)(*error.args)
