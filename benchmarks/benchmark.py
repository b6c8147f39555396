"""What a benchmark is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.report import Report


@dataclass(frozen=True)
class Options:
    """What the command line asks for; None leaves the choice to the benchmark."""

    rounds: int | None = None
    steps: int | None = None
    only: frozenset[str] | None = None

    def takes(self, contestant: str) -> bool:
        """Whether a contestant takes part."""
        return self.only is None or contestant in self.only


@dataclass(frozen=True)
class Benchmark:
    """A named measurement, and the words that explain it."""

    name: str
    title: str
    description: str
    """What is measured and how, in Markdown."""
    contestants: Mapping[str, str]
    """Each contestant, and how it is written, in Markdown."""
    run: Callable[[Options], Report]
