"""ZeroMQ, which is imported when it is first used: most programs have no use for it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["zmq"]


class _Module:
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("zmq"), name)
        setattr(self, name, value)  # the next time it is found without asking
        return value


if TYPE_CHECKING:
    import zmq
else:
    zmq = _Module()
