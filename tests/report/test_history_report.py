"""Tables, sentences and pictures of a history: what they say must be what the numbers show."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import fedtempo as ft
from fedtempo.report.history_figure import save_study, study_figure
from fedtempo.report.history_text import sentences, show_history
from fedtempo.report.inks import colours
from fedtempo.simulation.history.history import History
from simulation.test_history import study


def told(dataset, **kwargs) -> str:
    history = History(dataset)
    return "\n".join(sentences(history, history.summary(**kwargs)))


def flat(**levels):
    """Three seeds of schemes that fall from 2 to a level, in a straight line until a given time."""
    names = list(levels)
    dataset = study(schemes=names, rates=(0.1,), models=False).isel(local_lr=0)
    times = dataset["time"].values
    for s, name in enumerate(names):
        for w in range(2):
            level, when = levels[name][w]
            dataset["loss"].values[s, w] = np.maximum(2.0 - (2.0 - level) * times / when, level)
    return dataset


# -- the table


def test_a_row_has_the_numbers_of_its_best_combination() -> None:
    dataset = study()
    history = History(dataset)
    summary = history.summary(target=0.6)
    assert [(r.scheme, r.weights) for r in summary.rows][:3] == [
        ("FedAvg", "time-based"),
        ("FedAvg", "identical"),
        ("AsyncFedAvg", "time-based"),
    ]
    row = summary.row("AsyncFedAvg")
    assert row is not None
    assert row.chosen == {"local_lr": 0.03}
    assert (row.diverged, row.runs) == (2, 9)
    run = dataset.sel(scheme="AsyncFedAvg", weights="time-based", local_lr=0.03)
    ends = run["loss"].values[:, -7:].mean(axis=1)
    assert math.isclose(row.loss, ends.mean())
    assert math.isclose(row.loss_over_seeds, ends.std(ddof=1))
    assert math.isclose(row.loss_over_clients, 0.3 * ends.mean())
    assert math.isclose(row.accuracy, 1 - ends.mean() / 2.6)
    assert row.time_to_target == np.argmax(run["loss"].values.mean(axis=0) <= 0.6)
    assert row.rounds == float(dataset["rounds"].values[1, 0, -1])
    assert row.updates == float(dataset["updates"].values[1, 0, -1])
    biased = summary.row("AsyncFedAvg", "identical")
    assert biased is not None
    assert math.isclose(biased.bias_cost, biased.loss / row.loss - 1)
    assert math.isnan(row.bias_cost)


def test_the_cost_does_not_depend_on_the_order_of_the_weight_rules() -> None:
    turned = History(study(rules=("identical", "time-based"))).summary().row("AsyncFedAvg", "identical")
    assert turned is not None
    assert turned.bias_cost > 0.1


def test_the_target_lies_where_fedavg_has_gone_most_of_its_way() -> None:
    dataset = flat(FedAvg=((0.5, 32), (0.5, 32)), AsyncFedAvg=((0.5, 8), (0.75, 8)))
    summary = History(dataset).summary()
    assert summary.target == 0.575
    assert "FedAvg with time-based weights" in summary.target_rule
    row = summary.row("FedAvg")
    assert row is not None
    assert row.time_to_target == 31.0
    assert History(flat(FedAvg=((0.332, 32), (0.332, 32)))).summary().target == 0.416  # 0.4154, never below it
    fallback = History(dataset.isel(scheme=[1])).summary()
    assert "AsyncFedAvg" in fallback.target_rule
    dataset["loss"].values[:] = np.linspace(1, 2, 61)
    assert math.isnan(History(dataset).summary().target)
    assert "no target" in told(dataset)


def test_the_printed_table_has_a_row_for_each_scheme_and_weights(capsys) -> None:
    show_history(History(study()), target=0.6)
    out = capsys.readouterr().out
    assert out.startswith("digits, 20 clients: 5 schemes × 2 weight rules × 3 local_lr × 3 seeds")
    assert len(re.findall(r"^\S+ +(time-based|identical) +[\d.]+ ", out, flags=re.M)) == 10
    assert re.search(r"^scheme +weights +local_lr +loss +spread +test +to 0.6 +rounds +updates$", out, flags=re.M)
    assert re.search(r"^AsyncFedAvg +time-based +0.03 +0\.\d+±0\.\d+ ", out, flags=re.M)


def test_labels_are_not_read_as_markup(capsys) -> None:
    show_history(History(study().assign_coords(scheme=["[red]x", *"abcd"])))
    assert capsys.readouterr().out.count("[red]x") >= 2


def test_columns_without_values_are_left_out(capsys) -> None:
    show_history(History(study(seeds=(0,)).drop_vars("test_accuracy")))
    out = capsys.readouterr().out
    assert "  test  " not in out
    assert "±" not in out
    assert "one seed" in out


# -- the sentences


def test_the_first_and_how_much_sooner_than_fedavg() -> None:
    dataset = flat(FedAvg=((0.5, 32), (0.5, 32)), AsyncFedAvg=((0.5, 8), (0.75, 8)))
    text = told(dataset)
    assert "AsyncFedAvg reaches a federated loss of 0.575 first, at time 8: 3.9 times sooner than FedAvg, at 31" in text


def test_schemes_equal_within_the_deviation_are_not_ranked() -> None:
    dataset = flat(FedAvg=((0.4, 40), (0.4, 40)), A=((0.4, 10), (0.4, 10)), B=((0.4, 12), (0.4, 12)))
    assert "A reaches" in told(dataset)
    assert "equal within" not in told(dataset).splitlines()[0]
    shift = np.array([-6.0, 0.0, 6.0])
    times = dataset["time"].values
    for k in range(3):
        dataset["loss"].values[1, 0, k] = np.maximum(2.0 - 1.6 * times / (12 + shift[k]), 0.4)
    assert "B and A reach a federated loss of 0.48 first" in told(dataset)
    assert "equal within the deviation over seeds" in told(dataset)


def test_fedavg_itself_may_be_first() -> None:
    dataset = flat(FedAvg=((0.4, 10), (0.4, 10)), A=((0.4, 30), (0.4, 30)))
    assert "no scheme is sooner than FedAvg" in told(dataset)
    assert "times sooner" not in told(dataset)


def test_a_target_out_of_reach_is_said_to_be() -> None:
    dataset = flat(FedAvg=((0.4, 40), (0.4, 40)), A=((0.2, 10), (0.2, 10)), B=((0.5, 10), (0.5, 10)))
    assert "no scheme reaches a federated loss of 0.1 by time 60" in told(dataset, target=0.1)
    text = told(dataset, target=0.3)
    assert "A reaches" in text
    assert "FedAvg does not by time 60" in text
    assert "Not reached by B." in text
    assert "from the start" in told(dataset, target=5.0)


def test_the_cost_of_identical_weights_and_what_they_minimise() -> None:
    dataset = flat(FedAvg=((0.4, 40), (0.4, 40)), AsyncFedAvg=((0.4, 10), (0.5, 10)), A=((0.5, 9), (0.4, 9)))
    dataset["surrogate_loss"].values[:] = 0.45
    text = told(dataset)
    assert "AsyncFedAvg ends at 0.5 instead of 0.4 (+25%)" in text
    assert "ends lower here than with time-based ones: A ends at 0.4 instead of 0.5 (−20%)" in text
    assert "For FedAvg identical weights end no differently" in text
    assert "minimise instead" not in text
    dataset["surrogate_loss"].values[1, 1] = 0.3
    assert "(shares of AsyncFedAvg): there AsyncFedAvg ends at 0.3 instead of 0.45" in told(dataset)


def test_a_cost_within_the_deviation_is_none() -> None:
    dataset = flat(FedAvg=((0.4, 40), (0.4, 40)), AsyncFedAvg=((0.4, 10), (0.42, 10)))
    assert "AsyncFedAvg ends at 0.42" in told(dataset)
    dataset["loss"].values[1, 1] += np.array([-0.05, 0.0, 0.05])[:, None]
    text = told(dataset)
    assert "AsyncFedAvg ends" not in text
    assert "For FedAvg and AsyncFedAvg identical weights end no differently" in text


def test_diverged_runs_are_counted_by_rate() -> None:
    dataset = study()
    assert "4 of 90 runs diverged at local_lr 0.1 (AsyncFedAvg)." in told(dataset)
    dataset["diverged_at"].values[0, 0, 1, 0] = 5.0
    assert "5 of 90 runs diverged: 1 at local_lr 0.03 (FedAvg), 4 at local_lr 0.1 (AsyncFedAvg)." in told(dataset)
    dataset["diverged_at"].values[0, 0, :, 0] = 5.0
    assert "At every rate a seed diverged: FedAvg (time-based)." in told(dataset)


def test_an_unfinished_study_says_how_far_it_is() -> None:
    dataset = study().assign_attrs(finished=0)
    dataset["loss"].values[2, ..., 20:] = np.nan
    dataset["loss"].values[4] = np.nan
    text = told(dataset)
    assert "not finished: 36 of 90 runs are open" in text
    assert "up to 19 for FedFix(1/5); 60 for AsyncFedAvg, FedAvg and FedFix(1/2)" in text
    assert "Not reached by FedBuff" not in text
    dataset["loss"].values[:] = np.nan
    assert "no value yet" in told(dataset)


def test_rates_at_the_edge_are_named() -> None:
    text = told(study())
    assert "The largest local_lr tried (0.1) is the best for FedAvg, FedFix(1/5), FedFix(1/2) and FedBuff(10)" in text
    assert "rates beyond" not in told(study(rates=(0.1,)))


# -- pictures


def lines_of(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 2]


RULES = ["time-based weights", "identical weights"]


def test_a_line_for_each_scheme_and_weights() -> None:
    history = History(study())
    figure = history.plot()
    axes = figure.axes[0]
    lines = lines_of(axes)
    assert len(lines) == 10
    assert len({to_hex(line.get_color()) for line in lines}) == 5
    styles = {line.get_linestyle() for line in lines}
    assert styles == {"-", "--"}
    best = history.best().mean()["loss"]
    np.testing.assert_allclose(lines[3].get_ydata(), best.sel(scheme="AsyncFedAvg", weights="identical"))
    assert lines[3].get_linestyle() == "--"
    assert len(axes.collections) == 10
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel() == "virtual time"
    assert axes.get_ylabel() == "federated loss"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == RULES


def test_the_legend_lies_outside_the_axes() -> None:
    many = ("FedAvg", "AsyncFedAvg", *(f"FedFix(1/{k})" for k in range(2, 6)), "FedBuff(5)", "FedBuff(10)", "A", "B")
    history = History(study(schemes=many))
    assert len(set(colours(list(many)).values())) == 10
    for figure in (history.plot(), study_figure(history)):
        figure.canvas.draw()
        legend = figure.legends[0].get_window_extent()
        assert not any(legend.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert legend.x0 >= 0
        assert legend.x1 <= figure.bbox.x1


def test_a_scheme_keeps_its_colour_among_others() -> None:
    assert colours(["FedAvg", "AsyncFedAvg", "FedFix(1/2)"])["AsyncFedAvg"] == colours(["AsyncFedAvg"])["AsyncFedAvg"]
    assert colours(["FedFix(1/5)"])["FedFix(1/5)"] == colours(["FedBuff(2)", "FedFix(1/5)"])["FedFix(1/5)"]


def test_one_seed_has_no_band_and_small_ranges_no_logarithm() -> None:
    dataset = study(seeds=(0,))
    dataset["loss"].values[:] = 1.0 + dataset["loss"].values
    axes = History(dataset).plot().axes[0]
    assert len(axes.collections) == 0
    assert axes.get_yscale() == "linear"


def test_a_diverged_run_ends_in_a_cross_and_does_not_flatten_the_others() -> None:
    dataset = study(rates=(0.1,)).isel(local_lr=0)
    dataset["loss"].values[1, 0] = 2.3 * np.exp(dataset["time"].values)
    dataset["loss"].values[1, 0, :, 30:] = np.nan
    dataset["diverged_at"].values[1, 0] = 30.0
    axes = History(dataset).plot().axes[0]
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    assert crosses[0].get_xdata()[0] == 1.0
    assert axes.get_ylim()[1] < 4


def test_what_is_not_known_is_not_drawn() -> None:
    dataset = study()
    dataset["loss"].values[2:] = np.nan
    assert len(lines_of(History(dataset).plot().axes[0])) == 4
    dataset["loss"].values[:] = np.nan
    figure = study_figure(History(dataset))
    assert len(lines_of(figure.axes[0])) == 0
    figure.canvas.draw()


def test_a_single_time_is_a_dot() -> None:
    figure = study_figure(History(study(points=1)))
    figure.canvas.draw()
    assert all(line.get_marker() == "o" for line in figure.axes[0].lines if len(line.get_xdata()) == 1)


def test_a_study_has_three_panels_and_shows_the_cost() -> None:
    history = History(study())
    figure = study_figure(history)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Federated loss",
        "Accuracy on test data",
        "What identical weights cost",
    ]
    cost = figure.axes[2]
    assert [label.get_text() for label in cost.get_yticklabels()] == history.dataset["scheme"].values.tolist()
    summary = history.summary()
    row, fair = summary.row("AsyncFedAvg", "identical"), summary.row("AsyncFedAvg")
    assert row is not None
    assert fair is not None
    bars = [line.get_xdata() for line in cost.lines if len(line.get_xdata()) == 2]
    assert any(np.allclose(bar, [fair.loss, row.loss]) for bar in bars)
    assert f"+{100 * row.bias_cost:.0f}%" in {text.get_text() for text in cost.texts}
    without = History(study(rules=("time-based",)).drop_vars("test_accuracy"))
    titles = [axes.get_title(loc="left") for axes in study_figure(without).axes]
    assert titles == ["Federated loss", "Deviation of the loss over clients"]


def test_files_are_the_same_twice(tmp_path) -> None:
    history = History(study(schemes=("FedAvg", "AsyncFedAvg"), points=5))
    for ending in ("svg", "pdf"):
        for name in ("a", "b"):
            save_study(history, tmp_path / f"{name}.{ending}")
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text()
    history.plot("test_accuracy", path=tmp_path / "accuracy.svg")
    assert (tmp_path / "accuracy.svg").read_text().startswith("<?xml")
    with pytest.raises(ft.InputError, match=r"as in history\.svg"):
        history.plot(path=tmp_path / "a.gif")
    with pytest.raises(ft.InputError, match="no measure"):
        history.plot("accuracy")
    with pytest.raises(ft.InputError, match="also over client"):
        history.plot("client_loss")


def test_axes_of_ones_own_and_notebooks() -> None:
    history = History(study())
    figure = Figure()
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    assert history.plot("surrogate_loss", ax=right) is figure
    assert len(lines_of(right)) == 10
    assert not left.lines
    assert history.plot()._repr_png_().startswith(b"\x89PNG")


def test_counts_can_be_drawn_too() -> None:
    assert len(lines_of(History(study()).plot("rounds").axes[0])) == 5


# -- schemes with weights of their own, and rates that were searched


def with_own(dataset, name):
    """The same, with a scheme that brings its weights: it is run under the first rule alone."""
    dataset["loss"].loc[{"scheme": name, "weights": "identical"}] = np.nan
    return dataset.assign_attrs(own_weights=json.dumps({name: "mixing"}))


def test_a_scheme_with_weights_of_its_own_may_be_first() -> None:
    dataset = flat(FedAvg=((0.5, 32), (0.5, 32)), AsyncFedAvg=((0.5, 16), (0.75, 16)), FedAsync=((0.5, 8), (0.5, 8)))
    text = told(with_own(dataset, "FedAsync"))
    assert "With time-based weights, or their own, FedAsync reaches a federated loss of 0.575 first, at time 8" in text
    slow = flat(FedAvg=((0.5, 32), (0.5, 32)), AsyncFedAvg=((0.5, 16), (0.75, 16)), FedAsync=((0.9, 8), (0.9, 8)))
    assert "Not reached by FedAsync" in told(with_own(slow, "FedAsync"))


def test_the_edge_of_the_rates_is_said_of_schemes_with_their_own_weights_too() -> None:
    dataset = study(schemes=("FedAvg", "FedAsync"), models=False)
    rates = dataset["local_lr"].values
    for k, rate in enumerate(rates):
        dataset["loss"].values[0, :, k] = 1.0 + abs(np.log(rate / rates[1]))
        dataset["loss"].values[1, :, k] = 1.0 - rate
    text = told(with_own(dataset, "FedAsync"))
    assert "The largest local_lr tried (0.1) is the best for FedAsync: rates beyond may do better still." in text


def at_rates(best, speed):
    """FedAvg and another scheme over three rates; each is the faster the nearer a rate is to its best one."""
    dataset = study(schemes=("FedAvg", "Other"), rules=("time-based",), rates=(0.1, 1.0, 10.0), models=False)
    dataset["diverged_at"].values[:] = np.nan
    times = dataset["time"].values
    for s, k in np.ndindex(2, 3):
        when = speed[s] * (1 + 4 * abs(k - best[s]))
        dataset["loss"].values[s, 0, k] = np.maximum(2.0 - 1.5 * times / when, 0.5)
    return dataset


def test_the_last_sentence_changes_the_scheme_and_nothing_else() -> None:
    text = told(at_rates(best=(1, 1), speed=(32, 8)))
    assert text.splitlines()[-1] == (
        "At FedAvg's own learning rate (1): change FedAvg to Other, nothing else, and a loss of 0.575 is reached at "
        "time 8 instead of 31, 3.9 times sooner."
    )
    elsewhere = told(at_rates(best=(1, 2), speed=(32, 8))).splitlines()[-1]
    assert elsewhere == "At FedAvg's own learning rate (1) no scheme reaches the target sooner than FedAvg."


def test_who_touches_the_target_and_ends_higher_is_not_praised() -> None:
    dataset = at_rates(best=(1, 1), speed=(32, 8))
    late = dataset["time"].values > 40
    dataset["loss"].values[1, ..., late] = 0.51  # below the target, but 2 % above FedAvg's end
    assert told(dataset).splitlines()[-1] == (
        "At FedAvg's own learning rate (1) no scheme reaches the target sooner than FedAvg and ends as low."
    )
    dataset["loss"].values[1, ..., late] = 0.504
    assert told(dataset).splitlines()[-1].startswith("At FedAvg's own learning rate (1): change FedAvg to Other")


def test_who_is_sooner_within_the_deviation_over_seeds_is_not_said_to_be_later() -> None:
    dataset = at_rates(best=(1, 1), speed=(32, 30))
    times = dataset["time"].values
    for seed in range(dataset.sizes["seed"]):
        dataset["loss"].values[0, 0, 1, seed] = np.maximum(2.0 - 1.5 * times / (20 + 12 * seed), 0.5)
    assert told(dataset).splitlines()[-1].endswith("sooner than FedAvg by more than the deviation over seeds.")


def test_what_a_search_has_cost_is_said() -> None:
    dataset = at_rates(best=(1, 1), speed=(32, 8)).assign_attrs(rate_search=json.dumps({"ended": "inside"}))
    total = 3 * float(dataset["updates"].isel(time=-1).sum())
    said = f"Learning rates were searched: 3 from 0.1 to 10, {total:.2g} client updates in all"
    assert f"{said}; the best of each scheme has worse ones on both sides." in told(dataset)
    assert "worse ones" not in told(dataset.assign_attrs(rate_search=json.dumps({"ended": "edge"})))
