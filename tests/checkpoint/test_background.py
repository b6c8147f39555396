"""Files are written while the program goes on."""

import os
import subprocess
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute import _array_files
from jaxtribute.checkpoint import _files
from jaxtribute.testing import LocalCluster
from tests._interpreter import STRICT_PYTHON
from tests.checkpoint._support import strategy

Checkpoint = jt.train.Checkpoint


@pytest.fixture
def held_up(monkeypatch):
    """Have nothing written until the event is set."""
    may_write = threading.Event()
    write = _array_files.write

    def later(*args):
        assert may_write.wait(60)
        write(*args)

    monkeypatch.setattr(_array_files, "write", later)
    yield may_write
    may_write.set()


@pytest.mark.parametrize("name", ["default", "one device", "2"])
def test_what_happens_after_save_is_not_saved(name, tmp_path, held_up):
    with strategy(name).scope():
        v = jt.Variable(jnp.arange(1000.0), name="v")
        table = jt.Variable(jnp.zeros((10, 3)), name="table")
        optimizer = jt.Optimizer(optax.adam(0.1))
    array = np.arange(5)
    checkpoint = Checkpoint(v=v, table=table, optimizer=optimizer, array=array, step=1)

    def replica_step():
        optimizer.apply_gradients([(jnp.ones(1000), v)])
        return v.value()

    step = jt.function(lambda: strategy(name).run(replica_step))
    step()
    expected = {each.name: each.numpy() for each in [v, table, *optimizer.variables]}
    path = checkpoint.save(tmp_path / "ckpt")
    for _ in range(3):
        step()
    table.scatter_add(jt.IndexedSlices(jnp.ones((1, 3)), jnp.array([2])))
    array += 100
    checkpoint.step = 2
    assert not (tmp_path / "ckpt-1" / "checkpoint.json").exists()
    held_up.set()
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.array.tolist() == [0, 1, 2, 3, 4]
    assert checkpoint.step == 1
    for each in [v, table, *optimizer.variables]:
        np.testing.assert_array_equal(each.numpy(), expected[each.name], each.name)


def test_what_servers_do_after_save_is_not_saved(tmp_path, held_up):
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(2)
    with LocalCluster(workers=1, ps=2) as cluster:
        with cluster.strategy(partitioner).scope():
            table = jt.Variable(np.ones((6, 3), np.float32))
            b = jt.Variable(1.0)
            optimizer = jt.Optimizer(optax.adam(0.1))
        checkpoint = Checkpoint(table=table, b=b, optimizer=optimizer)
        rows = jt.IndexedSlices(jnp.ones((2, 3)), jnp.array([0, 5]))

        def step():  # rows change in place there
            optimizer.apply_gradients([(rows, table), (jnp.float32(1), b)])

        step()
        expected = [each.numpy() for each in [table, b, *optimizer.variables]]
        path = checkpoint.save(tmp_path / "ckpt")
        for _ in range(3):
            step()
        held_up.set()
        assert not np.array_equal(table.numpy(), expected[0])
        checkpoint.restore(path).assert_consumed()
        for each, value in zip([table, b, *optimizer.variables], expected, strict=True):
            np.testing.assert_array_equal(each.numpy(), value, each.name)


class TestFailure:
    @pytest.fixture
    def checkpoint(self, tmp_path, monkeypatch):
        """Return a checkpoint whose last one could not be written."""
        checkpoint = Checkpoint(v=jt.Variable(1.0))
        self.good = checkpoint.save(tmp_path / "ckpt")
        checkpoint.wait_until_finished()

        def full(place, parts):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(_array_files, "write", full)
            checkpoint.save(tmp_path / "ckpt")
            assert jt.train.latest_checkpoint(tmp_path) == self.good  # waits, and is not concerned
        return checkpoint

    @pytest.mark.parametrize("next_call", ["save", "restore", "wait_until_finished"])
    def test_is_raised_once_by_what_comes_next(self, checkpoint, next_call, tmp_path, caplog):
        calls = {
            "save": lambda: checkpoint.save(tmp_path / "ckpt"),
            "restore": lambda: checkpoint.restore(self.good),
            "wait_until_finished": checkpoint.wait_until_finished,
        }
        with pytest.raises(OSError, match="No space left"):
            calls[next_call]()
        calls[next_call]()
        checkpoint.wait_until_finished()

    def test_is_in_the_log_as_well(self, checkpoint, caplog):
        (record,) = [r for r in caplog.get_records("setup") if r.levelname == "ERROR"]
        assert "ckpt-2' could not be saved: [Errno 28] No space left" in record.getMessage()
        with pytest.raises(OSError, match="No space left"):
            checkpoint.wait_until_finished()


def test_saves_to_one_directory_do_not_disturb_each_other(tmp_path, held_up):
    one, other = (Checkpoint(v=jt.Variable(value)) for value in (1.0, 2.0))
    threading.Timer(0.1, held_up.set).start()
    first = one.write(tmp_path / "ckpt-7")
    second = other.write(tmp_path / "ckpt-8")  # which clears what others left beside it
    assert jt.train.latest_checkpoint(tmp_path) == second
    assert [known.path for known in _files.complete(tmp_path)] == [first, second]
    one.restore(second)
    assert float(one.v) == 2.0


def test_a_manager_knows_what_is_being_written(tmp_path, held_up):
    checkpoint = Checkpoint(v=jt.Variable(1.0))
    manager = jt.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    held_up.set()
    first = manager.save()
    manager.wait_until_finished()
    held_up.clear()
    second = manager.save()
    assert manager.checkpoints == [second]
    assert os.path.exists(first)  # until there is another
    held_up.set()
    manager.wait_until_finished()
    assert not os.path.exists(first)
    assert manager.restore_or_initialize() == second


_ENDS_AT_ONCE = """
import sys
import numpy as np
import jaxtribute as jt

v = jt.Variable(np.arange(1 << 20, dtype=np.float32))
jt.train.Checkpoint(v=v).save(sys.argv[1])
"""


@pytest.mark.processes
def test_a_program_ends_when_everything_is_written(tmp_path):
    command = [*STRICT_PYTHON, "-c", _ENDS_AT_ONCE, str(tmp_path / "ckpt")]
    subprocess.run(command, check=True, timeout=120)
    v = jt.Variable(np.zeros(1 << 20, np.float32))
    Checkpoint(v=v).restore(tmp_path / "ckpt-1").assert_consumed()
    np.testing.assert_array_equal(v.numpy(), np.arange(1 << 20, dtype=np.float32))
