"""Messages as bytes: an envelope, then arrays as they are in memory.

The first frame of a message is its header: a fixed prefix (which protocol, what kind of message,
which request) and a body, a `msgspec` Struct as MessagePack. The other frames are arrays and
other bytes, which the body describes. Everything that arrives is checked before it is used, and
nothing is ever unpickled here.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgumentError

PROTOCOL = 1
"""Raised whenever processes with the old and the new version would misunderstand each other."""

LONGEST_HEADER = 1 << 20
LONGEST_GREETING = 4 << 10
"""The header of a message of a peer that has not proved who it is."""
MOST_FRAMES = 65536
LARGEST_FRAME = 1 << 30

# Of every version of the protocol, so that versions can tell each other apart: magic, version,
# kind, request, token of the session.
_PREFIX = struct.Struct("<4sHBxQ8s")
_MAGIC = b"jaxt"

NO_TOKEN = bytes(8)

Buffer = bytes | bytearray | memoryview


class WireError(InvalidArgumentError):
    """Something arrived that is no valid message."""


class Kind(enum.IntEnum):
    """What a message is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    REQUEST = 6
    REPLY = 7
    ERROR = 8
    NOTICE = 9


_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}


class Envelope(msgspec.Struct, frozen=True):
    """A header whose prefix has been read, and whose body has not."""

    version: int
    kind: Kind
    request: int
    token: bytes
    body: memoryview


_encode = msgspec.msgpack.Encoder().encode


def encode_body(body: msgspec.Struct) -> bytes:
    """Return a body as it is sent.

    Raises:
      InvalidArgumentError: when it is too long, or holds what has no place in a message.
    """
    try:
        encoded = _encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{type(body).__name__} cannot be sent: {error}. Messages hold numbers, text and lists "
            "of them."
        ) from error
    if _PREFIX.size + len(encoded) > LONGEST_HEADER:
        raise InvalidArgumentError(
            f"{type(body).__name__} takes {len(encoded)} bytes without its arrays, and a message "
            f"has room for {LONGEST_HEADER - _PREFIX.size}. Send several messages."
        )
    return encoded


def encode(kind: Kind, request: int, token: bytes, body: bytes, version: int = PROTOCOL) -> bytes:
    """Return the header of a message, given its encoded body."""
    return _PREFIX.pack(_MAGIC, version, kind, request, token) + body


def open_envelope(header: Buffer, longest: int = LONGEST_HEADER) -> Envelope:
    """Return the parts of a header; of another version of the protocol as well.

    Raises:
      WireError: when it is none.
    """
    if not _PREFIX.size <= len(header) <= longest:
        raise WireError(
            f"A header has {_PREFIX.size} to {longest} bytes, and {len(header)} arrived."
        )
    magic, version, number, request, token = _PREFIX.unpack_from(header)
    if magic != _MAGIC:
        raise WireError("Something arrived that does not begin as a message of jaxtribute does.")
    kind = _KINDS.get(number)
    if kind is None:
        raise WireError(f"There is no kind of message with the number {number}.")
    return Envelope(version, kind, request, token, memoryview(header)[_PREFIX.size :])


def decoder(types: Any) -> Callable[[Buffer], Any]:
    """Return a function that decodes bodies of the given Structs.

    It raises a `WireError` when it is given anything else.
    """
    decode = msgspec.msgpack.Decoder(types).decode

    def decode_body(body: Buffer) -> Any:
        try:
            return decode(body)
        # Text that is no UTF-8 and what is nested too deeply have errors of their own.
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise WireError(f"The body of a message cannot be understood: {error}.") from error

    return decode_body


