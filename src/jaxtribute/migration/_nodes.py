"""Nodes and names below other nodes."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

__all__ = ["below", "bound_by", "names_below"]


def below(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from below(child)


def names_below(nodes: Iterable[cst.CSTNode]) -> set[cst.Name]:
    return {n for node in nodes for n in below(node) if isinstance(n, cst.Name)}


def bound_by(statement: cst.CSTNode) -> set[str]:
    """Return the names that a simple statement, or the header of a `with`, assigns."""
    targets: list[cst.CSTNode] = []
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            if isinstance(small, cst.Assign):
                targets += [target.target for target in small.targets]
            elif isinstance(small, (cst.AnnAssign, cst.AugAssign)):
                targets.append(small.target)
    elif isinstance(statement, cst.With):
        targets += [item.asname.name for item in statement.items if item.asname]
        return {n.value for n in names_below(targets)} | {
            name for inner in statement.body.body for name in bound_by(inner)
        }
    elif isinstance(statement, (cst.If, cst.For, cst.While, cst.Try)):
        return {name for inner in below(statement) for name in _assigned(inner)}
    return {node.value for node in names_below(targets)}


def _assigned(node: cst.CSTNode) -> set[str]:
    if isinstance(node, cst.Assign):
        return {n.value for n in names_below([t.target for t in node.targets])}
    if isinstance(node, (cst.AugAssign, cst.AnnAssign)):
        return {n.value for n in names_below([node.target])}
    return set()
