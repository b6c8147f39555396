"""Names of TensorFlow become their counterparts, wherever they are used."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst import metadata

from ._aliases import Aliases
from ._arguments import Untranslatable, translated
from ._comments import comment, is_about, with_comments
from ._import_statements import rewritten_imports
from ._lookup import look_up
from ._names import METHODS, SLICE_ASSIGNMENTS, Code, Person, Renamed, Topic
from ._qualified import is_chain, may_be_tensorflow, root_of, whole_name

__all__ = ["renamed"]

_RANGE = "jax.numpy.arange"
_ARRAY_OF_NUMBERS = ("jax.numpy.asarray",)


def renamed(module: cst.Module, aliases: Aliases) -> tuple[cst.Module, int]:
    """Return a module in which names are their counterparts, and how many places have changed."""
    renamer = _Renamer(aliases)
    return metadata.MetadataWrapper(module).visit(renamer), renamer.rewritten


class _Renamer(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (
        metadata.ScopeProvider,
        metadata.ExpressionContextProvider,
        metadata.ParentNodeProvider,
    )

    def __init__(self, aliases: Aliases) -> None:
        super().__init__()
        self._aliases = aliases
        # The statements that are being visited, and comments for them.
        self._around: list[tuple[Any, list[str]]] = []
        self._kept: set[cst.CSTNode] = set()  # names whose call could not be translated
        self._ranges: set[cst.CSTNode] = set()  # those that a `for` statement goes through
        self.rewritten = 0

    # --- Statements, above which comments are written --------------------------------------

    def visit_Module(self, node: cst.Module) -> None:
        self._first = node.body[0] if node.body else None
        self._header = {line.comment.value for line in node.header if line.comment}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_statement(node):
            self._around.append((node, []))
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        result = super().on_leave(original_node, updated_node)
        if not _is_statement(original_node):
            return result
        _, comments = self._around.pop()
        if original_node is self._first:  # comments above it belong to the module
            comments = [text for text in comments if text not in self._header]
        if not comments:
            return result
        if isinstance(result, cst.FlattenSentinel):
            first, *others = list(result)
            return cst.FlattenSentinel([with_comments(first, comments), *others])
        return with_comments(result, comments)

    def _leave_to_person(self, name: str, advice: str, topic: Topic) -> None:
        statement, comments = self._around[-1]
        there = [line.comment.value for line in statement.leading_lines if line.comment]
        if statement is self._first:
            there += self._header
        if topic is Topic.TAPES and any(is_about(text, topic) for text in there):
            return  # more has been said about this tape already
        shown = name.replace("tensorflow.", "tf.", 1)
        comments.append(comment(f"{shown} {advice}", topic))

    # --- Imports ---------------------------------------------------------------------------

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        lines, changed, comments = rewritten_imports(updated_node)
        self.rewritten += changed
        self._around[-1][1].extend(comments)
        return lines

    # --- Expressions -----------------------------------------------------------------------

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return not is_chain(node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        return self._replaced(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        context = self.get_metadata(metadata.ExpressionContextProvider, original_node, None)
        if context is not metadata.ExpressionContext.LOAD:
            return updated_node
        return self._replaced(original_node, updated_node)

    def _replaced(self, original: Any, updated: Any) -> Any:
        name = whole_name(self, original)
        if name is None and is_chain(original) and may_be_tensorflow(self, original):
            advice = "may be TensorFlow or something else, and is left"
            self._leave_to_person(root_of(original).value, advice, Topic.IMPORTS)
        if name is None or original in self._kept or name == "tensorflow":
            return updated
        entry = look_up(name)
        if isinstance(entry, Person):
            self._leave_to_person(name, entry.advice, entry.topic)
        elif isinstance(entry, Code):
            self.rewritten += 1
            return cst.parse_expression(entry.text)
        elif isinstance(entry, Renamed) and not self._is_imported_as(original, name, entry.target):
            self.rewritten += 1
            expression = cst.parse_expression(self._aliases.of(entry.target))
            return expression.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        return updated

    def _is_imported_as(self, chain: cst.CSTNode, name: str, target: str) -> bool:
        """Tell whether the import of a name is rewritten so that its uses can stay."""
        root = root_of(chain)
        imported = whole_name(self, root)
        if imported is None or root.value == "tensorflow":
            return False
        entry = look_up(imported)
        return isinstance(entry, Renamed) and target == entry.target + name[len(imported) :]

    # --- Calls -----------------------------------------------------------------------------

    def visit_For(self, node: cst.For) -> None:
        # A loop in a compiled function is unrolled; an array's elements would not be numbers.
        call = node.iter
        if not isinstance(call, cst.Call) or _has_keywords(call):
            return
        _, entry = self._renamed(call.func)
        if entry is not None and entry.target == _RANGE:
            self._ranges.add(call)
            self._kept.add(call.func)

    def _renamed(self, function: cst.BaseExpression) -> tuple[str, Renamed | None]:
        """Return the whole name of what is called, and its counterpart, if it has one."""
        name = whole_name(self, function) or ""
        entry = look_up(name)
        return name, entry if isinstance(entry, Renamed) else None

    def visit_Call(self, node: cst.Call) -> None:
        name, entry = self._renamed(node.func)
        if not name:
            self._check_method(node.func)
        if entry is None or node in self._ranges:
            return
        try:
            _check_text(node, entry)
            if entry.parameters is not None:
                translated(node.args, entry.parameters)
        except Untranslatable as reason:
            self._kept.add(node.func)
            self._leave_to_person(name, f"is left: {reason}", Topic.ARGUMENTS)

    def _check_method(self, function: cst.BaseExpression) -> None:
        if not isinstance(function, cst.Attribute):
            return
        method = function.attr.value
        on_part = isinstance(function.value, cst.Subscript) and _is_slice(function.value)
        entry = METHODS.get(method) or (SLICE_ASSIGNMENTS.get(method) if on_part else None)
        if entry is not None:
            shown = f"[...].{method}" if on_part else f".{method}"
            self._leave_to_person(shown, entry.advice, entry.topic)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if m.matches(original_node, m.Call(func=m.Attribute(attr=m.Name("numpy")), args=[])):
            return self._as_numpy(original_node, updated_node)
        if original_node in self._ranges:
            self.rewritten += 1
            return updated_node.with_changes(func=cst.Name("range"))
        _, entry = self._renamed(original_node.func)
        if entry is None or entry.parameters is None or original_node.func in self._kept:
            return updated_node
        args = translated(updated_node.args, entry.parameters)
        parent = self.get_metadata(metadata.ParentNodeProvider, original_node)
        if isinstance(parent, cst.Decorator) and not args:
            return updated_node.func
        return updated_node.with_changes(args=args)

    def _as_numpy(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Arrays have no method `numpy()`, as tensors have; variables do, but it is the same."""
        assert isinstance(updated.func, cst.Attribute)
        self.rewritten += 1
        function = cst.parse_expression(self._aliases.of("numpy.asarray"))
        array = cst.Call(func=function, args=[cst.Arg(updated.func.value)])
        parent = self.get_metadata(metadata.ParentNodeProvider, original)
        if isinstance(parent, cst.FormattedStringExpression) and parent.format_spec is not None:
            return cst.Call(func=cst.Attribute(array, cst.Name("item")))
        return array


def _is_statement(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))


def _is_slice(subscript: cst.Subscript) -> bool:
    """Tell whether it is part of an array: a list of variables would be indexed by a number."""
    indices = [element.slice for element in subscript.slice]
    return len(indices) > 1 or isinstance(indices[0], cst.Slice)


def _has_keywords(call: cst.Call) -> bool:
    return any(arg.keyword is not None or arg.star for arg in call.args)


def _check_text(call: cst.Call, entry: Renamed) -> None:
    if entry.target not in _ARRAY_OF_NUMBERS or not call.args:
        return
    if isinstance(call.args[0].value, (cst.SimpleString, cst.FormattedString)):
        raise Untranslatable("there are no arrays of text")
