"""Other libraries that have to know of strategies, once they and a scope are both there."""

from __future__ import annotations

import importlib
import os
import sys

# Not imported before: a program that does not use a library must not pay for it.
_INTEGRATIONS = {"keras": "jaxtribute.keras"}


def load() -> list[str]:
    """Load what belongs to the libraries that have been imported; return those that are new."""
    new = [
        library
        for library, integration in _INTEGRATIONS.items()
        if library in sys.modules and integration not in sys.modules
    ]
    for library in new:
        importlib.import_module(_INTEGRATIONS[library])
    return new


def prefer_jax() -> None:
    """Have libraries with several backends use JAX, before a function that needs them arrives."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "jax")
