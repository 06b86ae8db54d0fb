"""What is compared: scores by hand, crossings of a level, gaps, and texts that are not objectives."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.planning.objective import KINDS, Objective, gap, objective_of

TIMES = np.array([0.0, 4.0, 8.0, 9.0, 9.5, 10.0])
VALUES = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.6])
QUADRATICS = ft.problems.quadratics(3, dimension=2)


def score(objective: Objective, values: object = VALUES, end: float = 10.0, times: object = TIMES) -> float:
    return objective.score(np.asarray(times, float), np.asarray(values, float), end, 10.0)


@pytest.mark.parametrize("kind", ["loss", "worst", "min", "bytes"])
def test_a_score_is_the_mean_over_the_last_tenth(kind: str) -> None:
    objective = Objective(kind, "loss", 1e9 if kind == "bytes" else math.nan)
    assert score(objective) == pytest.approx((2 + 1 + 0.6) / 3)
    assert score(objective, end=9.0) == pytest.approx(2.0)  # 8 lies before nine tenths of 9
    assert objective.value(1.25) == 1.25


@pytest.mark.parametrize("kind", ["metric", "max"])
def test_what_is_to_be_large_is_negative(kind: str) -> None:
    objective = Objective(kind, "accuracy")
    assert score(objective) == pytest.approx(-1.2)
    assert objective.value(score(objective)) == pytest.approx(1.2)
    assert objective.largest
    assert not Objective("min", "accuracy").largest


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_where_it_counts_has_diverged(bad: float) -> None:
    late, early = VALUES.copy(), VALUES.copy()
    late[-2], early[1] = bad, bad
    assert score(Objective(), late) == math.inf
    assert score(Objective(), early) == pytest.approx(1.2)
    assert score(Objective("time-to", "loss", 0.5), early) == math.inf
    assert score(Objective("time-to", "loss", 2.5), late) == pytest.approx(8.5)  # it was there before
    assert score(Objective(), [], times=[]) == math.inf


@pytest.mark.parametrize(
    ("level", "time"),
    [
        (5.0, 0.0),  # there at the start
        (4.5, 2.0),
        (4.0, 4.0),
        (2.5, 8.5),
        (0.8, 9.75),
        (0.6, 10.0),
        (0.3, 20.0),  # never: as much later as the loss has to fall, over the level
    ],
)
def test_a_crossing_lies_on_the_line_between_two_points(level: float, time: float) -> None:
    objective = Objective("time-to", "loss", level)
    found = score(objective)
    assert found == pytest.approx(time)
    assert objective.reached(found, 10.0) == (level >= 0.6)


def test_the_first_of_several_crossings_counts_and_only_up_to_the_end() -> None:
    objective = Objective("time-to", "loss", 1.5)
    assert score(objective, [5, 1, 3, 1, 3, 1]) == pytest.approx(3.5)
    assert score(objective, [5, 4, 3, 2, 1, 1], end=9.0) > 9.0
    assert score(Objective("time-to", "loss", -2.0), -VALUES) == pytest.approx(0.0)
    assert score(Objective("time-to", "loss", 0.0), VALUES) > 1e10


def test_those_that_never_get_there_are_ordered_by_how_near_they_come() -> None:
    objective = Objective("time-to", "loss", 0.1)
    assert 10 < score(objective, VALUES) < score(objective, VALUES + 1) < math.inf


def test_gaps() -> None:
    assert gap(1.0, 1.0) == 0
    assert gap(2.0, 1.0) == pytest.approx(math.log(2))
    assert gap(0.5, 1.0) == pytest.approx(-math.log(2))
    assert gap(-0.8, -0.9) == pytest.approx(math.log1p(0.1 / 0.9))
    assert gap(math.inf, 1.0) == gap(math.nan, 1.0) == math.inf
    assert gap(0.0, 0.0) == 0
    assert 0 < gap(1.0, 0.0) < math.inf
    assert -math.inf < gap(-5.0, 1.0) < 0


# -- texts


@pytest.mark.parametrize("text", ["loss", "worst", "time-to:0.3", "bytes:1e+09", "time-to:-2"])
def test_a_text_is_an_objective_and_back(text: str) -> None:
    found = objective_of(text, QUADRATICS)
    assert str(found) == text
    assert objective_of(found, QUADRATICS) is found
    assert found.per_client == (text == "worst")
    assert found.kind in KINDS


def test_metrics_are_those_of_test_rows_where_there_are_some() -> None:
    tested, untested = ft.problems.digits(3), ft.problems.digits(3, test=None)
    assert objective_of("metric:accuracy", tested).measure == "test_accuracy"
    assert objective_of("metric:accuracy", untested).measure == "accuracy"
    assert objective_of("min:accuracy", tested).kind == "min"
    assert objective_of("metric:accuracy", tested).words(9) == "test accuracy at time 9"


def test_words() -> None:
    assert Objective().words(60) == "loss at time 60"
    assert Objective("worst", "client_loss").words(60) == "worst client's loss at time 60"
    assert Objective("time-to", "loss", 0.3).words(60) == "time to a loss of 0.3"
    assert Objective("bytes", "loss", 1e9).words(60) == "loss after 1e+09 bytes"


USAGE = "give loss, worst, metric:NAME, min:NAME, time-to:LOSS or bytes:NUMBER"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fairness", USAGE),
        ("", USAGE),
        ("loss:0.3", USAGE),
        ("worst:1", USAGE),
        ("metric", USAGE),
        ("time-to", USAGE),
        ("bytes:", USAGE),
        ("Loss", USAGE),
        (0.3, USAGE),
        ("metric:accuracy", "quadratics has no metric 'accuracy'; it has: none"),
        ("time-to:soon", "'soon' is not a number; write time-to:0.3"),
        ("time-to:nan", "write time-to:0.3"),
        ("time-to:inf", "write time-to:0.3"),
        ("bytes:1GB", "'1GB' is not a number; write bytes:1e9"),
        ("bytes:0", "write bytes:1e9"),
        ("bytes:-5", "write bytes:1e9"),
    ],
)
def test_texts_that_are_refused_say_what_to_give(text: object, says: str) -> None:
    with pytest.raises(InputError) as error:
        objective_of(text, QUADRATICS)
    assert str(error.value).startswith("objective: ")
    assert says in str(error.value)


def test_a_metric_that_is_mistyped_names_those_there_are() -> None:
    with pytest.raises(InputError, match="has no metric 'acuracy'; it has: accuracy"):
        objective_of("metric:acuracy", ft.problems.digits(3))
