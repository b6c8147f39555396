"""`jt.function`: when it traces, what it takes and returns, what it captures."""

import copy
import dataclasses
import functools
import gc
import threading
import weakref
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.sharded import ShardedVariable
from tests.variables._support import (
    FIRST,
    MEAN,
    ON_READ,
    SUM,
    components,
    create,
    local,
    mirrored,
    one_device,
    replica_id,
)


@pytest.fixture
def strategy():
    return mirrored(2)


class Traced:
    """Counts how often the body of a function runs, which is when it is traced."""

    def __init__(self, fn, **kwargs):
        self.traces = 0

        def counted(*args, **kwargs):
            self.traces += 1
            return fn(*args, **kwargs)

        self.fn = jt.function(counted, **kwargs)

    def __call__(self, *args, **kwargs):
        """Call, and return whether the call was traced."""
        before = self.traces
        self.result = self.fn(*args, **kwargs)
        return self.traces > before


class TestWhenItTraces:
    def test_first_call_only(self):
        step = Traced(lambda x: x * 2)
        assert step(jnp.ones(2))
        assert not step(jnp.zeros(2))
        assert not step(jnp.ones(2) + 1)
        assert step.traces == 1
        assert step.result.tolist() == [4, 4]
        assert step.fn.experimental_get_tracing_count() == 1

    def test_with_variables_first_call_only(self, strategy):
        v = create(strategy, 0.0, aggregation=SUM)
        w = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)
        plain = jt.Variable(0.0)

        def body(x):
            strategy.run(lambda x: v.assign_add(x + replica_id()), args=(x,))
            strategy.run(lambda x: w.assign_add(x + replica_id()), args=(x,))
            plain.assign_add(1.0)
            return v + w + plain

        step = Traced(body)
        assert step(jnp.float32(1.0))
        assert not any(step(jnp.float32(i)) for i in range(5))
        v.assign(1.0)
        w.assign(2.0)
        plain.assign(3.0)
        v.numpy(), w.numpy()
        assert not step(jnp.float32(1.0))
        strategy.run(lambda: v.assign_add(jnp.float32(1.0)))
        strategy.run(lambda: w.assign_add(jnp.float32(1.0)))
        assert not step(jnp.float32(1.0))

    def test_new_shapes_and_types(self):
        step = Traced(lambda x: x * 2)
        for x in (
            jnp.ones(2),
            jnp.ones(3),
            jnp.ones((2, 1)),
            jnp.ones(()),
            jnp.ones(2, jnp.int32),
            jnp.ones(2, jnp.bfloat16),
            jnp.ones(2, jnp.bool_),
        ):
            assert step(x)
            assert not step(x + x)
        assert step.fn.experimental_get_tracing_count() == 7

    def test_python_values(self):
        step = Traced(lambda x, n: x * n)
        x = jnp.ones(2)
        for n in (1, 1.0, True, 2, 1j, 0, 0.0, False):
            assert step(x, n)
            np.testing.assert_array_equal(step.result, np.ones(2) * n)
        for n in (1, 1.0, True, 2, 1j, 0, 0.0, False):
            assert not step(x, n)
            np.testing.assert_array_equal(step.result, np.ones(2) * n)

    def test_python_values_that_are_equal_but_not_the_same(self):
        sign = jt.function(lambda x, n: x * jnp.copysign(1.0, n))
        assert sign(jnp.float32(1.0), 0.0) == 1
        assert sign(jnp.float32(1.0), -0.0) == -1
        assert sign(jnp.float32(1.0), 0.0) == 1

    def test_equal_python_values_do_not(self):
        step = Traced(lambda x, n: x)
        x = jnp.ones(2)
        assert step(x, "mean")
        assert not step(x, "".join(["me", "an"]))
        assert step(x, "sum")
        assert step(x, None)
        assert not step(x, None)
        assert step(x, (1, 2))
        assert not step(x, (1, 2))
        assert step(x, [1, 2])
        assert step(x, jt.ReduceOp.SUM)
        assert not step(x, jt.ReduceOp.SUM)

    def test_objects_by_identity(self):
        class Config:
            __hash__ = None

            def __init__(self, scale):
                self.scale = scale

        step = Traced(lambda x, config: x * config.scale)
        two, three = Config(2.0), Config(3.0)
        assert step(jnp.float32(1.0), two)
        assert step.result == 2
        assert step(jnp.float32(1.0), three)
        assert step.result == 3
        assert not step(jnp.float32(1.0), two)
        assert step.result == 2

    def test_an_object_is_never_taken_for_one_that_is_gone(self):
        class Config:
            __hash__ = None

            def __init__(self, scale):
                self.scale = scale

        scaled = jt.function(lambda x, config: x * config.scale)
        for scale in range(8):  # each in the memory of the one before, if that was let go
            assert scaled(jnp.float32(1.0), Config(float(scale))) == scale

    def test_numpy_and_jax_arrays_are_one_kind(self):
        step = Traced(lambda x: x * 2)
        assert step(np.ones(2, np.float32))
        assert not step(jnp.ones(2))
        assert not step(np.zeros(2, np.float32))
        assert isinstance(step.result, jax.Array)

    def test_numpy_numbers_are_arrays(self):
        step = Traced(lambda x: x * 2)
        assert step(np.float32(1.0))
        assert not step(np.float32(2.0))
        assert not step(jnp.float32(3.0))
        assert step.result == 6

    def test_numpy_doubles(self):
        step = Traced(lambda x: x * 2)
        step(np.ones(2))
        assert not step(np.zeros(2))
        assert step.result.dtype == jnp.float32

    def test_weak_types_settle(self):
        step = Traced(lambda x: x + 1)
        for _ in range(2):
            step(jnp.asarray(1.0))  # weakly typed
            step(jnp.float32(1.0))
        traces = step.traces
        for _ in range(3):
            assert not step(jnp.asarray(1.0))
            assert not step(jnp.float32(1.0))
        assert step.traces == traces

    def test_weak_types_through_variables_settle(self):
        v = jt.Variable(1.0)
        step = Traced(lambda x: v.assign(x * 2.0))
        step(jnp.asarray(1.0))
        step(jnp.float32(1.0))
        traces = step.traces
        for _ in range(3):
            step(v.value())
            step(jnp.asarray(1.0))
        assert step.traces == traces

    def test_feeding_results_back(self, strategy):
        v = create(strategy, 1.0, aggregation=SUM)

        def body(x):
            return strategy.reduce("SUM", strategy.run(lambda x: x * v, args=(x,)), axis=None)

        step = Traced(body)
        step(jnp.float32(1.0))
        traces = step.traces
        x = jnp.float32(1.0)
        for _ in range(3):
            step(x)
            x = step.result
        assert step.traces == traces
        assert x == 8

    def test_under_another_strategy(self):
        step = Traced(lambda x: x * jt.get_strategy().num_replicas_in_sync)
        assert step(jnp.float32(1.0))
        for replicas in (2, 3):
            with mirrored(replicas).scope():
                assert step(jnp.float32(1.0))
                assert step.result == replicas
                assert not step(jnp.float32(1.0))
        assert not step(jnp.float32(1.0))
        assert step.result == 1

    def test_many_programs_are_warned_of_once(self):
        step = jt.function(lambda x: x)
        with pytest.warns(UserWarning, match="jnp.float32") as caught:
            for i in range(14):
                step(i)
        assert len(caught) == 1
        assert caught[0].filename == __file__


