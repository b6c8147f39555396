"""Metrics, single batches, and steps that users write themselves."""

import jax
import keras
import numpy as np
import pytest

import jaxtribute as jt
from tests_integrations.keras._plain import EVEN_X as X
from tests_integrations.keras._plain import EVEN_Y as Y
from tests_integrations.keras._plain import classifier, close, pair, same_fit

# --- Metrics -------------------------------------------------------------------------------


class Counted(keras.metrics.Metric):
    """Counts examples in variables of its own."""

    def __init__(self, name="examples"):
        super().__init__(name=name)
        self.count = self.add_variable((), "zeros", name="count")
        self.of_class = self.add_variable((3,), "zeros", dtype="int32", name="of_class")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(float(y_true.shape[0]))
        classes = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 3, dtype="int32")
        self.of_class.assign_add(keras.ops.sum(keras.ops.reshape(classes, (-1, 3)), axis=0))

    def result(self):
        return {"count": self.count.value, "most": keras.ops.max(self.of_class)}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # by MeanIoU
def test_metrics_of_every_kind_of_state(mirrored):
    def make() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
        model.compile(
            "sgd",
            "categorical_crossentropy",
            metrics=[
                "accuracy",
                keras.metrics.AUC(num_thresholds=11),
                keras.metrics.Precision(thresholds=[0.2, 0.5]),
                keras.metrics.SensitivityAtSpecificity(0.5, num_thresholds=5),
                keras.metrics.OneHotMeanIoU(3),
                keras.metrics.TopKCategoricalAccuracy(2),
                keras.metrics.F1Score(),
                keras.metrics.R2Score(),
                keras.metrics.PearsonCorrelation(),
                keras.metrics.RootMeanSquaredError(),
            ],
        )
        return model

    both = same_fit(
        mirrored, make, X, np.eye(3)[Y], batch_size=8, epochs=2, validation_data=(X, np.eye(3)[Y])
    )
    results = [m.evaluate(X, np.eye(3)[Y], batch_size=8, verbose=0) for m in both]
    close(results[1], results[0])


def test_a_metric_of_ones_own(mirrored):
    make = lambda: classifier(metrics=[Counted()])  # noqa: E731
    both = same_fit(mirrored, make, X, Y, batch_size=8, epochs=2)
    assert both.ours.evaluate(X, Y, verbose=0, return_dict=True)["count"] == len(X)


class Largest(keras.metrics.Metric):
    """Keeps something that does not add up, and says how replicas' values are combined."""

    def __init__(self, aggregation):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", aggregation=aggregation)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_true)))

    def result(self):
        return self.largest.value


@pytest.mark.parametrize(("aggregation", "expected"), [("mean", 5.5), ("only_first_replica", 3)])
def test_the_aggregation_of_a_metric_is_respected(mirrored, aggregation, expected):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Largest(aggregation)])
    y = np.array([[1.0], [3], [8], [2]])
    assert model.evaluate(y, y, batch_size=4, verbose=0)[1] == expected
    # A batch that each replica has all of.
    assert model.evaluate(y[:3], y[:3], batch_size=4, verbose=0)[1] == 8


# --- One batch -----------------------------------------------------------------------------


def test_single_batches_of_any_size(mirrored):
    both = pair(mirrored, classifier)
    for size in (8, 1):
        x, y, weights = X[:size], Y[:size], np.linspace(1, 2, size)
        done = [
            (
                model.train_on_batch(x, y, sample_weight=weights),
                model.train_on_batch(x, y, class_weight={0: 2.0}, return_dict=True),
                model.test_on_batch(x, y, sample_weight=weights),
                model.predict_on_batch(x),
            )
            for model in both
        ]
        close(done[1], done[0])
    close(both.ours.get_weights(), both.plain.get_weights())


# --- Steps of one's own --------------------------------------------------------------------


class OwnLoss(keras.Model):
    """Computes its loss and metrics itself."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="own_loss")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = keras.ops.mean((y_pred - y) ** 2)
        self.tracker.update_state(loss)
        return loss + 0.1 * keras.ops.mean(y_pred**2)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return results | {"twice": 2 * self.tracker.result()}


class OwnStep(keras.Model):
    """Trains by a step of its own, in the way of Keras's guide for JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y = data

        def loss_of(trainable):
            y_pred, after = self.stateless_call(trainable, non_trainable, x)
            return self.compute_loss(x, y, y_pred), after

        (loss, non_trainable), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        return {"my_loss": loss}, (trainable, non_trainable, optimizer, metrics)

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return {"tested": logs["loss"]}, state


@pytest.mark.parametrize("cls", [OwnLoss, OwnStep])
def test_steps_of_ones_own(mirrored, cls):
    def make() -> keras.Model:
        model = cls()
        model.compile("sgd", "mse")
        return model

    y = np.eye(3)[Y]
    # Of steps of one's own the last is reported: a whole one, which is the mean over replicas.
    both = same_fit(
        mirrored, make, X[:16], y[:16], batch_size=8, epochs=2, validation_data=(X[:8], y[:8])
    )
    assert "own_loss" in both.ours.history.history or "my_loss" in both.ours.history.history


# --- One after the other -------------------------------------------------------------------


def test_fit_goes_on_where_it_was_and_weights_can_be_set(mirrored):
    both = pair(mirrored, classifier)
    for model in both:
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        halved = [w / 2 for w in model.get_weights()]
        model.set_weights(halved)
        model.optimizer.learning_rate = 0.05
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        assert model.optimizer.iterations == 6
    close(both.ours.get_weights(), both.plain.get_weights())


def test_two_strategies_in_one_program():
    weights = []
    for devices in (["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]):
        strategy = jt.MirroredStrategy(devices)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = classifier()
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        with strategy.scope():
            model.evaluate(X, Y, verbose=0)
        weights.append(model.get_weights())
    close(weights[1], weights[0])
    other = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with other.scope(), pytest.raises(RuntimeError, match="model"):
        model.fit(X, Y)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "float16", "bool"])
def test_types_of_arrays(mirrored, dtype):
    images = np.arange(22 * 4).reshape(22, 4).astype(dtype)
    both = pair(mirrored, lambda: classifier(keras.layers.Rescaling(1 / 255), compiled=False))
    outputs = [model.predict(images, verbose=0) for model in both]
    assert outputs[1].dtype == outputs[0].dtype
    close(outputs[1], outputs[0])
