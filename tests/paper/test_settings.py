"""The settings of the paper's experiments: what its text says, and what the scripts of its authors do."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.paper import stages
from fedtempo.paper.drawing import caption
from fedtempo.paper.figure_file import FIGURES, SCALES, read_figure, replaced
from fedtempo.paper.stages import Place, load, path_of, run_part, second_stage, what_was_run
from fedtempo.simulation.history.history import History
from fedtempo.simulation.study_file import merged
from fedtempo.training.batches import batch_key, job_rows
from support import true_formats

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "reproduction"
OWN = """
title = "Digits"
kind = "weights"
says = "who wins"

[study]
until = 4
points = 3
seeds = [0, 1]
weights = ["identical", "time-based"]
schemes = [{ name = "async" }]
local = { steps = 2, batch_size = 8, lr = [0.1] }

[[parts]]
name = "few"
title = "Few labels"
study = { problem = { name = "digits", clients = 4, partition = "dirichlet:0.1" } }

[scales.quick]
study = { until = 2 }

[settings.authors]
study = { local = { momentum = 0.9 } }

[settings.authors.parts.few]
study = { problem = { partition = "dirichlet:0.5:authors", seed = 42 } }

[settings.authors.scales.quick]
study = { points = 5 }
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return str(path)


# -- the text's setting stays what it is


@pytest.mark.parametrize("name", ["fig2", "fig3", "fig4"])
def test_stored_results_are_of_the_studies_that_the_files_describe(name):
    """So a change of the files that would make stored results another study's is seen here."""
    for part in read_figure(name, "paper").parts:
        history, scout = load(path_of(RESULTS, part)), load(path_of(RESULTS, part, "scout"))
        study = part.study if scout is None else second_stage(part, scout)
        assert what_was_run(history)["study"] == study
        assert what_was_run(history)["paper"] == part.full
        assert what_was_run(history)["setting"] == "text"
        assert (part.scout is None) == (scout is None)
        if scout is not None:
            assert what_was_run(scout)["study"] == part.scout


def test_the_text_is_what_the_file_says_without_settings(own, tmp_path):
    bare = tmp_path / "bare.toml"
    bare.write_text(OWN[: OWN.index("[settings.authors]")])
    for scale in SCALES:
        assert read_figure(own, scale).parts[0].study == read_figure(str(bare), scale).parts[0].study
    for name in FIGURES:
        text = (ROOT / "src" / "fedtempo" / "paper" / "figures" / f"{name}.toml").read_text(encoding="utf-8")
        document = tomllib.loads(text)
        for part in read_figure(name, "full").parts:
            if part.figure == name:
                given = next(p for p in document["parts"] if p["name"] == part.name)
                assert part.study == replaced(document["study"], given["study"])
                local, problem = part.study["local"], part.study["problem"]
                assert not {"momentum", "clip"} & set(local)
                assert not {"pixels", "roles", "seed"} & set(problem)


def test_a_run_of_the_text_is_the_same_numbers_as_without_settings(own, tmp_path):
    bare = tmp_path / "own" / "own.toml"
    bare.parent.mkdir()
    bare.write_text(OWN[: OWN.index("[settings.authors]")])
    runs = [
        run_part(read_figure(file, "quick").parts[0], Place(tmp_path / where))
        for file, where in ((own, "a"), (str(bare), "b"))
    ]
    for name in runs[0].dataset:
        np.testing.assert_array_equal(runs[0].dataset[name].values, runs[1].dataset[name].values)


# -- the authors' setting


def test_the_authors_setting_is_laid_over_the_text(own):
    text, authors = (read_figure(own, "quick", s).parts[0] for s in ("text", "authors"))
    assert authors.study == replaced(
        text.study,
        {
            "points": 5,
            "local": {"momentum": 0.9},
            "problem": {"partition": "dirichlet:0.5:authors", "seed": 42},
        },
    )
    assert authors.full["until"] == 4
    assert authors.full["local"]["momentum"] == 0.9
    assert (text.setting, authors.setting) == ("text", "authors")
    assert authors.study["local"]["lr"] == [0.1]


def test_the_papers_figures_in_the_authors_setting():
    for scale in SCALES:
        for name in FIGURES:
            for part in read_figure(name, scale, "authors").parts:
                for table in (part.study, part.full, part.scout):
                    if table is None:
                        continue
                    problem, local = merged(table)["problem"], merged(table)["local"]
                    steps = local["steps"] if isinstance(local["steps"], list) else [local["steps"]]
                    if problem["name"] == "shakespeare":
                        assert problem["roles"] == "leaf"
                        assert scale == "quick" or problem["windows"] == "all"
                    else:
                        even = part.name == "mnist"
                        assert problem["partition"] == f"dirichlet:{'10000' if even else '0.1'}:authors"
                        assert problem["seed"] == 42
                        assert problem["pixels"] == {"mnist": "standardised", "cifar10": "authors"}[problem["name"]]
                        assert problem.get("model") == {"mnist": None, "cifar10": "scripts"}[problem["name"]]
                    assert local.get("momentum") == (0.9 if max(steps) > 1 else None)
                    assert local.get("clip") == (None if problem["name"] == "mnist" else 1e4)


