"""Rates that are added until the best one is inside, and studies that are run beside a figure's own for the claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.paper import stages
from fedtempo.paper.claims_runs import Part
from fedtempo.paper.drawing import note
from fedtempo.paper.figure_file import FIGURES, OWN_FIGURES, read_figure
from fedtempo.paper.stages import Place, at_rate_of, load, missing_rates, path_of, run_part, what_was_run
from fedtempo.problems.redealt import EACH, EachSeed, Redealt
from fedtempo.simulation.history.history import History
from paper.test_reproduce import made
from support import true_formats

RATES = (0.01, 0.02, 0.05)
LOST = np.nan


def one(*losses, rates=RATES, schemes=("FedAvg",), rules=("identical", "time-based")):
    """A history whose losses at the end are those, of every weight rule; not a number where a run diverged."""
    return made([[losses] * len(rules)] * len(schemes), schemes, rules, rates)


# -- which rates are missing


@pytest.mark.parametrize(
    ("losses", "missing"),
    [
        ((3, 1, 2), []),
        ((3, 2, 1), [0.1, 0.2]),
        ((1, 2, 3), [0.002, 0.005]),
        ((LOST, 1, 2), []),  # a neighbour that diverged is a neighbour
        ((3, 1, LOST), []),
        ((LOST, 1, LOST), []),
        ((LOST, LOST, 1), [0.1, 0.2]),
        ((1, LOST, LOST), [0.002, 0.005]),
        ((LOST, LOST, LOST), []),
    ],
)
def test_two_rates_beyond_a_best_one_that_is_the_last_on_its_side(losses, missing):
    assert missing_rates(one(*losses), RATES) == ({"FedAvg": missing} if missing else {})


def test_a_rate_alone_gets_two_on_each_side():
    assert missing_rates(one(1, rates=(0.1,)).select(local_lr=[0.1]), [0.1]) == {"FedAvg": [0.02, 0.05, 0.2, 0.5]}


def test_the_rates_of_the_grid_come_first():
    """The grid is the paper's; a rate of it beyond which another one was run is asked for alone."""
    assert missing_rates(one(3, 2, 1), [*RATES, 0.3, 0.7, 2.0]) == {"FedAvg": [0.3, 0.7]}
    assert missing_rates(one(3, 2, 1), [*RATES, 0.07]) == {"FedAvg": [0.07, 0.1]}
    assert missing_rates(one(1, 2, rates=(0.01, 0.05)), RATES) == {"FedAvg": [0.002, 0.005, 0.02]}


def test_rates_that_diverged_in_the_first_stage_are_neighbours():
    first = one(3, 2, 1, LOST, rates=(*RATES, 0.1))
    assert missing_rates(one(3, 2, 1), RATES, first) == {}
    assert missing_rates(one(3, 2, 1), RATES, one(3, 2, 1, 0.5, rates=(*RATES, 0.1))) == {"FedAvg": [0.1, 0.2]}
    assert missing_rates(one(3, 2, 1), RATES, one(3, 2, 1, LOST, rates=(*RATES, 0.07))) == {}


def test_rates_are_ranked_by_identical_weights_and_for_each_scheme():
    history = made([[[3, 1, 2], [3, 2, 1]]], rates=RATES)
    assert missing_rates(history, RATES) == {}
    assert missing_rates(history.select(weights=["time-based"]), RATES) == {"FedAvg": [0.1, 0.2]}
    two = made([[[3, 2, 1]], [[1, 2, 3]]], ("FedAvg", "AsyncFedAvg"), ("time-based",), RATES)
    assert missing_rates(two, RATES) == {"FedAvg": [0.1, 0.2], "AsyncFedAvg": [0.002, 0.005]}


def test_rates_that_a_scheme_was_not_run_at_are_no_neighbours():
    two = made([[[3, 1, 2]], [[1, 2, 3]]], ("FedAvg", "AsyncFedAvg"), ("time-based",), RATES)
    not_run = two.dataset.copy(deep=True)
    for name in ("loss", "diverged_at"):
        not_run[name].loc[{"scheme": "FedAvg", "local_lr": 0.05}] = np.nan
    assert missing_rates(History(not_run), RATES)["FedAvg"] == [0.05, 0.1]


def test_a_study_of_one_rate_without_a_grid_is_left_alone():
    history = one(1, rates=(0.1,))
    assert missing_rates(History(history.dataset.isel(local_lr=0)), [0.1]) == {}