def checked_frames(frames: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return frames that may be sent.

    Raises:
      InvalidArgumentError: when there are too many, or one is too large.
    """
    if len(frames) > MOST_FRAMES:
        raise InvalidArgumentError(
            f"A message may have {MOST_FRAMES} frames, and was given {len(frames)}. Send several."
        )
    for frame in frames:
        if (size := size_of(frame)) > LARGEST_FRAME:
            raise InvalidArgumentError(
                f"An array of {size} bytes does not fit into one frame of a message, which holds "
                f"{LARGEST_FRAME}. Send it in parts, some rows in each."
            )
    return frames


def size_of(frame: Buffer) -> int:
    """Return how many bytes a buffer has."""
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


class ArrayType(msgspec.Struct, array_like=True, frozen=True):
    """What the bytes of an array mean."""

    dtype: str
    shape: tuple[int, ...]


def _known_dtypes() -> dict[str, np.dtype[Any]]:
    numbers = [np.bool_, *(np.dtype(code) for code in "bhilqBHILQefdFD")]
    known = {np.dtype(number).name: np.dtype(number) for number in numbers}
    for name in ml_dtypes.__all__:
        member = getattr(ml_dtypes, name)
        if isinstance(member, type) and issubclass(member, np.generic):
            known[np.dtype(member).name] = np.dtype(member)
    return known


_DTYPES = _known_dtypes()
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_DIMENSIONS = 64  # as in NumPy
_LONGEST_DIMENSION = 1 << 48


def array_type(array: Any) -> ArrayType:
    """Return what the bytes of a NumPy or JAX array mean.

    Raises:
      InvalidArgumentError: when it does not consist of numbers or truth values.
    """
    # `dtype.name`, which is the same for both orders of bytes, takes NumPy some microseconds.
    name = _NAMES.get(array.dtype) or (array.dtype.name if array.dtype.name in _DTYPES else None)
    if name is None:
        raise InvalidArgumentError(
            f"An array of dtype {array.dtype} cannot be sent; arrays of numbers and truth values "
            "can. Convert it first."
        )
    return ArrayType(name, array.shape)


def frame_of(array: Any) -> Buffer:
    """Return the bytes of an array, without copying them where they are contiguous.

    The array must not change until the message has been sent.
    """
    whole: NDArray[Any] = np.asarray(array)
    if not whole.dtype.isnative:
        whole = whole.astype(whole.dtype.newbyteorder("="))
    # As bytes, because the buffer protocol does not know bfloat16 and the like.
    return np.ascontiguousarray(whole).reshape(-1).view(np.uint8).data


def as_array(type: ArrayType, frame: Buffer) -> NDArray[Any]:
    """Return the array whose bytes a frame holds: a view, which cannot be written to.

    Raises:
      WireError: when there is no such array, or its bytes are not as many.
    """
    dtype = _DTYPES.get(type.dtype)
    if dtype is None:
        raise WireError(f"An array of dtype {type.dtype!r} arrived; arrays hold numbers.")
    shape = type.shape
    if len(shape) > _MOST_DIMENSIONS or any(not 0 <= n <= _LONGEST_DIMENSION for n in shape):
        raise WireError(f"An array arrived whose shape is {_shortened(shape)}.")
    expected = math.prod(shape) * dtype.itemsize
    if size_of(frame) != expected:
        raise WireError(
            f"An array of shape {_shortened(shape)} and dtype {type.dtype} has {expected} bytes, "
            f"and {size_of(frame)} arrived."
        )
    try:
        # An empty buffer is none for NumPy, and an empty array may be too large for it.
        flat = np.frombuffer(frame, dtype) if expected else np.empty(0, dtype)
        array = flat.reshape(shape)
    except ValueError as error:
        raise WireError(f"An array arrived whose shape is {_shortened(shape)}.") from error
    array.flags.writeable = False
    return array


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that arrived for the caller alone as one that may be written to.

    Without a copy, if it is all that a frame holds: frames are read-only for everybody else.
    """
    if array.flags.writeable:
        return array
    source: Any = array.base
    while isinstance(source, np.ndarray):
        source = source.base
    held = memoryview(source.obj) if isinstance(source, memoryview) else memoryview(b"")
    if held.readonly or held.nbytes != array.nbytes or not array.flags.aligned:
        return array.copy()
    return np.frombuffer(held, array.dtype).reshape(array.shape)


def _shortened(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 80 else f"{text[:77]}..."
