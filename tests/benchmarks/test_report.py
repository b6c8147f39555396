"""The arithmetic of reports."""

import math

import pytest

from benchmarks.report import CaseReport, Report, ratios, summarize


def test_the_summary_is_the_median_and_the_quartiles() -> None:
    summary = summarize([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (summary.median, summary.lower, summary.upper) == (3.0, 2.0, 4.0)
    assert summary.iqr == 2.0


def test_one_sample_has_no_spread() -> None:
    assert summarize([2.5]).iqr == 0.0


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


def test_ratios_pair_samples_of_the_same_round() -> None:
    assert ratios([1.0, 10.0], [2.0, 20.0]) == [0.5, 0.5]
    with pytest.raises(ValueError, match="1 samples of ours and 2 of theirs"):
        ratios([1.0], [1.0, 2.0])


def test_the_ratio_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    case = CaseReport("c", {"jaxtribute": [1.0, 9.0, 1.0], "other": [1.0, 9.0, 2.0]})
    assert case.compared()["other"].median == 1.0
    assert (case.measured()["jaxtribute"].median, case.measured()["other"].median) == (1.0, 2.0)


@pytest.mark.parametrize(("target", "met"), [(0.5, True), (0.49, False)])
def test_a_target_is_met_up_to_and_including_it(target: float, met: bool) -> None:
    case = CaseReport("c", {"jaxtribute": [1.0], "other": [2.0]}, {"other": target})
    assert case.met() == {"other": met}


def test_nothing_is_compared_without_us_or_without_the_opponent() -> None:
    without_us = CaseReport("c", {"other": [2.0]}, {"other": 1.0})
    assert without_us.compared() == without_us.met() == {}
    alone = CaseReport("c", {"jaxtribute": [2.0]}, {"other": 1.0})
    assert alone.compared() == alone.met() == {}


def test_json_has_the_numbers_the_targets_and_whether_they_are_met() -> None:
    case = CaseReport(
        "c", {"jaxtribute": [1.0, 3.0], "other": [4.0, 4.0]}, {"other": 0.4}, {"batch": 32}
    )
    found = Report("b", "ms", 2, [case], {"jaxtribute": {"jaxtribute": "1"}}).as_json()
    (only,) = found["cases"]
    assert only["batch"] == 32
    assert only["contestants"]["jaxtribute"] == {"median": 2.0, "iqr": 1.0, "samples": [1.0, 3.0]}
    assert math.isclose(only["ratios"]["vs_other"], 0.5)
    assert only["targets"] == {"vs_other": 0.4}
    assert only["met"] == {"vs_other": False}
