"""The elements of datasets: nested structures of NumPy arrays, and how they are batched.

Tuples, dicts, named tuples and dataclasses are structure; a list is an array, as in tf.data.
"""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _tree
from .._specs import TensorSpec
from .._wide import check_fits
from ..errors import InvalidArgumentError

Array = np.ndarray[Any, Any]

_LEAVES = (np.ndarray, np.generic, bytes)


def as_element(value: Any) -> Any:
    """Return `value` with NumPy arrays and scalars, and bytes, for leaves."""
    if isinstance(value, np.ndarray):
        return as_array(value) if value.dtype.kind in "SUO" else value
    if isinstance(value, (np.generic, bytes)) and not isinstance(value, np.str_):
        return value
    if type(value) is tuple:
        return tuple([as_element(part) for part in value])
    if type(value) is dict:
        return {key: as_element(part) for key, part in value.items()}
    if isinstance(value, Iterator):
        raise TypeError(f"An element of a dataset consists of arrays, got the iterator {value!r}.")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        element = copy.copy(value)
        for field in dataclasses.fields(value):
            leaf = as_element(getattr(value, field.name))
            # By type, so that a dataclass of texts only is opened as one that holds arrays.
            leaf = np.bytes_(leaf) if type(leaf) is bytes else leaf
            object.__setattr__(element, field.name, leaf)
        return element
    return _tree.map_leaves(_as_leaf, value, lambda node: isinstance(node, list))


def _as_leaf(leaf: Any) -> Any:
    if isinstance(leaf, str):
        return leaf.encode()
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "An element of a dataset holds a random key, which cannot leave JAX. Draw from it in "
            "the function given to `map`, or keep its jax.random.key_data."
        )
    if leaf is None:
        raise TypeError("An element of a dataset is None; it must consist of arrays.")
    array = as_array(leaf)
    return array if array.ndim else array[()]


def as_array(value: Any) -> Array:
    """Return an array; Python numbers become the types JAX would give them, text bytes."""
    is_text = isinstance(value, (list, tuple)) and isinstance(_first_item(value), (bytes, str))
    try:
        array = np.asarray(value, object if is_text else None)
    except ValueError as error:
        raise ValueError(
            f"A list stands for one array in a dataset, and {_short(value)} cannot be one. Return "
            "or pass a tuple for several components."
        ) from error
    if array.dtype.kind in "US" and isinstance(value, (list, tuple)):
        raise TypeError(f"Numbers and text cannot be one array: {_short(value)}.")
    if array.dtype.kind in "USO":
        array = array.astype(object)
        texts = [item.encode() if isinstance(item, str) else item for item in array.flat]
        array.flat[:] = texts if texts else None
    if array.dtype == object and not all(isinstance(item, bytes) for item in array.flat):
        raise TypeError(
            f"Elements of a dataset consist of arrays, numbers and text; {_short(value)} of type "
            f"{type(value).__name__} is none of them."
        )
    if _is_python_number(value):
        check_fits(array, "A dataset")
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    return array


