"""How much memory this machine has, and how much of it this process may still use."""

from __future__ import annotations

import os
from pathlib import Path

# Of control groups, the newer kind and the older one.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = "/sys/fs/cgroup/memory.current"


def installed() -> int:
    """Return how many bytes the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit() -> int | None:
    """Return how many bytes this process may use, if it is limited."""
    limits = [size for size in map(_number, _LIMITS) if size is not None and size < installed()]
    return min(limits, default=None)


def available() -> int | None:
    """Return how many bytes are free for this process, if it is known."""
    free = [
        int(line.split()[1]) << 10
        for line in _lines("/proc/meminfo")
        if line.startswith("MemAvailable:")
    ]
    most, used = limit(), _number(_USED)
    if most is not None and used is not None:
        free.append(max(0, most - used))
    return min(free, default=None)


def gibibytes(size: int) -> str:
    """Return a size as it is shown to people.

    >>> gibibytes(3 << 29), gibibytes(5 << 50)
    ('1.5 GiB', '5,242,880 GiB')
    """
    value = size / 2**30
    return f"{value:,.0f} GiB" if value >= 1000 else f"{value:.3g} GiB"


def _number(path: str) -> int | None:
    text = "".join(_lines(path))
    return int(text) if text.isdecimal() else None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:  # not on Linux, or without a limit
        return []
