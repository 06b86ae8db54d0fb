"""Make the pictures of docs/gallery.md again, by the code beside them: ``python docs/site/gallery.py``."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]


def draw(folder: Path) -> list[Path]:
    """All pictures of the page, drawn into a folder."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "gallery.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for code in blocks:
            exec(code, {})
    finally:
        os.chdir(before)
    return sorted(folder.glob("*.svg"))


if __name__ == "__main__":
    for path in draw(DOCS / "gallery"):
        path.write_text(
            "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()) + "\n", encoding="utf-8"
        )
