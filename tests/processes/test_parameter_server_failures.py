"""Workers of a parameter-server cluster that are killed, stopped, slow and started again."""

import os
import time

import pytest

import jaxtribute as jt
from jaxtribute import errors
from jaxtribute.coordinator._queue import STRIKES
from jaxtribute.testing import ProcessCluster
from tests.processes._parameter_server import (
    Counting,
    ask,
    die,
    die_before_reporting,
    hold,
    task_of,
    until,
    until_held,
)

pytestmark = pytest.mark.processes

SILENCE = {"JAXTRIBUTE_SILENCE_TIMEOUT": "3"}


@pytest.fixture
def silence(monkeypatch):
    """Have tasks that say nothing count as lost soon."""
    for name, value in SILENCE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(silence):
    with ProcessCluster(workers=2, ps=2, environment=SILENCE) as cluster:
        yield cluster


@pytest.fixture
def counting(cluster):
    with Counting(cluster) as counting:
        yield counting


def test_a_worker_that_is_killed_in_a_closure_is_replaced_and_takes_part_when_it_is_back(
    cluster, counting, tmp_path
):
    coordinator = counting.coordinator
    numbers = iter(coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(10**6)))

    def take(numbers):
        return os.getpid(), int(next(numbers))

    for _ in range(20):
        coordinator.schedule(take, args=(numbers,))
    coordinator.join()

    held = counting.schedule(hold, str(tmp_path))
    killed = until_held(tmp_path)
    task = task_of(cluster, killed)
    cluster.kill(task)
    others = counting.schedule_many(20, 0.001)
    (tmp_path / "go").touch()
    assert held.fetch()[0] != killed
    assert killed not in {process for process, _ in coordinator.fetch(others)}
    counting.check()

    cluster.start(task)
    back = cluster.pid(task)
    counting.until_run_by(back)
    # What was made on the worker is made again there: it begins with the first element.
    taken = [coordinator.schedule(take, args=(numbers,)) for _ in range(1)]
    while back not in {value.fetch()[0] for value in taken}:
        taken.append(coordinator.schedule(take, args=(numbers,)))
    assert [number for process, number in coordinator.fetch(taken) if process == back] == [0]
    counting.check()
    cluster.assert_quiescent()


def test_a_worker_that_is_killed_between_its_update_and_its_outcome_is_counted_once(
    cluster, counting, tmp_path
):
    cluster_of_both = {cluster.pid("worker:0"), cluster.pid("worker:1")}
    value = counting.schedule(die_before_reporting, str(tmp_path))
    counting.schedule_many(50, 0.001)
    assert value.fetch()[0] in cluster_of_both
    counting.check()
    (tmp_path / "died").unlink()  # somebody has
    for task in ("ps:0", "ps:1"):
        assert ask(cluster, task).repeated_updates >= 1


def test_all_workers_may_be_lost_and_come_back(cluster, counting, tmp_path):
    values = [counting.schedule(hold, str(tmp_path), name) for name in ("a", "b")]
    for name in ("a", "b"):
        until_held(tmp_path, name)
    values += counting.schedule_many(100, 0.001)
    cluster.kill("worker:0")
    cluster.kill("worker:1")
    (tmp_path / "go").touch()
    values += counting.schedule_many(10)
    assert not counting.coordinator.done()
    cluster.start("worker:1")
    assert {process for process, _ in counting.coordinator.fetch(values)} == {
        cluster.pid("worker:1")
    }
    counting.check()
    cluster.start("worker:0")
    counting.until_run_by(cluster.pid("worker:0"))
    counting.check()


def test_a_closure_that_kills_every_worker_is_given_up_and_no_other(cluster, counting):
    deadly = counting.schedule(die)
    counting.schedule_many(20, 0.001)
    with pytest.raises(errors.ClosureAbortedError) as info:
        killed = 0
        while True:
            for task in ("worker:0", "worker:1"):
                try:
                    cluster.pid(task)
                except ValueError:
                    killed += 1
                    cluster.start(task)
            counting.coordinator.done()
    assert killed in (STRIKES - 1, STRIKES)  # the last one may not have been seen
    assert f"{STRIKES} workers were lost that had it (worker:" in str(info.value)
    with pytest.raises(errors.ClosureAbortedError):
        deadly.fetch()
    before = counting.counted()
    assert before[0] == before[1] <= 20
    counting.schedule_many(10)
    counting.coordinator.join()
    assert counting.counted() == [before[0] + 10] * 2


def test_an_error_of_a_function_while_a_worker_is_away_cancels_and_is_raised(
    cluster, counting, tmp_path
):
    def fail(directory):
        hold(directory, "failing")
        raise ZeroDivisionError("mine")

    held = counting.schedule(hold, str(tmp_path), "held")
    failing = counting.schedule(fail, str(tmp_path))
    until_held(tmp_path, "failing")
    killed = task_of(cluster, until_held(tmp_path))
    cluster.kill(killed)
    until(
        lambda: counting.coordinator._dispatcher.closures.queue.waiting,
        "the loss to be noticed",
    )
    (tmp_path / "go").touch()
    with pytest.raises(ZeroDivisionError, match="mine"):
        counting.coordinator.join()
    with pytest.raises(errors.CancelledError):
        held.fetch()
    with pytest.raises(ZeroDivisionError):
        failing.fetch()
    cluster.start(killed)
    counting.until_run_by(cluster.pid(killed))
    counting.check(missing=2)


def test_a_worker_that_stood_still_does_not_count_again_what_others_did(
    cluster, counting, tmp_path
):
    value = counting.schedule(hold, str(tmp_path))
    still = until_held(tmp_path)
    task = task_of(cluster, still)
    with cluster.paused(task):
        (tmp_path / "go").touch()
        counting.schedule_many(100, 0.001)
        assert value.fetch()[0] != still
        counting.check()
    until(lambda: ask(cluster, "ps:1").repeated_updates, "the late update")
    counting.check()
    counting.until_run_by(still)
    counting.check()
    cluster.assert_quiescent()


def test_others_do_the_work_of_a_slow_worker(cluster, counting, tmp_path):
    held = [counting.schedule(hold, str(tmp_path))]
    slow = until_held(tmp_path)
    began = time.monotonic()
    others = counting.schedule_many(300, 0.001)
    counting.coordinator.fetch(others)  # also those that the slow one was given
    assert time.monotonic() > began
    (tmp_path / "go").touch()
    assert held[0].fetch()[0] == slow
    counting.check()
