"""Where values come from that are restored."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .. import _array_files
from .._array_files import Checksums, Part, Stored
from ..errors import DataLossError
from ..remote._files import Loading
from . import _files
from ._files import Commit

ARRAYS = "arrays"
"""The part of an index that is about arrays, and where those of one process are written."""

EMPTY: Mapping[str, Any] = {
    ARRAYS: {},
    "scalars": {},
    "iterators": {},
    "aliases": {},
    "optimizers": {},
}
"""The index of a checkpoint that holds nothing."""

Array = np.ndarray[Any, Any]


class Source(Protocol):
    """A checkpoint, of ours or of another library."""

    @property
    def path(self) -> str:
        """Its path, for messages."""
        ...

    @property
    def index(self) -> Mapping[str, Any]:
        """What it holds, by kind and name."""
        ...

    def load(self, names: Iterable[str]) -> dict[str, Array]:
        """Read some arrays.

        Raises:
          DataLossError: when one is damaged.
        """
        ...

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array.

        Raises:
          DataLossError: when they are damaged.
        """
        ...


class Saved:
    """A checkpoint in our own format, which parameter servers can read by themselves.

    Args:
      path: where it is.
      commit: what `checkpoint.json` says.

    Raises:
      DataLossError: when its index cannot be read.
    """

    def __init__(self, path: str, commit: Commit) -> None:
        self.path = path
        self.index: Mapping[str, Any] = _files.read_index(path, commit)
        self.directory = _files.data_of(path, commit)

    def stored(self, name: str, rows: tuple[int, int] | None = None) -> Stored:
        """Return where an array is, and which rows of it are wanted."""
        described = self.index[ARRAYS][name]
        parts = tuple(_part(*part) for part in described["parts"])
        return Stored(name, tuple(described["shape"]), described["dtype"], parts, rows)

    def load(self, names: Iterable[str]) -> dict[str, Array]:
        """Read some arrays.

        Raises:
          DataLossError: when one is damaged.
        """
        wanted = list(names)
        read = self.read([self.stored(name) for name in wanted])
        return dict(zip(wanted, read, strict=True))

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array.

        Raises:
          DataLossError: when they are damaged.
        """
        return next(self.read([self.stored(name, (start, stop))]))

    def read(self, arrays: list[Stored]) -> Generator[Array]:
        """Read arrays one after the other.

        Raises:
          DataLossError: when one is damaged, saying which checkpoint could be used instead.
        """
        with _telling_of_others(self.path):
            yield from _array_files.read(self.directory, arrays)

    def wait_for(self, loading: Loading) -> None:
        """Wait until parameter servers have read what they need.

        Raises:
          DataLossError: when something is damaged, saying which checkpoint could be used instead.
        """
        with _telling_of_others(self.path):
            loading.wait()


def _part(
    place: str, start: int, stop: int, rows: int = 0, checksums: list[int] | None = None
) -> Part:
    """Return a part as an index describes it; earlier versions kept no checksums in it."""
    return Part(place, start, stop, Checksums(rows, checksums) if checksums else None)


def find(path: str) -> Commit:
    """Return what is known of the checkpoint at `path`.

    Raises:
      NotFoundError: when there is no checkpoint.
      DataLossError: when there is one that is incomplete or damaged.
    """
    with _telling_of_others(path):
        return _files.find(path)


def opened(path: str, commit: Commit) -> Saved:
    """Open a checkpoint that was found.

    Raises:
      DataLossError: when it is damaged, saying which checkpoint could be used instead.
    """
    with _telling_of_others(path):
        return Saved(path, commit)


def others(path: str) -> Iterator[Saved]:
    """Return the complete checkpoints beside another one, newest first, which may be damaged."""
    for other in reversed(_files.complete(Path(path).parent)):
        if Path(other.path).name != Path(path).name and other.damage is None:
            try:
                yield Saved(other.path, other.commit)
            except DataLossError:
                continue


def is_damaged(path: str) -> bool:
    """Tell whether there is a checkpoint at `path` of which something is damaged; reads it all."""
    known = _files.examine(path)
    if known is None or known.damage is not None:
        return known is not None
    try:
        return not _is_whole(Saved(path, known.commit))
    except DataLossError:
        return True


@contextmanager
def _telling_of_others(path: str) -> Generator[None]:
    """Add to what is told of a damaged checkpoint which one is not."""
    try:
        yield
    except (_files.Unreadable, _array_files.DamagedArray) as error:
        raise DataLossError(
            f"The checkpoint {path!r} is damaged, and nothing was restored: {error} "
            f"{_instead(path)}"
        ) from error


def _instead(path: str) -> str:
    for other in others(path):
        if _is_whole(other):
            return (
                f"The newest one beside it that is not damaged is {other.path!r}; move this one "
                "away to go on from there."
            )
    return f"There is no other one in {str(Path(path).parent)!r} that is whole; restore a copy."


def _is_whole(saved: Saved) -> bool:
    """Read all of a checkpoint, to be sure."""
    try:
        _array_files.verify(saved.directory, [saved.stored(n) for n in saved.index[ARRAYS]])
    except _array_files.DamagedArray:
        return False
    return True
