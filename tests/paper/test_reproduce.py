"""The paper's figures from their files: settings, two stages, results that are kept, the command."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from cli.test_cli import in_process
from fedtempo.errors import FedtempoError, ResultsConflict
from fedtempo.paper import stages
from fedtempo.paper.drawing import note
from fedtempo.paper.figure_file import FIGURES, SCALES, read_figure, replaced
from fedtempo.paper.stages import (
    Place,
    at_own_rates,
    at_shared_rate,
    kept_rates,
    load,
    path_of,
    run_part,
    second_stage,
    shared_rate,
    what_was_run,
)
from fedtempo.simulation.history.history import History
from fedtempo.simulation.study_file import merged
from support import true_formats

RESULTS = Path(__file__).parents[2] / "docs" / "reproduction"
SMALL = """
title = "Weights on digits"
place = "nowhere"
kind = "weights"

[study]
until = 20
points = 5
seeds = [0, 1, 2, 3, 4]
weights = ["identical", "time-based"]
schemes = [{ name = "async" }]
local = { steps = 1, batch_size = 8, lr = [0.01, 0.1, 0.3, 1.0] }

[[parts]]
name = "few"
title = "Few labels"
study = { problem = { name = "digits", clients = 4, partition = "dirichlet:0.1" } }

[[parts]]
name = "even"
title = "Even"
study = { problem = { name = "digits", clients = 4, partition = "iid" } }

[scales.quick]
study = { until = 4, seeds = [0, 1], points = 3 }

[scales.quick.parts.even]
study = { local = { lr = [0.1] } }

[scales.paper]
keep = 1
study = { until = 8 }
scout = { until = 2, seeds = [0, 1], points = 3 }
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def test_every_figure_of_the_paper_can_be_read_at_every_scale():
    for name in FIGURES:
        for scale in SCALES:
            figure = read_figure(name, scale)
            assert figure.place
            assert figure.title
            for part in figure.parts:
                for table in (part.study, part.full, part.scout):
                    if table is not None:
                        whole = merged(
                            {k: v for k, v in table.items() if k != "problem"} | {"problem": table["problem"]}
                        )
                        assert whole["local"]["batch_size"]
                if scale == "full":
                    assert part.study == part.full
                    assert part.scout is None


def test_a_study_on_stored_data_takes_the_folder_too(tmp_path, capsys, monkeypatch):
    data = true_formats.mnist(tmp_path / "data", rows=(60, 20))
    words = f"run --problem mnist --clients 6 --until 2 --lr 0.1 --seeds 1 --points 2 --out {tmp_path / 'x'} --quiet"
    code, out, err = in_process(capsys, monkeypatch, f"{words} --data-dir {data}")
    assert (code, err) == (0, "")
    assert "mnist" in out
    code, _, err = in_process(capsys, monkeypatch, f"{words} --overwrite --data-dir {tmp_path}")
    assert code == 3
    assert "fedtempo data get mnist" in err


def test_the_full_scale_is_the_papers_setting():
    parts = {p.name: p.study for p in read_figure("fig2", "full").parts}
    assert list(parts) == ["mnist", "mnist-shard", "cifar10", "shakespeare"]
    assert {n: (s["until"], len(s["local"]["lr"])) for n, s in parts.items()} == {
        "mnist": (200000, 12),
        "mnist-shard": (200000, 12),
        "cifar10": (100000, 12),
        "shakespeare": (100000, 14),
    }
    for study in parts.values():
        assert study["times"] == {"times": "F80"}
        assert study["problem"]["clients"] == 10
        assert (study["local"]["steps"], study["local"]["batch_size"], len(study["seeds"])) == (1, 64, 5)
    fig3 = read_figure("fig3", "full").parts[0].study
    assert fig3["local"]["steps"] == list(range(1, 26))
    assert (fig3["until"], fig3["measure_from"], fig3["local"]["lr"]) == (25000, 23750, [0.0005, 0.005])
    fig4 = read_figure("fig4", "full").parts
    assert [p.name for p in fig4] == [
        f"{d}-{m}-{f}" for d in ("cifar10", "shakespeare") for m in (20, 50) for f in ("F0", "F80")
    ]
    assert {(p.study["until"], p.study["local"]["steps"]) for p in fig4} == {(5000, 10)}
    assert [s["name"] for s in fig4[0].study["schemes"]] == ["fedavg", "async", "fedfix", "fedbuff"]


def test_the_example_of_an_own_figure_runs(tmp_path, capsys, monkeypatch):
    path = Path(__file__).parents[2] / "examples" / "own_figure.toml"
    code, said, err = in_process(capsys, monkeypatch, "reproduce", str(path), "--out", str(tmp_path), "--quiet")
    assert (code, err) == (0, "")
    assert "T = 100 (in full: 2 000), 3 seeds (in full: 5), the best 2 of 6 rates from 0.01 to 0.5" in said
    assert "after a first stage of T = 20, 1 seed" in said