class TestArguments:
    def test_keywords_and_defaults(self):
        @jt.function
        def step(x, scale=2.0, *, shift=0.0):
            return x * scale + shift

        x = jnp.float32(1.0)
        assert step(x) == 2
        assert step(x, 3.0) == 3
        assert step(x, scale=jnp.float32(4.0)) == 4
        assert step(shift=jnp.float32(1.0), x=x) == 3
        assert step(x, shift=1.0, scale=5.0) == 6

    def test_the_order_of_keywords_does_not_matter(self):
        step = Traced(lambda **kwargs: kwargs["a"] - kwargs["b"])
        assert step(a=jnp.float32(3.0), b=jnp.float32(1.0))
        assert not step(b=jnp.float32(1.0), a=jnp.float32(5.0))
        assert step.result == 4

    def test_mistakes_in_calls(self):
        step = jt.function(lambda x: x)
        with pytest.raises(TypeError):
            step()
        with pytest.raises(TypeError):
            step(1.0, y=2.0)
        assert step(jnp.float32(1.0)) == 1

    def test_nested_structures(self):
        Point = namedtuple("Point", "x y")

        @dataclasses.dataclass
        class Batch:
            inputs: jax.Array
            labels: list
            name: str = "train"

        step = Traced(
            lambda tree: {
                "sum": tree["point"].x + tree["batch"].inputs,
                "again": dataclasses.replace(tree["batch"], inputs=tree["batch"].inputs * 2),
                "point": Point(tree["point"].y, tree["nothing"]),
                "list": [*tree["batch"].labels, (tree["batch"].name,)],
            }
        )

        def tree(i, name="train"):
            return {
                "point": Point(jnp.float32(i), np.float32(i + 1)),
                "batch": Batch(jnp.ones(2) * i, [jnp.float32(i), 7], name),
                "nothing": None,
            }

        assert step(tree(1))
        assert not step(tree(2))
        result = step.result
        assert result["sum"].tolist() == [4, 4]
        assert type(result["again"]) is Batch
        assert result["again"].inputs.tolist() == [4, 4]
        assert result["again"].name == "train"
        assert type(result["point"]) is Point
        assert result["point"].x == 3
        assert result["point"].y is None
        assert result["list"][0] == 2
        assert result["list"][2] == ("train",)
        assert step(tree(2, "test"))
        assert step.result["again"].name == "test"

    def test_frozen_and_nested_dataclasses(self):
        @dataclasses.dataclass(frozen=True)
        class Inner:
            x: jax.Array

        @dataclasses.dataclass(frozen=True)
        class Outer:
            inner: Inner
            many: tuple

        step = Traced(lambda o: Outer(Inner(o.inner.x + 1), (o.many[0].x, o.inner)))
        assert step(Outer(Inner(jnp.float32(1.0)), (Inner(jnp.float32(5.0)),)))
        assert not step(Outer(Inner(jnp.float32(2.0)), (Inner(jnp.float32(6.0)),)))
        assert step.result.inner.x == 3
        assert step.result.many[0] == 6
        assert type(step.result.many[1]) is Inner

    def test_variables(self):
        step = Traced(lambda v, x: v.assign_add(x))
        v, w = jt.Variable(1.0), jt.Variable(10.0)
        assert step(v, jnp.float32(1.0))
        assert step(w, jnp.float32(1.0))
        assert not step(v, jnp.float32(1.0))
        assert (v.numpy(), w.numpy()) == (3, 11)

    def test_distributed_values(self, strategy):
        double = Traced(lambda x: strategy.run(lambda x: x * 2 + replica_id(), args=(x,)))
        for i in range(3):
            values = strategy.experimental_distribute_values_from_function(
                lambda ctx, i=i: np.full(2, 10.0 * ctx.replica_id_in_sync_group + i, np.float32)
            )
            assert double(values) == (i == 0)
            assert local(strategy, double.result) == [[2 * i] * 2, [20 + 2 * i + 1] * 2]

    def test_mirrored_values(self, strategy):
        v = create(strategy, 3.0)
        with strategy.scope():
            total = strategy.extended.reduce_to("MEAN", v, v)
        assert isinstance(total, jt.Mirrored)
        assert jt.function(lambda x: x * 2)(total) == 6
        assert local(
            strategy, jt.function(lambda x: strategy.run(lambda x: x * 2, args=(x,)))(total)
        ) == [6, 6]

    def test_constants_per_replica(self, strategy):
        """Python numbers that are the same on all replicas are constants; others are arrays."""
        same = strategy.experimental_distribute_values_from_function(lambda ctx: 3)
        ids = strategy.experimental_distribute_values_from_function(
            lambda ctx: ctx.replica_id_in_sync_group
        )

        @jt.function
        def step(x):
            return strategy.run(lambda x: jnp.ones(2) * x, args=(x,))

        assert local(strategy, step(same)) == [[3, 3], [3, 3]]
        assert local(strategy, step(ids)) == [[0, 0], [1, 1]]
        other = strategy.experimental_distribute_values_from_function(lambda ctx: 4)
        assert local(strategy, step(other)) == [[4, 4], [4, 4]]

    @pytest.mark.parametrize("device", [0, 1, 5])
    def test_arrays_of_any_device(self, strategy, device):
        plain, v = jt.Variable(1.0), create(strategy, 1.0)
        x = jax.device_put(jnp.float32(2.0), jax.devices()[device])
        assert jt.function(lambda x: x * 2)(x) == 4
        assert jt.function(lambda x: x * plain)(x) == 2
        assert jt.function(lambda x: x * v)(x) == 2
        in_replicas = jt.function(lambda x: strategy.run(lambda x: x * v + replica_id(), args=(x,)))
        assert local(strategy, in_replicas(x)) == [2, 3]

    def test_arrays_of_several_devices_in_turn(self, strategy):
        """A variable stays where it is, whatever is added to it."""
        plain, v = jt.Variable(0.0), create(strategy, 0.0)
        step = jt.function(lambda x: (plain.assign_add(x), v.assign_add(x)))
        only_plain = jt.function(lambda x: plain.assign_add(x))
        device = plain.device
        for i in (1, 2, 0, 5):
            x = jax.device_put(jnp.float32(1.0), jax.devices()[i])
            step(x)
            only_plain(x)
        assert plain.numpy() == 8
        assert plain.device == device
        assert components(v) == [4, 4]

    def test_arrays_of_several_devices_at_once(self, strategy):
        v = create(strategy, 0.0)
        x, y = (jax.device_put(jnp.float32(1.0), jax.devices()[i]) for i in (1, 5))
        assert jt.function(lambda x, y: x + y + v)(x, y) == 2

    def test_results_of_reduce(self, strategy):
        v = create(strategy, 1.0)
        total = strategy.reduce("SUM", strategy.run(lambda: v + replica_id()), axis=None)
        assert jt.function(lambda x: v.assign_add(x))(total) == 4
        other = mirrored(4)
        w = create(other, 1.0)
        assert jt.function(lambda x: w.assign_add(x))(total) == 4

    def test_arrays_spread_over_devices(self, strategy):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        x = jax.device_put(jnp.arange(8.0), sharding)
        assert jt.function(lambda x: jnp.sum(x))(x) == 28
        v = create(strategy, 1.0)
        assert jt.function(lambda x: jnp.sum(x) * v)(x) == 28


