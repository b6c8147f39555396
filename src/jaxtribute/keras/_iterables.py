"""Generators, and datasets of Keras: what is read in a way of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Any, cast

import keras
import numpy as np

from .._specs import TensorSpec
from ..data import Dataset, _ops
from ..data._elements import map_specs, spec_of
from ..input._sources._iterables import Converted, IterableSource
from . import _private
from ._arrays import without_none
from ._sparse import dense


def read_once(iterator: Iterator[Any]) -> tuple[Any, Dataset]:
    """Return what batches look like, and the leaves of those of something that is read once.

    Raises:
      ValueError: when there are none.
    """
    source = _OnceSource(iterator)
    return source.structure, Dataset(_ops.External(source))


class _OnceSource(IterableSource):
    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__(iterator)
        try:
            first = next(iterator)
        except StopIteration:
            raise ValueError(
                f"{iterator!r} has delivered nothing: it is empty, or was read to its end before. "
                "A generator can be read once; call the function that makes it again."
            ) from None
        self.structure, self.spec = _look_of(first)
        self._rest = _leaves(chain([first], iterator), self.structure)

    def open(self) -> Iterator[Any]:
        """Go on reading."""
        return Converted(self._rest)


def read_py_dataset(dataset: keras.utils.PyDataset, shuffle: bool) -> tuple[Any, Dataset]:
    """Return what batches look like, and the leaves of those of a dataset of Keras.

    They are in another order in each pass if shuffled.
    """
    source = _PyDatasetSource(dataset, shuffle)
    return source.structure, Dataset(_ops.External(source))


class _PyDatasetSource:
    """Reads by as many threads or processes as the dataset asks for."""

    def __init__(self, dataset: keras.utils.PyDataset, shuffle: bool) -> None:
        self.name = f"the {type(dataset).__name__}"
        size = cast(int | None, dataset.num_batches)
        self.size = _ops.INFINITE_CARDINALITY if size is None else size
        self._dataset = dataset
        self._shuffle = shuffle and size is not None
        self._passes = 0

    @cached_property
    def _look(self) -> tuple[Any, Any]:
        return _look_of(next(self._read(None)))

    @property
    def structure(self) -> Any:
        return self._look[0]

    @property
    def spec(self) -> Any:
        return self._look[1]

    def open(self) -> Iterator[Any]:
        """Start reading."""
        order = None
        if self._shuffle:  # the same on all workers, which would lose and repeat batches otherwise
            order = np.random.default_rng(self._passes).permutation(self.size)
        self._passes += 1
        return Converted(_leaves(self._read(order), self.structure))

    def _read(self, order: Any) -> Iterator[Any]:
        reader = _private.py_dataset_reader(_Ordered(self._dataset, order))
        reader.on_epoch_begin()
        try:
            yield from reader.get_numpy_iterator()
        finally:
            reader.on_epoch_end()


class _Ordered(keras.utils.PyDataset):
    """The batches of a dataset in an order."""

    def __init__(self, dataset: keras.utils.PyDataset, order: Any) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset = dataset
        self._order = order

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index if self._order is None else int(self._order[index])]

    @property
    def num_batches(self) -> Any:
        return self._dataset.num_batches


def _look_of(batch: Any) -> tuple[Any, Any]:
    """Return the structure of a batch, and the specs of its leaves; others may be longer."""
    _, structure = without_none(_tuple(batch))

    def of_any_length(spec: TensorSpec) -> TensorSpec:
        return TensorSpec((None, *spec.shape[1:]) if spec.shape else spec.shape, spec.dtype)

    leaves = next(Converted(_leaves(iter([batch]), structure)))
    return structure, map_specs(of_any_length, spec_of(leaves))


def _leaves(batches: Iterator[Any], structure: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the arrays of each batch, of which sparse ones become dense.

    Raises:
      ValueError: for a batch that looks different from the first.
    """
    for batch in batches:
        leaves, own = without_none(_tuple(batch))
        if own != structure:
            raise ValueError(
                f"Batches must have the same structure: the first one had {structure}, with 0 for "
                f"each array, and another one has {own}."
            )
        yield tuple(map(dense, leaves))


def _tuple(batch: Any) -> Any:
    return tuple(cast(list[Any], batch)) if isinstance(batch, list) else batch


def sparse_made_dense(dataset: Any) -> Any:
    """Return a dataset of tf.data without sparse tensors, and anything else as it is."""
    tf: Any = sys.modules.get("tensorflow")
    if tf is None or not isinstance(dataset, tf.data.Dataset):
        return dataset
    specs = keras.tree.flatten(dataset.element_spec)
    if not any(isinstance(spec, tf.SparseTensorSpec) for spec in specs):
        return dataset

    def densely(*batch: Any) -> Any:
        whole: Any = batch if len(batch) > 1 else next(iter(batch))
        return tf.nest.map_structure(
            lambda leaf: tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf,
            whole,
        )

    return dataset.map(densely)
