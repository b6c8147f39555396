"""`jaxtribute doctor` and `jaxtribute env`, as a user would run them."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SECONDS = 60.0


def test_env_prints_what_a_bug_report_needs():
    printed = _run("env", environment={"JAXTRIBUTE_CLUSTER_KEY": "hunter2"})
    assert "jaxlib" in printed
    assert "1 cpu" in printed
    assert "hunter2" not in printed
    sections = json.loads(_run("env", "--json"))
    assert list(sections) == ["versions", "machine", "devices", "variables"]


def test_doctor_finds_nothing_where_nothing_is_wrong():
    assert "problems: 0, warnings: 0" in _run("doctor")


def test_doctor_tells_what_to_fix(tmp_path):
    file = tmp_path / "tf_config.json"
    file.write_text('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker"}}')
    printed = _run("doctor", "--tf-config", f"@{file}", code=1)
    assert "has the same address" in printed
    assert 'TF_CONFIG=\'{"cluster": {"worker": ["a:1", "a:2"]}' in printed


def _run(*arguments, code=0, environment=None):
    decisive = ("TF_CONFIG", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "PJRT_NPROC")
    variables = {k: v for k, v in os.environ.items() if k not in decisive}
    done = subprocess.run(
        [sys.executable, "-m", "jaxtribute.cli", *arguments],
        env=variables | (environment or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