class TestRagged:
    @pytest.fixture
    def ragged(self, strategy):
        return strategy.experimental_distribute_values_from_function(
            lambda ctx: np.arange(1.0 + ctx.replica_id_in_sync_group, dtype=np.float32)
        )

    def test_same_result_as_python(self, strategy, ragged):
        v = create(strategy, 0.0, aggregation=SUM)
        w = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def step(x):
            def replica_fn(x):
                v.assign_add(jnp.sum(x) + 1)
                w.assign_add(jnp.sum(x) + replica_id())
                return x * 2

            result = strategy.run(replica_fn, args=(x,))
            return result, strategy.reduce("SUM", result, axis=0), v + w

        compiled, total, figures = jt.function(step)(ragged)
        assert local(strategy, compiled) == [[0], [0, 2]]
        assert total == 2
        assert figures == 5
        assert components(v) == [3, 3]
        assert components(w) == [0, 2]

    def test_between_uniform_batches(self, strategy, ragged):
        v = create(strategy, 0.0, aggregation=SUM)

        @jt.function
        def step(x):
            strategy.run(lambda x: v.assign_add(jnp.sum(x)), args=(x,))
            return 1

        uniform = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones(2, np.float32)
        )
        for batch, expected in [(uniform, 4), (ragged, 5), (uniform, 9), (ragged, 10)]:
            result = step(batch)
            assert isinstance(result, jax.Array)
            assert v.numpy() == expected

    def test_ragged_from_the_first_call(self, strategy, ragged):
        step = jt.function(lambda x: strategy.run(lambda x: jnp.sum(x), args=(x,)))
        assert local(strategy, step(ragged)) == [0, 1]

    def test_when_the_function_is_what_runs(self, strategy, ragged):
        step = jt.function(lambda x: jnp.sum(x) + 1)
        assert local(strategy, strategy.run(step, args=(ragged,))) == [1, 2]

    def test_ragged_types(self, strategy):
        mixed = strategy.experimental_distribute_values_from_function(
            lambda ctx: [np.float32(1.5), np.int32(1)][ctx.replica_id_in_sync_group]
        )
        step = jt.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))
        assert local(strategy, step(mixed)) == [2.5, 2]

    def test_an_error_inside(self, strategy, ragged):
        v = create(strategy, 0.0, aggregation=SUM)

        def replica_fn(x):
            v.assign_add(jnp.sum(x))
            raise ZeroDivisionError("mine")

        step = jt.function(lambda x: strategy.run(replica_fn, args=(x,)))
        with pytest.raises(ZeroDivisionError, match="mine"):
            step(ragged)
        assert v.numpy() == 0


