"""What `jaxtribute doctor` says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Verdict"]


class Verdict(Enum):
    """What came of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    verdict: Verdict
    what: str
    """What was checked."""
    detail: str
    fix: str = ""
    """What to do about it."""
