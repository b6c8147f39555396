"""Values that are the same on all replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt


@pytest.fixture(scope="module")
def two():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def mirrored(two):
    with two.scope():
        v = jt.Variable([0.0, 0.0])
    return two.extended.broadcast_to(jnp.array([1.0, 2.0]), v)


def test_it_has_a_copy_on_each_device(mirrored):
    assert isinstance(mirrored, jt.Mirrored)
    assert isinstance(mirrored, jt.DistributedValues)
    assert [x.tolist() for x in mirrored.values] == [[1.0, 2.0]] * 2
    assert [x.devices() for x in mirrored.values] == [{d} for d in jax.devices("cpu")[:2]]


def test_repr_is_that_of_the_reference(mirrored):
    assert repr(mirrored) == (
        "Mirrored:{\n  0: Array([1., 2.], dtype=float32),\n  1: Array([1., 2.], dtype=float32)\n}"
    )


def test_outside_of_replicas_it_is_an_array(mirrored):
    assert (mirrored + 1).tolist() == [2.0, 3.0]
    assert (1 - mirrored).tolist() == [0.0, -1.0]
    assert (mirrored * mirrored).tolist() == [1.0, 4.0]
    assert np.asarray(mirrored).tolist() == [1.0, 2.0]
    assert jnp.asarray(mirrored).tolist() == [1.0, 2.0]
    assert (jnp.ones(2) + mirrored).tolist() == [2.0, 3.0]
    assert (mirrored > 1).tolist() == [False, True]


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_its_truth_is_that_of_the_number(two, number):
    with two.scope():
        v = jt.Variable(0.0)
    assert bool(two.extended.broadcast_to(jnp.float32(number), v)) is bool(number)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_captured_by_replicas_it_is_their_copy(two, mirrored, compiled):
    def replica_fn():
        return mirrored + jt.get_replica_context().replica_id_in_sync_group

    result = two.run(jt.function(replica_fn) if compiled else replica_fn)
    assert [x.tolist() for x in result.values] == [[1.0, 2.0], [2.0, 3.0]]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_captured_by_replicas_it_mixes_with_their_arrays(two, mirrored, compiled):
    def replica_fn(x):
        return x * mirrored

    argument = two.run(lambda: jnp.ones(2) * 2)
    result = two.run(jt.function(replica_fn) if compiled else replica_fn, args=(argument,))
    assert [x.tolist() for x in result.values] == [[2.0, 4.0]] * 2


def test_local_results_are_its_copies(two, mirrored):
    local = two.experimental_local_results(mirrored)
    assert [x.tolist() for x in local] == [[1.0, 2.0]] * 2


def test_a_compiled_function_may_return_one(two):
    with two.scope():
        v = jt.Variable(0.0)

    @jt.function
    def step(x):
        return two.extended.reduce_to("SUM", x, v)

    value = two.experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(ctx.replica_id_in_sync_group + 1)
    )
    total = step(value)
    assert isinstance(total, jt.Mirrored)
    assert [float(x) for x in total.values] == [3.0, 3.0]


def test_a_variable_takes_it(two, mirrored):
    with two.scope():
        v = jt.Variable([0.0, 0.0])
    v.assign(mirrored)
    assert v.numpy().tolist() == [1.0, 2.0]
    v.assign_add(mirrored)
    assert v.numpy().tolist() == [2.0, 4.0]


def test_it_may_be_a_key(mirrored):
    assert {mirrored: 1}[mirrored] == 1