class TestResults:
    def test_anything_passes(self):
        thing = object()
        step = jt.function(lambda x: {"none": None, "text": "a", "thing": thing, "x": x, "e": ()})
        for _ in range(2):
            result = step(jnp.float32(1.0))
            assert result["none"] is None
            assert result["text"] == "a"
            assert result["thing"] is thing
            assert result["x"] == 1
            assert result["e"] == ()

    def test_nothing(self):
        assert jt.function(lambda: None)() is None

    @pytest.mark.parametrize("number", [1, 1.5, True, 1j])
    def test_numbers_become_arrays(self, number):
        step = jt.function(lambda: [number, np.asarray(number)])
        for _ in range(2):
            for result in step():
                assert isinstance(result, jax.Array)
                assert result == number

    def test_numbers_become_arrays_in_python_as_well(self):
        jt.config.run_functions_eagerly(True)
        try:
            assert isinstance(jt.function(lambda: 1)(), jax.Array)
        finally:
            jt.config.run_functions_eagerly(False)

    def test_numpy_arrays_become_arrays(self):
        result = jt.function(lambda: np.arange(3))()
        assert isinstance(result, jax.Array)
        assert result.tolist() == [0, 1, 2]

    def test_distributed_values(self, strategy):
        v = create(strategy, 2.0)

        @jt.function
        def step(x):
            each = strategy.run(lambda: (x + replica_id(), "text", 7))
            return each, strategy.extended.reduce_to("SUM", each[0], v)

        for _ in range(2):
            with strategy.scope():
                (array, text, number), total = step(jnp.float32(1.0))
            assert isinstance(array, jt.PerReplica)
            assert local(strategy, array) == [1, 2]
            assert text == "text"
            assert number == 7
            assert isinstance(total, jt.Mirrored)
            assert local(strategy, total) == [3, 3]

    def test_results_are_on_one_device(self, strategy):
        """So that they mix with arrays made elsewhere."""
        v = create(strategy, 2.0)
        result = jt.function(lambda: v * 2)()
        assert result.devices() == {jax.devices()[0]}
        assert result + jax.device_put(1.0, jax.devices()[0]) == 5

    def test_random_keys(self):
        step = jt.function(lambda key: jax.random.split(key))
        first, second = step(jax.random.key(0))
        expected = jax.random.split(jax.random.key(0))
        assert jax.random.key_data(first).tolist() == jax.random.key_data(expected[0]).tolist()
        assert jnp.issubdtype(second.dtype, jax.dtypes.prng_key)


class TestMethods:
    def test_each_instance_has_its_programs(self):
        class Counter(jt.Module):
            def __init__(self, start):
                super().__init__()
                self.total = jt.Variable(start)
                self.traces = 0

            @jt.function
            def add(self, x):
                self.traces += 1
                self.total.assign_add(x)
                return self.total * 1

        one, ten = Counter(1.0), Counter(10.0)
        for _ in range(2):
            one.add(jnp.float32(1.0))
            ten.add(jnp.float32(1.0))
        assert (one.total.numpy(), ten.total.numpy()) == (3, 12)
        traces = one.traces
        one.add(jnp.float32(1.0))
        assert one.traces == traces
        assert len(one.variables) == 1
        assert one.add is one.add

    def test_through_the_class(self):
        class Scaler:
            scale = 3.0

            @jt.function
            def __call__(self, x):
                return x * self.scale

        assert isinstance(Scaler.__call__, jt.Function)
        assert Scaler()(jnp.float32(2.0)) == 6
        assert Scaler.__call__(Scaler(), jnp.float32(2.0)) == 6

    @pytest.mark.parametrize(
        "options", [{}, {"frozen": True}, {"slots": True}, {"eq": False}], ids=str
    )
    def test_on_dataclasses(self, options):
        traces = []

        @dataclasses.dataclass(**options)
        class Model:
            w: jt.Variable
            scale: float

            @jt.function
            def step(self, x):
                traces.append(self)
                self.w.assign_add(x * self.scale)
                return self.w * 1

        two, three = Model(jt.Variable(0.0), 2.0), Model(jt.Variable(0.0), 3.0)
        for _ in range(2):
            two.step(jnp.float32(1.0))
            three.step(jnp.float32(1.0))
        assert (two.w.numpy(), three.w.numpy()) == (4, 6)
        if "slots" not in options:  # without a __dict__ there is nowhere to keep programs
            count = len(traces)
            two.step(jnp.float32(1.0))
            assert len(traces) == count

    def test_static_and_class_methods(self):
        class Tools:
            factor = 2.0

            @staticmethod
            @jt.function
            def double(x):
                return x * 2

            @classmethod
            def scaled(cls, x):
                return jt.function(lambda x: x * cls.factor)(x)

        assert Tools.double(jnp.float32(1.0)) == Tools().double(jnp.float32(1.0)) == 2
        assert Tools.scaled(jnp.float32(1.0)) == 2

    def test_inheritance(self):
        class Base:
            @jt.function
            def step(self, x):
                return x + 1

        class Derived(Base):
            @jt.function
            def step(self, x):
                return super().step(x) * 10

        model = Derived()
        for _ in range(2):
            assert model.step(jnp.float32(1.0)) == 20

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
    def test_copies_of_the_instance(self, duplicate):
        class Model:
            def __init__(self):
                self.w = jt.Variable(1.0)

            @jt.function
            def step(self):
                return self.w * self.scale

        original = Model()
        original.scale = 2.0
        assert original.step() == 2
        other = duplicate(original)
        other.scale = 3.0
        other.w = jt.Variable(10.0)
        assert other.step() == 30
        assert original.step() == 2

    def test_the_instance_can_go(self):
        class Model:
            @jt.function
            def step(self, x):
                return x + 1

        model = Model()
        model.step(jnp.float32(1.0))
        reference = weakref.ref(model)
        del model
        gc.collect()
        assert reference() is None


