"""Workers and parameter servers on a real Ray cluster."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import ray

import jaxtribute as jt
from jaxtribute.cluster._address import Address
from jaxtribute.ray._actors import ServingTask

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("cluster")]

SECONDS = 60.0


def test_a_killed_worker_comes_back_and_no_update_is_lost_or_made_twice():
    with jt.ray.RayClusterResolver(workers=2, ps=1) as resolver:
        spec = resolver.cluster_spec()
        strategy = jt.ParameterServerStrategy(resolver)
        coordinator = jt.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            count = jt.Variable(0.0)

        def step():
            count.assign_add(1.0)
            time.sleep(0.01)  # so that both get some
            return os.getpid()

        results = [coordinator.schedule(step) for _ in range(100)]
        before = _both(coordinator)
        victim = results[0].fetch()
        assert victim in before
        os.kill(victim, signal.SIGKILL)
        results += [coordinator.schedule(step) for _ in range(100)]
        coordinator.join()
        assert count.numpy() == 200.0
        after = _both(coordinator)
        assert victim not in after and before & after
        assert resolver.cluster_spec() == spec
        coordinator.close()


def _both(coordinator) -> set[int]:
    """Wait until both workers work, and return their processes."""

    def who():
        time.sleep(0.01)
        return os.getpid()

    deadline = time.monotonic() + SECONDS
    while True:
        found = {each.fetch() for each in [coordinator.schedule(who) for _ in range(10)]}
        if len(found) == 2:
            return found
        assert time.monotonic() < deadline, "One of the workers does not come back."


def test_a_killed_server_is_restored_from_its_snapshot(tmp_path):
    with jt.ray.RayClusterResolver(workers=1, ps=1) as resolver:
        strategy = jt.ParameterServerStrategy(resolver)
        policy = jt.experimental.coordinator.RestorePolicy(tmp_path, every_seconds=0.1)
        coordinator = jt.coordinator.ClusterCoordinator(strategy, restore_policy=policy)
        with strategy.scope():
            v = jt.Variable(1.0)
        coordinator.schedule(lambda: v.assign(7.0))
        coordinator.join()
        _wait_for_snapshots(tmp_path / "ps-0", lambda: v.assign(7.0))
        os.kill(_pid_at(resolver.master("ps", 0)), signal.SIGKILL)
        for _ in range(5):
            coordinator.schedule(lambda: v.assign_add(1.0))
        coordinator.join()
        assert v.numpy() == 12.0
        coordinator.close()


def test_it_tells_where_the_tasks_are_inside_of_its_block_only(monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "of the user, and long enough")
    resolver = jt.ray.RayClusterResolver(
        workers=1, ps=2, resources_per_worker={"GPU": 2}, ports=range(21000, 21500)
    )
    with pytest.raises(jt.errors.FailedPreconditionError, match="inside its `with` block only"):
        resolver.cluster_spec()
    with resolver:
        spec = resolver.cluster_spec()
        assert sorted(spec.jobs) == ["ps", "worker"] and spec.num_tasks("ps") == 2
        addresses = [Address.parse(a) for job in spec.jobs for a in spec.job_tasks(job)]
        assert {address.host for address in addresses} == {ray.util.get_node_ip_address()}
        ports = {address.port for address in addresses}
        assert len(ports) == 3 and all(21000 <= port < 21500 for port in ports)
        assert resolver.master("ps", 1) == spec.task_address("ps", 1)
        assert resolver.num_accelerators("worker", 0) == {"GPU": 2}
        with pytest.raises(jt.errors.FailedPreconditionError, match="has a cluster already"):
            resolver.__enter__()
        assert os.environ["JAXTRIBUTE_CLUSTER_KEY"] == "of the user, and long enough"
    with pytest.raises(jt.errors.FailedPreconditionError, match="inside its `with` block only"):
        resolver.master("ps", 1)


def test_a_task_that_cannot_serve_is_named_and_nothing_stays():
    resolver = jt.ray.RayClusterResolver(
        workers=1, ps=1, environment={"JAXTRIBUTE_SILENCE_TIMEOUT": "soon"}
    )
    with (
        pytest.raises(jt.errors.UnavailableError, match=r"cannot serve\. .* got 'soon'"),
        resolver,
    ):
        pass
    assert "JAXTRIBUTE_CLUSTER_KEY" not in os.environ


def test_a_key_that_can_be_guessed_is_refused_here(monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_CLUSTER_KEY", "short")
    with (
        pytest.raises(jt.errors.InvalidArgumentError, match="has 5 characters, which can be"),
        jt.ray.RayClusterResolver(workers=1, ps=1),
    ):
        pass
    with pytest.raises(jt.errors.InvalidArgumentError, match="has 5 characters, which can be"):
        jt.ray.run(os.getpid)


def test_a_task_that_comes_back_on_another_node_says_that_it_cannot_go_on():
    cluster = {"worker": ["192.0.2.77:2222"], "ps": ["192.0.2.77:2223"]}
    with pytest.raises(
        jt.errors.FailedPreconditionError,
        match=r"ps:0 was on the node 192.*, which is gone",
    ):
        ServingTask(cluster, "ps", 0, {})


def test_too_much_is_refused_with_what_there_is():
    with (
        pytest.raises(
            jt.errors.ResourceExhaustedError,
            match=r"2 workers with 2 CPU, 2 GPU each and 1 ps with 1 CPU .* has 4 CPU, 2 GPU; free",
        ),
        jt.ray.RayClusterResolver(resources_per_worker={"CPU": 2, "GPU": 2}, timeout_seconds=0.5),
    ):
        pass


def _wait_for_snapshots(folder: Path, change: Callable[[], object]) -> None:
    """Wait until a snapshot is complete that was begun after now."""
    before = set(folder.glob("?" * 12))
    found = set(before)
    deadline = time.monotonic() + SECONDS
    while len(found - before) < 2:  # the first may have been begun already
        change()  # a server to which nothing happens writes none
        found |= set(folder.glob("?" * 12))
        assert time.monotonic() < deadline, "No snapshots are written."


def _pid_at(address: str) -> int:
    """Return the process that listens at an address of this machine."""
    port = Address.parse(address).port
    (pid,) = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    return pid
