"""Where the tasks of a job are in a Ray cluster, and the actors that they are.

A placement group reserves the resources of all tasks at once, and each task keeps its share: an
actor that Ray starts again comes back to the node it was on, for as long as there is that node.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from .._limits import say
from .._threads import requested_cpu_devices
from ..cluster._address import Address
from ..errors import DeadlineExceededError, InvalidArgumentError, ResourceExhaustedError
from ._library import connected_ray

__all__ = ["PORTS", "Placement", "checked_count", "checked_resources"]

PORTS = range(20000, 32000)
"""Above those of Ray's own workers, and below those that systems give to connections: a task that
is started again must find its port free."""

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_IN_SILENCE = 10.0
_SECONDS_TO_END = 30.0


def checked_count(name: str, count: Any) -> int:
    """Return how many tasks are asked for.

    Raises:
      InvalidArgumentError: when it is no number of them.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidArgumentError(f"{name} must be a whole number from 1 on, got {count!r}.")
    return count


def checked_resources(name: str, resources: Mapping[str, float] | None) -> dict[str, float]:
    """Return what a task needs, by default one core.

    Raises:
      InvalidArgumentError: when it is no description of resources.
    """
    asked = {"CPU": 1.0} if resources is None else resources
    if not isinstance(asked, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"{name} must be a dict such as {{'CPU': 1}}, got {asked!r}.")
    for resource, amount in asked.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"{name} says how much of each resource a task needs, as in {{'CPU': 1, 'GPU': "
                f"2}}; for {resource!r} it says {amount!r}."
            )
    if not any(asked.values()):
        raise InvalidArgumentError(f"{name} must ask for something, as in {{'CPU': 1}}.")
    return {str(resource): amount for resource, amount in asked.items() if amount}


