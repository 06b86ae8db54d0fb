"""The plan of the house: each package imports only from those above it (docs/design.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "fedtempo"

FLOORS = (
    "compat",
    "errors",
    "files",
    "cache",
    "grid",
    "registry",
    "display",
    "clock",
    "weighting",
    "training",
    "problems",
    "schemes",
    "simulation",
    "track",
    "theory",
    "planning",
    "report",
    "flower",
    "paper",
    "cli",
)
"""From the top: what stands lower may import what stands higher, never the other way round."""

DOORS = {"display": "report"}
"""The one file that loads a lower floor, when it is called: objects print and plot themselves through it."""

PUBLIC = {"__init__", "__main__", "rules", "testing", "torch"}
"""What users import by name; no module of the house does."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module of ours that is imported, anywhere in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedtempo":
            if node.module == "fedtempo":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".", 1)[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.partition(".")[2] for a in node.names if a.name.startswith("fedtempo."))


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SRC).as_posix())
def test_imports_go_up_only(path: Path) -> None:
    here = path.relative_to(SRC).parts[0].removesuffix(".py")
    if here in PUBLIC:
        return
    for found in imports(ast.parse(path.read_text(encoding="utf-8"))):
        there = found.split(".")[0]
        assert there not in PUBLIC or found == "__version__", (
            f"{path.name} imports fedtempo.{found}, which is for users"
        )
        if found == "__version__" or DOORS.get(here) == there:
            continue
        assert FLOORS.index(there) <= FLOORS.index(here), (
            f"{path.relative_to(SRC)} ({here}) imports fedtempo.{found}: {there} stands below {here}"
        )


def test_every_package_has_its_floor() -> None:
    there = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in modules()} - PUBLIC
    assert there == set(FLOORS)
