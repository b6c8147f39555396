"""A worker that is lost in training: the others learn which one, in Python, and soon.

Every test starts a cluster, ends one of its workers in some way at some point, and looks at the
others. They never hang, and are never ended from C++.
"""

import contextlib
import signal

import pytest

from tests.processes._failures import (
    PRELUDE,
    SOON,
    SURVIVE,
    Clusters,
    assert_survived,
    name,
    start,
)
from tests.processes._workers import Cluster

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path):
    """Return a function that describes a cluster of some workers."""
    with contextlib.closing(Clusters(tmp_path)) as clusters:
        yield clusters


# --- In the middle of training ---------------------------------------------------------------

TRAIN_FOR_EVER = (
    PRELUDE
    + """
step()
say("training")
try:
    while True:
        step()
        if Path(f"raise{ME}").exists():
            raise KeyError("no such thing as a fish")
        if Path(f"exit{ME}").exists():
            say("leaving")
            sys.exit(0)
"""
    + SURVIVE
)

WHY = {
    "kill": ["ended without a word"],
    "stop": ["has not answered for"],
    "raise": ["KeyError", "no such thing as a fish"],
    "exit": ["it has finished"],
}


@pytest.mark.parametrize(
    ("workers", "lost", "how"),
    [
        (2, "worker:0", "kill"),
        (2, "worker:1", "kill"),
        (2, "worker:0", "stop"),
        (2, "worker:1", "raise"),
        (3, "worker:0", "kill"),
        (3, "worker:1", "kill"),
        (3, "worker:0", "stop"),
        (3, "worker:1", "stop"),
        (3, "worker:0", "raise"),
        (3, "worker:1", "raise"),
        (3, "worker:0", "exit"),
        (3, "worker:1", "exit"),
    ],
)
def test_a_worker_is_lost_between_steps(cluster, workers, lost, how):
    cluster = cluster(workers)
    start(cluster, TRAIN_FOR_EVER)
    cluster.until_all("training")
    if how == "kill":
        cluster.kill(lost)
    elif how == "stop":
        cluster.send(lost, signal.SIGSTOP)
    else:
        cluster.release(f"{how}{lost[-1]}")
    assert_survived(cluster, lost, *WHY[how])
    if how == "raise":
        assert cluster.code(lost) == 1
        assert "KeyError: 'no such thing as a fish'" in cluster.stderr(lost)
    elif how == "exit":
        assert cluster.code(lost) == 0
    elif how == "stop":
        cluster.send(lost, signal.SIGCONT)
        error = cluster.until(lost, "lost", SOON)
        assert error["kind"] == "WorkerLostError"
        assert "has not answered for" in error["text"]
        assert cluster.code(lost) in (0, 1)


WAIT_IN_A_STEP = (
    PRELUDE
    + """
MODE = step if "MODE" == "compiled" else eager_step
MODE()
say("training")
if ME == int(Path("lost").read_text()):
    hold("never")
try:
    say("waiting")
    MODE()
"""
    + SURVIVE
)


@pytest.mark.parametrize(
    ("mode", "lost", "number"),
    [
        ("compiled", "worker:0", signal.SIGKILL),
        ("compiled", "worker:1", signal.SIGSTOP),
        ("eager", "worker:1", signal.SIGKILL),
    ],
    ids=name,
)
def test_a_worker_is_lost_while_others_wait_for_it_in_a_step(cluster, tmp_path, mode, lost, number):
    cluster = cluster(3)
    (tmp_path / "lost").write_text(lost[-1])
    start(cluster, WAIT_IN_A_STEP.replace('"MODE"', repr(mode)))
    cluster.until_all("training")
    cluster.until_all("waiting", [task for task in cluster.tasks if task != lost])
    cluster.send(lost, number)
    assert_survived(cluster, lost)


def test_a_step_that_nothing_can_interrupt_is_left_behind(cluster):
    cluster = cluster(2)
    start(
        cluster,
        PRELUDE
        + """
from jaxtribute.workers._interrupt import Connections
Connections.shut_down = lambda self: 0  # as where the connections are not found
step()
say("training")
if ME == 1:
    hold("never")
try:
    say("waiting")
    step()
"""
        + SURVIVE,
    )
    cluster.until_all("training")
    cluster.until("worker:0", "waiting")
    cluster.send("worker:1", signal.SIGSTOP)
    assert_survived(cluster, "worker:1")


