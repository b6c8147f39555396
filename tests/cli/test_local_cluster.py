"""What each process of a local cluster is given."""

import json
import os
import socket
from pathlib import Path

import pytest

from jaxtribute.cli import _local_cluster
from jaxtribute.cli._local_cluster import (
    LocalCluster,
    server_thread_counts,
    task_names,
    tf_config,
    thread_counts,
)
from jaxtribute.cluster._this_machine import free_ports

TWO = task_names(2)


def cluster(**changes):
    fields = {
        "workers": 2,
        "devices_per_worker": None,
        "cores": 8,
        "cluster_key": "secret",
        "status_socket": "/run/status",
    }
    return LocalCluster(**(fields | changes))


def test_ports_are_free_and_distinct():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))


def test_ports_are_none_that_a_connection_might_take_before_they_are_used():
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given_away.exists():
        pytest.skip("Only Linux tells which ports it gives away.")
    first, last = map(int, given_away.read_text().split())
    if first < 11_000:
        pytest.skip(f"This system gives all ports away, from {first} to {last}.")
    assert not set(free_ports(20)) & set(range(first, last + 1))


def test_tf_config_is_that_of_one_task():
    assert json.loads(tf_config(TWO, [5000, 5001], 1)) == {
        "cluster": {"worker": ["127.0.0.1:5000", "127.0.0.1:5001"]},
        "task": {"type": "worker", "index": 1},
    }


def test_tf_config_of_a_cluster_with_servers():
    tasks = task_names(2, 1)
    assert tasks == ["chief:0", "worker:0", "worker:1", "ps:0"]
    config = [json.loads(tf_config(tasks, [1, 2, 3, 4], index)) for index in range(4)]
    assert config[0]["cluster"] == {
        "chief": ["127.0.0.1:1"],
        "worker": ["127.0.0.1:2", "127.0.0.1:3"],
        "ps": ["127.0.0.1:4"],
    }
    assert [c["cluster"] == config[0]["cluster"] for c in config] == [True] * 4
    assert [f"{c['task']['type']}:{c['task']['index']}" for c in config] == tasks


@pytest.mark.parametrize(
    ("cores", "workers", "servers", "worker", "server"),
    [
        (2, 2, 2, 1, 1),  # fewer cores than tasks
        (8, 2, 1, 3, 1),
        (8, 2, 2, 3, 1),
        (16, 2, 2, 6, 2),
        (64, 2, 2, 24, 8),
        (64, 1, 8, 24, 5),
    ],
)
def test_workers_get_more_cores_than_servers(cores, workers, servers, worker, server):
    assert server_thread_counts(cores, workers, servers) == (worker, server)
    assert workers * worker + servers * server <= max(cores, workers + servers)


class TestWithServers:
    def environments(self, base=None, **changes):
        fields = {"servers": 1, "module_path": "/project", "cores": 8, "cluster_key": ""}
        described = cluster(**(fields | changes))
        return {
            task: described.environment(base or {}, [1, 2, 3, 4], index, restarts=0)
            for index, task in enumerate(described.tasks)
        }

    def test_threads_are_those_of_the_role(self):
        threads = {t: e["OMP_NUM_THREADS"] for t, e in self.environments().items()}
        assert threads == {"chief:0": "1", "worker:0": "3", "worker:1": "3", "ps:0": "1"}

    def test_a_server_does_not_get_the_devices_of_a_worker(self):
        environments = self.environments(devices_per_worker=2)
        devices = {t: e.get("JAX_NUM_CPU_DEVICES") for t, e in environments.items()}
        assert devices == {"chief:0": "2", "worker:0": "2", "worker:1": "2", "ps:0": None}
        assert environments["worker:0"]["PJRT_NPROC"] == "8"

    def test_those_that_do_not_run_the_script_find_its_modules(self):
        paths = {t: e.get("PYTHONPATH") for t, e in self.environments().items()}
        assert paths == {
            "chief:0": None,
            "worker:0": "/project",
            "worker:1": "/project",
            "ps:0": "/project",
        }
        inherited = self.environments({"PYTHONPATH": "/mine"})
        assert inherited["chief:0"]["PYTHONPATH"] == "/mine"
        assert inherited["ps:0"]["PYTHONPATH"] == f"/project{os.pathsep}/mine"

    def test_the_key_is_the_users_own(self):
        assert "JAXTRIBUTE_CLUSTER_KEY" not in self.environments()["ps:0"]


