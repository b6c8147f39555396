"""`jaxtribute migrate`: programs of TensorFlow become programs for jaxtribute."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._progress import counted

if TYPE_CHECKING:
    from ..migration import Migration


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--diff/--write",
    "only_show",
    default=True,
    help="Show what would change, or change the files. Default: --diff.",
)
def migrate(paths: Sequence[Path], only_show: bool) -> None:
    """Rewrite programs for tf.distribute, in files and directories.

    What has one counterpart is rewritten: imports, names, arguments, ordinary gradient tapes. Above
    each place that needs a person a comment is left, `# jaxtribute: ...`, with the section of the
    guide to read. Names that do not come from TensorFlow are not touched. Running it again changes
    nothing. The diff goes to the standard output, and the summary to the standard error. The exit
    code is 1 if there are files that cannot be read, after all others are done.
    """
    # Imported here: libcst is optional, and takes a moment.
    try:
        from ..migration import python_files
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "libcst":
            raise
        raise click.ClickException(
            "`jaxtribute migrate` reads Python with libcst, which is not installed. "
            'Install it with: pip install "jaxtribute[migrate]"'
        ) from error
    summary = _Summary(only_show)
    for path in python_files(paths):
        summary.files += 1
        _migrate_file(path, only_show, summary)
    summary.show()
    sys.exit(1 if summary.failed else 0)


@dataclass
class _Summary:
    """What was done to all files."""

    only_show: bool
    files: int = 0
    changed: int = 0
    rewrites: int = 0
    failed: int = 0
    needs_keras: bool = False
    places: list[str] = field(default_factory=list[str])

    def add(self, path: Path, migration: Migration, changed: bool) -> None:
        self.changed += changed
        self.rewrites += migration.rewrites
        self.needs_keras |= migration.needs_keras
        self.places += [f"{path}:{line}: {text}" for line, text in migration.places]

    def fail(self, path: Path, reason: object) -> None:
        self.failed += 1
        click.echo(f"{path}: {reason}", err=True)

    def show(self) -> None:
        from ..migration import GUIDE

        for place in self.places:
            click.echo(place, err=True)
        changed = "would change" if self.only_show else "changed"
        parts = [
            f"{self.changed} of {counted(self.files, 'file')} {changed}",
            counted(self.rewrites, "rewrite"),
            f"{counted(len(self.places), 'place')} for a person",
        ]
        if self.failed:
            parts.append(f"{counted(self.failed, 'file')} left as they are: see above")
        click.echo(", ".join(parts) + ".", err=True)
        if self.needs_keras:
            click.echo(f"Keras has to run on JAX: set KERAS_BACKEND=jax; see {GUIDE}.", err=True)
        if self.changed and self.only_show:
            click.echo("Nothing was written: that is what --write does.", err=True)


def _migrate_file(path: Path, only_show: bool, summary: _Summary) -> None:
    from ..migration import SourceFile, UnreadableSource, migrated, unified_diff

    try:
        file = SourceFile.read(path)
        migration = migrated(file.text)
        changed = migration.source != file.text
        if changed and only_show:
            click.echo(unified_diff(path, file.text, migration.source), nl=False)
        elif changed:
            file.replace(migration.source)
    except (UnreadableSource, UnicodeError, SyntaxError, OSError) as error:
        summary.fail(path, error)
    else:
        summary.add(path, migration, changed)
