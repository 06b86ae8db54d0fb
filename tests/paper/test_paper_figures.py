"""The drawings of the paper's figures: their lines must be the numbers of the histories, and nothing may go missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedtempo.errors import InputError
from fedtempo.paper.curves import ABOVE
from fedtempo.paper.drawing import caption, picture
from fedtempo.paper.figure_file import read_figure
from fedtempo.paper.figure_schemes import rates_figure, schemes_figure, steady_figure
from fedtempo.paper.figure_steps import steps_figure
from fedtempo.paper.figure_weights import weights_figure
from fedtempo.paper.stages import at_own_rates, at_shared_rate
from fedtempo.report.inks import colours
from fedtempo.report.style import save_figure
from fedtempo.simulation.history.history import History

RULES = ("identical", "time-based")
SCHEMES = ("FedAvg", "AsyncFedAvg", "FedFix(1/2)", "FedBuff(10)")
RATES = (0.001, 0.002, 0.005)
TITLES = {"mnist": "MNIST", "mnist-shard": "MNIST-shard", "cifar10": "CIFAR-10", "shakespeare": "Shakespeare"}
QUARTERS = [f"{data}-{m}-{times}" for data in ("cifar10", "shakespeare") for m in (20, 50) for times in ("F0", "F80")]
PURPLE = "#5e3c99"  # identical weights


def made(schemes=("AsyncFedAvg",), rules=RULES, seeds=3, points=41, seed=0, best=(1, 2), **hyper) -> xr.Dataset:
    """Losses that fall to a level, the lowest for the rate at `best` of each weight rule."""
    hyper = hyper or {"local_lr": RATES}
    coords = {"scheme": list(schemes), "weights": list(rules), **{k: list(v) for k, v in hyper.items()}}
    coords |= {"seed": list(range(seeds)), "time": np.linspace(0.0, 200.0, points)}
    shape = [len(v) for v in coords.values()]
    dataset = xr.Dataset(coords=coords)
    rng = np.random.default_rng(seed)
    level = np.full([*shape[:-1], 1], 0.5)
    level += 0.1 * np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    if "local_lr" in hyper:
        place = np.arange(len(hyper["local_lr"])).reshape([-1 if d == "local_lr" else 1 for d in coords])
        wanted = np.array(best[: len(rules)]).reshape([-1 if d == "weights" else 1 for d in coords])
        level = level + 0.05 * np.abs(place - wanted)
    fall = level + (2.3 - level) / (1 + coords["time"] / 10)
    for k, name in enumerate(("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation")):
        dataset[name] = (list(coords), fall * (1 - 0.1 * k) * np.exp(0.01 * rng.normal(size=shape)))
    dataset["diverged_at"] = (list(coords)[:-1], np.full(shape[:-1], np.nan))
    return dataset


def diverge(dataset: xr.Dataset, at: int, **where) -> None:
    """Let the runs there diverge at a place of the time grid."""
    time = dataset["time"].values
    for name in ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation"):
        dataset[name].loc[{**where, "time": time[at:]}] = np.nan
    dataset["diverged_at"].loc[where] = time[at]


def curves(axes):
    """The lines over data, without crosses and what stands beside a panel."""
    return [line for line in axes.lines if len(line.get_xdata()) > 2]


def crosses_in(axes):
    return [line for line in axes.lines if line.get_marker() == "x"]


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def legend(figure: Figure) -> list[str]:
    (one,) = figure.legends
    return [text.get_text() for text in one.get_texts()]


def drawn(figure: Figure) -> Figure:
    """The figure, once it has been drawn without a warning, no text smaller than 7 points, no legend cut off."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert 7.0 <= figure.get_figwidth() <= 10.0
    for text in figure.findobj(lambda a: hasattr(a, "get_text") and hasattr(a, "get_fontsize")):
        if text.get_text():
            assert text.get_fontsize() >= 7.0
    for box in (one.get_window_extent() for one in figure.legends):
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    return figure


