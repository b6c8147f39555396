"""Which checkpoint to evaluate next. Pure: is given what there is, and what was done."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ._found import Found

__all__ = ["next_due"]


def next_due(found: Sequence[Found], done: Container[str], every: bool) -> Found | None:
    """Return the checkpoint to evaluate next; None if there is nothing to do.

    Args:
      found: the checkpoints there are, oldest first.
      done: the ids of those that need no evaluation any more.
      every: whether each is to be evaluated, rather than the newest only.
    """
    candidates = found if every else found[-1:]
    return next((each for each in candidates if each.id not in done), None)
