"""Workers save one checkpoint together, and succeed or fail together.

Each worker is a thread with devices of its own; how real processes do it is tested elsewhere.
"""

import shutil

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute.checkpoint import _files
from tests.checkpoint._support import Dense, results, run_workers
from tests.input._workers import distribute_to

Checkpoint = jt.train.Checkpoint


def make(worker, **objects):
    with worker.strategy.scope():
        return Checkpoint(model=Dense(fill=float(worker.index)), **objects)


def test_the_chief_writes_one_checkpoint_and_all_return_its_path(tmp_path):
    def program(worker):
        checkpoint = make(worker, step=worker.index)
        path = checkpoint.save(tmp_path / f"of {worker.index}" / "ckpt")
        again = checkpoint.save(tmp_path / f"of {worker.index}" / "ckpt")
        return path, again, checkpoint.save_counter

    chief = tmp_path / "of 0"
    assert results(program) == [(str(chief / "ckpt-1"), str(chief / "ckpt-2"), 2)] * 2
    assert not [*(tmp_path / "of 1").iterdir()]
    plain = Checkpoint(model=Dense(), step=5)
    plain.restore(chief / "ckpt-2").assert_consumed()
    assert plain.step == 0


def save_with_manager(checkpoint, directory):
    jt.train.CheckpointManager(checkpoint, directory, max_to_keep=1).save()


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(save_with_manager, id="manager"),
        pytest.param(lambda checkpoint, directory: checkpoint.save(directory / "c"), id="save"),
        pytest.param(lambda checkpoint, directory: checkpoint.write(directory / "c"), id="write"),
        pytest.param(
            lambda checkpoint, directory: jt.saved_model.save(checkpoint.model, directory),
            id="saved model",
        ),
    ],
)
def test_a_worker_can_remove_the_directory_it_was_given_after_each_time(tmp_path, save):
    def program(worker):
        checkpoint = make(worker)
        directory = tmp_path / "temporary" / "1" if worker.index else tmp_path / "kept"
        for _ in range(2):
            save(checkpoint, directory)
            if worker.index:
                shutil.rmtree(directory)
        checkpoint.wait_until_finished()

    results(program)
    assert [*(tmp_path / "kept").iterdir()]


def test_a_directory_that_a_worker_cannot_make_is_an_error_on_all(tmp_path):
    (tmp_path / "file").touch()

    def program(worker):
        make(worker).save(tmp_path / ("file" if worker.index else "kept") / "ckpt")

    chief, other = run_workers(program)
    assert isinstance(chief, jt.errors.AbortedError)
    assert isinstance(other, FileExistsError)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_checkpoint_is_complete_on_the_chief_when_no_worker_waits_any_more(tmp_path, at_once):
    def program(worker):
        checkpoint = make(worker)
        seen = []
        for _ in range(3):
            options = jt.train.CheckpointOptions(enable_async=not at_once)
            path = checkpoint.save(tmp_path / "ckpt", options)
            if not at_once:
                checkpoint.wait_until_finished()
            seen.append(path in [k.path for k in _files.complete(tmp_path)])
        return seen

    assert results(program, workers=3) == [[True] * 3] * 3


def test_all_restore_what_the_chief_chose(tmp_path):
    chosen = Checkpoint(model=Dense(fill=7.0)).save(tmp_path / "ckpt")
    other = Checkpoint(model=Dense(fill=8.0)).save(tmp_path / "other")

    def program(worker):
        checkpoint = make(worker)
        # The others may see the file system as it was before.
        checkpoint.restore([chosen, other, None][worker.index]).assert_consumed()
        return checkpoint.model.b.numpy().tolist(), checkpoint.save_counter

    assert results(program, workers=3) == [([7.0, 7.0], 1)] * 3


def test_nothing_is_restored_when_the_chief_has_no_checkpoint(tmp_path):
    path = Checkpoint(model=Dense(fill=7.0)).save(tmp_path / "ckpt")

    def program(worker):
        checkpoint = make(worker)
        checkpoint.restore([None, path][worker.index])
        return checkpoint.model.b.numpy().tolist()

    assert results(program) == [[0.0, 0.0], [1.0, 1.0]]


