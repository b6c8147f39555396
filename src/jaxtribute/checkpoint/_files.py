"""Checkpoints in the file system.

A checkpoint is a directory. Its contents are in `data-<token>`, and the file `checkpoint.json`,
which is put in place at the very end and at once, says in which. One that is written again is the
earlier one until then:

    training/
      ckpt-1/
        checkpoint.json
        data-5f0c3a92/
          commit.json     what `checkpoint.json` says, should that be lost
          index.json      what is saved, by name
          arrays/         values, written by TensorStore
          ps-0/           those of a parameter server, written by itself
      ckpt-2/             was being written when the program ended
        partial-c04d11e7/

Contents that are still being written are in `partial-<token>`, and get their other name when all of
them are on the disk. So the name tells what may be removed, being no part of a checkpoint, from
what was complete once, and is kept even if it is damaged.

The newest checkpoint is the one that was completed last: each is given a number that is higher
than those of its neighbours. Neither the clock nor the name decides, as a program that goes back
to an earlier checkpoint uses its numbers again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .._durable import sync_directory, written_durably
from ..errors import AlreadyExistsError, DataLossError, NotFoundError

_COMMIT = "checkpoint.json"
_COPY = "commit.json"
_INDEX = "index.json"
_DATA = "data-"
_PARTIAL = "partial-"
_ASIDE = ".damaged-"
_FORMAT = 2

# Of nobody else: a directory may hold a user's own `data-train`.
_TOKEN = "[0-9a-f]{8}"
_IS_DATA = re.compile(_DATA + _TOKEN)
_IS_UNFINISHED = re.compile(rf"{_PARTIAL}{_TOKEN}|{re.escape(_COMMIT)}\.{_TOKEN}")
_IS_ASIDE = re.compile(rf".*{re.escape(_ASIDE)}{_TOKEN}")

_log = logging.getLogger("jaxtribute")


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


@dataclass(frozen=True)
class Known:
    """A checkpoint that was complete once."""

    path: str
    commit: Commit
    """What it says; of a damaged one, what is likely."""
    damage: Unreadable | None = None
    """Why it cannot be restored; values may be damaged without it."""
    is_from_copy: bool = False
    """Whether `checkpoint.json` is missing: a program ended before it, or it was removed."""


# --- Finding -------------------------------------------------------------------------------


def complete(directory: str | os.PathLike[str], name: str | None = None) -> list[Known]:
    """Return the checkpoints of a directory that were completed, oldest first, damaged or not.

    Args:
      directory: where they are.
      name: which ones, `<name>-<number>`; None for all.
    """
    found = [known for path in _checkpoints(Path(directory), name) if (known := examine(path))]
    sure = [known.commit for known in found if known.commit.sequence]
    return sorted((_placed(known, sure) for known in found), key=_age)


def _age(known: Known) -> tuple[int, float, str]:
    return known.commit.sequence, known.commit.saved_at, known.path


def _placed(known: Known, sure: list[Commit]) -> Known:
    """Give one whose number is lost a place among the others, by the clock."""
    if known.commit.sequence:
        return known
    earlier = [each.sequence for each in sure if each.saved_at <= known.commit.saved_at]
    return replace(known, commit=replace(known.commit, sequence=max(earlier, default=0)))


def _checkpoints(directory: Path, name: str | None) -> list[Path]:
    pattern = re.compile(".*" if name is None else re.escape(name) + r"-\d+")
    if not directory.is_dir():
        return []
    return [
        path
        for path in directory.iterdir()
        if pattern.fullmatch(path.name) and not _IS_ASIDE.fullmatch(path.name) and path.is_dir()
    ]


def examine(path: str | os.PathLike[str]) -> Known | None:
    """Return what is known of a checkpoint, None if none was completed at `path`."""
    known = _examined(Path(path))
    if known is None or known.damage is None:
        return known
    # Another process may have replaced or deleted it between two looks: then there is no damage.
    return _examined(Path(path))


def _examined(directory: Path) -> Known | None:
    path = os.fspath(directory)
    data = _data_in(directory)
    file = directory / _COMMIT
    said: list[Commit] = []
    damage: Unreadable | None = None
    try:
        commit = _read_commit(file)
        if (directory / commit.data).is_dir():
            return Known(path, commit)
        said.append(commit)
        damage = Unreadable(
            f"{file} is of another checkpoint, or {directory / commit.data}, in which it says that "
            "the contents are, is missing."
        )
    except FileNotFoundError:
        pass
    except Unreadable as error:
        damage = error
    copies = [copy for name in data if (copy := _copy_in(directory / name)) is not None]
    if newest := max([*said, *copies], key=lambda each: each.sequence, default=None):
        return Known(path, newest, damage, is_from_copy=damage is None)
    finished = [name for name in data if _was_finished(directory / name)]
    if not finished:
        return None
    # The time at which the contents were complete; it decides where no number does.
    likely = max(finished, key=lambda name: _changed_at(directory / name))
    guess = Commit(0, _changed_at(directory / likely), likely, "")
    return Known(path, guess, damage or Unreadable(f"{file} is missing."))


def _data_in(directory: Path) -> list[str]:
    try:
        return [e.name for e in directory.iterdir() if _IS_DATA.fullmatch(e.name) and e.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _copy_in(data: Path) -> Commit | None:
    try:
        copy = _read_commit(data / _COPY)
    except (FileNotFoundError, Unreadable):
        return None
    return copy if copy.data == data.name else None


def _was_finished(data: Path) -> bool:
    """Tell whether contents were complete; earlier versions wrote to a directory of that name."""
    return (data / _COPY).exists() or (data / _INDEX).exists()


def _changed_at(data: Path) -> float:
    try:
        return data.stat().st_mtime
    except FileNotFoundError:  # deleted meanwhile
        return 0.0


def find(path: str | os.PathLike[str]) -> Commit:
    """Return what is known of the checkpoint at `path`.

    Raises:
      NotFoundError: when there is no checkpoint.
      Unreadable: when there is one that is damaged.
      DataLossError: when there is one that is incomplete.
    """
    directory = Path(path)
    known = examine(directory)
    if known is not None:
        if known.damage is not None:
            raise known.damage
        if known.is_from_copy:
            _log.warning(
                "%s is missing. What it said is known from its copy, %s.",
                directory / _COMMIT,
                data_of(path, known.commit) / _COPY,
            )
        return known.commit
    with suppress(FileNotFoundError):
        _read_commit(directory / _COMMIT)
    if any(directory.glob(_DATA + "*")) or any(directory.glob(_PARTIAL + "*")):
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
    found = [known.path for known in complete(directory) if known.damage is None]
    if not found:
        return (
            f"There is no complete checkpoint in {os.fspath(directory)!r}. Pass the path that "
            "`save` returned, or jt.train.latest_checkpoint(directory)."
        )
    return f"The newest complete one there is {found[-1]!r}; see jt.train.latest_checkpoint."


def _read_commit(file: Path) -> Commit:
    """Return what a file says that makes a checkpoint one.

    Raises:
      FileNotFoundError: when there is none.
      Unreadable: when it is damaged.
    """
    try:
        fields = json.loads(file.read_bytes())
        checksum = fields.pop("checksum")
        format = fields.get("format")
        is_whole = checksum == _checksum(_encoded(fields))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(file) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(file, error) from error
    if isinstance(format, int) and format != _FORMAT:
        raise Unreadable(
            f"{file} says that it has format {format}, and this version of jaxtribute reads "
            f"format {_FORMAT}. "
            + ("Use the version that wrote it." if is_whole else "Its checksum is wrong, too.")
        )
    if not is_whole:
        raise _damaged(file, ValueError("its checksum is another"))
    try:
        return Commit(**fields)
    except TypeError as error:
        raise _damaged(file, error) from error


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()


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


def free_number(prefix: str | os.PathLike[str], number: int) -> int:
    """Return the first number from `number` on that no damaged checkpoint has."""
    while (known := examine(f"{os.fspath(prefix)}-{number}")) and is_damaged(known):
        number += 1
    return number


def is_damaged(known: Known) -> bool:
    """Tell whether a checkpoint is known to be damaged, without reading its values."""
    if known.damage is not None:
        return True
    try:
        read_index(known.path, known.commit)
    except Unreadable:
        return True
    return False


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
    partial = directory / f"{_PARTIAL}{secrets.token_hex(4)}"
    partial.mkdir(parents=True)
    return partial


def commit(
    path: str | os.PathLike[str],
    partial: Path,
    index: dict[str, Any],
    saved_at: float,
    replaces_damaged: bool = False,
) -> None:
    """Make what was written to `partial` the checkpoint at `path`.

    Args:
      path: where it is to be.
      partial: its contents, in a directory that `begin` returned.
      index: what is saved, by name.
      saved_at: the time of it.
      replaces_damaged: whether the one that is there now is damaged, and kept beside the new one.
    """
    content = json.dumps(index).encode()
    _write(partial / _INDEX, content)
    directory = Path(path)
    neighbours = complete(directory.parent)
    sequence = max((known.commit.sequence for known in neighbours), default=0) + 1
    data = directory / partial.name.replace(_PARTIAL, _DATA)
    new = Commit(sequence, saved_at, data.name, _checksum(content))
    _write(partial / _COPY, _sealed(new))
    sync_directory(partial)
    os.rename(partial, data)
    sync_directory(directory)
    if replaces_damaged:
        _set_aside(directory, data.name)
    _put(directory / _COMMIT, new)
    sync_directory(directory.parent)


def _set_aside(directory: Path, new: str) -> None:
    """Move all but the new contents of a checkpoint to a directory beside it."""
    aside = directory.with_name(f"{directory.name}{_ASIDE}{secrets.token_hex(4)}")
    aside.mkdir()
    # `checkpoint.json` goes last: until then, it is the damaged one.
    old = [e for e in directory.iterdir() if _IS_DATA.fullmatch(e.name) and e.name != new]
    for entry in [*old, directory / _COMMIT]:
        if entry.exists():
            os.rename(entry, aside / entry.name)
    sync_directory(aside)
    _log.warning(
        "The checkpoint that was at %s is damaged. What is left of it is kept in %s.",
        directory,
        aside,
    )


def preserve(path: str | os.PathLike[str]) -> None:
    """Mark a checkpoint as one that is not deleted to make room."""
    directory = Path(path)
    new = replace(find(directory), preserved=True)
    _put(directory / new.data / _COPY, new)  # first: `checkpoint.json` may be made from it
    _put(directory / _COMMIT, new)


def _put(file: Path, commit: Commit) -> None:
    temporary = file.with_name(f"{_COMMIT}.{secrets.token_hex(4)}")
    _write(temporary, _sealed(commit))
    os.replace(temporary, file)
    sync_directory(file.parent)


def _sealed(commit: Commit) -> bytes:
    fields = asdict(commit)
    return json.dumps(fields | {"checksum": _checksum(_encoded(fields))}, sort_keys=True).encode()


def _write(path: Path, content: bytes) -> None:
    with written_durably(path) as file:
        file.write(content)


# --- Removing ------------------------------------------------------------------------------


def delete(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint; first what makes it one, so that half of it is never taken for it."""
    directory = Path(path)
    (directory / _COMMIT).unlink(missing_ok=True)
    for name in _data_in(directory):
        os.rename(directory / name, directory / name.replace(_DATA, _PARTIAL))
    clear(path)


