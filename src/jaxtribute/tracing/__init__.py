"""Compiling functions that use variables, and differentiating them."""

from ._function import Function, function
from ._gradients import grad, value_and_grad

__all__ = ["Function", "function", "grad", "value_and_grad"]
