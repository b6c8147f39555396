"""`jaxtribute env`: a block to paste into a bug report."""

from __future__ import annotations

import json
import os

import click

from . import _facts


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long JAX may take to find its devices.",
)
def env(as_json: bool, timeout: float) -> None:
    """Print versions, machine, devices and settings, to paste into a bug report.

    Nothing secret is in it: of keys, tokens and proxies it only says that they are set.
    """
    devices = _facts.find_devices(timeout)
    sections: dict[str, dict[str, str | None]] = {
        "versions": _facts.versions(),
        "machine": dict(_facts.machine()),
        "devices": {"jax": str(devices)},
        "variables": dict(_facts.variables(os.environ)),
    }
    if as_json:
        click.echo(json.dumps(sections, indent=2))
        return
    width = max(len(name) for section in sections.values() for name in section)
    click.echo("```")
    for title, section in sections.items():
        click.echo(f"{title}:" + ("" if section else " none"))
        for name, value in section.items():
            click.echo(f"  {name:<{width}}  {'not installed' if value is None else value}")
    click.echo("```")