def _without_sight(monkeypatch, worker_with_sight):
    """Let only the thread of one worker see checkpoints."""
    import threading

    find, seeing = _files.find, {}

    def find_if_seen(path):
        if seeing.get(threading.get_ident()):
            return find(path)
        raise jt.errors.NotFoundError("There is no checkpoint.")

    monkeypatch.setattr(_files, "find", find_if_seen)

    def see(worker):
        seeing[threading.get_ident()] = worker.index == worker_with_sight

    return see


def test_a_worker_that_does_not_see_the_checkpoint_makes_all_fail(tmp_path, monkeypatch):
    path = Checkpoint(model=Dense(fill=7.0)).save(tmp_path / "ckpt")
    see = _without_sight(monkeypatch, worker_with_sight=0)

    def program(worker):
        see(worker)
        checkpoint = make(worker)
        with pytest.raises(jt.errors.JaxtributeError) as raised:
            checkpoint.restore(path)
        return type(raised.value), str(raised.value), checkpoint.model.b.numpy().tolist()

    (of_chief, on_chief, chief), (of_other, on_other, other) = results(program)
    assert (of_chief, of_other) == (jt.errors.AbortedError, jt.errors.NotFoundError)
    for message in (on_chief, on_other):
        assert "worker:1 does not see the checkpoint" in message
        assert "on a file system that all workers share" in message
    assert (chief, other) == ([0.0, 0.0], [1.0, 1.0])


def test_another_checkpoint_by_the_same_name_is_noticed(tmp_path, monkeypatch):
    checkpoint = Checkpoint(model=Dense())
    path, copy = [checkpoint.write(tmp_path / name) for name in ("ckpt", "elsewhere")]
    checkpoint.wait_until_finished()
    opened = Checkpoint._opened

    def opened_elsewhere(self, group, path, data):
        return opened(self, group, copy if group.index else path, data)

    monkeypatch.setattr(Checkpoint, "_opened", opened_elsewhere)

    def program(worker):
        with pytest.raises(jt.errors.JaxtributeError, match="worker:1 does not see"):
            make(worker).restore(path)

    results(program)


def test_an_error_of_the_chief_is_raised_on_all(tmp_path):
    (tmp_path / "ckpt-1").write_text("in the way")

    def program(worker):
        checkpoint = make(worker)
        with pytest.raises(jt.errors.JaxtributeError) as raised:
            checkpoint.save(tmp_path / "ckpt")
        (tmp_path / "ckpt-1").unlink(missing_ok=True)
        worker.agree("the way is free", "")
        return type(raised.value), str(raised.value), checkpoint.save(tmp_path / "ckpt")

    (of_chief, _, path), (of_other, message, other_path) = results(program)
    assert of_chief is jt.errors.AlreadyExistsError
    assert of_other is jt.errors.AbortedError
    assert "worker:0 could not save a checkpoint" in message
    assert "is a file" in message
    assert path == other_path == str(tmp_path / "ckpt-1")


def test_an_error_of_another_worker_is_raised_on_all_and_nothing_is_written(tmp_path):
    def program(worker):
        with worker.strategy.scope():
            v = jt.Variable(
                1.0,
                synchronization=jt.VariableSynchronization.ON_READ,
                aggregation=jt.VariableAggregation["NONE" if worker.index else "SUM"],
            )
        Checkpoint(v=v).save(tmp_path / "ckpt")

    chief, other = run_workers(program)
    assert isinstance(chief, jt.errors.AbortedError)
    assert "worker:1 could not begin to save a checkpoint" in str(chief)
    assert isinstance(other, ValueError)
    assert list(tmp_path.iterdir()) == []


def test_workers_with_different_objects_are_told_the_difference(tmp_path):
    def program(worker):
        objects = {"extra": jt.Variable(0.0)} if worker.index == 1 else {}
        make(worker, **objects).save(tmp_path / "ckpt")

    for outcome in run_workers(program, workers=3):
        assert isinstance(outcome, jt.errors.InvalidArgumentError)
        assert "worker:0 and worker:1 save different objects" in str(outcome)
        assert "extra" in str(outcome)
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_does_not_fit_on_one_worker_changes_nothing_on_any(tmp_path):
    path = Checkpoint(model=Dense(fill=7.0)).save(tmp_path / "ckpt")

    def program(worker):
        with worker.strategy.scope():
            model = Dense(3 + worker.index, 2)
        with pytest.raises(jt.errors.JaxtributeError, match=r"'model/w' has shape \(3, 2\)"):
            Checkpoint(model=model).restore(path)
        return float(np.sum(model.b.numpy()))

    assert results(program) == [0.0, 0.0]


