"""A program whose last checkpoint cannot be written, when nothing is left to raise it."""

import subprocess

import numpy as np
import pytest

import jaxtribute as jt
from tests._interpreter import STRICT_PYTHON
from tests.processes._launcher import Launcher

pytestmark = pytest.mark.processes

# No file may become larger than 1000 bytes: the disk is full, so to say.
_FULL = """
import atexit, os, resource, sys
import numpy as np

atexit.register(lambda: print("tidied up", flush=True))
import jax
import jaxtribute as jt

# The disk is full for checkpoints only: JAX's programs and Python's modules would be cut off.
jax.config.update("jax_enable_compilation_cache", False)
sys.dont_write_bytecode = True

def fill_the_disk():
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))

value = np.random.default_rng(0).random(1 << 18, np.float32)
"""
_SAVE = """
fill_the_disk()
checkpoint = jt.train.Checkpoint(v=jt.Variable(value))
checkpoint.save(sys.argv[1])
"""
_READ = """
try:
    checkpoint.wait_until_finished()
except Exception as error:
    print("read", *error.__notes__)
"""
_AT_THE_END = """
fill_the_disk()
checkpoint = jt.train.Checkpoint(v=jt.Variable(value))
checkpoint.restore(None)
atexit.register(lambda: checkpoint.save(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param(_SAVE, 120, id="at the end"),
        pytest.param(_SAVE + "del checkpoint; sys.exit(0)", 120, id="sys.exit"),
        pytest.param(_SAVE + "sys.exit(3)", 120, id="sys.exit with a code"),
        pytest.param(_SAVE + "raise ValueError('its own')", 1, id="its own error"),
        pytest.param(_SAVE + _READ, 0, id="read"),
        pytest.param(_AT_THE_END, 120, id="while Python ends"),
    ],
)
def test_a_save_that_fails_last_is_named_and_the_exit_code_is_not_0(program, code, tmp_path):
    command = [*STRICT_PYTHON, "-c", _FULL + program, str(tmp_path / "ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    message = f"The checkpoint {str(tmp_path / 'ckpt-1')!r} could not be saved"
    assert message in done.stderr.splitlines()[-1]
    assert done.stdout.endswith("tidied up\n")
    if program.endswith(_READ):
        assert done.stdout.startswith(f"read {message}")
        assert "Traceback" not in done.stderr
    elif code == 1:  # which is what a launcher quotes
        assert done.stderr.count("Traceback") == 1
        assert "ValueError: its own" in done.stderr
    else:
        assert "DataLossError" in done.stderr.splitlines()[-1]
    assert jt.train.latest_checkpoint(tmp_path) is None


_WORKERS = """
strategy = jt.MultiWorkerMirroredStrategy()
with strategy.scope():
    v = jt.Variable(value)
checkpoint = jt.train.Checkpoint(v=v)
checkpoint.save("good")
checkpoint.wait_until_finished()
if index == 0:
    fill_the_disk()
checkpoint.save("bad")
print("done")
"""


def test_a_launcher_says_which_worker_could_not_save(tmp_path):
    launcher = Launcher(tmp_path)
    try:
        launcher.start(_FULL + _WORKERS, options=("--workers", "2"))
        assert launcher.result() == 120, launcher.stderr
        said = launcher.stderr
    finally:
        launcher.close()
    assert "worker:0 failed first" in said
    assert "exit code 120: something could not be written when it ended" in said
    assert "DataLossError: The checkpoint 'bad-2' could not be saved" in said
    v = jt.Variable(np.zeros(1 << 18, np.float32))
    jt.train.Checkpoint(v=v).restore(tmp_path / "good-1").assert_consumed()
