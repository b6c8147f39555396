"""Programs of TensorFlow, rewritten: what `jaxtribute migrate` does.

Needs `libcst`, which the extra `jaxtribute[migrate]` brings. Imported by nobody but the command.
"""

from ._comments import GUIDE
from ._files import SourceFile, python_files, unified_diff
from ._migration import Migration, UnreadableSource, migrated

__all__ = [
    "GUIDE",
    "Migration",
    "SourceFile",
    "UnreadableSource",
    "migrated",
    "python_files",
    "unified_diff",
]