def test_the_rates_of_the_appendix_are_the_first_stage_of_figure_4():
    for name, part in (("fig5", "cifar10-20-F80"), ("fig6", "cifar10-50-F80"), ("fig7", "shakespeare-20-F80")):
        (found,) = read_figure(name, "paper").parts
        theirs = next(p for p in read_figure("fig4", "paper").parts if p.name == part)
        assert (found.figure, found.scout, found.only_scout) == ("fig4", theirs.scout, True)


def test_scales_replace_what_they_name_and_nothing_else(small):
    quick = {p.name: p.study for p in read_figure(small, "quick").parts}
    assert quick["few"]["local"]["lr"] == [0.01, 0.1, 0.3, 1.0]
    assert quick["even"]["local"] == {"steps": 1, "batch_size": 8, "lr": [0.1]}
    assert {s["until"] for s in quick.values()} == {4}
    paper = read_figure(small, "paper").parts[0]
    assert (paper.scout["until"], paper.study["until"], paper.full["until"], paper.keep) == (2, 8, 20, 1)
    assert replaced({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[study]", "[studdy]"), "the key 'studdy' does not exist; did you mean study?"),
        (('kind = "weights"', 'kind = "pie"'), "kind 'pie' is not known; use one of timeline, weights"),
        (("[scales.quick]", "[scales.tiny]"), "the key 'tiny' does not exist"),
        (("keep = 1", "kept = 1"), "the key 'kept' does not exist; did you mean keep?"),
        (('name = "few"\n', ""), "a part has no name"),
        (('title = "Few labels"', 'of = "fig4"'), "fig4 has no part few; it has cifar10-20-F0"),
        (("[study]", "[study"), "not TOML"),
        (("keep = 1", 'keep = "x"'), "keep: 'x' is not a number of learning rates"),
        (('name = "few"', 'name = "../few"'), "a part has no name"),
        (('name = "few"', 'name = "even"'), "two parts have one name"),
        (("scout = { until = 2, seeds = [0, 1], points = 3 }", "scout = 1"), "scout at scale paper: 1 is not a table"),
        (('problem = { name = "digits", clients = 4, partition = "iid" }', 'problem = "digits"'), "is not a table"),
        (
            ('problem = { name = "digits", clients = 4, partition = "iid" }', "measure_from = 2020-01-01"),
            "JSON serializable",
        ),
        (('kind = "weights"', 'kind = "timeline"'), "a timeline has no parts"),
        (('title = "Few labels"', 'of = "wrong.toml"'), "no such figure file|is a part of itself"),
    ],
)
def test_a_figure_file_with_a_mistake_is_refused(change, said, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace(*change))
    with pytest.raises(FedtempoError, match=said.replace("?", r"\?")):
        read_figure(str(path), "paper")


def made(losses, schemes=("FedAvg",), weights=("identical", "time-based"), rates=(0.1, 0.2, 0.5)):
    """A history whose final loss is `losses` [schemes, weights, rates]."""
    values = np.broadcast_to(np.asarray(losses, float)[..., None, None], (len(schemes), len(weights), len(rates), 2, 3))
    dims = ("scheme", "weights", "local_lr", "seed", "time")
    coords = {
        "scheme": list(schemes),
        "weights": list(weights),
        "local_lr": list(rates),
        "seed": [0, 1],
        "time": [0.0, 1, 2],
    }
    gone = np.where(np.isnan(values[..., -1]), 1.0, np.nan)
    return History(xr.Dataset({"loss": (dims, values), "diverged_at": (dims[:-1], gone)}, coords=coords))


def test_the_best_rates_of_identical_weights_go_on_and_the_best_of_the_others():
    scout = made([[[3, 1, 2], [1, 2, 3]]])
    assert kept_rates(scout, 1) == {"FedAvg": [0.1, 0.2]}
    assert kept_rates(scout, 2) == {"FedAvg": [0.1, 0.2, 0.5]}
    assert kept_rates(made([[[3, 1, np.nan], [3, 2, np.nan]]]), 2) == {"FedAvg": [0.1, 0.2]}
    two = made([[[1, 2, 3]], [[3, 2, 1]]], schemes=("FedAvg", "AsyncFedAvg"), weights=("time-based",))
    assert kept_rates(two, 1) == {"FedAvg": [0.1], "AsyncFedAvg": [0.5]}


def test_the_shared_rate_is_tuned_on_identical_weights():
    history = made([[[3, 1, 2], [1, 2, 3]]])
    assert shared_rate(history) == 0.2
    assert at_shared_rate(history).final().isel(seed=0).values.tolist() == [[1, 2]]
    assert at_own_rates(history).final().isel(seed=0).values.tolist() == [[1, 1]]
    one = at_shared_rate(history)
    assert shared_rate(one) is None
    assert at_shared_rate(one) is one


