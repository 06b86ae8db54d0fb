"""What is said and drawn of a recommendation, on ones that nobody trained for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.planning.objective import Objective
from fedtempo.planning.recommendation import ENDED, Crossing, Curve, Interval, Recommendation, Spent
from fedtempo.report.inks import DARK
from fedtempo.report.recommendation_figure import save_recommendation
from fedtempo.report.recommendation_tables import show_recommendation
from support.recommendations import FOURTEEN, TEN, TWO, choices, recommendation

ACCURACY = Objective("metric", "test_accuracy")
SOON = Objective("time-to", "loss", 0.3)
FLOWER = "On Flower: FedFix(wait=1.25)  # clients: lr=0.5, 1 local step, batches of 4"
TOOK = (
    "It took 1.9 of 8.3 million client updates of the full grid (23%), 34 s and 212 trainings, 14 of them to the end; "
    "it ended because the regret is below the tolerance, 10%."
)


def lines(made: Recommendation) -> list[str]:
    return str(made).splitlines()


def said(made: Recommendation, begin: str) -> str:
    """The one line that begins so."""
    (found,) = [line for line in lines(made) if line.startswith(begin)]
    return found


def row(made: Recommendation, label: str) -> list[str]:
    """The cells of a scheme's row."""
    return next(line for line in lines(made)[3:] if line.startswith(f"{label} ")).split()


def test_the_whole_page() -> None:
    made = recommendation(
        pilot=True,
        ties=choices(TEN, Objective())[1:3],
        crossings=(Crossing(34.0, "AsyncFedAvg", "FedFix(5/4)"),),
        notes=("One thing.", "Another."),
    )
    assert lines(made) == [
        "FedFix(5/4) with local learning rate 0.5: loss 0.0142 at time 200",
        "At most 4% above the best of the 33 cells compared (95%); AsyncFedAvg and FedBuff(2) cannot be told from it.",
        "FedAvg at its best rate (1) ends at 0.01874: 1.3 times the loss.",
        "",
        "Schemes, each at its best learning rate; ± is one standard error over seeds",
        "scheme         lr     loss        ±     behind  seeds  trained  predicted  why no further",
        "FedFix(5/4)   0.5   0.0142  0.00057          –      3      all      0.016",
        "AsyncFedAvg     1  0.01534  0.00061     +4–13%      3      all     0.0173",
        "FedBuff(2)    0.2  0.01647        –    +12–21%      1      all     0.0186",
        "FedFix(5/2)   0.5  0.01761        –    +20–29%      1      all     0.0198",
        "FedAvg          1  0.01874        –    +28–37%      1      all     0.0211",
        "FedBuff(3)    0.2  0.03266        –  +126–135%      1      1/4     0.0368  at least 30% behind",
        "FedFix(5/8)   0.5   0.0355        –  +146–155%      1     1/16       0.04  at least 30% behind",
        "FedFix(15/4)    1  0.03834        –  +166–175%      1      1/4     0.0432  at least 30% behind",
        "FedBuff(4)    0.2  0.04118        –  +186–195%      1     1/16     0.0464  at least 30% behind",
        "FedBuff(5)    0.5  0.04402        –  +206–215%      1      1/4     0.0496  at least 30% behind",
        FLOWER,
        "Until time 34 AsyncFedAvg was ahead.",
        TOOK,
        "The pilot used 38 of them and ended at loss 1.1.",
        "One thing.",
        "Another.",
    ]


def test_the_first_line_is_bold_in_a_notebook(capsys) -> None:
    made = recommendation(TWO)
    assert "<b>FedAvg with local learning rate 0.5: loss 0.0142 at time 200</b>" in made._repr_html_()
    show_recommendation(made)
    assert capsys.readouterr().out == f"{made}\n"


def test_without_a_pilot_and_with_all_trained_columns_are_left_out() -> None:
    made = lines(recommendation(TWO))
    assert made[4].split() == ["scheme", "lr", "loss", "±", "behind", "seeds", "trained"]
    assert not any("pilot" in line for line in made)