# -- figure 2


def test_the_curves_of_weights_are_means_at_the_shared_rate() -> None:
    history = History(made())
    figure = drawn(weights_figure({"mnist": history}, {"mnist": "MNIST"}, "a note"))
    shared, own = at_shared_rate(history), at_own_rates(history)
    assert len(figure.axes) == 4
    for axes, measure in zip(
        figure.axes, ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation"), strict=True
    ):
        thin, fair, biased = curves(axes)
        expected = ((biased, shared, "identical"), (fair, shared, "time-based"), (thin, own, "time-based"))
        for line, runs, rule in expected:
            mean = runs.dataset[measure].sel(scheme="AsyncFedAvg", weights=rule).mean("seed")
            np.testing.assert_allclose(line.get_ydata(), mean.values)
            np.testing.assert_allclose(line.get_xdata(), history.dataset["time"].values)
        assert to_hex(biased.get_color()) == PURPLE
        assert to_hex(fair.get_color()) == colours(["AsyncFedAvg"])["AsyncFedAvg"]
        assert biased.get_linestyle() == "--"
        assert fair.get_linestyle() == "-"
        assert thin.get_linewidth() < fair.get_linewidth()
        assert len(axes.collections) == 3
    assert "$\\eta_l$ = 0.002 (own best: 0.005)" in texts(figure.axes[0])
    assert figure.axes[0].get_title(loc="left") == "MNIST"
    assert figure.get_suptitle() == "a note"
    assert legend(figure)[:3] == [
        "identical weights",
        "time-based weights",
        "time-based weights, at their own best rate",
    ]


def test_own_rates_are_left_out_where_they_are_the_shared_one() -> None:
    figure = weights_figure({"mnist": History(made(best=(1, 1)))}, {"mnist": "MNIST"}, "")
    assert len(curves(figure.axes[0])) == 2
    assert "$\\eta_l$ = 0.002" in texts(figure.axes[0])
    assert not any("own" in label for label in legend(figure))


def test_the_ends_and_their_difference_are_those_of_the_last_tenth() -> None:
    dataset = made(best=(1, 1))
    dataset["loss"].values[:, 1] *= 0.8
    history = History(dataset)
    axes = weights_figure({"mnist": history}, {"mnist": "MNIST"}, "").axes[0]
    shared = at_shared_rate(history).final("loss").sel(scheme="AsyncFedAvg").mean("seed")
    dots = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    np.testing.assert_allclose(dots, shared.sel(weights=list(RULES)).values)
    share = 100 * (dots[1] / dots[0] - 1)
    assert f"−{-share:.0f}%" in texts(axes)
    heights = [(axes.transData - axes.transAxes).transform((1.0, dot))[1] for dot in dots]
    assert heights[0] - heights[1] > 0.08


def test_a_small_difference_at_the_end_narrows_the_axis_but_not_below_the_curves() -> None:
    near, far = made(best=(1, 1), points=401), made(best=(1, 1), points=401)
    near["loss"].values[:, 1] *= 0.99
    far["loss"].values[:, 1] *= 0.4
    figures = [weights_figure({"x": History(d)}, {"x": "X"}, "") for d in (near, far)]
    tops = [figure.axes[0].get_ylim()[1] for figure in figures]
    assert tops[0] < 1.5 < 2.0 < tops[1]
    for axes in (axes for figure in figures for axes in figure.axes):
        assert axes.get_xscale() == "linear"
        assert axes.get_xlim() == (0.0, near["time"].values[-1])


