"""`checkpoint` of variables on two parameter servers, which are processes of this machine."""

from __future__ import annotations

from typing import Any

import jaxtribute as jt
from benchmarks.peers.checkpoint_work import DECAY, Arrays, Saving
from benchmarks.peers.parameter_server_cluster import Cluster
from benchmarks.peers.parameter_server_jaxtribute import (
    PACKAGES,
    SERVER,
    make_coordinator,
    with_key,
)
from benchmarks.peers.serve import serve
from jaxtribute.cli._local_cluster import available_cores, server_thread_counts

WORKERS, SERVERS = 1, 2


class OnServers:
    """Variables that are divided between the servers, and trained by a worker."""

    asynchronous = True

    def __init__(self, arrays: Arrays, coordinator: Any) -> None:
        self.coordinator = coordinator
        with coordinator.strategy.scope():
            self.variables = variables = [jt.Variable(array) for array in arrays]
        self.checkpoint = jt.train.Checkpoint(variables=variables)

        @jt.function
        def train() -> None:
            for variable in variables:
                for part in getattr(variable, "variables", [variable]):
                    part.assign(part * DECAY)

        self.train = train

    def step(self) -> None:
        """Train."""
        self.coordinator.schedule(self.train)
        self.coordinator.join()

    def save(self, directory: str) -> str:
        """Save under the next number."""
        return self.checkpoint.save(f"{directory}/ckpt")

    def wait(self) -> None:
        """Wait for the files of all servers."""
        self.checkpoint.wait_until_finished()

    def restore(self, path: str) -> None:
        """Restore the variables on the servers."""
        self.checkpoint.restore(path).assert_consumed()

    def state(self) -> list[Any]:
        """The values, as the coordinator reads them."""
        return self.variables


def main() -> None:
    """Start the tasks, and serve as their coordinator."""
    threads = server_thread_counts(available_cores(), WORKERS, SERVERS)[0]  # as `launch` has it
    with Cluster(WORKERS, SERVERS, SERVER, {**with_key(), "PJRT_NPROC": str(threads)}):
        coordinator = make_coordinator(SERVERS)
        serve(lambda case: Saving(case, lambda arrays: OnServers(arrays, coordinator)), PACKAGES)


if __name__ == "__main__":
    main()
