"""Numbers that are kept in a checkpoint beside what the program keeps there."""

from __future__ import annotations

from typing import TypeVar

from ..checkpoint import Checkpoint
from ..checkpoint._objects import Holder
from ..errors import AlreadyExistsError

_H = TypeVar("_H", bound=Holder)


class RunCalls(Holder):
    """How often steps were made with a handler."""

    def __init__(self) -> None:
        self.total_run_calls = 0


class Loops(Holder):
    """How far loops are."""

    def __init__(self) -> None:
        self.epoch = 0
        self.step = 0
        self.steps_done = 0  # in all epochs


def kept_in(checkpoint: Checkpoint, name: str, kind: type[_H]) -> _H:
    """Return the numbers of a kind in a checkpoint, which gets them if it has none.

    Raises:
      AlreadyExistsError: when the program keeps something else there under that name.
    """
    counts = vars(checkpoint).get(name)
    if counts is None:
        counts = kind()
        setattr(checkpoint, name, counts)
    elif not isinstance(counts, kind):
        raise AlreadyExistsError(
            f"How often steps were made is kept in the checkpoint as {name!r}, where there is "
            f"{counts!r}. Give that another name in the checkpoint."
        )
    return counts
