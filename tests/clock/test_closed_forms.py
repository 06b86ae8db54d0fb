"""What rules say of their long run: true of long timelines, and as good for a rule of one's own."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock import rules
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline
from fedtempo.clock.importance import Importance
from fedtempo.clock.waiting import check_needs
from fedtempo.rules import Action, Close, ClosedForm, Event, Send, State, View, WaitingRule
from fedtempo.testing import check_rule
from fedtempo.weighting.long_run import LongRun

P = ["2/5", "3/10", "1/5", "1/10"]
FIXED = ft.FixedTimes([4, 3, "5/2", 1])
RANDOM = ft.ExponentialTimes([4, 3, "5/2", 1])
SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("3/2"),
    ft.FedBuff(2),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
    ft.FastestSampling(2),
]
SRC = Path(ft.__file__).parent


@dataclass(frozen=True)
class InTurn(WaitingRule):
    """One client after the other, in turn: cyclic learning. The state is whose turn it is."""

    synchronous = True
    returns_to_contributors = False

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return 0, (min(view.clients),)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if view.in_flight or not view.clients:
            return state, None
        following = min((c for c in view.clients if c > state), default=min(view.clients))
        if view.arrived:
            return following, Close(tuple(view.arrived.values()), (following,))
        return following, Send((following,))

    def phase(self, state: State) -> int:
        return int(state)


@dataclass(frozen=True)
class KnownInTurn(WaitingRule):
    """The same, with a closed form."""

    synchronous = True
    returns_to_contributors = False
    start, decide, phase = InTurn.start, InTurn.decide, InTurn.phase

    def closed_form(self, times: ft.ClientTimes, importance: Importance) -> ClosedForm | None:
        if times.availability is not None:
            return None
        clients = times.num_clients
        return ClosedForm(
            np.full(clients, 1 / clients),
            (Fraction(1, clients),) * clients,
            rounds_per_time=clients / float(times.mean_time.sum()),
            window=clients,
        )


def test_a_rule_of_ones_own_with_a_closed_form_is_planned_exactly(monkeypatch) -> None:
    check_rule(KnownInTurn(), settings=6)
    found, known = (ft.compare(FIXED, [ft.Scheme(rule, name="turns")], importance=P).schemes[0] for rule in _both())
    assert known.run.participation.source == "closed form"
    assert found.run.participation.source == "cycle"
    assert list(known.weights) == list(found.weights) == [4 * Fraction(p) for p in P]
    assert known.window == found.window == 4
    assert known.rounds_per_time == pytest.approx(found.rounds_per_time, rel=1e-12)
    assert known.expected_weights == pytest.approx([float(Fraction(p)) for p in P])
    assert (known.max_delay, known.mean_delay) == (found.max_delay, found.mean_delay) == (0, 0)
    assert not known.remarks, "nothing had to be searched or estimated"
    assert found.remarks


def test_random_times_have_it_too_without_a_run(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.weighting.long_run.observe", lambda *_: pytest.fail("the clock was run"))
    plan = ft.compare(RANDOM, [ft.Scheme(KnownInTurn(), name="turns")], importance=P).schemes[0]
    assert plan.window == 4
    assert plan.rounds_per_time == pytest.approx(4 / 10.5)
    assert plan.to_dict()["participation_source"] == "closed form"


def _both() -> tuple[WaitingRule, WaitingRule]:
    return InTurn(), KnownInTurn()


@pytest.mark.parametrize("times", [FIXED, RANDOM], ids=["fixed", "exponential"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_closed_forms_are_those_of_a_long_timeline(scheme, times) -> None:
    importance = Importance(P, 4)
    run = LongRun(scheme.waiting, times, importance)
    rounds = 40_000
    line = full_timeline(ClockConfig.of(scheme.waiting, times, importance.values), max_rounds=rounds)
    counts = np.zeros((rounds, 4))
    counts[line.round_of_update, line.client] = 1 if line.draws is None else line.draws
    closed = run.closed
    if closed.share is not None:
        assert counts.mean(axis=0) == pytest.approx(closed.share, abs=0.02)
    if closed.rounds_per_time is not None:
        assert rounds / float(line.duration) == pytest.approx(float(closed.rounds_per_time), rel=0.03)
    if closed.round_law is not None:
        assert counts.mean(axis=0) == pytest.approx(closed.round_law.mean(), abs=0.02)
        assert counts.T @ counts / rounds == pytest.approx(closed.round_law.second(), abs=0.03)
        if (listed := closed.round_law.sets(100)) is not None:
            sets, likely = listed
            assert likely.sum() == pytest.approx(1)
            seen = [(counts == row).all(axis=1).mean() for row in sets]
            assert seen == pytest.approx(likely, abs=0.02)
    if closed.max_delay is not None and np.isfinite(closed.max_delay):
        assert line.staleness.max() == closed.max_delay
    if closed.max_delay_bound is not None:
        assert line.staleness.max() <= closed.max_delay_bound
    assert run.mean_delay == pytest.approx(line.staleness.mean(), rel=0.03, abs=1e-3)
    if run.mean_delay_by_weight is not None and scheme.name != "fastest":
        weight = ft.weights(scheme, times, importance=P).applied(line)
        seen = (weight * line.staleness).sum() / weight.sum()
        assert run.mean_delay_by_weight == pytest.approx(seen, rel=0.04, abs=1e-3)


@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("3/2")], ids=str)
@pytest.mark.parametrize("until", [Fraction(4), Fraction(25, 2), Fraction(120)])
def test_rounds_are_counted_without_a_run(scheme, until) -> None:
    assert scheme.waiting.rounds_by(FIXED, until) == ft.timeline(scheme, FIXED, until=until).num_rounds


def test_shares_of_many_clients_have_no_rationals() -> None:
    many = ft.FixedTimes.spread(1001, 80)
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.UniformSampling(5), ft.MultinomialSampling(5)):
        closed = scheme.waiting.closed_form(many, Importance(None, 1001))
        assert closed.exact is None
        assert len(closed.share) == 1001


def test_a_need_that_is_not_met_is_named() -> None:
    with pytest.raises(ft.InputError, match=r"needs 'loss' \(the loss.*\), which a bakery does not supply; go home"):
        check_needs(rules.HighestLoss(2), ("importance",), "a bakery", "go home")
    check_needs(rules.HighestLoss(2), ("importance", "loss"), "a bakery", "go home")
    assert {rule.needs for rule in (rules.FastestClients(1), rules.MultinomialSample(1), rules.UniformSample(1))} == {
        ("mean_time",),
        ("importance",),
        (),
    }


@dataclass(frozen=True)
class ByBattery(WaitingRule):
    """Reads what nobody measures."""

    needs = ("battery",)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        return state, None


def test_a_clock_refuses_what_nobody_measures_before_anything_runs() -> None:
    scheme = ft.Scheme(ByBattery(), name="battery")
    problem = ft.problems.quadratics(4, dimension=2)
    for run in (
        lambda: ft.timeline(scheme, FIXED, until=3),
        lambda: ft.compare(FIXED, scheme),
        lambda: ft.simulate(problem, scheme, FIXED, until=3, local=ft.LocalSGD(lr=0.1)),
    ):
        with pytest.raises(ft.InputError, match="needs 'battery', which a virtual clock does not supply"):
            run()


CONCRETE = {name for name in rules.__all__ if name[0].isupper()}


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(SRC.rglob("*.py")) if "clock/rules" not in p.as_posix()],
    ids=lambda p: p.relative_to(SRC).as_posix(),
)
def test_nobody_else_asks_which_rule_it_is(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named: list[ast.AST] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass", "type"):
            named = [node]
        elif isinstance(node, ast.MatchClass):
            named = [node.cls]
        elif isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            named = [node]
        found = {n.id for part in named for n in ast.walk(part) if isinstance(n, ast.Name)} & CONCRETE
        assert not found, f"{path.name}:{getattr(node, 'lineno', 0)} asks for {', '.join(found)}: let the rule say it"
