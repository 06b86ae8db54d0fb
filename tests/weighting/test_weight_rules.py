"""Weights that follow from the rounds (the cure, participation histories), cut-offs, and unequal local steps."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import by_events
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules import CuredSample, FastestClients, HighestLoss, MultinomialSample, UniformSample
from fedtempo.clock.timeline import Timeline
from fedtempo.schemes.named import CuredSampling, HighestLossSampling
from fedtempo.schemes.window_cure import WindowCure
from fedtempo.simulation.engine.program import pieces
from fedtempo.weighting.other_rules import Normalised, ParticipationHistory
from fedtempo.weighting.weight_rules import CutOff, parse_discount

TIMES = ft.FixedTimes([5, 3, 4, 1, 2])
P = [Fraction(k, 20) for k in (2, 6, 4, 3, 5)]
CURED = [
    CuredSampling(ft.FastestSampling(2), window=8, biased=2),
    CuredSampling(ft.UniformSampling(3), window=5, biased=1),
    CuredSampling(ft.MultinomialSampling(4), window=30, biased=3),
    CuredSampling(ft.FastestSampling(5), window=10, biased=5),
]


def cuts(line: Timeline, draw: random.Random, most: int = 12) -> list[Timeline]:
    """Consecutive parts, some of them without rounds."""
    edges = sorted([0, line.num_rounds, *(draw.randint(0, line.num_rounds) for _ in range(most))])
    return [line[a:b] for a, b in pairwise(edges)]


def table(line: Timeline, applied) -> np.ndarray:
    """[rounds, clients] ω_i(n)."""
    out = np.zeros((line.num_rounds, line.num_clients))
    out[line.round_of_update - line.first_round, line.client] = applied
    return out


# --- the seat


@pytest.mark.parametrize("rule", ["time-based", ft.Discounted(ft.Identical(), parse_discount("polynomial:1"))], ids=str)
@pytest.mark.parametrize(
    "scheme",
    [ft.FedBuff(2), ft.MultinomialSampling(3), ft.StagedFedFix([(1, 7), ("3/2", 30), (2, None)])],
    ids=str,
)
def test_constant_weights_do_not_care_how_a_run_is_cut(scheme, rule) -> None:
    weights = ft.weights(scheme, TIMES, importance=P, rule=rule)
    line = ft.timeline(scheme, TIMES, rounds=120, importance=P)
    assert not weights.tracked
    apply = weights.applier()
    found = np.concatenate([apply(part) for part in cuts(line, random.Random("cuts"))])
    np.testing.assert_array_equal(found, weights.applied(line))
    np.testing.assert_array_equal(apply(line[50:60]), weights.applied(line)[line.offsets[50] : line.offsets[60]])


TRACKED = [
    *((scheme, "time-based") for scheme in CURED),
    (ft.FedBuff(2), ParticipationHistory(4)),
    (ft.FedFix("1/2"), ft.Discounted(ParticipationHistory(), parse_discount("hinge:1:2"))),
    (ft.MultinomialSampling(4), Normalised(ParticipationHistory(3), [1, 2, 3, 4, 5])),
    (CURED[0], Normalised(ft.TimeBased(), [1, 2, 3, 4, 5])),
]


@pytest.mark.parametrize(("scheme", "rule"), TRACKED, ids=lambda x: getattr(x, "label", x))
def test_tracked_weights_do_not_care_how_a_run_is_cut_and_are_what_the_engine_sees(scheme, rule) -> None:
    weights = ft.weights(scheme, TIMES, importance=P, rule=rule)
    line = ft.timeline(scheme, TIMES, until=150, importance=P)
    assert weights.tracked
    meant = weights.applied(line)
    for k in range(5):
        apply = weights.applier()
        np.testing.assert_array_equal(np.concatenate([apply(p) for p in cuts(line, random.Random(f"cut {k}"))]), meant)
    config = ClockConfig.of(scheme.waiting, TIMES, np.array([float(p) for p in P]))
    constant = ft.weights(scheme, TIMES, importance=P, rule="identical")
    steps = [Fraction(15 * k) for k in range(11)]
    cut = list(pieces(config, [weights, constant], until=Fraction(150), times=steps, capacity=37, max_points=3))
    seen = np.concatenate([piece.weight for piece in cut], axis=1)
    np.testing.assert_array_equal(seen, [meant, constant.applied(line)])


def test_what_wraps_time_based_weights_wraps_those_that_a_scheme_brings() -> None:
    line = ft.timeline(CURED[0], TIMES, rounds=30)
    cure = ft.weights(CURED[0], TIMES, importance=P).applied(line)
    halved, stepped = (
        ft.weights(CURED[0], TIMES, importance=P, rule=rule).applied(line)
        for rule in (
            ft.Discounted(ft.TimeBased(), ft.ConstantDiscount(0.5)),
            Normalised(ft.TimeBased(), [1, 2, 3, 4, 5]),
        )
    )
    np.testing.assert_array_equal(halved, cure / 2)
    mean = float(sum(p * k for p, k in zip(P, (1, 2, 3, 4, 5), strict=True)))
    assert stepped == pytest.approx(cure * mean / np.array([1, 2, 3, 4, 5])[line.client], rel=1e-14)


def test_tracked_weights_want_the_whole_run_in_order() -> None:
    weights = ft.weights(CURED[0], TIMES, importance=P)
    line = ft.timeline(CURED[0], TIMES, rounds=40)
    with pytest.raises(ft.InputError, match="begins with round 8"):
        weights.applied(line[8:])
    apply = weights.applier()
    apply(line[:8])
    with pytest.raises(ft.InputError, match="rounds from 9 on were given where round 8 was expected"):
        apply(line[9:])
    for use in (list, np.asarray, lambda w: w[0]):
        with pytest.raises(ft.InputError, match=r"depend on the rounds; use \.applied\(timeline\)"):
            use(weights)
    assert repr(weights) == "Weights(window cure, 5 clients)"
    np.testing.assert_array_equal(weights.stage(0).applied(line), weights.applied(line))
    with pytest.raises(ft.InputError, match=r"need each client's importance; make them with ft\.weights"):
        ft.Weights(weights.values, (None,), (0,), weights.rule).applier()


# --- the cure


def by_the_book(line: Timeline, rule: CuredSample, p) -> np.ndarray:
    """Appendix C.3 round by round, in rationals."""
    out, given = np.zeros((line.num_rounds, len(p))), [Fraction(0)] * len(p)
    for closed in line.rounds:
        place = closed.number % rule.window
        if place == 0:
            given = [Fraction(0)] * len(p)
        for i, draws in zip(closed.participants, closed.draws, strict=True):
            if place < rule.biased:
                given[i] += Fraction(draws, rule.size)
                out[closed.number, i] = draws / rule.size
            else:
                out[closed.number, i] = (rule.window * p[i] - given[i]) / (rule.window - rule.biased)
    return out


@pytest.mark.parametrize("scheme", CURED, ids=str)
@pytest.mark.parametrize("times", [TIMES, ft.ExponentialTimes([5, 3, 4, 1, 2])], ids=["fixed", "exponential"])
def test_over_every_window_every_client_has_its_importance(scheme, times) -> None:
    weights = ft.weights(scheme, times, importance=P, seed=2)
    line = ft.timeline(scheme, times, rounds=40 * scheme.window, importance=P, seed=2)
    omega = table(line, weights.applied(line))
    assert omega == pytest.approx(by_the_book(line, scheme.waiting, P), abs=1e-14)
    windows = omega.reshape(40, scheme.window, 5)
    assert windows.sum(axis=1) / scheme.window == pytest.approx(np.tile([float(p) for p in P], (40, 1)), abs=1e-14)
    assert windows.sum(axis=2) == pytest.approx(1.0, abs=1e-14)
    assert (omega >= 0).all()


def test_the_cure_holds_whatever_a_criterion_by_losses_chooses() -> None:
    scheme = CuredSampling(HighestLossSampling(2, candidates=3), window=7, biased=1)

    class Losses(dict):
        """As a server is told them: other ones whenever it looks."""

        turn = 0

        def get(self, name, default=None):
            if name != "loss":
                return super().get(name, default)
            self.turn += 1
            return {c: float(np.sin(self.turn + 5 * c)) for c in range(5)}

    class Telling(ClockConfig):
        def measures(self):
            return Losses(super().measures())

    plain = ClockConfig.of(scheme.waiting, TIMES, np.array([float(p) for p in P]))
    config = Telling(plain.rule, plain.times, plain.importance, plain.seed, plain.unit, plain.scale)
    line = next(by_events(config))[0][: 7 * 20]
    assert len({r.participants for r in line.rounds}) > 5
    weights = ft.weights(scheme, TIMES, importance=P)
    omega = table(line, weights.applied(line))
    assert omega == pytest.approx(by_the_book(line, scheme.waiting, P), abs=1e-14)
    assert omega.reshape(20, 7, 5).mean(axis=1) == pytest.approx(np.tile([float(p) for p in P], (20, 1)), abs=1e-14)
    assert np.isnan(weights.values).all()


@pytest.mark.parametrize("scheme", [*CURED, CuredSampling(HighestLossSampling(2), window=9, biased=1)], ids=str)
def test_the_expected_weights_of_the_cure_are_the_importance(scheme) -> None:
    q = ft.expected_weights(scheme, TIMES, importance=P)
    np.testing.assert_array_equal(q, [float(p) for p in P])
    halved = ft.Discounted(ft.TimeBased(), ft.ConstantDiscount(0.5))
    if not scheme.waiting.by_training:
        assert ft.expected_weights(scheme, TIMES, importance=P, rule=halved) == pytest.approx(q / 2, rel=1e-4)


@pytest.mark.parametrize("scheme", CURED[:3], ids=str)
@pytest.mark.parametrize("rule", ["identical", "importance"])
def test_other_weights_show_the_bias(scheme, rule) -> None:
    weights = ft.weights(scheme, TIMES, importance=P, rule=rule)
    assert not weights.tracked
    q = ft.expected_weights(scheme, TIMES, importance=P, rule=rule)
    rounds = 600 * scheme.window
    line = ft.timeline(scheme, TIMES, rounds=rounds, importance=P, seed=1)
    seen = table(line, weights.applied(line)).mean(axis=0)
    assert q == pytest.approx(seen, abs=1e-12 if not scheme.waiting.random else 0.01)
    assert q.sum() == pytest.approx(1.0, abs=1e-3)
    if rule == "identical" or not scheme.waiting.random:
        assert np.abs(q - [float(p) for p in P]).max() > 0.01


def test_a_plan_knows_what_a_contribution_weighs_on_average() -> None:
    scheme = CURED[0]
    weights = ft.weights(scheme, TIMES, importance=P)
    line = ft.timeline(scheme, TIMES, rounds=80)
    total = np.bincount(line.client, weights=weights.applied(line))
    assert weights.values[0] == pytest.approx(total / line.participation_counts)
    plan = ft.compare(TIMES, [scheme], importance=P).schemes[0]
    assert plan.expected_weights == pytest.approx([float(p) for p in P])
    assert plan.to_dict()["expected_over_importance"] == pytest.approx([1] * 5)


@pytest.mark.parametrize(
    ("criterion", "window", "biased", "client", "most"),
    [
        (FastestClients(2), 4, 3, 3, Fraction(1, 2)),
        (FastestClients(1), 6, 1, 3, Fraction(1)),
        (UniformSample(2), 4, 1, 0, Fraction(1, 2)),
        (HighestLoss(2, 4), 9, 3, 0, Fraction(1, 2)),
        (HighestLoss(3), 4, 3, 0, Fraction(1, 3)),
        (MultinomialSample(4), 19, 2, 0, Fraction(1)),
        (UniformSample(1), 40, 5, 0, Fraction(1)),
    ],
    ids=repr,
)
def test_what_no_weight_takes_back_is_refused_with_what_would_do(criterion, window, biased, client, most) -> None:
    def fits(rule: CuredSample) -> bool:
        scheme = CuredSampling(ft.Scheme(rule.criterion, name="criterion"), window=rule.window, biased=rule.biased)
        try:
            ft.weights(scheme, TIMES, importance=P)
        except ft.InputError:
            return False
        return True

    rule = CuredSample(criterion, window, biased)
    assert not fits(rule)
    with pytest.raises(ft.InputError) as told:
        ft.weights(CuredSampling(ft.Scheme(criterion, name="c"), window=window, biased=biased), TIMES, importance=P)
    words = str(told.value)
    enough = int(words.split("a window of at least ")[1].split()[0])
    assert fits(CuredSample(criterion, enough, biased))
    assert enough == biased + 1 or not fits(CuredSample(criterion, enough - 1, biased))
    if "at most" in words:
        fewer = int(words.split("at most ")[1].split()[0])
        assert fits(CuredSample(criterion, window, fewer))
        assert not fits(CuredSample(criterion, window, fewer + 1))
    if "a sample of" in words:
        larger = int(words.split("a sample of at least ")[1].split()[0])
        sized = [type(criterion)(m) for m in range(criterion.size, larger + 1)]
        assert [fits(CuredSample(one, window, biased)) for one in sized] == [False] * (len(sized) - 1) + [True]
    assert f"client {client} " in words
    assert f"weight {float(biased * most):.4g} in the biased rounds" in words


def test_at_the_edge_the_last_weight_is_zero() -> None:
    scheme = CuredSampling(ft.FastestSampling(2), window=8, biased=4)  # 4/2 = 2 of 8 rounds, and client 4 has 5/20
    p = [Fraction(k, 20) for k in (4, 4, 2, 5, 5)]
    weights = ft.weights(scheme, TIMES, importance=p)
    omega = table(line := ft.timeline(scheme, TIMES, rounds=16), weights.applied(line))
    assert omega[4:8, 3:].max() == 0
    assert omega[:8].mean(axis=0) == pytest.approx([float(x) for x in p], abs=1e-15)


def test_rounds_of_another_scheme_are_not_cured() -> None:
    weights = ft.weights(CURED[0], TIMES, importance=P)
    with pytest.raises(ft.InputError, match=r"round 2 must have all 5 clients.*give a timeline of the cured scheme"):
        weights.applied(ft.timeline(ft.FedBuff(2), TIMES, rounds=20))
    light = ft.weights(CURED[0], TIMES, importance=[Fraction(1, 100), *[Fraction(99, 400)] * 4])
    with pytest.raises(ft.InputError, match="chosen more often than it can be"):
        light.applied(ft.timeline(ft.FedAvg(), TIMES, rounds=20))
    with pytest.raises(ft.InputError, match="does not fit"):
        ft.weights(ft.FedAvg(), TIMES, rule=WindowCure(CURED[0].waiting))


def test_by_losses_only_weights_that_need_no_shares_are_known() -> None:
    scheme = HighestLossSampling(2, candidates=3)
    for rule in ("time-based", "importance"):
        with pytest.raises(
            ft.InputError, match=rf"its {rule} weights are not known ahead; cure it, as ft\.CuredSampling"
        ):
            ft.weights(scheme, TIMES, rule=rule)
    assert list(ft.weights(scheme, TIMES, rule="identical")) == [Fraction(1, 2)] * 5
    cured = CuredSampling(scheme, window=4, biased=1)
    assert list(ft.weights(cured, TIMES, rule="identical")) == [Fraction(4, 2 + 3 * 5)] * 5
    stale = ft.Discounted(ft.Identical(), ft.ConstantDiscount(0.5))
    assert list(ft.weights(scheme, TIMES, rule=stale)) == [Fraction(1, 2)] * 5
    assert ft.weights(scheme, TIMES, rule=ParticipationHistory()).tracked


# --- participation histories


def round_by_round(line: Timeline, cutoff: int, p) -> np.ndarray:
    """Wang and Ji's algorithm 2, literally: the weights of round n from what happened before it."""
    out = np.zeros((line.num_rounds, len(p)))
    count, length, mean = [0] * len(p), [0] * len(p), [1.0] * len(p)
    there: set[int] = set()
    for n, closed in enumerate(line.rounds):
        for i in range(len(p)):
            if n > 0:
                length[i] += 1
                if i in there or length[i] == cutoff:
                    mean[i] = length[i] if count[i] == 0 else (count[i] * mean[i] + length[i]) / (count[i] + 1)
                    count[i], length[i] = count[i] + 1, 0
            if i in closed.participants:
                out[n, i] = float(p[i]) * mean[i]
        there = set(closed.participants)
    return out


