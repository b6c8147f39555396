"""Saved models answer where there is nothing but JAX and NumPy."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import jaxtribute as jt
from jaxtribute.cli import _serve_check, main
from tests._interpreter import STRICT_PYTHON
from tests.saved_model._support import Model, make_random

pytestmark = pytest.mark.processes
ANSWER = _serve_check._PROGRAM
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "saved-models.md"


@pytest.fixture(scope="module")
def model():
    model = Model()
    make_random(model)
    return model


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "model"
    jt.saved_model.save(model, path)
    return path


def python(*arguments, **kwargs):
    return subprocess.run(
        [*STRICT_PYTHON, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **kwargs,
    )


def test_the_snippet_of_the_guide_answers_without_jaxtribute(model, path):
    text = GUIDE.read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(# Only JAX.*?)```", text, re.DOTALL)
    snippet = (
        snippet.replace('"model"', repr(str(path)))
        .replace("np.ones((2, 3), np.float32)", "np.array([3, 0, 6], np.int32)")
        .replace('"x"', '"ids"')
    )
    program = (
        "import sys\nsys.modules['jaxtribute'] = None\n"
        f"{snippet}\nimport json\nprint(json.dumps(np.asarray(outputs['y']).tolist()))"
    )
    done = python("-I", "-c", program)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found, model(np.int32([3, 0, 6]))["y"], rtol=1e-6)


def test_serve_check_calls_a_model_and_tells_about_it(path, tmp_path, capfd):
    np.savez(tmp_path / "input.npz", ids=np.int32([1, 2]))
    options = ["--signature=serving_default", f"--input={tmp_path / 'input.npz'}"]
    done = CliRunner().invoke(main, ["serve-check", str(path), *options])
    printed, complaints = capfd.readouterr()
    assert (done.exit_code, complaints) == (0, "")
    for line in (
        "takes      ids: int32(batch,)",
        "returns    y: float32(batch, 2)",
        "runs on    cpu, cuda, rocm, tpu",
        "variables  reads 4 of",
        "answered   y: float32(2, 2)",
    ):
        assert line in printed
    times = r"took +[\d.]+ s to load, [\d.]+ s for the first answer, then [\d.]+ ms"
    assert re.search(times, printed)
    assert printed.endswith("ok\n")


def test_serve_check_fails_where_there_is_no_model(tmp_path, capfd):
    done = CliRunner().invoke(main, ["serve-check", str(tmp_path)])
    assert done.exit_code == 1
    assert "does not answer: its index cannot be read" in capfd.readouterr().err


def test_serve_check_says_why_a_model_does_not_answer(model, path, tmp_path):
    np.savez(tmp_path / "input.npz", x=np.int32([1, 2]))
    jt.saved_model.save({"v": jt.Variable(1.0)}, tmp_path / "none")
    jt.saved_model.save(model, tmp_path / "damaged")
    index = json.loads((tmp_path / "damaged" / "saved_model.json").read_text())
    file = tmp_path / "damaged" / index["variables"]["table"]["file"]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    expected = {
        (path, "--signature=other"): "has no signature 'other'; it has 'serving_default'",
        (path, f"--input={tmp_path / 'input.npz'}"): "takes ids, and the input has x.",
        (path, f"--input={tmp_path / 'nothing.npz'}"): "nothing.npz' cannot be read",
        (tmp_path / "damaged",): "the variable 'table', '.*', is damaged",
        (tmp_path / "none",): "it has no signatures",
    }
    cases = [[str(argument) for argument in arguments] for arguments in expected]
    program = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("answer", {str(ANSWER)!r})
answer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(answer)
for case in json.loads({json.dumps(cases)!r}):
    print(answer.main(case), file=sys.stderr)
"""
    done = python("-I", "-c", program)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["1"] * len(cases), done.stderr
    for line, message in zip(lines[::2], expected.values(), strict=True):
        assert re.search(f"does not answer: .*{message}", line), line