def test_missing_and_empty_parts_say_so() -> None:
    empty = made()
    for name in empty.data_vars:
        empty[name].values[:] = np.nan
    partial = made().drop_vars(["surrogate_loss", "surrogate_deviation"])
    figure = drawn(weights_figure({"mnist": History(empty), "cifar10": History(partial)}, TITLES, "note"))
    grid = np.array(figure.axes).reshape(4, 4)
    assert [axes.get_title(loc="left") for axes in grid[0]] == list(TITLES.values())
    for column in (0, 1, 3):
        assert all(texts(axes) == ["not run"] and not axes.has_data() for axes in grid[:, column])
    assert len(curves(grid[0, 2])) == len(curves(grid[1, 2])) == 3
    assert texts(grid[2, 2]) == texts(grid[3, 2]) == ["not measured"]
    assert grid[1, 2].get_xlabel() == "virtual time"
    assert grid[0, 0].get_ylabel().startswith("(a)")
    assert not drawn(weights_figure({}, TITLES, "")).legends


def test_time_is_labelled_once_a_column() -> None:
    history = History(made())
    figure = drawn(weights_figure(dict.fromkeys(TITLES, history), TITLES, "note " * 100))
    grid = np.array(figure.axes).reshape(4, 4)
    assert [[axes.get_xlabel() for axes in row] for row in grid] == [[""] * 4] * 3 + [["virtual time"] * 4]
    assert "\n" in figure.get_suptitle()


def test_a_diverged_line_ends_with_a_cross_where_it_ends() -> None:
    dataset = made(best=(1, 0))
    diverge(dataset, 30, weights="time-based", local_lr=0.002, seed=0)
    history = History(dataset)
    figure = drawn(weights_figure({"x": history}, {"x": "X"}, ""))
    for axes in figure.axes:
        (cross,) = crosses_in(axes)
        fair = curves(axes)[1]
        known = np.flatnonzero(np.isfinite(fair.get_ydata()))[-1]
        point = axes.transData.transform((fair.get_xdata()[known], fair.get_ydata()[known]))
        place = axes.transAxes.transform((cross.get_xdata()[0], cross.get_ydata()[0]))
        assert np.abs(point - place).max() < 6
        assert "%" not in "".join(texts(axes))
    assert "diverged" in legend(figure)


def test_a_line_that_comes_from_above_and_leaves_again_has_its_cross_where_it_leaves() -> None:
    dataset = made(best=(1, 1), points=401)
    dataset["loss"].values[:, 1, 1, :, 290:300] *= 50
    diverge(dataset, 300, weights="time-based", local_lr=0.002, seed=1)
    axes = drawn(weights_figure({"x": History(dataset)}, {"x": "X"}, "")).axes[0]
    (cross,) = crosses_in(axes)
    when = axes.transData.inverted().transform(axes.transAxes.transform((cross.get_xdata()[0], 0.5)))[0]
    assert abs(when - dataset["time"].values[290]) < 2
    assert cross.get_ydata()[0] > 0.9


def test_identical_weights_that_always_diverge_leave_the_own_rate_of_the_others() -> None:
    dataset = made()
    dataset["loss"].loc[{"weights": "identical"}] = np.nan
    figure = weights_figure({"x": History(dataset)}, {"x": "X"}, "")
    assert "identical weights were not run" in texts(figure.axes[0])
    dataset = made()
    for rate in RATES:
        diverge(dataset, 20, weights="identical", local_lr=rate, seed=0)
    figure = drawn(weights_figure({"x": History(dataset)}, {"x": "X"}, ""))
    assert "identical weights diverged at every rate" in texts(figure.axes[0])
    assert len(curves(figure.axes[0])) == 1


# -- figure 3


