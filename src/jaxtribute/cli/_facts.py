"""What is installed here, and what this machine is. JAX itself is asked in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _host_memory
from ._local_cluster import available_cores

PACKAGES = (
    "jaxtribute",
    "jax",
    "jaxlib",
    "numpy",
    "grain",
    "optax",
    "tensorstore",
    "pyzmq",
    "msgspec",
    "cloudpickle",
)
MINIMAL_PYTHON = (3, 11)

_VARIABLES = re.compile(
    r"TF_CONFIG|JAX_.*|JAXTRIBUTE_.*|XLA_.*|PJRT_NPROC|NPROC|TPU_.*|CUDA_VISIBLE_DEVICES|NCCL_.*"
    r"|GLOO_.*|(OMP|OPENBLAS|MKL)_NUM_THREADS|SLURM_(JOB_ID|STEP_.*|NTASKS|PROCID|NODELIST)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_USER_IN_ADDRESS = re.compile(r"//[^/@\s]*@")
_PUBLIC_IN_TF_CONFIG = ("cluster", "task", "rpc_layer", "environment")

_ASK_FOR_DEVICES = """
import json, jax
devices = [[d.platform, d.device_kind, str(d)] for d in jax.local_devices()]
print(json.dumps(devices))
"""


def versions() -> dict[str, str | None]:
    """Return the version of each package that matters, None for one that is not installed."""
    return {name: _version(name) for name in PACKAGES}


def minimal_versions() -> dict[str, str]:
    """Return the oldest version that is good enough, for packages of which that is known."""
    found: dict[str, str] = {}
    for requirement in importlib.metadata.requires("jaxtribute") or ():
        match = re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([\d.]+)", requirement)
        if match is not None and match[1] in PACKAGES:
            found[match[1]] = match[2]
    return found


def is_older(version: str, than: str) -> bool:
    """Tell whether a version is older than another, by their numbers."""
    return _numbers(version) < _numbers(than)


@dataclass(frozen=True)
class Devices:
    """The devices JAX finds, or why it does not."""

    kinds: tuple[tuple[str, str, str], ...] = ()
    """The platform, the kind and the name of each."""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return self.error
        counts: dict[tuple[str, str], int] = {}
        for where, kind, _ in self.kinds:
            counts[where, kind] = counts.get((where, kind), 0) + 1
        return ", ".join(
            f"{count} {where}" + (f" ({kind})" if kind.lower() != where else "")
            for (where, kind), count in counts.items()
        )


def find_devices(timeout: float) -> Devices:
    """Ask JAX for the devices of this machine, in a process that can be ended if it hangs."""
    # A proxy or a cluster must not matter: only this machine is asked about.
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_FOR_DEVICES],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Devices(error=f"JAX has not found its devices after {timeout:g} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Devices(error=f"JAX cannot start: {last}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Devices(tuple((where, kind, name) for where, kind, name in found))


def machine() -> dict[str, str]:
    """Return what this machine is."""
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "processor": _processor(),
        "cores": f"{available_cores()} usable of {os.cpu_count()}",
        "memory": _memory(),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter, with nothing secret in their values."""
    shown = {
        name: _shown(name, value)
        for name, value in sorted(environment.items())
        if _VARIABLES.fullmatch(name)
    }
    proxies = [name for name in sorted(environment) if name.lower().endswith("_proxy")]
    return shown | dict.fromkeys(proxies, "(set)")


def _shown(name: str, value: str) -> str:
    if _SECRET.search(name):
        return "(set)"
    if name == "TF_CONFIG":
        value = _shown_tf_config(value)
    return _USER_IN_ADDRESS.sub("//(user)@", value)


def _shown_tf_config(text: str) -> str:
    try:
        config: Any = json.loads(text)
    except ValueError:
        return f"(no valid JSON: {len(text)} characters; see jaxtribute doctor)"
    if not isinstance(config, dict):
        return "(no JSON object)"
    # Whatever else a system puts there stays there.
    return json.dumps({k: v if k in _PUBLIC_IN_TF_CONFIG else "(set)" for k, v in config.items()})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    # What follows the numbers, such as `.dev20`, does not make a version too old.
    numbers = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in numbers[0].split(".")] if numbers else []


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    text = _host_memory.gibibytes(_host_memory.installed())
    available, limit = _host_memory.available(), _host_memory.limit()
    if available is not None:
        text += f", {_host_memory.gibibytes(available)} available"
    if limit is not None:
        text += f", limited to {_host_memory.gibibytes(limit)}"
    return text


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:  # not on Linux
        return []
