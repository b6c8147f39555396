"""Checkpoints are complete or not there, and the newest is the one that was completed last."""

import json
import shutil
import threading

import jax.numpy as jnp
import pytest

import jaxtribute as jt
from jaxtribute import _array_files
from jaxtribute.checkpoint import _files

Checkpoint = jt.train.Checkpoint
AT_ONCE = jt.train.CheckpointOptions(enable_async=False)
latest_checkpoint = jt.train.latest_checkpoint


@pytest.fixture
def checkpoint():
    return Checkpoint(v=jt.Variable(jnp.arange(4.0)), step=1)


class _Ended(Exception):
    """The program is ended here."""


def _interrupted(checkpoint, path, monkeypatch):
    """Save, and end before the checkpoint is complete, leaving what was written."""
    with monkeypatch.context() as patch:
        patch.setattr(_files, "commit", _end)
        patch.setattr(_files, "clear", lambda path: None)
        checkpoint.save(path)
        with pytest.raises(_Ended):
            checkpoint.wait_until_finished()


def _end(*args):
    raise _Ended


def test_there_is_no_latest_checkpoint_where_there_is_none(tmp_path):
    (tmp_path / "ckpt-7").mkdir()
    (tmp_path / "ckpt-8").write_text("")
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "missing") is None


def test_the_latest_checkpoint_is_the_one_saved_last_whatever_its_number(tmp_path, checkpoint):
    paths = [checkpoint.save(tmp_path / "ckpt") for _ in range(12)]
    assert latest_checkpoint(tmp_path) == paths[-1] == str(tmp_path / "ckpt-12")
    checkpoint.restore(paths[2])
    again = checkpoint.save(tmp_path / "ckpt")
    assert latest_checkpoint(tmp_path) == again == paths[3]
    best = checkpoint.write(tmp_path / "best")
    assert latest_checkpoint(tmp_path) == best


def test_an_incomplete_checkpoint_is_nobodys_latest(tmp_path, checkpoint, monkeypatch):
    good = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    _interrupted(checkpoint, tmp_path / "ckpt", monkeypatch)
    assert (tmp_path / "ckpt-2").is_dir()
    assert latest_checkpoint(tmp_path) == good
    message = rf"'{tmp_path}/ckpt-2' is incomplete.*newest complete one there is '{good}'"
    with pytest.raises(jt.errors.DataLossError, match=message):
        checkpoint.restore(tmp_path / "ckpt-2")


@pytest.mark.parametrize("number", [1, 2], ids=["by the same number", "by another"])
def test_what_was_left_is_removed_by_the_next_save(tmp_path, checkpoint, monkeypatch, number):
    _interrupted(checkpoint, tmp_path / "ckpt", monkeypatch)
    (left,) = (tmp_path / "ckpt-1").iterdir()
    others = [tmp_path / "ckpt-9", tmp_path / "other-1"]
    for other in others:
        other.mkdir()
        (other / "notes").write_text("somebody's")
    checkpoint._save_counter = number - 1
    path = checkpoint.save(tmp_path / "ckpt")
    assert not left.exists()
    assert (tmp_path / "ckpt-1").exists() == (number == 1)
    assert all((other / "notes").exists() for other in others)
    checkpoint.restore(path).assert_consumed()


def test_a_checkpoint_that_is_written_again_is_the_earlier_one_until_the_end(
    tmp_path, checkpoint, monkeypatch
):
    path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
    checkpoint.v.assign(jnp.zeros(4))
    checkpoint._save_counter = 0
    _interrupted(checkpoint, tmp_path / "ckpt", monkeypatch)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.v.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
    checkpoint.v.assign(jnp.zeros(4))
    checkpoint._save_counter = 0
    assert checkpoint.save(tmp_path / "ckpt") == path
    checkpoint.v.assign(jnp.ones(4))
    checkpoint.restore(path)
    assert checkpoint.v.numpy().tolist() == [0.0] * 4
    checkpoint.wait_until_finished()
    assert len(list((tmp_path / "ckpt-1").iterdir())) == 2  # what it replaced is gone


def test_a_save_that_fails_leaves_nothing(tmp_path, checkpoint, monkeypatch):
    good = checkpoint.save(tmp_path / "ckpt", AT_ONCE)

    def full(directory, arrays):
        directory.mkdir()
        (directory / "half").write_text("...")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_array_files, "write", full)
        checkpoint.save(tmp_path / "ckpt")
        with pytest.raises(OSError, match="No space left"):
            checkpoint.wait_until_finished()
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]
    assert latest_checkpoint(tmp_path) == good
    assert checkpoint.save(tmp_path / "ckpt") == str(tmp_path / "ckpt-3")


