"""The table of `jaxtribute migrate` knows TensorFlow's names, and the order of its parameters."""

import functools
import inspect

import pytest
import tensorflow as tf

from jaxtribute.migration._arguments import parameters_of
from jaxtribute.migration._names import ENTRIES, Renamed

CALLS = {
    name: entry.parameters
    for name, entry in ENTRIES.items()
    if isinstance(entry, Renamed) and entry.parameters is not None
}


def found(name):
    """Return what has a name, today or, as `tf.log`, in the first version."""
    for value in (tf, tf.compat.v1):
        try:
            return functools.reduce(getattr, name.split("."), value)
        except AttributeError:
            continue
    raise AssertionError(f"There is no tf.{name}.")


@pytest.mark.parametrize("name", CALLS)
def test_parameters_are_those_of_tensorflow_in_their_order(name):
    signature = inspect.signature(found(name))
    theirs = [parameter.theirs for parameter in parameters_of(CALLS[name])]
    there = [p for p in signature.parameters if p not in ("self", "args", "kwargs")]
    assert theirs[: len(there)] == there


def test_names_that_are_rewritten_exist():
    renamed = {name for name, entry in ENTRIES.items() if isinstance(entry, Renamed)}
    # TensorFlow's documents call two classes by names that it does not export.
    renamed -= {"distribute.InputIterator", "distribute.ValueContext"}
    # Those of Keras are of versions before 3.
    for name in (name for name in renamed if not name.startswith("keras.")):
        found(name)
