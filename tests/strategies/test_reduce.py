"""`Strategy.reduce` (rules R47-R62)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.strategies._values import device_of, per_replica, replica_id


@pytest.fixture(params=["eager", "compiled"])
def reduce(request):
    """`strategy.reduce`, called directly or from a compiled function."""

    def call(strategy, op, value, axis):
        if request.param == "eager":
            return strategy.reduce(op, value, axis=axis)
        return jt.function(lambda value: strategy.reduce(op, value, axis=axis))(value)

    return call


def array(values, dtype="float32"):
    return jnp.array(values, dtype)


BLOCKS = (array([[1, 2], [3, 4]]), array([[5, 6], [7, 8]]))


class TestNumbers:
    @pytest.mark.parametrize(
        ("components", "op", "axis", "expected"),
        [
            # R47: over replicas only
            (([0, 1, 2, 3], [4, 5, 6, 7]), "SUM", None, [4, 6, 8, 10]),
            (([0, 1, 2, 3], [4, 5, 6, 7]), "MEAN", None, [2, 3, 4, 5]),
            # R48: along an axis as well
            (([0, 1, 2, 3], [4, 5, 6, 7]), "SUM", 0, 28),
            (([0, 1, 2, 3], [4, 5, 6, 7]), "MEAN", 0, 3.5),
            # R49: every element counts once
            (([0, 1, 2, 3], [4, 5]), "MEAN", 0, 2.5),
            (([0, 1, 2, 3], [4, 5]), "SUM", 0, 15),
            # R51: an empty component counts for nothing
            (([1, 3], []), "MEAN", 0, 2),
            (([1, 3], []), "SUM", 0, 4),
            (([], [1, 3]), "MEAN", 0, 2),
        ],
    )
    def test_vectors(self, two, reduce, components, op, axis, expected):
        value = per_replica(two, *map(array, components))
        assert np.asarray(reduce(two, op, value, axis)).tolist() == expected

    @pytest.mark.parametrize(
        ("op", "axis", "expected"),
        [
            ("MEAN", (0, 1), 4.5),
            ("MEAN", [0, 1], 4.5),
            ("SUM", (0, 1), 36),
            ("MEAN", (1, 0), 4.5),
            ("MEAN", (-1, -2), 4.5),
            ("MEAN", -1, [3.5, 5.5]),
            ("MEAN", 1, [3.5, 5.5]),
            ("MEAN", 0, [4, 5]),
            ("SUM", 1, [14, 22]),
            ("SUM", -2, [16, 20]),
        ],
    )
    def test_several_axes(self, two, reduce, op, axis, expected):
        """R52."""
        value = per_replica(two, *BLOCKS)
        assert reduce(two, op, value, axis).tolist() == expected

    def test_several_axes_of_components_of_different_shapes(self, two):
        # (1 + 2 + 3 + 4) and (5 + 6): six elements
        value = per_replica(two, BLOCKS[0], array([[5, 6]]))
        assert float(two.reduce("MEAN", value, axis=(0, 1))) == 3.5
        assert two.reduce("MEAN", value, axis=0).tolist() == [3.0, 4.0]

    @pytest.mark.parametrize("replicas", [2, 3])
    def test_as_many_elements_as_the_replica_id_says(self, one, two, three, replicas, way):
        """R62: replica i returns i + 1 times i."""
        strategy = {2: two, 3: three}[replicas]
        value = strategy.run(lambda: jnp.full((replica_id() + 1,), replica_id(), jnp.float32))
        total = sum(i * (i + 1) for i in range(replicas))
        count = sum(i + 1 for i in range(replicas))
        assert float(strategy.reduce("SUM", value, axis=0)) == total
        assert float(strategy.reduce("MEAN", value, axis=0)) == pytest.approx(total / count)
        if replicas == 3:
            assert (total, count) == (8, 6)

    def test_scalars(self, two, reduce):
        value = per_replica(two, jnp.float32(1.0), jnp.float32(2.0))
        assert float(reduce(two, "SUM", value, None)) == 3.0
        assert float(reduce(two, "MEAN", value, None)) == 1.5

    def test_python_numbers(self, two):
        assert float(two.reduce("SUM", two.run(lambda: replica_id() + 1), axis=None)) == 3
        assert float(two.reduce("MEAN", two.run(lambda: replica_id() + 1), axis=None)) == 1.5

    def test_numpy_values(self, two, reduce):
        value = per_replica(two, np.float32([1, 2]), np.float32([3, 4]))
        assert reduce(two, "SUM", value, None).tolist() == [4.0, 6.0]

    def test_one_replica(self, one, reduce):
        value = one.experimental_distribute_values_from_function(lambda ctx: array([1, 2]))
        assert reduce(one, "SUM", value, None).tolist() == [1, 2]
        assert float(reduce(one, "SUM", value, 0)) == 3
        assert float(reduce(one, "MEAN", value, 0)) == 1.5
        plain = one.run(lambda: array([1, 2]))
        assert one.reduce("SUM", plain, axis=None).tolist() == [1, 2]
        assert float(one.reduce("MEAN", plain, axis=0)) == 1.5

    def test_the_result_is_one_array_on_one_device(self, two):
        total = two.reduce("SUM", per_replica(two, array([1]), array([2])), axis=None)
        assert isinstance(total, jax.Array)
        assert device_of(total) == jax.devices("cpu")[0]
        assert (total + jnp.ones(1)).tolist() == [4.0]

    @pytest.mark.parametrize("axis", [None, 0])
    def test_the_value_is_not_changed(self, two, axis):
        value = per_replica(two, array([1, 2]), array([3, 4]))
        two.reduce("SUM", value, axis=axis)
        two.reduce("MEAN", value, axis=axis)
        assert [x.tolist() for x in value.values] == [[1, 2], [3, 4]]


class TestTypes:
    """R55 and the types JAX has besides."""

    def test_the_mean_of_whole_numbers_is_not_truncated(self, two, reduce):
        value = per_replica(two, array([0, 1, 2, 3], "int32"), array([4, 5, 6, 8], "int32"))
        mean = reduce(two, "MEAN", value, None)
        assert mean.tolist() == [2, 3, 4, 5.5]
        assert jnp.issubdtype(mean.dtype, jnp.floating)

    def test_nor_is_that_along_an_axis(self, two, reduce):
        value = per_replica(two, array([0, 1, 2, 3], "int32"), array([4, 5, 6, 7], "int32"))
        assert float(reduce(two, "MEAN", value, 0)) == 3.5

    def test_nor_is_that_of_uneven_components(self, two):
        value = per_replica(two, array([0, 1, 2, 3], "int32"), array([5], "int32"))
        assert float(two.reduce("MEAN", value, axis=0)) == pytest.approx(2.2)

    @pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "bfloat16", "complex64"])
    def test_a_sum_keeps_its_type(self, two, dtype):
        value = per_replica(two, array([1, 2], dtype), array([3, 4], dtype))
        total = two.reduce("SUM", value, axis=None)
        assert total.dtype == jnp.dtype(dtype)
        assert total.astype("complex64").tolist() == [4, 6]

    def test_true_counts_as_one(self, two):
        value = per_replica(two, array([True, True], bool), array([True, False], bool))
        assert two.reduce("SUM", value, axis=None).tolist() == [2, 1]
        assert float(two.reduce("MEAN", value, axis=0)) == 0.75
        assert int(two.reduce("SUM", value, axis=0)) == 3


class TestArguments:
    def test_unequal_shapes_without_an_axis_are_an_error(self, two):
        """R50."""
        value = per_replica(two, array([1, 2]), array([1, 2, 3]))
        with pytest.raises(ValueError, match="differ in shape"):
            two.reduce("SUM", value, axis=None)

    @pytest.mark.parametrize("make_ops", [jt.ReductionToOneDevice, jt.HierarchicalCopyAllReduce])
    def test_however_it_is_reduced(self, make_ops):
        strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=make_ops())
        value = per_replica(strategy, array([1, 2]), array([1, 2, 3]))
        with pytest.raises(ValueError, match="differ in shape"):
            strategy.reduce("SUM", value, axis=None)

    def test_shapes_that_could_be_broadcast_are_an_error_too(self, two):
        value = per_replica(two, array([1.0]), array([1, 2, 3]))
        with pytest.raises(ValueError, match="differ in shape"):
            two.reduce("SUM", value, axis=None)

    def test_shapes_may_differ_along_the_axis_only(self, two):
        value = per_replica(two, jnp.ones((2, 3)), jnp.ones((2, 4)))
        with pytest.raises(ValueError, match="differ in shape"):
            two.reduce("SUM", value, axis=0)

    @pytest.mark.parametrize("axis", [2, -3, (0, 2)], ids=str)
    def test_an_axis_out_of_range_is_an_error(self, two, reduce, axis):
        """R53."""
        with pytest.raises(ValueError, match="out of range"):
            reduce(two, "SUM", per_replica(two, *BLOCKS), axis)

    def test_scalars_have_no_axis(self, two):
        with pytest.raises(ValueError, match="out of range"):
            two.reduce("SUM", per_replica(two, jnp.ones(()), jnp.ones(())), axis=0)

    @pytest.mark.parametrize("axis", ["0", 0.0, (0, 1.0), [None], object(), True])
    def test_an_axis_that_is_no_number_is_an_error(self, two, axis):
        with pytest.raises(TypeError, match="axis must be"):
            two.reduce("SUM", per_replica(two, *BLOCKS), axis=axis)

    def test_numpy_numbers_are_numbers(self, two):
        value = per_replica(two, *BLOCKS)
        assert two.reduce("SUM", value, axis=np.int64(1)).tolist() == [14, 22]

    def test_the_axis_has_no_default(self, two):
        with pytest.raises(TypeError, match="axis"):
            two.reduce("SUM", per_replica(two, *BLOCKS))

    @pytest.mark.parametrize(
        ("op", "expected"),
        [
            (jt.ReduceOp.SUM, 3.0),
            ("SUM", 3.0),
            ("sum", 3.0),
            ("Sum", 3.0),
            (jt.ReduceOp.MEAN, 1.5),
            ("MEAN", 1.5),
            ("mean", 1.5),
        ],
        ids=str,
    )
    def test_ops_and_their_names_in_any_case(self, two, op, expected):
        """R54."""
        value = per_replica(two, jnp.float32(1.0), jnp.float32(2.0))
        assert float(two.reduce(op, value, axis=None)) == expected

    @pytest.mark.parametrize("op", ["MAX", "", "summ", None, 0, jnp.sum, object()])
    def test_other_ops_are_an_error(self, two, op):
        value = per_replica(two, jnp.float32(1.0), jnp.float32(2.0))
        with pytest.raises(ValueError, match="Unknown reduce op") as raised:
            two.reduce(op, value, axis=None)
        assert "jt.ReduceOp.SUM" in str(raised.value)

    def test_structures_are_reduced_leaf_by_leaf(self, two, reduce):
        """R60."""
        value = {"a": per_replica(two, 1.0, 2.0), "b": [per_replica(two, 3.0, 4.0)]}
        reduced = reduce(two, "SUM", value, None)
        assert jax.tree.map(float, reduced) == {"a": 3.0, "b": [7.0]}

    def test_structures_along_an_axis(self, two, reduce):
        value = {"a": per_replica(two, *BLOCKS), "b": per_replica(two, array([1]), array([3]))}
        reduced = reduce(two, "MEAN", value, 0)
        assert jax.tree.map(lambda x: x.tolist(), reduced) == {"a": [4.0, 5.0], "b": 2.0}


class TestPlainValues:
    """R56, R57: values that are not distributed, more than one replica."""

    @pytest.mark.parametrize("value", [3.0, 3, np.float32([1, 2]), jnp.ones(2)], ids=repr)
    def test_the_mean_is_the_value(self, two, value):
        assert two.reduce("MEAN", value, axis=None) is value

    @pytest.mark.parametrize(
        "value", [3.0, 3, True, np.float32([1, 2]), jnp.ones(2), np.float32([0, 1])], ids=repr
    )
    def test_the_sum_is_refused(self, two, value):
        with pytest.raises(ValueError, match="cannot be reduced with the given reduce op"):
            two.reduce("SUM", value, axis=None)

    @pytest.mark.parametrize("value", [np.zeros(2), np.float32(0), 0, 0.0], ids=repr)
    def test_the_sum_of_zeros_is_zeros(self, two, value):
        assert (
            np.asarray(two.reduce("SUM", value, axis=None)).tolist()
            == np.zeros_like(value).tolist()
        )

    @pytest.mark.parametrize("make", [list, tuple, np.array, jnp.array])
    def test_along_an_axis_every_replica_counts(self, two, make):
        assert float(two.reduce("SUM", make([1.0, 2.0]), axis=0)) == 6.0
        assert float(two.reduce("MEAN", make([1.0, 2.0]), axis=0)) == 1.5

    def test_along_an_axis_in_a_compiled_function(self, two):
        value = jnp.array([1.0, 2.0])
        with two.scope():
            total = jt.function(lambda x: two.reduce("SUM", x, axis=0))(value)
            mean = jt.function(lambda x: two.reduce("MEAN", x, axis=0))(value)
        assert (float(total), float(mean)) == (6.0, 1.5)

    def test_of_three_replicas(self, three):
        assert float(three.reduce("SUM", jnp.array([1.0, 2.0]), axis=0)) == 9.0


class TestMirroredValues:
    """R59."""

    @pytest.fixture
    def variable(self, two):
        with two.scope():
            return jt.Variable([1.0, 2.0])

    @pytest.fixture
    def mirrored(self, two, variable):
        return two.extended.reduce_to("SUM", per_replica(two, array([1]), array([2])), variable)

    def test_the_mean_of_a_variable_is_its_value(self, two, variable):
        assert np.asarray(two.reduce("MEAN", variable, axis=None)).tolist() == [1.0, 2.0]

    def test_the_mean_of_a_mirrored_value_is_the_value(self, two, mirrored):
        assert np.asarray(two.reduce("MEAN", mirrored, axis=None)).tolist() == [3.0]

    def test_the_sum_of_a_variable_is_refused(self, two, variable):
        with pytest.raises(AssertionError, match="same on all replicas"):
            two.reduce("SUM", variable, axis=None)
        assert variable.numpy().tolist() == [1.0, 2.0]

    def test_the_sum_of_a_mirrored_value_is_refused(self, two, mirrored):
        with pytest.raises(AssertionError, match="same on all replicas"):
            two.reduce("SUM", mirrored, axis=None)

    def test_along_an_axis_each_copy_counts(self, two, variable):
        assert float(two.reduce("SUM", variable, axis=0)) == 6.0
        assert float(two.reduce("MEAN", variable, axis=0)) == 1.5


class TestEnums:
    def test_the_reduce_ops(self):
        assert {op.name: op.value for op in jt.ReduceOp} == {"SUM": "SUM", "MEAN": "MEAN"}

    def test_the_aggregations(self):
        assert {x.name: x.value for x in jt.VariableAggregation} == {
            "NONE": 0,
            "SUM": 1,
            "MEAN": 2,
            "ONLY_FIRST_REPLICA": 3,
        }

    def test_the_synchronizations(self):
        assert {x.name: x.value for x in jt.VariableSynchronization} == {
            "AUTO": 0,
            "NONE": 1,
            "ON_WRITE": 2,
            "ON_READ": 3,
        }


class TestPlaces:
    def test_in_a_replica_it_is_refused(self, two, way):
        """R5."""

        def replica_fn():
            return two.reduce("SUM", jnp.ones(()), axis=None)

        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            two.run(way(replica_fn))
        assert not jt.has_strategy()

    def test_in_a_merge_function_it_works(self, two, way):
        def merge_fn(strategy, x):
            return strategy.reduce("MEAN", x, axis=0)

        def replica_fn():
            x = jnp.arange(2.0) + 10 * replica_id()
            return jt.get_replica_context().merge_call(merge_fn, args=(x,))

        result = two.run(way(replica_fn))
        assert {float(x) for x in two.experimental_local_results(result)} == {5.5}

    def test_after_run_in_one_compiled_function(self, two):
        @jt.function
        def step(x):
            losses = two.run(lambda x: x * (1 + replica_id()), args=(x,))
            return two.reduce("SUM", losses, axis=None), two.reduce("MEAN", losses, axis=0)

        total, mean = step(per_replica(two, array([1, 2]), array([3, 4])))
        assert total.tolist() == [7.0, 10.0]
        assert float(mean) == (1 + 2 + 6 + 8) / 4
