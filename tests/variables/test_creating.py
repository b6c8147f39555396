"""What `jt.Variable(...)` makes of its arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import (
    AUTO,
    FIRST,
    MEAN,
    NONE,
    ON_READ,
    ON_WRITE,
    SUM,
    aligned,
    both_ways,
    components,
    create,
    local,
    mirrored,
    replica_id,
    run,
)


@pytest.fixture
def strategy():
    return mirrored(2)


class TestKind:
    """R82, R83, R85."""

    @pytest.mark.parametrize("synchronization", [AUTO, ON_WRITE])
    def test_written_together_is_mirrored(self, strategy, synchronization):
        v = create(strategy, 1.0, synchronization=synchronization)
        assert type(v) is jt.MirroredVariable
        assert v.synchronization is ON_WRITE

    def test_the_default_is_mirrored(self, strategy):
        v = create(strategy, 1.0)
        assert type(v) is jt.MirroredVariable
        assert v.synchronization is ON_WRITE
        assert v.aggregation is NONE

    def test_on_read_is_sync_on_read(self, strategy):
        v = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)
        assert type(v) is jt.SyncOnReadVariable
        assert v.synchronization is ON_READ
        assert v.aggregation is SUM

    def test_synchronization_none_is_refused(self, strategy):
        with strategy.scope(), pytest.raises(ValueError, match=r"VariableSynchronization\.NONE"):
            jt.Variable(1.0, synchronization=jt.VariableSynchronization.NONE)

    @pytest.mark.parametrize("aggregation", ["SUM", 1, None, jt.ReduceOp.SUM, ON_READ])
    def test_unknown_aggregation_is_refused(self, strategy, aggregation):
        with strategy.scope(), pytest.raises(ValueError, match="aggregation"):
            jt.Variable(1.0, aggregation=aggregation)

    @pytest.mark.parametrize("synchronization", ["ON_READ", 3, None, SUM])
    def test_unknown_synchronization_is_refused(self, strategy, synchronization):
        with strategy.scope(), pytest.raises(ValueError, match="synchronization"):
            jt.Variable(1.0, synchronization=synchronization)

    @pytest.mark.parametrize("initial_value", [1, True, np.int8(3), np.uint16(3)])
    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_the_mean_of_whole_numbers_is_refused(self, strategy, initial_value, synchronization):
        with strategy.scope(), pytest.raises(ValueError, match="MEAN"):
            jt.Variable(initial_value, aggregation=MEAN, synchronization=synchronization)

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64])
    def test_the_mean_of_fractions_is_fine(self, strategy, dtype):
        assert create(strategy, 1, dtype=dtype, aggregation=MEAN).aggregation is MEAN

    def test_one_device_is_mirrored_as_well(self):
        v = create(mirrored(1), 1.0)
        assert type(v) is jt.MirroredVariable
        assert components(v) == [1.0]

    def test_one_device_strategy_makes_plain_ones(self):
        strategy = jt.OneDeviceStrategy("CPU:1")
        v = create(strategy, 1.0)
        assert isinstance(v, jt.Variable)
        assert not isinstance(v, (jt.MirroredVariable, jt.SyncOnReadVariable))
        assert v.device.endswith("CPU:1")
        assert v.distribute_strategy is strategy

    def test_outside_any_scope_is_plain(self, strategy):
        v = jt.Variable(1.0)
        assert type(v) is jt.Variable
        assert v.distribute_strategy is None
        assert not strategy.extended.variable_created_in_scope(v)

    def test_every_kind_is_a_variable(self, strategy):
        assert isinstance(create(strategy, 1.0), jt.Variable)
        assert isinstance(create(strategy, 1.0, synchronization=ON_READ), jt.Variable)

    def test_trainable(self, strategy):
        assert create(strategy, 1.0).trainable
        assert not create(strategy, 1.0, trainable=False).trainable
        assert not create(strategy, 1.0, synchronization=ON_READ).trainable
        assert create(strategy, 1.0, synchronization=ON_READ, trainable=True).trainable

    def test_unknown_arguments_are_refused(self):
        with pytest.raises(TypeError, match="initial_value"):
            jt.Variable(1.0, size=2)
        with pytest.raises(TypeError, match="positional"):
            jt.Variable(1.0, True, "v", None, AUTO, NONE, (), False, "too much")

    def test_a_shape_that_is_not_that_of_the_value_is_refused(self):
        assert jt.Variable(1.0, shape=()).shape == ()
        with pytest.raises(ValueError, match=r"shape \(2,\)"):
            jt.Variable(1.0, shape=(2,))

    def test_arguments_by_position(self):
        v = jt.Variable([1, 2], False, "v", jnp.float32)
        assert (v.trainable, v.name, v.dtype, v.shape) == (False, "v", jnp.float32, (2,))


class TestNames:
    """R83, R100, and decision 6: no suffix in `name`, `:0` in `repr`."""

    def test_copies_are_numbered(self):
        v = create(mirrored(3), 1.0, name="w")
        assert v.name == "w"
        assert [c.name for c in v.values] == ["w", "w/replica_1", "w/replica_2"]

    def test_copies_of_sync_on_read_are_numbered(self, strategy):
        v = create(strategy, 1.0, name="w", synchronization=ON_READ)
        assert [c.name for c in v.values] == ["w", "w/replica_1"]

    def test_without_a_name(self, strategy):
        assert jt.Variable(1.0).name == "Variable"
        assert [c.name for c in create(strategy, 1.0).values] == ["Variable", "Variable/replica_1"]

    def test_copies_are_where_the_replicas_are(self, strategy):
        v = create(strategy, 1.0)
        assert tuple(c.device for c in v.values) == strategy.extended.worker_devices
        arrays = [c.value() for c in v.values]
        assert [a.devices() for a in arrays] == [{d} for d in jax.devices("cpu")[:2]]

    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_all_is_as_in_the_first_copy(self, strategy, synchronization):
        v = create(strategy, [[1, 2]], name="w", synchronization=synchronization, aggregation=SUM)
        assert (v.shape, v.dtype, v.ndim, v.size) == ((1, 2), jnp.int32, 2, 2)
        assert v.device == v.values[0].device == strategy.extended.worker_devices[0]
        assert v.is_initialized()
        assert (v.values[0].shape, v.values[1].dtype) == ((1, 2), jnp.int32)


class TestInitialValue:
    @pytest.mark.parametrize(
        ("given", "dtype"),
        [
            (1, jnp.int32),
            (1.5, jnp.float32),
            (True, jnp.bool_),
            (1j, jnp.complex64),
            ([1.0, 2.0], jnp.float32),
            (np.float64(1.5), jnp.float32),
            (np.ones(2, np.float16), jnp.float16),
            (np.uint8(7), jnp.uint8),
        ],
    )
    def test_type_is_that_of_the_value(self, strategy, given, dtype):
        for v in (jt.Variable(given), create(strategy, given)):
            assert v.dtype == dtype
            assert v.value().dtype == dtype
            assert not v.value().weak_type
            np.testing.assert_array_equal(v.numpy(), np.asarray(given, dtype))

    def test_dtype_converts(self, strategy):
        for v in (jt.Variable(1, dtype=jnp.bfloat16), create(strategy, 1, dtype="bfloat16")):
            assert v.dtype == jnp.bfloat16
            assert v.numpy().dtype == jnp.bfloat16

    def test_missing(self, strategy):
        for scope in (strategy.scope(), jt.get_strategy().scope()):
            with scope, pytest.raises(ValueError, match="initial value"):
                jt.Variable(name="w")

    def test_function(self, strategy):
        calls = []

        def initial():
            calls.append(jt.in_cross_replica_context())
            return jnp.arange(3.0)

        v = create(strategy, initial)
        assert calls == [True]
        assert components(v) == [[0, 1, 2], [0, 1, 2]]
        assert jt.Variable(initial).numpy().tolist() == [0, 1, 2]

    def test_function_with_dtype(self):
        assert jt.Variable(lambda: np.ones(2), dtype=jnp.int32).dtype == jnp.int32

    def test_another_variable(self, strategy):
        v = create(strategy, [1.0, 2.0])
        w = create(strategy, v)
        plain = jt.Variable(v)
        v.assign([5.0, 6.0])
        assert components(w) == [[1, 2], [1, 2]]
        assert plain.numpy().tolist() == [1, 2]

    def test_error_in_the_function_surfaces(self, strategy):
        def initial():
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            create(strategy, initial)
        assert not jt.has_strategy()

    @pytest.mark.parametrize("inside", [False, True], ids=["plain", "mirrored"])
    def test_the_numpy_array_stays_the_callers(self, strategy, inside):
        source = aligned([1.0, 2.0, 3.0, 4.0])
        v = create(strategy, source) if inside else jt.Variable(source)
        source[0] = 100.0
        assert v.numpy().tolist() == [1, 2, 3, 4]
        jt.function(lambda: v.assign_add(jnp.ones(4)))()
        assert source.tolist() == [100, 2, 3, 4]

    def test_the_jax_array_stays_the_callers(self, strategy):
        for make in (jt.Variable, lambda x: create(strategy, x)):
            source = jnp.arange(4.0)
            v = make(source)
            jt.function(lambda v=v: v.assign_add(jnp.ones(4)))()
            assert source.tolist() == [0, 1, 2, 3]
            assert v.numpy().tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize("inside", [False, True], ids=["plain", "mirrored"])
    def test_a_tracer_is_refused(self, strategy, inside):
        @jax.jit
        def make(x):
            return (create(strategy, x) if inside else jt.Variable(x, name="w")).value()

        with pytest.raises(jt.errors.TracerLeakError, match="lambda"):
            make(jnp.ones(2))
        assert jt.Variable(1.0).numpy() == 1.0  # nothing is left behind

    def test_a_leftover_tracer_is_refused(self, strategy):
        kept = []
        jax.jit(lambda x: kept.append(x))(1.0)
        for scope in (strategy.scope(), jt.get_strategy().scope()):
            with scope, pytest.raises(jt.errors.TracerLeakError):
                jt.Variable(kept[0])


class TestInsideReplicas:
    """R46, R84: created once, shared, with the first replica's initial value."""

    @both_ways
    def test_all_replicas_get_the_same_one(self, strategy, way):
        made = []

        def step():
            if not made or way == "eager":
                made.append(jt.Variable(5.0, name="w"))
            return made[-1] + 1.0

        result = run(way, strategy, step)
        assert type(made[0]) is jt.MirroredVariable
        assert all(v is made[0] for v in made)
        assert components(made[0]) == [5.0, 5.0]
        assert local(strategy, result) == [6.0, 6.0]

    def test_eager_random_initial_values_agree(self, strategy):
        rng = np.random.default_rng(0)
        made = []

        def step():
            made.append(jt.Variable(rng.normal(size=3)))

        strategy.run(step)
        assert made[0] is made[1]
        first, second = components(made[0])
        assert first == second

    @both_ways
    def test_random_functions_agree(self, strategy, way):
        rng = np.random.default_rng(0)
        made = []

        def step():
            if way == "eager" or not made:
                made.append(jt.Variable(lambda: rng.normal(size=3), name="w"))
            return made[-1].value()

        first, second = local(strategy, run(way, strategy, step))
        assert first == second
        assert components(made[0]) == [first, first]

    def test_eager_first_replica_decides(self, strategy):
        made = []
        strategy.run(lambda: made.append(jt.Variable(jnp.float32(replica_id() + 5))))
        assert components(made[0]) == [5.0, 5.0]

    @both_ways
    def test_sync_on_read_inside(self, strategy, way):
        made = {}

        def step():
            if "v" not in made:
                v = jt.Variable(0.0, synchronization=ON_READ, aggregation=SUM)
                made.setdefault("v", v)
            made["v"].assign_add(jnp.float32(replica_id() + 1))

        if way == "eager":
            step_once = step

            def step():
                v = jt.Variable(0.0, synchronization=ON_READ, aggregation=SUM)
                made["v"] = v
                step_once()

        run(way, strategy, step)
        assert type(made["v"]) is jt.SyncOnReadVariable
        assert components(made["v"]) == [1.0, 2.0]

    def test_one_replica_fails_at_creation_and_all_is_well_after(self, strategy):
        with pytest.raises(ValueError, match="MEAN"):
            strategy.run(lambda: jt.Variable(1, aggregation=MEAN))
        assert components(create(strategy, 2.0)) == [2.0, 2.0]

    def test_a_single_replica(self):
        made = []
        mirrored(1).run(lambda: made.append(jt.Variable(lambda: 3.0, aggregation=FIRST)))
        assert components(made[0]) == [3.0]


