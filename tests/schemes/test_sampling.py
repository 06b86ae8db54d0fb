"""Sampling by a criterion and its cure, on the clock: laws, draws, fast ways, closed forms, and what is refused."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import View
from fedtempo.clock.generate import full_timeline
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules import (
    CuredSample,
    FastestClients,
    HighestLoss,
    MultinomialSample,
    SampledClients,
    UniformSample,
)
from fedtempo.clock.server import Server
from fedtempo.clock.transport import Durations, VirtualTransport, step
from fedtempo.clock.waiting import WaitingRule
from fedtempo.schemes.named import CuredSampling, HighestLossSampling
from fedtempo.testing import check_rule
from fedtempo.weighting.long_run import LongRun

TIMES = ft.FixedTimes([5, 3, 4, 1, 2])


def view(clients=range(5), losses=None, importance=None, seed=0) -> View:
    measures = {"loss": losses or {}, "importance": importance or {}}
    return View(0, Fraction(1), 0, set(clients), {}, {}, measures, seed)


# --- the highest losses


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({0: 1.0, 1: 3.0, 2: 2.0, 3: 5.0, 4: 4.0}, (3, 4)),
        ({}, (0, 1)),
        ({0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0}, (0, 4)),
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, (0, 1)),
        ({0: 2.0, 1: 1.0, 2: 3.0, 3: 3.0, 4: 3.0}, (2, 3)),
        ({0: -2.0, 1: -1.0, 2: -3.0, 3: math.nan, 4: -5.0}, (1, 3)),
        ({0: math.inf, 1: math.nan, 2: 1e300, 3: 0.0, 4: 0.0}, (0, 1)),
    ],
)
def test_the_highest_losses_are_chosen_unknown_ones_first(losses, chosen) -> None:
    assert HighestLoss(2).choose(7, 0, view(losses=losses)) == chosen
    assert HighestLoss(2, candidates=5).choose(7, 0, view(losses=losses)) == chosen


def test_of_few_clients_all_are_chosen() -> None:
    assert HighestLoss(3, candidates=4).choose(0, 0, view([4, 1])) == (1, 4)


@pytest.mark.parametrize(("candidates", "p"), [(1, [0.5, 0.3, 0.2]), (2, [0.6, 0.25, 0.1, 0.05]), (3, [0.25] * 4)])
def test_candidates_are_drawn_one_after_the_other_by_importance(candidates, p) -> None:
    meant: Counter[tuple[int, ...]] = Counter()
    for order in permutations(range(len(p)), candidates):  # the next is i with probability p_i over what is left
        chance, left = 1.0, 1.0
        for i in order:
            chance, left = chance * p[i] / left, left - p[i]
        meant[tuple(sorted(order))] += chance
    rule, rounds = HighestLoss(candidates, candidates=candidates), 6000
    told = view(range(len(p)), importance=dict(enumerate(p)), seed=3)
    seen = Counter(rule.choose(n, 0, told) for n in range(rounds))
    for chosen, chance in meant.items():
        assert seen[chosen] / rounds == pytest.approx(chance, abs=4.5 * math.sqrt(chance * (1 - chance) / rounds))


def test_a_candidate_depends_on_seed_round_and_client_alone() -> None:
    rule, p = HighestLoss(3, candidates=3), dict(enumerate([0.1, 0.2, 0.3, 0.15, 0.25]))
    for n in range(60):
        all_there, one_away = (set(rule.choose(n, 0, view(c, importance=p))) for c in (range(5), [0, 1, 2, 4]))
        assert all_there - {3} <= one_away
    many = [[rule.choose(n, again, view(importance=p, seed=s)) for n in range(40)] for s in (0, 1) for again in (0, 1)]
    assert len({tuple(samples) for samples in many}) == 4


@dataclass(frozen=True)
class LoggedEvent(WaitingRule):
    """A rule by losses, told losses that change with the round: what a training server would note."""

    rule: SampledClients
    synchronous = True
    random = True
    returns_to_contributors = False

    def _with_losses(self, view):
        losses = {c: math.sin(3.7 * view.version + 1.3 * c) for c in view.clients if (view.version + c) % 7}
        return view._replace(measures={**view.measures, "loss": losses})

    def check(self, num_clients):
        self.rule.check(num_clients)

    def start(self, view):
        return self.rule.start(self._with_losses(view))

    def decide(self, state, event, view):
        return self.rule.decide(state, event, self._with_losses(view))

    def phase(self, state):
        return self.rule.phase(state)


@pytest.mark.parametrize(
    "rule", [HighestLoss(2), HighestLoss(2, candidates=3), CuredSample(HighestLoss(2, candidates=3), 5, 2)], ids=repr
)
def test_rules_by_losses_are_lawful(rule) -> None:
    assert check_rule(LoggedEvent(rule), settings=4).rounds > 0
    assert rule.phase(rule.start(view())[0]) is None


def test_a_server_chooses_by_what_it_was_told_and_remembers_it() -> None:
    rule = CuredSample(HighestLoss(2), window=4, biased=3)
    config = ClockConfig.of(rule, TIMES)
    server = Server(rule, range(5), unit=config.unit, measures=config.measures())
    transport = VirtualTransport(Durations(TIMES, scale=config.scale, seed=0))
    transport.send(server.start())
    for client, loss in enumerate([1.0, 5.0, 2.0, 4.0, 3.0]):
        server.note("loss", client, loss)
    sent = []
    while len(sent) < 7:
        sent += [closed.sent_to for closed in step(server, transport)]
        if len(sent) == 5:
            server.note("loss", 2, 9.0)
            server = Server.restore(rule, server.snapshot(), measures=config.measures())
    assert sent == [(1, 3), (1, 3), (0, 1, 2, 3, 4), (1, 3), (1, 3), (1, 2), (0, 1, 2, 3, 4)]


def test_what_follows_from_training_is_not_told_ahead() -> None:
    for scheme in (HighestLossSampling(2), CuredSampling(HighestLossSampling(2, candidates=3), window=4, biased=1)):
        for ahead in (
            lambda s: ft.timeline(s, TIMES, rounds=3),
            lambda s: list(ft.timeline_chunks(s, TIMES, until=30)),
            lambda s: ft.limit_cycle(s, TIMES),
            lambda s: ft.participation_of(s, TIMES),
            lambda s: ft.compare(TIMES, [s]),
            lambda s: ft.expected_weights(s, TIMES, rule="identical"),
        ):
            with pytest.raises(
                ft.InputError, match=r"chooses clients by the losses of trained models.*use ft\.simulate"
            ):
                ahead(scheme)


@dataclass(frozen=True)
class MineByMeasures(WaitingRule):
    """A user's rule that chooses by two measures, one of them of trained models."""

    needs = ("importance", "loss")

    def decide(self, state, event, view):
        raise AssertionError