# -- a study that is widened

WIDE = """
kind = "schemes"

[study]
until = 4
points = 3
seeds = [0, 1]
weights = ["time-based"]
schemes = [{ name = "fedavg" }, { name = "async" }]
problem = { name = "digits", clients = 4, partition = "dirichlet:0.1" }
local = { steps = 1, batch_size = 8, lr = [0.001, 0.002] }

[[parts]]
name = "few"

[scales.paper]
widen = 2

[scales.quick]
study = { until = 2 }

[scales.quick.runs.partitions]
seeds = [3, 5]
problem = { seed = "each" }

[scales.quick.parts.few.runs.beginning]
until = 1
points = 2
"""


@pytest.fixture
def wide(tmp_path):
    path = tmp_path / "wide.toml"
    path.write_text(WIDE)
    return str(path)


def run_at(history, scheme):
    """The rates at which a scheme was run."""
    there = history.dataset["loss"].sel(scheme=scheme).notnull().any(["seed", "time", "weights"])
    return there["local_lr"].values[there.values].tolist()


@pytest.fixture(scope="module")
def widened(tmp_path_factory):
    """Small rates, of which the largest is the best: widened twice."""
    folder = tmp_path_factory.mktemp("wide")
    (folder / "wide.toml").write_text(WIDE)
    figure = read_figure(str(folder / "wide.toml"), "paper")
    return figure, folder, run_part(figure.parts[0], Place(folder / "out"))


def test_a_study_is_widened_as_often_as_its_file_says(widened):
    figure, folder, history = widened
    for scheme in ("FedAvg", "AsyncFedAvg"):
        assert run_at(history, scheme) == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05]
    assert what_was_run(history)["widened"] == [
        {"FedAvg": [0.005, 0.01], "AsyncFedAvg": [0.005, 0.01]},
        {"FedAvg": [0.02, 0.05], "AsyncFedAvg": [0.02, 0.05]},
    ]
    assert what_was_run(history)["study"]["local"]["lr"] == [0.001, 0.002]
    assert history.finished
    assert sorted(p.name for p in (folder / "out" / "studies").iterdir()) == [
        "wide-few",
        "wide-few.more1",
        "wide-few.more2",
    ]
    assert "then rates beside a best one that was the last, up to 0.05" in note(figure, {"few": history})


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ([0.0002, 0.0005], ", down to 0.0002"),
        ([0.0005, 0.005, 0.01], ", down to 0.0005, up to 0.01"),
        ([0.0015], ""),
    ],
)
def test_a_caption_says_how_far_rates_were_widened(added, said, widened):
    figure, _, history = widened
    about = {**what_was_run(history), "widened": [{"FedAvg": added[:1]}, {"AsyncFedAvg": added}]}
    told = note(figure, {"few": History(history.dataset.assign_attrs(reproduction=json.dumps(about)))})
    assert f"then rates beside a best one that was the last{said}. On " in told


@pytest.mark.slow
def test_what_was_added_is_what_a_study_of_all_rates_has(widened):
    figure, folder, history = widened
    study = {**figure.parts[0].study, "local": {"steps": 1, "batch_size": 8, "lr": [0.001, 0.01, 0.05]}}
    whole = run_part(replace(figure.parts[0], study=study, widen=0), Place(folder / "whole"))
    found = history.dataset["loss"].sel(local_lr=[0.001, 0.01, 0.05]).transpose(*whole.dataset["loss"].dims)
    np.testing.assert_allclose(found, whole.dataset["loss"], rtol=1e-5)


def test_what_was_widened_is_not_run_again(widened, monkeypatch):
    figure, folder, history = widened
    monkeypatch.setattr(stages, "_run", None)
    again = run_part(figure.parts[0], Place(folder / "out"))
    xr.testing.assert_identical(again.dataset, history.dataset)


def test_a_widened_study_that_was_stopped_goes_on(widened, tmp_path):
    figure, _, history = widened
    part, done = figure.parts[0], []

    def told(label):
        def stop(progress):
            raise KeyboardInterrupt

        done.append(label)
        return stop if label == "wide-few.more2" and done.count(label) == 1 else None

    with pytest.raises(KeyboardInterrupt):
        run_part(part, Place(tmp_path, tell=told))
    kept = load(path_of(tmp_path, part))
    assert run_at(kept, "FedAvg") == [0.001, 0.002, 0.005, 0.01]
    again = run_part(part, Place(tmp_path, tell=told))
    assert done == ["wide-few", "wide-few.more1", "wide-few.more2", "wide-few.more2"]
    np.testing.assert_array_equal(again.dataset["loss"].values, history.dataset["loss"].values)


