"""Gradients of sharded variables, and of tables whose rows are looked up."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jt
from jaxtribute.sharded import ShardedVariable
from jaxtribute.variables import Variable, _frames
from jaxtribute.variables._effects import Effect
from jaxtribute.variables._spec import VariableSpec
from tests.variables._support import both_ways, call, create, local, mirrored, run

ROWS = np.float32([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])
lookup = jt.nn.embedding_lookup


def sharded(make=jt.Variable, rows=ROWS):
    return ShardedVariable([make(part) for part in np.split(rows, [2, 4])], "table")


TABLES = {
    "variable": lambda: jt.Variable(ROWS),
    "sharded": sharded,
    "mirrored": lambda: create(mirrored(2), ROWS),
    "mirrored shards": lambda: sharded(lambda x: create(mirrored(2), x)),
}
every_table = pytest.mark.parametrize("make", TABLES.values(), ids=TABLES.keys())


def expected_dense(loss):
    """Return the gradient of the same loss, by JAX, of one array."""
    return np.asarray(jax.grad(loss)(jnp.asarray(ROWS)))


class TestSharded:
    """Decision 8: a gradient of the whole."""

    @both_ways
    def test_has_the_shape_of_the_whole(self, way):
        table, w = sharded(), jt.Variable(2.0)
        loss, (of_table, of_w) = call(
            way, lambda: jt.value_and_grad(lambda: jnp.sum(table**2) * w, [table, w])()
        )
        assert loss == (ROWS**2).sum() * 2
        assert of_table.tolist() == (ROWS * 4).tolist()
        assert of_w == (ROWS**2).sum()

    @both_ways
    def test_also_that_of_parts(self, way):
        table = sharded()
        gradient = call(way, lambda: jt.grad(lambda: table[1] @ table[4], table)())
        assert gradient.tolist() == [[0, 0], [9, 10], [0, 0], [0, 0], [3, 4]]

    @both_ways
    def test_of_the_shards(self, way):
        """The reference's way."""
        table = sharded()
        gradients = call(way, lambda: jt.grad(lambda: jnp.sum(table**2), table.variables)())
        assert [g.tolist() for g in gradients] == [g.tolist() for g in np.split(ROWS * 2, [2, 4])]

    def test_of_the_whole_and_a_shard(self):
        table = sharded()
        whole, shard = jt.grad(lambda: jnp.sum(table**2), [table, table.variables[1]])()
        assert whole.tolist() == (ROWS * 2).tolist()
        assert shard.tolist() == (ROWS[2:4] * 2).tolist()

    def test_of_one_that_is_not_used(self):
        gradient, _ = jt.grad(lambda: w * 1, [sharded(), w := jt.Variable(1.0)])()
        assert gradient is None

    def test_of_whole_numbers_is_refused(self):
        with pytest.raises(TypeError, match="'table'"):
            jt.grad(lambda: 0.0, sharded(rows=ROWS.astype(np.int32)))

    @both_ways
    def test_in_replicas(self, way):
        strategy = mirrored(2)
        table = sharded(lambda x: create(strategy, x))

        def step():
            scale = jt.get_replica_context().replica_id_in_sync_group + 1
            return jt.grad(lambda: jnp.sum(table) * scale, table)()

        assert local(strategy, run(way, strategy, step)) == [
            np.full((5, 2), scale).tolist() for scale in (1, 2)
        ]


