"""Measuring contestants in turn, so that all of them see the same moods of the machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.contestant import Contestant, Running
from benchmarks.report import CaseReport

TOLERANCE = 1e-3


class Disagreement(RuntimeError):
    """Contestants did not compute the same, so their times cannot be compared."""


@dataclass(frozen=True)
class Case:
    """What contestants are asked to do."""

    name: str
    facts: Mapping[str, int]
    steps: int
    warms_up: bool = True
    """Whether there are steps before the clock starts; round 0 is one long warm-up anyway."""

    @property
    def warmup(self) -> int:
        """The steps before the clock starts."""
        return max(3, self.steps // 10) if self.warms_up else 0


@dataclass
class Result:
    """For each case and contestant the seconds a step took, and each contestant's packages."""

    seconds: dict[str, dict[str, list[float]]]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    parts: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    """For each case, what else was measured, by name, of each contestant in a step."""

    def report(self, case: Case, targets: Mapping[str, float]) -> CaseReport:
        """A case's times in milliseconds a step, and what was aimed at."""
        return CaseReport(
            name=case.name,
            samples={
                name: [one * 1e3 for one in samples]
                for name, samples in self.seconds[case.name].items()
            },
            targets=targets,
            facts={**case.facts, "steps": case.steps},
        )


def race(contestants: Sequence[Contestant], cases: Sequence[Case], rounds: int) -> Result:
    """Measure A, B, C, then B, C, A ...: all run, and all but one wait.

    The order turns, as whoever comes after a process whose threads linger is at a disadvantage.
    """
    result = Result({case.name: {c.name: [] for c in contestants} for case in cases})
    with ExitStack() as stack:
        running = [stack.enter_context(Running(contestant)) for contestant in contestants]
        result.versions.update({one.contestant.name: one.versions for one in running})
        for number in range(rounds + 1):  # round 0 compiles, and is not counted
            turn = number % len(running)
            for case in cases:
                order = running[turn:] + running[:turn]
                _round(order, case, number, rounds, result)
    return result


def _round(
    running: Sequence[Running],
    case: Case,
    number: int,
    rounds: int,
    result: Result,
) -> None:
    outcomes: dict[str, float] = {}
    progress: list[str] = []
    for one in running:
        name = one.contestant.name
        taken, outcomes[name], parts = one.measure(case.facts, case.steps, case.warmup)
        progress.append(f"{name} {taken / case.steps * 1e3:.3f}")
        if number:
            result.seconds[case.name][name].append(taken / case.steps)
            for part, amount in parts.items():
                found = result.parts.setdefault(case.name, {}).setdefault(part, {})
                found.setdefault(name, []).append(amount / case.steps)
    shown = f"round {number}/{rounds}" if number else "compile"
    print(f"{shown}, {case.name}: {', '.join(progress)} ms/step", file=sys.stderr)
    check_agreement(case.name, outcomes)


def check_agreement(case: str, outcomes: Mapping[str, float]) -> None:
    """Stop if contestants that did the same work did not come to the same result."""
    values = list(outcomes.values())
    # The first condition also catches NaN, which compares as neither more nor less.
    agree = all(math.isfinite(value) for value in values) and all(
        math.isclose(value, values[0], rel_tol=TOLERANCE) for value in values
    )
    if not agree:
        found = ", ".join(f"{name}: {value!r}" for name, value in outcomes.items())
        raise Disagreement(
            f"In the case {case} the contestants came to different results ({found}); they must "
            f"agree to {TOLERANCE:g}, relatively. One of them does not do the same work, so no "
            "times are reported."
        )
