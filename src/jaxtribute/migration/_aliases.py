"""By which names a module reaches what it is to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import libcst as cst
from libcst import helpers

from ._lookup import look_up
from ._names import Renamed

__all__ = ["Aliases", "imported_names"]

# What programs usually call them; others are reached through these.
_USUAL = {
    "jaxtribute": "jt",
    "jax": "jax",
    "jax.numpy": "jnp",
    "keras": "keras",
    "numpy": "np",
    "optax": "optax",
}


class Aliases:
    """Names of modules in one file: those it has, and those that have to be imported."""

    def __init__(self, module: cst.Module) -> None:
        self._there = _imported_modules(module)
        self._taken = _identifiers(module)
        self.needed: dict[str, str] = {}

    def of(self, target: str) -> str:
        """Return the expression for a whole name, such as `jt.Variable`, and note the import."""
        module = max((m for m in _USUAL if f"{target}.".startswith(f"{m}.")), key=len)
        alias = self._there.get(module) or self._import(module)
        return alias + target[len(module) :]

    def free(self, *candidates: str) -> str:
        """Return the first name that means nothing in this file yet."""
        for name in candidates:
            if name not in self._taken:
                return name
        return self.free(*(f"{name}_" for name in candidates))

    def _import(self, module: str) -> str:
        if module not in self.needed:
            self.needed[module] = self.free(_USUAL[module])
        return self.needed[module]


def imported_names(
    statement: cst.Import | cst.ImportFrom,
) -> list[tuple[str, str, cst.ImportAlias]]:
    """Return whole name, local name and node of everything that an import binds."""
    if isinstance(statement, cst.Import):
        return [
            (alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name, alias)
            for alias in statement.names
        ]
    if isinstance(statement.names, cst.ImportStar) or statement.relative or not statement.module:
        return []
    module = helpers.get_full_name_for_node(statement.module)
    return [
        (f"{module}.{a.evaluated_name}", a.evaluated_alias or a.evaluated_name, a)
        for a in statement.names
    ]


def _imported_modules(module: cst.Module) -> Mapping[str, str]:
    """Return the modules that are imported at the top, or will be, and their names."""
    found: dict[str, str] = {}
    for line in module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if not isinstance(statement, (cst.Import, cst.ImportFrom)):
                continue
            for name, local, _ in imported_names(statement):
                entry = look_up(name) if "." not in local else None
                name = entry.target if isinstance(entry, Renamed) else name
                if name in _USUAL and "." not in local:
                    found.setdefault(name, local)
    return found


def _identifiers(module: cst.Module) -> set[str]:
    names = _Names()
    module.visit(names)
    return names.found


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        self._bound(local for _, local, _ in imported_names(node))
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self._bound(local for _, local, _ in imported_names(node))
        return False

    def _bound(self, names: Iterable[str]) -> None:
        self.found.update(name.partition(".")[0] for name in names)
