"""The command makes the programs of the guide: those after from those before."""

import re

import pytest

from jaxtribute.migration import migrated
from jaxtribute.migration._lookup import look_up
from jaxtribute.migration._names import Person
from tests.docs.test_names_table import PAGE, ROWS

PAIR = re.compile(r"Before:\n\n```text\n(.*?)```\n\nAfter:\n\n```python\n(.*?)```", re.DOTALL)
PAIRS = PAIR.findall(PAGE)


def parts(program: str) -> tuple[set[str], list[str]]:
    """Return the imports, whose order is a matter of taste, and everything else."""
    lines = program.splitlines()
    imports = {line for line in lines if re.match(r"(import|from) ", line)}
    return imports, [line for line in lines if line and line not in imports]


@pytest.mark.parametrize("number", range(4))
def test_the_programs_of_the_guide_are_what_the_command_makes(number):
    before, after = PAIRS[number]
    shared = ""  # the last one goes on from the one before it, with its imports
    if "import tensorflow" not in before:
        shared = "import numpy as np\nimport tensorflow as tf\n"
    migration = migrated(shared + before)
    imports, code = parts(migration.source)
    expected_imports, expected_code = parts(after)
    assert code == expected_code
    if not shared:
        assert imports == expected_imports
    assert not migration.places


def test_the_table_of_every_name_agrees_with_the_command():
    assert len(ROWS) > 100
    for name, (answer, _) in ROWS.items():
        if answer != "renamed":
            is_left = isinstance(look_up(name.replace("tf.", "tensorflow.", 1)), Person)
            assert is_left == (answer == "not here"), name
