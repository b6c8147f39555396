"""The command line: `jaxtribute launch`, `jaxtribute doctor` and `jaxtribute env`."""

from __future__ import annotations

import click

from .._version import __version__
from ._doctor import doctor
from ._env import env
from ._launch import launch

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jaxtribute")
def main() -> None:
    """Distribution strategies for JAX, on the command line."""


for _command in (launch, doctor, env):
    main.add_command(_command)
