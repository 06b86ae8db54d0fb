"""Programs run on version tags instead of models: who reads and writes what, where pieces and waves are cut."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.rules import Arrived, Close, WaitingRule
from fedtempo.simulation.engine.program import FIRST, NOBODYS, grid_times, pieces
from fedtempo.simulation.engine.waves import grouped, wave_starts

HALVES = st.integers(1, 12).map(lambda n: Fraction(n, 4))


@dataclass(frozen=True)
class Hoard(WaitingRule):
    """Each update makes a model, and only the last of all clients' is sent: most versions start nothing."""

    returns_to_contributors: bool = False

    def start(self, view):
        return None, tuple(sorted(view.clients))

    def decide(self, state, event, view):
        if not isinstance(event, Arrived):
            return state, None
        return state, Close((event.job,), () if view.in_flight else tuple(sorted(view.clients)))


@dataclass(frozen=True)
class Relay(WaitingRule):
    """Each update makes a model, which goes to the free client with the lowest number; one client is always free."""

    returns_to_contributors = False

    def start(self, view):
        return None, tuple(sorted(view.clients))[1:]

    def decide(self, state, event, view):
        if not isinstance(event, Arrived):
            return state, None
        free = sorted(view.clients - view.in_flight.keys() - view.arrived.keys() - {event.job.client})
        return state, Close((event.job,), (free[0],) if free else (event.job.client,))


@dataclass(frozen=True)
class Rest(WaitingRule):
    """A round every half unit of time; who contributed gets the model of the next round, though that may be empty."""

    returns_to_contributors = False
    waits = (Fraction(1, 2),)

    def start(self, view):
        return (1, ()), tuple(sorted(view.clients))

    def deadline(self, state, view):
        return int(state[0] * Fraction(1, 2) / view.unit)

    def decide(self, state, event, view):
        if isinstance(event, Arrived):
            return state, None
        count, resting = state
        return (count + 1, tuple(sorted(view.arrived))), Close(tuple(view.arrived.values()), resting)


class Ones(ft.WeightRule):
    """Every update counts one, and a hundredth more for each model made in between."""

    name = "ones"

    def base(self, importance, participation):
        return np.ones(len(importance.values)), None

    def discount(self, staleness):
        return 1 + np.asarray(staleness) / 100


def schemes(clients):
    return st.one_of(
        st.sampled_from(
            [
                ft.FedAvg(),
                ft.AsyncFedAvg(),
                ft.Scheme(Hoard(), name="hoard"),
                ft.Scheme(Relay(), name="relay"),
                ft.Scheme(Rest(), name="rest"),
            ]
        ),
        HALVES.map(ft.FedFix),
        st.integers(1, clients).flatmap(
            lambda m: st.sampled_from(
                [ft.FedBuff(m), ft.UniformSampling(m), ft.MultinomialSampling(m), ft.FastestSampling(m)]
            )
        ),
        st.tuples(HALVES, st.integers(1, 5), HALVES).map(lambda s: ft.StagedFedFix([(s[0], s[1]), (s[2], None)])),
    )


@st.composite
def cases(draw):
    clients = draw(st.integers(2, 9))
    means = draw(st.lists(HALVES, min_size=clients, max_size=clients))
    times = ft.ExponentialTimes(means) if draw(st.booleans()) and draw(st.booleans()) else ft.FixedTimes(means)
    return {
        "scheme": draw(schemes(clients)),
        "times": times,
        "until": draw(st.integers(1, 160).map(lambda n: Fraction(n, 8))),
        "points": draw(st.integers(2, 30)),
        "capacity": draw(st.sampled_from([1, 2, 3, 5, 16, 64])),
        "max_marks": draw(st.integers(1, 6)),
        "seed": draw(st.integers(0, 3)),
    }


def weights(num_clients):
    """As `ft.weights` would give them, without a long run of the rule to know shares that are not needed here."""
    return ft.Weights(np.arange(1.0, num_clients + 1)[None, :], (None,), (0,), Ones())


@dataclass(frozen=True)
class Made:
    """A program, and the timeline that it is made of."""

    line: ft.Timeline
    pieces: list
    times: list[Fraction]


def program(scheme, times, until, points, capacity, max_marks, seed=0):
    p = np.full(times.num_clients, 1 / times.num_clients)
    config = ClockConfig.of(scheme.waiting, times, p, seed)
    grid = grid_times(until, points)
    made = list(pieces(config, [weights(len(p))] * 2, until=until, times=grid, capacity=capacity, max_marks=max_marks))
    parts = list(ft.timeline_chunks(scheme, times, until=until, seed=seed))
    line = ft.Timeline.joined(parts) if parts else ft.timeline(scheme, times, rounds=1, seed=seed)[:0]
    return Made(line, made, grid)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(cases())
