"""Checkpoints in the file system.

A checkpoint is a directory. Its contents are in `data-<token>`, and the file `checkpoint.json`,
which is put in place at the very end and at once, says in which. So a checkpoint without that file
is an incomplete one, and one that is written again is the earlier one until then:

    training/
      ckpt-1/
        checkpoint.json
        data-5f0c3a92/
          index.json      what is saved, by name
          arrays/         values, written by TensorStore
          ps-0/           those of a parameter server, written by itself
      ckpt-2/             was being written when the program ended
        data-c04d11e7/

The newest checkpoint is the one that was completed last: each is given a number that is higher
than those of its neighbours. Neither the clock nor the name decides, as a program that goes back
to an earlier checkpoint uses its numbers again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .._durable import sync_directory, written_durably
from ..errors import AlreadyExistsError, DataLossError, NotFoundError

_COMMIT = "checkpoint.json"
_INDEX = "index.json"
_DATA = "data-"
_FORMAT = 2


class Unreadable(DataLossError):
    """A file of a checkpoint is damaged, or was written by another version."""


@dataclass(frozen=True)
class Commit:
    """What `checkpoint.json` says."""

    sequence: int
    saved_at: float
    data: str
    index_checksum: str
    preserved: bool = False  # not to be deleted to make room
    format: int = _FORMAT


# --- Finding -------------------------------------------------------------------------------


def complete(
    directory: str | os.PathLike[str], name: str | None = None
) -> list[tuple[str, Commit]]:
    """Return the complete checkpoints of a directory, `<name>-<number>` or all, oldest first."""
    found: list[tuple[str, Commit]] = []
    for path in _checkpoints(Path(directory), name):
        try:
            found.append((os.fspath(path), _read_commit(path)))
        except (OSError, DataLossError):
            continue  # incomplete, or deleted meanwhile
    return sorted(found, key=lambda each: (each[1].sequence, each[1].saved_at, each[0]))


def _checkpoints(directory: Path, name: str | None) -> list[Path]:
    pattern = re.compile(".*" if name is None else re.escape(name) + r"-\d+")
    if not directory.is_dir():
        return []
    return [p for p in directory.iterdir() if pattern.fullmatch(p.name) and p.is_dir()]


def find(path: str | os.PathLike[str]) -> Commit:
    """Return what is known of the checkpoint at `path`.

    Raises:
      NotFoundError: when there is no checkpoint.
      Unreadable: when there is one that is damaged.
      DataLossError: when there is one that is incomplete.
    """
    directory = Path(path)
    try:
        return _read_commit(directory)
    except (FileNotFoundError, NotADirectoryError):
        pass
    if any(directory.glob(_DATA + "*")):
        raise DataLossError(
            f"The checkpoint {os.fspath(path)!r} is incomplete: the program that wrote it ended "
            f"before it was done. {_instead(directory.parent)}"
        )
    if directory.is_dir():
        why = f"is a directory without {_COMMIT}"
        if complete(directory):
            why += "; the checkpoints are in it, not the directory itself"
            raise NotFoundError(f"{os.fspath(path)!r} {why}. {_instead(directory)}")
    else:
        why = "exists and is no directory" if directory.exists() else "does not exist"
    raise NotFoundError(
        f"There is no checkpoint at {os.fspath(path)!r}, which {why}. {_instead(directory.parent)}"
    )


def _instead(directory: Path) -> str:
    found = complete(directory)
    if not found:
        return (
            f"There is no complete checkpoint in {os.fspath(directory)!r}. Pass the path that "
            "`save` returned, or jt.train.latest_checkpoint(directory)."
        )
    return f"The newest complete one there is {found[-1][0]!r}; see jt.train.latest_checkpoint."


def _read_commit(path: Path) -> Commit:
    text = (path / _COMMIT).read_text(encoding="utf-8")
    try:
        fields = json.loads(text)
        format = int(fields["format"])
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path / _COMMIT, error) from error
    if format != _FORMAT:
        raise Unreadable(
            f"{_COMMIT} says that it has format {format}, and this version of jaxtribute reads "
            f"format {_FORMAT}. Use the version that wrote it."
        )
    try:
        checksum = fields.pop("checksum")
        commit = Commit(**fields)
    except (TypeError, KeyError) as error:
        raise _damaged(path / _COMMIT, error) from error
    if checksum != _checksum(_encoded(commit)):
        raise _damaged(path / _COMMIT, ValueError("its checksum is another"))
    return commit


def _encoded(commit: Commit) -> bytes:
    return json.dumps(asdict(commit), sort_keys=True).encode()


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_index(path: str | os.PathLike[str], commit: Commit) -> dict[str, Any]:
    """Return what a checkpoint holds, by name.

    Raises:
      Unreadable: when it is damaged.
    """
    file = data_of(path, commit) / _INDEX
    try:
        content = file.read_bytes()
        if _checksum(content) != commit.index_checksum:
            raise ValueError("its checksum is another")
        return json.loads(content)
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error


def data_of(path: str | os.PathLike[str], commit: Commit) -> Path:
    """Return the directory of the contents of a checkpoint."""
    return Path(path) / commit.data


def _damaged(file: Path, error: Exception) -> Unreadable:
    return Unreadable(f"{os.fspath(file)} cannot be read ({type(error).__name__}: {error}).")


# --- Writing -------------------------------------------------------------------------------


def begin(path: str | os.PathLike[str]) -> Path:
    """Return a new directory for the contents of a checkpoint, which nobody takes for one yet.

    Raises:
      AlreadyExistsError: when something else is at `path`.
    """
    directory = Path(path)
    if directory.exists() and not directory.is_dir():
        raise AlreadyExistsError(
            f"A checkpoint cannot be written to {os.fspath(path)!r}, which is a file. Choose "
            "another path."
        )
    if directory.is_dir() and any(not _is_ours(entry) for entry in directory.iterdir()):
        raise AlreadyExistsError(
            f"A checkpoint cannot be written to {os.fspath(path)!r}, a directory that holds "
            "something else. Choose another path, such as one inside it."
        )
    data = directory / f"{_DATA}{secrets.token_hex(4)}"
    data.mkdir(parents=True)
    return data


def commit(
    path: str | os.PathLike[str], data: Path, index: dict[str, Any], saved_at: float
) -> None:
    """Make what was written to `data` the checkpoint at `path`."""
    content = json.dumps(index).encode()
    _write(data / _INDEX, content)
    sync_directory(data)
    directory = Path(path)
    neighbours = complete(directory.parent)
    sequence = neighbours[-1][1].sequence + 1 if neighbours else 1
    _put(directory, Commit(sequence, saved_at, data.name, _checksum(content)))
    sync_directory(directory.parent)


def preserve(path: str | os.PathLike[str]) -> None:
    """Mark a checkpoint as one that is not deleted to make room."""
    _put(Path(path), replace(_read_commit(Path(path)), preserved=True))


def _put(directory: Path, commit: Commit) -> None:
    temporary = directory / f"{_COMMIT}.{secrets.token_hex(4)}"
    encoded = _encoded(commit)
    _write(temporary, json.dumps(json.loads(encoded) | {"checksum": _checksum(encoded)}).encode())
    os.replace(temporary, directory / _COMMIT)
    sync_directory(directory)


def _write(path: Path, content: bytes) -> None:
    with written_durably(path) as file:
        file.write(content)


# --- Removing ------------------------------------------------------------------------------


def delete(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint; first what makes it one, so that half of it is never taken for it."""
    (Path(path) / _COMMIT).unlink(missing_ok=True)
    clear(path)


def clear_neighbours(path: str | os.PathLike[str]) -> None:
    """Remove what programs that ended while saving left of `path` and those numbered like it."""
    name, dash, number = Path(path).name.rpartition("-")
    if dash and number.isdecimal():
        for other in _checkpoints(Path(path).parent, name):
            clear(other)
    clear(path)


def clear(path: str | os.PathLike[str]) -> None:
    """Remove what is at `path` and is no part of a complete checkpoint."""
    directory = Path(path)
    if not directory.is_dir():
        return
    try:
        kept = {_COMMIT, _read_commit(directory).data}
    except FileNotFoundError:
        kept = set[str]()
    except DataLossError:
        return  # it was complete once, and something may be saved by hand
    for entry in [e for e in directory.iterdir() if _is_ours(e) and e.name not in kept]:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if not kept and not any(directory.iterdir()):
        directory.rmdir()


def _is_ours(entry: Path) -> bool:
    return entry.name.startswith((_DATA, _COMMIT))
