"""The race on tracks where nothing is trained: its budget, its end, its choice and what it says of the regret."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.errors import InputError
from fedtempo.planning.around import FURTHER
from fedtempo.planning.calibration import LOST, LOST_OF_FEW, PER_SCHEME, kept_for, lost
from fedtempo.planning.comparison import Cell
from fedtempo.planning.race import REFERENCES, Race
from fedtempo.planning.standings import Stopped
from support.tracks import (
    RATES,
    REFERENCE,
    RUNGS,
    WHOLE,
    DrawnTrack,
    grid,
    names,
    race_on,
    sgd,
    widening,
)

FEW = (0.1, 0.2, 0.5, 1.0)


def ran(track: DrawnTrack, cells: list[Cell], budget: float = 1.0, **given: object) -> Race:
    race = race_on(track, cells, budget, **given)
    race.run()
    return race


def refused(race: Race) -> str | None:
    """Run it; what it was refused with."""
    try:
        race.run()
    except InputError as error:
        return str(error)
    return None


def bound(race: Race) -> float:
    """Of log regret, as a recommendation has it."""
    return sum(race.lost.values()) + race.compare().regret


@cache
def usual() -> list[tuple[DrawnTrack, Race]]:
    """100 races of moderate noise."""
    found = []
    for draw in range(100):
        track = sgd(draw, 2 + draw % 9)
        cells = grid(names(2 + draw % 9))
        found.append((track, ran(track, cells, widen=widening() if draw % 2 else None)))
    return found


# -- the choice


def test_the_choice_is_the_best_or_within_the_bound() -> None:
    regrets = np.array([track.regret(race) for track, race in usual()])
    bounds = np.array([bound(race) for _, race in usual()])
    assert (regrets >= 0).all()
    assert (regrets <= bounds + 1e-12).mean() >= 0.95
    assert np.median(regrets) <= 0.01
    assert np.mean(regrets <= math.log(1.1)) >= 0.97


def test_it_costs_less_than_the_grid() -> None:
    shares = [track.spent / race.grid for track, race in usual()]
    assert np.median(shares) < 0.75
    assert max(shares) <= 1


def test_sure_means_that_the_whole_bound_is_within_the_tolerance() -> None:
    ends = {race.ended for _, race in usual()}
    assert ends <= {"sure", "budget", "settled", "alone"}
    sure = [race for _, race in usual() if race.ended == "sure"]
    assert len(sure) > 50
    assert all(bound(race) <= math.log1p(race.tolerance) for race in sure)


def test_the_reference_is_always_trained_to_the_end() -> None:
    ended = []
    for track, race in usual():
        cells = [cell for cell in race.standing if cell.scheme == REFERENCE and math.isfinite(track.end(cell))]
        ended.append(sum(race.standing[cell].rung == len(RUNGS) - 1 for cell in cells))
        assert ended[-1] >= min(1, len(cells))
    assert np.mean(ended) >= REFERENCES


def test_before_a_quarter_every_schemes_best_rate_goes_on() -> None:
    for track, race in usual():
        for label in {cell.scheme for cell in race.cells}:
            begun = [cell for cell in race.standing if cell.scheme == label]
            if any(track.dies.get(cell, math.inf) > RUNGS[0] for cell in begun):
                assert any(track.came[cell, 0] >= 1 for cell in begun), label


def test_the_worst_schemes_go_on_to_a_quarter_and_the_reference_to_the_end() -> None:
    labels = names(12)
    level = {label: 1.0 + k for k, label in enumerate([*labels[1:], REFERENCE])}
    track = DrawnTrack(lambda cell, share: level[cell.scheme] + cell.rate / 10 - share / 2)
    race = ran(track, grid(labels))
    first = {rung: next(cells for cells, _, at in track.calls if at == rung) for rung in range(len(RUNGS))}
    assert {cell.scheme for cell in first[1]} == set(labels)
    assert Cell("scheme 11", RATES[0]) in first[1]
    assert "scheme 11" not in {cell.scheme for cell in first[2]}
    for rung in (1, 2, 3):
        assert [cell.rate for cell in first[rung] if cell.scheme == REFERENCE] == list(RATES[:REFERENCES])
    assert race.compare().best == Cell("scheme 1", RATES[0])


# -- seeds


def test_compared_cells_share_their_seeds() -> None:
    for _, race in usual()[:60]:
        assert race.used == list(range(len(race.used)))
        for cell in race.standing:
            scores = [race.track.score(cell, seed, len(RUNGS) - 1) for seed in race.used]
            there = ~np.isnan(scores)
            assert not (np.diff(there.astype(int)) > 0).any()  # the first ones, without gaps
    for _, seeds, rung in usual()[0][0].calls:
        assert len(seeds) == 1
        assert rung == len(RUNGS) - 1 or seeds == (0,)


def test_noise_that_all_cells_share_costs_no_seeds() -> None:
    """In pairs it goes; against different seeds it would hide a difference of a few percent."""

    def mean(cell: Cell, share: float) -> float:
        return (1 + 0.3 * abs(math.log10(cell.rate / 0.1))) * (1.15 if cell.scheme != REFERENCE else 1) - share / 2

    race = ran(DrawnTrack(mean, common=0.5, own=0.001), grid(names(3)), 2.0)
    assert (race.ended, race.compare().best, len(race.used)) == ("sure", Cell(REFERENCE, 0.1), 2)


def test_seeds_are_taken_until_the_choice_is_sure_enough() -> None:
    used = {}
    for own in (0.002, 0.08):
        races = [ran(sgd(draw, 3, noise=own), grid(names(3)), 40.0) for draw in range(5)]
        assert {race.ended for race in races} == {"sure"}
        used[own] = [len(race.used) for race in races]
    assert used[0.002] == [2] * 5
    assert sum(used[0.08]) > 15


def test_one_seed_before_the_last_the_choice_was_not_sure() -> None:
    """No seed more than the tolerance asks for."""
    track = sgd(3, 3, noise=0.08)
    race = ran(track, grid(names(3)), 40.0)
    last = max(race.used)
    assert last >= 2
    without = race_on(track, list(race.cells))
    without.standing, without.lost, without.used = race.standing, race.lost, race.used[:-1]
    assert bound(without) > math.log1p(race.tolerance)


def test_the_four_ends() -> None:
    def apart(cell: Cell, share: float) -> float:
        return 1 + cell.rate - share / 2

    assert ran(DrawnTrack(apart), grid([REFERENCE], (0.1,))).ended == "alone"
    assert ran(DrawnTrack(apart, own=0.3), grid(names(3), FEW)).ended == "budget"
    assert ran(DrawnTrack(apart, own=0.001), grid(names(3), FEW), 4.0).ended == "sure"
    assert ran(DrawnTrack(lambda cell, share: 1.0, own=0.5), grid(names(2), FEW), 1e3, tolerance=0.01).ended in (
        "budget",  # of seeds there are so many
        "settled",
    )


# -- the interval


def test_the_bound_holds_where_cells_differ_as_little_as_seeds_do() -> None:
    held, told = [], []
    for draw in range(120):
        by = np.random.default_rng(draw)
        cells = grid(names(3), FEW)
        level = dict(zip(cells, np.exp(0.03 * by.standard_normal(len(cells))), strict=True))
        track = DrawnTrack(lambda cell, share, level=level: level[cell], own=0.05, common=0.1, draw=draw)
        race = ran(track, cells, 3.0)
        held.append(track.regret(race) <= bound(race) + 1e-12)
        found = race.compare()
        true = {c: math.log(level[c] / level[found.best]) for c in found.upper}
        told += [found.lower[c] <= true[c] <= 2 * found.mean[c] - found.lower[c] for c in found.upper]
    assert np.mean(held) >= 0.95
    assert np.mean(told) >= 0.95


@pytest.mark.parametrize("shift", [0.0, 1.0, 30.0], ids=["positive", "around zero", "negative"])
def test_the_bound_holds_on_pure_noise(shift: float) -> None:
    """All cells are the same in the mean: none may be said to be clearly better."""
    apart, regrets = [], []
    for draw in range(100):
        track = DrawnTrack(lambda cell, share: 1.0, own=0.05, shift=shift, draw=draw)
        race = ran(track, grid(names(3), FEW), 3.0)
        found = race.compare()
        assert math.isfinite(found.regret)
        regrets.append(found.regret)
        apart += [value > 0 for value in found.lower.values()]
    assert min(regrets) > 0
    assert np.mean(apart) <= 0.05


# -- what early rungs leave behind


def late(late_one: Cell, beside: Cell, others: float = 1.0):
    """The late one is bad until T/2 and the best at T; the one beside it is the best till then, and second at T."""

    def mean(cell: Cell, share: float) -> float:
        if cell == late_one:
            return 0.4 if share > 0.5 else 3.0 + cell.rate
        if cell == beside:
            return 0.5 if share > 0.5 else 0.8
        return others + 0.05 * abs(math.log10(cell.rate / beside.rate)) + (0.2 if cell.scheme == REFERENCE else 0)

    return mean


def test_a_rate_that_is_late_is_found_beside_the_best() -> None:
    slow, best = Cell("scheme 1", 0.02), Cell("scheme 1", 0.05)
    race = ran(DrawnTrack(late(slow, best), own=0.002), grid(names(6)))
    assert race.compare().best == slow


def test_a_scheme_that_is_late_at_the_leaders_rate_is_found_across() -> None:
    slow, best = Cell("scheme 4", 0.1), Cell("scheme 1", 0.1)
    race = ran(DrawnTrack(late(slow, best), own=0.002), grid(names(FURTHER + 3)))
    assert race.track.score(Cell("scheme 4", 0.1), 0, 2) > 1
    around = [cell for cell in race.standing if cell.rate == 0.1 and race.standing[cell].rung >= 2]
    assert {cell.scheme for cell in around} == set(names(FURTHER + 3))

    def half_way(cell: Cell, share: float) -> float:  # it shows at T/2
        return 0.45 if cell == slow and share == 0.5 else late(slow, best)(cell, share)

    race = ran(DrawnTrack(half_way, own=0.002), grid(names(FURTHER + 3)))
    assert race.compare().best == slow


def test_rates_beside_the_references_best_are_trained_too() -> None:
    slow, best = Cell(REFERENCE, 0.02), Cell(REFERENCE, 0.05)

    def mean(cell: Cell, share: float) -> float:
        return late(slow, best)(cell, share) if cell.scheme == REFERENCE else 0.2 + cell.rate - share / 10

    race = ran(DrawnTrack(mean, own=0.002), grid(names(4)))
    assert race.best_of(REFERENCE) == slow


def test_rates_are_widened_where_the_best_is_the_last() -> None:
    def mean(cell: Cell, share: float) -> float:
        return 0.5 + abs(math.log10(cell.rate / 20)) - share / 4

    race = ran(DrawnTrack(mean, own=0.002), grid(names(4)), widen=widening())
    assert race.compare().best.rate == 20
    assert ran(DrawnTrack(mean, own=0.002), grid(names(4))).compare().best.rate == RATES[-1]


def test_what_is_refined_is_trained_to_the_end() -> None:
    asked: list[Cell] = []

    def refine(leader: Cell, scores: dict[Cell, float]) -> list[Cell]:
        asked.append(leader)
        assert leader in scores
        fresh = Cell(leader.scheme, round(leader.rate * 1.5, 6))
        return [] if fresh in scores or len(asked) > 3 else [fresh]

    def mean(cell: Cell, share: float) -> float:
        return 0.5 + abs(math.log10(cell.rate / 0.3)) - share / 4

    race = ran(DrawnTrack(mean, own=0.002), grid(names(3)), refine=refine)
    assert asked
    assert race.compare().best.rate == pytest.approx(0.3)


# -- the budget


def test_the_budget_is_kept() -> None:
    ends = set()
    for draw in range(100):
        by = np.random.default_rng(draw + 5000)
        budget, schemes = float(np.exp(by.uniform(math.log(0.03), math.log(2)))), int(by.integers(1, 13))
        track = sgd(draw, schemes, noise=float(by.choice([0.0, 0.01, 0.05])))
        race = race_on(track, grid(names(schemes)), budget, widen=widening() if draw % 2 else None)
        if (said := refused(race)) is not None:
            ends.add(said[:7])
            assert re.match("budget: (.* are too few to race two|every cell that there was room for div)", said)
            continue
        ends.add(race.ended)
        assert track.spent <= race.budget * (1 + 1e-9), draw
        assert race.compare().best in race.standing
    assert {"budget:", "budget", "sure"} <= ends


@pytest.mark.parametrize("draw", range(12))
def test_the_least_budget_is_the_least(draw: int) -> None:
    schemes = 1 + draw % 6
    track, cells = sgd(draw, schemes), grid(names(schemes))
    with pytest.raises(InputError, match="too few to race two cells to the end") as error:
        race_on(track, cells, allowance=lambda: 5.0, given="5").run()
    assert "budget: 5 client updates" in str(error.value)
    assert not track.calls
    least = int(re.findall(r"\d+", str(error.value))[-1])
    with pytest.raises(InputError):
        race_on(track, cells, allowance=lambda: least - 1.0).run()
    race = race_on(track, cells, allowance=lambda: float(least))
    race.run()
    assert track.spent <= least
    assert track.score(race.compare().best, 0, len(RUNGS) - 1) < math.inf or race.ended == "budget"


def test_a_pilots_updates_are_in_the_least() -> None:
    with pytest.raises(InputError, match=f"the least is {int(2 * WHOLE) + 70}"):
        race_on(DrawnTrack(lambda cell, share: 1.0), grid(names(2)), allowance=lambda: 3.0, other=70.0).run()


def test_two_cells_are_trained_within_what_training_both_takes() -> None:
    for rungs in (RUNGS, RUNGS[1:], RUNGS[3:]):
        track = DrawnTrack(lambda cell, share: 1 + cell.rate, rungs=rungs, own=0.01)
        race = ran(track, grid([REFERENCE], (0.1, 0.2)))
        assert track.spent == pytest.approx(2 * WHOLE)
        assert race.compare().best == Cell(REFERENCE, 0.1)


def test_where_the_budget_cannot_start_all_the_predicted_ones_start() -> None:
    cells = grid(names(10))
    order = {cell: abs(math.log(cell.rate / 0.2)) for cell in cells}
    race = ran(sgd(1, 10), cells, 0.04, order=order)
    assert race.never
    begun = {cell.rate for cell in race.standing if race.track.came[cell, 0] >= 0}
    assert max(order[cell] for cell in race.standing) <= min(order[cell] for cell in race.never) + 1.7
    assert 0.2 in begun
    assert not set(race.never) & set(race.standing)
    assert set(race.never) | set(race.standing) >= set(cells)


def test_where_the_first_ones_diverge_others_begin() -> None:
    cells = grid(names(6))
    dies = {cell: 0.01 for cell in cells if cell.rate > 0.02}
    race = ran(DrawnTrack(lambda cell, share: 1 + cell.rate - share / 2, own=0.01, dies=dies), cells, 0.05)
    assert race.compare().best.rate <= 0.02


def test_a_guess_of_the_budget_does_not_stop_the_race() -> None:
    """Where seconds are what is limited, the track says when they are over."""
    track = sgd(2, 4)
    race = ran(
        track, grid(names(4)), allowance=lambda: 1.0 + 2 * track.spent if track.spent else math.inf, guessed=True
    )
    assert race.ended in ("budget", "sure", "settled")
    assert max(one.rung for one in race.standing.values()) == len(RUNGS) - 1


# -- every race ends

SCORES = ("sgd", "equal", "negative", "zero", "wild", "huge", "falling", "diverging")


@st.composite
def races(draw) -> Race:
    """Of all kinds, with odd numbers in them."""
    number, kind = draw(st.integers(0, 2**31)), draw(st.sampled_from(SCORES))
    schemes = draw(st.sampled_from([1, 1, 2, 3, 5, 40]))
    rates = draw(st.sampled_from([(0.1,), (0.1, 0.2), FEW, RATES if schemes < 40 else FEW]))
    cells = grid(names(schemes), rates)
    cells = cells[: draw(st.sampled_from([1, 2, 3, 10_000]))]
    by = np.random.default_rng(number)
    own = draw(st.sampled_from([0.0, 0.02, 1.0, 1e3]))
    rungs = draw(st.sampled_from([RUNGS, RUNGS[1:], RUNGS[2:], RUNGS[3:]]))
    track = sgd(number, schemes, rates=rates, noise=own, rungs=rungs)
    if kind == "equal":
        track.mean, track.dies = lambda cell, share: 1.0, {}
    elif kind in ("negative", "zero"):
        track.shift = 10.0 if kind == "negative" else 0.05
    elif kind == "wild":
        track.mean = lambda cell, share: float(np.exp(10 * np.sin(1e3 * cell.rate * share)))
    elif kind == "huge":
        track.mean = lambda cell, share: 1e300 * (1 + cell.rate)
    elif kind == "falling":
        track.mean = lambda cell, share: 1 / cell.rate  # the largest rate is always the best
    elif kind == "diverging":
        track.dies = {cell: float(by.uniform(0, 1.3)) for cell in cells}
        track.dies_too = {(cell, seed): float(by.uniform(0, 3)) for cell in cells for seed in range(4)}
    refine = None
    if draw(st.booleans()):

        def refine(leader, scores):
            return [Cell(leader.scheme, float(f"{leader.rate * f:.3g}")) for f in (0.7, 1.4)][:draw_one]

        draw_one = draw(st.integers(0, 2))
    return race_on(
        track,
        cells,
        draw(st.floats(0.03, 3)),
        reference=draw(st.sampled_from([REFERENCE, None, "scheme 1"])),
        tolerance=draw(st.sampled_from([0.0, 0.01, 0.1, 1.0])),
        widen=widening(rates) if draw(st.booleans()) else None,
        refine=refine,
        seeds=tuple(range(draw(st.sampled_from([1, 2, 5])))),
    )


@given(races())
@settings(max_examples=200)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_race_ends(race: Race) -> None:
    track = race.track
    assert isinstance(track, DrawnTrack)
    train = track.train

    def counted(*given) -> None:
        assert len(track.calls) < 1000
        train(*given)

    track.train = counted
    if (said := refused(race)) is not None:
        assert re.match("rates: (every cell diverged|no cell could)|budget: (.* too few|every cell that)", said)
        return
    assert race.ended in ("sure", "budget", "settled", "alone")
    assert track.spent <= race.budget * (1 + 1e-9)
    found = race.compare()
    assert found.best in race.standing
    assert math.isfinite(track.score(found.best, 0, race.farthest))
    assert found.regret >= 0
    assert all(value >= 0 for value in race.lost.values())


# -- stopped

STOPPED = [(why, part) for why in ("stopped", "time") for part in (0.0, 0.5)]


@pytest.mark.parametrize(("why", "part"), STOPPED)
@pytest.mark.parametrize("draw", [0, 5])
def test_a_stop_at_any_call_leaves_what_can_be_compared(draw: int, why: str, part: float) -> None:
    whole = sgd(draw, 5)
    ran(whole, grid(names(5)), widen=widening())
    kinds = set()
    for call in range(len(whole.calls)):
        track = sgd(draw, 5, stop=(call, why, part))
        race = ran(track, grid(names(5)), widen=widening())
        assert race.ended == why
        assert len(track.calls) == call + 1
        if len(race.standing) < 2:
            kinds.add("none")
            assert call == 0
            continue
        found = race.compare()
        kinds.add(race.farthest)
        assert math.isfinite(track.score(found.best, 0, race.farthest))
        assert len(found.upper) >= 1
        assert math.isfinite(found.regret)
    assert {0, 1, 2, 3} <= kinds
    assert ("none" in kinds) == (part == 0)


def test_a_stop_of_one_cell_is_still_a_choice() -> None:
    race = ran(DrawnTrack(lambda cell, share: 1.0, stop=(2, "time", 0.0)), grid([REFERENCE], (0.1,)))
    assert race.ended == "time"
    assert race.compare().best == Cell(REFERENCE, 0.1)
    assert str(Stopped("time")) == "time"


def test_where_all_that_went_on_diverge_those_left_behind_come_back() -> None:
    cells = grid(names(2))
    dies = {cell: share for cell in cells for share in ([0.3] if cell.rate > 0.05 else [])}
    for rates_share in (0.1, 0.3, 0.7):
        track = DrawnTrack(lambda c, s: 1 + 1 / c.rate - s, own=0.01, dies=dict.fromkeys(dies, rates_share))
        race = ran(track, cells, tolerance=0.5)
        assert race.compare().best.rate == 0.05
        assert any(
            cell.scheme == REFERENCE and one.rung == 3 and cell.rate <= 0.05 for cell, one in race.standing.items()
        )


# -- what is told, and why a cell was left


def test_the_stages_are_told_and_every_cell_says_why_it_was_left() -> None:
    told: list[tuple[str, int]] = []
    track, cells = sgd(0, 4), grid(names(4))
    race = ran(track, cells, tell=lambda stage, number: told.append((stage, number)))
    stages = [stage for stage, _ in told]
    assert told[0] == ("training to 1/16 of the time", len(cells))
    assert [s for s in dict.fromkeys(stages) if "under" not in s] == [
        "training to 1/16 of the time",
        "training to 1/4 of the time",
        "training to 1/2 of the time",
        "training to the end",
    ]
    assert "training under seed 1" in stages
    for cell in race.standing:
        left = race.standing[cell]
        if left.rung == len(RUNGS) - 1:
            assert not left.why
        else:
            assert re.match(r"behind \d+ others? at 1/|diverged before 1/", left.why) or race.track.came[cell, 0] > 0


def test_what_was_forgotten_is_counted_from_the_start() -> None:
    for track, race in usual()[:60]:
        again = {cell for cell in track.begun_again if cell in race.standing}
        assert all(race.standing[cell].rung >= 2 for cell in again)  # only around the best, to T/2 at least


def test_rates_that_all_diverge_are_refused() -> None:
    cells = grid(names(3))
    with pytest.raises(InputError, match="rates: every cell diverged"):
        ran(DrawnTrack(lambda cell, share: 1.0, dies=dict.fromkeys(cells, 0.01)), cells)


# -- calibration


@pytest.mark.parametrize("schemes", [1, 2, 3, 10])
@pytest.mark.parametrize("share", [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2])
def test_what_is_lost_falls_with_what_is_kept_and_the_two_are_inverse(share: float, schemes: int) -> None:
    kept = np.linspace(0, 8 * schemes, 97)
    found = np.array([lost(share, k, schemes) for k in kept])
    assert (np.diff(found) <= 1e-15).all()
    assert (found >= 0).all()
    assert found[-1] == 0
    aims = np.array([kept_for(share, most, schemes) for most in (0.0, 0.001, 0.01, 0.05, 0.1, 1.0)])
    assert (np.diff(aims) <= 0).all()
    for most in (0.0, 0.001, 0.01, 0.05, 0.1, 1.0):
        assert lost(share, kept_for(share, most, schemes), schemes) <= most
    for place, per_scheme in enumerate(PER_SCHEME):
        value = lost(share, per_scheme * schemes, schemes)
        assert kept_for(share, value, schemes) <= PER_SCHEME[place] * schemes * (1 + 1e-12)


def test_less_is_lost_later_and_with_many_schemes() -> None:
    for k in PER_SCHEME:
        assert lost(1 / 32, 3 * k, 3) >= lost(1 / 16, 3 * k, 3) >= lost(1 / 4, 3 * k, 3) >= lost(1 / 2, 3 * k, 3)
        assert lost(1 / 8, 3 * k, 3) == lost(1 / 16, 3 * k, 3)
    for table in (LOST, LOST_OF_FEW):
        assert all(len(row) == len(PER_SCHEME) and list(row) == sorted(row, reverse=True) for row in table.values())
