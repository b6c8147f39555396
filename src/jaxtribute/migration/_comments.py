"""The comments that mark places for a person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst

from ._names import Topic

__all__ = ["GUIDE", "comment", "is_about", "is_place", "places_in", "with_comments"]

GUIDE = "docs/migrating-from-tf.md"
_MARK = "# jaxtribute: "
_PLACE = re.compile(rf"^\s*{re.escape(_MARK)}(.*)$")


def comment(text: str, topic: Topic) -> str:
    """Return a comment that ends with the address of a section of the guide."""
    return f"{_MARK}{text}; see {GUIDE}#{topic.value}"


def with_comments(statement: Any, comments: Iterable[str]) -> Any:
    """Return a statement with comments above it, of which those that are there stay single."""
    lines: Sequence[cst.EmptyLine] = statement.leading_lines
    there = {line.comment.value for line in lines if line.comment is not None}
    new = [text for text in dict.fromkeys(comments) if text not in there]
    added = [cst.EmptyLine(comment=cst.Comment(text)) for text in new]
    return statement.with_changes(leading_lines=[*lines, *added])


def is_about(text: str, topic: Topic) -> bool:
    """Tell whether a comment is one of ours with the address of a section."""
    return text.startswith(_MARK) and text.endswith(f"#{topic.value}")


def is_place(line: cst.EmptyLine) -> bool:
    """Tell whether a line is such a comment."""
    return line.comment is not None and line.comment.value.startswith(_MARK)


def places_in(source: str) -> list[tuple[int, str]]:
    """Return the lines with such comments, by number, and what they say."""
    found = ((n, _PLACE.match(line)) for n, line in enumerate(source.split("\n"), start=1))
    return [(number, match[1]) for number, match in found if match]
