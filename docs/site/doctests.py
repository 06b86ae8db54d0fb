"""An example in a docstring (``>>> …``) becomes a block of code: Markdown alone would take it for a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n?(?:^(?![ ]*$).*\n?)*(?:\n(?=[ ]*>>> ))?)+", re.MULTILINE)
"""Lines from one that begins with >>> to the next empty one; examples with one empty line between them go together."""
DIRECTIVE = re.compile(r"\s*# doctest: .*$")
PAGE = re.compile(r"\bdocs/(\w+)\.md\b")


def fenced(text: str) -> str:
    """The text with its examples as fenced code."""
    return EXAMPLE.sub(lambda found: _block(found.group()), text)


def _block(example: str) -> str:
    lines = example.rstrip().splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    shown = [DIRECTIVE.sub("", line[indent:]) for line in lines]
    return "\n".join(["", "```pycon", *("" if line == "<BLANKLINE>" else line for line in shown), "```", ""])


class Examples(Extension):
    """What mkdocstrings calls for every object."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Put fences around the examples of its docstring, and lead names of pages to them."""
        if obj.docstring is not None:
            obj.docstring.value = PAGE.sub(r"[\1](../\1.html)", fenced(obj.docstring.value))