def test_the_points_of_steps_are_over_the_last_twentieth() -> None:
    steps = (1, 4, 16, 25)
    dataset = made(points=101, local_steps=steps, local_lr=(0.0005, 0.005))
    figure = drawn(steps_figure({"cifar10": History(dataset)}, TITLES, "note"))
    grid = np.array(figure.axes).reshape(2, 2)
    assert figure.get_suptitle() == "CIFAR-10. note"
    last = dataset["loss"].isel(scheme=0).sel(time=slice(190.0, None))
    assert last.sizes["time"] == 6
    for k, rate in enumerate((0.0005, 0.005)):
        assert f"{rate:g}" in grid[0, k].get_title(loc="left")
        for line, low, rule in zip(curves(grid[0, k]), curves(grid[1, k]), RULES, strict=True):
            run = last.sel(weights=rule, local_lr=rate)
            np.testing.assert_allclose(line.get_xdata(), steps)
            np.testing.assert_allclose(line.get_ydata(), run.mean(["time", "seed"]))
            np.testing.assert_allclose(low.get_ydata(), run.std("time", ddof=1).mean("seed"))
            assert (to_hex(line.get_color()) == PURPLE) == (rule == "identical")
            assert (line.get_linestyle() == "--") == (rule == "identical")
        assert len(grid[0, k].collections) == 2
        assert len(grid[1, k].collections) == 0
    assert legend(figure) == ["identical weights", "time-based weights", "± deviation over the last 5 % of the time"]


def test_steps_that_diverge_or_were_not_run_leave_gaps() -> None:
    dataset = made(local_steps=(1, 4, 16, 25), local_lr=RATES)
    diverge(dataset, 5, weights="time-based", local_steps=25, local_lr=0.005, seed=0)
    dataset["loss"].loc[{"local_steps": 4, "local_lr": 0.001}] = np.nan
    dataset["loss"].loc[{"local_lr": 0.002}] = np.nan
    figure = drawn(steps_figure({"x": History(dataset)}, {"x": "X"}, ""))
    grid = np.array(figure.axes).reshape(2, 3)
    assert np.isnan(curves(grid[0, 0])[0].get_ydata()).tolist() == [False, True, False, False]
    assert texts(grid[0, 1]) == texts(grid[1, 1]) == ["not run"]
    assert np.isnan(curves(grid[0, 2])[1].get_ydata()).tolist() == [False, False, False, True]
    assert [len(crosses_in(axes)) for axes in grid[0]] == [0, 0, 1]
    assert "diverged" in legend(figure)


def test_a_rate_that_is_mostly_crosses_is_named_and_not_drawn() -> None:
    dataset = made(local_steps=(1, 4, 16, 25), local_lr=RATES)
    diverge(dataset, 5, local_steps=25, local_lr=0.005, seed=0)
    assert len(drawn(steps_figure({"x": History(dataset)}, {"x": "X"}, "")).axes) == 6  # two of eight points
    diverge(dataset, 5, weights="identical", local_steps=16, local_lr=0.005, seed=1)
    figure = drawn(steps_figure({"x": History(dataset)}, {"x": "X"}, ""))
    assert len(figure.axes) == 4
    assert "At 0.005 a seed diverged at 3 of 8 points, which is not drawn." in figure.get_suptitle().replace("\n", " ")
    assert not any(crosses_in(axes) for axes in figure.axes)
    for rate in RATES:
        diverge(dataset, 5, local_lr=rate, seed=0)
    assert len(drawn(steps_figure({"x": History(dataset)}, {"x": "X"}, "")).axes) == 6  # nothing else is left


def test_steps_at_one_rate_or_with_one_last_point_or_without_steps() -> None:
    dataset = made(points=11, local_steps=(1, 4, 16), local_lr=(0.0005,))
    figure = drawn(steps_figure({"x": History(dataset.isel(local_lr=0))}, {"x": "X"}, ""))
    assert len(figure.axes) == 2
    assert len(curves(figure.axes[0])) == 2
    assert not figure.axes[0].collections  # one point has no deviation
    assert texts(figure.axes[1]) == ["not known"]
    assert figure.axes[0].get_xlabel() == "local steps $K$"
    assert texts(drawn(steps_figure({}, {"x": "X"}, "")).axes[0]) == ["not run"]
    with pytest.raises(InputError, match="local_steps"):
        steps_figure({"x": History(made())}, {"x": "X"}, "")


# -- figure 4


