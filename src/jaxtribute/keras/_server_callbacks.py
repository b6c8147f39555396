"""Which callbacks go with steps that workers run, many at a time and in no order."""

from __future__ import annotations

from typing import Any

import keras

from . import _private
from ._callbacks import BATCH_EVENTS

_KINDS = {"fit": "train", "evaluate": "test"}
# Of Keras's own callbacks: what says that they look at epochs only.
_FREQUENCIES = ("save_freq", "update_freq")


def check_callbacks(callbacks: Any, method: str) -> None:
    """Refuse callbacks that would have to be called for every batch.

    Raises:
      ValueError: when there is one.
    """
    for callback in callbacks.callbacks:
        events = BATCH_EVENTS[_KINDS[method]] if method in _KINDS else ()
        hooks = [name for name in events if _needs(callback, name)]
        if not hooks:
            continue
        kind = type(callback).__name__
        frequency = next((name for name in _FREQUENCIES if hasattr(callback, name)), None)
        if frequency is None:
            needs, instead = hooks[0], "override on_epoch_begin or on_epoch_end"
        else:
            needs = f"{frequency}={getattr(callback, frequency)!r}"
            instead = f'use {frequency}="epoch"'
        raise ValueError(
            f"The callback {kind} needs every batch ({needs}), and under a ParameterServerStrategy "
            "batches are computed by workers, many at the same time and in no order. For "
            f"{method}, {instead}; or write the loop yourself, with a ClusterCoordinator, whose "
            "functions run for each batch."
        )


def _needs(callback: Any, name: str) -> bool:
    """Tell whether a callback does something for each batch."""
    if name in vars(callback):  # of a LambdaCallback
        return True
    definer = _private.definer(type(callback), name)
    if definer is keras.callbacks.Callback or isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    is_keras = definer.__module__.partition(".")[0] == "keras"
    frequencies = [getattr(callback, name) for name in _FREQUENCIES if hasattr(callback, name)]
    return not (is_keras and frequencies == ["epoch"])