@pytest.mark.parametrize("cutoff", [1, 2, 3, 5, 50])
@pytest.mark.parametrize(
    "scheme",
    [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("3/2"), ft.FedFix("1/3"), ft.FedBuff(2), ft.MultinomialSampling(2)],
    ids=str,
)
def test_histories_are_those_of_a_loop_over_rounds(scheme, cutoff) -> None:
    rule = ParticipationHistory(cutoff)
    for times in (TIMES, ft.ExponentialTimes([5, 3, 4, 1, 2])):
        line = ft.timeline(scheme, times, rounds=150, importance=P, seed=6)
        weights = ft.weights(scheme, times, importance=P, rule=rule)
        omega = table(line, weights.applied(line))
        assert omega == pytest.approx(round_by_round(line, cutoff, P), rel=1e-12)


@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.FedFix("3/2"), ft.FedFix("1/2"), ft.FedBuff(3)], ids=str)
def test_histories_tend_to_time_based_weights_where_participation_repeats(scheme) -> None:
    line = ft.timeline(scheme, TIMES, rounds=20_000)
    rule = ParticipationHistory(cutoff=50)
    late = table(line, ft.weights(scheme, TIMES, importance=P, rule=rule).applied(line))[-1000:]
    limit = np.asarray(ft.weights(scheme, TIMES, importance=P))
    assert late.max(axis=0) == pytest.approx(limit, rel=2e-3)
    assert ft.expected_weights(scheme, TIMES, importance=P, rule=rule) == pytest.approx([float(p) for p in P], rel=1e-3)


