"""How large the server's step may be: one factor on all weights d_i, so that stale updates do not add up to too much.

    paper     1
    stable    Σ_i q_i / Σ_i d_i      one update of every client together weighs Σ q_i, which is 1 for unbiased weights;
                                     time-based: 1/Σ_j p_j R_j, asynchronous: weights p_i τ_i/Σ_j p_j τ_j
    proven    2/(W + Γ)              W the weight of all jobs that are out at once, Γ the most that is started while one
                                     job is out: clients that go less than all the way (c < 1), in any order; but not
                                     more than stable

R_j = 1/share_j is the mean number of rounds from one update of client j to the next. docs/theory.md, "A step that is
stable", has the proofs. Of clients that never take part (share 0) nothing counts.
"""

from __future__ import annotations

import numpy as np

from fedtempo.clock.generate import fast_chunks
from fedtempo.clock.timeline import I32
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.weighting.long_run import LongRun

STEPS = ("stable", "paper", "proven")
"""Names of steps; the first is the default."""

MAX_UPDATES = 2_000_000
MAX_ASKED_UPDATES = 100_000
MAX_AVAILABLE_UPDATES = 20_000
"""Updates that are looked at for the largest overlap: of quick clocks, of rules that are asked event by event, and of
clients that come and go; with empty rounds, up to ten times as many rounds."""
_MAX_SPACINGS = 10_000
_SAMPLED_ROUNDS = 20_000


def check_step(given: object, what: str = "step") -> str:
    """The name of a step; anything else is refused."""
    if isinstance(given, str) and given in STEPS:
        return given
    raise InputError(
        f"{what}: {given!r} is not known; use 'stable' (one update of every client together weighs 1), 'paper' (the "
        "weights as they are) or 'proven' (smaller, with a proof)"
    )


def step_of(step: str, run: LongRun, d: Floats) -> float:
    """The factor on weights d of a step by name.

    "proven" is never above "stable": beyond that the bound may still hold (FedAvg: 2), but clients that go all the way
    would overshoot by as much as they were off.
    """
    match check_step(step):
        case "stable":
            return stable_step(run, d)
        case "proven":
            return min(proven_step(run, d), stable_step(run, d))
    return 1.0


def stable_step(run: LongRun, d: Floats) -> float:
    """Σ_i q_i / Σ_i d_i with q_i = d_i share_i; 1 where a round waits for all its jobs, since nothing is stale then.

    Discounts are left out on both sides: they only make weights smaller, so that the step errs on the safe side.
    """
    if run.rule.synchronous:
        return 1.0
    weight, share = _known(d), run.participation.share
    taking_part = share > 0
    total = float(weight[taking_part].sum())
    return float(weight @ share) / total if total > 0 else 1.0


def step_per_time(run: LongRun, d: Floats, step: float) -> float:
    """How much of a whole step is made in a unit of time: Σ_i q_i × step × rounds in a unit of time.

    With time-based weights and the stable step that is 1/Σ_j p_j C_j, C_j the mean time between two updates of client
    j: τ_j for asynchronous FedAvg, Δt ⌈τ_j/Δt⌉ for FedFix, the longest τ_j for FedAvg.
    """
    return float(_known(d) @ run.participation.share) * step * run.rounds_per_time


def proven_step(run: LongRun, d: Floats) -> float:
    """2/(W + Γ): with c(W + Γ) < 2 no order of updates diverges, if a job goes at most the fraction c of the way."""
    overlap, _ = largest_overlap(run, d)
    together = _heaviest(run, d) + overlap
    return 2.0 / together if together > 0 else 1.0


def largest_overlap(run: LongRun, d: Floats) -> tuple[float, bool]:
    """Γ: the most weight of others that is started while a job is out; and whether no job ever sees more.

    A job that starts from version ρ and enters round n is charged with the jobs that start from versions ρ + 1 … n.
    Where clients start again as soon as they contributed, that is the weight which rounds ρ … n − 1 apply. Under fixed
    times it is exact, from the start over two limit cycles; where the cycle is too long and clients run freely, a bound
    that every pair of clients attains. Otherwise it is the largest seen in a long run: under random times there may be
    no bound.
    """
    run, weight = _lasting(run, _known(d))
    if run.rule.synchronous:
        return 0.0, True
    most = _most_rounds(run)
    enough = _two_cycles(run, most)
    if enough is not None:
        return _seen(run, weight, enough), True
    bound = _bound(run, weight)
    return (bound, True) if bound is not None else (_seen(run, weight, most), False)


