"""`strategy.extended` (rules R74-R80)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.strategies._values import copies, device_of, parts, per_replica, replica_id


@pytest.fixture
def v(two):
    with two.scope():
        return jt.Variable(1.0, name="v")


class TestReduceTo:
    """R74, R76."""

    def test_a_device_gives_an_array_there(self, two):
        value = per_replica(two, jnp.float32(1.0), jnp.float32(2.0))
        for i in (0, 1, 6):
            total = two.extended.reduce_to("SUM", value, f"CPU:{i}")
            assert isinstance(total, jax.Array)
            assert float(total) == 3.0
            assert device_of(total) == jax.devices("cpu")[i]

    def test_a_jax_device_will_do(self, two):
        device = jax.devices("cpu")[1]
        total = two.extended.reduce_to("MEAN", per_replica(two, 1.0, 2.0), device)
        assert float(total) == 1.5
        assert device_of(total) == device

    @pytest.mark.parametrize("on_read", [False, True], ids=["mirrored", "sync on read"])
    def test_a_variable_gives_a_mirrored_value_and_is_not_changed(self, two, on_read):
        with two.scope():
            v = jt.Variable(
                7.0,
                synchronization=jt.VariableSynchronization.ON_READ
                if on_read
                else jt.VariableSynchronization.ON_WRITE,
                aggregation=jt.VariableAggregation.MEAN,
            )
        total = two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), v)
        assert isinstance(total, jt.Mirrored)
        assert [float(x) for x in total.values] == [3.0, 3.0]
        assert [device_of(x) for x in total.values] == jax.devices("cpu")[:2]
        assert copies(v) == [7.0, 7.0]

    def test_a_distributed_value_gives_a_mirrored_value_on_its_devices(self, two):
        value = two.run(lambda: jnp.float32(replica_id() + 1))
        total = two.extended.reduce_to("SUM", value, value)
        assert isinstance(total, jt.Mirrored)
        assert [float(x) for x in total.values] == [3.0, 3.0]
        assert [float(x) for x in value.values] == [1.0, 2.0]

    def test_a_structure(self, two):
        value = {"a": per_replica(two, 1.0, 2.0), "b": [per_replica(two, 3.0, 4.0)]}
        total = two.extended.reduce_to("SUM", value, "CPU:0")
        assert jax.tree.map(float, total) == {"a": 3.0, "b": [7.0]}

    @pytest.mark.parametrize("destinations", [["CPU:0"], ["CPU:0", "CPU:1"], ("CPU:0",)], ids=str)
    def test_a_list_is_refused(self, two, destinations):
        with pytest.raises(AssertionError, match="destinations must be one"):
            two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), destinations)

    @pytest.mark.parametrize("destinations", [None, "", 3, object(), 1.5])
    def test_what_names_no_device_is_refused(self, two, destinations):
        with pytest.raises(ValueError, match="destinations must be"):
            two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), destinations)

    def test_a_wrong_name_is_refused(self, two):
        with pytest.raises(ValueError, match="is not a device name"):
            two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), "nowhere")

    def test_plain_values(self, two, v):
        """R56 holds here as well."""
        mean = two.extended.reduce_to("MEAN", 3.0, v)
        assert mean == 3.0
        with pytest.raises(ValueError, match="cannot be reduced with the given reduce op"):
            two.extended.reduce_to("SUM", 3.0, v)
        zero = two.extended.reduce_to("SUM", np.float32(0.0), "CPU:0")
        assert float(zero) == 0.0

    def test_a_mirrored_value(self, two, v):
        mirrored = two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), v)
        assert float(two.extended.reduce_to("MEAN", mirrored, "CPU:1")) == 3.0
        with pytest.raises(AssertionError, match="same on all replicas"):
            two.extended.reduce_to("SUM", mirrored, v)

    def test_an_unknown_op_is_refused(self, two):
        with pytest.raises(ValueError, match="Unknown reduce op"):
            two.extended.reduce_to("MAX", per_replica(two, 1.0, 2.0), "CPU:0")

    def test_in_a_replica_it_is_refused(self, two, v, way):
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            two.run(way(lambda: two.extended.reduce_to("SUM", jnp.ones(()), v)))

    def test_under_another_strategy_it_is_refused(self, two, other):
        value = per_replica(two, 1.0, 2.0)
        with other.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            two.extended.reduce_to("SUM", value, "CPU:0")

    def test_in_a_compiled_function(self, two, v):
        @jt.function
        def step(value):
            total = two.extended.reduce_to("SUM", value, v)
            v.assign(total)
            return two.extended.reduce_to("MEAN", value, "CPU:0")

        assert float(step(per_replica(two, jnp.float32(1.0), jnp.float32(2.0)))) == 1.5
        assert copies(v) == [3.0, 3.0]


class TestBatchReduceTo:
    """R75."""

    def test_does_several_at_once(self, two, v):
        a, b = per_replica(two, 1.0, 2.0), per_replica(two, jnp.ones(2), jnp.ones(2) * 2)
        first, second = two.extended.batch_reduce_to("SUM", [(a, v), (b, "CPU:1")])
        assert isinstance(first, jt.Mirrored)
        assert [float(x) for x in first.values] == [3.0, 3.0]
        assert second.tolist() == [3.0, 3.0]
        assert device_of(second) == jax.devices("cpu")[1]
        assert copies(v) == [1.0, 1.0]

    def test_gives_a_list_in_order(self, two):
        pairs = [(per_replica(two, float(i), 0.0), "CPU:0") for i in range(5)]
        results = two.extended.batch_reduce_to("SUM", pairs)
        assert isinstance(results, list)
        assert [float(x) for x in results] == [0.0, 1.0, 2.0, 3.0, 4.0]

    def test_nothing_gives_nothing(self, two):
        assert two.extended.batch_reduce_to("SUM", []) == []

    def test_mirrored_values_among_them(self, two, v):
        mirrored = two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), v)
        results = two.extended.batch_reduce_to(
            "MEAN", [(mirrored, "CPU:0"), (per_replica(two, 1.0, 2.0), "CPU:0")]
        )
        assert [float(x) for x in results] == [3.0, 1.5]

    @pytest.mark.parametrize(
        "make_pairs",
        [
            pytest.param(lambda x: [x], id="no tuple"),
            pytest.param(lambda x: [[x, "CPU:0"]], id="list"),
            pytest.param(lambda x: [(x,)], id="too short"),
            pytest.param(lambda x: [(x, "CPU:0", 1)], id="too long"),
            pytest.param(lambda x: [(x, "CPU:0"), (x,)], id="second"),
        ],
    )
    def test_elements_that_are_no_pairs_are_refused(self, two, make_pairs):
        with pytest.raises(ValueError, match=r"\(value, destination\) tuples"):
            two.extended.batch_reduce_to("SUM", make_pairs(per_replica(two, 1.0, 2.0)))

    def test_in_a_replica_it_is_refused(self, two, v):
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            two.run(lambda: two.extended.batch_reduce_to("SUM", [(jnp.ones(()), v)]))

    def test_the_usual_optimizer_loop(self, two, v, way):
        """Gradients go to a merge function, are reduced to variables, which are then updated."""
        with two.scope():
            w = jt.Variable([1.0, 1.0])

        def merge_fn(strategy, gradients):
            totals = strategy.extended.batch_reduce_to(
                "SUM", [(gradients[0], v), (gradients[1], w)]
            )
            for variable, total in zip((v, w), totals, strict=True):
                strategy.extended.update(variable, lambda x, g: x.assign_sub(g), args=(total,))

        def replica_fn():
            i = jnp.float32(replica_id() + 1)
            jt.get_replica_context().merge_call(merge_fn, args=((i, jnp.ones(2) * i),))

        two.run(way(replica_fn))
        assert copies(v) == [-2.0, -2.0]
        assert copies(w) == [[-2.0, -2.0], [-2.0, -2.0]]


class TestUpdate:
    """R77, R78, with decision 1: copies never differ."""

    def test_assigns_to_all_copies(self, two, v):
        two.extended.update(v, lambda v, x: v.assign(x), args=(5.0,))
        assert copies(v) == [5.0, 5.0]

    def test_takes_keywords(self, two, v):
        two.extended.update(v, lambda v, x: v.assign_add(x), kwargs={"x": 5.0})
        assert copies(v) == [6.0, 6.0]

    def test_takes_a_mirrored_value(self, two, v):
        total = two.extended.reduce_to("SUM", per_replica(two, 1.0, 2.0), v)
        two.extended.update(v, lambda v, x: v.assign(x), args=(total,))
        assert copies(v) == [3.0, 3.0]

    def test_takes_equal_values_of_the_replicas(self, two, v):
        two.extended.update(v, lambda v, x: v.assign(x), args=(per_replica(two, 4.0, 4.0),))
        assert copies(v) == [4.0, 4.0]

    @pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
    def test_refuses_values_that_differ(self, two, v, method):
        with pytest.raises(ValueError, match="differs between replicas") as raised:
            two.extended.update(
                v, lambda v, x: getattr(v, method)(x), args=(per_replica(two, 3.0, 4.0),)
            )
        assert "reduce_to" in str(raised.value)
        assert copies(v) == [1.0, 1.0]

    def test_returns_the_result(self, two, v):
        result = two.extended.update(v, lambda v: v.assign(2.0))
        assert result is v
        assert float(two.extended.update(v, lambda v: v * 10)) == 20.0

    def test_without_group_returns_a_result_for_each_copy(self, two, v):
        results = two.extended.update(v, lambda v: v * 10, group=False)
        assert isinstance(results, tuple)
        assert [float(x) for x in results] == [10.0, 10.0]

    def test_runs_outside_of_the_replicas(self, two, v):
        seen = []
        two.extended.update(v, lambda v: seen.append(jt.get_replica_context()))
        assert seen
        assert set(seen) == {None}

    def test_inside_a_replica_it_is_done_once_for_all(self, two, v, way):
        def replica_fn():
            two.extended.update(v, lambda v, x: v.assign_add(x), args=(5.0,))
            return v + 0

        result = two.run(way(replica_fn))
        assert copies(v) == [6.0, 6.0]
        assert parts(two, result) == [6.0, 6.0]

    def test_inside_a_replica_values_that_differ_are_refused(self, two, v, way):
        def replica_fn():
            x = jnp.float32(replica_id())
            two.extended.update(v, lambda v, x: v.assign(x), args=(x,))

        with pytest.raises(ValueError, match="differs between replicas"):
            two.run(way(replica_fn))
        assert copies(v) == [1.0, 1.0]

    def test_refuses_a_variable_of_another_strategy(self, two, other):
        with other.scope():
            theirs = jt.Variable(1.0)
        for stranger in (theirs, jt.Variable(1.0), 3.0):
            with pytest.raises(ValueError, match="was not created in the scope"):
                two.extended.update(stranger, lambda v: v.assign(2.0))
        assert copies(theirs) == [1.0, 1.0]

    def test_an_error_of_the_function_comes_out(self, two, v):
        with pytest.raises(ZeroDivisionError):
            two.extended.update(v, lambda v: 1 / 0)
        assert copies(v) == [1.0, 1.0]
        assert not jt.has_strategy()


class TestColocation:
    """R79."""

    def test_places_variables_beside_another(self, two, v):
        with two.scope(), two.extended.colocate_vars_with(v):
            w = jt.Variable(0.0)
        assert [c.device for c in w.values] == [c.device for c in v.values]

    def test_outside_the_scope_it_is_refused(self, two, v):
        with pytest.raises(RuntimeError, match="outside the scope"):
            two.extended.colocate_vars_with(v)

    def test_a_variable_of_another_strategy_is_refused(self, two, other):
        with other.scope():
            theirs = jt.Variable(1.0)
        with two.scope():
            for stranger in (theirs, PLAIN):
                with pytest.raises(ValueError, match="was not created in the scope"):
                    two.extended.colocate_vars_with(stranger)


PLAIN = jt.Variable(1.0)


class TestCreatedInScope:
    """R80."""

    def test_only_the_creating_strategy_says_so(self, two, other, v):
        assert two.extended.variable_created_in_scope(v)
        assert not other.extended.variable_created_in_scope(v)
        assert not jt.get_strategy().extended.variable_created_in_scope(v)

    def test_plain_variables_are_the_default_strategys(self, two):
        assert not two.extended.variable_created_in_scope(PLAIN)
        assert jt.get_strategy().extended.variable_created_in_scope(PLAIN)

    def test_anything_else_is_nobodys(self, two):
        assert not two.extended.variable_created_in_scope(3.0)


class TestTheRest:
    def test_call_for_each_replica_is_run(self, two):
        result = two.extended.call_for_each_replica(lambda x, y: x + y, args=(1,), kwargs={"y": 2})
        assert result == 3
        assert two.extended.call_for_each_replica(lambda: 1) == 1

    def test_broadcast_to_a_variable(self, two, v):
        mirrored = two.extended.broadcast_to(jnp.float32(4.0), v)
        assert isinstance(mirrored, jt.Mirrored)
        assert [float(x) for x in mirrored.values] == [4.0, 4.0]
        assert [device_of(x) for x in mirrored.values] == jax.devices("cpu")[:2]

    def test_broadcast_to_a_device(self, two):
        assert device_of(two.extended.broadcast_to(jnp.ones(()), "CPU:3")) == jax.devices("cpu")[3]

    @pytest.mark.parametrize("destinations", [None, ["CPU:0"]], ids=repr)
    def test_broadcast_to_nowhere_is_refused(self, two, destinations):
        with pytest.raises(AssertionError):
            two.extended.broadcast_to(jnp.ones(()), destinations)

    def test_broadcast_leaves_numbers_alone(self, two, v):
        assert two.extended.broadcast_to(3, v) == 3
        assert two.extended.broadcast_to(2.5, v) == 2.5

    def test_read_var_combines(self, two):
        with two.scope():
            v = jt.Variable(
                0.0,
                synchronization=jt.VariableSynchronization.ON_READ,
                aggregation=jt.VariableAggregation.SUM,
            )
        two.run(lambda: v.assign(jnp.float32(replica_id() + 1)))
        assert float(two.extended.read_var(v)) == 3.0

    def test_value_container(self, two, v):
        assert two.extended.value_container(v.values[1]) is v
        assert two.extended.value_container(v) is v
        assert two.extended.value_container(PLAIN) is PLAIN

    def test_non_slot_devices_and_updates(self, two, v):
        devices = two.extended.non_slot_devices([v])
        assert devices == two.extended.parameter_devices
        assert two.extended.update_non_slot(devices, lambda x: x + 1, args=(1,)) == 2
        assert two.extended.update_non_slot(devices, lambda x: x, args=(1,), group=False) == (1, 1)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("should_checkpoint", True),
            ("should_save_summary", True),
            ("experimental_between_graph", False),
            ("experimental_should_init", True),
        ],
    )
    def test_settings_of_one_process(self, two, name, value):
        assert getattr(two.extended, name) is value

    def test_static_shapes_are_a_yes_or_no(self, two):
        assert isinstance(two.extended.experimental_require_static_shapes, bool)
