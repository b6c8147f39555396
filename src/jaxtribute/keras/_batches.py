"""What `fit`, `evaluate` and `predict` are given, as batches of a strategy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np

from .._specs import PerReplicaSpec
from ..data import INFINITE_CARDINALITY
from ..input import DistributedDataset
from ._arrays import are_arrays, batched, check_dtype, shortened
from ._creator import DatasetCreator
from ._iterables import read_once, read_py_dataset, sparse_made_dense

_NOTHING = object()


class Batch(NamedTuple):
    """One step's examples, with a part for each replica."""

    data: Any


class Batches:
    """The batches of a dataset, epoch by epoch.

    Args:
      source: what the strategy made of the data.
      steps: how many batches an epoch has, if that was asked for.
      structure: what the data look like, where batches are tuples of their leaves.
      told: is told of the beginning and the end of each epoch.

    Raises:
      ValueError: when epochs would have no end.
    """

    def __init__(
        self,
        source: Any,
        steps: int | None = None,
        *,
        structure: Any = None,
        told: keras.utils.PyDataset | None = None,
    ) -> None:
        if steps is None and source.cardinality() == INFINITE_CARDINALITY:
            raise endless_error()
        self._source = source
        self._asked = steps
        self._structure = structure
        self._told = told
        self._iterator: Iterator[Any] | None = None
        self._taken = 0
        self._has_delivered = False
        self.ran_dry = False
        """Whether the last epoch had no batches at all."""

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
        return self._whole(keras.tree.map_structure(_of_one_replica, self._source.element_spec))

    def restart(self) -> None:
        """Begin the next epoch with the first batch."""
        self._iterator = None

    def epoch(self, at_once: int = 1) -> Iterator[Batch]:
        """Deliver the batches of one epoch.

        Args:
          at_once: how many are used in one go; an epoch of some steps has whole ones, as in Keras.
        """
        if self._told is not None:
            self._told.on_epoch_begin()
        self.ran_dry = True
        if self._asked is None:
            elements = self._source
        else:
            elements = self._next_ones(-(-self._asked // at_once) * at_once)
        for element in elements:
            self.ran_dry, self._has_delivered = False, True
            yield Batch(self._whole(element))
        if self.ran_dry:
            self._tell_of_nothing()
        if self._told is not None:
            self._told.on_epoch_end()

    def _tell_of_nothing(self) -> None:
        if not self._has_delivered:
            raise ValueError(f"The input has no batches: {self._source!r} delivered none.")
        warnings.warn(
            "The input has no data left, so training ends here: it can be read only once. Give a "
            "dataset that can be read again, or a generator without end and steps_per_epoch.",
            stacklevel=5,
        )

    def _next_ones(self, steps: int) -> Iterator[Any]:
        """Deliver some batches of a dataset that goes on from epoch to epoch."""
        for step in range(steps):
            element = self._next()
            if element is _NOTHING and not step:  # the epoch before was a whole number of passes
                element = self._next()
            if element is _NOTHING:
                if not step:
                    return
                warnings.warn(
                    f"The input ran out of data after {step} of {steps} steps of this epoch. "
                    "Call .repeat() on the dataset, or lower steps_per_epoch.",
                    stacklevel=5,
                )
                return
            yield element
        if self._taken == self._source.cardinality():
            self._iterator = None

    def _next(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._source)
            self._taken = 0
        element = next(self._iterator, _NOTHING)
        self._taken += 1
        if element is _NOTHING:
            self._iterator = None
        return element

    def _whole(self, element: Any) -> Any:
        if self._structure is None:
            # Some loaders deliver lists, for which a program would be compiled once more.
            return tuple(element) if isinstance(element, list) else element
        leaves = iter(element)
        return keras.tree.map_structure(
            lambda place: None if place is None else next(leaves), self._structure
        )


def endless_error() -> ValueError:
    """Return what is raised for epochs that would have no end."""
    return ValueError(
        "The dataset has no end, so say how many steps an epoch has: steps_per_epoch=... for fit, "
        "validation_steps=... for its validation, steps=... for evaluate and predict."
    )


def check_alone(x: Any, y: Any, sample_weight: Any) -> None:
    """Refuse targets and weights next to a dataset.

    Raises:
      ValueError: when there are some.
    """
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} cannot be given together with a dataset: {type(x).__name__} delivers "
                "batches of (x, y) or (x, y, sample_weight) itself."
            )


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
      ValueError: for arguments that do not go together.
    """
    limit = keras.config.max_steps_per_epoch()  # of runs for debugging
    if limit and (not steps or limit < steps):
        steps = limit
    # An input may be optional, also the only one.
    if are_arrays(x) or (x is not None and are_arrays((x, y))):
        structure, dataset = batched(strategy, x, y, sample_weight, batch_size, steps, shuffle)
        source = strategy.experimental_distribute_dataset(dataset)
        return Batches(source, steps, structure=structure)
    if isinstance(x, (str, bytes, int, float, list, tuple, dict, type(None))):
        raise ValueError(
            f"x must be an array, a list or dict of arrays, or a dataset, got {shortened(x)}. "
            "Convert Python numbers with `np.asarray`."
        )
    check_alone(x, y, sample_weight)
    if isinstance(x, DistributedDataset):
        return Batches(x, steps)
    if isinstance(x, DatasetCreator):
        if steps is None:
            raise ValueError(
                "With a DatasetCreator, say how many steps an epoch has: steps_per_epoch=... for "
                "fit, steps=... for evaluate and predict."
            )
        return Batches(strategy.distribute_datasets_from_function(x, x.input_options), steps)
    if isinstance(x, keras.utils.PyDataset):
        structure, dataset = read_py_dataset(x, bool(shuffle))
        source = strategy.experimental_distribute_dataset(dataset)
        return Batches(source, steps, structure=structure, told=x)
    if isinstance(x, Iterator):
        structure, dataset = read_once(x)
        source = strategy.experimental_distribute_dataset(dataset)
        return Batches(source, steps, structure=structure)
    return Batches(strategy.experimental_distribute_dataset(sparse_made_dense(x)), steps)


def _of_one_replica(spec: Any) -> Any:
    spec = spec.value_specs[0] if isinstance(spec, PerReplicaSpec) else spec
    check_dtype(spec.dtype)
    size, *others = spec.shape or (None,)
    # Not 1, which Keras would take for a column of numbers.
    return keras.KerasTensor((size or 2, *others), str(jax.dtypes.canonicalize_dtype(spec.dtype)))


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
    table = np.ones(int(max(class_weight, default=0)) + 1, keras.config.floatx())
    for number, weight in class_weight.items():
        table[int(number)] = weight
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
    labels = jnp.round(labels).astype(jnp.int32)
    known = (labels >= 0) & (labels < table.shape[0])
    return x, y, jnp.where(known, table[jnp.where(known, labels, 0)], 1.0)
