"""Workers and parameter servers as processes of their own: how they end, and what ends them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import jaxtribute as jt
from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.testing import ProcessCluster

pytestmark = pytest.mark.processes

SECONDS = 60.0


@pytest.fixture
def cluster():
    with ProcessCluster(workers=2, ps=1, environment={"JAXTRIBUTE_SILENCE_TIMEOUT": "3"}) as it:
        yield it


def until(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"Waited in vain for {what}."
        time.sleep(0.01)


def rest(path):
    Path(path).touch()
    time.sleep(600)


def told_to_end(cluster, task, number):
    """Send a signal to a task, and return its exit code; it may not write a traceback."""
    process = psutil.Process(cluster.pid(task))
    process.send_signal(number)
    code = process.wait(SECONDS)
    assert "Traceback" not in cluster.log(task)
    return code


def test_a_server_that_is_told_to_end_does_so_well(cluster):
    assert told_to_end(cluster, "worker:0", signal.SIGTERM) == 0
    assert told_to_end(cluster, "worker:1", signal.SIGINT) == 0
    assert told_to_end(cluster, "ps:0", signal.SIGTERM) == 0
    cluster.start("ps:0")
    assert told_to_end(cluster, "ps:0", signal.SIGINT) == 0


def test_a_function_that_runs_does_not_keep_a_worker_from_ending(cluster, tmp_path):
    coordinator = cluster.coordinator()
    reached = [tmp_path / "one", tmp_path / "two"]
    for path in reached:
        coordinator.schedule(rest, args=(str(path),))
    until(lambda: all(path.exists() for path in reached), "both functions to run")
    assert told_to_end(cluster, "worker:0", signal.SIGTERM) == 0
    assert told_to_end(cluster, "worker:1", signal.SIGINT) == 0


def test_a_killed_worker_loses_no_update_and_repeats_none(cluster):
    strategy = cluster.strategy()
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        v = jt.Variable(0.0)

    def step():
        v.assign_add(1.0)
        time.sleep(0.002)

    for task in ("worker:0", "worker:1", "worker:0"):
        for _ in range(200):
            coordinator.schedule(step)
        cluster.kill(task)
        cluster.start(task)
    coordinator.join()
    assert v.numpy() == 600.0


def test_a_worker_that_stood_still_takes_part_again(cluster, monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_SILENCE_TIMEOUT", "1")
    strategy = cluster.strategy()
    coordinator = cluster.coordinator(strategy)
    with strategy.scope():
        v = jt.Variable(0.0)

    def step():
        v.assign_add(1.0)
        return os.getpid()

    cluster.stop("worker:0")
    values = [coordinator.schedule(step) for _ in range(100)]
    coordinator.join()
    assert set(coordinator.fetch(values)) <= {cluster.pid("worker:0"), cluster.pid("worker:1")}
    cluster.cont("worker:0")
    seen = set()
    rounds = 0
    while cluster.pid("worker:0") not in seen:
        assert rounds < 1000
        rounds += 1
        seen |= set(coordinator.fetch([coordinator.schedule(step) for _ in range(20)]))
    coordinator.join()
    assert v.numpy() == 100 + 20 * rounds
    assert "worker:0 listens on 127.0.0.1:" in cluster.log("worker:0")
    assert "works for a coordinator" in cluster.log("worker:1")
    cluster.assert_quiescent()


def test_a_parameter_server_takes_no_accelerator():
    program = (
        "import jax, jaxtribute as jt;"
        f"server = jt.Server({{'ps': ['127.0.0.1:{free_ports(1)[0]}']}});"
        "print(jax.config.jax_platforms);"
        "server.stop()"
    )
    variables = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables | {"JAXTRIBUTE_CLUSTER_KEY": "00" * 32},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout == "cpu\n"


def test_processes_do_not_outlive_the_test_that_started_them(tmp_path):
    program = tmp_path / "test_and_die.py"
    program.write_text(
        "import os, signal\n"
        "from jaxtribute.testing import ProcessCluster\n"
        "cluster = ProcessCluster(workers=1, ps=1).__enter__()\n"
        "print(cluster.pid('worker:0'), cluster.pid('ps:0'), flush=True)\n"
        "cluster.stop('worker:0')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=SECONDS
    )
    pids = [int(pid) for pid in died.stdout.split()]
    assert len(pids) == 2, died.stderr
    until(lambda: not any(map(psutil.pid_exists, pids)), "the end of all processes")


def test_what_tasks_wrote_is_shown_when_a_test_fails(capsys):
    with pytest.raises(ZeroDivisionError), ProcessCluster(workers=1, ps=1):
        1 / 0  # noqa: B018
    shown = capsys.readouterr().err
    assert "worker:0, which runs, has written:" in shown
    assert "ps:0 listens on" in shown
