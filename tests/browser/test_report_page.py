"""The pages of results in a browser: tables that sort, schemes that hide, axes that change, names that are text."""

from __future__ import annotations

from typing import Any

import pytest

from fedtempo.report.browser.history import history_document
from fedtempo.report.browser.recommendation import recommendation_document
from fedtempo.simulation.history.history import History
from simulation.test_history import study
from support.pages import HOSTILE
from support.recommendations import TEN, recommendation

pytestmark = pytest.mark.browser

SCHEMES = ("FedAvg", "AsyncFedAvg", HOSTILE)


@pytest.fixture
def opened(tab: Any, tmp_path: Any) -> Any:
    history = History(study(schemes=SCHEMES, rates=(0.01, 0.03, 0.1, 0.3, 1.0), points=11, models=False))
    tab.goto(history_document(history, name=HOSTILE).save(tmp_path / "report.html").as_uri())
    return tab


def lines(tab: Any) -> int:
    """Of the first chart."""
    return tab.locator("figure.chart").first.locator("path.line").count()


def first_column(tab: Any, table: int) -> list[str]:
    return tab.locator("table.sortable").nth(table).locator("tbody tr td:nth-child(4)").all_inner_texts()


def test_a_table_sorts_by_value_and_back(opened) -> None:
    given = first_column(opened, 0)
    button = opened.locator("table.sortable").first.get_by_role("button", name="loss")
    values = sorted(float(cell.partition("±")[0]) for cell in given)
    button.click()
    assert [float(cell.partition("±")[0]) for cell in first_column(opened, 0)] == values
    button.click()
    assert [float(cell.partition("±")[0]) for cell in first_column(opened, 0)] == values[::-1]
    button.click()
    assert first_column(opened, 0) == given


def test_rows_are_found_by_a_word(opened) -> None:
    opened.get_by_text("The ends of all runs").click()
    table = opened.locator("table.sortable").nth(1)
    assert table.locator("tbody tr:visible").count() == 30
    opened.get_by_placeholder("Filter rows").fill("identical")
    assert table.locator("tbody tr:visible").count() == 15


def test_a_scheme_is_hidden_in_every_chart(opened) -> None:
    assert lines(opened) == 6
    charts = opened.locator("figure.chart")
    every = [charts.nth(k).locator("path.line").count() for k in range(charts.count())]
    opened.get_by_role("button", name="FedAvg", exact=True).click()
    fewer = [charts.nth(k).locator("path.line").count() for k in range(charts.count())]
    assert fewer == [count - 2 for count in every]
    opened.get_by_role("button", name="identical").click()
    assert lines(opened) == 2
    opened.get_by_role("button", name=HOSTILE).dblclick()
    assert lines(opened) == 1


def test_seeds_and_all_rates_are_shown_on_demand(opened) -> None:
    assert opened.get_by_role("button", name="0.03", exact=True).count() == 0
    opened.get_by_role("button", name="1", exact=True).click()
    assert lines(opened) == 12
    opened.get_by_role("button", name="1", exact=True).click()
    opened.get_by_role("combobox", name="runs").select_option(label="all rates")
    assert lines(opened) == 30
    opened.get_by_role("button", name="0.03", exact=True).click()
    assert lines(opened) == 24


def test_an_axis_is_switched_and_what_diverged_has_a_cross(opened) -> None:
    label = opened.locator("figure.chart").first.locator("svg[tabindex] text")
    assert "virtual time" in label.all_text_contents()
    opened.get_by_role("combobox", name="over").select_option(label="client updates")
    assert "client updates" in label.all_text_contents()
    assert lines(opened) == 6
    crosses = opened.locator("figure.chart").first.locator("path.cross")
    assert crosses.count() == 0
    opened.get_by_role("combobox", name="runs").select_option(label="all rates")
    assert crosses.count() == 2


def test_what_is_read_stands_inside_the_chart(opened) -> None:
    svg = opened.locator("figure.chart").first.locator("svg[tabindex]")
    svg.hover(position={"x": 400, "y": 150})
    chart, tip = svg.bounding_box(), opened.locator(".tip:visible").bounding_box()
    assert chart["y"] <= tip["y"] <= chart["y"] + chart["height"] / 4
    assert chart["x"] <= tip["x"]
    assert tip["x"] + tip["width"] <= chart["x"] + chart["width"]


def test_hostile_names_are_shown_as_text_on_a_phone_too(opened) -> None:
    assert opened.title() == HOSTILE
    assert opened.locator("h1").inner_text() == HOSTILE
    assert opened.get_by_role("button", name=HOSTILE).count() == 1
    opened.set_viewport_size({"width": 390, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(
    "given",
    [
        {"points": 1, "until": 0.0},
        {"schemes": ("FedAvg",), "rules": ("time-based",), "rates": (0.1,), "seeds": (0,), "points": 5},
        {
            "schemes": tuple(f"FedFix({k})" for k in range(1, 41)),
            "rates": (0.1,),
            "rules": ("time-based",),
            "points": 5,
        },
    ],
    ids=["one point", "one of all", "40 schemes"],
)
def test_odd_studies_are_drawn(tab, tmp_path, given) -> None:
    dataset = study(**{"schemes": SCHEMES, "models": False, **given})
    if dataset.sizes["scheme"] == 40:
        dataset["loss"][3:5] = float("nan")
    tab.goto(history_document(History(dataset)).save(tmp_path / "report.html").as_uri())
    tab.locator("figure.chart svg[tabindex]").first.hover(position={"x": 300, "y": 100})
    assert lines(tab) > 0
    assert "NaN" not in tab.locator("body").inner_text()


def test_a_recommendation_is_drawn(tab, tmp_path) -> None:
    page = recommendation_document(recommendation(TEN, pilot=True))
    tab.goto(page.save(tmp_path / "report.html").as_uri())
    assert lines(tab) == 5
    table = tab.locator("table.sortable").first
    table.get_by_role("button", name="trained").click()
    shares = table.locator("tbody td:nth-child(7)").all_inner_texts()
    assert list(dict.fromkeys(shares)) == ["1/16", "1/4", "all"]
    trained = tab.locator("figure.chart").nth(1)
    before = trained.locator("circle").count()
    trained.get_by_role("button", name="left earlier").click()
    assert trained.locator("circle").count() > before
