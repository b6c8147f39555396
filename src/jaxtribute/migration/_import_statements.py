"""Imports from TensorFlow that can be imports of something else under the same local name."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import helpers

from ._aliases import imported_names
from ._comments import comment, with_comments
from ._lookup import look_up
from ._names import ENTRIES, Person, Renamed, Topic

__all__ = ["is_tensorflow", "rewritten_imports"]


def is_tensorflow(name: str) -> bool:
    """Tell whether a name is TensorFlow or part of it."""
    return f"{name}.".startswith("tensorflow.")


def rewritten_imports(line: cst.SimpleStatementLine) -> tuple[Any, int, list[str]]:
    """Return a line with its imports rewritten, how many names changed, and comments for it."""
    lines: list[cst.SimpleStatementLine] = []
    changed = 0
    comments: list[str] = []
    for statement in line.body:
        moved, left, notes = [], statement, []
        if isinstance(statement, (cst.Import, cst.ImportFrom)):
            moved, left = _moved(statement)
            notes = _comments(statement)
        changed += len(moved)
        lines += [cst.SimpleStatementLine([_alone(each)]) for each in moved]
        if left is not None:
            new = cst.SimpleStatementLine([_alone(left)])
            lines.append(with_comments(new, notes) if lines else new)
            comments += [] if len(lines) > 1 else notes
    if not changed:
        return line, 0, comments
    lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
    lines[-1] = lines[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
    return cst.FlattenSentinel(lines), changed, comments


def _alone(statement: cst.BaseSmallStatement) -> cst.BaseSmallStatement:
    return statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)


def _moved(
    statement: cst.Import | cst.ImportFrom,
) -> tuple[list[cst.BaseSmallStatement], Any]:
    """Return imports of counterparts, and what is left of the statement."""
    moved: dict[str, list[str]] = {}
    left: list[cst.ImportAlias] = []
    for name, local, alias in imported_names(statement):
        entry = look_up(name) if is_tensorflow(name) and "." not in local else None
        if isinstance(entry, Renamed):
            module, _, last = entry.target.rpartition(".")
            moved.setdefault(module, []).append(last if last == local else f"{last} as {local}")
        else:
            left.append(alias)
    new = [
        _small(
            f"from {module} import {', '.join(names)}" if module else f"import {', '.join(names)}"
        )
        for module, names in moved.items()
    ]
    if not new:
        return [], statement
    if not left:
        return new, None
    left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return new, statement.with_changes(names=left)


def _comments(statement: cst.Import | cst.ImportFrom) -> list[str]:
    module = getattr(statement, "module", None)
    if isinstance(statement, cst.ImportFrom) and isinstance(statement.names, cst.ImportStar):
        name = helpers.get_full_name_for_node(module) if module is not None else ""
        if name and is_tensorflow(name):
            return [
                comment("with `import *` it cannot be seen which names are used", Topic.IMPORTS)
            ]
        return []
    return [
        comment(f"{name.replace('tensorflow.', 'tf.', 1)} {entry.advice}", entry.topic)
        for name, _, _ in imported_names(statement)
        if isinstance(entry := look_up(name), Person) and not _has_parts(name)
    ]


def _has_parts(name: str) -> bool:
    """Tell modules of which only parts have an entry: what to say depends on what is used."""
    path = name.removeprefix("tensorflow.")
    return any(f"{entry}.".startswith(f"{path}.") and entry != path for entry in ENTRIES)


def _small(code: str) -> cst.BaseSmallStatement:
    line = cst.parse_statement(code)
    assert isinstance(line, cst.SimpleStatementLine), code
    return line.body[0]
