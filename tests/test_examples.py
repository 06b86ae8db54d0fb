"""Examples print what is kept beside them; the commands and code of the README and of the first pages run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fedtempo as ft
from cli.test_cli import in_process

ROOT = Path(__file__).parents[1]


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def output(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


NEEDED = {"equinox_module": "equinox", "flax_modules": "flax", "torch_cnn": "torch", "torch_transformer": "torch"}
"""What an example needs that `make test` does not install."""


SLOW = {"sweep", "plan_then_train", "numpy_rows", "own_server", "own_compression"}
"""Those that train for long: in `make test-slow` and `make docs`."""
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_prints_what_is_kept(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # PyTorch's last digits depend on how many threads add
    needed = NEEDED.get(path.stem)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install {needed}")
    assert output([sys.executable, str(path)], tmp_path) == path.with_suffix(".out").read_text()


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "console") for line in block.splitlines() if line.startswith("fedtempo ")]


COMMANDS = [*commands("docs/start.md"), *commands("docs/timelines.md"), *commands("docs/theory.md")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_first_pages_runs(command: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, _ = in_process(capsys, monkeypatch, *shlex.split(command)[1:])
    assert code == 0
    assert said


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    plan, run = commands("README.md")
    assert plan in COMMANDS
    quick = "--until 3 --lr 0.1 --seeds 1 --scheme fedavg --scheme async"
    assert "With time-based weights" in output([sys.executable, "-m", *shlex.split(f"{run} {quick}")], tmp_path)


def test_the_plan_that_is_shown_is_what_is_printed(tmp_path: Path) -> None:
    [shown] = blocks("docs/start.md", "text")
    assert output([sys.executable, "-m", *shlex.split(commands("docs/start.md")[0])], tmp_path) == shown


def test_the_readme_and_the_first_page_show_the_same_sentence() -> None:
    said = [
        line for line in (ROOT / "docs/start.md").read_text(encoding="utf-8").splitlines() if line.startswith("> At")
    ]
    assert len(said) == 1
    assert said[0] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    [code] = blocks("README.md", "python")
    assert code.count('lr="auto"') == 1
    assert "change FedAvg to AsyncFedAvg, nothing else" in output(
        [sys.executable, "-c", code.replace('lr="auto"', "lr=[0.3, 1]")], tmp_path
    )
    assert (tmp_path / "loss.svg").stat().st_size > 10_000


@pytest.mark.slow
def test_the_study_of_the_first_page_runs(tmp_path: Path) -> None:
    [code] = blocks("docs/start.md", "python")
    assert code.count("until=100,") == code.count("range(2)") == 1
    quick = code.replace("until=100,", "until=10,").replace("range(2)", "range(1)")
    output([sys.executable, "-c", quick], tmp_path)
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    assert (tmp_path / "model.npz").exists()


def test_the_code_of_timelines_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    [code] = blocks("docs/timelines.md", "python")
    said = re.findall(r"^print\(.*\)\s+# ([\d/ ]+)$", code, re.MULTILINE)
    printed = output([sys.executable, "-c", code], tmp_path).splitlines()
    assert len(said) == 3
    assert [printed[0], printed[1], printed[3]] == said


def test_the_theory_of_a_problem_says_what_is_printed(tmp_path: Path) -> None:
    printed = output([sys.executable, "-c", blocks("docs/theory.md", "python")[1]], tmp_path).splitlines()
    assert printed[0] == "1"
    assert printed[1].startswith("1.56")
    assert "ε_F" in printed[2]


def test_the_methods_make_a_study() -> None:
    given: dict[str, Any] = {}
    exec(blocks("docs/methods.md", "python")[0], given)
    assert all(isinstance(scheme, ft.Scheme) for scheme in given["schemes"])
    assert ft.timeline(given["fix"], given["unsteady"], until=3).num_rounds == 6


def test_every_seed_deals_the_data_anew_as_the_page_says() -> None:
    (code,) = (block for block in blocks("docs/simulate.md", "python") if "lambda seed" in block)
    given: dict[str, Any] = {"ft": ft}
    exec(code, given)
    assert given["history"].finished
    last = given["history"].dataset["loss"].isel(scheme=0, time=-1).values.ravel()
    assert len(set(last.tolist())) == 5


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
