"""The directory of a saved model, which is there as a whole or not at all.

    saved_model.json       what there is, with the checksum of every file
    data-<random>/         programs and weights

A new model is written beside its place and renamed. One that replaces another is written into the
same directory; it takes effect when `saved_model.json` is replaced. A damaged one is not replaced:
what is left of it is moved to `<name>.damaged-<random>`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from .._durable import sync_directory, written_durably
from .._version import __version__
from ..errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)

INDEX = "saved_model.json"
FORMAT = "jaxtribute saved model"
VERSION = 1
_DATA = "data-"
_OWN = re.compile(rf"{_DATA}[0-9a-f]{{16}}|{re.escape(INDEX)}(\.new)?")

Index = dict[str, Any]

_log = logging.getLogger("jaxtribute")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path of the file system.

    Raises:
      InvalidArgumentError: for an address elsewhere.
    """
    text = os.fspath(path)
    if "://" in text:
        raise InvalidArgumentError(
            f"Models are kept in the file system, and {text!r} is an address elsewhere. Use the "
            "path at which it is mounted."
        )
    return Path(os.path.abspath(text))


# --- Writing -------------------------------------------------------------------------------


def check_free(path: Path) -> None:
    """Refuse to write over anything but a saved model.

    Raises:
      AlreadyExistsError: when something else is there.
    """
    if not path.exists():
        return
    is_own = path.is_dir() and all(_is_own(entry.name) for entry in path.iterdir())
    try:
        read_index(path)
    except NotFoundError:
        is_own = is_own and not (path / INDEX).exists()
    except (DataLossError, FailedPreconditionError):
        is_own = True
    else:
        return
    if not is_own:
        raise AlreadyExistsError(
            f"{str(path)!r} exists and is no saved model, so it is not replaced. Choose another "
            "path, or remove it."
        )


class Draft:
    """A model that is being written, and does not count before `commit`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._may_count = False
        self._replaces = _is_whole(path)
        # Of one name, so that there is never more than one left of programs that were killed.
        self._directory = path if self._replaces else path.with_name(f".saving-{path.name}")
        if not self._replaces and self._directory.exists():
            shutil.rmtree(self._directory)
        self._data = self._directory / (_DATA + secrets.token_hex(8))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._data.mkdir(parents=True)

    def place(self, name: str) -> tuple[Path, str]:
        """Return where to write a file, and what the index calls it."""
        return self._data / name, f"{self._data.name}/{name}"

    def commit(self, index: Mapping[str, Any]) -> None:
        """Have the model count, and remove what it replaces."""
        sync_directory(self._data)
        text = json.dumps(_sealed({"format": FORMAT, "version": VERSION, **index}), indent=1)
        new = self._directory / f"{INDEX}.new"
        with written_durably(new) as file:
            file.write(text.encode())
        self._may_count = self._replaces  # whatever fails from here on, such as tidying up
        new.replace(self._directory / INDEX)
        sync_directory(self._directory)
        if not self._replaces:
            if self._path.is_dir():
                _make_room(self._path)
            self._directory.rename(self._path)
            sync_directory(self._path.parent)
        for entry in self._path.iterdir():
            if _is_own(entry.name) and entry.name not in (INDEX, self._data.name):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def discard(self) -> None:
        """Remove what was written, unless the model may count; the next one removes the rest."""
        if not self._may_count:
            shutil.rmtree(self._data if self._replaces else self._directory, ignore_errors=True)


@contextmanager
def draft(path: Path) -> Generator[Draft]:
    """Write a model; should an exception pass, nothing is left of it."""
    new = Draft(path)
    try:
        yield new
    except BaseException:
        new.discard()
        raise


def _is_own(name: str) -> bool:
    return _OWN.fullmatch(name) is not None


def _is_whole(path: Path) -> bool:
    """Tell whether there is a model of which nothing is damaged; reads all of it."""
    try:
        index = read_index(path)
        for record in [*index["programs"], *index["variables"].values()]:
            verified(path, "A file", record)
    except (NotFoundError, DataLossError, FailedPreconditionError):
        return False
    return True


def _make_room(path: Path) -> None:
    """Remove an empty directory, or keep what is left of a model beside it."""
    if not any(path.iterdir()):
        path.rmdir()
        return
    aside = path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}")
    path.rename(aside)
    _log.warning("The model that was at %s is damaged. What is left of it is in %s.", path, aside)


# --- Reading -------------------------------------------------------------------------------


def read_index(path: Path) -> Index:
    """Return what a saved model consists of.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when its index is damaged.
      FailedPreconditionError: when it was written by a later version of jaxtribute.
    """
    file = path / INDEX
    if not file.is_file():
        if path.is_dir() and any(_is_own(entry.name) for entry in path.iterdir()):
            raise DataLossError(
                f"The index of the saved model, {str(file)!r}, is missing. Copy or save the model "
                "again."
            )
        what = "has no file" if path.is_dir() else "is no directory with a file"
        raise NotFoundError(
            f"There is no saved model at {str(path)!r}: it {what} {INDEX!r}. Checkpoints are "
            "restored with jt.train.Checkpoint."
        )
    try:
        index = json.loads(file.read_bytes())
    except ValueError as error:
        raise DataLossError(
            f"The index of the saved model, {str(file)!r}, is damaged: {error}."
        ) from error
    is_ours = isinstance(index, dict) and (index.get("format") == FORMAT or "checksum" in index)
    if not is_ours:
        raise NotFoundError(f"There is no saved model at {str(path)!r}: {INDEX!r} is none of ours.")
    if _sealed(index)["checksum"] != index.get("checksum"):
        raise DataLossError(
            f"The index of the saved model, {str(file)!r}, is damaged: its checksum is not that of "
            "its contents."
        )
    version = index.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise FailedPreconditionError(
            f"The saved model {str(path)!r} has format version {version!r}, and jaxtribute "
            f"{__version__} reads versions up to {VERSION}. It was written by jaxtribute "
            f"{index.get('jaxtribute')}; install that, or a later one."
        )
    return index


def verified(path: Path, what: str, record: Mapping[str, Any]) -> Path:
    """Return a file of a model, after comparing its checksum.

    Args:
      path: that of the model.
      what: what the file holds, for messages.
      record: what the index says of it.

    Raises:
      DataLossError: when it is missing or damaged.
    """
    relative = PurePosixPath(record["file"])
    if relative.is_absolute() or ".." in relative.parts:
        raise DataLossError(f"{what} of the saved model {str(path)!r} is said to be outside of it.")
    file = path / relative
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DataLossError(f"{what}, {str(file)!r}, cannot be read: {error}.") from error
    if found != record["sha256"]:
        raise DataLossError(
            f"{what}, {str(file)!r}, is damaged: its checksum is not the one that was saved. "
            "Nothing was loaded. Copy or save the model again."
        )
    return file


def _sealed(index: Mapping[str, Any]) -> Index:
    """Return an index with a checksum of all the rest."""
    rest = {name: value for name, value in index.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}
