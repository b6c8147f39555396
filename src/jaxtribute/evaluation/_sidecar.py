"""The evaluator of programs that evaluate with a function of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ..checkpoint import Checkpoint
from ._evaluator import Evaluator
from ._found import Found, find_checkpoints
from ._steps import saved_step

__all__ = ["SidecarEvaluator"]


class SidecarEvaluator(Evaluator):
    """Evaluates each new checkpoint of a training program, in a process beside it.

    >>> import tempfile
    >>> v = jt.Variable(3.0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     trained = jt.train.Checkpoint(v=jt.Variable(4.0), step=10)
    ...     path = trained.save(directory + "/ckpt")
    ...     evaluator = jt.train.SidecarEvaluator(
    ...         jt.train.Checkpoint(v=v), lambda: {"v": v}, directory, max_evaluations=1
    ...     )
    ...     (result,) = evaluator.start()  # prints a line for each
    evaluated ckpt-1 at step 10: v 4 (... s)
    evaluation ends: max_evaluations=1 is reached; results: 1, in ...
    >>> result["step"], result["metrics"]
    (10, {'v': 4.0})

    A checkpoint is restored into the given objects, evaluated, and the result appended to
    `results.jsonl` in `log_dir`, where TensorBoard finds it too. Checkpoints that come while one is
    evaluated are left out but for the newest, unless `evaluate_all`. None is evaluated twice, also
    by an evaluator that is started again.

    Training is only read from. It may have any strategy, and this process none. Models of Keras are
    evaluated by `jt.keras.SidecarEvaluator`.

    Args:
      checkpoint: what is restored, by the same names as in training; it may be less than that.
      evaluate: evaluates it, and returns a dict of numbers.
      checkpoint_dir: the directory in which training saves.
      max_evaluations: ends after this many results, counting those of earlier runs.
      timeout: ends when no new checkpoint has come for so many seconds.
      last_step: ends with the checkpoint of this step, or a later one.
      evaluate_all: whether each checkpoint is evaluated, rather than the newest only.
      step_counter: a variable of `checkpoint` that counts steps, or a function that returns the
        count; by default the count of an optimizer in the checkpoint, a value there called `step`,
        or the number in its name.
      log_dir: where results and summaries are written; `evaluation` in `checkpoint_dir` if None.
      poll_seconds: how often to look for a new checkpoint.

    Raises:
      TypeError: when `checkpoint` is no checkpoint, or `evaluate` no function.
      ValueError: for numbers that cannot be.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        evaluate: Callable[[], Mapping[str, Any]],
        checkpoint_dir: str | os.PathLike[str],
        *,
        max_evaluations: int | None = None,
        timeout: float | None = None,
        last_step: int | None = None,
        evaluate_all: bool = False,
        step_counter: Any = None,
        log_dir: str | os.PathLike[str] | None = None,
        poll_seconds: float = 1.0,
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "checkpoint has to be a jt.train.Checkpoint of what is evaluated, such as "
                f"jt.train.Checkpoint(model=model), got {checkpoint!r}. For a Keras model, use "
                "jt.keras.SidecarEvaluator(model, data, checkpoint_dir)."
            )
        if not callable(evaluate):
            raise TypeError(
                f"evaluate has to be a function that returns a dict of numbers, got {evaluate!r}."
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
        self._checkpoint = checkpoint
        self._function = evaluate
        self._counter = step_counter

    def _find(self) -> list[Found]:
        return find_checkpoints(self._directory)

    def _restore(self, found: Found) -> int | None:
        status = self._checkpoint.read(found.path)
        # Not a model with some values of its own, of which nobody would know.
        status.assert_nontrivial_match().assert_existing_objects_matched().expect_partial()
        if self._counter is None:
            return saved_step(found.path)
        counted: Any = self._counter() if callable(self._counter) else self._counter
        return int(counted)

    def _evaluate(self) -> Mapping[str, Any]:
        return self._function()
