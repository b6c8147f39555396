"""The page about Ray runs, and prints what it says."""

import pytest

from tests.docs.test_code_blocks import WITH_RAY, check


@pytest.mark.processes
@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in WITH_RAY])
def test_the_code_of_a_page_runs_and_prints_what_it_says(page):
    check(page)
