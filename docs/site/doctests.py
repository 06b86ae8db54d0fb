"""An example in a docstring (``>>> …``) becomes a block of code: Markdown alone would take it for a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n?(?:^(?![ ]*$).*\n?)*(?:\n(?=[ ]*>>> ))?)+", re.MULTILINE)
"""Lines from one that begins with >>> to the next empty one; examples with one empty line between them go together."""


def fenced(text: str) -> str:
    """The text with its examples as fenced code."""
    return EXAMPLE.sub(lambda found: _block(found.group()), text)


def _block(example: str) -> str:
    lines = example.rstrip().splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(["", "```pycon", *(line[indent:] for line in lines), "```", ""])


class Examples(Extension):
    """What mkdocstrings calls for every object."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Put fences around the examples of its docstring."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
