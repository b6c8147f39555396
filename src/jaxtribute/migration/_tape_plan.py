"""Whether a tape's block can become a function, and what that function takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst import metadata

from ._flow import Occurrences, occurrences_in
from ._nodes import below, bound_by, names_below
from ._tape_shape import CannotMove, check_statements, loss_and_sources, tape_of, uses_of

__all__ = ["Left", "Plan", "Planner"]


@dataclass(frozen=True)
class Left:
    """Why a tape stays."""

    reason: str


@dataclass(frozen=True)
class Plan:
    """What becomes of a tape."""

    loss: str
    loss_is_used: bool
    sources: cst.BaseExpression
    arguments: tuple[str, ...]  # read in the block before it binds them anew
    results: tuple[str, ...]  # read after the block
    split: int | None  # where in the block `gradient` is called, if not after it
    distance: int  # how many statements after the block `gradient` is called
    call_late: bool  # gradients are computed where `gradient` was, not where the block was
    call: cst.Call


class Planner:
    """Makes the plans for the tapes of one module."""

    def __init__(self, known: Mapping[Any, Mapping[Any, Any]]) -> None:
        self._scopes = known[metadata.ScopeProvider]
        self._contexts = known[metadata.ExpressionContextProvider]
        self._parents = known[metadata.ParentNodeProvider]
        self._positions = known[metadata.PositionProvider]

    def plan(self, with_: cst.With, is_tape: Callable[[cst.WithItem], bool]) -> Plan | Left:
        """Return what becomes of a tape."""
        try:
            return self._plan(with_, is_tape)
        except CannotMove as reason:
            return Left(f"this tape is left: {reason}")

    def _plan(self, with_: cst.With, is_tape: Callable[[cst.WithItem], bool]) -> Plan:
        tape = tape_of(with_)
        block = with_.body
        if not isinstance(block, cst.IndentedBlock):
            raise CannotMove("its block is on the same line")
        check_statements(block, is_tape)
        around = self._parents[with_]
        self._check_not_inside_another(around, is_tape)
        if not isinstance(around, (cst.Module, cst.IndentedBlock)):
            raise CannotMove("its block is on the same line")
        index = list(around.body).index(with_)
        after = list(around.body[index + 1 :])
        split, distance, call = self._gradient(tape, list(block.body), after)
        inside = list(block.body[:split])
        loss, sources = loss_and_sources(call)

        scope = self._scopes[with_]
        root = self._function_around(with_)
        if isinstance(root, cst.ClassDef):
            raise CannotMove("it is in the body of a class")
        if m.matches(root, m.FunctionDef(m.Name("train_step"))) and "self" in _parameters(root):
            raise CannotMove("on JAX, a train_step of Keras takes and returns its state")
        everything = occurrences_in(root, scope, self._scopes, self._contexts)
        body_nodes = names_below(inside)
        in_body = [o for o in everything if o.node in body_nodes]
        bound = {o.name for o in in_body if o.is_store}
        if loss not in {name for s in inside for name in bound_by(s)}:
            raise CannotMove(f"{loss!r} is not assigned in its block itself")
        self._check_declared(root, bound)
        in_call = names_below([call])
        # The header, with the name of the tape, is neither before nor after.
        header = names_below(with_.items)
        start = self._start(with_)
        outside = [o for o in everything if o.node not in body_nodes | in_call | header]
        before = [o for o in outside if self._start(o.node) < start]
        later = [o for o in outside if self._start(o.node) >= start]
        loop = self._loop_around(with_, root)
        again = [o for o in before if loop is not None and self._start(o.node) >= self._start(loop)]
        path = self._blocks_around(with_)
        used = {
            name for name in bound if _is_read(name, later, path) or _is_read(name, again, path)
        }
        used |= {o.name for o in outside if o.is_deferred and o.name in bound}
        known_before = {o.name for o in [*before, *(later if loop else ())] if o.is_store}
        known_before |= _parameters(root)
        arguments = sorted(
            name for name in bound & known_before if _needs_value(name, in_body, path)
        )
        call_late = self._call_late(sources, after[:distance], bound, used)
        order = list(dict.fromkeys(o.name for o in in_body if o.is_store))
        return Plan(
            loss=loss,
            loss_is_used=loss in used,
            sources=sources,
            arguments=tuple(arguments),
            results=tuple(name for name in order if name in used and name != loss),
            split=split,
            distance=distance,
            call_late=call_late,
            call=call,
        )

    def _gradient(
        self, tape: str, inside: list[Any], after: list[Any]
    ) -> tuple[int | None, int, cst.Call]:
        """Find the one call of `tape.gradient`, in a statement of the block or after it."""
        for number, statement in enumerate(after):  # the name may be used for another tape later
            if isinstance(statement, cst.With) and tape in bound_by(statement):
                after = after[:number]
                break
        uses = [
            (place, number, call)
            for place, statements in [("in", inside), ("after", after)]
            for number, statement in enumerate(statements)
            for call in uses_of(tape, statement)
        ]
        if not uses:
            raise CannotMove("its gradient is taken elsewhere, not right after its block")
        if any(m.findall(s, m.Attribute(m.Name(tape), m.Name("watch"))) for s in inside):
            raise CannotMove("it watches something; for arrays, use jax.value_and_grad")
        if len(uses) > 1:
            raise CannotMove(f"{tape!r} is used more than once")
        place, number, call = uses[0]
        statement = (inside if place == "in" else after)[number]
        if call is None or not isinstance(statement, cst.SimpleStatementLine):
            raise CannotMove(f"{tape!r} is used for something else than one call of gradient")
        if len(statement.body) > 1:
            raise CannotMove("its gradient is taken on a line of several statements")
        if place == "in" and number == 0:
            raise CannotMove("its gradient is taken before anything else")
        return (number, 0, call) if place == "in" else (None, number, call)

    def _call_late(
        self, sources: cst.BaseExpression, between: list[Any], bound: set[str], used: set[str]
    ) -> bool:
        """Tell whether gradients have to be computed where `gradient` was called."""
        wanted = {node.value for node in names_below([sources])}
        if wanted & bound:
            raise CannotMove("what it differentiates by is assigned in its block")
        made = {name for statement in between for name in bound_by(statement)}
        if not wanted & made:
            return False
        if {node.value for node in names_below(between)} & bound & used:
            raise CannotMove("what it differentiates by is assigned after its values are used")
        return True

    def _check_not_inside_another(
        self, node: cst.CSTNode, is_tape: Callable[[cst.WithItem], bool]
    ) -> None:
        while not isinstance(node, (cst.FunctionDef, cst.Module)):
            if isinstance(node, cst.With) and any(is_tape(item) for item in node.items):
                raise CannotMove("it is in the block of another tape")
            node = self._parents[node]

    def _function_around(self, node: cst.CSTNode) -> cst.CSTNode:
        while not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Module)):
            node = self._parents[node]
        return node

    def _loop_around(self, node: cst.CSTNode, root: cst.CSTNode) -> cst.CSTNode | None:
        outermost = None
        while node is not root:
            outermost = node if isinstance(node, (cst.For, cst.While)) else outermost
            node = self._parents[node]
        return outermost

    def _blocks_around(self, node: cst.CSTNode) -> frozenset[int]:
        found: set[int] = set()
        while not isinstance(node, cst.Module):
            found.add(id(node))
            node = self._parents[node]
        return frozenset(found)

    def _start(self, node: cst.CSTNode) -> tuple[int, int]:
        position = self._positions[node].start
        return position.line, position.column

    def _check_declared(self, root: cst.CSTNode, bound: set[str]) -> None:
        for node in below(root):
            if isinstance(node, (cst.Global, cst.Nonlocal)):
                for item in node.names:
                    if item.name.value in bound:
                        raise CannotMove(f"its block assigns to {item.name.value!r} of elsewhere")


def _is_read(name: str, later: Occurrences, path: frozenset[int]) -> bool:
    """Tell whether later code may read what the tape's block has bound."""
    bound_anew: list[tuple[int, ...]] = []
    for occurrence in (each for each in later if each.name == name):
        blocks = occurrence.blocks
        if occurrence.is_store and path.issuperset(blocks):
            return False  # always, before it is read
        if occurrence.is_store:
            bound_anew.append(blocks)  # whoever reads it in the same block gets that
        elif not any(blocks[: len(block)] == block for block in bound_anew):
            return True
    return False


def _needs_value(name: str, in_body: Occurrences, path: frozenset[int]) -> bool:
    """Tell whether the block reads what was bound before it, or may."""
    first = next((o for o in in_body if o.name == name), None)
    if first is None:
        return False
    return not first.is_store or not path.issuperset(first.blocks)


def _parameters(root: cst.CSTNode) -> set[str]:
    if not isinstance(root, cst.FunctionDef):
        return set()
    return {node.name.value for node in below(root.params) if isinstance(node, cst.Param)}
