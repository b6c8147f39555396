"""Functions that make a dataset where it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..input import InputContext, InputOptions

__all__ = ["DatasetCreator"]


class DatasetCreator:
    """Says, in place of data, how `fit` is to make the dataset of each worker.

    Under a `ParameterServerStrategy` each worker makes its own, and `steps_per_epoch` says how long
    an epoch is. Batches are those of one replica.

    >>> creator = jt.keras.DatasetCreator(
    ...     lambda context: jt.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))
    ... )
    >>> creator(jt.InputContext()).element_spec
    TensorSpec(shape=(None,), dtype=int64, name=None)

    Args:
      dataset_fn: called with an `InputContext`; returns a dataset of `(x, y)` or
        `(x, y, sample_weight)`.
      input_options: how the elements are delivered.

    Raises:
      TypeError: when `dataset_fn` cannot be called, or `input_options` are something else.
    """

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        input_options: InputOptions | None = None,
    ) -> None:
        if not callable(dataset_fn):
            raise TypeError(
                "DatasetCreator takes a function of an InputContext that returns a dataset, got "
                f"{dataset_fn!r}."
            )
        if not isinstance(input_options, (InputOptions, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"input_options must be jt.InputOptions, got {input_options!r}.")
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the dataset for an `InputContext`."""
        return self.dataset_fn(*args, **kwargs)
