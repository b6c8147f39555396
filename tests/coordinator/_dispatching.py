"""A dispatcher whose workers are played by the test: no threads, no sockets, a clock by hand."""

from contextlib import contextmanager
from typing import Any

from jaxtribute.coordinator._dispatcher import Cluster, Dispatcher
from jaxtribute.coordinator._messages import (
    Adopt,
    Beat,
    Blobs,
    Build,
    Cancel,
    Outcome,
    Outcomes,
    Ready,
    Run,
)
from jaxtribute.coordinator._packing import Packer, pack_error, pack_result

ORIGIN = "this life"


class Epochs:
    def __init__(self):
        self.epoch = 0

    def bump_epoch(self):
        self.epoch += 1


class Rig:
    """A dispatcher with its messages in a list; `wake` acts at once unless `arriving_together`."""

    def __init__(self, workers=2, servers=1, **options):
        self.now = 1000.0
        self.packer = Packer()
        self.epochs = Epochs()
        self.posted: list[tuple[str, Any, list]] = []
        self._woken: bool | None = None  # None unless it acts later
        cluster = Cluster(
            ORIGIN, [f"w{i}:1" for i in range(workers)], [f"p{i}:1" for i in range(servers)]
        )
        self.dispatcher = Dispatcher(
            cluster, self.epochs, self.packer, clock=lambda: self.now, **options
        )
        self.closures = self.dispatcher.closures
        self.dispatcher.start(self)
        for i in range(servers):
            self.dispatcher.up(f"ps:{i}", f"ps {i}")

    # --- rpc.Connections -------------------------------------------------------------------

    def post(self, task, body, frames=()):
        self.posted.append((task, body, list(frames)))

    def wake(self):
        if self._woken is None:
            self.dispatcher.woken()
        else:
            self._woken = True

    @contextmanager
    def arriving_together(self):
        """Have `wake` act at the end, as it does after all messages that have arrived."""
        self._woken = False
        yield
        woken, self._woken = self._woken, None
        if woken:
            self.dispatcher.woken()

    # --- The workers -----------------------------------------------------------------------

    def join_cluster(self, *indices, incarnation="1"):
        for index in indices:
            self.dispatcher.up(f"worker:{index}", f"{index}/{incarnation}")
            self.say(index, Ready(ORIGIN, 1))

    def say(self, index, body, frames=()):
        self.dispatcher.received(f"worker:{index}", body, list(frames))

    def end(self, index, *numbers, status="done", value=None, error=None, seconds=0.001):
        frames: list = []
        outcomes = []
        for number in numbers:
            own = []
            if error is not None:
                own = pack_error(error, f"worker:{index}")
            elif status == "done" and self.wants_result(number):
                own = pack_result(value)
            frames += own
            outcomes.append(Outcome(number, status, seconds, len(own)))
        self.say(index, Outcomes(ORIGIN, outcomes), frames)

    def pass_time(self, seconds, beating=()):
        """Let time pass in small steps, in which some workers give signs of life."""
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            for index in beating:
                self.say(index, Beat(-1, 0, 0))
            self.dispatcher.tick(self.now)

    # --- What was sent ---------------------------------------------------------------------

    def sent(self, kind, index=None):
        return [
            body
            for task, body, _ in self.posted
            if isinstance(body, kind) and index in (None, int(task.partition(":")[2]))
        ]

    def given(self, index):
        """Return the numbers of the closures that a worker was given so far."""
        return [work.number for run in self.sent(Run, index) for work in run.works]

    def holder(self, number):
        """Return the worker that has a closure."""
        queue = self.closures.queue
        (index,) = (
            v.index
            for v in self.dispatcher.workers.values()
            if number in queue.held_numbers(v.task)
        )
        return index

    def works(self):
        return [work for run in self.sent(Run) for work in run.works]

    def wants_result(self, number):
        return [work.wants_result for work in self.works() if work.number == number][-1]

    def blobs(self, index):
        return [digest for message in self.sent(Blobs, index) for digest in message.digests]

    def built(self, index):
        return [message.resource for message in self.sent(Build, index)]

    def cancelled(self, index):
        return [number for message in self.sent(Cancel, index) for number in message.numbers]

    def adoptions(self, index):
        return len(self.sent(Adopt, index))

    # --- The user --------------------------------------------------------------------------

    def schedule(self, function=lambda: None, *args):
        return self.dispatcher.schedule(
            self.packer.function(function), self.packer.arguments(args, {})
        )
