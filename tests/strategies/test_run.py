"""What goes into `run` and what comes out (rules R30-R35, R39, R41-R46)."""

import collections
import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.strategies._values import copies, device_of, parts, per_replica, replica_id


class Pair(typing.NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Settings:
    rate: float

    def __post_init__(self):
        self.calls = 0  # not a field


class TestArguments:
    @pytest.mark.parametrize("args", [3, "ab", {"x": 1}, jnp.ones(2), None], ids=repr)
    def test_positional_ones_must_be_a_list_or_tuple(self, two, args):
        with pytest.raises(ValueError, match="positional args must be a list or tuple"):
            two.run(lambda *a: None, args=args)

    def test_no_keywords_is_the_same_as_none(self, two):
        assert two.run(lambda **kwargs: len(kwargs), kwargs=None) == 0
        assert two.run(lambda **kwargs: len(kwargs), kwargs={}) == 0

    def test_a_list_of_positional_ones_will_do(self, two):
        assert two.run(lambda x, y: x + y, args=[1, 2]) == 3

    def test_each_replica_gets_its_component(self, two, way):
        value = per_replica(two, 1.0, 2.0)
        result = two.run(way(lambda x, y: x * 10 + y), args=(value,), kwargs={"y": value})
        assert parts(two, result) == [11.0, 22.0]

    def test_components_are_found_at_any_depth(self, two, way):
        value = per_replica(two, jnp.float32(1.0), jnp.float32(2.0))

        def replica_fn(tree):
            return tree["a"][0] + tree["b"].second + tree["c"][0].rate

        tree = {"a": (value,), "b": Pair(None, value), "c": [Settings(value)]}
        assert parts(two, two.run(way(replica_fn), args=(tree,))) == [3.0, 6.0]

    def test_a_mirrored_value_is_given_as_the_copy_of_each_device(self, two):
        with two.scope():
            v = jt.Variable(0.0)
        mirrored = two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), v)
        seen = two.run(lambda x: x + 0.0, args=(mirrored,))
        assert parts(two, seen) == [3.0, 3.0]
        assert [device_of(x) for x in seen.values] == jax.devices("cpu")[:2]

    def test_a_mirrored_value_may_enter_a_compiled_step(self, two):
        with two.scope():
            v = jt.Variable(0.0)
        mirrored = two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), v)
        seen = two.run(jt.function(lambda x: x + replica_id()), args=(mirrored,))
        assert parts(two, seen) == [3.0, 4.0]

    @pytest.mark.parametrize("on_read", [False, True], ids=["mirrored", "sync on read"])
    def test_a_variable_is_passed_whole(self, two, way, on_read):
        synchronization = (
            jt.VariableSynchronization.ON_READ if on_read else jt.VariableSynchronization.AUTO
        )
        with two.scope():
            v = jt.Variable(
                1.0, synchronization=synchronization, aggregation=jt.VariableAggregation.SUM
            )
        seen = []
        two.run(way(lambda x, y: seen.append((x is v, y["v"] is v))), args=(v, {"v": v}))
        assert set(seen) == {(True, True)}

    @pytest.mark.parametrize(
        "thing",
        [
            object(),
            "text",
            b"bytes",
            7,
            2.5,
            True,
            range(3),
            {1, 2},
            len,
            int,
            np.arange(3),
            np.float32(1.0),
            jnp.arange(3),
            Settings(0.5),
        ],
        ids=lambda x: type(x).__name__,
    )
    def test_everything_else_is_passed_unchanged(self, two, thing):
        seen = []
        two.run(
            lambda x, y, z: seen.append((x, y["a"][0], z)), (thing, {"a": [thing]}), {"z": thing}
        )
        assert len(seen) == 2
        assert all(x is thing for row in seen for x in row)

    @pytest.mark.parametrize(
        "thing",
        [object(), "text", 7, 2.5, True, range(3), {1, 2}, len, Settings(0.5)],
        ids=lambda x: type(x).__name__,
    )
    def test_python_values_are_passed_to_a_compiled_step_unchanged(self, two, thing):
        seen = []
        two.run(jt.function(lambda x, y: seen.append((x, y))), (thing,), {"y": thing})
        assert seen
        assert all(x is thing for row in seen for x in row)

    def test_an_object_may_be_changed_by_the_replicas(self, two):
        settings = Settings(0.5)

        def replica_fn(settings):
            settings.calls += 1

        two.run(replica_fn, args=(settings,))
        assert settings.calls == 2

    def test_none_is_passed_as_none(self, two, way):
        seen = []
        two.run(way(lambda x, y: seen.append((x, y))), args=(None, [None]))
        assert set(map(str, seen)) == {"(None, [None])"}

    def test_an_array_placed_elsewhere_is_brought_to_each_device(self, two, way):
        array = jax.device_put(jnp.ones(2), jax.devices("cpu")[5])
        result = two.run(way(lambda x: x + 1), args=(array,))
        assert parts(two, result) == [[2.0, 2.0], [2.0, 2.0]]
        assert [device_of(x) for x in result.values] == jax.devices("cpu")[:2]

    def test_objects_as_components(self, two):
        first, second = object(), object()
        seen = []
        two.run(lambda x: seen.append(x), args=(per_replica(two, first, second),))
        assert seen == [first, second]

    def test_components_of_different_shapes(self, two, way):
        ragged = per_replica(two, jnp.arange(3.0), jnp.arange(5.0))
        assert parts(two, two.run(way(lambda x: jnp.sum(x)), args=(ragged,))) == [3.0, 10.0]

    def test_no_components_for_some_replica_is_an_error(self, two, three):
        value = per_replica(two, 1.0, 2.0)
        with pytest.raises((ValueError, RuntimeError), match=r"replica"):
            three.run(lambda x: x, args=(value,))

    @pytest.mark.parametrize("options", [None, jt.RunOptions()], ids=["none", "options"])
    def test_options_are_accepted(self, two, options):
        assert two.run(lambda: 1, options=options) == 1

    def test_the_fields_of_run_options(self):
        assert jt.RunOptions() == (True, False, None)


