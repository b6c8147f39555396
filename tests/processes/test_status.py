"""`jaxtribute status` of a cluster that runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.processes._servers import SECONDS, Servers

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A worker and a parameter server that nobody coordinates."""
    with Servers(tmp_path_factory.mktemp("servers"), workers=1, ps=1) as servers:
        servers.start_all()
        yield servers


def status(servers, *options, cluster=None, **environment):
    """Run the command, and return its exit code and what it wrote."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jaxtribute.cli", "status"),
            *("--cluster", json.dumps(cluster or servers.cluster)),
            *options,
        ],
        env=servers.environment(**environment),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_the_table_once(servers):
    code, text = status(servers, "--once")
    assert code == 0
    first, *lines = text.splitlines()
    assert first.startswith("2 of 2 tasks up; no coordinator; 0 variables of 0 B, 0 updates/s")
    tasks = {line.split()[0]: line.split()[1:3] for line in lines if ":" in line}
    assert tasks == {task: [address, "up"] for task, address in servers.addresses.items()}


def test_for_programs(servers):
    code, text = status(servers, "--json", "--interval", "0.2")
    assert code == 0
    values = json.loads(text)
    assert values["cluster"]["up"] == 2
    (worker,), (server,) = values["workers"], values["servers"]
    assert (worker["task"], worker["state"]) == ("worker:0", "up")
    assert worker["closures_per_second"] == 0
    assert (server["task"], server["state"], server["variables"]) == ("ps:0", "up", 0)
    assert server["updates_per_second"] == 0
    assert server["seconds"] > 0


def test_the_cluster_may_come_from_the_environment(servers):
    done = subprocess.run(
        [sys.executable, "-m", "jaxtribute.cli", "status", "--json"],
        env=servers.environment(TF_CONFIG=json.dumps({"cluster": servers.cluster})),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert json.loads(done.stdout)["cluster"]["up"] == 2


def test_one_that_is_stopped_is_down_and_the_others_are_not(servers):
    servers["ps:0"].send_signal(signal.SIGSTOP)
    try:
        code, text = status(servers, "--json")
    finally:
        servers["ps:0"].send_signal(signal.SIGCONT)
    assert code == 0
    values = json.loads(text)
    assert values["cluster"]["up"] == 1
    assert values["workers"][0]["state"] == "up"
    assert values["servers"][0]["state"] == "down"
    assert values["servers"][0]["why"]
    # And up again once it goes on.
    code, text = status(servers, "--json")
    assert json.loads(text)["cluster"]["up"] == 2


def test_one_that_does_not_run_is_down(servers):
    with socket.socket() as bound:  # and nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        missing = f"127.0.0.1:{bound.getsockname()[1]}"
        code, text = status(servers, "--once", cluster={"worker": [missing]})
    assert code == 1
    assert "0 of 1 task up" in text
    assert "worker:0 is down: " in text


def test_something_else_that_listens_there_is_down_and_not_waited_for(servers):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        began = time.monotonic()
        code, text = status(servers, "--once", cluster={"ps": [address]})
        assert time.monotonic() - began < SECONDS / 2
    assert code == 1
    assert "ps:0 is down: " in text


def test_a_wrong_key_is_said_to_be_wrong(servers):
    code, text = status(servers, "--once", JAXTRIBUTE_CLUSTER_KEY="cd" * 32)
    assert code == 1
    for task in ("worker:0", "ps:0"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{task} is down: ")]
        assert "key" in line


def test_is_shown_again_and_again_until_ctrl_c(servers, tmp_path):
    with (tmp_path / "out").open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jaxtribute.cli", "status", "--interval", "0.1"),
                *("--cluster", json.dumps(servers.cluster)),
            ],
            env=servers.environment(PYTHONUNBUFFERED="1"),
            stdout=file,
            stderr=file,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while (tmp_path / "out").read_text().count("2 of 2 tasks up") < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (tmp_path / "out").read_text()
