"""The table of names of `docs/migrating-from-tf.md` is complete, and what it names is there."""

import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_site import all_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrating-from-tf.md").read_text(encoding="utf-8")
NAMES = Path(__file__).with_name("tensorflow_names.txt").read_text(encoding="utf-8")
_PACKAGES = {"jt": "jaxtribute", "jax": "jax", "jnp": "jax.numpy", "optax": "optax"}
_BASES = {
    "tf.distribute.": "tf.distribute.Strategy",
    "tf.compat.v1.distribute.": "tf.compat.v1.distribute.Strategy",
}


def _rows() -> dict[str, tuple[str, str]]:
    """Return the answer and the explanation for each name of TensorFlow."""
    section = PAGE.partition("\n## Every name\n")[2].partition("\n## ")[0]
    found: dict[str, tuple[str, str]] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            theirs, answer, here = [cell.strip() for cell in line.strip("|").split("|")]
            for name in theirs.split(", "):
                assert re.fullmatch(r"`tf\.[\w.]+`", name), name
                assert name not in found, f"{name} is there twice"
                found[name.strip("`")] = answer, here
    return found


ROWS = _rows()


def classes() -> list[tuple[str, list[str]]]:
    lines = [line for line in NAMES.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split()[1:]) for line in lines]


def ours(name: str) -> str:
    """Return the name here of one that is the same."""
    return re.sub(r"^tf\.(distribute\.)?", "jt.", name)


def _names_of_keras() -> set[str]:
    """Return what `jt.keras` has. It is read, as importing it changes Keras for all tests."""
    return {f"jt.keras.{name}" for name in all_of("jaxtribute.keras")}


def found(name: str) -> Any:
    """Return what has a name, or fail."""
    package, _, rest = name.partition(".")
    return pkgutil.resolve_name(f"{_PACKAGES[package]}:{rest}")


@pytest.mark.parametrize(("name", "members"), classes(), ids=lambda value: str(value)[:70])
def test_every_name_of_tensorflow_is_in_the_table(name, members):
    assert name in ROWS
    if ROWS[name][0] not in ("same", "better"):
        return
    value = found(ours(name))
    for member in members:
        if not hasattr(value, member):
            # What all strategies have is listed once, with their base class.
            bases = [base for start, base in _BASES.items() if name.startswith(start)]
            listed = [f"{owner}.{member}" for owner in (name, *bases)]
            assert any(one in ROWS for one in listed), f"nothing is said of {name}.{member}"


@pytest.mark.parametrize("name", ROWS)
def test_what_the_table_says_of_a_name_is_true(name):
    answer, here = ROWS[name]
    mentioned = re.findall(r"`((?:jt|jax|jnp|optax)(?:\.\w+)+)", here)
    of_keras = {one for one in mentioned if one.startswith("jt.keras.")}
    assert of_keras <= _names_of_keras()
    for one in set(mentioned) - of_keras:
        found(one)
    if answer in ("same", "better"):
        found(ours(name))
    if answer in ("better", "renamed", "not here"):
        assert here
    if answer in ("renamed", "not here") and not name.startswith("tf.keras"):
        with pytest.raises(AttributeError):
            found(ours(name))


def test_the_answers_are_those_that_the_page_explains():
    explained = set(re.findall(r"^\* \*\*([\w ]+)\*\*:", PAGE.partition("## Every name")[2], re.M))
    assert {answer for answer, _ in ROWS.values()} == explained
