"""What is told about names that have a successor."""

from __future__ import annotations

import warnings

_told: set[str] = set()


def tell(name: str, instead: str) -> None:
    """Warn the caller of a public method, the first time in this process that it is called."""
    if name in _told:
        return
    _told.add(name)
    warnings.warn(
        f"jt.compat.v1: {name} is deprecated. {instead}", DeprecationWarning, stacklevel=3
    )
