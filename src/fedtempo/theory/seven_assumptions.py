"""Which of the paper's seven assumptions a run and a problem satisfy, and why (section 3.1 and before Theorem 3).

    1 smoothness   2 convexity   3 unbiased gradients   4 finite answering time   5 E[ω_i ω_j] = α q_i q_j
    6 a window W over which every client has its share   7 bounded gradients

Assumption 5 is meant for i ≠ j (Lemma 1), with α from 0 to 1: the paper's own schemes have α = 0 and α = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtempo.clock.closed_form import EachByItself, FirstOfRace, OneAtATime
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import Scheme, without_options
from fedtempo.simulation.arguments import a_problem, client_times, local_rule
from fedtempo.theory.expected import AnyWeights, Expected, expected_from_scheme, expected_from_timeline
from fedtempo.theory.problem_constants import Constants, constants
from fedtempo.theory.stationary import participation_is_random
from fedtempo.training.solvers import LocalOptax, LocalRule
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule


@dataclass(frozen=True)
class Assumption:
    """One assumption of the paper, and whether it holds.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([4, 2, 1])
        >>> delays = ft.theory.assumptions(problem, scheme=ft.FedFix(1), times=times)[4]
        >>> delays.name, delays.holds, delays.reason
        ('co-participation', True, 'participation is certain: α = 1, β = 0')
    """

    number: int
    name: str
    holds: bool | None
    """None: it could not be decided."""
    reason: str

    def __str__(self) -> str:
        verdict = {True: "holds", False: "does not hold", None: "not decided"}[self.holds]
        return f"{self.number}. {self.name}: {verdict}; {self.reason}"


def assumptions(
    problem: Problem,
    *,
    timeline: Timeline | None = None,
    scheme: Scheme | None = None,
    times: ClientTimes | None = None,
    weights: AnyWeights = "time-based",
    local: LocalRule | None = None,
) -> tuple[Assumption, ...]:
    """The seven, for what happened (`timeline`, with its d_i) or for what is to be expected (`scheme` and `times`).

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([4, 2, 1])
        >>> for assumption in ft.theory.assumptions(problem, scheme=ft.FedFix(1), times=times)[:3]:
        ...     print(assumption.number, assumption.name, assumption.holds)
        1 smoothness True
        2 convexity True
        3 unbiased gradients True
    """
    rule = local_rule(local)
    known = constants(a_problem(problem), batch_size=_one(rule, "batch_size"))
    if timeline is not None and scheme is None and times is None:
        if isinstance(weights, (str, WeightRule)):
            raise InputError(f"weights: {weights!r} with a timeline; give ft.weights(scheme, times), or numbers")
        run = expected_from_timeline(timeline, weights)
        fifth = Assumption(5, "co-participation", True, "on a given timeline participation is certain: α = 1, β = 0")
    elif timeline is None and scheme is not None and times is not None:
        held = client_times(times, problem.num_clients)
        run = expected_from_scheme(scheme, held, problem.importance, weights)
        fifth = _fifth(LongRun(without_options(scheme).waiting, held, problem.importance), run)
    else:
        raise InputError("give either timeline=, or both scheme= and times=")
    return (_first(known), _second(known), _third(rule), _fourth(run), fifth, _sixth(run), _seventh(known, rule))


def _first(known: Constants) -> Assumption:
    name = "smoothness"
    if not known.curvature.smooth:
        return Assumption(1, name, False, "a gradient jumps along a line, so that no L bounds its change")
    what = f"L = {known.smoothness:.4g} for every mini-batch, {known.full_smoothness:.4g} for the full losses"
    if known.how == "estimate":
        return Assumption(1, name, None, f"{what}, at the points that were tried; the loss has no known closed form")
    return Assumption(1, name, True, what)


def _second(known: Constants) -> Assumption:
    low = known.convexity
    if low < -1e-6 * known.full_smoothness:
        return Assumption(2, "convexity", False, f"a direction of curvature {low:.3g} was found")
    if known.how == "estimate":
        return Assumption(2, "convexity", None, "no negative curvature at the points that were tried")
    return Assumption(2, "convexity", True, f"every client's loss curves by at least μ = {low:.4g}")


def _third(rule: LocalRule) -> Assumption:
    name = "unbiased gradients"
    if _one(rule, "batch_size") is None:
        return Assumption(3, name, True, "every step takes all rows of the client")
    if isinstance(rule, LocalOptax) and rule.clip is not None:
        return Assumption(3, name, None, "a clipped gradient is biased; it holds as long as none is clipped")
    if isinstance(rule, LocalOptax) and rule.draw == "epochs":
        return Assumption(3, name, False, "rows of an epoch depend on those before; draw='uniform' is unbiased")
    return Assumption(3, name, True, "every step draws its rows uniformly, with replacement")


def _fourth(run: Expected) -> Assumption:
    name = "finite answering time"
    if run.max_delay is None:
        return Assumption(4, name, False, "delays have no bound; in N rounds they are at most N − 1")
    return Assumption(4, name, True, f"τ = {run.max_delay}")


def _fifth(run: LongRun, law: Expected) -> Assumption:
    name = "co-participation"
    said = f"α = {law.co_participation:.4g}, β = {law.weight_spread:.4g}"
    if not participation_is_random(run):
        return Assumption(5, name, True, f"participation is certain: {said}")
    if run.rule.synchronous:
        return Assumption(5, name, True, f"samples are drawn afresh in every round: {said}")
    if not run.times.memoryless:
        return Assumption(
            5, name, False, f"which clients take part depends on how long jobs have run; {said} over rounds"
        )
    match run.closed.round_law:
        case OneAtATime() | EachByItself():
            return Assumption(5, name, True, f"memoryless times make every round a fresh draw: {said}")
        case FirstOfRace(mean_time=mean_time) if len(set(mean_time.tolist())) == 1:
            return Assumption(5, name, True, f"equal clients: all pairs meet equally often: {said}")
    return Assumption(5, name, False, f"pairs of clients meet in different ratios; with slack in γ_i, {said}")


def _sixth(run: Expected) -> Assumption:
    if run.window is None:
        return Assumption(6, "window", None, "no window is known; W = N always holds")
    if run.source == "timeline" and run.window == run.num_rounds > 1:
        return Assumption(6, "window", True, f"only with W = N = {run.window}, which is no help (Corollary 2)")
    return Assumption(6, "window", True, f"W = {run.window}")


def _seventh(known: Constants, rule: LocalRule) -> Assumption:
    name = "bounded gradients"
    if isinstance(rule, LocalOptax) and rule.clip is not None:
        return Assumption(7, name, True, f"gradients are clipped at {_one(rule, 'clip'):g}")
    largest = known.losses.gradient_bound
    if largest is not None:
        return Assumption(7, name, True, f"no gradient is longer than B = {largest:.4g}")
    if known.convexity > 0 and known.how == "exact":
        return Assumption(
            7, name, False, "a strongly convex loss has gradients of any length; B is the largest that a run meets"
        )
    return Assumption(7, name, None, "no bound is known; B is the largest that a run meets")


def _one(rule: LocalRule, name: str) -> int | None:
    """A hyper-parameter's only value."""
    for axis in rule.axes:
        if axis.name == name:
            if len(axis.values) > 1:
                raise InputError(f"{name}: {list(axis.values)}; give one value at a time")
            return axis.values[0]  # type: ignore[return-value]
    return None
