"""What `docs/limits.md` says is shown by tests that exist."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits.md"
_ANSWERS = {"lifted", "checked", "shared"}
_TEST = re.compile(r"(?P<path>\w+(?:/\w+)+\.py)::(?:(?P<group>\w+)::)?(?P<test>test_\w+)")


def rows() -> list[tuple[str, str, str, str]]:
    """Return the cells of the tables, without their heads."""
    found: list[tuple[str, str, str, str]] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and not line.startswith(("| There |", "|---")):
            there, answer, here, tests = [cell.strip() for cell in line.strip("|").split("|")]
            found.append((there, answer, here, tests))
    return found


@functools.cache
def found_in(path: Path) -> frozenset[tuple[str | None, str]]:
    """Return the tests of a file, each with its class and without."""
    found: set[tuple[str | None, str]] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add((None, node.name))
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    found |= {(None, member.name), (node.name, member.name)}
    return frozenset(found)


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0][:60]) for row in rows()])
def test_a_limit_has_an_answer_and_tests_that_exist(row):
    there, answer, _, tests = row
    assert there.endswith(".")
    assert answer in _ANSWERS
    named = [re.fullmatch("`(.*)`", one.strip()) for one in tests.split(",")]
    assert all(named), f"each test in code: {tests}"
    for one in named:
        found = _TEST.fullmatch(one[1])
        assert found, one[1]
        path = ROOT / found["path"]
        assert path.is_file(), f"There is no {found['path']}."
        assert (found["group"], found["test"]) in found_in(path), f"There is no {one[1]}."


def test_no_limit_is_listed_twice():
    said = [there for there, *_ in rows()]
    assert len(said) == len(set(said)) > 50


def test_readers_find_the_page():
    assert re.search(r"^  - [\w ]+: limits\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
