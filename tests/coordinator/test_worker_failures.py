"""A whole cluster in this process: workers that are lost, return, and stand still."""

import itertools
import time

import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster


@pytest.fixture
def cluster():
    """Two workers and one parameter server inside this process."""
    with LocalCluster(workers=2, ps=1) as cluster:
        yield cluster
        cluster.assert_quiescent()


@pytest.fixture
def strategy(cluster):
    return cluster.strategy()


@pytest.fixture
def coordinator(cluster, strategy):
    return cluster.coordinator(strategy)


def double(x):
    return 2 * x


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_closure_survives_the_loss_of_its_worker(cluster, coordinator):
    cluster.freeze("worker:0", at="execute")  # accepts the closure, then stands still
    with cluster.paused("worker:1"):  # so that worker 0 is the one to accept it
        result = coordinator.schedule(double, args=(21,))
        cluster.wait_until_frozen("worker:0")
        cluster.kill("worker:0")
    coordinator.join()
    assert result.fetch() == 42


def test_an_update_is_applied_once_though_its_closure_runs_twice(cluster, strategy, coordinator):
    with strategy.scope():
        v = jt.Variable(0.0)
    cluster.freeze("worker:0", at="report")  # has sent its update, and told nobody
    with cluster.paused("worker:1"):
        coordinator.schedule(lambda: v.assign_add(1.0))
        cluster.wait_until_frozen("worker:0")
        cluster.kill("worker:0")
    coordinator.join()
    assert v.numpy() == 1.0
    for _ in range(10):
        coordinator.schedule(lambda: v.assign_add(1.0))
    coordinator.join()
    assert v.numpy() == 11.0


def test_others_go_on_while_a_worker_is_down_and_it_takes_part_again(
    cluster, strategy, coordinator
):
    with strategy.scope():
        v = jt.Variable(0.0)

    def step():
        v.assign_add(1.0)
        return jt.experimental.coordinator.experimental_get_current_worker_index()

    cluster.kill("worker:0")
    values = [coordinator.schedule(step) for _ in range(10)]
    coordinator.join()
    assert coordinator.fetch(values) == [1] * 10
    cluster.start("worker:0")
    count = itertools.count(10)

    def worker_0_took_part():
        found = coordinator.fetch([coordinator.schedule(step) for _ in range(20)])
        return next(count) and 0 in found

    until(worker_0_took_part)
    coordinator.join()
    assert v.numpy() == 10 + 20 * (next(count) - 10)


def test_a_worker_that_returns_is_given_its_dataset_again_from_the_beginning(cluster, coordinator):
    dataset = coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(1, 1000))
    iterator = iter(dataset)
    cluster.kill("worker:1")

    def taken(count):
        # One after the other: of several, one that a lost worker had would come after the rest.
        return [int(coordinator.schedule(next, args=(iterator,)).fetch()) for _ in range(count)]

    assert taken(3) == [1, 2, 3]
    cluster.kill("worker:0")
    cluster.start("worker:0")
    assert taken(2) == [1, 2]
    coordinator.join()


def test_a_worker_that_was_cut_off_keeps_its_dataset(cluster, coordinator):
    iterator = iter(coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(1, 1000)))
    cluster.kill("worker:1")
    assert int(coordinator.schedule(next, args=(iterator,)).fetch()) == 1
    with cluster.paused("worker:0"):
        waiting = coordinator.schedule(next, args=(iterator,))
    assert int(waiting.fetch()) == 2
    coordinator.join()


def test_a_result_that_was_fetched_outlives_its_worker(cluster, coordinator):
    value = coordinator.schedule(double, args=(4,))
    assert value.fetch() == 8
    cluster.kill("worker:0")
    cluster.kill("worker:1")
    assert value.fetch() == 8
    cluster.start("worker:0")
    assert coordinator.schedule(double, args=(5,)).fetch() == 10