def test_a_short_cut_off_takes_from_those_who_come_rarely() -> None:
    scheme = ft.FedFix(1)  # client i comes every 5, 3, 4, 1, 2 rounds; intervals of at most 2 are counted
    q = ft.expected_weights(scheme, TIMES, importance=P, rule=ParticipationHistory(cutoff=2))
    recorded = [5 / 3, 3 / 2, 2, 1, 2]
    assert q == pytest.approx(
        [float(p) * r / t for p, r, t in zip(P, recorded, (5, 3, 4, 1, 2), strict=True)], rel=1e-3
    )


def test_a_history_needs_an_interval() -> None:
    with pytest.raises(ft.InputError, match="cutoff: 0 rounds are too few"):
        ParticipationHistory(0)
    assert ParticipationHistory(7).label == "participation history, cut-off 7"


# --- cut-offs of staleness


def test_what_is_too_stale_is_dropped() -> None:
    assert CutOff(2)(np.array([0, 1, 2, 3, 9])).tolist() == [1, 1, 1, 0, 0]
    assert parse_discount("cutoff:5") == CutOff(5)
    scheme, rule = ft.AsyncFedAvg(), ft.Discounted(ft.TimeBased(), CutOff(3))
    line = ft.timeline(scheme, TIMES, rounds=2000)
    dropped = line.staleness > 3
    assert dropped.any()
    plain, cut = (ft.weights(scheme, TIMES, importance=P, rule=r).applied(line) for r in ("time-based", rule))
    np.testing.assert_array_equal(cut, np.where(dropped, 0.0, plain))
    for wrong in ("cutoff", "cutoff:-1", "cutoff:1:2"):
        with pytest.raises(ft.InputError, match=r"cut-?off"):
            parse_discount(wrong)


