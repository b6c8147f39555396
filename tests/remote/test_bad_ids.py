"""Ids of rows that do not exist, on workers: the closure raises, and nothing was changed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jt
from jaxtribute.errors import InvalidArgumentError
from tests.remote._training import run

BAD = [np.array([0, 5]), np.array([0, -1]), np.array([0, 2**33 + 1])]


@pytest.fixture(params=[1, 2], ids=["whole", "divided"])
def model(request, begin):
    strategy, coordinator = begin(shards=request.param)
    return Model(strategy, coordinator)


class Model:
    def __init__(self, strategy, coordinator):
        self.strategy, self.coordinator = strategy, coordinator
        with strategy.scope():
            self.table = jt.Variable(
                np.arange(10, dtype=np.float32).reshape(5, 2),
                name="table",
                aggregation=jt.VariableAggregation.SUM,
            )
            self.dense = jt.Variable([1.0, 2.0], name="dense")
            self.optimizer = jt.Optimizer(optax.adam(0.1))
        # A function that captures nothing but these, so that it can be sent to workers.
        table, dense, optimizer = self.table, self.dense, self.optimizer

        def step(ids):
            def loss_fn():
                return jnp.sum(jt.nn.embedding_lookup(table, ids) * jnp.asarray(dense))

            loss, gradients = jt.value_and_grad(loss_fn, [table, dense])()
            optimizer.apply_gradients(list(zip(gradients, [table, dense], strict=True)))
            return loss

        self.step = step

    def state(self):
        return [v.numpy().tolist() for v in (self.table, self.dense, *self.optimizer.variables)]

    def refused(self, step, ids):
        """Schedule a step, and check that it raises and leaves everything as it was."""
        before = self.state()
        self.coordinator.schedule(step, args=(ids,))
        with pytest.raises(InvalidArgumentError) as raised:
            self.coordinator.join()
        assert self.state() == before
        return str(raised.value)


@pytest.mark.parametrize("ids", BAD, ids=["past", "negative", "wide"])
def test_a_step_raises_and_changes_nothing(model, way, ids):
    step = way(model.step)
    run(model.coordinator, step, np.array([0, 4]))  # which builds the optimizer
    message = model.refused(step, ids)
    assert str(ids[1]) in message
    assert "'table" in message or ids[1] > 2**32  # which does not even get to the table
    assert np.isfinite(run(model.coordinator, step, np.array([0, 1])))


@pytest.mark.parametrize("ids", BAD[:2], ids=["past", "negative"])
def test_in_the_middle_of_a_program(model, way, ids):
    table = model.table

    def step(ids):
        def body(total, id):
            return total + jnp.sum(jt.nn.embedding_lookup(table, id)), None

        table.assign_add(jnp.ones(table.shape))
        return jax.lax.scan(body, jnp.float32(0), ids)[0]

    message = model.refused(way(step), ids)
    assert str(ids[1]) in message
    assert "'table" in message
    assert run(model.coordinator, way(lambda: jnp.sum(jnp.asarray(table)))) == 45


def test_of_one_of_two_replicas(two_replicas, way):
    strategy, coordinator = two_replicas
    model = Model(strategy, coordinator)
    train = model.step
    ids = np.array([[0, 1], [2, -1]])

    def step(ids):
        def own():
            row = jnp.asarray(ids)[jt.get_replica_context().replica_id_in_sync_group]
            return train(row)

        return strategy.reduce("SUM", strategy.run(own), axis=None)

    step = way(step)
    run(coordinator, step, np.abs(ids))
    for _ in range(2):  # the worker is not stuck after the first
        assert "-1" in model.refused(step, ids)
    assert np.isfinite(run(coordinator, step, np.abs(ids)))


@pytest.mark.parametrize("bad", [5, -1])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "min", "max", "update"])
def test_scattered(model, way, kind, bad):
    table = model.table

    def step(indices):
        rows = jt.IndexedSlices(jnp.full((2, 2), 3.0), indices)
        getattr(table, f"scatter_{kind}")(rows)

    message = model.refused(way(step), np.array([0, bad]))
    assert str(bad) in message
    assert "'table" in message


@pytest.mark.parametrize("bad", [5, -1, 2**33 + 1])
def test_on_the_coordinator(model, bad):
    before = model.state()
    with pytest.raises(InvalidArgumentError, match=f"'table' has 5 rows.* {bad}"):
        model.table.scatter_add(jt.IndexedSlices(np.ones((2, 2), np.float32), [0, bad]))
    with pytest.raises(InvalidArgumentError, match=f"{bad}"):
        jt.nn.embedding_lookup(model.table, np.array([0, bad]))
    with pytest.raises(InvalidArgumentError, match=f"{bad}"):
        gradient = jt.IndexedSlices(np.ones((2, 2), np.float32), [0, bad])
        model.optimizer.apply_gradients([(gradient, model.table)])
    assert model.state()[:2] == before[:2]


@pytest.mark.parametrize("bad", [3, -1])
def test_of_a_variable_of_each_worker(begin, way, bad):
    strategy, coordinator = begin()
    with strategy.scope():
        own = jt.Variable([1.0, 2.0, 3.0], name="own", per_worker_variable=True)

    def step(indices):
        own.scatter_update(jt.IndexedSlices(jnp.zeros(2), indices))

    coordinator.schedule(way(step), args=(np.array([0, bad]),))
    with pytest.raises(InvalidArgumentError, match=f"'own'.* {bad}"):
        coordinator.join()
    assert own.read_all()[0].tolist() == [1, 2, 3]


def test_a_default_row_is_used_and_trained(model, way):
    table = model.table

    def step(ids):
        def loss_fn():
            return jnp.sum(jt.nn.embedding_lookup(table, ids, default_id=3))

        loss, gradient = jt.value_and_grad(loss_fn, table)()
        assert isinstance(gradient, jt.IndexedSlices)
        table.scatter_sub(gradient)
        return loss

    assert run(model.coordinator, way(step), np.array([0, 5, -1])) == 1 + 13 + 13
    assert model.table.numpy()[:, 0].tolist() == [-1, 2, 4, 4, 8]