class TestResults:
    """R32-R35."""

    def test_what_was_computed_becomes_per_replica_even_if_equal(self, two, way):
        result = two.run(way(lambda: jnp.ones(()) * 2))
        assert isinstance(result, jt.PerReplica)
        assert parts(two, result) == [2.0, 2.0]

    @pytest.mark.parametrize("constant", [7, 7.5, "text", True, None, b"x", 1j], ids=repr)
    def test_a_python_constant_stays_bare(self, two, constant):
        result = two.run(lambda: constant)
        assert result == constant
        assert type(result) is type(constant)

    def test_equal_numbers_made_anew_stay_bare(self, two):
        assert two.run(lambda: int("1000") * 1000) == 1_000_000

    @pytest.mark.parametrize(
        "thing",
        [object(), np.arange(3), jnp.arange(3), [], {}, (), Settings(1.0)],
        ids=lambda x: type(x).__name__,
    )
    def test_one_object_returned_by_all_stays_bare(self, two, thing):
        result = two.run(lambda: [thing])
        if isinstance(thing, (list, dict, tuple)):
            assert result == [thing]
        else:
            assert result[0] is thing

    def test_an_array_passed_in_and_returned_stays_bare(self, two):
        array = jnp.arange(3)
        assert two.run(lambda x: x, args=(array,)) is array

    def test_equal_arrays_that_are_two_objects_become_per_replica(self, two):
        result = two.run(lambda: np.arange(3))
        assert isinstance(result, jt.PerReplica)

    @pytest.mark.parametrize("on_read", [False, True], ids=["mirrored", "sync on read"])
    def test_a_variable_stays_that_variable(self, two, on_read):
        synchronization = (
            jt.VariableSynchronization.ON_READ if on_read else jt.VariableSynchronization.AUTO
        )
        with two.scope():
            v = jt.Variable(
                1.0, synchronization=synchronization, aggregation=jt.VariableAggregation.SUM
            )
        assert two.run(lambda: v) is v
        assert two.run(lambda: {"v": [v]})["v"][0] is v
        value = two.run(jt.function(lambda: v))  # of the whole variable, as it is then
        assert value.item() == (2.0 if on_read else 1.0)

    def test_the_copies_of_a_variable_become_that_variable(self, two):
        with two.scope():
            v = jt.Variable(1.0)
            w = jt.Variable(1.0)
        assert two.run(lambda: v.values[replica_id()]) is v
        assert two.run(lambda: [v.values[replica_id()]])[0] is v
        # One copy of each of two variables is none of them.
        mixed = two.run(lambda: (v, w)[replica_id()].values[replica_id()])
        assert isinstance(mixed, jt.PerReplica)

    def test_assigning_returns_the_variable(self, two):
        with two.scope():
            v = jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)
        assert two.run(lambda: v.assign_add(jnp.ones(()))) is v
        assert copies(v) == [3.0, 3.0]
        value = two.run(jt.function(lambda: v.assign_add(jnp.ones(()))))  # as it is then
        assert value.item() == 5.0

    @pytest.mark.parametrize(
        "build",
        [
            pytest.param(lambda x: [x, x], id="list"),
            pytest.param(lambda x: (x, x), id="tuple"),
            pytest.param(lambda x: Pair(x, x), id="namedtuple"),
            pytest.param(lambda x: {"b": x, "a": x}, id="dict"),
            pytest.param(lambda x: collections.OrderedDict(b=x, a=x), id="ordered dict"),
            pytest.param(lambda x: collections.defaultdict(list, a=x), id="default dict"),
            pytest.param(lambda x: Settings(x), id="dataclass"),
            pytest.param(lambda x: {"a": [(x, None), Pair(x, [x])]}, id="nested"),
            pytest.param(lambda x: [], id="empty"),
        ],
    )
    def test_the_structure_is_kept(self, two, way, build):
        result = two.run(way(lambda: build(jnp.float32(1.0) + replica_id())))
        assert type(result) is type(build(0))
        locals_ = two.experimental_local_results(result)
        for i, local in enumerate(locals_ if jax.tree.leaves(build(0)) else ()):
            expected = build(1.0 + i)
            if isinstance(expected, Settings):
                local, expected = local.rate, expected.rate
            assert jax.tree.map(float, local) == jax.tree.map(float, expected)

    def test_an_ordered_dict_keeps_its_order(self, two):
        result = two.run(lambda: collections.OrderedDict([("b", replica_id()), ("a", 0)]))
        assert list(result) == ["b", "a"]

    @pytest.mark.parametrize(
        "differing",
        [
            pytest.param(lambda i: [0] * (i + 1), id="list lengths"),
            pytest.param(lambda i: (0,) * (i + 1), id="tuple lengths"),
            pytest.param(lambda i: {str(i): 0}, id="keys"),
            pytest.param(lambda i: {"a": 0} if i else {"a": 0, "b": 0}, id="number of keys"),
            pytest.param(lambda i: [0] if i else (0,), id="types"),
            pytest.param(lambda i: [[0], [0] * (i + 1)], id="nested"),
        ],
    )
    def test_structures_that_differ_are_an_error(self, two, differing):
        with pytest.raises(AssertionError, match="structure"):
            two.run(lambda: differing(replica_id()))

    def test_nothing_is_changed_when_structures_differ(self, two):
        with two.scope():
            v = jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)

        def replica_fn():
            v.assign_add(jnp.ones(()))
            return [0] * (replica_id() + 1)

        with pytest.raises(AssertionError, match="structure"):
            two.run(replica_fn)
        assert copies(v) == [1.0, 1.0]

    def test_none_on_one_replica_only_is_a_component(self, two):
        result = two.run(lambda: None if replica_id() else "first")
        assert isinstance(result, jt.PerReplica)
        assert result.values == ("first", None)

    def test_numbers_that_differ_become_per_replica(self, two):
        result = two.run(lambda: replica_id() * 10)
        assert isinstance(result, jt.PerReplica)
        assert two.experimental_local_results(result) == (0, 10)

    def test_nested_per_replica_results(self, two):
        # A per-replica value that is captured, not passed, is one object for all replicas.
        value = per_replica(two, 1.0, 2.0)
        assert two.run(lambda: value) is value

    def test_results_of_one_replica_are_plain(self, one, way):
        result = one.run(way(lambda: {"a": jnp.ones(2) * 3, "b": None}))
        assert isinstance(result["a"], jax.Array)
        assert result["a"].tolist() == [3.0, 3.0]
        assert result["b"] is None

    def test_repr_is_that_of_the_reference(self, two):
        result = two.run(lambda: jnp.float32(replica_id()))
        assert repr(result) == (
            "PerReplica:{\n  0: Array(0., dtype=float32),\n  1: Array(1., dtype=float32)\n}"
        )


