"""Parameter servers that are taken over, or killed, while they write a checkpoint."""

import os

import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.testing import ProcessCluster
from tests.processes._parameter_server import SILENCE, Counting, until

pytestmark = pytest.mark.processes

Checkpoint = jt.train.Checkpoint
AT_ONCE = jt.train.CheckpointOptions(enable_async=False)

# Run when the servers start: while there is a file `hold`, ps:1 says so and stands still instead of
# writing its part of a checkpoint.
HELD = """
import os, pathlib, time
from jaxtribute import _array_files

directory, write = pathlib.Path(os.environ["HELD_BY"]), _array_files.write

def held(place, parts):
    while place.name == "ps-1" and (directory / "hold").exists():
        (directory / "held").touch()
        time.sleep(0.005)
    write(place, parts)

_array_files.write = held
"""


@pytest.fixture
def held_cluster(silence, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HELD)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    held = {"HELD_BY": str(tmp_path), "PYTHONPATH": path}
    with ProcessCluster(workers=1, ps=2, environment=SILENCE | held) as cluster:
        yield cluster


def hold(directory):
    (directory / "hold").touch()


def until_held(directory):
    until((directory / "held").exists, "ps:1 to be about to write")


def let_go(directory):
    (directory / "hold").unlink()


def test_a_strategy_that_takes_over_leaves_a_checkpoint_that_is_being_written(
    held_cluster, tmp_path
):
    value = np.arange(6, dtype=np.float32)
    with held_cluster.strategy().scope():
        first = Checkpoint(a=jt.Variable(value), b=jt.Variable(2 * value))
    hold(tmp_path)
    path = first.write(tmp_path / "checkpoint")
    until_held(tmp_path)
    with held_cluster.strategy().scope():
        second = Checkpoint(a=jt.Variable(0 * value), b=jt.Variable(0 * value))
    second.a.assign_add(value + 1)  # the servers are its own already
    with pytest.raises(jt.errors.FailedPreconditionError, match="another coordinator"):
        first.a.numpy()
    let_go(tmp_path)
    first.wait_until_finished()
    assert second.a.numpy().tolist() == (value + 1).tolist()
    second.restore(path).assert_consumed()
    assert second.a.numpy().tolist() == value.tolist()
    assert second.b.numpy().tolist() == (2 * value).tolist()


def test_two_checkpoints_of_the_same_servers_may_be_written_at_the_same_time(
    held_cluster, tmp_path
):
    with held_cluster.strategy().scope():
        one, other = (Checkpoint(a=jt.Variable(v), b=jt.Variable(v)) for v in (1.0, 2.0))
    hold(tmp_path)
    paths = one.write(tmp_path / "one" / "ckpt"), other.write(tmp_path / "other" / "ckpt")
    until_held(tmp_path)
    let_go(tmp_path)
    for checkpoint, path, value in zip((other, one), paths, (1.0, 2.0), strict=True):
        checkpoint.restore(path).assert_consumed()
        assert [checkpoint.a.numpy(), checkpoint.b.numpy()] == [value, value]


def test_after_a_server_was_killed_while_it_saved_the_next_save_is_whole(
    held_cluster, tmp_path, caplog
):
    policy = jt.experimental.coordinator.RestorePolicy(tmp_path / "snapshots", every_seconds=0.2)
    with Counting(held_cluster, restore_policy=policy) as counting:
        checkpoint = Checkpoint(counters=counting.counters)
        folder = tmp_path / "snapshots" / "ps-1"
        oldest = until(lambda: sorted(folder.glob("????????????")), "a snapshot")[-1]

        def is_replaced():
            counting.schedule()
            return not oldest.exists()

        until(is_replaced, "snapshots with the variables")
        counting.coordinator.join()
        good = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        hold(tmp_path)
        lost = checkpoint.save(tmp_path / "ckpt")
        until_held(tmp_path)
        held_cluster.kill("ps:1")
        let_go(tmp_path)
        held_cluster.start("ps:1")
        counting.schedule_many(20)
        counting.coordinator.join()
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        assert f"{lost!r} could not be saved: ps:1 was started again" in caplog.text
        counted = counting.counted()
        assert jt.train.latest_checkpoint(tmp_path) == path
        assert sorted(p.name for p in tmp_path.glob("ckpt-*")) == ["ckpt-1", "ckpt-3"]
        checkpoint.restore(good).assert_consumed()
        assert counting.counted() != counted
        checkpoint.restore(path).assert_consumed()
        assert counting.counted() == counted
        # Asked whether it is complete, a checkpoint that is not says so.
        hold(tmp_path)
        (tmp_path / "held").unlink()
        checkpoint.save(tmp_path / "ckpt")
        until_held(tmp_path)
        held_cluster.kill("ps:1")
        let_go(tmp_path)
        held_cluster.start("ps:1")
        with pytest.raises(jt.errors.AbortedError, match="ps:1 was started again"):
            checkpoint.wait_until_finished()
