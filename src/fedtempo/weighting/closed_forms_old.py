"""The share of rounds of clients that come, go and fail, where there is a closed form for it.

    asynchronous   r_i/Σ_j r_j, r_i = (1 − f_i) × jobs done in a unit of time:
                     failures alone      1/E[T_i]
                     on and off          1/((a_i + b_i)(e^{τ_i/a_i} − 1));   exponential times a_i/((a_i + b_i)τ_i)
                     with a period P     Σ_s ⌊s/τ_i⌋/P over its stays s;     exponential times Σ_s s/(P τ_i)
    with failures alone
      FedAvg       1: a failed job is sent again within the round
      FedFix       1/E⌈G τ_i/Δt⌉ with G jobs until one succeeds: for τ_i/Δt = a/b  (1 − f_i^b)/Σ_{k<a} f_i^{⌊kb/a⌋}
      exponential  as of clients that do not fail and are slower: τ_i/(1 − f_i)
      sampling     the plain share × (1 − f_i)/(1 − π), π the probability that all who are drawn fail, and others are

f_i is `failure`, a_i `on`, b_i `off`. Jobs are independent; a stay cuts off the job that runs when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from fedtempo.clock.availability import Absence, Availability
from fedtempo.clock.importance import Importance
from fedtempo.clock.races import expected_last_success
from fedtempo.clock.random_times import ExponentialTimes
from fedtempo.clock.rules import (
    FastestClients,
    FixedInterval,
    MultinomialSample,
    SampledClients,
    UniformSample,
    WaitForAll,
    WaitForNext,
    fastest,
)
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.clock.waiting import WaitingRule

Shares = tuple[Floats, tuple[Fraction, ...] | None]
"""One number per client, and as rationals where they are known."""

_MAX_BITS = 4000  # of a rational that is kept beside its float
_MAX_TERMS = 2000
_MAX_DRAWS = 150  # beyond it m! does not fit a float


def slower(times: ClientTimes) -> ExponentialTimes | None:
    """Exponential clients whose jobs fail contribute like slower ones whose jobs do not, exactly, tick by tick.

    A job of ⌈T/r⌉ ticks ends in each tick with probability p = 1 − e^{−r/τ}; one that succeeds, with p(1 − f).
    """
    plain, availability = times.always, times.availability
    if not isinstance(plain, ExponentialTimes) or availability is None or availability.away:
        return None
    tick = float(plain.unit)
    ends = -np.expm1(-tick / plain.mean_time) * _succeeds(availability)
    return ExponentialTimes((-tick / np.log1p(-ends)).tolist(), resolution=plain.unit)


def share_of(rule: WaitingRule, times: ClientTimes, importance: Importance) -> Shares | None:
    """Expected draws a round of each client; None where no closed form is known."""
    availability = times.availability
    assert availability is not None
    if isinstance(rule, WaitForNext):
        rates = contribution_rates(times)
        if rates is None:
            return None
        floats, exact = rates
        return floats / floats.sum(), _divided(exact, sum(exact, Fraction(0))) if exact is not None else None
    if availability.away:
        return None
    clients = times.num_clients
    match rule:
        case WaitForAll():
            return np.ones(clients), (Fraction(1),) * clients
        case FixedInterval(wait=wait) if isinstance(times.always, FixedTimes):
            return _of_intervals([t / wait for t in times.always.exact_mean_time], availability.failure)
        case UniformSample() | MultinomialSample() | FastestClients():
            plain = _drawn(rule, times, importance)
            lost = all_fail(rule, times, importance)
            if lost is None:
                return None
            floats = np.array([float(s) for s in plain]) * _succeeds(availability) / (1.0 - float(lost))
            if not isinstance(lost, Fraction):
                return floats, None
            return floats, tuple(s * (1 - f) / (1 - lost) for s, f in zip(plain, availability.failure, strict=True))
    return None


def pace_of(
    rule: WaitingRule, times: ClientTimes, importance: Importance, plain: Callable[[], Fraction | float | None]
) -> Fraction | float | None:
    """Rounds in a unit of time; `plain` are those of the same clients if they were always there."""
    availability = times.availability
    assert availability is not None
    match rule:
        case FixedInterval(wait=wait):
            return 1 / wait
        case WaitForNext():
            rates = contribution_rates(times)
            return None if rates is None else float(rates[0].sum())
        case WaitForAll() if not availability.away and isinstance(times.always, FixedTimes):
            longest = expected_last_success(times.always.mean_time, _failure(availability))
            return None if longest is None else 1.0 / longest
        case SampledClients() if not availability.away:
            pace, lost = plain(), all_fail(rule, times, importance)
            return None if pace is None or lost is None else pace * (1 - lost)
    return None


def contribution_rates(times: ClientTimes) -> Shares | None:
    """r_i, contributions of each client in a unit of time if it is sent the new model after each of them."""
    plain, availability = times.always, times.availability
    assert availability is not None
    fixed = isinstance(plain, FixedTimes)
    known = fixed or (plain.memoryless and float(plain.unit) * 10**5 <= float(plain.mean_time.min()))
    succeeds, mean = _succeeds(availability), plain.mean_time
    if not availability.away:
        exactly = plain.exact_mean_time
        exact = (
            None if exactly is None else tuple((1 - f) / t for f, t in zip(availability.failure, exactly, strict=True))
        )
        return succeeds / plain.clock_mean_time, exact
    if not known or (availability.on is not None and any(availability.absences)):
        return None
    if availability.on is not None and availability.off is not None:
        on, off = (np.array([float(m) for m in means]) for means in (availability.on, availability.off))
        with np.errstate(over="ignore"):
            finished = 1.0 / np.expm1(mean / on) if fixed else on / mean  # jobs done in one stay
        return succeeds * finished / (on + off), None
    if not fixed:
        return succeeds * availability.present_share() / mean, None
    assert isinstance(plain, FixedTimes)
    exact = tuple(
        (1 - f) * _jobs_in_period(rows, availability.period, t)
        for f, rows, t in zip(availability.failure, availability.absences, plain.exact_mean_time, strict=True)
    )
    return np.array([float(r) for r in exact]), exact


def _jobs_in_period(rows: Sequence[Absence], period: Fraction | None, time: Fraction) -> Fraction:
    """Jobs done in a unit of time by a client that starts one whenever it returns."""
    if not rows or period is None:
        return 1 / time
    begins, ends = [begin for begin, _ in rows], [end for _, end in rows if end is not None]
    stays = [begin - end for begin, end in zip([*begins[1:], begins[0] + period], ends, strict=True)]
    return Fraction(sum(int(stay // time) for stay in stays)) / period


def _of_intervals(ratios: Sequence[Fraction], failure: Sequence[Fraction]) -> Shares:
    needed = {pair: intervals_until_success(*pair) for pair in set(zip(ratios, failure, strict=True))}
    found = [needed[pair] for pair in zip(ratios, failure, strict=True)]
    exact = tuple(1 / n for n in found if isinstance(n, Fraction))
    return np.array([1.0 / float(n) for n in found]), exact if len(exact) == len(found) else None


def intervals_until_success(ratio: Fraction, failure: Fraction) -> Fraction | float:
    """E⌈G·ratio⌉ = Σ_{k<a} f^{⌊kb/a⌋} / (1 − f^b) for ratio a/b, G geometric; a float where digits grow too many."""
    a, b = ratio.numerator, ratio.denominator
    if not failure:
        return Fraction(-(-a // b))
    if a <= _MAX_TERMS and b * failure.denominator.bit_length() <= _MAX_BITS:
        return sum((failure ** (k * b // a) for k in range(a)), Fraction(0)) / (1 - failure**b)
    f = float(failure)
    terms = min(a, math.ceil(float(ratio) * (1 + 40 / -math.log(f))))
    jobs = np.array([k * b // a for k in range(terms)], dtype=np.float64)
    return float((f**jobs).sum() / -math.expm1(b * math.log(f)))


def _drawn(rule: SampledClients, times: ClientTimes, importance: Importance) -> tuple[Fraction, ...]:
    """Expected draws a round of clients that are always there."""
    clients = times.num_clients
    if isinstance(rule, MultinomialSample):
        return tuple(rule.size * p for p in importance.exact)
    if isinstance(rule, UniformSample):
        return (Fraction(rule.size, clients),) * clients
    chosen = set(fastest(times, rule.size).tolist())
    return tuple(Fraction(int(i in chosen)) for i in range(clients))


def all_fail(rule: WaitingRule, times: ClientTimes, importance: Importance) -> Fraction | float | None:
    """π, the probability that the jobs of all who are drawn for a round fail."""
    availability = times.availability
    assert availability is not None
    failure = availability.failure
    match rule:
        case FastestClients(size=size):
            return math.prod((failure[i] for i in fastest(times, size).tolist()), start=Fraction(1))
        case UniformSample(size=size):
            if len(set(failure)) == 1 and size * failure[0].denominator.bit_length() <= _MAX_BITS:
                return failure[0] ** size
            mean = np.zeros(size + 1)  # of the product over the sets of k of the first clients
            mean[0] = 1.0
            for seen, f in enumerate(_failure(availability).tolist(), start=1):
                k = np.arange(1, min(size, seen) + 1)
                mean[k] = k / seen * f * mean[k - 1] + (seen - k) / seen * mean[k]
            return float(mean[size])
        case MultinomialSample(size=size) if size <= _MAX_DRAWS:
            # m! times the coefficient of x^m in Π_j (1 + f_j (e^{p_j x} − 1))
            faculty = np.cumprod(np.concatenate([[1.0], np.arange(1.0, size + 1)]))
            product = np.zeros(size + 1)
            product[0] = 1.0
            for p, f in zip(importance.values.tolist(), _failure(availability).tolist(), strict=True):
                factor = f * p ** np.arange(size + 1) / faculty
                factor[0] = 1.0
                product = np.convolve(product, factor)[: size + 1]
            return float(product[size] * faculty[size])
    return None


def taking_part(rule: WaitingRule, times: ClientTimes, importance: Importance) -> Floats | None:
    """Share of rounds of each client where draws count more than once; None where it is the same."""
    if not isinstance(rule, MultinomialSample) or times.availability is None:
        return None
    lost = all_fail(rule, times, importance)
    if lost is None:
        return None
    named = -np.expm1(rule.size * np.log1p(-importance.values)) if times.num_clients > 1 else np.ones(1)
    return np.asarray(named * _succeeds(times.availability) / (1.0 - float(lost)))


def _failure(availability: Availability) -> Floats:
    return np.array([float(f) for f in availability.failure])


def _succeeds(availability: Availability) -> Floats:
    return np.array([float(1 - f) for f in availability.failure])


def _divided(values: Sequence[Fraction], total: Fraction) -> tuple[Fraction, ...]:
    return tuple(value / total for value in values)
