"""Device names, and the making of CPU devices.

Names are TensorFlow's: `"GPU:0"`, `"/gpu:0"`, `"/device:CPU:1"` or the full form
`"/job:localhost/replica:0/task:0/device:CPU:0"`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ._threads import CHOSEN

_LOCAL_TASK = "/job:localhost/replica:0/task:0"
_NAME = re.compile(
    r"""(/job:(?P<job>[^/]+))?(/replica:(?P<replica>\d+))?(/task:(?P<task>\d+))?
        /?(device:)?(?P<kind>[A-Za-z]+)(:(?P<index>\d+))?""",
    re.VERBOSE,
)
_TASK = re.compile(r"/job:[^/]+(/replica:\d+)?(/task:\d+)?/?")
_NAME_FORMS = "'GPU:0', '/gpu:0', 'CPU:1' or '/job:localhost/replica:0/task:0/device:CPU:0'"
_PLATFORMS = {"cpu": "cpu", "gpu": "gpu", "tpu": "tpu", "cuda": "gpu", "rocm": "gpu"}


@dataclass(frozen=True)
class DeviceName:
    """One device of this process, such as the second CPU."""

    platform: str
    index: int

    @classmethod
    def parse(cls, text: str) -> DeviceName:
        """Read any form of a device name.

        Raises:
          ValueError: when `text` is no device name.
          RuntimeError: when it names a device of another task.
        """
        match = _NAME.fullmatch(text)
        if _TASK.fullmatch(text):
            raise ValueError(
                f"{text!r} names a task, and devices are those of this process, such as 'CPU:0'. "
                "What is on which server is decided by the strategy in whose scope it is created."
            )
        if match is None or match["kind"].lower() not in _PLATFORMS:
            raise ValueError(
                f"{text!r} is not a device name. Expected a form such as {_NAME_FORMS}."
            )
        task = (match["job"] or "localhost", match["replica"] or "0", match["task"] or "0")
        if task != ("localhost", "0", "0"):
            raise RuntimeError(
                f"{text!r} is a device of another task, and this strategy uses the devices of one "
                "process. Name local devices, such as 'GPU:0', or train on several workers with "
                "jt.MultiWorkerMirroredStrategy."
            )
        return cls(_PLATFORMS[match["kind"].lower()], int(match["index"] or 0))

    def __str__(self) -> str:
        return f"{_LOCAL_TASK}/device:{self.platform.upper()}:{self.index}"


def canonical_name(device: jax.Device) -> str:
    """Return the full name of a device of this process."""
    platform = _PLATFORMS.get(device.platform, device.platform)
    return str(DeviceName(platform, jax.local_devices(backend=platform).index(device)))


def resolve(device: jax.Device | str) -> jax.Device:
    """Return the device that a name, or a device itself, stands for.

    Raises:
      ValueError: when there is no such device, or `device` is neither a name nor a device.
    """
    return resolve_all([device])[0]


def resolve_all(devices: Sequence[jax.Device | str]) -> list[jax.Device]:
    """Return the devices that names stand for, making CPU devices where that is still possible."""
    names = [DeviceName.parse(d) if isinstance(d, str) else d for d in devices]
    wanted_cpus = [n.index + 1 for n in names if isinstance(n, DeviceName) and n.platform == "cpu"]
    if wanted_cpus:
        _provide_cpu_devices(max(wanted_cpus))
    return [_find(n) if isinstance(n, DeviceName) else _check_is_device(n) for n in names]


def _check_is_device(device: object) -> jax.Device:
    if isinstance(device, jax.Device):
        return device
    raise ValueError(
        f"Expected a jax.Device or a name such as {_NAME_FORMS}, got {device!r} "
        f"of type {type(device).__name__}."
    )


def _find(name: DeviceName) -> jax.Device:
    try:
        present = jax.local_devices(backend=name.platform)
    except RuntimeError:  # JAX's way to say that there is no such platform
        present = []
    if name.index < len(present):
        return present[name.index]
    available = ", ".join(canonical_name(d) for d in all_local_devices())
    raise ValueError(
        f"There is no device {str(name)!r} in this process; there is {available}."
        + (_cpu_advice(name.index + 1) if name.platform == "cpu" else "")
    )


def all_local_devices() -> list[jax.Device]:
    """Return this process's accelerators, and its CPUs."""
    provide_cpu_threads()
    accelerators = [d for d in jax.local_devices() if d.platform != "cpu"]
    return accelerators + jax.local_devices(backend="cpu")


