"""The page of a plan in Chromium: sliders are dragged, and what it shows is what `ft.compare` and `ft.timeline` say."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.planning import explore
from fedtempo.report.browser.plan_page import TICKS, plan_page
from fedtempo.report.jobs import work_of
from support.recommendations import recommendation

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Eight clients F60, and beside them five clients, F0 and F40."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explore, "CLIENTS", (5,))
        patch.setattr(explore, "SPREADS", (0, 40))
        made = plan_page(ft.compare(ft.FixedTimes.spread(8, 60)))
    return made.save(tmp_path_factory.mktemp("page") / "plan.html")


@pytest.fixture
def opened(tab, file):
    tab.goto(file.as_uri())
    return tab


def shown(tab: Any) -> dict[str, float | None]:
    """The numbers on the page, as they are."""
    read = "() => Object.fromEntries([...document.querySelectorAll('dd')].map(d => [d.dataset.name, d.dataset.value]))"
    return {name: None if value == "null" else float(value) for name, value in tab.evaluate(read).items()}


def asked(tab: Any) -> dict[str, str]:
    """What is set, by the page's address."""
    return tab.evaluate("() => Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


def drag(tab: Any, name: str, share: float) -> None:
    """Take a slider's thumb and put it elsewhere."""
    slider = tab.locator(f'[data-range="{name}"] input')
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    now = tab.evaluate(f"""() => {{ const i = document.querySelector('[data-range="{name}"] input');
        return i.max > 0 ? i.value / i.max : 0; }}""")
    room, y = box["width"] - 16, box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + 8 + now * room, y)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 8 + share * room, y, steps=5)
    tab.mouse.up()


def times_of(place: dict[str, str]) -> ft.ClientTimes:
    fixed = ft.FixedTimes.spread(int(place["clients"]), place["spread"])
    return fixed if place["law"] == "fixed" else ft.ExponentialTimes(list(fixed.exact_mean_time))


def scheme_of(place: dict[str, str]) -> ft.Scheme:
    if place["scheme"] == "FedFix":
        return ft.FedFix(place["wait"])
    return ft.FedBuff(int(place["buffer"])) if place["scheme"] == "FedBuff" else getattr(ft, place["scheme"])()


@cache
def compared(scheme: ft.Scheme, times: ft.ClientTimes, weights: str) -> Any:
    return ft.compare(times, scheme, weights=weights).schemes[0]


def check(tab: Any) -> None:
    """The page's numbers are those of `ft.compare` for what its address names."""
    place, seen = asked(tab), shown(tab)
    times, scheme = times_of(place), scheme_of(place)
    one, fedavg = (compared(made, times, place["weights"]) for made in (scheme, ft.FedAvg()))
    truth = {
        "rounds": one.rounds_per_time,
        "updates": one.updates_per_time,
        "idle": one.idle_share,
        "delay": one.mean_delay,
        "step": one.step,
        "speed": one.server_step_per_time / fedavg.server_step_per_time,
        "least": one.weights.values[-1].min(),
        "largest": one.weights.values[-1].max(),
        "bias": one.identical_bias,
    }
    for name, value in truth.items():
        assert seen[name] == pytest.approx(value, rel=1e-3, abs=1e-6), (place, name)
    if place["law"] == "fixed":
        assert (seen["most"], seen["practical"]) == (one.max_delay, one.practical_window)
        assert seen["window"] == pytest.approx(one.window, rel=1e-2)
    assert f"{scheme.label} with {place['clients']} clients" in tab.locator("#sentence").inner_text()
    assert tab.locator("h1").inner_text().startswith(f"{place['clients']} clients with {place['law']} times ")


def test_every_slider_is_dragged_and_the_numbers_follow(opened):
    check(opened)
    for name, share in (
        ("wait", 0.1),
        ("wait", 1.0),
        ("buffer", 0.0),
        ("buffer", 1.0),
        ("clients", 0.0),
        ("spread", 0),
    ):
        before = asked(opened), shown(opened)
        drag(opened, name, share)
        assert asked(opened) != before[0], name
        assert shown(opened) != before[1], name
        check(opened)