def test_two_stages_and_what_is_there_is_not_run_again(small, tmp_path, monkeypatch):
    part = read_figure(small, "paper").parts[0]
    place = Place(tmp_path / "out")
    run = run_part(part, place)
    scout = load(path_of(place.folder, part, "scout"))
    assert scout.dataset.sizes["local_lr"] == 4
    assert scout.dataset["time"].values[-1] == 2
    kept = kept_rates(scout, 1)["AsyncFedAvg"]
    assert run.dataset["local_lr"].values.tolist() == kept
    assert (run.dataset["time"].values[-1], run.dataset.sizes["seed"]) == (8, 5)
    assert second_stage(part, scout)["local"]["lr"] == kept
    assert not [name for name in run.dataset if str(name).startswith("parameter:")]
    assert run.dataset["loss"].dtype == np.float32
    assert what_was_run(run)["paper"]["until"] == 20
    monkeypatch.setattr(stages, "_run", None)
    again = run_part(part, place)
    xr.testing.assert_identical(again.dataset, run.dataset)
    only = run_part(replace(part, only_scout=True), place)
    xr.testing.assert_identical(only.dataset, scout.dataset)
    longer = replace(part, study={**part.study, "until": 9})
    with pytest.raises(ResultsConflict, match="contains results of other settings; choose another --out"):
        run_part(longer, place)


def test_schemes_go_on_at_rates_of_their_own(small, tmp_path):
    part = read_figure(small, "paper").parts[1]
    schemes = [{"name": "fedavg"}, {"name": "async"}]
    part = replace(part, study={**part.study, "schemes": schemes, "seeds": [0]})
    scout = made([[[1, 2, 3]], [[3, 2, 1]]], schemes=("FedAvg", "AsyncFedAvg"), weights=("time-based",))
    study = second_stage(part, scout)
    assert study["local"]["lr"] == [0.1, 0.5]
    history = stages._run(study, Place(tmp_path), tmp_path / "two.nc")
    assert history.finished
    found = history.dataset["loss"].isel(time=-1, seed=0, weights=0).notnull()
    assert found.values.tolist() == [[True, False], [False, True]]
    assert not history.unfinished.any()
    assert history.best().dataset["local_lr"].isel(weights=0).values.tolist() == [0.1, 0.5]


def test_the_note_says_what_was_run_and_what_the_paper_has(small, tmp_path):
    figure = read_figure(small, "quick")
    place = Place(tmp_path / "out")
    results = {part.name: run_part(part, place) for part in figure.parts}
    words = note(figure, results)
    assert "Few labels: T = 4 (in full: 20), 2 seeds (in full: 5)" in words
    assert "Even: T = 4 (in full: 20), 2 seeds (in full: 5), rates 0.1 of 4" in words


