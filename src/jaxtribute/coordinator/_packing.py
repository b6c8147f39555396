"""Functions, arguments, results and errors as bytes, on their way to workers and back.

A `jt.function` and a big array, wherever they occur, are blobs: known by the digest of their bytes,
and sent to each worker once. What is made on workers (`Resource`) travels as its number. Everything
else is pickled when `schedule` is called, so that it does not matter what changes afterwards.

Only a worker's authenticated coordinator, and a coordinator's authenticated workers, have their
bytes loaded here.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _integrations
from ..tracing import Function
from ._reducers import reduced
from ._results import load_error, load_result, pack_error, pack_result
from ._sent_modules import missing_module, sending_modules

if TYPE_CHECKING:
    from ..rpc import Buffer

__all__ = [
    "Blob",
    "Packed",
    "PackedFunction",
    "Packer",
    "Resource",
    "load_arguments",
    "load_error",
    "load_function",
    "load_result",
    "pack_error",
    "pack_result",
]

_BIG = 64 << 10
_KEPT_BYTES = 256 << 20  # of arrays that might be sent again
_PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None), tuple, list, dict, set})

Loaded = MutableMapping[str, Callable[..., Any]]


class Blob:
    """Bytes that are sent to a worker once, and known by their digest from then on."""

    __slots__ = ("__weakref__", "data", "digest")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.digest = hashlib.blake2b(data, digest_size=16).hexdigest()


class Packed(NamedTuple):
    """Arguments of a closure, ready to be sent."""

    frames: tuple[bytes, ...]
    blobs: tuple[Blob, ...]
    """What must be on the worker first."""
    resources: tuple[Resource, ...]


class PackedFunction(NamedTuple):
    """A function, ready to be sent."""

    name: str
    blob: Blob
    blobs: tuple[Blob, ...]
    """What else must be on the worker first."""
    resources: tuple[Resource, ...]


class Resource:
    """Something that exists once on each worker, made there by a function when it is needed.

    Args:
      number: how coordinator and workers call it.
      function: makes it, called without arguments.
    """

    def __init__(self, number: int, function: PackedFunction) -> None:
        self.number = number
        self.function = function


class Packer:
    """Turns functions and arguments into bytes; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._functions: weakref.WeakKeyDictionary[Callable[..., Any], PackedFunction]
        self._functions = weakref.WeakKeyDictionary()
        self._in_progress: list[Function] = []
        self._blobs: weakref.WeakValueDictionary[str, Blob] = weakref.WeakValueDictionary()
        self._arrays: dict[int, tuple[weakref.ref[Any], Blob]] = {}
        self._kept: OrderedDict[str, Blob] = OrderedDict()
        self._kept_bytes = 0

    def function(self, function: Callable[..., Any]) -> PackedFunction:
        """Pack a function.

        What a `jt.function` captures are constants of it, so it is packed once. A plain function is
        packed each time, as what it refers to may have changed.

        Raises:
          TypeError: when it, or something that it refers to, cannot be sent.
          ValueError: when it refers to the result of another closure.
        """
        known = self._known(function)
        if known is not None:
            return known
        with self._lock:
            if isinstance(function, Function):
                with self._packing(function):
                    packed = self._pack_function(function)
            else:
                packed = self._pack_function(function)
            if isinstance(function, Function) or _refers_to_nothing(function):
                self._functions[function] = packed
            return packed

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Packed:
        """Pack the arguments of a closure.

        Raises:
          TypeError: when something in them cannot be sent.
          ValueError: when the result of another closure is among them.
        """
        if not args and not kwargs:
            return _NOTHING
        with self._lock:
            data, pickler = self._pickled((tuple(args), dict(kwargs)), "The arguments")
        return Packed((data,), *pickler.needed())

    def blob(self, digest: str) -> Blob | None:
        """Return something that was packed, if it is still in use."""
        return self._blobs.get(digest)

    def nested(self, function: Function) -> PackedFunction | None:
        """Pack a function that another refers to, unless that one is a part of it in turn."""
        if any(function is other for other in self._in_progress):
            return None
        return self.function(function)

    def array(self, array: Any) -> Blob:
        """Return the bytes of a big array; one of JAX cannot change, so it is copied once."""
        if isinstance(array, np.ndarray):
            return self._keep(self._interned(array.tobytes()))
        key = id(array)
        known = self._arrays.get(key)
        if known is not None and known[0]() is array:
            return known[1]
        blob = self._interned(np.asarray(array).tobytes())
        forget = self._arrays.pop
        self._arrays[key] = weakref.ref(array, lambda _: forget(key, None)), blob
        return blob

    def _known(self, function: Callable[..., Any]) -> PackedFunction | None:
        try:
            return self._functions.get(function)
        except TypeError:  # it is called like a function, but is not hashable
            return None

    @contextmanager
    def _packing(self, function: Function) -> Generator[None]:
        self._in_progress.append(function)
        try:
            yield
        finally:
            self._in_progress.pop()

    def _pack_function(self, function: Callable[..., Any]) -> PackedFunction:
        name = name_of(function)
        data, pickler = self._pickled(function, f"The function {name!r}")
        return PackedFunction(name, self._interned(data), *pickler.needed())

    def _pickled(self, value: Any, what: str) -> tuple[bytes, _Pickler]:
        file = io.BytesIO()
        pickler = _Pickler(file, self, value)
        try:
            with sending_modules():
                pickler.dump(value)
        except ValueError:  # the result of another closure
            raise
        except Exception as error:  # objects of other libraries raise whatever they like
            raise TypeError(f"{what} cannot be sent to workers: {error}") from error
        return file.getvalue(), pickler

    def _interned(self, data: bytes) -> Blob:
        blob = Blob(data)
        return self._blobs.setdefault(blob.digest, blob)

    def _keep(self, blob: Blob) -> Blob:
        """Remember an array for a while, as it may be a constant that is about to come again."""
        if blob.digest in self._kept:
            self._kept.move_to_end(blob.digest)
            return blob
        self._kept[blob.digest] = blob
        self._kept_bytes += len(blob.data)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].data)
        return blob


