"""Arrays on disk, by name, in the format of Orbax.

Only arrays of the host are written and read, each time by this process alone: workers agree among
themselves, and Orbax must not wait for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = np.ndarray[Any, Any]
_T = TypeVar("_T")

_EVERYWHERE = "biufc"  # the kinds of types that all programs know


def save(directory: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a directory that does not exist yet."""
    # An array without elements is described by its shape, and Orbax refuses it.
    stored = {name: _as_bits(array) for name, array in arrays.items() if array.size}
    if stored:
        _in_own_thread(lambda: _save(directory, stored))


def load(directory: Path, types: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, Array]:
    """Read some of the arrays of a directory, given the shape and type of each."""
    stored = [name for name, (shape, _) in types.items() if 0 not in shape]
    read = _in_own_thread(lambda: _load(directory, stored)) if stored else {}
    return {
        name: _from_bits(np.asarray(read[name]), np.dtype(dtype))
        if name in read
        else np.empty(shape, dtype)
        for name, (shape, dtype) in types.items()
    }


def can_store(dtype: Any) -> bool:
    """Tell whether arrays of a type can be written."""
    dtype = np.dtype(dtype)
    return dtype.kind in _EVERYWHERE or jnp.issubdtype(dtype, np.number)


def _as_bits(array: Array) -> Array:
    """Return what is written of an array: the small types of machine learning as plain bits."""
    if array.dtype.kind in _EVERYWHERE or array.dtype == jnp.bfloat16:
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _from_bits(array: Array, dtype: np.dtype[Any]) -> Array:
    return array if array.dtype == dtype else array.view(dtype)


def _save(directory: Path, arrays: Mapping[str, Array]) -> None:
    import orbax.checkpoint as ocp  # heavy, so not before it is needed

    with _checkpointer() as checkpointer:
        checkpointer.save(directory.absolute(), args=ocp.args.PyTreeSave(dict(arrays)))


def _load(directory: Path, names: Iterable[str]) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    wanted = dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray))
    with _checkpointer() as checkpointer:
        return checkpointer.restore(
            directory.absolute(),
            args=ocp.args.PyTreeRestore(
                item=dict.fromkeys(wanted, 0), restore_args=wanted, partial_restore=True
            ),
        )


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _in_own_thread(work: Callable[[], _T]) -> _T:
    """Call a function in a thread of its own.

    Orbax runs event loops. In the caller's thread it would replace the one that is set there, and
    would have to nest them where one is running already, as in a notebook.
    """
    done: list[_T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="jaxtribute-checkpoint")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
