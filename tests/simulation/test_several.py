"""Several problems and client times in one study, its folder, and histories that are merged and split."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedtempo as ft
from simulation.test_checkpoint import contents
from simulation.test_study import FLEETING, PROBLEM, TIMES, same

SCHEMES = [ft.FedAvg(), ft.FedFix("1/2"), ft.AsyncFedAvg()]
SETTINGS = {"uneven": TIMES, "even": ft.FixedTimes([2, 2, 2, 2])}
OTHER = ft.problems.quadratics(4, dimension=3, noise=0.1, rows=5, seed=2)


def run(times=SETTINGS, problem=PROBLEM, lr=(0.05, 0.3), schemes=SCHEMES, **options):
    local = ft.LocalSGD(lr=lr if isinstance(lr, str | float) else list(lr), batch_size=4)
    given = {"until": 20, "points": 6, "seeds": range(2), "dtype": "float64"} | options
    return ft.simulate(problem, schemes, times, local=local, **given)


# -- settings are a dimension


def test_each_setting_is_the_study_of_it_alone() -> None:
    whole = run()
    assert whole.settings == ("times",)
    assert whole.hyper == ("local_lr",)
    assert whole.dataset["loss"].dims == ("times", "scheme", "weights", "local_lr", "seed", "time")
    for name, times in SETTINGS.items():
        alone, part = run(times), whole.split()[name]
        assert part.settings == ()
        assert np.array_equal(part.dataset["loss"], alone.dataset["loss"])
        assert np.array_equal(part.dataset["updates"], alone.dataset["updates"])
        here = {"scheme": "FedFix(1/2)", "local_lr": 0.3, "seed": 1}
        assert np.array_equal(whole.model(times=name, **here).params, alone.model(**here).params)


def test_best_chooses_in_each_setting_by_itself() -> None:
    steep = ft.problems.quadratics(4, dimension=3, noise=0.1, rows=5, seed=2, smoothness=30)
    problems = {"calm": OTHER, "steep": steep}
    whole = run(TIMES, problems, lr=(0.003, 0.05, 0.3))
    best = whole.best()
    assert best.dataset["local_lr"].dims == ("problem", "scheme", "weights")
    for name in problems:
        alone = run(TIMES, problems[name], lr=(0.003, 0.05, 0.3)).best()
        assert np.array_equal(best.dataset["local_lr"].sel(problem=name), alone.dataset["local_lr"])
        assert np.array_equal(best.final().sel(problem=name), alone.final())
        assert np.array_equal(whole.time_to(1.0).sel(problem=name), whole.split()[name].time_to(1.0), equal_nan=True)
    low, high = (best.dataset["local_lr"].sel(problem=name).max() for name in ("steep", "calm"))
    assert low < high


def test_problems_and_times_make_a_grid() -> None:
    whole = run(problem={"one": PROBLEM, "other": OTHER}, lr=0.1)
    assert whole.settings == ("problem", "times")
    assert set(whole.split()) == {(p, t) for p in ("one", "other") for t in SETTINGS}
    assert np.array_equal(
        whole.split()["other", "even"].dataset["loss"], run(SETTINGS["even"], OTHER, 0.1).dataset["loss"]
    )
    assert len(whole.to_dataframe()) == 2 * 2 * 3 * 2 * 6


def test_a_search_ends_when_the_best_is_inside_in_every_setting() -> None:
    steep = ft.problems.quadratics(4, dimension=3, noise=0.1, rows=5, seed=2, smoothness=300)
    whole = run(TIMES, {"calm": OTHER, "steep": steep}, lr="auto")
    rates = whole.dataset["local_lr"].values
    chosen = whole.best().dataset["local_lr"]
    assert float(rates[0]) < float(chosen.min())
    assert float(chosen.max()) < float(rates[-1])
    assert json.loads(whole.attrs["rate_search"])["ended"] == "inside"
    assert bool(whole.begun.all())


def test_problems_of_other_shapes_keep_their_measures_and_no_models() -> None:
    wide = ft.problems.quadratics(4, dimension=7, noise=0.1, rows=5, seed=2)
    whole = run(TIMES, {"narrow": OTHER, "wide": wide}, lr=0.1)
    assert np.array_equal(whole.split()["wide"].dataset["loss"], run(TIMES, wide, 0.1).dataset["loss"])
    with pytest.raises(ft.InputError, match="models have different shapes"):
        whole.model(problem="wide", scheme="FedAvg", seed=0)


def test_a_summary_is_of_one_setting() -> None:
    whole = run()
    with pytest.raises(ft.InputError, match=r"several of times \(uneven, even\); take one of history.split\(\)"):
        whole.summary()
    assert whole.split()["even"].summary().row("FedAvg") is not None
    with pytest.raises(ft.InputError, match=r"several models match; also give times \(uneven, even\)"):
        whole.model(scheme="FedAvg", local_lr=0.3, seed=0)


# -- the folder


class Stop(Exception):
    """Ends a study in its middle."""


@pytest.mark.parametrize("lr", [(0.05, 0.3), "auto"], ids=["given", "searched"])
def test_a_stopped_study_goes_on_through_its_parts_to_the_same_bits(tmp_path, lr) -> None:
    given = {"problem": {"one": PROBLEM, "other": OTHER}, "times": TIMES, "lr": lr, "schemes": SCHEMES[::2]}
    whole = run(checkpoint=tmp_path / "whole", **given)
    again = None
    for most in (1, 4, 10**9):
        calls = 0

        def stop(progress, most=most) -> None:
            nonlocal calls
            calls += 1
            if calls > most:
                raise Stop

        try:
            again = run(checkpoint=tmp_path / "again", on_progress=stop, **given)
        except Stop:
            continue
    assert again is not None
    assert calls > (4 if lr == "auto" else 1)
    same(whole, again)
    stored = ft.History.load(tmp_path / "again" / "history.nc")
    assert stored.finished
    assert np.array_equal(stored.dataset["loss"], whole.dataset["loss"], equal_nan=True)
    before = contents(tmp_path / "again")
    same(run(checkpoint=tmp_path / "again", **given), whole)
    after = contents(tmp_path / "again")
    assert {n for n in before if before[n] != after[n]} <= {n for n in before if n.endswith("history.nc")}


def test_what_is_there_while_it_runs_can_be_read(tmp_path) -> None:
    def stop(progress) -> None:
        if progress.done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path, on_progress=stop)
    there = ft.History.load(tmp_path / "history.nc")
    assert not there.finished
    known = there.dataset["loss"].notnull()
    assert bool(known.any())
    rest = run().dataset["loss"].sel(times=there.dataset["times"])
    assert np.array_equal(there.dataset["loss"].where(known, 0), rest.where(known, 0))


def test_another_study_is_not_written_into_the_folder(tmp_path) -> None:
    run(checkpoint=tmp_path / "x")
    with pytest.raises(ft.ResultsConflict, match="its times"):
        run({"uneven": TIMES, "even": ft.FixedTimes([3, 3, 3, 3])}, checkpoint=tmp_path / "x")
    with pytest.raises(ft.ResultsConflict, match=r"its local\.local_lr is \[0.05, 0.3\], here it is \"auto\""):
        run(checkpoint=tmp_path / "x", lr="auto")
    other = run(TIMES, OTHER, "auto", checkpoint=tmp_path / "x", overwrite=True)
    same(run(TIMES, OTHER, "auto", checkpoint=tmp_path / "x"), other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": {}}, "times: none given"),
        ({"times": {"a": TIMES, 3: TIMES}}, "times: 3 is not a name"),
        ({"times": {"a": TIMES, "b": ft.FixedTimes([1, 2])}}, "times: 2 clients, but the problem has 4"),
        ({"problem": {"a": PROBLEM, "b": 3}}, "problem: 3 is not a problem"),
        ({"until": "1/3", "lr": "auto"}, "no round ends by 1/3"),
    ],
)
def test_bad_settings_are_one_message_and_leave_no_folder(changes, message, tmp_path) -> None:
    with pytest.raises(ft.InputError, match=message):
        run(checkpoint=tmp_path / "results", **changes)
    assert list(tmp_path.iterdir()) == []


# -- merge and split


@pytest.fixture(scope="module")
def whole() -> ft.History:
    return run(TIMES, weights=("time-based", "identical"))


@pytest.mark.parametrize("dimension", ["scheme", "weights", "local_lr", "seed"])
def test_what_was_split_is_merged_to_the_same(whole, dimension) -> None:
    parts = list(whole.split(dimension).values())
    again = ft.merge(parts)
    assert again.dataset["loss"].dims == whole.dataset["loss"].dims
    for name in ("scheme", "weights", "local_lr", "seed", "time"):
        assert again.dataset[name].values.tolist() == whole.dataset[name].values.tolist()
    for name in whole.dataset.data_vars:
        ours = again.dataset[name].transpose(*whole.dataset[name].dims)
        assert np.array_equal(ours, whole.dataset[name], equal_nan=True), name
    assert {k: v for k, v in again.attrs.items() if k not in FLEETING} == {
        k: v for k, v in whole.attrs.items() if k not in FLEETING
    }


def test_schemes_keep_the_order_in_which_they_come(whole) -> None:
    names = ["AsyncFedAvg", "FedAvg", "FedFix(1/2)"]
    assert ft.merge([whole.select(scheme=n) for n in names]).dataset["scheme"].values.tolist() == names


def test_studies_that_differ_in_a_number_are_merged_over_it() -> None:
    a, b = (run(TIMES, lr=lr) for lr in (0.05, 0.3))
    both = ft.merge([a, b])
    assert both.hyper == ("local_lr",)
    assert np.array_equal(both.dataset["loss"].sel(local_lr=0.3), b.dataset["loss"])
    assert json.loads(both.attrs["configuration"])["merged"][1]["local"]["local_lr"] == 0.3
    more = ft.merge([both, run(TIMES, lr=0.3, schemes=[ft.FedBuff(2)])])
    assert int(more.begun.sum()) == 3 * 2 * 2 + 2
    assert bool(more.begun.sel(scheme="FedBuff(2)", local_lr=0.3).all())
    assert not bool(more.begun.sel(scheme="FedBuff(2)", local_lr=0.05).any())


def test_merged_histories_are_saved_and_read(whole, tmp_path) -> None:
    both = ft.merge({"F": whole, "G": whole}, dim="times")
    both.save(tmp_path / "both.nc")
    again = ft.History.load(tmp_path / "both.nc")
    assert again.settings == ("times",)
    assert np.array_equal(again.dataset["loss"], both.dataset["loss"])


def test_what_cannot_be_merged_is_said(whole) -> None:
    changed = ft.History(whole.dataset.assign(loss=whole.dataset["loss"] + 1))
    for call, message in (
        (lambda: ft.merge([]), "nothing to merge"),
        (lambda: ft.merge([whole, 3]), "int is not a history"),
        (lambda: ft.merge([whole, changed]), "the same run with different losses"),
        (lambda: ft.merge([whole, run(TIMES, until=40)]), "6 points up to time 20, another 6 up to 40"),
        (lambda: ft.merge([whole, run(TIMES, OTHER)]), "different problems"),
        (lambda: ft.merge({"a": whole}), "with dim="),
        (lambda: ft.merge([whole], dim="times"), "with dim="),
        (lambda: ft.merge({"a": whole}, dim="scheme"), "not a setting"),
        (lambda: ft.merge([whole, whole.best()]), "merge before best"),
        (lambda: whole.split("time"), "split: there is no dimension 'time'"),
        (lambda: whole.split(), "name a dimension"),
    ):
        with pytest.raises(ft.InputError, match=message):
            call()


def test_what_comes_from_a_file_is_merged_with_what_does_not(whole, tmp_path) -> None:
    first, second = whole.select(scheme="FedAvg"), whole.select(scheme=["FedFix(1/2)", "AsyncFedAvg"])
    first.save(tmp_path / "first.nc")
    for given in ([ft.History.load(tmp_path / "first.nc"), second], [second, ft.History.load(tmp_path / "first.nc")]):
        merged = ft.merge(given)
        assert merged.dataset["loss"].notnull().all()
        assert merged.model(scheme="FedAvg", local_lr=0.3, seed=0).params.shape == (3,)


def test_a_search_over_problems_of_other_shapes_is_kept_in_a_folder(tmp_path) -> None:
    problems = {"three": PROBLEM, "five": ft.problems.quadratics(4, dimension=5, noise=0.1, rows=5)}
    found = run(TIMES, problems, lr="auto", schemes=[ft.FedAvg()], until=5, checkpoint=tmp_path / "s")
    assert found.finished
    assert np.array_equal(ft.History.load(tmp_path / "s" / "history.nc").dataset["loss"], found.dataset["loss"])


def test_one_number_with_other_last_digits_and_one_run_rounded_otherwise_are_the_same() -> None:
    one = run(TIMES, lr=(0.1 + 0.2, 0.5), schemes=[ft.FedAvg()])
    other = run(TIMES, lr=(0.3, 0.5), schemes=[ft.AsyncFedAvg()])
    merged = ft.merge([one, other])
    assert merged.dataset["local_lr"].values.tolist() == [0.1 + 0.2, 0.5]
    assert merged.dataset["loss"].notnull().all()
    rounded = ft.History(one.dataset.assign(loss=one.dataset["loss"] * (1 + 1e-6)), structure=one.structure)
    assert ft.merge([one, rounded]).dataset["loss"].equals(one.dataset["loss"])


def test_studies_of_other_times_data_or_steps_are_not_compared() -> None:
    one = run(TIMES, schemes=[ft.FedAvg()])
    for said, other in (
        ("other client times; give them by name with dim='times'", run(SETTINGS["even"], schemes=[ft.AsyncFedAvg()])),
        ("another step of the server", run(TIMES, schemes=[ft.AsyncFedAvg()], step="paper")),
    ):
        with pytest.raises(ft.InputError, match=said):
            ft.merge([one, other])
    own = [ft.Problem(lambda key: np.zeros(2, np.float32), lambda p, x: ((p - x) ** 2).mean(), rows) for rows in (
        [np.ones((6, 2), np.float32)] * 4, [np.full((6, 2), 3, np.float32)] * 4
    )]  # fmt: skip
    first, second = (run(TIMES, o, schemes=[s]) for o, s in zip(own, (ft.FedAvg(), ft.AsyncFedAvg()), strict=True))
    with pytest.raises(ft.InputError, match="other data; give them by name with dim='problem'"):
        ft.merge([first, second])
    assert ft.merge({"a": first, "b": second}, dim="problem").settings == ("problem",)


def test_merged_searches_print(tmp_path) -> None:
    given = {"times": TIMES, "lr": "auto", "until": 10, "seeds": [0], "points": 3}
    both = ft.merge([run(**given, schemes=[ft.FedAvg()]), run(**given, schemes=[ft.AsyncFedAvg()])])
    assert "Learning rates were searched" in str(both)
    given["lr"] = (0.05, 0.3)
    searched = both.select(scheme="FedAvg")
    assert "Learning rates were searched" in str(searched)
    one = ft.merge([searched, run(**given, schemes=[ft.FedFix("1/2")])])
    assert "Learning rates were searched" not in str(one)


def test_every_setting_is_checked_before_any_is_run() -> None:
    seen = []
    with pytest.raises(ft.InputError, match="clients"):
        run({"right": TIMES, "wrong": ft.FixedTimes([1, 2])}, on_progress=seen.append)
    assert not seen


def test_pictures_in_a_part_do_not_keep_a_study_from_being_replaced(tmp_path) -> None:
    given = {"schemes": [ft.FedAvg()], "until": 10, "checkpoint": tmp_path / "s"}
    run(**given)
    (tmp_path / "s" / "parts" / "02" / "study.png").write_bytes(b"")
    assert run(**given, overwrite=True, seeds=[7]).finished


def test_metrics_of_ones_own_are_in_the_table() -> None:
    rows = np.arange(8, dtype=np.float32)
    error = {"mae": lambda p, x: abs(p - x).mean()}
    problem = ft.Problem(
        lambda key: np.float32(0), lambda p, x: ((p - x) ** 2).mean(), [rows] * 4, test=rows, metrics=error
    )
    found = run(TIMES, problem, lr=0.05, schemes=[ft.FedAvg()])
    assert "mae: on test data" in str(found)
    assert found.table()["mae"].item() == pytest.approx(found.final("test_mae").mean().item())


def test_what_best_chose_is_shown_and_nothing_is_not_selected(whole) -> None:
    part = whole
    assert part.best().table()["local_lr"].tolist() == part.table()["local_lr"].tolist()
    assert "local_lr" in str(part.best())
    with pytest.raises(ft.InputError, match="an empty list selects no runs"):
        whole.select(scheme=[])
    with pytest.raises(ft.InputError, match="give a list of them"):
        ft.merge(whole)
