"""A launched worker that says when it has trained a step, then trains until it is ended.

What it says goes to a file that all workers append to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Protocol

LOG = "BENCHMARK_LOG"
CASE = {"hidden": 64, "batch": 32}
LONG = 100_000  # steps, which nobody waits for


class _Session(Protocol):
    def reset(self) -> None: ...

    def run(self, steps: int) -> object: ...


def train(session: _Session, rank: int, restarts: int) -> None:
    """Train a step and tell; the clock is the same in all processes of a machine."""
    session.reset()
    session.run(1)
    told = {"rank": rank, "restarts": restarts, "pid": os.getpid(), "at": time.monotonic()}
    with open(os.environ[LOG], "a") as log:  # a short line is appended in one piece
        log.write(json.dumps(told) + "\n")
    session.run(LONG)


def main(library: str) -> None:
    """Train with one library; the other one may not be installed."""
    if library == "torch":
        import torch.distributed as dist

        from benchmarks.peers.multi_worker_torch import Torch

        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # torchrun's own store, which outlives the workers: without a part of it for each start,
        # those of a restart find addresses of those that ended, and some restarts fail or hang.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.PrefixStore(str(restarts), dist.TCPStore(address, port))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        train(Torch(CASE), rank, restarts)
    else:
        import jaxtribute as jt
        from benchmarks.peers.multi_worker_cluster import this_cluster
        from benchmarks.peers.multi_worker_jaxtribute import OfWorkers

        restarts = int(os.environ["JAXTRIBUTE_RESTART_COUNT"])
        session = OfWorkers(CASE, jt.MultiWorkerMirroredStrategy())
        train(session, this_cluster().index, restarts)


if __name__ == "__main__":
    main(sys.argv[1])
