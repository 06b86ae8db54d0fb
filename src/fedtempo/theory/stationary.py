"""The stationary law of a scheme: the probabilities of participation that do not depend on n (section 4, appendix C).

    asynchronous   one client a round, i with probability (1/E[T_i])/Σ_j(1/E[T_j])    α = 0, β = max d_i
    FedFix         each client by itself, with probability 1/E⌈T_i/Δt⌉                α = 1, β = max d_i (1 − share_i)
    FedBuff        exponential times: a fresh race each round; else estimated         the α with the smallest β
    sampling       uniform, multinomial                                               covariance.py

Only for exponential times is a round independent of the ones before it, as Lemma 2 takes it to be.
"""

from __future__ import annotations

import math

import numpy as np

from fedtempo.clock.closed_form import Draws, EachByItself, FirstOfRace, OneAtATime, UniformSubset
from fedtempo.clock.races import MAX_RACERS
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import FixedTimes, Floats
from fedtempo.theory import covariance as co
from fedtempo.theory.rounds import applied_weights, check_size, table_of
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule
from fedtempo.weighting.weights import Weights
from fedtempo.weighting.windows import window

MAX_ROUNDS = 100_000
"""How many rounds stand for the stationary law where there is no closed form and no cycle of at most so many."""


def participation_is_random(run: LongRun) -> bool:
    """Whether who takes part is drawn."""
    return not run.rule.same_clients and (run.times.random or run.rule.random)


def discounted(weights: Weights | Floats) -> bool:
    """Whether weights depend on delays."""
    return isinstance(weights, Weights) and type(weights.rule).discount is not WeightRule.discount


def random_law(run: LongRun, weights: Weights | Floats, co_participation: float | None = None) -> co.Covariance:
    """q_i, γ_i and α of every round where participation is random."""
    if not discounted(weights):
        d = np.asarray(weights)
        match run.closed.round_law:
            case OneAtATime(share=share):
                return co.one_at_a_time(d, share, co_participation)
            case EachByItself(share=share):
                return co.independent(d, share, co_participation)
            case UniformSubset(size=size):
                return co.uniform_sample(d, size, co_participation)
            case Draws(size=size, probability=p):
                return co.multinomial_sample(d, p, size, co_participation)
            case FirstOfRace(mean_time=mean_time) as race if len(mean_time) <= MAX_RACERS:
                pairs = race.second()
                return co.by_pairs(d * np.diag(pairs), d[:, None] * pairs * d, co_participation)
    return co.by_pairs(*_moments(run, weights), co_participation)


def _moments(run: LongRun, weights: Weights | Floats) -> tuple[Floats, Floats]:
    """q_i and E[ω_i ω_j] as means over a run, without its first tenth."""
    from scipy.sparse import csr_array

    line = _run(run, MAX_ROUNDS)
    line = line[line.num_rounds // 10 :]
    applied = applied_weights(line, weights)
    table = csr_array((applied, line.client, line.offsets), shape=(line.num_rounds, line.num_clients))
    return np.asarray(table.sum(axis=0)) / line.num_rounds, (table.T @ table).toarray() / line.num_rounds


def repeated_rounds(run: LongRun, weights: Weights | Floats) -> tuple[Floats, Floats]:
    """[kinds, clients] q_i(n) where participation is certain, and [kinds] the share of rounds of each kind."""
    law = run.closed.round_law
    if isinstance(law, OneAtATime) and not discounted(weights):
        check_size(run.times.num_clients, run.times.num_clients)
        return np.diag(np.asarray(weights)), law.share
    line = _cycle(run)
    table, counts = table_of(line, applied_weights(line, weights))
    return table, np.asarray(counts / line.num_rounds)


def _cycle(run: LongRun) -> Timeline:
    """The rounds that repeat for ever; the first MAX_ROUNDS where more than that would do."""
    if run.rule.same_clients:
        return _run(run, 1)
    if run.closed.repeats:
        return _run(run, min(run.closed.window or MAX_ROUNDS, MAX_ROUNDS))
    cycle = run.observation.cycle
    if cycle is None or cycle.length > MAX_ROUNDS:
        return _run(run, MAX_ROUNDS)
    return _run(run, cycle.start + cycle.length)[cycle.start :]


def _run(run: LongRun, rounds: int) -> Timeline:
    return Timeline.joined(run.record.rounds(rounds))


def stationary_window(run: LongRun) -> int | None:
    """W: closed form, or the length of the limit cycle; None for random times that remember."""
    known = window(run)
    if known is not None or participation_is_random(run) or isinstance(run.times, FixedTimes):
        return known
    cycle = run.observation.cycle
    return None if cycle is None else cycle.length


def largest_delay(run: LongRun) -> int | None:
    """τ: exact where a closed form or a limit cycle gives it, else a bound; None where none is known."""
    if run.rule.synchronous:
        return 0
    closed = run.closed
    if closed.max_delay is not None:
        return None if math.isinf(closed.max_delay) else int(closed.max_delay)
    if participation_is_random(run):
        return None
    seen = run.observation
    return closed.max_delay_bound if seen.cycle is None else seen.max_delay
