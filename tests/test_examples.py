"""Examples print what is kept beside them, and the README's commands and code run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedtempo as ft

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def output(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


NEEDED = {"equinox_module": "equinox", "flax_modules": "flax", "torch_cnn": "torch", "torch_transformer": "torch"}
"""What an example needs that `make test` does not install."""


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_prints_what_is_kept(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # PyTorch's last digits depend on how many threads add
    needed = NEEDED.get(path.stem)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install {needed}")
    assert output([sys.executable, str(path)], tmp_path) == path.with_suffix(".out").read_text()


COMMANDS = [line for block in blocks("console") for line in block.splitlines() if line.startswith("fedtempo ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    assert output([sys.executable, "-m", *shlex.split(command)], tmp_path)


def test_the_plan_in_the_readme_is_what_is_printed(tmp_path: Path) -> None:
    shown = blocks("text")[0]
    assert output([sys.executable, "-m", *shlex.split(COMMANDS[0])], tmp_path) == shown


def test_the_study_of_the_readme_runs(tmp_path: Path) -> None:
    code = blocks("python")[0]
    assert code.count("until=100,") == code.count("range(2)") == 1
    quick = code.replace("until=100,", "until=10,").replace("range(2)", "range(1)")
    output([sys.executable, "-c", quick], tmp_path)
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    assert (tmp_path / "model.npz").exists()


def test_the_code_of_the_readme_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    code = blocks("python")[3]
    said = re.findall(r"^print\(.*\)\s+# ([\d/ ]+)$", code, re.MULTILINE)
    printed = output([sys.executable, "-c", code], tmp_path).splitlines()
    assert len(said) == 3
    assert [printed[0], printed[1], printed[3]] == said


def test_the_theory_of_the_readme_says_what_is_printed(tmp_path: Path) -> None:
    printed = output([sys.executable, "-c", blocks("python")[2]], tmp_path).splitlines()
    assert printed[0] == "1"
    assert printed[1].startswith("1.56")
    assert "ε_F" in printed[2]


def test_the_parts_in_the_readme_make_a_study() -> None:
    given = {"ft": ft, "times": ft.FixedTimes.spread(clients=20, slowdown=80)}
    exec(blocks("python")[1], given)
    assert all(isinstance(scheme, ft.Scheme) for scheme in given["schemes"])
    assert ft.timeline(given["fix"], given["unsteady"], until=3).num_rounds == 6


PAGES = ("sampling", "corrections", "servers", "compensation", "solvers", "compression", "published", "availability")


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of_a_page_prints_what_it_shows(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words; numbers may differ in a digit on another processor."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = re.search(r"^```python\n((?:(?!```)[^\n]*\n)+)```\n\n((?:    [^\n]*\n)+)", text, re.MULTILINE)
    assert found is not None
    code, shown = found.groups()
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    assert [_words(line) for line in printed] == [_words(line[4:]) for line in shown.splitlines()]


def _words(line: str) -> str:
    return re.sub(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?", "#", line)


def test_the_code_of_the_theory_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "theory.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert output([sys.executable, "-c", code], tmp_path)


def test_links_in_the_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
