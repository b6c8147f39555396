"""The programs of the page on migrating change as little as it says, and run on two workers."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.test_code_blocks import ROOT, blocks_of

PAGE = (ROOT / "docs" / "migrating-from-tf.md").read_text(encoding="utf-8")
PAIR = re.compile(r"Before:\n\n```text\n(.*?)```\n\nAfter:\n\n```python\n(.*?)```", re.DOTALL)
PAIRS = PAIR.findall(PAGE)
NAMES = re.findall(r"^\| `(tf\.[\w.]+)` \| `((?:jt|keras)\.[\w.]*)`", PAGE, re.MULTILINE)


def without_imports(program):
    return [line for line in program.splitlines() if not re.match(r"(import|from) |$", line)]


def renamed(program):
    for theirs, ours in NAMES:  # the longest names come first in the table
        if theirs != "tf.GradientTape":  # for which another name is not enough
            program = program.replace(theirs, ours)
    return program


def test_the_table_has_the_names_that_the_programs_use():
    assert dict(NAMES)["tf.distribute."] == "jt."
    assert len(PAIRS) == 4


@pytest.mark.parametrize("number", [0, 1, 2])
def test_programs_with_fit_change_in_names_only(number):
    before, after = PAIRS[number]
    assert ".fit(" in before
    assert without_imports(renamed(before)) == without_imports(after)


def test_steps_of_ones_own_change_where_gradients_are_taken():
    before, after = (without_imports(program) for program in (renamed(PAIRS[3][0]), PAIRS[3][1]))
    changed = [line.strip() for line in before if line not in after]
    assert changed == [
        "loss_object = keras.losses.BinaryCrossentropy(reduction=keras.losses.Reduction.NONE)",
        "with tf.GradientTape() as tape:",
        "loss = jt.nn.compute_average_loss(losses)",
        "gradients = tape.gradient(loss, model.trainable_variables)",
    ]


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_program_for_workers_runs_on_two_of_them(tmp_path):
    (script,) = (b.source for b in blocks_of(PAGE) if "MultiWorkerMirroredStrategy" in b.source)
    (tmp_path / "train.py").write_text(script)
    own = ("PJRT_NPROC", "XLA_FLAGS", "TF_CONFIG")  # of the test suite
    ran = subprocess.run(
        [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers=2", "train.py"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k not in own}
        | {"MODEL_DIRECTORY": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = [line for line in ran.stdout.splitlines() if "recognized" in line]
    assert sorted(printed) == [f"worker:{i} | more than 80 % recognized: True" for i in (0, 1)]
    assert (tmp_path / "digits.keras").stat().st_size > 0