def test_momentum_starts_from_zero_in_each_job_so_that_one_step_has_none():
    problem, times = ft.problems.digits(4), ft.FixedTimes([4, 2, 1, 1])
    run = partial(ft.simulate, problem, ft.AsyncFedAvg(), times, until=12, points=4, seeds=[0])
    for steps in (1, 5):
        plain, heavy = (
            run(local=ft.LocalSGD(steps=steps, lr=0.05, batch_size=8, momentum=m)).dataset["loss"].values
            for m in (None, 0.9)
        )
        assert (plain == heavy).all() == (steps == 1)


def _loop():
    path = ROOT / "benchmarks" / "authors_loop.py"
    spec = importlib.util.spec_from_file_location("authors_loop", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("steps", "weights"), [(1, "time-based"), (5, "time-based"), (5, "identical")])
def test_a_loop_in_numpy_trains_the_same_model(steps, weights, tmp_path):
    """benchmarks/authors_loop.py shares no code with the package; with --data-dir it does the same on MNIST."""
    loop, updates = _loop(), 300
    folder = true_formats.mnist(tmp_path, rows=(600, 200))
    from fedtempo.problems.data import load_mnist

    images = load_mnist(folder)
    x, y = loop.standardised(images.train_x), images.train_y.astype(np.int64)
    data = [(x[part], y[part]) for part in loop.with_replacement(y, 10, 0.1, 42)]
    taus = loop.times(10)
    updates, until = loop.ending(taus, updates)
    key = batch_key(0)
    drawn = jax.jit(lambda i, j, n: job_rows(key, i, j, n, steps=steps, batch_size=16, draw="uniform"))
    weight, bias = loop.train(
        data,
        taus,
        lambda i, j, n: np.asarray(drawn(i, j, np.int32(n))),
        updates=updates,
        lr=0.001,
        time_based=weights == "time-based",
    )
    problem = ft.problems.mnist(10, "dirichlet:0.1:authors", seed=42, pixels="standardised", data_dir=folder)
    history = ft.simulate(
        problem,
        ft.AsyncFedAvg(),
        ft.FixedTimes(taus),
        until=until,
        weights=[weights],
        local=ft.LocalSGD(steps=steps, lr=0.001, batch_size=16, momentum=0.9, clip=1e4),
        seeds=[0],
        points=2,
        step="paper",
    )
    model = history.model(scheme="AsyncFedAvg", weights=weights, seed=0).params
    np.testing.assert_allclose(model["weights"], weight, atol=1e-5 * np.abs(weight).max())
    np.testing.assert_allclose(model["bias"], bias, atol=1e-5 * np.abs(weight).max())
    assert loop.loss(weight, bias, data) == pytest.approx(float(history.final().item()), rel=1e-5)


def test_a_study_file_says_all_of_it(tmp_path, capsys, monkeypatch):
    """The block of docs/reproduction.md, on small files, is MNIST-shard of the figure."""
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    block = page.split("<!-- authors.toml -->\n```toml\n")[1].split("```")[0]
    said = merged(tomllib.loads(block))
    part = next(p for p in read_figure("fig2", "full", "authors").parts if p.name == "mnist-shard")
    assert said["problem"] == merged(part.study)["problem"]
    theirs = merged(read_figure("fig4", "full", "authors").parts[0].study)["local"]
    assert {**said["local"], "lr": 0} == {**theirs, "lr": 0}
    path, folder = tmp_path / "authors.toml", true_formats.mnist(tmp_path / "data", rows=(600, 200))
    path.write_text(block.replace("until = 1000", "until = 2\npoints = 2\nseeds = [0]"))
    words = ("run", str(path), "--data-dir", str(folder), "--out", str(tmp_path / "run"), "--quiet")
    code, out, err = in_process(capsys, monkeypatch, *words)
    assert (code, err) == (0, "")
    assert "mnist" in out


# -- side by side on disk, and the command


