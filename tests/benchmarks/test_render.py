"""Tables and the page."""

from pathlib import Path

import pytest

from benchmarks import document, render
from benchmarks.benchmark import Benchmark
from benchmarks.report import CaseReport, Report


def _report() -> Report:
    case = CaseReport(
        "small", {"jaxtribute": [1.0, 1.0], "other": [2.0, 2.0], "third": [4.0, 4.0]}, {"other": 1}
    )
    versions = {name: {name: "1.2"} for name in case.samples}
    return Report("bench", "ms", 2, [case], versions)


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.123"), (1.0, "1.00"), (17.36, "17.4"), (1234.5, "1234")]
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert render.number(value) == text


def test_a_row_shows_times_ratios_and_targets() -> None:
    header, row = render.table(_report())
    assert header == [
        "case",
        "jaxtribute (ms)",
        "other (ms)",
        "third (ms)",
        "jaxtribute / other",
        "jaxtribute / third",
    ]
    assert row[0] == "small"
    assert row[1].startswith("1.00 (IQR ")
    assert row[4] == "0.50 (IQR 0.00); target 1 met"
    assert row[5] == "0.25 (IQR 0.00)"


def test_a_contestant_may_be_missing_from_a_case() -> None:
    (first,) = _report().cases
    second = CaseReport("other", {"jaxtribute": [1.0], "fourth": [4.0]})
    report = Report("bench", "ms", 2, [first, second], {})
    header, *rows = render.table(report)
    assert report.contestants() == ["jaxtribute", "other", "third", "fourth"]
    assert header[5:] == ["jaxtribute / other", "jaxtribute / third", "jaxtribute / fourth"]
    assert [row[4] for row in rows] == ["", "4.00 (IQR 0.00)"]
    assert [row[7] for row in rows] == ["", "0.25 (IQR 0.00)"]
    assert rows[1][2] == rows[1][5] == ""


def test_a_case_may_have_a_unit_of_its_own() -> None:
    size = CaseReport("size", {"jaxtribute": [1.0]}, unit="MB")
    _, row = render.table(Report("bench", "ms", 1, [size], {}))
    assert row == ["size", "1.00 MB (IQR 0.00)"]
    assert size.as_json()["unit"] == "MB"
    assert "unit" not in _report().cases[0].as_json()


def test_plain_tables_are_aligned() -> None:
    assert render.plain([["a", "b"], ["long", "c"]]) == "a     b\nlong  c"


def test_markdown_tables_have_a_separator() -> None:
    assert render.markdown([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_page_names_the_machine_and_only_contestants_that_took_part() -> None:
    texts = {"jaxtribute": "ours", "other": "theirs", "third": "another", "absent": "not run"}
    benchmark = Benchmark("bench", "Title", "What.", texts, lambda options: _report())
    text = document.page({"CPU": "abacus"}, [(benchmark, _report())])
    assert "make bench" in text
    assert "| CPU | abacus |" in text
    assert "- **other**: theirs (other 1.2)" in text
    assert "absent" not in text
    assert "(assets/performance-bench.svg)" in text


def test_a_page_in_a_missing_folder_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        document.check_can_write(tmp_path / "missing" / "page.md")
