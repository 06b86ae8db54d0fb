"""How often clients that come, go and fail take part: closed forms against brute force and long runs, and weights."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

import fedtempo as ft
from fedtempo import theory
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import observe
from fedtempo.clock.generate import Recording
from fedtempo.clock.importance import Importance
from fedtempo.clock.races import expected_last_success
from fedtempo.clock.rules.fixed_interval import intervals_until_success
from fedtempo.clock.rules.wait_for_next import contribution_rates
from fedtempo.errors import InputError
from fedtempo.schemes.timelines import weights_of
from fedtempo.weighting.long_run import LongRun, estimated_pace, estimated_share

FIXED = ft.FixedTimes([1, "3/2", 2, "7/3"])
DRAWN = ft.ExponentialTimes([1, "3/2", 2, "7/3"])
COARSE = ft.ExponentialTimes([1, "3/2", 2, "7/3"], resolution="1/2")
FAILURE = [0.1, 0.3, 0, 0.5]
P = [0.1, 0.2, 0.3, 0.4]
DAY = {0: [(0, 5), (9, 10)], 2: [(3, 8)]}
ALL = (
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("7/5"),
    ft.FedBuff(2),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
    ft.FastestSampling(2),
)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_AVAILABLE_UPDATES", 300)


def seen(scheme: ft.Scheme, times: ft.ClientTimes, updates: int = 6000, seed: int = 3):
    updates //= 3 if scheme.name in ("uniform", "multinomial") else 1
    return observe(Recording(ClockConfig.of(scheme.waiting, times, np.array(P), seed)), max_updates=updates)


def agree(found, expected, error) -> None:
    """Within the standard errors: none far out, and not all of them off."""
    assert np.all(np.abs(found - expected) <= 4.5 * error + 1e-12)
    z = (found - expected)[error > 0] / error[error > 0]
    assert not len(z) or np.sqrt(np.mean(z**2)) < 2.5


# -- closed forms


@pytest.mark.parametrize(
    ("scheme", "times"),
    [(scheme, times) for scheme in ALL for times in (FIXED, DRAWN, COARSE) if times is FIXED or scheme in ALL[:5]],
    ids=str,
)
def test_shares_and_pace_with_failures(scheme, times) -> None:
    failing = times.available(failure=FAILURE)
    run = LongRun(scheme.waiting, failing, Importance(P, 4))
    line = seen(scheme, failing)
    share, error = estimated_share(line)
    own = run.participation.error
    agree(share, run.participation.share, error if own is None else np.hypot(error, own))
    updates, sure = estimated_share(line, draws=False)
    assert abs(updates.sum() - run.participation.updates_per_round) <= 4.5 * sure.sum() + 1e-12
    assert estimated_pace(line) / float(line.unit) == pytest.approx(run.rounds_per_time, rel=0.06)
    closed = not (scheme.name == "fedbuff" and times is not DRAWN)
    assert run.participation.source == ("closed form" if closed else "estimate")
    assert run.participation.exact is not None or times is not FIXED or scheme.name not in ("fedavg", "async", "fedfix")


@pytest.mark.parametrize("scheme", [ft.UniformSampling(2), ft.MultinomialSampling(2), ft.FastestSampling(2)], ids=str)
def test_samples_that_often_fail_are_drawn_again(scheme) -> None:
    times = FIXED.available(failure=0.6)
    run, plain = (LongRun(scheme.waiting, t, Importance(P, 4)) for t in (times, FIXED))
    lost = float(scheme.waiting.all_fail(times, Importance(P, 4), times.availability))
    assert lost > 0.3
    assert run.rounds_per_time == pytest.approx(plain.rounds_per_time * (1 - lost))
    line = seen(scheme, times)
    share, error = estimated_share(line)
    agree(share, run.participation.share, error)
    assert estimated_pace(line) / float(line.unit) == pytest.approx(run.rounds_per_time, rel=0.08)


@pytest.mark.parametrize("times", [FIXED, DRAWN], ids=["fixed", "exponential"])
@pytest.mark.parametrize(
    "coming", [{"on": [10, 5, 3, 20], "off": [5, 1, 2, 3]}, {"absences": DAY, "period": 10}], ids=["on/off", "period"]
)
def test_shares_and_pace_of_asynchronous_clients_that_come_and_go(times, coming) -> None:
    moving = times.available(failure=FAILURE, **coming)
    run = LongRun(ft.AsyncFedAvg().waiting, moving, Importance(P, 4))
    assert run.participation.source == run.rounds_per_time_source == "closed form"
    line = seen(ft.AsyncFedAvg(), moving, 12_000)
    agree(*estimated_share(line)[:1], run.participation.share, estimated_share(line)[1])
    assert estimated_pace(line) / float(line.unit) == pytest.approx(run.rounds_per_time, rel=0.03)


def test_jobs_in_a_period_are_counted_exactly() -> None:
    times = FIXED.available(absences=DAY, period=10)
    floats, rates = contribution_rates(times)
    assert rates == (Fraction(4, 10), Fraction(2, 3), Fraction(2, 10), Fraction(3, 7))
    line = ft.timeline(ft.AsyncFedAvg(), times, until=2110)
    late = line.ends[line.round_of_update] * line.unit > 10  # 210 whole periods, in which 3/2 and 7/3 fit whole times
    assert np.bincount(line.client[late], minlength=4).tolist() == [r * 2100 for r in rates]
    assert floats.tolist() == [float(r) for r in rates]


@pytest.mark.parametrize("ratio", ["1/3", "3/7", "1", "5/3", "4", "22/7"])
@pytest.mark.parametrize("failure", [0, 0.25, 0.9])
def test_intervals_until_a_success(ratio, failure) -> None:
    a, f = Fraction(ratio), Fraction(str(failure))
    by_hand = sum(float(1 - f) * float(f) ** (g - 1) * -(-g * a // 1) for g in range(1, 600))
    exactly = intervals_until_success(a, f)
    assert isinstance(exactly, Fraction)
    assert float(exactly) == pytest.approx(by_hand, rel=1e-12)


def test_intervals_until_a_success_where_digits_grow() -> None:
    a, f = Fraction(7919, 6007), Fraction(1, 3)
    by_hand = sum(2 / 3 * (1 / 3) ** (g - 1) * -(-g * a // 1) for g in range(1, 80))
    assert intervals_until_success(a, f) == pytest.approx(by_hand, rel=1e-12)


def test_all_who_are_drawn_fail() -> None:
    times = FIXED.available(failure=FAILURE)
    p = Importance(P, 4)
    f = np.array(FAILURE)
    for size in (1, 2, 3, 4):
        sets = list(combinations(range(4), size))
        mean = np.mean([f[list(s)].prod() for s in sets])
        assert ft.UniformSampling(size).waiting.all_fail(times, p, times.availability) == pytest.approx(mean, abs=1e-15)
    for size in (1, 2, 5):
        total = sum(
            np.prod([P[i] for i in draws]) * f[list(set(draws))].prod() for draws in product(range(4), repeat=size)
        )
        assert ft.MultinomialSampling(size).waiting.all_fail(times, p, times.availability) == pytest.approx(
            total, rel=1e-12
        )
    assert ft.FastestSampling(2).waiting.all_fail(times, p, times.availability) == Fraction(3, 100)
    alike = FIXED.available(failure=0.2)
    assert ft.UniformSampling(3).waiting.all_fail(alike, p, alike.availability) == Fraction(1, 125)


def test_the_last_success_of_several() -> None:
    time, failure = np.array([1.0, 0.7, 3.0]), np.array([0.4, 0.6, 0.1])
    jobs = [np.arange(1, n) for n in (45, 75, 20)]
    chance = [(1 - f) * f ** (g - 1) for f, g in zip(failure, jobs, strict=True)]
    longest = np.max(np.stack(np.meshgrid(*(t * g for t, g in zip(time, jobs, strict=True)), indexing="ij")), axis=0)
    by_hand = np.einsum("ijk,i,j,k->", longest, *chance)
    assert expected_last_success(time, failure) == pytest.approx(by_hand, rel=1e-12)
    assert expected_last_success(time, np.zeros(3)) == 3.0


def test_without_failures_the_plain_forms_come_back() -> None:
    """A failure of almost nothing changes almost nothing."""
    for scheme in ALL:
        little = ft.participation_of(scheme, FIXED.available(failure="1/10000000000"), importance=P).share
        if scheme.name != "fedbuff":
            assert little == pytest.approx(ft.participation_of(scheme, FIXED, importance=P).share, rel=1e-8)


# -- estimates


def test_errors_of_estimates_are_honest_and_small() -> None:
    times = ft.FixedTimes.spread(4, 80).available(on=6, off=3, failure=0.1)
    known = ft.participation_of(ft.AsyncFedAvg(), times).share
    z, plain = [], []
    for seed in range(10):
        line = seen(ft.AsyncFedAvg(), times, 4000, seed)
        share, error = estimated_share(line)
        z.append((share - known) / error)
        plain.append((seen_without(line)[1] / error).min())
    assert 0.6 < np.sqrt(np.mean(np.square(z))) < 1.6
    assert np.median(plain) > 2  # knowing how long clients were there more than halves the error


def seen_without(line):
    from dataclasses import replace

    return estimated_share(replace(line, surplus=None))


BOTH = {"on": 30, "off": 4, "absences": DAY, "period": 10}


@pytest.mark.parametrize(
    ("scheme", "coming"),
    [(scheme, BOTH) for scheme in ALL if scheme.name not in ("async", "fastest")]
    + [(scheme, {"on": 8, "off": 4}) for scheme in (ft.FedAvg(), ft.FedFix("1/2"), ft.FedBuff(2))]
    + [(ft.FedFix("7/5"), {"absences": DAY, "period": 10})],
    ids=str,
)
def test_weights_make_clients_count_by_their_importance(scheme, coming) -> None:
    times = FIXED.available(failure=FAILURE, **coming)
    run = LongRun(scheme.waiting, times, Importance(P, 4))
    found = run.participation
    assert found.source == "estimate"
    weights = np.asarray(weights_of(scheme, run, ft.TimeBased()))
    share, error = estimated_share(seen(scheme, times, seed=11))
    agree(weights * share, np.array(P), weights * np.hypot(error, found.error))


def test_where_the_clock_repeats_no_cycle_is_claimed() -> None:
    times = ft.FixedTimes([1, 2, 3])
    for moving in (
        times.available(failure=0.1),
        times.available(on=5, off=2),
        times.available(absences={1: [(1, 3)]}, period=4),
    ):
        assert ft.limit_cycle(ft.FedBuff(2), moving) is None
        [plan] = ft.compare(moving, ft.FedBuff(2)).schemes
        assert plan.window is None
        assert plan.practical_window is None
        assert not plan.max_delay_exact
        assert plan.run.participation.source == "estimate"


def test_a_period_longer_than_a_run_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_ASKED_UPDATES", 3000)
    times = FIXED.available(absences={0: [(5, 10)]}, period=10_000)
    with pytest.raises(InputError, match="do not cover 4 periods"):
        ft.weights(ft.FedFix("1/2"), times)


def test_delays_are_those_of_the_clock() -> None:
    """M / (updates a round) − 1 no longer holds: jobs are sent again in between."""
    times = FIXED.available(failure=0.3)
    for scheme in (ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)):
        run = LongRun(scheme.waiting, times, Importance(None, 4))
        line = ft.timeline(scheme, times, until=1000, seed=5)
        assert run.mean_delay == pytest.approx(line.staleness.mean(), rel=0.06)
        assert run.mean_delay < 0.95 * (4 / run.participation.updates_per_round - 1)


def test_estimates_are_of_whole_periods() -> None:
    """Where all repeats with the period, the estimate is exact: no time of day counts for more."""
    times = ft.FixedTimes([1, "5/2", 2, 5]).available(absences=DAY, period=10)
    found = ft.participation_of(ft.FedFix("1/2"), times)
    assert found.share == pytest.approx([4 / 20, 4 / 20, 2 / 20, 2 / 20], abs=1e-12)
    assert found.error == pytest.approx(0.0, abs=1e-12)


# -- clients that join or leave for good


CHANGING = {1: [(0, 120), (400, 600)], 3: [(250, None)]}


@pytest.mark.parametrize("scheme", [s for s in ALL if s.name != "fastest"], ids=str)
@pytest.mark.parametrize("rule", ["time-based", "importance"])
def test_weights_hold_in_every_stretch(scheme, rule) -> None:
    times = ft.FixedTimes.spread(5, 80).available(absences=CHANGING)
    p = np.array([0.1, 0.2, 0.2, 0.25, 0.25])
    weights = ft.weights(scheme, times, importance=p.tolist(), rule=rule)
    assert weights.first_times == (0, 120, 250, 400, 600)
    line = ft.timeline(scheme, times, until=1500, importance=p.tolist())
    applied = weights.applied(line)
    ends = line.ends * line.unit
    for stretch, end in zip(times.availability.stretches, (120, 250, 400, 600, 1500), strict=True):
        inside = (ends > stretch.begin) & (ends <= end)
        mine = inside[line.round_of_update]
        counted = np.bincount(line.client[mine], weights=applied[mine], minlength=5) / inside.sum()
        present = np.zeros(5)
        present[list(stretch.clients)] = p[list(stretch.clients)]
        if rule == "time-based":
            loose = 0.07 if scheme.waiting.random else 0.006
            assert counted == pytest.approx(present / present.sum(), abs=loose)
        else:
            assert counted.sum() == pytest.approx(1.0, abs=0.05)


def test_an_update_that_waits_when_its_client_leaves_keeps_its_weight() -> None:
    times = ft.FixedTimes(["1/2", 1]).available(absences={0: [("7/4", None)]})
    weights = ft.weights(ft.FedFix(1), times)
    line = ft.timeline(ft.FedFix(1), times, until=4)
    assert [r.participants for r in line.rounds] == [(0, 1), (0, 1), (1,), (1,)]
    assert weights.applied(line).tolist() == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]


def test_a_round_belongs_to_the_stretch_in_which_it_ends() -> None:
    times = ft.FixedTimes([1, 1]).available(absences={1: [(0, 3)]})
    line = ft.timeline(ft.FedAvg(), times, until=5)
    assert [r.participants for r in line.rounds] == [(0,), (0,), (0,), (0, 1), (0, 1)]
    weights = ft.weights(ft.FedAvg(), times)
    assert weights.applied(line).tolist() == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    parts = [weights.applied(line[k : k + 1]) for k in range(5)]
    assert np.concatenate(parts).tolist() == weights.applied(line).tolist()


def test_what_lasts_when_clients_have_left() -> None:
    times = ft.FixedTimes.spread(5, 80).available(absences=CHANGING)
    stays = ft.FixedTimes(["1", "4/5", "3/5", "1/5"])
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2), ft.UniformSampling(2)):
        whole, part = (LongRun(scheme.waiting, t, Importance(None, t.num_clients)) for t in (times, stays))
        assert whole.participation.share[[0, 1, 2, 4]].tolist() == part.participation.share.tolist()
        assert whole.participation.share[3] == 0
        assert whole.participation.exact[3] == 0
        assert (whole.rounds_per_time, whole.mean_delay) == (part.rounds_per_time, part.mean_delay)
        plan, plain = ft.compare(times, scheme).schemes[0], ft.compare(stays, scheme).schemes[0]
        assert (plan.window, plan.practical_window, plan.max_delay) == (
            plain.window,
            plain.practical_window,
            plain.max_delay,
        )
        assert plan.identical_bias == pytest.approx(plain.identical_bias)
        assert plan.expected_weights == pytest.approx([0.25, 0.25, 0.25, 0, 0.25])


def test_a_buffer_larger_than_who_is_left() -> None:
    times = ft.FixedTimes([1, 2, 3, 4]).available(absences={0: [(50, None)], 1: [(50, None)]})
    weights = ft.weights(ft.FedBuff(3), times)
    assert weights.stage(1).exact == ((*weights.stage(0).exact[0][:2], Fraction(1, 2), Fraction(1, 2)),)
    late = [r.participants for r in ft.timeline(ft.FedBuff(3), times, until=100).rounds if r.start > 54]
    assert set(late) == {(2, 3)}


def test_discounts_and_stages_with_changing_clients() -> None:
    times = ft.FixedTimes([1, 2, 3]).available(absences={2: [(40, None)]})
    rule = ft.Discounted(ft.TimeBased(), ft.PolynomialDiscount())
    stays = ft.FixedTimes([1, 2])
    q = ft.expected_weights(ft.AsyncFedAvg(), times, rule=rule)
    assert q.tolist() == [*ft.expected_weights(ft.AsyncFedAvg(), stays, rule=rule), 0.0]
    with pytest.raises(InputError, match="use one wait"):
        ft.weights(ft.StagedFedFix([("1/4", 8), ("1/2", None)]), times)


def test_too_many_stretches_and_nobody_left_are_refused() -> None:
    times = ft.FixedTimes([1, 2])
    with pytest.raises(InputError, match="give a period"):
        ft.weights(ft.FedAvg(), times.available(absences={0: [(k, k + 1) for k in range(1, 200, 2)]}))
    with pytest.raises(InputError, match="nobody is there from 9 on"):
        ft.participation_of(ft.FedAvg(), times.available(absences={0: [(5, None)], 1: [(9, None)]}))


# -- what was proved for clients that are always there


def test_theory_refuses_clients_that_come_and_go() -> None:
    scheme, problem = ft.FedFix("1/2"), ft.problems.quadratics(4, dimension=2, seed=0)
    for times in (FIXED.available(failure=0.1), FIXED.available(absences={1: [(5, None)]})):
        for refused in (
            lambda t: theory.expected_from_scheme(scheme, t),
            lambda t: theory.quantities(scheme=scheme, times=t),
            lambda t: theory.assumptions(problem, scheme=scheme, times=t),
            lambda t: theory.bound(problem, scheme=scheme, times=t, local=ft.LocalSGD(lr=1e-3), until=10),
            lambda t: theory.remaining_times(ft.timeline(scheme, t, until=9), t),
            lambda t: t.expected_rounds(Fraction(1, 2)),
            lambda t: ft.StagedFedFix.over_windows(t, [("1/4", 2), ("1/2", None)]),
        ):
            with pytest.raises(InputError):
                refused(times)
        line = ft.timeline(scheme, times, until=50)
        assert theory.quantities(timeline=line, scheme=scheme, times=times).expected.num_rounds == 100
    assert theory.rounds_in(scheme, FIXED.available(failure=0.1), 10) == 20
    assert theory.rounds_in(ft.FedAvg(), FIXED.available(absences={3: [(7, None)]}), 10) == 4
    assert theory.regime(scheme, FIXED.available(failure=0.1), rounds=500).kind == "timeline"
    with pytest.raises(InputError, match="give absences a period"):
        theory.regime(scheme, FIXED.available(absences={1: [(5, None)]}))
