"""The pages about TensorFlow run, and print what they say."""

import pytest

from tests.docs.test_code_blocks import WITH_TENSORFLOW, check


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in WITH_TENSORFLOW])
def test_the_code_of_a_page_runs_and_prints_what_it_says(page):
    check(page)
