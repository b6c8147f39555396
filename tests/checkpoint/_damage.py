"""Directories of files, what may happen to these, and what must never come of it."""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


def files_in(directory: Path) -> list[Path]:
    """Return all files below a directory, in the same order each time."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def contents(paths: Iterable[Path]) -> set[str]:
    """Return what files hold, wherever they are."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# --- What may happen -------------------------------------------------------------------------


def _flip(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 8])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return [path]


def _zeros(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    size = min(512, len(content) - start)
    content[start : start + size] = bytes(size)
    path.write_bytes(content)
    return [path]


def _truncate(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    size = path.stat().st_size
    os.truncate(path, rng.choice([0, 1, size // 2, size - 1, rng.randrange(size)]))
    return [path]


def _append(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 100])))
    return [path]


def _remove(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    path.unlink()
    return [path]


def _swap(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    other = rng.choice(_alike(path, others) or others)
    aside = path.with_name("aside")
    os.rename(path, aside)
    os.rename(other, path)
    os.rename(aside, other)
    return [path, other]


def _overwrite(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    """Put another file in its place, as by copying half of a directory over another."""
    shutil.copyfile(rng.choice(_alike(path, others) or others), path)
    return [path]


def _swap_folders(path: Path, rng: random.Random, others: list[Path]) -> list[Path]:
    """Swap what two folders of one kind hold, names and all."""
    alike = _alike(path, others)
    if not alike:
        return _swap(path, rng, others)
    one, other = path.parent, rng.choice(alike).parent
    inside = [file for file in [path, *others] if one in file.parents or other in file.parents]
    aside = one.with_name("aside")
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)
    return inside


def _alike(path: Path, others: list[Path]) -> list[Path]:
    """Return files that play the same part elsewhere."""
    kind = path.name if path.suffix or "." in path.name else None
    same = [other for other in others if kind is None or other.name == kind]
    return [o for o in same if o.parent.name == path.parent.name and o.parent != path.parent]


KINDS: list[Callable[[Path, random.Random, list[Path]], list[Path]]] = [
    _flip,
    _flip,
    _flip,
    _zeros,
    _truncate,
    _append,
    _remove,
    _swap,
    _overwrite,
    _swap_folders,
]


@dataclass(frozen=True)
class Damage:
    """What happened to a directory, and what is intact in it."""

    kind: str
    touched: list[Path]
    intact: set[str]

    def touches(self, directory: Path) -> bool:
        """Tell whether a file below a directory is another one now, or gone."""
        return any(directory in path.parents for path in self.touched)


def damage(directory: Path, number: int, rng: random.Random) -> Damage:
    """Do something to one file of a directory, each one in turn, or to two of them."""
    files = files_in(directory)
    path = files[number % len(files)]
    others = [file for file in files if file != path]
    before = contents(files)
    kind = rng.choice(KINDS)
    touched = kind(path, rng, others)
    return Damage(kind.__name__, touched, before & contents(files_in(directory)))


def assert_intact(directory: Path, damage: Damage) -> None:
    """Fail if something that was not damaged is no longer there."""
    assert damage.intact <= contents(files_in(directory)), "something intact was deleted"