def stub(monkeypatch, level):
    """Studies that are not trained: `level(scheme, rate)` is the loss at the end. The rates that were asked for."""
    asked = []

    def run(table, place, path, after=None):
        labels = {"fedavg": "FedAvg", "async": "AsyncFedAvg"}
        schemes, rates = [labels[spec["name"]] for spec in table["schemes"]], table["local"]["lr"]
        asked.append({scheme: table.get("rates", {}).get(scheme, rates) for scheme in schemes})
        history = made([[[level(s, r) for r in rates]] for s in schemes], schemes, ("time-based",), rates).dataset.copy(
            deep=True
        )
        for scheme in schemes:
            for rate in set(rates) - set(asked[-1][scheme]):
                for name in ("loss", "diverged_at"):
                    history[name].loc[{"scheme": scheme, "local_lr": rate}] = np.nan
        return History(history.assign_attrs(finished=1, configuration="{}"))

    monkeypatch.setattr(stages, "_run", run)
    return asked


def merged_only(histories):
    return History(xr.merge([h.dataset for h in histories], compat="no_conflicts", join="outer"))


@pytest.mark.parametrize("together", [False, True])
def test_rates_are_added_for_those_that_need_them_or_for_all(together, wide, tmp_path, monkeypatch):
    """FedAvg's best is inside; that of asynchronous FedAvg is at the top, and diverges beyond."""
    best = {"FedAvg": 0.02, "AsyncFedAvg": 0.05}
    asked = stub(monkeypatch, lambda s, r: np.nan if r > 0.1 else 1 + abs(np.log(r / best[s])))
    monkeypatch.setattr(stages, "merge", merged_only)
    part = read_figure(wide, "paper").parts[0]
    lr = {"steps": 1, "batch_size": 8, "lr": list(RATES)}
    part = replace(part, together=together, study={**part.study, "local": lr})
    history = run_part(part, Place(tmp_path))
    beyond = {"FedAvg": [0.1, 0.2], "AsyncFedAvg": [0.1, 0.2]} if together else {"AsyncFedAvg": [0.1, 0.2]}
    assert asked == [{"FedAvg": list(RATES), "AsyncFedAvg": list(RATES)}, beyond]
    assert run_at(history, "FedAvg") == [*RATES, *([0.1] if together else [])]


def test_together_leaves_out_what_a_scheme_has(wide, tmp_path, monkeypatch):
    """Asynchronous FedAvg is best at the bottom, FedAvg at the top: both get what either needs."""
    best = {"FedAvg": 0.05, "AsyncFedAvg": 0.01}
    asked = stub(monkeypatch, lambda s, r: 1 + abs(np.log(r / best[s])))
    monkeypatch.setattr(stages, "merge", merged_only)
    part = read_figure(wide, "paper").parts[0]
    part = replace(part, together=True, study={**part.study, "local": {"lr": list(RATES)}})
    run_part(part, Place(tmp_path))
    every = [0.001, 0.002, 0.1, 0.2]  # the file has the smaller ones
    assert asked[1:] == [{"FedAvg": every, "AsyncFedAvg": every}]


def test_together_leaves_out_what_a_scheme_was_run_at(wide, tmp_path, monkeypatch):
    best = {"FedAvg": 0.05, "AsyncFedAvg": 0.05}
    asked = stub(monkeypatch, lambda s, r: 1 + abs(np.log(r / best[s])))
    monkeypatch.setattr(stages, "merge", merged_only)
    part = read_figure(wide, "paper").parts[0]
    rates = {"FedAvg": [0.02, 0.05, 0.1], "AsyncFedAvg": list(RATES)}
    study = {**part.study, "local": {"lr": [*RATES, 0.1]}, "rates": rates}
    run_part(replace(part, together=True, widen=1, study=study), Place(tmp_path / "together"))
    assert asked[1:] == [{"FedAvg": [0.2], "AsyncFedAvg": [0.1, 0.2]}]
    asked.clear()
    run_part(replace(part, widen=1, study=study), Place(tmp_path / "each"))
    assert asked[1:] == [{"AsyncFedAvg": [0.1, 0.2]}]


