"""Optimizers of Keras as transformations of Optax, which parameter servers can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from ..variables import _awaited
from . import _creation, _private, _replicas
from ._backend import check_backend


class Layout(NamedTuple):
    """What an optimizer keeps for one variable, by position among its variables."""

    own: list[int]
    """What has the variable's shape, such as its momentum."""
    common: list[int]
    """What is the same for all variables, such as the count of steps."""


class Transformation:
    """Does to arrays what an optimizer of Keras does to variables.

    The state consists of the variables that the optimizer has when it is built for this variable
    only, so each has its own count of steps and its own copy of the learning rate.

    Args:
      cls: the class of the optimizer.
      config: what it is made from.
    """

    def __init__(self, cls: type, config: dict[str, Any]) -> None:
        self._cls = cls
        self._config = config

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        check_backend(self._cls.__name__)

    def init(self, values: Any) -> list[Any]:
        """Return the state for a value, or for a list of them."""
        return [variable.value for variable in self._optimizer(jax.tree.leaves(values)).variables]

    def update(self, gradients: Any, state: list[Any], values: Any) -> tuple[Any, list[Any]]:
        """Return what is to be added to a value, or a list of them, and the state after it."""
        old, structure = jax.tree.flatten(values)
        optimizer = self._optimizer(old)
        with _replicas.alone():
            new, after = optimizer.stateless_apply(state, jax.tree.leaves(gradients), old)
        return structure.unflatten([n - o for n, o in zip(new, old, strict=True)]), after

    def layout(self, value: Any) -> Layout:
        """Tell what the state for a value consists of."""
        variables = self._optimizer([value]).variables
        own = [i for i, v in enumerate(variables) if v.made_for is not None]
        return Layout(own, [i for i in range(len(variables)) if i not in own])

    def _optimizer(self, values: Sequence[Any]) -> Any:
        """Return an optimizer for variables like these, which have no values."""
        with (
            jax.ensure_compile_time_eval(),
            _creation.by(_Shape.__new__),
            _awaited.unconcerned(),
        ):
            variables = [
                keras.Variable(
                    initializer="zeros", shape=value.shape, dtype=jnp.dtype(value.dtype).name
                )
                for value in values
            ]
            optimizer = self._cls.from_config(dict(self._config))
            optimizer.build(variables)
        return optimizer


class _Shape(keras.Variable):
    """A variable of which Keras only has to know what it is like: its value comes from outside."""

    made_for: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> _Shape:
        self = object.__new__(_Shape)
        self.made_for = _creation.reference()
        return self

    def _initialize_with_initializer(self, initializer: Any) -> None:
        # As Keras does for a variable that it will initialize later.
        self._value = None
        self._initializer = initializer


def transformation_of(optimizer: keras.optimizers.Optimizer) -> Transformation:
    """Return what parameter servers are to do in the place of an optimizer.

    What looks at whole gradients is left out, and done by `_gradients` before they are divided.
    """
    config: dict[str, Any] = optimizer.get_config() | {"loss_scale_factor": None}
    if not optimizer.gradient_accumulation_steps:
        config |= {"clipnorm": None, "global_clipnorm": None}
    schedule = _private.schedule_of(optimizer)
    if schedule is not None:  # as itself: Keras might not find its class on a server
        config["learning_rate"] = schedule
    return Transformation(type(optimizer), config)