def quarters(**kwargs) -> dict[str, History]:
    return {
        name: History(made(schemes=SCHEMES, rules=("time-based",), seed=k, **kwargs)) for k, name in enumerate(QUARTERS)
    }


def test_the_curves_of_schemes_are_means_at_their_best_rates() -> None:
    parts = quarters()
    figure = drawn(schemes_figure(parts, {}, "note"))
    grid = np.array(figure.axes).reshape(2, 4)
    heads = ["CIFAR-10, F0", "CIFAR-10, F80", "Shakespeare, F0", "Shakespeare, F80"]
    assert [axes.get_title(loc="left") for axes in grid[0]] == heads
    for name in QUARTERS:
        data, clients, times = name.split("-")
        axes = grid[(20, 50).index(int(clients)), 2 * (data == "shakespeare") + (times == "F80")]
        best = at_own_rates(parts[name])
        for line, scheme in zip(curves(axes), SCHEMES, strict=True):
            mean = best.dataset["loss"].sel(scheme=scheme, weights="time-based").mean("seed")
            np.testing.assert_allclose(line.get_ydata(), mean)
            assert to_hex(line.get_color()) == colours(list(SCHEMES))[scheme]
    marks = [line.get_marker() for line in curves(grid[0, 0])]
    assert len(set(marks)) == 4
    assert len({axes.get_ylim() for axes in grid[:, :2].ravel()}) == 1
    assert len({axes.get_ylim() for axes in grid[:, 2:].ravel()}) == 1
    assert [row[0].get_ylabel() for row in grid] == ["(a) $M$ = 20\nfederated loss", "(b) $M$ = 50\nfederated loss"]
    assert legend(figure) == [*SCHEMES, "one deviation over seeds", "last tenth of the time"]


def test_the_rates_above_a_panel_are_the_best_ones() -> None:
    dataset = made(schemes=SCHEMES, rules=("time-based",))
    dataset["loss"].loc[{"scheme": "FedAvg", "local_lr": 0.005}] *= 0.5
    for rate in RATES:
        diverge(dataset, 10, scheme="FedBuff(10)", local_lr=rate, seed=1)
    figure = drawn(schemes_figure({"cifar10-20-F0": History(dataset)}, {"cifar10-20-F0": "Here, M = 20"}, ""))
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "Here"
    (box,) = [a for a in axes.artists if hasattr(a, "get_child")]
    said = [text.get_text() for text in box.findobj(lambda a: hasattr(a, "get_fontsize"))]
    # column by column
    assert [word for word in said if word] == ["$\\eta_l$", "0.005", "0.002", "0.002", "–"]
    assert len(curves(axes)) == 3
    assert len(crosses_in(axes)) == 1
    assert texts(figure.axes[1]) == ["not run"]
    assert axes.get_xlabel() == "virtual time"


# -- figure 4 with the stable step


def test_every_scheme_is_drawn_at_the_rate_that_is_best_for_fedavg() -> None:
    dataset = made(schemes=SCHEMES, rules=("time-based",))
    for scheme, rate in zip(SCHEMES, (0.005, 0.001, 0.002, 0.001), strict=True):
        dataset["loss"].loc[{"scheme": scheme, "local_lr": rate}] *= 0.5
    figure = drawn(steady_figure({"cifar10-20-F0": History(dataset)}, {"cifar10-20-F0": "Here, M = 20"}, ""))
    axes = figure.axes[0]
    for line, scheme in zip(curves(axes), SCHEMES, strict=True):
        drawn_at = dataset["loss"].sel(scheme=scheme, weights="time-based", local_lr=0.005).mean("seed")
        np.testing.assert_allclose(line.get_ydata(), drawn_at)
    (box,) = [a for a in axes.artists if hasattr(a, "get_child")]
    said = [text.get_text() for text in box.findobj(lambda a: hasattr(a, "get_fontsize"))]
    own = {"AsyncFedAvg": 0.001, "FedFix(1/2)": 0.002, "FedBuff(10)": 0.001}
    assert sorted(filter(None, said)) == sorted(["$\\eta_l$", "0.005", *(f"0.005 ({rate:g})" for rate in own.values())])
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    ends = [float(History(dataset).final().sel(scheme=s, local_lr=rate).mean()) for s, rate in own.items()]
    np.testing.assert_allclose(sorted(float(line.get_ydata()[0]) for line in hollow), sorted(ends))
    assert "at its own best rate, in brackets" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts(figure.axes[1]) == ["not run"]


