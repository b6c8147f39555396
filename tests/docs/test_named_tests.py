"""The tests that pages name as proof exist."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import PAGES, ROOT

_NAMED = re.compile(r"`([^`\n]+\.py::[^`\n]*)`")
_TEST = re.compile(r"(?P<path>\w+(?:/\w+)+\.py)::(?:(?P<group>\w+)::)?(?P<test>test_\w+)")


def named_in(text: str) -> list[str]:
    """Return the tests that are named in code, such as `tests/data/test_cache.py::test_one`."""
    return _NAMED.findall(text)


@functools.cache
def _found_in(path: Path) -> frozenset[tuple[str | None, str]]:
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


def check_exists(named: str) -> None:
    found = _TEST.fullmatch(named)
    assert found, named
    path = ROOT / found["path"]
    assert path.is_file(), f"There is no {found['path']}."
    assert (found["group"], found["test"]) in _found_in(path), f"There is no {named}."


@pytest.mark.parametrize(
    "page", [p for p in PAGES if named_in(p.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_a_page_names_tests_that_exist(page):
    for named in named_in(page.read_text(encoding="utf-8")):
        check_exists(named)


@pytest.mark.parametrize(
    "named",
    [
        "tests/docs/test_named_tests.py::test_not_there",
        "tests/docs/test_named_tests.py::TestNotThere::test_a_page_names_tests_that_exist",
        "tests/docs/test_not_there.py::test_a_page_names_tests_that_exist",
        "tests/docs/test_named_tests.py::ROOT",
    ],
)
def test_others_are_told(named):
    (found,) = named_in(f"| Shown by | `{named}` |")
    with pytest.raises(AssertionError):
        check_exists(found)