# -- how sure


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "At most 4% above the best of the 33 cells compared (95%)."),
        ({"objective": ACCURACY}, "At most 4% below the best of the 33 cells compared (95%)."),
        ({"objective": SOON}, "At most 4% later than the best of the 33 cells compared (95%)."),
        ({"regret": Interval(0, 0.004)}, "At most 0.4% above the best of the 33 cells compared (95%)."),
        ({"regret": Interval(-0.1, -0.02)}, "At most 0% above the best of the 33 cells compared (95%)."),
        ({"regret": Interval(0, 14.0)}, "At most 15 times the best of the 33 cells compared (95%)."),
        (
            {"regret": Interval(0, math.inf)},
            "How far it may be from the best is not known: too little was trained.",
        ),
        (
            {"regret": Interval(math.nan, math.nan), "ties": choices(TWO, Objective())[1:]},
            "How far it may be from the best is not known: too little was trained; AsyncFedAvg cannot be told from it.",
        ),
        (
            {"ties": choices(TEN, Objective())[1:]},
            "At most 4% above the best of the 33 cells compared (95%); AsyncFedAvg, FedBuff(2), FedFix(5/2), FedAvg "
            "and 5 more cannot be told from it.",
        ),
        ({"cells": choices(TWO[:1], Objective())}, "Nothing else was compared."),
    ],
)
def test_how_sure_it_is(given, expected) -> None:
    assert lines(recommendation(**given))[1] == expected


@pytest.mark.parametrize(
    ("loss", "trained", "expected"),
    [
        (0.0142, 1.0, "FedFix(5/4) with local learning rate 0.5: loss 0.0142 at time 200"),
        (0.3, 0.25, "FedFix(5/4) with local learning rate 0.5: loss 0.3 at time 50, where it was left"),
        (math.inf, 1.0, "FedFix(5/4) with local learning rate 0.5: it diverged"),
    ],
)
def test_what_the_choice_gives(loss, trained, expected) -> None:
    assert lines(recommendation(change={"FedFix(5/4)": {"loss": loss, "trained": trained}}))[0] == expected


@pytest.mark.parametrize(
    ("objective", "loss", "expected"),
    [
        (ACCURACY, 0.9, "test accuracy 0.9 at time 200"),
        (Objective("min", "test_brier"), 0.2, "test brier 0.2 at time 200"),
        (Objective("worst", "client_loss"), 0.2, "worst client's loss 0.2 at time 200"),
        (Objective("bytes", "loss", 1e9), 0.2, "loss 0.2 after 1e+09 bytes"),
        (SOON, 31.0, "a loss of 0.3 at time 31"),
        (SOON, 310.0, "a loss of 0.3 is not reached by time 200"),
    ],
)
def test_what_other_objectives_call_it(objective, loss, expected) -> None:
    made = recommendation(objective=objective, change={"FedFix(5/4)": {"loss": loss}})
    assert lines(made)[0] == f"FedFix(5/4) with local learning rate 0.5: {expected}"


# -- FedAvg


@pytest.mark.parametrize(
    ("objective", "change", "expected"),
    [
        (Objective(), {"loss": 0.0312}, "ends at 0.0312: 2.2 times the loss."),
        (Objective(), {"loss": 0.0145}, "ends at 0.0145, 2% above it."),
        (Objective(), {"loss": 0.0141}, "ends at 0.0141, 0.7% below it."),
        (Objective(), {"loss": 0.0142}, "ends at 0.0142 too."),
        (Objective(), {"loss": math.inf}, "diverges."),
        (Objective(), {"trained": 0.25, "why": "30% behind"}, "was not trained to the end: 30% behind."),
        (Objective(), {"trained": 0.25}, "was not trained to the end."),
        (Objective("worst", "client_loss"), {"loss": 0.0284}, "ends at 0.0284: 2 times the worst client's loss."),
        (ACCURACY, {"loss": 0.81}, "ends at 0.81 instead of 0.9."),
        (ACCURACY, {"loss": 0.89996}, "ends at 0.89996 instead of 0.9."),
        (SOON, {"loss": 49.6}, "takes 49.6, 1.6 times as long."),
        (SOON, {"loss": 32.0}, "takes 32, 3% longer."),
        (SOON, {"loss": 201.0}, "does not reach it by time 200."),
    ],
)
def test_what_fedavg_would_have_given(objective, change, expected) -> None:
    made = recommendation(objective=objective, change={"FedAvg": change})
    assert lines(made)[2] == f"FedAvg at its best rate (1) {expected}"


