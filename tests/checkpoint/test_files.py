"""Checkpoints are complete or not there, and the newest is the one that was completed last."""

import json
import shutil
import threading
from dataclasses import replace

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


def test_what_is_called_like_contents_and_is_somebodys_own_stays(tmp_path, checkpoint):
    (tmp_path / "run" / "data-train").mkdir(parents=True)
    (tmp_path / "run" / "data-train" / "index.json").write_text("{}")
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(jt.errors.AlreadyExistsError, match="holds something else"):
        checkpoint.write(tmp_path / "run")
    assert (tmp_path / "run" / "data-train" / "index.json").exists()


def test_killed_just_before_the_end_the_checkpoint_is_complete(tmp_path, checkpoint, monkeypatch):
    """All of it is on the disk, but for the file that says so to everybody."""
    with monkeypatch.context() as patch:
        patch.setattr(_files, "_put", _end)
        patch.setattr(_files, "clear", lambda path: None)
        checkpoint.save(tmp_path / "ckpt")
        with pytest.raises(_Ended):
            checkpoint.wait_until_finished()
    assert not (tmp_path / "ckpt-1" / "checkpoint.json").exists()
    other = Checkpoint(v=jt.Variable(jnp.zeros(4)), step=0)
    assert jt.train.CheckpointManager(other, tmp_path).restore_or_initialize() is not None
    assert (other.v.numpy().tolist(), other.step) == ([0.0, 1.0, 2.0, 3.0], 1)


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

    @pytest.mark.parametrize("content", [b"{", b"", b"\xff", None], ids=repr)
    def test_a_program_does_not_go_back_in_silence(self, tmp_path, checkpoint, content):
        """None flips one bit of what is there."""
        older = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        newest = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        file = tmp_path / "ckpt-2" / "checkpoint.json"
        if content is None:
            content = bytearray(file.read_bytes())
            content[20] ^= 1
        file.write_bytes(content)
        assert latest_checkpoint(tmp_path) == newest
        manager = jt.train.CheckpointManager(checkpoint, tmp_path)
        message = rf"ckpt-2/checkpoint\.json cannot be read.* not damaged is '{older}'; move this"
        with pytest.raises(jt.errors.DataLossError, match=message):
            manager.restore_or_initialize()
        (tmp_path / "ckpt-2").rename(tmp_path / "away")  # as the message says
        # It is no checkpoint of this manager there, and still one that is damaged.
        assert manager.restore_or_initialize() == older

    @pytest.mark.parametrize("name", ["checkpoint.json", "commit.json", "index.json"])
    @pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe"], ids=repr)
    def test_of_an_old_one_is_nobodys_concern(self, tmp_path, checkpoint, name, content):
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        (file,) = (tmp_path / "ckpt-1").rglob(name)
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        file.write_bytes(content)
        manager = jt.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
        assert manager.restore_or_initialize() == str(tmp_path / "ckpt-2")
        checkpoint.v.assign(jnp.ones(4))
        newest = manager.save()
        manager.wait_until_finished()
        assert newest == latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3")
        manager.restore_or_initialize()
        assert checkpoint.v.numpy().tolist() == [1.0] * 4
        # Also while newer ones are deleted to make room.
        left = ["ckpt-1", "ckpt-3"] if name != "commit.json" else ["ckpt-3"]
        assert sorted(path.name for path in tmp_path.iterdir()) == left

    def test_of_all_there_are(self, tmp_path, checkpoint):
        for _ in range(3):
            path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        for file in tmp_path.rglob("index.json"):
            file.write_bytes(b"{}")
        message = f"'{path}' is damaged, .* There is no other one in .* that is whole"
        with pytest.raises(jt.errors.DataLossError, match=message):
            checkpoint.restore(path)

    def test_a_lost_commit_file_is_made_again(self, tmp_path, checkpoint):
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        file = tmp_path / "ckpt-1" / "checkpoint.json"
        content = file.read_bytes()
        file.unlink()
        checkpoint.v.assign(jnp.zeros(4))
        manager = jt.train.CheckpointManager(checkpoint, tmp_path)
        assert manager.restore_or_initialize() == path
        assert checkpoint.v.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
        assert not file.exists()  # reading changes nothing
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        assert file.read_bytes() == content

    def test_of_all_that_says_which_is_the_newest(self, tmp_path, checkpoint):
        def spoil(path):
            for file in [*path.glob("*.json"), *path.glob("data-*/commit.json")]:
                file.write_bytes(b"\xff")

        first, second = (checkpoint.save(tmp_path / "ckpt", AT_ONCE) for _ in range(2))
        spoil(tmp_path / "ckpt-1")
        assert latest_checkpoint(tmp_path) == second
        checkpoint.restore(second)
        spoil(tmp_path / "ckpt-2")
        assert latest_checkpoint(tmp_path) == second
        for path in (first, second):
            with pytest.raises(jt.errors.DataLossError, match=f"'{path}' is damaged"):
                checkpoint.restore(path)
        third = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        assert latest_checkpoint(tmp_path) == third
        assert len(list(tmp_path.rglob("index.json"))) == 3

    @pytest.mark.parametrize("name", ["checkpoint.json", "index.json"])
    def test_its_number_is_not_used_again(self, tmp_path, checkpoint, name):
        for _ in range(2):
            checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        (file,) = (tmp_path / "ckpt-2").rglob(name)
        file.write_bytes(b"{}")
        before = {path for path in tmp_path.rglob("*")}
        checkpoint.restore(tmp_path / "ckpt-1")
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        assert path == latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3")
        assert checkpoint.save_counter == 3
        assert before <= {path for path in tmp_path.rglob("*")}

    def test_a_manager_that_could_not_restore_replaces_nothing(self, tmp_path, checkpoint):
        for _ in range(3):
            checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        shutil.rmtree(next(tmp_path.glob("ckpt-3/data-*/arrays")))
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
        manager = jt.train.CheckpointManager(Checkpoint(v=jt.Variable(jnp.ones(4))), tmp_path)
        with pytest.raises(jt.errors.DataLossError, match="ckpt-3' is damaged"):
            manager.restore_or_initialize()
        assert manager.save(options=AT_ONCE) == str(tmp_path / "ckpt-4")
        assert before.items() <= {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.*")}.items()

    @pytest.mark.parametrize("name", ["checkpoint.json", "index.json", "manifest.ocdbt"])
    def test_what_is_written_in_its_place_leaves_the_rest_of_it(self, tmp_path, checkpoint, name):
        checkpoint.write(tmp_path / "best", AT_ONCE)
        before = {path.name for path in (tmp_path / "best").rglob("*")}
        (file,) = (tmp_path / "best").rglob(name)
        file.write_bytes(b"{}")
        checkpoint.v.assign(jnp.ones(4))
        path = checkpoint.write(tmp_path / "best", AT_ONCE)
        assert path == latest_checkpoint(tmp_path) == str(tmp_path / "best")
        checkpoint.restore(path).assert_consumed()
        (aside,) = tmp_path.glob("best.damaged-*")
        assert {path.name for path in aside.rglob("*")} == before
        # Of one that is whole, nothing is left that was replaced.
        checkpoint.write(tmp_path / "best", AT_ONCE)
        assert len(list((tmp_path / "best").iterdir())) == 2

    def test_arrays_of_another_checkpoint_are_not_taken_for_its_own(self, tmp_path, checkpoint):
        checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        checkpoint.v.assign(jnp.ones(4))
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        (old,), (new,) = (tmp_path.glob(f"ckpt-{n}/data-*/arrays") for n in (1, 2))
        shutil.rmtree(new)
        shutil.copytree(old, new)
        message = r"'v' in .*arrays cannot be read: the values there are others than those"
        with pytest.raises(jt.errors.DataLossError, match=message):
            checkpoint.restore(path)
        assert checkpoint.v.numpy().tolist() == [1.0] * 4

    def test_one_of_an_earlier_version_is_read_and_its_damage_is_named(self, tmp_path, checkpoint):
        """It had no copy of the commit file, and no checksums of values in its index."""
        path = checkpoint.save(tmp_path / "ckpt", AT_ONCE)
        commit = _files.find(path)
        data = _files.data_of(path, commit)
        index = _files.read_index(path, commit)
        for array in index["arrays"].values():
            array["parts"] = [part[:3] for part in array["parts"]]
        (data / "index.json").write_text(json.dumps(index))
        (data / "commit.json").unlink()
        checksum = _files._checksum(json.dumps(index).encode())
        _files._put(tmp_path / "ckpt-1/checkpoint.json", replace(commit, index_checksum=checksum))
        checkpoint.v.assign(jnp.zeros(4))
        checkpoint.restore(path).assert_consumed()
        assert checkpoint.v.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
        (tmp_path / "ckpt-1" / "checkpoint.json").write_text("{")
        assert latest_checkpoint(tmp_path) == path
        with pytest.raises(jt.errors.DataLossError, match=f"'{path}' is damaged"):
            checkpoint.restore(path)

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
