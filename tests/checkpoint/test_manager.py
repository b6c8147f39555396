"""Keeping the newest checkpoints, and going on from them."""

import os
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxtribute as jt
from jaxtribute.checkpoint import _files
from jaxtribute.checkpoint._manager import to_preserve

CheckpointManager = jt.train.CheckpointManager


@pytest.fixture
def v():
    return jt.Variable(0)


@pytest.fixture
def checkpoint(v):
    return jt.train.Checkpoint(v=v)


def _names(paths):
    return [os.path.basename(path) for path in paths]


def test_the_newest_are_kept(tmp_path, checkpoint, v):
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=3)
    assert (manager.directory, manager.checkpoints) == (str(tmp_path), [])
    assert manager.latest_checkpoint is None
    for number in range(1, 6):
        v.assign(number)
        assert manager.save() == str(tmp_path / f"ckpt-{number}") == manager.latest_checkpoint
    assert _names(manager.checkpoints) == ["ckpt-3", "ckpt-4", "ckpt-5"]
    manager.wait_until_finished()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-3", "ckpt-4", "ckpt-5"]
    for path in manager.checkpoints:
        checkpoint.restore(path).assert_consumed()
        assert path.endswith(f"-{v.numpy()}")


def test_none_keeps_all(tmp_path, checkpoint):
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=None)
    for _ in range(7):
        manager.save()
    assert len(manager.checkpoints) == len(list(tmp_path.iterdir())) == 7


def test_a_new_manager_goes_on_with_what_is_there(tmp_path, checkpoint, v):
    first = CheckpointManager(checkpoint, tmp_path, max_to_keep=2)
    for number in (1, 2, 3):
        v.assign(number)
        first.save()
    other = jt.train.Checkpoint(v=jt.Variable(0))
    manager = CheckpointManager(other, tmp_path, max_to_keep=2, init_fn=pytest.fail)
    assert manager.checkpoints == first.checkpoints
    assert manager.restore_or_initialize() == first.latest_checkpoint
    assert int(other.v) == 3
    manager.save()
    assert _names(manager.checkpoints) == ["ckpt-3", "ckpt-4"]
    manager.wait_until_finished()
    assert len(list(tmp_path.iterdir())) == 2


def test_going_back_forgets_what_came_after(tmp_path, checkpoint, v):
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=3)
    for number in (1, 2, 3):
        v.assign(number)
        manager.save()
    checkpoint.restore(manager.checkpoints[0])
    v.assign(20)
    assert manager.save() == str(tmp_path / "ckpt-2")
    assert _names(manager.checkpoints) == ["ckpt-1", "ckpt-3", "ckpt-2"]
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-2")
    assert int(v) == 20


def test_without_a_checkpoint_the_program_is_told_to_begin(tmp_path, checkpoint):
    begun = []
    manager = CheckpointManager(checkpoint, tmp_path / "new", init_fn=lambda: begun.append(1))
    assert manager.restore_or_initialize() is None
    assert begun == [1]
    assert CheckpointManager(checkpoint, tmp_path / "new").restore_or_initialize() is None


def test_names_and_numbers_may_be_chosen(tmp_path, checkpoint):
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=1, checkpoint_name="model")
    others = CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    others.save()
    assert manager.save(checkpoint_number=100) == str(tmp_path / "model-100")
    assert manager.save(checkpoint_number=jt.Variable(200)) == str(tmp_path / "model-200")
    manager.wait_until_finished()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-1", "model-200"]
    assert checkpoint.save_counter == 3


class TestInterval:
    def test_nothing_is_saved_in_between(self, tmp_path, checkpoint, v):
        manager = CheckpointManager(checkpoint, tmp_path, step_counter=v, checkpoint_interval=10)
        assert manager.checkpoint_interval == 10
        saved = []
        for step in range(0, 35, 5):
            v.assign(step)
            saved.append(manager.save() is not None)
        assert saved == [True, False, True, False, True, False, True]
        assert manager.save() is None
        assert manager.save(check_interval=False) is not None

    def test_it_counts_from_what_was_restored(self, tmp_path, checkpoint, v):
        v.assign(7)
        CheckpointManager(checkpoint, tmp_path).save()
        v.assign(0)
        manager = CheckpointManager(
            checkpoint, tmp_path, step_counter=lambda: int(v), checkpoint_interval=10
        )
        manager.restore_or_initialize()
        v.assign(16)
        assert manager.save() is None
        v.assign(17)
        assert manager.save() is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_to_keep": 0}, "max_to_keep has to be at least 1, got 0"),
        ({"checkpoint_interval": 5}, "checkpoint_interval=5 needs a step_counter"),
        ({"checkpoint_name": "a/b"}, "got 'a/b'"),
        ({"checkpoint_name": ""}, "got ''"),
    ],
)
def test_arguments_that_cannot_be_are_refused(tmp_path, checkpoint, arguments, message):
    with pytest.raises(ValueError, match=message):
        CheckpointManager(checkpoint, tmp_path, **arguments)


HOUR = 3600.0


@pytest.mark.parametrize(
    ("times", "hours", "last", "kept"),
    [
        pytest.param([1, 2, 3], None, 0, "", id="not wanted"),
        pytest.param([1, 2, 3], 1, 0, "abc", id="each"),
        pytest.param([1, 2, 3, 4], 2, 0, "bd", id="every other"),
        pytest.param([1, 2, 3, 4], 2, 2.5, "", id="the last was not long ago"),
        pytest.param([1, 9, 9.5, 11], 2, 0, "bd", id="at uneven times"),
        pytest.param([], 2, 0, "", id="none"),
    ],
)
def test_which_are_kept_for_good(times, hours, last, kept):
    superfluous = [(name, time * HOUR) for name, time in zip("abcd", times, strict=False)]
    assert to_preserve(superfluous, hours, last * HOUR) == set(kept)


def test_those_kept_for_good_stay_and_are_not_counted(tmp_path, checkpoint):
    def age(path, hours):  # as if it had been saved that much later
        manager.wait_until_finished()
        commit = _files.find(path)
        _files._put(
            Path(path) / "checkpoint.json", replace(commit, saved_at=commit.saved_at + hours * HOUR)
        )

    manager = CheckpointManager(
        checkpoint, tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=2
    )
    for number in range(1, 7):
        age(manager.save(), number)
        if number == 4:  # what is kept is known to the next program as well
            manager = CheckpointManager(
                checkpoint, tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=2
            )
    assert _names(manager.checkpoints) == ["ckpt-6"]
    manager.wait_until_finished()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-2", "ckpt-4", "ckpt-6"]


def test_large_and_small_state_together(tmp_path):
    checkpoint = jt.train.Checkpoint(
        many={f"v{i}": jt.Variable(jnp.float32(i)) for i in range(200)},
        large=jt.Variable(jnp.arange(1 << 20)),
    )
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.many["v7"].assign(0.0)
    checkpoint.restore(path).assert_consumed()
    assert float(checkpoint.many["v7"]) == 7.0
