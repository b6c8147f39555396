"""`tf.GradientTape` blocks become functions for `jt.value_and_grad`.

    with tf.GradientTape() as tape:             def loss_fn():
        predictions = model(x)                      predictions = model(x)
        loss = loss_of(y, predictions)              return loss_of(y, predictions), predictions
    grads = tape.gradient(loss, variables)
                                                (loss, predictions), grads = jt.value_and_grad(
                                                    loss_fn, variables, has_aux=True)()

What later code reads of the block is returned beside the loss; what the block reads and then binds
anew becomes an argument. A tape of any other form stays, with a comment.
"""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst import metadata

from ._aliases import Aliases
from ._comments import comment, with_comments
from ._names import Topic
from ._qualified import whole_name
from ._tape_code import function_and_call
from ._tape_plan import Left, Plan, Planner

__all__ = ["without_tapes"]

_TAPES = {f"tensorflow.{version}GradientTape" for version in ("", "compat.v1.", "compat.v2.")}


def without_tapes(module: cst.Module, aliases: Aliases) -> tuple[cst.Module, int]:
    """Return a module with its tapes rewritten, and how many were."""
    if not m.findall(module, m.Name("GradientTape")):
        return module, 0
    wrapper = metadata.MetadataWrapper(module)
    rewriter = _Tapes(aliases)
    return wrapper.visit(rewriter), rewriter.rewritten


class _Tapes(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (
        metadata.ScopeProvider,
        metadata.ExpressionContextProvider,
        metadata.ParentNodeProvider,
        metadata.PositionProvider,
    )

    def __init__(self, aliases: Aliases) -> None:
        super().__init__()
        self._aliases = aliases
        self._plans: dict[cst.CSTNode, Plan | Left] = {}
        self._header: set[str] = set()
        self.rewritten = 0

    def visit_Module(self, node: cst.Module) -> None:
        self._module = node
        self._header = {line.comment.value for line in node.header if line.comment}
        planner = Planner(self.metadata)
        for with_ in _tapes_in(node, self._is_tape):
            self._plans[with_] = planner.plan(with_, self._is_tape)

    def _is_tape(self, item: cst.WithItem) -> bool:
        call = item.item
        return isinstance(call, cst.Call) and whole_name(self, call.func) in _TAPES

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return self._rewritten(original_node, updated_node)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return self._rewritten(original_node, updated_node)

    def _rewritten(self, original: Any, updated: Any) -> Any:
        """Return a block of statements with the tapes in it rewritten."""
        statements: list[Any] = list(updated.body)
        # From the end, so that what is added does not move what is still to come.
        for index in range(len(original.body) - 1, -1, -1):
            plan = self._plans.get(original.body[index])
            if isinstance(plan, Left):
                note = comment(plan.reason, Topic.TAPES)
                if not (original is self._module and index == 0 and note in self._header):
                    statements[index] = with_comments(statements[index], [note])
            elif plan is not None:
                at_top = original is self._module
                function_and_call(plan, statements, index, self._aliases, at_top, self._module)
                self.rewritten += 1
        return updated.with_changes(body=statements)


def _tapes_in(module: cst.Module, is_tape: Any) -> list[cst.With]:
    found: list[cst.With] = []

    class Finder(cst.CSTVisitor):
        def visit_With(self, node: cst.With) -> None:
            if any(is_tape(item) for item in node.items):
                found.append(node)

    module.visit(Finder())
    return found
