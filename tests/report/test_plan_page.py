"""The page of a plan: its numbers are those of compare, for every federation; what it may hold, and may not."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import pytest

import fedtempo as ft
from fedtempo.clock.importance import Importance
from fedtempo.errors import InputError
from fedtempo.planning import explore as explore_module
from fedtempo.planning.explore import explore, spread_of
from fedtempo.planning.objective import Objective
from fedtempo.report.browser.document import document
from fedtempo.report.browser.plan_page import LANES, plan_page
from support.recommendations import TWO, recommendation


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few federations beside the one that is asked for."""
    monkeypatch.setattr(explore_module, "CLIENTS", (3,))
    monkeypatch.setattr(explore_module, "SPREADS", (50,))
    monkeypatch.setattr(explore_module, "WAITS", 4)


def data_of(made: ft.WebPage) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', made.html, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_every_number_of_the_page_is_that_of_compare():
    plan = ft.compare(ft.FixedTimes.spread(6, 80))
    found = explore(plan)
    places = [(one.times.law, one.times.num_clients, one.spread) for one in found.federations]
    assert places[0] == ("fixed", 6, 80)
    assert sorted(set(places)) == sorted(
        (law, m, x) for law in ("fixed", "exponential") for m in (3, 6) for x in (50, 80)
    )
    assert len(set(places)) == len(places)
    for federation in found.federations:
        for name in ("time-based", "identical", "importance"):
            truth = ft.compare(federation.times, [one.scheme for one in federation.settings[::5]], weights=name)
            for one, other in zip(federation.settings[::5], truth.schemes, strict=True):
                ruled = one.rules[name]
                assert one.rounds_per_time == other.rounds_per_time
                assert one.updates_per_time == other.updates_per_time
                assert one.idle_share == other.idle_share
                assert one.mean_delay == other.mean_delay
                assert one.identical_bias == other.identical_bias
                assert (ruled.step, ruled.pace) == (other.step, pytest.approx(other.server_step_per_time))
                assert ruled.weights.tolist() == other.weights.values[-1].tolist()
                if federation.times.law == "fixed":
                    assert one.max_delay == (other.max_delay, other.max_delay_exact, other.max_delay_bound)
                    assert (one.window, one.practical_window) == (other.window, other.practical_window)


def test_histograms_have_the_mean_of_the_closed_form():
    for one in explore(ft.compare(ft.FixedTimes.spread(6, 80))).federations[0].settings:
        mean = sum(delay * count for delay, count in enumerate(one.delays.tolist())) / one.delays.sum()
        assert mean == pytest.approx(one.mean_delay, abs=0.03), one.scheme


@pytest.mark.parametrize(
    ("times", "known"),
    [
        (ft.FixedTimes.spread(5, 80), (1, 80)),
        (ft.FixedTimes([4, 3, 2]), (4, 50)),
        (ft.FixedTimes([2, 2, 2]), (2, 0)),
        (ft.LogNormalTimes([3, 2, 1]), (3, pytest.approx(200 / 3))),
        (ft.FixedTimes([1, 2, 3]), None),
        (ft.FixedTimes([4, 2, 1]), None),
        (ft.FixedTimes([1]), None),
    ],
    ids=repr,
)
def test_evenly_spread_times_are_known_as_such(times, known):
    assert spread_of(times) == known


def test_other_clients_have_the_law_that_was_asked_for():
    found = explore(ft.compare(ft.LogNormalTimes([1, 0.5], sigma=0.3), [ft.FedFix("1/2")]))
    laws = {(one.times.law, one.times.num_clients) for one in found.federations}
    assert laws == {(law, m) for law in ("fixed", "exponential", "lognormal") for m in (2, 3)}
    other = next(one.times for one in found.federations if (one.times.law, one.times.num_clients) == ("lognormal", 3))
    assert other == ft.LogNormalTimes([1, 0.75, 0.5], sigma=0.3)


def test_own_importance_and_own_schemes_are_only_where_they_were_asked_for():
    plan = ft.compare(ft.FixedTimes([1, 2, 3]), [ft.UniformSampling(2), ft.FedFix(1)], importance=["1/2", "1/4", "1/4"])
    found = data_of(plan_page(plan))
    assert found["kinds"] == ["FedAvg", "AsyncFedAvg", "FedFix", "FedBuff", "UniformSampling(2)"]
    first = found["federations"][0]
    assert first["importance"] == [0.5, 0.25, 0.25]
    assert "UniformSampling(2)" in {one["kind"] for one in first["settings"]}
    others = found["federations"][1:]
    assert {one["law"] for one in others} == {"exponential"}


def test_of_many_clients_some_are_shown():
    times = ft.ExponentialTimes([1 + i / 300 for i in range(300)])
    found = data_of(plan_page(ft.compare(times, [ft.FedFix("1/2"), ft.AsyncFedAvg()])))
    (federation,) = found["federations"]
    assert len(federation["times"]) == LANES
    assert federation["times"] == sorted(federation["times"], reverse=True)
    assert federation["shown"][0] == 299
    assert federation["shown"][-1] == 0
    letters = {setting["label"]: setting["line"]["who"] for setting in federation["settings"]}
    assert 0 < len(letters["AsyncFedAvg"].replace(",", "")) < 300


