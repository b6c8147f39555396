"""`jt.nn.embedding_lookup` and bags of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.sharded import ShardedVariable
from tests.variables._support import both_ways, call, create, local, mirrored, run

ROWS = np.float32([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])
RaggedIds = jt.nn.RaggedIds


def shards(make=jt.Variable):
    return [make(part) for part in np.split(ROWS, [2, 4])]


TABLES = {
    "variable": lambda: jt.Variable(ROWS, name="table"),
    "sharded": lambda: ShardedVariable(shards(), "table"),
    "list": shards,
    "list of one": lambda: [jt.Variable(ROWS)],
    "array": lambda: jnp.asarray(ROWS),
    "numpy": lambda: ROWS,
    "mirrored": lambda: create(mirrored(2), ROWS),
    "mirrored shards": lambda: ShardedVariable(shards(lambda x: create(mirrored(2), x))),
}
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
TRAINED = ("variable", "sharded", "mirrored", "mirrored shards")
every_trained_table = pytest.mark.parametrize("table", [TABLES[k] for k in TRAINED], ids=TRAINED)


class TestRows:
    """R187."""

    @both_ways
    @every_table
    def test_keep_the_order_of_the_ids(self, table, way):
        table = table()
        for ids in ([0, 3, 4], [4, 0, 4, 2]):
            rows = call(way, lambda ids: jt.nn.embedding_lookup(table, ids), np.array(ids))
            assert rows.tolist() == ROWS[ids].tolist()

    @both_ways
    @pytest.mark.parametrize("shape", [(), (0,), (2, 3), (2, 0), (1, 2, 2)], ids=str)
    def test_of_ids_of_any_shape(self, shape, way):
        table = TABLES["sharded"]()
        ids = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5
        rows = call(way, lambda ids: jt.nn.embedding_lookup(table, ids), ids)
        assert rows.shape == (*shape, 2)
        np.testing.assert_array_equal(np.asarray(rows), ROWS[ids])

    def test_of_tables_of_any_rank(self):
        cube = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
        for table in (jt.Variable(cube), ShardedVariable([jt.Variable(x) for x in cube[:, None]])):
            assert jt.nn.embedding_lookup(table, [2, 0]).tolist() == cube[[2, 0]].tolist()
        assert jt.nn.embedding_lookup(jt.Variable([1.0, 2.0]), [[1], [0]]).tolist() == [[2], [1]]

    def test_of_lists_and_variables_as_ids(self):
        table = TABLES["sharded"]()
        assert jt.nn.embedding_lookup(table, []).shape == (0, 2)
        assert jt.nn.embedding_lookup(table, 3).tolist() == [7, 8]
        assert jt.nn.embedding_lookup(table, jt.Variable([4, 1])).tolist() == [[9, 10], [3, 4]]

    def test_are_never_those_of_the_whole_table(self):
        """No array of the table's size is made of a sharded one."""
        table = TABLES["sharded"]()
        program = jax.make_jaxpr(lambda ids: jt.nn.embedding_lookup(table, ids))(jnp.zeros(2, int))
        sizes = {v.aval.shape for equation in program.eqns for v in equation.outvars}
        assert (5, 2) not in sizes

    def test_follow_assignments(self):
        table = TABLES["sharded"]()
        step = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))
        assert step(jnp.array([4])).tolist() == [[9, 10]]
        table.variables[2].assign([[0, 1]])
        assert step(jnp.array([4])).tolist() == [[0, 1]]

    @both_ways
    @pytest.mark.parametrize("kind", ["mirrored", "mirrored shards"])
    def test_of_replicas(self, kind, way):
        strategy, table = mirrored(2), TABLES[kind]()
        ids = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.int32([[0, 4], [3, 3]])[ctx.replica_id_in_sync_group]
        )
        rows = run(way, strategy, lambda ids: jt.nn.embedding_lookup(table, ids), (ids,))
        assert local(strategy, rows) == [ROWS[[0, 4]].tolist(), ROWS[[3, 3]].tolist()]


