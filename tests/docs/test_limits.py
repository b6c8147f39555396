"""What `docs/limits.md` says has an answer and names its tests."""

import re
from pathlib import Path

import pytest

from tests.docs.test_named_tests import check_exists, named_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits.md"
_ANSWERS = {"lifted", "checked", "shared"}


def rows() -> list[tuple[str, str, str, str]]:
    """Return the cells of the tables, without their heads."""
    found: list[tuple[str, str, str, str]] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and not line.startswith(("| There |", "|---")):
            there, answer, here, tests = [cell.strip() for cell in line.strip("|").split("|")]
            found.append((there, answer, here, tests))
    return found


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0][:60]) for row in rows()])
def test_a_limit_has_an_answer_and_tests_that_exist(row):
    there, answer, _, tests = row
    assert there.endswith(".")
    assert answer in _ANSWERS
    for one in tests.split(","):
        (named,) = named_in(one)
        assert one.strip() == f"`{named}`", "each test in code, and nothing else"
        check_exists(named)


def test_no_limit_is_listed_twice():
    said = [there for there, *_ in rows()]
    assert len(said) == len(set(said)) > 50


def test_readers_find_the_page():
    assert re.search(r"^  - [\w ]+: limits\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