def test_ends_at_own_best_rates_are_inside_the_frame() -> None:
    dataset = made(schemes=SCHEMES, rules=("time-based",))
    dataset["loss"].loc[{"scheme": "FedAvg", "local_lr": 0.005}] *= 0.9
    dataset["loss"].loc[{"scheme": "AsyncFedAvg", "local_lr": 0.001}] *= 0.01
    axes = drawn(steady_figure({"cifar10-20-F0": History(dataset)}, {}, "")).axes[0]
    end = float(History(dataset).final().sel(scheme="AsyncFedAvg", local_lr=0.001).mean())
    assert axes.get_ylim()[0] <= end
    assert any(np.isclose(line.get_ydata()[0], end) for line in axes.lines if line.get_markerfacecolor() == "white")


def test_the_figure_with_the_stable_step_is_drawn_by_its_file() -> None:
    """Its caption does not say that the paper says it."""
    file = read_figure("stable", "quick")
    about = {"study": file.parts[0].study, "paper": file.parts[0].full}
    parts = {n: History(h.dataset.assign_attrs(reproduction=json.dumps(about))) for n, h in quarters().items()}
    said = caption(file, parts)
    assert said.startswith("Figure 4 once more with the stable step: every scheme at the learning rate")
    assert "T = 3 (in full: 5 000)" in said
    assert len(curves(drawn(picture(file, parts)).axes[0])) == 4


# -- figures 5 to 7


@pytest.mark.parametrize(("count", "shape"), [(14, (3, 5)), (6, (2, 3)), (2, (1, 2))])
def test_there_is_a_panel_for_each_rate_on_the_same_axes(count, shape) -> None:
    rates = [float(f"{rate:.3g}") for rate in np.geomspace(1e-5, 1.0, count)]
    dataset = made(schemes=SCHEMES, rules=("time-based",), best=(count - 2,), local_lr=rates)
    figure = drawn(rates_figure({"cifar10-20-F80": History(dataset)}, {"cifar10-20-F80": "CIFAR-10"}, "note"))
    assert len(figure.axes) == 1 + shape[0] * shape[1]
    wide, *below = figure.axes
    for line, scheme in zip([line for line in wide.lines if line.get_marker() != ABOVE], SCHEMES, strict=True):
        ends = History(dataset).final("loss").sel(scheme=scheme, weights="time-based").mean("seed")
        np.testing.assert_allclose(line.get_ydata(), ends)
        np.testing.assert_allclose(line.get_xdata(), rates)
    assert wide.get_xscale() == "log"
    assert wide.get_xlabel() == "local learning rate $\\eta_l$"
    used = below[:count]
    for axes, rate in zip(used, rates, strict=True):
        for line, scheme in zip(curves(axes), SCHEMES, strict=True):
            mean = dataset["loss"].sel(scheme=scheme, weights="time-based", local_lr=rate).mean("seed")
            np.testing.assert_allclose(line.get_ydata(), mean)
    assert used[0].get_title(loc="left") == "$\\eta_l$ = 1e-5"
    assert len({axes.get_ylim() for axes in used}) == len({axes.get_xlim() for axes in used}) == 1
    assert sum(axes.get_xlabel() == "virtual time" for axes in used) == shape[1]
    assert all(not axes.axison for axes in below[count:])


