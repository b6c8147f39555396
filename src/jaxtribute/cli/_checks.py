"""What `jaxtribute doctor` checks, one function for each thing."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .._threads import requested_cpu_devices
from ..cluster import ClusterSpec, Task, default_resolver
from ..cluster._reachability import can_connect, check_can_bind, resolve_host
from ..cluster._tf_config_text import find_text_problems
from ..cluster._validation import find_problems
from ..errors import JaxtributeError
from . import _facts
from ._findings import Finding, Verdict
from ._local_cluster import proxies
from ._progress import counted
from ._server_checks import check_encryption, check_key

_NOT_LISTENING = "nothing listens"
_CONNECTIONS_AT_ONCE = 32
_THREADS_A_DEVICE = 2


@dataclass(frozen=True)
class Cluster:
    """A description of a cluster that makes sense, and the place of this process in it."""

    addresses: Mapping[Task, str]
    task: Task | None

    @property
    def has_servers(self) -> bool:
        """Whether training is asynchronous, with parameter servers."""
        return any(task.job == "ps" for task in self.addresses)

    @property
    def listening(self) -> dict[Task, str]:
        """The tasks others connect to; an evaluator works alone, and so does a chief with servers.

        Such a chief connects to all others, and none of them to it.
        """
        others = ("evaluator", "chief") if self.has_servers else ("evaluator",)
        return {task: a for task, a in self.addresses.items() if task.job not in others}


def check_description(text: str | None) -> tuple[list[Finding], Cluster | None, str]:
    """Check the description of the cluster.

    Args:
      text: what `TF_CONFIG` holds; None to look for another description in the environment.

    Returns:
      What was found, the cluster if there is one, and a corrected description if there is need.
    """
    what = "TF_CONFIG"
    if text is not None:
        problems = find_text_problems(text)
        if not problems:
            config = json.loads(text)
            spec, task = ClusterSpec(config.get("cluster", {})), config.get("task", {})
            job, index = task.get("type"), task.get("index")
            return _described(what, spec, job, None if index is None else int(index))
    else:
        what = "cluster"
        resolver = default_resolver()
        try:
            spec, job, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
        except (ValueError, TypeError, RuntimeError) as error:
            finding = Finding(Verdict.PROBLEM, what, f"{type(resolver).__name__}: {error}")
            return [finding], None, ""
        problems = find_problems(spec, job, index)
        if not problems:
            return _described(what, spec, job, index)
    findings = [Finding(Verdict.PROBLEM, what, f"{p.part}\n{p.why}") for p in problems]
    return findings, None, problems[0].fix


def _described(
    what: str, spec: ClusterSpec, job: str | None, index: int | None
) -> tuple[list[Finding], Cluster | None, str]:
    addresses = {
        Task(name, number): spec.task_address(name, number)
        for name in spec.jobs
        for number in spec.task_indices(name)
    }
    if not addresses:
        alone = "describes no cluster" if what == "TF_CONFIG" else "TF_CONFIG is not set"
        return [Finding(Verdict.OK, what, f"{alone}: a program runs alone")], None, ""
    # What is left out was found to be clear: there is only one such task.
    tasks = [t for t in addresses if job in (None, t.job) and index in (None, t.index)]
    task = Task(job, index or 0) if job is not None and not tasks else tasks[0]
    finding = Finding(Verdict.OK, what, f"{', '.join(map(str, addresses))}; this one is {task}")
    return [finding], Cluster(addresses, task), ""


def check_names(cluster: Cluster, timeout: float) -> tuple[list[Finding], set[str]]:
    """Check that every host is known here; return the findings and the hosts that are not."""

    def ask(task: Task) -> str:
        try:
            resolve_host(cluster.listening[task], task, timeout)
        except JaxtributeError as error:
            return str(error)
        return ""

    owners = {_host(address): task for task, address in cluster.listening.items()}
    with ThreadPoolExecutor(_CONNECTIONS_AT_ONCE) as pool:
        answers = dict(zip(owners, pool.map(ask, owners.values()), strict=True))
    findings = [Finding(Verdict.PROBLEM, "names", error) for error in answers.values() if error]
    if not findings:
        findings = [Finding(Verdict.OK, "names", f"known here: {', '.join(owners)}")]
    return findings, {host for host, error in answers.items() if error}


def check_own_port(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    """Check that this process could listen where it is told to."""
    address = cluster.listening.get(cluster.task) if cluster.task is not None else None
    if cluster.task is None or address is None:
        return
    try:
        check_can_bind(cluster.task, address, timeout)
    except JaxtributeError as error:
        yield Finding(Verdict.PROBLEM, "own port", str(error))
    else:
        yield Finding(Verdict.OK, "own port", f"{cluster.task} can listen on {address}")


def check_others(cluster: Cluster, unknown: Set[str], timeout: float) -> Iterator[Finding]:
    """Check that the other tasks can be reached; one that has not started is no mistake.

    Args:
      cluster: the tasks.
      unknown: hosts that are known not to be found.
      timeout: how many seconds one may take to answer.
    """
    others = {
        task: address
        for task, address in cluster.listening.items()
        if task != cluster.task and _host(address) not in unknown
    }
    with ThreadPoolExecutor(_CONNECTIONS_AT_ONCE) as pool:
        reached = list(pool.map(lambda address: can_connect(address, timeout), others.values()))
    for (task, address), answer in zip(others.items(), reached, strict=True):
        if answer.ok:
            yield Finding(Verdict.OK, str(task), f"answers at {address}")
        else:
            absent = _NOT_LISTENING in answer.why
            verdict = Verdict.WARNING if absent else Verdict.PROBLEM
            yield Finding(verdict, str(task), f"{address}: {answer.why}")


def check_versions() -> Iterator[Finding]:
    """Check that what is installed is new enough."""
    minimal = _facts.minimal_versions()
    wanted = ".".join(map(str, _facts.MINIMAL_PYTHON))
    python = platform.python_version()
    if sys.version_info < _facts.MINIMAL_PYTHON:
        fix = f"install Python {wanted} or newer"
        yield Finding(Verdict.PROBLEM, "versions", f"Python {python} is too old", fix)
    installed = {name: v for name, v in _facts.versions().items() if v is not None}
    for name, oldest in minimal.items():
        version = installed.get(name)
        if version is None or _facts.is_older(version, oldest):
            detail = f"{name} {'is not installed' if version is None else version + ' is too old'}"
            fix = f"pip install '{name}>={oldest}'"
            yield Finding(Verdict.PROBLEM, "versions", detail, fix)
    shown = ", ".join(f"{name} {version}" for name, version in installed.items())
    yield Finding(Verdict.OK, "versions", f"Python {python}, {shown}")


def check_devices(timeout: float) -> Iterator[Finding]:
    """Check that JAX starts and finds devices."""
    devices = _facts.find_devices(timeout)
    if devices.error:
        fix = 'see whether this says more: python -c "import jax; print(jax.local_devices())"'
        yield Finding(Verdict.PROBLEM, "devices", devices.error, fix)
    else:
        yield Finding(Verdict.OK, "devices", str(devices))


def check_proxies(cluster: Cluster | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that connections between the tasks do not go through a proxy."""
    names = proxies(environment)
    # Between workers and parameter servers there is ZeroMQ, which knows no proxies.
    if cluster is None or cluster.has_servers or not names:
        return
    excepted = (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(",")
    hosts = {_host(address) for address in cluster.listening.values()}
    through = sorted(host for host in hosts if not _is_excepted(host, excepted))
    if not through:
        yield Finding(Verdict.OK, "proxies", "none between the tasks")
        return
    yield Finding(
        Verdict.WARNING,
        "proxies",
        f"{', '.join(names)} would be used for {', '.join(through)}, where JAX may then hang",
        f"export no_proxy={','.join([*filter(None, excepted), *through])}",
    )


def check_threads(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that XLA gets enough threads for its CPU devices."""
    devices = requested_cpu_devices(environment)
    threads = environment.get("PJRT_NPROC", "")
    needed = _THREADS_A_DEVICE * devices
    if threads and not (threads.isdecimal() and int(threads) > 0):
        detail = f"PJRT_NPROC is {threads!r}, and should be a number"
        yield Finding(Verdict.PROBLEM, "threads", detail, "unset PJRT_NPROC")
    elif threads and devices > 1 and int(threads) < needed:
        detail = f"PJRT_NPROC={threads} for {devices} CPU devices: XLA's collectives would deadlock"
        fix = f"unset PJRT_NPROC, or set it to {needed} or more"
        yield Finding(Verdict.PROBLEM, "threads", detail, fix)
    else:
        shown = f"PJRT_NPROC={threads}" if threads else "chosen by jaxtribute"
        yield Finding(Verdict.OK, "threads", f"{shown}, for {counted(devices, 'CPU device')}")


def all_findings(
    text: str | None, connect_timeout: float, device_timeout: float
) -> tuple[list[Finding], str]:
    """Run every check that makes sense, and return the corrected description, if one is needed."""
    findings, cluster, corrected = check_description(text)
    if cluster is not None:
        named, unknown = check_names(cluster, connect_timeout)
        findings += named
        if (
            cluster.task is not None
            and _host(cluster.listening.get(cluster.task, "")) not in unknown
        ):
            findings += check_own_port(cluster, connect_timeout)
        findings += check_others(cluster, unknown, connect_timeout)
        if cluster.has_servers:
            findings += check_key(list(cluster.listening.values()))
            findings += check_encryption()
    findings += check_proxies(cluster, os.environ)
    findings += check_threads(os.environ)
    findings += check_versions()
    findings += check_devices(device_timeout)
    return findings, corrected


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _is_excepted(host: str, excepted: list[str]) -> bool:
    return any(
        entry == "*" or host == entry or host.endswith("." + entry.lstrip("."))
        for entry in map(str.strip, excepted)
        if entry
    )
