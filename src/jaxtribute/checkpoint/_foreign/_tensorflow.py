"""Checkpoints of TensorFlow as something to restore from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...errors import NotFoundError
from ._bundles import Array, Bundle
from ._tables import damaged
from ._trackables import Trackables

_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SAVE_COUNTER = "save_counter"
_NEWEST = re.compile(r'^model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)


def prefix_of(path: str) -> str | None:
    """Return the path of a TensorFlow checkpoint without endings; None if there is none.

    Args:
      path: that, its index file, or a directory of checkpoints or a SavedModel.

    Raises:
      NotFoundError: when it is the values of a checkpoint without index, or a directory whose
        newest checkpoint is gone.
      DataLossError: when the file is damaged that says which that is.
    """
    if os.path.isfile(f"{path}.index"):
        return path
    if path.endswith(".index") and os.path.isfile(path):
        return path.removesuffix(".index")
    directory = Path(path)
    if (directory / "variables" / "variables.index").is_file():
        return str(directory / "variables" / "variables")
    if (directory / "checkpoint").is_file():
        return _newest(directory)
    if values := sorted(directory.parent.glob(f"{directory.name}.data-*-of-*")):
        raise NotFoundError(
            f"The file '{path}.index' is missing, which says what '{values[0]}' holds. Copy all "
            f"files that begin with '{directory.name}.' together."
        )
    return None


def _newest(directory: Path) -> str | None:
    """Return the checkpoint that TensorFlow has noted as the newest of a directory."""
    noted = directory / "checkpoint"
    try:
        found = _NEWEST.search(noted.read_bytes().decode())
        prefix = found and found[1].encode().decode("unicode_escape").encode("latin-1").decode()
    except UnicodeError as error:
        raise damaged(noted, str(error)) from error
    if not prefix:
        if any(directory.glob("*.index")):
            raise damaged(noted, "it does not say which checkpoint is the newest")
        return None
    # A directory that was moved has its old path in the file.
    candidates = [str(directory / prefix), str(directory / Path(prefix).name)]
    for candidate in candidates:
        if os.path.isfile(f"{candidate}.index"):
            return candidate
    raise NotFoundError(
        f"'{noted}' says that the newest checkpoint is {prefix!r}, and there is no file "
        f"'{candidates[0]}.index'. Pass the path of another checkpoint of {str(directory)!r}."
    )


class TensorFlowCheckpoint:
    """A checkpoint of TensorFlow: of objects, or, as in TensorFlow 1, of variables by name.

    Args:
      prefix: its path, without `.index`.

    Raises:
      NotFoundError: when one of its files is missing.
      DataLossError: when one of them is damaged.
    """

    def __init__(self, prefix: str) -> None:
        self.path = prefix
        self._bundle = bundle = Bundle(prefix)
        self.stored = {name: (e.shape, e.dtype) for name, e in bundle.tensors.items()}
        self._objects = _objects(bundle, prefix)
        named = {} if self._objects is None else self._objects.values
        others = self.stored.keys() - set(named.values()) - {_OBJECTS}
        self._keys = {**named, **{key: key for key in others}}
        self._names = {key: name for name, key in self._keys.items()}
        self.save_counter: int | None = None
        if self._objects is not None and (counter := self._keys.pop(_SAVE_COUNTER, None)):
            self.save_counter = int(bundle.read(counter))
        types = {name: self.stored[key] for name, key in self._keys.items()}
        self.arrays = {
            name: (shape, dtype)
            for name, (shape, dtype) in types.items()
            if dtype is not None and dtype.kind != "O"
        }

    def find(self, name: str) -> str | None:
        """Return which of the arrays a program calls `name`, or TensorFlow does."""
        found = name if name in self.arrays else self._names.get(name)
        if found is None and self._objects is not None:
            found = self._objects.find(name)
        return found if found in self.arrays else None

    def verify(self) -> None:
        """Compare everything with the checksums."""
        self._bundle.verify()

    def read_stored(self, name: str) -> Array:
        """Read something by its name in the file; texts as an array of bytes."""
        return self._bundle.read(name)

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """Read some of the arrays."""
        return {name: self._bundle.read(self._keys[name]) for name in names}

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array."""
        return self._bundle.rows(self._keys[name], start, stop)


def _objects(bundle: Bundle, prefix: str) -> Trackables | None:
    if _OBJECTS not in bundle.tensors:
        return None
    try:
        return Trackables(bundle.read(_OBJECTS).item())
    except ValueError as error:
        why = f"what it says of the objects makes no sense ({error})"
        raise damaged(Path(f"{prefix}.index"), why) from error
