"""How many elements a dataset has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import _ops


def cardinality(op: _ops.Op) -> int:
    """Return the number of elements, _ops.INFINITE_CARDINALITY or _ops.UNKNOWN_CARDINALITY."""
    own = _CARDINALITIES.get(type(op))
    return own(op) if own is not None else _ops.UNKNOWN_CARDINALITY


def _of_input(op: Any) -> int:
    return cardinality(op.input)


def _of_repeat(op: _ops.Repeat) -> int:
    size = cardinality(op.input)
    if size == 0 or op.count == 0:
        return 0
    if op.count is None or size == _ops.INFINITE_CARDINALITY:
        return _ops.INFINITE_CARDINALITY
    return size if size == _ops.UNKNOWN_CARDINALITY else size * op.count


def _of_take(op: _ops.Take) -> int:
    size = cardinality(op.input)
    if size == _ops.UNKNOWN_CARDINALITY:
        return 0 if op.count == 0 else size
    return op.count if size == _ops.INFINITE_CARDINALITY else min(size, op.count)


def _of_skip(op: _ops.Skip) -> int:
    size = cardinality(op.input)
    return size if size < 0 else max(0, size - op.count)


def _of_shard(op: _ops.Shard) -> int:
    size = cardinality(op.input)
    if op.num_shards == _ops.SHARD_HINT:
        return size if size == _ops.INFINITE_CARDINALITY else _ops.UNKNOWN_CARDINALITY
    return size if size < 0 else len(range(op.index, size, op.num_shards))


def _of_batch(op: _ops.Batch) -> int:
    size = cardinality(op.input)
    if size < 0:
        return size
    return size // op.size if op.drop_remainder else -(-size // op.size)


def _of_unbatch(op: _ops.Unbatch) -> int:
    input = op.input
    if isinstance(input, _ops.Batch) and input.drop_remainder:
        batches = cardinality(input)
        return batches * input.size if batches >= 0 else batches
    if isinstance(input, _ops.Slices) and all(column.ndim > 1 for column in input.columns):
        return input.size * input.columns[0].shape[1]
    return _ops.UNKNOWN_CARDINALITY


def _of_concatenate(op: _ops.Concatenate) -> int:
    sizes = [cardinality(part) for part in op.parts]
    if _ops.INFINITE_CARDINALITY in sizes:
        return _ops.INFINITE_CARDINALITY
    return _ops.UNKNOWN_CARDINALITY if _ops.UNKNOWN_CARDINALITY in sizes else sum(sizes)


def _of_zip(op: _ops.Zip) -> int:
    sizes = [cardinality(part) for part in op.parts]
    if _ops.UNKNOWN_CARDINALITY in sizes:
        return _ops.UNKNOWN_CARDINALITY
    return min((size for size in sizes if size >= 0), default=_ops.INFINITE_CARDINALITY)


_CARDINALITIES: Mapping[type[_ops.Op], Callable[[Any], int]] = {
    _ops.Slices: lambda op: op.size,
    _ops.Range: lambda op: len(op.numbers),
    _ops.FileNames: lambda op: len(op.names),
    _ops.External: lambda op: op.source.size,
    _ops.Map: _of_input,
    _ops.Enumerate: _of_input,
    _ops.Shuffle: _of_input,
    _ops.Cache: _of_input,
    _ops.Prefetch: _of_input,
    _ops.WithOptions: _of_input,
    _ops.Repeat: _of_repeat,
    _ops.Take: _of_take,
    _ops.Skip: _of_skip,
    _ops.Shard: _of_shard,
    _ops.Batch: _of_batch,
    _ops.Unbatch: _of_unbatch,
    _ops.Concatenate: _of_concatenate,
    _ops.Zip: _of_zip,
}
