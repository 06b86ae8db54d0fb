"""What a scheme does with given clients: its timeline and limit cycle, each client's share of rounds, and the weights.

d_i  `weights`,    q_i  `expected_weights`: training minimises Σ q_i L_i
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import MAX_ROUNDS, Cycle, observe
from fedtempo.clock.generate import Recording, full_timeline, stream
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact, exact
from fedtempo.clock.timeline import Origin, Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme
from fedtempo.weighting import weights as weighting
from fedtempo.weighting.long_run import LongRun, Participation
from fedtempo.weighting.memory import remembered
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule, weight_rule
from fedtempo.weighting.weights import Weights, expected_of


def _check(scheme: object, times: object) -> None:
    if not isinstance(scheme, Scheme) or not isinstance(times, ClientTimes):
        raise InputError(
            "give a scheme and client times, as ft.FedFix('1/2') and ft.FixedTimes([1, 2]); "
            f"got {scheme!r} and {times!r}"
        )


def _config(scheme: Scheme, times: ClientTimes, importance: Iterable[Exact] | None, seed: int) -> ClockConfig:
    _check(scheme, times)
    return ClockConfig.of(scheme.waiting, times, Importance(importance, times.num_clients).values, seed)


def timeline(
    scheme: Scheme,
    times: ClientTimes,
    *,
    until: Exact | None = None,
    rounds: int | None = None,
    importance: Iterable[Exact] | None = None,
    seed: int = 0,
) -> Timeline:
    """The rounds that end at or before `until`, or the first `rounds`, whichever comes first; in memory.

    `importance` matters to multinomial sampling only, `seed` to random times and sampling.

    `until` is in the unit of the times; one of the two must be given.

    Example:
        >>> line = ft.timeline(ft.FedFix(1), ft.FixedTimes([3, 2, 1]), until=6)
        >>> line.num_rounds, line.num_updates, int(line.staleness.max())
        (6, 11, 2)
        >>> print(line)
        FedFix(1): 6 rounds, 11 updates of 3 clients
        round  ends  participants  base versions
            0     1  2             0
            1     2  1 2           0 1
            2     3  0 2           0 2
            3     4  1 2           2 3
            4     5  2             4
            5     6  0 1 2         3 4 5
        delay: mean 0.6364, largest 2; live versions: at most 3
    """
    config = _config(scheme, times, importance, seed)
    line = full_timeline(config, until=until, max_rounds=rounds)
    whole = until is not None and (rounds is None or line.num_rounds < rounds)
    return replace(line, origin=Origin(config, scheme.label, exact(until, "until") if whole else None))


def timeline_chunks(
    scheme: Scheme,
    times: ClientTimes,
    *,
    until: Exact | None = None,
    rounds: int | None = None,
    importance: Iterable[Exact] | None = None,
    seed: int = 0,
) -> Iterator[Timeline]:
    """As `timeline`, in consecutive pieces: memory stays flat however long the run; without an end it never stops.

    Where no round ends by `until` there are no pieces.

    Example:
        >>> times = ft.ExponentialTimes([4, 2, 1])
        >>> pieces = ft.timeline_chunks(ft.AsyncFedAvg(), times, rounds=200_000)
        >>> sum(np.bincount(piece.client, minlength=3) for piece in pieces)  # updates of each client
        array([ 28747,  57173, 114080])
    """
    if rounds is not None and rounds < 1:
        raise InputError(f"rounds: {rounds} is below 1; give the number of rounds")
    config = _config(scheme, times, importance, seed)
    origin = Origin(config, scheme.label)
    return (replace(part, origin=origin) for part in stream(config, until=until, max_rounds=rounds))


def limit_cycle(scheme: Scheme, times: ClientTimes, *, max_rounds: int = MAX_ROUNDS) -> Cycle | None:
    """The rounds that repeat for ever, exactly; None if there are none within `max_rounds`, or times are random.

    None also of clients that come and go, even if they do so by the clock.

    A rule of one's own that keeps a state has a cycle only if its `phase` says what of the state matters.

    Example:
        >>> cycle = ft.limit_cycle(ft.FedBuff(2), ft.FixedTimes([4, 2, 1]))
        >>> cycle.length, cycle.duration, cycle.counts
        (3, Fraction(4, 1), array([1, 2, 3]))
        >>> print(ft.limit_cycle(ft.FedBuff(2), ft.FixedTimes([4, 2, 1]), max_rounds=3))  # none that soon
        None
    """
    config = _config(scheme, times, None, 0)
    if config.availability is not None:
        return None

    def found() -> Cycle | None:
        return observe(Recording(config), max_rounds=max_rounds).cycle

    return remembered(config, "limit cycle", found, max_rounds, importance=False)


def weights_of(scheme: Scheme, run: LongRun, rule: WeightRule, step: str = "paper") -> Weights:
    """d_i of a scheme whose long run is known; a scheme's own weights in place of time-based ones, and its own step."""
    if scheme.own_weights is not None:
        rule = rule.fitted(scheme.own_weights)
    return weighting.weights_of(scheme.waiting, run, rule, label=str(scheme), step=scheme.options.step or step)


