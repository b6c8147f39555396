"""The documents' section `reduce`, which is the same in all four."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.reference._printed import assert_per_replica, assert_tensor


def two_devices() -> jt.MirroredStrategy:
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def replica_ids(strategy: jt.Strategy) -> jt.PerReplica:
    def step_fn():
        i = jt.get_replica_context().replica_id_in_sync_group
        return jnp.asarray(i)

    return strategy.run(step_fn)


def split(strategy: jt.Strategy, *parts: list[float]) -> jt.PerReplica:
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: np.array(parts[ctx.replica_id_in_sync_group], np.float32)
    )


def test_the_sum_of_the_replica_ids():
    """000, 001, 002, 003, `reduce`, first example."""
    strategy = two_devices()
    per_replica_result = replica_ids(strategy)
    total = strategy.reduce("SUM", per_replica_result, axis=None)
    assert_tensor(total, (), "int32", 1)


def test_results_are_on_the_replicas_devices_and_the_total_is_on_one():
    """000, 001, 002, 003, `reduce`, second example: the devices of results and total."""
    strategy = two_devices()
    per_replica_result = replica_ids(strategy)
    local_results = strategy.experimental_local_results(per_replica_result)
    assert local_results[0].devices() == {jax.devices("cpu")[0]}
    assert local_results[1].devices() == {jax.devices("cpu")[1]}

    total = strategy.reduce("SUM", per_replica_result, axis=None)
    assert total.devices() == {jax.devices("cpu")[0]}


def test_the_total_is_copied_to_the_current_device():
    """000, 001, 002, 003, `reduce`: "The result is copied to the "current" device"."""
    strategy = two_devices()
    per_replica_result = replica_ids(strategy)
    with jt.device("CPU:1"):
        total = strategy.reduce("SUM", per_replica_result, axis=None)
    assert total.devices() == {jax.devices("cpu")[1]}
    assert_tensor(total, (), "int32", 1)


def test_all_reduce_is_for_the_replica_context_and_leaves_results_there():
    """000, 001, 002, 003, `reduce`: "`ReplicaContext.all_reduce`: This differs ..."."""
    strategy = two_devices()

    def step_fn():
        context = jt.get_replica_context()
        return context.all_reduce("SUM", jnp.asarray(context.replica_id_in_sync_group))

    result = strategy.run(step_fn)
    assert_per_replica(result, ((), "int32", 1), ((), "int32", 1))
    assert [c.devices() for c in result.values] == [{d} for d in jax.devices("cpu")[:2]]


def test_reduce_to_customizes_the_destination():
    """000, 001, 002, 003, `reduce`: "`reduce_to` and `batch_reduce_to`: ... advanced versions"."""
    strategy = two_devices()
    with strategy.scope():
        variable = jt.Variable(0)
    ids = replica_ids(strategy)

    on_device = strategy.extended.reduce_to("SUM", ids, "CPU:1")
    assert_tensor(on_device, (), "int32", 1)
    assert on_device.devices() == {jax.devices("cpu")[1]}

    on_variable = strategy.extended.reduce_to("SUM", ids, variable)
    assert isinstance(on_variable, jt.Mirrored)
    for copy in on_variable.values:
        assert_tensor(copy, (), "int32", 1)

    both = strategy.extended.batch_reduce_to("SUM", [(ids, "CPU:1"), (ids, variable)])
    assert_tensor(both[0], (), "int32", 1)
    assert isinstance(both[1], jt.Mirrored)
    assert variable.numpy() == 0


@pytest.mark.parametrize("reduce_op", ["sum", "SUM", jt.ReduceOp.SUM], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_axis_none_aggregates_across_replicas_only(reduce_op, compiled):
    """000, 001, 002, 003, `reduce`, "What should axis be?": `[0+4, 1+5, 2+6, 3+7]`."""
    strategy = two_devices()
    per_replica_result = split(strategy, [0, 1, 2, 3], [4, 5, 6, 7])

    def reduce(value):
        return strategy.reduce(reduce_op, value, axis=None)

    total = (jt.function(reduce) if compiled else reduce)(per_replica_result)
    assert_tensor(total, (4,), "float32", [0 + 4, 1 + 5, 2 + 6, 3 + 7])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_axis_0_aggregates_across_the_global_batch(compiled):
    """000, 001, 002, 003, `reduce`, "What should axis be?": `0+1+2+3+4+5+6+7`."""
    strategy = two_devices()
    per_replica_result = split(strategy, [0, 1, 2, 3], [4, 5, 6, 7])

    def reduce(value):
        return strategy.reduce("sum", value, axis=0)

    total = (jt.function(reduce) if compiled else reduce)(per_replica_result)
    assert_tensor(total, (), "float32", 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_last_partial_batch_needs_an_axis_and_uses_the_denominator_6(compiled):
    """000, 001, 002, 003, `reduce`, "What should axis be?": [0, 1, 2, 3] and [4, 5]."""
    strategy = two_devices()
    per_replica_result = split(strategy, [0, 1, 2, 3], [4, 5])

    def reduce(value):
        return strategy.reduce(jt.ReduceOp.MEAN, value, axis=0)

    mean = (jt.function(reduce) if compiled else reduce)(per_replica_result)
    assert_tensor(mean, (), "float32", (0 + 1 + 2 + 3 + 4 + 5) / 6)
    with pytest.raises(ValueError, match="shape"):
        strategy.reduce(jt.ReduceOp.MEAN, per_replica_result, axis=None)


def test_averaging_the_replicas_means_weighs_values_differently():
    """000, 001, 002, 003, `reduce`, "What should axis be?": "some values `1/8`, others `1/4`"."""
    strategy = two_devices()
    per_replica_result = split(strategy, [0, 1, 2, 3], [4, 5])
    means = strategy.run(jnp.mean, args=(per_replica_result,))
    mean = strategy.reduce("MEAN", means, axis=None)
    assert_tensor(mean, (), "float32", (0 + 1 + 2 + 3) / 8 + (4 + 5) / 4)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(lambda: jt.OneDeviceStrategy("CPU:1"), id="OneDeviceStrategy"),
        pytest.param(jt.get_strategy, id="default strategy"),
    ],
)
def test_a_regular_tensor_can_be_reduced_where_there_is_one_replica(strategy):
    """000, 001, 002, 003, `reduce`, Args: "a regular tensor when used with `OneDeviceStrategy`"."""
    value = jnp.array([1.0, 2.0])
    assert_tensor(strategy().reduce("SUM", value, axis=None), (2,), "float32", [1.0, 2.0])
    assert_tensor(strategy().reduce("SUM", value, axis=0), (), "float32", 3.0)
    assert_tensor(strategy().reduce("MEAN", value, axis=0), (), "float32", 1.5)
