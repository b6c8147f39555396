"""What replicas hold can be looked at, and combined, wherever it comes from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.input._workers import mirrored

ON_READ = jt.VariableSynchronization.ON_READ
SUM = jt.VariableAggregation.SUM


def _dataset(strategy):
    dataset = jt.data.Dataset.from_tensor_slices(np.float32([0, 1, 2, 3])).batch(4)
    return next(iter(strategy.experimental_distribute_dataset(dataset)))


def _ran(compile, fn):
    def make(strategy):
        return strategy.run(jt.function(fn) if compile else fn, args=(_dataset(strategy),))

    return make


def _in_function(strategy):
    run = jt.function(lambda x: strategy.run(lambda x: x + 0.0, args=(x,)))
    return run(_dataset(strategy))


def _gradient(x):
    w = jnp.zeros(2)
    return jax.grad(lambda w: jnp.sum(w * x))(w)


def _variable(strategy):
    with strategy.scope():
        v = jt.Variable([0.0, 0.0], synchronization=ON_READ, aggregation=SUM)
    strategy.run(lambda x: v.assign(x), args=(_dataset(strategy),))
    return v


VALUES = {
    "an element of a dataset": _dataset,
    "an eager result": _ran(False, lambda x: x + 0.0),
    "a compiled result": _ran(True, lambda x: x + 0.0),
    "a result of a function": _in_function,
    "an eager gradient": _ran(False, _gradient),
    "a compiled gradient": _ran(True, _gradient),
    "the copies of a variable": _variable,
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_components_can_be_combined(make):
    strategy = mirrored(2)
    value = make(strategy)
    for parts in (strategy.experimental_local_results(value), value.values):
        first, second = parts
        assert jnp.concatenate(parts).tolist() == [0, 1, 2, 3]
        assert jnp.stack(parts).tolist() == [[0, 1], [2, 3]]
        assert (first + second).tolist() == [2, 4]
        assert sum(parts).tolist() == [2, 4]
        assert jnp.add(first, second).tolist() == [2, 4]
        assert jax.jit(lambda a, b: a * b)(first, second).tolist() == [0, 3]


def test_the_copies_of_a_mirrored_value_can_be_combined():
    strategy = mirrored(2)
    with strategy.scope():
        v = jt.Variable([1.0, 2.0])
    total = strategy.extended.reduce_to("SUM", _dataset(strategy), v)
    assert jnp.concatenate(total.values).tolist() == [2, 4, 2, 4]
    assert jnp.concatenate(strategy.experimental_local_results(v)).tolist() == [1, 2, 1, 2]
    reads = strategy.run(lambda: v.value())
    assert jnp.concatenate(strategy.experimental_local_results(reads)).tolist() == [1, 2, 1, 2]


def test_components_stay_on_their_devices_until_they_are_combined():
    strategy = mirrored(2)
    parts = strategy.experimental_local_results(_dataset(strategy))
    assert [part.devices() for part in parts] == [{d} for d in strategy.topology.devices]
    again = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
    result = strategy.run(jt.function(lambda x: x * 2), args=(again,))
    assert strategy.gather(result, axis=0).tolist() == [0, 2, 4, 6]


def test_functions_of_jax_take_a_mirrored_value_for_the_array():
    strategy = mirrored(2)
    value = _dataset(strategy)
    total = strategy.extended.reduce_to("SUM", value, value)
    assert jnp.add(total, 1).tolist() == [3, 5]
    assert jnp.sum(total) == 6
    assert jax.jit(lambda x: x * 2)(total).tolist() == [4, 8]


@pytest.mark.parametrize("use", [lambda x: jnp.add(x, 1), jnp.sum, lambda x: x + 1, jnp.asarray])
def test_functions_of_jax_are_told_what_to_do_with_a_value_of_each_replica(use):
    with pytest.raises((TypeError, ValueError), match=r"strategy\.gather"):
        use(_dataset(mirrored(2)))


@pytest.mark.parametrize("ops", [None, jt.ReductionToOneDevice()])
@pytest.mark.parametrize("captured", [False, True])
def test_a_reduced_value_that_a_function_returns_is_on_all_devices(ops, captured):
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"], ops)
    value = _dataset(strategy)
    reduce = jt.function(
        lambda x: strategy.extended.reduce_to("SUM", value if captured else x, value)
    )
    total = reduce(None if captured else value)
    assert [part.tolist() for part in total.values] == [[2, 4], [2, 4]]


def test_functions_return_values_that_they_did_not_compute():
    strategy = mirrored(2)
    value = _dataset(strategy)
    assert jt.function(lambda: value)().values[1].tolist() == [2, 3]
    made = jt.function(
        lambda: strategy.experimental_distribute_values_from_function(
            lambda context: jnp.ones(1) * context.replica_id_in_sync_group
        )
    )()
    assert jnp.concatenate(made.values).tolist() == [0, 1]
    by_hand = jt.function(lambda: jt.PerReplica([jnp.zeros(1), jnp.ones(1)]))()
    assert jnp.concatenate(by_hand.values).tolist() == [0, 1]
