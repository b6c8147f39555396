"""Other libraries that have to know of strategies, once they and a scope are both there."""

from __future__ import annotations

import importlib
import os
import sys

# Not imported before: a program that does not use a library must not pay for it.
_INTEGRATIONS = {"keras": "jaxtribute.keras", "flax.nnx": "jaxtribute._nnx"}
_waiting = dict(_INTEGRATIONS)
_MAKE_VARIABLES = ("keras",)  # that are what the strategy makes of them


def load() -> list[str]:
    """Load what belongs to the libraries that have been imported.

    Returns:
      Those that are new, and whose variables should have been those of a strategy.
    """
    if not any(library in sys.modules for library in _waiting):  # as almost always
        return []
    new = [library for library in _waiting if library in sys.modules]
    for library in new:
        importlib.import_module(_INTEGRATIONS[library])
        _waiting.pop(library, None)
    return [library for library in new if library in _MAKE_VARIABLES]


def prefer_jax() -> None:
    """Have libraries with several backends use JAX, before a function that needs them arrives."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "jax")
