"""A cluster with one worker, so that steps follow each other."""

from contextlib import ExitStack

import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import LocalCluster


@pytest.fixture(scope="session", autouse=True)
def _zero_copy_thread():
    """Start the thread of pyzmq that frees what was sent without copying; it stays for ever."""
    gc.store(object())


@pytest.fixture(scope="module")
def cluster():
    """One worker, so that steps follow each other, and two servers."""
    with LocalCluster(workers=1, ps=2) as cluster:
        yield cluster


@pytest.fixture
def begin(cluster):
    """Return a function that makes a strategy and its coordinator, which ends with the test."""
    with ExitStack() as stack:

        def make(shards=1, replicas=1):
            partitioner = jt.experimental.partitioners.FixedShardsPartitioner(shards)
            strategy = cluster.strategy(partitioner, replicas_per_worker=replicas)
            coordinator = cluster.coordinator(strategy)
            stack.callback(coordinator.close)
            return strategy, coordinator

        yield make


@pytest.fixture
def coordinator(begin):
    return begin()[1]


@pytest.fixture
def strategy(coordinator):
    return coordinator.strategy


@pytest.fixture
def two_replicas(begin):
    """A strategy each of whose workers runs a step on two devices, and its coordinator."""
    return begin(replicas=2)


@pytest.fixture(params=["eager", "compiled"])
def way(request):
    """A function that makes another one run in the way under test."""
    return jt.function if request.param == "compiled" else lambda fn: fn
