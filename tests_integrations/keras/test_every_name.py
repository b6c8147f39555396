"""What the reference documents use of Keras is found in Keras, and can be called as they do.

The rest is in tests/reference/test_every_name.py.
"""

import pytest

from tests.reference._counterparts import check_call, find, place
from tests.reference._documented import ATTRIBUTES, CALLS, NAMES


def _of_keras(names):
    return [name for name in names if place(name).partition(".")[0] == "keras"]


@pytest.mark.parametrize("name", _of_keras(NAMES))
def test_the_name_is_there(name):
    find(name)


@pytest.mark.parametrize("name", _of_keras(ATTRIBUTES))
def test_the_attributes_are_there(name):
    for attribute in ATTRIBUTES[name]:
        find(f"{name}.{attribute}")


@pytest.mark.parametrize("name", _of_keras(CALLS))
def test_it_can_be_called_like_this(name):
    for call in CALLS[name]:
        method, _, arguments = call.partition("(")
        if method:  # on an object, which is the first argument of what its class has
            check_call(f"(_, {arguments}", find(f"{name}.{method}"))
        else:
            check_call(f"({arguments}", find(name))


@pytest.mark.parametrize("name", ["apply_gradients", "iterations"])
def test_optimizers_of_keras_have_what_ours_have(name):
    import keras

    assert hasattr(keras.optimizers.Optimizer, name)
