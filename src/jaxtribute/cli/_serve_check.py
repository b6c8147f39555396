"""`jaxtribute serve-check`: whether a saved model answers where there is only JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

_PROGRAM = Path(__file__).with_name("_answer.py")


@click.command("serve-check")
@click.argument("path", type=click.Path())
@click.option("--signature", metavar="NAME", help="The signature to call. Default: all of them.")
@click.option(
    "--input",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="An .npz file with an array for each argument, by name; those in a structure by their "
    "way, such as inputs/age. Default: ones, and zeros for integers.",
)
def serve_check(path: str, signature: str | None, file: str | None) -> None:
    """Call a saved model in a new process that imports nothing but JAX and NumPy.

    Prints what each signature takes and returns, where it runs, and how long it takes. Checksums
    are compared. The exit code is 1 when the model does not answer.
    """
    given = {"signature": signature, "input": file}
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    # Isolated: no modules of the current directory, and no PYTHONPATH.
    command = [sys.executable, "-I", str(_PROGRAM), path, *options]
    sys.exit(subprocess.run(command, check=False).returncode)