def test_results_of_two_settings_lie_in_one_folder_and_are_not_mixed(own, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    for setting in ("text", "authors"):
        words = ("reproduce", own, "--setting", setting, "--out", str(out), "--quiet")
        code, said, err = in_process(capsys, monkeypatch, *words)
        assert (code, err) == (0, "")
        assert ("Setting: that of the authors' scripts." in said) == (setting == "authors")
    assert sorted(p.name for p in out.iterdir()) == [
        "own-few.authors.nc", "own-few.nc", "own.authors.svg", "own.svg", "studies",
    ]  # fmt: skip
    text, authors = (History.load(out / name) for name in ("own-few.nc", "own-few.authors.nc"))
    assert [what_was_run(h)["setting"] for h in (text, authors)] == ["text", "authors"]
    assert (text.dataset.sizes["time"], authors.dataset.sizes["time"]) == (3, 5)
    figure = read_figure(own, "quick", "authors")
    said = caption(figure, {"few": authors})
    assert said.startswith("The paper: who wins\nSetting: that of the authors' scripts. T = 2 (in full: 4)")
    monkeypatch.setattr(stages, "_run", None)
    run_part(figure.parts[0], Place(out))  # is there
    (out / "own-few.other.nc").write_bytes((out / "own-few.authors.nc").read_bytes())  # the same study
    with pytest.raises(ResultsConflict, match="contains results of other settings"):
        run_part(replace(figure.parts[0], setting="other"), Place(out))
    (out / "own-few.nc").rename(out / "own-few.authors.nc")
    with pytest.raises(ResultsConflict, match="contains results of other settings"):
        run_part(figure.parts[0], Place(out))


def test_the_command_refuses_a_setting_that_is_not_there(own, tmp_path, capsys, monkeypatch):
    def refused(*words: str) -> tuple[int, str]:
        code, out, err = in_process(capsys, monkeypatch, "reproduce", *words, "--out", str(tmp_path / "out"))
        assert out == ""
        assert err.count("\n") == 1
        return code, err

    for what in ("fig1", "fig2", "claims", "all"):
        found = refused(what, "--setting", "author")
        assert found == (2, "fedtempo: --setting: 'author' is not known; use one of text, authors\n")
    assert refused(own, "--setting", "mine")[1] == (
        "fedtempo: setting: 'mine' is not known for own; use one of text, authors\n"
    )
    bare = tmp_path / "bare.toml"
    bare.write_text(OWN[: OWN.index("[settings.authors]")])
    assert "is not known for bare; use one of text" in refused(str(bare), "--setting", "authors")[1]
    assert refused(own, "--minutes", "0") == (
        2,
        "fedtempo: --minutes: 0 is not above zero; give how long it may run, as 9\n",
    )
    code, err = refused(own, "--resume")
    assert code == 3
    assert "--resume: there is no folder" in err
    assert "use one of text, authors" not in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[settings.authors.parts.few]", "[settings.authors.parts.fwe]"), "'fwe' does not exist; did you mean few?"),
        (("[settings.authors]\nstudy", "[settings.authors]\nstudies"), "the key 'studies' does not exist"),
        (("[settings.authors.scales.quick]", "[settings.text]"), "a setting cannot be called 'text'"),
        (("[settings.authors.scales.quick]", '[settings."../x"]'), "a setting cannot be called '../x'"),
        (("[settings.authors]\nstudy = { local = { momentum = 0.9 } }", "[settings]\nauthors = 1"), "1 is not a table"),
    ],
)
def test_a_file_with_a_mistake_in_its_settings_is_refused(change, said, tmp_path):
    path = tmp_path / "wrong.toml"
    text = OWN.replace(*change)
    if "authors = 1" in change[1]:
        text = text[: text.index("[settings.authors.parts")]
    path.write_text(text)
    with pytest.raises(InputError, match=said.replace("?", r"\?").replace("..", r"\.\.")):
        read_figure(str(path), "quick")


def test_minutes_stop_and_the_same_command_goes_on(own, tmp_path, capsys, monkeypatch):
    out, clock = tmp_path / "out", iter(range(10**9))
    words = ("reproduce", own, "--scale", "full", "--setting", "authors", "--out", str(out))
    whole = run_part(read_figure(own, "full", "authors").parts[0], Place(tmp_path / "whole"))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    code, said, err = in_process(capsys, monkeypatch, *words, "--minutes", "0.001")
    assert (code, said) == (130, "")
    assert "stopped, and everything so far is kept in" in err
    assert not (out / "own-few.authors.nc").exists()
    monkeypatch.undo()
    code, _, _ = in_process(capsys, monkeypatch, *words, "--resume", "--quiet")
    assert code == 0
    again = History.load(out / "own-few.authors.nc")
    np.testing.assert_array_equal(again.dataset["loss"].values, whole.dataset["loss"].values)


def test_figures_that_show_parts_of_others_show_them_in_the_setting():
    (part,) = read_figure("fig5", "paper", "authors").parts
    theirs = next(p for p in read_figure("fig4", "paper", "authors").parts if p.name == "cifar10-20-F80")
    assert (part.scout, part.setting, part.only_scout) == (theirs.scout, "authors", True)
    assert path_of(Path(), part, "scout").name == "fig4-cifar10-20-F80.authors.scout.nc"


def test_claims_of_a_setting_are_judged_from_its_results_alone(tmp_path, capsys, monkeypatch):
    words = ("reproduce", "claims", "--from-results", str(RESULTS), "--out", str(tmp_path), "--setting", "authors")
    code, _, err = in_process(capsys, monkeypatch, *words)
    if any(RESULTS.glob("*.authors*.nc")):
        assert code == 0
        assert "## The authors' scripts" in (tmp_path / "claims.md").read_text(encoding="utf-8")
    else:
        assert code == 3
        assert "there are no results to judge; fedtempo reproduce all --scale quick --setting authors" in err
