"""What `fit`, `evaluate` and `predict` are given, as batches of a strategy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import keras
import numpy as np

from .._specs import PerReplicaSpec
from ..data import Dataset
from ..data._ops import with_unset_seeds
from ..input import DistributedDataset
from ._creator import DatasetCreator

_DEFAULT_BATCH = 32


class Batch(NamedTuple):
    """One step's examples, with a part for each replica."""

    data: Any


class Batches:
    """The batches of a dataset, epoch by epoch.

    Args:
      source: what the strategy made of the data.
      steps: how many batches an epoch has, if that was asked for.
      on_epoch: told when a pass begins and ends.
    """

    def __init__(self, source: Any, steps: int | None, on_epoch: Any = None) -> None:
        self._source = source
        self._asked = steps
        self._on_epoch = on_epoch
        self._iterator: Iterator[Any] | None = None

    @property
    def steps(self) -> int | None:
        """How many batches an epoch has, if it is known."""
        if self._asked is not None:
            return self._asked
        size = self._source.cardinality()
        return size if size >= 0 else None

    @property
    def spec(self) -> Any:
        """The shapes of a batch."""
        return keras.tree.map_structure(_of_one_replica, self._source.element_spec)

    def restart(self) -> None:
        """Have the next epoch begin with the first batch, if batches can be read again."""
        self._iterator = None

    def epoch(self) -> Iterator[Batch]:
        """Deliver the batches of one epoch."""
        if self._asked is None:
            for element in self._pass():
                yield Batch(element)
            return
        for step in range(self._asked):
            element = self._next()
            if element is _NOTHING:
                warnings.warn(
                    f"The input ran out of data after {step} of {self._asked} steps of this epoch. "
                    "Call .repeat() on the dataset, or lower steps_per_epoch.",
                    stacklevel=4,
                )
                return
            yield Batch(element)

    def _pass(self) -> Iterator[Any]:
        if self._on_epoch is not None:
            self._on_epoch.on_epoch_begin()
        yield from self._source
        if self._on_epoch is not None:
            self._on_epoch.on_epoch_end()

    def _next(self) -> Any:
        """Return the next batch of a dataset that goes on from epoch to epoch."""
        if self._iterator is not None:
            element = next(self._iterator, _NOTHING)
            if element is not _NOTHING or self._source.cardinality() < 0:
                return element
        self._iterator = iter(self._pass())
        return next(self._iterator, _NOTHING)


_NOTHING = object()


def distributed(
    strategy: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
) -> Batches:
    """Divide what a method of a model was given between the replicas of a strategy.

    Raises:
      ValueError: for arguments that do not go together, or a batch smaller than the replicas.
    """
    if isinstance(x, DistributedDataset):
        _refuse_with_dataset(x, y, sample_weight, batch_size)
        return Batches(x, steps)
    if isinstance(x, DatasetCreator):
        _refuse_with_dataset(x, y, sample_weight, batch_size)
        if steps is None:
            raise ValueError(
                "With a DatasetCreator, say how many steps an epoch has: steps_per_epoch=... for "
                "fit, steps=... for evaluate and predict."
            )
        source = strategy.distribute_datasets_from_function(x, x.input_options)
        return Batches(source, steps)
    if isinstance(x, keras.utils.PyDataset):
        _refuse_with_dataset(x, y, sample_weight, batch_size)
        dataset = _PyDatasetBatches(x, shuffle is not False)
        return Batches(strategy.experimental_distribute_dataset(dataset), steps, x)
    if _holds_arrays(x):
        return Batches(
            _distributed_arrays(strategy, x, y, sample_weight, batch_size, shuffle), steps
        )
    _refuse_with_dataset(x, y, sample_weight, batch_size)
    if isinstance(x, Iterator):
        x = _Once(x)
    return Batches(strategy.experimental_distribute_dataset(x), steps)


