import os
import time

import cloudpickle
import numpy as np
import optax
import pytest

from jaxtribute import rpc
from jaxtribute.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PSUnavailableError,
)
from jaxtribute.ps import (
    Adopt,
    BuildSlots,
    Create,
    Delete,
    Done,
    Gather,
    KeepSnapshots,
    Operation,
    Read,
    RegisterOptimizer,
    Restore,
    Restored,
    Span,
    Status,
    Update,
    Updated,
    Values,
    Write,
)
from jaxtribute.ps._server import ParameterServer

O = "origin"  # noqa: E741
F32 = rpc.ArrayType("float32", (2, 2))
ONES = np.ones((2, 2), np.float32)


def peer(task):
    return rpc.Peer(id=task.encode(), task=task, incarnation="1")


CHIEF, WORKER, OBSERVER = peer("chief"), peer("worker:0"), peer("observer")


class Server:
    """A parameter server that is asked directly."""

    def __init__(self, task="ps:0", adopted=True):
        self.handler = ParameterServer(task, b"key")
        if adopted:
            self.ask(Adopt(O))

    def ask(self, body, *frames, by=CHIEF):
        return self.handler.received(by, 1, body, [rpc.frame_of(f) for f in frames])

    def arrays(self, body, *frames, by=WORKER):
        reply = self.ask(body, *frames, by=by)
        pairs = zip(reply.body.types, reply.frames, strict=True)
        return [rpc.as_array(*pair).tolist() for pair in pairs]

    def status(self):
        return self.ask(Status(), by=OBSERVER).body


@pytest.fixture
def server():
    server = Server()
    yield server
    server.handler.close()


def add(closure, number=0, origin=O, wanted=()):
    operation = Operation(number, "add", [F32])
    return Update(origin, closure, 0, 0, [operation], list(wanted))


REQUESTS = {
    "adopt": Adopt("another"),
    "create": Create(O, 1, "v", F32),
    "delete": Delete(O, [0]),
    "write": Write(O, 0, 0, F32),
    "register": RegisterOptimizer(O, 0),
    "direct": Update(O, 0, 0, 0, [], [], direct=True),
    "snapshots": KeepSnapshots(O, "nowhere", 1.0),
    "restore": Restore(O, "nowhere"),
}
SHARED_REQUESTS = {
    "read": Read(O, [Span(0)]),
    "gather": Gather(O, [0]),
    "update": add(0),
    "slots": BuildSlots(O, 0, 0, []),
}


@pytest.mark.parametrize("body", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("by", [WORKER, OBSERVER], ids=["worker", "observer"])
def test_what_is_the_coordinators_is_refused_to_others(server, body, by):
    server.ask(Create(O, 0, "v", F32), ONES)
    with pytest.raises(PermissionDeniedError, match=f"{by.task} asked ps:0 for"):
        server.ask(body, np.zeros(1), by=by)
    assert server.arrays(Read(O, [Span(0)])) == [ONES.tolist()]


@pytest.mark.parametrize("body", SHARED_REQUESTS.values(), ids=SHARED_REQUESTS)
def test_an_observer_may_only_ask_how_the_server_is(server, body):
    with pytest.raises(PermissionDeniedError, match="the coordinator and workers may"):
        server.ask(body, ONES, by=OBSERVER)
    assert server.status().task == "ps:0"


def test_a_worker_never_gets_anything_unpickled(server, tmp_path):
    class Exploit:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    pickled = np.frombuffer(cloudpickle.dumps(Exploit()), np.uint8)
    with pytest.raises(PermissionDeniedError):
        server.ask(RegisterOptimizer(O, 0), pickled, by=WORKER)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "body",
    [body for name, body in {**REQUESTS, **SHARED_REQUESTS}.items() if name != "adopt"],
    ids=lambda body: type(body).__name__,
)
def test_requests_of_a_replaced_coordinator_are_refused(server, body):
    server.ask(Adopt("another"))
    with pytest.raises(FailedPreconditionError, match="another coordinator has taken over"):
        server.ask(body, ONES)