def test_the_command_runs_draws_and_draws_again_from_results(small, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    code, said, err = in_process(capsys, monkeypatch, "reproduce", small, "--part", "few", "--out", str(out), "--quiet")
    assert (code, err) == (0, "")
    assert f"{out / 'small.svg'}: Weights on digits (nowhere). T = 4 (in full: 20)" in said
    assert (out / "small.svg").read_text().startswith("<?xml")
    assert sorted(p.name for p in out.iterdir()) == ["small-few.nc", "small.svg", "studies"]
    again = tmp_path / "again"
    code, said, err = in_process(
        capsys, monkeypatch, "reproduce", small, "--from-results", str(out), "--out", str(again), "--format", "png"
    )
    assert (code, err) == (0, "")
    assert [p.name for p in again.iterdir()] == ["small.png"]
    words = ("reproduce", small, "--from-results", str(out), "--out", str(again), "--format", "html")
    code, said, err = in_process(capsys, monkeypatch, *words)
    assert (code, err) == (0, "")
    html = (again / "small.html").read_text(encoding="utf-8")
    assert "<h1>Weights on digits (quick)</h1>" in html
    assert "Not run: Even." in html
    assert "fedtempo reproduce small.toml --scale quick" in html


def test_the_command_says_what_is_wrong(small, tmp_path, capsys, monkeypatch):
    def refused(*words: str) -> tuple[int, str]:
        code, out, err = in_process(capsys, monkeypatch, "reproduce", *words, "--out", str(tmp_path / "out"))
        assert out == ""
        assert err.count("\n") == 1
        return code, err

    assert refused("fig8")[0] == 2
    assert "'fig8' is not a figure; did you mean" in refused("fig8")[1]
    assert refused("fig2", "--scale", "huge") == (
        2,
        "fedtempo: scale: 'huge' is not known; use one of quick, paper, full\n",
    )
    assert refused("fig2", "--format", "gif")[0] == 2
    code, err = refused("fig2", "--part", "mnits")
    assert code == 2
    assert "there is no part 'mnits'; did you mean mnist?" in err
    code, err = refused("fig2", "--data-dir", str(tmp_path))
    assert code == 3
    assert "fedtempo data get mnist" in err
    assert "--data-dir" in err
    assert "is not a folder" in refused("claims", "--from-results", str(tmp_path / "typo"))[1]
    assert "there are no results to judge" in refused("claims", "--from-results", str(tmp_path))[1]
    assert "name a figure too" in refused("claims", "--part", "mnist")[1]
    code, err = refused("fig2", "--from-results", str(tmp_path))
    assert code == 3
    assert "there are no results of fig2" in err
    assert refused(str(tmp_path / "none.toml"))[0] == 3
    assert not (tmp_path / "out" / "studies").exists()


def test_figure_1_needs_no_data(tmp_path, capsys, monkeypatch):
    code, said, _ = in_process(capsys, monkeypatch, "reproduce", "fig1", "--out", str(tmp_path))
    assert code == 0
    assert "Figure 1" in said
    assert (tmp_path / "fig1.svg").is_file()


def test_claims_are_judged_from_results_on_disk(tmp_path, capsys, monkeypatch):
    code, said, _ = in_process(
        capsys, monkeypatch, "reproduce", "claims", "--from-results", str(RESULTS), "--out", str(tmp_path)
    )
    assert code == 0
    assert "22 claims:" in said
    assert (tmp_path / "claims.md").read_text() == (RESULTS.parent / "claims.md").read_text()


def test_the_rates_of_the_appendix_are_read_back_at_every_scale(small, tmp_path, capsys, monkeypatch):
    other = tmp_path / "rates.toml"
    other.write_text(f'title = "Rates"\nkind = "rates"\n[[parts]]\nname = "few"\nof = "{small}"\n')
    for scale in ("quick", "paper"):
        out = str(tmp_path / scale)
        code, said, _ = in_process(
            capsys, monkeypatch, "reproduce", str(other), "--scale", scale, "--out", out, "--quiet"
        )
        assert code == 0
        assert ("T = 2" if scale == "paper" else "T = 4") in said
        again = in_process(
            capsys, monkeypatch, "reproduce", str(other), "--from-results", out, "--out", str(tmp_path / "drawn")
        )
        assert again[0] == 0
        assert again[1].split(". ", 1)[1] == said.split(". ", 1)[1]


def test_overwriting_replaces_another_setting_only_and_can_be_stopped(small, tmp_path):
    part = read_figure(small, "quick").parts[0]
    place = Place(tmp_path / "out", overwrite=True)
    run = run_part(part, place)
    written = path_of(place.folder, part).stat().st_mtime_ns
    run_part(part, place)
    assert path_of(place.folder, part).stat().st_mtime_ns == written  # the same setting is not run again
    longer = replace(part, study={**part.study, "until": 40, "points": 9})

    def stop(progress):
        if progress.done > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_part(longer, replace(place, tell=lambda label: stop))
    began = []
    again = run_part(longer, replace(place, overwrite=False, tell=lambda label: lambda p: began.append(p.began)))
    assert began[0] > 0
    assert again.dataset["time"].values[-1] == 40
    assert run.dataset["time"].values[-1] == 4


def test_a_second_stage_on_other_data_is_refused(small, tmp_path):
    part = read_figure(small, "paper").parts[0]
    place = Place(tmp_path / "out")
    run_part(replace(part, only_scout=True), place)
    other = {**part.study, "problem": {**part.study["problem"], "partition": "iid"}}
    with pytest.raises(ResultsConflict, match="its first stage was run on other data"):
        run_part(replace(part, study=other), place)


def test_figure_2_on_small_files_in_the_true_formats(tmp_path, capsys, monkeypatch):
    data = tmp_path / "data"
    true_formats.mnist(data, rows=(600, 200))
    monkeypatch.setattr(
        stages, "merged", lambda table: merged(replaced(table, {"until": 4, "points": 3, "seeds": [0, 1]}))
    )
    words = ("reproduce", "fig2", "--part", "mnist", "--part", "mnist-shard", "--data-dir", str(data))
    code, _, err = in_process(capsys, monkeypatch, *words, "--out", str(tmp_path / "out"), "--quiet")
    assert (code, err) == (0, "")
    history = History.load(tmp_path / "out" / "fig2-mnist-shard.nc")
    assert history.dataset.sizes["local_lr"] == 6
    assert "data" not in json.loads(history.attrs["problem"])["arguments"]
    assert str(tmp_path) not in str(history.attrs)


def test_the_files_are_part_of_the_package():
    for name in FIGURES:
        text = (files("fedtempo.paper") / "figures" / f"{name}.toml").read_text()
        assert tomllib.loads(text)["title"]
