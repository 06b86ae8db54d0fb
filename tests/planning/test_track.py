"""Cells trained for a race: their scores are those of the simulator's curves, and no more is trained than is asked."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.planning.comparison import Cell
from fedtempo.planning.objective import Objective
from fedtempo.planning.standings import Stopped
from fedtempo.planning.track import FieldTrack, study_maker
from fedtempo.simulation.field import Run
from fedtempo.simulation.study import study_of

TIMES, UNTIL, GRID = ft.FixedTimes(["1", "2/3", "1/2"]), 32, 1600
GENERATOR = np.random.Generator(np.random.Philox(3))
DATA = [(GENERATOR.normal(size=(n, 3)) + i, GENERATOR.normal(size=n) + 1 + i) for i, n in enumerate((6, 9, 12))]
ASYNC, BUFFER = ft.AsyncFedAvg(), ft.FedBuff(2)
HEAVY = ASYNC.using(correction=ft.Scaffold())
RATES = (0.002, 0.01, 0.02, 1e3)
SLOW, GOOD, BEST, WILD = (Cell(ASYNC.label, rate) for rate in RATES)
OTHER = [Cell(BUFFER.label, rate) for rate in RATES]
LOSS, WORST = Objective(), Objective("worst", "client_loss")


def _loss(params, batch):
    return jnp.mean((batch[0] @ params - batch[1]) ** 2)


def _off(params, batch):
    return jnp.mean(jnp.abs(batch[0] @ params - batch[1]))


PROBLEM = ft.Problem(lambda key: jnp.zeros(3), _loss, DATA, metrics={"off": _off}, importance="rows")
LOCAL = {"steps": 2, "batch_size": 4}
GIVEN = {"dtype": "float64", "engine": "events", "per_client": True}


def track_of(objective=LOSS, until=UNTIL, **more) -> FieldTrack:
    def study(schemes, local, **asked):
        return study_of(PROBLEM, schemes, TIMES, until=until, local=local, **GIVEN, **asked)

    schemes = {scheme.label: scheme for scheme in (ASYNC, BUFFER, HEAVY)}
    make = study_maker(study, ft.LocalSGD(lr=[0.1], **LOCAL))
    return FieldTrack(make, schemes, Fraction(until), 1.0, objective, **more)


@cache
def curves(schemes=(ASYNC, BUFFER), until=UNTIL):
    """Of all cells and two seeds, at 1601 times."""
    return ft.simulate(
        PROBLEM,
        list(schemes),
        TIMES,
        until=until,
        local=ft.LocalSGD(lr=list(RATES), **LOCAL),
        seeds=[0, 1],
        points=GRID + 1,
        **GIVEN,
    ).dataset


def curve(cell, seed, name="loss", whole=None):
    here = (curves() if whole is None else whole)[name].sel(scheme=cell.scheme, local_lr=cell.rate, seed=seed)
    return here.squeeze("weights").transpose("time", ...).values


def by_hand(values, share):
    """The mean over the last tenth of the time, at five points."""
    return np.mean([values[round(GRID * share * part)] for part in (0.92, 0.94, 0.96, 0.98, 1)])


def updates(cell, share, seed=0, until=UNTIL):
    scheme = {ASYNC.label: ASYNC, BUFFER.label: BUFFER}[cell.scheme]
    return ft.timeline(scheme, TIMES, until=Fraction(until) * Fraction(share), seed=seed).num_updates


# -- scores


def test_scores_at_rungs_are_those_of_simulated_curves() -> None:
    track = track_of()
    assert track.rungs == (1 / 16, 1 / 4, 1 / 2, 1)
    cells = [SLOW, GOOD, BEST, *OTHER[:3]]
    assert all(math.isnan(track.score(cell, 0, rung)) for cell in cells for rung in range(4))
    for rung, share in enumerate(track.rungs):
        track.train(cells, [0, 1], rung)
        for cell in cells:
            for seed in (0, 1):
                values = curve(cell, seed)
                score = track.score(cell, seed, rung)
                assert score == pytest.approx(by_hand(values, share), rel=1e-10)
                fall = math.log(values[round(GRID * share / 2)] / score)
                assert track.fall(cell, seed, rung) == pytest.approx(fall, abs=1e-9)
                assert all(math.isnan(track.score(cell, seed, later)) for later in range(rung + 1, 4))
                assert track.score(cell, seed, 0) == pytest.approx(by_hand(values, 1 / 16), rel=1e-10)
        cells = [SLOW, BEST, OTHER[1]] if rung == 1 else cells
    assert all(track.ended(Run(*cell, 1)) for cell in cells)
    assert not track.ended(Run(*GOOD, 1))
    assert math.isnan(track.score(GOOD, 0, 2))
    assert math.isnan(track.score(BEST, 2, 0))


def test_a_cell_that_diverged_scores_infinitely_and_is_not_begun_again() -> None:
    track = track_of()
    track.train([BEST, WILD], [0], 0)
    assert track.score(WILD, 0, 0) == math.inf
    assert track.score(WILD, 0, 3) == math.inf
    assert track.fall(WILD, 0, 0) == 0
    assert track.score(BEST, 0, 0) == pytest.approx(by_hand(curve(BEST, 0), 1 / 16), rel=1e-10)
    track.keep([BEST])
    spent = track.spent
    track.train([WILD], [0], 1)
    assert track.spent == spent


@pytest.mark.parametrize(
    ("objective", "sign"),
    [(WORST, 1), (Objective("metric", "off"), -1), (Objective("min", "off"), 1)],
    ids=["worst", "metric", "min"],
)
def test_scores_of_other_measures(objective, sign) -> None:
    track = track_of(objective)
    cells = [SLOW, GOOD, BEST, OTHER[2]]
    track.train(cells, [0], 1)
    for cell in cells:
        values = curve(cell, 0, objective.measure)
        values = sign * (values.max(axis=1) if objective.kind == "worst" else values)
        score = by_hand(values, 1 / 4)
        assert track.score(cell, 0, 1) == pytest.approx(score, rel=1e-10)
        fall = math.log1p((values[GRID // 8] - score) / abs(score))
        assert track.fall(cell, 0, 1) == pytest.approx(fall, abs=1e-9)


@pytest.mark.parametrize(("until", "rungs"), [(8, (1 / 4, 1 / 2, 1)), (4, (1 / 2, 1)), (3, (1,)), (1, (1,))])
def test_rungs_before_the_slowest_has_answered_twice_are_left_out(until, rungs) -> None:
    track = track_of(until=until)
    assert track.rungs == rungs
    assert all(rung / 2 in track.shares for rung in map(Fraction, rungs))  # where a fall begins


# -- what is spent


def test_the_cost_is_what_training_takes() -> None:
    track = track_of()
    cells = [SLOW, GOOD, BEST, *OTHER[:3]]
    before = None
    for rung, share in enumerate(track.rungs):
        spent = track.spent
        expected = sum(track.cost(cell, rung, before) for cell in cells)
        track.train(cells, [0], rung)
        exact = sum(updates(cell, share) for cell in cells)
        assert track.spent == exact  # two local steps are one update at a time
        assert -len(cells) * 4 < expected - (track.spent - spent) <= len(cells) * 20
        assert track.cost(GOOD, rung) == pytest.approx(updates(GOOD, share) + 16, abs=4)
        before = rung
    track.train(cells, [0], 3)
    track.train(cells, [0], 1)
    assert track.spent == exact


def test_each_scheme_is_trained_at_the_rates_that_are_asked_for_alone() -> None:
    track = track_of()
    track.train([SLOW, OTHER[2]], [0], 0)
    assert set(track.lanes.found) == {Run(*SLOW, 0), Run(*OTHER[2], 0)}
    track.train([SLOW, GOOD], [0, 1], 0)
    cells = [(SLOW, 0), (SLOW, 1), (GOOD, 0), (GOOD, 1), (OTHER[2], 0)]
    assert set(track.lanes.found) == {Run(*cell, seed) for cell, seed in cells}
    assert track.spent == sum(updates(cell, 1 / 16) for cell, _ in cells)


def test_forgotten_cells_begin_anew_and_come_to_the_same_bits() -> None:
    track = track_of()
    pair = [GOOD, BEST]
    track.train([SLOW, *pair], [0], 0)
    track.keep([SLOW])
    track.train(pair, [0], 1)
    first = {cell: track.lanes.found[Run(*cell, 0)] for cell in pair}
    track.keep([SLOW])
    assert track.score(GOOD, 0, 1) == pytest.approx(by_hand(curve(GOOD, 0), 1 / 4), rel=1e-10)
    track.train(pair, [0], 2)
    for cell in pair:
        known, again = first[cell], track.lanes.found[Run(*cell, 0)]
        assert again.points > known.points
        for name, values in known.measures.items():
            np.testing.assert_array_equal(values[: known.points], again.measures[name][: known.points], err_msg=name)
        assert track.score(cell, 0, 2) == pytest.approx(by_hand(curve(cell, 0), 1 / 2), rel=1e-10)
    trained = {SLOW: [1 / 16], GOOD: [1 / 16, 1 / 4, 1 / 2], BEST: [1 / 16, 1 / 4, 1 / 2]}
    assert track.spent == sum(updates(cell, share) for cell, shares in trained.items() for share in shares)


# -- for so many bytes, and until a loss is reached


def test_a_scheme_that_sends_more_has_less_time_for_so_many_bytes() -> None:
    whole = curves((ASYNC, HEAVY))
    ends = whole.isel(time=-1).sel(seed=0).squeeze("weights")
    gone = {
        cell: float((ends["bytes_up"] + ends["bytes_down"]).sel(scheme=cell.scheme).values.flat[0])
        for cell in (BEST, Cell(HEAVY.label, BEST.rate))
    }
    allowed = gone[BEST] / 2
    track = track_of(Objective("bytes", "loss", allowed))
    track.train(gone, [0], 3)
    for cell, total in gone.items():
        horizon = track.horizon(cell.scheme)
        assert float(horizon.end) == pytest.approx(UNTIL * allowed / total, rel=1e-3)
        assert horizon.updates == pytest.approx(updates(BEST, 1) * allowed / total, rel=1e-3)
        found = track.lanes.found[Run(*cell, 0)]
        assert found.times[-1] == float(horizon.end)
        assert found.measures["bytes"][-1] == pytest.approx(allowed, rel=0.05)
        tail = np.interp(
            [float(horizon.end) * part for part in (0.92, 0.94, 0.96, 0.98, 1)],
            whole["time"].values,
            np.arange(GRID + 1),
        )
        values = curve(cell, 0, whole=whole)
        assert track.score(cell, 0, 3) == pytest.approx(np.mean(values[np.floor(tail + 1e-6).astype(int)]), rel=1e-10)
    heavy = track.horizon(HEAVY.label)
    assert heavy.end < track.horizon(ASYNC.label).end
    more = track_of(Objective("bytes", "loss", 10 * gone[BEST]))
    assert more.horizon(ASYNC.label).end == UNTIL


def test_a_run_that_has_reached_the_loss_is_not_trained_further() -> None:
    level = by_hand(curve(BEST, 0), 1 / 8)
    track = track_of(Objective("time-to", "loss", float(level)))
    places = [round(GRID * float(share)) for share in track.shares]
    cells = [SLOW, BEST]
    assert curve(SLOW, 0)[places].min() > level
    track.train(cells, [0], 3)
    values, times = curve(BEST, 0)[places], np.array([float(share * UNTIL) for share in track.shares])
    k = int(np.flatnonzero(values <= level)[0])
    crossing = np.interp(-level, [-values[k - 1], -values[k]], times[k - 1 : k + 1])
    assert UNTIL / 16 < crossing <= UNTIL / 4
    assert track.score(BEST, 0, 3) == track.score(BEST, 0, 1) == pytest.approx(crossing, rel=1e-9)
    assert track.score(SLOW, 0, 3) > UNTIL
    found = track.lanes.found[Run(*BEST, 0)]
    assert UNTIL / 4 <= found.times[found.points - 1] < UNTIL / 4 + 1 / 2  # before the next update
    assert track.ended(Run(*BEST, 0))
    assert track.ended(Run(*SLOW, 0))
    assert track.spent == updates(SLOW, 1) + updates(BEST, 1 / 4)
    assert track.cost(BEST, 3) == pytest.approx(updates(BEST, 1 / 4) + 16, abs=4)
    assert track.cost(BEST, 3, 1) == 16
    assert track.fall(BEST, 0, 3) == 0


# -- stopped


def test_a_deadline_or_an_interrupt_stops_it_and_what_is_known_stays() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    track = track_of(deadline=time.monotonic() - 1)
    with pytest.raises(Stopped) as stop:
        track.train([BEST], [0], 0)
    assert stop.value.why == "time"
    assert track.spent == 0
    assert math.isnan(track.score(BEST, 0, 0))
    track.deadline = None
    track.train([BEST], [0], 0)
    known = track.score(BEST, 0, 0)
    track.tell = interrupt
    with pytest.raises(Stopped) as stop:
        track.train([BEST], [0], 3)
    assert stop.value.why == "stopped"
    assert track.score(BEST, 0, 0) == known
    track.tell = None
    track.train([BEST], [0], 3)
    assert track.score(BEST, 0, 3) == pytest.approx(by_hand(curve(BEST, 0), 1), rel=1e-10)
