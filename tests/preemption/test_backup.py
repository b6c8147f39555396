"""Loops that go on where they were interrupted."""

import os
import signal

import pytest

import jaxtribute as jt
from jaxtribute.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError

Backup = jt.train.BackupAndRestore


@pytest.fixture(autouse=True)
def sigterm():
    """Have SIGTERM do nothing, and see that it does nothing else afterwards."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN


class Program:
    """What is started again and again: a variable that is changed in each step."""

    def __init__(self, directory, **options):
        self.v = jt.Variable(0.0)
        self.checkpoint = jt.train.Checkpoint(v=self.v)
        self.backup = Backup(self.checkpoint, directory, **options)
        self.made = []

    def make(self, *place, terminated_at=None, fails_at=None):
        self.made.append(place)
        self.v.assign_add(1.0)
        if place == terminated_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if place == fails_at:
            raise OSError("lost")

    def steps(self, total, **events):
        with self.backup as backup:
            for step in backup.steps(total):
                self.make(step, **events)
        return self

    def epochs(self, total, steps=None, **events):
        with self.backup as backup:
            for epoch in backup.epochs(total):
                if steps is None:
                    self.make(epoch, **events)
                else:
                    for step in backup.steps(steps):
                        self.make(epoch, step, **events)
        return self


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_after_a_failure_it_goes_on_from_the_last_backup(tmp_path):
    with pytest.raises(OSError, match="lost"):
        Program(tmp_path, save_freq=2).steps(9, fails_at=(5,))
    second = Program(tmp_path, save_freq=2).steps(9)
    assert second.made == [(4,), (5,), (6,), (7,), (8,)]
    assert float(second.v) == 9.0
    third = Program(tmp_path, save_freq=2).steps(11)
    assert third.made == [(9,), (10,)]
    assert float(third.v) == 11.0


def test_asked_to_end_it_saves_after_the_step_and_ends(tmp_path):
    first = Program(tmp_path, save_freq=100)
    with pytest.raises(SystemExit) as exit:
        first.steps(9, terminated_at=(5,))
    assert exit.value.code == 143
    second = Program(tmp_path, save_freq=100).steps(9)
    assert second.made == [(6,), (7,), (8,)]
    assert float(second.v) == 9.0


@pytest.mark.parametrize("save_freq", ["epoch", 4])
def test_epochs_of_steps_go_on_in_the_middle(tmp_path, save_freq):
    places = [(epoch, step) for epoch in range(3) for step in range(3)]
    made = []
    for options in ({"terminated_at": (0, 1)}, {"terminated_at": (1, 2)}, {}):
        program = Program(tmp_path, save_freq=save_freq)
        try:
            program.epochs(3, steps=3, **options)
        except SystemExit:
            assert options
        made += program.made
    assert made == places, "nothing twice, and nothing left out"
    assert float(program.v) == 9.0


@pytest.mark.parametrize(("save_freq", "lost_steps"), [("epoch", 2), (3, 2), (1, 1)])
def test_a_failure_in_an_epoch_loses_what_was_done_since_the_last_backup(
    tmp_path, save_freq, lost_steps
):
    first = Program(tmp_path, save_freq=save_freq)
    with pytest.raises(OSError, match="lost"):
        first.epochs(3, steps=3, fails_at=(2, 1))
    second = Program(tmp_path, save_freq=save_freq).epochs(3, steps=3)
    assert second.made[:lost_steps] == first.made[-lost_steps:]
    assert second.made[-1] == (2, 2)
    assert float(second.v) == 9.0


def test_epochs_without_steps(tmp_path):
    with pytest.raises(SystemExit):
        Program(tmp_path).epochs(5, terminated_at=(1,))
    with pytest.raises(OSError, match="lost"):
        Program(tmp_path).epochs(5, fails_at=(4,))
    last = Program(tmp_path).epochs(5)
    assert last.made == [(4,)]
    assert float(last.v) == 5.0


def test_backups_are_deleted_at_the_end_if_that_is_wanted_and_only_then(tmp_path):
    (tmp_path / "of the user").touch()
    with pytest.raises(OSError, match="lost"):
        Program(tmp_path, save_freq=1, delete_checkpoint=True).steps(5, fails_at=(3,))
    assert jt.train.latest_checkpoint(tmp_path) == str(tmp_path / "backup-3")
    assert names(tmp_path) == ["backup-2", "backup-3", "of the user"], "two, as one may be damaged"
    Program(tmp_path, save_freq=1, delete_checkpoint=True).steps(5)
    assert names(tmp_path) == ["of the user"]
    assert len(Program(tmp_path, save_freq=1).steps(5).made) == 5


def test_a_loop_that_is_left_early_is_not_saved_as_finished(tmp_path):
    program = Program(tmp_path, save_freq=2)
    with program.backup as backup:
        for step in backup.steps(9):
            program.make(step)
            if step == 4:
                break
    assert Program(tmp_path, save_freq=2).steps(9).made[0] == (4,)


def test_a_loop_over_epochs_that_is_left_may_be_followed_by_another(tmp_path):
    program = Program(tmp_path)
    with program.backup as backup:
        for _ in backup.epochs(3):
            break
        with pytest.raises(InvalidArgumentError, match="in no loop over backup"):
            backup.steps(3)
        for epoch in backup.epochs(3):
            program.make(epoch)
    assert program.made == [(0,), (1,), (2,)]


def test_after_a_failure_the_same_one_may_be_used_again(tmp_path):
    program = Program(tmp_path)
    with pytest.raises(OSError, match="lost") as failure:  # which keeps the loop that it was in
        program.epochs(3, fails_at=(1,))
    assert program.epochs(3).made == [(0,), (1,), (1,), (2,)]
    assert float(program.v) == 3.0
    del failure


def test_bad_arguments_and_uses_are_refused(tmp_path):
    checkpoint = jt.train.Checkpoint(v=jt.Variable(0.0))
    for wrong in (0, -1, 2.5, "batch", None):
        with pytest.raises(InvalidArgumentError, match="save_freq is a number of steps"):
            Backup(checkpoint, tmp_path, save_freq=wrong)
    backup = Backup(checkpoint, tmp_path)
    with pytest.raises(FailedPreconditionError, match="in its `with` block"):
        backup.steps(3)
    with backup, pytest.raises(InvalidArgumentError, match="in no loop over backup"):
        backup.steps(3)
    with backup, pytest.raises(FailedPreconditionError, match="in use"), backup:
        pass
    with pytest.raises(InvalidArgumentError, match="had no loop over backup"):
        Program(tmp_path, save_freq=2).epochs(3)
    with (
        pytest.raises(AlreadyExistsError, match="'backup'"),
        Backup(jt.train.Checkpoint(backup=1), tmp_path),
    ):
        pass


def test_a_coordinator_backs_up_what_has_run(tmp_path):
    def train(steps):
        with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
            strategy = cluster.strategy()
            coordinator = cluster.coordinator(strategy)
            with strategy.scope():
                total = jt.Variable(0.0)
            with Backup(jt.train.Checkpoint(total=total), tmp_path, save_freq=4) as backup:
                for _ in backup.steps(steps):
                    coordinator.schedule(lambda: total.assign_add(1.0))
            return float(total.numpy())

    assert train(10) == 10.0
    assert train(25) == 25.0


def test_a_damaged_backup_is_not_deleted_with_the_others(tmp_path):
    def train(steps, delete_checkpoint):
        checkpoint = jt.train.Checkpoint(v=jt.Variable(0.0))
        with jt.train.BackupAndRestore(
            checkpoint, tmp_path, save_freq=2, delete_checkpoint=delete_checkpoint
        ) as backup:
            return list(backup.steps(steps))

    train(4, delete_checkpoint=False)
    (tmp_path / "backup-1" / "checkpoint.json").write_bytes(b"\xff")
    assert train(6, delete_checkpoint=True) == [4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["backup-1"]
    with pytest.raises(jt.errors.DataLossError, match=r"checkpoint\.json cannot be read"):
        train(8, delete_checkpoint=True)
    assert len(list((tmp_path / "backup-1").iterdir())) == 2
