"""A cluster inside the test's process: what it promises to tests."""

import os
import threading
import time

import pytest

import jaxtribute as jt
from jaxtribute.testing import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster(workers=2, ps=1) as cluster:
        yield cluster
        cluster.assert_quiescent()


def double(x):
    return 2 * x


def test_functions_run_on_its_workers(cluster):
    coordinator = cluster.coordinator()
    values = [coordinator.schedule(double, args=(n,)) for n in range(20)]
    coordinator.join()
    assert coordinator.fetch(values) == [2 * n for n in range(20)]


def test_variables_live_on_its_servers(cluster):
    strategy = cluster.strategy()
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        v = jt.Variable(0.0)
    for _ in range(20):
        coordinator.schedule(lambda: v.assign_add(1.0))
    coordinator.join()
    assert v.numpy() == 20.0


def test_a_strategy_made_by_hand_finds_the_key(cluster):
    strategy = jt.experimental.ParameterServerStrategy(cluster.resolver)
    coordinator = cluster.coordinator(strategy)
    assert coordinator.schedule(double, args=(4,)).fetch() == 8


def test_the_description_of_the_cluster(cluster):
    assert cluster.tasks == ["worker:0", "worker:1", "ps:0"]
    assert cluster.resolver.task_type == "chief"
    assert cluster.spec.num_tasks("worker") == 2


def test_nothing_is_left_behind():
    threads, variables = set(threading.enumerate()), dict(os.environ)
    with LocalCluster(workers=1, ps=1) as cluster:
        cluster.coordinator().schedule(double, args=(1,)).fetch()
        assert len(threading.enumerate()) > len(threads)
    assert {t for t in threading.enumerate() if not t.name.startswith("Dummy-")} <= threads
    assert dict(os.environ) == variables


def test_nothing_is_left_behind_by_a_test_that_fails():
    threads = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), LocalCluster(workers=1, ps=1) as cluster:
        cluster.coordinator()
        cluster.freeze("worker:0")
        1 / 0  # noqa: B018
    assert {t for t in threading.enumerate() if not t.name.startswith("Dummy-")} <= threads


@pytest.mark.parametrize(
    ("call", "text"),
    [
        pytest.param(lambda c: c.kill("worker:7"), "worker:0, worker:1, ps:0", id="unknown"),
        pytest.param(lambda c: c.start("ps:0"), "runs already", id="runs"),
        pytest.param(lambda c: c.freeze("worker:0", at="noon"), "execute, report", id="point"),
    ],
)
def test_a_test_that_asks_for_the_impossible_is_told_so(cluster, call, text):
    with pytest.raises(ValueError, match=text):
        call(cluster)


def test_a_task_that_was_killed_is_gone_until_it_is_started(cluster):
    cluster.kill("worker:0")
    with pytest.raises(ValueError, match="does not run"):
        cluster.kill("worker:0")
    with pytest.raises(jt.errors.UnavailableError):
        cluster.status("worker:0", seconds=0.2)
    cluster.start("worker:0")
    assert cluster.status("worker:0").finished == 0


def test_work_that_does_not_end_is_no_quiescence(cluster):
    coordinator = cluster.coordinator()
    for task in ("worker:0", "worker:1"):
        cluster.freeze(task)
    value = coordinator.schedule(double, args=(1,))
    deadline = time.monotonic() + 30
    while all(cluster.status(task).running < 0 for task in ("worker:0", "worker:1")):
        assert time.monotonic() < deadline, "no worker was given the closure"
    with pytest.raises(AssertionError, match=r"worker:[01] runs 0"):
        cluster.assert_quiescent(seconds=0.5)
    for task in ("worker:0", "worker:1"):
        cluster.thaw(task)
    assert value.fetch() == 2


@pytest.mark.parametrize("sizes", [{"workers": 0}, {"ps": 0}], ids=str)
def test_a_cluster_needs_workers_and_servers(sizes):
    with pytest.raises(ValueError, match="at least one"):
        LocalCluster(**sizes)
