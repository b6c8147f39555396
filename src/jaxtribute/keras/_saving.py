"""Saving models once for all workers, and whole or not at all.

Each worker has all weights, so one can write them. Which state is loaded, all have to agree on.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from .. import _context
from .._durable import sync_directory
from ..checkpoint._together import together
from ..errors import FailedPreconditionError
from ._agreement import take_state_of_chief
from ._models import known_strategy

Own = Callable[..., Any]


class _Thread(threading.local):
    alone = False


_thread = _Thread()


@contextmanager
def on_the_chief_only() -> Generator[None]:
    """Save and load inside without the other workers, who do not come by here."""
    before = _thread.alone
    _thread.alone = True
    try:
        yield
    finally:
        _thread.alone = before


def _group(model: keras.Model) -> Any | None:
    """Return the workers that save or load a model with this one, if there are others."""
    strategy = known_strategy(model)
    if strategy is None or _thread.alone or len(strategy.topology.group.tasks) == 1:
        return None
    return strategy.topology.group


# --- Saving --------------------------------------------------------------------------------


def _save(own: Own, model: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Save a model, or its weights, to a file."""
    if known_strategy(model) is None:
        own(model, filepath, *args, **kwargs)
        return
    given = inspect.signature(own).bind(model, filepath, *args, **kwargs).arguments

    def write() -> None:
        target = _replaceable(filepath, given)
        if target is None:
            own(model, filepath, *args, **kwargs)
            return
        with _replacing(target) as temporary:
            own(model, str(temporary), *args, **kwargs)

    _once(model, filepath, write)


def _export(own: Own, model: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Export a model for inference."""
    _once(model, filepath, lambda: own(model, filepath, *args, **kwargs))


def _once(model: keras.Model, filepath: Any, write: Callable[[], None]) -> None:
    """Let one worker write to a path, and return on all when it is done.

    A worker with a path of its own writes as well, as programs for the reference do that have
    all but the chief write to a directory they remove again.

    Raises:
      AbortedError: when it failed on another worker.
      FailedPreconditionError: when another worker does something else.
    """
    group = _group(model)
    if group is None:
        write()
        return
    path = os.path.abspath(filepath)
    try:
        paths = group.agree(f"beginning to save the model {model.name!r}", path)
    except FailedPreconditionError as error:
        raise FailedPreconditionError(
            f"The model {model.name!r} has to be saved by all workers, also where the chief alone "
            f"writes the file: the others wait until it is there. {error}"
        ) from error
    writes = paths.index(path) == group.index
    together(group, f"save the model {model.name!r}", write if writes else lambda: None)


def _replaceable(filepath: Any, given: dict[str, Any]) -> Path | None:
    """Return the file that can be put into place when it is complete, or None for other targets.

    Those are directories, addresses elsewhere, weights in several files, paths Keras refuses, and
    files that are there already and of which it asks whether to overwrite them.
    """
    if not isinstance(filepath, (str, os.PathLike)) or given.get("max_shard_size") is not None:
        return None
    text = os.fspath(filepath)
    if "://" in text or not text.endswith((".keras", ".h5", ".hdf5")):
        return None
    target = Path(os.path.realpath(text))
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        return None
    return target if given.get("overwrite", True) or not target.exists() else None


@contextmanager
def _replacing(target: Path) -> Generator[Path]:
    """Write a file next to its place, and put it there when it is complete."""
    # Of one name, so that there is never more than one left of programs that were killed.
    temporary = target.with_name(f".saving-{target.name}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_directory(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# --- Loading -------------------------------------------------------------------------------


def _load_weights(own: Own, model: keras.Model, *args: Any, **kwargs: Any) -> None:
    """Load weights on all workers, from files that may not be the same."""
    group = _group(model)
    if group is None:
        own(model, *args, **kwargs)
        return
    together(
        group, f"load weights of the model {model.name!r}", lambda: own(model, *args, **kwargs)
    )
    take_state_of_chief(model, known_strategy(model))


def _load_model(own: Own, *args: Any, **kwargs: Any) -> Any:
    """Load a model on all workers, from files that may not be the same."""
    model = own(*args, **kwargs)
    if isinstance(model, keras.Model) and _group(model) is not None:
        take_state_of_chief(model, known_strategy(model))
    return model


def attributes_to_skip(own: Own, kind: str) -> set[str]:
    """Return what of an object is not looked into, which Keras finds out by making one.

    On the worker that saves: the others must not be asked to make the variables of it as well.
    """
    with _context.outside():
        return own(kind)


FUNCTIONS = {
    "load_model": _load_model,
    "load_weights": _load_weights,
    "save_model": _save,
    "save_weights": _save,
}
METHODS = {"export": _export}