def participation_of(
    scheme: Scheme, times: ClientTimes, *, importance: Iterable[Exact] | None = None, seed: int = 0
) -> Participation:
    """The share of rounds in which each client takes part, in the long run.

    `importance` matters to multinomial sampling only, `seed` to shares that are estimated from a long run.

    Example:
        >>> found = ft.participation_of(ft.AsyncFedAvg(), ft.FixedTimes([4, 2, 1]))
        >>> print(*found.exact)
        1/7 2/7 4/7
        >>> found.source
        'closed form'
    """
    _check(scheme, times)
    return LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed).participation


def weights(
    scheme: Scheme,
    times: ClientTimes,
    *,
    importance: Iterable[Exact] | None = None,
    rule: str | WeightRule | None = None,
    seed: int = 0,
    step: str = "paper",
) -> Weights:
    """d_i: the scheme's own, or time-based (unbiased), unless another rule is named; exact where the times are.

    The server's `step` ("paper": 1, "stable", "proven") is in what ``w.applied(timeline)`` gives, not in d_i.

    `rule` is a weight rule or its name: "time-based", "identical", "importance", "measured", "own-time". `importance`
    is p_i, one per client with sum 1, uniform unless given.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> print(*ft.weights(ft.FedFix(1), times))
        4/3 2/3 1/3
        >>> print(*ft.weights(ft.FedFix(1), times, importance=["1/2", "1/4", "1/4"]))
        2 1/2 1/4
        >>> print(*ft.weights(ft.FedFix(1), times, rule="identical"))
        4/7 4/7 4/7
    """
    _check(scheme, times)
    run = LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed)
    return weights_of(scheme, run, _rule_of(scheme, rule), check_step(step))


def _rule_of(scheme: Scheme, given: str | WeightRule | None) -> WeightRule:
    own = scheme.options.own_weights if given is None else None
    return own or weight_rule("time-based" if given is None else given)


def expected_weights(
    scheme: Scheme,
    times: ClientTimes,
    *,
    importance: Iterable[Exact] | None = None,
    rule: str | WeightRule | None = None,
    seed: int = 0,
) -> Floats:
    """q_i: training minimises Σ q_i L_i, which is the federated loss when q_i is proportional to p_i.

    One number per client, for the weights that ``ft.weights`` gives with the same arguments.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> ft.expected_weights(ft.AsyncFedAvg(), times).round(3)
        array([0.333, 0.333, 0.333])
        >>> ft.expected_weights(ft.AsyncFedAvg(), times, rule="identical").round(3)
        array([0.143, 0.286, 0.571])
    """
    run = LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed)
    return expected_of(run, weights_of(scheme, run, _rule_of(scheme, rule)))
