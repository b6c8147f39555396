"""The tests that pages name as proof exist."""

import re

import pytest

from tests.docs.test_code_blocks import PAGES, ROOT

NAMED = re.compile(r"`(tests(?:_integrations)?/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if NAMED.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_a_page_names_tests_that_exist(page):
    for file, name in NAMED.findall(page.read_text(encoding="utf-8")):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), f"{file} has no {name}"
