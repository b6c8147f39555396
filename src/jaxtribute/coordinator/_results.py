"""What became of a closure, as bytes: its result or its error.

Packing never fails: a result that cannot be sent becomes an error, and an error that cannot be sent
becomes one that can and says the same.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..errors import PSUnavailableError
from ..sharded import ShardedVariable
from ..tracing._feeding import ended
from ..variables import Variable
from ._reducers import reduced

if TYPE_CHECKING:
    from ..rpc import Buffer

__all__ = ["as_jax", "load_error", "load_result", "pack_error", "pack_result"]

_BIG = 64 << 10


class _Pickler(cloudpickle.Pickler):
    """Marks arrays of JAX, which arrive as NumPy's."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, jax.Array) and not isinstance(obj, Tracer):
            if jnp.issubdtype(obj.dtype, jax.dtypes.extended):
                return None
            return "array", np.asarray(obj)
        if isinstance(obj, (Variable, ShardedVariable)):  # as what it is worth at the end
            return "array", obj.numpy()
        return None

    def reducer_override(self, obj: Any) -> Any:
        found = reduced(obj)
        return super().reducer_override(obj) if found is NotImplemented else found


class _Unpickler(pickle.Unpickler):
    def __init__(self, frames: Sequence[Buffer]) -> None:
        super().__init__(io.BytesIO(frames[0]), buffers=frames[1:])

    def persistent_load(self, pid: Any) -> Any:
        array = pid[1]
        # A copy can be written to, unlike the memory in which it arrived.
        return array.copy() if array.shape else array[()]


def pack_result(value: Any) -> list[Buffer]:
    """Return what a function returned as frames.

    Raises:
      TypeError: when it cannot be sent.
      PSUnavailableError: when it is a variable whose server is lost.
    """
    file = io.BytesIO()
    buffers: list[Buffer] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        # The function may still write to memory that can be written to, so that is copied.
        raw = buffer.raw()
        if raw.nbytes < _BIG or not raw.readonly:
            return True
        buffers.append(raw)
        return False

    try:
        _Pickler(file, protocol=5, buffer_callback=is_small).dump(value)
    except PSUnavailableError:  # of a variable, whose value is sent
        raise
    except Exception as error:
        raise TypeError(
            f"What the function returned cannot be sent to the coordinator: {error} "
            f"(it is a {type(value).__qualname__})."
        ) from error
    return [file.getbuffer(), *buffers]


def load_result(frames: Sequence[Buffer]) -> Any:
    """Return a result that a worker packed, with NumPy's arrays and numbers for those of JAX."""
    return _Unpickler(frames).load()


def as_jax(leaf: Any) -> Any:
    """Return an array of JAX for one of NumPy, and other things as they are."""
    is_array = isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind not in "OSUmM"
    return jnp.asarray(leaf) if is_array else leaf


def pack_error(error: BaseException, task: str) -> list[Buffer]:
    """Return an error as frames, with the place where it came from.

    Args:
      error: what a function raised.
      task: the name of the worker.
    """
    if isinstance(error, StopIteration):  # as in a compiled function
        error = ended().with_traceback(error.__traceback__)
    lines = traceback.format_exception(error)
    short = "".join(traceback.format_exception_only(error)).strip()
    frames: list[Buffer] = [pickle.dumps((task, short, "".join(lines)))]
    try:
        file = io.BytesIO()
        _Pickler(file, protocol=5).dump(error)
        frames.append(file.getbuffer())
    except Exception:  # whatever its class does: the text is on its way
        return frames[:1]
    return frames


def load_error(frames: Sequence[Buffer]) -> Exception:
    """Return an error that a worker packed, with a note that holds the worker's traceback.

    One that cannot be rebuilt here, or that would end this process, is a RuntimeError.
    """
    task, short, trace = pickle.loads(frames[0])
    error: Any = None
    if len(frames) > 1:
        try:
            error = _Unpickler(frames[1:2]).load()
        except Exception:  # a class that does not take what it gives, or is not known here
            error = None
    if not isinstance(error, Exception):
        error = RuntimeError(short)
    error.add_note(f"Raised on {task}:\n{trace}")
    return error
