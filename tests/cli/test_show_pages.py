"""``fedtempo show X --out report.html``, and what it says of what cannot be shown."""

from __future__ import annotations

import json
from functools import partial

import pytest

from cli.test_cli import in_process
from fedtempo.simulation.history.history import History
from simulation.test_history import study
from support.pages import HOSTILE
from support.recommendations import TWO, recommendation


@pytest.fixture
def run(capsys, monkeypatch):
    return partial(in_process, capsys, monkeypatch)


@pytest.fixture
def small():
    return History(study(schemes=("FedAvg", "AsyncFedAvg"), rates=(0.1,), points=5, models=False))


def test_a_folder_a_page_and_a_picture(run, small, tmp_path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "_")
    folder.mkdir()
    small.save(folder / "history.nc")
    description = {"problem": {"name": "digits"}, "until": 7}
    document = {"format": 1, "configuration": {}, "layout": {"blocks": 1}, "description": description}
    (folder / "study.json").write_text(json.dumps(document))
    page, picture = tmp_path / "report.html", tmp_path / "study.svg"
    code, out, err = run("show", str(folder), "--out", str(page), "--out", str(picture))
    assert (code, err) == (0, "")
    assert out.endswith(f"{page}, {picture}\n")
    assert picture.read_bytes().startswith(b"<?xml")
    html = page.read_text(encoding="utf-8")
    assert "<h1>&lt;script&gt;" in html
    assert html.count("<script") == 2
    assert "until = 7" in html
    assert not (folder / "study.png").exists(), "only what was asked for"


def test_a_history_file_and_one_of_python(run, small, tmp_path) -> None:
    small.save(tmp_path / "mine.nc")
    code, _, err = run("show", str(tmp_path / "mine.nc"), "--out", str(tmp_path / "x.htm"), "--target", "1.25")
    assert (code, err) == (0, "")
    html = (tmp_path / "x.htm").read_text(encoding="utf-8")
    assert "<h1>mine</h1>" in html
    assert '"targets":[1.25]' in html
    assert "No study file of this study is known" in html


def test_a_recommendation_from_json(run, tmp_path) -> None:
    made = recommendation(TWO)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(made.to_dict() | {"from_run": ["x"]}))
    code, out, err = run("show", str(path), "--out", str(tmp_path / "plan.html"))
    assert (code, err) == (0, "")
    assert out == f"{made}\n\n{tmp_path / 'plan.html'}\n"
    assert "FedAvg with local learning rate" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert run("show", str(path))[1].endswith("No page is written; add --out report.html for one.\n")
    code, out, err = run("show", str(path), "--out", str(tmp_path / "x.svg"))
    assert (code, out) == (2, "")
    assert "becomes a page, as report.html" in err


@pytest.mark.parametrize(
    ("name", "content", "words", "code", "said"),
    [
        ("x/study.toml", "", "", 2, "this is a study file: fedtempo run {} trains it"),
        ("x/study.svg", "", "", 2, "a picture or a page already"),
        ("x/report.html", "", "", 2, "a picture or a page already"),
        ("x/study.json", "{}", "", 2, "a part of a folder of results: fedtempo show"),
        ("x/plan.json", '{"schemes": []}', "", 2, "a plan of fedtempo plan --json without a problem"),
        ("x/plan.json", "[]", "", 2, "JSON, but not a recommendation"),
        ("x/plan.json", "{", "", 2, "not JSON that can be read"),
        ("x/plan.json", '{"best": 1, "cells": 1, "regret": 1, "objective": 1, "spent": 1}', "", 2, "newer fedtempo"),
        ("x/other.txt", "hello", "", 2, "not a NetCDF file that can be read"),
        ("x/history.nc", "", "--out x.txt", 2, "svg, png, pdf for a picture, or html for a page"),
        ("x/history.nc", "", "--out x.html --measure loss", 2, "a page has every measure"),
    ],
)
def test_files_that_are_something_else(name, content, words, code, said, run, tmp_path) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(content)
    found, out, err = run("show", str(path), *words.split())
    assert (found, out) == (code, "")
    assert said.format(path) in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ([], 3, "check the path (the folder is empty)"),
        (["one/history.nc", "two/rounds.jsonl"], 2, "it holds results in folders of their own; show one of them:"),
        (["pyproject.toml"], 3, "an app's own folder"),
        (["run/x", "events.out.tfevents.1"], 3, "what --track wrote"),
        (["a.txt", "b.txt", "c.txt", "d.txt"], 3, "it has a.txt, b.txt, c.txt, …"),
    ],
)
def test_folders_that_are_something_else(files, code, said, run, tmp_path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found, out, err = run("show", str(tmp_path), "--out", "report.html")
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_damaged_description_leaves_the_page_without_it(run, small, tmp_path) -> None:
    small.save(tmp_path / "history.nc")
    (tmp_path / "study.json").write_text("{")
    code, _, err = run("show", str(tmp_path), "--out", str(tmp_path / "report.html"))
    assert (code, err) == (0, "")
    assert "No study file of this study is known" in (tmp_path / "report.html").read_text(encoding="utf-8")