def test_rates_that_a_file_says_by_scheme_are_replaced(wide, tmp_path):
    """A study of the schemes that are left says nothing of the others."""
    part = read_figure(wide, "paper").parts[0]
    rates = {"FedAvg": [0.001], "AsyncFedAvg": [0.002]}
    study = stages._at_rates({**part.study, "rates": rates}, {"FedAvg": [0.1]})
    assert (study["rates"], study["local"]["lr"]) == ({"FedAvg": [0.1]}, [0.1])


# -- beside a figure


def test_runs_beside_replace_what_they_name_and_have_files_of_their_own(wide, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    words = ("reproduce", wide, "--for-claims", "--out", str(out), "--quiet")
    code, said, err = in_process(capsys, monkeypatch, *words)
    assert (code, err) == (0, "")
    files = ["wide-few.beginning.nc", "wide-few.partitions.nc"]
    assert sorted(p.name for p in out.iterdir()) == ["studies", *files]
    assert all(f"{out / name}: few, for the claims" in said for name in files)
    dealt, first = (load(out / name) for name in reversed(files))
    assert dealt.dataset["seed"].values.tolist() == [3, 5]
    assert [float(h.dataset["time"][-1]) for h in (dealt, first)] == [2, 1]
    assert [what_was_run(h)["run"] for h in (dealt, first)] == ["partitions", "beginning"]
    assert what_was_run(dealt)["paper"]["until"] == 4
    problem = ft.problems.digits(4, partition="dirichlet:0.1", seed=5)
    local = ft.LocalSGD(lr=[0.001, 0.002], batch_size=8)
    schemes, times = [ft.FedAvg(), ft.AsyncFedAvg()], ft.FixedTimes(json.loads(dealt.attrs["configuration"])["times"])
    alone = ft.simulate(problem, schemes, times, until=2, points=3, seeds=[5], local=local, step="paper")
    np.testing.assert_array_equal(
        dealt.dataset["loss"].sel(seed=[5]).values, alone.dataset["loss"].values.astype(np.float32)
    )
    before = {p: p.stat().st_mtime_ns for p in out.glob("*.nc")}
    assert in_process(capsys, monkeypatch, *words, "--resume")[0] == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("*.nc")} == before


CHOOSERS = WIDE.replace("seeds = [3, 5]", 'seeds = [5, 3, 7]\nweights = ["identical", "time-based"]').replace(
    "[scales.quick]\n", "[scales.quick]\nchoosers = 1\n"
)


def test_a_few_partitions_choose_the_rates_of_the_others(tmp_path, capsys, monkeypatch):
    path, out = tmp_path / "wide.toml", tmp_path / "out"
    path.write_text(CHOOSERS)
    words = ("reproduce", str(path), "--for-claims", "--quiet", "--out", str(out))
    assert in_process(capsys, monkeypatch, *words)[0] == 0
    found = load(out / "wide-few.partitions.nc")
    assert found.finished
    assert what_was_run(found)["choosers"] == [5]
    assert what_was_run(found)["study"]["seeds"] == [5, 3, 7]
    final = found.final()
    assert final.sel(seed=5).notnull().all()
    for scheme in found.dataset["scheme"].values:
        ranked = {r: float(final.sel(scheme=scheme, weights=r, seed=5).idxmin()) for r in ("identical", "time-based")}
        there = final.sel(scheme=scheme, seed=[3, 7]).notnull()
        run = there["local_lr"].values[there.any(["seed", "weights"]).values]
        assert run.tolist() == sorted(set(ranked.values()))
        assert there.sel(local_lr=run).all()
    alone = ft.simulate(
        ft.problems.digits(4, partition="dirichlet:0.1", seed=7),
        [ft.FedAvg(), ft.AsyncFedAvg()],
        ft.FixedTimes(json.loads(found.attrs["configuration"])["merged"][0]["times"]),
        until=2,
        points=3,
        seeds=[7],
        local=ft.LocalSGD(lr=[0.001, 0.002], batch_size=8),
        weights=["identical", "time-based"],
        step="paper",
    )
    theirs = alone.dataset["loss"].astype(np.float32).sel(seed=7)
    mine = found.dataset["loss"].sel(seed=7)
    assert mine.notnull().any()
    np.testing.assert_allclose(mine.values, theirs.where(mine.notnull()).values, rtol=1e-6)  # beside other runs
    part = Part.of("few", found)
    assert part.choosing.values.ravel().tolist() == [False, True, False]
    judged = part.best("Async", "identical")
    assert judged.choice.runs == {(5, 0)}
    assert judged.final().notnull().values.ravel().tolist() == [True, False, True]
    path.write_text(CHOOSERS.replace("choosers = 1", "choosers = 2"))
    code, _, err = in_process(capsys, monkeypatch, *words)
    assert code != 0
    assert "contains results of other settings" in err
    path.write_text(CHOOSERS)
    before = {p: p.stat().st_mtime_ns for p in out.glob("*.nc")}
    assert in_process(capsys, monkeypatch, *words, "--resume")[0] == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("*.nc")} == before


