"""Whole programs, before and after. What comes out is run, in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxtribute.migration import migrated
from tests._interpreter import STRICT_PYTHON

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.name for path in (PROGRAMS / "before").glob("*.py"))
# Those with Keras are run by tests_integrations/keras/test_migrated_programs.py.
PRINTED = {
    "contexts.py": (
        "2\ngathered [[0, 1], [1, 2]]\nmean [[0.5, 1.5]]\ntotal [[1, 3]]\n3.0\n"
        "[3. 4.]\n3.5 [1. 2. 5. 6.]\n[2. 2.]\n"
    ),
    "custom_loop.py": "loss 0.00, close 64 of 64\nrestored [1. 2. 3.]\n",
    "input_functions.py": "[6, 6]\n[22, 22]\n[ 0 10]\n5.0\n[ 4. -1.  1.  1.]\n",
}


def program(when: str, name: str) -> str:
    return (PROGRAMS / when / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_program_becomes_the_one_that_is_expected(name):
    migration = migrated(program("before", name))
    assert migration.source == program("after", name)
    assert bool(migration.places) == (name == "places.py")


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_changes_nothing(name):
    after = program("after", name)
    again = migrated(after)
    assert again.source == after
    assert again.rewrites == 0


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    # Programs make devices of their own, and a cluster comes from the launcher.
    own = ("PJRT_NPROC", "XLA_FLAGS", "TF_CONFIG")
    environment = {key: value for key, value in os.environ.items() if key not in own}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.processes
@pytest.mark.parametrize("name", PRINTED)
def test_a_migrated_program_runs(name, tmp_path):
    ran = run([*STRICT_PYTHON, str(PROGRAMS / "after" / name)], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == PRINTED[name]


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_migrated_program_runs_with_parameter_servers(tmp_path):
    script = str(PROGRAMS / "after" / "parameter_server.py")
    launch = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers=1", "--ps=1", script]
    ran = run(launch, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "chief:0  | steps 20, loss below 0.1: True\n" in ran.stdout