def test_directories_are_made_and_those_of_others_are_left_alone(tmp_path, checkpoint):
    path = checkpoint.save(tmp_path / "a" / "b" / "ckpt")
    assert latest_checkpoint(tmp_path / "a" / "b") == path
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("")
    with pytest.raises(jt.errors.AlreadyExistsError, match=r"data', a directory that holds some"):
        checkpoint.write(tmp_path / "data")
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["mine"]


def test_paths_may_be_relative(tmp_path, checkpoint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checkpoint.save("ckpt") == "ckpt-1"
    assert latest_checkpoint(".") == "ckpt-1"
    checkpoint.restore("ckpt-1").assert_consumed()


class TestNoCheckpoint:
    def test_nothing_there(self, tmp_path, checkpoint):
        with pytest.raises(jt.errors.NotFoundError, match=r"ckpt-1', which does not exist.*`save`"):
            checkpoint.restore(tmp_path / "ckpt-1")

    def test_another_is_there(self, tmp_path, checkpoint):
        path = checkpoint.save(tmp_path / "ckpt")
        with pytest.raises(jt.errors.NotFoundError, match=f"newest complete one there is '{path}'"):
            checkpoint.restore(tmp_path / "ckpt")

    def test_the_directory_of_checkpoints(self, tmp_path, checkpoint):
        path = checkpoint.save(tmp_path / "ckpt")
        with pytest.raises(jt.errors.NotFoundError, match=rf"checkpoints are in it.*'{path}'"):
            checkpoint.restore(tmp_path)

    def test_a_file(self, tmp_path, checkpoint):
        (tmp_path / "notes").write_text("")
        with pytest.raises(jt.errors.NotFoundError, match="exists and is no directory"):
            checkpoint.restore(tmp_path / "notes")

    def test_some_other_directory(self, tmp_path, checkpoint):
        (tmp_path / "x").mkdir()
        with pytest.raises(jt.errors.NotFoundError, match=r"directory without checkpoint\.json"):
            checkpoint.restore(tmp_path / "x")


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            pytest.param(lambda path: (path / "checkpoint.json").write_text("{"), id="commit"),
            pytest.param(lambda path: (path / "checkpoint.json").write_text("[]"), id="no commit"),
            pytest.param(lambda p: next(p.glob("data-*/index.json")).unlink(), id="no index"),
            pytest.param(
                lambda p: next(p.glob("data-*/index.json")).write_text("{"), id="half an index"
            ),
            pytest.param(lambda p: shutil.rmtree(next(p.glob("data-*"))), id="no data"),
            pytest.param(lambda p: shutil.rmtree(next(p.glob("data-*/arrays"))), id="no arrays"),
            pytest.param(
                lambda p: [shutil.rmtree(d) for d in p.glob("data-*/arrays/**/d") if d.is_dir()],
                id="no contents of arrays",
            ),
        ],
    )
    def test_is_named_and_changes_nothing(self, tmp_path, checkpoint, damage):
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        checkpoint.v.assign(jnp.zeros(4))
        checkpoint.step = 2
        damage(tmp_path / "ckpt-1")
        with pytest.raises(jt.errors.DataLossError, match=f"'{path}' is damaged"):
            checkpoint.restore(path)
        assert (checkpoint.v.numpy().tolist(), checkpoint.step) == ([0.0] * 4, 2)

    def test_is_left_alone_by_later_saves(self, tmp_path, checkpoint):
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        (tmp_path / "ckpt-1" / "checkpoint.json").write_text("{")
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        assert latest_checkpoint(tmp_path) == path
        assert len(list((tmp_path / "ckpt-1").iterdir())) == 2

    def test_formats_of_later_versions_are_refused(self, tmp_path, checkpoint):
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        file = tmp_path / "ckpt-1" / "checkpoint.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 3}))
        with pytest.raises(jt.errors.DataLossError, match=r"format 3.*reads format 2"):
            checkpoint.restore(path)


def test_saving_leaves_no_threads_and_no_event_loop(tmp_path, checkpoint):
    import asyncio

    async def save_where_a_loop_is_running():
        return checkpoint.save(tmp_path / "ckpt", AT_ONCE)

    path = asyncio.run(save_where_a_loop_is_running())
    checkpoint.restore(path).assert_consumed()
    assert not [t for t in threading.enumerate() if t.name == "jaxtribute-checkpoint"]