def _distributed_arrays(
    strategy: Any, x: Any, y: Any, sample_weight: Any, batch_size: int | None, shuffle: bool | str
) -> Any:
    size = _DEFAULT_BATCH if batch_size is None else batch_size
    if size < strategy.num_replicas_in_sync:
        raise ValueError(
            f"batch_size={size} is the number of examples of all replicas together, and "
            f"{strategy!r} has {strategy.num_replicas_in_sync} of them: some would get nothing. "
            f"Use batch_size={strategy.num_replicas_in_sync} or more, or fewer devices."
        )
    parts = (x,) if y is None and sample_weight is None else (x, y)
    if sample_weight is not None:
        parts = (x, y, sample_weight)
    rows = keras.tree.map_structure(_as_rows, parts)
    lengths = {len(leaf) for leaf in keras.tree.flatten(rows) if leaf is not None}
    if len(lengths) > 1:
        raise ValueError(
            "All arrays given as x, y and sample_weight must have the same number of rows, got "
            f"{sorted(lengths)}."
        )
    (length,) = lengths
    dataset = Dataset.from_tensor_slices(rows)
    if shuffle == "batch":
        dataset = dataset.batch(size).shuffle(-(-length // size))
    else:
        dataset = (dataset.shuffle(length) if shuffle and length else dataset).batch(size)
    if shuffle:  # by `keras.utils.set_random_seed`, as in Keras; all workers take the chief's order
        seed = int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
        dataset = Dataset(with_unset_seeds(dataset.op, [seed]))
    return strategy.experimental_distribute_dataset(dataset)


def _holds_arrays(x: Any) -> bool:
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(leaf is None or _is_array(leaf) for leaf in leaves)


def _is_array(leaf: Any) -> bool:
    return (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or hasattr(leaf, "to_numpy")


def _as_rows(leaf: Any) -> Any:
    if leaf is None:
        return None
    if hasattr(leaf, "to_numpy"):  # pandas
        leaf = leaf.to_numpy()
    return np.asarray(leaf)


def _refuse_with_dataset(x: Any, y: Any, sample_weight: Any, batch_size: int | None) -> None:
    given = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} cannot be given together with a dataset: {type(x).__name__} delivers "
                "batches of (x, y) or (x, y, sample_weight) itself."
            )


class _Once:
    """Something that can be read once, a part in each epoch."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator


class _PyDatasetBatches:
    """The batches of a `keras.utils.PyDataset`, in another order in each pass if shuffled."""

    def __init__(self, dataset: keras.utils.PyDataset, shuffle: bool) -> None:
        self._dataset = dataset
        self._shuffle = shuffle
        self._passes = 0

    def __len__(self) -> int:
        size = cast(int | None, self._dataset.num_batches)
        if size is None:
            raise TypeError("The number of batches of this PyDataset is not known.")
        return size

    def __iter__(self) -> Iterator[Any]:
        size = cast(int | None, self._dataset.num_batches)
        if size is None:
            index = 0
            while True:
                yield self._dataset[index]
                index += 1
        order = np.arange(size)
        if self._shuffle:  # the same on all workers, which would lose and repeat batches otherwise
            np.random.default_rng(self._passes).shuffle(order)
        self._passes += 1
        for index in order:
            yield self._dataset[int(index)]


def _of_one_replica(spec: Any) -> Any:
    spec = spec.value_specs[0] if isinstance(spec, PerReplicaSpec) else spec
    dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
    return jax.ShapeDtypeStruct((1, *spec.shape[1:]), dtype)


# --- Weights of classes --------------------------------------------------------------------


def class_weight_table(class_weight: dict[Any, float] | None) -> Any | None:
    """Return the weight of each class as an array.

    Raises:
      ValueError: when the classes are not whole numbers.
    """
    if class_weight is None:
        return None
    if not all(isinstance(c, (int, np.integer)) and c >= 0 for c in class_weight):
        raise ValueError(
            "class_weight maps class numbers to weights, such as {0: 1.0, 1: 5.0}; got the classes "
            f"{list(class_weight)}."
        )
    table = np.ones(max(class_weight, default=0) + 1, np.float32)
    for number, weight in class_weight.items():
        table[number] = weight
    return jnp.asarray(table)


def with_class_weights(data: Any, table: Any | None) -> Any:
    """Return a batch with the weights of its examples' classes.

    Raises:
      ValueError: when examples have weights already, or several outputs.
    """
    if table is None:
        return data
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if sample_weight is not None:
        raise ValueError("class_weight and sample_weight cannot be given at the same time.")
    if y is None or keras.tree.is_nested(y):
        raise ValueError("class_weight is for models with one output, and needs targets.")
    one_hot = y.ndim > 1 and y.shape[-1] > 1
    labels = jnp.argmax(y, axis=-1) if one_hot else y.reshape(y.shape[0], -1)[:, 0]
    labels = labels.astype(jnp.int32)
    known = labels < table.shape[0]
    return x, y, jnp.where(known, table[jnp.where(known, labels, 0)], 1.0)
