"""Files of Keras as something to restore from: `.weights.h5`, `.keras`, and those of Keras 2.

Names are the ways to arrays in the file, such as `layers/dense/vars/0`. The arrays are read by
h5py; Keras is not needed, and nothing in the file is run.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...errors import DataLossError, JaxtributeError, NotFoundError, UnimplementedError

Array = np.ndarray[Any, Any]

_WEIGHTS = ".weights.h5"
_DIVIDED = ".weights.json"  # says which files the arrays are in
_ENDINGS = (".keras", ".h5", ".hdf5", _DIVIDED)


def is_keras_file(path: str) -> bool:
    """Tell whether something is a file of Keras, or would be one if it existed."""
    if os.path.isdir(path):
        # What an archive consists of; weights alone may lie beside anything.
        parts = (f"model{_WEIGHTS}", "config.json")
        return all(os.path.isfile(os.path.join(path, part)) for part in parts)
    return path.endswith(_ENDINGS)


class KerasFile:
    """The arrays of a file of Keras.

    Args:
      path: the file, or a directory with the contents of an archive.

    Raises:
      NotFoundError: when it does not exist.
      DataLossError: when it is damaged, or something else.
      UnimplementedError: without h5py.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.save_counter: int | None = None
        self._is_verified = False
        self._places: dict[str, int] = {}
        self.arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self.verify()  # before h5py makes something of it
        with self._opened() as files:
            for number, file in enumerate(files):
                for name, dataset in _datasets(file):
                    self.arrays[name] = dataset.shape, _dtype(dataset)
                    self._places[name] = number
        self.stored = self.arrays

    def find(self, name: str) -> str | None:
        """Return which of the arrays a program calls `name`."""
        return name if name in self.arrays else None

    def verify(self) -> None:
        """Compare everything with the checksums that archives have."""
        if self._is_verified or not zipfile.is_zipfile(self.path):
            return
        with _naming(self.path), zipfile.ZipFile(self.path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise _damaged(self.path, f"the checksum of {damaged!r} in it is wrong")
        self._is_verified = True

    def read_stored(self, name: str) -> Array:
        """Read an array."""
        return self.read([name])[name]

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """Read some of the arrays."""
        self.verify()
        with self._opened() as files:
            return {name: self._read(files, name, ()) for name in names}

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array."""
        self.verify()
        with self._opened() as files:
            return self._read(files, name, slice(start, stop))

    def _read(self, files: list[Any], name: str, part: Any) -> Array:
        dataset = files[self._places[name]][name]
        return np.asarray(dataset[part]).view(_dtype(dataset))

    @contextmanager
    def _opened(self) -> Generator[list[Any]]:
        """Open the files of HDF5: one, unless Keras divided it."""
        h5py = _h5py(self.path)
        with ExitStack() as stack, _naming(self.path):
            yield [stack.enter_context(h5py.File(f, "r")) for f in _files(stack, self.path)]


def _files(stack: ExitStack, path: str) -> list[Any]:
    """Return the paths of files of HDF5, or such files in an archive."""
    if not os.path.exists(path):
        raise NotFoundError(f"There is no file {path!r}.")
    if os.path.isdir(path):
        return [os.path.join(path, f"model{_WEIGHTS}")]
    if path.endswith(_DIVIDED):
        places = json.loads(Path(path).read_text(encoding="utf-8"))["weight_map"].values()
        names = {name for each in places for name in ([each] if isinstance(each, str) else each)}
        # Files beside this one, whatever it says.
        return [Path(path).with_name(Path(name).name) for name in sorted(names)]
    if not zipfile.is_zipfile(path):
        return [path]
    archive = stack.enter_context(zipfile.ZipFile(path))
    members = [each for each in archive.infolist() if each.filename.endswith(_WEIGHTS)]
    if not members:
        raise _damaged(path, f"there is no '*{_WEIGHTS}' in the archive")
    return [stack.enter_context(_Member(path, archive, member)) for member in members]


class _Member(io.RawIOBase):
    """A file in an archive, read where it is: it is not compressed, and h5py jumps to and fro."""

    def __init__(self, path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        if member.compress_type != zipfile.ZIP_STORED:
            raise _damaged(path, f"{member.filename!r} in it is compressed")
        self._file = open(path, "rb")  # noqa: SIM115
        self._file.seek(member.header_offset + 26)
        sizes = self._file.read(4)  # of the name and of what else comes before the contents
        self._start = self._file.tell() + int.from_bytes(sizes[:2], "little")
        self._start += int.from_bytes(sizes[2:], "little")
        self._size = member.file_size
        self._position = 0

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._position)]
        self._file.seek(self._start + self._position)
        count = self._file.readinto(view)
        self._position += count
        return count


# --- HDF5 ----------------------------------------------------------------------------------


def _h5py(path: str) -> Any:
    try:
        import h5py  # optional; Keras brings it
    except ImportError as error:
        raise UnimplementedError(
            f"Reading {path!r}, a file of Keras, needs h5py. Install it: pip install h5py."
        ) from error
    return h5py


def _datasets(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a file that are in the file itself, each with its name."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if hasattr(item, "dtype") and not item.external and not item.is_virtual:
            found[name] = item

    file.visititems(visit)  # follows no links to other files
    for name, dataset in found.items():
        if dataset.shape is not None and _is_number(_dtype(dataset)):
            yield name, dataset


def _dtype(dataset: Any) -> np.dtype[Any]:
    """Return the type of an array, of which HDF5 knows some only as a number of bits."""
    return np.dtype(jnp.dtype(dataset.attrs.get("dtype", dataset.dtype)))


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "b" or jnp.issubdtype(dtype, np.number)


@contextmanager
def _naming(path: str) -> Generator[None]:
    """Have what goes wrong with a file name it."""
    try:
        yield
    except JaxtributeError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError(
            f"A file that belongs to {path!r} is missing: {error}. Copy all of them together."
        ) from error
    except Exception as error:  # whatever h5py makes of damaged bytes: errors of any type
        raise _damaged(path, str(error)) from error


def _damaged(path: str, why: str) -> DataLossError:
    return DataLossError(
        f"{path!r} cannot be read as a file of Keras: {why}. Nothing was restored. Copy it again "
        "from where it was written."
    )
