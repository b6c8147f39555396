"""How a serving process treats memory that it no longer needs."""

from __future__ import annotations

import ctypes

# From <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEPT_BLOCK = 32 << 20  # bytes; the largest that the C library takes
_KEPT = 256 << 20


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next message instead of giving it back.

    A server gets and frees arrays of some megabytes many times a second. Memory that is given back
    has to be asked for again, page by page, which took a tenth of a worker's time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # of glibc
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
