"""The pages of the site: docs/*.md as they are, examples as tutorials; links that leave docs/ lead to their pages."""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")
FOLDERS = {
    "flower": ("README.md", "A deployment on this machine: four sites of unequal speed on Flower"),
    "flower_torch": ("README.md", "A PyTorch app in the form of Flower's template, for virtual time and for real"),
    "slurm": (None, "A study on a cluster: jobs of Slurm, or Dask"),
}
"""Folders of examples: the file that introduces each, and what it is."""
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".md": "markdown"}


def _titles(menu: object) -> dict[str, str]:
    """By page: what the menu calls it."""
    found: dict[str, str] = {}
    for entry in menu if isinstance(menu, list) else []:
        for title, inside in entry.items():
            found |= {inside: title} if isinstance(inside, str) else _titles(inside)
    return found


TITLES = _titles(
    tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
)


def write(pages: Path) -> None:
    """All pages that are not generated from the source: below `pages`, with the pictures that they show."""
    for path in (ROOT / "docs").glob("*.md"):
        _write(pages / path.name, path.read_text(encoding="utf-8"), path.parent, pages)
    for name in ("CHANGELOG", "CONTRIBUTING"):
        _write(pages / f"{name.lower()}.md", (ROOT / f"{name}.md").read_text(encoding="utf-8"), ROOT, pages)
    for path in (ROOT / "docs").rglob("*.svg"):
        target = pages / path.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(ROOT / "docs" / "site" / "style.css", pages)
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".toml"):
            _write(pages / "examples" / f"{path.stem}.md", tutorial(path), path.parent, pages)
            shutil.copy(path, pages / "examples")
    (pages / "examples" / "index.md").write_text(contents(), encoding="utf-8")
    for name, (introduction, about) in FOLDERS.items():
        folder = ROOT / "examples" / name
        _write(pages / "examples" / f"{name}.md", of_folder(folder, introduction, about), folder, pages)


def _write(target: Path, text: str, home: Path, pages: Path) -> None:
    """A page whose text was written for `home`, with its links as they are on the site."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(relinked(text, home, target.parent.relative_to(pages)), encoding="utf-8")


def relinked(text: str, home: Path, at: Path) -> str:
    """The text with each link to a file of the repository led to where that is on the site.

    A link with the name of its file, as [plan.md](plan.md), is called as the page is in the menu.
    """

    def led(found: re.Match[str]) -> str:
        called, target = found.groups()
        path, mark, anchor = target.partition("#")
        file = home / path
        if "://" in target or not path or not file.exists() or (there := on_site(file.resolve())) is None:
            return found.group()
        if called == file.name and file.suffix == ".md":
            called = TITLES.get(there, called)
        return f"[{called}]({'../' * len(at.parts)}{there}{mark}{anchor})"

    return LINK.sub(led, text)


def on_site(path: Path) -> str | None:
    """Where a file of the repository is on the site, from its root; None: it is not there."""
    inside = path.relative_to(ROOT)
    if inside.parts[0] == "docs":
        return inside.relative_to("docs").as_posix()
    if inside.parts[0] == "examples" and len(inside.parts) > 1:
        return f"examples/{Path(inside.parts[1]).stem}.md"
    return {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}.get(
        inside.as_posix()
    )


def tutorial(path: Path) -> str:
    """A page of a script: its docstring, its comments as text between its code, and what it prints."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        title, about, code = opening(source)
    else:
        title, about, code = path.name, "", source
    text = [f"# {title}", "", about, "", *_code(code, path.suffix)]
    out = path.with_suffix(".out")
    if out.exists():
        text += ["It prints", "", "```text", out.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join([*text, f"The whole file: [{path.name}]({path.name})."])


def contents() -> str:
    """A page of all tutorials."""
    text = [
        "# Tutorials",
        "",
        "Whole scripts, short enough to read. What they print is compared by the tests.",
        "",
        "| | |",
        "|---|---|",
    ]
    for page in TITLES:
        script = ROOT / "examples" / f"{Path(page).stem}.py"
        if page.startswith("examples/") and script.exists():
            text.append(f"| [{TITLES[page]}]({script.stem}.md) | {opening(script.read_text(encoding='utf-8'))[0]} |")
    text.append(f"| [{TITLES['examples/own_figure.md']}](own_figure.md) | A figure like the paper's, of your own |")
    text += [f"| [{TITLES[f'examples/{name}.md']}]({name}.md) | {about} |" for name, (_, about) in FOLDERS.items()]
    return "\n".join(text)


def opening(source: str) -> tuple[str, str, str]:
    """The first sentence of a script's docstring, the rest of it, and the code below."""
    first = ast.parse(source).body[0]
    assert isinstance(first, ast.Expr)
    assert isinstance(first.value, ast.Constant)
    told = str(first.value.value).strip()
    title, _, about = told.partition("\n")
    code = "\n".join(source.splitlines()[first.end_lineno :]).strip("\n")
    return title.rstrip("."), about.strip(), code


def _code(code: str, suffix: str) -> list[str]:
    """Code in blocks; a paragraph of comments after an empty line is text."""
    found: list[str] = []
    for part in re.split(r"\n\n(?=# [A-Z])", "\n\n" + code):
        comments = re.match(r"(?:# .*\n)*", part.strip("\n") + "\n")
        told = comments.group() if comments is not None and suffix == ".py" else ""
        rest = part.strip("\n")[max(0, len(told) - 1) :].strip("\n")
        if told:
            found += [" ".join(line.removeprefix("# ") for line in told.splitlines()), ""]
        if rest:
            found += [f"```{LANGUAGES[suffix]}", rest, "```", ""]
    return found


def of_folder(folder: Path, introduction: str | None, about: str) -> str:
    """A page of a folder of examples: what introduces it, then its files."""
    text = [(folder / introduction).read_text(encoding="utf-8")] if introduction else [f"# {about}", ""]
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in LANGUAGES and path.name not in (introduction, "__init__.py"):
            name = path.relative_to(folder).as_posix()
            text += [
                "",
                f"## {name}",
                "",
                f"```{LANGUAGES[path.suffix]}",
                path.read_text(encoding="utf-8").rstrip(),
                "```",
            ]
    return "\n".join(text)
