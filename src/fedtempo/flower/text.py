"""What clients and nodes write, made fit for a log line, a terminal and a file: one line, no control characters.

A colour or a cursor movement, a second line that looks like the server's own, letters that turn the direction of
reading: none of that is a client's to write. Every fault goes through `clean` before it is logged or kept.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 500
"""Characters of a line that others have written."""

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]", re.S
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that do not show, or that move what does."""


def shows(character: str) -> bool:
    """Whether a character may stand in a log."""
    return unicodedata.category(character) not in _HIDDEN


def clean(text: str, longest: int = LONGEST) -> str:
    """The text as one line that shows all that is in it; cut where it is longer."""
    text = text[: 20 * longest]  # what is cut off need not be looked at
    if not text.isprintable():
        text = _ESCAPE.sub("", text)
        text = "".join(c if shows(c) else " " if c.isspace() else "" for c in text)
        text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def is_clean(text: str, longest: int) -> bool:
    """Whether nothing would have to be changed."""
    return 0 < len(text) <= longest and (text.isprintable() or all(map(shows, text)))


def last_words(text: str | None, longest: int = 200) -> str:
    """What a client's error says: the whole of it, of a traceback what stands below its last call."""
    said = text or ""
    if "Traceback" not in said:
        return clean(said, longest) or "no reason given"
    lines = [line for line in said[-50 * longest :].splitlines() if line.strip()]
    calls = [place for place, line in enumerate(lines) if line.startswith(("Traceback", "  File"))]
    rest = lines[calls[-1] + 1 :] if calls else lines
    below = rest[next((place for place, line in enumerate(rest) if not line[:1].isspace()), len(rest)) :]
    return clean(" ".join(map(str.strip, below or lines[-1:])), longest) or "no reason given"
