"""Asking tasks something and waiting for the answers, without a thread in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .._limits import say
from ..errors import (
    CancelledError,
    FailedPreconditionError,
    JaxtributeError,
    TaskUnavailableError,
    UnauthenticatedError,
)
from ._errors import Failure, error_of
from ._key import ClusterKey
from ._link import Link
from ._wire import Buffer, Envelope, Kind, WireError, checked_frames, decoder, encode_body
from ._zmq import zmq

_LOOK_EVERY = 0.1  # seconds; at what happens to connections, while nothing arrives
_LOOK_WHILE_SENDING = 0.01  # or connecting
_REBUFFS = 8  # after which another attempt will hardly end differently; they take some seconds
_FIRST_WORD = 10.0
_NEXT_WORD = 60.0

_decode_failure = decoder(Failure)


@dataclass(frozen=True)
class Reply:
    """What is answered to a request."""

    body: msgspec.Struct
    frames: Sequence[Buffer] = ()


@dataclass
class _Outstanding:
    """A request that waits for its answer."""

    body: bytes
    frames: list[Buffer]
    index: int
    sent_in: int = 0
    """The session in which it was last sent."""


class Channel:
    """A connection to a task, to ask it something; for one thread at a time.

    The connection is made when something is first asked. What else there is than `incarnation` and
    `close` is for `exchange`.

    Args:
      address: where the task listens.
      task: its name.
      own_task: the name of this one.
      key: of the cluster.
      replies: the Structs that it answers with.
      encryption: whether TCP is encrypted, as it must be on both sides or on none.

    Raises:
      InvalidArgumentError: when the address is none.
    """

    def __init__(
        self,
        address: str,
        task: str,
        own_task: str,
        key: ClusterKey,
        replies: Any,
        *,
        encryption: bool = True,
    ) -> None:
        self.task = task
        self.incarnation: str | None = None
        """Of the task, once it has answered."""
        self.link = Link(task, address, own_task, key, encryption=encryption)
        self._decode = decoder(replies)
        self.own_task = own_task
        self._requests = 0
        self.outstanding: dict[int, _Outstanding] = {}
        self._in_use = threading.Lock()
        self.closing = False
        self.look_at = 0.0
        """When to look at the connection again."""

    def close(self) -> None:
        """End the connection; whoever waits for an answer gets a `CancelledError`. May repeat."""
        self.closing = True
        # If it is in use, its user closes it: sockets are for one thread only.
        if self._in_use.acquire(blocking=False):
            try:
                self.link.close()
            finally:
                self._in_use.release()

    def enter(self) -> None:
        """Begin to use it.

        Raises:
          FailedPreconditionError: when another thread does.
        """
        if not self._in_use.acquire(blocking=False):
            raise FailedPreconditionError(
                f"A channel to {self.task} was used by two threads at the same time."
            )

    def leave(self) -> None:
        """End using it; what has not been answered is not waited for any more."""
        self.outstanding.clear()
        self._in_use.release()
        if self.closing:
            self.close()

    def begin(self, index: int, body: bytes, frames: list[Buffer]) -> None:
        """Note a request, which `push` sends."""
        self._requests += 1
        self.outstanding[self._requests] = _Outstanding(body, frames, index)

    def push(self) -> bool:
        """Send what has not been sent in this session, and return whether all of it has been.

        Raises:
          TaskUnavailableError: when the task is not the one it was.
          JaxtributeError: when it does not want to talk to us.
        """
        link = self.link
        if link.refusal is not None:
            refusal, link.refusal = link.refusal, None
            raise refusal
        if not link.up:
            return False
        if link.incarnation != self.incarnation:
            before, self.incarnation = self.incarnation, link.incarnation
            if before is not None:
                raise TaskUnavailableError(
                    self.task, "it was restarted, and what it held before is lost"
                )
        for number, request in self.outstanding.items():
            if request.sent_in != link.session:
                if not link.send(Kind.REQUEST, number, request.body, request.frames):
                    return False
                request.sent_in = link.session
        return True

    def take(self) -> tuple[int, Reply | JaxtributeError] | None:
        """Return an answer that has arrived, and which request it belongs to."""
        while (arrived := self.link.receive()) is not None:
            envelope, frames = arrived
            if envelope.request not in self.outstanding:
                continue  # somebody has stopped waiting for it
            try:
                answer = self._read(envelope, frames)
            except WireError as error:
                answer = error
            return self.outstanding.pop(envelope.request).index, answer
        return None

    def _read(self, envelope: Envelope, frames: list[Buffer]) -> Reply | JaxtributeError:
        if envelope.kind is Kind.ERROR:
            return error_of(_decode_failure(envelope.body), self.task)
        return Reply(self._decode(envelope.body), frames)


def exchange(
    requests: Sequence[tuple[Channel, msgspec.Struct, Sequence[Buffer]]],
    *,
    what: str,
    patience: float,
) -> list[Reply]:
    """Ask several tasks at the same time, and return what they answer, in the same order.

    A task that is there is waited for as long as it takes. Requests may arrive twice, when a
    connection ends before the answer has come.

    Args:
      requests: whom to ask, what, and the frames that go with it.
      what: what it is for, in words that follow "waiting for".
      patience: how many seconds a task may be gone.

    Raises:
      TaskUnavailableError: when a task has been gone for longer, or was restarted since it was
        last asked.
      UnauthenticatedError: when a task does not let this one in, as with another key.
      CancelledError: when a channel was closed meanwhile.
      JaxtributeError: what a task has answered, when all of them have.
    """
    encoded = [(c, encode_body(body), [*checked_frames(f)]) for c, body, f in requests]
    channels = list(dict.fromkeys(channel for channel, _, _ in encoded))
    entered: list[Channel] = []
    try:
        for channel in channels:
            channel.enter()
            entered.append(channel)
        for index, (channel, body, frames) in enumerate(encoded):
            channel.begin(index, body, frames)
        answers = _Exchange(channels, what, patience).run(len(encoded))
    finally:
        for channel in entered:
            channel.leave()
    replies: list[Reply] = []
    for answer in answers:
        if not isinstance(answer, Reply):
            raise answer
        replies.append(answer)
    return replies


class _Exchange:
    """The waiting in `exchange`."""

    def __init__(self, channels: list[Channel], what: str, patience: float) -> None:
        self._waiting = channels
        self._what = what
        self._patience = patience
        self._started = time.monotonic()
        self._speak_at = self._started + _FIRST_WORD
        self._look_at = 0.0

    def run(self, count: int) -> list[Reply | JaxtributeError]:
        answers: dict[int, Reply | JaxtributeError] = {}
        all_sent = False
        while len(answers) < count:
            if not all_sent or time.monotonic() >= self._look_at:
                all_sent = self._look()
            self._wait(all_sent)
            for channel in self._waiting:
                while (taken := channel.take()) is not None:
                    answers[taken[0]] = taken[1]
                    if len(answers) == count:
                        break
            self._waiting = [c for c in self._waiting if c.outstanding]
        return [answers[index] for index in range(count)]

    def _look(self) -> bool:
        """Look after the connections; return whether all requests are under way."""
        now = time.monotonic()
        self._look_at = now + _LOOK_EVERY
        all_sent = True
        for channel in self._waiting:
            link = channel.link
            if channel.closing:
                raise CancelledError(
                    f"The channel to {channel.task} was closed while waiting for {self._what}."
                )
            if not link.up or now >= channel.look_at:
                link.advance(now)
                channel.look_at = now + _LOOK_EVERY
            if link.rebuffs >= _REBUFFS:
                raise UnauthenticatedError(f"{channel.task} does not let this task in: {link.why}.")
            all_sent &= channel.push()
            gone = 0.0 if link.up else now - max(link.down_since, self._started)
            if gone > self._patience:
                raise TaskUnavailableError(
                    channel.task, f"{link.why} (waited {gone:.3g} s for {self._what})"
                )
        if now >= self._speak_at:
            self._speak(now)
        return all_sent

    def _wait(self, all_sent: bool) -> None:
        """Wait until something arrives, or it is time to look again."""
        # While a connection is being made, or has no room, there is more to do than to listen.
        seconds = _LOOK_EVERY if all_sent else _LOOK_WHILE_SENDING
        sockets = [c.link.socket for c in self._waiting if c.link.socket is not None]
        if len(sockets) == 1:
            sockets[0].poll(int(seconds * 1000))
        elif sockets:
            zmq.zmq_poll([(socket, zmq.POLLIN) for socket in sockets], int(seconds * 1000))
        else:
            time.sleep(seconds)

    def _speak(self, now: float) -> None:
        own = self._waiting[0].own_task
        links = [channel.link for channel in self._waiting]
        whom = ", ".join(
            f"{link.task} ({'which is there' if link.up else link.why})" for link in links
        )
        say(f"{own} has been waiting for {self._what} for {now - self._started:.0f} s: {whom}")
        self._speak_at = now + _NEXT_WORD
