"""The machine that the numbers belong to."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def describe() -> dict[str, str]:
    """What a reader needs to know to judge the numbers."""
    return {
        "CPU": _cpu_model(),
        "Cores": _cores(),
        "Memory": _memory(),
        "OS": _system(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Load average before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> str:
    total = os.cpu_count() or 0
    # A container may be allowed fewer than the machine has.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return f"{total} logical" if usable == total else f"{usable} of {total} logical"


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.1f} GiB"


def _system() -> str:
    kernel = f"{platform.system()} {platform.release()}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError):
        return kernel