class TestTracing:
    """R41, as decided: once for all replicas."""

    def test_an_eager_function_is_called_once_a_replica(self, two):
        calls = []
        two.run(lambda: calls.append(replica_id()))
        assert calls == [0, 1]

    def test_a_compiled_function_is_traced_no_more_often_for_more_replicas(self, one, two, three):
        counts = []
        for strategy in (one, two, three):
            calls = []
            strategy.run(jt.function(lambda calls=calls: calls.append(None)))
            counts.append(len(calls))
        assert len(set(counts)) == 1

    def test_a_second_call_does_not_trace(self, two):
        calls = []

        @jt.function
        def fn(x):
            calls.append(None)
            return x + 1

        two.run(fn, args=(jnp.float32(1.0),))
        traced = len(calls)
        for i in range(3):
            assert parts(two, two.run(fn, args=(jnp.float32(i),))) == [i + 1.0] * 2
        assert len(calls) == traced
        assert fn.experimental_get_tracing_count() == 1

    def test_run_inside_a_compiled_function(self, two):
        calls = []

        def replica_fn(x):
            calls.append(None)
            return x + replica_id()

        @jt.function
        def step(x):
            return two.run(replica_fn, args=(x,))

        assert parts(two, step(jnp.float32(1.0))) == [1.0, 2.0]
        traced = len(calls)
        assert parts(two, step(jnp.float32(2.0))) == [2.0, 3.0]
        assert len(calls) == traced

    def test_the_replica_id_is_a_number_in_eager_replicas(self, two):
        assert two.run(lambda: type(replica_id())) is int

    def test_the_replica_id_of_a_compiled_replica(self, three):
        assert parts(three, three.run(jt.function(lambda: replica_id() * 2))) == [0, 2, 4]


