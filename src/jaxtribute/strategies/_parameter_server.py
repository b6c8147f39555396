"""Variables on parameter servers, steps on workers, and a coordinator that schedules them."""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np

from .. import _context
from .._reduce import VariableAggregation
from .._topology import Topology
from ..cluster import ClusterResolver
from ..cluster._address import Address
from ..collectives import HierarchicalCopyAllReduce, ReductionToOneDevice
from ..errors import InvalidArgumentError
from ..input import InputContext, InputOptions
from ..remote import CoordinatorSession, PerWorkerVariable, RemoteVariable, Session
from ..remote import _current as current_session
from ..rpc import ClusterKey
from ..sharded import Partitioner, ShardedVariable, div_sizes, number_of_shards
from ..variables import Variable, _awaited
from ..variables._spec import VariableSpec, initial_array
from ._deferred_input import PerWorkerInput
from ._extended import StrategyExtended
from ._one_device import run_alone
from ._replicated import ReplicatedStrategy
from ._server_cluster import addresses, checked_cluster, gpus_of_a_worker

__all__ = ["ParameterServerStrategy"]

_log = logging.getLogger("jaxtribute")


class ParameterServerStrategy(ReplicatedStrategy):
    """Asynchronous training: workers read and update variables that parameter servers hold.

    The program runs on the coordinator. It creates variables in the strategy's scope, which places
    them on the servers in turn, and schedules functions with a `ClusterCoordinator`. Workers and
    servers run a `jt.Server`, or `jaxtribute server`.

    >>> with jt.testing.LocalCluster(workers=2, ps=2) as cluster:
    ...     strategy = jt.experimental.ParameterServerStrategy(cluster.resolver)
    ...     coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
    ...     with strategy.scope():
    ...         v, w = jt.Variable(1.0), jt.Variable(2.0)
    ...     print(v.device, w.device)
    ...     for _ in range(10):
    ...         _ = coordinator.schedule(lambda: v.assign_add(1.0))
    ...     coordinator.join()
    ...     print(v.numpy())
    /job:ps/replica:0/task:0/device:CPU:0 /job:ps/replica:0/task:1/device:CPU:0
    11.0

    Args:
      cluster_resolver: tells the addresses of the workers and the servers.
      variable_partitioner: how to divide variables between servers; see
        `jt.experimental.partitioners`. By default they are not divided.
      encryption: whether connections to other machines are encrypted; the same in all processes.
        Without it, processes still prove to each other that they know the cluster's key.
      replicas_per_worker: on how many of its devices each worker runs a step; by default all its
        GPUs as the resolver tells, or one.

    Raises:
      ValueError: when the cluster has no worker or no parameter server, or this process is one.
      PSUnavailableError: when a server does not come up in time.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver,
        variable_partitioner: Partitioner | Callable[..., Sequence[int]] | None = None,
        *,
        encryption: bool = True,
        replicas_per_worker: int | None = None,
        key: ClusterKey | None = None,
    ) -> None:
        spec = checked_cluster(cluster_resolver)
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidArgumentError(
                "variable_partitioner must be one of jt.experimental.partitioners, or a function "
                f"(shape, dtype) -> list of numbers, got {variable_partitioner!r}."
            )
        self.worker_addresses = addresses(spec, "worker")
        self.server_addresses = addresses(spec, "ps")
        self._cluster_resolver = cluster_resolver
        if replicas_per_worker is None:
            replicas_per_worker = gpus_of_a_worker(cluster_resolver, spec) or 1
        public = [a for a in self.server_addresses if not Address.parse(a).is_loopback]
        key = key or ClusterKey.load(public[0] if public else None)
        session = CoordinatorSession("chief", self.server_addresses, key, encryption=encryption)
        # Its variables keep the strategy alive, so nobody needs the connections when it is gone.
        weakref.finalize(self, session.closer())
        self._set_up(session, variable_partitioner, replicas_per_worker, worker=None)
        session.adopt()

    def _set_up(
        self, session: Session, partitioner: Any, replicas: int, worker: int | None
    ) -> None:
        self.session = session
        self._partitioner = partitioner
        self._replicas = replicas
        self._worker = worker  # None on the coordinator
        self._placed = 0
        self._built: deque[tuple[int, list[list[int]]]] = deque()
        # By the numbers of their shards.
        self._variables: weakref.WeakValueDictionary[tuple[int, ...], Any] = (
            weakref.WeakValueDictionary()
        )
        # Where the state of objects is that has to stay together, by their identity.
        self._homes: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._beside = _Thread()
        self._warned = False
        session.strategy = self
        devices = jax.local_devices()
        if worker is not None and len(devices) < replicas:
            raise InvalidArgumentError(
                f"Each step is to run on {replicas} devices of a worker, and this one has "
                f"{len(devices)}. Give all workers the same number, or pass replicas_per_worker "
                "to ParameterServerStrategy."
            )
        topology = Topology(devices[:replicas])
        super().__init__(
            topology,
            ReductionToOneDevice() if replicas == 1 else HierarchicalCopyAllReduce(),
        )
        self._extended = _Extended(self)

    @classmethod
    def on_worker(
        cls, session: Session, worker: int, workers: int, replicas: int = 1
    ) -> ParameterServerStrategy:
        """Return what stands for the coordinator's strategy on a worker."""
        self = cls.__new__(cls)
        self.worker_addresses = [""] * workers
        self.server_addresses = list(session.servers)
        self._cluster_resolver = None
        self._set_up(session, None, replicas, worker)
        return self

    # --- What it is ------------------------------------------------------------------------

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of one worker, over which the gradients of a step are added up."""
        return self._replicas

    @property
    def cluster_resolver(self) -> Any | None:
        """What tells the addresses of the cluster."""
        return self._cluster_resolver

    @property
    def worker(self) -> int | None:
        """The index of the worker that this process is, if it is one."""
        return self._worker

    @property
    def is_on_worker(self) -> bool:
        """Whether this is the strategy as a scheduled function sees it."""
        return self._worker is not None

    # --- Running ---------------------------------------------------------------------------

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._warn_outside_of_workers("run")
        if self._replicas == 1:
            return run_alone(self, fn, args, kwargs)
        return super()._run(fn, args, kwargs)

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        self._warn_outside_of_workers("reduce")
        return super().reduce(reduce_op, value, axis)

    def _warn_outside_of_workers(self, method: str) -> None:
        if not self.is_on_worker and not self._warned:
            self._warned = True
            _log.warning(
                "ParameterServerStrategy.%s was called on the coordinator, which computes it "
                "itself. To use the workers, call it in a function given to "
                "ClusterCoordinator.schedule.",
                method,
            )

    # --- Input -----------------------------------------------------------------------------

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> Any:
        if self.is_on_worker:
            return super().experimental_distribute_dataset(dataset, options)
        return PerWorkerInput(self, "experimental_distribute_dataset", dataset, options)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        if self.is_on_worker:
            return super().distribute_datasets_from_function(dataset_fn, options)
        return PerWorkerInput(self, "distribute_datasets_from_function", dataset_fn, options)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    # --- Variables -------------------------------------------------------------------------

    def create_variable(self, **spec: Any) -> Any:
        if self.is_on_worker:
            raise ValueError(
                f"The variable {spec.get('name') or 'Variable'!r} was created in a function that "
                "runs on a worker, of which there are several, each to run it many times. Create "
                "it on the coordinator, inside `with strategy.scope():`, and use it in the "
                "function."
            )
        if self._replicas > 1 and _context.get_replica_context() is not None:
            return super().create_variable(**spec)  # one for all of them
        per_worker = spec.pop("per_worker_variable", False)
        placeholder: dict[str, Any] = {"initial_value": np.float32(0), "shape": None}
        settings = VariableSpec.resolve(**(spec | placeholder))
        described = {
            "name": settings.name,
            "trainable": settings.trainable,
            "synchronization": settings.synchronization,
            "aggregation": settings.aggregation,
        }
        initial_value, shape, dtype = (spec.get(k) for k in ("initial_value", "shape", "dtype"))
        colocated = self._beside.variables[-1] if self._beside.variables else None
        if per_worker:
            value = initial_array(initial_value, dtype, settings.name, shape)
            tasks = [self._next_task() for _ in self.worker_addresses]
            return PerWorkerVariable([self._create(described, task, value) for task in tasks])
        owners = _context.owners()
        if self._partitioner is None or colocated is not None or owners:
            value = initial_array(initial_value, dtype, settings.name, shape)
            task = self._home(owners) if colocated is None else colocated.described.task
            return self._create(described, self._settled(owners, task), value)
        return self._create_shards(described, initial_value, shape, dtype)

    def _create_variable(self, spec: VariableSpec) -> Variable:
        raise AssertionError("create_variable does all of it")

    def _create_shards(
        self, described: dict[str, Any], initial_value: Any, shape: Any, dtype: Any
    ) -> Any:
        name = described["name"]
        whole: np.ndarray[Any, Any] | None = None
        if shape is None or dtype is None or not _takes_partitions(initial_value):
            whole = initial_array(initial_value, dtype, name, shape)
            shape, dtype = whole.shape, whole.dtype
        count = number_of_shards(self._partitioner, shape, dtype)  # pyright: ignore[reportArgumentType]
        if count == 1:
            if whole is None:
                whole = _part(initial_value, dtype, name, tuple(shape), 0)
            return self._create(described, self._next_task(), whole)
        shards: list[RemoteVariable] = []
        start = 0
        for index, rows in enumerate(div_sizes(shape[0], count)):
            if whole is not None:
                value = whole[start : start + rows]
            else:
                value = _part(initial_value, dtype, name, (rows, *shape[1:]), start)
            part = described | {"name": f"{name}/part_{index}"}
            shards.append(self._create(part, self._next_task(), value))
            start += rows
        sharded = ShardedVariable(shards, name=name)
        self._variables[tuple(shard.number for shard in shards)] = sharded
        return sharded

    def _create(
        self, described: dict[str, Any], task: int, value: np.ndarray[Any, Any]
    ) -> RemoteVariable:
        assert isinstance(self.session, CoordinatorSession)
        is_mean = described["aggregation"] is VariableAggregation.MEAN
        if is_mean and not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
            raise ValueError(
                f"The variable {described['name']!r} has dtype {value.dtype}, for which "
                "aggregation MEAN would lose fractions. Use a floating-point dtype, or SUM."
            )
        variable = self.session.create(described, task, value)
        self._variables[(variable.number,)] = variable
        return variable

    def create_beside(self, variable: RemoteVariable, value: Any) -> RemoteVariable:
        """Create a variable like another one, on the same server."""
        names = ("name", "trainable", "synchronization", "aggregation")
        described = {name: getattr(variable.described, name) for name in names}
        return self._create(described, variable.described.task, np.asarray(value))

    def _home(self, owners: Sequence[Any]) -> int:
        """Return where the state of objects is, or the next server if it is nowhere yet."""
        known = [self._homes[id(each)][1] for each in owners if id(each) in self._homes]
        return known[0] if known else self._next_task()

    def _settled(self, owners: Sequence[Any], task: int) -> int:
        """Have the state of objects be on a server, unless it is on another one already."""
        homes = self._homes
        for owner in owners:
            key = id(owner)
            if key not in homes:
                homes[key] = weakref.ref(owner, lambda _, key=key: homes.pop(key, None)), task
        return task

    def move_beside(self, variable: Any, other: RemoteVariable) -> RemoteVariable:
        """Create a variable like another one, and of its value, where a third one is."""
        first: Any = variable.variables[0] if isinstance(variable, ShardedVariable) else variable
        names = ("trainable", "synchronization", "aggregation")
        described = {name: getattr(first.described, name) for name in names}
        value = np.asarray(variable.numpy())
        return self._create(described | {"name": variable.name}, other.described.task, value)

    def _next_task(self) -> int:
        task = self._placed % len(self.server_addresses)
        self._placed += 1
        return task

    @_context.lasting
    def colocating(self, variable: Any) -> Generator[None]:
        """Create variables where another one is."""
        if isinstance(variable, ShardedVariable):
            variable = variable.variables[0]
        self._beside.variables.append(variable)
        try:
            yield
        finally:
            self._beside.variables.pop()

    def owns(self, variable: Any) -> bool:
        if isinstance(variable, ShardedVariable):
            return variable.distribute_strategy is self
        return super().owns(variable)

    # --- Optimizers ------------------------------------------------------------------------

    # Called on workers, to tell the coordinator, which may save the state: with the number of an
    # optimizer, and those of its variables, each by its shards.
    tell_built: Callable[[int, list[list[int]]], None] | None = None

    def optimizer_was_built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Take note that the state of an optimizer is on the servers."""
        if self.tell_built is not None:
            shards = [getattr(v, "variables", (v,)) for v in variables]
            self.tell_built(optimizer, [[shard.number for shard in own] for own in shards])

    def note_built(self, optimizer: int, variables: list[list[int]]) -> None:
        """Take note, from any thread, that a worker has built an optimizer."""
        self._built.append((optimizer, variables))

    def finish_building(self) -> None:
        """Let optimizers of this process know the state that workers had made for them."""
        assert isinstance(self.session, CoordinatorSession)
        while self._built:
            number, shards = self._built.popleft()
            optimizer = self.session.optimizers.get(number)
            variables = [self._variables.get(tuple(own)) for own in shards]
            are_there = all(variable is not None for variable in variables)  # `==` would read them
            if optimizer is not None and not optimizer.is_built and are_there:
                with _awaited.too_late():  # workers have used the state already
                    optimizer.build(variables)

    # --- Python's protocols ----------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, ()

    def __repr__(self) -> str:
        workers, servers = len(self.worker_addresses), len(self.server_addresses)
        return f"<{type(self).__name__} with {workers} workers and {servers} parameter servers>"


