"""Arguments of calls, from TensorFlow's parameters to those of the counterpart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import libcst as cst

__all__ = ["Parameter", "Untranslatable", "parameters_of", "translated"]

_LEFT_OUT, _UNSUPPORTED, _BY_POSITION = "-", "!", "_"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function of TensorFlow."""

    theirs: str
    ours: str  # the name here, or one of the marks above
    by_position: bool  # whether it has the same position here
    default: str | None  # to be written out, or the mark of what has to be given

    @property
    def is_passed_on(self) -> bool:
        return self.ours not in (_LEFT_OUT, _UNSUPPORTED)

    @property
    def has_name(self) -> bool:
        return self.is_passed_on and self.ours != _BY_POSITION


class Untranslatable(Exception):
    """A call that has to stay as it is, and why."""


@cache
def parameters_of(description: str) -> tuple[Parameter, ...]:
    """Read parameters as the table of names describes them."""
    before, _, after = description.partition("/")
    return tuple(
        _parameter(word, by_position)
        for words, by_position in [(before, True), (after, False)]
        for word in words.split()
    )


def _parameter(word: str, by_position: bool) -> Parameter:
    names, _, default = word.partition("=")
    theirs, _, ours = names.partition(":")
    return Parameter(theirs, ours or theirs, by_position, default or None)


def translated(args: Sequence[cst.Arg], description: str) -> list[cst.Arg]:
    """Return the arguments for the counterpart.

    Raises:
      Untranslatable: when one of them has none, or it cannot be seen which they are.
    """
    parameters = parameters_of(description)
    result: list[cst.Arg] = []
    given: set[str] = set()
    for position, arg in enumerate(args):
        parameter = _receiver(parameters, position, arg)
        given.add(parameter.theirs)
        if parameter.ours == _UNSUPPORTED and not _is_none(arg):
            raise Untranslatable(f"the argument {parameter.theirs!r} has no counterpart")
        if not parameter.is_passed_on:
            continue
        if arg.keyword is None and parameter.by_position:
            result.append(arg)
        elif parameter.ours == _BY_POSITION:
            result.append(_positional(parameter, parameters, position, arg))
        else:
            result.append(_keyword(arg, parameter.ours))
    for parameter in parameters:
        if parameter.default is None or parameter.theirs in given:
            continue
        if parameter.default == _UNSUPPORTED:
            raise Untranslatable(f"without {parameter.theirs!r} it means something else here")
        result.append(_keyword(cst.Arg(cst.parse_expression(parameter.default)), parameter.ours))
    return _with_commas(result, args)


def _receiver(parameters: tuple[Parameter, ...], position: int, arg: cst.Arg) -> Parameter:
    if arg.star:
        raise Untranslatable(f"it cannot be seen which arguments {arg.star}... are")
    if arg.keyword is None:
        if position >= len(parameters):
            raise Untranslatable(f"it is given {position + 1} arguments")
        return parameters[position]
    for parameter in parameters:
        if parameter.theirs == arg.keyword.value:
            return parameter
    raise Untranslatable(f"the argument {arg.keyword.value!r} has no counterpart")


def _positional(
    parameter: Parameter, parameters: tuple[Parameter, ...], position: int, arg: cst.Arg
) -> cst.Arg:
    if parameters.index(parameter) != position:
        raise Untranslatable(f"{parameter.theirs!r} would have to be given by position")
    return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)


def _is_none(arg: cst.Arg) -> bool:
    return isinstance(arg.value, cst.Name) and arg.value.value == "None"


def _keyword(arg: cst.Arg, name: str) -> cst.Arg:
    no_space = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    equal = arg.equal if isinstance(arg.equal, cst.AssignEqual) else no_space
    return arg.with_changes(keyword=cst.Name(name), equal=equal)


def _with_commas(result: list[cst.Arg], original: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Give the last argument the comma, or its absence, that the last one had before."""
    if not result or not original:
        return result
    last = original[-1]
    separated = [
        arg if isinstance(arg.comma, cst.Comma) else arg.with_changes(comma=_COMMA)
        for arg in result[:-1]
    ]
    end = result[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    return [*separated, end]


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
