"""Compiling functions that use variables, and differentiating them."""

from ._compiled_runs import compiled
from ._feeding import Feeder, Optional, leave_trace
from ._function import Function, function
from ._gradients import grad, value_and_grad

__all__ = [
    "Feeder",
    "Function",
    "Optional",
    "compiled",
    "function",
    "grad",
    "leave_trace",
    "value_and_grad",
]
