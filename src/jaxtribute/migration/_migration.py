"""One module, from its source to its new source."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ._aliases import Aliases
from ._comments import places_in
from ._imports import unused_imports, with_imports
from ._rename import renamed
from ._tapes import without_tapes

__all__ = ["Migration", "UnreadableSource", "migrated"]


@dataclass(frozen=True)
class Migration:
    """What became of a module."""

    source: str
    rewrites: int
    places: tuple[tuple[int, str], ...]  # lines for a person, and why
    needs_keras: bool


class UnreadableSource(ValueError):
    """A source that is not Python, as far as can be seen."""


def migrated(source: str) -> Migration:
    r"""Rewrite the uses of TensorFlow in the source of a module.

    >>> from jaxtribute.migration import migrated
    >>> print(migrated("import tensorflow as tf\nv = tf.Variable(1.0)\n").source)
    import jaxtribute as jt
    v = jt.Variable(1.0)

    Args:
      source: Python, without syntax errors.

    Raises:
      UnreadableSource: when it cannot be parsed.
    """
    if "tensorflow" not in source:
        return Migration(source, 0, tuple(places_in(source)), False)
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        line = f"line {error.raw_line}, column {error.raw_column}"
        raise UnreadableSource(f"{line}: {error.message}") from error
    aliases = Aliases(module)
    unused = unused_imports(module)
    module, tapes = without_tapes(module, aliases)
    module, names = renamed(module, aliases)
    module = with_imports(module, aliases.needed, unused)
    return Migration(
        source=module.code,
        rewrites=tapes + names,
        places=tuple(places_in(module.code)),
        needs_keras="keras" in aliases.needed,
    )