class TestMergeCall:
    """R39."""

    def test_reduces_what_differs_to_what_is_common(self, two):
        def merge_fn(strategy, x):
            return strategy.reduce("SUM", x, axis=None)

        def replica_fn():
            return jt.get_replica_context().merge_call(merge_fn, args=(replica_id() + 1,))

        result = two.run(replica_fn)
        assert not isinstance(result, jt.PerReplica)
        assert int(result) == 3

    def test_reduces_in_a_compiled_step(self, two):
        def merge_fn(strategy, x):
            return strategy.reduce("SUM", x, axis=None)

        def replica_fn():
            return jt.get_replica_context().merge_call(merge_fn, args=(replica_id() + 1,))

        assert set(parts(two, two.run(jt.function(replica_fn)))) == {3}

    def test_arguments_are_regrouped(self, two):
        thing = object()
        seen = []

        def merge_fn(strategy, x, same, structure, key):
            seen.append((x, same, structure, key))

        def replica_fn():
            jt.get_replica_context().merge_call(
                merge_fn,
                args=(replica_id(), thing, {"a": [replica_id() + 10]}),
                kwargs={"key": 5},
            )

        assert two.run(replica_fn) is None
        ((x, same, structure, key),) = seen
        assert isinstance(x, jt.PerReplica)
        assert x.values == (0, 1)
        assert same is thing
        assert structure["a"][0].values == (10, 11)
        assert key == 5

    def test_distributed_results_are_split_again(self, two):
        def replica_fn():
            x, y, z = jt.get_replica_context().merge_call(
                lambda strategy, x: (x, "same", [strategy.run(lambda a: a * 2, args=(x,))]),
                args=(replica_id() + 1,),
            )
            return x, y, z[0]

        x, y, z = two.run(replica_fn)
        assert two.experimental_local_results(x) == (1, 2)
        assert y == "same"
        assert two.experimental_local_results(z) == (2, 4)

    def test_a_mirrored_result_is_each_devices_copy(self, two):
        with two.scope():
            v = jt.Variable(0.0)

        def replica_fn():
            total = jt.get_replica_context().merge_call(
                lambda strategy, x: strategy.extended.reduce_to("SUM", x, v),
                args=(jnp.float32(replica_id() + 1),),
            )
            return total + 0

        result = two.run(replica_fn)
        assert parts(two, result) == [3.0, 3.0]
        assert [device_of(x) for x in result.values] == jax.devices("cpu")[:2]

    def test_one_object_is_given_to_every_replica(self, two):
        thing = object()
        assert two.run(lambda: jt.get_replica_context().merge_call(lambda s: thing)) is thing

    def test_of_one_replica(self, one):
        def merge_fn(strategy, x):
            assert strategy is one
            assert jt.in_cross_replica_context()
            return x + 1

        assert one.run(lambda: jt.get_replica_context().merge_call(merge_fn, args=(1,))) == 2

    def test_replicas_see_what_a_merge_function_assigned(self, two, way):
        with two.scope():
            v = jt.Variable(1.0)

        def merge_fn(strategy):
            v.assign(5.0)

        def replica_fn():
            before = v + 0
            jt.get_replica_context().merge_call(merge_fn)
            return before, v + 0

        before, after = two.run(way(replica_fn))
        assert parts(two, before) == [1.0, 1.0]
        assert parts(two, after) == [5.0, 5.0]
        assert copies(v) == [5.0, 5.0]

    def test_a_merge_function_sees_what_replicas_assigned(self, two, way):
        with two.scope():
            v = jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)

        def replica_fn():
            v.assign_add(jnp.ones(()))
            return jt.get_replica_context().merge_call(lambda strategy: v.value() * 2)

        result = two.run(way(replica_fn))
        assert set(parts(two, result)) == {6.0}
        assert copies(v) == [3.0, 3.0]


