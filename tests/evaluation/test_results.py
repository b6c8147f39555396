"""The file of results, and what becomes of it when a process is killed."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.evaluation._results import Result, Results, checked_metrics


def result(step, **metrics):
    return Result(step, f"/training/ckpt-{step}", metrics, 12.5, 0.25, f"ckpt-{step}:data")


def test_results_are_lines_of_json(tmp_path):
    path = tmp_path / "results.jsonl"
    results = Results(path)
    results.append(result(1, loss=0.5))
    results.append(result(2, loss=math.nan, accuracy=math.inf))
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "step": 1,
        "checkpoint": "/training/ckpt-1",
        "metrics": {"loss": 0.5},
        "time": 12.5,
        "seconds": 0.25,
        "id": "ckpt-1:data",
    }
    assert second["metrics"] == {"loss": None, "accuracy": None}


def test_another_life_knows_what_was_evaluated(tmp_path):
    path = tmp_path / "results.jsonl"
    Results(path).append(result(7))
    again = Results(path)
    assert (again.evaluated, len(again), again.last_step) == ({"ckpt-7:data"}, 1, 7)


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_ignored_and_the_next_result_whole(tmp_path, kept):
    path = tmp_path / "results.jsonl"
    results = Results(path)
    results.append(result(1))
    whole = len(path.read_bytes())
    results.append(result(2))
    content = path.read_bytes()
    path.write_bytes(content[: whole + kept] if kept > 0 else content[:-2])
    again = Results(path)
    assert again.evaluated == {"ckpt-1:data"}
    again.append(result(3))
    assert Results(path).evaluated == {"ckpt-1:data", "ckpt-3:data"}


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path):
    path = tmp_path / "results.jsonl"
    Results(path).append(result(1))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    again = Results(path)
    again.append(result(2))
    assert Results(path).evaluated == {"ckpt-1:data", "ckpt-2:data"}


def test_metrics_are_numbers_of_any_kind():
    given = {"a": 1, "b": np.float32(0.5), "c": jnp.ones((1,)), "d": jt.Variable(2.0)}
    assert checked_metrics(given) == {"a": 1.0, "b": 0.5, "c": 1.0, "d": 2.0}


@pytest.mark.parametrize(
    ("metrics", "named"),
    [(None, "None"), (0.5, "0.5"), ({"loss": [1, 2]}, "loss"), ({"loss": "low"}, "low")],
)
def test_what_is_no_dict_of_numbers_is_refused(metrics, named):
    with pytest.raises(TypeError, match=named):
        checked_metrics(metrics)