READ = (
    PRELUDE
    + """
def examples():
    for i in range(100):
        if i == 40 and ME == int(Path("lost").read_text()):
            say("reading")
            hold("raise")
            raise OSError("the disk is gone")
        yield np.float32([i])

dataset = jt.data.Dataset.from_generator(examples).batch(4)
try:
    for i, batch in enumerate(strategy.experimental_distribute_dataset(dataset)):
        step()
        strategy.run(lambda x: x + 1, args=(batch,))
        say(f"step{i}")
"""
    + SURVIVE
)


@pytest.mark.parametrize(
    ("lost", "number"),
    [("worker:0", signal.SIGKILL), ("worker:1", signal.SIGKILL), ("worker:0", signal.SIGSTOP)],
    ids=name,
)
def test_a_worker_is_lost_while_it_reads_ahead(cluster, tmp_path, lost, number):
    cluster = cluster(3)
    (tmp_path / "lost").write_text(lost[-1])
    start(cluster, READ)
    cluster.until(lost, "reading")
    cluster.send(lost, number)
    assert_survived(cluster, lost)


def test_a_stopped_worker_that_comes_back_in_time_is_not_lost(cluster):
    cluster = cluster(2)
    start(cluster, TRAIN_FOR_EVER)
    cluster.until_all("training")
    for _ in range(3):
        cluster.send("worker:1", signal.SIGSTOP)
        cluster.send("worker:1", signal.SIGCONT)
    cluster.release("exit0")
    assert cluster.until("worker:1", "lost", SOON)["tasks"] == ["worker:0"]
    assert cluster.code("worker:0") == 0


# --- While a checkpoint is saved -------------------------------------------------------------

SAVE = (
    PRELUDE
    + """
from jaxtribute import _array_files

checkpoint = jt.train.Checkpoint(v=v)
manager = jt.train.CheckpointManager(checkpoint, "saved", max_to_keep=None)
really_write = _array_files.write

def write(place, parts):
    say("writing")
    hold("write")
    if Path("fail").exists():
        Path("fail").unlink()
        raise OSError("the disk is full")
    really_write(place, parts)

step()
say("saved", path=manager.save())
manager.wait_until_finished()
step()
_array_files.write = write
if ME == 1:
    say("late")
    hold("come")
try:
    try:
        manager.save()
        manager.wait_until_finished()
    except (jt.errors.AbortedError, OSError) as error:
        if isinstance(error, jt.errors.WorkerLostError):
            raise
        say("could not save", **said(error))
        say("saved after all", path=manager.save())
"""
    + SURVIVE
)

RESTORE = """
v = jt.Variable(jnp.zeros(1000))
path = jt.train.latest_checkpoint("saved")
jt.train.Checkpoint(v=v).restore(path).assert_consumed()
say("restored", path=path, value=v.numpy().tolist()[:2])
"""


def assert_restored(cluster: Cluster, value: float) -> None:
    """Check what is found in the newest checkpoint, by a process that is not of the cluster."""
    cluster.start(RESTORE, ["evaluator:0"], spec={"evaluator": ["127.0.0.1:1"]}, called="later")
    assert cluster.until("later", "restored")["value"] == [value, value]
    assert cluster.code("later") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=name)
def test_the_worker_that_writes_a_checkpoint_is_lost(cluster, number):
    cluster = cluster(3)
    start(cluster, SAVE)
    cluster.release("come")
    cluster.until("worker:0", "writing")
    cluster.send("worker:0", number)
    assert_survived(cluster, "worker:0")
    assert_restored(cluster, 6.0)  # of the checkpoint before


def test_a_worker_is_lost_while_others_begin_to_save(cluster):
    cluster = cluster(3)
    start(cluster, SAVE)
    cluster.until("worker:1", "late")
    cluster.kill("worker:1")
    assert_survived(cluster, "worker:1")
    assert_restored(cluster, 6.0)


def test_a_checkpoint_that_cannot_be_written_is_an_error_on_all_and_can_be_tried_again(cluster):
    cluster = cluster(2)
    cluster.release("fail")
    cluster.release("write")
    cluster.release("come")
    start(cluster, SAVE)
    errors = cluster.until_all("could not save")
    for error in errors:
        assert "the disk is full" in error["text"]
    assert errors[1]["kind"] == "AbortedError"
    assert "worker:0" in errors[1]["text"]
    cluster.until_all("saved after all")
    cluster.finish()
    assert_restored(cluster, 6.0)