class TestOutOfRange:
    @every_table
    @pytest.mark.parametrize("ids", [[0, 5], [-1], [[99, -2]]], ids=str)
    def test_is_refused_where_ids_are_known(self, table, ids):
        with pytest.raises(jt.errors.InvalidArgumentError, match="5 rows") as caught:
            jt.nn.embedding_lookup(table(), ids)
        assert str(max(max(ids)) if isinstance(ids[0], list) else ids[-1]) in str(caught.value)

    @every_table
    def test_is_nan_where_they_are_not(self, table):
        table = table()
        rows = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))(jnp.array([5, 1, -1]))
        assert np.isnan(np.asarray(rows[0])).all()
        assert rows[1].tolist() == [3, 4]
        assert np.isnan(np.asarray(rows[2])).all()

    @pytest.mark.parametrize(
        ("dtype", "missing"), [(np.int32, -(2**31)), (np.uint8, 255), (np.bool_, True)], ids=str
    )
    def test_is_what_jax_takes_for_other_types(self, dtype, missing):
        table = jt.Variable(np.zeros((2, 1), dtype))
        rows = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))(jnp.array([0, 2]))
        assert rows.tolist() == [[0], [missing]]
        assert rows.dtype == dtype

    @every_trained_table
    def test_changes_no_row_where_they_are_not(self, table):
        table = table()

        @jt.function
        def step(ids):
            gradient = jt.grad(lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table)()
            table.scatter_sub(gradient)
            return gradient

        gradient = step(jnp.array([-1, 1, 5, 99]))
        assert gradient.indices.tolist() == [5, 1, 5, 5]
        expected = ROWS.copy()
        expected[1] -= 1
        np.testing.assert_array_equal(table.numpy(), expected)

    @every_table
    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
    def test_of_ids_of_few_bits(self, table, dtype):
        table = table()
        ids = np.array([4, np.iinfo(dtype).max], dtype)
        rows = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))(ids)
        assert rows[0].tolist() == ROWS[4].tolist()
        assert np.isnan(np.asarray(rows[1])).all()

    def test_ids_of_few_bits_reach_all_rows_of_a_large_table(self):
        table = jt.Variable(np.arange(1000, dtype=np.float32))
        rows = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids))(np.array([5, 127], "i1"))
        assert rows.tolist() == [5, 127]

    def test_by_sparse_read(self):
        table = jt.ShardedVariable([jt.Variable([0.0, 1.0]), jt.Variable([2.0])], "table")
        rows = jt.function(table.sparse_read)(jnp.array([-1, 2, 3, 0]))
        np.testing.assert_array_equal(rows, [np.nan, 2, np.nan, 0])

    @pytest.mark.parametrize("combiner", ["sum", "mean"])
    def test_in_bags(self, combiner):
        table = jt.Variable(ROWS)
        bags = jnp.array([[0, -1], [1, 5], [-2, -1]])
        rows = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids, combiner=combiner))(bags)
        assert rows[0].tolist() == ROWS[0].tolist()
        assert np.isnan(np.asarray(rows[1:])).all()
        safe = jt.function(lambda ids: jt.nn.safe_embedding_lookup_sparse(table, ids))(bags)
        assert safe[2].tolist() == [0, 0]
        assert np.isnan(np.asarray(safe[1])).all()

    @both_ways
    @every_trained_table
    def test_reads_and_trains_a_default_row_where_one_was_chosen(self, table, way):
        table = table()

        def fn(ids):
            def loss_fn():
                return jnp.sum(jt.nn.embedding_lookup(table, ids, default_id=2))

            return jt.value_and_grad(loss_fn, table)()

        with (table.distribute_strategy or jt.get_strategy()).scope():
            loss, gradient = call(way, fn, np.array([0, 5, -1]))
        assert float(loss) == ROWS[[0, 2, 2]].sum()
        expected = np.zeros_like(ROWS)
        expected[[0, 2]] = [[1], [2]]
        np.testing.assert_array_equal(gradient.to_dense(), expected)

    def test_a_default_row_fills_no_padding_and_has_to_exist(self):
        table = jt.Variable(ROWS)
        rows = jt.nn.embedding_lookup(table, [[0, -1], [9, -1]], combiner="sum", default_id=1)
        assert rows.tolist() == [ROWS[0].tolist(), ROWS[1].tolist()]
        with pytest.raises(jt.errors.InvalidArgumentError, match="5"):
            jt.nn.embedding_lookup(table, [0], default_id=5)

    @pytest.mark.parametrize("bad", [5, -1])
    def test_gradients_made_by_hand(self, bad):
        table, optimizer = jt.Variable(ROWS, name="table"), jt.Optimizer(optax.sgd(1.0))

        def step(indices):
            gradient = jt.IndexedSlices(jnp.ones((2, 2)), indices)
            optimizer.apply_gradients([(gradient, table)])

        with pytest.raises(jt.errors.InvalidArgumentError, match=f"'table' has 5 rows.* {bad}"):
            step(np.array([0, bad]))
        assert table.numpy().tolist() == ROWS.tolist()
        jt.function(step)(np.array([0, bad]))
        assert table.numpy().tolist() == [(ROWS[0] - 1).tolist(), *ROWS[1:].tolist()]

    def test_a_table_without_rows(self):
        table = jt.Variable(np.zeros((0, 2), np.float32))
        assert jt.nn.embedding_lookup(table, []).shape == (0, 2)
        with pytest.raises(ValueError, match="0 rows"):
            jt.nn.embedding_lookup(table, [0])


