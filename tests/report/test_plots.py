"""Every object that draws itself: a Figure that a notebook shows, a file of each kind, light and dark."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import fedtempo as ft
from fedtempo.report.inks import DARK
from fedtempo.simulation.history.history import History
from simulation.test_history import study
from support.recommendations import recommendation

TIMES = ft.FixedTimes.spread(8, 80)
SCHEME = ft.FedFix("1/2")
BEGINS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@cache
def drawn(name: str):
    if name == "History":
        return History(study(schemes=("FedAvg", "FedFix(1/2)"), points=5))
    if name == "Timeline":
        return ft.timeline(SCHEME, TIMES, until=4)
    if name == "Plan":
        return ft.compare(TIMES)
    if name == "Recommendation":
        return recommendation(pilot=True)
    if name == "Quantities":
        return ft.theory.quantities(scheme=SCHEME, times=TIMES)
    problem = ft.problems.quadratics(8, dimension=3, noise=0.1, rows=5, seed=2)
    local = ft.LocalSGD(steps=2, lr=0.0005, batch_size=4)
    return ft.theory.bound(problem, scheme=SCHEME, times=TIMES, local=local, rounds=40)


@pytest.mark.parametrize("name", ["History", "Timeline", "Plan", "Recommendation", "Quantities", "Bound"])
def test_objects_draw_themselves(name, tmp_path) -> None:
    given = drawn(name)
    assert type(given).__name__ == name
    for ending, begin in BEGINS.items():
        path = tmp_path / f"a.{ending}"
        figure = given.plot(path=path) if name == "History" else given.plot(str(path))
        assert isinstance(figure, Figure)
        assert path.read_bytes().startswith(begin)
    assert figure._repr_png_().startswith(b"\x89PNG")
    dark = given.plot(style="dark")
    assert to_hex(dark.get_facecolor()) == DARK.background
    assert all(to_hex(axes.get_facecolor()) == DARK.background for axes in dark.axes)
    with pytest.raises(ft.InputError, match="the ending must be one of svg, png, pdf"):
        given.plot(path=tmp_path / "a.gif")
    with pytest.raises(ft.InputError, match="'light' or 'dark'"):
        given.plot(style="blue")


def test_a_plan_shows_its_numbers() -> None:
    plan = drawn("Plan")
    pace, idle, weights, bias = plan.plot().axes
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in pace.lines]
    assert dots == [(one.mean_delay, one.updates_per_time) for one in plan.schemes]
    assert [bar.get_width() for bar in idle.patches] == [one.idle_share for one in plan.schemes]
    order = np.argsort(TIMES.mean_time)
    for k, one in enumerate(plan.schemes):
        assert np.allclose(weights.lines[k].get_xdata(), TIMES.mean_time[order])
        assert np.allclose(weights.lines[k].get_ydata(), one.weights.values[-1][order])
        assert np.allclose(bias.lines[k].get_ydata(), 8 * one.identical_share[order])


@pytest.mark.parametrize(
    "times",
    [
        ft.FixedTimes([1]),
        ft.FixedTimes([1, 1, 1]),
        TIMES.available(failure="1/10"),
        TIMES.available(absences={3: [(4, None)]}),
    ],
    ids=["one", "equal", "failing", "leaving"],
)
def test_plans_of_odd_clients_are_drawn(times) -> None:
    ft.compare(times, [ft.FedAvg(), ft.AsyncFedAvg()]).plot().canvas.draw()


def test_a_plan_without_weights_is_drawn_without_them() -> None:
    plan = ft.compare(TIMES, [ft.FedAvg(), ft.FastestSampling(3)])
    assert plan.schemes[1].weights is None
    assert len(plan.plot().axes[2].lines) == 1


def test_the_bars_of_a_bound_are_its_terms() -> None:
    found = drawn("Bound")
    axes = found.plot().axes[0]
    known = [value for value in (*found.terms.values(), found.theorem_1) if value]
    widths = [bar.get_width() for bar in axes.patches]
    assert {w for w in widths if w > 0} <= {*known, found.theorem_2, found.theorem_3, found.theorem_3_gradient}
    assert found.theorem_1 in widths
    assert found.parts.start in widths
    assert len(axes.get_yticklabels()) == len(found.terms) + 5
