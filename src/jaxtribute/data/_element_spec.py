"""What the elements of a dataset look like, as far as it can be told."""

from __future__ import annotations

import functools
import itertools
from functools import singledispatch
from typing import Any

import msgspec
import numpy as np

from .._specs import TensorSpec
from ..errors import InvalidArgumentError
from . import _ops
from ._elements import map_specs, spec_of
from ._user_functions import call

_TEXT = TensorSpec((), np.dtype(object))


@singledispatch
def element_spec(op: Any) -> Any:
    """Return the structure of the elements, with a `TensorSpec` for each component."""
    return element_spec(op.input)  # most operations pass on what they get


@element_spec.register
def _(op: _ops.Slices) -> Any:
    return op.structure.unflatten([TensorSpec(c.shape[1:], c.dtype) for c in op.columns])


@element_spec.register
def _(op: _ops.Range) -> Any:
    return TensorSpec((), op.dtype)


@element_spec.register(_ops.FileNames)
@element_spec.register(_ops.ReadFiles)
def _(op: Any) -> Any:
    return _TEXT


@element_spec.register
def _(op: _ops.External) -> Any:
    if op.source.spec is not None:
        return op.source.spec

    def of_any_length(spec: TensorSpec) -> TensorSpec:  # one element tells nothing of the others
        return TensorSpec((None, *spec.shape[1:]) if spec.shape else spec.shape, spec.dtype)

    return map_specs(of_any_length, spec_of(first_element(op)))


@element_spec.register
def _(op: _ops.Map) -> Any:
    return _varying_with_input(op.input, spec_of(first_element(op)))


def _varying_with_input(input: _ops.Op, made: Any) -> Any:
    """Return the description of what was made of the first element of `input`.

    What is as long as a batch whose length varies, varies, too.
    """
    lengths: set[int | str | None] = set()

    def note_varying(spec: TensorSpec, found: TensorSpec) -> None:
        if spec.shape and found.shape and spec.shape[0] is None:
            lengths.add(found.shape[0])

    def varying(spec: TensorSpec) -> TensorSpec:
        if spec.shape and spec.shape[0] in lengths:
            return TensorSpec((None, *spec.shape[1:]), spec.dtype)
        return spec

    map_specs(note_varying, element_spec(input), spec_of(first_element(input)))
    return map_specs(varying, made)


@element_spec.register
def _(op: _ops.Enumerate) -> Any:
    return TensorSpec((), np.int64), element_spec(op.input)


@element_spec.register
def _(op: _ops.Batch) -> Any:
    size = op.size if op.drop_remainder else None

    def batched(spec: TensorSpec) -> TensorSpec:
        shape = None if spec.shape is None else (size, *spec.shape)
        return TensorSpec(shape, spec.dtype)

    return map_specs(batched, element_spec(op.input))


@element_spec.register
def _(op: _ops.Unbatch) -> Any:
    def one(spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.shape and spec.shape[1:], spec.dtype)

    return map_specs(one, element_spec(op.input))


@element_spec.register
def _(op: _ops.Concatenate) -> Any:
    return functools.reduce(
        lambda first, second: map_specs(_common, first, second), map(element_spec, op.parts)
    )


def _common(first: TensorSpec, second: TensorSpec) -> TensorSpec:
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return TensorSpec(None, first.dtype)
    pairs = zip(first.shape, second.shape, strict=True)
    return TensorSpec([a if a == b else None for a, b in pairs], first.dtype)


@element_spec.register
def _(op: _ops.Zip) -> Any:
    return op.structure.unflatten([element_spec(part) for part in op.parts])


@element_spec.register
def _(op: _ops.Interleave) -> Any:
    made = element_spec(call(op.fn, first_element(op.input)))
    return _varying_with_input(op.input, made)


def first_element(op: _ops.Op) -> Any:
    """Return the first element of a dataset.

    Raises:
      InvalidArgumentError: when it has none.
    """
    elements = first_elements(op)
    if not elements:
        raise InvalidArgumentError(
            "What the elements of this dataset look like cannot be told, because it has none."
        )
    return elements[0]


def first_elements(op: _ops.Op) -> list[Any]:
    """Return the first element of a dataset, if it has any."""
    from ._streams import stream

    reader = stream(_for_a_look(op), 0)
    try:
        return [element for _, element in itertools.islice(reader, 1)]
    finally:
        reader.close()


def _for_a_look(op: _ops.Op) -> _ops.Op:
    """Return a dataset whose first element takes no more than itself, and leaves nothing behind."""
    if isinstance(op, (_ops.Cache, _ops.Prefetch, _ops.Shuffle)):
        return _for_a_look(op.input)
    if isinstance(op, _ops.Map):
        op = msgspec.structs.replace(op, parallel_calls=1)
    return op.over([_for_a_look(parent) for parent in op.inputs])
