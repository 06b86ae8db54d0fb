"""Finer waits, buffer sizes and rates: golden sections end, and nothing is proposed twice."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo.planning.comparison import Cell
from fedtempo.planning.recommend import schemes_for
from fedtempo.planning.refinement import APART, CLOSE, Refinement
from fedtempo.schemes.named import Scheme

CLIENTS, SLOWEST = 40, Fraction(10)
RATES = (0.1, 0.2, 0.5)


def refinement(schemes: list[Scheme], **given: object) -> Refinement:
    return Refinement({one.label: one for one in schemes}, CLIENTS, SLOWEST, **{"flat": 0.0, **given})  # type: ignore[arg-type]


def searched(refine: Refinement, score, cells: list[Cell]) -> tuple[dict[Cell, float], list[list[Cell]]]:
    """Scores of all that was tried to the end, and what was proposed, round by round."""
    scores = {cell: score(refine.schemes[cell.scheme], cell.rate) for cell in cells}
    rounds: list[list[Cell]] = []
    while found := refine(min(scores, key=scores.__getitem__), scores):
        assert not set(found) & set(scores)
        assert len(set(found)) == len(found)
        rounds.append(found)
        assert len(rounds) < 40
        scores |= {cell: score(refine.schemes[cell.scheme], cell.rate) for cell in found}
    return scores, rounds


def size_of(scheme: Scheme) -> float:
    return float(scheme.wait if isinstance(scheme, ft.FedFix) else scheme.size)  # type: ignore[attr-defined]


def valley(size: float, rate: float):
    """Least at a wait or size and a rate."""

    def score(scheme: Scheme, lr: float) -> float:
        off = abs(math.log(size_of(scheme) / size)) if type(scheme) in (ft.FedFix, ft.FedBuff) else 9.0
        return 1 + off + abs(math.log(lr / rate))

    return score


def waits(*numbers: object) -> list[Scheme]:
    return [ft.FedAvg(), ft.AsyncFedAvg(), *(ft.FedFix(number) for number in numbers)]  # type: ignore[arg-type]


def sizes(*numbers: int) -> list[Scheme]:
    return [ft.FedAvg(), ft.AsyncFedAvg(), *(ft.FedBuff(number) for number in numbers)]


def at(schemes: list[Scheme], rates: tuple[float, ...] = RATES) -> list[Cell]:
    return [Cell(scheme.label, rate) for scheme in schemes for rate in rates]


@given(st.floats(0.5, 40), st.floats(0.05, 1))
def test_waits_end_near_the_best_within_the_slowest_clients_time(best: float, rate: float) -> None:
    schemes = waits("5/4", "5/2", 5, "15/2")
    refine = refinement(schemes)
    scores, _ = searched(refine, valley(best, rate), at(schemes))
    tried = {size_of(one) for one in refine.schemes.values() if isinstance(one, ft.FedFix)}
    assert all(0 < wait <= float(SLOWEST) for wait in tried)
    leader = min(scores, key=scores.__getitem__)
    off = abs(math.log(size_of(refine.schemes[leader.scheme]) / min(max(best, 10 / 64), 10)))
    assert off <= math.log(1.3)


@given(st.floats(1, 60), st.floats(0.05, 1))
def test_sizes_are_whole_numbers_from_two_to_all_but_one(best: float, rate: float) -> None:
    schemes = sizes(4, 10, 20, 30)
    refine = refinement(schemes)
    scores, _ = searched(refine, valley(best, rate), at(schemes))
    tried = sorted(one.size for one in refine.schemes.values() if isinstance(one, ft.FedBuff))
    assert all(isinstance(size, int) and 2 <= size <= CLIENTS - 1 for size in tried)
    assert all(b / a >= CLOSE for a, b in pairwise(tried))
    leader = refine.schemes[min(scores, key=scores.__getitem__).scheme]
    assert abs(math.log(size_of(leader) / min(max(best, 2), 39))) <= math.log(1.5)


@pytest.mark.parametrize("clients", [2, 3, 4, 5])
def test_few_clients_have_few_sizes(clients: int) -> None:
    times = ft.FixedTimes(range(1, clients + 1))
    schemes = list(schemes_for(times))
    refine = Refinement({one.label: one for one in schemes}, clients, Fraction(clients), flat=0.0)
    searched(refine, valley(1, 0.2), at(schemes))
    found = [one.size for one in refine.schemes.values() if isinstance(one, ft.FedBuff)]
    assert all(2 <= size < clients for size in found)


def test_rates_are_a_root_of_two_apart_around_the_best() -> None:
    schemes = waits(5)
    refine = refinement(schemes, waits=False)
    scores, rounds = searched(refine, valley(5, 0.2), at(schemes))
    assert rounds == [[Cell("FedFix(5)", 0.283), Cell("FedFix(5)", 0.141)]]
    assert refine.schemes.keys() == {one.label for one in schemes}
    scores, rounds = searched(refine, valley(5, 0.7), at(schemes))
    tried = sorted(cell.rate for cell in scores if cell.scheme == "FedFix(5)")
    best = tried.index(min(tried, key=lambda rate: abs(math.log(rate / 0.7))))
    assert all(1.2 < b / a < APART * 1.2 for a, b in pairwise(tried[best - 1 : best + 2]))


def test_rates_alone_or_waits_alone() -> None:
    schemes = waits(5, "5/2")
    cells = at(schemes)
    _, rounds = searched(refinement(schemes, rates=False), valley(4, 0.3), cells)
    assert rounds
    assert {cell.rate for found in rounds for cell in found} == {0.2} or {
        cell.rate for found in rounds for cell in found
    } == {0.5}
    assert searched(refinement(schemes, rates=False, waits=False), valley(4, 0.3), cells)[1] == []
    refine = refinement(schemes)
    assert searched(refine, lambda scheme, lr: 1.0 + (type(scheme) is not ft.FedAvg), at(schemes, (0.0,)))[1] == []


def test_others_than_fedfix_and_fedbuff_have_rates_only() -> None:
    refine = refinement(waits(5))

    def score(scheme: Scheme, lr: float) -> float:
        return 1 + (type(scheme) is not ft.AsyncFedAvg) + abs(math.log(lr / 0.2))

    _, rounds = searched(refine, score, at(waits(5)))
    assert {cell.scheme for found in rounds for cell in found} == {"AsyncFedAvg"}


def test_where_it_is_flat_on_both_sides_nothing_finer_is_tried() -> None:
    schemes = waits("5/2", 5, "15/2")
    cells = at(schemes)

    def flat(scheme: Scheme, lr: float) -> float:
        return 1 + 0.1 * (valley(5, 0.2)(scheme, lr) - 1) / 3

    assert searched(refinement(schemes, flat=0.2), flat, cells)[1] == []
    assert searched(refinement(schemes, flat=0.0), flat, cells)[1]
    edge = at(schemes, (0.2, 0.5))  # nothing was tried below
    assert searched(refinement(schemes, flat=0.2), flat, edge)[1]


def test_options_are_kept_and_other_options_do_not_mix() -> None:
    momentum = ft.FedFix(5).using(server=ft.SlowMo(0.5))
    schemes = [ft.FedAvg(), ft.FedFix("5/2"), momentum]
    refine = refinement(schemes, rates=False)

    def score(scheme: Scheme, lr: float) -> float:
        return valley(4, 0.2)(scheme, lr) - (0.5 if scheme.options == momentum.options else 0)

    _, rounds = searched(refine, score, at(schemes, (0.2,)))
    fresh = [refine.schemes[cell.scheme] for found in rounds for cell in found]
    assert fresh
    assert all(type(one) is ft.FedFix and one.options == momentum.options for one in fresh)
    assert len({one.label for one in fresh}) == len(fresh)


def test_what_is_new_is_checked_first() -> None:
    seen: list[Scheme] = []
    schemes = waits("5/2", 5)
    refine = refinement(schemes, rates=False, check=seen.append)
    _, rounds = searched(refine, valley(4, 0.2), at(schemes))
    assert [one.label for one in seen] == [cell.scheme for found in rounds for cell in found]
