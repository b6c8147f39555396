"""A parameter server at the other end of real sockets."""

import threading

import cloudpickle
import numpy as np
import optax
import pytest

from jaxtribute import ps, rpc
from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.errors import (
    NotFoundError,
    PermissionDeniedError,
    PSUnavailableError,
    TaskUnavailableError,
)
from jaxtribute.ps._server import ParameterServer

KEY = rpc.ClusterKey(b"the secret of these tests")
O = "origin"  # noqa: E741


def free_address():
    return f"127.0.0.1:{free_ports(1)[0]}"


class Served:
    """A parameter server, and a thread in which it serves."""

    def __init__(self, address):
        self.server = ParameterServer("ps:0", KEY.derive("snapshots"))
        self.listener = rpc.Listener(address, "ps:0", KEY, self.server)
        self.thread = threading.Thread(target=self.listener.serve)
        self.thread.start()

    def end(self, killed=False):
        (self.listener.abandon if killed else self.listener.stop)()
        self.thread.join()
        self.server.close()


@pytest.fixture
def address():
    return free_address()


@pytest.fixture
def served(address):
    served = Served(address)
    yield served
    served.end()


@pytest.fixture
def connect(address):
    channels = []

    def connect(task):
        channel = rpc.Channel(address, "ps:0", task, KEY, ps.Reply)
        channels.append(channel)

        def ask(body, *arrays):
            frames = [a if isinstance(a, bytes) else rpc.frame_of(a) for a in arrays]
            (reply,) = rpc.exchange([(channel, body, frames)], what="an answer", patience=20)
            types = getattr(reply.body, "types", ())
            values = [rpc.as_array(*pair) for pair in zip(types, reply.frames, strict=True)]
            return reply.body, values

        return ask

    yield connect
    for channel in channels:
        channel.close()


def typed(array):
    return rpc.array_type(array)


def test_workers_train_what_the_coordinator_made(served, connect):
    chief, workers = connect("chief"), [connect("worker:0"), connect("worker:1")]
    weights, table = np.zeros((3, 2), np.float32), np.zeros((10, 2), np.float32)
    chief(ps.Adopt(O))
    chief(ps.Create(O, 0, "w", typed(weights)), weights)
    chief(ps.Create(O, 1, "table", typed(table)))
    chief(ps.RegisterOptimizer(O, 0), cloudpickle.dumps(optax.sgd(1.0)))
    rows, indices = np.ones((2, 2), np.float32), np.array([3, 7])
    operations = [
        ps.Operation(0, "apply", [typed(weights)], 0),
        ps.Operation(1, "apply", [typed(rows), typed(indices)], 0),
    ]
    for closure in range(10):
        ask = workers[closure % 2]
        body = ps.Update(O, closure, 0, -1, operations, [0])
        for applied in (True, False):
            answer, (new,) = ask(body, weights + 1, rows, indices)
            assert answer.applied is applied
            assert (new == -closure - 1).all()
    _, (gathered,) = workers[0](ps.Gather(O, [1]), np.array([7, 0]))
    assert gathered.tolist() == [[-10, -10], [0, 0]]
    status, _ = connect("observer")(ps.Status())
    assert (status.updates, status.repeated_updates, status.peers) == (10, 10, 4)


def test_errors_arrive_as_what_they_are(served, connect):
    chief, worker, observer = connect("chief"), connect("worker:0"), connect("observer")
    with pytest.raises(PSUnavailableError, match="ps:0 is not available: it was restarted"):
        worker(ps.Read(O, [ps.Span(0)]))
    chief(ps.Adopt(O))
    with pytest.raises(NotFoundError, match="no variable 0"):
        worker(ps.Read(O, [ps.Span(0)]))
    with pytest.raises(PermissionDeniedError, match="worker:0 asked ps:0 for RegisterOptimizer"):
        worker(ps.RegisterOptimizer(O, 0), cloudpickle.dumps(optax.sgd(1.0)))
    with pytest.raises(PermissionDeniedError):
        observer(ps.Read(O, [ps.Span(0)]))


def test_values_on_their_way_do_not_change(served, connect):
    """Large enough that an answer is still being sent while the next update happens."""
    chief, worker = connect("chief"), connect("worker:0")
    big = np.zeros(4_000_000, np.float32)
    chief(ps.Adopt(O))
    chief(ps.Create(O, 0, "big", typed(big)))
    one = np.ones(1, np.float32)
    scatter = ps.Operation(0, "scatter_add", [typed(one), typed(np.array([0]))])
    stop, done = threading.Event(), []

    def update():
        while not stop.is_set():
            worker(ps.Update(O, len(done), 0, -1, [scatter], []), one, np.array([len(big) - 1]))
            worker(ps.Update(O, len(done) + 1, 0, -1, [scatter], []), one, np.array([0]))
            done.extend([1, 1])

    thread = threading.Thread(target=update)
    thread.start()
    try:
        for _ in range(20):
            _, (value,) = chief(ps.Read(O, [ps.Span(0)]))
            assert value[-1] - value[0] in (0, 1)
            assert not value[1:-1].any()
    finally:
        stop.set()
        thread.join()
    assert chief(ps.Read(O, [ps.Span(0)]))[1][0][0] == len(done) / 2


def test_a_killed_server_is_restored_by_its_coordinator(address, connect, tmp_path):
    served = Served(address)
    try:
        chief, worker = connect("chief"), connect("worker:0")
        one = np.ones(2, np.float32)
        add = [ps.Operation(0, "add", [typed(one)])]
        chief(ps.Adopt(O))
        chief(ps.Create(O, 0, "v", typed(one)), one)
        worker(ps.Update(O, 0, 0, -1, add, []), one)
        chief(ps.KeepSnapshots(O, str(tmp_path), 0))
        worker(ps.Update(O, 1, 0, -1, add, []), one)
        served.end(killed=True)
        served = Served(address)
        with pytest.raises(TaskUnavailableError, match="restarted"):
            worker(ps.Update(O, 2, 0, -1, add, []), one)
        with pytest.raises(TaskUnavailableError, match="restarted"):
            chief(ps.Status())
        chief(ps.Adopt(O))
        restored, _ = chief(ps.Restore(O, str(tmp_path)))
        assert restored == ps.Restored(clock=1, numbers=[0])
        answers = [worker(ps.Update(O, n, 0, -1, add, [0]), one) for n in range(3)]
        assert [body.applied for body, _ in answers] == [False, True, True]
        assert answers[-1][1][0].tolist() == [4, 4]
    finally:
        served.end()