def test_more_partitions_are_added_to_those_that_are_there(tmp_path, capsys, monkeypatch):
    path, out = tmp_path / "wide.toml", tmp_path / "out"
    words = ("reproduce", str(path), "--for-claims", "--quiet", "--out", str(out))
    path.write_text(CHOOSERS)
    assert in_process(capsys, monkeypatch, *words)[0] == 0
    few = load(out / "wide-few.partitions.nc")
    path.write_text(CHOOSERS.replace("seeds = [5, 3, 7]", "seeds = [5, 3, 7, 2, 9]"))
    ran = []
    monkeypatch.setattr(stages, "_run", lambda study, *given, run=stages._run: ran.append(study) or run(study, *given))
    assert in_process(capsys, monkeypatch, *words)[0] == 0
    more = load(out / "wide-few.partitions.nc")
    assert [study["seeds"] for study in ran] == [[2, 9]]
    assert what_was_run(more)["study"]["seeds"] == [5, 3, 7, 2, 9]
    assert what_was_run(more)["choosers"] == [5]
    assert more.dataset["seed"].values.tolist() == [2, 3, 5, 7, 9]
    np.testing.assert_array_equal(more.dataset["loss"].sel(seed=[3, 5, 7]), few.dataset["loss"].sel(seed=[3, 5, 7]))
    there = more.final().notnull()
    for seed in (2, 9):
        np.testing.assert_array_equal(there.sel(seed=seed), there.sel(seed=7))
    assert in_process(capsys, monkeypatch, *words, "--resume")[0] == 0
    assert len(ran) == 1
    path.write_text(CHOOSERS.replace("seeds = [5, 3, 7]", "seeds = [5, 3, 8, 2]"))  # another third one
    assert "contains results of other settings" in in_process(capsys, monkeypatch, *words)[2]


