"""The evaluator of Keras models."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from ..checkpoint import Checkpoint, _adapters
from ..checkpoint._adapters import Adapter, Parts
from ..data import Dataset
from ..evaluation import Evaluator
from ..evaluation._found import Found, find_checkpoints, find_files, in_order
from ..evaluation._steps import saved_step
from ._models import known_strategy

__all__ = ["SidecarEvaluator"]

_FILES = (".weights.h5", ".keras")


class SidecarEvaluator(Evaluator):
    """Evaluates each new checkpoint of a Keras model, in a process beside training.

    >>> import keras, tempfile
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(loss="mse")
    >>> data = np.ones((4, 2)), np.ones((4, 1))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = jt.train.Checkpoint(model=model, step=3).save(directory + "/ckpt")
    ...     evaluator = jt.keras.SidecarEvaluator(model, data, directory, max_evaluations=1)
    ...     (result,) = evaluator.start()  # prints a line for each
    evaluated ckpt-1 at step ...: loss ... (... s)
    evaluation ends: max_evaluations=1 is reached; results: 1, in ...
    >>> list(result["metrics"])
    ['loss']

    Checkpoints are the files `.weights.h5` and `.keras`, as `keras.callbacks.ModelCheckpoint`
    writes them, and what `jt.train.Checkpoint(model=model)` saves. Files have to be put in place
    when they are complete, as those of models that were created in the scope of a strategy are.

    Everything else is as for `jt.train.SidecarEvaluator`.

    Args:
      model: a compiled model like the one that is trained.
      data: what `model.evaluate` takes: a dataset, or a tuple of inputs, targets and weights.
      checkpoint_dir: the directory in which training saves.
      steps: how many batches to evaluate; all by default.
      max_evaluations: ends after this many results, counting those of earlier runs.
      callbacks: callbacks for `model.evaluate`; the count of the optimizer is that of training.
      timeout: ends when no new checkpoint has come for so many seconds.
      last_step: ends with the checkpoint of this step, or a later one.
      evaluate_all: whether each checkpoint is evaluated, rather than the newest only.
      log_dir: where results and summaries are written; `evaluation` in `checkpoint_dir` if None.
      poll_seconds: how often to look for a new checkpoint.

    Raises:
      ValueError: when the model is not compiled, or cannot be evaluated on the data, and for
        numbers that cannot be.
    """

    def __init__(
        self,
        model: keras.Model,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Any = None,
        *,
        timeout: float | None = None,
        last_step: int | None = None,
        evaluate_all: bool = False,
        log_dir: str | os.PathLike[str] | None = None,
        poll_seconds: float = 1.0,
    ) -> None:
        if not isinstance(model, keras.Model) or not model.compiled:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"SidecarEvaluator evaluates a compiled keras.Model, got {model!r}. Call "
                "model.compile(loss=..., metrics=...) first. For other models, use "
                "jt.train.SidecarEvaluator."
            )
        if isinstance(data, Dataset) and known_strategy(model) is None:
            raise ValueError(
                f"The model {model.name!r} was created outside of any strategy's scope, and Keras "
                f"itself does not know {data!r}. Create and compile the model inside "
                "`with jt.OneDeviceStrategy('CPU:0').scope():`, or give it other data."
            )
        super().__init__(
            checkpoint_dir,
            max_evaluations=max_evaluations,
            timeout=timeout,
            last_step=last_step,
            evaluate_all=evaluate_all,
            log_dir=log_dir,
            poll_seconds=poll_seconds,
        )
        self._model: Any = model
        self._data = data
        self._steps = steps
        self._callbacks = callbacks

    def _find(self) -> list[Found]:
        found = [*find_checkpoints(self._directory), *find_files(self._directory, _FILES)]
        return in_order(found)

    def _prepare(self) -> None:
        if not self._model.built:
            # Which creates its variables.
            self._model.evaluate(**self._inputs(), steps=1, verbose=0)

    def _restore(self, found: Found) -> int | None:
        step = saved_step(found.path)  # first: a file that cannot be read changes nothing
        if os.path.isdir(found.path):
            status = Checkpoint(model=_Weights(self._model)).read(found.path)
            status.assert_nontrivial_match().assert_existing_objects_matched().expect_partial()
        else:
            with warnings.catch_warnings():
                # The optimizer does not train here, and has no state for what is saved of it.
                warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
                self._model.load_weights(found.path)
        if step is not None and self._model.optimizer is not None:
            self._model.optimizer.iterations.assign(step)  # for callbacks
        return step

    def _evaluate(self) -> Mapping[str, Any]:
        return self._model.evaluate(
            **self._inputs(),
            steps=self._steps,
            callbacks=self._callbacks,
            return_dict=True,
            verbose=0,
        )

    def _inputs(self) -> dict[str, Any]:
        """Return the data, as `model.evaluate` takes it."""
        data = self._data
        if isinstance(data, tuple):
            return dict(zip(("x", "y", "sample_weight"), data, strict=False))
        return {"x": data}


class _Weights:
    """A model in a checkpoint, by the same names, without its optimizer.

    The state of an optimizer is as large as the model or larger, and evaluation needs none of it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def parts(self) -> Parts:
        """Return what is restored."""
        # Imported here, as it needs Keras on JAX, which files do not.
        from ._checkpoints import parts_of

        for way, part in parts_of(self._model):
            if not isinstance(part, keras.optimizers.Optimizer):
                yield way, part


_adapters.register(_Weights, Adapter(parts=_Weights.parts))
