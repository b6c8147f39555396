"""Restoring a checkpoint, at once and for what is created later."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from operator import is_not
from typing import Any

from .._group import Group
from ..errors import FailedPreconditionError, InvalidArgumentError
from ..optimizers import Optimizer
from ..variables import Variable
from ..variables._frames import all_or_nothing
from ._assigning import assign
from ._matching import Contents, Match
from ._names import Names, finder_for
from ._objects import Found, Holder, Plain, find, held, state_name, with_leaves
from ._optimizers import optimized
from ._sources import ARRAYS, EMPTY, Array, Source, others
from ._together import together

_log = logging.getLogger("jaxtribute")
_SHOWN = 10


class LoadStatus:
    """What has become of a checkpoint that was restored.

    Returned by `Checkpoint.restore` and `Checkpoint.read`. Values of variables that do not exist
    yet wait; they are put in place when the variable becomes part of what the checkpoint holds, or
    before it is used.
    """

    def __init__(self, holder: Holder, source: Source | None, names: Names | None = None) -> None:
        self._holder = holder
        self._source = source
        self._path = None if source is None else source.path
        index = EMPTY if source is None else source.index
        self._finder = None if source is None else finder_for(source, index, names)
        self._saved = Contents(index, self._finder)
        self._restored: set[str] = set()  # by their names in the program
        self._left = _Left(self._path, set(self._saved.kinds))
        self._containers: list[tuple[Any, tuple[Any, ...]]] = []  # and what was in them

    @property
    def save_counter(self) -> int | None:
        """How many checkpoints had been saved, with this one; None without a checkpoint."""
        return self._saved.index.get("save_counter")

    # --- Questions -------------------------------------------------------------------------

    def assert_consumed(self) -> LoadStatus:
        """Check that every object was restored, and every value of the checkpoint used.

        Returns:
          This status.

        Raises:
          AssertionError: when something is left over.
        """
        self.assert_existing_objects_matched()
        if unused := sorted(self._left.names):
            raise AssertionError(
                f"The checkpoint {self._path!r} has values that no object was there for: "
                f"{_listed(unused)}. Pass the objects they belong to, by the same names, or use "
                "expect_partial() if they are not needed."
            )
        return self

    def assert_existing_objects_matched(self) -> LoadStatus:
        """Check that every object that exists was restored.

        Returns:
          This status.

        Raises:
          AssertionError: when the checkpoint has no value for one.
        """
        if missing := self._missing(self._up_to_date()):
            raise AssertionError(
                f"The checkpoint {self._path!r} has no values for {_listed(missing)}, which keep "
                f"those they had. It has {_listed(sorted(self._saved.kinds))}. Names are the ways "
                "to the objects; leave objects that are new out of the checkpoint until it is "
                "restored."
            )
        return self

    def assert_nontrivial_match(self) -> LoadStatus:
        """Check that at least something was restored.

        Returns:
          This status.

        Raises:
          AssertionError: when nothing was.
        """
        self._up_to_date()
        if not self._restored:
            raise AssertionError(
                f"Nothing was restored from {self._path!r}: none of its names, "
                f"{_listed(sorted(self._saved.kinds))}, is one of the program."
            )
        return self

    def expect_partial(self) -> LoadStatus:
        """Say that not every value of the checkpoint is needed, and not every object has one.

        Objects that come into being later still get theirs, where there is a moment for it.

        Returns:
          This status.
        """
        self._left.is_expected = True
        return self

    def _up_to_date(self) -> Found:
        """Restore what has come into being since, and return all there is now.

        Raises:
          AssertionError: when `restore` was given None.
        """
        if self._path is None:
            raise AssertionError(
                "No checkpoint was given: restore(None) changes nothing. Pass a path, such as "
                "jt.train.latest_checkpoint returns if there is a checkpoint."
            )
        return self.restore_new()

    # --- Restoring -------------------------------------------------------------------------

    def restore_now(self, found: Found) -> None:
        """Restore everything that exists.

        Args:
          found: that.

        Raises:
          InvalidArgumentError: when a value does not fit; then nothing is changed.
        """
        if self._finder is not None:
            self._finder.check(found.names())
            if not self._saved.match(found) and found.names():
                raise self._finder.nothing_found(found.variables)
        found = self._restore(found)
        # When the program ends, or lets go of the checkpoint, it is told what was never used.
        weakref.finalize(self._holder, self._left.tell)
        if missing := self._missing(found):
            _log.warning(
                "The checkpoint %r has no values for %s, which keep those they had.",
                self._path,
                _listed(missing),
            )
        for name, optimizer in found.optimizers.items():
            # Those of other libraries are told when they are built.
            is_ours = isinstance(optimizer, Optimizer)
            if is_ours and not optimized(optimizer) and self.awaits(state_name(name)):
                _log.warning(
                    "The state of the optimizer %r (%s) was not restored: it is not known which "
                    "variables it belongs to. Call optimizer.build(variables) first, or save and "
                    "restore the variables together with it.",
                    optimizer.name,
                    name,
                )

    def restore_new(self) -> Found:
        """Restore what has come into being since, and return all there is now."""
        found = find(self._holder)
        if self._waiting(found):
            return self._restore(found)
        self._note(found)
        return found

    def has_new(self) -> bool:
        """Tell whether lists and dicts hold something else than when they were last looked at."""
        try:
            return any(_differ(container, items) for container, items in self._containers)
        except RuntimeError:  # another thread adds to one
            return True

    def _note(self, found: Found) -> None:
        self._containers = [(each, tuple(_items(each))) for each in found.containers]

    @property
    def is_waiting(self) -> bool:
        """Whether the checkpoint has values that were not used yet."""
        return bool(self._left.names)

    def is_replaced(self) -> None:
        """Take note that another checkpoint was restored, whose values count from now on."""
        self._left.is_expected = True

    def tell_what_is_not_saved(self, path: str) -> None:
        """Warn, once, that values which wait are not in a new checkpoint."""
        if self._left.names and not self._left.is_expected and not self._left.is_told:
            self._left.is_told = True
            _log.warning(
                "The checkpoint %r has values for %s, and nothing has come that they belong to: "
                "they are not in %r. Keep the old one, or use expect_partial() on what `restore` "
                "returned if they are not needed.",
                self._path,
                _listed(sorted(self._left.names)),
                path,
            )

    def awaits(self, name: str) -> bool:
        """Tell whether the checkpoint has unused values of something, or of what is in it."""
        return any(other == name or other.startswith(f"{name}/") for other in self._left.names)

    def check_nothing_missed(self, found: Found) -> None:
        """Refuse to go on with objects that were to be restored and were not.

        Args:
          found: what there is now.

        Raises:
          FailedPreconditionError: when there are any.
        """
        if self._left.is_expected:
            return
        if missed := [match.name for match in self._waiting(found)]:
            raise FailedPreconditionError(
                f"{_listed(missed)} came into being after {self._path!r} was restored, and did not "
                "get the values it has for them, as they were not seen when they came. Create "
                "them before restoring, or call assert_existing_objects_matched() on what "
                "`restore` returned as soon as they exist; expect_partial() says that they are "
                "meant to be new."
            )

    def _waiting(self, found: Found) -> list[Match]:
        return [
            match
            for match in self._saved.match(found)
            if match.name not in self._restored and match.saved in self._left.names
        ]

    def _missing(self, found: Found) -> list[str]:
        return sorted(found.names() - self._restored)

    def _restore(self, found: Found) -> Found:
        """Restore what is found; returned is that, with the state of optimizers that it built."""
        group = found.group()
        unbuilt = self._unbuilt(found)
        if unbuilt:
            together(group, "restore optimizers", lambda: self._check(found, self._new(found)))
            for optimizer, variables in unbuilt:  # something all workers do together
                optimizer.build(variables)
            found = find(self._holder)
        matches = self._new(found)
        iterators = [m for m in matches if m.kind == "iterators"]
        plain = [m for m in matches if isinstance(m.target, Plain)]
        variables = [m for m in matches if m.kind == ARRAYS and not isinstance(m.target, Plain)]
        arrays: dict[str, Array] = {}

        def read() -> None:
            assert self._source is not None
            arrays.update(self._source.load([m.saved for m in plain if m.kind == ARRAYS]))
            assign(self._source, [(m.target, m.saved) for m in variables])

        together(
            group, "compare a checkpoint with the program", lambda: self._check(found, matches)
        )
        with _all_or_nothing([m.target for m in iterators]):
            if iterators:  # first, as they may refuse their states
                together(group, "restore iterators", lambda: self._set_states(iterators, group))
            together(group, "read a checkpoint", read)
        self._replace(plain, arrays)
        self._restored |= {match.name for match in matches}
        self._left.names -= {match.saved for match in matches}
        self._note(found)
        return found

    def _new(self, found: Found) -> list[Match]:
        return [match for match in self._saved.match(found) if match.name not in self._restored]

    def _check(self, found: Found, matches: list[Match]) -> None:
        if problems := self._saved.problems(matches):
            raise InvalidArgumentError(
                f"The checkpoint {self._path!r} does not fit, and nothing was restored: "
                f"{' '.join(problems[:_SHOWN])} Restore it into objects made like those that were "
                f"saved, or pass only the objects that are.{self._one_that_fits(found)}"
            )

    def _one_that_fits(self, found: Found) -> str:
        assert self._path is not None
        for other in others(self._path):
            contents = Contents(other.index)
            matches = contents.match(found)
            if len(matches) == len(found.names()) and not contents.problems(matches):
                return f" The newest one beside it that fits is {other.path!r}."
        return ""

    def _unbuilt(self, found: Found) -> list[tuple[Optimizer, list[Variable]]]:
        """Return optimizers that have no state yet to restore, and the variables they are for."""
        saved = self._saved.index["optimizers"]
        return [
            (optimizer, [found.variables[own] for own in saved[name]])
            for name, optimizer in found.optimizers.items()
            if saved.get(name)
            and not optimized(optimizer)
            and found.variables.keys() >= set(saved[name])
        ]

    def _set_states(self, matches: list[Match], group: Group) -> None:
        for match in matches:
            state = self._saved.state_for(match.saved, group.index, len(group.tasks))
            match.target.set_state(state)

    def _replace(self, matches: list[Match], arrays: dict[str, Array]) -> None:
        places: dict[tuple[int, str], tuple[Holder, dict[int, Any]]] = {}
        for match in matches:
            plain: Plain = match.target
            _, leaves = places.setdefault((id(plain.holder), plain.attribute), (plain.holder, {}))
            leaves[plain.position] = self._saved.plain_value(match, arrays)
        for (_, attribute), (holder, leaves) in places.items():
            value = with_leaves(held(holder)[attribute], leaves)
            object.__setattr__(holder, attribute, value)  # not as a new attribute


class _Left:
    """Which values of a checkpoint nobody has asked for yet."""

    def __init__(self, path: str | None, names: set[str]) -> None:
        self._path = path
        self.names = names
        self.is_expected = False
        self.is_told = False

    def tell(self) -> None:
        """Warn of those that are left when nobody can ask any more."""
        if self.names and not self.is_expected and not self.is_told:
            _log.warning(
                "The checkpoint %r was restored, and its values for %s were never used. Give the "
                "checkpoint the objects they belong to, by the same names, or use expect_partial() "
                "on what `restore` returned if they are not needed.",
                self._path,
                _listed(sorted(self.names)),
            )


def _items(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _differ(container: Any, items: tuple[Any, ...]) -> bool:
    return len(container) != len(items) or any(map(is_not, _items(container), items))


@contextmanager
def _all_or_nothing(iterators: Iterable[Any]) -> Generator[None]:
    """Put iterators and variables back where they were, should an exception pass."""
    before = [(iterator, iterator.get_state()) for iterator in iterators]
    try:
        with all_or_nothing():
            yield
    except BaseException:
        for iterator, state in before:
            iterator.set_state(state)
        raise


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
