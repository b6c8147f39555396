"""Keras models, optimizers and metrics in loops of one's own, written as for the reference."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jt
from tests_integrations.keras._plain import SEED, X, Y, close

BATCH = 6


class Program:
    """A training program of the reference, in its stateful style."""

    def __init__(self, strategy: jt.Strategy, compiled: bool = True) -> None:
        keras.utils.set_random_seed(SEED)
        self.strategy = strategy
        with strategy.scope():
            # Built by the first step, on the replicas.
            self.body = keras.Sequential(
                [
                    keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2"),
                    keras.layers.BatchNormalization(synchronized=True),
                ]
            )
            self.head = keras.layers.Dense(3)
            self.optimizers = [
                keras.optimizers.SGD(0.1, momentum=0.9),
                keras.optimizers.Adam(0.01),
            ]
            self.loss_object = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none"
            )
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.mean_loss = keras.metrics.Mean()
        self.step = jt.function(self._step) if compiled else self._step

    def _replica_step(self, inputs):
        x, y = inputs

        def loss_fn():
            logits = self.head(self.body(x, training=True))
            losses = self.loss_object(y, logits)
            loss = jt.nn.compute_average_loss(losses, global_batch_size=BATCH)
            loss += jt.nn.scale_regularization_loss(sum(self.body.losses))
            return loss, (logits, losses)

        if not self.head.built:
            self.head(self.body(x))
        groups = [self.body.trainable_variables, self.head.trainable_variables]
        (loss, (logits, losses)), grads = jt.value_and_grad(loss_fn, groups, has_aux=True)()
        for optimizer, gradients, variables in zip(self.optimizers, grads, groups, strict=True):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.accuracy.update_state(y, logits)
        self.mean_loss.update_state(losses)
        return loss

    def _step(self, inputs):
        losses = self.strategy.run(self._replica_step, args=(inputs,))
        return self.strategy.reduce("SUM", losses, axis=None)

    def train(self, epochs: int = 2) -> list[float]:
        """Return the losses of all steps, and the metrics of each epoch."""
        data = jt.data.Dataset.from_tensor_slices((X[:15], Y[:15])).batch(BATCH)
        found = []
        for epoch in range(epochs):
            if epoch:
                self.optimizers[0].learning_rate = 0.05
            for inputs in self.strategy.experimental_distribute_dataset(data):
                found.append(float(self.step(inputs)))
            found += [float(self.accuracy.result()), float(self.mean_loss.result())]
            self.accuracy.reset_state()
            self.mean_loss.reset_state()
        return found

    def weights(self) -> list[np.ndarray]:
        return self.body.get_weights() + self.head.get_weights()


@pytest.fixture(scope="module")
def expected():
    """What the default strategy makes of the program."""
    program = Program(jt.get_strategy())
    return program.train(), program.weights()


def test_a_program_gives_the_same_under_each_strategy(strategy, expected):
    program = Program(strategy)
    close(program.train(), expected[0])
    close(program.weights(), expected[1])
    # Batches of 6 and of 3, and one more for the first step, which creates variables.
    assert program.step.experimental_get_tracing_count() <= 3


def test_a_program_that_is_not_compiled(mirrored, expected):
    program = Program(mirrored, compiled=False)
    found = program.train(epochs=1)
    close(found, expected[0][: len(found)])


def test_gradients_by_jax_and_operations_of_keras(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    before = model.get_weights()

    @jt.function
    def step(x):
        def replica_step(x):
            trainable = [v.value for v in model.trainable_variables]
            others = [v.value for v in model.non_trainable_variables]

            def loss_fn(trainable):
                outputs, _ = model.stateless_call(trainable, others, x)
                return keras.ops.sum(keras.ops.square(outputs)) / 16

            loss, grads = jax.value_and_grad(loss_fn)(trainable)
            optimizer.apply(grads, model.trainable_variables)
            return loss

        return mirrored.reduce("SUM", mirrored.run(replica_step, args=(x,)), axis=None)

    data = jt.data.Dataset.from_tensor_slices(X[:16]).batch(16)
    (x,) = mirrored.experimental_distribute_dataset(data)
    loss = step(x)
    kernel, bias = before
    outputs = X[:16] @ kernel + bias
    close(float(loss), float((outputs**2).mean()))
    close(model.get_weights()[0], kernel - 0.1 * 2 / 16 * X[:16].T @ outputs)


# --- Replicas without examples -------------------------------------------------------------

LAYERS = {
    "own statistics": lambda: [keras.layers.BatchNormalization(momentum=0.5)],
    "common statistics": lambda: [keras.layers.BatchNormalization(momentum=0.5, synchronized=True)],
    "masked": lambda: [
        keras.layers.Embedding(5, 4, mask_zero=True),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.GlobalAveragePooling1D(),
    ],
    "rows and common statistics": lambda: [
        keras.layers.Embedding(5, 4),
        keras.layers.BatchNormalization(momentum=0.5, synchronized=True),
        keras.layers.Flatten(),
    ],
}


@pytest.mark.parametrize("cut", [0, 3], ids=["first-empty", "last-empty"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_a_replica_without_examples_changes_nothing(layers, compiled, cut):
    """All examples are on one replica, so that its statistics are those of one device."""
    rng = np.random.default_rng(1)
    embeds = isinstance(layers()[0], keras.layers.Embedding)
    x = rng.integers(0, 5, (3, 4)) if embeds else X[:3]
    y = np.float32([[1], [2], [3]])

    def trained(strategy, *batch):
        keras.utils.set_random_seed(SEED)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(0.1)
            metric = keras.metrics.MeanSquaredError()

        def replica_step(x, y):
            def loss_fn():
                outputs = model(x, training=True)
                losses = keras.losses.MeanSquaredError(reduction="none")(y, outputs)
                return jt.nn.compute_average_loss(losses), outputs

            variables = model.trainable_variables
            (loss, outputs), gradients = jt.value_and_grad(loss_fn, variables, has_aux=True)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            metric.update_state(y, outputs)
            return loss

        def step(*batch):
            return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

        loss = (jt.function(step) if compiled else step)(*batch)
        return [np.asarray(loss), np.asarray(metric.result()), *model.get_weights()]

    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

    def deal(array):
        parts = np.split(array, [cut])
        return strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    close(trained(strategy, deal(x), deal(y)), trained(jt.OneDeviceStrategy("CPU:0"), x, y))


# --- Variables -----------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False])
def test_a_summed_loss_keeps_its_regularization_without_examples(mirrored, compiled):
    x = np.float32([[2.0]])  # of which one replica gets nothing

    def trained(strategy):
        with strategy.scope():
            layer = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2")
            layer.build((None, 1))
            optimizer = keras.optimizers.SGD(1.0)
            loss_object = keras.losses.MeanSquaredError(reduction="sum")

        def replica_fn(x):
            def loss_fn():
                loss = loss_object(jnp.zeros((x.shape[0], 1)), layer(x)) / BATCH
                return loss + jt.nn.scale_regularization_loss(sum(layer.losses))

            loss, gradients = jt.value_and_grad(loss_fn, layer.trainable_variables)()
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            return loss

        def step(x):
            return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)

        (batch,) = strategy.experimental_distribute_dataset(
            jt.data.Dataset.from_tensor_slices(x).batch(2)
        )
        loss = (jt.function(step) if compiled else step)(batch)
        return [float(loss), float(layer.kernel.numpy()[0, 0])]

    expected = pytest.approx([4 / BATCH + 0.01, 1 - 8 / BATCH - 0.02])
    assert trained(jt.OneDeviceStrategy("CPU:0")) == expected
    assert trained(mirrored) == expected


def test_variables_that_are_added_up_when_they_are_read(mirrored):
    with mirrored.scope():
        mean = keras.Variable(0.0, trainable=False, synchronization="on_read", aggregation="mean")
        total = keras.Variable(0.0, trainable=False, synchronization="on_read", aggregation="sum")

    def replica_step():
        number = jt.get_replica_context().replica_id_in_sync_group + 1.0
        mean.assign(number)
        total.assign_add(number)
        return mean.value, total.value

    for compiled in (True, False):
        run = lambda: mirrored.run(replica_step)  # noqa: E731
        inside = (jt.function(run) if compiled else run)()
        close(mirrored.experimental_local_results(inside[0]), (1.0, 2.0))
    close(float(mean), 1.5)
    close(float(total), 6.0)
    total.assign(0.0)
    assert float(total) == 0


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("mean", 1.5), ("sum", 3.0), ("only_first_replica", 1.0)]
)
def test_the_aggregation_of_an_assignment(mirrored, aggregation, expected):
    with mirrored.scope():
        variable = keras.Variable(0.0, aggregation=aggregation)

    @jt.function
    def run():
        mirrored.run(
            lambda: variable.assign(jt.get_replica_context().replica_id_in_sync_group + 1.0)
        )

    run()
    assert float(variable) == expected


def test_assigning_to_a_variable_without_aggregation(mirrored):
    with mirrored.scope():
        variable = keras.Variable(jnp.zeros(3))
    with pytest.raises(ValueError, match=r"aggregation"):
        mirrored.run(lambda: variable.assign(jnp.ones(3)))


def test_a_model_is_an_ordinary_one_outside_of_strategies(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    close(np.asarray(model(X)), model.predict(X, verbose=0))
    kernel = model.layers[0].kernel
    kernel.assign(jnp.ones((4, 2)))
    close(np.asarray(model(X))[:, 0], X.sum(1))
    assert (kernel + 1).shape == (4, 2)
    copy = keras.models.clone_model(model)
    copy.compile("sgd", "mse")
    copy.fit(X, X[:, :2], verbose=0)  # by Keras itself
    assert not hasattr(copy.layers[0].kernel, "strategy")


@pytest.mark.parametrize("bad", [6, -1])
def test_rows_that_do_not_exist_are_refused_or_left_out(bad):
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        table = keras.Variable(np.ones((6, 2), np.float32), name="table")
        optimizer = keras.optimizers.SGD(1.0)

    def replica_fn(ids):
        optimizer.apply([jt.IndexedSlices(jnp.full((2, 2), 0.25), ids, (6, 2))], [table])

    ids = np.array([1, bad])
    with pytest.raises(jt.errors.InvalidArgumentError, match=rf"6 rows.* {bad}"):
        strategy.run(replica_fn, args=(ids,))
    assert (np.asarray(table) == 1).all()
    jt.function(lambda ids: strategy.run(replica_fn, args=(ids,)))(ids)
    assert np.asarray(table)[:, 0].tolist() == [1, 0.5, 1, 1, 1, 1]


def test_ids_that_do_not_fit_into_32_bits_are_refused_by_fit():
    with jt.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.layers.Embedding(6, 2), keras.layers.Flatten()])
        model.compile("sgd", "mse")
    ids = np.array([[0], [1], [2], [2**33 + 1]])
    with pytest.raises(jt.errors.InvalidArgumentError, match="8589934593"):
        model.fit(ids, np.zeros((4, 2)), batch_size=4, verbose=0)


class _Unbuilt(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(3, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "variables",
    [lambda m: m, lambda m: lambda: m.trainable_variables, lambda m: m.trainable_variables],
    ids=["the model", "a function", "a list"],
)
def test_gradients_of_a_model_that_is_built_on_the_way(mirrored, variables, compiled):
    with mirrored.scope():
        model = _Unbuilt()
        optimizer = keras.optimizers.SGD(0.1)

    def step(x):
        loss, gradients = jt.value_and_grad(lambda: jnp.mean(model(x) ** 2), variables(model))()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def run(x):
        return mirrored.reduce("MEAN", mirrored.run(step, args=(x,)), axis=None)

    run = jt.function(run) if compiled else run
    if not compiled and isinstance(variables(model), list):
        with pytest.raises(ValueError, match=r"dense.*lambda: model.trainable_variables"):
            run(X)
        return
    assert run(X) > run(X) > run(X)
    assert len(model.trainable_variables) == 4


def test_a_variable_that_each_replica_would_create_is_refused():
    class Lazy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)
            self.scale = None

        def call(self, x):
            if self.scale is None:
                self.scale = keras.Variable(jnp.ones(3))
            return self.dense(x * self.scale)

    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = Lazy()
    with pytest.raises(RuntimeError, match="Each replica creates the Keras variable"):
        strategy.run(lambda: layer(jnp.ones((2, 3))))
