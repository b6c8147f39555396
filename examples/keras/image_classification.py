"""Classify pictures of digits by a small convolutional network, with whatever strategy.

    python examples/keras/image_classification.py --strategy mirrored
    jaxtribute launch --workers 2 examples/keras/image_classification.py --strategy workers
    jaxtribute launch --workers 2 --ps 2 examples/keras/image_classification.py --strategy ps

The strategies are `default`, `one`, `mirrored`, `workers` and `ps`; the last one starts a cluster
in its own process if it is run without the launcher. `train` is the whole program, and knows
nothing of them.

The data set, 1797 pictures of 8 x 8 pixels, is part of scikit-learn: nothing is downloaded. The
program ends with status 1 if it reaches less than 97 % on pictures it has not seen. With `--small`
it takes 384 pictures, and leaves out the random part of the network, so that all strategies
that train in step end with the same weights.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import keras
import numpy as np
import strategies
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jt

GOAL = 0.97
SEED = 2

Examples = tuple[np.ndarray, np.ndarray]  # pictures, labels


def load(small: bool) -> tuple[Examples, Examples]:
    """Return what to train and what to test with."""
    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    train_x, test_x, train_y, test_y = train_test_split(
        pictures, labels, test_size=361, random_state=SEED, stratify=labels
    )
    size = 384 if small else len(train_y)
    return (train_x[:size], train_y[:size]), (test_x, test_y)


def train(
    strategy: jt.Strategy, data: Examples, epochs: int, dropout: float = 0.0
) -> tuple[keras.Model, list[float]]:
    """Return a trained model, and its loss in each epoch."""
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
                # Over the batches of all replicas, as on one device.
                keras.layers.BatchNormalization(synchronized=True, momentum=0.9),
                keras.layers.ReLU(),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dropout(dropout),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(*data, batch_size=64, epochs=epochs, verbose=2)
    return model, history.history["loss"]


def main() -> int:
    given = strategies.arguments(__doc__.splitlines()[0], epochs=15)
    with strategies.strategy_called(given.strategy) as strategy:
        data, test = load(given.small)
        model, losses = train(strategy, data, given.epochs, 0.0 if given.small else 0.25)
        _, accuracy = model.evaluate(*test, batch_size=64, verbose=0)
        print("loss of each epoch:", *(f"{loss:.6f}" for loss in losses))
        print(
            f"{type(strategy).__name__}: {accuracy:.2%} of {len(test[1])} pictures that it has not "
            f"seen are recognized (goal: {GOAL:.0%})"
        )
        if given.save:
            model.save(given.save)
    return 1 if accuracy < GOAL and not given.small else 0


if __name__ == "__main__":
    sys.exit(main())