class TestSignature:
    def test_shapes_and_types_are_checked(self):
        step = jt.function(lambda x: x * 2, input_signature=[jt.TensorSpec([None, 2], jnp.float32)])
        assert step(jnp.ones((3, 2))).shape == (3, 2)
        assert step(np.ones((1, 2), np.float32)).shape == (1, 2)
        for wrong in (jnp.ones((2, 3)), jnp.ones(2), jnp.ones((2, 2), jnp.int32), "text", None):
            with pytest.raises(ValueError, match="input signature"):
                step(wrong)
        for args in ((), (jnp.ones((2, 2)), 1)):
            with pytest.raises(TypeError, match="input signature"):
                step(*args)
        with pytest.raises(TypeError, match="keywords"):
            step(x=jnp.ones((2, 2)))
        assert step.input_signature == [jt.TensorSpec([None, 2], jnp.float32)]

    def test_any_rank_and_numbers(self):
        step = jt.function(lambda x: x * 2, input_signature=[jt.TensorSpec(None, jnp.float32)])
        assert step(jnp.ones((1, 1, 1))).shape == (1, 1, 1)
        assert step(1.5) == 3

    def test_numbers_fitting_a_signature_are_arrays(self):
        """As in the reference: with a signature, a new number is not a new program."""
        step = Traced(lambda x: x * 2, input_signature=[jt.TensorSpec([], jnp.float32)])
        assert step(1.0)
        assert not step(2.0)
        assert step.result == 4

    def test_structures(self):
        spec = {"x": jt.TensorSpec([2]), "y": (jt.TensorSpec([], jnp.int32),)}
        step = jt.function(lambda tree: tree["x"] * tree["y"][0], input_signature=[spec])
        assert step({"x": jnp.ones(2), "y": (jnp.int32(3),)}).tolist() == [3, 3]
        with pytest.raises(ValueError, match="structure"):
            step({"x": jnp.ones(2)})
        with pytest.raises(ValueError, match="input signature"):
            step({"x": jnp.ones(2), "y": (jnp.float32(3),)})

    def test_per_replica(self, strategy):
        spec = jt.PerReplicaSpec(jt.TensorSpec([None]), jt.TensorSpec([None]))

        @jt.function(input_signature=[spec])
        def step(x):
            return strategy.run(lambda x: jnp.sum(x) + replica_id(), args=(x,))

        uniform = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones(2, np.float32)
        )
        ragged = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones(1 + ctx.replica_id_in_sync_group, np.float32)
        )
        assert local(strategy, step(uniform)) == [2, 3]
        assert local(strategy, step(ragged)) == [1, 3]
        matrices = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones((2, 2), np.float32)
        )
        three = mirrored(3).experimental_distribute_values_from_function(
            lambda ctx: np.ones(2, np.float32)
        )
        for wrong in (matrices, three, jnp.ones(2)):
            with pytest.raises(ValueError, match="PerReplicaSpec"):
                step(wrong)

    def test_a_plain_signature_refuses_distributed_values(self, strategy):
        step = jt.function(lambda x: x, input_signature=[jt.TensorSpec([2])])
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones(2, np.float32)
        )
        with pytest.raises(ValueError, match="TensorSpec"):
            step(values)

    def test_what_is_no_signature(self):
        step = jt.function(lambda x: x, input_signature=[np.float32])
        with pytest.raises(TypeError, match="TensorSpec"):
            step(jnp.float32(1.0))

    def test_on_methods(self):
        class Model:
            @jt.function(input_signature=[jt.TensorSpec([2])])
            def step(self, x):
                return x * 2

        assert Model().step(jnp.ones(2)).tolist() == [2, 2]
        with pytest.raises(ValueError, match="input signature"):
            Model().step(jnp.ones(3))


