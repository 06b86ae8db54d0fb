"""Rates that widen themselves: the best ends up inside, whatever the curve of the loss over the rate."""

from __future__ import annotations

import itertools
import json

import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo.simulation.rate_search import DECADES, EDGE, INSIDE, between, beyond, first_rates, ladder, widened

FIRST = (0.01, 0.1, 1.0)


def search(*curves):
    """All rates that are tried for some curves of the loss over the rate, by round, and how it ended."""
    rates, rounds = list(FIRST), [FIRST]
    while True:
        scores = np.array([[curve(rate) for curve in curves] for rate in rates])
        found = widened(rates, scores, FIRST)
        if found.ended is not None:
            assert found.rates == ()
            return rates, rounds, found.ended
        assert not set(found.rates) & set(rates)
        rounds.append(found.rates)
        rates = sorted([*rates, *found.rates])


def valley(best, edge=np.inf):
    """A loss that is least at a rate and diverges from another one on."""
    return lambda rate: np.nan if rate >= edge else abs(np.log(rate / best))


def test_a_best_rate_inside_is_only_looked_at_more_closely() -> None:
    rates, rounds, ended = search(valley(0.1))
    assert rounds == [FIRST, (0.02, 0.05, 0.2, 0.5)]
    assert (rates[0], rates[-1], ended) == (0.01, 1.0, INSIDE)


def test_rates_are_widened_by_decades_first() -> None:
    _, rounds, ended = search(valley(3.0))
    assert rounds == [FIRST, (10.0,), (0.2, 0.5, 2.0, 5.0)]
    assert ended == INSIDE
    _, rounds, _ = search(valley(0.0004))
    assert rounds[1:3] == [(0.001,), (0.0001,)]


def test_where_all_diverge_smaller_ones_are_tried() -> None:
    rates, rounds, ended = search(valley(1.0, edge=0.001))
    assert rounds[1:3] == [(0.001,), (0.0001,)]
    assert ended == INSIDE
    assert min(rates, key=lambda rate: valley(1.0, 0.001)(rate) if rate < 0.001 else np.inf) == 0.0005


def test_the_search_ends_where_there_is_no_best_rate() -> None:
    rates, _, ended = search(lambda rate: -rate)
    assert (rates[-1], ended) == (10.0**DECADES, EDGE)
    rates, _, ended = search(lambda rate: np.nan)
    assert (rates[0], ended) == (pytest.approx(0.01 * 10.0**-DECADES), EDGE)


@given(st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=4))
def test_every_best_rate_has_all_neighbours_of_the_scale(bests) -> None:
    rates, rounds, ended = search(*(valley(best) for best in bests))
    assert ended == INSIDE
    for best in bests:
        place = int(np.argmin([valley(best)(rate) for rate in rates]))
        low, here, high = rates[place - 1 : place + 2]
        assert here / low <= 2.5 * (1 + 1e-9)
        assert high / here <= 2.5 * (1 + 1e-9)
    assert len(rounds) <= 2 + 2 * DECADES


def test_solvers_that_scale_gradients_begin_lower() -> None:
    assert first_rates(ft.LocalSGD(lr="auto", momentum=0.9)) == FIRST
    assert first_rates(ft.LocalOptax(solver=optax.adam, lr="auto")) == (1e-4, 1e-3, 1e-2)


# -- in a study

PROBLEM = ft.problems.quadratics(4, dimension=3, noise=0.3, rows=[3, 8, 5, 12], seed=1)
TIMES = ft.FixedTimes([1, 2, 3, 5])