def test_where_fedavg_has_nothing_to_be_said_of() -> None:
    without = [label for label in TEN if label != "FedAvg"]
    for made in (recommendation(without), recommendation(TWO)):
        assert not any(line.startswith("FedAvg at its best") for line in lines(made))
    slow = recommendation(objective=SOON, change={name: {"loss": 300.0} for name in ("FedFix(5/4)", "FedAvg")})
    assert said(slow, "FedAvg at") == "FedAvg at its best rate (1) does not reach it by time 200 either."
    below = recommendation(change={"FedFix(5/4)": {"loss": -3.0}, "FedAvg": {"loss": -2.0}})
    assert said(below, "FedAvg at") == "FedAvg at its best rate (1) ends at -2 instead of -3."
    at_once = recommendation(objective=SOON, change={"FedFix(5/4)": {"loss": 0.0}})
    assert said(at_once, "FedAvg at") == "FedAvg at its best rate (1) takes 40.92."


# -- the table


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.12, 0.18, "+12–18%"),
        (0.0, 0.04, "0–4%"),
        (-0.001, 0.04, "0–4%"),
        (-0.02, 0.04, "−2 to +4%"),
        (-0.04, 0.0, "−4 to 0%"),
        (-0.04, -0.02, "−4 to −2%"),
        (0.121, 0.122, "+12%"),
        (0.0, 0.0, "0%"),
        (0.002, 0.008, "+0.2–0.8%"),
        (2.1, 14.2, "× 3.1–15"),
        (0.3, math.inf, "> 30%"),
        (math.nan, math.nan, "–"),
        (-math.inf, math.inf, "–"),
    ],
)
def test_how_far_one_is_behind(low, high, expected) -> None:
    made = recommendation(TWO, change={"AsyncFedAvg": {"behind": Interval(low, high)}})
    assert " ".join(row(made, "AsyncFedAvg")[4:-2]) == expected


@pytest.mark.parametrize(
    ("change", "place", "expected"),
    [
        ({"error": math.nan}, 3, "–"),
        ({"seeds": 1}, 3, "–"),
        ({"loss": math.inf}, 2, "diverged"),
        ({"loss": math.nan}, 2, "–"),
        ({"trained": 0.0625}, -1, "1/16"),
        ({"trained": 0.3137}, -1, "31%"),
        ({"predicted": math.nan}, -1, "–"),
        ({"predicted": math.inf}, -1, "unstable"),
    ],
)
def test_cells_of_the_table(change, place, expected) -> None:
    made = recommendation(TWO, pilot="predicted" in change, change={"AsyncFedAvg": change})
    assert row(made, "AsyncFedAvg")[place] == expected


def test_other_objectives_have_heads_of_their_own() -> None:
    assert " test accuracy " in lines(recommendation(objective=ACCURACY))[5]
    assert lines(recommendation(objective=ACCURACY, pilot=True))[5].split("trained")[1].split()[:2] == [
        "predicted",
        "loss",
    ]
    soon = recommendation(objective=SOON, change={"FedBuff(2)": {"loss": 230.0}})
    assert " time " in lines(soon)[5]
    assert row(soon, "AsyncFedAvg")[2] == "33.48"
    assert row(soon, "FedBuff(2)")[2:4] == [">", "200"]
    assert row(soon, "FedBuff(3)")[2:4] == [">", "50"]
    # one seed each: nothing is said of errors
    single = recommendation(TWO, change={label: {"seeds": 1} for label in TWO})
    assert "Schemes, each at its best learning rate" in lines(single)


# -- below the table


