"""Every Python block of the README and the documentation runs, and prints what the page says.

The blocks of a page run in order, in one process of their own, as a reader would run them. When
the next block after one is marked `text`, it is what the code prints; an exception counts as its
last line, such as `ValueError: ...`. Differences in white space do not matter, and `...` stands for
anything. Shell commands are marked `sh` and do not run; manifests are marked `yaml`, and are
checked with what they describe.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("_run_blocks.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# About Keras throughout, and run by the tests that go with it: tests_integrations/keras.
WITH_KERAS = [ROOT / "docs" / "guides" / "keras.md", ROOT / "docs" / "migrating-from-tf.md"]
# Run where TensorFlow is installed: tests_integrations.
WITH_TENSORFLOW = [ROOT / "docs" / "guides" / "from-tensorflow.md"]
# Run where Ray is installed: tests_integrations/ray.
WITH_RAY = [ROOT / "docs" / "guides" / "ray.md"]

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    line: int
    source: str
    printed: str | None  # what the page says it prints, if it says so


def blocks_of(text: str) -> list[Block]:
    fences = list(_FENCE.finditer(text))
    blocks: list[Block] = []
    for position, fence in enumerate(fences):
        if fence["info"].split() != ["python"]:
            continue
        following = fences[position + 1] if position + 1 < len(fences) else None
        printed = following["body"] if following and following["info"].strip() == "text" else None
        blocks.append(Block(text.count("\n", 0, fence.start()) + 2, fence["body"], printed))
    return blocks


def matches(expected: str, printed: str) -> bool:
    parts = [re.escape(" ".join(part.split())) for part in expected.split("...")]
    return re.fullmatch(r".*".join(parts), " ".join(printed.split())) is not None


@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if page not in [*WITH_KERAS, *WITH_TENSORFLOW, *WITH_RAY]
        and blocks_of(page.read_text(encoding="utf-8"))
    ],
)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page: Path) -> None:
    check(page)


def check(page: Path) -> None:
    """Run the blocks of a page, and compare what they print with what it says."""
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    # The pages show how devices and threads are made, so none are inherited from the test suite.
    environment = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "XLA_FLAGS")}
    job = {"page": str(page), "blocks": [[block.line, block.source] for block in blocks]}
    ran = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for block, outcome in zip(blocks, json.loads(ran.stdout), strict=True):
        where = f"{page.name}, line {block.line}"
        if block.printed is None:
            assert outcome["error"] is None, f"{where} failed:\n{outcome['traceback']}"
        else:
            printed = outcome["printed"] + (outcome["error"] or "")
            assert matches(block.printed, printed), (
                f"{where} prints\n{printed}\nand the page says\n{block.printed}"
                f"{outcome['traceback']}"
            )


def test_no_block_escapes_by_its_mark() -> None:
    marks = {
        fence["info"].strip()
        for page in PAGES
        for fence in _FENCE.finditer(page.read_text(encoding="utf-8"))
    }
    assert marks <= {"python", "text", "sh", "yaml"}, marks


def test_what_is_printed_is_compared_up_to_white_space_and_dots() -> None:
    assert matches("a  b\nc\n", "a b\n  c")
    assert matches("ValueError: cannot ... here", "ValueError: cannot do this here\n")
    assert not matches("1.0", "1x0")
    assert not matches("a", "a b")