def default_devices() -> list[jax.Device]:
    """Return all accelerators of this process, or its CPUs when it has none."""
    provide_cpu_threads()
    return jax.local_devices()


# --- CPU devices ---------------------------------------------------------------------------
#
# XLA's CPU collectives block one pool thread per device until all have arrived. A pool about as
# small as the number of devices deadlocks, so the pool is sized before the CPU client exists.

_POOL_SIZE = "PJRT_NPROC"
_THREADS_NEEDED = 2  # a device; with 14 threads for 8 devices steps stood still, with 15 they ran
_pool_size_set: str | None = None  # by this module, rather than by the user


def set_logical_cpu_devices(count: int) -> None:
    """Make `count` CPU devices in this process.

    Must be called before JAX is first used, as JAX creates its devices once.

    >>> jt.config.set_logical_cpu_devices(8)

    Args:
      count: how many devices.

    Raises:
      ValueError: when `count` is not positive.
      RuntimeError: when JAX has already created another number of devices.
    """
    if count < 1:
        raise ValueError(f"Expected a positive number of CPU devices, got {count}.")
    if jax_has_started():
        present = len(jax.local_devices(backend="cpu"))
        if present != count:
            raise RuntimeError(
                f"JAX has already started with {present} CPU device(s), and cannot be given "
                f"{count} any more." + _cpu_advice(count)
            )
        return
    _size_thread_pool(count)
    jax.config.update("jax_num_cpu_devices", count)


def provide_cpu_threads() -> None:
    """Size XLA's thread pool for the CPU devices that JAX is about to create."""
    if not jax_has_started():
        _size_thread_pool(_requested_cpu_devices())


def check_cpu_threads(devices: Sequence[jax.Device]) -> None:
    """Refuse CPU devices whose collectives would deadlock for want of threads.

    Raises:
      RuntimeError: when JAX started with too small a pool for them.
    """
    count = sum(d.platform == "cpu" for d in devices)
    configured = os.environ.get(_POOL_SIZE)
    threads = int(configured or _available_cores())
    if count == 1 or threads >= _THREADS_NEEDED * count:
        return
    if configured is not None:
        remedy = (
            f" They are as many as the environment variable {_POOL_SIZE} says: unset it, or set it "
            f"to {_THREADS_NEEDED * count} or more."
        )
    else:
        remedy = _cpu_advice(count)
    raise RuntimeError(
        f"JAX has started with {threads} threads for {count} CPU devices, which are too few: XLA's "
        "collectives would deadlock sooner or later." + remedy
    )


def _provide_cpu_devices(count: int) -> None:
    if jax_has_started():
        return
    if max(_requested_cpu_devices(), 1) < count:
        set_logical_cpu_devices(count)
    else:
        provide_cpu_threads()


def _requested_cpu_devices() -> int:
    configured = int(jax.config.values["jax_num_cpu_devices"])
    if configured > 0:
        return configured
    flags = os.environ.get("XLA_FLAGS", "")
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", flags)
    return int(forced[1]) if forced else 1


def _size_thread_pool(device_count: int) -> None:
    global _pool_size_set
    given = os.environ.get(_POOL_SIZE)
    is_ours = given in (None, _pool_size_set, os.environ.get(CHOSEN))
    too_small = given is not None and int(given) < _THREADS_NEEDED * device_count
    if device_count > 1 and (is_ours or too_small):
        _pool_size_set = str(max(2 * _THREADS_NEEDED * device_count, _available_cores()))
        os.environ[_POOL_SIZE] = _pool_size_set
        if not is_ours:
            warnings.warn(
                f"The environment variable {_POOL_SIZE} was {given}, with which collectives of "
                f"{device_count} CPU devices would deadlock. It is {_pool_size_set} now; set it to "
                f"{_THREADS_NEEDED * device_count} or more to choose another number.",
                RuntimeWarning,
                stacklevel=3,
            )


def _available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def jax_has_started() -> bool:
    """Tell whether JAX has created its devices, whose number is fixed from then on."""
    # JAX refuses to change the number of CPU devices once its backends exist, and says so
    # only when the number really changes.
    current = int(jax.config.values["jax_num_cpu_devices"])
    try:
        jax.config.update("jax_num_cpu_devices", 2 if current != 2 else 3)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", current)
    return False


def _cpu_advice(count: int) -> str:
    return (
        f" Call jt.config.set_logical_cpu_devices({count}) at the top of the program, before "
        "anything creates an array or asks for jax.devices()."
    )
