"""Lets the API pages show the examples in docstrings as code.

In Markdown a line that starts with `>>>` is a quotation, so each example is put into a fence.
"""

import re
from typing import Any

import griffe

# From a prompt to the next blank line that is not followed by another prompt.
_EXAMPLE = re.compile(r"^( *)>>> .*?(?=\n\s*\n(?!\s*>>> )|\Z)", re.MULTILINE | re.DOTALL)


def fenced(docstring: str) -> str:
    def fence(match: re.Match[str]) -> str:
        indent = match[1]
        return f"{indent}```pycon\n{match[0]}\n{indent}```"

    return _EXAMPLE.sub(fence, docstring)


class FencedExamples(griffe.Extension):
    """Puts the examples of every docstring into fences."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        self.on_object(obj=pkg)

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
