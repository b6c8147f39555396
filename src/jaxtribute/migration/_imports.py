"""The imports of a rewritten module: those it needs, without TensorFlow if nothing uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst
from libcst import metadata

from ._aliases import imported_names
from ._comments import is_place
from ._import_statements import is_tensorflow

__all__ = ["unused_imports", "with_imports"]


def unused_imports(module: cst.Module) -> set[str]:
    """Return the names that a module imports from TensorFlow and does not use."""
    imports = _imports_in(metadata.MetadataWrapper(module))
    used = {_first(each.name) for each in imports if each.references}
    return {_first(each.name) for each in imports} - used


def with_imports(
    module: cst.Module, needed: Mapping[str, str], unused_before: set[str]
) -> cst.Module:
    """Return a module with imports added, and without those that were used and no longer are.

    Args:
      module: the rewritten module.
      needed: modules to import, and their local names.
      unused_before: the imports that were there for another reason than to be used.
    """
    wrapper = metadata.MetadataWrapper(module)
    unused = {each for each in _unused(wrapper) if _first(each[1]) not in unused_before}
    new = [_import(name, local) for name, local in sorted(needed.items())]
    module = wrapper.module
    if new:
        module = module.with_changes(body=_inserted(list(module.body), new))
    return module.visit(_WithoutUnused(unused))


def _imports_in(wrapper: metadata.MetadataWrapper) -> list[metadata.ImportAssignment]:
    scopes = {scope for scope in wrapper.resolve(metadata.ScopeProvider).values() if scope}
    return [
        assignment
        for scope in scopes
        for assignment in scope.assignments
        if isinstance(assignment, metadata.ImportAssignment)
    ]


def _unused(wrapper: metadata.MetadataWrapper) -> set[tuple[cst.CSTNode, str]]:
    """Return statements, and which of the names that they import from TensorFlow nothing uses."""
    imports = _imports_in(wrapper)
    used = {(each.node, each.name) for each in imports if each.references}
    return {
        (statement, local)
        for statement in {each.node for each in imports}
        if isinstance(statement, (cst.Import, cst.ImportFrom))
        for name, local, _ in imported_names(statement)
        if is_tensorflow(name) and not {(statement, local), (statement, _first(local))} & used
    }


def _first(local: str) -> str:
    """Return what an import binds: that of `a.b` binds `a`."""
    return local.partition(".")[0]


def _import(name: str, local: str) -> cst.SimpleStatementLine:
    line = cst.parse_statement(f"import {name}" if name == local else f"import {name} as {local}")
    assert isinstance(line, cst.SimpleStatementLine), name
    return line


def _inserted(body: list[Any], new: list[cst.SimpleStatementLine]) -> list[Any]:
    """Return statements with new imports in front of that of TensorFlow, or after all imports."""
    after_imports = 0
    for number, line in enumerate(body):
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        imports = [s for s in line.body if isinstance(s, (cst.Import, cst.ImportFrom))]
        if any(is_tensorflow(name) for s in imports for name, _, _ in imported_names(s)):
            # What is above that import, such as an empty line, is above the first one then.
            lines = [each for each in line.leading_lines if not is_place(each)]
            own = [each for each in line.leading_lines if is_place(each)]
            first = new[0].with_changes(leading_lines=lines)
            line = line.with_changes(leading_lines=own)
            return [*body[:number], first, *new[1:], line, *body[number + 1 :]]
        if imports or (number == 0 and _is_docstring(line)):
            after_imports = number + 1
    return [*body[:after_imports], *new, *body[after_imports:]]


def _is_docstring(line: cst.SimpleStatementLine) -> bool:
    first = line.body[0]
    return isinstance(first, cst.Expr) and isinstance(
        first.value, (cst.SimpleString, cst.ConcatenatedString)
    )


class _WithoutUnused(cst.CSTTransformer):
    """Leaves out names that statements import."""

    def __init__(self, unused: set[tuple[cst.CSTNode, str]]) -> None:
        super().__init__()
        self._unused = unused

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        kept = [self._without_unused(statement) for statement in original_node.body]
        kept = [statement for statement in kept if statement is not None]
        if not kept:
            return cst.RemoveFromParent()
        if all(a is b for a, b in zip(kept, original_node.body, strict=False)):
            return updated_node
        kept[-1] = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(body=kept)

    def _without_unused(self, statement: Any) -> Any:
        if not isinstance(statement, (cst.Import, cst.ImportFrom)):
            return statement
        names = imported_names(statement)
        kept = [alias for _, local, alias in names if (statement, local) not in self._unused]
        if len(kept) == len(names):
            return statement
        if not kept:
            return None
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return statement.with_changes(names=kept)
