"""The live page: it follows what changes, keeps what the reader has set, and shows text as text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtempo.report.browser.live import Row, chart, head, line, table
from fedtempo.report.browser.live_study import sections_of
from fedtempo.simulation.live import Live
from fedtempo.simulation.watching import Curve, StudySeen, UnitSeen, WatchedStudy
from support.live_server import serving

pytestmark = pytest.mark.browser

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
SCHEMES = ("FedAvg", "FedFix(1/2)")


def seen(
    points: int, *, names: tuple[str, ...] = SCHEMES, condition: Any = "running", diverged: bool = False
) -> StudySeen:
    """A study of two schemes that has measured so many points."""
    times = np.arange(float(points))
    curves = tuple(
        Curve(
            {"scheme": name, "weights": "time-based"},
            times,
            {"loss": np.stack([(k + 1) / (1 + times)] * 2)},
            (3.0,) * diverged,
        )
        for k, name in enumerate(names)
    )
    units = tuple(UnitSeen(name, 2, (0, 1), points / 20, points >= 20, 0, condition == "running") for name in names)
    return StudySeen(
        Path("/tmp") / names[0][:3], condition, "process 7 on here", 0.0, points / 20, 5.0, 9.0, units, 0, curves
    )


@pytest.fixture
def followed(tab: Any):
    """A tab that follows a study, and what changes it."""
    now = [seen(5)]
    with serving(lambda: sections_of(now[0])) as server:
        tab.goto(server.url)
        tab.locator(".badge").wait_for()

        def change(study: StudySeen) -> None:
            now[0] = study

        yield tab, change
        tab.goto("about:blank")


def ticks(tab: Any) -> list[str]:
    return list(tab.locator("figure.chart svg[tabindex] text").all_text_contents())


def until(tab: Any, there: Callable[[], bool]) -> None:
    for _ in range(500):
        if there():
            return
        tab.wait_for_timeout(10)
    raise AssertionError("it does not come")


def test_what_changes_is_put_in_its_place(followed) -> None:
    tab, change = followed
    assert tab.title() == "Running 25% · Study in Fed"
    assert tab.get_by_role("progressbar").get_attribute("aria-valuenow") == "25"
    assert "4" in ticks(tab)
    assert "12" not in ticks(tab)
    chart = tab.locator("section.chart").element_handle()
    row = tab.locator("section.table tbody tr").first.element_handle()
    change(seen(14, diverged=True))
    tab.get_by_text("70%").first.wait_for()
    until(tab, lambda: "12" in ticks(tab))
    assert tab.get_by_role("progressbar").get_attribute("aria-valuenow") == "70"
    assert chart.evaluate("node => node.isConnected")
    assert row.evaluate("node => node.isConnected && node.textContent") == "FedAvg0, 12training70%"
    assert tab.locator("section.table caption").all_text_contents() == ["Units", "Diverged"]
    change(seen(20, condition="finished"))
    tab.locator(".badge[data-condition=finished]").wait_for()
    assert tab.title() == "Finished · Study in Fed"
    assert tab.locator("section.table caption").all_text_contents() == ["Units"]


def test_zoom_switches_and_focus_stay(followed) -> None:
    tab, change = followed
    figure = tab.locator("figure.chart svg[tabindex]")
    tab.get_by_role("button", name="FedAvg").click()
    figure.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "+"):
        tab.keyboard.press(key)
    zoomed = ticks(tab)
    read = tab.locator("figure.chart [role=status]").text_content()
    assert tab.locator("path.line").count() == 1
    spoken = tab.locator("figure.chart [role=status]").element_handle()
    spoken.evaluate(
        "node => { node.told = 0; new MutationObserver(() => { node.told += 1; }).observe(node, {childList: true}); }"
    )
    change(seen(14))
    tab.get_by_text("70%").first.wait_for()
    until(tab, lambda: "L" in (tab.locator("path.line").get_attribute("d") or ""))
    assert [label for label in ticks(tab) if label in zoomed]
    assert "12" not in ticks(tab)
    assert tab.get_by_role("button", name="FedAvg").get_attribute("aria-pressed") == "false"
    assert tab.locator("path.line").count() == 1
    assert tab.evaluate("document.activeElement.tagName") == "svg"
    assert tab.locator("figure.chart [role=status]").text_content() == read
    assert spoken.evaluate("node => node.told") == 0, (
        "what is read is not said again because something else has changed"
    )


def test_a_box_that_is_drawn_and_a_value_that_is_read_outlive_a_change(followed) -> None:
    tab, change = followed
    box = tab.locator("figure.chart svg[tabindex]").bounding_box()
    tab.mouse.move(box["x"] + 300, box["y"] + 100)
    assert "time" in tab.locator(".tip").inner_text()
    before = tab.locator(".tip").inner_text()
    tab.mouse.down()
    tab.mouse.move(box["x"] + 420, box["y"] + 104)
    assert tab.locator("svg rect.box").count() == 1
    change(seen(14))
    until(tab, lambda: "12" in ticks(tab))
    assert tab.locator("svg rect.box").count() == 1
    assert tab.locator(".tip").inner_text() != before, "the same place is another time"
    tab.mouse.up()
    assert "12" not in ticks(tab)


def test_the_condition_is_said_once(followed) -> None:
    tab, change = followed
    said = tab.locator("#said")
    assert said.text_content() == "Running. process 7 on here"
    watching = "new MutationObserver(() => window.told.push(node.textContent)).observe(node, {childList: true})"
    said.evaluate(f"node => {{ window.told = []; {watching}; }}")
    for points in (6, 7, 8):
        change(seen(points))
        tab.get_by_text(f"{5 * points}%").first.wait_for()
    change(seen(8, condition="killed"))
    tab.locator(".badge[data-condition=killed]").wait_for()
    assert said.get_attribute("aria-live") == "polite"
    [told] = tab.evaluate("window.told")
    assert told.startswith("Killed. process 7 on here. fedtempo run --resume /tmp/Fed goes on")


def test_names_are_text(tab) -> None:
    rows = [Row(HOSTILE, (HOSTILE, 0.5, HOSTILE))]
    named = {
        **sections_of(seen(5, names=(HOSTILE, f"{HOSTILE}2"), diverged=True)),
        "head": head(HOSTILE, HOSTILE, HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], 0.5, HOSTILE, HOSTILE),
        f"table:{HOSTILE}": table(HOSTILE, (f"<{HOSTILE}", f"%{HOSTILE}", HOSTILE), rows, note=HOSTILE),
        f"chart:{HOSTILE}": chart(HOSTILE, HOSTILE, HOSTILE, [line(HOSTILE, [0, 1], [1, 2], "var(--ink)")]),
    }
    fails = threading.Event()

    def look() -> Any:
        if fails.is_set():
            raise ValueError(HOSTILE)
        return named

    with serving(look) as server:
        tab.goto(server.url)
        tab.locator("section.chart").nth(1).wait_for()
        tab.locator("figure.chart svg[tabindex]").first.hover(position={"x": 200, "y": 100})
        fails.set()
        tab.get_by_text("Cannot be read").wait_for()
        assert HOSTILE in tab.title()
        assert tab.locator("h1").inner_text() == HOSTILE
        assert tab.locator("section.table caption").last.inner_text() == HOSTILE
        assert tab.locator("section.chart h3").last.inner_text() == HOSTILE
        assert f"ValueError: {HOSTILE}" in tab.locator("section.trouble").inner_text()
        assert tab.get_by_role("button", name=HOSTILE, exact=True).count() == 1
        assert tab.locator("main script, main img").count() == 0
        tab.goto("about:blank")


def test_a_kill_is_seen_and_so_is_going_on(tab, tmp_path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "|")
    folder.mkdir()
    (folder / "study.json").write_text("{}")
    runs = [{"scheme": HOSTILE, "local_lr": 0.1}]
    about = {"of": 1, "times": [0.0, 1.0, 2.0], "units": [{"number": 0, "seeds": [0], "runs": runs}]}

    def begun(points: int) -> Live:
        writer = Live(folder / "live.jsonl")
        writer.begin(about)
        for k in range(points):
            writer._line(unit=0, point=k, at=k, values={"loss": [[1 / (1 + k)]]})
        writer._write()
        return writer

    writer, watched = begun(2), WatchedStudy(folder)
    with serving(lambda: sections_of(watched.look())) as server:
        tab.goto(server.url)
        tab.locator(".badge[data-condition=running]").wait_for()
        assert tab.locator("h1").inner_text() == f"Study in {folder.name}"
        assert tab.locator("section.table td").first.inner_text() == HOSTILE
        assert writer._file is not None
        writer._file.close()  # as the system does with the lock of a process that is killed
        tab.locator(".badge[data-condition=killed]").wait_for()
        assert "is gone: it was killed" in tab.locator("main").inner_text()
        writer = begun(3)
        tab.locator(".badge[data-condition=running]").wait_for()
        tab.get_by_text("100%").first.wait_for()
        writer.end("finished")
        tab.locator(".badge[data-condition=finished]").wait_for()
        tab.goto("about:blank")


def test_on_a_phone_nothing_hangs_over_and_nothing_moves_for_those_who_do_not_want_it(chromium) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740}, reduced_motion="reduce", color_scheme="dark")
    page = context.new_page()
    with serving(lambda: sections_of(seen(5, names=("A" * 90, "FedFix(1/2)")))) as server:
        page.goto(server.url)
        page.locator("section.table").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        narrow = "[...document.querySelectorAll('td.words')].filter((cell) => cell.clientWidth < 80).length"
        assert page.evaluate(narrow) == 0
        assert page.evaluate("getComputedStyle(document.querySelector('.progress .fill')).transitionProperty") == "none"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 29)"
        context.close()


def test_that_nobody_answers_is_said(chromium) -> None:
    page = chromium.new_page()
    with serving(lambda: sections_of(seen(5))) as server:
        page.goto(server.url)
        page.locator(".badge").wait_for()
        assert page.locator("#link").inner_text() == "Live"
    page.get_by_text("No connection: fedtempo watch has ended").wait_for()
    assert page.locator(".badge").inner_text() == "Running"
    assert "What is shown was seen at" in page.locator("#link").inner_text()
    page.close()
