"""`multi_worker` in PyTorch: DistributedDataParallel on Gloo, as its tutorial writes it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.mirrored_work import CLASSES, FEATURES, LEARNING_RATE, Work
from benchmarks.peers.multi_worker_cluster import this_cluster
from benchmarks.peers.serve import serve


class Torch:
    """The session of one case."""

    def __init__(self, case: Mapping[str, int]) -> None:
        self.work = Work(**case)
        rank, size = dist.get_rank(), self.work.per_replica
        rows = slice(rank * size, (rank + 1) * size)
        # Labels as PyTorch's loss wants them: a conversion that is not part of the step.
        self.batches = [(x[rows], y[rows].astype("int64")) for x, y in self.work.batches()]
        hidden = nn.Linear(FEATURES, self.work.hidden)
        self.layers = nn.Sequential(hidden, nn.ReLU(), nn.Linear(self.work.hidden, CLASSES))
        self.model = DistributedDataParallel(self.layers)
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)

    def reset(self) -> None:
        """Copy the initial weights; PyTorch keeps matrices as (outputs, inputs)."""
        with torch.no_grad():
            for parameter, value in zip(self.layers.parameters(), self.work.weights(), strict=True):
                parameter.copy_(torch.from_numpy(value.T))
        self.position = 0

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss, which only then is added up."""
        loss = torch.zeros(())
        for _ in range(steps):
            x, y = self.batches[self.position % len(self.batches)]
            self.position += 1
            self.optimizer.zero_grad()
            loss = self.loss(self.model(torch.from_numpy(x)), torch.from_numpy(y))
            loss.backward()
            self.optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


if __name__ == "__main__":
    cluster = this_cluster()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{cluster.chief}",
        rank=cluster.index,
        world_size=cluster.workers,
    )
    try:
        serve(Torch, ("torch", "numpy"))
    finally:
        dist.destroy_process_group()
