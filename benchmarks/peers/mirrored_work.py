"""What every contestant of `mirrored` computes: the cases, the weights and the batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

REPLICAS = 2
FEATURES = 784
CLASSES = 10
BATCHES = 8
LEARNING_RATE = 0.01

Weights = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Work:
    """One case: a 784-hidden-10 network trained on global batches of `batch` examples."""

    hidden: int
    batch: int

    @property
    def per_replica(self) -> int:
        """The examples of a batch that one replica gets."""
        return self.batch // REPLICAS

    def weights(self) -> Weights:
        """The initial w1, b1, w2, b2."""
        random = _random()
        w1 = random.standard_normal((FEATURES, self.hidden)) * np.sqrt(2 / FEATURES)
        w2 = random.standard_normal((self.hidden, CLASSES)) * np.sqrt(1 / self.hidden)
        zeros = np.zeros(self.hidden, np.float32), np.zeros(CLASSES, np.float32)
        return w1.astype(np.float32), zeros[0], w2.astype(np.float32), zeros[1]

    def batches(self) -> list[Batch]:
        """The host batches that the steps cycle through."""
        random = _random()
        return [
            (
                random.standard_normal((self.batch, FEATURES)).astype(np.float32),
                random.randint(0, CLASSES, self.batch).astype(np.int32),
            )
            for _ in range(BATCHES)
        ]


def _random() -> np.random.RandomState:
    """A seeded generator; RandomState, as its numbers are frozen across NumPy versions."""
    return np.random.RandomState(20240229)
