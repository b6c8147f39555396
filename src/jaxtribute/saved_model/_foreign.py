"""Objects of other libraries, as something to be saved."""

from __future__ import annotations

import importlib
import sys
from typing import Any

# Modules that can tell whether an object is of their library, once that has been imported.
_ADAPTERS = {
    "keras": "jaxtribute.saved_model._keras",
    "flax.nnx": "jaxtribute.saved_model._nnx",
}


def adapted(value: Any) -> Any | None:
    """Return an object of another library as something to be saved; None for all others."""
    for library, adapter in _ADAPTERS.items():
        if library in sys.modules:
            found = importlib.import_module(adapter).adapted(value)
            if found is not None:
                return found
    return None
