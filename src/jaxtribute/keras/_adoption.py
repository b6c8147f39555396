"""Keras variables that were created outside of every scope, in functions, replicas and gradients.

Keras keeps the value of a variable in one attribute. Where a program is traced, a replica runs or
a gradient is taken, the attribute is that of an adopted variable; elsewhere it is Keras's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras
from jax.core import Tracer

from .._jax_compat import is_tracing
from ..variables import Variable, _adopted, _frames
from ..variables._spec import untraced
from ._private import VALUE, in_symbolic_scope
from ._variables import StrategyVariable, is_synchronized


class _Keeper:
    """The value of a Keras variable."""

    library = "Keras"
    advice = (
        "Create the model, optimizer or metric it belongs to inside `with strategy.scope():`, "
        "which says how the replicas' values are to be combined."
    )

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self.trainable = variable.trainable

    @property
    def name(self) -> str:
        return self._variable.path

    def get(self) -> Any:
        return vars(self._variable)[VALUE]

    def set(self, value: Any) -> None:
        self._variable.__dict__[VALUE] = value


def _stand_in(variable: keras.Variable) -> _adopted.Adopted:
    return _adopted.adopted(id(variable), functools.partial(_Keeper, variable))


def _of(value: Any) -> Variable | None:
    is_own = isinstance(value, keras.Variable) and not isinstance(value, StrategyVariable)
    return _stand_in(value) if is_own and vars(value).get(VALUE) is not None else None


class _Value:
    """The attribute in which Keras keeps the value of a variable."""

    def __get__(self, variable: Any, owner: type | None = None) -> Any:
        if variable is None:
            return self
        try:
            own = vars(variable)[VALUE]
        except KeyError:
            raise AttributeError(VALUE) from None
        # Where only shapes are asked for, the value need not become part of a program.
        if own is None or not _frames.opened_here() or in_symbolic_scope():
            return own
        return _stand_in(variable).value()

    def __set__(self, variable: Any, value: Any) -> None:
        own = vars(variable).get(VALUE)
        if value is None or not _frames.opened_here():
            if own is not None and _frames.is_journaling():
                _frames.note(_stand_in(variable))
            vars(variable)[VALUE] = value
        elif own is not None:
            _stand_in(variable).put(value, synchronized=is_synchronized())
        else:
            if isinstance(value, Tracer):
                value = untraced(value, None, variable.path)
            if isinstance(value, Tracer):
                _stand_in(variable).start_from(value)
            else:
                vars(variable)[VALUE] = value
            _frames.current().was_created(_stand_in(variable))


def initialize(own: Callable[..., Any], variable: Any, initializer: Callable[..., Any]) -> None:
    """Create the value, which must not become part of a program that is being traced."""
    if not _frames.opened_here() or not is_tracing():
        own(variable, initializer)
        return
    with jax.ensure_compile_time_eval():
        own(variable, initializer)


def register() -> None:
    """Have Keras variables adopted; with NNX in Keras they are NNX's, which are already."""
    if VALUE not in vars(keras.Variable):
        setattr(keras.Variable, VALUE, _Value())
        _adopted.register(_of)
