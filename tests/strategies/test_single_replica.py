"""The default strategy and `OneDeviceStrategy` (rules R14, R16, R28, R65)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.strategies._values import device_of

DEFAULT = jt.get_strategy()


@pytest.fixture(scope="module")
def single():
    return jt.OneDeviceStrategy("CPU:1")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", [lambda: DEFAULT, lambda: jt.OneDeviceStrategy("CPU:1")])
def test_replicas_that_are_alone_see_plain_arrays(make, compiled):
    strategy = make()
    with strategy.scope():
        v = jt.Variable(0.0)
    seen = []

    def merge(strategy, x):
        return strategy.extended.reduce_to("SUM", x, v)

    def replica_fn(x):
        seen.extend([x, jt.get_replica_context().merge_call(merge, args=(x,))])
        return seen[-1]

    value = strategy.experimental_distribute_values_from_function(lambda _: jnp.float32(3.0))
    seen.append(value)
    result = strategy.run(jt.function(replica_fn) if compiled else replica_fn, args=(value,))
    assert float(result) == 3.0
    assert all(isinstance(one, jax.Array) for one in seen)


class TestDefault:
    @pytest.mark.parametrize("name", ["worker_devices", "parameter_devices"])
    def test_has_no_devices(self, name):
        with pytest.raises(RuntimeError, match="default strategy"):
            getattr(DEFAULT.extended, name)

    @pytest.mark.parametrize(
        ("op", "axis", "expected"),
        [("MEAN", 0, 1.5), ("SUM", 0, 3), ("SUM", None, [1, 2]), ("MEAN", None, [1, 2])],
    )
    @pytest.mark.parametrize("make", [list, np.array, jnp.array], ids=["list", "numpy", "jax"])
    def test_reduce_reduces_along_the_axis_only(self, op, axis, expected, make):
        reduced = DEFAULT.reduce(op, make([1, 2]), axis=axis)
        assert np.asarray(reduced).tolist() == expected

    def test_gather_returns_its_argument(self):
        value = jnp.ones((2, 1))
        assert DEFAULT.gather(value, axis=0) is value

    def test_run_calls_once_with_the_very_arguments(self):
        arguments = []
        thing = object()
        result = DEFAULT.run(lambda x, y: arguments.append((x, y)) or x, (thing,), {"y": [thing]})
        assert result is thing
        assert arguments == [(thing, [thing])]

    def test_refuses_positional_arguments_that_are_no_list(self):
        with pytest.raises(ValueError, match="positional args must be a list or tuple"):
            DEFAULT.run(lambda x: x, args=3)

    def test_has_one_replica_and_no_resolver(self):
        assert DEFAULT.num_replicas_in_sync == 1
        assert DEFAULT.cluster_resolver is None

    def test_local_results_is_a_tuple_of_the_value(self):
        value = jnp.ones(2)
        assert DEFAULT.experimental_local_results(value) == (value,)

    def test_values_from_a_function_are_plain(self):
        value = DEFAULT.experimental_distribute_values_from_function(
            lambda ctx: (ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync)
        )
        assert value == (0, 1)

    def test_variables_are_plain(self):
        v = jt.Variable(1.0)
        assert type(v) is jt.Variable
        assert DEFAULT.extended.variable_created_in_scope(v)

    def test_all_reduce_and_all_gather_return_their_arguments(self):
        context = jt.get_replica_context()
        reduced = context.all_reduce("SUM", {"a": jnp.ones(2), "b": [jnp.float32(3.0)]})
        assert jax.tree.map(lambda x: x.tolist(), reduced) == {"a": [1.0, 1.0], "b": [3.0]}
        assert context.all_reduce("MEAN", jnp.float32(3.0)) == 3.0
        assert context.all_gather(jnp.arange(3), axis=0).tolist() == [0, 1, 2]

    def test_reduce_refuses_an_unknown_op_and_axis(self):
        with pytest.raises(ValueError, match="Unknown reduce op"):
            DEFAULT.reduce("MAX", [1.0], axis=0)
        with pytest.raises(ValueError, match="out of range"):
            DEFAULT.reduce("SUM", [1.0], axis=1)

    def test_update_updates_a_plain_variable(self):
        v = jt.Variable(1.0)
        DEFAULT.extended.update(v, lambda v, x: v.assign(x), args=(5.0,))
        assert float(v) == 5.0


class TestOneDevice:
    def test_has_one_replica_on_the_device(self, single):
        name = "/job:localhost/replica:0/task:0/device:CPU:1"
        assert single.num_replicas_in_sync == 1
        assert single.extended.worker_devices == (name,)
        assert single.extended.parameter_devices == (name,)
        assert single.cluster_resolver is None

    def test_variables_are_plain_and_on_the_device(self, single):
        with single.scope():
            v = jt.Variable(1.0)
        assert isinstance(v, jt.Variable)
        assert not isinstance(v, (jt.MirroredVariable, jt.SyncOnReadVariable))
        assert v.device == "/job:localhost/replica:0/task:0/device:CPU:1"
        assert single.extended.variable_created_in_scope(v)

    def test_run_computes_on_the_device(self, single):
        assert device_of(single.run(lambda: jnp.ones(()))) == jax.devices("cpu")[1]
        assert device_of(single.run(jt.function(lambda x: x + 1), (1.0,))) == jax.devices("cpu")[1]

    @pytest.mark.parametrize("op", ["SUM", "MEAN"])
    def test_reduce_without_axis_returns_the_value(self, single, op):
        value = single.run(lambda: jnp.array([1.0, 2.0]))
        assert single.reduce(op, value, axis=None).tolist() == [1.0, 2.0]

    def test_reduce_with_an_axis_reduces_along_it(self, single):
        value = single.run(lambda: jnp.array([1.0, 2.0]))
        assert float(single.reduce("SUM", value, axis=0)) == 3.0
        assert float(single.reduce("MEAN", value, axis=0)) == 1.5

    def test_gather_returns_the_value(self, single):
        value = single.run(lambda: jnp.ones((2, 1)))
        assert single.gather(value, axis=0) is value

    def test_results_are_plain(self, single):
        assert single.run(lambda: 7) == 7
        assert isinstance(single.run(lambda: jnp.ones(2)), jax.Array)
        thing = object()
        assert single.run(lambda x: x, (thing,)) is thing

    @pytest.mark.parametrize("op", ["SUM", "MEAN"])
    def test_collectives_of_one_replica(self, single, way, op):
        def replica_fn():
            context = jt.get_replica_context()
            return context.all_reduce(op, jnp.float32(3.0)), context.all_gather(jnp.ones(2), axis=0)

        reduced, gathered = single.run(way(replica_fn))
        assert float(reduced) == 3.0
        assert gathered.tolist() == [1.0, 1.0]

    def test_merge_call_is_made_outside_of_the_replica(self, single):
        def merge_fn(strategy, x):
            assert strategy is single
            assert jt.in_cross_replica_context()
            return x + 1

        assert single.run(lambda: jt.get_replica_context().merge_call(merge_fn, args=(1,))) == 2

    @pytest.mark.parametrize(
        "aggregation", list(jt.VariableAggregation), ids=lambda a: a.name.lower()
    )
    def test_replicas_may_assign_whatever_the_aggregation(self, single, way, aggregation):
        with single.scope():
            v = jt.Variable(10.0, aggregation=aggregation)
        single.run(way(lambda: v.assign_add(jnp.float32(1.0))))
        assert float(v) == 11.0

    def test_a_values_function_is_called_once(self, single):
        calls = []
        value = single.experimental_distribute_values_from_function(
            lambda ctx: (
                calls.append((ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync)) or 5.0
            )
        )
        assert calls == [(0, 1)]
        assert single.experimental_local_results(value) == (5.0,)
        assert float(single.run(lambda x: jnp.float32(x), (value,))) == 5.0

    def test_its_variables_do_not_mix_with_another_strategy(self, single, two):
        with single.scope():
            v = jt.Variable(1.0)
        with two.scope():
            with pytest.raises(RuntimeError, match="Mixing different"):
                v.value()
            with pytest.raises(RuntimeError, match="Mixing different"):
                v.assign(2.0)
        assert float(v) == 1.0

    def test_may_not_run_inside_itself(self, single):
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            single.run(lambda: single.run(lambda: None))
        assert not jt.has_strategy()
