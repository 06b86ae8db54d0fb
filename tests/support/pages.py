"""What is in a page for a browser: its words, its tables and its data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from fedtempo.report.browser.document import WebPage

HOSTILE = "<script>document.title='taken'</script>\"'&"


def data_of(page: WebPage) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self._skip = 0
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._skip += tag in ("script", "style")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("script", "style")
        self._in_cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._skip:
            return
        self.words.append(data)
        if self._in_cell:
            self.rows[-1][-1] += data


def read(page: WebPage) -> _Words:
    parser = _Words()
    parser.feed(page.html)
    return parser


def text_of(page: WebPage) -> str:
    """What a reader sees, without charts."""
    return "\n".join(read(page).words)


def rows_of(page: WebPage) -> list[list[str]]:
    """The rows of all tables."""
    return read(page).rows


def scripts_of(page: WebPage) -> int:
    """How many scripts there are: the data and the page's own."""
    return read(page).tags.count("script")
