"""Models of Flax NNX, as something to be saved."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..checkpoint._objects import is_random_key
from ..errors import InvalidArgumentError
from ._lending import Changes
from ._signatures import Signature
from ._sources import Source, foreign_source

_Way = tuple[Any, ...]  # to a variable, or to an array that is in none


def adapted(value: Any) -> NnxModel | None:
    """Return an NNX model as something to be saved; None for all others."""
    return NnxModel(value) if isinstance(value, nnx.Module) else None


class NnxModel:
    """A model whose state is a pytree: it is traced with another model that has other state."""

    signatures: Mapping[str, Signature] = {}

    def __init__(self, model: Any) -> None:
        self._model = model
        self._structure, state = nnx.split(model)
        self._state = {tuple(way): held for way, held in nnx.to_flat_state(state)}
        self._values = {way: _value(held) for way, held in self._state.items()}
        # Random keys are no numbers that could be kept; they stay what they are.
        self.sources: dict[_Way, Source] = {
            way: _source(way, held)
            for way, held in self._state.items()
            if not is_random_key(self._values[way])
        }

    @staticmethod
    def lender(objects: Sequence[NnxModel], paths: Mapping[int, str]) -> _Lender:
        """Return what lends values to the variables of all models."""
        return _Lender([_Model(each, paths) for each in objects])

    @property
    def model(self) -> Any:
        """The model."""
        return self._model

    def with_state(self, values: Mapping[_Way, Any]) -> Any:
        """Return another model like this one, with other values of what is saved."""
        flat = [
            (way, _holding(held, values.get(way, self._values[way])))
            for way, held in self._state.items()
        ]
        return nnx.merge(self._structure, nnx.from_flat_state(flat))

    def state_of(self, other: Any) -> dict[_Way, Any]:
        """Return the values that another model has for what is saved of this one.

        Raises:
          InvalidArgumentError: when it has none for some of it.
        """
        after = {tuple(way): held for way, held in nnx.to_flat_state(nnx.split(other)[1])}
        gone = [_name(way) for way in self.sources if way not in after]
        if gone:
            raise InvalidArgumentError(
                f"A saved function of {type(other).__name__} removes {', '.join(map(repr, gone))} "
                "from the model, and a saved model keeps what it was saved with. Remove it with "
                "nnx.pop before saving, or leave it in its place."
            )
        return {way: _value(after[way]) for way in self.sources}


class _Model:
    """A model, and the one that stands for it while a function is traced."""

    def __init__(self, adapted: NnxModel, paths: Mapping[int, str]) -> None:
        self.original = adapted.model
        self.stand_in: Any = None
        self._adapted = adapted
        self._paths = {way: paths[id(each.variable)] for way, each in adapted.sources.items()}

    def lend(self, values: Mapping[str, Any]) -> None:
        """Make the model that stands for this one."""
        own = {way: values[path] for way, path in self._paths.items()}
        self.stand_in = self._adapted.with_state(own)

    def changes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new values of what was assigned."""
        after = self._adapted.state_of(self.stand_in)
        found = {path: after[way] for way, path in self._paths.items()}
        return {path: value for path, value in found.items() if value is not values[path]}


class _Lender:
    def __init__(self, models: Sequence[_Model]) -> None:
        self._models = models

    @contextmanager
    def lend(self, values: Mapping[str, Any]) -> Generator[Changes]:
        """Have other models stand for these, with other state."""
        for model in self._models:
            model.lend(values)
        try:
            yield lambda: {p: v for m in self._models for p, v in m.changes(values).items()}
        finally:
            for model in self._models:
                model.stand_in = None

    def in_place_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same method of the model that stands for the one it belongs to.

        Raises:
          InvalidArgumentError: for other functions, which would use the models as they are.
        """
        for model in self._models:
            if function is model.original:
                return model.stand_in
            if getattr(function, "__self__", None) is model.original:
                return getattr(function, "__func__").__get__(model.stand_in)  # noqa: B009
        raise InvalidArgumentError(
            f"{function!r} is no method of an NNX model that is saved, and would keep the values "
            "its state has now. Write it as a method, and pass jt.saved_model.Signature("
            "model.method, *specs), or Signature(model, *specs) to call the model."
        )


def _name(way: _Way) -> str:
    return "/".join(map(str, way))


def _value(held: Any) -> Any:
    return held.get_value() if isinstance(held, nnx.Variable) else held


def _holding(held: Any, value: Any) -> Any:
    return held.replace(value) if isinstance(held, nnx.Variable) else value


def _source(way: _Way, held: Any) -> Source:
    name = _name(way)
    value = _value(held)
    if not isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        raise InvalidArgumentError(
            f"A saved model keeps arrays and numbers of NNX models, and the "
            f"{type(held).__name__} {name!r} holds {value!r}. Use a variable for each array, or "
            "remove what is not needed with nnx.pop."
        )
    # An array that is in no variable may be in several attributes, and each goes its own way.
    variable = held if isinstance(held, nnx.Variable) else object()
    return foreign_source(
        variable, name, isinstance(held, nnx.Param), lambda: jnp.asarray(_value(held))
    )
