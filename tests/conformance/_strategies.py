"""The strategies, and the ways to run, that the conformance suite holds to one behaviour.

A new strategy joins by a line in `_STRATEGIES`. Of several workers, each runs the whole suite, all
of them the same tests in the same order: tests/processes/test_conformance.py starts them.
"""

import base64
import functools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from zmq.utils.garbage import gc

import jaxtribute as jt
from jaxtribute.testing import LocalCluster


class _TPUStrategyOnCPUs(jt.TPUStrategy):
    """The logic of `TPUStrategy`, on devices that every machine has."""

    _platform = "cpu"


def _cpus(count: int) -> list[str]:
    return [f"CPU:{i}" for i in range(count)]


def _mirrored(count: int, cross_device_ops: jt.CrossDeviceOps | None = None) -> jt.Strategy:
    return jt.MirroredStrategy(_cpus(count), cross_device_ops=cross_device_ops)


_STRATEGIES: dict[str, Callable[[], jt.Strategy]] = {
    "default": jt.get_strategy,
    "one_device": lambda: jt.OneDeviceStrategy("CPU:1"),
    "mirrored_1": lambda: _mirrored(1),
    "mirrored_2": lambda: _mirrored(2),
    "mirrored_4": lambda: _mirrored(4),
    "mirrored_8": lambda: _mirrored(8),
    "mirrored_2_to_one_device": lambda: _mirrored(2, jt.ReductionToOneDevice()),
    "mirrored_4_hierarchical": lambda: _mirrored(4, jt.HierarchicalCopyAllReduce()),
    "tpu_2": lambda: _TPUStrategyOnCPUs(experimental_device_assignment=_cpus(2)),
    # On the coordinator itself, which does with a step what a worker does.
    "parameter_server": lambda: _cluster[0].strategy(),
    "parameter_server_2": lambda: _cluster[0].strategy(replicas_per_worker=2),
}

# One of each kind: for what has many cases of its own.
_KINDS = ("default", "one_device", "mirrored_2", "mirrored_4_hierarchical", "parameter_server_2")

_MANY = "mirrored_8"

# With more than one replica.
_SEVERAL = ("mirrored_2", "mirrored_4", "mirrored_2_to_one_device", "tpu_2", "parameter_server_2")

if "CONFORMANCE_WORKER" in os.environ:
    _STRATEGIES = {"multi_worker": jt.MultiWorkerMirroredStrategy}
    _MANY = ""
    _KINDS = _SEVERAL = ("multi_worker",)

_MODES = {"eager": False, "compiled": True}


_cluster: list[LocalCluster] = []


@contextmanager
def parameter_servers() -> Iterator[None]:
    """Have a cluster for the strategies whose variables are on parameter servers."""
    if "CONFORMANCE_WORKER" in os.environ:
        yield
        return
    gc.store(object())  # starts the thread of pyzmq that frees what was sent; it stays for ever
    with LocalCluster(workers=1, ps=2) as cluster:
        _cluster.append(cluster)
        yield
    _cluster.clear()
    _on_servers.clear()


_on_servers: dict[str, jt.Strategy] = {}


def _strategy(name: str) -> jt.Strategy:
    if not Setup(name, compiled=False).on_servers:
        return _shared(name)
    # A cluster has one strategy at a time.
    if name not in _on_servers:
        _on_servers.clear()
        _on_servers[name] = _STRATEGIES[name]()
    return _on_servers[name]


@functools.cache
def _shared(name: str) -> jt.Strategy:
    # By all tests, so that a reduction is compiled once and not for each of them.
    return _STRATEGIES[name]()


if "CONFORMANCE_WORKER" in os.environ:
    _shared("multi_worker")  # before a test uses JAX, which can then not be joined any more


