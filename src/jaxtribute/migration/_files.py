"""Files of Python: finding, reading and replacing them."""

from __future__ import annotations

import difflib
import io
import os
import re
import shutil
import tempfile
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .._durable import sync_directory, written_durably

__all__ = ["SourceFile", "python_files", "unified_diff"]

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class SourceFile:
    """A file that was read."""

    path: Path
    text: str
    encoding: str

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Read a file as Python does.

        Raises:
          OSError: when it cannot be read.
          SyntaxError: for an encoding that does not exist.
          UnicodeDecodeError: when it is in another one.
        """
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return cls(path, data.decode(encoding), encoding)

    def replace(self, text: str) -> None:
        """Write another text to the file, at once: whoever reads it gets the one or the other."""
        path = self.path.resolve()  # a link stays a link
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".migrating-")
        os.close(descriptor)
        new = Path(name)
        try:
            with written_durably(new) as file:
                file.write(text.encode(self.encoding))
            shutil.copymode(path, new)
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that are meant: those given, and those ending in `.py` in directories.

    Directories that are hidden, or virtual environments, are left out.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            found[path] = None
            continue
        for directory, inner, files in os.walk(path):
            here = Path(directory)
            inner[:] = sorted(name for name in inner if _is_walked(here / name))
            found |= dict.fromkeys(here / name for name in sorted(files) if name.endswith(".py"))
    return list(found)


def _is_walked(directory: Path) -> bool:
    hidden = directory.name.startswith(".") or directory.name == "__pycache__"
    return not hidden and not (directory / "pyvenv.cfg").exists()


def unified_diff(path: Path, before: str, after: str) -> str:
    """Return the change of a file, as `git apply` and `patch -p1` read it."""
    name = path.as_posix().lstrip("/")
    lines = difflib.unified_diff(
        _LINE.findall(before), _LINE.findall(after), f"a/{name}", f"b/{name}"
    )
    no_end = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + no_end for line in lines)
