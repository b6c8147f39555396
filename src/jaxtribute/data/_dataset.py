"""`jt.data.Dataset`: input pipelines, named after tf.data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np

from .. import _integrations, _tree
from .._specs import as_tensor_spec
from ..errors import InvalidArgumentError
from ..tracing import leave_trace
from . import _files, _ops
from ._arguments import as_seed, check_callable, check_count
from ._cache import FileStore, MemoryStore
from ._cardinality import cardinality
from ._element_spec import element_spec
from ._elements import as_array, as_element
from ._options import Options
from ._passes import Passes
from ._randomness import fresh_seed

__all__ = ["AUTOTUNE", "Dataset"]

AUTOTUNE = -1
"""Given for a number of calls or elements: the library chooses it."""

_CYCLE_LENGTH = 4
_BUFFER_SIZE = 2


class Dataset:
    """A sequence of elements, described step by step and read only when it is iterated.

    >>> dataset = jt.data.Dataset.range(6).map(lambda x: x * x).batch(4)
    >>> for batch in dataset:
    ...     print(batch)
    [0 1 4 9]
    [16 25]

    Elements are NumPy arrays, or tuples and dicts of them. A dataset can be iterated any number of
    times; each pass starts anew, with another order after `shuffle`. Made by `range`,
    `from_tensor_slices` and the other methods that take no dataset, not by its constructor.
    """

    def __init__(self, op: _ops.Op | None = None) -> None:
        if not isinstance(op, _ops.Op):
            raise TypeError(
                "jt.data.Dataset is not called; make one with Dataset.from_tensor_slices, "
                "Dataset.from_generator, Dataset.range or another of its methods."
            )
        self.op = op  # what it consists of
        self._passes = Passes()
        _integrations.load()  # so that models of other libraries take it

    # --- Sources ---------------------------------------------------------------------------

    @staticmethod
    def range(*args: int, output_type: Any = np.int64) -> Dataset:
        """Return the dataset of the numbers Python's `range` gives.

        >>> print(*jt.data.Dataset.range(2, 8, 2))
        2 4 6

        Args:
          *args: the arguments of `range`.
          output_type: the type of the numbers.
        """
        return Dataset(_ops.Range(range(*args), np.dtype(output_type)))

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """Return the dataset of one element.

        >>> list(jt.data.Dataset.from_tensors([1, 2]))
        [array([1, 2], dtype=int32)]
        """
        leaves, structure = _tree.flatten(as_element(tensors))
        columns = [as_array([v]) if isinstance(v, bytes) else np.asarray(v)[None] for v in leaves]
        return Dataset(_ops.Slices(columns, structure, 1))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """Return the dataset of the rows of arrays.

        >>> dataset = jt.data.Dataset.from_tensor_slices({"x": np.arange(4).reshape(2, 2)})
        >>> list(dataset)
        [{'x': array([0, 1])}, {'x': array([2, 3])}]

        Args:
          tensors: an array, or a tuple or dict of arrays with equally many rows; a list is one
            array. Nothing is copied before it is read.

        Raises:
          InvalidArgumentError: when an array has no rows, or they have different numbers of them.
        """
        leaves, structure = _tree.flatten(as_element(tensors))
        for leaf in leaves:
            if np.ndim(leaf) == 0:
                raise InvalidArgumentError(
                    f"from_tensor_slices takes arrays apart along their first axis; {leaf!r} has "
                    "none. from_tensors makes one element of it."
                )
        sizes = {leaf.shape[0] for leaf in leaves}
        if len(sizes) != 1:
            shapes = ", ".join(str(leaf.shape) for leaf in leaves)
            raise InvalidArgumentError(
                "from_tensor_slices needs arrays with equally many rows, got "
                + (f"the shapes {shapes}." if leaves else "no array.")
            )
        return Dataset(_ops.Slices(leaves, structure, sizes.pop()))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] = (),
        output_signature: Any = None,
    ) -> Dataset:
        """Return the dataset of what a generator function yields.

        >>> def squares():
        ...     for i in range(3):
        ...         yield i * i
        >>> print(*jt.data.Dataset.from_generator(squares))
        0 1 4

        Args:
          generator: called without arguments, or with `args`, for each pass; returns an iterable.
          output_types: the type of each component, which then is converted to it.
          output_shapes: the shape of each component, which then has to fit it.
          args: arguments for `generator`.
          output_signature: instead of both, a `TensorSpec` or `jax.ShapeDtypeStruct` for each
            component.

        Raises:
          TypeError: when `generator` cannot be called.
        """
        from ._generator import GeneratorSource, signature_of

        signature = output_signature
        if signature is None and output_types is not None:
            signature = signature_of(output_types, output_shapes)
        elif signature is not None:
            signature = _tree.map_leaves(as_tensor_spec, signature)
        return Dataset(_ops.External(GeneratorSource(generator, tuple(args), signature)))

    @staticmethod
    def list_files(
        file_pattern: Any, shuffle: bool | None = None, seed: int | None = None
    ) -> Dataset:
        """Return the dataset of the names of files that match a pattern.

        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = [(folder / name).write_text("") for name in ("a.txt", "b.txt")]
        >>> names = jt.data.Dataset.list_files(folder / "*.txt", shuffle=False)
        >>> [pathlib.Path(name.decode()).name for name in names]
        ['a.txt', 'b.txt']

        Args:
          file_pattern: a pattern such as "data/*.txt", or a list of them.
          shuffle: whether the names come in random order, as they do by default.
          seed: the seed of that order.

        Raises:
          NotFoundError: when a pattern matches no file.
        """
        names = _files.matching(file_pattern)
        dataset = Dataset(_ops.FileNames(names))
        return dataset if shuffle is False else dataset.shuffle(len(names), seed)

    @staticmethod
    def zip(*args: Any) -> Dataset:
        """Return the dataset of the elements of several, side by side, until one ends.

        >>> a, b = jt.data.Dataset.range(3), jt.data.Dataset.range(10, 13)
        >>> for x, y in jt.data.Dataset.zip(a, b):
        ...     print(x, y)
        0 10
        1 11
        2 12

        Args:
          *args: datasets; or one tuple or dict of datasets, whose structure the elements take.

        Raises:
          TypeError: when something is not a `Dataset`.
        """
        datasets = args[0] if len(args) == 1 else args
        if isinstance(datasets, list):
            raise TypeError("Dataset.zip takes a tuple of datasets; a list stands for an array.")
        leaves, structure = _tree.flatten(datasets)
        if not leaves:
            raise TypeError("Dataset.zip takes datasets, or a tuple or dict of them, got none.")
        for leaf in leaves:
            _check_dataset("zip", leaf)
        return Dataset(_ops.Zip(tuple(leaf.op for leaf in leaves), structure))

    # --- Element by element ----------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        *,
        seed: int | None = None,
    ) -> Dataset:
        """Return the dataset of the results of a function.

        >>> print(*jt.data.Dataset.range(3).map(lambda x: x + 1))
        1 2 3

        With a seed the function takes a random key as its last argument. The key depends on the
        seed, the epoch and which element it is, not on who reads it, so every worker count sees
        the same values:

        >>> noisy = jt.data.Dataset.range(3).map(lambda x, key: x + jax.random.uniform(key), seed=1)

        Args:
          map_func: takes an element, the components of a tuple as separate arguments.
          num_parallel_calls: how many threads call it. They help a function that waits, for
            example for files; one that computes is not faster for them, so `AUTOTUNE` means one.
          deterministic: accepted for compatibility; the order is always that of the elements.
          seed: the seed of the random keys.
        """
        check_callable("map", map_func)
        if num_parallel_calls not in (None, AUTOTUNE):
            check_count("map", "num_parallel_calls", num_parallel_calls, at_least=1)
        parallel = max(1, num_parallel_calls or 1)
        own = None if seed is None else as_seed("map", seed)
        return Dataset(_ops.Map(self.op, map_func, own, parallel))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Return the dataset of the elements for which a function is true.

        >>> print(*jt.data.Dataset.range(5).filter(lambda x: x % 2))
        1 3
        """
        check_callable("filter", predicate)
        return Dataset(_ops.Filter(self.op, predicate))

    def enumerate(self, start: int = 0) -> Dataset:
        """Return the dataset of pairs of a number and an element.

        >>> for number, x in jt.data.Dataset.range(7, 9).enumerate():
        ...     print(number, x)
        0 7
        1 8
        """
        if not isinstance(start, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(f"Dataset.enumerate: start must be a number, got {start!r}.")
        return Dataset(_ops.Enumerate(self.op, int(start)))

    # --- Which elements, and in which order ------------------------------------------------

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> Dataset:
        """Return the dataset in random order.

        >>> print(*jt.data.Dataset.range(5).shuffle(5, seed=2))
        1 0 4 3 2

        The order depends on the seed and the epoch only. With a buffer smaller than the dataset,
        elements change places within windows of that size.

        Args:
          buffer_size: how many elements to mix; the size of the dataset mixes all of them.
          seed: for an order that can be repeated; without it, another one in each program.
          reshuffle_each_iteration: whether each pass has an order of its own, as it does by
            default.
        """
        check_count("shuffle", "buffer_size", buffer_size, at_least=1)
        own = fresh_seed() if seed is None else as_seed("shuffle", seed)
        reshuffle = reshuffle_each_iteration is not False
        return Dataset(_ops.Shuffle(self.op, buffer_size, own, reshuffle, seed is not None))

    def repeat(self, count: int | None = None) -> Dataset:
        """Return the dataset several times over, without end by default.

        >>> print(*jt.data.Dataset.range(2).repeat(2))
        0 1 0 1
        """
        if count is not None:
            check_count("repeat", "count", count, at_least=-1)
        return Dataset(_ops.Repeat(self.op, None if count is None or count < 0 else count))

    def take(self, count: int) -> Dataset:
        """Return the dataset of the first elements; all of them for -1.

        >>> print(*jt.data.Dataset.range(5).take(2))
        0 1
        """
        check_count("take", "count", count, at_least=-1)
        return self if count < 0 else Dataset(_ops.Take(self.op, int(count)))

    def skip(self, count: int) -> Dataset:
        """Return the dataset without its first elements; none of them for -1.

        >>> print(*jt.data.Dataset.range(5).skip(3))
        3 4
        """
        check_count("skip", "count", count, at_least=-1)
        return self.take(0) if count < 0 else Dataset(_ops.Skip(self.op, int(count)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Return the dataset of every `num_shards`-th element.

        >>> print(*jt.data.Dataset.range(5).shard(2, 1))
        1 3

        Args:
          num_shards: the number of parts; `jt.data.experimental.SHARD_HINT`, for both arguments,
            leaves them to distribution with `AutoShardPolicy.HINT`.
          index: which part, from 0.

        Raises:
          InvalidArgumentError: when there is no such part.
        """
        hinted = num_shards == index == _ops.SHARD_HINT
        given: tuple[Any, Any] = num_shards, index
        are_numbers = all(isinstance(value, (int, np.integer)) for value in given)
        if not hinted and not (are_numbers and 0 <= index < num_shards):
            raise InvalidArgumentError(
                f"shard({num_shards}, {index}): the index must be at least 0 and less than the "
                "number of shards."
            )
        return Dataset(_ops.Shard(self.op, num_shards, index))

    # --- Several elements, several datasets ------------------------------------------------

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Return the dataset of consecutive elements stacked into batches.

        >>> list(jt.data.Dataset.range(5).batch(3))
        [array([0, 1, 2]), array([3, 4])]

        Args:
          batch_size: how many elements; for a strategy, those of all replicas together.
          drop_remainder: whether to leave out a last batch that is not full.
          num_parallel_calls: accepted for compatibility.
          deterministic: accepted for compatibility.
        """
        check_count("batch", "batch_size", batch_size, at_least=1)
        return Dataset(_ops.Batch(self.op, int(batch_size), drop_remainder))

    def unbatch(self) -> Dataset:
        """Return the dataset of the rows of each element.

        >>> print(*jt.data.Dataset.range(3).batch(2).unbatch())
        0 1 2
        """
        return Dataset(_ops.Unbatch(self.op))

    def concatenate(self, dataset: Dataset) -> Dataset:
        """Return this dataset followed by another.

        >>> print(*jt.data.Dataset.range(2).concatenate(jt.data.Dataset.range(2)))
        0 1 0 1
        """
        _check_dataset("concatenate", dataset)
        before = self.op.parts if isinstance(self.op, _ops.Concatenate) else (self.op,)
        return Dataset(_ops.Concatenate((*before, dataset.op)))

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Return the elements of the datasets a function makes, several of them in turn.

        >>> dataset = jt.data.Dataset.range(1, 4).interleave(
        ...     lambda x: jt.data.Dataset.from_tensors(x).repeat(2), cycle_length=2
        ... )
        >>> print(*dataset)
        1 2 1 2 3 3

        Args:
          map_func: makes a dataset of an element, often of the name of a file.
          cycle_length: how many datasets take turns; 4 by default.
          block_length: how many elements each delivers at its turn.
          num_parallel_calls: accepted for compatibility.
          deterministic: accepted for compatibility.
        """
        check_callable("interleave", map_func)
        cycle = _CYCLE_LENGTH if cycle_length in (None, AUTOTUNE) else cycle_length
        check_count("interleave", "cycle_length", cycle, at_least=1)
        check_count("interleave", "block_length", block_length, at_least=1)

        def made(*element: Any) -> _ops.Op:
            dataset = map_func(*element)
            _check_dataset("the function given to interleave", dataset)
            return dataset.op

        made.__qualname__ = getattr(map_func, "__qualname__", repr(map_func))
        return Dataset(_ops.Interleave(self.op, made, cycle, block_length, fresh_seed()))

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Return the elements of the datasets a function makes, one dataset after the other.

        >>> def copies(x):
        ...     return jt.data.Dataset.from_tensors(x).repeat(x)
        >>> print(*jt.data.Dataset.range(1, 3).flat_map(copies))
        1 2 2
        """
        return self.interleave(map_func, cycle_length=1)

    # --- How it is executed ----------------------------------------------------------------

    def cache(self, filename: str | os.PathLike[str] = "") -> Dataset:
        """Return the dataset, whose elements are computed in the first pass and kept.

        >>> print(*jt.data.Dataset.range(2).cache().repeat(2))
        0 1 0 1

        Args:
          filename: where to keep them; in memory by default.
        """
        name = os.fspath(filename)
        return Dataset(_ops.Cache(self.op, name, FileStore(name) if name else MemoryStore()))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Return the dataset, read ahead of its reader by a thread.

        A distributed dataset reads ahead in any case.

        >>> print(*jt.data.Dataset.range(2).prefetch(jt.data.AUTOTUNE))
        0 1

        Args:
          buffer_size: how many elements may wait.
        """
        size = _BUFFER_SIZE if buffer_size == AUTOTUNE else buffer_size
        check_count("prefetch", "buffer_size", size, at_least=0)
        return Dataset(_ops.Prefetch(self.op, size))

    def with_options(self, options: Options) -> Dataset:
        """Return the dataset with options; see `Options`.

        >>> options = jt.data.Options()
        >>> options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.DATA
        >>> dataset = jt.data.Dataset.range(4).with_options(options)
        """
        if not isinstance(options, Options):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"with_options takes jt.data.Options, got {options!r}.")
        return Dataset(_ops.WithOptions(self.op, Options().merge(options)))

    def options(self) -> Options:
        """Return the options set so far."""
        return _ops.options_of(self.op)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Return what a function makes of this dataset.

        >>> print(*jt.data.Dataset.range(4).apply(lambda ds: ds.skip(2)))
        2 3
        """
        check_callable("apply", transformation_func)
        made = transformation_func(self)
        _check_dataset("the function given to apply", made)
        return made

    # --- What is in it ---------------------------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """The structure of the elements, with a `TensorSpec` for each component.

        Where a function is involved, it is called with the first element to find out.

        >>> jt.data.Dataset.range(10).batch(4).element_spec
        TensorSpec(shape=(None,), dtype=int64, name=None)
        """
        return element_spec(self.op)

    def cardinality(self) -> int:
        """Return the number of elements, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`.

        >>> jt.data.Dataset.range(10).batch(4).cardinality()
        3
        >>> jt.data.Dataset.range(10).repeat().cardinality() == jt.data.INFINITE_CARDINALITY
        True
        """
        return cardinality(self.op)

    def __len__(self) -> int:
        size = self.cardinality()
        if size < 0:
            which = "has no end" if size == _ops.INFINITE_CARDINALITY else "is known when read only"
            raise TypeError(f"The length of this dataset {which}; see Dataset.cardinality.")
        return size

    def __bool__(self) -> bool:
        return True  # not by its length, which may be unknown

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Return what is left after combining a state with each element in turn.

        >>> jt.data.Dataset.range(5).reduce(0, lambda total, x: total + x)
        np.int64(10)
        """
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Return an iterator over the elements, which are NumPy arrays and scalars in any case.

        >>> next(jt.data.Dataset.range(4, 6).as_numpy_iterator())
        np.int64(4)
        """
        return iter(self)

    def __iter__(self) -> Any:
        from ._iterator import DatasetIterator

        leave_trace()
        return DatasetIterator(self.op, self._passes, self._go_on_with)

    def _go_on_with(self, op: _ops.Op) -> None:
        """Take over the seeds of a pass that was begun elsewhere, so that others follow it."""
        self.op = op

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {_ops.summary(self.op)}>"


def _check_dataset(where: str, value: Any) -> TypeGuard[Dataset]:
    if not isinstance(value, Dataset):
        raise TypeError(f"{where}: expected a jt.data.Dataset, got {value!r}.")
    return True
