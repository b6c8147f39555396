"""How copies of variables are written and read: rules R85 to R100, number by number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.variables._support import (
    FIRST,
    MEAN,
    NONE,
    ON_READ,
    ON_WRITE,
    SUM,
    both_ways,
    call,
    components,
    create,
    local,
    mirrored,
    replica_id,
    run,
)

OPERATIONS = ["assign", "assign_add", "assign_sub"]


@pytest.fixture
def strategy():
    return mirrored(2)


def _table(rows):
    return [
        pytest.param(aggregation, operation, expected, id=f"{aggregation.name}-{operation}")
        for aggregation, row in rows.items()
        for operation, expected in zip(OPERATIONS, row, strict=True)
    ]


class TestInsideReplicas:
    """R87: two replicas, 10 to begin with, each replica's number plus one."""

    @both_ways
    @pytest.mark.parametrize(
        ("aggregation", "operation", "expected"),
        _table({SUM: [3, 13, 7], MEAN: [1.5, 11.5, 8.5], FIRST: [1, 11, 9]}),
    )
    def test_mirrored(self, strategy, way, aggregation, operation, expected):
        v = create(strategy, 10.0, aggregation=aggregation)
        run(way, strategy, lambda: getattr(v, operation)(jnp.float32(replica_id() + 1)))
        assert components(v) == [expected, expected]
        assert v.numpy() == expected

    @both_ways
    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_mirrored_copies_never_drift_apart(self, strategy, way, operation):
        """R88, as decided: what 2.21 allows silently is refused."""
        v = create(strategy, 10.0, name="w")
        with pytest.raises(ValueError, match=r"'w'.*aggregation=jt\.VariableAggregation\.SUM"):
            run(way, strategy, lambda: getattr(v, operation)(jnp.float32(replica_id())))
        assert components(v) == [10, 10]
        assert jt.get_replica_context() is not None  # the default one: nothing is left open

    @both_ways
    @pytest.mark.parametrize(
        ("aggregation", "operation", "expected"),
        _table(
            {
                NONE: [([1, 2], None), ([11, 12], None), ([9, 8], None)],
                SUM: [([1, 2], 3), ([11, 12], 23), ([9, 8], 17)],
                MEAN: [([1, 2], 1.5), ([11, 12], 11.5), ([9, 8], 8.5)],
                FIRST: [([1, 2], 1), ([11, 12], 11), ([9, 8], 9)],
            }
        ),
    )
    def test_sync_on_read(self, strategy, way, aggregation, operation, expected):
        v = create(strategy, 10.0, synchronization=ON_READ, aggregation=aggregation)
        run(way, strategy, lambda: getattr(v, operation)(jnp.float32(replica_id() + 1)))
        each, combined = expected
        assert components(v) == each
        if combined is None:
            with pytest.raises(ValueError, match=r"VariableAggregation\.NONE"):
                v.numpy()
        else:
            assert v.numpy() == combined

    @both_ways
    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16, jnp.complex64, jnp.float16])
    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_other_types(self, strategy, way, dtype, synchronization):
        v = create(strategy, 10, dtype=dtype, synchronization=synchronization, aggregation=SUM)
        run(way, strategy, lambda: v.assign(jnp.asarray(replica_id() + 1, dtype)))
        assert v.value().dtype == dtype
        assert v.numpy() == 3

    @both_ways
    def test_bool_from_the_first_replica(self, strategy, way):
        v = create(strategy, False, aggregation=FIRST)
        run(way, strategy, lambda: v.assign(jnp.asarray(replica_id() == 0)))
        assert components(v) == [True, True]

    @both_ways
    def test_assigning_returns_the_variable(self, strategy, way):
        v = create(strategy, 1.0, aggregation=MEAN)
        seen = []
        run(way, strategy, lambda: seen.append(v.assign_add(jnp.float32(1.0)) is v))
        assert all(seen)
        assert v.assign(2.0).assign_add(1.0) is v

    @both_ways
    def test_replicas_see_what_they_wrote(self, strategy, way):
        v = create(strategy, 1.0, aggregation=SUM)
        w = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def step():
            v.assign_add(jnp.float32(replica_id()))
            w.assign_add(v * 2 + replica_id())
            return v.value(), w + 1

        first, second = run(way, strategy, step)
        assert local(strategy, first) == [2, 2]
        assert local(strategy, second) == [5, 6]

    @both_ways
    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_four_replicas(self, way, operation):
        strategy = mirrored(4)
        v = create(strategy, 10.0, aggregation=SUM)
        run(way, strategy, lambda: getattr(v, operation)(jnp.float32(replica_id() + 1)))
        assert components(v) == [{"assign": 10, "assign_add": 20, "assign_sub": 0}[operation]] * 4

    @both_ways
    @pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
    def test_one_replica_needs_no_aggregation(self, way, aggregation):
        strategy = mirrored(1)
        v = create(strategy, 10.0, aggregation=aggregation)
        run(way, strategy, lambda: v.assign_add(jnp.float32(5.0)))
        assert components(v) == [15]


