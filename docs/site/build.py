"""Build the documentation site into site/: ``make docs``. A broken link or a public name on no page fails it.

1. pages      docs/*.md, examples/*.py with what they print, the changes    pages.py
2. reference  a page for each group of public names, from their docstrings  api.py
3. plan page  what `fedtempo plan --out plan.html` writes, to play with
4. site       Zensical, strictly
5. offline    what the theme would load from another host comes from us
6. check      every link and anchor of what came out, and that nothing is loaded from another host    check.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import api
import check
import pages

ROOT = pages.ROOT
BUILD = ROOT / "build" / "docs"
SITE = ROOT / "site"


def play(folder: Path) -> None:
    """The page that a plan writes, for people to move its sliders, inside of play.md."""
    plan = ["plan", "--clients", "20", "--times", "F80", "--out", str(folder / "plan_page.html")]
    subprocess.run([sys.executable, "-m", "fedtempo", *plan], check=True, stdout=subprocess.DEVNULL)
    frame = '<iframe class="whole" src="plan_page.html" title="A plan to play with"></iframe>'
    page = folder / "play.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("<!-- plan page -->", f"{frame}\n\n[Open it alone](plan_page.html)."),
        encoding="utf-8",
    )


def configuration(menu: list[dict[str, str]]) -> str:
    """zensical.toml with the menu of the reference in its place."""
    text = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    entries = ",\n".join(f'    {{ "{title}" = "{page}" }}' for entry in menu for title, page in entry.items())
    before, mark, after = text.partition('{ "Reference" = [] }, # the build fills this in: docs/site/api.py')
    assert mark
    return f'{before}{{ "Reference" = [\n{entries}\n  ] }},{after}'


def offline(html: Path) -> None:
    """Pages opened from the disk search by offline_search.js; the theme would load another way from another host."""
    shutil.copy(ROOT / "docs" / "site" / "offline_search.js", html)
    for path in html.rglob("*.html"):
        up = "../" * (len(path.relative_to(html).parts) - 1)
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace("https://unpkg.com/iframe-worker/shim", f"{up}offline_search.js"), encoding="utf-8"
        )


def main() -> int:
    """The exit status."""
    begin = time.perf_counter()
    wrong = api.check()
    shutil.rmtree(BUILD, ignore_errors=True)
    (BUILD / "pages").mkdir(parents=True)
    pages.write(BUILD / "pages")
    play(BUILD / "pages")
    (BUILD / "zensical.toml").write_text(configuration(api.write(BUILD / "pages")), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=BUILD)
    if done.returncode == 0:
        offline(BUILD / "html")
        wrong += check.check(BUILD / "html")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong or done.returncode:
        print(
            f"the site is not built: {len(wrong)} things to mend" if wrong else "the site is not built", file=sys.stderr
        )
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(BUILD / "html", SITE)
    count = len(list(SITE.rglob("*.html")))
    print(f"site/index.html: {count} pages, every link checked, {time.perf_counter() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
