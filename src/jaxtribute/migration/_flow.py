"""Where the names of a function, or of a module, are read and bound: what a tape's block needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst import metadata

__all__ = ["Occurrence", "Occurrences", "occurrences_in"]


@dataclass(frozen=True)
class Occurrence:
    """One use of a name."""

    name: str
    node: cst.Name
    is_store: bool
    is_deferred: bool  # inside a function that is defined there, and so read at some other time
    blocks: tuple[int, ...]  # the blocks around it that need not be executed


Occurrences = Sequence[Occurrence]


def occurrences_in(
    node: cst.CSTNode,
    scope: metadata.Scope,
    scopes: Mapping[Any, Any],
    contexts: Mapping[Any, Any],
) -> list[Occurrence]:
    """Return the uses of names that belong to `scope`, in the order in which they are executed."""
    collector = _Collector(scope, scopes, contexts)
    node.visit(collector)
    return collector.found


class _Collector(cst.CSTVisitor):
    def __init__(
        self, scope: metadata.Scope, scopes: Mapping[Any, Any], contexts: Mapping[Any, Any]
    ) -> None:
        self._scope, self._scopes, self._contexts = scope, scopes, contexts
        self._blocks: list[int] = []
        self.found: list[Occurrence] = []

    def visit_Name(self, node: cst.Name) -> None:
        context = self._contexts.get(node)
        if context is not None:
            self._note(node, context is not metadata.ExpressionContext.LOAD)

    def visit_Assign(self, node: cst.Assign) -> bool:
        node.value.visit(self)
        for target in node.targets:
            target.visit(self)
        return False

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            node.value.visit(self)
        node.annotation.visit(self)
        node.target.visit(self)
        return False

    def visit_AugAssign(self, node: cst.AugAssign) -> bool:
        if isinstance(node.target, cst.Name):
            self._note(node.target, is_store=False)
        node.value.visit(self)
        node.target.visit(self)
        return False

    def visit_NamedExpr(self, node: cst.NamedExpr) -> bool:
        node.value.visit(self)
        node.target.visit(self)
        return False

    def visit_For(self, node: cst.For) -> bool:
        node.iter.visit(self)
        self._blocks.append(id(node))  # what nothing is iterated over does not bind
        node.target.visit(self)
        node.body.visit(self)
        self._blocks.pop()
        if node.orelse is not None:
            node.orelse.visit(self)
        return False

    def visit_With(self, node: cst.With) -> bool:
        for item in node.items:
            item.visit(self)
        for statement in node.body.body:  # executed whenever the statement is
            statement.visit(self)
        return False

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._blocks.append(id(node))

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock) -> None:
        self._blocks.pop()

    def _note(self, node: cst.Name, is_store: bool) -> None:
        scope = self._scopes.get(node)
        is_deferred = scope is not self._scope
        if is_deferred and (is_store or not self._reaches(scope, node.value)):
            return
        self.found.append(Occurrence(node.value, node, is_store, is_deferred, tuple(self._blocks)))

    def _reaches(self, scope: metadata.Scope | None, name: str) -> bool:
        """Tell whether a name in an inner scope is that of ours."""
        while scope is not None and scope is not self._scope:
            if any(assignment.name == name for assignment in scope.assignments):
                return False
            outer = scope.parent
            scope = None if outer is scope else outer
        return scope is self._scope
