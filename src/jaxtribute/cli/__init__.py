"""The command line: `jaxtribute launch`, `server`, `status`, `doctor`, `env`, and more."""

from __future__ import annotations

import importlib

import click

from .._version import __version__

__all__ = ["main"]

_COMMANDS = ("doctor", "env", "launch", "migrate", "serve-check", "server", "status")


class _Commands(click.Group):
    """The commands, imported when they are asked for: a server needs nothing of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # With an unknown name come all, for click to tell which are alike.
        for name in [cmd_name] if cmd_name in _COMMANDS else _COMMANDS:
            attribute = name.replace("-", "_")
            module = importlib.import_module(f"._{attribute}", __name__)
            self.add_command(getattr(module, attribute), name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jaxtribute")
def main() -> None:
    """Distribution strategies for JAX, on the command line."""
