"""`input` in jaxtribute, written as a user would."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

import jaxtribute as jt
from benchmarks.peers.input_work import (
    BATCH,
    BATCHES,
    EXAMPLES,
    REPLICAS,
    SEED,
    Proof,
    Work,
    augment,
    parse,
)
from benchmarks.peers.serve import serve


def parse_line(line: bytes) -> tuple[np.ndarray]:
    """One line, as an example of one component."""
    return (parse(line),)


def dataset(work: Work) -> Any:
    """Batches without end."""
    if work.kind == "text":
        lines = jt.data.TextLineDataset([work.lines()]).map(parse_line)
        return lines.repeat().batch(BATCH, drop_remainder=True)
    rows = jt.data.Dataset.from_tensor_slices(work.arrays()).shuffle(EXAMPLES, seed=SEED).repeat()
    if work.kind == "map":
        rows = rows.map(augment)
    return rows.batch(BATCH, drop_remainder=True)


class Jaxtribute:
    """The session of one case."""

    def __init__(self, work: Work, strategy: Any) -> None:
        self.strategy = strategy
        self.iterator = iter(strategy.experimental_distribute_dataset(dataset(work)))
        proof = Proof()
        for _ in range(BATCHES):
            batch = [strategy.experimental_local_results(part) for part in self._next()]
            for of_replica in zip(*batch, strict=True):
                proof.add(*(np.asarray(part) for part in of_replica))
        self.outcome = proof.total

    def _next(self) -> tuple[Any, ...]:
        batch = next(self.iterator)
        jax.block_until_ready([part.stacked(self.strategy.topology) for part in batch])
        return batch

    def reset(self) -> None:
        """Do nothing: the data has no end."""

    def run(self, steps: int) -> float:
        """Wait for so many batches, and return what whole epochs of them added up to."""
        for _ in range(steps):
            self._next()
        return self.outcome


if __name__ == "__main__":
    kind = sys.argv[1]
    mirrored = jt.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    serve(
        lambda case: Jaxtribute(Work(kind, **case), mirrored),
        ("jaxtribute", "jax", "jaxlib", "numpy"),
    )
