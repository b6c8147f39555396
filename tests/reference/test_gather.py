"""The documents' section `gather`, in 000, 001 and 002."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.reference._printed import assert_per_replica, assert_tensor


def test_gather_along_axis_0():
    """000, 001, 002, `gather`, first example."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda _: jnp.array([[1], [2]])
    )

    @jt.function
    def run():
        return strategy.gather(distributed_values, axis=0)

    assert_tensor(run(), (4, 1), "int32", [[1], [2], [1], [2]])


@pytest.fixture(scope="module")
def run_on_four():
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"])
    single_tensor = jnp.reshape(jnp.arange(6), (1, 2, 3))
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda _: single_tensor + 0
    )

    @jt.function
    def run(axis):
        return strategy.gather(distributed_values, axis=axis)

    return run


def test_more_combinations_axis_0(run_on_four):
    """000, 001, 002, `gather`, second example, axis=0."""
    block = [[0, 1, 2], [3, 4, 5]]
    assert_tensor(run_on_four(0), (4, 2, 3), "int32", [block, block, block, block])


def test_more_combinations_axis_1(run_on_four):
    """000, 001, 002, `gather`, second example, axis=1."""
    rows = [[0, 1, 2], [3, 4, 5]] * 4
    assert_tensor(run_on_four(1), (1, 8, 3), "int32", [rows])


def test_more_combinations_axis_2(run_on_four):
    """000, 001, 002, `gather`, second example, axis=2."""
    rows = [[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5]]
    assert_tensor(run_on_four(2), (1, 2, 12), "int32", [rows])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_shapes_may_differ_along_the_axis_only(compiled):
    """000, 001, 002, `gather`, Note: shapes `(1, 2, 3)` and `(1, 3, 3)`."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed_values = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.full((1, 2 + ctx.replica_id_in_sync_group, 3), 1.0)
    )

    def run(axis):
        return strategy.gather(distributed_values, axis=axis)

    run = jt.function(run) if compiled else run
    assert_tensor(run(1), (1, 5, 3), "float32", np.ones((1, 5, 3)))
    for axis in 0, 2:
        with pytest.raises(ValueError, match="shapes"):
            run(axis)


def test_components_need_a_non_zero_rank():
    """000, 001, 002, `gather`, Note: "must have a non-zero rank"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    scalars = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(ctx.replica_id_in_sync_group)
    )
    with pytest.raises(ValueError, match="expand_dims"):
        strategy.gather(scalars, axis=0)
    expanded = strategy.run(lambda x: jnp.expand_dims(x, 0), args=(scalars,))
    assert_tensor(strategy.gather(expanded, axis=0), (2,), "float32", [0.0, 1.0])


@pytest.mark.parametrize("axis", [-1, 1])
def test_the_axis_must_be_in_range(axis):
    """000, 001, 002, `gather`, Args: "Must be in the range [0, rank(value))"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    values = strategy.experimental_distribute_values_from_function(lambda _: jnp.ones((2,)))
    with pytest.raises(ValueError, match="range"):
        strategy.gather(values, axis=axis)


def test_indexed_slices_cannot_be_gathered():
    """000, 001, 002, `gather`, Args: "NOT a `tf.IndexedSlices`"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    slices = strategy.run(
        lambda: jt.IndexedSlices(jnp.ones((1, 2)), jnp.array([0]), dense_shape=(3, 2))
    )
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        strategy.gather(slices, axis=0)


def test_gather_is_for_the_cross_replica_context():
    """000, 001, 002, `gather`: "can only be called in the cross-replica context"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

    def inside():
        strategy.gather(jnp.ones((1,)), axis=0)

    with pytest.raises(RuntimeError, match="all_gather"):
        strategy.run(inside)


def test_all_gather_is_its_counterpart_in_the_replica_context():
    """000, 001, 002, `gather`: "For a counterpart in the replica context, see ... all_gather"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

    def inside():
        context = jt.get_replica_context()
        return context.all_gather(jnp.full((1,), context.replica_id_in_sync_group), axis=0)

    assert_per_replica(strategy.run(inside), ((2,), "int32", [0, 1]), ((2,), "int32", [0, 1]))


def test_the_result_is_on_the_current_device():
    """000, 001, 002, `gather`: "The result is copied to the "current" device"."""
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    values = strategy.run(lambda: jnp.ones((1,)))
    assert strategy.gather(values, axis=0).devices() == {jax.devices("cpu")[0]}
    with jt.device("CPU:1"):
        assert strategy.gather(values, axis=0).devices() == {jax.devices("cpu")[1]}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(lambda: jt.OneDeviceStrategy("CPU:1"), id="OneDeviceStrategy"),
        pytest.param(jt.get_strategy, id="default strategy"),
    ],
)
def test_a_regular_tensor_can_be_gathered_where_there_is_one_replica(strategy):
    """000, 001, 002, `gather`, Args: "a regular tensor when used with `OneDeviceStrategy`"."""
    value = jnp.array([[1], [2]])
    assert_tensor(strategy().gather(value, axis=0), (2, 1), "int32", [[1], [2]])