class TestSameValueOnAllReplicas:
    """R89."""

    @both_ways
    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_a_literal_cannot_be_summed(self, strategy, way, operation):
        v = create(strategy, 10.0, aggregation=SUM)
        with pytest.raises(ValueError, match="SUM"):
            run(way, strategy, lambda: getattr(v, operation)(5.0))
        assert components(v) == [10, 10]

    @both_ways
    def test_a_captured_array_cannot_be_summed(self, strategy, way):
        v = create(strategy, 10.0, aggregation=SUM)
        x = np.float32(5.0)
        with pytest.raises(ValueError, match="SUM"):
            run(way, strategy, lambda: v.assign(x))
        assert components(v) == [10, 10]

    @both_ways
    def test_an_argument_common_to_all_cannot_be_summed(self, strategy, way):
        v = create(strategy, 10.0, aggregation=SUM)
        with pytest.raises(ValueError, match="SUM"):
            run(way, strategy, lambda x: v.assign(x), (np.float32(5.0),))
        assert components(v) == [10, 10]

    @both_ways
    def test_an_array_made_by_each_replica_can(self, strategy, way):
        v = create(strategy, 10.0, aggregation=SUM)
        run(way, strategy, lambda: v.assign_add(jnp.ones(())))
        assert components(v) == [12, 12]

    @both_ways
    @pytest.mark.parametrize("aggregation", [MEAN, FIRST])
    @pytest.mark.parametrize("value", [5.0, 5, np.float32(5.0)], ids=["float", "int", "numpy"])
    def test_mean_and_first_take_it_as_it_is(self, strategy, way, aggregation, value):
        v = create(strategy, 10.0, aggregation=aggregation)
        run(way, strategy, lambda: v.assign_add(value))
        assert components(v) == [15, 15]

    @both_ways
    def test_sync_on_read_takes_it_as_it_is(self, strategy, way):
        v = create(strategy, 10.0, synchronization=ON_READ, aggregation=SUM)
        run(way, strategy, lambda: v.assign(5.0))
        assert components(v) == [5, 5]


