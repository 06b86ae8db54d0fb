"""Build the documentation site into site/: ``make docs``. A broken link, a public name on no page, or a warning fails it.

1. pages      docs/*.md, examples/*.py with what they print, the changes    pages.py
2. reference  a page for each group of public names, from their docstrings  api.py
3. plan page  what `fedtempo plan --out plan.html` writes, to play with
4. site       Zensical, strictly
5. check      every link and anchor of what came out, and that nothing is loaded from another host    check.py
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


def plan_page(target: Path) -> None:
    """The page that a plan writes, for people to move its sliders."""
    command = [sys.executable, "-m", "fedtempo", "plan", "--clients", "20", "--times", "F80", "--out", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def configuration(menu: list[dict[str, str]]) -> str:
    """zensical.toml with the menu of the reference in its place."""
    text = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    entries = ",\n".join(f'    {{ "{title}" = "{page}" }}' for entry in menu for title, page in entry.items())
    before, mark, after = text.partition('{ "Reference" = [] }, # the build fills this in: docs/site/api.py')
    assert mark
    return f'{before}{{ "Reference" = [\n{entries}\n  ] }},{after}'


def main() -> int:
    """The exit status."""
    begin = time.perf_counter()
    wrong = api.check()
    shutil.rmtree(BUILD, ignore_errors=True)
    (BUILD / "pages").mkdir(parents=True)
    pages.write(BUILD / "pages")
    plan_page(BUILD / "pages" / "plan_page.html")
    (BUILD / "zensical.toml").write_text(configuration(api.write(BUILD / "pages")), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=BUILD)
    if done.returncode == 0:
        wrong += check.check(BUILD / "html")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong or done.returncode:
        print(f"the site is not built: {len(wrong)} things to mend" if wrong else "the site is not built", file=sys.stderr)
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(BUILD / "html", SITE)
    count = len(list(SITE.rglob("*.html")))
    print(f"site/index.html: {count} pages, every link checked, {time.perf_counter() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
