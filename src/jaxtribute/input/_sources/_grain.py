"""Datasets and loaders of Grain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ...data import _ops
from ._iterables import Converted, IterableSource


def from_grain(value: Any) -> _ops.Op | None:
    grain = sys.modules.get("grain")
    if grain is None:
        return None
    if isinstance(value, grain.MapDataset):
        source = IterableSource(value.to_iter_dataset(), "the Grain MapDataset")
        source.size = _length_in_grain(value)
        return _ops.External(source)
    if isinstance(value, grain.IterDataset):
        return _ops.External(IterableSource(value, "the Grain IterDataset"))
    if isinstance(value, grain.DataLoader):
        return _ops.External(_GrainLoaderSource(value, "the Grain DataLoader"))
    return None


def _length_in_grain(dataset: Any) -> int:
    def all_of(part: Any) -> Iterator[Any]:
        yield part
        for parent in part.parents:
            yield from all_of(parent)

    if any(type(part).__name__.startswith("Filter") for part in all_of(dataset)):
        return _ops.UNKNOWN_CARDINALITY  # its length counts what is left out as well
    # Grain has no end at sys.maxsize elements, which may then form batches.
    return _ops.INFINITE_CARDINALITY if len(dataset) > 1 << 40 else len(dataset)


class _GrainLoaderSource(IterableSource):
    """A loader of Grain, whose states are bytes that hold JSON."""

    def open(self) -> Iterator[Any]:
        iterator: Any = iter(self._iterable)
        converted = Converted(iterator)
        converted.get_state = lambda: {"loader": iterator.get_state().decode()}
        converted.set_state = lambda state: iterator.set_state(state["loader"].encode())
        return converted
