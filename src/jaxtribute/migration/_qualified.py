"""Whole names of what code refers to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import libcst as cst
from libcst import metadata

__all__ = ["is_chain", "may_be_tensorflow", "root_of", "whole_name"]


def is_chain(node: cst.CSTNode) -> bool:
    """Tell whether an expression is a name, or names with dots between them."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def root_of(node: cst.CSTNode) -> cst.Name:
    """Return the first name of a chain."""
    while isinstance(node, cst.Attribute):
        node = node.value
    assert isinstance(node, cst.Name), node
    return node


def whole_name(owner: Any, node: cst.CSTNode) -> str | None:
    """Return the name that an import gives to a chain, if nothing else binds its first name.

    Args:
      owner: a visitor with the metadata of `ScopeProvider`.
      node: the expression.
    """
    names = _names_of(owner, node)
    if len(names) != 1:
        return None
    (name,) = names
    return name.name if name.source is metadata.QualifiedNameSource.IMPORT else None


def may_be_tensorflow(owner: Any, node: cst.CSTNode) -> bool:
    """Tell whether the first name of a chain is bound to TensorFlow and to something else."""
    names = {name.name.partition(".")[0] for name in _names_of(owner, root_of(node))}
    return len(names) > 1 and "tensorflow" in names


def _names_of(owner: Any, node: cst.CSTNode) -> Collection[metadata.QualifiedName]:
    if not is_chain(node):
        return ()
    scope = owner.get_metadata(metadata.ScopeProvider, root_of(node), None)
    return () if scope is None else scope.get_qualified_names_for(node)
