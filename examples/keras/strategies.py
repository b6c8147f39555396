"""What the programs here are told: with which strategy to train, for how long, and where to save.

Nothing in here is about their models: a program asks for a strategy, and trains with what it gets.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import jaxtribute as jt

NAMES = ("default", "one", "mirrored", "workers", "ps")

# Divides variables of 16 KiB and more between two parameter servers.
PARTITIONER = jt.experimental.partitioners.MinSizePartitioner(min_shard_bytes=8 << 10, max_shards=2)


@contextmanager
def strategy_called(name: str) -> Iterator[jt.Strategy]:
    """Make a strategy, and the cluster that it needs."""
    if name == "default":
        yield jt.get_strategy()
    elif name == "one":
        yield jt.OneDeviceStrategy("CPU:0")
    elif name == "mirrored":
        yield jt.MirroredStrategy(["CPU:0", "CPU:1"])
    elif name == "workers":
        yield jt.MultiWorkerMirroredStrategy()
    elif "TF_CONFIG" in os.environ:
        yield jt.experimental.ParameterServerStrategy(
            jt.cluster_resolver.TFConfigClusterResolver(), variable_partitioner=PARTITIONER
        )
    else:  # a whole cluster in this process
        with jt.testing.LocalCluster(workers=2, ps=2) as cluster:
            yield cluster.strategy(PARTITIONER)


def arguments(description: str, epochs: int) -> argparse.Namespace:
    """Return what a program was told on its command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--strategy", choices=NAMES, default="mirrored")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--small", action="store_true", help="little data, as the tests use it")
    parser.add_argument("--save", metavar="FILE.keras", help="save the trained model there")
    given = parser.parse_args()
    if given.strategy == "mirrored":
        jt.config.set_logical_cpu_devices(2)  # before JAX is first used
    return given
