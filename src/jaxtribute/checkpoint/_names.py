"""Names that differ between a program and a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..errors import InvalidArgumentError, NotFoundError
from ._sources import ARRAYS

Names = Mapping[str, str] | Callable[[str], str | None]
"""How things of the program are called in the checkpoint."""

_STATE = "/state/"
_SHOWN = 200


class Finder:
    """Finds what a checkpoint has for a part of the program.

    Args:
      path: the checkpoint, for messages.
      index: what it holds.
      find: returns which of its names is meant by one; other libraries have several ways.
      names: how things are called in it, by their names in the program. One of an object counts
        for everything in it, and one of a variable for its state in optimizers as well.
    """

    def __init__(
        self,
        path: str,
        index: Mapping[str, Any],
        find: Callable[[str], str | None],
        names: Names | None,
    ) -> None:
        self._path = path
        self._index = index
        self._find = find
        self._names = {} if names is None else names

    def __call__(self, name: str) -> str | None:
        """Return the name in the checkpoint of what the program calls `name`; None if it has none.

        Raises:
          NotFoundError: when the checkpoint does not have what the user says it has.
        """
        given = self._names.get(name) if isinstance(self._names, Mapping) else self._names(name)
        if given is None:
            return next(filter(None, map(self._find, self._renamed(name))), None)
        saved = self._find(given)
        if saved is None:
            raise NotFoundError(
                f"`names` says that {name!r} is {given!r} in {self._path!r}, which has no such "
                f"array, and nothing was restored. {self.held()}"
            )
        return saved

    def check(self, program: Iterable[str]) -> None:
        """Refuse names of what the program does not have.

        Raises:
          InvalidArgumentError: when there are any.
        """
        known = sorted(program)
        wrong = [
            name
            for name in (self._names if isinstance(self._names, Mapping) else ())
            if not any(_is_in(each, name) for each in known)
        ]
        if wrong:
            raise InvalidArgumentError(
                f"`names` has {wrong}, and there is nothing of that name to restore. What there is "
                f"now: {known[:_SHOWN]}. Create variables before they are restored by other names."
            )

    def nothing_found(self, program: Mapping[str, Any]) -> NotFoundError:
        """Return the error for a checkpoint none of whose names is one of the program.

        Args:
          program: what is to be restored, by name.
        """
        lines = [f"    {name!r}: ...,  {_comment(each)}" for name, each in sorted(program.items())]
        return NotFoundError(
            f"Nothing was restored from {self._path!r}: none of its names is one of the program. "
            "Say which is which, with\nnames={\n"
            + "\n".join(lines[:_SHOWN])
            + f"\n}}\n{self.held()}"
        )

    def held(self) -> str:
        """Return the arrays of the checkpoint, a line for each."""
        arrays = self._index[ARRAYS]
        lines = [
            f"    {name!r}  # {tuple(arrays[name]['shape'])} {arrays[name]['dtype']}"
            for name in sorted(arrays, key=_by_number)
        ]
        more = [f"    and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        return "It has\n" + "\n".join([*lines[:_SHOWN], *more])

    def _renamed(self, name: str) -> Iterator[str]:
        """Apply the names of objects on the way to something, then of what its state is for."""
        if not isinstance(self._names, Mapping):
            yield name
            return
        name = _replaced(name, self._names)
        yield name
        owner, state, way = name.partition(_STATE)
        parts = way.split("/")
        for position in range(len(parts)):
            variable = "/".join(parts[position:])
            if (replaced := _replaced(variable, self._names)) != variable:
                yield owner + state + "/".join([*parts[:position], replaced])


def finder_for(source: Any, index: Mapping[str, Any], names: Names | None) -> Finder | None:
    """Return what finds names in a checkpoint; None if they are those of the program.

    Args:
      source: the checkpoint.
      index: what it holds.
      names: how things are called in it.
    """
    find = getattr(source, "find", None)
    if find is None and names is None:
        return None
    held = {name for kind in (ARRAYS, "scalars", "iterators") for name in index[kind]}
    own = find or (lambda name: name if name in held else None)
    return Finder(source.path, index, own, names)


def _replaced(name: str, names: Mapping[str, str]) -> str:
    """Replace the longest beginning of a name that has another one."""
    known = [each for each in names if _is_in(name, each)]
    if not known:
        return name
    longest = max(known, key=len)
    return names[longest] + name[len(longest) :]


def _is_in(name: str, owner: str) -> bool:
    return name == owner or name.startswith(f"{owner}/")


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """Sort `vars/10` after `vars/9`."""
    parts = name.split("/")
    return [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]


def _comment(value: Any) -> str:
    return f"# {tuple(value.shape)} {value.dtype}" if hasattr(value, "shape") else ""
