"""Reports as tables, for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.report import SUBJECT, CaseReport, Report, Summary

Rows = list[list[str]]


def number(value: float) -> str:
    """Three significant digits, never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def table(report: Report) -> Rows:
    """The header, then one row a case."""
    contestants = report.contestants()
    opponents = [name for name in contestants if any(name in c.compared() for c in report.cases)]
    header = ["case", *(f"{name} ({report.unit})" for name in contestants)]
    header += [f"{SUBJECT} / {name}" for name in opponents]
    return [header, *(_row(case, contestants, opponents) for case in report.cases)]


def _row(case: CaseReport, contestants: Sequence[str], opponents: Sequence[str]) -> list[str]:
    measured, compared = case.measured(), case.compared()
    times = [_time(case, name, measured[name]) if name in measured else "" for name in contestants]
    found = [_ratio(case, name, compared[name]) if name in compared else "" for name in opponents]
    return [case.name, *times, *found]


def _time(case: CaseReport, name: str, summary: Summary) -> str:
    unit = "" if case.unit is None else f" {case.unit}"
    text = f"{number(summary.median)}{unit} (IQR {number(summary.iqr)})"
    if case.rate is None:
        return text
    text += f", {number(case.rates()[name])} {case.rate.unit}"
    if name != SUBJECT or case.at_least is None:
        return text
    return f"{text}; target {case.at_least:g} {'met' if case.met_rate() else 'missed'}"


def _ratio(case: CaseReport, opponent: str, ratio: Summary) -> str:
    text = f"{ratio.median:.2f} (IQR {ratio.iqr:.2f})"
    if opponent not in case.targets:
        return text
    verdict = "met" if case.met()[opponent] else "missed"
    return f"{text}; target {case.targets[opponent]:g} {verdict}"


def plain(rows: Rows) -> str:
    """Aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Rows) -> str:
    """A Markdown table."""
    separator = ["---"] * len(rows[0])
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], separator, *rows[1:]])


def show(title: str, rows: Rows) -> None:
    """Print a table, with rich where it is installed and the output is a terminal."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            drawn = Table(*rows[0], title=title)
            for row in rows[1:]:
                drawn.add_row(*row)
            Console().print(drawn)
            return
    print(f"{title}\n\n{plain(rows)}\n")