class TestLocalResults:
    """R43."""

    def test_of_a_per_replica_value(self, two):
        assert two.experimental_local_results(per_replica(two, 1, 2)) == (1, 2)

    def test_of_a_plain_value(self, two):
        assert two.experimental_local_results(5) == (5,)
        assert two.experimental_local_results([5, {"a": 6}]) == ([5, {"a": 6}],) * 2
        assert two.experimental_local_results(None) == (None,)

    def test_of_a_structure(self, two):
        structure = {"a": [per_replica(two, 1, 2)], "b": 3, "c": Pair(per_replica(two, 4, 5), None)}
        assert two.experimental_local_results(structure) == (
            {"a": [1], "b": 3, "c": Pair(4, None)},
            {"a": [2], "b": 3, "c": Pair(5, None)},
        )

    def test_of_a_variable(self, two):
        with two.scope():
            v = jt.Variable(1.0, name="v")
        names = [component.name for component in two.experimental_local_results(v)]
        assert names == ["v", "v/replica_1"]

    def test_of_a_structure_with_a_variable(self, two):
        with two.scope():
            v = jt.Variable(1.0, name="v")
        local = two.experimental_local_results({"v": v, "x": 3})
        assert [part["v"].name for part in local] == ["v", "v/replica_1"]
        assert [part["x"] for part in local] == [3, 3]

    def test_of_a_sync_on_read_variable(self, two):
        with two.scope():
            v = jt.Variable(
                0,
                synchronization=jt.VariableSynchronization.ON_READ,
                aggregation=jt.VariableAggregation.SUM,
            )
        two.run(lambda: v.assign(replica_id() + 1))
        assert [int(x.value()) for x in two.experimental_local_results(v)] == [1, 2]

    def test_of_a_value_of_one_replica(self, one):
        assert one.experimental_local_results(one.run(lambda: 4)) == (4,)
        wrapped = one.experimental_distribute_values_from_function(lambda ctx: 4)
        assert one.experimental_local_results(wrapped) == (4,)