class TestInsideFunctions:
    def test_on_the_first_call(self):
        made = []

        @jt.function
        def step(x):
            if not made:
                made.append(jt.Variable(jnp.ones(2), name="w"))
            made[0].assign_add(x)
            return made[0] * 2

        assert step(jnp.ones(2)).tolist() == [4, 4]
        assert step(jnp.ones(2)).tolist() == [6, 6]
        assert len(made) == 1
        assert made[0].numpy().tolist() == [3, 3]

    def test_on_the_first_call_in_a_scope(self, strategy):
        made = []

        @jt.function
        def step(x):
            if not made:
                with strategy.scope():
                    made.append(jt.Variable(10.0, aggregation=SUM))
            strategy.run(lambda: made[0].assign_add(x * (replica_id() + 1)))

        step(jnp.float32(1.0))
        step(jnp.float32(2.0))
        assert components(made[0]) == [19.0, 19.0]

    def test_inside_run_inside_it(self, strategy):
        made = []

        def replica_fn(x):
            if not made:
                made.append(jt.Variable(lambda: jnp.zeros(()), aggregation=MEAN))
            made[0].assign_add(x + replica_id())

        @jt.function
        def step(x):
            strategy.run(replica_fn, args=(x,))

        step(jnp.float32(1.0))
        step(jnp.float32(1.0))
        assert type(made[0]) is jt.MirroredVariable
        assert components(made[0]) == [3.0, 3.0]

    def test_when_the_function_is_what_runs(self, strategy):
        made = []

        @jt.function
        def step(x):
            if not made:
                made.append(jt.Variable(0.0, aggregation=SUM))
            made[0].assign_add(x + 0.0)

        strategy.run(step, args=(jnp.float32(1.0),))
        strategy.run(step, args=(jnp.float32(1.0),))
        assert type(made[0]) is jt.MirroredVariable
        assert len(made) == 1

    @pytest.mark.parametrize("inside", [False, True], ids=["plain", "mirrored"])
    def test_each_time_is_refused(self, strategy, inside):
        @jt.function
        def greedy():
            v = create(strategy, 1.0) if inside else jt.Variable(1.0)
            return v + 1

        for _ in range(2):
            with pytest.raises(ValueError, match="'greedy' creates"):
                greedy()
        assert jt.function(lambda: jt.get_strategy().num_replicas_in_sync)() == 1

    def test_each_time_inside_run_is_refused(self, strategy):
        @jt.function
        def greedy():
            return strategy.run(lambda: jt.Variable(1.0) + 1)

        with pytest.raises(ValueError, match="greedy"):
            greedy()

    def test_from_what_the_function_computes(self, strategy):
        made = []

        @jt.function
        def step(x):
            if not made:
                with strategy.scope():
                    made.append(jt.Variable(x * 2.0))
            return made[0].assign_add(x) * 1

        assert step(jnp.ones(2)).tolist() == [3, 3]
        assert step(jnp.ones(2)).tolist() == [4, 4]
        assert components(made[0]) == [[4, 4]] * 2
        assert len(made) == 1

    def test_from_what_the_replicas_compute(self, strategy):
        made = []

        def replica_fn(x):
            if not made:
                made.append(jt.Variable(x * 2.0, aggregation=MEAN))
            return made[0].assign_add(x + replica_id()) * 1

        @jt.function
        def step(x):
            return strategy.run(replica_fn, args=(x,))

        assert local(strategy, step(jnp.ones(2))) == [[3.5, 3.5]] * 2
        assert local(strategy, step(jnp.ones(2))) == [[5, 5]] * 2
        assert len(made) == 1

    def test_from_what_the_function_computes_each_time(self):
        greedy = jt.function(lambda x: jt.Variable(x) * 2)
        with pytest.raises((ValueError, jt.errors.TracerLeakError)):
            for _ in range(2):
                greedy(jnp.ones(2))

    def test_the_initial_value_is_computed_once(self):
        calls = []
        made = []

        def initial():
            calls.append(1)
            return jnp.ones(2)

        @jt.function
        def step():
            if not made:
                made.append(jt.Variable(initial))
            return made[0].value()

        step()
        step()
        assert len(calls) == 1
        assert not isinstance(made[0].value(), jax.core.Tracer)


def test_a_random_key_is_refused_with_what_to_write():
    with pytest.raises(TypeError, match=r"'seed' cannot hold a random key.*key_data"):
        jt.Variable(jax.random.key(0), name="seed")
