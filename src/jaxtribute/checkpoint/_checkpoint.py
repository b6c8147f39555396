"""Saving and restoring objects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .._group import Group
from ..errors import AbortedError, InvalidArgumentError, NotFoundError
from ..variables import _awaited
from . import _background, _files, _snapshot, _sources
from ._background import Writing
from ._foreign import locate, open_source
from ._names import Names
from ._objects import ROOT, Holder, can_be_root, check_can_hold, find, owners
from ._options import CheckpointOptions
from ._sources import Source
from ._status import LoadStatus
from ._together import make_own_directory, refuse_inside, together

__all__ = ["Checkpoint"]

PathLike = str | os.PathLike[str]
_log = logging.getLogger("jaxtribute")


class _Written(NamedTuple):
    """A checkpoint, its number, and the workers that saved it."""

    path: str
    number: int
    group: Group


class Checkpoint(Holder):
    """Saves the state of objects, and restores it, also under another strategy.

    >>> import tempfile
    >>> v = jt.Variable(1.0)
    >>> checkpoint = jt.train.Checkpoint(v=v, step=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint.step = 10
    ...     path = checkpoint.save(directory + "/ckpt")
    ...     _ = v.assign(5.0)
    ...     checkpoint.step = 11
    ...     _ = checkpoint.restore(path).assert_consumed()
    >>> float(v), checkpoint.step
    (1.0, 10)

    What is saved: variables; modules, optimizers and metrics with all variables in them; where
    iterators over datasets are; and arrays, random keys, numbers and texts. All of them may be in
    lists, dicts and other structures. Names in the checkpoint are the ways to the objects, such as
    `model/w`, so they have to be the same when it is restored.

    The value of a mirrored variable is saved once. One that is combined when read is saved
    combined; restored, a sum is divided between the replicas.

    Arrays and numbers cannot change, so restored ones are found in the attribute of the checkpoint,
    and in the lists and dicts it was given.

    Files are written while training goes on; a checkpoint counts once all of it is there. The
    program waits for that before it ends.

    With several workers, all of them save and restore at the same time. The first one writes, to
    the path it was given; restoring, all read from there. Others may have been given a directory of
    their own, to be removed afterwards: it is made, and nothing is written there. Parameter servers
    write and read what they hold by themselves, so the directory has to be one they share.

    Args:
      root: an object whose attributes are saved as if they were the checkpoint's own.
      **kwargs: the objects; they become attributes of the checkpoint, and further ones may be set.

    Raises:
      ValueError: when something cannot be saved.
    """

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        self._save_counter = 0
        self._status: LoadStatus | None = None
        self._writing: Writing | None = None
        if root is not None:
            if not can_be_root(root):
                raise ValueError(
                    "The root of a checkpoint has to be a jt.Module, a model of Keras or Flax NNX, "
                    f"a checkpoint, a dict or a list, got {root!r}. Pass other objects by name: "
                    "Checkpoint(v=...)."
                )
            check_can_hold("root", root)
        object.__setattr__(self, ROOT, root)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            if name not in ("_save_counter", "_status", "_writing"):
                raise ValueError(
                    f"A checkpoint has no attributes that start with an underscore, such as "
                    f"{name!r}: names in it are to be public."
                )
            object.__setattr__(self, name, value)
            return
        if hasattr(type(self), name):
            raise ValueError(
                f"An object in a checkpoint cannot be called {name!r}, which is a method or "
                "property of checkpoints. Choose another name."
            )
        check_can_hold(name, value)
        object.__setattr__(self, name, value)
        _awaited.attached()

    @property
    def save_counter(self) -> int:
        """How many checkpoints were saved; restored with the rest."""
        return self._save_counter

    # --- Saving ----------------------------------------------------------------------------

    def save(self, file_prefix: PathLike, options: CheckpointOptions | None = None) -> str:
        """Save under the next number.

        Returns when all values are taken. Files are written afterwards; a checkpoint is complete or
        not there at all, whenever the program ends. What goes wrong is raised by what is called
        next: `save`, `restore` or `wait_until_finished`.

        Args:
          file_prefix: the path, without the number that is appended: `training/ckpt` becomes
            `training/ckpt-1`. The number of a damaged checkpoint is left out.
          options: `CheckpointOptions(enable_async=False)` has it wait until all is written.

        Returns:
          The path of the checkpoint.

        Raises:
          ValueError: when something cannot be saved, or differs between workers.
          RuntimeError: inside a replica or a compiled function.
          AbortedError: when another worker failed.
        """
        prefix = _local(file_prefix)
        number = _files.free_number(prefix, self._save_counter + 1)
        path, _ = save_as(self, f"{prefix}-{number}", number, options)
        return path

    def write(self, file_prefix: PathLike, options: CheckpointOptions | None = None) -> str:
        """Save to a path as it is, and do not count it.

        Args:
          file_prefix: the path.
          options: as for `save`.

        Returns:
          The path of the checkpoint.

        Raises:
          Exception: as `save`.
        """
        return self._write(_local(file_prefix), self._save_counter, options).path

    def wait_until_finished(self) -> None:
        """Wait until everything that was saved is complete; with several workers, all do.

        >>> import os, tempfile
        >>> checkpoint = jt.train.Checkpoint(v=jt.Variable(1.0))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = checkpoint.save(directory + "/ckpt")
        ...     checkpoint.wait_until_finished()
        ...     os.path.exists(path + "/checkpoint.json")
        True

        Raises:
          OSError: when a file could not be written.
          AbortedError: when it failed on another worker.
        """
        self._finish_together(group_of(self))

    def _finish_together(self, group: Group) -> None:
        together(group, "finish saving a checkpoint", self._finish_writing)

    def _finish_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()

    def _write(
        self,
        path: str,
        number: int,
        options: CheckpointOptions | None,
        afterwards: Callable[[], Any] | None = None,
    ) -> _Written:
        refuse_inside("A checkpoint", "saved")
        if self.has_new():
            self.restore_new()
        found = find(self)
        if self._status is not None:
            self._status.check_nothing_missed(found)
            self._status.tell_what_is_not_saved(path)
        group = found.group()

        def begin() -> dict[str, Any]:
            try:
                self._finish_writing()
            except AbortedError as error:
                # A server that was started again can write this one, unless it has lost its
                # variables, which is told of below.
                _log.warning("%s Saving again, as %r.", error, path)
            if group.index == 0:
                _background.finish_beside(path)
            return {
                "path": path,
                "number": number,
                "objects": _snapshot.digest(found),
                "states": _snapshot.own_states(found),
            }

        reports = together(group, "begin to save a checkpoint", begin)
        _snapshot.check_same_objects(group, found, [report["objects"] for report in reports])
        own_path, path, number = path, reports[0]["path"], reports[0]["number"]
        states = [report["states"] for report in reports]

        def take() -> None:
            snapshot = _snapshot.take(found, states, number, writes=group.index == 0)
            if snapshot is None:
                make_own_directory(os.path.dirname(own_path), os.path.dirname(path))
                return
            finish = _snapshot.begin_writing(path, snapshot)

            def write() -> None:
                finish()
                if afterwards is not None:
                    afterwards()

            self._writing = Writing(path, write)

        together(group, "save a checkpoint", take)
        if options is not None and not options.enable_async:
            self._finish_together(group)
        return _Written(path, number, group)

    # --- Restoring -------------------------------------------------------------------------

    def restore(
        self, save_path: PathLike | None, options: Any = None, names: Names | None = None
    ) -> LoadStatus:
        """Restore what was saved, and go on counting from there.

        Values are checked before the first is restored. Objects of which the checkpoint knows
        nothing keep their values, and a warning is logged; ask the result to be sure.

        Args:
          save_path: the path, as `save` returned it, of a checkpoint of TensorFlow, or of a file
            of Keras (`.weights.h5`, `.keras`); None, as `latest_checkpoint` returns it when there
            is none, restores nothing.
          options: accepted for compatibility; there are none.
          names: how things are called in the checkpoint, by the names they have here, if these
            differ; a dict, or a function that returns None where they do not.

        Returns:
          A status with `assert_consumed()`, `assert_existing_objects_matched()` and
          `expect_partial()`.

        Raises:
          NotFoundError: when there is no checkpoint.
          DataLossError: when it is incomplete or damaged.
          InvalidArgumentError: when a value does not fit the object it belongs to.
          RuntimeError: inside a replica or a compiled function.
          AbortedError: when another worker failed.
        """
        status = self.read(save_path, names=names)
        if status.save_counter is not None:
            self._save_counter = status.save_counter
        return status

    def read(
        self, save_path: PathLike | None, options: Any = None, names: Names | None = None
    ) -> LoadStatus:
        """Restore what was saved by `write`, and do not change the count; else as `restore`.

        Args:
          save_path: the path.
          options: accepted for compatibility; there are none.
          names: as for `restore`.
        """
        refuse_inside("A checkpoint", "restored")
        found = find(self)
        group = found.group()
        path = None if save_path is None else _local(save_path)

        def look() -> tuple[str | None, str | None] | None:
            self._finish_writing()
            if group.index != 0:
                return None
            if path is not None:
                _background.finish_beside(path)
            foreign = None if path is None else locate(path)
            if path is None or foreign is not None:
                return foreign, None
            return path, _sources.find(path).data

        # What the chief was told counts: others may see a file system some moments later.
        path, data = together(group, "find a checkpoint", look)[0]
        if path is None:
            return LoadStatus(self, None)
        opened: list[Source] = []
        together(group, "open a checkpoint", lambda: opened.append(self._opened(group, path, data)))
        status = LoadStatus(self, opened[0], names)
        status.restore_now(found)
        self._keep(status)
        return status

    def has_new(self) -> bool:
        """Tell, at little cost, whether lists and dicts hold something new."""
        return self._status is not None and self._status.has_new()

    def restore_new(self) -> None:
        """Give what has come into being since something was restored the values that wait."""
        if self._status is not None:
            self._status.restore_new()
            self._keep(self._status)

    def check_nothing_missed(self) -> None:
        """Refuse to go on with what has come into being, and did not get the values that wait.

        Raises:
          FailedPreconditionError: when there is any.
        """
        if self._status is not None:
            self._status.check_nothing_missed(find(self))

    def _keep(self, status: LoadStatus) -> None:
        """Remember a status while values wait; not longer, as it refers to this object."""
        if self._status is not None and self._status is not status:
            self._status.is_replaced()
        self._status = status if status.is_waiting else None
        _awaited.keep_alive(self, owners(self), status.is_waiting)
        if status.is_waiting:
            _awaited.wait(self, in_order=len(group_of(self).tasks) > 1)
        else:
            _awaited.is_over(self)

    def _opened(self, group: Group, path: str, data: str | None) -> Source:
        if (foreign := open_source(path)) is not None:
            return foreign
        try:
            commit = _sources.find(path)
        except NotFoundError:
            if group.index == 0:
                raise
            commit = None
        if commit is None or commit.data != data:
            raise NotFoundError(
                f"{group.tasks[group.index]} does not see the checkpoint {path!r} that "
                f"{group.tasks[0]} restores. The directory has to be on a file system that all "
                "workers share."
            )
        return _sources.opened(path, commit)

    def __repr__(self) -> str:
        names = [name for name in sorted(vars(self)) if not name.startswith("_")]
        return f"<{type(self).__name__} of {', '.join(names) or 'nothing'}>"


def save_as(
    checkpoint: Checkpoint,
    path: str,
    number: int,
    options: CheckpointOptions | None,
    afterwards: Callable[[], Any] | None = None,
) -> tuple[str, Group]:
    """Save to a path, and count it; return where it is, and the workers that saved it.

    Args:
      checkpoint: what is saved.
      path: where.
      number: how many checkpoints were saved, with this one.
      options: as for `Checkpoint.save`.
      afterwards: called once it is complete, by the worker that writes.
    """
    written = checkpoint._write(path, number, options, afterwards)  # pyright: ignore[reportPrivateUsage]
    checkpoint._save_counter = written.number  # pyright: ignore[reportPrivateUsage]
    return written.path, written.group


def group_of(checkpoint: Checkpoint) -> Group:
    """Return the workers that save and restore a checkpoint."""
    return find(checkpoint).group()


def _local(path: PathLike) -> str:
    text = os.fspath(path)
    if "://" in text:
        raise InvalidArgumentError(
            f"Checkpoints are kept in the file system, and {text!r} is an address elsewhere. Use "
            "the path at which it is mounted."
        )
    return text