def test_all_workers_may_be_down_for_a_while(cluster, strategy, coordinator):
    with strategy.scope():
        v = jt.Variable(0.0)
    for _ in range(3):
        for _ in range(5):
            coordinator.schedule(lambda: v.assign_add(1.0))
        for task in ("worker:0", "worker:1"):
            cluster.kill(task)
        for task in ("worker:0", "worker:1"):
            cluster.start(task)
    coordinator.join()
    assert v.numpy() == 15.0


def test_an_error_of_a_function_is_raised_once_and_names_worker_and_line(cluster, coordinator):
    def divide(a, b):
        return a / b

    good = coordinator.schedule(double, args=(1,))
    assert good.fetch() == 2
    bad = coordinator.schedule(divide, args=(1, 0))
    with pytest.raises(ZeroDivisionError) as caught:
        coordinator.join()
    notes = "\n".join(caught.value.__notes__)
    assert "Raised on worker:" in notes
    assert "in divide" in notes
    with pytest.raises(ZeroDivisionError):
        bad.fetch()
    coordinator.join()
    assert coordinator.schedule(double, args=(2,)).fetch() == 4


def test_closures_that_wait_behind_an_error_are_cancelled(cluster, coordinator):
    for task in ("worker:0", "worker:1"):
        cluster.freeze(task)

    def fail():
        raise ValueError("bad data")

    bad = coordinator.schedule(fail)
    others = [coordinator.schedule(double, args=(n,)) for n in range(200)]
    for task in ("worker:0", "worker:1"):
        cluster.thaw(task)
    with pytest.raises(ValueError, match="bad data"):
        coordinator.join()
    with pytest.raises(ValueError, match="bad data"):
        bad.fetch()
    with pytest.raises(jt.errors.CancelledError):
        others[-1].fetch()
    assert coordinator.schedule(double, args=(3,)).fetch() == 6


def test_an_error_while_a_worker_restarts_is_the_functions_error(cluster, coordinator):
    cluster.freeze("worker:0")
    with cluster.paused("worker:1"):
        lost = coordinator.schedule(double, args=(1,))
        cluster.wait_until_frozen("worker:0")
        cluster.kill("worker:0")

    def fail():
        raise ValueError("bad data")

    coordinator.schedule(fail)
    cluster.start("worker:0")
    with pytest.raises(ValueError, match="bad data"):
        coordinator.join()
    assert lost.fetch() == 2
    assert coordinator.schedule(double, args=(3,)).fetch() == 6


def test_an_input_that_cannot_be_made_is_told_where_it_is_used(cluster, coordinator):
    def no_data():
        raise FileNotFoundError("no such data")

    unused = iter(coordinator.create_per_worker_dataset(no_data))
    coordinator.join()
    value = coordinator.schedule(next, args=(unused,))
    with pytest.raises(jt.errors.ClosureInputError, match="no such data"):
        coordinator.join()
    with pytest.raises(jt.errors.ClosureInputError):
        value.fetch()


def test_a_dataset_survives_the_error_of_a_function(cluster, coordinator):
    cluster.kill("worker:1")
    iterator = iter(coordinator.create_per_worker_dataset(lambda: jt.data.Dataset.range(1, 1000)))

    def take_and_fail(iterator):
        raise ValueError(int(next(iterator)))

    coordinator.schedule(take_and_fail, args=(iterator,))
    with pytest.raises(ValueError, match="1"):
        coordinator.join()
    assert int(coordinator.schedule(next, args=(iterator,)).fetch()) == 2


def test_a_coordinator_that_is_replaced_leaves_workers_and_servers_usable(cluster, coordinator):
    assert coordinator.schedule(double, args=(1,)).fetch() == 2
    strategy = cluster.strategy()
    second = cluster.coordinator(strategy)
    with strategy.scope():
        v = jt.Variable(5.0)
    assert second.schedule(lambda: v.read_value() + 1).fetch() == 6
    second.join()
