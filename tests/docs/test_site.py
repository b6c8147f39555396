"""The documentation builds, without a broken link or an undocumented page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_the_site_builds_without_warnings(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "api" / "index.html").read_text()
    assert "MirroredStrategy" in page
    assert "<blockquote>" not in page  # what an example outside a fence would become
