"""A recommendation's page: all that is printed, curves and rates as they are, and the same again from JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import fedtempo as ft
from fedtempo.planning.objective import Objective
from fedtempo.planning.recommendation import Crossing, Interval
from fedtempo.planning.saved_recommendation import read_recommendation
from fedtempo.report.browser.recommendation import recommendation_body, recommendation_document
from fedtempo.report.page import Grid
from fedtempo.report.recommendation_tables import recommendation_page
from support.pages import HOSTILE, data_of, rows_of, scripts_of, text_of
from support.recommendations import FOURTEEN, TEN, TWO, recommendation

OBJECTIVES = [Objective(), Objective("time-to", "loss", 0.3), Objective("metric", "test_accuracy"), Objective("worst")]


def from_json(made):
    return read_recommendation(json.loads(json.dumps(made.to_dict(), allow_nan=False)), "plan.json")


@pytest.mark.parametrize("pilot", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_the_page_has_all_that_is_printed(objective, pilot) -> None:
    made = recommendation(TEN, objective=objective, pilot=pilot, notes=("A note.",))
    page = recommendation_document(made)
    text, rows = text_of(page), rows_of(page)
    for part in recommendation_page(made).parts:
        if isinstance(part, Grid):
            assert [head for head in part.heads if head] == [head for head in rows[0] if head]
            assert all(list(row) in rows for row in part.rows)
        else:
            assert part.bold + part.text in text
    assert f"All {len(made.cells)} cells that were trained" in text
    assert 'ft.FedFix("5/4")' in text


def test_curves_are_those_of_what_was_trained_to_the_end() -> None:
    made = recommendation(TEN)
    chart = data_of(recommendation_document(made))["charts"]["choice-curves"]
    assert [line["label"] for line in chart["lines"]] == [f"{s}, lr {rate:g}" for s, rate in made.curves]
    first = made.curves["FedFix(5/4)", 0.5]
    assert chart["lines"][0]["ys"] == pytest.approx(first.mean.tolist(), rel=1e-4)
    assert chart["lines"][0]["high"] == pytest.approx((first.mean + 2 * first.error).tolist(), rel=1e-4)
    assert "low" not in chart["lines"][3], "one seed has no band"


def test_values_stand_at_their_rates_those_left_earlier_apart() -> None:
    made = recommendation(TEN)
    lines = data_of(recommendation_document(made))["charts"]["choice-rates"]["lines"]
    for line in lines:
        ended = line["keys"]["trained"] == "to the end"
        cells = {c.local_lr: c.loss for c in made.cells if c.scheme.label == line["keys"]["scheme"]}
        kept = {
            c.local_lr for c in made.cells if c.scheme.label == line["keys"]["scheme"] and (c.trained >= 1) == ended
        }
        assert set(line["xs"]) == kept
        assert line["ys"] == pytest.approx([cells[rate] for rate in line["xs"]], rel=1e-4)


def test_it_can_be_a_part_of_another_page_in_its_colours() -> None:
    html, charts = recommendation_body(recommendation(TWO), ["other", "AsyncFedAvg", "FedAvg"])
    assert all(name.startswith("choice-") and f'data-chart="{name}"' in html for name in charts)
    inks = {one["value"]: one["colour"] for one in charts["choice-curves"]["dims"][0]["values"]}
    assert inks == {"FedAvg": "var(--c2)", "AsyncFedAvg": "var(--c1)"}
    assert "<h1" not in html


@pytest.mark.parametrize(
    "given",
    [
        {"labels": ("FedAvg",)},
        {"labels": TWO, "curves": {}},
        {"labels": TWO, "change": {"FedAvg": {"loss": math.inf}, "AsyncFedAvg": {"loss": math.inf}}},
        {"labels": FOURTEEN, "notes": (HOSTILE,)},
    ],
    ids=["one", "no curves", "diverged", "hostile note"],
)
def test_odd_recommendations_have_pages(given) -> None:
    made = recommendation(**given)
    page = made.to_html()
    assert scripts_of(page) == 2
    assert all(note in text_of(page) for note in made.notes)


def test_hostile_labels_are_text() -> None:
    made = recommendation(TWO)
    named = [replace(one, scheme=ft.FedAvg().using(label=HOSTILE)) for one in made.choices[:1]]
    page = replace(made, choices=(*named, made.choices[1]), cells=(*named, *made.cells)).to_html()
    assert scripts_of(page) == 2
    assert any(HOSTILE in cell for row in rows_of(page) for cell in row)


# -- from JSON


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_json_prints_and_shows_the_same(objective) -> None:
    labels = ("FedFix(5/4)", "AsyncFedAvg", "FedAvg", "FedBuff(6)")
    change = {"FedBuff(6)": {"loss": math.inf, "trained": 0.25}}
    made = recommendation(labels, objective=objective, pilot=True, change=change, ties=(), notes=("A note.",))
    saved = from_json(made)
    assert recommendation_page(saved).text() == str(made)
    assert data_of(saved.to_html()) == data_of(made.to_html())


def test_ties_crossings_and_unknown_bounds_come_back() -> None:
    made = recommendation(TEN)
    made = recommendation(
        TEN,
        ties=made.choices[1:3],
        regret=type(made.regret)(0.0, math.inf),
        crossings=(Crossing(12.0, "FedAvg", "FedFix(5/4)"),),
    )
    assert recommendation_page(from_json(made)).text() == str(made)


@pytest.mark.parametrize(
    "change",
    [{"schemes": []}, {"cells": [1]}, {"until": "x"}, {"objective": "what"}, {"curves": None}, {"ended": "?"}],
    ids=str,
)
def test_json_that_was_changed_is_refused_in_one_line(change) -> None:
    document = recommendation(TWO).to_dict() | change
    with pytest.raises(ft.InputError, match=r"plan\.json: not a whole recommendation"):
        read_recommendation(document, "plan.json")
    with pytest.raises(ft.InputError, match="newer fedtempo"):
        read_recommendation(document | {"format": 99}, "plan.json")


def test_nothing_is_imported_for_a_name_in_json() -> None:
    document = recommendation(TWO).to_dict()
    for one in (*document["schemes"], *document["cells"]):
        one["scheme"] = {"name": "no_such_module:Rule"}
    assert read_recommendation(document, "plan.json").best.scheme.label == "FedAvg"


def test_an_interval_that_is_half_known_reads_the_same_from_json() -> None:
    change = {"AsyncFedAvg": {"behind": Interval(-0.006, math.nan)}, "FedBuff(2)": {"behind": Interval(0.1, math.inf)}}
    made = recommendation(TEN, change=change)
    assert recommendation_page(from_json(made)).text() == recommendation_page(made).text()