def clear_neighbours(path: str | os.PathLike[str]) -> None:
    """Remove what programs that ended while saving left of `path` and those numbered like it."""
    name, dash, number = Path(path).name.rpartition("-")
    if dash and number.isdecimal():
        for other in _checkpoints(Path(path).parent, name):
            clear(other)
    clear(path)


def clear(path: str | os.PathLike[str]) -> None:
    """Remove what is at `path` and is no part of a checkpoint that was ever complete."""
    directory = Path(path)
    if not directory.is_dir():
        return
    known = examine(directory)
    if known is not None and known.is_from_copy:
        _log.warning("%s was missing, and is made again.", directory / _COMMIT)
        _put(directory / _COMMIT, known.commit)
    left = {entry.name for entry in directory.iterdir() if _IS_UNFINISHED.fullmatch(entry.name)}
    if known is None or known.damage is None:  # else any of them may be what is left of it
        left |= {name for name in _data_in(directory) if known is None or name != known.commit.data}
    for entry in [directory / name for name in left]:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if known is None and not any(directory.iterdir()):
        directory.rmdir()


def _is_ours(entry: Path) -> bool:
    name = entry.name
    return bool(name == _COMMIT or _IS_DATA.fullmatch(name) or _IS_UNFINISHED.fullmatch(name))
