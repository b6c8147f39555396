"""Keras models, layers and variables, as something to be saved."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras

from ..keras import _exporting
from ._lending import Changes
from ._signatures import DEFAULT, Signature
from ._sources import Source, foreign_source, source_of


def adapted(value: Any) -> KerasObject | None:
    """Return an object of Keras as something to be saved; None for all others."""
    variables = _exporting.variables_of(value)
    return None if variables is None else KerasObject(value, variables)


class KerasObject:
    """A model, a layer or a variable; its variables are found by their paths."""

    def __init__(self, value: Any, variables: list[Any]) -> None:
        self._value = value
        self._variables = variables
        if isinstance(value, keras.Variable):
            self.sources: dict[tuple[str | int, ...], Source] = {(): _source(value)}
        else:
            self.sources = {_way(v, value): _source(v) for v in variables}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The call of a model."""
        if not isinstance(self._value, keras.Model):
            return {}
        serve, specs = _exporting.serving_call(self._value)
        return {DEFAULT: Signature(serve, *specs)}

    @staticmethod
    def lender(objects: Sequence[KerasObject], paths: Mapping[int, str]) -> _Lender:
        """Return what lends values to the variables of all objects."""
        variables = [variable for each in objects for variable in each._variables]
        return _Lender({paths[id(variable)]: variable for variable in variables})


class _Lender:
    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables

    @contextmanager
    def lend(self, values: Mapping[str, Any]) -> Generator[Changes]:
        """Have variables be worth other values to Keras."""
        given = [values[path] for path in self._variables]
        with _exporting.lending(list(self._variables.values()), given) as current:

            def changes() -> dict[str, Any]:
                after = zip(self._variables, current(), given, strict=True)
                return {path: value for path, value, before in after if value is not before}

            yield changes

    def in_place_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


def _way(variable: Any, owner: Any) -> tuple[str | int, ...]:
    parts = variable.path.split("/")
    # Some paths begin with the model's own name.
    return tuple(parts[1:] if len(parts) > 1 and parts[0] == owner.name else parts)


def _source(variable: Any) -> Source:
    stored = _exporting.stored_in(variable)
    if stored is not None:
        return replace(source_of(stored, variable.path), variable=variable, name=variable.path)
    return foreign_source(variable, variable.path, variable.trainable, lambda: variable.value)
