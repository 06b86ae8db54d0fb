"""The built site, read page by page: every link and anchor leads somewhere, and nothing is loaded from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""What a browser loads by itself; of <link> only what is not about the page."""
ABOUT = {"canonical", "prev", "next", "alternate", "author", "license"}

OTHER_HOST = re.compile(r"""(?:url\(|@import)\s*(?:url\()?['"]?((?:https?:)?//[^'")]*)""")
"""In a style sheet."""


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every element comes here."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and given.get(LOADED[tag]) and not (tag == "link" and given.get("rel", "") in ABOUT):
            self.loads.append(given[LOADED[tag]])


def check(site: Path) -> list[str]:
    """What is wrong with the site in this folder, a line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":  # whatever address it answers, its links begin at the root
            continue
        name = path.relative_to(site)
        elsewhere = [target for target in page.loads if urlsplit(target).netloc]
        wrong += [f"{name}: loads {target} from another host" for target in elsewhere]
        for target in [*page.links, *page.loads]:
            problem = _broken(target, path, site, pages)
            if problem:
                wrong.append(f"{name}: {target}: {problem}")
    for path in sorted(site.rglob("*.css")):
        elsewhere = OTHER_HOST.findall(path.read_text(encoding="utf-8"))
        wrong += [f"{path.relative_to(site)}: loads {target} from another host" for target in elsewhere]
    return wrong


def _broken(target: str, path: Path, site: Path, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not there.is_relative_to(site.resolve()):
        return "it leaves the site"
    if there.is_dir():
        there = there / "index.html"
    if not there.exists():
        return "there is no such file"
    if parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors | {"__search"}:
        return "there is no such anchor"
    return None
