"""Plain Keras, outside of any scope and on one device, as what a strategy is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

import jaxtribute as jt

Make = Callable[[], keras.Model]

SEED = 7
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}

_rng = np.random.default_rng(0)
# Batches of one size, for which a program is compiled once.
EVEN_X = _rng.normal(size=(24, 4)).astype(np.float32)
EVEN_Y = np.argmax(EVEN_X[:, :3], axis=1)
# The last batch is smaller than the others.
X, Y = EVEN_X[:22], EVEN_Y[:22]


class Pair(NamedTuple):
    """One model twice: trained by Keras alone, and by a strategy."""

    plain: keras.Model
    ours: keras.Model


def pair(strategy: jt.Strategy, make: Make) -> Pair:
    """Return the same model, with the same weights, without and with a strategy."""
    plain = _fresh(make)
    with strategy.scope():
        ours = _fresh(make)
    return Pair(plain, ours)


def _fresh(make: Make) -> keras.Model:
    keras.backend.clear_session()  # for the same names
    keras.utils.set_random_seed(SEED)
    return make()


def same_fit(strategy: jt.Strategy, make: Make, *args: Any, **kwargs: Any) -> Pair:
    """Train a model without and with a strategy, and compare what comes of it.

    Arguments that are functions are called for each of the two, as data may be used up.
    """
    both = pair(strategy, make)
    histories = []
    for model in both:
        # Lazily built models draw their weights only now.
        keras.utils.set_random_seed(SEED)
        data = [fresh(arg) for arg in args]
        named = {name: fresh(arg) for name, arg in kwargs.items()}
        histories.append(model.fit(*data, **{"shuffle": False, "verbose": 0} | named))
    plain, ours = histories
    assert ours.epoch == plain.epoch
    assert ours.history.keys() == plain.history.keys()
    close(ours.history, plain.history)
    same_state(both)
    return both


def fresh(argument: Any) -> Any:
    """Return data that has not been read yet."""
    return argument() if callable(argument) and not hasattr(argument, "shape") else argument


def same_state(both: Pair) -> None:
    """Compare weights and the state of optimizers."""
    close(both.ours.get_weights(), both.plain.get_weights())
    if both.plain.optimizer is not None:
        optimizers = [[np.asarray(v) for v in model.optimizer.variables] for model in both]
        close(optimizers[1], optimizers[0])


def close(actual: Any, expected: Any) -> None:
    """Assert that two structures of numbers are equal, up to the rounding of float32."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(e, np.float64), **TOLERANCE
        )


def classifier(*layers: Any, compiled: bool = True, **options: Any) -> keras.Model:
    """Return a small classifier of three classes."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            *(layers or [keras.layers.Dense(5, activation="relu")]),
            keras.layers.Dense(3),
        ]
    )
    if compiled:
        model.compile(
            **{
                "optimizer": "adam",
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy"],
            }
            | options
        )
    return model
