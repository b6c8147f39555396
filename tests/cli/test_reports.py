"""What a process tells its launcher."""

import json
import os
import socket
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute import _job
from tests._interpreter import STRICT_PYTHON


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """The socket a launcher listens on."""
    path = tmp_path / "status"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)
        monkeypatch.setenv("JAXTRIBUTE_STATUS_SOCKET", str(path))
        monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "worker", "index": 3}}')
        yield listener
    monkeypatch.delenv("JAXTRIBUTE_STATUS_SOCKET")
    _job.report()  # gives up its socket


def received(listener):
    reports = []
    while True:
        try:
            reports.append(json.loads(listener.recv(65536)))
        except BlockingIOError:
            return reports


def test_a_report_carries_the_task(launcher):
    _job.report(phase="compiling")
    assert received(launcher) == [{"task": "worker:3", "phase": "compiling"}]


def test_progress_carries_numbers(launcher):
    _job.report_progress(np.int64(5), total=9, loss=jnp.float32(0.5), accuracy=np.ones(()))
    assert received(launcher) == [
        {
            "task": "worker:3",
            "phase": "training",
            "step": 5,
            "total": 9,
            "metrics": {"loss": 0.5, "accuracy": 1.0},
        }
    ]


def test_not_every_step_is_sent_and_the_last_one_is(launcher):
    for step in range(1, 1001):
        _job.report_progress(step, total=1000)
    steps = [report["step"] for report in received(launcher)]
    assert steps[0] == 1
    assert steps[-1] == 1000
    assert len(steps) < 100


def test_a_metric_that_is_no_number_is_named(launcher):
    with pytest.raises(TypeError, match=r"'loss' must be a number.*'low'"):
        _job.report_progress(1, loss="low")


def test_nothing_is_sent_where_nobody_listens(monkeypatch):
    monkeypatch.delenv("JAXTRIBUTE_STATUS_SOCKET", raising=False)
    _job.report(phase="compiling")
    _job.report_progress(1, loss=0.5)


def test_a_launcher_that_does_not_read_is_not_waited_for(launcher):
    for number in range(10_000):
        _job.report(step=number)
    assert len(received(launcher)) < 10_000


def test_a_launcher_that_is_gone_is_given_up(launcher):
    _job.report(step=1)
    path = launcher.getsockname()
    launcher.close()
    _job.report(step=2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        # Not even if somebody else comes by the same name.
        other.bind(path + "2")
        other.setblocking(False)
        os.replace(path + "2", path)
        _job.report(step=3)
        assert received(other) == []


def test_a_launcher_that_was_gone_before_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_STATUS_SOCKET", str(tmp_path / "missing"))
    _job.report(step=1)
    _job.report_progress(1)
    monkeypatch.delenv("JAXTRIBUTE_STATUS_SOCKET")
    _job.report()


def test_the_socket_is_closed_when_the_program_ends(launcher):
    program = "from jaxtribute import _job; _job.report(phase='compiling')"
    ran = subprocess.run([*STRICT_PYTHON, "-c", program], capture_output=True, check=True)
    assert received(launcher) == [{"task": "worker:3", "phase": "compiling"}]
    assert ran.stderr == b""