class TestCaptures:
    def test_found_on_a_later_call(self, strategy):
        a, b = jt.Variable(1.0), jt.Variable(10.0)
        v = create(strategy, 100.0)

        @jt.function
        def step(x, which):
            if which == "a":
                return a.assign_add(x) * 1
            if which == "b":
                return b.assign_add(x) + a
            return v.assign_add(x) + a + b

        x = jnp.float32(1.0)
        for _ in range(2):
            step(x, "a")
            step(x, "b")
            step(x, "v")
        assert (a.numpy(), b.numpy()) == (3, 12)
        assert components(v) == [102, 102]
        assert step(x, "b") == 13 + 3

    def test_read_first_written_later(self):
        v = jt.Variable(1.0)
        step = jt.function(lambda x, write: v.assign(x) * 1 if write else v + x)
        x = jnp.float32(5.0)
        assert step(x, False) == 6
        assert step(x, True) == 5
        assert step(x, False) == 10

    def test_found_for_another_shape(self, strategy):
        v = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        @jt.function
        def step(x):
            if x.shape == (3,):
                strategy.run(lambda: v.assign_add(jnp.float32(replica_id() + 1)))
            return jnp.sum(x)

        assert step(jnp.ones(2)) == 2
        assert step(jnp.ones(3)) == 3
        assert step(jnp.ones(2)) == 2
        assert components(v) == [1, 2]

    def test_plain_with_mirrored(self, strategy):
        plain, count = jt.Variable(1.0), jt.Variable(0)
        v = create(strategy, 1.0, aggregation=SUM)

        @jt.function
        def step(x):
            each = strategy.run(lambda: v.assign_add(plain * x + replica_id()) * 1)
            plain.assign_add(strategy.reduce("MEAN", each, axis=None))
            count.assign_add(1)
            return plain * 1

        for _ in range(2):
            step(jnp.float32(1.0))
        # v: 1 + (1 + 2) = 4; plain: 1 + 4 = 5; v: 4 + (5 + 6) = 15; plain: 5 + 15 = 20
        assert components(v) == [15, 15]
        assert (plain.numpy(), count.numpy()) == (20, 2)
        assert plain + jnp.ones(()) == 21
        plain.assign(0.0)
        assert step(jnp.float32(1.0)) == 16

    def test_plain_on_a_device_of_its_own(self, strategy):
        with jt.device("CPU:5"):
            plain = jt.Variable(1.0)
        v = create(strategy, 1.0)
        step = jt.function(lambda: plain.assign_add(v))
        for _ in range(2):
            step()
        assert plain.numpy() == 3
        assert plain.device.endswith("CPU:5")
        assert plain.value().devices() == {jax.devices()[5]}

    def test_two_strategies(self, strategy):
        v, w = create(strategy, 1.0), create(mirrored(3), 1.0)
        step = jt.function(lambda: v + w)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="one strategy"):
                step()
        assert jt.function(lambda: v + 1)() == 2

    def test_two_strategies_one_after_the_other(self):
        variables = {n: create(mirrored(n), float(n), aggregation=SUM) for n in (2, 3)}

        @jt.function
        def step(n, x):
            mirrored(n).run(lambda: variables[n].assign_add(x + replica_id()))

        for n in (2, 3, 2, 3):
            step(n, jnp.float32(0.0))
        assert components(variables[2]) == [4] * 2
        assert components(variables[3]) == [9] * 3

    def test_run_under_two_strategies(self):
        step = jt.function(lambda x: jt.get_replica_context().all_reduce("SUM", x + 0))
        for n in (2, 3, 2):
            assert local(mirrored(n), mirrored(n).run(step, args=(jnp.float32(1.0),))) == [n] * n

    def test_one_device_strategy(self):
        strategy = one_device("CPU:3")
        v = create(strategy, 1.0)
        step = jt.function(lambda x: strategy.run(lambda x: v.assign_add(x) * 1, args=(x,)))
        for _ in range(2):
            result = step(jnp.float32(1.0))
        assert result == v.numpy() == 3
        assert v.device.endswith("CPU:3")
        assert v.value().devices() == {jax.devices()[3]}

    def test_the_scope_is_inherited(self, strategy):
        seen = []
        step = jt.function(lambda: seen.append(jt.get_strategy()))
        with strategy.scope():
            step()
        step()
        assert seen == [strategy, jt.get_strategy()]

    def test_variables_made_and_kept_elsewhere(self, strategy):
        models = {}

        @jt.function
        def step(name, x):
            if name not in models:
                with strategy.scope():
                    models[name] = jt.Variable(0.0, name=name, aggregation=SUM)
            models[name].assign_add(x)
            return models[name] * 1

        assert step("a", jnp.float32(1.0)) == 1
        assert step("b", jnp.float32(2.0)) == 2
        assert step("a", jnp.float32(1.0)) == 2
        assert len(models) == 2


class TestNesting:
    def test_functions_in_functions(self, strategy):
        v = create(strategy, 1.0, aggregation=SUM)
        inner = jt.function(lambda x: v.assign_add(x * (replica_id() + 1)) * 1)

        @jt.function
        def outer(x):
            each = strategy.run(inner, args=(x,))
            return strategy.reduce("MEAN", each, axis=None)

        assert outer(jnp.float32(1.0)) == 4
        assert outer(jnp.float32(1.0)) == 7

    def test_plain_functions_in_functions(self):
        v = jt.Variable(1.0)
        inner = jt.function(lambda: v.assign(v * 2))
        outer = jt.function(lambda n: [inner() for _ in range(n)] and v * 1)
        assert outer(3) == 8
        assert outer(3) == 64

    def test_in_eager_replicas(self, strategy):
        v = create(strategy, 1.0, aggregation=SUM)
        inner = jt.function(lambda x: v.assign_add(x + replica_id()) * 1)
        each = strategy.run(lambda: inner(jnp.float32(1.0)))
        assert local(strategy, each) == [4, 4]
        assert components(v) == [4, 4]

    def test_recursion(self):
        @jt.function
        def power(x, n):
            return x if n == 1 else x * power(x, n - 1)

        assert power(jnp.float32(2.0), 5) == 32

    @pytest.mark.parametrize("variable", ["plain", "mirrored"])
    def test_in_jax_transformations(self, strategy, variable):
        v = jt.Variable(3.0) if variable == "plain" else create(strategy, 3.0)
        cube = jt.function(lambda x: v * x**3)
        assert jax.jit(cube)(jnp.float32(2.0)) == 24
        assert jax.grad(cube)(jnp.float32(2.0)) == 36
        assert jax.vmap(cube)(jnp.array([1.0, 2.0])).tolist() == [3, 24]
        assert jax.jit(jax.vmap(jax.grad(cube)))(jnp.array([1.0, 2.0])).tolist() == [9, 36]
        assert jax.lax.map(cube, jnp.array([1.0, 2.0])).tolist() == [3, 24]
        v.assign(1.0)
        assert jax.jit(cube)(jnp.float32(2.0)) == 8

    def test_eagerly(self, strategy):
        v = create(strategy, 1.0, aggregation=SUM)
        calls = []

        @jt.function
        def step(x):
            def replica_fn(x):
                calls.append(float(x))
                v.assign_add(x + replica_id())

            strategy.run(replica_fn, args=(x,))
            return v * 1

        jt.config.run_functions_eagerly(True)
        try:
            assert jt.config.functions_run_eagerly()
            assert step(jnp.float32(1.0)) == 4
            assert step(jnp.float32(1.0)) == 7
            strategy.run(jt.function(lambda: calls.append(float(v))))
        finally:
            jt.config.run_functions_eagerly(False)
        assert calls == [1.0, 1.0, 1.0, 1.0, 7.0, 7.0]
        assert not jt.config.functions_run_eagerly()


