"""Functions as programs of `jax.export`.

A program is called with the variables it reads, by path, and its arguments, by name. It returns
what the function returns, and the new values of the variables it assigns, by path.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from .._jax_compat import inputs_in_use
from ..errors import InvalidArgumentError
from ._lending import Lender
from ._loaded import LoadedFunction
from ._signatures import Signature
from ._sources import Source
from ._specs import described_arrays, described_specs, symbolic

_log = logging.getLogger("jaxtribute")


@dataclass(frozen=True)
class Program:
    """A program, and what the index says of it."""

    data: bytes
    record: dict[str, Any]


def exported(
    name: str,
    signature: Signature,
    sources: Mapping[str, Source],
    lenders: Sequence[Lender],
    platforms: Sequence[str],
) -> Program:
    """Return the program of a function.

    Args:
      name: how messages call it.
      signature: the function, and what it takes.
      sources: the variables it may use, by path.
      lenders: what makes them inputs of the program.
      platforms: where it is to run.

    Raises:
      InvalidArgumentError: when the function cannot be exported.
    """
    if isinstance(signature.function, LoadedFunction):  # for the platforms it was saved for
        own = signature.function.platforms
        platforms = [platform for platform in platforms if platform in own] or platforms
    arguments = described_specs(name, signature.specs)
    given = symbolic_arguments(name, arguments)
    types = {path: jax.ShapeDtypeStruct(s.shape, s.dtype) for path, s in sources.items()}
    tracing = _Tracing(signature, types, lenders)
    try:
        # Which variables it reads shows only when it is traced.
        in_use = inputs_in_use(jax.jit(tracing.pure).trace(types, given).jaxpr)
        read = [path for path, used in zip(sorted(types), in_use, strict=False) if used]
        inputs = {path: types[path] for path in read}
        whole = export.export(jax.jit(tracing.pure), platforms=platforms)(inputs, given)
        if whole.nr_devices > 1:
            raise InvalidArgumentError(
                f"It runs on {whole.nr_devices} devices, and a saved program runs on one. Save "
                "what one replica does: the function that is given to strategy.run."
            )
        data, why_not = _serialized(name, whole)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"The function {name!r} cannot be saved. {error}") from error
    except Exception as error:  # whatever the function raises, and whatever JAX makes of it
        raise InvalidArgumentError(
            f"The function {name!r} cannot be saved: {_reason(error)}\nIt is traced with abstract "
            "arrays, for all sizes of dimensions that are None or have a name, and for the "
            f"platforms {', '.join(platforms)}. Give the sizes on which it depends; use "
            "jt.saved_model.SaveOptions(platforms=...) if one of them lacks something."
        ) from error
    outputs, changes = jax.tree.unflatten(whole.out_tree, whole.out_avals)
    return Program(
        data,
        {
            "arguments": [[argument, arguments[argument]] for argument in arguments],
            "positional": list(signature.positional),
            "outputs": described_arrays(outputs, "The result"),
            "variables": read,
            "assigns": sorted(changes),
            "platforms": list(whole.platforms),
            "calling_convention": whole.calling_convention_version,
            "no_gradient_because": why_not,
        },
    )


def symbolic_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `jax.export` takes for arguments.

    Raises:
      InvalidArgumentError: for a name of a dimension that is none.
    """
    try:
        return symbolic(arguments)
    except ValueError as error:
        raise InvalidArgumentError(
            f"The shapes of the arguments of {name!r} cannot be used: {error} A dimension is a "
            'number, None, or a name such as "batch".'
        ) from error


class _Tracing:
    """A function as one of variables and arguments, without side effects."""

    def __init__(
        self, signature: Signature, types: Mapping[str, Any], lenders: Sequence[Lender]
    ) -> None:
        self._signature = signature
        self._types = types
        self._lenders = lenders

    def pure(self, variables: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        # Variables that turned out not to be read have to be worth something as well.
        values = {
            path: variables[path] if path in variables else jnp.zeros(kind.shape, kind.dtype)
            for path, kind in self._types.items()
        }
        function = self._signature.function
        with ExitStack() as stack:
            lent = [stack.enter_context(lender.lend(values)) for lender in self._lenders]
            for lender in self._lenders:
                function = lender.in_place_of(function)
            result = _plain(self._signature.call(arguments, function))
            described_arrays(result, "The result")
            changes = {path: value for changes in lent for path, value in changes().items()}
        return result, {path: _as_declared(changes[path], self._types[path]) for path in changes}


def _as_declared(value: Any, kind: Any) -> Any:
    return jnp.asarray(value, kind.dtype)


def _plain(result: Any) -> Any:
    """Return a result made of dicts, lists and tuples, with numbers as arrays."""
    if isinstance(result, Mapping):
        return {key: _plain(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return (list if isinstance(result, list) else tuple)(map(_plain, result))
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    if isinstance(result, numbers) or (
        hasattr(result, "__jax_array__") and not isinstance(result, jax.Array)
    ):
        return jnp.asarray(result)
    return result


def _serialized(name: str, whole: export.Exported) -> tuple[bytes, str | None]:
    """Return a program with its gradient, or without one and the reason why."""
    try:
        return bytes(whole.serialize(vjp_order=1)), None
    except Exception as error:  # such as a loop of which the number of rounds is not known
        data = bytes(whole.serialize(vjp_order=0))  # which raises what is wrong with the program
        _log.warning(
            "%r is saved without its gradient, so that it can be called and not trained: %s",
            name,
            _reason(error),
        )
        return data, _reason(error)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()
