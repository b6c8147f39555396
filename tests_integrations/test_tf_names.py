"""The list of TensorFlow's names that the documentation is compared with is TensorFlow's own."""

import types

import pytest
import tensorflow as tf

from tests.docs.test_names_table import classes

pytestmark = pytest.mark.skipif(
    not tf.__version__.startswith("2.21."), reason="another version has other names"
)


def listed(module, path):
    """Return the public names below a module, each with the public members of a class."""
    found = {}
    for name in (name for name in dir(module) if not name.startswith("_")):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            found |= listed(value, f"{path}.{name}")
        members = dir(value) if isinstance(value, type) else []
        found[f"{path}.{name}"] = [member for member in members if not member.startswith("_")]
    return found


@pytest.mark.parametrize("path", ["tf.distribute", "tf.compat.v1.distribute"])
def test_the_list_is_complete(path):
    module = {"tf.distribute": tf.distribute, "tf.compat.v1.distribute": tf.compat.v1.distribute}
    kept = {name: members for name, members in classes() if name.startswith(f"{path}.")}
    # Documents call these so, and TensorFlow has them elsewhere.
    for name in ("tf.distribute.InputIterator", "tf.distribute.ValueContext"):
        kept.pop(name, None)
    assert kept == listed(module[path], path)
