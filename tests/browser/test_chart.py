"""Charts of pages: what is drawn, hidden, zoomed and read out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtempo.report.browser.document import WebPage, document

pytestmark = pytest.mark.browser

SCHEMES = ["FedAvg", "AsyncFedAvg"]
HOSTILE = "<script>document.title = 'taken'</script>"


def page_of_lines(lines: list[dict[str, Any]]) -> WebPage:
    dims = [{"name": "scheme", "values": [{"value": s, "colour": f"var(--c{k})"} for k, s in enumerate(SCHEMES)]}]
    loss = {
        "title": HOSTILE,
        "x": {"label": "time", "log": False},
        "y": {"label": "loss", "log": True},
        "lines": lines,
        "dims": dims,
    }
    body = '<div data-theme-button></div><div data-chart="loss"></div>'
    return document("Charts", body, data={"charts": {"loss": loss}}, scripts=["chart.js", "charts.js"], schemes=SCHEMES)


def line(scheme: str, factor: float) -> dict[str, Any]:
    xs = list(range(11))
    colour = f"var(--c{SCHEMES.index(scheme)})"
    ys = [factor / (1 + x) for x in xs]
    return {"label": scheme, "keys": {"scheme": scheme}, "colour": colour, "xs": xs, "ys": ys}


@pytest.fixture
def opened(tab: Any, tmp_path: Path) -> Any:
    made = page_of_lines([line("FedAvg", 1.0), line("AsyncFedAvg", 2.0)])
    tab.goto(made.save(tmp_path / "charts.html").as_uri())
    return tab


def test_a_line_is_hidden_by_its_button_and_alone_after_a_double_click(opened):
    assert opened.locator("path.line").count() == 2
    opened.get_by_role("button", name="FedAvg", exact=True).click()
    assert opened.locator("path.line").count() == 1
    opened.get_by_role("button", name="FedAvg", exact=True).dblclick()
    assert opened.get_by_role("button", name="AsyncFedAvg").get_attribute("aria-pressed") == "false"
    assert opened.locator("path.line").count() == 1


def test_values_are_read_by_keys_and_by_the_pointer(opened):
    chart = opened.locator("figure.chart svg[tabindex]")
    chart.focus()
    for key in ("Home", "ArrowRight"):
        opened.keyboard.press(key)
    assert opened.get_by_role("status").text_content() == "time 1\nAsyncFedAvg: 1\nFedAvg: 0.5"
    chart.hover(position={"x": 640, "y": 100})
    assert "time 5" in opened.locator(".tip").inner_text()


def test_a_drawn_box_zooms_and_a_button_shows_everything_again(opened):
    box = opened.locator("figure.chart svg[tabindex]").bounding_box()

    def ticks() -> list[str]:
        return opened.locator("figure.chart svg[tabindex] text").all_text_contents()

    assert "10" in ticks()
    opened.mouse.move(box["x"] + 300, box["y"] + 100)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 500, box["y"] + 104)
    opened.mouse.up()
    assert "10" not in ticks()
    assert "2.5" in ticks()
    opened.get_by_role("button", name="Show everything").click()
    assert "10" in ticks()


def test_text_is_text_and_the_theme_turns(opened):
    assert opened.title() == "Charts"
    assert opened.locator("h3").inner_text() == HOSTILE
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.get_by_role("button", name="Dark").click()
    assert light == "rgb(255, 255, 255)"
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 29)"


@pytest.mark.parametrize("ys", [[], [None], [float("nan"), 1.0], [0.0, 0.0]], ids=str)
def test_lines_without_values_are_drawn_as_far_as_they_go(tab, tmp_path, ys):
    one = line("FedAvg", 1.0) | {"xs": list(range(len(ys))), "ys": ys}
    tab.goto(page_of_lines([one]).save(tmp_path / "charts.html").as_uri())
    chart = tab.locator("figure.chart svg[tabindex]")
    chart.hover(position={"x": 700, "y": 100})
    drawn = chart.evaluate("svg => svg.outerHTML")
    assert "<path" in drawn
    assert "NaN" not in drawn
    assert "Infinity" not in drawn


def test_no_script_but_the_pages_own_runs(chromium, tmp_path):
    made = page_of_lines([line("FedAvg", 1.0)])
    path = tmp_path / "charts.html"
    path.write_text(made.html.replace("</body>", "<script>document.title = 'taken'</script></body>"), encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri())
    assert page.title() == "Charts"
    assert page.locator("path.line").count() == 1
    page.close()