class TestBags:
    """R187."""

    @both_ways
    @every_table
    def test_of_different_sizes(self, table, way):
        table, bags = table(), RaggedIds.from_lists([[0, 3], [4], [1]])
        for combiner, expected in [
            ("mean", [[4, 5], [9, 10], [3, 4]]),
            ("sum", [[8, 10], [9, 10], [3, 4]]),
            ("sqrtn", [[8 / 2**0.5, 10 / 2**0.5], [9, 10], [3, 4]]),
        ]:
            rows = call(
                way,
                lambda bags, c=combiner: jt.nn.embedding_lookup(table, bags, combiner=c),
                bags,
            )
            np.testing.assert_allclose(rows, np.float32(expected), rtol=1e-6)

    @both_ways
    def test_padded(self, way):
        table, ids = TABLES["sharded"](), np.array([[0, 3], [4, -1], [-1, -1], [-1, 1]])
        rows = call(way, lambda ids: jt.nn.embedding_lookup(table, ids, combiner="mean"), ids)
        assert rows.tolist() == [[4, 5], [9, 10], [0, 0], [3, 4]]
        rows = call(
            way,
            lambda ids: jt.nn.embedding_lookup(table, ids, combiner="mean"),
            ids.reshape(2, 2, 2),
        )
        assert rows.tolist() == [[[4, 5], [9, 10]], [[0, 0], [3, 4]]]

    @both_ways
    @pytest.mark.parametrize("form", ["ragged", "padded"])
    @pytest.mark.parametrize(
        ("combiner", "expected"),
        [
            ("sum", (2 * ROWS[0] + 3 * ROWS[3], -1 * ROWS[4])),
            ("mean", ((2 * ROWS[0] + 3 * ROWS[3]) / 5, ROWS[4])),
            ("sqrtn", ((2 * ROWS[0] + 3 * ROWS[3]) / 13**0.5, -1 * ROWS[4])),
        ],
        ids=["sum", "mean", "sqrtn"],
    )
    def test_with_weights(self, combiner, expected, form, way):
        table = TABLES["sharded"]()
        ids, weights = RaggedIds.from_lists([[0, 3], [4]]), np.float32([2, 3, -1])
        if form == "padded":
            ids, weights = np.array([[0, 3], [4, -1]]), np.float32([[2, 3], [-1, 100]])

        def lookup(ids, weights):
            return jt.nn.embedding_lookup(table, ids, combiner=combiner, weights=weights)

        np.testing.assert_allclose(call(way, lookup, ids, weights), expected, rtol=1e-6)

    @both_ways
    def test_what_comes_after_the_last_bag_does_not_count(self, way):
        table = TABLES["sharded"]()
        bags = RaggedIds(np.array([0, 3, 4, 1, 77, -5]), np.array([0, 2, 2, 4]))
        rows = call(way, lambda bags: jt.nn.embedding_lookup(table, bags, combiner="sum"), bags)
        assert rows.tolist() == [[8, 10], [0, 0], [12, 14]]

    def test_padding_does_not_let_infinities_through(self):
        table = jt.Variable([[np.inf, np.nan], [1.0, 2.0]])
        rows = jt.nn.embedding_lookup(table, [[1, -1]], combiner="mean")
        assert rows.tolist() == [[1, 2]]

    def test_whole_numbers_have_a_mean(self):
        table = jt.Variable([[1], [2]])
        assert jt.nn.embedding_lookup(table, [[0, 1]], combiner="mean").tolist() == [[1.5]]

    def test_out_of_range(self):
        table = TABLES["sharded"]()
        for ids in ([[0, 5]], [[0, -2]], RaggedIds.from_lists([[0, 5]])):
            with pytest.raises(ValueError, match="5 rows"):
                jt.nn.embedding_lookup(table, ids, combiner="sum")
        step = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids, combiner="sum"))
        rows = step(jnp.array([[0, 5], [0, 1]]))
        assert np.isnan(np.asarray(rows[0])).all()
        assert rows[1].tolist() == [4, 6]

    @given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5))
    def test_ragged_and_padded_are_the_same(self, bags):
        table = TABLES["numpy"]()
        padded = np.array([bag + [-1] * (4 - len(bag)) for bag in bags])
        for combiner in ("sum", "mean", "sqrtn"):
            np.testing.assert_allclose(
                jt.nn.embedding_lookup(table, RaggedIds.from_lists(bags), combiner=combiner),
                jt.nn.embedding_lookup(table, padded, combiner=combiner),
                rtol=1e-5,
            )