def test_a_study_finds_its_rates_and_trains_every_scheme_at_all_of_them() -> None:
    schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.published.FedAsync(0.6)]
    rules = ("time-based", "identical")
    local = ft.LocalSGD(lr="auto", batch_size=4)
    found = ft.simulate(PROBLEM, schemes, TIMES, until=40, points=11, local=local, weights=rules, seeds=range(2))
    rates = found.dataset["local_lr"].values.tolist()
    about = json.loads(found.attrs["rate_search"])
    assert (about["rates"], about["ended"], found.finished) == (rates, INSIDE, True)
    chosen = found.best().dataset["local_lr"].sel(weights="time-based").values
    assert all(rates[0] < rate < rates[-1] for rate in chosen)
    assert bool(found.begun.sel(scheme=["FedAvg", "AsyncFedAvg"]).all())
    given = ft.simulate(
        PROBLEM,
        schemes,
        TIMES,
        until=40,
        points=11,
        local=ft.LocalSGD(lr=rates, batch_size=4),
        weights=rules,
        seeds=range(2),
    )
    np.testing.assert_allclose(found.dataset["loss"], given.dataset["loss"], rtol=2e-5)
    assert given.dataset["loss"].dims == found.dataset["loss"].dims
    model = found.model(scheme="FedAvg", local_lr=rates[3], seed=1)
    np.testing.assert_allclose(model.params, given.model(scheme="FedAvg", local_lr=rates[3], seed=1).params, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=9, local=ft.LocalSGD(lr="fast")), "is text"),
        (lambda: ft.LocalSGD(lr="auto", steps=0), "local_steps: 0"),
        (lambda: ft.LocalSGD(lr="auto").axes, "lr: 'auto' is searched by ft.simulate"),
        (lambda: ft.LocalSGD(lr=["auto", 0.1]), "local_lr: 'auto'"),
        (
            lambda: ft.simulate(
                PROBLEM, ft.FedAvg(), TIMES, until=9, local=ft.LocalSGD(lr="auto"), rates={"FedAvg": [1]}
            ),
            "rates: lr='auto' finds the rates itself",
        ),
    ],
)
def test_bad_rates_are_one_message(call, message) -> None:
    with pytest.raises(ft.InputError, match=message):
        call()


# -- 1, 2 and 5 times powers of ten, as a race of cells tries them


@given(st.floats(1e-6, 1e4), st.floats(1.01, 1e4))
def test_between_lie_all_steps_of_the_scale_and_neither_end(low, ratio) -> None:
    found = between(low, low * ratio)
    assert all(low < rate < low * ratio for rate in found)
    assert found == sorted(set(found))
    assert {f"{rate:e}"[0] for rate in found} <= {"1", "2", "5"}
    assert all(1.99 < b / a < 2.51 for a, b in itertools.pairwise([low, *found, low * ratio][1:-1]))
    assert not found or (found[0] / low <= 2.5 * (1 + 1e-6) and low * ratio / found[-1] <= 2.5 * (1 + 1e-6))


def test_steps_by_hand() -> None:
    assert between(0.1, 1) == [0.2, 0.5]
    assert between(0.1, 0.2) == []
    assert between(0.099, 1.01) == [0.1, 0.2, 0.5, 1.0]
    assert ladder((0.01, 0.1, 1.0)) == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    assert (ladder((1e-4, 1e-3, 1e-2))[0], ladder((1e-4, 1e-3, 1e-2))[-1]) == (1e-5, 0.1)


@pytest.mark.parametrize(
    ("rates", "best", "diverged", "found"),
    [
        ((0.1, 0.2, 0.5), 0.2, None, []),  # worse ones on both sides
        ((0.1, 0.2, 0.5), 0.5, None, [1.0, 2.0, 5.0]),
        ((0.1, 0.2, 0.5), 0.1, None, [0.01, 0.02, 0.05]),
        ((0.1, 0.2, 0.5), 0.1, 0.2, [0.01, 0.02, 0.05]),
        ((0.1, 0.2, 0.5), 0.5, 2.0, [1.0]),  # not up to what diverged
        ((0.1, 0.2, 0.5), 0.5, 1.0, []),
        ((0.1, 0.2, 0.5), 0.5, 0.2, []),
        ((0.1, 0.2, 0.5, 1.0), 0.5, 1.0, []),
        ((0.1, 0.3), 0.3, None, [0.5, 1.0, 2.0]),
        ((0.1,), 0.1, None, [0.2, 0.5, 1.0]),
        ((1e-4, 1.0), 1e-4, None, [1e-5, 2e-5, 5e-5]),
        ((1e-6, 1.0), 1e-6, None, []),  # four decades away from the first ones
        ((1e-2, 1e4), 1e4, None, []),
    ],
)
def test_beyond_the_last_rate_a_decade_is_tried(rates, best, diverged, found) -> None:
    assert beyond(rates, best, diverged, FIRST) == found


def test_the_search_beyond_comes_to_its_end() -> None:
    for best in (max, min):
        rates = list(FIRST)
        while more := beyond(rates, best(rates), None, FIRST):
            assert not set(more) & set(rates)
            rates += more
        assert max(rates) / min(rates) == pytest.approx(10 ** (DECADES + 2), rel=1e-6)