_NOTHING = Packed((), (), ())


class _Pickler(cloudpickle.Pickler):
    """Collects what a value needs besides its own bytes."""

    def __init__(self, file: io.BytesIO, packer: Packer, root: Any) -> None:
        super().__init__(file, protocol=5)
        self._packer = packer
        self._root = root
        self._blobs: dict[str, Blob] = {}
        self._resources: dict[int, Resource] = {}

    def needed(self) -> tuple[tuple[Blob, ...], tuple[Resource, ...]]:
        return tuple(self._blobs.values()), tuple(self._resources.values())

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) in _PLAIN:  # which most are
            return None
        if isinstance(obj, Resource):
            self._resources[obj.number] = obj
            self._need([obj.function.blob, *obj.function.blobs], obj.function.resources)
            return "resource", obj.number
        if isinstance(obj, Function) and obj is not self._root:
            packed = self._packer.nested(obj)
            if packed is None:
                return None
            self._need([packed.blob, *packed.blobs], packed.resources)
            return "function", packed.blob.digest
        if type(obj) is np.ndarray:
            if obj.nbytes < _BIG or obj.dtype.hasobject:
                return None
            return self._constant("numpy", obj, obj.dtype)
        if isinstance(obj, jax.Array) and not isinstance(obj, Tracer):
            if obj.nbytes < _BIG or jnp.issubdtype(obj.dtype, jax.dtypes.extended):
                return None
            return self._constant("jax", obj, np.dtype(obj.dtype))
        return None

    def reducer_override(self, obj: Any) -> Any:
        found = reduced(obj)
        return super().reducer_override(obj) if found is NotImplemented else found

    def _constant(self, kind: str, array: Any, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        blob = self._packer.array(array)
        self._need([blob], ())
        return kind, blob.digest, dtype, tuple(array.shape)

    def _need(self, blobs: Iterable[Blob], resources: Iterable[Resource]) -> None:
        self._blobs.update((blob.digest, blob) for blob in blobs)
        self._resources.update((resource.number, resource) for resource in resources)


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called in messages."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _refers_to_nothing(function: Callable[..., Any]) -> bool:
    """Tell whether a plain function is always the same, so that packing it once is enough."""
    if type(function) is not types.FunctionType:
        return False
    code = function.__code__
    return not (
        code.co_names
        or function.__closure__
        or function.__defaults__
        or function.__kwdefaults__
        or function.__dict__
        or any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    )


# --- On a worker -----------------------------------------------------------------------------


def load_function(
    data: Buffer,
    constants: Mapping[str, Any],
    resource: Callable[[int], Any],
    loaded: Loaded | None = None,
) -> Callable[..., Any]:
    """Return a function that a coordinator packed.

    Args:
      data: its blob.
      constants: the other blobs, by their digest.
      resource: returns what exists on this worker under a number.
      loaded: the functions that were loaded before, by their digest. One that another refers to
        is found or put here, so that it is compiled once, however many closures bring it along.

    Raises:
      ModuleNotFoundError: when it needs a module that is not there.
    """
    return _load(data, constants, resource, loaded)


def load_arguments(
    frames: Sequence[Buffer],
    constants: Mapping[str, Any],
    resource: Callable[[int], Any],
    loaded: Loaded | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a coordinator packed, in memory of their own.

    The arguments are those of `load_function`.

    Raises:
      ModuleNotFoundError: when something among them needs a module that is not there.
    """
    if not frames:
        return (), {}
    return _load(frames[0], constants, resource, loaded)


def _load(
    data: Buffer,
    constants: Mapping[str, Any],
    resource: Callable[[int], Any],
    loaded: Loaded | None,
) -> Any:
    _integrations.prefer_jax()
    unpickler = _Unpickler(data, constants, resource, {} if loaded is None else loaded)
    try:
        return unpickler.load()
    except ModuleNotFoundError as error:
        raise missing_module(error) from error


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        data: Buffer,
        constants: Mapping[str, Any],
        resource: Callable[[int], Any],
        loaded: Loaded,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._constants = constants
        self._resource = resource
        self._loaded = loaded

    def persistent_load(self, pid: Any) -> Any:
        kind, key, *rest = pid
        if kind == "resource":
            return self._resource(key)
        if kind == "function":
            if key not in self._loaded:
                data = self._constants[key]
                self._loaded[key] = _load(data, self._constants, self._resource, self._loaded)
            return self._loaded[key]
        dtype, shape = rest
        array = np.frombuffer(self._constants[key], dtype).reshape(shape)
        # A copy, as others get the same bytes.
        return jnp.array(array) if kind == "jax" else array.copy()
