"""Generators, and datasets of Keras: what is read in a way of its own."""

from __future__ import annotations

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


def read_once(iterator: Iterator[Any]) -> Dataset:
    """Return the batches of something that is read once, a part in each epoch.

    Raises:
      ValueError: when there are none.
    """
    return Dataset(_ops.External(_OnceSource(iterator)))


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
        self._rest = chain([first], iterator)
        self.spec = _spec_of(first)

    def open(self) -> Iterator[Any]:
        """Go on reading."""
        return Converted(self._rest)


def read_py_dataset(dataset: keras.utils.PyDataset, shuffle: bool) -> Dataset:
    """Return the batches of a dataset of Keras, in another order in each pass if shuffled."""
    return Dataset(_ops.External(_PyDatasetSource(dataset, shuffle)))


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
    def spec(self) -> Any:
        return _spec_of(next(self._read(None)))

    def open(self) -> Iterator[Any]:
        """Start reading."""
        order = None
        if self._shuffle:  # the same on all workers, which would lose and repeat batches otherwise
            order = np.random.default_rng(self._passes).permutation(self.size)
        self._passes += 1
        return Converted(self._read(order))

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


def _spec_of(batch: Any) -> Any:
    """Return what batches like this one look like; another may have another length."""

    def of_any_length(spec: TensorSpec) -> TensorSpec:
        return TensorSpec((None, *spec.shape[1:]) if spec.shape else spec.shape, spec.dtype)

    return map_specs(of_any_length, spec_of(next(Converted(iter([batch])))))
