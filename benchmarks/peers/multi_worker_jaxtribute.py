"""`multi_worker` in jaxtribute, written as a user would: another strategy, fed by a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import jaxtribute as jt
from benchmarks.peers.mirrored_jaxtribute import Jaxtribute
from benchmarks.peers.serve import serve


class OfWorkers(Jaxtribute):
    """The session of one case on one worker, which reads its half of each batch."""

    def __init__(self, case: Mapping[str, int], strategy: Any) -> None:
        super().__init__(case, strategy)
        examples = tuple(np.concatenate(part) for part in zip(*self.batches, strict=True))
        dataset = jt.data.Dataset.from_tensor_slices(examples).batch(self.work.batch).repeat()
        self.dataset = strategy.experimental_distribute_dataset(dataset)

    def reset(self) -> None:
        """Assign the initial weights, and start with the first batch."""
        super().reset()
        self.iterator = iter(self.dataset)

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss when all weights are there."""
        loss = None
        for _ in range(steps):
            loss = self.step(*next(self.iterator))
        jax.block_until_ready([variable.value() for variable in self.variables])
        return float(loss)


if __name__ == "__main__":
    strategy = jt.MultiWorkerMirroredStrategy()  # reads TF_CONFIG, and waits for the other worker
    serve(lambda case: OfWorkers(case, strategy), ("jaxtribute", "jax", "jaxlib", "numpy"))
