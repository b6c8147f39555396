"""The function, and the call of `jt.value_and_grad`, that take the place of a tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from ._aliases import Aliases
from ._tape_plan import Plan

__all__ = ["function_and_call"]

_WIDTH = 100
_EMPTY = cst.EmptyLine(indent=False)


def function_and_call(
    plan: Plan,
    statements: list[Any],
    index: int,
    aliases: Aliases,
    at_top: bool,
    module: cst.Module,
) -> None:
    """Replace a tape in a list of statements.

    Args:
      plan: what becomes of it.
      statements: those of the block that it is in; changed in place.
      index: which of them the tape is.
      aliases: names that can be used.
      at_top: whether they are those of the module.
      module: that is rewritten.
    """
    with_: cst.With = statements[index]
    block = with_.body
    assert isinstance(block, cst.IndentedBlock), block
    inside: list[Any] = list(block.body)
    following: list[Any] = statements[index + 1 :]
    if plan.split is not None:
        inside, following = inside[: plan.split], [*inside[plan.split :], *following]
    between, gradient, rest = (
        following[: plan.distance],
        following[plan.distance],
        following[plan.distance + 1 :],
    )
    apart = [_EMPTY] * (2 if at_top else 1)
    name = aliases.free("loss_fn", "compute_loss", "loss_of_tape")
    function = cst.FunctionDef(
        name=cst.Name(name),
        params=cst.Parameters([cst.Param(cst.Name(each)) for each in plan.arguments]),
        body=block.with_changes(body=_returning(inside, plan)),
        leading_lines=_apart(with_.leading_lines, apart if index else []),
    )
    width = _WIDTH - 4 * _depth(module, plan)
    computed, used = _computed(plan, gradient, name, aliases, width, module)
    lines = [line for line in gradient.leading_lines if line.comment is not None]
    computed[0] = computed[0].with_changes(leading_lines=[*apart, *lines])
    if plan.call_late:
        following = [*between, *_spaced(computed, bool(between), lines), *used, *rest]
        if between:
            following[0] = between[0].with_changes(
                leading_lines=_apart(between[0].leading_lines, apart)
            )
    else:
        following = [*computed, *between, *used, *rest]
    statements[index:] = [function, *following]


def _spaced(computed: list[Any], is_apart: bool, lines: Sequence[cst.EmptyLine]) -> list[Any]:
    if is_apart:  # from the function, by what is between them
        computed = [computed[0].with_changes(leading_lines=lines), *computed[1:]]
    return computed


def _apart(lines: Sequence[cst.EmptyLine], apart: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    blank = 0
    while blank < len(lines) and lines[blank].comment is None:
        blank += 1
    return [*apart[min(blank, len(apart)) :], *lines]


def _depth(module: cst.Module, plan: Plan) -> int:
    """Return how many blocks the tape is in."""

    class Depth(cst.CSTVisitor):
        now = found = 0

        def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
            self.now += 1

        def leave_IndentedBlock(self, original_node: cst.IndentedBlock) -> None:
            self.now -= 1

        def visit_Call(self, node: cst.Call) -> None:
            if node is plan.call:
                self.found = self.now

    depth = Depth()
    module.visit(depth)
    return depth.found - (plan.split is not None)


def _returning(inside: list[Any], plan: Plan) -> list[Any]:
    """Return the statements of the function: those of the block, and a return."""
    *others, last = inside
    extra = ", ".join(plan.results)
    extra = f", ({extra})" if len(plan.results) > 1 else f", {extra}" if extra else ""
    pattern = m.SimpleStatementLine(
        body=[m.Assign(targets=[m.AssignTarget(m.Name(plan.loss))], value=m.DoNotCare())]
    )
    if m.matches(last, pattern) and plan.loss not in plan.results:
        value = last.body[0].value
        code = f"return {cst.Module([]).code_for_node(value)}{extra}"
        return [*others, last.with_changes(body=_statement(code).body)]
    return [*inside, _statement(f"return {plan.loss}{extra}")]


def _computed(
    plan: Plan, gradient: Any, function: str, aliases: Aliases, width: int, module: cst.Module
) -> tuple[list[Any], list[Any]]:
    """Return the statements that compute gradients, and the one that uses them, if another does."""
    small = gradient.body[0]
    call = m.MatchIfTrue(lambda node: isinstance(node, cst.Call) and node.deep_equals(plan.call))
    assigns = m.matches(small, m.Assign(targets=[m.AssignTarget()], value=call))
    if assigns:
        target = module.code_for_node(small.targets[0].target)
        used: list[Any] = []
    else:
        target = aliases.free("gradients", "grads")
        used = [gradient.visit(_Replace(plan, target)).with_changes(leading_lines=[])]
    values = ", ".join(plan.results)
    values = f"({values})" if len(plan.results) > 1 else values
    sources = module.code_for_node(plan.sources)
    has_aux = ", has_aux=True" if plan.results else ""
    if plan.loss_is_used:
        kind = "value_and_grad"
        left = f"({plan.loss}, {values}), {target}" if values else f"{plan.loss}, {target}"
    else:
        kind = "grad"
        left = f"{target}, {values}" if values else target
    made = f"{aliases.of(f'jaxtribute.{kind}')}({function}, {sources}{has_aux})"
    given = f"({', '.join(plan.arguments)})"
    line = f"{left} = {made}{given}"
    if len(line) <= width:
        lines = [line]
    else:
        compute = aliases.free(kind, f"compute_{kind}")
        lines = [f"{compute} = {made}", f"{left} = {compute}{given}"]
    computed = [_statement(text) for text in lines]
    if assigns:
        computed[-1] = computed[-1].with_changes(trailing_whitespace=gradient.trailing_whitespace)
    return computed, used


class _Replace(cst.CSTTransformer):
    """Puts the gradients where `tape.gradient(...)` was."""

    def __init__(self, plan: Plan, target: str) -> None:
        super().__init__()
        self._plan, self._target = plan, target

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if original_node.deep_equals(self._plan.call):
            return cst.Name(self._target)
        return updated_node


def _statement(code: str) -> cst.SimpleStatementLine:
    statement = cst.parse_statement(code)
    assert isinstance(statement, cst.SimpleStatementLine), code
    return statement
