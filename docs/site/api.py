"""The pages of the reference: which public name is on which (reference.toml); mkdocstrings fills in docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import fedtempo

MODULES = {
    "ft": "fedtempo",
    "ft.problems": "fedtempo.problems",
    "ft.published": "fedtempo.schemes.published",
    "ft.devices": "fedtempo.clock.devices",
    "ft.theory": "fedtempo.theory",
    "ft.track": "fedtempo.track",
    "ft.torch": "fedtempo.torch",
    "fedtempo.flower": "fedtempo.flower",
    "fedtempo.rules": "fedtempo.rules",
    "fedtempo.testing": "fedtempo.testing",
}
"""Public modules: how users write them, and where they are."""

PAGES: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "reference.toml").read_text(encoding="utf-8"))
"""By page: its title, what it is about, and the names on it."""

COMMANDS = ("plan", "timeline", "times", "theory", "run", "app", "show", "watch", "reproduce", "data list", "data get")


def written(name: str) -> str:
    """A name as users write it: ft.FedFix, fedtempo.flower.FedFix."""
    first = name.split(".")[0]
    return f"fedtempo.{name}" if first in ("flower", "rules", "testing") else f"ft.{name}"


def place(name: str) -> str:
    """Where a name is found: fedtempo.schemes.published.FedAsync."""
    module, _, last = written(name).rpartition(".")
    return f"{MODULES[module]}.{last}"


def public_names() -> list[str]:
    """All public names that are not modules themselves, by their places."""
    modules = {written.rpartition(".")[2] for written in MODULES}
    return [
        f"{home}.{name}" for home in MODULES.values() for name in listed(home) if name not in modules | {"__version__"}
    ]


def listed(home: str) -> list[str]:
    """The names that a module lists as public; of fedtempo.torch, which needs PyTorch, as its file has them."""
    if home != "fedtempo.torch":
        return list(importlib.import_module(home).__all__)
    tree = ast.parse((Path(fedtempo.__file__).parent / "torch.py").read_text(encoding="utf-8"))
    [names] = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return list(ast.literal_eval(names))


def names_on_pages() -> list[str]:
    """All names on the pages, by their places."""
    return [place(name) for page in PAGES.values() for name in page["names"].split()]


def check() -> list[str]:
    """What is wrong: a public name on no page, on several or without a docstring; a name on a page that is not public.

    A name that is public in two modules, as ft.IID and ft.problems.IID, is the same object, and on one page.
    """
    on, public = names_on_pages(), public_names()
    wrong = [f"{name}: it is {on.count(name)} times on the pages" for name in sorted(set(on)) if on.count(name) != 1]
    shown = {id(value) for value in map(value_of, on) if value is not None}
    wrong += [
        f"{name}: on no page of docs/site/reference.toml"
        for name in public
        if name not in on and id(value_of(name)) not in shown
    ]
    wrong += [f"{name}: on a page, but not public" for name in on if name not in public]
    return wrong + [f"{name}: it has no docstring" for name in on if name in public and not _documented(value_of(name))]


def _documented(value: object) -> bool:
    """Whether a class or function says what it is; a dataclass is given its signature where it says nothing."""
    if not (inspect.isclass(value) or inspect.isroutine(value)) or value.__module__ == "builtins":
        return True  # a constant, or another name for a type: its docstring stands below it in the source
    text = value.__doc__ or ""
    return bool(text) and not text.startswith(f"{value.__name__}(")


def value_of(place: str) -> object:
    """What is at a place; None where that cannot be imported here."""
    home, _, name = place.rpartition(".")
    return None if home == "fedtempo.torch" else getattr(importlib.import_module(home), name, None)


def write(pages: Path) -> list[dict[str, str]]:
    """All pages of the reference below `pages`; returns their menu."""
    folder = pages / "api"
    folder.mkdir(parents=True)
    table = [
        "# Reference",
        "",
        "Every public name, by task, with an example. `import fedtempo as ft` comes first everywhere.",
        "",
    ]
    for page, given in PAGES.items():
        text = [f"# {given['title']}", "", given["about"], ""]
        table += [f"## [{given['title']}]({page}.md)", "", "| | |", "|---|---|"]
        for name in given["names"].split():
            full = place(name)
            text += [f"::: {full}", "    options:", f"      heading: {written(name)}", f"      toc_label: {name}", ""]
            table.append(f"| [`{written(name)}`]({page}.md#{full}) | {_first_line(full)} |")
        table.append("")
        (folder / f"{page}.md").write_text("\n".join(text), encoding="utf-8")
    (folder / "index.md").write_text("\n".join(table), encoding="utf-8")
    (pages / "cli.md").write_text(commands(), encoding="utf-8")
    menu = [{given["title"]: f"api/{page}.md"} for page, given in PAGES.items()]
    return [{"Every public name": "api/index.md"}, {"The command line": "cli.md"}, *menu]


def _first_line(full: str) -> str:
    value = value_of(full)
    text = (inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None) or ""
    first = text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return first if len(first) < 160 else first[:157].rsplit(" ", 1)[0] + " …"


def commands() -> str:
    """What every command says of itself."""
    text = [
        "# The command line",
        "",
        "What `fedtempo COMMAND --help` prints. Each command ends with 0, or says in one line what",
        "to change ([exit codes](plan.md#exit-codes)).",
        "",
    ]
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "fedtempo", *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "110"},
        )
        help_text = done.stdout.replace("python -m fedtempo", "fedtempo").strip("\n")
        text += [
            f"## fedtempo {command}",
            "",
            "```text",
            *(line.rstrip() for line in help_text.splitlines()),
            "```",
            "",
        ]
    return "\n".join(text)