class Placement:
    """Room for the tasks of a job, and their actors; none of these outlives the `with` block.

    Args:
      bundles: what each task needs, by name.
      strategy: how Ray is to choose nodes.
      ports: where tasks may listen.
      environment: more variables for all of them.
      timeout_seconds: how long to wait for room.

    Raises:
      InvalidArgumentError: when one of them cannot work.
    """

    def __init__(
        self,
        bundles: Mapping[str, Mapping[str, float]],
        *,
        strategy: str,
        ports: Sequence[int] | None,
        environment: Mapping[str, str] | None,
        timeout_seconds: float,
    ) -> None:
        known = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
        if strategy not in known:
            raise InvalidArgumentError(f"placement must be one of {known}, got {strategy!r}.")
        if not timeout_seconds > 0:
            raise InvalidArgumentError(
                f"timeout_seconds must be a positive number, got {timeout_seconds!r}."
            )
        self._bundles = {task: dict(bundle) for task, bundle in bundles.items()}
        self._strategy = strategy
        self._ports = list(PORTS if ports is None else ports)
        self._environment = dict(environment or {})
        for port in self._ports:
            if not 0 < port < 65536:
                raise InvalidArgumentError(
                    f"ports must be numbers from 1 to 65535, and {port!r} is not."
                )
        for name, value in self._environment.items():
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidArgumentError(
                    f"environment must have text for each name, got {value!r} for {name!r}."
                )
        self.timeout = timeout_seconds
        self._ray: Any = None
        self._actors: list[Any] = []
        self._group: Any = None

    @property
    def ray(self) -> Any:
        """The library."""
        return self._ray

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return list(self._bundles)

    def __enter__(self) -> Self:
        """Wait for room.

        Raises:
          ImportError: when Ray is not installed.
          FailedPreconditionError: when the program is not connected to a cluster.
          ResourceExhaustedError: when there is no room in time.
        """
        self._ray = connected_ray()
        group = self._ray.util.placement_group
        self._group = group(list(self._bundles.values()), strategy=self._strategy)
        try:
            self._wait()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.end_actors()
        finally:
            self._remove()

    def addresses(self) -> dict[str, str]:
        """Return where each task is to listen: on the node that it has now, at a free port.

        Raises:
          ResourceExhaustedError: when there is no room for a task any more, as after the loss of a
            node; or when not enough ports are free.
          DeadlineExceededError: when a node does not answer.
        """
        nodes = self._wait()
        tasks = self.tasks
        places: dict[str, list[int]] = {}
        for number in range(len(tasks)):
            places.setdefault(nodes[number], []).append(number)
        find = self._ray.remote(_port_finder())
        finding = [
            find.options(num_cpus=0, scheduling_strategy=self._bundle(numbers[0])).remote(
                len(numbers), self._ports
            )
            for numbers in places.values()
        ]
        try:
            found = self._ray.get(finding, timeout=self.timeout)
        except self._ray.exceptions.GetTimeoutError as error:
            raise DeadlineExceededError(
                f"Ray has room for {', '.join(tasks)}, and has not run anything on all of their "
                f"nodes for {self.timeout:g} s. Its logs say why."
            ) from error
        addresses: dict[int, str] = {}
        for numbers, (host, ports) in zip(places.values(), found, strict=True):
            if len(ports) < len(numbers):
                raise ResourceExhaustedError(
                    f"{len(numbers)} tasks need a port each on {host}, and of those that they may "
                    f"use, {_range_of(self._ports)}, {len(ports)} are free."
                )
            addresses |= {n: str(Address(host, p)) for n, p in zip(numbers, ports, strict=True)}
        return {task: addresses[number] for number, task in enumerate(tasks)}

    def start(
        self, task: str, kind: type, *args: Any, threads: Mapping[str, str], restarts: int = 0
    ) -> Any:
        """Start an actor in the room of a task, and return it.

        Args:
          task: the name of the task.
          kind: the class of the actor.
          *args: what its constructor gets.
          threads: how many threads libraries are to use.
          restarts: how often Ray starts it again by itself; -1 for always.
        """
        needed = dict(self._bundles[task])
        options = {
            "num_cpus": needed.pop("CPU", 0),
            "num_gpus": needed.pop("GPU", 0),
            "memory": needed.pop("memory", None),
            "resources": needed,
            # Given to the process when it starts: JAX reads some when it is imported.
            "runtime_env": {"env_vars": {**threads, **self._environment}},
            "scheduling_strategy": self._bundle(self.tasks.index(task)),
            "max_restarts": restarts,
        }
        actor = self._ray.remote(kind).options(**options).remote(*args)
        self._actors.append(actor)
        return actor

    def not_started(self, actors: Mapping[str, Any]) -> dict[str, Exception]:
        """Wait for the processes of tasks, and return what Ray says of those that have failed.

        Raises:
          DeadlineExceededError: when one does not come in time.
        """
        starting = {actor.ready.remote(): task for task, actor in actors.items()}
        _, late = self._ray.wait(list(starting), num_returns=len(starting), timeout=self.timeout)
        if late:
            raise DeadlineExceededError(
                f"Ray has room for {', '.join(starting[reference] for reference in late)}, and has "
                f"started no process there for {self.timeout:g} s. Its logs on that node say why; "
                "if a runtime_env is installed first, pass a longer timeout_seconds."
            )
        failed: dict[str, Exception] = {}
        for reference, task in starting.items():
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                failed[task] = error
        return failed

    def cores_of(self, task: str) -> int:
        """Return how many cores a task may use."""
        return max(1, int(self._bundles[task].get("CPU", 1)))

    @property
    def devices(self) -> int:
        """How many CPU devices a task has, as far as it was said."""
        return requested_cpu_devices(self._environment)

    def end_actors(self) -> None:
        """End all actors, and wait until Ray has."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self._ray.kill(actor, no_restart=True)
        # An ended one answers with an error; of one on a lost node, nothing is heard for a while.
        gone = [actor.ready.remote() for actor in actors]
        self._ray.wait(gone, num_returns=len(gone), timeout=_SECONDS_TO_END)

    def _bundle(self, number: int) -> Any:
        strategies = self._ray.util.scheduling_strategies
        return strategies.PlacementGroupSchedulingStrategy(self._group, number)

    def _remove(self) -> None:
        self._ray.util.remove_placement_group(self._group)

    def _wait(self) -> dict[int, str]:
        """Wait until there is room for all tasks, and return on which nodes it is."""
        began = time.monotonic()
        told = False
        while True:
            table = self._ray.util.placement_group_table(self._group)
            places = table["bundles_to_node_id"]
            # A group that has lost a node still looks complete for a while.
            alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
            if table["state"] == "CREATED" and alive.issuperset(places.values()):
                return places
            waited = time.monotonic() - began
            if waited > self.timeout:
                raise ResourceExhaustedError(
                    f"Ray has found no room for {self._asked()} within {self.timeout:g} s. "
                    f"{self._there()} Ask for less, wait until others are done, add nodes, or "
                    "pass a longer timeout_seconds if the cluster grows by itself."
                )
            if waited > _SECONDS_IN_SILENCE and not told:
                say(f"waiting for room for {self._asked()}. {self._there()}")
                told = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _asked(self) -> str:
        kinds: dict[tuple[str, str], int] = {}
        for task, bundle in self._bundles.items():
            key = task.partition(":")[0], _shown(bundle)
            kinds[key] = kinds.get(key, 0) + 1
        asked = [
            f"{count} {job}s with {needed} each"
            if count > 1 and job == "worker"
            else f"{count} {job} with {needed}{' each' if count > 1 else ''}"
            for (job, needed), count in kinds.items()
        ]
        return f"{' and '.join(asked)} (placement {self._strategy})"

    def _there(self) -> str:
        free = self._ray.available_resources()
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        asked = {resource for bundle in self._bundles.values() for resource in bundle}
        has = [
            f"{node['NodeManagerAddress']} has "
            + _shown({name: node["Resources"].get(name, 0) for name in sorted(asked)})
            for node in nodes
        ]
        return (
            f"Of its nodes, {', '.join(has)}; free in all of them are "
            f"{_shown({name: free.get(name, 0) for name in sorted(asked)})}."
        )


def _shown(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _range_of(ports: Sequence[int]) -> str:
    return f"{min(ports)} to {max(ports)}" if ports else "none"


def _port_finder() -> Any:
    """Return a function that Ray sends whole, so that it runs without importing this library."""

    def free_ports(count: int, ports: list[int]) -> tuple[str, list[int]]:
        import random
        import socket

        import ray  # pyright: ignore[reportMissingImports]

        host = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found: list[int] = []
        # In any order, so that two jobs which start at the same time hardly choose the same.
        for port in random.sample(ports, len(ports)):
            if len(found) == count:
                break
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                try:
                    probe.bind((host, port))
                except OSError:
                    continue
            found.append(port)
        return host, found

    return free_ports
