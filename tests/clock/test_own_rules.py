"""Rules of one's own, everywhere: plans, cycles, weights, and what is said when they do not work."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.rules import IntervalStages
from fedtempo.rules import Arrived, Close, WaitingRule, resend
from fedtempo.testing import check_rule

TIMES = ft.FixedTimes([4, 3, 2, 1])


@dataclass(frozen=True)
class TwoAtATime(WaitingRule):
    """Two clients are busy; each update makes a model, which goes to the next client in turn that is free."""

    returns_to_contributors = False

    def start(self, view):
        return 0, tuple(sorted(view.clients))[:2]

    def decide(self, state, event, view):
        free = sorted(view.clients - view.in_flight.keys() - view.arrived.keys())
        if isinstance(event, Arrived):
            free = sorted({*free, event.job.client} & view.clients)
            chosen = min(free, key=lambda c: ((c - state - 1) % 8, c))
            return chosen, Close((event.job,), (chosen,))
        if len(view.in_flight) < min(2, len(view.clients)) and free:
            from fedtempo.rules import Send

            return state, Send((free[0],))
        return state, None


def test_delays_of_a_rule_that_sends_elsewhere_are_measured(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_ASKED_UPDATES", 50_000)
    check_rule(TwoAtATime(), settings=10)
    scheme = ft.Scheme(TwoAtATime(), name="two")
    plan = ft.compare(TIMES, [scheme]).schemes[0]
    line = ft.timeline(scheme, TIMES, rounds=3000)
    assert plan.mean_delay == pytest.approx(line.staleness.mean(), rel=0.01)
    assert plan.mean_delay > 0.5
    assert plan.max_delay == line.staleness.max()
    assert not plan.max_delay_exact
    assert plan.max_delay_bound is None
    assert plan.expected_weights == pytest.approx([0.25] * 4, rel=0.02)


@dataclass(frozen=True)
class Growing(WaitingRule):
    """Intervals of 1 for a hundred rounds, then of 3, with a generator; the phase is known in the last stage only."""

    inner = IntervalStages(((Fraction(1), 100), (Fraction(3), None)))

    @property
    def waits(self):
        return self.inner.waits

    def start(self, view):
        return self.inner.start(view)

    def deadline(self, state, view):
        return self.inner.deadline(state, view)

    def decide(self, state, event, view):
        return self.inner.decide(state, event, view)

    def phase(self, state):
        return self.inner.phase(state)

    def chunks(self, config):
        from fedtempo.clock.generate import by_events

        return (chunk for chunk, _ in by_events(config))


def test_a_phase_counts_also_where_there_is_a_fast_generator() -> None:
    cycle = ft.limit_cycle(ft.Scheme(Growing(), name="growing"), ft.FixedTimes([1, 2]))
    assert cycle is not None
    assert cycle.start >= 100
    assert cycle.participation == (1, 1)
    check_rule(Growing(), settings=6)


@dataclass(frozen=True)
class Never(WaitingRule):
    """Waits for ever."""

    def decide(self, state, event, view):
        return state, resend(event)


def test_a_rule_that_stops_is_named() -> None:
    scheme = ft.Scheme(Never(), name="never")
    for use in (
        lambda: ft.timeline(scheme, TIMES, rounds=3),
        lambda: ft.timeline(scheme, TIMES, until=30),
        lambda: ft.weights(scheme, TIMES),
    ):
        with pytest.raises(ft.UnlawfulRule, match="no job is running"):
            use()


def test_stages_on_a_late_server_change_with_the_round_and_so_with_the_weights() -> None:
    from fedtempo.clock.events import Deadline
    from fedtempo.clock.server import Server

    rule = IntervalStages(((Fraction(1), 4), (Fraction(10), None)))
    server = Server(rule, range(1), unit=Fraction(1))
    server.start()
    ends = []
    for late in (0, 3, 0, 2, 0, 0):
        due = server.deadline
        closed, _ = server.handle(Deadline(), due + late)
        ends.append(closed.end)
    assert ends == [
        1,
        5,
        6,
        9,
        19,
        29,
    ]  # the fifth round is the first of the second stage, counted from the fourth's end


def test_the_fastest_clients_have_a_cycle_and_no_window() -> None:
    scheme = ft.FastestSampling(2)
    cycle = ft.limit_cycle(scheme, TIMES)
    assert cycle is not None
    assert (cycle.start, cycle.length, cycle.counts.tolist()) == (0, 1, [0, 0, 1, 1])
    trace = ft.TraceTimes([[9], [2, 3], [1, 1, 2]])
    cycle = ft.limit_cycle(scheme, trace)
    assert cycle is not None
    assert (cycle.start, cycle.length) == (0, 6)
    assert cycle.duration == ft.timeline(scheme, trace, rounds=6).duration
    assert ft.compare(TIMES, [scheme]).schemes[0].practical_window == 1


class Halving(ft.WeightRule):
    """Identical weights, halved for every model made in between."""

    name = "halving"

    def base(self, importance, participation):
        return ft.Identical().base(importance, participation)

    def discount(self, staleness):
        return 0.5 ** np.asarray(staleness, dtype=float)


def test_a_discount_of_ones_own_enters_the_expected_weights() -> None:
    q = ft.expected_weights(ft.AsyncFedAvg(), TIMES, rule=Halving())
    cycle = ft.limit_cycle(ft.AsyncFedAvg(), TIMES)
    line = ft.timeline(ft.AsyncFedAvg(), TIMES, rounds=cycle.start + cycle.length)[cycle.start :]
    applied = ft.weights(ft.AsyncFedAvg(), TIMES, rule=Halving()).applied(line)
    assert q == pytest.approx(np.bincount(line.client, weights=applied) / cycle.length)


@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("3/8"), ft.FedBuff(2)], ids=str)
@pytest.mark.parametrize("law", ["exponential", "uniform", "lognormal"])
def test_the_pace_of_coarse_clocks(scheme, law) -> None:
    means = ["1/2", "1", "3/2"]
    times = {
        "exponential": lambda: ft.ExponentialTimes(means, resolution="1/4"),
        "uniform": lambda: ft.UniformTimes(means, ["1", "2", "3"], resolution="1/4"),
        "lognormal": lambda: ft.LogNormalTimes(means, sigma=1.0, resolution="1/4"),
    }[law]()
    plan = ft.compare(times, [scheme]).schemes[0]
    line = ft.timeline(scheme, times, rounds=60_000, seed=9)
    assert plan.rounds_per_time == pytest.approx(line.num_rounds / float(line.duration), rel=0.015)
    share = line.participation_counts / line.num_rounds
    assert plan.run.participation.share == pytest.approx(share, rel=0.03)


def test_a_coarse_exponential_clock_is_memoryless_only_where_ticks_meet() -> None:
    times = ft.ExponentialTimes([1, 2], resolution="1/4")
    windows = {str(s.scheme): s.window for s in ft.compare(times, [ft.FedFix("1/2"), ft.FedFix("3/8")]).schemes}
    assert windows == {"FedFix(1/2)": 1, "FedFix(3/8)": None}


@pytest.mark.parametrize("sigma", [0.001, 0.02, 0.5, 2.0, 5.0])
def test_the_pace_of_one_lognormal_client_is_one_over_its_mean(sigma) -> None:
    plan = ft.compare(ft.LogNormalTimes([1], sigma=sigma), [ft.FedAvg()]).schemes[0]
    assert plan.rounds_per_time == pytest.approx(1.0, rel=2e-6)


@pytest.mark.parametrize(
    "scheme",
    [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(2**58), ft.FedBuff(3), ft.UniformSampling(2), ft.FastestSampling(2)],
    ids=str,
)
def test_the_end_of_the_clock(scheme) -> None:
    """All rounds that fit are there, no more are promised, and plans that can do without them are made."""
    times = ft.FixedTimes([2**59 + 1, 2**59, 2**59 + 3, 2**59 + 7])
    line = ft.timeline(scheme, times, until=2**61 - 1)
    assert line.num_rounds >= 3
    assert sum(part.num_rounds for part in ft.timeline_chunks(scheme, times, until=2**61 - 1)) == line.num_rounds
    assert ft.timeline(scheme, times, rounds=line.num_rounds).equals(line)
    with pytest.raises(ft.ClockOverflow):
        ft.timeline(scheme, times, rounds=line.num_rounds + 10)
    assert ft.participation_of(scheme, times).share.sum() > 0


def test_the_pace_of_a_bootstrapped_trace_is_that_of_its_slowest_draw() -> None:
    times = ft.TraceTimes([[1, 3], [2, 2, 5]], mode="bootstrap")
    plan = ft.compare(times, [ft.FedAvg()]).schemes[0]
    expected = Fraction(1, 2) * (Fraction(2, 3) * 2 + Fraction(1, 3) * 5) + Fraction(1, 2) * (
        Fraction(2, 3) * 3 + Fraction(1, 3) * 5
    )
    assert plan.run.rounds_per_time_source == "closed form"
    assert plan.rounds_per_time == pytest.approx(float(1 / expected), rel=1e-9)


def test_a_timeline_has_no_single_rounds() -> None:
    line = ft.timeline(ft.AsyncFedAvg(), TIMES, rounds=5)
    with pytest.raises(TypeError, match=r"line\.rounds"):
        line[3]


def test_a_wrong_kind_of_argument_is_named() -> None:
    for scheme, times in (("fedavg", TIMES), (ft.FedAvg, TIMES), (ft.FedAvg(), [1, 2])):
        with pytest.raises(ft.InputError, match="give a scheme and client times"):
            ft.timeline(scheme, times, rounds=3)
    with pytest.raises(ft.InputError, match="is a string"):
        ft.FixedTimes("12")
    assert ft.FedBuff(np.int64(2)).size == 2