def test_nothing_can_be_asked_before_a_coordinator_has_begun():
    server = Server(adopted=False)
    with pytest.raises(PSUnavailableError, match="ps:0 is not available: it was restarted"):
        server.ask(Read(O, [Span(0)]))
    assert server.status().variables == 0


def test_a_variable_without_a_value_is_zeros(server):
    assert server.ask(Create(O, 0, "v", F32)).body == Done()
    assert server.arrays(Read(O, [Span(0)])) == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (rpc.ArrayType("object", (2,)), "object"),
        (rpc.ArrayType("float32", (-1,)), "shape"),
    ],
)
def test_a_variable_of_an_impossible_type_is_refused(server, type, text):
    with pytest.raises(InvalidArgumentError, match=text):
        server.ask(Create(O, 0, "v", type))


def test_values_rows_and_spans_are_answered_with_the_clock(server):
    server.ask(Create(O, 0, "v", F32), np.arange(4, dtype=np.float32).reshape(2, 2))
    server.ask(add(0), ONES, by=WORKER)
    reply = server.ask(Read(O, [Span(0), Span(0, 1, 2)]), by=WORKER)
    assert reply.body == Values([F32, rpc.ArrayType("float32", (1, 2))], clock=1)
    assert server.arrays(Read(O, [Span(0, 1, 2)])) == [[[3, 4]]]
    assert server.arrays(Gather(O, [0]), np.array([1, 0, 1])) == [[[3, 4], [1, 2], [3, 4]]]


def test_an_update_answers_with_the_values_that_are_wanted(server):
    server.ask(Create(O, 0, "v", F32))
    server.ask(Create(O, 1, "w", F32))
    reply = server.ask(add(3, wanted=[1, 0]), ONES, by=WORKER)
    assert reply.body == Updated(True, 1, [F32, F32])
    again = server.ask(add(3, wanted=[0]), ONES, by=WORKER)
    assert again.body == Updated(False, 1, [F32])
    assert rpc.as_array(F32, again.frames[0]).tolist() == ONES.tolist()


@pytest.mark.parametrize("frames", [[], [ONES, ONES]], ids=["none", "two"])
def test_frames_that_do_not_match_the_request_are_refused(server, frames):
    server.ask(Create(O, 0, "v", F32))
    for body in (add(0), Write(O, 0, 0, F32), RegisterOptimizer(O, 0)):
        with pytest.raises(InvalidArgumentError, match="came with"):
            server.ask(body, *frames)
    with pytest.raises(InvalidArgumentError):
        server.ask(Gather(O, [0]), *frames)
    with pytest.raises(InvalidArgumentError, match="bytes"):
        server.ask(add(0), ONES[:1])


def test_optimizers_and_their_slots(server):
    server.ask(Create(O, 0, "v", F32))
    pickled = np.frombuffer(cloudpickle.dumps(optax.sgd(1.0, momentum=1.0)), np.uint8)
    server.ask(RegisterOptimizer(O, 4), pickled)
    server.ask(BuildSlots(O, 4, 0, [9]))
    apply = Operation(0, "apply", [F32], 4)
    for closure in range(2):
        server.ask(Update(O, closure, 0, 0, [apply], []), ONES, by=WORKER)
    assert server.arrays(Read(O, [Span(0), Span(9)])) == [(-3 * ONES).tolist(), (2 * ONES).tolist()]
    server.ask(Write(O, 9, 0, F32), 0 * ONES)
    assert server.arrays(Update(O, 5, 0, 0, [apply], [0]), ONES) == [(-4 * ONES).tolist()]
    server.ask(Delete(O, [0]))
    assert server.status().bytes_held == 0


