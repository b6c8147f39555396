"""`all_reduce`, `gather` and `all_gather` (rules R63-R73)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from tests.strategies._values import parts, per_replica, replica_id


def all_reduce(op, value):
    return jt.get_replica_context().all_reduce(op, value)


def all_gather(value, axis):
    return jt.get_replica_context().all_gather(value, axis=axis)


class TestAllReduce:
    def test_a_structure(self, two, way):
        """R63."""

        def replica_fn():
            i = replica_id()
            return all_reduce("MEAN", {"a": i, "b": [10 * i]})

        local = two.experimental_local_results(two.run(way(replica_fn)))
        assert [jax.tree.map(float, x) for x in local] == [{"a": 0.5, "b": [5.0]}] * 2

    @pytest.mark.parametrize(
        ("op", "expected"), [("SUM", 6.0), ("mean", 2.0), (jt.ReduceOp.SUM, 6.0)]
    )
    def test_each_replica_gets_the_result(self, three, way, op, expected):
        result = three.run(way(lambda: all_reduce(op, jnp.float32(replica_id() + 1))))
        assert parts(three, result) == [expected] * 3

    def test_python_numbers_that_are_the_same(self, two, way):
        assert parts(two, two.run(way(lambda: all_reduce("SUM", 3.0)))) == [6.0, 6.0]
        assert parts(two, two.run(way(lambda: all_reduce("MEAN", 3.0)))) == [3.0, 3.0]

    def test_a_captured_array_counts_once_a_replica(self, two, way):
        captured = np.float32([1, 2])
        assert parts(two, two.run(way(lambda: all_reduce("SUM", captured)))) == [[2.0, 4.0]] * 2

    def test_a_variable(self, two, way):
        with two.scope():
            v = jt.Variable(2.0)
        assert parts(two, two.run(way(lambda: all_reduce("SUM", v)))) == [4.0, 4.0]

    def test_nothing(self, two, way):
        result = two.run(way(lambda: all_reduce("SUM", {"a": [], "b": None})))
        assert result == {"a": [], "b": None}

    def test_one_replica(self, one, way):
        assert float(one.run(way(lambda: all_reduce("SUM", jnp.float32(3.0))))) == 3.0

    def test_shapes_that_differ_are_an_error(self, two):
        with pytest.raises(ValueError, match="shape"):
            two.run(lambda: all_reduce("SUM", jnp.ones(replica_id() + 1)))

    @pytest.mark.parametrize("op", ["MAX", None, 1])
    def test_an_unknown_op_is_an_error(self, two, way, op):
        with pytest.raises(ValueError, match="Unknown reduce op"):
            two.run(way(lambda: all_reduce(op, jnp.ones(()))))

    def test_options_are_accepted(self, two, way):
        fn = way(lambda: jt.get_replica_context().all_reduce("SUM", jnp.ones(()), options=None))
        assert parts(two, two.run(fn)) == [2.0, 2.0]


class TestAllReduceGradient:
    """R64."""

    @pytest.mark.parametrize(
        ("op", "values", "gradients"), [("SUM", [5, 5], [4, 8]), ("MEAN", [2.5, 2.5], [2, 4])]
    )
    def test_is_combined_in_the_same_way(self, two, way, op, values, gradients):
        def replica_fn():
            x = jnp.float32(replica_id() + 1)
            return jax.value_and_grad(lambda x: all_reduce(op, x**2))(x)

        value, gradient = two.run(way(replica_fn))
        assert parts(two, value) == values
        assert parts(two, gradient) == gradients

    @pytest.mark.parametrize(("op", "gradients"), [("SUM", [4, 8]), ("MEAN", [2, 4])])
    def test_with_respect_to_variables(self, two, way, op, gradients):
        with two.scope():
            w = jt.Variable(1.0)

        def replica_fn():
            scale = jnp.float32(replica_id() + 1)
            return jt.grad(lambda: all_reduce(op, scale * w**2), w)()

        assert parts(two, two.run(way(replica_fn))) == gradients

    def test_of_a_structure(self, two, way):
        def loss(x):
            reduced = all_reduce("SUM", {"a": x, "b": [x**2]})
            return reduced["a"] + 10 * reduced["b"][0]

        result = two.run(way(lambda: jax.grad(loss)(jnp.float32(replica_id() + 1))))
        # 2 + 10 * 2 * 2 * x
        assert parts(two, result) == [42.0, 82.0]

    def test_with_weights_that_differ_between_replicas(self, two, way):
        def replica_fn():
            weight = jnp.float32(replica_id() + 1)
            return jax.grad(lambda x: weight * all_reduce("SUM", x))(jnp.float32(1.0))

        assert parts(two, two.run(way(replica_fn))) == [3.0, 3.0]

    def test_of_the_second_order(self, two, way):
        def replica_fn():
            x = jnp.float32(replica_id() + 1)
            return jax.grad(jax.grad(lambda x: all_reduce("SUM", x**3)))(x)

        # The first is 2 * 3 * x**2, as both replicas ask for it.
        assert parts(two, two.run(way(replica_fn))) == [12.0, 24.0]


class TestIndexedSlices:
    """R66."""

    @staticmethod
    def slices(i):
        if i == 0:
            return jt.IndexedSlices(jnp.array([[1.0, 2.0]]), jnp.array([1]), (5, 2))
        return jt.IndexedSlices(jnp.array([[3.0, 4.0], [5.0, 6.0]]), jnp.array([1, 3]), (5, 2))

    EXPECTED = pytest.mark.parametrize(
        ("op", "rows"),
        [("SUM", {1: [4, 6], 3: [5, 6]}), ("MEAN", {1: [2, 3], 3: [2.5, 3]})],
    )

    @staticmethod
    def dense(rows):
        return [rows.get(i, [0, 0]) for i in range(5)]

    @EXPECTED
    def test_all_reduce(self, two, op, rows):
        result = two.run(lambda: all_reduce(op, self.slices(replica_id())))
        for local in two.experimental_local_results(result):
            assert isinstance(local, jt.IndexedSlices)
            assert local.to_dense().tolist() == self.dense(rows)
            assert local.dense_shape == (5, 2)

    @pytest.mark.parametrize(("op", "row"), [("SUM", [4, 6]), ("MEAN", [2, 3])])
    def test_all_reduce_in_a_compiled_step(self, two, op, row):
        def replica_fn(values):
            slices = jt.IndexedSlices(values, jnp.array([1]), (5, 2))
            return all_reduce(op, {"s": slices, "dense": values})

        values = per_replica(two, jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        result = two.run(jt.function(replica_fn), args=(values,))
        for local in two.experimental_local_results(result):
            assert local["s"].to_dense().tolist() == self.dense({1: row})
            assert local["dense"].tolist() == [row]

    @EXPECTED
    def test_reduce(self, two, op, rows):
        value = two.run(lambda: self.slices(replica_id()))
        reduced = two.reduce(op, value, axis=None)
        assert reduced.to_dense().tolist() == self.dense(rows)


class TestGather:
    @pytest.mark.parametrize(
        ("shapes", "axis", "expected"),
        [
            (((1, 1), (2, 1)), 0, (3, 1)),
            (((1, 1), (1, 2)), 1, (1, 3)),
            (((2,), (2,)), 0, (4,)),
            (((0, 3), (2, 3)), 0, (2, 3)),
            (((1, 2, 1), (1, 2, 3)), 2, (1, 2, 4)),
        ],
    )
    def test_concatenates_in_the_order_of_the_replicas(self, two, shapes, axis, expected):
        """R67."""
        arrays = [
            np.arange(np.prod(shape), dtype="float32").reshape(shape) + 100 * i
            for i, shape in enumerate(shapes)
        ]
        gathered = two.gather(per_replica(two, *arrays), axis=axis)
        assert gathered.shape == expected
        assert gathered.tolist() == np.concatenate(arrays, axis).tolist()

        eager = two.run(lambda x: all_gather(x, axis), args=(per_replica(two, *arrays),))
        assert parts(two, eager) == [np.concatenate(arrays, axis).tolist()] * 2

    @pytest.mark.parametrize("axis", [0, 1])
    def test_in_a_compiled_function(self, two, axis):
        arrays = [np.float32([[1, 2], [3, 4]]) + 10 * i for i in range(2)]
        expected = np.concatenate(arrays, axis).tolist()
        value = per_replica(two, *arrays)
        assert jt.function(lambda x: two.gather(x, axis=axis))(value).tolist() == expected
        gathered = two.run(jt.function(lambda x: all_gather(x, axis)), args=(value,))
        assert parts(two, gathered) == [expected] * 2

    def test_three_replicas(self, three, way):
        result = three.run(way(lambda: all_gather(jnp.full((2,), replica_id()), 0)))
        assert parts(three, result) == [[0, 0, 1, 1, 2, 2]] * 3

    def test_types_are_kept(self, two):
        for dtype in ["int32", "bool", "bfloat16", "complex64", "uint8"]:
            value = per_replica(two, jnp.ones(1, dtype), jnp.zeros(1, dtype))
            assert two.gather(value, axis=0).dtype == jnp.dtype(dtype)

    def test_a_structure(self, two, way):
        """R72: leaves of different ranks."""

        def replica_fn():
            i = jnp.float32(replica_id())
            return all_gather({"a": jnp.full((1,), i), "b": [jnp.full((1, 2), i)]}, 0)

        for local in two.experimental_local_results(two.run(way(replica_fn))):
            assert local["a"].tolist() == [0.0, 1.0]
            assert local["b"][0].tolist() == [[0.0, 0.0], [1.0, 1.0]]
        value = two.run(way(lambda: {"a": jnp.full((1,), replica_id())}))
        assert two.gather(value, axis=0)["a"].tolist() == [0, 1]

    def test_a_plain_value_is_returned_as_it_is(self, two):
        """R70."""
        value = jnp.arange(3)
        assert two.gather(value, axis=0) is value

    def test_one_replica(self, one, way):
        value = one.experimental_distribute_values_from_function(lambda ctx: jnp.arange(3))
        assert one.gather(value, axis=0).tolist() == [0, 1, 2]
        assert one.run(way(lambda: all_gather(jnp.arange(3), 0))).tolist() == [0, 1, 2]


class TestGatherRefuses:
    """R68, R69, R71."""

    WRONG = pytest.mark.parametrize(
        ("shapes", "axis", "message"),
        [
            pytest.param(((), ()), 0, "Scalars", id="scalars"),
            pytest.param(((2,), (2,)), -1, "axis must be in the range", id="negative axis"),
            pytest.param(((2,), (2,)), 1, "axis must be in the range", id="axis too large"),
            pytest.param(((2,), (2,)), "0", "axis must be in the range", id="axis no number"),
            pytest.param(((1, 2), (1, 3)), 0, "may differ only in axis 0", id="other axis"),
            pytest.param(((2,), (2, 1)), 0, "may differ only in axis 0", id="ranks"),
            pytest.param(((2, 1), (2,)), 1, "may differ only in axis 1", id="ranks the other way"),
        ],
    )

    @WRONG
    def test_in_gather(self, two, shapes, axis, message):
        value = per_replica(two, *[jnp.ones(shape) for shape in shapes])
        with pytest.raises(ValueError, match=message) as raised:
            two.gather(value, axis=axis)
        assert isinstance(raised.value, jt.errors.InvalidArgumentError)

    @WRONG
    def test_in_all_gather(self, two, shapes, axis, message):
        value = per_replica(two, *[jnp.ones(shape) for shape in shapes])
        with pytest.raises(jt.errors.InvalidArgumentError):
            two.run(lambda x: all_gather(x, axis), args=(value,))
        assert not jt.has_strategy()
        assert parts(two, two.run(lambda: all_reduce("SUM", 1.0))) == [2.0, 2.0]

    @pytest.mark.parametrize(("shape", "axis"), [((), 0), ((2,), -1), ((2,), 1)], ids=str)
    def test_in_a_compiled_all_gather(self, two, shape, axis):
        with pytest.raises(jt.errors.InvalidArgumentError):
            two.run(jt.function(lambda: all_gather(jnp.ones(shape), axis)))

    @pytest.mark.parametrize("axis", [0, -5])
    def test_slices_before_anything_else(self, two, axis):
        slices = two.run(lambda: jt.IndexedSlices(jnp.ones((1, 2)), jnp.array([replica_id()])))
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            two.gather(slices, axis=axis)
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            two.gather({"a": [slices]}, axis=axis)

    @pytest.mark.parametrize("axis", [0, -5])
    def test_slices_in_a_replica(self, two, way, axis):
        def replica_fn():
            return all_gather(jt.IndexedSlices(jnp.ones((1, 2)), jnp.array([0])), axis)

        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            two.run(way(replica_fn))

    def test_in_a_replica_it_names_all_gather(self, two, way):
        with pytest.raises(RuntimeError, match="all_gather"):
            two.run(way(lambda: two.gather(jnp.ones(2), axis=0)))


class TestAllGatherGradient:
    """R73."""

    def test_is_the_sum_over_replicas_of_the_own_rows(self, one, two, three, way):
        for strategy in (one, two, three):
            n = strategy.num_replicas_in_sync

            def replica_fn():
                weight = jnp.float32(replica_id() + 1)
                return jax.grad(lambda x: jnp.sum(weight * all_gather(x, 0)))(jnp.ones((2, 3)))

            result = strategy.run(way(replica_fn))
            assert parts(strategy, result) == [[[n * (n + 1) / 2] * 3] * 2] * n

    def test_of_rows_that_differ(self, two, way):
        """Each replica squares the rows of all; its gradient is that of its own rows."""

        def replica_fn():
            x = jnp.arange(2.0) + 2 * replica_id()
            return jax.grad(lambda x: jnp.sum(all_gather(x, 0) ** 2))(x)

        assert parts(two, two.run(way(replica_fn))) == [[0.0, 4.0], [8.0, 12.0]]

    def test_of_shapes_that_differ(self, two):
        def replica_fn():
            x = jnp.arange(1.0 + replica_id()) + 1 + replica_id()  # [1] and [2, 3]
            return jax.grad(lambda x: jnp.sum(all_gather(x, 0) ** 2))(x)

        assert parts(two, two.run(replica_fn)) == [[4.0], [8.0, 12.0]]

    def test_along_another_axis(self, two, way):
        def replica_fn():
            x = jnp.ones((2, 1)) * (1 + replica_id())
            weights = jnp.array([[1.0, 10.0], [100.0, 1000.0]])
            return jax.grad(lambda x: jnp.sum(weights * all_gather(x, 1)))(x)

        assert parts(two, two.run(way(replica_fn))) == [
            [[2.0], [200.0]],
            [[20.0], [2000.0]],
        ]
