"""`experimental_distribute_values_from_function` and `experimental_local_results`."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxtribute as jt
from tests.reference._printed import assert_tensor


def two_devices() -> jt.MirroredStrategy:
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def test_return_constant_value_per_replica():
    """000, 001, 002, `experimental_distribute_values_from_function`, example 1."""
    strategy = two_devices()

    def value_fn(ctx):
        return jnp.array(1.0)

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    assert isinstance(local_result, tuple)
    assert len(local_result) == 2
    for component in local_result:
        assert_tensor(component, (), "float32", 1.0)


def test_distribute_values_in_array_based_on_replica_id():
    """000, 001, 002, `experimental_distribute_values_from_function`, example 2."""
    strategy = two_devices()
    array_value = np.array([3.0, 2.0, 1.0])

    def value_fn(ctx):
        return array_value[ctx.replica_id_in_sync_group]

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    assert local_result == (3.0, 2.0)


def test_specify_values_using_num_replicas_in_sync():
    """000, 001, 002, `experimental_distribute_values_from_function`, example 3."""
    strategy = two_devices()

    def value_fn(ctx):
        return ctx.num_replicas_in_sync

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    assert local_result == (2, 2)


def test_place_values_on_devices_and_distribute():
    """000, 001, 002, `experimental_distribute_values_from_function`, example 4."""
    strategy = two_devices()
    worker_devices = strategy.extended.worker_devices
    multiple_values = []
    for i in range(strategy.num_replicas_in_sync):
        with jt.device(worker_devices[i]):
            multiple_values.append(jnp.array(1.0))

    def value_fn(ctx):
        return multiple_values[ctx.replica_id_in_sync_group]

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    for component, device in zip(local_result, jax.devices("cpu"), strict=False):
        assert_tensor(component, (), "float32", 1.0)
        assert component.devices() == {device}


def test_value_fn_is_called_for_each_replica_with_a_value_context():
    """000, 001, 002, `experimental_distribute_values_from_function`, Args."""
    strategy = two_devices()
    seen = []

    def value_fn(ctx):
        seen.append((type(ctx), ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync))
        return 0.0

    result = strategy.experimental_distribute_values_from_function(value_fn)
    assert isinstance(result, jt.DistributedValues)
    assert seen == [(jt.experimental.ValueContext, 0, 2), (jt.experimental.ValueContext, 1, 2)]


def test_the_values_can_be_passed_to_run_and_reduce():
    """000, 001, 002, `experimental_distribute_values_from_function`: "to pass into `run` ..."."""
    strategy = two_devices()
    values = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.float32(ctx.replica_id_in_sync_group)
    )
    doubled = strategy.run(lambda x: x * 2, args=(values,))
    assert strategy.reduce("SUM", doubled, axis=None) == 2.0
    assert strategy.reduce("SUM", values, axis=None) == 1.0


def test_local_results_of_what_run_returned():
    """000, 001, 002, 003, `experimental_local_results`: "A value returned by ... `run()`"."""
    strategy = two_devices()

    def step_fn():
        return jnp.asarray(jt.get_replica_context().replica_id_in_sync_group)

    for result in strategy.run(step_fn), strategy.extended.call_for_each_replica(step_fn):
        first, second = strategy.experimental_local_results(result)
        assert_tensor(first, (), "int32", 0)
        assert_tensor(second, (), "int32", 1)


def test_local_results_of_a_variable_created_in_scope():
    """000, 001, 002, 003, `experimental_local_results`: "or a variable created in `scope`"."""
    strategy = two_devices()
    with strategy.scope():
        variable = jt.Variable(1.0)
    assert [repr(copy) for copy in strategy.experimental_local_results(variable)] == [
        "<jt.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>",
        "<jt.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>",
    ]


def test_local_results_of_a_single_value():
    """000, 001, 002, 003, `experimental_local_results`: "this returns `(value,).`"."""
    value = jnp.float32(1.0)
    assert two_devices().experimental_local_results(value) == (value,)
    assert jt.OneDeviceStrategy("CPU:0").experimental_local_results(value) == (value,)
