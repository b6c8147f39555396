"""The program a job runs: whether Python could, and where its modules are."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import click

__all__ = ["check_program", "module_path"]


def module_path(script: str, is_module: bool) -> str:
    """Return where Python finds what the program imports: what it puts in front of `sys.path`."""
    if is_module:
        return os.getcwd()
    path = Path(script).resolve()
    # A directory or an archive that is run holds its modules itself.
    is_source = path.is_file() and not zipfile.is_zipfile(path)
    return str(path.parent if is_source else path)


def check_program(script: str, is_module: bool) -> None:
    """Refuse what Python could not run, before anything starts.

    Raises:
      click.BadParameter: when there is no such script or module.
    """
    if is_module:
        _check_module(script)
        return
    path = Path(script)
    if not path.exists():
        hint = " A module is given with -m." if not script.endswith(".py") else ""
        raise click.BadParameter(f"There is no file {script!r}.{hint}", param_hint="SCRIPT")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise click.BadParameter(
            f"{script!r} is a directory without a __main__.py.", param_hint="SCRIPT"
        )


def _check_module(name: str) -> None:
    """Look for a module without importing its parents, which may be anything."""
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    so_far = ""
    for part in [*name.split("."), "__main__"]:
        so_far = f"{so_far}.{part}" if so_far else part
        spec = importlib.machinery.PathFinder.find_spec(so_far, path)
        if spec is None and "." not in so_far:
            spec = importlib.util.find_spec(so_far)  # such as an editable install
        if spec is None and part == "__main__":
            message = f"The package {name!r} cannot be run: it has no module '__main__'."
            raise click.BadParameter(message, param_hint="SCRIPT")
        if spec is None:
            raise click.BadParameter(f"There is no module {so_far!r}.", param_hint="SCRIPT")
        path = spec.submodule_search_locations
        if path is None:
            if so_far not in (name, f"{name}.__main__"):
                raise click.BadParameter(f"{so_far!r} is no package.", param_hint="SCRIPT")
            return
