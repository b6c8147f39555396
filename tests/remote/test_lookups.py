"""Rows of tables on parameter servers, looked up and trained by workers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from tests.remote._training import OPTIMIZERS, run


class TestLookups:
    @pytest.fixture
    def divided(self, begin):
        strategy, coordinator = begin(shards=2)
        with strategy.scope():
            table = jt.Variable(np.arange(10, dtype=np.float32).reshape(5, 2), name="table")
            optimizer = jt.Optimizer(optax.sgd(0.5))
        return strategy, coordinator, table, optimizer

    def test_are_trained(self, divided, way):
        strategy, coordinator, table, optimizer = divided

        def replica_step(ids):
            loss, gradient = jt.value_and_grad(
                lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table
            )()
            optimizer.apply_gradients([(gradient, table)])
            return loss

        step = way(lambda ids: strategy.run(replica_step, args=(ids,)))
        assert run(coordinator, step, np.array([0, 4, 0])) == 1 + 17 + 1
        assert table.numpy()[:, 0].tolist() == [-1, 2, 4, 6, 7.5]
        assert run(coordinator, step, np.array([4, 1, 2])) == 16 + 5 + 9
        assert table.numpy()[:, 0].tolist() == [-1, 1.5, 3.5, 6, 7]

    def test_gradients_are_sparse(self, divided):
        _, coordinator, table, _ = divided

        def step(ids):
            gradient = jt.grad(lambda: jnp.sum(jt.nn.embedding_lookup(table, ids)), table)()
            return isinstance(gradient, jt.IndexedSlices), gradient.values.shape

        assert run(coordinator, step, np.array([0, 4, 0])) == (True, (3, 2))

    def test_inside_scan(self, divided, way):
        _, coordinator, table, _ = divided

        def step(ids):
            def body(total, row):
                return total + jnp.sum(jt.nn.embedding_lookup(table, row)), row[0]

            return jax.lax.scan(body, jnp.float32(0), ids)[0]

        assert run(coordinator, way(step), np.array([[0, 1], [4, 4]])) == 1 + 5 + 17 + 17

    def test_inside_cond(self, divided, way):
        _, coordinator, table, _ = divided

        def step(which):
            return jax.lax.cond(
                which > 0,
                lambda: jt.nn.embedding_lookup(table, jnp.array([1])),
                lambda: jt.nn.embedding_lookup(table, jnp.array([4])),
            )

        assert run(coordinator, way(step), np.int32(1)).tolist() == [[2, 3]]
        assert run(coordinator, way(step), np.int32(0)).tolist() == [[8, 9]]

    def test_by_rows_that_were_looked_up(self, divided, way):
        _, coordinator, table, _ = divided

        def step(ids):
            first = jt.nn.embedding_lookup(table, ids)[:, 0].astype(jnp.int32)
            return jt.nn.embedding_lookup(table, first)

        assert run(coordinator, way(step), np.array([1, 2])).tolist() == [[4, 5], [8, 9]]

    def test_of_no_rows(self, divided, way):
        _, coordinator, table, _ = divided
        step = way(lambda ids: jt.nn.embedding_lookup(table, ids))
        assert run(coordinator, step, np.zeros(0, np.int32)).shape == (0, 2)

    def test_of_whole_variables_inside_scan(self, divided, way):
        _, coordinator, table, _ = divided

        def step(xs):
            return jax.lax.scan(lambda c, x: (c + x * jnp.sum(jnp.asarray(table)), 0), 0.0, xs)[0]

        assert run(coordinator, way(step), np.float32([1, 2])) == 45 * 3


IDS = [np.array(ids) for ids in ([0, 4, 0], [4, 1, 2], [0, 0, 1], [4, 3, 4])]


class TestSeveralStepsOnRows:
    """Steps of one closure do what as many closures do."""

    def trained(self, begin, shards, transformation, program):
        """Return the table and the state of its optimizer after four steps."""
        strategy, coordinator = begin(shards)
        with strategy.scope():
            table = jt.Variable(np.arange(10, dtype=np.float32).reshape(5, 2), name="table")
            optimizer = jt.Optimizer(transformation)

        def step(ids):
            def loss():
                rows = jt.nn.embedding_lookup(table, ids)
                return jnp.sum(rows**2)

            value, gradient = jt.value_and_grad(loss, table)()
            optimizer.apply_gradients([(gradient, table)])
            return value

        losses = program(coordinator, step)
        coordinator.join()
        state = [np.asarray(variable.numpy()) for variable in optimizer.variables]
        coordinator.close()
        return [np.asarray(losses), table.numpy(), *state]

    @staticmethod
    def one_by_one(coordinator, step):
        compiled = jt.function(step)
        return [run(coordinator, compiled, ids) for ids in IDS]

    @staticmethod
    def in_one_eager_closure(coordinator, step):
        return run(coordinator, lambda: [step(ids) for ids in IDS])

    @staticmethod
    def in_one_program(coordinator, step):
        return run(coordinator, jt.function(lambda all_ids: [step(i) for i in all_ids]), IDS)

    @staticmethod
    def by_programs_of_one_closure(coordinator, step):
        compiled = jt.function(step)
        return run(coordinator, lambda: [compiled(ids) for ids in IDS])

    @staticmethod
    def by_programs_of_several_steps(coordinator, step):
        compiled = jt.function(lambda all_ids: [step(ids) for ids in all_ids])
        return run(coordinator, lambda: [*compiled(IDS[:2]), *compiled(IDS[2:])])

    @pytest.mark.parametrize(
        "program",
        [
            "in_one_eager_closure",
            "in_one_program",
            "by_programs_of_one_closure",
            "by_programs_of_several_steps",
        ],
    )
    @pytest.mark.parametrize(
        ("shards", "name"),
        [(1, "adam"), (2, "sgd"), (2, "adam")],
        ids=["whole-adam", "divided-sgd", "divided-adam"],
    )
    def test_in_any_way(self, begin, shards, name, program):
        expected = self.trained(begin, shards, OPTIMIZERS[name](), self.one_by_one)
        got = self.trained(begin, shards, OPTIMIZERS[name](), getattr(self, program))
        for one, other in zip(expected, got, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
