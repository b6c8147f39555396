"""The conformance suite on several workers: processes that go through its tests together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SECONDS = 280  # it takes 40 on a machine that does nothing else


# With one device, a replica is alone in its process. With two, it has neighbours on both sides.
@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("devices", [1, 2])
def test_two_workers_pass_the_conformance_suite(devices):
    launch = ["launch", "--workers", "2", "--devices-per-worker", str(devices)]
    suite = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/conformance"]
    # This process has devices and threads for itself.
    environment = {k: v for k, v in os.environ.items() if k != "PJRT_NPROC"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jaxtribute.cli", *launch, *suite],
            env=environment | {"CONFORMANCE_WORKER": "yes"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as hung:  # the launcher is killed, and its workers with it
        output = (hung.stdout or b"").decode() + (hung.stderr or b"").decode()
        pytest.fail(f"Not done after {SECONDS} seconds. They printed:\n{output}", pytrace=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count(" passed in ") == 2, output
    assert " skipped" not in output, output