def _first_item(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _is_python_number(value: Any) -> bool:
    value = _first_item(value)
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- Batches ---------------------------------------------------------------------------------


def stack(elements: Sequence[Any], number: int = 0) -> Any:
    """Return elements as one, whose leaves have a new leading axis.

    Args:
      elements: the elements, at least one.
      number: that of the first, for messages.

    Raises:
      InvalidArgumentError: when they differ in structure or shape.
    """
    first = elements[0]
    if type(first) is tuple:
        if any(type(e) is not tuple or len(e) != len(first) for e in elements):
            raise differing_structures(elements)
        return tuple([stack(column, number) for column in zip(*elements, strict=True)])
    if type(first) is dict:
        if any(type(e) is not dict or e.keys() != first.keys() for e in elements):
            raise differing_structures(elements)
        return {key: stack([e[key] for e in elements], number) for key in first}
    if isinstance(first, _LEAVES):
        return _stack_leaves(elements, number)
    columns, structure = columns_of(elements)
    return structure.unflatten([_stack_leaves(column, number) for column in columns])


def columns_of(elements: Sequence[Any]) -> tuple[list[tuple[Any, ...]], _tree.Structure]:
    """Return the leaves of elements, leaf by leaf, and the structure they share."""
    _, structure = _tree.flatten(elements[0])
    rows: list[list[Any]] = []
    for element in elements:
        leaves, own = _tree.flatten(element)
        if own != structure:
            raise differing_structures(elements)
        rows.append(leaves)
    return list(zip(*rows, strict=True)), structure


def _stack_leaves(leaves: Sequence[Any], number: int) -> Array:
    first = leaves[0]
    if isinstance(first, bytes):
        if all(isinstance(leaf, bytes) for leaf in leaves):
            return as_array(list(leaves))
    elif len({type(leaf) for leaf in leaves}) == 1 and len({leaf.dtype for leaf in leaves}) == 1:
        is_scalar = isinstance(first, np.generic)
        if is_scalar or len({leaf.shape for leaf in leaves}) == 1:
            return np.array(leaves, first.dtype)
    kind = _kind(first)
    index = next(i for i, leaf in enumerate(leaves) if _kind(leaf) != kind)
    raise InvalidArgumentError(
        f"Elements of different shapes, types or structures cannot form a batch: element {number} "
        f"is {_leaf_text(first)}, element {number + index} {_leaf_text(leaves[index])}. Pad, cut "
        "or convert them in a `map` before `batch`."
    )


def _kind(leaf: Any) -> Any:
    return bytes if isinstance(leaf, bytes) else (np.shape(leaf), np.asarray(leaf).dtype)


def differing_structures(elements: Sequence[Any]) -> InvalidArgumentError:
    """Return the error for elements that are not built alike."""
    first = structure_text(elements[0])
    other = next((t for e in elements[1:] if (t := structure_text(e)) != first), first)
    return InvalidArgumentError(
        f"All elements of a dataset must have one structure: {first} was followed by {other}."
    )


def structure_text(element: Any) -> str:
    """Return how an element is built, for messages."""
    return repr(_tree.map_leaves(lambda leaf: _Shown(_leaf_text(leaf)), element))


def _leaf_text(leaf: Any) -> str:
    return "bytes" if isinstance(leaf, bytes) else f"{np.asarray(leaf).dtype}{np.shape(leaf)}"


class _Shown(str):
    __repr__ = str.__str__


def concatenate(batches: Sequence[Any], number: int = 0) -> Any:
    """Return batches as one, along their leading axis.

    Raises:
      InvalidArgumentError: when their examples differ in structure, shape or type.
    """
    if len(batches) == 1:
        return batches[0]
    columns, structure = columns_of(batches)
    for column in columns:
        if len({(leaf.shape[1:], leaf.dtype) for leaf in column}) > 1:
            raise InvalidArgumentError(
                "Elements of different shapes, types or structures cannot form a batch: from "
                f"element {number} on they are "
                f"{', then '.join(_leaf_text(leaf[0]) for leaf in column)}. Pad, cut or convert "
                "them in a `map` before `batch`."
            )
    return structure.unflatten([np.concatenate(column) for column in columns])


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return the examples `start` to `stop` of a batch."""
    return _tree.map_leaves(lambda leaf: leaf[start:stop], batch)


def copied(element: Any) -> Any:
    """Return an element in memory of its own."""
    if type(element) is tuple:
        return tuple([copied(part) for part in element])
    if isinstance(element, np.ndarray):
        return element.copy()
    if isinstance(element, (np.generic, bytes)):
        return element
    return _tree.map_leaves(copied, element, lambda node: isinstance(node, _LEAVES))


def pick(batch: Any, indices: Array) -> Any:
    """Return the examples of a batch at these indices, as a batch."""
    return _tree.map_leaves(lambda leaf: leaf[indices], batch)


def row(batch: Any, index: int) -> Any:
    """Return one example of a batch."""
    if type(batch) is tuple:
        return tuple([row(part, index) for part in batch])
    if isinstance(batch, np.ndarray):
        return batch[index]
    return _tree.map_leaves(lambda leaf: leaf[index], batch)


def batch_size(batch: Any, what: str) -> int:
    """Return how many examples a batch holds.

    Raises:
      InvalidArgumentError: when it is no batch, or its components hold different numbers.
    """
    leaves, _ = _tree.flatten(batch)
    if not leaves:
        raise InvalidArgumentError(f"{what} is empty: it has no components.")
    for leaf in leaves:
        if np.ndim(leaf) == 0:
            raise InvalidArgumentError(
                f"{what} has no batch dimension: {structure_text(batch)}. Call `batch` on the "
                "dataset first."
            )
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) > 1:
        raise InvalidArgumentError(
            f"The components of {what} hold different numbers of examples: {structure_text(batch)}."
        )
    return sizes.pop()


def fingerprint(element: Any) -> str:
    """Return a short text that differs between elements that differ."""
    checksum = 0
    for leaf in _tree.flatten(element)[0]:
        array = np.asarray(leaf)
        data = b"\0".join(array.flat) if array.dtype == object else array.tobytes()
        checksum = zlib.crc32(data, checksum)
    return f"{checksum:08x}"


def has_batch_dimension(element: Any) -> bool:
    """Tell whether an element can be divided along a leading axis."""
    return all(np.ndim(leaf) for leaf in _tree.flatten(element)[0])


def nothing_like(element: Any) -> Any:
    """Return an empty batch of the type and trailing shape of `element`.

    What has no examples, a number beside a batch, is zero. An element without any batch is empty
    all the same, so that nobody takes it for an example.
    """
    has_batch = any(np.ndim(leaf) for leaf in _tree.flatten(element)[0])

    def empty(leaf: Any) -> Array:
        if np.ndim(leaf):
            return leaf[:0]
        dtype = object if isinstance(leaf, bytes) else leaf.dtype
        return np.zeros((), dtype) if has_batch else np.empty(0, dtype)

    return _tree.map_leaves(empty, element)


def nothing_of(spec: Any) -> Any:
    """Return an empty batch of elements, or of parts of elements, of a description."""
    has_batch = any(one.shape for one in _tree.flatten(spec)[0] if isinstance(one, TensorSpec))

    def empty(one: TensorSpec) -> Array:
        if has_batch and not one.shape:
            return np.zeros((), one.dtype)
        _, *others = one.shape or (0,)
        return np.empty((0, *[size or 0 for size in others]), one.dtype)

    return map_specs(empty, spec)


# --- Descriptions ----------------------------------------------------------------------------


def spec_of(element: Any) -> Any:
    """Return the description of an element."""
    return _tree.map_leaves(_leaf_spec, element)


def _leaf_spec(leaf: Any) -> TensorSpec:
    if isinstance(leaf, bytes):
        return TensorSpec((), np.dtype(object))
    return TensorSpec(np.shape(leaf), leaf.dtype)


def map_specs(fn: Callable[..., Any], *specs: Any) -> Any:
    """Apply `fn` to descriptions that share a structure."""
    flattened = [_tree.flatten(spec) for spec in specs]
    structure = flattened[0][1]
    if any(own != structure for _, own in flattened):
        raise InvalidArgumentError(
            f"The elements have different structures: {', '.join(map(repr, specs))}."
        )
    columns = zip(*[leaves for leaves, _ in flattened], strict=True)
    return structure.unflatten([fn(*column) for column in columns])
