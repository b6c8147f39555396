"""Fresh interpreters: what happens before JAX starts can only be tested in one."""

import os
import subprocess
import textwrap

import pytest

from jaxtribute.testing import ProcessCluster
from tests._interpreter import STRICT_PYTHON
from tests.processes._parameter_server import SILENCE

# What decides how JAX makes its CPU devices. A test sets what it is about, and nothing else.
_DECISIVE = (
    "PJRT_NPROC",
    "NPROC",
    "XLA_FLAGS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
    "TF_CONFIG",
)


@pytest.fixture
def python(tmp_path):
    """Return a function that runs a program in a new interpreter and returns what it printed.

    A program that fails, or is not done in time, fails the test. In that case it is killed.
    """

    def run(program, *, environment=None, seconds=100):
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        variables = {k: v for k, v in os.environ.items() if k not in _DECISIVE}
        try:
            done = subprocess.run(
                [*STRICT_PYTHON, str(script)],
                env=variables | (environment or {}),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as hung:
            output = (hung.stdout or b"").decode() + (hung.stderr or b"").decode()
            pytest.fail(f"Not done after {seconds} seconds. It printed:\n{output}", pytrace=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def silence(monkeypatch):
    """Have tasks that say nothing count as lost soon."""
    for name, value in SILENCE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(silence):
    """Two workers and two parameter servers, which a test may end as it likes."""
    with ProcessCluster(workers=2, ps=2, environment=SILENCE) as cluster:
        yield cluster
