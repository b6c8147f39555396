"""Layers, losses and optimizers that look at the whole batch, or at the replica."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jt
from tests_integrations.keras._plain import EVEN_X as X
from tests_integrations.keras._plain import EVEN_Y as Y
from tests_integrations.keras._plain import SEED, classifier, close, pair, same_fit

WORDS = np.random.default_rng(1).integers(0, 6, size=(24, 5))
WORDS[:, 3:] = 0  # of different lengths, also between replicas
WORDS[::3, 1:] = 0
WORDS[:, 0] = 1


# --- Losses --------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_reductions_of_losses(mirrored, reduction):
    weights = np.linspace(0, 3, len(X))

    def make() -> keras.Model:
        model = classifier(loss=keras.losses.MeanSquaredError(reduction=reduction), optimizer="sgd")
        return model

    # One batch that can be divided between replicas, and one that cannot.
    same_fit(mirrored, make, X[:21], np.eye(3)[Y[:21]], sample_weight=weights[:21], batch_size=16)


def test_masks(mirrored):
    def make() -> keras.Model:
        words = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(6, 3, mask_zero=True)(words)
        x = keras.layers.LSTM(3, return_sequences=True)(x)
        x = keras.layers.TimeDistributed(keras.layers.Dense(2))(x)
        model = keras.Model(words, x)
        model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
        return model

    y = np.random.default_rng(2).normal(size=(21, 5, 2))
    same_fit(mirrored, make, WORDS[:21], y, batch_size=16)


class Adding(keras.layers.Layer):
    """Adds to the loss what the mean of its inputs is."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(x**2))
        return x


def test_losses_of_layers_and_constraints(mirrored):
    def make() -> keras.Model:
        return classifier(
            Adding(),
            keras.layers.Dense(
                4,
                activation="relu",
                kernel_regularizer="l2",
                bias_regularizer=keras.regularizers.L1(0.1),
                activity_regularizer=keras.regularizers.L2(0.1),
                kernel_constraint=keras.constraints.MaxNorm(0.5),
            ),
        )

    same_fit(mirrored, make, X, Y, batch_size=8, epochs=2, validation_data=(X[:8], Y[:8]))


# --- Layers --------------------------------------------------------------------------------


def normalized(**options) -> keras.Model:
    return classifier(
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(momentum=0.5, **options),
        optimizer="sgd",
    )


def normalized_words(**options) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(6, 3, mask_zero=True),
            keras.layers.BatchNormalization(momentum=0.5, **options),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize(("make", "x"), [(normalized, X), (normalized_words, WORDS)])
def test_synchronized_batch_normalization(mirrored, make, x):
    # Keras itself has none on JAX.
    both = pair(mirrored, lambda: make(**{"synchronized": True} if jt.has_strategy() else {}))
    histories = [m.fit(x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0) for m in both]
    close(histories[1].history, histories[0].history)
    close(both.ours.get_weights(), both.plain.get_weights())


def test_batch_normalization_of_each_replica(mirrored):
    with mirrored.scope():
        model = classifier(keras.layers.BatchNormalization(momentum=0.5))
    model.fit(X[:8], Y[:8], batch_size=8, shuffle=False, verbose=0)
    halves = X[:4], X[4:8]
    mean, variance = model.layers[0].non_trainable_variables
    close(mean.numpy(), 0.5 * np.mean([h.mean(0) for h in halves], axis=0))
    close(variance.numpy(), 0.5 + 0.5 * np.mean([h.var(0) for h in halves], axis=0))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.Dropout(0.5),
        lambda: keras.layers.GaussianNoise(1.0),
        lambda: keras.layers.RandomFlip("horizontal"),
    ],
    ids=["Dropout", "GaussianNoise", "RandomFlip"],
)
def test_each_replica_draws_other_numbers_and_a_seed_repeats_them(mirrored, layer):
    def outputs() -> np.ndarray:
        keras.utils.set_random_seed(SEED)
        with mirrored.scope():
            random = layer()
        x = jnp.broadcast_to(jnp.arange(1.0, 13.0).reshape(1, 2, 6, 1), (8, 2, 6, 1))

        @jt.function
        def run():
            return mirrored.run(lambda: random(x, training=True))

        both = [mirrored.experimental_local_results(run()) for _ in range(2)]
        return np.array(both)

    found = outputs()
    flat = found.reshape(4, -1)
    for i in range(4):
        for j in range(i):  # between replicas, and between steps
            assert not np.array_equal(flat[i], flat[j])
    np.testing.assert_array_equal(found, outputs())


def test_dropout_in_fit_can_be_repeated(mirrored):
    def weights() -> list[np.ndarray]:
        keras.utils.set_random_seed(SEED)
        with mirrored.scope():
            model = classifier(keras.layers.Dense(8), keras.layers.Dropout(0.5))
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
        return model.get_weights()

    for first, second in zip(weights(), weights(), strict=True):
        np.testing.assert_array_equal(first, second)


# --- Optimizers ----------------------------------------------------------------------------


def optimizers():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return {
        "clipnorm": lambda: keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=0.05),
        "global_clipnorm": lambda: keras.optimizers.RMSprop(global_clipnorm=0.01),
        "moving average": lambda: keras.optimizers.Adam(
            use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2, weight_decay=0.1
        ),
        "accumulation": lambda: keras.optimizers.AdamW(gradient_accumulation_steps=2),
    }


@pytest.mark.parametrize("name", optimizers())
def test_optimizers(mirrored, name):
    make = lambda: classifier(optimizer=optimizers()[name]())  # noqa: E731
    same_fit(mirrored, make, X, Y, batch_size=4, epochs=2)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(mirrored, policy):
    def make() -> keras.Model:
        keras.config.set_dtype_policy(policy)
        return classifier(optimizer="sgd")

    both = pair(mirrored, make)
    assert both.ours.dtype_policy.name == policy
    histories = [m.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0) for m in both]
    assert isinstance(both.ours.optimizer, keras.optimizers.LossScaleOptimizer) == (
        policy == "mixed_float16"
    )
    np.testing.assert_allclose(
        histories[1].history["loss"], histories[0].history["loss"], rtol=0.02
    )
    for ours, plain in zip(both.ours.get_weights(), both.plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0.05, atol=0.01)
    assert both.ours.predict(X, verbose=0).dtype == both.plain.predict(X, verbose=0).dtype


def test_layers_that_are_not_trained(mirrored):
    both = pair(mirrored, classifier)
    for model in both:
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        frozen = model.layers[0].get_weights()
        model.layers[0].trainable = False
        model.compile("sgd", model.loss, metrics=["accuracy"])
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        close(model.layers[0].get_weights(), frozen)
    close(both.ours.get_weights(), both.plain.get_weights())
