"""What each role of a play says, as one text per role."""

from __future__ import annotations

import re
from typing import NamedTuple

_SPACES = re.compile("  +")


class Roles(NamedTuple):
    """Names of roles, and the cleaned text of each."""

    names: tuple[str, ...]
    texts: tuple[str, ...]


def cleaned(text: str) -> str:
    """The text as LEAF cleans it: newlines become spaces, runs of spaces become one."""
    return _SPACES.sub(" ", text.replace("\n", " "))
