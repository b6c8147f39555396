"""The one place that starts JAX's multi-process runtime, and goes on without it, by private parts.

`jax.distributed.initialize` has no way to say where the client connects to apart from where the
service listens, and registers the client so that the process is aborted from C++ when the chief is
lost. With the parts it is made of, both can be said; nothing public does. `tests/workers/
test_jax_runtime.py` notices when they change.
"""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import jax
from jax._src.distributed import global_state  # pyright: ignore[reportPrivateUsage]
from jaxlib import _jax  # pyright: ignore[reportPrivateUsage]

_NEVER = 10**8  # seconds: whether a worker is alive is decided elsewhere
_state: Any = global_state
_parts: Any = _jax
_kept: list[Any] = []  # what must not be destroyed before the process ends
_streams = itertools.count(1)


def is_running() -> bool:
    """Tell whether somebody has started the runtime in this process."""
    return _state.client is not None


def serve(socket: Path, num_processes: int) -> None:
    """Start the coordination service, on a socket of this machine."""
    _state.service = _parts.get_distributed_runtime_service(
        f"unix:{socket}", num_processes, heartbeat_timeout=_NEVER, shutdown_timeout=1
    )


def connect(socket: Path, process_id: int, num_processes: int, timeout: float) -> None:
    """Connect to the coordination service through a socket of this machine."""
    _state.process_id = process_id
    _state.num_processes = num_processes
    _state.coordinator_address = f"unix:{socket}"
    client = _parts.get_distributed_runtime_client(
        f"unix:{socket}",
        process_id,
        init_timeout=max(1, round(timeout)),
        heartbeat_timeout=_NEVER,
        shutdown_timeout=1,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    _state.client = client
    client.connect()
    if "cpu" in (jax.config.values["jax_platforms"] or "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")


def disconnect() -> None:
    """Keep JAX from shutting the runtime down at exit, which waits for all other processes."""
    _kept.extend([_state.client, _state.service])
    _state.client = _state.service = None


def abandon() -> None:
    """Let this thread, and the end of the process, not wait for what it has begun last.

    On CPUs a computation begins when the one before it of the same thread has ended, and a client
    that is destroyed waits for all of them. So the thread gets a new queue, and the client is kept.
    """
    _parts.set_execution_stream_id(-next(_streams))  # other numbers are those of threads
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(jax.local_devices()[0].client))
