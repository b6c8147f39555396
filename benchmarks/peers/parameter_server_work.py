"""What the contestants of `parameter_server` compute: cases, weights, batches and losses.

Workers update asynchronously, so no two runs end with the same weights. What must agree is the
loss over all batches that the final weights give, for which the order of small updates hardly
matters, and their number does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.mirrored_work import BATCHES, CLASSES, Batch, Work

WORKERS = 2
# Small enough that the order of updates hardly shows in the loss, and large enough that their
# number does. A row of the table gets only a little of each gradient.
MLP_RATE = 0.001
EMBEDDING_RATE = 1.0
MEGABYTE = 2**20


def mean_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean cross-entropy of logits, in double precision."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return float(np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen))


class Mlp(Work):
    """A 784-hidden-10 network; every closure trains on `batch` examples."""

    def stacked(self) -> Batch:
        """All batches, one after the other on a new first axis."""
        xs, ys = zip(*self.batches(), strict=True)
        return np.stack(xs), np.stack(ys)

    def loss(self, weights: Sequence[np.ndarray]) -> float:
        """The loss over all batches."""
        w1, b1, w2, b2 = weights
        x, y = (np.concatenate(part) for part in zip(*self.batches(), strict=True))
        return mean_loss(np.maximum(x @ w1 + b1, 0) @ w2 + b2, y)


@dataclass(frozen=True)
class Embedding:
    """Bags of 16 ids, classified by the mean of their rows in a table, which starts as zeros."""

    rows: int
    width: int
    ids: int
    """How many a closure looks up."""

    bag = 16

    def head(self) -> tuple[np.ndarray, np.ndarray]:
        """The initial weights of the classifier."""
        w = np.random.RandomState(7).standard_normal((self.width, CLASSES))
        return (w / np.sqrt(self.width)).astype(np.float32), np.zeros(CLASSES, np.float32)

    def stacked(self) -> Batch:
        """All batches of bags and labels, one after the other on a new first axis.

        The ids follow Zipf's law: few are asked for again and again, and most hardly ever. Which
        rows are the popular ones is scattered over the table, so that servers share them.
        """
        random = np.random.RandomState(8)
        shape = (BATCHES, self.ids // self.bag, self.bag)
        ranks = random.zipf(1.2, shape) % self.rows
        ids = (ranks * 611_953) % self.rows  # a prime, so that every row is some rank's
        return ids.astype(np.int32), random.randint(0, CLASSES, shape[:2]).astype(np.int32)

    def loss(self, rows: np.ndarray, w: np.ndarray, b: np.ndarray) -> float:
        """The loss over all batches, from the rows that `stacked` asks for."""
        _, labels = self.stacked()
        pooled = rows.mean(axis=-2).reshape(-1, self.width)
        return mean_loss(pooled @ w + b, labels.reshape(-1))


@dataclass(frozen=True)
class Large:
    """An array to be moved from one process to another."""

    megabytes: int

    def array(self) -> np.ndarray:
        """The array."""
        return np.arange(self.megabytes * MEGABYTE // 4, dtype=np.float32)
