"""Which functions are saved, under which names, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidArgumentError
from ..tracing import Function

DEFAULT = "serving_default"


class Signature:
    """A function to be saved, together with the arrays it takes.

    >>> def scaled(x, factor):
    ...     return x * factor
    >>> jt.saved_model.Signature(scaled, jt.TensorSpec([None, 3]), factor=jt.TensorSpec([]))
    <Signature scaled(x, factor)>

    A first dimension that is None may have any size, the same one in all arguments. Others that
    are None have sizes of their own. A dimension with a name, such as `"batch"`, has one size
    wherever the name occurs.

    Args:
      function: a function, a method, a `jt.function`, or an object that can be called.
      *specs: a `jt.TensorSpec` or `jax.ShapeDtypeStruct` for each positional argument, or a dict,
        list or tuple of them. None are needed for a `jt.function` with an `input_signature`.
      **named_specs: those of arguments that are passed by name.

    Raises:
      TypeError: when `function` cannot be called.
      ValueError: when there are no specs, or more than the function has arguments.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any, **named_specs: Any) -> None:
        if not callable(function):
            raise TypeError(f"A signature is made of a function, got {function!r}.")
        own = getattr(function, "input_signature", None)
        if not specs and not named_specs and isinstance(function, Function) and own is not None:
            specs = tuple(own)
        names = _positional_names(function, len(specs))
        names = [
            getattr(spec, "name", None) or name for spec, name in zip(specs, names, strict=True)
        ]
        self.function = function
        self.positional = tuple(names)
        self.specs: dict[str, Any] = dict(zip(names, specs, strict=True)) | named_specs
        if len(self.specs) != len(specs) + len(named_specs):
            raise InvalidArgumentError(
                f"Two arguments of the signature of {_name(function)!r} have the same name: "
                f"{', '.join([*names, *named_specs])}."
            )

    def call(self, arguments: Mapping[str, Any], function: Callable[..., Any]) -> Any:
        """Call the function, or another one in its place, with an argument for each spec."""
        named = {name: arguments[name] for name in self.specs if name not in self.positional}
        return function(*(arguments[name] for name in self.positional), **named)

    def __repr__(self) -> str:
        return f"<Signature {_name(self.function)}({', '.join(self.specs)})>"


def requested(signatures: Any) -> dict[str, Signature]:
    """Return the signatures that `save` is to save, by name.

    Raises:
      TypeError: for something else than functions.
      InvalidArgumentError: when it is not known what a function takes.
    """
    if signatures is None:
        return {}
    if not isinstance(signatures, Mapping):
        signatures = {DEFAULT: signatures}
    found: dict[str, Signature] = {}
    for name, given in signatures.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"The name of a signature is a text, got {name!r}.")
        if isinstance(given, Signature):
            found[name] = given
        elif not callable(given):
            raise TypeError(
                f"The signature {name!r} is {given!r}. Pass a jt.function with an input_signature, "
                "or jt.saved_model.Signature(function, *specs)."
            )
        elif isinstance(given, Function) and given.input_signature is not None:
            found[name] = Signature(given)
        else:
            raise InvalidArgumentError(
                f"It is not known which arrays the signature {name!r}, {_name(given)!r}, takes. "
                f"Pass jt.saved_model.Signature({_name(given)}, jt.TensorSpec([None, ...])), or "
                "decorate it with @jt.function(input_signature=[jt.TensorSpec([None, ...])])."
            )
    return found


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first arguments of a function."""
    names: list[str] = []
    has_more = False
    for parameter in _parameters(function):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        has_more |= parameter.kind is parameter.VAR_POSITIONAL
    if has_more:
        names += [f"args_{number}" for number in range(len(names), count)]
    if len(names) < count:
        raise InvalidArgumentError(
            f"{_name(function)!r} takes {len(names)} positional arguments, and its signature "
            f"describes {count}."
        )
    return names[:count]


def _parameters(function: Any) -> list[inspect.Parameter]:
    is_object = not (inspect.isroutine(function) or hasattr(function, "__signature__"))
    if is_object and not isinstance(function, Function):
        # Keras has users write `call`, and takes anything itself.
        function = getattr(function, "call", function.__call__)
    if isinstance(function, Function):
        function = function.python_function
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # a function that is not written in Python
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
