"""What every contestant of `keras` does: the same program around `fit`, in another scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import keras
import numpy as np

from benchmarks.peers.mirrored_work import CLASSES, FEATURES, LEARNING_RATE, REPLICAS
from benchmarks.peers.serve import Timed, timed

DEVICES = [f"cpu:{index}" for index in range(REPLICAS)]
EPOCH = 50
"""The batches of an epoch."""
IN_ORDER = 10
"""The batches that are trained to compare the contestants' losses."""
_SIDE = 28


def mlp(hidden: int) -> keras.Model:
    """784-hidden-10, as in `mirrored`."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def convolutional(filters: int) -> keras.Model:
    """Two convolutions, each followed by pooling, on pictures of 28 by 28 pixels."""
    return keras.Sequential(
        [
            keras.Input((_SIDE, _SIDE, 1)),
            keras.layers.Conv2D(filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2 * filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )


_MODELS = {"hidden": mlp, "filters": convolutional}


class Fit:
    """The session of one case.

    Args:
      case: the global batch, and the size of the model by the name that says which one it is.
      scope: where to create the model.
    """

    def __init__(
        self, case: Mapping[str, int], scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self.batch = case["batch"]
        (name,) = case.keys() - {"batch"}
        with scope():
            self.model = _MODELS[name](case[name])
            self.model.compile(
                optimizer=keras.optimizers.SGD(LEARNING_RATE),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        self.weights = _weights([weight.shape for weight in self.model.get_weights()])
        self.x, self.y = _examples(EPOCH * self.batch, self.model.input_shape[1:])

    def reset(self) -> None:
        """Assign the initial weights."""
        self.model.set_weights(self.weights)

    def run(self, steps: int) -> Timed:
        """Do steps, of which only the time counts, as each contestant shuffles differently."""
        return timed(lambda: self._train(steps), self._loss_in_order)

    def _train(self, steps: int) -> None:
        epochs, rest = divmod(steps, EPOCH)
        if epochs:
            self._fit(EPOCH, epochs=epochs)
        if rest:
            self._fit(rest)

    def _loss_in_order(self) -> float:
        """The mean loss of batches that all contestants train in the same order."""
        self.reset()
        return self._fit(IN_ORDER, shuffle=False)

    def _fit(self, batches: int, *, epochs: int = 1, shuffle: bool = True) -> float:
        rows = batches * self.batch
        history = self.model.fit(
            self.x[:rows],
            self.y[:rows],
            batch_size=self.batch,
            epochs=epochs,
            shuffle=shuffle,
            verbose=0,
        )
        return float(history.history["loss"][-1])


def _weights(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Kernels for relu, and biases of zero."""
    random = _random()
    return [
        (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32)
        if len(shape) > 1
        else np.zeros(shape, np.float32)
        for shape in shapes
    ]


def _examples(count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = _random()
    x = random.standard_normal((count, *shape)).astype(np.float32)
    return x, random.randint(0, CLASSES, count).astype(np.int32)


def _random() -> np.random.RandomState:
    """A seeded generator; RandomState, as its numbers are frozen across NumPy versions."""
    return np.random.RandomState(20240229)
