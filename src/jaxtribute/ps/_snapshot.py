"""What a parameter server holds, as files, for the time after it was lost.

A snapshot is a folder `<directory>/ps-0/<sequence>` with the bytes of all arrays in one file and a
manifest that says what they are. It is written under another name first: what has its name is
complete. The manifest is sealed with a key, as the optimizers in it are pickled; a snapshot with
another seal, or that is damaged, is passed over for the one before. One that is known to be damaged
is never removed, and takes nobody's place among those that are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from .._durable import sync_directory, written_durably
from .._limits import say
from ..errors import CancelledError, DataLossError, NotFoundError
from ..rpc import ArrayType, array_type, frame_of
from ._cell import Array, zeros
from ._image import AppliedImage, CellImage, Image, StateImage

KEPT = 2
"""How many snapshots of one server are kept."""

_PARTIAL = ".partial"
_ARRAYS = "arrays"
_MANIFEST = "manifest.json"
_FORMAT = 1
_ALIGNMENT = 64
_AT_ONCE = 1 << 24
"""How many bytes are written between two looks at whether to stop."""


class _Held(msgspec.Struct, frozen=True):
    """A cell, and where its bytes are."""

    name: str
    version: int
    type: ArrayType
    offset: int
    checksum: int


class _HeldState(msgspec.Struct, frozen=True):
    optimizer: int
    number: int
    slots: list[int]
    leaves: list[_Held]


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    task: str
    origin: str
    clock: int
    closures: AppliedImage
    direct: AppliedImage
    variables: dict[int, _Held]
    optimizers: dict[int, bytes]
    states: list[_HeldState]
    sequence: int = 0
    size: int = 0
    """That of the arrays. Earlier versions did not write these two."""


class _Sealed(msgspec.Struct, frozen=True):
    seal: str
    manifest: msgspec.Raw
    checksum: str = ""
    """Tells damage from a seal with another key. Earlier versions did not write it."""


def _seal(key: bytes, manifest: bytes | msgspec.Raw) -> str:
    return hmac.new(key, b"jaxtribute snapshot\0" + bytes(manifest), hashlib.sha256).hexdigest()


def _checksum(manifest: bytes | msgspec.Raw) -> str:
    return hashlib.sha256(bytes(manifest)).hexdigest()


# --- Writing -------------------------------------------------------------------------------


def write(
    image: Image,
    directory: str | os.PathLike[str],
    task: str,
    key: bytes,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Path:
    """Write a snapshot, and remove all but the newest ones.

    Args:
      image: what to write.
      directory: where the snapshots of all parameter servers are.
      task: which one this is, such as `ps:0`.
      key: what to seal it with.
      is_cancelled: asked now and then whether to give up.

    Returns:
      The folder of the snapshot.

    Raises:
      CancelledError: when told to give up.
      OSError: when files cannot be written.
    """
    folder = _folder(directory, task)
    folder.mkdir(parents=True, exist_ok=True)
    for left_behind in folder.glob(f"*{_PARTIAL}"):
        shutil.rmtree(left_behind)
    existing = _complete(folder)
    sequence = int(existing[-1].name) + 1 if existing else 1
    path = folder / f"{sequence:012d}"
    partial = path.with_name(path.name + _PARTIAL)
    partial.mkdir()
    try:
        _fill(partial, image, task, key, is_cancelled, sequence)
        os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(folder)
    for old in [each for each in _complete(folder) if not _is_damaged(each)][:-KEPT]:
        shutil.rmtree(old)
    return path


def _fill(
    path: Path,
    image: Image,
    task: str,
    key: bytes,
    is_cancelled: Callable[[], bool],
    sequence: int,
) -> None:
    with written_durably(path / _ARRAYS) as file:

        def hold(cell: CellImage) -> _Held:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            offset, checksum = file.tell(), 0
            frame = memoryview(frame_of(cell.array))
            for start in range(0, frame.nbytes, _AT_ONCE):
                if is_cancelled():
                    raise CancelledError(f"The snapshot {path} was not finished.")
                part = frame[start : start + _AT_ONCE]
                checksum = zlib.crc32(part, checksum)
                file.write(part)
            return _Held(cell.name, cell.version, array_type(cell.array), offset, checksum)

        manifest = _Manifest(
            format=_FORMAT,
            task=task,
            origin=image.origin,
            clock=image.clock,
            closures=image.closures,
            direct=image.direct,
            variables={number: hold(cell) for number, cell in image.variables.items()},
            optimizers=image.optimizers,
            states=[
                _HeldState(s.optimizer, s.number, s.slots, [hold(leaf) for leaf in s.leaves])
                for s in image.states
            ],
            sequence=sequence,
            size=file.tell(),
        )
    encoded = msgspec.json.encode(manifest)
    sealed = _Sealed(_seal(key, encoded), msgspec.Raw(encoded), _checksum(encoded))
    with written_durably(path / _MANIFEST) as file:
        file.write(msgspec.json.encode(sealed))
    sync_directory(path)


def _folder(directory: str | os.PathLike[str], task: str) -> Path:
    return Path(directory) / task.replace(":", "-")


def _complete(folder: Path) -> list[Path]:
    """Return the snapshots in a folder, the newest last."""
    found = [path for path in folder.glob("*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def _is_damaged(path: Path) -> bool:
    """Tell whether a snapshot is known to be damaged, without reading its arrays."""
    try:
        sealed = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=_Sealed)
        manifest = msgspec.json.decode(sealed.manifest, type=_Manifest)
        if sealed.checksum and sealed.checksum != _checksum(sealed.manifest):
            return True
        return (path / _ARRAYS).stat().st_size < manifest.size
    except (OSError, ValueError, msgspec.MsgspecError):
        return True


# --- Reading -------------------------------------------------------------------------------


def read_newest(directory: str | os.PathLike[str], task: str, key: bytes, origin: str) -> Image:
    """Return what the newest snapshot holds that can be used.

    Args:
      directory: where the snapshots of all parameter servers are.
      task: which one this is.
      key: what it was sealed with.
      origin: the coordinator it must belong to.

    Raises:
      NotFoundError: when there is none for this server, saying whose those are that exist.
      DataLossError: when one that may have been for it is damaged, and no other can be used.
    """
    folder = _folder(directory, task)
    passed_over: list[str] = []
    kind: type[NotFoundError | DataLossError] = NotFoundError
    for path in reversed(_complete(folder)):
        try:
            image = _read(path, task, key)
        except NotFoundError as error:
            passed_over.append(f"{path.name}: {error}")
            continue
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            kind = DataLossError
            passed_over.append(f"{path.name}: {error}")
            continue
        if image.origin == origin:
            if passed_over:
                say(f"{task} passed over damaged snapshots in {folder}: {'; '.join(passed_over)}.")
            return image
        passed_over.append(f"{path.name}: another coordinator's, with variables of its own")
    why = "; ".join(passed_over) or "there is none"
    raise kind(
        f"No snapshot of {task} in {os.fspath(directory)} can be used: {why}. Restore from a "
        "checkpoint instead."
    )


def _read(path: Path, task: str, key: bytes) -> Image:
    sealed = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=_Sealed)
    if not hmac.compare_digest(sealed.seal.encode(), _seal(key, sealed.manifest).encode()):
        if sealed.checksum and sealed.checksum == _checksum(sealed.manifest):
            raise NotFoundError("it was sealed with another cluster key")
        raise DataLossError("its manifest is damaged, or was sealed with another cluster key")
    manifest = msgspec.json.decode(sealed.manifest, type=_Manifest)
    if (manifest.format, manifest.task) != (_FORMAT, task):
        raise NotFoundError(f"it is of {manifest.task}, in format {manifest.format}")
    if manifest.sequence and manifest.sequence != int(path.name):
        raise DataLossError(f"it is number {manifest.sequence}, under the name of another one")
    with (path / _ARRAYS).open("rb") as file:

        def held(cell: _Held) -> CellImage:
            return CellImage(cell.name, cell.version, _array(file, cell))

        return Image(
            origin=manifest.origin,
            clock=manifest.clock,
            closures=manifest.closures,
            direct=manifest.direct,
            variables={number: held(cell) for number, cell in manifest.variables.items()},
            optimizers=manifest.optimizers,
            states=[
                StateImage(s.optimizer, s.number, s.slots, [held(leaf) for leaf in s.leaves])
                for s in manifest.states
            ],
        )


def _array(file: BinaryIO, cell: _Held) -> Array:
    array = zeros(cell.type)
    file.seek(cell.offset)
    frame = array.reshape(-1).view(np.uint8).data
    checksum = 0
    for start in range(0, frame.nbytes, _AT_ONCE):
        part = frame[start : start + _AT_ONCE]
        if file.readinto(part) != part.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
            raise DataLossError(f"its arrays end before those of {cell.name!r} do")
        checksum = zlib.crc32(part, checksum)
    if checksum != cell.checksum:
        raise DataLossError(f"the bytes of {cell.name!r} are damaged")
    return array


# --- Keeping -------------------------------------------------------------------------------


class Keeper:
    """Writes snapshots again and again, in a thread of its own, until it is closed.

    A snapshot that cannot be written is reported, and tried again at the next time.

    Args:
      take: returns what to write, or None if nothing has changed since the last time.
      save: writes it; given a function that tells whether to give up.
      what: who keeps snapshots where, for messages.
      seconds: how long to wait between two of them.
    """

    def __init__(
        self,
        take: Callable[[], Image | None],
        save: Callable[[Image, Callable[[], bool]], object],
        what: str,
        seconds: float,
    ) -> None:
        self._take = take
        self._save = save
        self._what = what
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"snapshots of {what}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; a snapshot that is being written is given up."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                image = self._take()
                if image is not None:
                    self._save(image, self._stop.is_set)
            except CancelledError:
                return
            except Exception as error:  # the next one may succeed, and the server must go on
                say(
                    f"{self._what} could not be written: {type(error).__name__}: {error}. It will "
                    f"be tried again in {self._seconds:g} s."
                )
