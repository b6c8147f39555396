"""Saving and ending in a process that is asked to end."""

import os
import signal
import sys
import threading

import pytest

import jaxtribute as jt
from jaxtribute import _job
from jaxtribute.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    WorkerLostError,
)
from tests.preemption._support import SECONDS, run_workers

Handler = jt.experimental.PreemptionCheckpointHandler
Config = jt.experimental.TerminationConfig


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def sigterm():
    """Have SIGTERM do nothing, and see that it does nothing else afterwards."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN


class Counter:
    """A value in a checkpoint, and a step that changes it and is told to end at times."""

    def __init__(self, *terminated_at):
        self.v = jt.Variable(0.0)
        self.checkpoint = jt.train.Checkpoint(v=self.v)
        self.terminated_at = terminated_at

    def step(self):
        value = float(self.v.assign_add(1.0).numpy())
        if value in self.terminated_at:
            terminate()
        return value


def ended(program):
    with pytest.raises(SystemExit) as exit:
        program()
    return exit.value.code


@pytest.fixture(params=["checkpoint", "manager"])
def make(request, tmp_path):
    """Return a function that makes a handler of a checkpoint."""

    def handler(checkpoint, config=None):
        if request.param == "checkpoint":
            return Handler(None, checkpoint, tmp_path, config)
        manager = jt.train.CheckpointManager(
            checkpoint, tmp_path, step_counter=lambda: 0, checkpoint_interval=100
        )
        return Handler(None, manager, termination_config=config)

    return handler


def test_it_saves_after_the_step_in_which_it_is_asked_and_goes_on_there(make, tmp_path):
    counter = Counter(3.0)
    handler = make(counter.checkpoint)
    seen = []

    def train():
        while True:
            seen.append(handler.run(counter.step))

    assert ended(train) == _job.EXIT_PREEMPTED == 128 + signal.SIGTERM
    handler.close()
    assert seen == [1.0, 2.0]
    assert os.path.basename(jt.train.latest_checkpoint(tmp_path)) == "ckpt-1"

    again = Counter()
    handler = make(again.checkpoint)
    assert handler.total_run_calls == 3
    assert handler.run(again.step) == 4.0
    assert handler.total_run_calls == 4
    handler.close()


def test_signals_before_the_first_step_and_more_than_one_make_one_checkpoint(tmp_path):
    counter = Counter(1.0)
    handler = Handler(None, counter.checkpoint, tmp_path)
    terminate()
    terminate()
    assert ended(lambda: handler.run(counter.step)) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]
    terminate()  # which is too late to change anything
    handler.close()


def test_a_signal_during_a_save_of_the_program_is_heard_after_the_next_step(tmp_path):
    counter = Counter()
    handler = Handler(None, counter.checkpoint, tmp_path)
    handler.run(counter.step)
    counter.checkpoint.save(tmp_path / "ckpt")
    terminate()  # while it is being written
    assert ended(lambda: handler.run(counter.step)) == 143
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-1", "ckpt-2"]
    restored = Counter()
    Handler(None, restored.checkpoint, tmp_path).close()
    assert float(restored.v) == 2.0


def test_an_exit_fn_that_returns_lets_the_program_go_on(tmp_path):
    counter = Counter(1.0, 2.0)
    exits = []
    handler = Handler(None, counter.checkpoint, tmp_path, Config(exit_fn=lambda: exits.append(1)))
    assert [handler.run(counter.step) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert exits == [1]
    assert counter.checkpoint.save_counter == 1
    handler.close()


def test_save_fn_saves_instead_with_the_arguments_that_are_given(tmp_path, capsys):
    counter = Counter()
    saved = []

    def save_fn(*args, **kwargs):
        saved.append((args, kwargs, counter.checkpoint.write(tmp_path / "mine")))

    handler = Handler(None, counter.checkpoint, tmp_path, Config(save_fn=save_fn))
    handler.save_checkpoint_if_preempted(1)
    terminate()
    assert ended(lambda: handler.save_checkpoint_if_preempted(2, three=3)) == 143
    handler.close()
    assert saved == [((2,), {"three": 3}, str(tmp_path / "mine"))]
    assert "preempted: saved with save_fn, to go on from there" in capsys.readouterr().err


def test_arguments_for_saving_go_to_the_manager(tmp_path):
    counter = Counter()
    manager = jt.train.CheckpointManager(counter.checkpoint, tmp_path)
    handler = Handler(None, manager)
    terminate()
    assert ended(lambda: handler.save_checkpoint_if_preempted(checkpoint_number=17)) == 143
    handler.close()
    assert manager.latest_checkpoint == str(tmp_path / "ckpt-17")


def test_at_the_end_of_the_scope_it_is_not_too_late(tmp_path):
    counter = Counter(2.0)
    handler = Handler(None, counter.checkpoint, tmp_path)

    def train():
        with handler.watch_preemption_scope():
            for _ in range(2):
                handler.save_checkpoint_if_preempted()
                counter.step()

    assert ended(train) == 143
    handler.close()
    assert handler.total_run_calls == 0, "which counts calls of run"


def test_with_time_left_it_saves_goes_on_and_saves_again(tmp_path):
    counter = Counter(2.0)
    handler = Handler(None, counter.checkpoint, tmp_path, Config(grace_period=0.3))
    steps = []

    def train():
        while True:
            steps.append(handler.run(counter.step))

    assert ended(train) == 143
    handler.close()
    first, last = jt.train.Checkpoint(v=jt.Variable(0.0)), jt.train.Checkpoint(v=jt.Variable(0.0))
    first.restore(tmp_path / "ckpt-1").expect_partial()
    last.restore(tmp_path / "ckpt-2").expect_partial()
    assert float(first.v) == 2.0
    assert float(last.v) == len(steps) + 1 > 2


def test_a_failing_save_is_no_preemption(tmp_path):
    counter = Counter()

    def save_fn():
        raise OSError("the disk is full")

    handler = Handler(None, counter.checkpoint, tmp_path, Config(save_fn=save_fn))
    terminate()
    with pytest.raises(OSError, match="the disk is full"):
        handler.run(counter.step)
    handler.close()


# --- Several workers -----------------------------------------------------------------------


def test_workers_save_one_checkpoint_after_the_same_step(tmp_path):
    def program(worker):
        with worker.strategy.scope():
            v = jt.Variable(0.0)
        config = Config(
            termination_watcher_fn=lambda: worker.index == 1, exit_fn=lambda: sys.exit(7)
        )
        handler = Handler(None, jt.train.Checkpoint(v=v), tmp_path, config)

        def train():
            while True:
                handler.run(lambda: v.assign_add(1.0))

        assert ended(train) == 7
        handler.close()
        return handler.total_run_calls, float(v)

    first, second = run_workers(program)
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]


def test_a_worker_that_is_asked_after_the_first_save_has_time_left_as_well(tmp_path):
    """As when a cluster sends SIGTERM to one machine after the other."""

    def program(worker):
        with worker.strategy.scope():
            checkpoint = jt.train.Checkpoint(v=jt.Variable(0.0))
        has_saved = threading.Event()
        asked = worker.index == 0
        config = Config(
            termination_watcher_fn=lambda: asked or has_saved.wait(SECONDS),
            grace_period=1000.0,
            save_fn=has_saved.set,
            exit_fn=lambda: ends.append(worker.index),
        )
        handler = Handler(None, checkpoint, tmp_path, config)
        while not has_saved.is_set():
            handler.run(lambda: None)
        handler._termination._thread.join(SECONDS)  # from here on both are asked
        assert handler._termination.is_asked
        for _ in range(5):
            worker.exchange(f"call {handler.total_run_calls}", "")
            handler.run(lambda: None)
        handler.close()

    ends = []
    assert run_workers(program) == [None, None]
    assert ends == []


def test_an_error_on_one_worker_is_reported_to_all_but_the_end_of_the_data_is_not(tmp_path):
    def program(worker):
        with worker.strategy.scope():
            checkpoint = jt.train.Checkpoint(v=jt.Variable(0.0))
        handler = Handler(None, checkpoint, tmp_path, Config(lambda: False))
        if worker.index == 1:
            with pytest.raises(ZeroDivisionError):
                handler.run(lambda: 1 / 0)
        with pytest.raises(StopIteration), handler.watch_preemption_scope():
            next(iter(()))
        worker.exchange("both have come here", "")
        handler.close()
        return worker.given_up

    assert run_workers(program) == [["it raised ZeroDivisionError: division by zero"]] * 2


# --- Parameter servers ---------------------------------------------------------------------


def test_a_coordinator_saves_once_everything_that_was_scheduled_has_run(tmp_path):
    with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
        strategy = cluster.strategy()
        coordinator = cluster.coordinator(strategy)
        with strategy.scope():
            total = jt.Variable(0.0)
        checkpoint = jt.train.Checkpoint(total=total)
        handler = Handler(None, checkpoint, tmp_path)

        def step():
            for _ in range(20):
                coordinator.schedule(lambda: total.assign_add(1.0))

        handler.run(step)
        terminate()
        assert ended(lambda: handler.run(step)) == 143
        handler.close()
    alone = jt.train.Checkpoint(total=jt.Variable(0.0))
    handler = Handler(None, alone, tmp_path)
    handler.close()
    assert float(alone.total) == 40.0
    assert handler.total_run_calls == 2


# --- What cannot be ------------------------------------------------------------------------


def test_bad_arguments_are_refused_and_nothing_is_watched(tmp_path):
    checkpoint = Counter().checkpoint
    with pytest.raises(InvalidArgumentError, match="needs a checkpoint_dir"):
        Handler(None, checkpoint)
    manager = jt.train.CheckpointManager(checkpoint, tmp_path)
    with pytest.raises(InvalidArgumentError, match="Leave it out"):
        Handler(None, manager, tmp_path / "other")
    Handler(None, manager, tmp_path).close()
    with pytest.raises(InvalidArgumentError, match="got 7"):
        Handler(None, 7, tmp_path)
    with pytest.raises(AlreadyExistsError, match="'preemption'"):
        Handler(None, jt.train.Checkpoint(preemption=1), tmp_path)
    with pytest.raises(InvalidArgumentError, match="grace_period"):
        Config(grace_period=-1)
    with pytest.raises(InvalidArgumentError, match="exit_fn has to be a function"):
        Config(exit_fn=143)


def resolver(task_type, **jobs):
    spec = jt.ClusterSpec({job: [f"h{job}{i}:1" for i in range(n)] for job, n in jobs.items()})
    return jt.cluster_resolver.SimpleClusterResolver(spec, task_type=task_type, task_id=0)


def test_the_resolver_tells_where_a_handler_has_no_place(tmp_path):
    checkpoint = Counter().checkpoint
    for task_type in ("worker", "ps"):
        with pytest.raises(InvalidArgumentError, match="The coordinator saves"):
            Handler(resolver(task_type, chief=1, worker=1, ps=1), checkpoint, tmp_path)
    Handler(resolver("chief", chief=1, worker=1, ps=1), checkpoint, tmp_path).close()
    with pytest.raises(FailedPreconditionError, match="3 workers, and this one has not joined"):
        Handler(resolver("worker", chief=1, worker=2), checkpoint, tmp_path)
    Handler(resolver("worker", worker=1), checkpoint, tmp_path).close()


# --- PreemptionWatcher ---------------------------------------------------------------------


def test_a_watcher_says_who_is_to_end():
    watcher = jt.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    watcher.block_until_worker_exit()  # which nobody does
    terminate()
    assert watcher.preemption_message == "worker:0 was asked to end by SIGTERM"
    watcher.block_until_worker_exit()  # it is this one
    watcher.close()


def test_a_watcher_waits_until_the_other_has_ended(monkeypatch):
    class Group:
        """That of a worker whose peer was asked to end, and ends when it is waited for."""

        index = 0
        tasks = ("worker:0", "worker:1")
        waited = False

        def agree(self, what, report):
            return [report, report]

        def hear(self, about, listener):
            listener(1)

        def exchange(self, about, report, cancelled=None):
            self.waited = True
            raise WorkerLostError(["worker:1"], "it has finished")

    group = Group()
    monkeypatch.setattr("jaxtribute.preemption._watcher.current_world", lambda: group)
    watcher = jt.experimental.PreemptionWatcher()
    assert watcher.preemption_message == "worker:1 was asked to end by SIGTERM"
    watcher.block_until_worker_exit()
    assert group.waited
    watcher.close()


def test_of_two_watchers_that_are_to_end_none_waits_for_the_other(monkeypatch):
    class Group:
        """That of a worker whose peer is asked to end a moment after this one."""

        index = 0
        tasks = ("worker:0", "worker:1")

        def agree(self, what, report):
            return [report, report]

        def hear(self, about, listener):
            self.listener = listener

        def tell(self, about):
            self.listener(1)

        def exchange(self, about, report, cancelled=None):
            pytest.fail("it waits for one that may wait for it")

    monkeypatch.setattr("jaxtribute.preemption._watcher.current_world", Group)
    watcher = jt.experimental.PreemptionWatcher()
    terminate()
    assert watcher.preemption_message == "worker:0 was asked to end by SIGTERM"
    watcher.block_until_worker_exit()
    watcher.close()