class TestValuesFromAFunction:
    """R34, R45."""

    def test_is_called_once_a_replica_in_order(self, three):
        calls = []

        def value_fn(ctx):
            calls.append((ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync))
            return ctx.replica_id_in_sync_group * 2

        value = three.experimental_distribute_values_from_function(value_fn)
        assert calls == [(0, 3), (1, 3), (2, 3)]
        assert value.values == (0, 2, 4)

    def test_always_wraps(self, one, two):
        wrapped = one.experimental_distribute_values_from_function(lambda ctx: jnp.ones(()))
        assert isinstance(wrapped, jt.PerReplica)
        same = two.experimental_distribute_values_from_function(lambda ctx: 7)
        assert isinstance(same, jt.PerReplica)
        assert same.values == (7, 7)

    def test_structures_are_wrapped_leaf_by_leaf(self, two):
        value = two.experimental_distribute_values_from_function(
            lambda ctx: {"a": ctx.replica_id_in_sync_group, "b": [1.5]}
        )
        assert value["a"].values == (0, 1)
        assert value["b"][0].values == (1.5, 1.5)

    def test_is_refused_in_a_replica(self, two):
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            two.run(lambda: two.experimental_distribute_values_from_function(lambda ctx: 0))

    def test_a_value_context_can_be_made(self):
        context = jt.experimental.ValueContext()
        assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (0, 1)
        context = jt.experimental.ValueContext(3, 4)
        assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (3, 4)
        context = jt.experimental.ValueContext(num_replicas_in_sync=4, replica_id_in_sync_group=3)
        assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (3, 4)


class TestVariablesCreatedInside:
    """R46."""

    def test_are_created_once_and_shared(self, two):
        holder = []

        def replica_fn():
            v = jt.Variable(1.0, name="inside")
            holder.append(v)
            return v

        result = two.run(replica_fn)
        assert holder[0] is holder[1]
        assert result is holder[0]
        assert isinstance(result, jt.MirroredVariable)

    def test_start_with_what_replica_zero_asked_for(self, two):
        result = two.run(lambda: jt.Variable(jnp.float32(5.0 + replica_id())))
        assert copies(result) == [5.0, 5.0]

    def test_start_with_one_value_of_a_random_initializer(self, two):
        generator = np.random.default_rng(0)
        result = two.run(lambda: jt.Variable(lambda: generator.normal(size=3).astype("float32")))
        first, second = copies(result)
        assert first == second

    def test_a_variable_created_on_the_first_call_is_kept(self, two, way):
        created = []

        def replica_fn():
            if not created:
                created.append(jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM))
            return created[0].assign_add(jnp.ones(()))

        # Eagerly both replicas ask whether it exists, so it is made before.
        fn = way(replica_fn)
        with two.scope():
            if fn is replica_fn:
                created.append(jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM))
        two.run(fn)
        two.run(fn)
        assert len(created) == 1
        assert copies(created[0]) == [5.0, 5.0]
