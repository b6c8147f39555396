"""`jt.data.Dataset` given to models that were created outside of every scope."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from ..data import INFINITE_CARDINALITY, Dataset
from ..input import DistributedDataset
from ._arrays import check_dtype
from ._batches import check_alone, class_weight_table, endless_error, with_class_weights
from ._creator import DatasetCreator
from ._private import DataAdapter

# For each method that takes data, what says how many batches there are to be.
_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}


class DatasetAdapter(DataAdapter):
    """What Keras reads a `jt.data.Dataset` by.

    Args:
      dataset: the dataset.
      class_weights: the weight of each class, if there are any.
    """

    def __init__(self, dataset: Dataset, class_weights: Any = None) -> None:
        self._dataset = dataset
        self._class_weights = class_weights

    def get_jax_iterator(self) -> Iterator[Any]:
        """Start reading."""
        for batch in self._dataset:
            # Keras knows tuples; a list stands for one.
            whole = tuple(batch) if isinstance(batch, list) else batch
            for leaf in keras.tree.flatten(whole):
                check_dtype(np.asarray(leaf).dtype)
            yield with_class_weights(whole, self._class_weights)

    get_numpy_iterator = get_jax_iterator

    @property
    def num_batches(self) -> int | None:
        """How many batches there are, if it is known."""
        size = self._dataset.cardinality()
        return size if size >= 0 else None

    @property
    def batch_size(self) -> int | None:
        """The size of batches, which is not known."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """Whether the last batch is smaller, which is not known either."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """The size of the last batch, which is not known."""
        return None


def accepted(own: Callable[..., Any], model: keras.Model, args: Any, kwargs: Any) -> Any:
    """Return the arguments of a method of a model with datasets as Keras takes them.

    Raises:
      ValueError: for a dataset that belongs to a strategy, and arguments that do not go together.
    """
    if not any(_is_ours(value) for value in (*args, *kwargs.values())):
        return args, kwargs
    bound = inspect.signature(own).bind(model, *args, **kwargs)
    given = bound.arguments
    steps = {"x": _STEPS.get(own.__name__), "validation_data": "validation_steps"}
    for name in ("x", "validation_data"):
        data = given.get(name)
        if isinstance(data, (DistributedDataset, DatasetCreator)):
            raise ValueError(
                f"{own.__name__} of the model {model.name!r} was given a {type(data).__name__}, "
                "whose batches are divided between the replicas of a strategy, and the model was "
                "created outside of every scope. Create and compile it inside `with "
                "strategy.scope():`, or pass the dataset itself."
            )
        if not isinstance(data, Dataset):
            continue
        if data.cardinality() == INFINITE_CARDINALITY and not given.get(steps[name] or ""):
            raise endless_error()
        weights = None
        if name == "x":
            check_alone(data, given.get("y"), given.get("sample_weight"))
            weights = class_weight_table(given.pop("class_weight", None))
        given[name] = DatasetAdapter(data, weights)
    return bound.args[1:], bound.kwargs


def _is_ours(value: Any) -> bool:
    return isinstance(value, (Dataset, DistributedDataset, DatasetCreator))
