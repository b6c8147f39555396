"""Parameter servers write and read what they hold by themselves."""

import threading

import numpy as np
import optax
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute import _array_files
from jaxtribute.remote import Session
from jaxtribute.testing import LocalCluster, ProcessCluster

Checkpoint = jt.train.Checkpoint
AT_ONCE = jt.train.CheckpointOptions(enable_async=False)
TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def cluster():
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


def _make(cluster):
    partitioner = jt.experimental.partitioners.FixedShardsPartitioner(2)
    with cluster.strategy(partitioner).scope():
        table = jt.Variable(TABLE, name="table")
        b = jt.Variable(1.0, name="b")
        optimizer = jt.Optimizer(optax.adam(0.1))
    optimizer.build([table, b])
    here = jt.Variable(5.0, name="here")
    return Checkpoint(table=table, b=b, optimizer=optimizer, here=here)


@pytest.fixture
def checkpoint(cluster):
    return _make(cluster)


def _change(checkpoint):
    checkpoint.table.assign(TABLE + 100)
    checkpoint.b.assign(2.0)
    checkpoint.here.assign(6.0)


def _values(checkpoint):
    return checkpoint.table.numpy().tolist(), float(checkpoint.b), float(checkpoint.here)


CHANGED = (TABLE + 100).tolist(), 2.0, 6.0


def test_no_value_of_theirs_passes_through_the_coordinator(checkpoint, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        pytest.fail("a value was sent")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "read", refuse)
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    _change(checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "update", refuse)
        checkpoint.restore(path).assert_consumed()
    assert _values(checkpoint) == (TABLE.tolist(), 1.0, 5.0)


@pytest.mark.parametrize("place", ["ps-0", "ps-1", "arrays"])
def test_damage_is_named_and_nothing_is_changed(checkpoint, place, tmp_path):
    good, path = (checkpoint.save(tmp_path / "ckpt", AT_ONCE) for _ in range(2))
    for file in tmp_path.glob(f"ckpt-2/data-*/{place}/d/*"):
        content = bytearray(file.read_bytes())
        content[: len(content) // 2] = bytes(len(content) // 2)
        file.write_bytes(content)
    _change(checkpoint)
    message = rf"'{path}' is damaged, and nothing was restored: .*{place}.*not damaged is '{good}'"
    with pytest.raises(jt.errors.DataLossError, match=message) as raised:
        checkpoint.restore(path)
    assert any(f"'{name}" in str(raised.value) for name in ("table", "b", "optimizer", "here"))
    assert _values(checkpoint) == CHANGED
    checkpoint.restore(good)
    assert _values(checkpoint) == (TABLE.tolist(), 1.0, 5.0)


def test_what_does_not_fit_is_refused_before_any_server_reads(cluster, checkpoint, tmp_path):
    path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    with cluster.strategy(None).scope():
        other = Checkpoint(table=jt.Variable(np.zeros((9, 4), np.float32)), b=jt.Variable(3.0))
    with pytest.raises(jt.errors.InvalidArgumentError, match=r"'table' has shape \(10, 4\)"):
        other.restore(path)
    assert float(other.b) == 3.0


def test_a_server_that_cannot_write_makes_saving_fail(checkpoint, tmp_path, monkeypatch):
    good = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    write = _array_files.write

    def full(place, parts):
        if place.name == "ps-1":
            raise OSError(28, "No space left on device")
        write(place, parts)

    with monkeypatch.context() as patch:
        patch.setattr(_array_files, "write", full)
        with pytest.raises(jt.errors.FailedPreconditionError, match=r"ps:1: OSError.*No space"):
            checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    assert jt.train.latest_checkpoint(tmp_path) == good
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]


def test_a_failure_here_is_raised_when_no_server_writes_any_more(checkpoint, tmp_path, monkeypatch):
    write = _array_files.write
    has_failed = threading.Event()
    written = []

    def full(place, parts):
        if place.name == "arrays":
            has_failed.set()
            raise OSError(28, "No space left on device")
        assert has_failed.wait(60)
        write(place, parts)
        written.append(place.name)

    monkeypatch.setattr(_array_files, "write", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    assert sorted(written) == ["ps-0", "ps-1"]
    assert not list(tmp_path.iterdir())


def test_a_server_with_another_file_system_makes_saving_fail(checkpoint, tmp_path, monkeypatch):
    write = _array_files.write

    def elsewhere(place, parts):
        write(tmp_path / "elsewhere" if place.name == "ps-0" else place, parts)

    monkeypatch.setattr(_array_files, "write", elsewhere)
    with pytest.raises(jt.errors.FailedPreconditionError, match=r"ps:0 has written to .*share"):
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    assert jt.train.latest_checkpoint(tmp_path) is None


def test_servers_answer_while_they_write_and_read(checkpoint, tmp_path, monkeypatch):
    may_go_on = threading.Event()

    def waiting(function):
        def later(*args):
            assert may_go_on.wait(60)
            return function(*args)

        return later

    monkeypatch.setattr(_array_files, "write", waiting(_array_files.write))
    path = checkpoint.save(tmp_path / "ckpt")
    _change(checkpoint)
    assert _values(checkpoint) == CHANGED
    may_go_on.set()
    checkpoint.restore(path)
    assert _values(checkpoint) == (TABLE.tolist(), 1.0, 5.0)


@pytest.mark.processes
@pytest.mark.slow
def test_a_server_that_is_killed_leaves_the_checkpoint_before(tmp_path):
    with ProcessCluster(workers=1, ps=2) as cluster:
        checkpoint = _make(cluster)
        good = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        cluster.kill("ps:1")
        with pytest.raises(jt.errors.PSUnavailableError, match="ps:1"):
            checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    assert jt.train.latest_checkpoint(tmp_path) == good
    table = jt.Variable(np.zeros_like(TABLE))
    Checkpoint(table=table).restore(good).expect_partial()
    np.testing.assert_array_equal(table.numpy(), TABLE)
