"""`jaxtribute server` in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.processes._servers import SECONDS, Servers

pytestmark = pytest.mark.processes


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, workers=1, ps=1) as servers:
        yield servers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_serves_until_it_is_asked_to_end(servers, number):
    for task in ("worker:0", "ps:0"):
        servers.start(task)
    for task in ("worker:0", "ps:0"):
        servers.until_listening(task)
        servers[task].send_signal(number)
    for task in ("worker:0", "ps:0"):
        assert servers[task].wait(SECONDS) == 0
        assert "Traceback" not in servers.written(task)


def test_may_be_told_its_task(servers):
    servers.start("ps:0", "--job", "worker", "--no-encryption")
    servers.until_written("ps:0", "worker:0 listens on")
    assert "not encrypted" in servers.written("ps:0")


def test_says_what_keeps_it_from_serving(servers):
    host, port = servers.addresses["ps:0"].split(":")
    with socket.create_server((host, int(port))):
        servers.start("ps:0")
        assert servers["ps:0"].wait(SECONDS) == 1
    written = servers.written("ps:0")
    assert f"Error: ps:0: ps:0 cannot listen on {host}:{port}: port {port} is in use" in written
    assert "Traceback" not in written


def test_needs_a_cluster(tmp_path):
    variables = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    for config, said in (
        (None, "TF_CONFIG is not set"),
        ({"cluster": {"chief": ["c:1"], "ps": ["p:1"]}, "task": {"type": "chief"}}, "is the chief"),
    ):
        environment = {} if config is None else {"TF_CONFIG": json.dumps(config)}
        done = subprocess.run(
            [sys.executable, "-m", "jaxtribute.cli", "server"],
            env=variables | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