def test_two_dozen_settings_say_what_compare_says(opened):
    places = set()
    cases = [*product((5, 8), (40, 60), ("fixed",), ("time-based", "identical", "importance"))]
    cases += [(5, 40, "exponential", "identical"), (8, 60, "exponential", "time-based")]  # whose truth takes seconds
    for clients, spread, law, weights in cases:
        scheme = ("FedFix", "FedBuff", "AsyncFedAvg")[len(places) % 3]
        place = f"clients={clients}&spread={spread}&law={law}&scheme={scheme}&wait=7/20&buffer=3&weights={weights}"
        for change in ("", "FedAvg"):
            opened.evaluate(f"location.hash = '{place}'")
            opened.wait_for_function(f"document.querySelector('#rule').value === '{weights}'")
            if change:
                opened.get_by_label(change, exact=True).check()
            places.add(tuple(sorted(asked(opened).items())))
            check(opened)
    assert len(places) >= 24


def test_an_address_restores_what_was_set_and_says_what_it_cannot(opened, file):
    drag(opened, "wait", 0.3)
    opened.locator("#law").select_option("exponential")
    opened.locator("#rule").select_option("identical")
    address, numbers = opened.url, shown(opened)
    opened.goto("about:blank")
    opened.goto(address)
    assert shown(opened) == numbers
    assert opened.locator("#rule").input_value() == "identical"
    assert opened.locator("#note").inner_text() == ""
    opened.goto("about:blank")
    opened.goto(f"{file.as_uri()}#clients=7&scheme=<b>Nope</b>&wait=0.26&law=%3Cscript%3E")
    assert "clients 7, law <script>, scheme <b>Nope</b>, wait 0.26" in opened.locator("#note").inner_text()
    check(opened)


def test_the_page_draws_the_jobs_of_the_clock(opened):
    federation = "FT.data.federations.find(f => f.clients === 8 && f.spread === 60 && f.law === '{law}')"
    for law, scheme in product(
        ("fixed", "exponential"), (ft.FedFix("7/20"), ft.AsyncFedAvg(), ft.FedBuff(3), ft.FedAvg())
    ):
        drawn = opened.evaluate(
            f"() => {{ const f = {federation.format(law=law)};"
            f" const s = f.settings.find(s => s.label === '{scheme.label}');"
            " return FT.jobsOf(s, f, FT.data.ticks).jobs.map(j => [j.client, j.sent, j.back, j.taken, j.delay]); }"
        )
        line = ft.timeline(scheme, times_of({"clients": "8", "spread": "60", "law": law}), until=4)
        jobs = work_of(line.origin.config, line, 4.0).jobs
        truth = np.array(
            [jobs.client, *(np.array(t) * TICKS / 4 for t in (jobs.sent, jobs.back, jobs.taken)), jobs.delay]
        )
        by_client = np.lexsort((truth[1], truth[0]))
        found = np.array(drawn).T
        found = found[:, np.lexsort((found[1], found[0]))]
        assert found.shape == truth.shape, scheme
        assert np.array_equal(found[[0, 4]], truth[:, by_client][[0, 4]]), scheme
        assert np.abs(found - truth[:, by_client]).max() <= 2, scheme


def test_jobs_and_bars_are_read_by_keys(opened):
    opened.locator("#lanes svg").focus()
    for _ in range(3):
        opened.keyboard.press("ArrowRight")
    words = opened.locator("#lanes [role=status]").text_content()
    assert words.startswith("client 0, job 2: sent model ")
    assert "staleness 1, weight " in words
    opened.keyboard.press("ArrowDown")
    assert opened.locator("#lanes [role=status]").text_content().startswith("client 1, job ")
    opened.locator("#counts svg").focus()
    opened.keyboard.press("ArrowRight")
    assert "counts 1 times its due; 0.8 if" in opened.locator("#counts [role=status]").text_content()