class TestErrors:
    def test_in_the_body(self, strategy):
        plain, v = jt.Variable(1.0), create(strategy, 1.0, aggregation=SUM)
        w = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)

        @jt.function
        def step(x, fail):
            plain.assign_add(x)
            v.assign_add(x)
            strategy.run(lambda: w.assign_add(x + 0))
            if fail:
                raise ZeroDivisionError("mine")

        x = jnp.float32(1.0)
        with pytest.raises(ZeroDivisionError, match="mine"):
            step(x, True)
        assert (plain.numpy(), components(v), components(w)) == (1, [1, 1], [1, 1])
        step(x, False)
        assert (plain.numpy(), components(v), components(w)) == (2, [2, 2], [2, 2])
        with pytest.raises(ZeroDivisionError, match="mine"):
            step(x, True)
        step(x, False)
        assert (plain.numpy(), components(v), components(w)) == (3, [3, 3], [3, 3])

    def test_at_the_first_trace_and_then_no_more(self):
        broken = [True]
        made = []

        @jt.function
        def step(x):
            if not made:
                made.append(jt.Variable(1.0))
            if broken:
                raise ZeroDivisionError("mine")
            return made[0].assign_add(x) * 1

        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="mine"):
                step(jnp.float32(1.0))
        broken.clear()
        assert step(jnp.float32(1.0)) == 2
        assert len(made) == 1

    def test_the_users_traceback(self):
        def fails_here():
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError) as caught:
            jt.function(lambda: fails_here())()
        assert any(entry.name == "fails_here" for entry in caught.traceback)

    def test_state_of_contexts_is_restored(self, strategy):
        def fail():
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError):
            jt.function(lambda: strategy.run(fail))()
        assert not jt.has_strategy()
        v = jt.Variable(1.0)
        assert v.assign_add(1.0).numpy() == 2  # and no frame is left open

    def test_a_step_that_fails_to_run(self):
        """Nothing is lost when the inputs do not fit each other's devices."""
        step = jt.function(lambda x, y: x + y)
        x, y = (jax.device_put(jnp.float32(1.0), jax.devices()[i]) for i in (1, 5))
        with pytest.raises(ValueError, match="incompatible devices"):
            step(x, y)
        assert step(x, x) == 2

    def test_inputs_come_to_the_device_of_the_variables(self):
        v = jt.Variable(1.0)
        step = jt.function(lambda x, y: v.assign_add(x + y))
        x, y = (jax.device_put(jnp.float32(1.0), jax.devices()[i]) for i in (1, 5))
        assert step(x, y) == 3

    @pytest.mark.parametrize("thing", [1, None, "text"])
    def test_what_cannot_be_called(self, thing):
        if thing is None:
            assert callable(jt.function(thing))  # a decorator
        else:
            with pytest.raises(TypeError, match=repr(thing)):
                jt.function(thing)

    def test_replicas_index_a_captured_array(self, strategy):
        ids = strategy.experimental_distribute_values_from_function(
            lambda context: np.array([context.replica_id_in_sync_group])
        )

        @jt.function
        def captured(table, ids):
            return strategy.run(lambda ids: table[ids], args=(ids,))

        @jt.function
        def passed(table, ids):
            return strategy.run(lambda table, ids: table[ids], args=(table, ids))

        everywhere = strategy.topology.replicate(jnp.arange(4.0))
        for table in (jnp.arange(4.0), everywhere):
            assert local(strategy, captured(table, ids)) == [[0], [1]]
            assert local(strategy, passed(table, ids)) == [[0], [1]]

    def test_indexing_an_array_from_outside_says_what_to_do(self, strategy):
        ids = strategy.experimental_distribute_values_from_function(
            lambda context: np.array([context.replica_id_in_sync_group])
        )
        everywhere = strategy.topology.replicate(jnp.arange(4.0))
        here = jnp.arange(4.0)
        step = jt.function(lambda ids: strategy.run(lambda ids: here[ids], args=(ids,)))
        assert local(strategy, step(ids)) == [[0], [1]]
        step = jt.function(lambda ids: strategy.run(lambda ids: everywhere[ids], args=(ids,)))
        with pytest.raises(ValueError, match="Context mesh") as raised:
            step(ids)
        assert any("`args` of `run`" in note for note in raised.value.__notes__)

    def test_only_some_replicas(self, strategy):
        with pytest.raises(jax.errors.TracerBoolConversionError):
            jt.function(lambda: strategy.run(lambda: 1 if replica_id() > 0 else 2))()
        assert local(strategy, jt.function(lambda: strategy.run(lambda: replica_id() + 1))()) == [
            1,
            2,
        ]


