"""The program of the guide on several workers does on two of them what the guide says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import ROOT, blocks_of

GUIDE = (ROOT / "docs" / "guides" / "multi_worker.md").read_text(encoding="utf-8")


def launch(directory: Path, script: str, *options: str) -> list[str]:
    """Return the lines that workers write to stdout."""
    (directory / "train.py").write_text(script)
    own = ("PJRT_NPROC", "XLA_FLAGS", "TF_CONFIG")  # of the test suite
    ran = subprocess.run(
        [sys.executable, "-m", "jaxtribute.cli", "launch", *options, "train.py"],
        cwd=directory,
        env={k: v for k, v in os.environ.items() if k not in own},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.processes
def test_the_first_program_prints_what_the_guide_shows(tmp_path):
    first = blocks_of(GUIDE)[0]
    assert "MultiWorkerMirroredStrategy()" in first.source
    lines = launch(tmp_path, first.source, "--workers=2")
    assert sorted(lines) == [line for line in GUIDE.splitlines() if " | replicas 2: " in line]


@pytest.mark.processes
def test_the_blocks_of_the_guide_run_on_two_workers_of_two_devices(tmp_path):
    script = "\n".join(block.source for block in blocks_of(GUIDE))
    lines = launch(tmp_path, script, "--workers=2", "--devices-per-worker=2")
    assert sum("replicas 4: w [1. 2. 3.], b [4.]" in line for line in lines) == 2
    assert [line for line in lines if "once" in line] == ["worker:0 | once"]