def test_clients_that_come_and_go_and_fail_are_drawn_job_by_job():
    times = ft.FixedTimes([1, 0.5]).available(failure=0.3, on=3, off=1)
    (federation,) = data_of(plan_page(ft.compare(times, [ft.FedFix("1/2")])))["federations"]
    line = federation["settings"][0]["line"]
    assert {"jobs", "failed", "lost", "away"} <= set(line)
    assert len(line["jobs"]) == 5
    assert len(line["away"][0]) > 0


def test_a_first_round_that_outlasts_the_picture_is_there():
    line = explore_module._first_rounds(ft.FedAvg(), ft.FixedTimes([5, 1]), Importance(None, 2), 0, Fraction(4))
    assert line.ends[0] * line.unit == 5


def test_very_unequal_times_have_a_page_of_what_can_be_run():
    """A timeline of a billion rounds is cut, and what runs out of ticks is left out."""
    found = data_of(plan_page(ft.compare(ft.FixedTimes(["1/3", "1e-9", 5]))))
    lines = {one["label"]: one["line"] for one in found["federations"][0]["settings"]}
    assert lines["AsyncFedAvg"]["rounds"] == 2000
    assert "FedFix(5/2)" in lines


def test_a_step_that_takes_long_has_a_page_of_what_was_asked_for():
    plan = ft.compare(ft.FixedTimes.spread(3, 80), [ft.FedAvg(), ft.FedFix("1/2")], step="proven")
    found = data_of(plan_page(plan))
    assert [one["label"] for one in found["federations"][0]["settings"]] == ["FedAvg", "FedFix(1/2)"]
    assert len(found["federations"]) == 1


def test_the_same_plan_gives_the_same_bytes_and_default_pages_are_small():
    plan = ft.compare(ft.FixedTimes.spread(6, 80))
    assert plan.to_html().html == plan.to_html().html
    assert len(plan.to_html().html) < 400_000


def test_a_page_loads_nothing_and_text_stays_text():
    made = document("</title><script>x</script>", "<p></p>", data={"name": "</script><script>alert(1)</script>\u2028"})
    assert made.html.count("<script") == 2
    assert "alert(1)</script>" not in made.html
    assert data_of(made)["name"] == "</script><script>alert(1)</script>\u2028"
    outside = re.findall(r"""(?:src|href)\s*=|url\((?!#)|@import|https?://(?!www\.w3\.org/)""", plan_page_of_two().html)
    assert outside == []


def plan_page_of_two() -> ft.WebPage:
    return plan_page(ft.compare(ft.FixedTimes([1, 2])))


def test_bad_names_and_other_clients_are_refused_before_the_work(tmp_path, monkeypatch):
    plan = ft.compare(ft.FixedTimes([1, 2]))
    monkeypatch.setattr("fedtempo.report.browser.plan_page.explore", lambda plan: pytest.fail("worked"))
    with pytest.raises(InputError, match=r"plan\.txt: a page for a browser ends in \.html"):
        plan.to_html(tmp_path / "plan.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_shows_a_page_in_a_frame():
    made = plan_page_of_two()
    assert made._repr_html_().startswith("<iframe")
    assert "srcdoc=" in made._repr_html_()
    assert repr(made).startswith("<WebPage: 2 clients, fixed times, ")


def test_a_recommendation_adds_what_was_trained_and_predicted():
    made = recommendation(pilot=True)
    plan = ft.compare(made.times, [one.scheme for one in made.choices])
    race = data_of(plan_page(plan, made))["race"]
    assert [one["label"] for one in race["choices"]] == [one.scheme.label for one in made.choices]
    for one, choice in zip(race["choices"], made.choices, strict=True):
        assert one["value"] == pytest.approx(choice.loss, rel=1e-4)
        assert (one["curve"] is not None) == (choice.trained >= 1)
    first = race["choices"][0]
    assert (first["kind"], first["size"]) == ("FedFix", 1.25)
    times, losses = first["predicted"]
    assert times[-1] == 200
    assert losses == sorted(losses, reverse=True)
    waits, predicted = race["predicted_waits"]
    assert waits[-1] == 10
    assert len(predicted) == len(waits)
    with pytest.raises(InputError, match="it is for other clients than the plan"):
        ft.compare(ft.FixedTimes([1, 2])).to_html(recommendation=made)


def test_nothing_is_predicted_where_the_pilot_does_not_say_it():
    made = recommendation(TWO, objective=Objective("metric", "accuracy"))
    race = data_of(plan_page(ft.compare(made.times), made))["race"]
    assert race["predicted_waits"] is None
    assert {one["predicted"] for one in race["choices"]} == {None}
    assert race["largest"] is True


def test_a_number_is_rounded_once():
    """FedFix(3/20) with F20 has 20.63492 updates in a unit of time: five digits of it, 20.635, would become 20.64."""
    data = data_of(plan_page(ft.compare(ft.FixedTimes.spread(20, 20), [ft.FedFix("3/20")])))
    one = next(one for one in data["federations"][0]["settings"] if one["label"] == "FedFix(3/20)")
    assert f"{one['updates']:.4g}" == "20.63"


def test_a_window_too_long_to_count_is_written_as_the_plan_writes_it():
    data = data_of(plan_page(ft.compare(ft.FixedTimes.spread(20, 20), [ft.AsyncFedAvg()])))
    one = next(one for one in data["federations"][0]["settings"] if one["kind"] == "AsyncFedAvg")
    assert one["window"] == "4.92e23"
