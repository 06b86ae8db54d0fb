"""A page as one HTML file: its parts, its data as JSON, and the styles and scripts of `assets/` that it needs.

Nothing is loaded from anywhere, and the page's own policy forbids it: of scripts only the one that is in the file may
run, by its digest. Text becomes part of a page as text alone (`escape`, `data_block`): a client that calls itself
``<script>`` is shown under that name.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fedtempo.display import one_line
from fedtempo.errors import InputError
from fedtempo.files import write_whole
from fedtempo.report.inks import DARK, LIGHT, Theme, colours

ENDINGS = (".html", ".htm")


@dataclass(frozen=True, repr=False)
class WebPage:
    """A page that stands alone: `save` writes it, a notebook shows it.

    It needs no network, and works from a file as from a server. `to_html` of plans, histories and recommendations
    makes one.

    Example:
        >>> page = ft.compare(ft.FixedTimes([1, 2, 2.5])).to_html()
        >>> page.title
        '3 clients, fixed times'
        >>> page.save("plan.html")
        PosixPath('plan.html')
    """

    title: str
    html: str

    def save(self, path: str | Path) -> Path:
        """Write it whole; the name ends in .html."""
        place = Path(path)
        check_page(place)
        content = self.html.encode()
        write_whole(place, lambda file: file.write(content))
        return place

    def _repr_html_(self) -> str:
        frame = "width:100%;height:760px;border:0"
        return f'<iframe title="{html.escape(self.title)}" style="{frame}" srcdoc="{html.escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        return one_line("WebPage", f"{self.title}, {len(self.html.encode()) / 1000:.0f} kB; .save('page.html')")


def is_page(path: Path) -> bool:
    """Whether a file of that name is to be a page for a browser."""
    return path.suffix.lower() in ENDINGS


def check_page(path: Path) -> None:
    """Refuse a file name that is not a page's."""
    if not is_page(path):
        raise InputError(f"{path}: a page for a browser ends in .html, as plan.html")


def document(
    title: str,
    body: str,
    *,
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    schemes: Sequence[str] = (),
    live: bool = False,
) -> WebPage:
    """The file.

    `body` is HTML; `data` becomes `FT.data` of the scripts, which are names of `assets/`; `schemes` get the colours
    --c0, --c1, … in their order. A `live` page may ask the server that it came from.
    """
    script = "\n".join(asset(name) for name in ("base.js", *scripts))
    style = f"{_inks(schemes)}\n{asset('base.css')}"
    blocks = "" if data is None else data_block(data)
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{_digest(script)}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        **({"connect-src": "'self'"} if live else {}),
    }
    said = "; ".join(f"{what} {where}" for what, where in policy.items())
    return WebPage(
        title,
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{said}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n{blocks}<script>{script}</script>\n</body>\n</html>\n",
    )


@cache
def asset(name: str) -> str:
    """A style or a script."""
    return files("fedtempo.report.browser").joinpath("assets", name).read_text(encoding="utf-8")


def data_block(data: Mapping[str, Any]) -> str:
    """JSON that scripts read; nothing in it ends the block or begins another."""
    text = json.dumps(plain(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="data">{safe}</script>\n'


def plain(value: Any) -> Any:
    """As JSON can hold it; what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float | np.floating):
        number = float(value)
        if not math.isfinite(number):
            return None
        return int(number) if number.is_integer() and abs(number) < 1e15 else number
    if isinstance(value, Fraction):
        return plain(float(value))
    return value.item() if isinstance(value, np.generic) else value


def rounded(values: Any, digits: int = 5) -> Any:
    """Numbers to so many digits, which is what a picture shows: small files."""
    if isinstance(values, list | tuple | np.ndarray):
        return [rounded(one, digits) for one in (values.tolist() if isinstance(values, np.ndarray) else values)]
    if isinstance(values, float | Fraction | np.floating):
        return float(f"{float(values):.{digits}g}")
    return values


def escape(text: object) -> str:
    """Text as HTML."""
    return html.escape(str(text))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _inks(schemes: Sequence[str]) -> str:
    """The inks of both themes, as CSS takes them; `light-dark` picks."""

    def both(name: str, light: str, dark: str) -> str:
        return f"--{name}:light-dark({light},{dark})"

    def named(theme: Theme) -> dict[str, str]:
        return {
            "ground": theme.background,
            "ink": theme.ink,
            "grid": theme.grid,
            "faint": theme.faint,
            "waiting": theme.waiting[0],
            "waiting-edge": theme.waiting[1],
            "away": theme.away[0],
            "away-edge": theme.away[1],
            "lost": theme.lost,
        }

    light, dark = named(LIGHT), named(DARK)
    rules = [both(name, light[name], dark[name]) for name in light]
    of_light, of_dark = colours(schemes, LIGHT), colours(schemes, DARK)
    rules += [both(f"c{k}", of_light[scheme], of_dark[scheme]) for k, scheme in enumerate(schemes)]
    return f":root{{{';'.join(rules)}}}"
