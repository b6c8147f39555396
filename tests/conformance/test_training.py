"""The same training on every strategy gives the same weights."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxtribute as jt
from tests.conformance._strategies import Setup, every_kind, every_strategy, several_replicas

FEATURES = 3
BATCH = 16  # divides among 1, 2, 4 and 8 replicas
STEPS = 3

OPTIMIZERS = {"sgd": lambda: optax.sgd(0.1, momentum=0.5), "adam": lambda: optax.adam(0.05)}


def batches(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(11)
    weights = generator.normal(size=(FEATURES,))
    result = []
    for size in sizes:
        x = generator.normal(size=(size, FEATURES))
        y = x @ weights + 0.1 * generator.normal(size=(size,))
        result.append((x.astype(np.float32), y.astype(np.float32)))
    return result


def deal_rows(setup: Setup, batch: Any, sizes: list[int] | None = None) -> Any:
    """Split the rows of a batch among the replicas, evenly unless sizes are given."""
    rows = len(batch[0])
    sizes = sizes or [rows // setup.replicas] * setup.replicas
    assert sum(sizes) == rows
    starts = np.cumsum([0, *sizes])
    return tuple(
        setup.deal([column[a:b] for a, b in itertools.pairwise(starts)]) for column in batch
    )


def predict(parameters: Any, x: Any) -> Any:
    w, b = parameters
    return x @ w + b


@functools.cache
def expected_training(optimizer: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Train in plain JAX, on whole batches."""
    transformation = OPTIMIZERS[optimizer]()
    parameters = (jnp.full((FEATURES,), 0.5), jnp.zeros(()))
    state = transformation.init(parameters)
    losses, correct = [], []
    for x, y in batches(list(sizes)):

        def loss_fn(parameters, x=x, y=y):
            predicted = predict(parameters, x)
            return jnp.mean((predicted - y) ** 2), predicted

        (loss, predicted), gradients = jax.value_and_grad(loss_fn, has_aux=True)(parameters)
        updates, state = transformation.update(gradients, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        losses.append(float(loss))
        correct.extend((np.asarray(predicted) > 0) == (y > 0))
    rows = sum(sizes)
    return {
        "w": np.asarray(parameters[0]),
        "b": np.asarray(parameters[1]),
        "losses": losses,
        "rows": rows,
        "mean loss": sum(n * loss for n, loss in zip(sizes, losses, strict=True)) / rows,
        "accuracy": np.mean(correct),
    }


class Training:
    """A linear model and its step, written once for all strategies."""

    def __init__(self, setup: Setup, optimizer: str) -> None:
        self.setup = setup
        self.bodies = 0
        with setup.strategy.scope():
            self.w = jt.Variable(jnp.full((FEATURES,), 0.5), name="w")
            self.b = jt.Variable(0.0, name="b")
            self.optimizer = jt.Optimizer(OPTIMIZERS[optimizer]())
            self.mean_loss = jt.metrics.Mean()
            self.rows = jt.metrics.Sum()
            self.accuracy = jt.metrics.Accuracy()
        self.step = setup.function(self._step)

    def _step(self, batch: Any, size: Any) -> Any:
        losses = self.setup.strategy.run(self._replica_step, args=(batch, size))
        return self.setup.strategy.reduce("SUM", losses, axis=None)

    def _replica_step(self, batch: Any, size: Any) -> Any:
        self.bodies += 1
        x, y = batch

        def loss_fn():
            predicted = predict((self.w, self.b), x)
            squares = (predicted - y) ** 2
            loss = jt.nn.compute_average_loss(squares, global_batch_size=size)
            return loss, (squares, predicted)

        variables = [self.w, self.b]
        (loss, (squares, predicted)), gradients = jt.value_and_grad(
            loss_fn, variables, has_aux=True
        )()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.mean_loss.update_state(squares)
        self.rows.update_state(jnp.ones(y.shape))
        self.accuracy.update_state(y > 0, predicted > 0)
        return loss

    def check(self, losses: list[Any], optimizer: str, sizes: list[int]) -> None:
        expected = expected_training(optimizer, tuple(sizes))
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        close(self.w.numpy(), expected["w"])
        close(self.b.numpy(), expected["b"])
        close([float(loss) for loss in losses], expected["losses"])
        close(float(self.mean_loss.result()), expected["mean loss"])
        close(float(self.rows.result()), expected["rows"])
        close(float(self.accuracy.result()), expected["accuracy"])
        assert int(self.optimizer.iterations) == len(sizes)
        for variable in (self.w, self.b, *self.optimizer.variables):
            local = self.setup.strategy.experimental_local_results(variable)
            first, *others = self.setup.all_of([copy.numpy() for copy in local])
            for other in others:
                np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("setup", every_strategy(eager_on_many=False))
def test_training_gives_the_weights_of_one_replica(setup: Setup):
    optimizer = "sgd"
    sizes = [BATCH] * STEPS
    training = Training(setup, optimizer)
    losses = []
    for step, batch in enumerate(batches(sizes)):
        losses.append(training.step(deal_rows(setup, batch), jnp.int32(len(batch[0]))))
        if step == 0:
            traced = training.bodies
    training.check(losses, optimizer, sizes)
    if setup.compiled:
        assert training.bodies == traced
        assert training.step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("counted", [False, True], ids=["size-given", "size-counted"])
@pytest.mark.parametrize("setup", every_kind())
def test_even_and_uneven_batches_train_like_one_replica(setup: Setup, counted: bool):
    optimizer = "adam"
    sizes = [BATCH, 5, BATCH, 3]
    training = Training(setup, optimizer)
    losses = []
    for batch in batches(sizes):
        rows = len(batch[0])
        # 3 and 2 rows, and none for the other replicas, be they the last or the first ones.
        uneven = {5: [3, 2, 0, 0][: setup.replicas], 3: [0, 0, 0, 3][-setup.replicas :]}.get(rows)
        if uneven is not None and setup.replicas == 1:
            uneven = [rows]
        size = None if counted else jnp.int32(rows)
        losses.append(training.step(deal_rows(setup, batch, uneven), size))
    training.check(losses, optimizer, sizes)


@pytest.mark.parametrize("setup", every_kind())
def test_metrics_start_again_after_a_reset(setup: Setup):
    training = Training(setup, "sgd")
    for batch in batches([BATCH, BATCH]):
        training.step(deal_rows(setup, batch), jnp.int32(BATCH))
    assert float(training.rows.result()) == 2 * BATCH
    for metric in training.mean_loss, training.rows, training.accuracy:
        setup.call(metric.reset_state)
        assert float(metric.result()) == 0.0
    training.step(deal_rows(setup, batches([BATCH])[0]), jnp.int32(BATCH))
    assert float(training.rows.result()) == BATCH


@pytest.mark.parametrize("setup", every_kind())
def test_gradients_can_be_applied_outside_of_replicas(setup: Setup):
    sizes = [BATCH] * 2
    with setup.strategy.scope():
        variables = [jt.Variable(jnp.full((FEATURES,), 0.5)), jt.Variable(0.0)]
        optimizer = jt.Optimizer(OPTIMIZERS["sgd"]())

    def replica_fn(x, y):
        def loss_fn():
            return jt.nn.compute_average_loss((predict(variables, x) - y) ** 2)

        return jt.grad(loss_fn, variables)()

    @setup.function
    def step(batch):
        with setup.strategy.scope():
            gradients = setup.strategy.run(replica_fn, args=batch)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for batch in batches(sizes):
        step(deal_rows(setup, batch))
    expected = expected_training("sgd", tuple(sizes))
    np.testing.assert_allclose(variables[0].numpy(), expected["w"], rtol=1e-5)
    np.testing.assert_allclose(variables[1].numpy(), expected["b"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setup", every_kind())
def test_a_plain_tree_of_arrays_can_be_trained(setup: Setup):
    sizes = [BATCH] * STEPS
    transformation = OPTIMIZERS["sgd"]()
    parameters = (jnp.full((FEATURES,), 0.5), jnp.zeros(()))
    state = transformation.init(parameters)

    def replica_step(parameters, state, x, y):
        def loss_fn(parameters):
            return jnp.mean((predict(parameters, x) - y) ** 2)

        gradients = jax.grad(loss_fn)(parameters)
        gradients = jt.get_replica_context().all_reduce("MEAN", gradients)
        updates, state = transformation.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    step = setup.function(
        lambda parameters, state, batch: setup.strategy.run(
            replica_step, args=(parameters, state, *batch)
        )
    )
    for batch in batches(sizes):
        parameters, state = step(parameters, state, deal_rows(setup, batch))
    expected = expected_training("sgd", tuple(sizes))
    for w, b in setup.parts(parameters):
        np.testing.assert_allclose(np.asarray(w), expected["w"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(b), expected["b"], rtol=1e-5, atol=1e-5)


class Linear(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.full((FEATURES,), 0.5))
        self.b = nnx.Param(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        return predict((self.w[...], self.b[...]), x)


@pytest.mark.parametrize("setup", every_kind())
def test_a_flax_module_can_be_trained(setup: Setup):
    sizes = [BATCH] * STEPS
    graph, state = nnx.split(Linear())

    def replica_step(state, x, y):
        def loss_fn(state):
            return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)

        gradients = jax.grad(loss_fn)(state)
        gradients = jt.get_replica_context().all_reduce("MEAN", gradients)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients)

    step = setup.function(
        lambda state, batch: setup.strategy.run(replica_step, args=(state, *batch))
    )
    for batch in batches(sizes):
        state = step(state, deal_rows(setup, batch))

    w, b = jnp.full((FEATURES,), 0.5), jnp.zeros(())
    for x, y in batches(sizes):
        dw, db = jax.grad(lambda p, x=x, y=y: jnp.mean((predict(p, x) - y) ** 2))((w, b))
        w, b = w - 0.1 * dw, b - 0.1 * db
    for part in setup.parts(state):
        model = nnx.merge(graph, part)
        np.testing.assert_allclose(np.asarray(model.w[...]), w, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(model.b[...]), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("setup", several_replicas())
def test_evaluation_by_reduce_counts_uneven_batches_truly(setup: Setup):
    rows = setup.replicas + 1  # one more for the first replica
    ((x, y),) = batches([rows])
    with setup.strategy.scope():
        w = jt.Variable(jnp.full((FEATURES,), 0.5))

    @setup.function
    def evaluate(batch):
        errors = setup.strategy.run(lambda x, y: (x @ w.value() - y) ** 2, args=batch)
        return setup.strategy.reduce("MEAN", errors, axis=0)

    mean = evaluate(deal_rows(setup, (x, y), [2] + [1] * (setup.replicas - 1)))
    np.testing.assert_allclose(float(mean), np.mean((x @ np.full(FEATURES, 0.5) - y) ** 2), 1e-5)
