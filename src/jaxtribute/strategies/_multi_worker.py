"""Synchronous training on the devices of several workers."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _devices, cluster
from .._options import CommunicationImplementation, CommunicationOptions
from .._topology import Topology
from ..cluster import ClusterResolver
from ..collectives import CollectiveAllReduce, NcclAllReduce
from ..collectives._gather import first_component
from ..errors import FailedPreconditionError, InvalidArgumentError
from ..values import PerReplica
from ..variables import Variable
from ..variables._spec import VariableSpec
from ..workers import joined_world
from ._replicated import ReplicatedStrategy

__all__ = ["ExperimentalMultiWorkerMirroredStrategy", "MultiWorkerMirroredStrategy"]

_log = logging.getLogger("jaxtribute")


class MultiWorkerMirroredStrategy(ReplicatedStrategy):
    """Trains on every device of every worker: variables are copied to each, and kept equal.

    Start the same program on each worker, with the environment variable `TF_CONFIG` saying which
    one it is:

        TF_CONFIG='{"cluster": {"worker": ["host0:12345", "host1:23456"]},
                    "task": {"type": "worker", "index": 0}}'

    or on one machine with `jaxtribute launch --workers 2 train.py`. Without a cluster it trains on
    the devices of its own process:

    >>> strategy = jt.MultiWorkerMirroredStrategy()
    >>> strategy.num_replicas_in_sync == len(jax.devices())
    True

    It has to be created before JAX is first used. All workers wait for each other there, and in
    everything that communicates; one that is lost raises `jt.errors.WorkerLostError` on the rest.

    Args:
      cluster_resolver: tells which workers there are; by default `TF_CONFIG` does, or Slurm.
      communication_options: how values are sent, a `jt.experimental.CommunicationOptions`.

    Raises:
      InvalidArgumentError: when the cluster's description cannot work.
      FailedPreconditionError: when JAX has been used already, when workers differ in their
        versions, devices, cluster or options, or when the chief's port is in use.
      DeadlineExceededError: when a worker does not come.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        self._cluster_resolver = _checked_resolver(cluster_resolver)
        options = _checked_options(communication_options)
        workers = cluster.resolve(self._cluster_resolver)
        if workers is None or len(workers.tasks) == 1:
            devices = _devices.default_devices()
            _devices.check_cpu_threads(devices)
            super().__init__(Topology(devices), NcclAllReduce())
        else:
            world = joined_world(workers, str(options))
            world.time_limit = options.timeout_seconds
            topology = Topology(jax.devices(), world)
            _devices.check_cpu_threads(topology.local_devices)
            on_cpus = topology.devices[0].platform == "cpu"
            super().__init__(topology, CollectiveAllReduce(options, on_cpus))
            _tell(topology, world.phases)
        if options.implementation is CommunicationImplementation.NCCL and not _on_gpus(
            self.topology
        ):
            _log.warning(
                "CommunicationImplementation.NCCL needs GPUs, and the devices are %ss: values are "
                "sent as AUTO says.",
                self.topology.devices[0].platform.upper(),
            )

    def __repr__(self) -> str:
        topology = self.topology
        if not topology.spans_workers:
            return super().__repr__()
        kind = topology.devices[0].platform.upper()
        return (
            f"<MultiWorkerMirroredStrategy on {len(topology.group.tasks)} workers with "
            f"{topology.num_local} {kind} device(s) each>"
        )

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver that tells which workers there are."""
        return self._cluster_resolver

    def _create_variable(self, spec: VariableSpec) -> Variable:
        if self.topology.spans_workers:
            value = self._of_chief(spec.name, spec.initial_value)
            spec = dataclasses.replace(spec, initial_value=value)
        return super()._create_variable(spec)

    def _of_chief(self, name: str, value: jax.Array) -> jax.Array:
        """Return the chief's initial value, which is sent only if another worker has not got it."""
        kind = f"{name} of shape {value.shape} and type {value.dtype}"
        if isinstance(value, Tracer):  # which all workers are about to compute together
            own = "computed"
        else:
            own = hashlib.sha256(np.asarray(value).tobytes()).hexdigest()
        reports = self.topology.group.agree("creating a variable", f"{kind}|{own}")
        kinds = [report.rpartition("|")[0] for report in reports]
        different = [i for i, other in enumerate(kinds) if other != kinds[0]]
        if different:
            tasks = self.topology.group.tasks
            raise FailedPreconditionError(
                f"The workers create different variables: {tasks[0]} creates {kinds[0]}, "
                f"{tasks[different[0]]} {kinds[different[0]]}. All workers have to create the same "
                "variables in the same order."
            )
        if len(set(reports)) == 1:
            return value
        with jax.ensure_compile_time_eval():
            copies = PerReplica([value] * self.topology.num_local, self.topology)
            return jnp.asarray(first_component(copies, self.topology))


class ExperimentalMultiWorkerMirroredStrategy(MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` with the arguments it had while it was experimental.

    >>> strategy = jt.experimental.MultiWorkerMirroredStrategy(
    ...     jt.experimental.CollectiveCommunication.RING
    ... )
    >>> strategy.num_replicas_in_sync == len(jax.devices())
    True

    Args:
      communication: what carries values between workers.
      cluster_resolver: tells which workers there are; by default `TF_CONFIG` does, or Slurm.

    Raises:
      ValueError: for an unknown `communication`.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options)


ExperimentalMultiWorkerMirroredStrategy.__name__ = "MultiWorkerMirroredStrategy"
ExperimentalMultiWorkerMirroredStrategy.__qualname__ = "MultiWorkerMirroredStrategy"


def _checked_resolver(resolver: Any) -> ClusterResolver:
    if resolver is None:
        return cluster.default_resolver()
    if not isinstance(resolver, ClusterResolver):
        raise InvalidArgumentError(
            "cluster_resolver must be a jt.cluster_resolver.ClusterResolver, such as "
            f"TFConfigClusterResolver(), got {resolver!r}."
        )
    return resolver


def _checked_options(options: Any) -> CommunicationOptions:
    if options is None:
        return CommunicationOptions()
    if not isinstance(options, CommunicationOptions):
        raise InvalidArgumentError(
            f"communication_options must be jt.experimental.CommunicationOptions, got {options!r}."
        )
    return options


def _on_gpus(topology: Topology) -> bool:
    return topology.devices[0].platform in ("gpu", "cuda", "rocm")


def _tell(topology: Topology, phases: dict[str, float]) -> None:
    """Say at the start what was decided, once for all workers."""
    group = topology.group
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())
    kind = topology.devices[0].platform.upper()
    line = (
        f"jaxtribute: {group.tasks[group.index]} trains with {len(group.tasks)} workers "
        f"({', '.join(group.tasks)}), {topology.num_local} {kind} device(s) each, "
        f"{topology.num_replicas} replicas; {took}."
    )
    if group.index == 0:
        print(line, file=sys.stderr, flush=True)
    else:
        _log.info(line)
