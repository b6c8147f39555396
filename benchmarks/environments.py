"""The virtual environments of peers, made on first use and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_COMPLETE = "complete"


class EnvironmentFailed(RuntimeError):
    """A peer's environment could not be made."""


@dataclass(frozen=True)
class Environment:
    """A named set of pip requirements; without requirements it is the running interpreter."""

    name: str
    requirements: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Whether this is the interpreter that runs the benchmarks."""
        return not self.requirements

    @property
    def directory(self) -> Path:
        """Where the environment lives; other requirements or another Python live elsewhere."""
        key = "\n".join((sys.version, *sorted(self.requirements)))
        digest = hashlib.sha256(key.encode()).hexdigest()[:12]
        return cache_directory() / f"{self.name}-{digest}"

    def python(self) -> str:
        """The environment's interpreter, after making the environment if it is not there."""
        if self.is_current:
            return sys.executable
        python = self.directory / "bin" / "python"
        with _locked(self.directory.parent / f"{self.directory.name}.lock"):
            if not (self.directory / _COMPLETE).exists():
                self._make(python)
        return str(python)

    def _make(self, python: Path) -> None:
        wanted = ", ".join(self.requirements)
        print(f"making the environment {self.name!r} ({wanted}), once ...", file=sys.stderr)
        shutil.rmtree(self.directory, ignore_errors=True)  # what an interrupted run left
        self._call(sys.executable, "-m", "venv", str(self.directory))
        pip = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        self._call(*pip, *self.requirements)
        (self.directory / _COMPLETE).touch()

    def _call(self, *command: str) -> None:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise EnvironmentFailed(
                f"The environment {self.name!r} with {', '.join(self.requirements)} could not be "
                f"made: {' '.join(command[1:])} ended with {done.returncode}.\n"
                f"{done.stdout.strip()}\n"
                "A Python that these packages support, with the venv module and access to a "
                "package index, is needed; --only CONTESTANTS leaves this peer out."
            )


def cache_directory() -> Path:
    """The folder of all environments."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "jaxtribute-benchmarks"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, so that two runs do not make one environment at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, also on a crash
        yield
