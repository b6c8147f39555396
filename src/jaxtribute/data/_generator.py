"""Generator functions as sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import _tree
from .._specs import TensorSpec
from ..errors import InvalidArgumentError
from . import _ops
from ._elements import as_element, structure_text


class GeneratorSource:
    """What a function yields, converted to a signature if there is one."""

    size = _ops.UNKNOWN_CARDINALITY

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], signature: Any) -> None:
        if not callable(function):
            raise TypeError(
                f"from_generator takes a function that returns a generator, so that the dataset "
                f"can be read again; got {function!r}."
            )
        self.name = f"the generator {getattr(function, '__qualname__', function)!r}"
        self.spec = signature
        self._function = function
        self._args = args

    def open(self) -> Iterator[Any]:
        """Call the function, and read what it returns."""
        number = 0
        try:
            for number, value in enumerate(self._function(*self._args)):
                element = as_element(value)
                yield element if self.spec is None else self._converted(element, number)
                number += 1
        except Exception as error:
            error.add_note(f"Raised by {self.name}, for element {number}.")
            raise

    def _converted(self, element: Any, number: int) -> Any:
        specs, expected = _tree.flatten(self.spec)
        leaves, structure = _tree.flatten(element)
        try:
            converted = [
                _converted_leaf(spec, leaf) for spec, leaf in zip(specs, leaves, strict=True)
            ]
            if structure == expected and all(map(_fits, specs, converted)):
                return structure.unflatten(converted)
        except (ValueError, TypeError):
            pass
        raise InvalidArgumentError(
            f"Element {number} of {self.name} does not fit its signature: expected {self.spec}, "
            f"got {structure_text(element)}."
        )


def _is_text(spec: TensorSpec) -> bool:
    return spec.dtype.kind in "OSU"


def _converted_leaf(spec: TensorSpec, leaf: Any) -> Any:
    if isinstance(leaf, bytes) or _is_text(spec):
        return leaf
    return np.asarray(leaf, spec.dtype)[()]


def _fits(spec: TensorSpec, leaf: Any) -> bool:
    if isinstance(leaf, bytes):
        return _is_text(spec) and not spec.shape
    if _is_text(spec):
        return leaf.dtype.kind == "O"
    return spec.is_compatible_with(TensorSpec(np.shape(leaf), leaf.dtype))


def signature_of(types: Any, shapes: Any) -> Any:
    """Return the descriptions of components, given their types and perhaps their shapes."""
    if isinstance(types, (tuple, dict)):
        keys = range(len(types)) if isinstance(types, tuple) else list(types)
        parts = {
            key: signature_of(types[key], None if shapes is None else shapes[key]) for key in keys
        }
        return tuple(parts.values()) if isinstance(types, tuple) else parts
    return TensorSpec(shapes, types)
