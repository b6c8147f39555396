"""What a dataset consists of: a tree of operations, which describe and do nothing.

`_indexed` and `_stream` execute them; the sharding of a distributed dataset rewrites them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeGuard

import msgspec

from .. import _tree
from ..errors import InvalidArgumentError
from ._elements import Array
from ._options import Options
from ._randomness import mix

INFINITE_CARDINALITY = -1
"""The number of elements of a dataset without end."""
UNKNOWN_CARDINALITY = -2
"""The number of elements of a dataset that has to be read to be counted."""
SHARD_HINT = -1
"""Given to `shard` for both numbers: each worker takes its part here, with the policy HINT."""


class Op(msgspec.Struct, frozen=True, eq=False):
    """One operation of a dataset."""

    @property
    def inputs(self) -> tuple[Op, ...]:
        """The operations whose elements this one takes."""
        own = msgspec.structs.asdict(self).values()
        return tuple(value for value in own if isinstance(value, Op))

    def over(self, inputs: Iterable[Op]) -> Op:
        """Return this operation on other inputs."""
        remaining = iter(inputs)
        own = msgspec.structs.asdict(self)
        changed = {name: next(remaining) for name, value in own.items() if isinstance(value, Op)}
        if all(own[name] is op for name, op in changed.items()):
            return self
        return msgspec.structs.replace(self, **changed)


# --- Sources ---------------------------------------------------------------------------------


class Slices(Op, frozen=True):
    """The rows of arrays in memory."""

    columns: list[Array]
    structure: _tree.Structure
    size: int


class Range(Op, frozen=True):
    """Numbers."""

    numbers: range
    dtype: Any


class FileNames(Op, frozen=True):
    """Names of files, which FILE sharding divides between workers: some of a longer list."""

    names: tuple[bytes, ...]
    first: int = 0  # the place of the first name in that list
    step: int = 1


class Source(Protocol):
    """Anything that can be read more than once, from the start, in one order."""

    name: str
    size: int  # or one of the cardinalities that are not a number
    spec: Any | None  # None: look at the first element

    def open(self) -> Iterator[Any]:
        """Start reading; the iterator may have `get_state` and `set_state`."""
        ...


class External(Op, frozen=True):
    """The elements of something that is not ours: a generator, Grain, PyTorch, tf.data."""

    source: Source


class Reader(Protocol):
    """Reads the records of a file."""

    def open(self, path: str, offset: int) -> Iterator[tuple[Any, int]]:
        """Yield each record, with the offset at which the next one begins."""
        ...


class ReadFiles(Op, frozen=True):
    """The records of files, one file after the other."""

    names: Op
    reader: Reader


# --- Element by element ----------------------------------------------------------------------


class Map(Op, frozen=True):
    """A function of each element, and of a random key when it has a seed."""

    input: Op
    fn: Callable[..., Any]
    seed: int | None
    parallel_calls: int


class Filter(Op, frozen=True):
    """The elements a predicate holds for."""

    input: Op
    predicate: Callable[..., Any]


class Enumerate(Op, frozen=True):
    """Each element with its number."""

    input: Op
    start: int


# --- Which elements, and in which order ------------------------------------------------------


class Shuffle(Op, frozen=True):
    """The elements in another order, within windows of `buffer_size`."""

    input: Op
    buffer_size: int
    seed: int
    reshuffle: bool
    seed_was_given: bool


class Repeat(Op, frozen=True):
    """The input several times, without end when `count` is None."""

    input: Op
    count: int | None


class Take(Op, frozen=True):
    """The first elements."""

    input: Op
    count: int


class Skip(Op, frozen=True):
    """All but the first elements."""

    input: Op
    count: int


class Shard(Op, frozen=True):
    """Every `num_shards`-th element, from `index` on; SHARD_HINT is replaced by HINT sharding."""

    input: Op
    num_shards: int
    index: int


def check_shard(op: Shard) -> None:
    """Refuse to execute what only HINT sharding gives a meaning."""
    if op.num_shards == SHARD_HINT:
        raise InvalidArgumentError(
            "The dataset calls shard(SHARD_HINT, SHARD_HINT), which only distribution with "
            "AutoShardPolicy.HINT replaces by the number and index of the worker. Set that policy "
            "with `with_options`, or call shard with numbers."
        )


# --- Several elements, several inputs --------------------------------------------------------


class Batch(Op, frozen=True):
    """Consecutive elements stacked into one."""

    input: Op
    size: int
    drop_remainder: bool


class Unbatch(Op, frozen=True):
    """The rows of each element."""

    input: Op


class _OfSeveral(Op, frozen=True):
    parts: tuple[Op, ...]

    @property
    def inputs(self) -> tuple[Op, ...]:
        return self.parts

    def over(self, inputs: Iterable[Op]) -> Op:
        parts = tuple(inputs)
        same = all(a is b for a, b in zip(parts, self.parts, strict=True))
        return self if same else msgspec.structs.replace(self, parts=parts)


class Concatenate(_OfSeveral, frozen=True):
    """One input after the other."""


class Zip(_OfSeveral, frozen=True):
    """The elements of several inputs side by side."""

    structure: _tree.Structure


class Interleave(Op, frozen=True):
    """The datasets a function makes of each element, `cycle_length` of them in turn."""

    input: Op
    fn: Callable[..., Op]
    cycle_length: int
    block_length: int
    seed: int  # for what the datasets were given no seed for


# --- How it is executed ----------------------------------------------------------------------


class Store(Protocol):
    """Keeps elements, with their ids, by position; those who use it hold `lock`."""

    lock: threading.RLock
    complete: bool  # all elements are kept

    def emptied(self) -> Store:
        """Return a store for other elements, or this one if it outlives the program."""
        ...

    def __len__(self) -> int:
        """Return how many elements are kept: the first ones."""
        ...

    def get(self, position: int) -> tuple[int, Any]:
        """Return an element that is kept."""
        ...

    def append(self, element_id: int, element: Any) -> None:
        """Keep the next element."""
        ...

    def __contains__(self, position: int) -> bool:
        """Tell whether the element at a position is kept."""
        ...

    def put(self, position: int, element_id: int, element: Any) -> None:
        """Keep the element at any position; only in memory."""
        ...

    def finish(self) -> None:
        """Note that all elements are kept."""
        ...


class Cache(Op, frozen=True):
    """The input, whose elements are computed once and kept: in memory, or in a file."""

    input: Op
    filename: str
    store: Store

    def over(self, inputs: Iterable[Op]) -> Op:
        (input,) = inputs
        return self if input is self.input else Cache(input, self.filename, self.store.emptied())


class Prefetch(Op, frozen=True):
    """The input, read ahead of its reader by a thread."""

    input: Op
    buffer_size: int


class WithOptions(Op, frozen=True):
    """The input with options."""

    input: Op
    options: Options


_IN_MEMORY = (Slices, Range, Shuffle, Repeat, Take, Skip, Shard, Batch, Prefetch, WithOptions)


def options_of(op: Op) -> Options:
    """Return the options set anywhere in a dataset; those set last win."""
    options = Options()
    for parent in op.inputs:
        options = options.merge(options_of(parent))
    return options.merge(op.options) if isinstance(op, WithOptions) else options


def all_ops(op: Op) -> Iterator[Op]:
    """Yield an operation and everything below it."""
    yield op
    for parent in op.inputs:
        yield from all_ops(parent)


# --- Seeds that nobody gave ------------------------------------------------------------------


def cannot_fail(op: Op) -> bool:
    """Tell whether reading elements only moves around what is in memory."""
    return all(isinstance(one, _IN_MEMORY) for one in all_ops(op))


def unset_seeds(op: Op) -> list[int]:
    """Return the seeds that were drawn because none were given, in the order of the operations."""
    return [part.seed for part in all_ops(op) if _has_unset_seed(part)]


def _has_unset_seed(op: Op) -> TypeGuard[Shuffle | Interleave]:
    return isinstance(op, Interleave) or (isinstance(op, Shuffle) and not op.seed_was_given)


def with_unset_seeds(op: Op, seeds: Iterable[int]) -> Op:
    """Return a dataset with other seeds where none were given."""
    return _with_unset_seeds(op, iter(seeds))


def reseeded(op: Op, seed: int) -> Op:
    """Return a dataset with seeds that depend on one where none were given.

    What was shuffled once and is used twice, such as by both sides of a `zip`, stays in one order.
    """
    drawn = unset_seeds(op)
    own = {each: mix(seed, number) for number, each in enumerate(dict.fromkeys(drawn))}
    return with_unset_seeds(op, [own[each] for each in drawn])


def _with_unset_seeds(op: Op, seeds: Iterator[int]) -> Op:
    own = next(seeds) if _has_unset_seed(op) else None
    changed = op.over([_with_unset_seeds(parent, seeds) for parent in op.inputs])
    if own is None or own == getattr(op, "seed", None):
        return changed
    return msgspec.structs.replace(changed, seed=own)


def summary(op: Op) -> str:
    """Return what a dataset consists of, in a line."""
    return " <- ".join(type(part).__name__ for part in all_ops(op))


def fingerprint(op: Op) -> str:
    """Return what decides which elements a dataset has, as far as it can be told, in a line."""
    return " <- ".join(map(_own_fingerprint, all_ops(op)))


def _own_fingerprint(op: Op) -> str:
    own = msgspec.structs.asdict(op)
    numbers = [
        f"{name}={value!r}"
        for name, value in own.items()
        if isinstance(value, (int, range)) and name not in ("parallel_calls", "seed")
    ]
    return f"{type(op).__name__}({', '.join(numbers)})"
