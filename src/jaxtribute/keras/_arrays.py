"""Arrays that `fit`, `evaluate` and `predict` are given, as a dataset."""

from __future__ import annotations

import logging
from typing import Any, cast

import keras
import numpy as np

from .. import _tree
from ..data import Dataset, _ops
from ._sparse import SparseRows, is_sparse

_DEFAULT_BATCH = 32

_log = logging.getLogger("jaxtribute")


def are_arrays(x: Any) -> bool:
    """Tell whether something is an array, or a structure of arrays."""
    leaves = keras.tree.flatten(x)
    return any(leaf is not None for leaf in leaves) and all(map(_is_array, leaves))


def _is_array(leaf: Any) -> bool:
    return leaf is None or hasattr(leaf, "__array__") or is_sparse(leaf)


def batched(
    strategy: Any,
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    steps: int | None,
    shuffle: bool | str,
) -> tuple[Any, Dataset]:
    """Return what arrays look like, and batches of their leaves.

    Raises:
      ValueError: when they do not go together.
    """
    rows, length = _rows(x, y, sample_weight)
    size = batch_size or (-(-length // steps) if steps else _DEFAULT_BATCH)
    _tell_of_uneven_parts(strategy, size, length)
    leaves, structure = without_none(rows)
    dataset = Dataset(_ops.Slices(list(leaves), _tree.flatten(leaves)[1], length))
    if shuffle:
        # Keras's "batch" mixes the examples of each batch only.
        dataset = _shuffled(dataset, size if shuffle == "batch" else length)
    return structure, dataset.batch(size)


def without_none(rows: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the leaves of a structure, and the structure with None where it has None.

    Datasets would make one array of a list of them, and have no place for None.
    """
    leaves = tuple(leaf for leaf in keras.tree.flatten(rows) if leaf is not None)
    return leaves, keras.tree.map_structure(lambda leaf: None if leaf is None else 0, rows)


def _shuffled(dataset: Dataset, window: int) -> Dataset:
    """Shuffle, as `keras.utils.set_random_seed` says; on all workers as on the first."""
    seed = int(np.random.randint(2**31))
    return Dataset(_ops.with_unset_seeds(dataset.shuffle(window).op, [seed]))


def _tell_of_uneven_parts(strategy: Any, size: int, length: int) -> None:
    replicas = strategy.num_replicas_in_sync
    if size % replicas and length > size:
        _log.warning(
            "Batches of %d examples cannot be divided evenly between %d replicas, so each replica "
            "computes all of them, which is exact but takes as long as on one device. A batch_size "
            "of %d can be divided.",
            size,
            replicas,
            -(-size // replicas) * replicas,
        )


def _rows(x: Any, y: Any, sample_weight: Any) -> tuple[Any, int]:
    """Return the arrays, as one structure, and their length."""
    for name, value in (("x", x), ("y", y), ("sample_weight", sample_weight)):
        if not all(map(_is_array, keras.tree.flatten(value))):
            raise ValueError(
                f"{name} must be an array, or a list or dict of arrays, got "
                f"{shortened(value)}. Convert it with `np.asarray`."
            )
    if keras.tree.is_nested(y) and sample_weight is not None:
        sample_weight = _weights_of_outputs(y, sample_weight)
    parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    rows = cast(Any, keras.tree.map_structure(_as_array, parts))
    lengths = [
        sorted({len(leaf) for leaf in keras.tree.flatten(part) if leaf is not None})
        for part in rows
    ]
    if len({length for each in lengths for length in each}) > 1:
        named = zip(("x", "y", "sample_weight"), lengths, strict=False)
        raise ValueError(
            "x, y and sample_weight must have the same number of rows, got "
            + ", ".join(f"{' and '.join(map(str, each))} in {name}" for name, each in named)
            + "."
        )
    length = next(each[0] for each in lengths if each)
    if not length:
        raise ValueError("x has no examples: the arrays are empty.")
    return rows, length


def _weights_of_outputs(y: Any, sample_weight: Any) -> Any:
    """Return the weights of each output, which a single array is for all of."""
    if keras.tree.is_nested(sample_weight):
        try:
            keras.tree.assert_same_structure(y, sample_weight)
        except ValueError as error:
            raise ValueError(
                "With several outputs, sample_weight must be one array for all of them, or one "
                f"for each, in the structure of y: {error}"
            ) from None
        return sample_weight
    if np.ndim(sample_weight) != 1 and np.shape(sample_weight)[1:] != (1,):
        raise ValueError(
            "With several outputs, one array of sample_weight must have one number for each "
            f"example, and this one has the shape {np.shape(sample_weight)}. Pass one array for "
            "each output instead."
        )
    return keras.tree.map_structure(lambda _: sample_weight, y)


def _as_array(leaf: Any) -> Any:
    if leaf is None:
        return None
    array: Any = SparseRows.of(leaf) if is_sparse(leaf) else np.asarray(leaf)
    if not array.ndim:
        raise ValueError(f"Arrays need a row for each example, got the number {array}.")
    if array.ndim == 1 and hasattr(leaf, "to_numpy"):
        array = array[:, None]  # Keras makes a column of a series of pandas
    check_dtype(array.dtype)
    # As Keras does with arrays, but not with datasets.
    is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(array.dtype))
    wanted = keras.config.floatx()
    return array.astype(wanted) if is_float and array.dtype != wanted else array


def check_dtype(dtype: Any) -> None:
    """Refuse text, which JAX does not compute with.

    Raises:
      ValueError: when it is text.
    """
    if np.dtype(dtype).kind in "OSU":
        raise ValueError(
            f"JAX computes with numbers, and the data have the type {np.dtype(dtype)}. Turn text "
            "into numbers first, such as by a keras.layers.StringLookup or TextVectorization in "
            "the `map` of a dataset."
        )


def shortened(value: Any) -> str:
    """Return a text that shows the beginning of a value."""
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."
