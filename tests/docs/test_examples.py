"""Every example runs as a program of its own, and reaches what it sets out to reach."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, launch: Sequence[str] = (), timeout: float = 110) -> str:
    """Return what an example prints, run by itself or with these options of `launch`."""
    # As on a fresh machine: the devices and threads of the test suite are not inherited.
    environment = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "XLA_FLAGS")}
    launcher = ["-m", "jaxtribute.cli", "launch", *launch] if launch else []
    ran = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def number(pattern: str, text: str) -> float:
    found = re.findall(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return float(found[-1])


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts ten processes
def test_digits_trains_with_every_strategy_to_97_percent():
    printed = run("digits.py", timeout=290)
    rows = {
        cells[0]: cells[1:]
        for line in printed.splitlines()
        if len(cells := [cell.strip() for cell in line.strip().strip("│").split("│")]) == 5
    }
    assert {name: row[0] for name, row in rows.items()} == {
        "none (default)": "1",
        "OneDeviceStrategy": "1",
        "MirroredStrategy": "2",
        "MultiWorkerMirroredStrategy": "2",
        "ParameterServerStrategy": "2",
        "the same, with an embedding": "2",
    }
    losses = [float(loss) for _, _, loss, _ in rows.values()][:4]
    assert losses == pytest.approx([losses[0]] * 4, abs=2e-4)
    accuracies = [float(accuracy.rstrip("%")) for *_, accuracy in rows.values()]
    assert min(accuracies[:5]) >= 97
    assert accuracies[5] >= 94


@pytest.mark.processes
def test_custom_loop_finds_the_line():
    printed = run("custom_loop.py")
    assert number(r"y = ([\d.]+) x", printed) == pytest.approx(3, abs=0.05)
    assert number(r"x \+ ([\d.]+)", printed) == pytest.approx(2, abs=0.05)


@pytest.mark.processes
def test_flax_nnx_learns_the_circle():
    assert number(r"accuracy ([\d.]+)%", run("flax_nnx.py")) > 95


@pytest.mark.processes
def test_pytree_learns_and_its_replicas_agree():
    printed = run("pytree.py")
    assert number(r"step 500: loss ([\d.]+)", printed) < 0.1
    assert "the replicas agree: True" in printed


@pytest.mark.processes
def test_batch_norm_keeps_statistics_of_all_replicas():
    printed = run("batch_norm.py")
    assert number(r"moving mean +\[ *([\d.]+)", printed) == pytest.approx(5, abs=0.5)
    assert number(r"moving variance +\[ *([\d.]+)", printed) == pytest.approx(4, abs=0.8)
    assert number(r"moving statistics: ([\d.]+)", printed) < 0.1


@pytest.mark.processes
def test_input_pipeline_goes_on_as_if_it_had_not_been_stopped():
    printed = run("input_pipeline.py")
    seen = [int(count) for count in re.findall(r"(\d+) examples", printed)]
    first = 50 * 24 - 6 * 14  # the last batches of six epochs hold 10 instead of 24
    assert seen == [20 * 178, first, 20 * 178 - first]
    assert number(r"accuracy ([\d.]+)%", printed) > 95
    assert number(r"differ by at most ([\d.]+)", printed) < 1e-4


@pytest.mark.processes
def test_export_answers_elsewhere_and_is_trained_on():
    printed = run("export.py")
    before = number(r"on two devices: loss ([\d.]+)", printed)
    assert "takes      points: float32(batch, 2)" in printed
    assert number(r"further on one: loss ([\d.]+)", printed) < before < 0.3
    assert number(r"accuracy ([\d.]+)%", printed) > 95


@pytest.mark.processes
@pytest.mark.slow
def test_multi_worker_ends_with_the_same_weights_when_a_worker_is_killed(tmp_path):
    options = ["--workers=2", "--max-restarts=1"]
    killed = run("multi_worker.py", str(tmp_path / "killed"), "--kill-at=130", launch=options)
    assert re.findall(r"from step (\d+)", killed) == ["0", "120"]
    undisturbed = run("multi_worker.py", str(tmp_path / "undisturbed"))
    assert re.findall(r"from step (\d+)", undisturbed) == ["0"]
    norm = r"done at step 240: the norm of the weights is ([\d.]+)"
    assert number(norm, killed) == pytest.approx(number(norm, undisturbed), abs=5e-4)


@pytest.mark.processes
def test_multi_worker_has_nothing_to_do_when_it_was_done(tmp_path):
    first = run("multi_worker.py", str(tmp_path))
    second = run("multi_worker.py", str(tmp_path))
    assert "from step 240" in second
    assert second.splitlines()[-1] == first.splitlines()[-1]


@pytest.mark.processes
@pytest.mark.slow
def test_evaluator_finds_what_the_workers_have_reached(tmp_path):
    options = ["--workers=2", "--evaluator"]
    printed = run("evaluator.py", str(tmp_path), "--epochs=3", launch=options)
    reached = number(r"trained to accuracy ([\d.]+)", printed)
    assert reached > 0.7
    assert number(r"evaluated ckpt-3 at step 69: .*accuracy ([\d.]+)", printed) == pytest.approx(
        reached, abs=1e-4
    )
    results = (tmp_path / "evaluation" / "results.jsonl").read_text(encoding="utf-8")
    assert results.count("\n") == printed.count("evaluator:0 | evaluated ckpt-")


def test_every_example_is_tested():
    tested = set(re.findall(r'run\("(\w+\.py)"[,)]', Path(__file__).read_text(encoding="utf-8")))
    tested.add("parameter_server.py")  # which digits.py starts
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}
