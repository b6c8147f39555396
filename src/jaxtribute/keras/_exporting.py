"""What `jt.saved_model` needs to know of Keras models, layers and variables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from .._specs import TensorSpec
from ..errors import FailedPreconditionError, InvalidArgumentError
from ._private import input_signature, is_built
from ._variables import Stored


def variables_of(value: Any) -> list[keras.Variable] | None:
    """Return the variables of a Keras model, layer or variable; None for all others.

    Raises:
      FailedPreconditionError: when Keras does not run on JAX.
      InvalidArgumentError: when a layer has not been built.
    """
    if isinstance(value, keras.Variable):
        found = [value]
    elif isinstance(value, keras.layers.Layer):
        if not is_built(value):
            raise InvalidArgumentError(
                f"The Keras {'model' if isinstance(value, keras.Model) else 'layer'} "
                f"{value.name!r} has no variables yet, or some of its layers have not. Call it on "
                "a batch before it is saved."
            )
        found = list(value.variables)
    else:
        return None
    if keras.backend.backend() != "jax":
        raise FailedPreconditionError(
            f"Models are saved as programs of JAX, and Keras runs on {keras.backend.backend()}. "
            "Set the environment variable KERAS_BACKEND=jax before Keras is imported."
        )
    return found


def stored_in(variable: keras.Variable) -> Stored | None:
    """Return the variable of a strategy that has the value of a Keras variable, if one does."""
    return getattr(variable, "__jaxtribute_variable__", None)


@contextmanager
def lending(
    variables: Sequence[keras.Variable], values: Sequence[Any]
) -> Generator[Callable[[], list[Any]]]:
    """Have variables be worth other values; yields a function that returns what they are then.

    Raises:
      InvalidArgumentError: inside, where another variable is read, which would become a constant.
    """
    with _Lent(state_mapping=list(zip(variables, values, strict=True))) as scope:
        yield lambda: [scope.get_current_value(variable) for variable in variables]


class _Lent(keras.StatelessScope):
    """Where Keras looks for the values of variables, which are all known there."""

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return what a variable is worth."""
        value = super().get_current_value(variable)
        if value is None:
            raise InvalidArgumentError(
                f"It uses the Keras variable {variable.path!r}, which is not part of what is "
                "saved. Keep the model or layer it belongs to in an attribute of the object that "
                "is saved."
            )
        return value


def serving_call(model: keras.Model) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function that calls a model as `predict` does, and specs of what it takes.

    Raises:
      InvalidArgumentError: when it is not known what a model takes.
    """
    try:
        specs = input_signature(model)
    except ValueError as error:
        raise InvalidArgumentError(
            f"It is not known what the Keras model {model.name!r} takes: {error} Call it on a "
            "batch first, or pass signatures=jt.saved_model.Signature(model, jt.TensorSpec([None, "
            "...]))."
        ) from error

    def serve(inputs: Any, *more: Any) -> Any:
        return model(inputs, *more, training=False)

    return serve, [_plain(spec) for spec in specs]


def _plain(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _plain(each) for name, each in spec.items()}
    if isinstance(spec, (list, tuple)):
        return type(spec)(map(_plain, spec))
    # Keras makes up a name for an input that has none.
    name = None if (spec.name or "").startswith("keras_tensor") else spec.name
    return TensorSpec(spec.shape, spec.dtype, name)