class TestOutsideReplicas:
    """R90: 10 to begin with, then 6."""

    @both_ways
    @pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
    @pytest.mark.parametrize(
        ("operation", "expected"), [("assign", 6), ("assign_add", 16), ("assign_sub", 4)]
    )
    def test_mirrored(self, strategy, way, aggregation, operation, expected):
        v = create(strategy, 10.0, aggregation=aggregation)
        # Outside any scope the variable's own is entered, so it must not matter.
        with strategy.scope() if operation == "assign" else jt.get_strategy().scope():
            call(way, lambda: getattr(v, operation)(6.0))
        assert components(v) == [expected, expected]
        assert v.numpy() == expected

    @both_ways
    @pytest.mark.parametrize(
        ("aggregation", "operation", "expected"),
        _table(
            {
                NONE: [None, None, None],
                SUM: [3, None, None],
                MEAN: [6, 16, 4],
                FIRST: [6, 16, 4],
            }
        ),
    )
    def test_sync_on_read(self, strategy, way, aggregation, operation, expected):
        v = create(strategy, 10.0, synchronization=ON_READ, aggregation=aggregation)

        def change():
            getattr(v, operation)(6.0)

        if expected is None:
            with pytest.raises(ValueError, match="ON_READ"):
                call(way, change)
            assert components(v) == [10, 10]
        else:
            call(way, change)
            assert components(v) == [expected, expected]

    @both_ways
    def test_whole_numbers_are_dealt_out(self, way):
        v = create(mirrored(4), 0, synchronization=ON_READ, aggregation=SUM)
        call(way, lambda: v.assign(10))
        assert sum(components(v)) == v.numpy() == 10
        assert max(components(v)) - min(components(v)) <= 1

    @both_ways
    def test_arrays_whose_leading_size_is_the_number_of_replicas(self, strategy, way):
        v = create(strategy, jnp.zeros((2, 3)), synchronization=ON_READ, aggregation=SUM)
        call(way, lambda: v.assign(jnp.arange(6.0).reshape(2, 3)))
        np.testing.assert_array_equal(v.numpy(), np.arange(6.0).reshape(2, 3))
        assert components(v) == [[[0, 0.5, 1], [1.5, 2, 2.5]]] * 2
        w = create(strategy, jnp.zeros((2, 3)))
        call(way, lambda: w.assign(jnp.arange(6.0).reshape(2, 3)))
        np.testing.assert_array_equal(w.numpy(), np.arange(6.0).reshape(2, 3))

    @both_ways
    @pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
    def test_one_value_per_replica_is_refused(self, strategy, way, aggregation):
        """R93, as decided."""
        v = create(strategy, 10.0, aggregation=aggregation)
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.float32(3 + ctx.replica_id_in_sync_group)
        )
        with pytest.raises(ValueError, match=r"VariableAggregation\.\w+"):
            call(way, lambda x: v.assign(x), values)
        assert components(v) == [10, 10]

    def test_a_mirrored_value(self, strategy):
        v = create(strategy, 10.0)
        ids = strategy.run(lambda: jnp.float32(replica_id() + 1))
        with strategy.scope():
            total = strategy.extended.reduce_to("SUM", ids, destinations=v)
        assert isinstance(total, jt.Mirrored)
        assert components(v.assign(total)) == [3, 3]
        assert components(v.assign_add(total)) == [6, 6]

    def test_an_array_of_another_device(self, strategy):
        v = create(strategy, [1.0, 2.0], aggregation=SUM)
        w = create(strategy, [0.0, 0.0], synchronization=ON_READ, aggregation=MEAN)
        x = jax.device_put(jnp.ones(2), jax.devices()[5])
        assert components(v.assign_add(x)) == [[2, 3]] * 2
        assert components(w.assign_add(x)) == [[1, 1]] * 2
        assert components(v.assign(x)) == [[1, 1]] * 2


class TestReading:
    """R91, R92."""

    @pytest.fixture
    def v(self, strategy):
        v = create(strategy, 0.0, synchronization=ON_READ, aggregation=MEAN)
        strategy.run(lambda: v.assign(jnp.float32(replica_id())))
        return v

    @both_ways
    def test_all_ways_agree_outside(self, v, way):
        def reads():
            return [
                v.value(),
                v.read_value(),
                jnp.asarray(v),
                v + 0,
                0 + v,
                +v,
                v[()],
                jnp.stack([v])[0],
            ]

        assert [float(x) for x in call(way, reads)] == [0.5] * 8
        assert [v.numpy(), np.asarray(v), float(v)] == [0.5] * 3
        assert float(call(way, lambda: v + 1)) == 1.5

    @both_ways
    def test_all_ways_agree_inside(self, strategy, v, way):
        def reads():
            return [
                v.value(),
                v.read_value(),
                jnp.asarray(v),
                v + 0,
                0 + v,
                +v,
                v[()],
                jnp.stack([v])[0],
            ]

        for result in run(way, strategy, reads):
            assert local(strategy, result) == [0, 1]
        assert local(strategy, run(way, strategy, lambda: v + 1)) == [1, 2]

    @both_ways
    @pytest.mark.parametrize(("aggregation", "expected"), [(SUM, 3), (MEAN, 1.5), (FIRST, 1)])
    def test_in_merge_call(self, strategy, way, aggregation, expected):
        v = create(strategy, 0.0, synchronization=ON_READ, aggregation=aggregation)

        def step():
            v.assign(jnp.float32(replica_id() + 1))
            return jt.get_replica_context().merge_call(lambda strategy: v.value())

        assert local(strategy, run(way, strategy, step))[0] == expected

    @both_ways
    def test_in_the_function_after_the_replicas(self, strategy, way):
        v = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def step():
            strategy.run(lambda: v.assign_add(jnp.float32(replica_id() + 1)))
            return v.value()

        assert float(call(way, step)) == 3

    def test_none_cannot_be_read_outside(self, strategy):
        v = create(strategy, 0.0, synchronization=ON_READ, name="w")
        for read in (v.value, v.read_value, v.numpy, lambda: v + 1, lambda: jnp.asarray(v)):
            with pytest.raises(ValueError, match=r"'w'.*VariableAggregation\.NONE"):
                read()
        with pytest.raises(ValueError, match=r"VariableAggregation\.NONE"):
            jt.function(lambda: v.value())()
        assert local(strategy, strategy.run(lambda: v + 1)) == [1, 1]

    @both_ways
    def test_copies_inside_a_step(self, strategy, way):
        v = create(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

        def copies():
            return [c.value() for c in strategy.experimental_local_results(v)]

        reading = copies if way == "eager" else jt.function(copies)
        assert [float(c) for c in reading()] == [0, 0]
        strategy.run(lambda: v.assign_add(jnp.float32(replica_id() + 1)))
        assert [float(c) for c in reading()] == [1, 2]

    @both_ways
    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_reducing_it_inside_a_step(self, strategy, way, synchronization):
        v = create(strategy, 1.0, synchronization=synchronization, aggregation=SUM)

        def mean():
            return strategy.reduce("MEAN", v, axis=None)

        reading = mean if way == "eager" else jt.function(mean)
        assert float(reading()) == 1.0
        v.assign(4.0)
        assert float(reading()) == (4.0 if synchronization is ON_WRITE else 2.0)

    def test_mirrored_reads_mix_with_other_arrays(self, strategy):
        v = create(strategy, jnp.ones(3))
        x = jax.device_put(jnp.ones(3), jax.devices()[0])
        assert (v + x + jnp.ones(3)).tolist() == [3, 3, 3]
        assert v @ x == 3

    def test_on_other_devices_than_the_first(self):
        strategy = jt.MirroredStrategy(["CPU:2", "CPU:3"])
        v = create(strategy, 1.0, aggregation=SUM)
        w = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)

        @jt.function
        def step(x):
            strategy.run(lambda: v.assign_add(x + replica_id()))
            strategy.run(lambda: w.assign_add(x + replica_id()))
            return v + w

        assert float(step(jnp.float32(1.0))) == 4 + 5
        assert float(v + 1) == 5
        assert components(w) == [2, 3]