def _known(d: Floats) -> Floats:
    weight = np.asarray(d, dtype=np.float64)
    if not np.isfinite(weight).all():
        raise InputError(
            "step: these weights depend on the rounds, so no step can be computed ahead; give "
            "step='paper' and a server_lr"
        )
    return weight


def _lasting(run: LongRun, d: Floats) -> tuple[LongRun, Floats]:
    """The long run of those who stay, with their weights."""
    if run.after_last_change is run:
        return run, d
    assert run.times.availability is not None
    return run.after_last_change, d[list(run.times.availability.stretches[-1].clients)]


def _most_rounds(run: LongRun) -> int:
    """How many rounds are looked at."""
    if run.times.availability is not None:
        updates = MAX_AVAILABLE_UPDATES
    else:
        updates = MAX_UPDATES if fast_chunks(run.record.config) is not None else MAX_ASKED_UPDATES
    return int(updates / max(run.participation.updates_per_round, 0.1)) + 1


def _two_cycles(run: LongRun, most: int) -> int | None:
    """Rounds after which every job of the limit cycle has been seen; None if there is no cycle, or too long a one.

    A client contributes at least once in a cycle, so that every job of the second starts in the first or later.
    """
    if run.times.random or run.rule.random or run.times.availability is not None:
        return None
    if run.closed.spacing is not None:
        start, length = 0, run.closed.window
    else:
        cycle = run.observation.cycle
        start, length = (0, None) if cycle is None else (cycle.start, cycle.length)
    return None if length is None or start + 2 * length > most else start + 2 * length


def _seen(run: LongRun, d: Floats, rounds: int) -> float:
    """The largest overlap of the updates in the first rounds."""
    return run.remembered("overlap", lambda: _overlap(run, d, rounds), d, rounds)


def _overlap(run: LongRun, d: Floats, rounds: int) -> float:
    parts = [(c.client, c.base, c.round_of_update, _weights(d, c.client, c.draws)) for c in run.record.rounds(rounds)]
    client, base, number, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(client):
        return 0.0
    at_once = run.rule.returns_to_contributors and run.times.availability is None
    started = np.bincount(number + 1 if at_once else base, weights=weight, minlength=int(number[-1]) + 1)  # by version
    before = np.cumsum(started)
    return float((before[number] - before[base]).max())


def _weights(d: Floats, client: I32, draws: I32 | None) -> Floats:
    return d[client] if draws is None else d[client] * draws


def _bound(run: LongRun, d: Floats) -> float | None:
    """Σ_j d_j × how often client j starts at most while a job of client i is out, for the worst i; None: not known.

    With periods a and b in units of their common divisor, i's job is out from k·a to (k + 1)·a. Where every update is a
    round, ties are in some order and a moments out of a in a row count: ⌈a/b⌉ of them are j's. Where a round takes
    several, those that start or end together do not count, and a − 1 rounds are left: ⌈(a − 1)/b⌉.
    """
    if run.closed.spacing is None:
        return None
    spacing, group = np.unique(run.closed.spacing, return_inverse=True)
    if len(spacing) > _MAX_SPACINGS:
        return None
    weight = np.bincount(group, weights=d)
    single = run.rule.one_update_a_round
    own = np.full(len(spacing), np.inf if single else 0.0)
    if single:
        np.minimum.at(own, group, d)
    worst = 0.0
    for number, period in enumerate(spacing):
        common = np.gcd(period, spacing)
        moments = period // common - (0 if single else 1)
        starts = -(-moments // (spacing // common))
        worst = max(worst, float(weight @ starts) - float(own[number]))
    return worst


def _heaviest(run: LongRun, d: Floats) -> float:
    """W: the weight of all jobs that are out at once; where rounds are drawn, of the heaviest one seen."""
    run, weight = _lasting(run, _known(d))
    if not run.rule.synchronous or run.rule.same_clients:
        return float(weight[run.participation.share > 0].sum())
    return run.remembered("heaviest", lambda: _heaviest_seen(run, weight), weight)


def _heaviest_seen(run: LongRun, weight: Floats) -> float:
    worst = 0.0
    for chunk in run.record.rounds(min(_most_rounds(run), _SAMPLED_ROUNDS)):
        applied = _weights(weight, chunk.client, chunk.draws)
        worst = max(worst, float(np.bincount(chunk.round_of_update - chunk.first_round, weights=applied).max()))
    return worst
