"""Models of Flax NNX, as something to be saved."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._reduce import VariableAggregation, VariableSynchronization
from ..errors import InvalidArgumentError
from ._lending import Changes
from ._signatures import Signature
from ._sources import Source


def adapted(value: Any) -> NnxModel | None:
    """Return an NNX model as something to be saved; None for all others."""
    return NnxModel(value) if isinstance(value, nnx.Module) else None


class NnxModel:
    """A model whose state is a pytree: it is traced with another model that has other state."""

    signatures: Mapping[str, Signature] = {}

    def __init__(self, model: Any) -> None:
        self._model = model
        self._structure, state = nnx.split(model)
        self._state = nnx.to_flat_state(state)
        # Random keys are no numbers that could be kept; they stay what they are.
        self.sources = {
            tuple(way): _source(way, variable)
            for way, variable in self._state
            if not jnp.issubdtype(_value(variable).dtype, jax.dtypes.prng_key)
        }

    def lender(self, paths: Mapping[int, str]) -> _Lender:
        """Return what lends values to its variables."""
        own = [
            (
                way,
                variable,
                paths.get(id(self.sources[way].variable)) if way in self.sources else None,
            )
            for way, variable in self._state
        ]
        return _Lender(self._model, self._structure, own)


class _Lender:
    def __init__(
        self, model: Any, structure: Any, state: list[tuple[Any, Any, str | None]]
    ) -> None:
        self._model = model
        self._structure = structure
        self._state = state
        self._lent: Any = None

    @contextmanager
    def lend(self, values: Mapping[str, Any]) -> Generator[Changes]:
        """Have another model stand for this one, with other state."""
        flat = [
            (way, variable if path is None else variable.replace(values[path]))
            for way, variable, path in self._state
        ]
        self._lent = nnx.merge(self._structure, nnx.from_flat_state(flat))

        def changes() -> dict[str, Any]:
            after = dict(nnx.to_flat_state(nnx.split(self._lent)[1]))
            return {
                path: _value(after[way])
                for way, _, path in self._state
                if path is not None and _value(after[way]) is not values[path]
            }

        try:
            yield changes
        finally:
            self._lent = None

    def in_place_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same method of the model that stands for this one.

        Raises:
          InvalidArgumentError: for other functions, which would use this model.
        """
        if function is self._model:
            return self._lent
        if getattr(function, "__self__", None) is self._model:
            return function.__func__.__get__(self._lent)  # pyright: ignore[reportFunctionMemberAccess]
        raise InvalidArgumentError(
            f"{function!r} is no method of the NNX model that is saved, and would keep the values "
            "its state has now. Write it as a method, and pass jt.saved_model.Signature("
            "model.method, *specs), or Signature(model, *specs) to call the model."
        )


def _value(variable: Any) -> Any:
    return variable.get_value()


def _source(way: Any, variable: Any) -> Source:
    value = _value(variable)
    trainable = isinstance(variable, nnx.Param)
    is_float = jnp.issubdtype(value.dtype, jnp.inexact)
    # Statistics are to agree when replicas go on with them; a gradient is added up before.
    statistic = VariableAggregation.MEAN if is_float else VariableAggregation.ONLY_FIRST_REPLICA

    def read() -> Iterator[Any]:
        yield np.asarray(value)

    return Source(
        variable,
        "/".join(map(str, way)),
        tuple(value.shape),
        value.dtype,
        trainable,
        VariableSynchronization.AUTO,
        VariableAggregation.NONE if trainable else statistic,
        read,
    )
