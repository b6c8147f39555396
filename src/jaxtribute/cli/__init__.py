"""The command line: `jaxtribute launch`, `server`, `status`, `doctor`, `env`, and more."""

from __future__ import annotations

import click

from .._version import __version__
from ._doctor import doctor
from ._env import env
from ._launch import launch
from ._migrate import migrate
from ._serve_check import serve_check
from ._server import server
from ._status import status

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jaxtribute")
def main() -> None:
    """Distribution strategies for JAX, on the command line."""


for _command in (launch, server, status, doctor, env, serve_check, migrate):
    main.add_command(_command)