def test_a_rule_of_ones_own_is_not_run_ahead_either() -> None:
    with pytest.raises(ft.InputError, match="chooses clients by the losses of trained models"):
        ft.timeline(ft.Scheme(MineByMeasures(), name="mine"), TIMES, rounds=3)


# --- the cure's rounds

CRITERIA = [FastestClients(2), UniformSample(2), MultinomialSample(3)]


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
def test_cured_rules_are_lawful(criterion) -> None:
    rule = CuredSample(criterion, window=5, biased=2)
    assert check_rule(rule, settings=6).rounds > 0
    inherited = ("random", "counts_draws", "needs", "size")
    assert [getattr(rule, name) for name in inherited] == [getattr(criterion, name) for name in inherited]
    assert rule != CuredSample(criterion, window=5, biased=1)


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
@pytest.mark.parametrize("case", range(6))
def test_the_fast_way_gives_the_rounds_of_the_rule(criterion, case) -> None:
    draw = random.Random(f"cured {case}")
    clients, window = draw.randint(3, 9), draw.randint(2, 9)
    means = [Fraction(draw.randint(1, 9), draw.randint(1, 3)) for _ in range(clients)]
    times = ft.ExponentialTimes(means, resolution="1/12") if case % 2 else ft.FixedTimes(means)
    p = np.array([draw.randint(1, 5) for _ in range(clients)], dtype=float)
    rule = CuredSample(criterion, window, draw.randint(1, window - 1))
    config = ClockConfig.of(rule, times, p / p.sum(), seed=case)
    fast, slow = (full_timeline(config, max_rounds=700, by_rule=asked) for asked in (False, True))
    assert fast.equals(slow)
    fast.validate()


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
def test_the_first_rounds_of_a_window_choose_by_the_criterion_and_the_others_take_all(criterion) -> None:
    alone, cured = (
        full_timeline(ClockConfig.of(rule, TIMES, seed=4), max_rounds=60)
        for rule in (criterion, CuredSample(criterion, 6, 4))
    )
    for plain, found in zip(alone.rounds, cured.rounds, strict=True):
        chosen = found.number % 6 < 4
        assert found.participants == (plain.participants if chosen else (0, 1, 2, 3, 4))
        assert found.draws == (plain.draws if chosen else (1,) * 5)
    assert (cured.staleness == 0).all()


@dataclass(frozen=True)
class OddOnes(SampledClients):
    """A user's own criterion: clients with odd numbers, as many as are wanted."""

    random = False

    def choose(self, number, attempt, view):
        odd = [c for c in sorted(view.clients) if c % 2]
        return tuple((odd or sorted(view.clients))[: self.size])


