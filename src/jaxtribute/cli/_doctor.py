"""`jaxtribute doctor`: what is wrong with a cluster or with this environment, and what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._checks import all_findings
from ._findings import Finding, Verdict

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}
_WIDTH_OF_A_FILE = 100
_DEVICE_SECONDS = 60.0


@click.command()
@click.option(
    "--tf-config",
    metavar="TEXT_OR_@FILE",
    help="The description to check, or @ and the name of a file. Default: TF_CONFIG, if it is set.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long another machine may take to answer.",
)
def doctor(tf_config: str | None, timeout: float) -> None:
    """Check a TF_CONFIG and this environment, and tell what to fix.

    Run it on a machine of the cluster, with the TF_CONFIG of the task that runs there. The exit
    code is 1 when there is a problem. A warning is something that may be as it should, such as a
    task that has not started yet.
    """
    text = os.environ.get("TF_CONFIG") if tf_config is None else _text(tf_config)
    findings, corrected = all_findings(text, timeout, _DEVICE_SECONDS)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    console.print(_table(findings))
    if corrected:
        console.print("\nThe description should look like this:")
        console.print(corrected, soft_wrap=True)  # in one piece, to be copied
    problems = sum(finding.verdict is Verdict.PROBLEM for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    console.print(f"\nproblems: {problems}, warnings: {warnings}")
    sys.exit(1 if problems else 0)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for column in ("verdict", "what"):
        table.add_column(column, no_wrap=True)
    table.add_column("detail", overflow="fold")
    for finding in findings:
        detail = finding.detail + (f"\nto fix: {finding.fix}" if finding.fix else "")
        verdict = Text(finding.verdict.value, _STYLES[finding.verdict])
        table.add_row(verdict, Text(finding.what), Text(detail))
    return table


def _text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(
            f"{given[1:]!r} cannot be read: {error}", param_hint="--tf-config"
        ) from error