def test_what_flower_cannot_do_is_not_shown(monkeypatch) -> None:
    def refuse(self: Recommendation, *, flower: bool = True) -> str:
        raise InputError("no")

    assert FLOWER in lines(recommendation())
    monkeypatch.setattr(Recommendation, "line", refuse)
    assert not any("Flower" in line for line in lines(recommendation()))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((), "None of the 4 other schemes trained to the end was ever clearly ahead of it."),
        ((34.0,), "Until time 34 A was ahead."),
        ((12.25, 34.0), "Until time 12.2 A was ahead, until 34 B."),
        ((1.0, 2.0, 12.0, 34.0), "Until time 2 B was ahead, until 12 C, until 34 D."),
    ],
)
def test_whether_another_time_has_another_choice(times, expected) -> None:
    crossings = tuple(Crossing(time, "ABCD"[k], "x") for k, time in enumerate(times))
    assert expected in lines(recommendation(crossings=crossings))


def test_nothing_is_said_of_other_times_where_nothing_was_compared_over_them() -> None:
    assert said(recommendation(TWO), "The other") == (
        "The other scheme trained to the end was never clearly ahead of it."
    )
    for made in (recommendation(ended=1), recommendation(curves={})):
        assert not any("ahead" in line for line in lines(made))


def test_one_scheme_alone() -> None:
    made = replace(recommendation(["FedFix(5/4)"]), ended="alone")
    assert not any("ahead" in line for line in lines(made))
    assert lines(made)[1] == "At most 4% above the best of the 3 cells compared (95%)."
    assert said(made, "It took").endswith("; it ended because nothing is left to compare.")
    assert len(lines(made)) < 12


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ("sure", "it ended because the regret is below the tolerance, 10%."),
        ("budget", "it ended because the budget is spent."),
        ("alone", "it ended because nothing is left to compare."),
        ("stopped", "it was stopped before its end; this is the best so far."),
    ],
)
def test_why_it_ended(ended, expected) -> None:
    assert ended in ENDED
    made = replace(recommendation(), ended=ended)
    assert said(made, "It took").partition("; ")[2] == expected


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        (Spent(412, 1650, 1.26, 1, 1), "It took 412 of 1650 client updates of the full grid (25%), 1.3 s and 1 tr"),
        (Spent(4e4, 1.6e7, 600.0, 2, 1), "It took 0.04 of 16 million client updates of the full grid (0.2%), 10 min "),
        (Spent(1.2e9, 2.4e9, 90.0, 2, 1), "It took 1.2 of 2.4 billion client updates of the full grid (50%), 90 s"),
        (Spent(12, 0, 90.0, 2, 1), "It took 12 client updates, 90 s and 2 trainings, 1 of them to the end"),
    ],
)
def test_what_it_took(spent, expected) -> None:
    assert said(recommendation(spent=spent), "It took").startswith(expected)


# -- the figure


def curves_of(figure) -> list:
    return [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]


def test_the_upper_panel_has_the_finalists() -> None:
    made = recommendation(pilot=True)
    figure = made.plot()
    upper, lower = figure.axes
    drawn = curves_of(figure)
    assert len(drawn) == 5
    for line, one in zip(drawn, made.choices, strict=False):
        np.testing.assert_array_equal(line.get_ydata(), made.curves[one.scheme.label, one.local_lr].mean)
    widths = [line.get_linewidth() for line in drawn]
    assert widths[0] > 2 * max(widths[1:])
    assert len(upper.collections) == 2  # bands, of those with several seeds
    assert upper.get_yscale() == "log"
    assert upper.get_title(loc="left") == "FedFix(5/4) at lr 0.5: loss 0.0142 at time 200"
    assert upper.get_ylabel() == "loss"
    assert [text.get_text() for text in upper.texts][:2] == ["FedFix(5/4), lr 0.5", "AsyncFedAvg, lr 1"]
    assert "virtual time" in lower.get_xlabel()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:3] == ["FedAvg", "AsyncFedAvg", "FedFix(5/8)"]
    assert legend[-2:] == ["recommended", "not trained to the end"]


def test_at_most_eight_lines_fedavg_among_them() -> None:
    order = [label for label in FOURTEEN if label != "FedAvg"] + ["FedAvg"]
    figure = recommendation(order, ended=14, pilot=True).plot()
    texts = [text.get_text().split(",")[0] for text in figure.axes[0].texts]
    assert texts == [*order[:7], "FedAvg"]
    assert len(curves_of(figure)) == 8


