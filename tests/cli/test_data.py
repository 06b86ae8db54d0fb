"""``fedtempo data`` as its users meet it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cli.test_cli import in_process
from fedtempo.cli.app import app
from fedtempo.cli.data import data_app
from fedtempo.problems.data import DATASETS, File
from problems.test_data_download import CONTENT, NAME, Server, mirrored, server  # noqa: F401 - fixtures
from support import true_formats as true

if not any(group.name == "data" for group in app.registered_groups):
    app.add_typer(data_app, name="data")


@pytest.fixture
def run(capsys, monkeypatch):
    return partial(in_process, capsys, monkeypatch)


def test_get_and_list(run, mirrored: Server, tmp_path: Path) -> None:  # noqa: F811
    code, out, err = run("data", "get", "shakespeare", "shakespeare", "--data-dir", str(tmp_path))
    assert (code, out) == (0, f"shakespeare: 0.1 MB in {tmp_path / 'shakespeare'}\n")
    assert err == f"fedtempo: {NAME}, 0.1 of 0.1 MB\n"
    assert (tmp_path / "shakespeare" / NAME).read_bytes() == CONTENT
    code, out, err = run("data", "get", "shakespeare", "--data-dir", str(tmp_path), "--quiet")
    assert (code, err) == (0, "")
    assert len(mirrored.asked) == 1


def test_list_what_is_there(run, tmp_path: Path) -> None:
    true.cifar10(tmp_path, archive=False, ending=".xz")
    code, out, err = run("data", "list", "--data-dir", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["mnist", "not", "there", str(tmp_path / "mnist")]
    assert lines[1].split() == ["cifar10", "0.3", "MB", str(tmp_path / "cifar10")]
    assert f"fedtempo data get mnist shakespeare --data-dir {tmp_path}" in err


def test_an_unknown_name_before_anything_is_downloaded(run, mirrored: Server, tmp_path: Path) -> None:  # noqa: F811
    code, out, err = run("data", "get", "shakespeare", "shakespear", "--data-dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert "did you mean shakespeare?" in err
    assert mirrored.asked == []


def test_no_names(run) -> None:
    code, out, err = run("data", "get")
    assert (code, out) == (2, "")
    assert "NAME" in err


def test_no_network(run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "*")
    file = File(NAME, f"http://127.0.0.1:1/{NAME}", "sha256", hashlib.sha256().hexdigest(), 10)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=(file,)))
    code, out, err = run("data", "get", "mnist", "--data-dir", str(tmp_path))
    assert (code, out) == (3, "")
    assert "--data-dir FOLDER" in err
    assert err.count("\n") == 1


def test_an_interrupt(run, monkeypatch, tmp_path: Path) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtempo.problems.data.catalogue.get", stop)
    code, out, err = run("data", "get", "mnist", "--data-dir", str(tmp_path))
    assert (code, out) == (130, "")
    assert "the same command goes on" in err


def test_a_bar_on_a_terminal(run, monkeypatch, mirrored: Server, tmp_path: Path) -> None:  # noqa: F811
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    code, out, _ = run("data", "get", "shakespeare", "--data-dir", str(tmp_path))
    assert (code, out) == (0, f"shakespeare: 0.1 MB in {tmp_path / 'shakespeare'}\n")


def test_the_room_opens_without_heavy_parts() -> None:
    heavy = "jax scipy sklearn matplotlib xarray urllib.request sqlite3 requests"
    code = f"import sys, fedtempo.problems.data; print([m for m in {heavy.split()} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
