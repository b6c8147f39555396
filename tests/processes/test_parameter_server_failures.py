"""Workers that are killed, stopped, slow or given functions that fail; and strangers."""

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

import jaxtribute as jt
from jaxtribute import errors, ps
from jaxtribute.cluster._address import Address
from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.coordinator._queue import STRIKES
from jaxtribute.rpc import Channel, ClusterKey, exchange
from jaxtribute.rpc._endpoints import unix_socket
from jaxtribute.testing import ProcessCluster
from tests.processes._parameter_server import (
    SECONDS,
    SILENCE,
    Chief,
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


@pytest.fixture(scope="module")
def shared():
    """A cluster for tests that end none of its processes."""
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


def test_a_worker_that_is_told_to_end_leaves_nothing_undone_and_nothing_behind(cluster, counting):
    counting.schedule_many(400, 0.002)
    sockets = [
        unix_socket(Address.parse(cluster.spec.task_address(*task)), ClusterKey.load())
        for task in (("worker", 0), ("ps", 1))
    ]
    assert all(path.exists() for path in sockets)
    assert cluster.terminate("worker:0") == 0
    counting.check()
    assert cluster.terminate("ps:1") == 0
    counting.schedule_many(1)
    with pytest.raises(errors.PSUnavailableError, match="ps:1"):
        counting.coordinator.join()
    assert not any(path.exists() for path in sockets)


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


def test_a_worker_that_stood_still_does_not_count_again_what_others_did(shared, tmp_path, silence):
    with Counting(shared) as counting:
        late_before = ask(shared, "ps:1").repeated_updates
        value = counting.schedule(hold, str(tmp_path))
        still = until_held(tmp_path)
        with shared.paused(task_of(shared, still)):
            (tmp_path / "go").touch()
            counting.schedule_many(100, 0.001)
            assert value.fetch()[0] != still
            counting.check()
        until(lambda: ask(shared, "ps:1").repeated_updates > late_before, "the late update")
        counting.check()
        counting.until_run_by(still)
        counting.check()
        shared.assert_quiescent()


def test_others_do_the_work_of_a_slow_worker(shared, tmp_path):
    with Counting(shared) as counting:
        held = counting.schedule(hold, str(tmp_path))
        slow = until_held(tmp_path)
        others = counting.schedule_many(300, 0.001)
        counting.coordinator.fetch(others)  # also those that the slow one was given
        (tmp_path / "go").touch()
        assert held.fetch()[0] == slow
        counting.check()


class TestErrorsOfFunctions:
    def test_tell_where_they_came_from_cancel_the_rest_and_are_over(self, shared, tmp_path):
        def divide_by_nothing(directory):
            hold(directory)
            return 1 // 0

        with Counting(shared) as counting:
            failing = [counting.schedule(divide_by_nothing, str(tmp_path)) for _ in range(2)]
            waiting = counting.schedule_many(50)
            until_held(tmp_path)
            (tmp_path / "go").touch()
            with pytest.raises(ZeroDivisionError) as info:
                counting.coordinator.join()
            (note,) = info.value.__notes__
            assert note.startswith("Raised on worker:")
            assert "in divide_by_nothing" in note
            with pytest.raises(ZeroDivisionError):
                failing[0].fetch()
            with pytest.raises(errors.CancelledError, match="another scheduled function"):
                counting.coordinator.fetch(waiting)
            assert counting.counted()[0] == counting.counted()[1] < 50
            before = counting.counted()[0]
            counting.schedule_many(10)
            counting.coordinator.join()
            assert counting.counted() == [before + 10] * 2

    def test_of_what_is_made_on_workers_concern_only_those_who_use_it(self, shared):
        with Counting(shared) as counting:
            coordinator = counting.coordinator

            def fail():
                raise OSError("no such file")

            broken = coordinator.create_per_worker_values(fail)
            numbers = iter(coordinator.create_per_worker_dataset(jt.data.Dataset.range(1000)))
            first = coordinator.schedule(next, args=(numbers,))
            coordinator.join()
            value = coordinator.schedule(lambda it: it, args=(broken,))
            with pytest.raises(errors.ClosureInputError, match="no such file"):
                coordinator.join()
            with pytest.raises(errors.ClosureInputError, match="no such file"):
                value.fetch()
            # What another function uses has survived.
            later = [coordinator.schedule(next, args=(numbers,)) for _ in range(10)]
            assert first.fetch() == 0
            assert sum(coordinator.fetch(later)) > 0
            coordinator.join()
            counting.schedule_many(5)
            counting.check()

    @pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt], ids=lambda e: e.__name__)
    def test_that_would_end_a_process_do_not_end_a_worker(self, shared, ending):
        with Counting(shared) as counting:

            def end():
                raise ending("enough")

            counting.schedule(end)
            with pytest.raises(RuntimeError, match=f"{ending.__name__}: enough"):
                counting.coordinator.join()
            counting.schedule_many(5)
            counting.check(missing=1)


class TestWhoMayConnect:
    @pytest.mark.parametrize("task", ["worker:0", "ps:0"])
    @pytest.mark.parametrize("way", ["ipc", "tcp"])
    def test_nobody_with_another_key(self, shared, task, way, monkeypatch):
        job, _, index = task.partition(":")
        address = shared.spec.task_address(job, int(index))
        if way == "tcp":
            monkeypatch.setattr("jaxtribute.rpc._endpoints.unix_socket", lambda *args: None)
        stranger = Channel(address, task, "chief", ClusterKey(b"not theirs"), ps.ServerStatus)
        try:
            with pytest.raises((errors.UnauthenticatedError, errors.UnavailableError)) as info:
                exchange([(stranger, ps.Status(), ())], what="its status", patience=2.0)
        finally:
            stranger.close()
        assert "cluster key" in str(info.value)

    def test_nobody_whose_bytes_are_no_messages(self, shared):
        for job, index in (("worker", 0), ("ps", 0)):
            host, _, port = shared.spec.task_address(job, index).partition(":")
            with socket.create_connection((host, int(port)), 10) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(100_000))
                stranger.settimeout(30)
                with suppress(ConnectionResetError):
                    while stranger.recv(4096):  # until it is shown the door
                        pass

    def test_and_then_the_cluster_works_on(self, shared):
        with Counting(shared) as counting:
            counting.schedule_many(20)
            counting.check()

    def test_a_chief_with_another_key_is_told_so(self, shared, tmp_path, monkeypatch):
        monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "another key " * 4)
        monkeypatch.setenv("JAXTRIBUTE_JOIN_TIMEOUT", "2")
        program = """
            import jaxtribute as jt
            jt.ParameterServerStrategy(jt.cluster_resolver.TFConfigClusterResolver())
        """
        with Chief(shared, tmp_path, program) as chief:
            chief.start()
            assert chief.wait() == 1
            assert "cluster key" in chief.written.splitlines()[-1]

    @pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
    def test_a_server_needs_a_key_where_other_machines_reach_it(self, tmp_path, host):
        variables = {k: v for k, v in os.environ.items() if k != "JAXTRIBUTE_CLUSTER_KEY"}
        (port,) = free_ports(1)
        program = f"import jaxtribute as jt; jt.Server({{'ps': ['{host}:{port}']}}).join()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=variables | {"XDG_CONFIG_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith("jaxtribute.errors.FailedPreconditionError: ")
        assert "Set JAXTRIBUTE_CLUSTER_KEY" in last
        assert not list(tmp_path.iterdir())  # no key was made that nobody else has
