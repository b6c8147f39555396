"""What all evaluators do: wait for a checkpoint, restore it, evaluate it, write down the result."""

from __future__ import annotations

import os
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._job import report
from ..errors import NotFoundError
from ._choice import next_due
from ._ending import Ending
from ._found import Found
from ._results import Result, Results, checked_metrics
from ._steps import number_in_name
from ._summaries import Summaries

__all__ = ["RESULTS", "Evaluator"]

RESULTS = "results.jsonl"

# What reading raises of a checkpoint that is damaged, or gone.
_UNREADABLE = (NotFoundError, OSError, zipfile.BadZipFile)


class Evaluator(ABC):
    """Evaluates the checkpoints of a directory as they come.

    Args:
      checkpoint_dir: the directory.
      max_evaluations: ends after this many results, counting those of earlier runs.
      timeout: ends when no new checkpoint has come for so many seconds.
      last_step: ends with the checkpoint of this step, or a later one.
      evaluate_all: whether each checkpoint is evaluated, rather than the newest only.
      log_dir: where results and summaries are written; `evaluation` in `checkpoint_dir` if None.
      poll_seconds: how often to look for a new checkpoint.

    Raises:
      ValueError: for numbers that cannot be.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        *,
        max_evaluations: int | None,
        timeout: float | None,
        last_step: int | None,
        evaluate_all: bool,
        log_dir: str | os.PathLike[str] | None,
        poll_seconds: float,
    ) -> None:
        for name, value in {"max_evaluations": max_evaluations, "last_step": last_step}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} has to be at least 1, got {value}. None sets no limit.")
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout is a number of seconds, got {timeout}. None waits for ever.")
        if poll_seconds <= 0:
            raise ValueError(f"poll_seconds has to be more than 0, got {poll_seconds}.")
        self._directory = Path(checkpoint_dir)
        self._log_dir = self._directory / "evaluation" if log_dir is None else Path(log_dir)
        self._max_evaluations = max_evaluations
        self._timeout = timeout
        self._last_step = last_step
        self._all = evaluate_all
        self._poll_seconds = poll_seconds

    @property
    def results_file(self) -> str:
        """The path of the file with a line of JSON for each result."""
        return os.fspath(self._log_dir / RESULTS)

    # --- What differs between kinds of models ----------------------------------------------

    @abstractmethod
    def _find(self) -> list[Found]:
        """Return the complete checkpoints there are, oldest first."""

    def _prepare(self) -> None:  # noqa: B027 - most have nothing to do
        """Make ready what checkpoints are restored into; called before each."""

    @abstractmethod
    def _restore(self, found: Found) -> int | None:
        """Restore a checkpoint, and return its step if that is known."""

    @abstractmethod
    def _evaluate(self) -> Mapping[str, Any]:
        """Return what comes out for what was restored."""

    # --- What does not ---------------------------------------------------------------------

    def start(self) -> list[dict[str, Any]]:
        """Evaluate checkpoints until training is over, and return the results of this call.

        That is after `max_evaluations`, with `last_step`, after `timeout`, or when this process
        gets SIGTERM, as at the end of training from `jaxtribute launch`: then the newest checkpoint
        is still evaluated.

        Returns:
          A dict for each, as in `results_file`.

        Raises:
          AssertionError: when a checkpoint has no values for what is to be evaluated.
          InvalidArgumentError: when its values do not fit.
          TypeError: when the results are no numbers.
          Exception: what evaluating raises.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        results = Results(self._log_dir / RESULTS)
        summaries = Summaries(self._log_dir)
        if summaries.missing is not None:
            _say(summaries.missing)
        try:
            with Ending() as ending:
                return self._follow(ending, results, summaries)
        finally:
            summaries.close()

    def _follow(self, ending: Ending, results: Results, summaries: Summaries) -> list[Any]:
        made: list[dict[str, Any]] = []
        given_up: set[str] = set()
        last_news = time.monotonic()
        report(phase="waiting for a checkpoint")
        while (reason := self._reached(results)) is None:
            over = ending.has_come  # asked first: what was saved before is seen below
            due = next_due(self._find(), results.evaluated | given_up, self._all)
            if due is not None:
                report(phase="evaluating")
                result = self._result_for(due, len(results))
                report(phase="waiting for a checkpoint")
                if result is None:
                    given_up.add(due.id)
                else:
                    results.append(result)
                    summaries.write(result)
                    _say(_line(due, result))
                    made.append(asdict(result))
                last_news = time.monotonic()
            elif over:
                reason = "training is over"
                break
            elif self._timeout is not None and time.monotonic() - last_news >= self._timeout:
                reason = f"no new checkpoint for {self._timeout:g} s"
                break
            else:
                ending.wait(self._poll_seconds)
        _say(f"evaluation ends: {reason}; results: {len(results)}, in {self.results_file}")
        return made

    def _reached(self, results: Results) -> str | None:
        """Return why no more needs to be evaluated, if so."""
        if self._max_evaluations is not None and len(results) >= self._max_evaluations:
            return f"max_evaluations={self._max_evaluations} is reached"
        step = results.last_step
        if self._last_step is not None and step is not None and step >= self._last_step:
            return f"last_step={self._last_step} is reached"
        return None

    def _result_for(self, found: Found, count: int) -> Result | None:
        """Return the result for a checkpoint, None if it cannot be read."""
        began = time.monotonic()
        self._prepare()  # which is no matter of the checkpoint, whatever it raises
        try:
            step = self._restore(found)
        except _UNREADABLE as error:
            if any(each.id == found.id for each in self._find()):
                _say(f"skipped {found.name}, which cannot be read: {error}")
            else:
                _say(f"skipped {found.name}, which was deleted or replaced meanwhile")
            return None
        if step is None:
            step = number_in_name(found.name)
        metrics = checked_metrics(self._evaluate())
        return Result(
            step=count + 1 if step is None else step,
            checkpoint=found.path,
            metrics=metrics,
            time=time.time(),
            seconds=round(time.monotonic() - began, 3),
            id=found.id,
        )


def _say(line: str) -> None:
    print(line, flush=True)


def _line(found: Found, result: Result) -> str:
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
    return f"evaluated {found.name} at step {result.step}: {numbers} ({result.seconds:.1f} s)"