def test_the_lower_panel_stands_at_waits_and_paces() -> None:
    made = recommendation(pilot=True)
    lower = made.plot().axes[1]
    marks = {
        float(line.get_ydata()[0]): (float(line.get_xdata()[0]), line)
        for line in lower.lines
        if line.get_marker() in "^osD"
    }
    for one in made.choices:
        place, line = marks[one.loss]
        wait = getattr(one.scheme, "wait", None)
        assert place == pytest.approx(200 / made.prediction(one.scheme).num_rounds if wait is None else float(wait))
        assert (to_hex(line.get_markerfacecolor()) == "#ffffff") == (one.trained < 1)
    (ring,) = [line for line in lower.lines if line.get_markersize() == 14]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (1.25, made.best.loss)
    bars = [tuple(line.get_ydata()) for line in lower.lines if line.get_linewidth() == 1.6]
    first, second = made.best, made.choices[1]
    assert (first.loss - 2 * first.error, first.loss + 2 * first.error) in bars
    assert (second.loss - 2 * second.error, second.loss + 2 * second.error) in bars
    assert len(bars) == 2


def test_without_a_pilot_other_schemes_are_level_lines_or_have_their_names() -> None:
    made = recommendation()
    lower = made.plot().axes[1]
    level = {float(line.get_ydata()[0]) for line in lower.lines if list(line.get_xdata())[:1] == [0]}
    assert level == {one.loss for one in made.choices if not isinstance(one.scheme, ft.FedFix)}
    assert lower.get_xlabel() == "time from one model to the next: FedFix's wait; others are level lines [virtual time]"
    named = recommendation([*TWO, "FedBuff(2)"]).plot().axes[1]
    assert [text.get_text() for text in named.get_xticklabels()] == ["FedAvg", "AsyncFedAvg", "FedBuff(2)"]
    many = [label for label in FOURTEEN if "Fix" not in label]
    assert recommendation(many).plot().axes[1].get_xticklabels()[0].get_rotation() == 30


def test_a_loss_to_be_reached_is_a_dashed_line() -> None:
    figure = recommendation(objective=SOON).plot()
    upper, lower = figure.axes
    assert upper.get_ylabel() == "loss"
    assert [list(line.get_ydata()) for line in upper.lines if len(line.get_xdata()) == 2] == [[0.3, 0.3]]
    assert lower.get_ylabel() == "time to a loss of 0.3,\neach scheme at its best rate"
    assert "loss 0.3" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_accuracies_are_not_on_a_logarithmic_axis() -> None:
    upper, lower = recommendation(objective=ACCURACY).plot().axes
    assert upper.get_yscale() == lower.get_yscale() == "linear"
    assert upper.get_ylabel() == "test accuracy"


def test_a_dark_figure_and_a_file(tmp_path) -> None:
    figure = recommendation().plot(tmp_path / "a.png", style="dark")
    assert all(to_hex(axes.get_facecolor()) == DARK.background for axes in figure.axes)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    save_recommendation(recommendation(TWO), tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    "given",
    [
        {"labels": ["FedAvg"]},
        {"labels": ["FedFix(5/4)"], "pilot": True},
        {"labels": TWO, "curves": {}},
        {"change": {"FedAvg": {"loss": math.inf}, "AsyncFedAvg": {"loss": -1.0}}},
        {"change": {"FedFix(5/4)": {"loss": math.inf, "error": math.inf}}},
        {"change": {"FedFix(5/4)": {"error": 1.0}}},
    ],
    ids=["one", "one wait", "no curve", "diverged and below zero", "all is lost", "a wide error"],
)
def test_odd_recommendations_are_drawn(given) -> None:
    recommendation(**given).plot().canvas.draw()


def test_curves_that_diverge_are_drawn() -> None:
    made = recommendation(TWO)
    key = ("AsyncFedAvg", 1.0)
    curve = made.curves[key]
    gone = np.where(curve.times > 100, np.inf, curve.mean)
    figure = replace(made, curves={**made.curves, key: Curve(curve.times, gone, curve.error)}).plot()
    assert [text.get_text() for text in figure.axes[0].texts] == ["FedAvg, lr 0.5"]
    assert np.isfinite(figure.axes[0].get_ylim()).all()