def test_a_criterion_of_ones_own_is_cured_too() -> None:
    scheme = CuredSampling(ft.Scheme(OddOnes(2), name="odd"), window=3, biased=1)
    assert check_rule(scheme.waiting, settings=5).rounds > 0
    line = ft.timeline(scheme, TIMES, rounds=9)
    assert [r.participants for r in line.rounds] == [(1, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)] * 3
    assert ft.expected_weights(scheme, TIMES).tolist() == [0.2] * 5


# --- the long run


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
@pytest.mark.parametrize(("window", "biased"), [(2, 1), (8, 3), (7, 6)])
def test_participation_and_pace_follow_from_the_criterion_and_fedavg(criterion, window, biased) -> None:
    p = Importance(["1/10", "3/10", "1/5", "3/20", "1/4"], 5)
    rule = CuredSample(criterion, window, biased)
    run = LongRun(rule, TIMES, p)
    share, pace = run.participation, run.rounds_per_time
    assert (share.source, run.closed.window) == ("closed form", window)
    rounds = window * (1 if criterion == FastestClients(2) else 6000)
    line = full_timeline(ClockConfig.of(rule, TIMES, p.values), max_rounds=rounds)
    counts = np.bincount(line.client, weights=line.draws, minlength=5) / rounds
    taking = line.participation_counts / rounds
    slack = 1e-12 if criterion == FastestClients(2) else 5 / math.sqrt(rounds)
    assert share.share == pytest.approx(counts, abs=slack)
    assert [float(s) for s in share.exact] == pytest.approx(share.share, rel=1e-14)
    assert share.updates_per_round == pytest.approx(taking.sum(), abs=5 * slack)
    assert pace == pytest.approx(rounds / float(line.duration), rel=slack)
    assert share.share.sum() == pytest.approx(float(rule.draws_a_round(5)))


def test_the_fastest_clients_cured_have_an_exact_cycle_of_windows() -> None:
    scheme = CuredSampling(ft.FastestSampling(2), window=8, biased=3)
    cycle = ft.limit_cycle(scheme, TIMES)
    assert cycle is not None
    assert (cycle.start, cycle.length, cycle.counts.tolist()) == (0, 8, [5, 5, 5, 8, 8])
    assert cycle.participation == ft.participation_of(scheme, TIMES).exact


# --- what is refused, and what the schemes say of themselves


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HighestLossSampling(0), "sample: 0"),
        (lambda: HighestLossSampling(3, candidates=2), "candidates: 2 are fewer than the 3"),
        (lambda: HighestLossSampling(3, candidates=2.5), "candidates: 2.5 is not a whole number"),
        (lambda: CuredSampling(ft.FedAvg(), window=4, biased=1), "criterion: FedAvg.* is not a client sampling scheme"),
        (lambda: CuredSampling("fastest", window=4, biased=1), "criterion: 'fastest'"),
        (lambda: CuredSampling(ft.FastestSampling(2), window=4, biased=4), "biased: 4 of the 4 rounds"),
        (lambda: CuredSampling(ft.FastestSampling(2), window=4, biased=0), "biased: 0"),
        (lambda: CuredSampling(ft.FastestSampling(2), window=1, biased=1), "biased: 1 of the 1"),
        (
            lambda: CuredSampling(CuredSampling(ft.FastestSampling(2), window=4, biased=1), window=4, biased=1),
            "already cured",
        ),
        (lambda: HighestLossSampling(6).waiting.check(5), "sample: 6 clients cannot be drawn from 5"),
        (lambda: HighestLossSampling(2, candidates=7).waiting.check(5), "candidates: 7 clients cannot be drawn"),
        (lambda: CuredSampling(ft.FastestSampling(6), window=9, biased=1).waiting.check(5), "6 clients cannot be"),
    ],
)
def test_what_cannot_work_is_refused(make, words) -> None:
    with pytest.raises(ft.InputError, match=words):
        make()


def test_labels_and_specifications() -> None:
    poc, everybody = HighestLossSampling(5, candidates=10), HighestLossSampling(5)
    cured = CuredSampling(poc, window=8, biased=2)
    assert [repr(s) for s in (poc, everybody)] == ["HighestLossSampling(5, candidates=10)", "HighestLossSampling(5)"]
    assert repr(cured) == "CuredSampling(HighestLossSampling(5, candidates=10), window=8, biased=2)"
    assert eval(repr(cured), {"CuredSampling": CuredSampling, "HighestLossSampling": HighestLossSampling}) == cured
    assert cured.spec() == {"name": "cured", "criterion": poc.spec(), "window": 8, "biased": 2}
    assert poc.spec() == {"name": "highest-loss", "size": 5, "candidates": 10}
    assert cured != CuredSampling(everybody, window=8, biased=2)
    assert poc.own_weights is None