class TestThreads:
    THREADS = 2

    def _everywhere(self, work):
        errors = []
        start = threading.Barrier(self.THREADS)

        def main():
            try:
                start.wait()
                work()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=main) for _ in range(self.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_first_call_at_the_same_time(self):
        v = jt.Variable(2.0)
        step = jt.function(lambda x: v * x)
        self._everywhere(lambda: [step(jnp.float32(i)) for i in range(20)])
        assert step.experimental_get_tracing_count() == 1

    def test_reading(self, strategy):
        v = create(strategy, 2.0)
        step = jt.function(lambda x: strategy.run(lambda x: v * x, args=(x,)))
        step(jnp.float32(1.0))

        def work():
            for i in range(20):
                assert local(strategy, step(jnp.float32(i))) == [2 * i, 2 * i]

        self._everywhere(work)

    def test_no_update_is_lost(self):
        v = jt.Variable(0.0)
        step = jt.function(lambda x: v.assign_add(x))
        self._everywhere(lambda: [step(jnp.float32(1.0)) for _ in range(100)])
        assert v.numpy() == 100 * self.THREADS

    def test_no_update_of_replicas_is_lost(self, strategy):
        v = create(strategy, 0.0, aggregation=MEAN)
        step = jt.function(lambda x: strategy.run(lambda x: v.assign_add(x), args=(x,)))
        self._everywhere(lambda: [step(jnp.float32(1.0)) for _ in range(50)])
        assert components(v) == [50 * self.THREADS] * 2

    def test_reading_while_another_thread_steps(self, strategy):
        v = create(strategy, 0.0, aggregation=FIRST)
        step = jt.function(lambda x: v.assign_add(x))
        step(jnp.float32(0.0))
        turns = iter([True, False])

        def work():
            if next(turns):
                for _ in range(100):
                    step(jnp.float32(1.0))
            else:
                seen = [v.numpy().item() for _ in range(100)]
                assert seen == sorted(seen)

        self._everywhere(work)
        assert v.numpy() == 100

    def test_a_trace_in_one_thread_is_no_trace_in_another(self):
        v = jt.Variable(1.0)
        tracing, done = threading.Event(), threading.Event()

        @jt.function
        def step(x):
            tracing.set()
            assert done.wait(60)
            return x + v

        thread = threading.Thread(target=lambda: step(jnp.float32(1.0)))
        thread.start()
        assert tracing.wait(60)
        assert v.assign_add(1.0).numpy() == 2  # not written into the other thread's trace
        done.set()
        thread.join()
        assert step(jnp.float32(1.0)) == 3


class TestAbout:
    def test_names(self):
        @jt.function
        def step(x):
            """Do it."""
            return x

        assert step.__name__ == "step"
        assert step.__doc__ == "Do it."
        assert isinstance(step, jt.Function)
        assert "step" in repr(step)
        assert step.python_function(1) == 1
        assert step.input_signature is None

    def test_any_callable(self):
        class Adder:
            def __call__(self, x):
                return x + 1

        assert jt.function(Adder())(jnp.float32(1.0)) == 2
        assert jt.function(functools.partial(lambda a, b: a - b, 5.0))(jnp.float32(1.0)) == 4
        assert "Adder" in repr(jt.function(Adder()))

    def test_any_callable_in_replicas(self, strategy):
        class Adder:
            def __call__(self, x):
                return x + 1 + replica_id()

        adder = jt.function(Adder())
        assert local(strategy, strategy.run(adder, args=(jnp.float32(1.0),))) == [2, 3]

    def test_any_callable_that_creates_each_time(self):
        step = jt.function(functools.partial(lambda x: jt.Variable(1.0) * x, 1.0))
        with pytest.raises(ValueError, match="creates"):
            step()


class TestReturnedVariables:
    """What is returned is the value at that time, which later calls do not change."""

    @pytest.mark.parametrize("compile", [jt.function, lambda fn: jt.function(jt.function(fn))])
    def test_of_one_device(self, compile):
        v = jt.Variable(0.0)
        step = compile(lambda: (v.assign_add(1.0), {"v": v}))
        first, second = step(), step()
        assert first == (1.0, {"v": 1.0})
        assert second == (2.0, {"v": 2.0})
        assert isinstance(first[0], jax.Array)

    def test_of_replicas(self, strategy):
        mirrored = create(strategy, 1.0)
        with strategy.scope():
            own = jt.Variable(
                1.0, synchronization=jt.VariableSynchronization.ON_READ, aggregation=SUM
            )

        @jt.function
        def step():
            strategy.run(lambda: own.assign_add(1.0))
            return mirrored.assign_add(1.0), mirrored.values[1], own

        assert [step(), step()] == [(2.0, 2.0, 4.0), (3.0, 3.0, 6.0)]
        add = jt.function(lambda: own.assign_add(1.0))
        first, second = strategy.run(add), strategy.run(add)
        assert (first, second) == (8.0, 10.0)  # the whole variable's, as everywhere

    def test_where_it_runs_as_python(self):
        v = jt.Variable(0.0)
        jt.config.run_functions_eagerly(True)
        try:
            first, second = (jt.function(lambda: v.assign_add(1.0))() for _ in range(2))
        finally:
            jt.config.run_functions_eagerly(False)
        assert (first, second) == (1.0, 2.0)

    def test_of_shards(self):
        table = ShardedVariable([jt.Variable([1.0]), jt.Variable([2.0])])
        step = jt.function(lambda: table.assign_add([1.0, 1.0]))
        first = step()
        step()
        assert first.tolist() == [2.0, 3.0]


class TestMemory:
    """What a function captured is freed with it: notebooks make the same function over and over."""

    def make(self, kind, strategy, captured):
        with strategy.scope():
            v = jt.Variable(1.0, aggregation=MEAN)

        def body(x):
            return jnp.sum(captured) * x + v

        def scanned(x):
            return jax.lax.scan(lambda c, _: (body(c), None), x, length=2)[0]

        return {
            "plain": lambda: jt.function(body)(1.0),
            "run": lambda: jt.function(lambda x: strategy.run(body, args=(x,)))(jnp.ones(())),
            "scan": lambda: jt.function(lambda x: strategy.run(scanned, args=(x,)))(jnp.ones(())),
            "gradient": lambda: jt.function(
                lambda x: strategy.run(jt.value_and_grad(body, [v]), args=(x,))
            )(jnp.ones(())),
            "eager": lambda: strategy.run(scanned, args=(jnp.ones(()),)),
            "eager gradient": lambda: jt.value_and_grad(scanned, [v])(jnp.ones(())),
        }[kind]

    @pytest.mark.parametrize(
        "kind", ["plain", "run", "scan", "gradient", "eager", "eager gradient"]
    )
    def test_captured_constants_are_freed(self, kind, strategy):
        captured = jnp.arange(1000.0)
        reference = weakref.ref(captured)
        self.make(kind, strategy, captured)()
        del captured
        gc.collect()
        assert reference() is None