def test_divergence_and_what_was_not_run_at_a_rate() -> None:
    dataset = made(schemes=SCHEMES, rules=("time-based",))
    dataset["loss"].loc[{"scheme": "AsyncFedAvg", "local_lr": 0.005}] *= 1e4
    diverge(dataset, 20, scheme="AsyncFedAvg", local_lr=0.005, seed=0)
    diverge(dataset, 0, scheme="FedAvg", local_lr=0.005)
    dataset["loss"].loc[{"local_lr": 0.002}] = np.nan
    figure = drawn(rates_figure({"x": History(dataset)}, {"x": "X"}, ""))
    wide, *below = figure.axes
    assert [len(crosses_in(axes)) for axes in below] == [0, 0, 2]
    assert texts(below[1]) == ["not run"]
    assert wide.get_ylim()[1] < 5
    assert below[0].get_ylim()[1] < 5
    assert "diverged" in legend(figure)
    for axes in (wide, below[2]):
        first, second = (line.get_xdata()[0] for line in crosses_in(axes))
        assert first != second


def test_a_loss_at_the_end_above_the_frame_is_an_arrow_at_the_edge() -> None:
    dataset = made(schemes=SCHEMES, rules=("time-based",))
    dataset["loss"].loc[{"scheme": "FedBuff(10)", "local_lr": 0.005}] *= 50
    wide = drawn(rates_figure({"x": History(dataset)}, {"x": "X"}, "")).axes[0]
    assert wide.get_ylim()[1] < 5
    assert np.isnan(wide.lines[3].get_ydata()).tolist() == [False, False, True]
    (arrow,) = [line for line in wide.lines if line.get_marker() == ABOVE]
    assert to_hex(arrow.get_color()) == colours(list(SCHEMES))["FedBuff(10)"]
    assert max(p.vertices[:, 1].max() for p in wide.collections[-1].get_paths()) < 5


def test_rates_of_nothing_of_one_and_of_several_steps() -> None:
    assert texts(drawn(rates_figure({}, {"x": "X"}, "")).axes[0]) == ["not run"]
    dataset = made(schemes=SCHEMES, rules=("time-based",), local_steps=(10,), local_lr=RATES)
    assert len(drawn(rates_figure({"x": History(dataset)}, {}, "")).axes) == 4
    assert len(drawn(rates_figure({"x": History(dataset.isel(local_lr=0))}, {}, "")).axes) == 2
    empty = dataset.copy(deep=True)
    empty["loss"].values[:] = np.nan
    assert [texts(axes) for axes in drawn(rates_figure({"x": History(empty)}, {}, "")).axes] == [["not run"]] * 4


# -- all of them


def one_of(which: str, seeds: int) -> Figure:
    names = {"x": "X"}
    if which == "weights":
        return weights_figure({"x": History(made(seeds=seeds))}, names, "note")
    if which == "steps":
        return steps_figure({"x": History(made(seeds=seeds, local_steps=(1, 4, 16), local_lr=(0.1,)))}, names, "note")
    if which == "schemes":
        return schemes_figure(dict(list(quarters(seeds=seeds).items())[3:5]), {}, "note")
    return rates_figure({"x": History(made(SCHEMES, ("time-based",), seeds))}, names, "note")


@pytest.mark.parametrize("which", ["weights", "schemes", "rates"])
def test_one_seed_has_no_bands_over_seeds(which) -> None:
    figure = drawn(one_of(which, 1))
    assert not any(axes.collections for axes in figure.axes)
    assert not any("seeds" in label for label in legend(figure))


def test_one_seed_has_bands_over_time() -> None:
    assert drawn(one_of("steps", 1)).axes[0].collections


WHICH = [
    ("weights", "svg"), ("weights", "png"), ("steps", "pdf"), ("schemes", "svg"), ("rates", "svg"), ("rates", "pdf"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "ending"), WHICH)
def test_the_same_figure_gives_the_same_bytes(tmp_path, which, ending) -> None:
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        save_figure(one_of(which, 2), path, example="figure.svg")
    assert paths[0].read_bytes() == paths[1].read_bytes()