class TestLookups:
    @both_ways
    @every_table
    def test_give_the_rows_that_were_used(self, make, way):
        table = make()
        ids = np.array([4, 0, 4])

        def step(ids):
            return jt.value_and_grad(lambda: jnp.sum(lookup(table, ids) ** 2), table)()

        loss, gradient = call(way, step, ids)
        assert loss == (ROWS[ids] ** 2).sum()
        assert isinstance(gradient, jt.IndexedSlices)
        assert gradient.indices.tolist() == [4, 0, 4]
        assert gradient.values.tolist() == (2 * ROWS[ids]).tolist()
        assert gradient.dense_shape == (5, 2)

    @both_ways
    @every_table
    def test_of_several_kinds_are_the_dense_gradient(self, make, way):
        table = make()
        ids = np.array([[0, 1], [4, 4]])

        def loss(rows_of):
            once = rows_of(ids)
            return jnp.sum(once**2) + jnp.sum(rows_of(ids[0]) * rows_of(ids[1]))

        gradient = call(way, lambda: jt.grad(lambda: loss(lambda i: lookup(table, i)), table)())
        assert gradient.indices.tolist() == [0, 1, 4, 4, 0, 1, 4, 4]
        np.testing.assert_allclose(
            gradient.to_dense(), expected_dense(lambda t: loss(lambda i: t[i]))
        )

    @both_ways
    def test_of_the_shards(self, way):
        """What a module reports are the shards; each gets the gradient of its own rows."""
        table = sharded()
        gradients = call(
            way,
            lambda: jt.grad(lambda: jnp.sum(lookup(table, [4, 0, 2, 0]) ** 2), table.variables)(),
        )
        assert all(isinstance(g, jt.IndexedSlices) for g in gradients)
        expected = expected_dense(lambda t: jnp.sum(t[jnp.array([4, 0, 2, 0])] ** 2))
        assert [g.dense_shape for g in gradients] == [(2, 2), (2, 2), (1, 2)]
        for gradient, part in zip(gradients, np.split(expected, [2, 4]), strict=True):
            assert gradient.to_dense().tolist() == part.tolist()

    @both_ways
    def test_name_no_rows_that_were_not_used(self, way):
        """Some optimizers move a row whenever it is named, whatever its gradient."""
        table = sharded()
        ids = np.array([[3, 1, -1], [-1, 1, 4]])

        def loss(ids):
            return jnp.sum(lookup(table, ids, combiner="sum"))

        def step(ids):
            return jt.grad(loss, table)(ids), jt.grad(loss, table.variables)(ids)

        whole, parts = call(way, step, ids)
        assert set(whole.indices.tolist()) == {1, 3, 4}
        assert [set(part.indices.tolist()) for part in parts] == [{1}, {1}, {0}]

    @both_ways
    def test_in_a_shard_count_for_the_whole(self, way):
        table = sharded()
        gradient = call(
            way, lambda: jt.grad(lambda: jnp.sum(lookup(table.variables[1], [1, 0])), table)()
        )
        assert gradient.indices.tolist() == [3, 2]
        assert gradient.dense_shape == (5, 2)

    def test_in_a_list_of_variables(self):
        table = sharded()
        first, last = jt.grad(
            lambda: jnp.sum(lookup(list(table.variables), [0, 4])),
            [table.variables[0], table.variables[2]],
        )()
        assert first.to_dense().tolist() == [[1, 1], [0, 0]]
        assert last.to_dense().tolist() == [[1, 1]]

    @both_ways
    def test_together_with_others(self, way):
        table, other, w = sharded(), jt.Variable(ROWS), jt.Variable([1.0, 2.0])

        def loss(ids):
            return jnp.sum(lookup(table, ids) @ w) + jnp.sum(lookup(other, ids[:1]))

        gradients = call(
            way, lambda ids: jt.grad(loss, {"t": table, "w": w, "o": other})(ids), np.array([3, 0])
        )
        assert gradients["t"].values.tolist() == [[1, 2], [1, 2]]
        assert gradients["o"].indices.tolist() == [3]
        assert gradients["w"].tolist() == (ROWS[3] + ROWS[0]).tolist()

    @both_ways
    @pytest.mark.parametrize("read_first", [True, False])
    @every_table
    def test_of_a_table_that_is_also_read_are_dense(self, make, read_first, way):
        table = make()

        def loss(whole, rows):
            parts = [lambda: jnp.sum(whole() ** 2), lambda: jnp.sum(rows([4, 0, 4]) ** 3)]
            first, second = parts if read_first else reversed(parts)
            return first() + second()

        gradient = call(
            way,
            lambda: jt.grad(lambda: loss(table.value, lambda i: lookup(table, i)), table)(),
        )
        assert isinstance(gradient, jax.Array)
        expected = expected_dense(lambda t: loss(lambda: t, lambda i: t[jnp.array(i)]))
        np.testing.assert_allclose(gradient, expected)

    @both_ways
    def test_of_bags(self, way):
        table = sharded()
        bags = jt.nn.RaggedIds.from_lists([[0, 3], [], [4]])
        weights = np.float32([1, 3, 5])

        def loss(rows):
            return jnp.sum(rows * jnp.arange(6.0).reshape(3, 2))

        gradient = call(
            way,
            lambda bags, weights: jt.grad(
                lambda: loss(lookup(table, bags, combiner="mean", weights=weights)), table
            )(),
            bags,
            weights,
        )
        expected = expected_dense(
            lambda t: loss(jnp.stack([(t[0] + 3 * t[3]) / 4, jnp.zeros(2), t[4]]))
        )
        np.testing.assert_allclose(gradient.to_dense(), expected)

    @both_ways
    def test_of_padding_is_nothing(self, way):
        table = sharded()
        ids = np.array([[3, -1], [-1, -1]])
        gradient = call(
            way,
            lambda ids: jt.grad(lambda: jnp.sum(lookup(table, ids, combiner="sum")), table)(),
            ids,
        )
        dense = np.zeros((5, 2))
        dense[3] = 1
        assert gradient.to_dense().tolist() == dense.tolist()

    @both_ways
    def test_of_no_rows(self, way):
        table = sharded()
        gradient = call(
            way,
            lambda ids: jt.grad(lambda: jnp.sum(lookup(table, ids)), table)(),
            np.zeros((0,), np.int32),
        )
        assert np.asarray(gradient).tolist() == np.zeros((5, 2)).tolist()

    def test_whose_ids_are_computed_from_what_is_trained(self):
        table, w = sharded(), jt.Variable([0.1, 0.9, 0.2])

        def loss():
            best = jnp.argmax(w.value())
            return jnp.sum(lookup(table, best[None])) * jnp.max(w.value())

        for way in ("eager", "compiled"):
            of_table, of_w = call(way, lambda: jt.grad(loss, [table, w])())
            assert of_table.indices.tolist() == [1]
            np.testing.assert_allclose(of_table.values, [[0.9, 0.9]])
            assert of_w.tolist() == [0, 7, 0]

    @both_ways
    @pytest.mark.parametrize(
        "wrap",
        [
            pytest.param(jax.checkpoint, id="jax.checkpoint"),
            pytest.param(jax.jit, id="jax.jit"),
            pytest.param(jax.vmap, id="jax.vmap"),
        ],
    )
    def test_inside_a_transformation_are_dense(self, wrap, way):
        """Which rows were used cannot be told outside of it."""
        table = sharded()
        ids = jnp.array([[4, 0], [1, 4]])

        def loss(rows_of):
            return jnp.sum(wrap(lambda i: rows_of(i) ** 2)(ids))

        gradient = call(way, lambda: jt.grad(lambda: loss(lambda i: lookup(table, i)), table)())
        np.testing.assert_allclose(
            np.asarray(gradient), expected_dense(lambda t: loss(lambda i: t[i]))
        )

    @both_ways
    def test_after_an_assignment_are_those_of_the_new_rows(self, way):
        table = sharded()

        def loss():
            table.assign(table * 2)
            return jnp.sum(lookup(table, [4, 0]) ** 2)

        loss_value, gradient = call(way, lambda: jt.value_and_grad(loss, table)())
        assert loss_value == ((2 * ROWS[[4, 0]]) ** 2).sum()
        ids = jnp.array([4, 0])
        expected = expected_dense(lambda t: jnp.sum((2 * t)[ids] ** 2))
        np.testing.assert_allclose(np.asarray(gradient), expected)
        assert table.numpy().tolist() == (ROWS * 2).tolist()

    @both_ways
    def test_twice_differentiated(self, way):
        table = sharded()

        def inner():
            return jnp.sum(lookup(table, [4, 0]) ** 3)

        def outer():
            return jnp.sum(jt.grad(inner, table)().values)

        gradient = call(way, lambda: jt.grad(outer, table)())
        ids = jnp.array([4, 0])
        expected = expected_dense(lambda t: jnp.sum(3 * t[ids] ** 2))
        np.testing.assert_allclose(np.asarray(gradient), expected)

    @given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=3))
    def test_any_lookups_add_up_to_the_dense_gradient(self, lookups):
        table = sharded()

        def loss():
            powers = enumerate(lookups, start=2)
            return sum(jnp.sum(lookup(table, jnp.array(ids, int)) ** n) for n, ids in powers)

        gradient = jt.grad(loss, table)()
        expected = np.zeros_like(ROWS)
        for n, ids in enumerate(lookups, start=2):
            for row in ids:
                expected[row] += n * ROWS[row] ** (n - 1)
        np.testing.assert_allclose(np.asarray(gradient), expected, rtol=1e-5)


