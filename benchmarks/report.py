"""What a benchmark found: samples, and the numbers computed from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SUBJECT = "jaxtribute"
"""The contestant that the others are compared with."""


@dataclass(frozen=True)
class Summary:
    """The median of some samples, and where the middle half of them lies."""

    median: float
    lower: float
    upper: float

    @property
    def iqr(self) -> float:
        """The interquartile range."""
        return self.upper - self.lower


def summarize(samples: Sequence[float]) -> Summary:
    """The median and the quartiles."""
    if not samples:
        raise ValueError("There are no samples, so there is no median; run at least one round.")
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0])
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, lower, upper)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, round by round: what slows a whole round down cancels out."""
    if len(ours) != len(theirs):
        raise ValueError(
            f"There are {len(ours)} samples of ours and {len(theirs)} of theirs; a ratio needs "
            "one of each from every round."
        )
    return [a / b for a, b in zip(ours, theirs, strict=True)]


@dataclass(frozen=True)
class Rate:
    """How samples in milliseconds are told as so much a second."""

    unit: str
    amount: float
    """What is done in the time of one sample."""

    def of(self, milliseconds: float) -> float:
        """The amount a second."""
        return self.amount / milliseconds * 1e3


@dataclass(frozen=True)
class CaseReport:
    """One case: for every contestant one sample a round, and the ratios that are aimed at."""

    name: str
    samples: Mapping[str, Sequence[float]]
    targets: Mapping[str, float] = field(default_factory=dict)
    """For an opponent, the largest ratio of our time to theirs that meets the aim."""
    facts: Mapping[str, int] = field(default_factory=dict)
    rate: Rate | None = None
    at_least: float | None = None
    """The smallest rate of ours that meets the aim."""
    unit: str | None = None
    """The unit of the samples, where it is not the report's."""

    def measured(self) -> dict[str, Summary]:
        """Each contestant's time."""
        return {name: summarize(samples) for name, samples in self.samples.items()}

    def compared(self) -> dict[str, Summary]:
        """For each opponent, our time over theirs; nothing if we did not take part."""
        if SUBJECT not in self.samples:
            return {}
        ours = self.samples[SUBJECT]
        return {
            name: summarize(ratios(ours, theirs))
            for name, theirs in self.samples.items()
            if name != SUBJECT
        }

    def met(self) -> dict[str, bool]:
        """For each opponent with a target that took part, whether the target is met."""
        compared = self.compared()
        return {
            name: compared[name].median <= target
            for name, target in self.targets.items()
            if name in compared
        }

    def rates(self) -> dict[str, float]:
        """Each contestant's median as a rate, where the case has one."""
        if self.rate is None:
            return {}
        return {name: self.rate.of(summary.median) for name, summary in self.measured().items()}

    def met_rate(self) -> bool | None:
        """Whether our rate is as high as is aimed at; None if nothing is, or without us."""
        if self.at_least is None or SUBJECT not in self.rates():
            return None
        return self.rates()[SUBJECT] >= self.at_least

    def as_json(self) -> dict[str, Any]:
        """The case as JSON knows it; the keys of ratios and targets are `vs_<opponent>`."""
        return {
            "case": self.name,
            **self.facts,
            **({} if self.unit is None else {"unit": self.unit}),
            "contestants": {
                name: {
                    "median": summary.median,
                    "iqr": summary.iqr,
                    "samples": list(self.samples[name]),
                }
                for name, summary in self.measured().items()
            },
            "ratios": _versus({name: s.median for name, s in self.compared().items()}),
            "ratios_iqr": _versus({name: s.iqr for name, s in self.compared().items()}),
            "targets": _versus(self.targets),
            "met": _versus(self.met()),
            **self._rates_as_json(),
        }

    def _rates_as_json(self) -> dict[str, Any]:
        if self.rate is None:
            return {}
        found: dict[str, Any] = {"rate_unit": self.rate.unit, "rates": self.rates()}
        if self.at_least is not None:
            found |= {"target_rate": self.at_least, "met_rate": self.met_rate()}
        return found


@dataclass(frozen=True)
class Report:
    """Everything one benchmark found in one run."""

    benchmark: str
    unit: str
    rounds: int
    cases: Sequence[CaseReport]
    versions: Mapping[str, Mapping[str, str]]
    """For each contestant, the packages that it used."""

    def contestants(self) -> list[str]:
        """All that took part; not all need to be in every case."""
        return list(dict.fromkeys(name for case in self.cases for name in case.samples))

    def as_json(self) -> dict[str, Any]:
        """The report as JSON knows it."""
        return {
            "benchmark": self.benchmark,
            "unit": self.unit,
            "rounds": self.rounds,
            "cases": [case.as_json() for case in self.cases],
            "versions": {name: dict(packages) for name, packages in self.versions.items()},
        }


def _versus(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"vs_{name}": value for name, value in values.items()}
