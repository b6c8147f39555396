"""The command line: `python -m benchmarks NAME`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import document, machine, render
from benchmarks.benchmark import Options
from benchmarks.contestant import ContestantFailed
from benchmarks.environments import EnvironmentFailed
from benchmarks.imports import ImportFailed
from benchmarks.race import Disagreement
from benchmarks.registry import BENCHMARKS, chosen


def main(arguments: list[str] | None = None) -> int:
    """Run benchmarks; a missed target is reported and is no failure, a wrong result is one."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    only = frozenset(parsed.only.split(",")) if parsed.only else None
    if parsed.write and parsed.name != "all":
        parser.error(
            f"--write makes the whole page, so {parsed.name!r} alone would drop the other "
            "benchmarks from it; use `all`."
        )
    try:
        benchmarks = chosen(parsed.name, only)
        if parsed.write:
            document.check_can_write(parsed.write)
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    described = machine.describe()
    options = Options(parsed.rounds, parsed.steps, only)
    try:
        results = [(benchmark, benchmark.run(options)) for benchmark in benchmarks]
    except (ContestantFailed, Disagreement, EnvironmentFailed, ImportFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        reports = [report.as_json() for _, report in results]
        found = {"benchmarks": reports} if parsed.name == "all" else reports[0]
        print(json.dumps({**found, "machine": described}))
    else:
        for benchmark, report in results:
            render.show(benchmark.title, render.table(report))
    if parsed.write:
        document.write(parsed.write, described, results)
        print(f"wrote {parsed.write}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, "all"], help="which benchmark to run")
    parser.add_argument("--json", action="store_true", help="print one line of JSON on stdout")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="how often to measure")
    parser.add_argument("--steps", type=_positive, metavar="N", help="steps in a measurement")
    parser.add_argument("--only", metavar="A,B", help="the contestants that take part")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page of results")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too few; 1 or more can be measured")
    return value


if __name__ == "__main__":
    sys.exit(main())
