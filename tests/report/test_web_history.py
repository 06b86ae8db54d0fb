"""A study's page: all that is printed is there, curves are those of the history, hostile names are text."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.report.browser import study_curves
from fedtempo.report.browser.history import history_document
from fedtempo.report.browser.tables import sort_value
from fedtempo.report.history_text import history_page
from fedtempo.report.page import Grid
from fedtempo.simulation.history.history import History
from simulation.test_history import study
from support.pages import HOSTILE, data_of, rows_of, scripts_of, text_of

SMALL = {"schemes": ("FedAvg", "AsyncFedAvg"), "rates": (0.1, 0.3), "points": 11, "models": False}


def charts(history: History) -> dict:
    return data_of(history_document(history))["studies"]["study"]


def combo(found: dict, *at) -> dict:
    return next(one for one in found["combos"] if one["at"] == list(at))


# -- words


def test_the_page_has_every_row_and_sentence_that_is_printed() -> None:
    history = History(study())
    page = history_document(history, name="digits")
    text, rows = text_of(page), rows_of(page)
    for part in history_page(history).parts:
        if isinstance(part, Grid):
            assert part.heads in rows
            assert all(list(row) in rows for row in part.rows)
            assert part.title in text
        else:
            assert part.text in text


def test_numbers_of_all_rates_are_those_of_the_history() -> None:
    history = History(study(**SMALL))
    ends = history.final().sel(scheme="FedAvg", weights="identical", local_lr=0.3).values
    row = next(r for r in rows_of(history_document(history)) if r[:3] == ["FedAvg", "identical", "0.3"] and len(r) == 8)
    assert row[3] == f"{ends.mean():.4g}±{ends.std(ddof=1):.1g}"
    assert row[-2:] == ["3", "0"]


def test_settings_and_how_to_repeat_it() -> None:
    description = {"until": 3, "problem": {"name": "digits"}, "schemes": [{"name": "fedavg"}]}
    text = text_of(history_document(History(study(**SMALL)), description=description))
    assert "fedtempo run study.toml" in text
    assert '[[schemes]]\nname = "fedavg"' in text
    assert "--trust" not in text
    own = {"schemes": [{"name": "mine:Rule"}]}
    assert "fedtempo run study.toml --trust" in text_of(history_document(History(study(**SMALL)), description=own))
    text = text_of(history_document(History(study(**SMALL))))
    assert "fedtempo run" not in text
    assert "é, ½" in text, "from the configuration"


def test_an_unfinished_study_and_one_of_several_jobs_say_so() -> None:
    dataset = study(**SMALL)
    dataset["loss"][1, :, :, 2, 5:] = np.nan
    page = history_document(History(dataset.assign_attrs(finished=0)), jobs="2 of 3 jobs")
    assert "The study is not finished: 2 of 24 runs are open" in text_of(page)
    assert "Put together of 2 of 3 jobs." in text_of(page)


def test_settings_are_shown_one_after_the_other_and_switched_in_charts() -> None:
    history = ft.merge({"F0": History(study(**SMALL)), "F80 <b>": History(study(**SMALL))}, dim="times")
    page = history_document(history)
    assert "times F80 <b>: every scheme at its best rates" in text_of(page)
    found = charts(history)
    assert found["settings"] == ["F0", "F80 <b>"]
    assert found["settingName"] == "times"
    assert {one["setting"] for one in found["combos"]} == {0, 1}


# -- curves


def test_a_line_is_the_mean_over_seeds_with_its_deviation() -> None:
    history = History(study(**SMALL))
    found = charts(history)
    one = combo(found, "AsyncFedAvg", "identical", 0.1)
    names = [measure["name"] for measure in found["measures"]]
    at = {"scheme": "AsyncFedAvg", "weights": "identical", "local_lr": 0.1}
    for name in ("loss", "test_accuracy", "surrogate_deviation"):
        k = names.index(name)
        np.testing.assert_allclose(one["means"][k], history.mean(name)[name].sel(at).values, rtol=1e-4)
        np.testing.assert_allclose(one["deviations"][k], history.deviation(name)[name].sel(at).values, rtol=1e-2)
        np.testing.assert_allclose(one["seeds"][1]["values"][k], history.dataset[name].sel(at)[1].values, rtol=1e-4)
    worst = history.dataset["client_loss"].sel(at).max("client").mean("seed").values
    np.testing.assert_allclose(one["means"][names.index("worst_client")], worst, rtol=1e-4)


def test_places_are_those_of_every_cost() -> None:
    history = History(study(**SMALL))
    found = charts(history)
    one = combo(found, "AsyncFedAvg", "time-based", 0.3)
    axes = [axis["name"] for axis in found["axes"]]
    assert axes == ["time", "rounds", "updates"]
    for name, place in zip(axes, one["xs"], strict=True):
        values = history.dataset[name]
        expected = values if name == "time" else values.sel(scheme="AsyncFedAvg").mean("seed")
        np.testing.assert_allclose(found["pool"][place], expected.values, rtol=1e-4)
    assert len(found["pool"]) < 8, "each list once"


def test_the_best_rates_are_those_of_best() -> None:
    history = History(study())
    best = history.best().dataset["local_lr"]
    for one in charts(history)["combos"]:
        scheme, rule, rate = one["at"]
        assert one["best"] == (best.sel(scheme=scheme, weights=rule).item() == rate)


def test_what_diverged_ends_in_a_cross_and_what_was_not_begun_is_left_out() -> None:
    dataset = study(**SMALL)
    dataset["loss"][0, 1, 1] = np.nan
    found = charts(History(dataset))
    assert not any(one["at"] == ["FedAvg", "identical", 0.3] for one in found["combos"])
    assert combo(found, "AsyncFedAvg", "identical", 0.3)["gone"]
    assert not combo(found, "AsyncFedAvg", "identical", 0.1)["gone"]
    ends = {tuple(line["at"]): line for line in found["ends"][0]["lines"]}
    assert ends["AsyncFedAvg", "identical"]["ys"][1] is None, "a seed diverged"
    assert ends["AsyncFedAvg", "identical"]["ys"][0] == pytest.approx(
        History(dataset).final().sel(scheme="AsyncFedAvg", weights="identical", local_lr=0.1).mean().item(), rel=1e-4
    )


def test_a_large_study_leaves_out_single_seeds_then_all_rates_but_the_best(monkeypatch) -> None:
    history = History(study(**SMALL))
    whole = charts(history)
    assert whole["left_out"] == ""
    assert [dim["name"] for dim in whole["dims"]] == ["scheme", "weights", "local_lr", "seed"]
    numbers = 2 * 2 * 2 * 11 * len(whole["measures"])
    monkeypatch.setattr(study_curves, "MOST_NUMBERS", 3 * numbers)
    found = charts(history)
    assert "Single seeds are left out" in found["left_out"]
    assert (len(found["combos"]), sum(len(one["seeds"]) for one in found["combos"])) == (8, 0)
    monkeypatch.setattr(study_curves, "MOST_NUMBERS", numbers)
    found = charts(history)
    assert "Only the best rates are drawn" in found["left_out"]
    assert len(found["combos"]) == 4
    assert [view["name"] for view in found["views"]] == ["best"]


def test_a_scheme_with_its_own_weights_has_one_line() -> None:
    dataset = study(**SMALL)
    dataset["loss"][1, 1] = np.nan
    dataset["diverged_at"][1, 1] = np.nan
    found = charts(History(dataset.assign_attrs(own_weights=json.dumps({"AsyncFedAvg": "mixing"}))))
    own = [one for one in found["combos"] if one["at"][0] == "AsyncFedAvg"]
    assert [one["at"][1] for one in own] == ["time-based", "time-based"]
    assert all(one["own"] for one in own)
    assert own[0]["label"] == "AsyncFedAvg, own weights, lr 0.1"


# -- odd studies


@pytest.mark.parametrize(
    "given",
    [
        {"points": 1, "until": 0.0},
        {"schemes": ("FedAvg",), "rules": ("time-based",), "rates": (0.1,), "seeds": (0,)},
        {"schemes": tuple(f"FedFix({k})" for k in range(1, 41)), "points": 5},
        {"schemes": (HOSTILE, "FedAvg"), "points": 5},
    ],
    ids=["one point", "one of all", "40 schemes", "hostile"],
)
def test_odd_studies_have_pages(given) -> None:
    history = History(study(**{**SMALL, **given}))
    page = history_document(history, name=HOSTILE)
    assert scripts_of(page) == 2
    found = data_of(page)["studies"]["study"]
    assert len(found["dims"][0]["values"]) == history.dataset.sizes["scheme"]
    assert f"\n{HOSTILE}\n" in f"\n{text_of(page)}\n"


def test_nothing_but_nan() -> None:
    dataset = study(**SMALL)
    for name in ("loss", "loss_deviation", "test_accuracy", "client_loss"):
        dataset[name][:] = np.nan
    dataset["diverged_at"][:] = np.nan
    found = charts(History(dataset.assign_attrs(finished=0)))
    assert found["combos"] == []


def test_attributes_that_are_no_json_and_none_at_all() -> None:
    dataset = study(**SMALL)
    text = text_of(history_document(History(dataset.assign_attrs(problem=HOSTILE, configuration="[1"))))
    assert HOSTILE in text
    dataset.attrs = {}
    assert "Settings" in text_of(history_document(History(dataset)))


def test_the_same_history_gives_the_same_bytes() -> None:
    made = [history_document(History(study(**SMALL))).html for _ in range(2)]
    assert made[0] == made[1]


def test_to_html_is_the_page_and_writes_it(tmp_path) -> None:
    history = History(study(**SMALL))
    page = history.to_html(tmp_path / "report.html", target=1.2)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page.html
    assert data_of(page)["studies"]["study"]["targets"] == [1.2]
    with pytest.raises(ft.InputError, match=r"ends in \.html"):
        history.to_html(tmp_path / "report.svg")


# -- tables


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.423±0.060", 0.423),
        ("≥ 47", 47.0),
        ("> 4.2", 4.2),
        ("−38 to +85%", -0.38),
        ("+12–18%", 0.12),
        ("× 12–15", 11.0),
        ("1.2e-07", 1.2e-7),
        ("1/16", 0.0625),
        ("all", 1.0),
        ("88.0%", 0.88),
        ("1.5 MB", 1.5e6),
        ("15.4 kB", 15400.0),
        ("∞", 1e308),
        ("0.00872 [0.00857, 0.00886]", 0.00872),
        ("–", None),
        ("diverged", None),
        ("", None),
        ("FedFix(1/5)", None),
    ],
)
def test_numbers_sort_by_value(text, value) -> None:
    assert sort_value(text) == (None if value is None else pytest.approx(value))