def test_partitions_of_which_all_choose_are_refused(tmp_path, capsys, monkeypatch):
    path = tmp_path / "wide.toml"
    for given, said in (("3", "list more than that, each once"), ("-1", "give a whole one from 0 on"), ('"a"', "'a'")):
        path.write_text(CHOOSERS.replace("choosers = 1", f"choosers = {given}"))
        code, _, err = in_process(
            capsys, monkeypatch, "reproduce", str(path), "--for-claims", "--out", str(tmp_path / "out")
        )
        assert code == 2
        assert "choosers" in err
        assert said in err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("seeds = [5, 3, 7]", "seeds = [5, 5, 7]", "list more than that, each once"),
        ('problem = { seed = "each" }', "", 'write seed = "each"'),
        ("lr = [0.001, 0.002]", 'lr = "auto"', "leave widen out, or list rates"),
        ("[scales.quick]", "[settings.partitions]\nstudy = { until = 3 }\n[scales.quick]", "cannot be called"),
    ],
)
def test_what_is_wrong_with_a_figure_file_is_said_before_anything_runs(
    before, after, said, tmp_path, capsys, monkeypatch
):
    path = tmp_path / "wide.toml"
    assert before in CHOOSERS
    path.write_text(CHOOSERS.replace(before, after))
    scale = "paper" if "auto" in after else "quick"
    words = ("reproduce", str(path), "--scale", scale, "--out", str(tmp_path / "out"))
    code, _, err = in_process(capsys, monkeypatch, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weights", [["time-based"], ["identical", "time-based"]])
def test_where_one_scheme_diverges_at_every_rate_each_has_its_own(weights):
    problem, times = ft.problems.quadratics(3, seed=1), ft.FixedTimes.spread(3, 50)
    schemes = [ft.FedAvg(), ft.AsyncFedAvg()]
    given = {"until": 4, "points": 3, "weights": weights, "step": "paper"}
    lost = ft.simulate(problem, schemes, times, local=ft.LocalSGD(lr=[1e30, 1e31]), **given)
    assert at_rate_of(lost, "FedAvg").dataset.identical(lost.best().dataset)
    found = ft.simulate(problem, schemes, times, local=ft.LocalSGD(lr=[0.001, 0.01]), **given)
    assert float(at_rate_of(found, "FedAvg").dataset["local_lr"]) == 0.01


def test_stages_choose_rates_alone(tmp_path, capsys, monkeypatch):
    path = tmp_path / "wide.toml"
    path.write_text(CHOOSERS.replace("steps = 1", "steps = [1, 2]"))
    words = ("reproduce", str(path), "--for-claims", "--quiet", "--out", str(tmp_path / "out"))
    code, _, err = in_process(capsys, monkeypatch, *words)
    assert code == 2
    assert "stages choose learning rates alone, but the study has several local_steps" in err


def test_rates_that_find_themselves_are_drawn(tmp_path, capsys, monkeypatch):
    path = tmp_path / "own.toml"
    path.write_text(WIDE.replace("lr = [0.001, 0.002]", 'lr = "auto"').replace("seeds = [0, 1]", "seeds = [0]"))
    words = ("reproduce", str(path), "--quiet", "--out", str(tmp_path / "out"))
    assert in_process(capsys, monkeypatch, *words)[0] == 0
    assert (tmp_path / "out" / "own.svg").is_file()


@pytest.mark.slow
def test_runs_beside_that_were_stopped_go_on(wide, tmp_path, capsys, monkeypatch):
    out, clock = tmp_path / "out", iter(range(10**9))
    words = ("reproduce", wide, "--for-claims", "--out", str(out))
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: float(next(clock)))
        code, said, err = in_process(capsys, patch, *words, "--minutes", "0.001")
    assert (code, said) == (130, "")
    assert "the same command goes on" in err
    assert not list(out.glob("*.nc"))
    assert in_process(capsys, monkeypatch, *words, "--resume", "--quiet")[0] == 0
    assert len(list(out.glob("*.nc"))) == 2


def test_what_the_command_refuses_for_claims(wide, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"

    def refused(*words):
        code, said, err = in_process(capsys, monkeypatch, "reproduce", *words, "--for-claims", "--out", str(out))
        assert (code, said, err.count("\n")) == (2, "", 1)
        assert not out.exists()
        return err

    assert "leave one of the two out" in refused(wide, "--from-results", str(tmp_path))
    for words in ((wide, "--scale", "full"), ("claims",), ("fig1",), ("fig2",), ("stable", "--scale", "paper")):
        assert "nothing is run beside these parts at this scale; try fig2 --scale paper" in refused(*words)
    nothing = ("fig4", "--scale", "paper", "--part", "cifar10-20-F0")
    assert "nothing is run beside these parts" in refused(*nothing)
    code, _, err = in_process(
        capsys, monkeypatch, "reproduce", "fig2", "--scale", "paper", "--for-claims", "--data-dir", str(tmp_path)
    )
    assert code == 3
    assert "fedtempo data get mnist" in err


def test_data_are_asked_for_where_something_is_run_beside(wide, tmp_path, capsys, monkeypatch):
    """A part of which nothing is run for claims needs none."""
    text = Path(wide).read_text().replace("[scales.paper]", PART + "[scales.paper]")
    Path(wide).write_text(text.replace("[scales.quick.runs.partitions]", "[scales.quick.parts.few.runs.partitions]"))
    words = ("reproduce", wide, "--for-claims", "--out", str(tmp_path / "out"), "--quiet", "--data-dir", str(tmp_path))
    assert in_process(capsys, monkeypatch, *words)[0] == 0
    Path(wide).write_text(Path(wide).read_text() + "[scales.quick.parts.other.runs.beginning]\nuntil = 1\n")
    assert in_process(capsys, monkeypatch, *words)[0] == 3
    (tmp_path / "out" / "wide-other.beginning.nc").touch()  # what is there needs none
    assert "mnist" not in in_process(capsys, monkeypatch, *words)[2]


PART = """
[[parts]]
name = "other"
study = { problem = { name = "mnist", clients = 4 } }

"""


NO_TABLE = "run .* of part few: 3 is not a table"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("runs.partitions]", "runs.partition]"), "the key 'partition' does not exist; did you mean partitions"),
        (("widen = 2", "widen = -1"), "widen: -1 is not a number of times; give a whole one from 0 on"),
        (("widen = 2", 'widen = 1\ntogether = "no"'), "together: 'no' is neither true nor false"),
        (
            (
                '[scales.quick.runs.partitions]\nseeds = [3, 5]\nproblem = { seed = "each" }',
                "[scales.quick.runs]\npartitions = 3",
            ),
            NO_TABLE,
        ),
        (
            (
                "[scales.quick.parts.few.runs.beginning]\nuntil = 1\npoints = 2",
                "[scales.quick.parts.few.runs]\nbeginning = 3",
            ),
            NO_TABLE,
        ),
    ],
)
def test_runs_with_a_mistake_are_refused(change, said, wide):
    Path(wide).write_text(WIDE.replace(*change))
    with pytest.raises(ft.FedtempoError, match=said):
        read_figure(wide, "paper" if "widen" in change[0] else "quick")


