"""The table: everything it points to exists, and takes the arguments it is given."""

import inspect
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from jaxtribute.migration._arguments import parameters_of
from jaxtribute.migration._lookup import exists, look_up
from jaxtribute.migration._names import ENTRIES, Code, Person, Renamed, Topic

ROOT = Path(__file__).parents[2]
RENAMED = {name: entry for name, entry in ENTRIES.items() if isinstance(entry, Renamed)}
WITHOUT_KERAS = {
    name: entry
    for name, entry in RENAMED.items()
    if not entry.target.startswith(("keras", "jaxtribute.keras"))
}
CALLS = {name: entry for name, entry in WITHOUT_KERAS.items() if entry.parameters is not None}


def found(target):
    root, *parts = target.split(".")
    return reduce(getattr, parts, import_module(root))


@pytest.mark.parametrize("target", sorted({entry.target for entry in WITHOUT_KERAS.values()}))
def test_what_a_name_becomes_exists(target):
    assert exists(target)
    found(target)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_arguments_arrive_where_they_belong(name):
    ours = parameters_here(CALLS[name].target)
    for position, parameter in enumerate(parameters_of(CALLS[name].parameters)):
        if parameter.by_position and parameter.is_passed_on:
            # Universal functions, such as `jnp.add`, take `*args`.
            there = list(ours.values())[0 if "args" in ours else position]
            assert there.kind is not inspect.Parameter.KEYWORD_ONLY
            if parameter.has_name:
                assert there.name == parameter.ours
        elif parameter.has_name:
            assert parameter.ours in ours or "kwargs" in ours, parameter
        if parameter.has_name and parameter.ours in ours:
            assert ours[parameter.ours].kind is not inspect.Parameter.POSITIONAL_ONLY, parameter


def parameters_here(target):
    if target == "jaxtribute.Variable":  # its class takes them from the strategy
        from jaxtribute.variables._base import _ARGUMENTS

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return {name: inspect.Parameter(name, kind) for name in _ARGUMENTS}
    return inspect.signature(found(target)).parameters


def test_every_section_that_comments_name_is_in_the_guide():
    guide = (ROOT / "docs" / "migrating-from-tf.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", guide, re.MULTILINE)
    anchors = {re.sub(r"[^\w]+", "-", heading.lower()).strip("-") for heading in headings}
    assert {topic.value for topic in Topic} <= anchors


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tensorflow.distribute.MirroredStrategy", "jaxtribute.MirroredStrategy"),
        ("tensorflow.distribute.ReduceOp.SUM", "jaxtribute.ReduceOp.SUM"),
        ("tensorflow.compat.v2.distribute.Strategy", "jaxtribute.Strategy"),
        ("tensorflow.compat.v1.reduce_sum", "jax.numpy.sum"),
        ("tensorflow.keras.layers.Dense", "keras.layers.Dense"),
        ("tensorflow.keras.optimizers.legacy.SGD", "keras.optimizers.SGD"),
        ("tensorflow.data.Dataset.from_tensors", "jaxtribute.data.Dataset.from_tensors"),
        (
            "tensorflow.compat.v1.distribute.MirroredStrategy",
            "jaxtribute.compat.v1.distribute.MirroredStrategy",
        ),
    ],
)
def test_the_longest_entry_decides(name, expected):
    entry = look_up(name)
    assert isinstance(entry, Renamed)
    assert entry.target == expected


def test_other_answers():
    assert look_up("tensorflow.keras.losses.Reduction.NONE") == Code('"none"')
    assert look_up("numpy.sum") is None
    assert look_up("tensorflow_datasets.load") is None
    for name in ["distribute.NotThere", "data.Dataset.not_there", "io.gfile.glob", "random.normal"]:
        assert isinstance(look_up(f"tensorflow.{name}"), Person)