class _Thread(threading.local):
    def __init__(self) -> None:
        self.variables: list[RemoteVariable] = []  # beside which variables are created


class _Extended(StrategyExtended):
    """The view of a strategy whose variables and steps are elsewhere."""

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return tuple(
            f"/job:ps/replica:0/task:{task}/device:CPU:0"
            for task in range(len(self._strategy.server_addresses))
        )

    def _colocated(self, variable: Any) -> Any:
        return self._strategy.colocating(variable)


def _arrived() -> Any:
    """Return the strategy of the process that a function was sent to."""
    return current_session.session("a ParameterServerStrategy").strategy


def _takes_partitions(initial_value: Any) -> bool:
    """Tell whether an initial value can be made part by part."""
    if not callable(initial_value):
        return False
    try:
        parameters = inspect.signature(initial_value).parameters
    except ValueError:  # a function that is not written in Python
        return False
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return any_keyword or {"partition_shape", "partition_offset"} <= parameters.keys()


def _part(
    initial_value: Callable[..., Any], dtype: Any, name: str, shape: tuple[int, ...], start: int
) -> np.ndarray[Any, Any]:
    offset = (start, *(0 for _ in shape[1:]))
    value = initial_value(partition_shape=shape, partition_offset=offset)
    return initial_array(value, dtype, name, shape)
