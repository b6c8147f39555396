"""A worker that is lost while they gather or get ready, and jobs that end in any order."""

import contextlib
import json
import signal
import socket

import pytest

from tests.processes._failures import PRELUDE, SOON, SURVIVE, Clusters, name, start

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path):
    """Return a function that describes a cluster of some workers."""
    with contextlib.closing(Clusters(tmp_path)) as clusters:
        yield clusters


# --- At the start ----------------------------------------------------------------------------

JOIN = """
def step():
    raise AssertionError("there is no strategy")

try:
    strategy = jt.MultiWorkerMirroredStrategy()
    total = strategy.reduce("SUM", strategy.run(lambda: jnp.float32(replica() + 1)), None)
    say("together", total=float(total))
except jt.errors.JaxtributeError as error:
    say("failed", **said(error))
    raise
"""


def start_two_of_three(cluster):
    """Start two workers that know of each other, and wait for a third one."""
    cluster.start(JOIN, ["worker:0", "worker:1"])
    cluster.until_joined("worker:1")


def test_a_worker_that_dies_before_all_have_come_may_be_started_again(cluster):
    cluster = cluster(3)
    cluster.start(JOIN, ["worker:0", "worker:1"])
    cluster.until_joined("worker:1")
    cluster.kill("worker:1")
    cluster.start(JOIN, ["worker:1"], called="worker:1 again")
    cluster.start(JOIN, ["worker:2"])
    for process in "worker:0", "worker:1 again", "worker:2":
        assert cluster.until(process, "together")["total"] == 6.0
    assert cluster.codes("worker:0", "worker:1 again", "worker:2") == [0, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=name)
def test_the_chief_is_lost_before_all_have_come(cluster, number):
    cluster = cluster(3)
    start_two_of_three(cluster)
    cluster.send("worker:0", number)
    error = cluster.until("worker:1", "failed", SOON)
    assert (error["kind"], error["tasks"]) == ("WorkerLostError", ["worker:0"])
    assert cluster.code("worker:1") == 1


def test_a_worker_that_is_stopped_before_all_have_come_is_lost(cluster):
    cluster = cluster(3)
    start_two_of_three(cluster)
    cluster.send("worker:1", signal.SIGSTOP)
    cluster.start(JOIN, ["worker:2"])
    for task in "worker:0", "worker:2":
        error = cluster.until(task, "failed", SOON)
        assert (error["kind"], error["tasks"]) == ("WorkerLostError", ["worker:1"])
        assert cluster.code(task) == 1


# One worker gets no further than the beginning of a phase, in which the others wait for it.
STAY = """
from jaxtribute import _job
really_report = _job.report

def report(**fields):
    really_report(**fields)
    if (fields["task"], fields["phase"]) == (os.environ["HELD"], os.environ["HELD_IN"]):
        hold("never")

_job.report = report
"""


@pytest.mark.parametrize("phase", ["starting JAX", "first all-reduce"])
@pytest.mark.parametrize(
    ("lost", "number"),
    [("worker:0", signal.SIGKILL), ("worker:1", signal.SIGKILL), ("worker:1", signal.SIGSTOP)],
    ids=name,
)
def test_a_worker_is_lost_while_the_strategy_is_made(cluster, tmp_path, phase, lost, number):
    path = tmp_path / "status"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as status:
        status.bind(str(path))
        status.settimeout(100)
        cluster = cluster(3)
        held = {"HELD_IN": phase, "HELD": lost}
        cluster.start(STAY + JOIN, environment={"JAXTRIBUTE_STATUS_SOCKET": str(path)} | held)
        report = {}
        while (report.get("task"), report.get("phase")) != (lost, phase):
            report = json.loads(status.recv(65536))
        cluster.send(lost, number)
        for task in set(cluster.tasks) - {lost}:
            error = cluster.until(task, "failed", SOON)
            assert (error["kind"], error["tasks"]) == ("WorkerLostError", [lost])
            assert cluster.code(task) == 1


def test_one_that_fails_before_it_makes_the_strategy_is_named(cluster):
    cluster = cluster(2)
    short = {"JAXTRIBUTE_JOIN_TIMEOUT": "2"}
    cluster.start("raise KeyError('early')", ["worker:1"])
    assert cluster.code("worker:1") == 1
    cluster.start(JOIN, ["worker:0"], environment=short)
    error = cluster.until("worker:0", "failed", SOON)
    assert error["kind"] == "DeadlineExceededError"
    assert "worker:1" in error["text"]


# --- At the end ------------------------------------------------------------------------------

END = (
    PRELUDE
    + """
step()
say("trained", value=float(v.numpy()[0]))

# The last thing that all do together, which takes one of them longer than the others.
def linger(x):
    if ME == 1:
        hold("end1")
    return x

@jt.function
def last_step():
    def replica_fn():
        total = jt.get_replica_context().all_reduce("SUM", jnp.ones(3) * (1.0 + replica()))
        return jax.pure_callback(linger, jax.ShapeDtypeStruct((3,), jnp.float32), total)
    return strategy.run(replica_fn)

if Path("linger").exists():
    say("total", value=float(strategy.experimental_local_results(last_step())[0][0]))
hold(f"end{ME}")
say("alone", value=float(jnp.sum(jnp.arange(4.0))), trained=float(v.numpy()[0]))
"""
)


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), "together"], ids=lambda order: str(order)
)
def test_a_finished_job_ends_cleanly_in_any_order(cluster, order):
    cluster = cluster(3)
    cluster.start(END)
    cluster.until_all("trained")
    if order == "together":
        for task in cluster.tasks:
            cluster.release(f"end{task[-1]}")
    else:
        for index in order:
            cluster.release(f"end{index}")
            assert cluster.code(f"worker:{index}") == 0
    assert cluster.codes() == [0, 0, 0]
    for task in cluster.tasks:
        assert cluster.until(task, "alone") == {"event": "alone", "value": 6.0, "trained": 6.0}
        assert cluster.complaints(task) == []


def test_a_worker_may_be_slower_in_the_last_step_than_one_that_has_ended(cluster, tmp_path):
    cluster = cluster(2)
    (tmp_path / "linger").touch()
    cluster.start(END)
    cluster.release("end0")
    assert cluster.code("worker:0") == 0
    cluster.release("end1")
    assert cluster.code("worker:1") == 0
    assert cluster.until("worker:1", "total")["value"] == 3.0


def test_one_that_has_finished_is_named_when_it_is_still_needed(cluster):
    cluster = cluster(2)
    start(
        cluster,
        PRELUDE
        + """
step()
say("training")
if ME == 0:
    sys.exit(0)
try:
    step()
"""
        + SURVIVE,
    )
    assert cluster.code("worker:0") == 0
    error = cluster.until("worker:1", "lost", SOON)
    assert error["tasks"] == ["worker:0"]
    assert "it has finished" in error["text"]
    assert cluster.code("worker:1") == 1