class TestPerReplicaValues:
    """R93, R95."""

    @pytest.fixture
    def two_and_four(self, strategy):
        return strategy.experimental_distribute_values_from_function(
            lambda ctx: np.float32(2 + 2 * ctx.replica_id_in_sync_group)
        )

    @both_ways
    @pytest.mark.parametrize(("aggregation", "expected"), [(SUM, 6), (MEAN, 3), (FIRST, 2)])
    def test_captured(self, strategy, two_and_four, way, aggregation, expected):
        v = create(strategy, 10.0, aggregation=aggregation)
        run(way, strategy, lambda: v.assign(two_and_four))
        assert components(v) == [expected, expected]

    @both_ways
    def test_captured_without_aggregation(self, strategy, two_and_four, way):
        v = create(strategy, 10.0)
        with pytest.raises(ValueError, match="aggregation"):
            run(way, strategy, lambda: v.assign(two_and_four))
        assert components(v) == [10, 10]

    @both_ways
    def test_captured_by_sync_on_read(self, strategy, two_and_four, way):
        v = create(strategy, 10.0, synchronization=ON_READ, aggregation=SUM)
        run(way, strategy, lambda: v.assign_add(two_and_four))
        assert components(v) == [12, 14]

    @both_ways
    def test_as_argument(self, strategy, two_and_four, way):
        v = create(strategy, 10.0, aggregation=SUM)
        run(way, strategy, lambda x: v.assign(x), (two_and_four,))
        assert components(v) == [6, 6]

    def test_not_an_array_outside(self, strategy, two_and_four):
        v = create(strategy, 10.0)
        for scope in (strategy.scope(), jt.get_strategy().scope()):
            with scope:
                with pytest.raises(ValueError, match=r"reduce"):
                    jnp.asarray(two_and_four)
                with pytest.raises(ValueError, match=r"reduce"):
                    np.asarray(two_and_four)
                with pytest.raises(TypeError, match=r"reduce"):
                    two_and_four + 1
                with pytest.raises((TypeError, ValueError), match=r"reduce"):
                    v + two_and_four

    @both_ways
    def test_the_local_part_inside(self, strategy, two_and_four, way):
        result = run(way, strategy, lambda: (jnp.asarray(two_and_four), two_and_four + 1))
        assert local(strategy, result[0]) == [2, 4]
        assert local(strategy, result[1]) == [3, 5]


