"""Programs that coordinate: how they end, and functions that end their workers."""

import signal
import subprocess
import sys
import textwrap

import pytest

from jaxtribute.coordinator._queue import STRIKES

pytestmark = pytest.mark.processes

BEGIN = """
import os, signal, threading, time
import jaxtribute as jt
from jaxtribute.testing import ProcessCluster

def wait():
    time.sleep(100)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with ProcessCluster(workers={workers}, ps=1) as cluster:
        strategy = cluster.strategy()
        coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
"""


def start(tmp_path, body, workers=1):
    script = tmp_path / "program.py"
    script.write_text(
        BEGIN.format(workers=workers) + textwrap.indent(textwrap.dedent(body), " " * 8)
    )
    return subprocess.Popen(
        [sys.executable, "-X", "dev", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(program):
    try:
        return program.communicate(timeout=100)
    finally:
        program.kill()
        program.wait()


def test_a_program_that_just_ends_ends_well(tmp_path):
    program = start(tmp_path, "print(coordinator.schedule(lambda: 6 * 7).fetch())")
    out, err = finish(program)
    assert (program.returncode, out) == (0, "42\n"), err
    assert "Traceback" not in err
    assert "ResourceWarning" not in err


def test_a_join_can_be_interrupted(tmp_path):
    program = start(
        tmp_path,
        """
        def tell():
            while not coordinator._dispatcher.closures._joining:
                time.sleep(0.005)
            print("waiting", flush=True)

        coordinator.schedule(wait)
        threading.Thread(target=tell).start()
        coordinator.join()
        """,
    )
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(signal.SIGINT)
    _, err = finish(program)
    assert program.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err


@pytest.mark.slow
def test_a_function_that_ends_its_workers_is_reported(tmp_path):
    program = start(
        tmp_path,
        """
        values = [coordinator.schedule(lambda i=i: i) for i in range(20)]
        coordinator.schedule(die)
        try:
            coordinator.join()
        except jt.errors.ClosureAbortedError as error:
            print(error)
        """,
        workers=STRIKES,
    )
    out, err = finish(program)
    assert f"'die' was given up: {STRIKES} workers were lost" in out, err