@example(
    {
        "scheme": ft.FedAvg(),
        "times": ft.FixedTimes([1] * 9),
        "until": Fraction(4),
        "points": 9,
        "capacity": 2,
        "max_marks": 1,
        "seed": 0,
    }
)
def test_a_program_reads_the_versions_of_its_timeline(case) -> None:
    """A slot holds the number of updates in its model; a version is the number of updates before it was made."""
    made = program(**case)
    line = made.line
    for only_closing in (False, True):
        slots = {FIRST: 0}
        for piece in made.pieces:
            assert piece.num_events <= case["capacity"]
            assert min([*piece.read, *piece.write], default=FIRST) >= FIRST
            assert max([*piece.read, *piece.write, *(m.slot for m in piece.marks)], default=0) < piece.num_slots
            marks = list(piece.marks)
            for k in range(piece.num_events + 1):
                for mark in piece.marks:  # a model to be measured stays until its piece is done
                    if mark.event <= k:
                        assert slots[mark.slot] == line.offsets[mark.rounds] == mark.updates
                        if mark in marks:
                            marks.remove(mark)
                if k < piece.num_events:
                    e = piece.first + k
                    assert slots[int(piece.read[k])] == line.offsets[line.base[e]]
                    if piece.closes[k] or not only_closing:
                        slots[int(piece.write[k])] = e + 1
            assert not marks


@settings(derandomize=True, deadline=None, max_examples=200)
@given(cases())
def test_pieces_join_to_the_timeline_and_its_measuring_points(case) -> None:
    made = program(**case)
    line = made.line
    assert [piece.first for piece in made.pieces] == np.cumsum([0, *(p.num_events for p in made.pieces)]).tolist()[:-1]
    for name in ("client", "job"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in made.pieces]), getattr(line, name))
    closes = np.concatenate([p.closes for p in made.pieces])
    np.testing.assert_array_equal(np.flatnonzero(closes) + 1, np.unique(line.offsets[line.offsets > 0]))
    weight = np.concatenate([p.weight for p in made.pieces], axis=1)
    draws = 1 if line.draws is None else line.draws
    np.testing.assert_allclose(weight, [(line.client + 1) * draws * (1 + line.staleness / 100)] * 2)
    marks = [mark for piece in made.pieces for mark in piece.marks]
    assert [mark.point for mark in marks] == list(range(case["points"]))
    ends = [end * line.unit for end in line.ends.tolist()]
    for mark, t in zip(marks, made.times, strict=True):
        assert mark.rounds == sum(end <= t for end in ends)
        assert mark.updates == line.offsets[mark.rounds]
    for piece in made.pieces:
        assert len({(m.slot, m.rounds) for m in piece.marks}) <= case["max_marks"] + 1
        assert all(0 <= m.event <= piece.num_events for m in piece.marks)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(cases())
def test_slots_are_those_of_live_versions_and_of_models_to_be_measured(case) -> None:
    made = program(**case)
    rule, line = case["scheme"].waiting, made.line
    live = 1
    if line.num_rounds:
        known = line
        if rule.returns_to_contributors:  # jobs that are out at the end hold their versions
            known = ft.timeline(case["scheme"], case["times"], until=case["until"] + 60, seed=case["seed"])
        live = int(known.live_versions[: line.num_rounds].max())
    held = max(len({m.slot for m in piece.marks}) for piece in made.pieces)
    # the current version, the one in the making, and marks of a piece that is being put together
    assert made.pieces[-1].num_slots <= FIRST + live + max(held, min(case["max_marks"], case["points"])) + 2


@settings(derandomize=True, deadline=None, max_examples=200)
@given(cases(), st.sampled_from([1, 2, 3, 8, 100]))
def test_waves_hold_events_that_do_not_need_each_other(case, width) -> None:
    made = program(**case)
    line, slots = made.line, {FIRST: 0}
    for piece in made.pieces:
        starts = wave_starts(piece, width)
        assert starts[0] == 0
        assert starts[-1] == piece.num_events
        assert (np.diff(starts) > 0).all()
        assert (np.diff(starts) <= width).all()
        for begin, end in pairwise(starts):
            before, wrote = dict(slots), []
            for k in range(begin, end):
                e = piece.first + k
                assert before[int(piece.read[k])] == line.offsets[line.base[e]]
                if piece.closes[k]:
                    wrote.append(int(piece.write[k]))
                    slots[wrote[-1]] = e + 1
            assert len(set(wrote)) == len(wrote)
            if end < piece.num_events and end - begin < width:  # it was cut for a reason
                assert int(piece.read[end]) in wrote or (piece.closes[end] and int(piece.write[end]) in wrote)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(cases(), st.sampled_from([1, 3, 100]), st.sampled_from([1, 4, 128]))