class Setup(NamedTuple):
    """A strategy, and whether the program under test is compiled."""

    name: str
    compiled: bool

    @property
    def strategy(self) -> jt.Strategy:
        return _strategy(self.name)

    @property
    def replicas(self) -> int:
        return self.strategy.num_replicas_in_sync

    @property
    def local_replicas(self) -> range:
        """The numbers of the replicas that this process runs: all, unless there are workers."""
        first = self.strategy.topology.first_local
        return range(first, first + self.strategy.topology.num_local)

    @property
    def has_workers(self) -> bool:
        """Whether other processes run the same test at the same time."""
        return self.strategy.topology.spans_workers

    @property
    def has_copies(self) -> bool:
        """Whether variables of the strategy have a copy for each replica, be there only one."""
        kinds = jt.MirroredStrategy, jt.MultiWorkerMirroredStrategy
        return isinstance(self.strategy, kinds)

    @property
    def on_servers(self) -> bool:
        """Whether variables have one value, on a server, and workers iterate datasets."""
        return self.name.startswith("parameter_server")

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return `fn` as it is to be called: compiled as a whole, or as plain Python."""
        return jt.function(fn) if self.compiled else fn

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self.function(fn)(*args)

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run `fn` on each replica."""
        return self.call(lambda *args: self.strategy.run(fn, args=args), *args)

    def deal(self, parts: Sequence[Any]) -> Any:
        """Give each replica a part."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda ctx: parts[ctx.replica_id_in_sync_group]
        )

    def parts(self, value: Any) -> list[Any]:
        """Return what each replica holds of a value; all the same if it is common to them."""
        local = self.strategy.experimental_local_results(value)
        count = len(self.local_replicas)
        return self.all_of(local if len(local) == count else list(local) * count)

    def all_of(self, local: Sequence[Any]) -> list[Any]:
        """Return what all replicas have, given what those of this process have."""
        if not self.has_workers:
            return list(local)
        texts = [base64.b64encode(pickle.dumps(value)).decode() for value in local]
        everything = self.strategy.topology.all_of("what a test looks at", texts)
        return [
            local[i - self.local_replicas[0]]  # as it is, which no copy can replace
            if i in self.local_replicas
            else pickle.loads(base64.b64decode(text))
            for i, text in enumerate(everything)
        ]


def every_strategy(eager_on_many: bool = True) -> list[Any]:
    """Return all strategies, each eager and compiled, as parameters of a test.

    Args:
      eager_on_many: whether to run eagerly on many devices, too. JAX compiles each operation anew
        for each device then, so that a test with many operations takes seconds.
    """
    params = _params(tuple(_STRATEGIES))
    return [p for p in params if eager_on_many or p.values[0] != Setup(_MANY, compiled=False)]


def every_kind(with_devices: bool = False) -> list[Any]:
    """Return one strategy of each kind, each eager and compiled.

    Args:
      with_devices: leave out the default strategy, which runs wherever JAX does.
    """
    return _params([kind for kind in _KINDS if not with_devices or kind != "default"])


def several_replicas() -> list[Any]:
    """Return strategies with more than one replica, each eager and compiled."""
    return _params(_SEVERAL)


def all_compiled() -> list[Any]:
    """Return all strategies, compiled."""
    return _params(tuple(_STRATEGIES), ("compiled",))


def not_on_servers(params: list[Any]) -> list[Any]:
    """Leave out strategies whose variables are on parameter servers."""
    return [p for p in params if not p.values[0].on_servers]


def _params(names: Sequence[str], modes: Sequence[str] = tuple(_MODES)) -> list[Any]:
    return [
        pytest.param(Setup(name, _MODES[mode]), id=f"{name}-{mode}")
        for name in names
        for mode in modes
    ]


def devices() -> list[jax.Device]:
    """Return the devices of this process."""
    return jax.local_devices(backend="cpu")


def replica_id() -> Any:
    return jt.get_replica_context().replica_id_in_sync_group


def all_equal(values: Sequence[Any], expected: Any) -> bool:
    return all(np.array_equal(np.asarray(value), np.asarray(expected)) for value in values)