def test_the_status_counts(server):
    now = [100.0]
    server.handler = ParameterServer("ps:0", b"key", clock=lambda: now[0])
    for one in (CHIEF, WORKER, OBSERVER):
        server.handler.joined(one)
    server.handler.left(OBSERVER)
    server.ask(Adopt(O))
    server.ask(Create(O, 0, "v", F32), ONES)
    for closure in (0, 0, 1):
        server.ask(add(closure, wanted=[0]), ONES, by=WORKER)
    server.ask(Read(O, [Span(0)]), by=WORKER)
    now[0] = 102.5
    status = server.status()
    assert (status.seconds, status.variables, status.bytes_held) == (2.5, 1, 16)
    assert (status.updates, status.repeated_updates, status.reads) == (2, 1, 1)
    assert (status.bytes_in, status.bytes_out, status.peers) == (4 * 16, 4 * 16, 2)
    assert status.staleness == 0.5


# --- Snapshots -------------------------------------------------------------------------------


def test_a_restarted_server_goes_on_from_a_snapshot(server, tmp_path):
    server.ask(Create(O, 3, "v", F32))
    server.ask(add(0, number=3), ONES, by=WORKER)
    server.ask(KeepSnapshots(O, str(tmp_path), 0))
    server.ask(add(1, number=3), ONES, by=WORKER)
    again = Server()
    assert again.ask(Restore(O, str(tmp_path))).body == Restored(1, [3])
    assert not again.ask(add(0, number=3), ONES).body.applied
    assert again.ask(add(1, number=3), ONES).body.applied
    assert again.arrays(Read(O, [Span(3)])) == server.arrays(Read(O, [Span(3)]))


def test_without_a_snapshot_restoring_is_an_error(server, tmp_path):
    with pytest.raises(NotFoundError):
        server.ask(Restore(O, str(tmp_path)))


def test_a_directory_that_cannot_be_written_to_is_reported_at_once(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match="ps:0 cannot write snapshots to"):
        server.ask(KeepSnapshots(O, str(tmp_path / "file"), 0))


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def names(directory):
    return sorted(path.name for path in directory.glob("ps-0/*") if path.name.isdecimal())


def test_snapshots_are_written_while_it_serves_and_only_after_changes(server, tmp_path):
    server.ask(Create(O, 0, "v", F32))
    server.ask(KeepSnapshots(O, str(tmp_path), 0.01))
    wait_for(lambda: names(tmp_path) == ["000000000001"])
    server.ask(add(0), ONES, by=WORKER)
    wait_for(lambda: "000000000002" in names(tmp_path))
    again = Server()
    assert again.ask(Restore(O, str(tmp_path))).body.clock == 1
    server.handler.close()
    assert names(tmp_path) == ["000000000001", "000000000002"], "nothing had changed any more"


def test_another_coordinator_ends_the_snapshots_of_the_first(server, tmp_path):
    server.ask(Create(O, 0, "v", F32))
    server.ask(KeepSnapshots(O, str(tmp_path), 0.01))
    wait_for(lambda: names(tmp_path))
    server.ask(Adopt("another"))
    server.ask(Create("another", 0, "v", F32))
    assert server.handler._keeper is None


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_between_snapshots_that_is_none_is_refused(server, tmp_path, seconds):
    with pytest.raises(InvalidArgumentError, match="every so many seconds"):
        server.ask(KeepSnapshots(O, str(tmp_path), seconds))


def test_restoring_belongs_to_the_coordinator_at_once_and_happens_once(server, tmp_path):
    server.ask(Create(O, 0, "v", F32), ONES)
    server.ask(add(0), ONES, by=WORKER)
    server.ask(KeepSnapshots(O, str(tmp_path), 0.0))
    again = Server(adopted=False)
    assert again.ask(Restore(O, str(tmp_path))).body == Restored(1, [0])
    again.ask(add(1), ONES, by=WORKER)
    assert again.ask(Restore(O, str(tmp_path))).body == Restored(2, [0])
    assert again.arrays(Read(O, [Span(0)])) == [(3 * ONES).tolist()]