# --- unequal local steps


def test_contributions_count_by_the_step() -> None:
    steps = [1, 2, 3, 4, 10]
    rule = Normalised(ft.TimeBased(), steps)
    mean = sum(p * k for p, k in zip(P, steps, strict=True))
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)):
        d, plain = (ft.weights(scheme, TIMES, importance=P, rule=r) for r in (rule, "time-based"))
        assert list(d) == [w * mean / k for w, k in zip(plain, steps, strict=True)]
        assert np.asarray(d) == pytest.approx([float(w) for w in d])
        q = ft.expected_weights(scheme, TIMES, importance=P, rule=rule) * steps
        assert q / q.sum() == pytest.approx([float(p) for p in P])
        assert q.sum() == pytest.approx(float(mean))
    q = ft.expected_weights(CURED[0], TIMES, importance=P, rule=rule) * steps
    assert q == pytest.approx([float(p * mean) for p in P])
    assert rule.label == "time-based ÷ steps"
    assert hash(Normalised(ft.TimeBased(), steps)) == hash(rule)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Normalised(ft.TimeBased(), [1, 0]), r"steps: \[1, 0\] is not allowed"),
        (lambda: Normalised(ft.TimeBased(), [1.5]), "steps: .*whole number"),
        (lambda: Normalised(ft.Discounted(ft.TimeBased(), CutOff(1)), [1]), r"Discounted\(Normalised"),
        (lambda: ft.weights(ft.FedAvg(), TIMES, rule=Normalised(ft.TimeBased(), [1, 2])), "2 numbers for 5 clients"),
        (lambda: ft.weights(CURED[0], TIMES, rule=Normalised(ft.TimeBased(), [1])), "1 numbers for 5 clients"),
    ],
)
def test_steps_that_do_not_fit_are_refused(make, words) -> None:
    with pytest.raises(ft.InputError, match=words):
        make()


def test_importance_is_kept_with_the_weights() -> None:
    weights = ft.weights(ft.FedFix(1), TIMES, importance=P)
    assert isinstance(weights.importance, Importance)
    assert weights.importance.exact == tuple(P)
