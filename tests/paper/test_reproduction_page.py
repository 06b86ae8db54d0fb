"""The page of a folder of ``fedtempo reproduce``: figures, statements, settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.test_cli import in_process
from fedtempo.paper.claims import why
from fedtempo.paper.figure_file import read_figure
from fedtempo.paper.reproduction_page import (
    _carried,
    claims_of,
    figure_document,
    is_reproduction,
    read_reproduction,
    reproduction_document,
)
from fedtempo.paper.stages import KEY, load, shared_rate, what_was_run
from fedtempo.simulation.history.history import History
from simulation.test_history import study
from support.pages import HOSTILE, data_of, rows_of, scripts_of, text_of

RESULTS = Path(__file__).parents[2] / "docs" / "reproduction"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two parts of figure 2, a first stage of a part of figure 4, and a part of a figure of one's own."""
    made = tmp_path_factory.mktemp("results")
    for name in ("fig2-mnist.nc", "fig2-mnist-shard.nc", "fig4-cifar10-20-F80.scout.nc"):
        shutil.copy(RESULTS / name, made)
    about = {"figure": HOSTILE, "part": HOSTILE, "study": {"until": 60}, "paper": {"until": 60}}
    own = study(schemes=("FedAvg", HOSTILE), points=5, models=False).assign_attrs({KEY: json.dumps(about)})
    History(own).save(made / "mine-part.nc")
    (made / "other-thing.nc").write_bytes(b"no")
    return made


@pytest.fixture(scope="module")
def found(folder):
    return read_reproduction(folder)


@pytest.fixture(scope="module")
def page(found):
    return reproduction_document(found, claims_of(found))


def test_figures_are_found_with_their_scale(found) -> None:
    assert found.scale == "paper"
    assert [figure.name for figure in found.figures] == ["fig2", "fig5"], "figure 5 draws first stages of figure 4"
    assert list(found.results["fig2"]) == ["mnist", "mnist-shard"]
    assert list(found.own) == [HOSTILE]


def test_what_was_run_beside_a_figure_is_no_figure(tmp_path) -> None:
    for name in ("fig2-mnist.nc", "fig2-mnist.beginning.nc", "fig2-mnist.authors.beginning.nc"):
        shutil.copy(RESULTS / name, tmp_path)
    found = read_reproduction(tmp_path)
    assert (list(found.results), found.own) == (["fig2"], {})


def test_a_page_says_how_to_repeat_it_and_whose_setting_it_is(tmp_path) -> None:
    def said(name: str, figure: str, setting: str) -> str:
        history = load(RESULTS / "fig4-cifar10-20-F0.nc")
        about = {**what_was_run(history), "figure": name, "setting": setting}
        parts = {"cifar10-20-F0": History(history.dataset.assign_attrs({KEY: json.dumps(about)}))}
        return text_of(figure_document(read_figure(figure, "paper", setting), parts, tmp_path))

    paper, own = said("fig4", "fig4", "authors"), said("stable", "stable", "text")
    assert "fedtempo reproduce fig4 --setting authors --scale paper" in paper
    assert "fedtempo reproduce stable --scale paper" in own
    assert ("In the paper" in paper, "In full" in paper) == (True, False)
    assert ("In the paper" in own, "In full" in own) == (False, True)


def test_statements_stand_in_a_table_and_beside_their_figure(found, page) -> None:
    (claims,) = claims_of(found).values()
    ran = [claim for claim in claims if claim.verdict.word != "not run"]
    rows = {row[0]: row for row in rows_of(page) if len(row) == 6}
    assert {str(claim.id) for claim in ran} == rows.keys() - {"no."}
    for claim in ran:
        assert rows[str(claim.id)][1] == claim.statement
        assert rows[str(claim.id)][-2] == str(claim.verdict)
        assert rows[str(claim.id)][-1] == (why(claim) or "–")
    assert [claim.id for claim in _carried(found.figures[0], claims)] == [1, 2, 3, 4, 5, 6, 8, 9]
    assert "Not run: CIFAR-10, Shakespeare." in text_of(page)
    assert "fedtempo reproduce fig2 --scale paper" in text_of(page)


def test_weights_can_be_seen_at_the_rate_of_identical_ones(folder, page) -> None:
    charts = data_of(page)["studies"]["fig2"]
    assert [view["name"] for view in charts["views"]] == ["best", "shared", "all"]
    history = load(folder / "fig2-mnist.nc")
    shared = {tuple(one["at"][1:]) for one in charts["combos"] if one["shared"] and one["setting"] == 0}
    assert shared == {(rule, shared_rate(history)) for rule in ("identical", "time-based")}


def test_names_of_others_are_text(page) -> None:
    assert scripts_of(page) == 2
    assert HOSTILE in text_of(page)


def test_show_prints_it_and_writes_the_page(folder, tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "report.html"
    code, said, err = in_process(capsys, monkeypatch, "show", str(folder), "--out", str(out))
    assert (code, err) == (0, "")
    assert "What of the paper's experiments holds" in said
    assert said.startswith("fig2: Asynchronous FedAvg")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    code, said, err = in_process(capsys, monkeypatch, "show", str(folder), "--out", str(tmp_path / "x.svg"))
    assert (code, said) == (2, "")
    assert "report.html shows all" in err
    code, said, err = in_process(capsys, monkeypatch, "show", str(folder), "--target", "1")
    assert (code, "holds the paper's figures, not a study" in err) == (2, True)


def test_a_figure_has_a_page_of_its_own(folder, tmp_path, capsys, monkeypatch) -> None:
    words = ("--from-results", str(folder), "--out", str(tmp_path), "--format", "html", "--scale", "paper")
    code, said, err = in_process(capsys, monkeypatch, "reproduce", "fig1", "fig2", *words)
    assert (code, err) == (0, "")
    assert f"{tmp_path / 'fig2.html'}: Asynchronous FedAvg" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig1.svg", "fig2.html"], "a timeline is a picture"
    html = (tmp_path / "fig2.html").read_text(encoding="utf-8")
    assert "Asynchronous FedAvg ends at a lower federated loss" in html
    assert "FedFix with a wait of one half ends lower" not in html, "which stands on figure 4"


def test_other_folders_are_none(tmp_path) -> None:
    assert not is_reproduction(tmp_path)
    for about in ({}, {KEY: "{"}, {KEY: "[]"}, {KEY: '{"study": 1, "paper": 2}'}):
        History(study(points=3).assign_attrs(about)).save(tmp_path / "a-b.nc")
        assert not is_reproduction(tmp_path)