class TestPasses:
    def test_one_is_enough_without_lookups(self):
        w, table, calls = jt.Variable(2.0), sharded(), []

        def loss():
            calls.append(0)
            return w**2 + jnp.sum(table)

        jt.grad(loss, [w, table])()
        assert len(calls) == 1

    def test_two_with_lookups_and_one_from_then_on(self):
        table, calls = sharded(), []

        def step(ids):
            def loss():  # made anew in each step
                calls.append(0)
                return jnp.sum(lookup(table, ids))

            return jt.grad(loss, table)()

        for ids, passes in [([0, 1], 2), ([4, 4], 1), ([0, 1, 2], 2), ([3, 3, 3], 1)]:
            calls.clear()
            assert step(ids).indices.tolist() == ids
            assert len(calls) == passes

    def test_callables_are_remembered_as_well(self):
        table = sharded()

        class Loss:
            calls = 0

            def __call__(self, ids):
                self.calls += 1
                return jnp.sum(lookup(table, ids))

        loss = Loss()
        gradient = jt.grad(loss, table)
        for _ in range(3):
            assert gradient([1, 2]).indices.tolist() == [1, 2]
        assert loss.calls == 4

    def test_what_is_remembered_of_one_table_is_not_held_against_another(self):
        def gradient(table, ids, is_read):
            return jt.grad(
                lambda: jnp.sum(lookup(table, ids)) + (jnp.sum(table) if is_read else 0), table
            )()

        for number in range(20):  # each table may be where the last one was
            is_read = bool(number % 2)
            dense = np.asarray(gradient(jt.Variable(ROWS), [0, 4], is_read))
            assert dense.sum() == 4 + 10 * is_read

    def test_assignments_of_a_pass_that_is_given_up_do_not_count(self):
        table, count = sharded(), jt.Variable(0)

        def loss():
            count.assign_add(1)
            return jnp.sum(lookup(table, [0]))

        for way in ("eager", "compiled"):
            count.assign(0)
            call(way, lambda: jt.grad(loss, table)())
            assert count.numpy() == 1

    def test_elements_of_a_dataset_are_taken_once(self):
        table = sharded()
        dataset = jt.data.Dataset.range(8).batch(2)
        iterator = iter(jt.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(dataset))

        @jt.function
        def step():
            def loss():
                return jnp.sum(lookup(table, next(iterator) % 5)) + jnp.sum(
                    lookup(table, next(iterator) % 5)
                )

            return jt.grad(loss, table)()

        assert step().indices.tolist() == [0, 1, 2, 3]
        assert step().indices.tolist() == [4, 0, 1, 2]
        with pytest.raises(jt.errors.OutOfRangeError):
            step()

    def test_one_that_never_does_the_same_is_refused(self):
        table, calls = sharded(), []

        def loss():
            calls.append(0)
            return jnp.sum(lookup(table, [0] * len(calls)))

        with pytest.raises(RuntimeError, match="each time looked up"):
            jt.grad(loss, table)()

    def test_an_error_inside_leaves_nothing_behind(self):
        table = sharded()

        def loss(divisor):
            return jnp.sum(lookup(table, [0])) / divisor

        for way in ("eager", "compiled"):
            with pytest.raises(ZeroDivisionError):
                call(way, lambda: jt.grad(lambda: loss(1) + 1 // 0, table)())
            assert call(way, lambda: jt.grad(lambda: loss(1), table)()).values.tolist() == [[1, 1]]
        assert _frames.current() is _frames.STORAGE


class Elsewhere(Variable):
    """Stands for a variable on a parameter server: counts how it is asked."""

    is_remote = True

    def __init__(self, value):
        self.reads, self.fetches, self.carried_out = 0, [], []
        super().__init__(VariableSpec.resolve(value))

    def share(self):
        self.reads += 1
        return super().share()

    def fetch(self, ids, of=None):
        self.fetches.append(np.asarray(ids).tolist())
        shards = [self] if of is None else of.variables
        return jnp.take(jnp.concatenate([shard.load() for shard in shards]), ids, axis=0)

    def fetch_all(self, lookups):
        return [np.asarray(table.fetch(ids)) for table, ids in lookups]

    def carry_out(self, effects):
        self.carried_out += effects


class TestElsewhere:
    def test_a_table_that_is_looked_up_is_never_read(self):
        table = Elsewhere(ROWS)
        gradient = jt.grad(lambda: jnp.sum(lookup(table, [3, 1]) ** 2), table)()
        assert gradient.values.tolist() == (2 * ROWS[[3, 1]]).tolist()
        assert table.reads == 0
        assert table.fetches == [[3, 1]] * 2

    def test_in_a_compiled_step_rows_are_fetched_once(self):
        """Also those of the first pass, which is given up."""
        table, w = Elsewhere(ROWS), jt.Variable([1.0, 2.0])

        @jt.function
        def step(ids):
            def loss():
                return jnp.sum(lookup(table, ids) @ w) + jnp.sum(lookup(table, ids + 1) ** 2)

            return jt.grad(loss, [table, w])()

        for ids in ([3, 1], [0, 0]):
            table.fetches.clear()
            of_table, of_w = step(np.array(ids))
            assert table.fetches == [ids, [i + 1 for i in ids]]
            assert of_table.indices.tolist() == ids + [i + 1 for i in ids]
            squared = 2 * ROWS[[i + 1 for i in ids]]
            assert of_table.values.tolist() == [[1, 2], [1, 2], *squared.tolist()]
            assert of_w.tolist() == ROWS[ids].sum(0).tolist()
        assert table.reads == 0
        assert step.experimental_get_tracing_count() == 1

    def test_rows_on_which_nothing_depends_are_not_fetched(self):
        table = Elsewhere(ROWS)
        step = jt.function(lambda ids: jt.grad(lambda: jnp.sum(lookup(table, ids)), table)())
        gradient = step(np.array([3, 1]))
        assert gradient.indices.tolist() == [3, 1]
        assert gradient.values.tolist() == [[1, 1], [1, 1]]
        assert table.fetches == []

    def test_of_several_shards_elsewhere(self):
        shards = [Elsewhere(part) for part in np.split(ROWS, [2, 4])]
        table = ShardedVariable(shards)
        assert table.is_remote
        [*gradients] = jt.grad(lambda: jnp.sum(table[0] * 2) + jnp.sum(shards[2] ** 2), shards)()
        assert [np.asarray(g).tolist() for g in gradients] == [
            [[2, 2], [0, 0]],
            [[0, 0], [0, 0]],
            [[18, 20]],
        ]
        assert [shard.reads > 0 for shard in shards] == [False, False, True]

    def test_one_that_is_not_used_is_neither(self):
        table, w = Elsewhere(ROWS), jt.Variable(1.0)
        gradient, _ = jt.grad(lambda: w * 2, [table, w])()
        assert gradient is None
        assert table.reads == 0

    def test_one_that_is_read_is_dense(self):
        table = Elsewhere(ROWS)

        def loss():
            return jnp.sum(table**2) + jnp.sum(lookup(table, [1]))

        for reads in (2, 3):  # two passes at first, then one
            expected = 2 * ROWS
            expected[1] += 1
            assert jt.grad(loss, table)().tolist() == expected.tolist()
            assert table.reads == reads

    @both_ways
    def test_what_is_done_to_it_is_passed_on_once(self, way):
        table, w = Elsewhere(ROWS), jt.Variable(3.0)

        def loss():
            _frames.current().record([Effect(table, "add", (w * ROWS,))])
            return jnp.sum(lookup(w.value() * ROWS, [0])) + jnp.sum(lookup(other, [0]))

        other = sharded()
        call(way, lambda: jt.grad(loss, [w, other])())
        [effect] = table.carried_out
        assert effect.kind == "add"
        assert np.asarray(effect.arrays[0]).tolist() == (3 * ROWS).tolist()


class TestTraining:
    @both_ways
    def test_replicas_add_up_their_rows(self, way):
        strategy = mirrored(2)
        table = sharded(lambda x: create(strategy, x))
        ids = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.int32([[0, 4], [4, 1]])[ctx.replica_id_in_sync_group]
        )

        def step(ids):
            gradient = jt.grad(lambda: jnp.sum(lookup(table, ids)), table)()
            return jt.get_replica_context().all_reduce("SUM", gradient)

        result = run(way, strategy, step, (ids,))
        total = jax.tree.map(lambda x: strategy.experimental_local_results(x)[1], result)
        dense = np.zeros((5, 2))
        dense[[0, 1]], dense[4] = 1, 2
        assert np.sort(np.asarray(total.indices)).tolist() == [0, 1, 4, 4]
        assert total.to_dense((5, 2)).tolist() == dense.tolist()

    @both_ways
    def test_replicas_with_different_numbers_of_rows(self, way):
        strategy = mirrored(2)
        table = sharded(lambda x: create(strategy, x))
        lengths = [3, 1]
        ids = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.full(lengths[ctx.replica_id_in_sync_group], 4)
        )

        def step(ids):
            context = jt.get_replica_context()

            def loss():  # replicas meet inside
                return context.all_reduce("SUM", jnp.sum(lookup(table, ids)))

            return context.all_reduce("SUM", jt.grad(loss, table)())

        for _ in range(2):
            result = run(way, strategy, step, (ids,))
            total = jax.tree.map(lambda x: strategy.experimental_local_results(x)[0], result)
            assert total.to_dense((5, 2))[4].tolist() == [8, 8]
            lengths = lengths[::-1]

    @both_ways
    @pytest.mark.parametrize("replicas", [None, 2])
    def test_by_an_optimizer_is_that_of_dense_gradients(self, replicas, way):
        strategy = mirrored(replicas) if replicas else jt.get_strategy()
        with strategy.scope():
            table, dense = sharded(), jt.Variable(ROWS)
            optimizers = [jt.Optimizer(optax.sgd(0.1)), jt.Optimizer(optax.sgd(0.1))]
        ids = np.array([0, 4, 4])

        def step(ids):
            sparse = jt.grad(lambda: jnp.sum(lookup(table, ids) ** 2), table.variables)()
            optimizers[0].apply_gradients(zip(sparse, table.variables, strict=True))
            whole = jt.grad(lambda: jnp.sum(jnp.take(dense.value(), ids, axis=0) ** 2), dense)()
            optimizers[1].apply_gradients([(whole, dense)])

        if replicas:
            ids = strategy.experimental_distribute_values_from_function(lambda _: np.array([0, 4]))
        for _ in range(2):
            run(way, strategy, step, (ids,)) if replicas else call(way, step, ids)
        np.testing.assert_allclose(table.numpy(), dense.numpy(), rtol=1e-6)
        assert not np.array_equal(table.numpy(), ROWS)