class TestSomebodyElses:
    """R85, R86."""

    def test_a_plain_variable_is_read_inside(self, strategy):
        v = jt.Variable(3.0)
        for way in ("eager", "compiled"):
            result = run(way, strategy, lambda: v + jnp.float32(replica_id()))
            assert local(strategy, result) == [3, 4]

    @both_ways
    def test_a_plain_variable_is_not_written_inside(self, strategy, way):
        v = jt.Variable(3.0, name="lonely")
        with pytest.raises(ValueError, match=r"'lonely'.*scope"):
            run(way, strategy, lambda: v.assign(jnp.float32(replica_id())))
        assert v.numpy() == 3

    def test_a_plain_variable_is_not_assigned_many_values(self, strategy):
        v = jt.Variable(3.0, name="lonely")
        values = strategy.run(lambda: jnp.float32(replica_id()))
        with pytest.raises(ValueError, match="'lonely'"):
            v.assign(values)
        assert v.numpy() == 3

    def test_outside_any_scope(self, strategy):
        """Its own scope is entered."""
        v = create(strategy, 1.0)
        w = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)
        assert not jt.has_strategy()
        assert v.assign(2.0) + w.assign(4.0) == 6
        assert components(w) == [2, 2]
        assert not jt.has_strategy()

    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_under_another_strategy(self, strategy, synchronization):
        v = create(strategy, 1.0, synchronization=synchronization, aggregation=SUM)
        other = mirrored(3)
        uses = [
            v.value,
            v.numpy,
            lambda: v + 1,
            lambda: v.assign(2.0),
            lambda: v.assign_add(2.0),
            lambda: jnp.asarray(v),
        ]
        for use in uses:
            with other.scope(), pytest.raises(RuntimeError, match="Mixing different"):
                use()
            with pytest.raises(RuntimeError, match="Mixing different"):
                other.run(use)
            with pytest.raises(RuntimeError, match="Mixing different"):
                jt.OneDeviceStrategy("CPU:0").run(use)
        with pytest.raises(RuntimeError, match="Mixing different"):
            jt.function(lambda: other.run(lambda: v + 1))()
        assert components(v) == [1, 1]

    def test_one_device_variable_under_another_strategy(self, strategy):
        v = create(jt.OneDeviceStrategy("CPU:1"), 1.0)
        for use in (v.value, lambda: v.assign(2.0), lambda: v + 1):
            with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
                use()
        assert v.assign_add(1.0).numpy() == 2

    def test_printing_is_always_possible(self, strategy):
        variables = [
            create(jt.OneDeviceStrategy("CPU:1"), 1.0, name="w"),
            create(mirrored(3), 1.0, name="w"),
            create(mirrored(3), 1.0, name="w", synchronization=ON_READ),
            jt.Variable(1.0, name="w"),
        ]
        for v in variables:
            with strategy.scope():
                assert "'w:0'" in repr(v)
            strategy.run(lambda v=v: repr(v))


class TestUnchangedByErrors:
    @both_ways
    def test_an_error_after_the_assignment(self, strategy, way):
        v = create(strategy, 1.0, aggregation=SUM)
        w = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)

        def step():
            v.assign_add(jnp.float32(1.0))
            w.assign_add(jnp.float32(1.0))
            jt.get_replica_context().all_reduce("SUM", jnp.ones(()))
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            run(way, strategy, step)
        assert components(v) == [1, 1]
        assert components(w) == [1, 1]
        run(way, strategy, lambda: v.assign_add(jnp.float32(1.0)))
        assert components(v) == [3, 3]

    def test_an_error_on_one_replica(self, strategy):
        v = create(strategy, 1.0, aggregation=SUM)
        w = create(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)

        def step():
            w.assign(5.0)
            v.assign_add(jnp.float32(1.0))
            if replica_id() == 1:
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            strategy.run(step)
        assert components(v) == components(w) == [1, 1]

    @both_ways
    @pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ])
    def test_a_wrong_shape_or_type(self, strategy, way, synchronization):
        v = create(strategy, [1, 2], name="w", synchronization=synchronization, aggregation=SUM)
        for value, message in [
            (jnp.ones(3, jnp.int32), r"'w'.*shape \(2,\).*\(3,\)"),
            (jnp.ones((), jnp.int32), r"shape \(\)"),
            (jnp.ones(2), "'w'.*int32.*float32"),
        ]:
            with pytest.raises(ValueError, match=message):
                run(way, strategy, lambda x=value: v.assign(x + 0))
            with pytest.raises(ValueError, match=message):
                call(way, lambda x=value: v.assign(x))
        assert components(v) == [[1, 2], [1, 2]]


