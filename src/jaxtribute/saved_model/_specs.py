"""Descriptions of what programs take and return, as JSON keeps them.

An array is `{"shape": ["batch", 3], "dtype": "float32"}`: sizes are numbers, or names of dimensions
that may vary. Structures are `{"dict": ...}`, `{"list": [...]}`, `{"tuple": [...]}`; None is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from .._wide import check_fits
from ..errors import InvalidArgumentError

Described = Any  # see above
_BATCH = "batch"  # what a first dimension is called that is None


def described_specs(name: str, specs: Mapping[str, Any]) -> dict[str, Described]:
    """Return the descriptions of the arguments of a signature.

    Args:
      name: that of the signature, for messages.
      specs: a `TensorSpec` or `jax.ShapeDtypeStruct` for each argument, or a structure of them.

    Raises:
      InvalidArgumentError: for anything else.
    """
    unnamed = iter(f"d{number}" for number in range(1_000_000))

    def leaf(spec: Any, where: str) -> Described:
        if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
            raise InvalidArgumentError(
                f"The argument {where} of the signature {name!r} is described by {spec!r}. Use a "
                "jt.TensorSpec or a jax.ShapeDtypeStruct, or a dict, list or tuple of them."
            )
        if spec.shape is None:
            raise InvalidArgumentError(
                f"The argument {where} of the signature {name!r} may have any number of dimensions "
                "according to its spec; a program needs to know how many. Those that vary are None."
            )
        sizes = [
            (_BATCH if axis == 0 else next(unnamed)) if size is None else _size(size)
            for axis, size in enumerate(spec.shape)
        ]
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
        return {"shape": sizes, "dtype": str(np.dtype(dtype))}

    return {argument: _walk(spec, leaf, repr(argument)) for argument, spec in specs.items()}


def described_arrays(tree: Any, what: str) -> Described:
    """Return the description of arrays, traced ones as well.

    Raises:
      InvalidArgumentError: for a structure of other things than dicts, lists and tuples.
    """

    def leaf(value: Any, where: str) -> Described:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise InvalidArgumentError(
                f"{where} is {value!r}. A program returns arrays, in dicts, lists and tuples."
            )
        return {"shape": [_size(size) for size in value.shape], "dtype": str(value.dtype)}

    return _walk(tree, leaf, what)


def _walk(tree: Any, leaf: Callable[[Any, str], Described], where: str) -> Described:
    if tree is None:
        return None
    if type(tree) is dict:
        if not all(isinstance(key, str) for key in tree):
            raise InvalidArgumentError(f"The keys of {where} have to be texts, got {list(tree)}.")
        return {"dict": {k: _walk(v, leaf, f"{where}[{k!r}]") for k, v in tree.items()}}
    if type(tree) in (list, tuple):
        items = [_walk(value, leaf, f"{where}[{i}]") for i, value in enumerate(tree)]
        return {type(tree).__name__: items}
    return leaf(tree, where)


def _size(size: Any) -> int | str:
    return int(size) if isinstance(size, (int, np.integer)) else str(size)


def rebuilt(described: Described, leaf: Callable[[Any], Any]) -> Any:
    """Return a structure like the one that is described, made of what `leaf` makes of arrays."""
    if described is None:
        return None
    if "dict" in described:
        return {key: rebuilt(value, leaf) for key, value in described["dict"].items()}
    if "list" in described:
        return [rebuilt(value, leaf) for value in described["list"]]
    if "tuple" in described:
        return tuple(rebuilt(value, leaf) for value in described["tuple"])
    return leaf(described)


def symbolic(arguments: Mapping[str, Described]) -> dict[str, Any]:
    """Return what `jax.export` takes for arguments: dimensions of one name have one size."""
    scope = export.SymbolicScope()

    def leaf(described: Any) -> Any:
        # Always with a comma: a shape of one dimension.
        text = "".join(f"{size}, " for size in described["shape"])
        shape = export.symbolic_shape(text, scope=scope)
        return jax.ShapeDtypeStruct(shape, np.dtype(described["dtype"]))

    return {name: rebuilt(described, leaf) for name, described in arguments.items()}


# --- Values that are given -----------------------------------------------------------------


def fitted(what: str, arguments: Mapping[str, Described], given: Mapping[str, Any]) -> Any:
    """Return arguments as arrays, after checking them.

    Args:
      what: what is called, for messages.
      arguments: what it takes.
      given: a value for each.

    Raises:
      InvalidArgumentError: for a value of another shape, type or structure.
    """
    sizes: dict[str, tuple[int, str]] = {}
    return {
        name: _fitted(described, given[name], f"The argument {name!r} of {what}", sizes)
        for name, described in arguments.items()
    }


def _fitted(described: Described, value: Any, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    if described is None:
        if value is not None:
            raise InvalidArgumentError(f"{where} has to be None, got {value!r}.")
        return None
    if "dict" in described:
        parts = described["dict"]
        if not isinstance(value, Mapping) or value.keys() != parts.keys():
            got = sorted(value) if isinstance(value, Mapping) else repr(value)
            raise InvalidArgumentError(
                f"{where} has to be a dict with the keys {sorted(parts)}, got {got}."
            )
        return {k: _fitted(v, value[k], f"{where}, at {k!r},", sizes) for k, v in parts.items()}
    for kind, make in (("list", list), ("tuple", tuple)):
        if kind in described:
            parts = described[kind]
            if not isinstance(value, (list, tuple)) or len(value) != len(parts):
                raise InvalidArgumentError(
                    f"{where} has to be a {kind} of {len(parts)} parts, got {value!r}."
                )
            pairs = enumerate(zip(parts, value, strict=True))
            return make(_fitted(p, v, f"{where}, at {i},", sizes) for i, (p, v) in pairs)
    return _fitted_array(described, value, where, sizes)


def _fitted_array(described: Any, value: Any, where: str, sizes: dict[str, tuple[int, str]]) -> Any:
    dtype = np.dtype(described["dtype"])
    wanted = f"an array of shape {shown(described['shape'])} and dtype {dtype}"
    if not isinstance(value, jax.Array) and hasattr(value, "__jax_array__"):
        value = value.__jax_array__()  # of a variable
    if not isinstance(value, jax.Array):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InvalidArgumentError(f"{where} has to be {wanted}: {error}") from error
        if _rank(array.dtype) is None:
            raise InvalidArgumentError(f"{where} has to be {wanted}, got {value!r}.")
        is_typed = isinstance(value, (np.ndarray, np.generic))
        if not is_typed and cast(int, _rank(array.dtype)) <= cast(int, _rank(dtype)):
            array = array.astype(dtype)  # numbers of Python have no type of their own
        check_fits(array, where)
        value = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    if value.dtype != dtype or not _has_sizes(described["shape"], value.shape, where, sizes):
        raise InvalidArgumentError(
            f"{where} has to be {wanted}, got one of shape {tuple(value.shape)} and dtype "
            f"{value.dtype}."
        )
    return value


_RANKS = (np.bool_, np.integer, np.floating, np.complexfloating)


def _rank(dtype: Any) -> int | None:
    """Return how much numbers of a type can express; None for what are no numbers."""
    ranks = (rank for rank, kind in enumerate(_RANKS) if jnp.issubdtype(dtype, kind))
    return next(ranks, None)


def _has_sizes(
    wanted: list[Any], shape: Any, where: str, sizes: dict[str, tuple[int, str]]
) -> bool:
    if len(wanted) != len(shape):
        return False
    for want, size in zip(wanted, shape, strict=True):
        if isinstance(want, int):
            if want != size:
                return False
        elif want.isidentifier() and isinstance(size, int):
            before, first = sizes.setdefault(want, (size, where))
            if before != size:
                raise InvalidArgumentError(
                    f"{where} has size {size} in the dimension {want!r}, and {first} has {before}. "
                    "Dimensions of one name have one size."
                )
    return True


# --- Sizes of zero -------------------------------------------------------------------------


class Empty:
    """Arguments without elements, such as the part of a replica that has no examples left.

    Programs are for sizes from 1 on. So one is called with zeros in a dimension of size 1, of which
    nothing is kept: results that have the dimension have no elements either.
    """

    def __init__(self, arguments: Mapping[str, Described], given: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self.names: set[str] = set()
        for name, described in arguments.items():
            self._find(described, given[name])

    def _find(self, described: Described, value: Any) -> None:
        def note(leaf: Any, array: Any) -> None:
            pairs = zip(leaf["shape"], array.shape, strict=True)
            self.names |= {s for s, size in pairs if isinstance(s, str) and size == 0}

        _map_arrays(note, described, value)

    def leaves_no_doubt(self, outputs: Described) -> bool:
        """Tell whether all results have no elements."""
        leaves: list[Any] = []
        rebuilt(outputs, leaves.append)
        return all(self.names & set(map(str, leaf["shape"])) for leaf in leaves)

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with sizes of 1."""

        def fill(leaf: Any, array: Any) -> Any:
            if not self.names & set(map(str, leaf["shape"])):
                return array
            pairs = zip(leaf["shape"], array.shape, strict=True)
            return jnp.zeros([1 if s in self.names else n for s, n in pairs], array.dtype)

        return {n: _map_arrays(fill, self._arguments[n], given[n]) for n in self._arguments}

    def cut(self, outputs: Described, results: Any) -> Any:
        """Return results with sizes of 0."""

        def cut(leaf: Any, array: Any) -> Any:
            return array[tuple(slice(0 if s in self.names else None) for s in leaf["shape"])]

        return _map_arrays(cut, outputs, results)


def _map_arrays(fn: Callable[[Any, Any], Any], described: Described, value: Any) -> Any:
    """Apply a function to each array of a structure and its description."""
    if described is None:
        return None
    if "dict" in described:
        return {k: _map_arrays(fn, d, value[k]) for k, d in described["dict"].items()}
    for kind, make in (("list", list), ("tuple", tuple)):
        if kind in described:
            pairs = zip(described[kind], value, strict=True)
            return make(_map_arrays(fn, part, own) for part, own in pairs)
    return fn(described, value)


def shown(shape: list[Any]) -> str:
    """Return a shape as it is written in Python, but for quotes."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