class TestSafe:
    """R187: negative ids and weights that are not positive are left out."""

    @both_ways
    def test_negative_ids(self, way):
        table = TABLES["sharded"]()
        for bags in (
            RaggedIds.from_lists([[0, -1], [-3], [1]]),
            RaggedIds.from_lists([[0], [], [1]]),
            np.array([[0, -1], [-3, -1], [1, -7]]),
        ):
            rows = call(way, lambda b: jt.nn.safe_embedding_lookup_sparse(table, b), bags)
            assert rows.tolist() == [[1, 2], [0, 0], [3, 4]]

    @both_ways
    @pytest.mark.parametrize(
        ("combiner", "expected"),
        [("mean", [[1, 2], [0, 0]]), ("sqrtn", [[1, 2], [0, 0]]), ("sum", [[-5, -4], [-9, -10]])],
    )
    def test_weights_that_are_not_positive(self, combiner, expected, way):
        table, bags = TABLES["sharded"](), RaggedIds.from_lists([[0, 3], [4]])

        def lookup(bags, weights):
            return jt.nn.safe_embedding_lookup_sparse(table, bags, weights, combiner=combiner)

        assert call(way, lookup, bags, np.float32([2, -1, -1])).tolist() == expected

    @both_ways
    def test_a_row_for_empty_bags(self, way):
        table, bags = TABLES["sharded"](), RaggedIds.from_lists([[0, 3], [-1], []])
        rows = call(way, lambda b: jt.nn.safe_embedding_lookup_sparse(table, b, default_id=4), bags)
        assert rows.tolist() == [[4, 5], [9, 10], [9, 10]]

    def test_too_large_is_still_refused(self):
        with pytest.raises(ValueError, match="5 rows"):
            jt.nn.safe_embedding_lookup_sparse(ROWS, [[5, -1]])