class TestScatter:
    """R96, R97."""

    ALL = ("add", "sub", "mul", "div", "min", "max", "update")

    @staticmethod
    def _rows(values, indices):
        return jt.IndexedSlices(jnp.asarray(values), jnp.asarray(indices))

    @both_ways
    @pytest.mark.parametrize(
        ("aggregation", "initial", "kind", "expected"),
        [
            (MEAN, [0.0, 0.0, 0.0], "sub", [0, -1, -1]),
            (SUM, [0, 0, 0], "add", [0, 2, 2]),
        ],
    )
    def test_two_rows_each(self, strategy, way, aggregation, initial, kind, expected):
        v = create(strategy, initial, aggregation=aggregation)

        def step():
            r = jnp.asarray(replica_id())
            rows = jnp.stack([r, r + 1])
            getattr(v, f"scatter_{kind}")(jt.IndexedSlices(rows.astype(v.dtype), rows))

        run(way, strategy, step)
        assert components(v) == [expected, expected]

    @both_ways
    @pytest.mark.parametrize(
        ("aggregation", "initial", "kind", "expected"),
        [
            (MEAN, [2.0, 1.0, 1.0], "mul", [2, 1.5, 1]),
            (SUM, [1, 6, 1], "div", [0, 2, 1]),
        ],
    )
    def test_one_row_each(self, strategy, way, aggregation, initial, kind, expected):
        v = create(strategy, initial, aggregation=aggregation)

        def step():
            r = jnp.asarray(replica_id())[None]
            getattr(v, f"scatter_{kind}")(jt.IndexedSlices((r + 2).astype(v.dtype), r))

        run(way, strategy, step)
        assert components(v) == [expected, expected]

    @both_ways
    @pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("add", [3, 5, 6]),
            ("sub", [3, 1, 6]),
            ("mul", [3, 6, 6]),
            ("div", [3, 1.5, 6]),
            ("min", [3, 2, 6]),
            ("max", [3, 3, 6]),
            ("update", [3, 2, 6]),
        ],
    )
    def test_each_kind_from_the_first_replica(self, strategy, way, inside, kind, expected):
        v = create(strategy, [3.0, 3.0, 6.0], aggregation=FIRST)

        def step():
            getattr(v, f"scatter_{kind}")(self._rows([2.0], [1]))

        run(way, strategy, step) if inside else call(way, step)
        assert components(v) == [expected, expected]

    @pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
    def test_what_is_allowed(self, strategy, aggregation):
        for kind in self.ALL:
            v = create(strategy, [3.0, 3.0], aggregation=aggregation)
            method = getattr(v, f"scatter_{kind}")
            if kind in ("min", "max", "update") and aggregation in (SUM, MEAN):
                with pytest.raises(NotImplementedError, match=f"scatter_{kind}"):
                    method(self._rows([2.0], [1]))
                assert components(v) == [[3, 3], [3, 3]]
            else:
                assert method(self._rows([2.0], [1])) is v

    @both_ways
    def test_sync_on_read_has_none(self, strategy, way):
        v = create(strategy, [3.0, 3.0], synchronization=ON_READ, aggregation=SUM)
        rows = self._rows([2.0], [1])
        for kind in self.ALL:
            with pytest.raises(NotImplementedError, match=f"scatter_{kind}"):
                call(way, lambda kind=kind: getattr(v, f"scatter_{kind}")(rows))
            with pytest.raises(NotImplementedError, match=f"scatter_{kind}"):
                run(way, strategy, lambda kind=kind: getattr(v, f"scatter_{kind}")(rows))
        assert components(v) == [[3, 3], [3, 3]]

    @both_ways
    def test_none_inside_replicas_is_refused(self, strategy, way):
        v = create(strategy, [3.0, 3.0])
        with pytest.raises(ValueError, match="aggregation"):
            run(way, strategy, lambda: v.scatter_add(self._rows([2.0], [1])))
        assert components(v) == [[3, 3], [3, 3]]

    @both_ways
    def test_replicas_with_different_numbers_of_rows(self, strategy, way):
        """The compiled step meets them as ragged arguments and runs as Python."""
        v = create(strategy, jnp.zeros(4), aggregation=SUM)
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.ones(1 + ctx.replica_id_in_sync_group, np.float32)
        )
        indices = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.arange(1 + ctx.replica_id_in_sync_group)
        )
        run(
            way,
            strategy,
            lambda x, i: v.scatter_add(jt.IndexedSlices(x, i)),
            (values, indices),
        )
        assert components(v) == [[2, 1, 0, 0]] * 2
