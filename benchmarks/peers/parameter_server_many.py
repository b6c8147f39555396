"""Closures on up to 64 workers, which are threads of a few processes instead of machines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack

import jaxtribute as jt
from benchmarks.peers.parameter_server_cluster import free_spec, tf_config, with_parent
from benchmarks.peers.parameter_server_jaxtribute import (
    PACKAGES,
    OfClosures,
    make_coordinator,
    with_key,
)
from benchmarks.peers.serve import serve

PROCESSES = 4
_THIS = "benchmarks.peers.parameter_server_many"


def host(share: int) -> None:
    """Be the workers of one of the processes, and in the first one the parameter server too."""
    spec = jt.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    tasks = [("worker", index) for index in range(share, spec.num_tasks("worker"), PROCESSES)]
    if share == 0:
        tasks.append(("ps", 0))
    threads = [
        threading.Thread(target=jt.Server(spec, job_name=job, task_index=index).join)
        for job, index in tasks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(workers: int) -> None:
    """Start the processes, and serve as the coordinator of their workers."""
    os.environ.update(with_key(), TF_CONFIG=tf_config(free_spec(workers, 1), "chief", 0))
    with ExitStack() as stack:
        for share in range(min(workers, PROCESSES)):
            process = subprocess.Popen(
                with_parent(sys.executable, "-m", _THIS, "--host", str(share)),
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        coordinator = make_coordinator(1)
        serve(lambda case: OfClosures(case, coordinator), PACKAGES)


if __name__ == "__main__":
    host(int(sys.argv[2])) if sys.argv[1] == "--host" else main(int(sys.argv[1]))