def figures(setting):
    return [read_figure(name, "paper", setting) for name in FIGURES]


@pytest.mark.parametrize("setting", ["text", "authors"])
def test_the_data_of_every_run_beside_can_be_dealt_by_its_seeds(setting, tmp_path):
    """On small files in the true formats, of roles as unlike in length as LEAF's."""
    true_formats.mnist(tmp_path, rows=(640, 40))
    true_formats.cifar10(tmp_path, rows=(640, 40))
    roles(tmp_path)
    seen: list[str] = []
    for part in (part for figure in figures(setting) for part in figure.parts):
        for study in part.runs.values():
            table = study["problem"]
            given = {**table, "clients": 4, "data_dir": str(tmp_path)}
            if (said := json.dumps([given, study["seeds"][:2]])) in seen:
                continue
            seen.append(said)
            if table.get("seed") == EACH:
                made = Redealt.of(EachSeed(given), study["seeds"][:2])
                assert len({deal.fingerprint() for deal in made.deals}) == 2
            else:
                ft.problems.named(given)
    assert {json.loads(said)[0]["name"] for said in seen} == {"mnist", "cifar10", "shakespeare"}


def roles(folder):
    """LEAF's file of 40 roles with 1 400 to 5 300 characters."""
    letters = np.random.default_rng(0).choice(list("abcdefgh ,\n"), 6000)
    said = {f"THE_PLAY_{k:02}": "".join(letters[: 1400 + 100 * k]) for k in range(40)}
    document = {"users": list(said), "user_data": {role: {"raw": text} for role, text in said.items()}}
    document |= {"hierarchies": ["THE PLAY"] * 40, "num_samples": [len(text) - 80 for text in said.values()]}
    path = folder / "shakespeare" / "leaf_all_users_raw.json.gz"
    true_formats.write(path, true_formats.packed_as(json.dumps(document).encode(), ".gz"))


# -- figure 4 with the stable step


def test_the_rate_of_one_scheme():
    history = made([[[3, 1, 2]], [[1, 2, 3]]], ("FedAvg", "AsyncFedAvg"), ("time-based",), RATES)
    for scheme, rate in (("FedAvg", 0.02), ("AsyncFedAvg", 0.01)):
        chosen = at_rate_of(history, scheme)
        assert float(chosen.dataset["local_lr"]) == rate
        xr.testing.assert_equal(chosen.dataset["loss"], history.dataset["loss"].sel(local_lr=rate))
    alone = at_rate_of(history, "FedAvg")
    assert at_rate_of(alone, "FedAvg") is alone


def test_the_stable_figure_is_figure_4_with_another_step():
    assert OWN_FIGURES == ("stable",)
    whole, paper = read_figure("stable", "full"), read_figure("fig4", "full")
    assert [part.name for part in whole.parts] == [part.name for part in paper.parts]
    for ours, theirs in zip(whole.parts, paper.parts, strict=True):
        assert ours.study["step"] == "stable"
        differ = {key for key in ours.study if ours.study[key] != theirs.study.get(key)}
        assert differ == {"step", "local"}
        assert {k: v for k, v in ours.study["local"].items() if k != "lr"} == {
            k: v for k, v in theirs.study["local"].items() if k != "lr"
        }
    assert all(part.together and part.widen for part in read_figure("stable", "paper").parts)
