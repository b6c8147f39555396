"""`ShardedVariable`: one array in several variables."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.sharded import ShardedVariable, div_sizes
from tests.variables._support import (
    SUM,
    both_ways,
    call,
    create,
    mirrored,
    run,
)


def sharded(array, sizes=None, make=jt.Variable):
    array = np.asarray(array)
    sizes = sizes or div_sizes(len(array), 3)
    parts = np.split(array, np.cumsum(sizes)[:-1])
    return ShardedVariable([make(part, name=f"w/part_{i}") for i, part in enumerate(parts)], "w")


def shards(variable):
    return [shard.numpy().tolist() for shard in variable.variables]


EIGHT = np.arange(8, dtype=np.float32)


class TestMaking:
    """R180."""

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            pytest.param(list, TypeError, id="nothing"),
            pytest.param(lambda: [jnp.ones(2)], TypeError, id="an array"),
            pytest.param(lambda: [jt.Variable([1.0]), 2.0], TypeError, id="a number among them"),
            pytest.param(lambda: jt.Variable([1.0]), TypeError, id="no list"),
            pytest.param(
                lambda: [jt.Variable([1.0]), jt.Variable([1])], ValueError, id="two dtypes"
            ),
            pytest.param(
                lambda: [jt.Variable(jnp.ones((2, 2))), jt.Variable(jnp.ones((2, 3)))],
                ValueError,
                id="rows of different shapes",
            ),
            pytest.param(lambda: [jt.Variable(1.0)], ValueError, id="a scalar"),
            pytest.param(lambda: [jt.Variable([1.0])] * 2, ValueError, id="one twice"),
        ],
    )
    def test_of_what_does_not_fit(self, make, error):
        with pytest.raises(error):
            ShardedVariable(make())

    def test_what_it_is(self):
        variable = sharded(np.ones((8, 2), np.float32))
        assert variable.shape == (8, 2)
        assert (variable.ndim, variable.size, variable.dtype) == (2, 16, jnp.float32)
        assert variable.name == "w"
        assert variable.trainable
        assert variable.distribute_strategy is None
        assert not variable.is_remote
        assert not isinstance(variable, jt.Variable)
        assert [v.name for v in variable.variables] == ["w/part_0", "w/part_1", "w/part_2"]
        assert [v.shape for v in variable.variables] == [(3, 2), (3, 2), (2, 2)]
        assert variable.row_offsets == [0, 3, 6, 8]
        assert ShardedVariable([jt.Variable([1.0])]).name == "ShardedVariable"

    def test_that_is_not_trained(self):
        assert not ShardedVariable([jt.Variable([1.0], trainable=False)]).trainable

    def test_iterating_goes_over_the_shards(self):
        variable = sharded(EIGHT)
        assert len(variable) == 3
        for one, other in zip(variable, variable.variables, strict=True):
            assert one is other

    def test_repr_shows_the_shards(self):
        text = repr(sharded(EIGHT))
        assert text.startswith("ShardedVariable:{\n  0: <jt.Variable 'w/part_0:0' shape=(3,)")
        assert "2: <jt.Variable 'w/part_2:0'" in text

    def test_copies_are_independent(self):
        variable = sharded(EIGHT)
        duplicate = copy.deepcopy(variable)
        duplicate.assign(EIGHT + 1)
        assert variable.numpy().tolist() == EIGHT.tolist()
        assert duplicate.numpy().tolist() == (EIGHT + 1).tolist()

    def test_the_strategy_is_that_of_the_shards(self):
        strategy = mirrored(2)
        variable = sharded(EIGHT, make=lambda *a, **k: create(strategy, *a, **k))
        assert variable.distribute_strategy is strategy


class TestAsAnArray:
    """R184."""

    @pytest.mark.parametrize(
        "convert",
        [
            pytest.param(lambda v: v.value(), id="value"),
            pytest.param(lambda v: v.read_value(), id="read_value"),
            pytest.param(lambda v: v.numpy(), id="numpy"),
            pytest.param(jnp.asarray, id="jnp.asarray"),
            pytest.param(np.asarray, id="np.asarray"),
            pytest.param(lambda v: v + 0, id="plus"),
            pytest.param(lambda v: 0 + v, id="plus, reversed"),
            pytest.param(lambda v: np.zeros(8, np.float32) + v, id="with numpy"),
            pytest.param(lambda v: jnp.zeros(8) + v, id="with jax"),
            pytest.param(jax.jit(lambda x: x), id="jax.jit"),
        ],
    )
    def test_it_is_all_shards_together(self, convert):
        result = convert(sharded(EIGHT))
        assert isinstance(result, (jax.Array, np.ndarray))
        assert result.dtype == np.float32
        assert result.tolist() == EIGHT.tolist()

    def test_functions_of_jax_take_it(self):
        matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
        variable = sharded(matrix)
        assert jnp.sum(variable) == 15
        assert (jnp.ones((1, 3)) @ variable).tolist() == [[6, 9]]
        assert jax.tree.map(lambda x: x.shape, [variable]) == [(3, 2)]

    def test_comparison_is_elementwise(self):
        assert (sharded(EIGHT) > 5).tolist() == (EIGHT > 5).tolist()

    def test_numpy_gives_an_array_of_its_own(self):
        variable = sharded(EIGHT)
        variable.numpy()[0] = 100
        assert variable.numpy()[0] == 0

    def test_shards_on_different_devices(self):
        with jt.device("CPU:1"):
            first = jt.Variable([1.0, 2.0])
        with jt.device("CPU:2"):
            second = jt.Variable([3.0])
        variable = ShardedVariable([first, second])
        assert variable.value().tolist() == [1, 2, 3]
        assert variable.sparse_read([2, 0]).tolist() == [3, 1]
        assert variable[1:].tolist() == [2, 3]

    def test_in_a_compiled_function_it_is_followed(self):
        variable = sharded(EIGHT)
        step = jt.function(lambda x: jnp.sum(variable) * x)
        assert step(jnp.float32(2.0)) == 56
        variable.assign(np.ones(8, np.float32))
        assert step(jnp.float32(2.0)) == 16
        assert step.experimental_get_tracing_count() == 1

    def test_as_an_argument_of_a_compiled_function(self):
        one, other = sharded(EIGHT), sharded(EIGHT + 1)
        step = jt.function(lambda variable: variable[0] + variable.assign_add(EIGHT)[1])
        assert (step(one), step(other), step(one)) == (0 + 2, 1 + 3, 0 + 3)


class TestAssigning:
    """R183."""

    @both_ways
    def test_each_shard_gets_its_part(self, way):
        variable = sharded(np.zeros(8, np.float32))
        for method, expected in [
            ("assign", EIGHT),
            ("assign_add", EIGHT * 2),
            ("assign_sub", EIGHT),
        ]:
            call(way, lambda x, method=method: getattr(variable, method)(x) is variable, EIGHT)
            assert shards(variable) == [part.tolist() for part in np.split(expected, [3, 6])]

    def test_it_returns_itself(self):
        variable = sharded(EIGHT)
        assert variable.assign(EIGHT) is variable
        assert variable.assign_add(EIGHT) is variable
        assert variable.assign_sub(EIGHT) is variable

    def test_takes_the_arguments_of_tensorflow(self):
        variable = sharded(EIGHT)
        for assign in (variable.assign, variable.assign_add, variable.assign_sub):
            assert assign(EIGHT, use_locking=True, name="name", read_value=False) is variable
        rows = jt.IndexedSlices([1.0], [7])
        for kind in ("add", "sub", "mul", "div", "min", "max", "update"):
            scatter = getattr(variable, f"scatter_{kind}")
            assert scatter(rows, use_locking=True, name="name") is variable
        assert variable.numpy().tolist() == [*EIGHT[:7], 1.0]

    @pytest.mark.parametrize(
        "value",
        [
            pytest.param([float(i) for i in range(8)], id="list"),
            pytest.param(EIGHT, id="numpy"),
            pytest.param(jnp.asarray(EIGHT), id="jax"),
            pytest.param(np.arange(8), id="whole numbers"),
        ],
    )
    def test_of_anything_like_an_array(self, value):
        assert sharded(np.zeros(8, np.float32)).assign(value).numpy().tolist() == EIGHT.tolist()

    def test_of_variables(self):
        assert sharded(EIGHT).assign(jt.Variable(EIGHT + 1)).numpy().tolist() == list(range(1, 9))
        assert sharded(EIGHT).assign_add(sharded(EIGHT)).numpy().tolist() == (2 * EIGHT).tolist()

    @pytest.mark.parametrize("length", [7, 9, 1])
    def test_too_short_or_too_long_changes_nothing(self, length):
        variable = sharded(EIGHT)
        for method in (variable.assign, variable.assign_add, variable.assign_sub):
            with pytest.raises(ValueError, match=rf"\(8,\).*\({length},\)"):
                method(np.ones(length, np.float32))
        assert variable.numpy().tolist() == EIGHT.tolist()

    def test_a_type_that_would_lose_information_changes_nothing(self):
        variable = sharded(np.zeros(8, np.int32))
        with pytest.raises(ValueError, match="lose information"):
            variable.assign(EIGHT)
        assert variable.numpy().tolist() == [0] * 8

    def test_a_value_for_each_replica_is_refused(self):
        values = mirrored(2).experimental_distribute_values_from_function(lambda _: EIGHT)
        with pytest.raises(ValueError, match=r"strategy\.reduce"):
            sharded(EIGHT).assign(values)

    @both_ways
    def test_by_replicas(self, way):
        strategy = mirrored(2)
        variable = sharded(EIGHT, make=lambda *a, **k: create(strategy, *a, aggregation=SUM, **k))
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: EIGHT * (ctx.replica_id_in_sync_group + 1)
        )

        def step(x):
            variable.assign_add(x)

        run(way, strategy, step, (values,))
        assert variable.numpy().tolist() == (EIGHT * 4).tolist()


KINDS = ["add", "sub", "mul", "div", "min", "max", "update"]


class TestScattering:
    """R185."""

    @both_ways
    def test_rows_named_twice_are_added_up(self, way):
        variable = sharded(np.zeros(8, np.float32))
        values, indices = np.float32([1, 2, 3, 4]), np.array([0, 3, 7, 3])

        def step(values, indices):
            variable.scatter_add(jt.IndexedSlices(values, indices))

        call(way, step, values, indices)
        assert shards(variable) == [[1, 0, 0], [6, 0, 0], [0, 3]]

    @both_ways
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_that_of_one_variable(self, kind, way):
        array = np.arange(16, dtype=np.float32).reshape(8, 2)
        variable, whole = sharded(array), jt.Variable(array)
        indices = np.array([7, 0, 4])
        values = np.float32([[2, 3], [-4, 5], [6, 7]])

        def step(values, indices):
            for each in (variable, whole):
                getattr(each, f"scatter_{kind}")(jt.IndexedSlices(values, indices))

        call(way, step, values, indices)
        np.testing.assert_array_equal(variable.numpy(), whole.numpy())

    @given(st.lists(st.tuples(st.integers(0, 7), st.integers(-9, 9)), max_size=12))
    def test_any_rows(self, rows):
        variable = sharded(EIGHT)
        indices = np.array([i for i, _ in rows], np.int32)
        values = np.array([v for _, v in rows], np.float32)
        assert variable.scatter_add(jt.IndexedSlices(values, indices)) is variable
        expected = EIGHT.copy()
        np.add.at(expected, indices, values)
        np.testing.assert_array_equal(variable.numpy(), expected)

    @both_ways
    def test_by_replicas(self, way):
        """Each replica has rows for other shards, and all of them count."""
        strategy = mirrored(2)
        variable = sharded(
            np.zeros(8, np.float32), make=lambda *a, **k: create(strategy, *a, aggregation=SUM, **k)
        )
        rows = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.int32([[0, 0], [7, 3]])[ctx.replica_id_in_sync_group]
        )

        def step(indices):
            variable.scatter_add(jt.IndexedSlices(jnp.ones(2), indices))

        run(way, strategy, step, (rows,))
        assert shards(variable) == [[2, 0, 0], [1, 0, 0], [0, 1]]

    def test_shards_without_rows_are_left_alone(self):
        variable = sharded(EIGHT)
        kept = variable.variables[1].value()
        variable.scatter_add(jt.IndexedSlices(np.float32([1]), np.array([0])))
        assert variable.variables[1].value() is kept

    @pytest.mark.parametrize(
        ("slices", "error", "match"),
        [
            (jt.IndexedSlices([[1.0]], [[0]]), ValueError, "one axis"),
            (jt.IndexedSlices([1.0], [8]), ValueError, "8"),
            (jt.IndexedSlices([1.0], [-1]), ValueError, "-1"),
            (np.ones(8), TypeError, "IndexedSlices"),
        ],
        ids=["two axes", "too large", "negative", "no rows"],
    )
    def test_of_what_cannot_be(self, slices, error, match):
        with pytest.raises(error, match=match):
            sharded(EIGHT).scatter_add(slices)

    def test_an_uneven_division_is_refused(self):
        variable = sharded(EIGHT, [2, 3, 3])
        with pytest.raises(NotImplementedError, match=r"\[2, 3, 3\]"):
            variable.scatter_add(jt.IndexedSlices([1.0], [0]))
        with pytest.raises(NotImplementedError, match="sparse_read"):
            variable.sparse_read([0])


class TestSparseRead:
    """R186, decision 8."""

    @both_ways
    def test_keeps_the_order_of_the_request(self, way):
        variable = sharded(EIGHT)
        assert call(way, variable.sparse_read, jnp.array([7, 0, 3, 0])).tolist() == [7, 0, 3, 0]

    def test_rows(self):
        array = np.arange(16, dtype=np.float32).reshape(8, 2)
        assert sharded(array).sparse_read([5, 1]).tolist() == array[[5, 1]].tolist()
        assert sharded(array).sparse_read(np.array([], int)).shape == (0, 2)

    def test_of_what_cannot_be(self):
        with pytest.raises(ValueError, match="one axis"):
            sharded(EIGHT).sparse_read([[1]])
        with pytest.raises(jt.errors.InvalidArgumentError, match=r"'w' has 8 rows.* 8, 9"):
            sharded(EIGHT).sparse_read([9, 8, 1])


class TestSplitting:
    def test_an_array(self):
        parts = sharded(EIGHT).split(jnp.asarray(EIGHT))
        assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7]]

    def test_rows(self):
        parts = sharded(EIGHT).split(jt.IndexedSlices(np.float32([1, 2, 3]), np.array([7, 0, 6])))
        assert [(p.indices.tolist(), p.values.tolist()) for p in parts] == [
            ([0], [2]),
            ([], []),
            ([1, 0], [1, 3]),
        ]

    def test_rows_that_are_not_known_yet(self):
        variable = sharded(EIGHT)

        @jax.jit
        def split(indices):
            return [p.indices for p in variable.split(jt.IndexedSlices(jnp.ones(3), indices))]

        assert [each.tolist() for each in split(jnp.array([7, 0, 6]))] == [
            [3, 0, 3],
            [3, 3, 3],
            [1, 2, 0],
        ]


class TestModules:
    """R188."""

    def test_report_the_shards(self):
        class Dense(jt.Module):
            def __init__(self):
                super().__init__()
                self.w = sharded(np.ones((5, 2), np.float32), [3, 2])
                self.frozen = [ShardedVariable([jt.Variable([1.0], trainable=False, name="f")])]
                self.again = self.w.variables[0]

            def __call__(self, x):
                return x @ self.w

        dense = Dense()
        assert [v.name for v in dense.variables] == ["w/part_0", "f", "w/part_1"]
        assert [v.name for v in dense.trainable_variables] == ["w/part_0", "w/part_1"]
        assert [v.name for v in dense.non_trainable_variables] == ["f"]
        assert all(isinstance(v, jt.Variable) for v in dense.variables)
        assert dense(jnp.ones((1, 5))).tolist() == [[5, 5]]
