"""Which worker reads what: decided from the description of a dataset alone."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ..data import _ops
from ..data._cache import FileStore
from ..data._cardinality import cardinality
from ..data._element_spec import first_element, first_elements
from ..data._elements import batch_size as size_of_batch
from ..data._options import AutoShardPolicy
from ..data._user_functions import call
from ..errors import InvalidArgumentError, NotFoundError
from ._rebatch import Layout, cut_evenly


@dataclass(frozen=True)
class ShardPlan:
    """What one worker reads, and why."""

    policy: AutoShardPolicy  # never AUTO
    reason: str
    layout: Layout
    op: _ops.Op  # what this worker reads
    whole: _ops.Op  # what all workers read together

    @property
    def cuts_each_batch(self) -> bool:
        """Whether all workers see the same batches, of which each takes its part."""
        return self.policy is AutoShardPolicy.DATA

    def __str__(self) -> str:
        layout = self.layout
        batch = last_batch(self.whole)
        uneven = batch is not None and batch.size % layout.replicas_in_sync
        return (
            f"Input of worker {layout.worker}: {self.policy.name} sharding, because "
            f"{self.reason}; {layout}; {self._amount()}"
            + "; parts differ in size, so that every step runs uncompiled" * bool(uneven)
            + "."
        )

    def _amount(self) -> str:
        if self.policy is AutoShardPolicy.OFF:
            return "every worker reads the whole dataset"
        batch = last_batch(self.whole)
        if batch is None:
            return "the number of examples is not known before they are read"
        examples = cardinality(batch.input)
        if cardinality(self.whole) == _ops.INFINITE_CARDINALITY:
            return f"global batches of {batch.size}, without end"
        if not self.cuts_each_batch or examples < 0 or not delivers_all(self.whole):
            return f"global batches of {batch.size}, counted when read"
        full, remainder = divmod(examples, batch.size)
        if batch.drop_remainder and remainder:
            what = "1 example is" if remainder == 1 else f"{remainder} examples are"
            last, examples = f"the last {what} dropped", examples - remainder
        elif remainder:
            last = f"the last batch holds {remainder}, and is used"
        else:
            last = "nothing is left over"
        own = full * _own_examples(batch.size, self.layout)
        if not batch.drop_remainder:
            own += _own_examples(remainder, self.layout)
        return f"{own} of {examples} examples here, in global batches of {batch.size}; {last}"


def delivers_all(op: _ops.Op) -> bool:
    """Tell whether a dataset delivers just the batches it makes, each once."""
    while isinstance(op, (_ops.Map, _ops.Shuffle, _ops.Cache, _ops.Prefetch, _ops.WithOptions)):
        op = op.input
    return isinstance(op, _ops.Batch)


def _own_examples(batch_size: int, layout: Layout) -> int:
    return sum(stop - start for start, stop in cut_evenly(batch_size, layout))


def plan(op: _ops.Op, layout: Layout) -> ShardPlan:
    """Decide what a worker reads of a dataset, by its options.

    Raises:
      InvalidArgumentError: when there are fewer files than workers, or no hint for HINT.
      NotFoundError: when files are to be divided between workers and the dataset reads none.
    """
    policy = _ops.options_of(op).experimental_distribute.auto_shard_policy
    if policy is AutoShardPolicy.AUTO:
        obstacle = _why_not_by_file(op)
        if obstacle is not None:
            return ShardPlan(AutoShardPolicy.DATA, obstacle, layout, op, op)
        return _by_file(op, layout, "it reads files and AUTO was asked for")
    asked = f"{policy.name} was asked for"
    if policy is AutoShardPolicy.FILE:
        return _by_file(op, layout, asked)
    if policy is AutoShardPolicy.HINT:
        return _by_hint(op, layout, asked)
    return ShardPlan(policy, asked, layout, op, op)


# --- By file ---------------------------------------------------------------------------------


def _why_not_by_file(op: _ops.Op) -> str | None:
    """Return why AUTO divides the elements of a dataset instead of its files, if it does."""
    if not _reads_files(op):
        return "it reads no files"
    for part in _ops.all_ops(op):
        if isinstance(part, (_ops.Take, _ops.Skip, _ops.Enumerate, _ops.Zip)):
            name = type(part).__name__.lower()
            return f"{name!r} means something else when each worker reads only some of the files"
    return None


def _reads_files(op: _ops.Op) -> bool:
    """Tell whether all a dataset reads comes from files."""
    if isinstance(op, (_ops.FileNames, _ops.ReadFiles)):
        return True
    if isinstance(op, _ops.Interleave) and not _reads_files(op.input):
        return _makes_readers(op)
    return bool(op.inputs) and all(_reads_files(parent) for parent in op.inputs)


def _makes_readers(op: _ops.Interleave) -> bool:
    if cardinality(op.input) == 0:
        return False
    made = call(op.fn, first_element(op.input))
    return any(isinstance(part, _ops.ReadFiles) for part in _ops.all_ops(made))


def _by_file(op: _ops.Op, layout: Layout, reason: str) -> ShardPlan:
    if layout.workers == 1 and not _ends_in_batches(op):
        reason += ", by one worker, which takes batches as they come"
        return ShardPlan(AutoShardPolicy.DATA, reason, layout, op, op)
    if not _reads_files(op):
        if layout.workers == 1:  # which reads everything, whatever it is
            return ShardPlan(AutoShardPolicy.FILE, reason, layout, op, op)
        raise NotFoundError(
            "The dataset has an unshardable source: AutoShardPolicy.FILE divides the files of "
            "TextLineDataset, TFRecordDataset or list_files between the workers, and this one "
            "reads other things. Use AutoShardPolicy.DATA."
        )
    return ShardPlan(AutoShardPolicy.FILE, reason, layout, _with_own_files(op, layout), op)


def _with_own_files(op: _ops.Op, layout: Layout) -> _ops.Op:
    if isinstance(op, _ops.FileNames):
        _check_enough_files(len(op.names), layout)
        own = op.names[layout.worker :: layout.workers]
        return msgspec.structs.replace(op, names=own, first=layout.worker, step=layout.workers)
    if isinstance(op, (_ops.ReadFiles, _ops.Interleave)):
        (names,) = op.inputs
        if _reads_files(names):
            return op.over([_with_own_files(names, layout)])
        _check_enough_files(cardinality(names), layout)
        if layout.workers == 1:  # with the states of the dataset as it is
            return op
        return op.over([_ops.Shard(names, layout.workers, layout.worker)])
    changed = op.over([_with_own_files(parent, layout) for parent in op.inputs])
    if isinstance(changed, _ops.Cache) and changed.filename and layout.workers > 1:
        own = f"{changed.filename}-{layout.worker}-of-{layout.workers}"
        return msgspec.structs.replace(changed, filename=own, store=FileStore(own))
    return changed


def _check_enough_files(count: int, layout: Layout) -> None:
    if 0 <= count < layout.workers:
        raise InvalidArgumentError(
            f"There are not enough files: {count} for {layout.workers} workers, so that "
            f"{layout.workers - count} would have nothing to read. Write more files, or use "
            "AutoShardPolicy.DATA, with which every worker reads all files and takes its part of "
            "each batch."
        )


# --- By hint ---------------------------------------------------------------------------------


def _by_hint(op: _ops.Op, layout: Layout, reason: str) -> ShardPlan:
    hints = [part for part in _ops.all_ops(op) if _is_hint(part)]
    if not hints:
        raise InvalidArgumentError(
            "AutoShardPolicy.HINT was asked for, and the dataset has no hint: call "
            "shard(jt.data.experimental.SHARD_HINT, jt.data.experimental.SHARD_HINT) where it is "
            "to be divided between workers, or use AutoShardPolicy.DATA."
        )
    own = _with_hints_replaced(op, layout)
    whole = _with_hints_replaced(op, Layout(1, 0, layout.replicas_in_sync))
    return ShardPlan(AutoShardPolicy.HINT, reason, layout, own, whole)


def _is_hint(op: _ops.Op) -> bool:
    return isinstance(op, _ops.Shard) and op.num_shards == _ops.SHARD_HINT


def _with_hints_replaced(op: _ops.Op, layout: Layout) -> _ops.Op:
    changed = op.over([_with_hints_replaced(parent, layout) for parent in op.inputs])
    if isinstance(changed, _ops.Shard) and _is_hint(changed):
        return msgspec.structs.replace(changed, num_shards=layout.workers, index=layout.worker)
    return changed


# --- The size of a batch ---------------------------------------------------------------------

_KEEP_BATCHES = (
    _ops.Map,
    _ops.Filter,
    _ops.Shuffle,
    _ops.Repeat,
    _ops.Take,
    _ops.Skip,
    _ops.Shard,
    _ops.Cache,
    _ops.Prefetch,
    _ops.WithOptions,
)


def last_batch(op: _ops.Op) -> _ops.Batch | None:
    """Return the operation that makes the batches a dataset delivers, if it is plain to see."""
    while isinstance(op, _KEEP_BATCHES):
        op = op.input
    return op if isinstance(op, _ops.Batch) else None


def _ends_in_batches(op: _ops.Op) -> bool:
    """Tell whether a dataset delivers batches as they were made, and not what a function returns.

    As in the reference, batches of which not all is known are cut one by one: of a last one that is
    smaller, all replicas get some.
    """
    while isinstance(op, _KEEP_BATCHES) and not isinstance(op, _ops.Map):
        op = op.input
    return isinstance(op, _ops.Batch)


def global_batch_size(op: _ops.Op) -> int:
    """Return how many examples the batches of a dataset hold, by looking at one if need be."""
    batch = last_batch(op)
    if batch is not None:
        return batch.size
    elements = first_elements(op)
    return size_of_batch(elements[0], "An element of the dataset") if elements else 1


def is_in_own_memory(op: _ops.Op) -> bool:
    """Tell whether the elements of a dataset are in memory to which nobody else can write.

    What is read or put together here is; what a function returns may be anybody's.
    """
    while isinstance(op, _KEEP_BATCHES) and not isinstance(op, _ops.Map):
        op = op.input
    own = (_ops.Batch, _ops.External, _ops.Slices, _ops.Range, _ops.ReadFiles, _ops.FileNames)
    return isinstance(op, own)


def without_prefetch(op: _ops.Op) -> _ops.Op:
    """Return a dataset without the threads it ends with; a distributed one has its own."""
    while isinstance(op, (_ops.Prefetch, _ops.WithOptions)):
        op = op.input
    return op
