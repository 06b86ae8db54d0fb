"""Labels of a history's figures: they name the rates, touch nothing, and each setting has a panel."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import fedtempo as ft
from fedtempo.report.history_figure import rates_label, scheme_labels, study_figure
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.merging import merge
from report.test_style import FOURTEEN
from simulation.test_history import study

LONG = tuple(f"{name} + Scaffold + TopK(1%)" for name in ("FedAvg", "AsyncFedAvg", "FedFix(1/2)", "FedFix(1/4)"))


def boxes(axes) -> list[Bbox]:
    """Where the texts of the axes are, without the lines that lead to them."""
    renderer = axes.figure.canvas.get_renderer()
    return [Text.get_window_extent(text, renderer) for text in axes.texts]


def labelled(figure: Figure) -> list[str]:
    """What stands beside the ends of lines."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def different_rates() -> History:
    dataset = study()
    dataset["loss"].values[1, 1, 0] *= 0.1  # asynchronous FedAvg with identical weights
    dataset["loss"].values[2, :, 1] *= 0.5
    return History(dataset)


def test_labels_name_the_rates_that_were_chosen() -> None:
    history = different_rates()
    best = history.best().dataset["local_lr"]
    assert best.sel(scheme="AsyncFedAvg").values.tolist() == [0.03, 0.01]
    labels = scheme_labels(history.best())
    assert labels["FedFix(1/5)"] == "FedFix(1/5), lr 0.03"
    assert labels["AsyncFedAvg"] == "AsyncFedAvg, lr 0.03 (identical: lr 0.01)"
    assert "FedFix(1/5), lr 0.03" in labelled(history.plot())
    assert "FedFix(1/5), lr 0.03" in labelled(history.best().plot())  # also where somebody has chosen before
    assert "FedFix(1/5), lr 0.03" in legend_of(study_figure(history))


def test_a_rate_that_all_share_is_said_once() -> None:
    history = History(study(rates=(0.1,)).isel(local_lr=0))
    figure = history.plot()
    assert figure.axes[0].get_title(loc="left") == "all at lr 0.1"
    assert "FedAvg" in labelled(figure)
    assert study_figure(history).get_suptitle().replace("\n", " ").endswith(", lr 0.1")


def test_a_scheme_that_diverged_at_every_rate_says_so() -> None:
    dataset = study()
    dataset["diverged_at"].values[0, 0, :, 0] = 5.0
    assert rates_label(History(dataset).best(), "FedAvg") == "diverged (identical: lr 0.1)"


@pytest.mark.parametrize("rules", [("time-based",), ("time-based", "identical")])
@pytest.mark.parametrize("schemes", [FOURTEEN[:2], FOURTEEN[:8], FOURTEEN, LONG], ids=["2", "8", "14", "long"])
def test_labels_touch_neither_each_other_nor_the_edge(schemes, rules) -> None:
    figure = History(study(schemes=schemes, rules=rules)).plot()
    figure.canvas.draw()
    axes = figure.axes[0]
    found = boxes(axes)
    assert not any(a.overlaps(b) for a, b in combinations(found, 2))
    assert all(axes.bbox.x1 < box.x0 and box.x1 <= figure.bbox.x1 for box in found)
    beside, listed = labelled(figure), legend_of(figure)
    for scheme in schemes:
        assert any(label.startswith(f"{scheme}, lr 0.") for label in (*beside, *listed))
    assert len({to_hex(line.get_color()) for line in axes.lines}) == len(schemes)
    if len(schemes) == 8:
        assert len(beside) == 8
    if len(schemes) == 14:
        assert not beside
    for box in (one.get_window_extent() for one in figure.legends):
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert not box.overlaps(axes.bbox)


def test_the_target_is_named_where_no_line_is() -> None:
    figure = study_figure(History(study()), target=0.5)
    figure.canvas.draw()
    axes = figure.axes[0]
    (label,) = [text for text in axes.texts if text.get_text().startswith("target")]
    box = label.get_window_extent(figure.canvas.get_renderer())
    for line in axes.lines:
        assert not line.get_path().transformed(line.get_transform()).intersects_bbox(box, filled=False)
    assert box.x0 > axes.bbox.x1
    assert not box.overlaps(figure.axes[1].get_tightbbox())


def test_a_scheme_with_weights_of_its_own_has_one_solid_line() -> None:
    dataset = study(schemes=("FedAvg", "FedAsync"), rules=("identical", "time-based"))
    figure = History(dataset.assign_attrs(own_weights=json.dumps({"FedAsync": "mixing"}))).plot()
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert [line.get_linestyle() for line in lines] == ["--", "-", "-"]
    assert "FedAsync, lr 0.1, own weights" in labelled(figure)


def several() -> History:
    one, other = study(), study()
    other["loss"].values[:, :, 0] *= 0.3
    return merge({"F80": History(one), "F0": History(other)}, dim="times")


def test_each_setting_has_a_panel_with_its_own_rates() -> None:
    history = several()
    for figure in (history.plot(), study_figure(history, target=0.5)):
        figure.canvas.draw()
        assert [axes.get_title(loc="left") for axes in figure.axes] == ["F80", "F0"]
        assert legend_of(figure)[:5] == history.dataset["scheme"].values.tolist()
        best = history.best()
        for axes, name in zip(figure.axes, ("F80", "F0"), strict=True):
            here = best.dataset["local_lr"].sel(times=name, weights="time-based").values.tolist()
            rates = [text.get_text() for text in axes.texts if "lr" in text.get_text()]
            assert rates == [f"lr {rate:g}" for rate in here]
            mean = best.mean()["loss"].sel(times=name, scheme="FedFix(1/2)", weights="time-based")
            assert any(np.array_equal(line.get_ydata(), mean) for line in axes.lines)
            assert not any(a.overlaps(b) for a, b in combinations(boxes(axes), 2))
    assert any("target 0.5" in text for text in labelled(study_figure(history, target=0.5)))
    with pytest.raises(ft.InputError, match="a panel for each"):
        history.plot(ax=Figure().add_subplot())


def test_problems_and_times_make_rows_and_columns() -> None:
    grid = merge({"digits": several(), "mnist": several()}, dim="problem")
    titles = [axes.get_title(loc="left") for axes in grid.plot().axes]
    assert titles == ["digits · F80", "digits · F0", "mnist · F80", "mnist · F0"]
