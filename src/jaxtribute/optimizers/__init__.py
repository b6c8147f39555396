"""Optax optimizers that keep their state in variables."""

from ._optimizer import Optimizer

__all__ = ["Optimizer"]
