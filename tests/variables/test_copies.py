"""Variables own their memory, and nothing is compiled to have it so."""

import itertools
import logging

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.variables._copies import as_own_array, copied
from tests.variables._support import mirrored

sizes = itertools.count(1009)  # of shapes that nothing else has

VALUES = {
    "NumPy's float": lambda: np.ones(next(sizes), np.float32),
    "NumPy's double": lambda: np.ones(next(sizes)),
    "NumPy's long": lambda: np.ones(next(sizes), np.int64),
    "NumPy's bfloat16": lambda: np.ones(next(sizes), ml_dtypes.bfloat16),
    "a scalar of NumPy": lambda: np.float64(2.5),
    "a number": lambda: 2.5,
    "a whole number": lambda: 2,
    "a truth": lambda: True,
    "an array": lambda: jnp.ones(next(sizes)),
}


@pytest.fixture
def compiled(caplog):
    """The names of what JAX compiles."""
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        yield lambda: [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]


def pointers(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_an_own_array_is_what_jnp_makes_of_it_and_not_weak(make):
    value = make()
    expected = jnp.array(value)
    own = as_own_array(value)
    assert (own.dtype, own.shape, own.weak_type) == (expected.dtype, expected.shape, False)
    assert bool((own == expected).all())


@pytest.mark.parametrize("dtype", ["float32", jnp.bfloat16, "int32", np.dtype("complex64")])
@pytest.mark.parametrize("value", [2, 2.75, np.arange(3), np.float32(7), [1, 2], jnp.arange(3.0)])
def test_an_own_array_has_the_type_it_was_asked_for(value, dtype):
    own = as_own_array(value, dtype)
    assert own.dtype == jnp.dtype(dtype) and not own.weak_type
    np.testing.assert_array_equal(own, jnp.array(value, dtype))


def test_a_type_that_jax_does_not_have_is_warned_of():
    with pytest.warns(UserWarning, match="float64"):
        assert jt.Variable(np.ones(2), dtype="float64").dtype == jnp.float32


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("strategy", [jt.get_strategy, mirrored], ids=["one device", "mirrored"])
def test_creating_and_assigning_variables_compiles_nothing(make, strategy, compiled):
    strategy, value = strategy(), make()
    before = len(compiled())
    with strategy.scope():
        v = jt.Variable(value)
    if isinstance(value, np.ndarray):
        v.assign(value)
    assert compiled()[before:] == []


@pytest.mark.parametrize("strategy", [jt.get_strategy, mirrored], ids=["one device", "mirrored"])
def test_a_variable_shares_no_memory_with_what_it_was_made_of(strategy):
    ours, theirs = jnp.arange(2048.0), np.arange(2048.0, dtype=np.float32)
    with strategy().scope():
        a, b = jt.Variable(ours), jt.Variable(theirs)
    assert ours.unsafe_buffer_pointer() not in pointers(a.load())
    theirs[:] = 7
    b_now = np.asarray(b)
    b.assign(theirs)
    theirs[:] = 8
    assert b_now[3] == 3.0
    assert np.asarray(b)[3] == 7.0


@pytest.mark.parametrize("of", ["replicated", "stacked"])
def test_a_copy_is_a_copy_on_every_device(of):
    topology = mirrored().topology
    array = jax.device_put(jnp.arange(2048.0), getattr(topology, of))
    duplicate = copied(array)
    assert duplicate.sharding == array.sharding
    assert not set(pointers(array)) & set(pointers(duplicate))
    np.testing.assert_array_equal(duplicate, array)