@pytest.mark.parametrize(
    ("cores", "workers", "devices", "pool", "libraries"),
    [
        (8, 2, 1, "4", "4"),
        (8, 3, 1, "4", "2"),  # the smallest pool
        (2, 4, 1, "4", "1"),  # more workers than cores
        (2, 2, 2, "8", "1"),  # a smaller pool deadlocks
        (2, 2, 4, "16", "1"),
        (64, 2, 2, "32", "32"),
    ],
)
def test_threads_divide_the_cores(cores, workers, devices, pool, libraries):
    assert thread_counts(cores, workers, devices) == {
        "PJRT_NPROC": pool,
        "JAXTRIBUTE_PJRT_NPROC": pool,
        "OMP_NUM_THREADS": libraries,
        "OPENBLAS_NUM_THREADS": libraries,
        "MKL_NUM_THREADS": libraries,
    }


def test_a_task_gets_its_place_and_keeps_the_rest():
    environment = cluster().environment({"HOME": "/home/me"}, [1, 2], index=1, restarts=3)
    assert environment == {
        "HOME": "/home/me",
        "TF_CONFIG": tf_config(TWO, [1, 2], 1),
        "JAXTRIBUTE_CLUSTER_KEY": "secret",
        "JAXTRIBUTE_STATUS_SOCKET": "/run/status",
        "JAXTRIBUTE_RESTART_COUNT": "3",
        "PYTHONUNBUFFERED": "1",
        **thread_counts(8, 2, 1),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PJRT_NPROC", "3"),
        ("OMP_NUM_THREADS", "7"),
        ("JAXTRIBUTE_CLUSTER_KEY", "mine"),
        ("JAX_NUM_CPU_DEVICES", "5"),
        ("PYTHONUNBUFFERED", ""),
    ],
)
def test_what_the_user_set_stays(name, value):
    assert cluster().environment({name: value}, [1, 2], 0, 0)[name] == value


def test_what_belongs_to_another_job_does_not_stay():
    base = {
        "TF_CONFIG": "{}",
        "JAXTRIBUTE_STATUS_SOCKET": "/other",
        "JAXTRIBUTE_RESTART_COUNT": "9",
    }
    environment = cluster().environment(base, [1, 2], 0, 0)
    assert environment["TF_CONFIG"] == tf_config(TWO, [1, 2], 0)
    assert environment["JAXTRIBUTE_STATUS_SOCKET"] == "/run/status"
    assert environment["JAXTRIBUTE_RESTART_COUNT"] == "0"


def test_an_option_is_stronger_than_the_environment():
    base = {"JAX_NUM_CPU_DEVICES": "5"}
    environment = cluster(devices_per_worker=2).environment(base, [1, 2], 0, 0)
    assert environment["JAX_NUM_CPU_DEVICES"] == "2"
    assert environment["PJRT_NPROC"] == "8"


@pytest.mark.parametrize(
    "base",
    [
        {"JAX_NUM_CPU_DEVICES": "4"},
        {"XLA_FLAGS": "--xla_foo --xla_force_host_platform_device_count=4"},
    ],
)
def test_devices_asked_for_in_the_environment_get_threads(base):
    assert cluster().environment(base, [1, 2], 0, 0)["PJRT_NPROC"] == "16"


def test_a_proxy_is_not_asked_for_the_other_workers():
    base = {"https_proxy": "http://proxy", "no_proxy": "example.org"}
    environment = cluster().environment(base, [1, 2], 0, 0)
    assert environment["no_proxy"] == "example.org,127.0.0.1,localhost"
    assert environment["https_proxy"] == "http://proxy"
    assert "no_proxy" not in cluster().environment({}, [1, 2], 0, 0)


def test_cores_are_those_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(allowed)])
    try:
        assert _local_cluster.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_an_evaluator_is_beside_the_cluster():
    cluster = LocalCluster(2, None, 8, "", "/status", servers=1, module_path="/program")
    environment = cluster.evaluator_environment({}, [1, 2, 3, 4], restarts=2)
    config = json.loads(environment["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert sorted(config["cluster"]) == ["chief", "ps", "worker"]
    assert environment["JAXTRIBUTE_RESTART_COUNT"] == "2"
    assert "PYTHONPATH" not in environment  # it runs the script itself
    worker = cluster.environment({}, [1, 2, 3, 4], index=1, restarts=0)
    assert json.loads(worker["TF_CONFIG"])["cluster"] == config["cluster"]
    assert int(environment["PJRT_NPROC"]) < int(worker["PJRT_NPROC"])
