"""A coordinator that a test plays by hand, and the worker it plays with."""

import queue
import threading
import time
from collections import defaultdict

from jaxtribute.coordinator._messages import (
    Adopt,
    Beat,
    Blobs,
    Build,
    FromWorker,
    Need,
    Outcomes,
    Ready,
    Run,
    Work,
)
from jaxtribute.coordinator._packing import Packer, Resource
from jaxtribute.coordinator._results import load_error, load_result
from jaxtribute.coordinator._worker import Worker
from jaxtribute.rpc import ClusterKey, Connections, Listener

SECONDS = 60.0
KEY = ClusterKey(bytes(range(32)))


class RunningWorker:
    """A worker on a port of this machine, with threads as a server gives it."""

    def __init__(self, address, **options):
        self.worker = Worker("worker:0", KEY, announce=lambda text: None, **options)
        self.listener = Listener(address, "worker:0", KEY, self.worker)
        self.worker.send_by(self.listener)
        self.worker.start()
        targets = [self.listener.serve, self.worker.executor.work]
        self.threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.worker.stop()
        self.listener.stop()
        for thread in self.threads:
            thread.join(SECONDS)


class Boss:
    """The coordinator's side of the connection, in a thread of its own."""

    def __init__(self, address, origin="first", task="chief", servers=()):
        self.origin = origin
        self.servers = list(servers)
        self.packer = Packer()
        self.outcomes = {}
        self.order = []
        self.messages = queue.Queue()
        self._sent = {}
        self._numbers = iter(range(10**6))
        self._incarnations = queue.Queue()
        self.beats = queue.Queue()
        self.ups = 0
        self.downs = []
        self._connections = Connections(task, KEY, self, FromWorker)
        self._connections.connect("worker:0", address)

    # --- ConnectionsHandler ----------------------------------------------------------------

    def up(self, task, incarnation):
        self.ups += 1
        self._incarnations.put(incarnation)

    def down(self, task, why):
        self.downs.append(why)

    def woken(self):
        pass

    def tick(self, now):
        pass

    def received(self, task, body, frames):
        if isinstance(body, Beat):
            self.beats.put(body)
        elif isinstance(body, Outcomes):
            assert body.origin == self.origin
            first = 0
            for outcome in body.outcomes:
                own = frames[first : first + outcome.frames]
                first += outcome.frames
                self.outcomes[outcome.number] = outcome.status, own
                self.order.append(outcome.number)
            assert first == len(frames)
        else:
            self.messages.put(body)

    # --- What a test does ------------------------------------------------------------------

    def close(self):
        self._connections.close()

    def post(self, body, frames=()):
        self._connections.post("worker:0", body, frames)

    def wait_until_up(self):
        return self._incarnations.get(timeout=SECONDS)

    def adopt(self):
        """Take the worker, and wait until it is ready."""
        self.wait_until_up()
        self.post(Adopt(self.origin, 0, 2, self.servers))
        return self.expect(Ready)

    def expect(self, kind):
        message = self.messages.get(timeout=SECONDS)
        assert isinstance(message, kind), message
        assert message.origin == self.origin
        return message

    def send_blobs(self, digests):
        self.post(Blobs(list(digests)), [self._sent[digest].data for digest in digests])

    def resource(self, function, number):
        """Describe something that is made on the worker."""
        packed = self.packer.function(function)
        self._keep([packed.blob, *packed.blobs])
        self.send_blobs([blob.digest for blob in [packed.blob, *packed.blobs]])
        self.post(Build(number, packed.blob.digest))
        return Resource(number, packed)

    def run(self, function, *args, blobs=True, epoch=0, wants_result=True, **kwargs):
        """Have the worker run a function, and return the number of the closure."""
        (number,) = self.run_all([(function, args, kwargs)], blobs, epoch, wants_result)
        return number

    def run_all(self, calls, blobs=True, epoch=0, wants_result=True):
        works, frames, digests = [], [], {}
        for function, args, kwargs in calls:
            packed = self.packer.function(function)
            arguments = self.packer.arguments(args, kwargs)
            needed = [packed.blob, *packed.blobs, *arguments.blobs]
            self._keep(needed)
            digests.update((blob.digest, None) for blob in needed)
            work = _work(next(self._numbers), needed, epoch, wants_result, len(arguments.frames))
            works.append(work)
            frames.extend(arguments.frames)
        if blobs:
            self.send_blobs(digests)
        self.post(Run(works, 0), frames)
        return [work.number for work in works]

    def _keep(self, blobs):
        self._sent.update((blob.digest, blob) for blob in blobs)

    def outcome(self, number):
        """Wait for what became of a closure: its status, and its result or error."""
        until(lambda: number in self.outcomes, f"an outcome of closure {number}")
        status, frames = self.outcomes[number]
        if status == "done":
            return status, load_result(frames) if frames else None
        return status, load_error(frames) if frames else None

    def result(self, number):
        status, value = self.outcome(number)
        assert status == "done", value
        return value

    def needed(self):
        """Wait until the worker asks for blobs, and return their digests."""
        return self.expect(Need).digests


def _work(number, blobs, epoch, wants_result, frames):
    digests = [blob.digest for blob in blobs]
    return Work(number, digests[0], digests[1:], epoch, wants_result, frames)


def until(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"Waited in vain for {what}."
        time.sleep(0.002)


MEETINGS = defaultdict(threading.Event)
"""Events by name, by which a function on the worker and the test wait for each other.

A worker in this process unpickles functions; what they import is the same as in the test.
"""


def meet(name):
    """Wait, in a closure, until the test allows going on."""
    from tests.coordinator import _boss

    _boss.MEETINGS[f"{name} reached"].set()
    assert _boss.MEETINGS[f"{name} allowed"].wait(_boss.SECONDS)


def wait_for(name):
    assert MEETINGS[f"{name} reached"].wait(SECONDS)


def allow(name):
    MEETINGS[f"{name} allowed"].set()
