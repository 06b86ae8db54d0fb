"""Every public name has an example in its docstring, and the example runs and prints what it says.

`ft` and `np` are given in every example. Those of fedtempo.flower also have what the example of `simulate_app` makes:
an app whose clients answer at once. Of a name that is no class and no function, as `ft.rules.Event`, the text under its
assignment is the docstring.
"""

from __future__ import annotations

import ast
import doctest
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType

import numpy as np
import pytest

import fedtempo as ft
from support import true_formats

MODULES = ("", ".theory", ".problems", ".published", ".devices", ".track", ".rules", ".testing", ".flower", ".torch")
"""Where public names are, as `fedtempo` + each."""
HOMES = {".published": ".schemes.published", ".devices": ".clock.devices"}
TORCH = ("LocalTorch", "TorchProblem", "problem")
"""`ft.torch.__all__`, which cannot be asked where PyTorch is not installed."""
EXTRA = {name: [pytest.mark.track, pytest.mark.filterwarnings("ignore")] for name in ("track.mlflow", "track.wandb")}
"""What runs only where more is installed; `ft.torch` does, too."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SRC = Path(ft.__file__).parent


def public_names() -> Iterator[tuple[str, str]]:
    """The place of a module and a name in it."""
    for place in MODULES:
        names = TORCH if place == ".torch" else _module(place).__all__
        yield from ((place, name) for name in names if not _is_module(place, name))


def _module(place: str) -> ModuleType:
    return import_module("fedtempo" + HOMES.get(place, place))


def _is_module(place: str, name: str) -> bool:
    return place != ".torch" and isinstance(getattr(_module(place), name), ModuleType)


def _docstring(place: str, name: str) -> str:
    if place == ".torch":
        return _written(SRC / "training/torch_solvers.py", name) or _written(SRC / "problems/torch/problem.py", name)
    thing = getattr(_module(place), name)
    ours = str(getattr(thing, "__module__", "")).startswith("fedtempo")
    if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
        return inspect.cleandoc(thing.__doc__ or "")
    return _written(Path(_module(place).__file__ or ""), name) or _imported(place, name)


def _imported(place: str, name: str) -> str:
    """The text under an assignment in the module that a public module imports a name from."""
    tree = _tree(Path(_module(place).__file__ or ""))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return _written(SRC.parent / (str(node.module).replace(".", "/") + ".py"), name)
    return ""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _written(path: Path, name: str) -> str:
    """What the source says of a name, without importing it."""
    body = _tree(path).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        under = following.value if isinstance(following, ast.Expr) else None
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return inspect.cleandoc(under.value) if isinstance(under, ast.Constant) else ""
    return ""


def _cases() -> list[object]:
    """Each example once: some names are public in two modules."""
    found, seen = [], set()
    for place, name in public_names():
        label = f"{place}.{name}".strip(".")
        marks = [pytest.mark.torch] if place == ".torch" else EXTRA.get(label, [])
        if (text := _docstring(place, name)) not in seen:
            found.append(pytest.param(place, name, id=label, marks=marks))
        seen.add(text)
    return found


def run(place: str, name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Run the example of a name; what it has made."""
    names = {"__name__": "__main__", "ft": ft, "np": np, **given}
    label = f"fedtempo{place}.{name}"
    test = doctest.DocTestParser().get_doctest(_docstring(place, name), names, label, None, None)
    said: list[str] = []
    failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False).failed
    assert not failed, "".join(said)
    return {key: value for key, value in test.globs.items() if not key.startswith("__")}


@pytest.fixture(scope="module")
def flower_app(tmp_path_factory) -> Mapping[str, object]:
    """What the example of `simulate_app` has made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("app"))
        return MappingProxyType(run(".flower", "simulate_app", {}))


@pytest.fixture(scope="module")
def folder_with_data(tmp_path_factory) -> Path:
    """Small files in the formats of MNIST, CIFAR-10 and Shakespeare."""
    folder = tmp_path_factory.mktemp("data")
    true_formats.mnist(folder)
    true_formats.cifar10(folder)
    true_formats.shakespeare_leaf(folder)
    return folder


def test_every_public_name_has_an_example():
    without = {}
    for place, name in public_names():
        text, example = _docstring(place, name).partition("\nExample:\n")[::2]
        if not text.strip() or "    >>> " not in example or "SKIP" in example:
            without[f"fedtempo{place}.{name}"] = text
    assert without == {}, "give each an Example: with lines that begin with >>> and run"


@pytest.mark.torch
def test_the_names_for_pytorch_are_these():
    assert sorted(ft.torch.__all__) == sorted(TORCH)


@pytest.mark.parametrize(("place", "name"), _cases())
def test_an_example_prints_what_it_says(place, name, tmp_path, monkeypatch, request, folder_with_data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(folder_with_data)
    given = request.getfixturevalue("flower_app") if place == ".flower" else {}
    run(place, name, given)