class TestNorms:
    @both_ways
    def test_longer_rows_are_scaled_down(self, way):
        table = jt.Variable([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
        rows = call(way, lambda ids: jt.nn.embedding_lookup(table, ids, max_norm=1.0), np.arange(3))
        np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=1e-6)

    def test_before_rows_are_combined(self):
        rows = jt.nn.embedding_lookup(
            np.float32([[3, 4], [6, 8]]), [[0, 1]], max_norm=5.0, combiner="sum"
        )
        np.testing.assert_allclose(rows, [[6, 8]], rtol=1e-6)

    def test_the_gradient_of_a_row_of_zeros_is_a_number(self):
        table = jt.Variable([[0.0, 0.0], [3.0, 4.0]])
        gradient = jt.grad(
            lambda: jnp.sum(jt.nn.embedding_lookup(table, [0, 1], max_norm=1.0)), table
        )()
        assert np.isfinite(np.asarray(gradient.values)).all()
        assert gradient.values[0].tolist() == [1, 1]


class TestBadArguments:
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            (dict(ids=[0.5]), TypeError, "whole numbers"),
            (dict(ids=[[0, 1], [2]]), ValueError, "RaggedIds.from_lists"),
            (dict(ids=[[0]], combiner="median"), ValueError, "median"),
            (dict(ids=0, combiner="sum"), ValueError, "axis"),
            (dict(ids=[0], weights=[1.0]), ValueError, "combiner"),
            (dict(ids=RaggedIds.from_lists([[0]])), ValueError, "combiner"),
            (dict(ids=[[0]], combiner="sum", weights=[1.0]), ValueError, "shape"),
            (dict(params="table", ids=[0]), TypeError, "table"),
            (dict(params=[ROWS, 1], ids=[0]), TypeError, "table"),
            (dict(params=jnp.float32(1.0), ids=[0]), ValueError, "scalar"),
        ],
        ids=lambda value: None if isinstance(value, (type, str)) else ",".join(value),
    )
    def test_say_what_would_do(self, arguments, error, match):
        with pytest.raises(error, match=match):
            jt.nn.embedding_lookup(**({"params": ROWS} | arguments))

    @pytest.mark.parametrize(
        ("values", "splits", "error"),
        [
            ([0.5], [0, 1], TypeError),
            ([0], [0.5, 1], TypeError),
            ([[0]], [0, 1], ValueError),
            ([0], [], ValueError),
            ([0], [1, 1], ValueError),
            ([0, 1], [0, 2, 1], ValueError),
            ([0], [0, 2], ValueError),
        ],
        ids=str,
    )
    def test_of_ragged_ids(self, values, splits, error):
        with pytest.raises(error):
            RaggedIds(values, splits)


class TestRaggedIds:
    def test_of_no_bags_and_of_empty_ones(self):
        assert RaggedIds.from_lists([]).num_bags == 0
        assert RaggedIds.from_lists([[], []]).row_splits.tolist() == [0, 0, 0]
        rows = jt.nn.embedding_lookup(ROWS, RaggedIds.from_lists([[], []]), combiner="mean")
        assert rows.tolist() == [[0, 0], [0, 0]]

    def test_a_new_batch_of_the_same_size_is_not_traced_anew(self):
        table = TABLES["sharded"]()
        step = jt.function(lambda ids: jt.nn.embedding_lookup(table, ids, combiner="sum"))
        for lists in ([[0, 1], [2]], [[0], [1, 2]], [[], [3, 3, 3]]):
            expected = [ROWS[bag].sum(0).tolist() for bag in map(np.intp, lists)]
            assert step(RaggedIds.from_lists(lists)).tolist() == expected
        assert step.experimental_get_tracing_count() == 1

    def test_repr(self):
        text = repr(RaggedIds(np.array([1]), np.array([0, 1])))
        assert text == "RaggedIds(values=array([1]), row_splits=array([0, 1]))"