def test_radios_and_selects_have_names_and_the_page_fits_a_phone(opened):
    for name in ("Client times", "Weights"):
        assert opened.get_by_label(name).count() >= 1, name
    for name in ("Wait", "Buffer size", "Clients", "Spread"):
        slider = opened.get_by_role("slider", name=name, exact=True)
        assert slider.count() == 1, name
        slider.focus()
    opened.set_viewport_size({"width": 390, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def test_own_times_have_one_place_and_names(tab, tmp_path):
    trace = tmp_path / "times.csv"
    rows = [
        f"{name},{value}" for name, value in (("<img src=x onerror=alert(1)>", 2), ("b", 1), ("c", 3)) for _ in "ab"
    ]
    trace.write_text("client,duration\n" + "\n".join(rows), encoding="utf-8")
    made = ft.compare(ft.TraceTimes.read(trace), [ft.FedFix(Fraction(1, 2)), ft.UniformSampling(2)])
    made.to_html(tmp_path / "plan.html")
    tab.goto((tmp_path / "plan.html").as_uri())
    tab.get_by_label("UniformSampling(2)").check()
    assert tab.locator("img").count() == 0
    assert tab.locator('[data-range="clients"] input').is_disabled()
    assert tab.locator("#lanes rect.job").count() > 4


def test_long_names_of_clients_stay_below_their_bars(tab, tmp_path):
    trace = tmp_path / "times.csv"
    names = [f"client-with-a-long-name-{k}" for k in range(6)]
    trace.write_text("client,duration\n" + "\n".join(f"{name},{k + 1}" for k, name in enumerate(names)))
    ft.compare(ft.TraceTimes.read(trace), [ft.FedFix(2)]).to_html(tmp_path / "plan.html")
    tab.goto((tmp_path / "plan.html").as_uri())
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.wait_for_timeout(100)
        ticks = tab.locator("#counts svg text[text-anchor=middle]")
        boxes = [tick.bounding_box() for tick in ticks.all()]
        assert len(boxes) == len(names)
        assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(boxes)), width
        assert all(tick.endswith("…") for tick in ticks.all_text_contents())
    tab.locator("#counts svg").focus()
    tab.keyboard.press("ArrowRight")
    assert names[0] in tab.locator("#counts [role=status]").text_content()


def test_one_model_is_one_model(tab, tmp_path):
    ft.compare(ft.FixedTimes([1]), [ft.FedFix(Fraction(1, 2))]).to_html(tmp_path / "plan.html")
    tab.goto((tmp_path / "plan.html").as_uri())
    said = tab.locator("#sentence").inner_text()
    assert "2 models and 1 client update in a unit of time; an update is 1 model old" in said


def test_losses_follow_the_scheme_and_stay_where_they_were_trained(tab, tmp_path, monkeypatch):
    monkeypatch.setattr(explore, "CLIENTS", (5,))
    monkeypatch.setattr(explore, "SPREADS", (60,))
    made = recommendation(times=ft.FixedTimes.spread(10, 60), pilot=True)
    plan = ft.compare(made.times, [one.scheme for one in made.choices])
    plan.to_html(tmp_path / "plan.html", recommendation=made)
    tab.goto((tmp_path / "plan.html").as_uri())
    said = tab.locator("#race p[role=status]")
    assert asked(tab)["scheme"] == "FedFix"
    assert asked(tab)["wait"] == "5/4"
    assert said.inner_text().startswith("FedFix(5/4) at lr 0.5: loss at time 200 0.0142 ± ")
    lines = tab.locator("#race figure").first.locator("path.line")
    assert lines.count() == len(made.curves) + 1
    assert tab.locator("#race path.line.wide").count() == 1
    tab.get_by_label("FedAvg", exact=True).check()
    assert said.inner_text().startswith("FedAvg at lr ")
    tab.evaluate("location.hash = 'scheme=FedBuff&buffer=8'")
    tab.wait_for_function("document.querySelector('#race p').textContent.startsWith('FedBuff(8) was not trained')")
    tab.locator("#law").select_option("exponential")
    assert "Schemes were trained for 10 clients with fixed times" in tab.locator("#race").inner_text()
    tab.get_by_role("button", name="Go there").click()
    assert asked(tab)["law"] == "fixed"
    assert lines.count() >= len(made.curves)
