"""Programs with Keras, after `jaxtribute migrate`, run and learn."""

import subprocess

import pytest

from tests._interpreter import STRICT_PYTHON
from tests.migration.test_programs import NAMES, PRINTED, PROGRAMS, run

PRINTED_WITH_KERAS = {
    "keras_custom_loop.py": "accuracy above 0.9: True\nloss below 0.5: True, True\n",
    "keras_workers.py": "learned: True\nloaded: True\n",
}


def test_every_program_is_run_somewhere():
    assert {*PRINTED, *PRINTED_WITH_KERAS, "parameter_server.py", "places.py"} == set(NAMES)


@pytest.mark.processes
@pytest.mark.parametrize("name", PRINTED_WITH_KERAS)
def test_a_migrated_program_with_keras_runs(name, tmp_path):
    # Of every `variable.numpy()` of Keras itself.
    warning = "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    command = [*STRICT_PYTHON, "-W", warning, str(PROGRAMS / "after" / name)]
    ran: subprocess.CompletedProcess[str] = run(command, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == PRINTED_WITH_KERAS[name]
