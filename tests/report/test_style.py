"""What figures share: colours that can be told apart, labels that do not touch, light and dark."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D

import fedtempo as ft
from fedtempo.report.inks import DARK, LIGHT, colours, theme_of
from fedtempo.report.style import legend_below, new_figure, spread_out

FOURTEEN = (
    *("FedAvg", "AsyncFedAvg", "FedFix(1/16)", "FedFix(1/8)", "FedFix(1/4)", "FedFix(1/2)", "FedFix(3/4)"),
    *("FedBuff(2)", "FedBuff(5)", "FedBuff(10)", "FedAsync(0.6)", "FedNova", "UniformSampling(5)", "CuredSampling(5)"),
)

# Machado, Oliveira, Fernandes (2009): what people without the middle or long cones see, in linear RGB.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def seen(colour: str, eye: np.ndarray) -> np.ndarray:
    """The colour in OKLab, as an eye sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return TO_LAB @ np.cbrt(np.clip(TO_CONES @ np.clip(eye @ linear, 0, 1), 0, None))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("eye", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["all", "deuteranopia", "protanopia"])
def test_fourteen_schemes_can_be_told_apart(theme, eye) -> None:
    found = colours(FOURTEEN, theme)
    assert len(set(found.values())) == 14
    assert min(np.linalg.norm(seen(a, eye) - seen(b, eye)) for a, b in combinations(found.values(), 2)) > 0.07
    paper = seen(theme.background, eye)
    assert min(np.linalg.norm(seen(colour, eye) - paper) for colour in found.values()) > 0.15


def test_the_papers_schemes_keep_their_colours() -> None:
    found = colours(("FedAvg", "AsyncFedAvg", "FedFix(1/2)", "FedBuff(10)"))
    assert list(found.values()) == ["#2b2b2b", "#d55e00", "#0072b2", "#009e73"]
    assert colours(("FedFix(1/2) + Scaffold",)) == {"FedFix(1/2) + Scaffold": "#0072b2"}


def test_labels_are_spread_as_little_as_needed() -> None:
    assert np.allclose(spread_out(np.array([0.2, 0.9, 0.5]), 0.1), [0.2, 0.9, 0.5])
    close = spread_out(np.array([0.5, 0.5, 0.5, 0.1]), 0.1)
    assert np.allclose(sorted(close), [0.1, 0.4, 0.5, 0.6])
    for wanted in np.random.default_rng(0).uniform(0, 1, (50, 9)):
        places = spread_out(wanted, 0.1)
        assert (np.diff(np.sort(places)) > 0.1 - 1e-12).all()
        assert (np.argsort(places) == np.argsort(wanted)).all()
        assert places.min() >= 0.05 - 1e-12
        assert places.max() <= 0.95 + 1e-12


def test_a_legend_is_inside_the_figure_and_can_be_replaced() -> None:
    figure = new_figure(6.0, 4.0)
    figure.add_subplot()
    legend_below(figure, [Line2D([], [], label=f"FedFix(1/{k}) + Scaffold + TopK(1%), lr 0.5") for k in range(14)])
    assert figure.get_figheight() > 5
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    legend_below(figure, [Line2D([], [], label="one")])
    assert len(figure.legends) == 1
    assert figure.get_figheight() == pytest.approx(4.0)


def test_no_settings_of_matplotlib_are_left_behind(tmp_path) -> None:
    before = dict(matplotlib.rcParams)
    figure = ft.timeline(ft.FedFix("1/2"), ft.FixedTimes([1, 2]), until=4).plot(tmp_path / "a.png", style="dark")
    assert to_hex(figure.get_facecolor()) == DARK.background
    assert dict(matplotlib.rcParams) == before


def test_an_unknown_style_is_named() -> None:
    with pytest.raises(ft.InputError, match="style: 'grey' is not known; give 'light' or 'dark'"):
        theme_of("grey")
