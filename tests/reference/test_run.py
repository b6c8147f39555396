"""The documents' section `run`, which is the same in all four."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.reference._printed import assert_per_replica, assert_tensor


def two_devices() -> jt.MirroredStrategy:
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


def test_constant_tensor_input():
    """000, 001, 002, 003, `run`, example 1: "Constant tensor input"."""
    strategy = two_devices()
    tensor_input = jnp.float32(3.0)

    @jt.function
    def replica_fn(input):
        return input * 2.0

    result = strategy.run(replica_fn, args=(tensor_input,))
    assert_per_replica(result, ((), "float32", 6.0), ((), "float32", 6.0))


def test_distributed_values_input():
    """000, 001, 002, 003, `run`, example 2: "DistributedValues input"."""
    strategy = two_devices()

    @jt.function
    def run():
        def value_fn(value_context):
            return value_context.num_replicas_in_sync

        distributed_values = strategy.experimental_distribute_values_from_function(value_fn)

        def replica_fn2(input):
            return input * 2

        return strategy.run(replica_fn2, args=(distributed_values,))

    result = run()
    assert_tensor(result, (), "int32", 4)


@pytest.mark.parametrize("device", ["cpu", "CPU", "/cpu", "/device:CPU"])
def test_use_replica_context_to_allreduce_values(device):
    """000, 001, 002, 003, `run`, example 3: "Use `tf.distribute.ReplicaContext` to allreduce"."""
    strategy = jt.MirroredStrategy([f"{device}:0", f"{device}:1"])

    @jt.function
    def run():
        def value_fn(value_context):
            return jnp.array(value_context.replica_id_in_sync_group)

        distributed_values = strategy.experimental_distribute_values_from_function(value_fn)

        def replica_fn(input):
            return jt.get_replica_context().all_reduce("sum", input)

        return strategy.run(replica_fn, args=(distributed_values,))

    result = run()
    assert_per_replica(result, ((), "int32", 1), ((), "int32", 1))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_replica_gets_its_component(compiled):
    """000, 001, 002, 003, `run`: "executed with the component ... that correspond to that"."""
    strategy = two_devices()
    values = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(10 * ctx.replica_id_in_sync_group)
    )

    def call(values):
        return strategy.run(lambda x, y: x["a"] + y[0], args=({"a": values},), kwargs={"y": [1.0]})

    result = jt.function(call)(values) if compiled else call(values)
    assert_per_replica(result, ((), "float32", 1.0), ((), "float32", 11.0))


def test_fn_is_invoked_under_a_replica_context():
    """000, 001, 002, 003, `run`: "`fn` is invoked under a replica context"."""
    strategy = two_devices()
    seen = []

    def fn():
        context = jt.get_replica_context()
        seen.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        assert context.strategy is strategy
        assert not jt.in_cross_replica_context()

    assert strategy.run(fn) is None
    assert seen == [(0, 2), (1, 2)]


def test_arguments_can_be_nested_structures_of_tensors():
    """000, 001, 002, 003, `run`: "All arguments in `args` or `kwargs` ..."."""
    strategy = two_devices()
    result = strategy.run(
        lambda pair, scale: (pair[0] + pair[1]) * scale["by"],
        args=([jnp.float32(1.0), jnp.float32(2.0)],),
        kwargs={"scale": {"by": 10.0}},
    )
    assert_per_replica(result, ((), "float32", 30.0), ((), "float32", 30.0))


def test_eager_fn_is_called_once_per_replica_every_step():
    """000, 001, 002, 003, `run`: "`fn` will be called once per replica every step"."""
    strategy = two_devices()
    calls = []

    def fn():
        calls.append(jt.get_replica_context().replica_id_in_sync_group)

    strategy.run(fn)
    strategy.run(fn)
    assert calls == [0, 1, 0, 1]


def test_a_traced_fn_is_reused_with_new_inputs():
    """000, 001, 002, 003, `run`: "which will then be reused for execution with new inputs"."""
    strategy = two_devices()
    calls = []

    @jt.function
    def fn(x):
        calls.append(x)
        return x + 1

    first = strategy.run(fn, args=(jnp.float32(1.0),))
    traces = len(calls)
    second = strategy.run(fn, args=(jnp.float32(2.0),))
    assert len(calls) == traces
    assert_per_replica(first, ((), "float32", 2.0), ((), "float32", 2.0))
    assert_per_replica(second, ((), "float32", 3.0), ((), "float32", 3.0))


def test_the_result_has_the_structure_of_what_fn_returns():
    """000, 001, 002, 003, `run`, Returns: "Merged return value of `fn` across replicas"."""
    strategy = two_devices()

    def fn():
        i = jt.get_replica_context().replica_id_in_sync_group
        return {"id": jnp.asarray(i), "both": (jnp.ones((2,)) * i, None)}

    result = strategy.run(fn)
    assert_per_replica(result["id"], ((), "int32", 0), ((), "int32", 1))
    assert_per_replica(
        result["both"][0], ((2,), "float32", [0.0, 0.0]), ((2,), "float32", [1.0, 1.0])
    )
    assert result["both"][1] is None


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(lambda: jt.OneDeviceStrategy("CPU:1"), id="OneDeviceStrategy"),
        pytest.param(lambda: jt.MirroredStrategy(["CPU:1"]), id="MirroredStrategy of one"),
    ],
)
def test_a_single_replica_returns_plain_tensors(strategy):
    """000, 001, 002, 003, `run`, Returns: "`Tensor`s (for example, if running on a single ...)"."""
    result = strategy().run(lambda x: x * 2.0, args=(jnp.float32(3.0),))
    assert_tensor(result, (), "float32", 6.0)


def test_run_options_are_accepted():
    """000, 001, 002, 003, `run`, Args: `options`."""
    strategy = two_devices()
    result = strategy.run(
        lambda: np.float32(1.0) + jnp.zeros(()),
        options=jt.RunOptions(experimental_enable_dynamic_batch_size=False),
    )
    assert_per_replica(result, ((), "float32", 1.0), ((), "float32", 1.0))
