"""The form of a tape that can become a function: header, block, and one call of `gradient`."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
from libcst import matchers as m

from ._nodes import below

__all__ = ["CannotMove", "check_statements", "loss_and_sources", "tape_of", "uses_of"]


class CannotMove(Exception):
    """Why a tape stays."""


_OPTIONS = ("persistent", "watch_accessed_variables")


def tape_of(with_: cst.With) -> str:
    if len(with_.items) > 1 or with_.asynchronous is not None:
        raise CannotMove("it shares its `with` with others; write one jt.value_and_grad for each")
    item = with_.items[0]
    call = item.item
    assert isinstance(call, cst.Call), call
    for number, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword else _OPTIONS[number]
        if not (name == "persistent" and m.matches(arg.value, m.Name("False"))):
            kind = "persistent" if name == "persistent" else f"given {name}"
            raise CannotMove(f"it is {kind}; write one jt.value_and_grad for each gradient")
    if item.asname is None or not isinstance(item.asname.name, cst.Name):
        raise CannotMove("it has no name")
    return item.asname.name.value


def check_statements(block: cst.IndentedBlock, is_tape: Callable[[cst.WithItem], bool]) -> None:
    """Refuse what means something else inside a function."""

    class Check(cst.CSTVisitor):
        loops = 0

        def visit_With(self, node: cst.With) -> None:
            if any(is_tape(item) for item in node.items):
                raise CannotMove("there is another tape in its block")

        def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
            return False

        def visit_Lambda(self, node: cst.Lambda) -> bool:
            return False

        def visit_For(self, node: cst.For) -> None:
            self._assigns(node)
            self.loops += 1

        def leave_For(self, original_node: cst.For) -> None:
            self.loops -= 1

        def visit_While(self, node: cst.While) -> None:
            self.loops += 1

        def leave_While(self, original_node: cst.While) -> None:
            self.loops -= 1

        def _assigns(
            self, node: cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For
        ) -> None:
            # Values inside are those of a trace, which must not outlive it.
            if m.findall(node.target, m.Attribute() | m.Subscript()):
                raise CannotMove("its block assigns to parts of objects; return these values")

        visit_AssignTarget = visit_AugAssign = visit_AnnAssign = _assigns

        def _leaves(self, word: str) -> None:
            raise CannotMove(f"there is a `{word}` in its block")

        def visit_Return(self, node: cst.Return) -> None:
            self._leaves("return")

        def visit_Yield(self, node: cst.Yield) -> None:
            self._leaves("yield")

        def visit_Await(self, node: cst.Await) -> None:
            self._leaves("await")

        def visit_Break(self, node: cst.Break) -> None:
            if not self.loops:
                self._leaves("break")

        def visit_Continue(self, node: cst.Continue) -> None:
            if not self.loops:
                self._leaves("continue")

    block.visit(Check())


def uses_of(tape: str, statement: cst.CSTNode) -> list[cst.Call | None]:
    """Return the calls of `tape.gradient`, and `None` for each other use of `tape`."""
    gradient = m.Call(func=m.Attribute(m.Name(tape), m.Name("gradient")))
    calls = [node for node in below(statement) if m.matches(node, gradient)]
    names = [node for node in below(statement) if isinstance(node, cst.Name) and node.value == tape]
    others = len(names) - len(calls)
    return [*(call for call in calls if isinstance(call, cst.Call)), *[None] * others]


def loss_and_sources(call: cst.Call) -> tuple[str, cst.BaseExpression]:
    given: dict[str, cst.BaseExpression] = {}
    for number, arg in enumerate(call.args):
        if arg.star or (number > 1 and arg.keyword is None):
            raise CannotMove("its gradient is given other arguments")
        given[arg.keyword.value if arg.keyword else ("target", "sources")[number]] = arg.value
    if given.keys() != {"target", "sources"}:
        raise CannotMove(f"its gradient is given {', '.join(sorted(given))}")
    if not isinstance(given["target"], cst.Name):
        raise CannotMove("its gradient is not that of one name")
    return given["target"].value, given["sources"]