def test_waves_are_padded_with_events_that_do_nothing(case, width, group) -> None:
    """Where no round closes nothing is written: of two writes to one slot at once either could win."""
    for piece in program(**case).pieces:
        starts = wave_starts(piece, width)
        loaded = grouped(piece, width, group, case["capacity"], np.dtype(np.float64))
        waves = len(starts) - 1
        assert loaded.groups * group >= waves > (loaded.groups - 1) * group
        events, weight = (np.asarray(x).reshape(-1, width, x.shape[-1]) for x in loaded.waves)
        assert len(events) >= loaded.groups * group
        active = events[..., 4] == 1
        np.testing.assert_array_equal(active[:waves].sum(axis=1), np.diff(starts))
        assert not active[waves:].any()
        client, job, read, write = (events[..., k] for k in range(4))
        for lanes, column in ((client, piece.client), (job, piece.job), (read, piece.read)):
            np.testing.assert_array_equal(lanes[active], column)
        np.testing.assert_array_equal(write[active], np.where(piece.closes, piece.write, NOBODYS))
        np.testing.assert_allclose(weight[active], piece.weight.T, rtol=1e-6)
        assert (weight[~active] == 0).all()
        assert (write[~active] == NOBODYS).all()


def test_a_wave_is_what_is_in_flight() -> None:
    """All four clients at once under FedAvg, whatever the width allows; one after the other where each waits."""
    together = program(ft.FedAvg(), ft.FixedTimes([1] * 4), Fraction(8), 2, 64, 8)
    assert np.diff(wave_starts(together.pieces[0], 100)).tolist() == [4] * 8
    assert np.diff(wave_starts(together.pieces[0], 3)).tolist() == [3, 1] * 8
    alone = program(ft.AsyncFedAvg(), ft.FixedTimes([1, 100]), Fraction(20), 2, 64, 8)
    assert np.diff(wave_starts(alone.pieces[0], 100)).tolist() == [1] * 20
    assert wave_starts(program(ft.FedAvg(), ft.FixedTimes([9, 9]), Fraction(1), 2, 64, 8).pieces[0], 4).tolist() == [0]


@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.FedBuff(2), ft.Scheme(Hoard(), name="hoard")], ids=str)
def test_where_no_round_ends_there_is_one_piece_with_all_points(scheme) -> None:
    made = program(scheme, ft.FixedTimes([9, 9]), Fraction(8), 5, 16, 1)
    assert made.line.num_rounds == 0
    (piece,) = made.pieces
    assert piece.num_events == 0
    assert piece.weight.shape == (2, 0)
    assert [(m.point, m.event, m.slot, m.rounds, m.updates) for m in piece.marks] == [
        (k, 0, FIRST, 0, 0) for k in range(5)
    ]


def test_empty_rounds_make_no_models() -> None:
    made = program(ft.FedFix(1), ft.FixedTimes([10, 10]), Fraction(100), 101, 64, 1000)
    assert made.line.num_rounds == 100
    assert made.line.num_updates == 20
    (piece,) = made.pieces
    assert len({m.slot for m in piece.marks}) == 11
    assert [m.rounds for m in piece.marks] == list(range(101))


def test_a_job_may_start_from_the_version_of_an_empty_round() -> None:
    line = ft.timeline(ft.Scheme(Rest(), name="rest"), ft.FixedTimes([2, 3]), until=20)
    empty = np.flatnonzero(np.diff(line.offsets) == 0)
    assert np.isin(line.base - 1, empty).sum() > 5


@pytest.mark.parametrize("points", [2, 4000])
def test_slots_do_not_grow_with_the_run(points) -> None:
    """Twelve clients, delays of many rounds, four models to be measured at a time."""
    times = ft.FixedTimes([Fraction(n, 7) for n in range(3, 15)])
    for scheme in (ft.AsyncFedAvg(), ft.FedFix("1/9"), ft.FedBuff(3), ft.FedAvg(), ft.Scheme(Hoard(), name="hoard")):
        made = program(scheme, times, Fraction(300), points, 64, 4)
        assert made.line.num_rounds > 140
        assert made.pieces[-1].num_slots <= FIRST + 12 + 4 + 2


@pytest.mark.parametrize(("until", "points"), [(Fraction(1), 1), (Fraction(1, 3), 4), (Fraction(7), 8)])
def test_measuring_times_run_evenly_from_0_to_the_end(until, points) -> None:
    grid = grid_times(until, points)
    assert len(grid) == points
    assert grid[-1] == until
    if points > 1:
        assert grid[0] == 0
        assert {b - a for a, b in pairwise(grid)} == {until / (points - 1)}
