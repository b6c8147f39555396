"""Callbacks on each of several workers: one progress bar, one writer, the same decisions.

Keras knows nothing of other processes. Here callbacks that write are run on the chief only; all
others run everywhere, are told the same, and stop training everywhere when one of them does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keras

from ..errors import UnimplementedError
from . import _private
from ._agreement import take_state_of_chief
from ._saving import on_the_chief_only

_c = keras.callbacks

# What these make is made once: files, and what is sent to a server.
_WRITERS = (
    _c.BackupAndRestore,
    _c.CSVLogger,
    _c.ModelCheckpoint,
    _c.RemoteMonitor,
    _c.TensorBoard,
)
_TALKATIVE = (_c.EarlyStopping, _c.LearningRateScheduler, _c.ReduceLROnPlateau)

_EVENTS = tuple(name for name in dir(_c.Callback) if name.startswith("on_"))
BATCH_EVENTS = {
    "train": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}
_FLAGS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}


class Callbacks(_c.CallbackList):
    """The callbacks of one call of `fit`, `evaluate` or `predict`, on one of the workers.

    Args:
      model: the model.
      strategy: the strategy it was created under.
      callbacks: what the method was given.
      verbose: what the method was given.
      epochs: how many there will be.
      steps: how many an epoch has, if that is known.
      in_fit: whether the method is `fit`.

    Raises:
      UnimplementedError: for a callback that cannot be used on several workers.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        callbacks: Any = None,
        verbose: Any = 0,
        *,
        epochs: int = 1,
        steps: int | None = None,
        in_fit: bool = False,
    ) -> None:
        self._strategy = strategy
        self._in_fit = in_fit
        self._group = strategy.topology.group
        self._restores = False
        self._logged: set[str] = set()
        self._stopped: set[str] = set()
        is_chief = self._group.index == 0
        given = callbacks.callbacks if isinstance(callbacks, _c.CallbackList) else callbacks
        flat: list[Any] = keras.tree.flatten(given) if given else []
        super().__init__(
            [kept for callback in flat for kept in self._of_this_worker(callback)],
            add_history=in_fit,
            add_progbar=is_chief and verbose != 0,
            verbose=verbose if is_chief else 0,
            epochs=epochs,
            steps=steps,
            model=model,
        )

    def _of_this_worker(self, callback: Any) -> list[Any]:
        """Return what takes the place of a callback on this worker, if anything."""
        if len(self._group.tasks) == 1 or isinstance(callback, _OnChief):
            return [callback]
        if isinstance(callback, _c.OrbaxCheckpoint):
            raise UnimplementedError(
                "keras.callbacks.OrbaxCheckpoint cannot be used on several workers: it has Orbax "
                "save arrays that processes share, and here each has its own copy. Use "
                "keras.callbacks.ModelCheckpoint, or jt.train.CheckpointManager."
            )
        if self._group.index == 0:
            return [_OnChief(callback) if isinstance(callback, _WRITERS) else callback]
        if isinstance(callback, (*_WRITERS, _c.ProgbarLogger)):
            return []
        if isinstance(callback, _TALKATIVE):
            callback.verbose = 0  # what the chief says is enough
        return [callback]

    # --- What all workers do alike ---------------------------------------------------------

    def agree(self) -> None:
        """Find out what callbacks of any worker need, in which all have to take part."""
        own = [each.callback if isinstance(each, _OnChief) else each for each in self.callbacks]
        needs = {
            "restores": any(isinstance(each, _c.BackupAndRestore) for each in own),
            "logged": [
                kind for kind in _FLAGS if any(_reads_logs(c, kind, self._in_fit) for c in own)
            ],
            "stopped": [kind for kind in _FLAGS if any(_may_stop(c, kind) for c in own)],
        }
        told = self._group.agree("comparing callbacks", json.dumps(needs))
        reports = [json.loads(text) for text in told]
        self._restores = any(report["restores"] for report in reports)
        self._logged = {kind for report in reports for kind in report["logged"]}
        self._stopped = {kind for report in reports for kind in report["stopped"]}

    def reads_logs(self, kind: str) -> bool:
        """Tell whether anybody looks at what each step of `train` or `test` reports."""
        return kind in self._logged

    def stops(self, kind: str, after_epoch: bool = False) -> bool:
        """Tell whether a callback of any worker wants to stop; all workers ask at the same step.

        Inside an epoch others are asked only if there are callbacks that run there.
        """
        own = bool(getattr(self.model, _FLAGS[kind]))
        if len(self._group.tasks) == 1:
            return own
        if not after_epoch and kind not in self._stopped:
            return False
        asked = "1" in self._group.agree("asking whether to stop", str(int(own)))
        setattr(self.model, _FLAGS[kind], asked)
        return asked

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to train, on all workers with what the chief has restored."""
        super().on_train_begin(logs)
        if self._restores and len(self._group.tasks) > 1:
            model: Any = self.model
            take_state_of_chief(model, self._strategy)
            epoch = json.dumps(_private.initial_epoch(model))
            epoch = self._group.agree("restoring the epoch", epoch)[0]
            _private.set_initial_epoch(model, json.loads(epoch))


class _OnChief(_c.Callback):
    """A callback that runs on the chief only, so that nobody takes part in what it saves."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self.callback = callback
        for name in _EVENTS:
            if _overrides(callback, name):  # Keras looks at which there are
                setattr(self, name, _alone(getattr(callback, name)))

    def set_params(self, params: Any) -> None:
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        _alone(self.callback.set_model)(model)


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with on_the_chief_only():
            return method(*args, **kwargs)

    return called


# --- What a callback needs -----------------------------------------------------------------


def _reads_logs(callback: Any, kind: str, in_fit: bool) -> bool:
    """Tell whether a callback looks at the logs of each batch."""
    indifferent = next(
        (
            cls
            for cls, is_indifferent in _INDIFFERENT.items()
            if isinstance(callback, cls) and is_indifferent(callback, kind, in_fit)
        ),
        _c.Callback,
    )
    return any(
        event.endswith("_end") and _overrides(callback, event, indifferent)
        for event in BATCH_EVENTS[kind]
    )


# Callbacks of Keras that are told of each batch and, set up like this, look at no logs of it.
_INDIFFERENT: dict[type, Callable[[Any, str, bool], bool]] = {
    _c.BackupAndRestore: lambda callback, kind, in_fit: True,
    _c.ModelCheckpoint: lambda callback, kind, in_fit: callback.save_freq == "epoch",
    _c.ProgbarLogger: lambda callback, kind, in_fit: (
        callback.verbose != 1 or (in_fit and kind == "test")
    ),
    _c.TensorBoard: lambda callback, kind, in_fit: callback.update_freq == "epoch",
}


def _may_stop(callback: Any, kind: str) -> bool:
    """Tell whether a callback can ask to stop inside an epoch."""
    if isinstance(callback, (*_WRITERS, _c.ProgbarLogger)):
        return False
    return any(_overrides(callback, event) for event in BATCH_EVENTS[kind])


def _overrides(callback: Any, event: str, cls: type = _c.Callback) -> bool:
    """Tell whether a callback does something else on an event than those of a class do."""
    function = getattr(getattr(callback, event), "__func__", None)
    return function not in (getattr(_c.Callback, event), getattr(cls, event))
