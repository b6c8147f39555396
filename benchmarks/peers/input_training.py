"""How long jaxtribute's own training step of `mirrored` waits for its input.

It is fed from a `dataset`, or the same batches from `memory` of the devices. It is also run
`blocking`, one step after the other, of which `next` measures only the time spent in asking the
dataset for batches.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

import jaxtribute as jt
from benchmarks.peers.input_work import EXAMPLES, SEED
from benchmarks.peers.input_work import Work as Input
from benchmarks.peers.mirrored_jaxtribute import Jaxtribute
from benchmarks.peers.mirrored_work import FEATURES, REPLICAS
from benchmarks.peers.serve import Timed, serve


class Training(Jaxtribute):
    """The session of one case, fed from a dataset."""

    def __init__(self, case: Mapping[str, int], strategy: Any) -> None:
        super().__init__(case, strategy)
        batch = self.work.batch
        self.in_epoch = EXAMPLES // batch
        x, y = (array[: self.in_epoch * batch] for array in Input("arrays", FEATURES).arrays())
        x = x / x.max()  # or the network diverges
        # The same order in each epoch, so that `FromMemory` can keep an epoch and repeat it.
        rows = jt.data.Dataset.from_tensor_slices((x, y))
        rows = rows.shuffle(len(x), seed=SEED, reshuffle_each_iteration=False).repeat()
        self.dataset = strategy.experimental_distribute_dataset(
            rows.batch(batch, drop_remainder=True)
        )

    def _batches(self) -> Iterator[Any]:
        return iter(self.dataset)

    def reset(self) -> None:
        """Assign the initial weights, and begin with the first batch."""
        super().reset()
        self.iterator = self._batches()

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss when all weights are there."""
        loss = None
        for _ in range(steps):
            loss = self.step(*next(self.iterator))
        self._wait()
        return float(loss)

    def _wait(self) -> None:
        copies = [copy for variable in self.variables for copy in variable.values]
        jax.block_until_ready([copy.read_value() for copy in copies])


class FromMemory(Training):
    """The same batches, put on the devices beforehand."""

    def __init__(self, case: Mapping[str, int], strategy: Any) -> None:
        super().__init__(case, strategy)
        self.batches = list(itertools.islice(iter(self.dataset), self.in_epoch))

    def _batches(self) -> Iterator[Any]:
        return itertools.cycle(self.batches)


class Blocking(Training):
    """Waits for each step, so that no step still runs while the next batch is asked for."""

    def run(self, steps: int) -> float:
        """Do steps one by one."""
        loss, self.waited, batch = 0.0, 0.0, ()
        for _ in range(steps):
            start = time.perf_counter()
            following = next(self.iterator)
            self.waited += time.perf_counter() - start
            batch = following  # only now, as giving back the memory of the last one is no waiting
            # One program computes all of a step, so this is when its weights are there as well.
            loss = float(self.step(*batch))
        self._wait()
        return loss


class InNext(Blocking):
    """The time in which nothing but the input is waited for."""

    def run(self, steps: int) -> Timed:
        """Do steps one by one."""
        return Timed(super().run(steps), self.waited)


KINDS = {"dataset": Training, "memory": FromMemory, "blocking": Blocking, "next": InNext}

if __name__ == "__main__":
    kind = KINDS[sys.argv[1]]
    mirrored = jt.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    serve(lambda case: kind(case, mirrored), ("jaxtribute", "jax", "jaxlib", "numpy"))