def test_an_iterator_that_is_refused_on_one_worker_changes_nothing_on_any(tmp_path):
    path = Checkpoint(model=Dense(fill=7.0), it=iter(jt.data.Dataset.range(9))).save(
        tmp_path / "ckpt"
    )

    def program(worker):
        iterator = iter(jt.data.Dataset.range(9 - worker.index))
        for _ in range(3):
            next(iterator)
        checkpoint = make(worker, it=iterator)
        with pytest.raises(jt.errors.JaxtributeError, match="this one is of"):
            checkpoint.restore(path)
        return checkpoint.model.b.numpy().tolist(), int(next(iterator))

    assert results(program) == [([0.0, 0.0], 3), ([1.0, 1.0], 3)]


def test_optimizers_and_later_objects_are_restored_on_all(tmp_path):
    model = Dense()
    optimizer = jt.Optimizer(optax.adam(0.1))
    optimizer.apply_gradients([(jnp.ones(v.shape), v) for v in model.variables])
    path = Checkpoint(model=model, optimizer=optimizer, step=3).save(tmp_path / "ckpt")

    def program(worker):
        checkpoint = make(worker)
        status = checkpoint.restore(path)
        with worker.strategy.scope():
            checkpoint.optimizer = jt.Optimizer(optax.adam(0.1))
        checkpoint.step = 0
        status.assert_consumed()
        return checkpoint.step, [v.numpy().tolist() for v in checkpoint.optimizer.variables]

    expected = (3, [v.numpy().tolist() for v in optimizer.variables])
    assert results(program) == [expected, expected]


class TestIterators:
    @staticmethod
    def dataset():
        files = jt.data.Dataset.range(40).batch(8)
        options = jt.data.Options()
        options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.DATA
        return files.with_options(options)

    def test_each_worker_goes_on_with_its_own(self, tmp_path):
        def program(worker):
            iterator = iter(jt.data.Dataset.range(100).skip(50 * worker.index))
            for _ in range(3 + worker.index):
                next(iterator)
            path = make(worker, it=iterator).save(tmp_path / "ckpt")
            other = iter(jt.data.Dataset.range(100).skip(50 * worker.index))
            make(worker, it=other).restore(path).assert_consumed()
            return int(next(other))

        assert results(program) == [3, 54]

    @pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1), (1, 2)])
    def test_other_numbers_of_workers_share_what_is_left(self, tmp_path, before, after):
        def begin(worker, workers):
            return iter(distribute_to(self.dataset(), workers, worker.index, 1))

        def save(worker):
            iterator = begin(worker, before)
            next(iterator), next(iterator)
            path = make(worker, it=iterator).save(tmp_path / "ckpt")
            iterator.close()
            return path

        path = results(save, before)[0]

        def restore(worker):
            iterator = begin(worker, after)
            make(worker, it=iterator).restore(path).assert_consumed()
            return [x for element in iterator for x in _flat(element)]

        left = [x for own in results(restore, after) for x in own]
        assert sorted(left) == list(range(16, 40))


def _flat(element):
    parts = getattr(element, "values", (element,))
    return np.concatenate([np.asarray(part) for part in parts]).tolist()


def test_managers_keep_the_same_checkpoints_on_all_workers(tmp_path):
    def program(worker):
        checkpoint = make(worker, step=0)
        manager = jt.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=2)
        for step in range(4):
            checkpoint.step = step
            manager.save()
        checkpoint.step = -1
        restored = manager.restore_or_initialize()
        return manager.checkpoints, restored, checkpoint.step

    first, second = results(program)
    assert first == second
    assert first[1:] == (str(tmp_path / "ckpt-4"), 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-3", "ckpt-4"]


def test_managers_begin_on_all_workers_when_the_chief_sees_nothing(tmp_path):
    Checkpoint(model=Dense(fill=7.0)).save(tmp_path / "of 1" / "ckpt")

    def program(worker):
        begun = []
        manager = jt.train.CheckpointManager(
            make(worker), tmp_path / f"of {worker.index}", init_fn=lambda: begun.append(1)
        )
        return manager.restore_or_initialize(), begun

    assert results(program) == [(None, [1]), (None, [1])]
