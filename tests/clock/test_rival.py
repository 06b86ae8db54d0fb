"""The clock against its rival (`rival.py`), on random cases where ties and coincidences are the rule.

FEDTEMPO_CASES sets the number of cases. A case is named by its number alone: `case(17)` rebuilds it.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline
from support import rival
from support.rival import Round

CASES = int(os.environ.get("FEDTEMPO_CASES", "100"))
LAWS = ("fixed", "replay", "bootstrap", "exponential", "uniform", "lognormal")
RULES = ("fedavg", "async", "fedfix", "fedbuff", "uniform", "multinomial", "fastest", "fedfix-stages")
SAMPLING = ("uniform", "multinomial", "fastest")


# Cases.


@dataclass(frozen=True)
class Case:
    name: str
    times: ft.ClientTimes
    duration: rival.Duration
    means: list[Fraction]
    pool: list[Fraction]
    seed: int

    @property
    def clients(self) -> int:
        return len(self.means)


@dataclass(frozen=True)
class Ruled:
    """A scheme, and what the rival must know of it."""

    rule: str
    scheme: ft.Scheme
    parameters: dict[str, object]


def small(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(1, 6), rng.choice((1, 1, 2, 3, 4)))


def drawn(times: ft.ClientTimes, seed: int, lawful: Callable[[int, Fraction], bool]) -> rival.Duration:
    """Random durations: the drawn ticks are exact. They are drawn 40 jobs at a time, which is quicker than singly."""
    known: dict[int, list[Fraction]] = {}

    def duration(client: int, job: int) -> Fraction:
        row = known.setdefault(client, [])
        while len(row) <= job:
            ticks = times.draw(np.array([client]), np.arange(len(row), len(row) + 40), seed=seed)
            row += [tick * times.unit for tick in ticks.tolist()]
        assert lawful(client, row[job]), f"{times!r}, seed {seed}: job {job} of client {client} takes {row[job]}"
        return row[job]

    return duration


def build(name: str, law: str, rng: random.Random, clients: int) -> Case:
    """Clients that take their times from a pool of one to four small fractions, so that many are the same."""
    pool = [small(rng) for _ in range(rng.randint(1, 4))]
    picked = [rng.choice(pool) for _ in range(clients)]
    rows = [[rng.choice(pool) for _ in range(rng.randint(1, 4))] for _ in range(clients)]
    widths = [rng.choice(pool) for _ in range(clients)]
    resolution = rng.choice((None, min(pool), min(pool) / rng.randint(2, 4), Fraction(1, 4) * min(1, min(pool))))
    sigma = rng.choice((0.3, 1.0, [rng.choice((0.2, 0.9)) for _ in range(clients)]))
    seed = rng.choice((0, 1, rng.randrange(2**31)))

    times: ft.ClientTimes
    means = picked
    if law == "fixed":
        times = ft.FixedTimes(rng.choice((picked, [str(time) for time in picked])))
        duration: rival.Duration = lambda client, job: picked[client]  # noqa: E731
    elif law == "replay":
        times = ft.TraceTimes(rows, mode="replay")
        duration = lambda client, job: rows[client][job % len(rows[client])]  # noqa: E731
        means = [sum(row, Fraction(0)) / len(row) for row in rows]
    elif law == "bootstrap":
        times = ft.TraceTimes(rows, mode="bootstrap")
        duration = drawn(times, seed, lambda client, time: time in rows[client])
        means = [sum(row, Fraction(0)) / len(row) for row in rows]
    elif law == "exponential":
        times = ft.ExponentialTimes(picked, resolution=resolution)
        duration = drawn(times, seed, lambda client, time: time > 0)
    elif law == "uniform":
        high = [low + width for low, width in zip(picked, widths, strict=True)]
        times = ft.UniformTimes(picked, high, resolution=resolution)
        duration = drawn(times, seed, lambda client, time: picked[client] <= time < high[client] + times.unit)
        means = [(a + b) / 2 for a, b in zip(picked, high, strict=True)]
    else:
        times = ft.LogNormalTimes(picked, sigma=sigma, resolution=resolution)
        duration = drawn(times, seed, lambda client, time: time > 0)
    if resolution is not None and times.unit == resolution:
        pool = [*pool, resolution]
    shown = rows if law in ("replay", "bootstrap") else picked
    detail = f"seed {seed}, times {[str(x) if isinstance(x, Fraction) else [str(y) for y in x] for x in shown]}"
    return Case(f"{name} ({law}, {clients} clients, {detail})", times, duration, means, pool, seed)


def case(number: int) -> tuple[Case, random.Random]:
    rng = random.Random(f"rival case {number}")
    return build(f"case {number}", LAWS[number % len(LAWS)], rng, rng.randint(1, 9)), rng


def a_wait(rng: random.Random, pool: list[Fraction]) -> Fraction:
    """A time itself, a multiple of it, a divisor, a sum of two, or none of these."""
    time = rng.choice(pool)
    return rng.choice(
        (time, time, time * rng.randint(2, 3), time / rng.randint(2, 4), time + rng.choice(pool), small(rng) / 7)
    )


def ruled(rule: str, case: Case, rng: random.Random) -> Ruled:
    clients = case.clients
    if rule == "fedavg":
        return Ruled(rule, ft.FedAvg(), {})
    if rule == "async":
        return Ruled(rule, ft.AsyncFedAvg(), {})
    if rule == "fedfix":
        wait = a_wait(rng, case.pool)
        return Ruled(rule, ft.FedFix(wait=rng.choice((wait, str(wait)))), {"wait": wait})
    if rule == "fedfix-stages":
        stages: list[tuple[Fraction, int | None]] = [
            (a_wait(rng, case.pool), rng.randint(1, 6)) for _ in range(rng.randint(1, 3))
        ]
        stages.append((a_wait(rng, case.pool), None))
        return Ruled(rule, ft.StagedFedFix(stages), {"stages": stages})
    if rule == "multinomial":
        size = rng.randint(1, 2 * clients)
        return Ruled(rule, ft.MultinomialSampling(size), {"size": size})
    size = rng.randint(1, clients)
    made = {"fedbuff": ft.FedBuff, "uniform": ft.UniformSampling, "fastest": ft.FastestSampling}[rule](size)
    return Ruled(rule, made, {"size": size})


# Comparison.


def rounds_of(*parts: ft.Timeline) -> list[Round]:
    """What the clock says, in the rival's words."""
    out = []
    number, now = 0, Fraction(0)
    for part in parts:
        part.validate()
        for found, begin, stop in zip(part.rounds, part.offsets.tolist(), part.offsets[1:].tolist(), strict=False):
            assert (found.number, found.start) == (number, now), f"round {number} at {now} is shown as {found}"
            number, now = number + 1, found.end
            jobs = tuple(part.job[begin:stop].tolist())
            out.append(Round(found.end, found.participants, found.base_versions, found.draws, jobs))
    return out


def same(expected: list[Round], got: list[Round], where: str) -> None:
    for n, (right, found) in enumerate(zip(expected, got, strict=False)):
        assert right == found, f"{where}: round {n}: expected {right}, got {found}"
    assert len(expected) == len(got), (
        f"{where}: expected {len(expected)} rounds, got {len(got)}; "
        f"the first that only one has: {max(expected, got, key=len)[min(len(expected), len(got))]}"
    )


def compare(case: Case, of: Ruled, expected: list[Round], **end: object) -> int:
    """All ways to generate must give these rounds; returns the number of chunks."""
    where = f"{case.name}, {of.scheme}, {', '.join(f'{name}={value}' for name, value in end.items())}"
    chunks = list(ft.timeline_chunks(of.scheme, case.times, seed=case.seed, **end))
    same(expected, rounds_of(*chunks), f"{where}, in chunks")
    config = ClockConfig.of(of.scheme.waiting, case.times, seed=case.seed)
    ways = {
        "timeline": lambda: ft.timeline(of.scheme, case.times, seed=case.seed, **end),
        "by rule": lambda: full_timeline(config, until=end.get("until"), max_rounds=end.get("rounds"), by_rule=True),
    }
    for way, generate in ways.items():
        if not expected:  # a timeline without a round is refused
            with pytest.raises(ft.InputError, match="before the end of the first round"):
                generate()
            continue
        line = generate()
        assert line.num_clients == case.clients, f"{where}, {way}: {line.num_clients} clients"
        same(expected, rounds_of(line), f"{where}, {way}")
        assert line.equals(ft.Timeline.joined(chunks)), f"{where}, {way}: not equal to its chunks joined"
        late = [n - base for n, found in enumerate(expected) for base in found.base_versions]
        assert line.staleness.tolist() == late, f"{where}, {way}: delays"
    return len(chunks)


def chosen_clients(case: Case, of: Ruled, rounds: int) -> list[list[int]]:
    """Who was chosen for each round, once for each draw: as the clock has it, of a lawful size; fastest by itself."""
    where = f"{case.name}, {of.scheme}"
    size = of.parameters["size"]
    assert isinstance(size, int)
    if of.rule == "fastest":
        return [sorted(range(case.clients), key=lambda i: (case.means[i], i))[:size]] * rounds
    line = ft.timeline(of.scheme, case.times, rounds=rounds, seed=case.seed)
    chosen = []
    for found in line.rounds:
        draws = list(chain.from_iterable([i] * k for i, k in zip(found.participants, found.draws, strict=True)))
        assert len(draws) == size, f"{where}: round {found.number} has {len(draws)} draws"
        assert min(found.draws) >= 1, f"{where}: round {found.number} lists a client that was not drawn"
        if of.rule == "uniform":
            assert len(set(draws)) == size, f"{where}: round {found.number} has a client twice"
        chosen.append(draws)
    return chosen


def expectation(case: Case, of: Ruled, rounds: int) -> Callable[..., list[Round]]:
    """The rival with all its inputs; `rounds` is how many the answer may need."""
    if of.rule in SAMPLING:
        chosen = chosen_clients(case, of, rounds)
        return lambda **end: rival.run(of.rule, case.clients, case.duration, chosen=chosen, **end)
    parameters = of.parameters
    return lambda **end: rival.run(of.rule, case.clients, case.duration, **parameters, **end)


def horizon(rng: random.Random, ends: list[Fraction]) -> Fraction:
    """At the end of a round, a hair to either side, anywhere; now and then before the first."""
    end = rng.choice(ends[-3:])
    hair = Fraction(1, 10**6 + 3)
    return rng.choice((end, end, end - hair, end + hair, end * Fraction(rng.randint(1, 12), 13), ends[0], ends[0] / 2))


@pytest.mark.parametrize("number", range(CASES))
def test_the_clock_agrees_with_the_rival(number: int) -> None:
    made, rng = case(number)
    both = rng.choice(RULES)
    for rule in RULES:
        of = ruled(rule, made, rng)
        count = rng.choice((rng.randint(1, 8), rng.randint(1, 24)))
        run = expectation(made, of, count + 1)  # a horizon within `count` rounds leaves out the next
        first = run(rounds=count)
        last = first[-1].end
        if rule == both:  # rounds beyond `count` may end at `last` too
            compare(made, of, first, rounds=count, until=last)
        else:
            line = ft.timeline(of.scheme, made.times, rounds=count, seed=made.seed)
            same(first, rounds_of(line), f"{made.name}, {of.scheme}, rounds={count}")
        until = min(horizon(rng, [found.end for found in first]), last)
        compare(made, of, run(until=until), until=until)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rule", RULES)
def test_long_runs_in_chunks(rule: str, law: str) -> None:
    """Far enough for several chunks, and for whatever repeats to have repeated."""
    rng = random.Random(f"long {rule} {law}")
    made = build("long run", law, rng, rng.randint(3, 5))
    of = ruled(rule, made, rng)
    while (updates := ft.timeline(of.scheme, made.times, rounds=200, seed=made.seed).num_updates) < 200:
        of = ruled(rule, made, rng)
    count = 200 * 3400 // updates
    run = expectation(made, of, count + 1)
    first = run(rounds=count)
    line = ft.timeline(of.scheme, made.times, rounds=count, seed=made.seed)
    same(first, rounds_of(line), f"{made.name}, {of.scheme}, rounds={count}")
    until = first[-1].end - Fraction(1, 10**6 + 3)
    chunks = compare(made, of, [found for found in first if found.end <= until], until=until)
    assert chunks > 1, f"{made.name}, {of.scheme}: only one chunk"


# Single facts.


def test_the_rival_as_worked_out_by_hand() -> None:
    """Two clients of times 1 and 2, and a third like the first."""
    times = [Fraction(1), Fraction(2), Fraction(1)]

    def short(rule: str, **given: object) -> list[tuple[object, ...]]:
        found = rival.run(rule, 3, lambda client, job: times[client], **given)
        return [(one.end, one.participants, one.base_versions) for one in found]

    assert short("fedavg", until=Fraction(4)) == [(2, (0, 1, 2), (0, 0, 0)), (4, (0, 1, 2), (1, 1, 1))]
    assert short("async", until=Fraction(2)) == [
        (1, (0,), (0,)),
        (1, (2,), (0,)),
        (2, (0,), (1,)),
        (2, (1,), (0,)),
        (2, (2,), (2,)),
    ]
    assert short("fedfix", wait=Fraction(1, 2), rounds=4) == [
        (Fraction(1, 2), (), ()),
        (1, (0, 2), (0, 0)),
        (Fraction(3, 2), (), ()),
        (2, (0, 1, 2), (2, 0, 2)),
    ]
    assert short("fedfix-stages", stages=[(Fraction(1, 2), 1), (Fraction(1), None)], rounds=3) == [
        (Fraction(1, 2), (), ()),
        (Fraction(3, 2), (0, 2), (0, 0)),
        (Fraction(5, 2), (0, 1, 2), (2, 0, 2)),
    ]
    assert short("fedbuff", size=2, rounds=4) == [  # at 2 all three are there; client 2 stays for the next round
        (1, (0, 2), (0, 0)),
        (2, (0, 1), (1, 0)),
        (3, (0, 2), (2, 1)),
        (4, (0, 1), (3, 2)),
    ]
    assert short("fedbuff", size=1, until=Fraction(2)) == short("async", until=Fraction(2))
    assert short("multinomial", chosen=[[2, 2], [0, 1]]) == [(1, (2,), (0,)), (3, (0, 1), (1, 1))]


@pytest.mark.parametrize("clients", range(2, 101))
def test_waiting_for_the_fastest_client_takes_it_in_every_round(clients: int) -> None:
    times = ft.FixedTimes.spread(clients=clients, slowdown=80)
    wait = Fraction(1, 5)
    line = ft.timeline(ft.FedFix(wait), times, until=4)
    line.validate()
    assert line.num_rounds == 20
    for found in line.rounds:
        assert clients - 1 in found.participants, f"F80, {clients} clients: round {found.number} without the fastest"
    taus = [1 - Fraction(4, 5) * i / (clients - 1) for i in range(clients)]
    expected = [20 // math.ceil(tau / wait) for tau in taus]
    assert line.participation_counts.tolist() == expected, f"F80, {clients} clients"


@pytest.mark.parametrize("law", ["fixed", "replay", "bootstrap"])
def test_the_fastest_are_chosen_exactly_even_where_floats_are_equal(law: str) -> None:
    means = [1 + Fraction(1, 10**17), Fraction(1)]
    times = ft.FixedTimes(means) if law == "fixed" else ft.TraceTimes([[mean] for mean in means], mode=law)
    line = ft.timeline(ft.FastestSampling(1), times, rounds=2)
    assert [found.participants for found in line.rounds] == [(1,), (1,)]


@pytest.mark.parametrize("end", [{"rounds": 3}, {"until": Fraction(9)}], ids=["rounds", "until"])
@pytest.mark.parametrize("rule", RULES)
def test_rounds_that_fit_the_clock_are_given_even_if_later_ones_would_not(rule: str, end: dict[str, object]) -> None:
    """With seventeen digits the clock has room for 23 units of time; no more than 9.9 are asked for."""
    values = [Fraction("0.12345678901234567"), Fraction("3.3"), Fraction("1.7")]
    made = Case("seventeen digits", ft.FixedTimes(values), lambda client, job: values[client], values, values, 0)
    of = {
        "fedfix": Ruled("fedfix", ft.FedFix(1), {"wait": Fraction(1)}),
        "fedfix-stages": Ruled(rule, ft.StagedFedFix([(1, 2), (2, None)]), {"stages": [(1, 2), (Fraction(2), None)]}),
        "multinomial": Ruled(rule, ft.MultinomialSampling(2), {"size": 2}),
        "uniform": Ruled(rule, ft.UniformSampling(2), {"size": 2}),
        "fastest": Ruled(rule, ft.FastestSampling(2), {"size": 2}),
        "fedbuff": Ruled(rule, ft.FedBuff(2), {"size": 2}),
    }.get(rule) or ruled(rule, made, random.Random(0))
    expected = expectation(made, of, 6)(**end)
    try:
        line = ft.timeline(of.scheme, made.times, **end)
        chunks = list(ft.timeline_chunks(of.scheme, made.times, **end))
    except ft.ClockOverflow as error:
        pytest.fail(f"{made.name}, {of.scheme}, {end}: the last round ends at {expected[-1].end}, but: {error}")
    same(expected, rounds_of(line), f"{made.name}, {of.scheme}, {end}")
    same(expected, rounds_of(*chunks), f"{made.name}, {of.scheme}, {end}, in chunks")


@pytest.mark.parametrize("number", range(len(LAWS)))
def test_a_duration_depends_on_seed_client_and_job_alone(number: int) -> None:
    made, _ = case(number)
    clients, jobs = np.arange(made.clients)[:, None], np.arange(9)[None, :]
    table = made.times.draw(clients, jobs, seed=made.seed)
    assert table.shape == (made.clients, 9), made.name
    for i in range(made.clients):
        for j in range(9):
            single = int(made.times.draw(np.array([i]), np.array([j]), seed=made.seed)[0])
            assert single == table[i, j], f"{made.name}: job {j} of client {i}"
            assert single * made.times.unit == made.duration(i, j), f"{made.name}: job {j} of client {i}"


# Sampling.


def assert_share(count: int, trials: int, share: float, what: str) -> None:
    """A binomial count within four standard deviations of its mean."""
    bound = 4 * math.sqrt(trials * share * (1 - share))
    assert abs(count - trials * share) <= bound, (
        f"{what}: {count} of {trials}, expected {trials * share:.1f} ± {bound:.1f}"
    )


def again(sets: list[set[int]], client: int) -> int:
    """How often the client is in both rounds of a pair; the pairs do not overlap."""
    return sum(client in a and client in b for a, b in zip(sets[::2], sets[1::2], strict=True))


@pytest.mark.parametrize(("clients", "size"), [(1, 1), (2, 1), (5, 2), (7, 6), (9, 4)])
def test_uniform_sampling_is_uniform(clients: int, size: int) -> None:
    rounds = 20_000
    line = ft.timeline(ft.UniformSampling(size), ft.FixedTimes([1] * clients), rounds=rounds, seed=11)
    sets = [set(found.participants) for found in line.rounds]
    share = size / clients
    both = share * (size - 1) / max(clients - 1, 1)
    pairs = Counter(chain.from_iterable(combinations(sorted(found), 2) for found in sets))
    for i in range(clients):
        what = f"{size} of {clients}, client {i}"
        assert_share(sum(i in found for found in sets), rounds, share, what)
        assert_share(again(sets, i), rounds // 2, share**2, f"{what}, in two rounds running")
        for j in range(i + 1, clients):
            assert_share(pairs[i, j], rounds, both, f"{what} with {j}")


def binomial(k: int, n: int, share: float) -> float:
    return math.comb(n, k) * share**k * (1 - share) ** (n - k)


@pytest.mark.parametrize(
    ("weights", "size"), [(None, 1), (None, 5), ([4, 2, 1, 1], 1), ([4, 2, 1, 1], 3), ([1, 2, 3, 14], 6), ([1], 2)]
)
def test_multinomial_sampling_follows_the_importance(weights: list[int] | None, size: int) -> None:
    rounds = 20_000
    importance = None if weights is None else [Fraction(weight, sum(weights)) for weight in weights]
    shares = [float(share) for share in importance or [Fraction(1, 4)] * 4]
    line = ft.timeline(
        ft.MultinomialSampling(size), ft.FixedTimes([1] * len(shares)), rounds=rounds, importance=importance, seed=12
    )
    draws = [dict(zip(found.participants, found.draws, strict=True)) for found in line.rounds]
    sets = [set(found) for found in draws]
    for i, share in enumerate(shares):
        what = f"{size} draws, importance {weights}, client {i}"
        assert_share(sum(found.get(i, 0) for found in draws), rounds * size, share, what)
        inside = 1 - (1 - share) ** size
        assert_share(again(sets, i), rounds // 2, inside**2, f"{what}, in two rounds running")
        times = Counter(found.get(i, 0) for found in draws)
        for k in range(size + 1):
            assert_share(times[k], rounds, binomial(k, size, share), f"{what}, drawn {k} times")


@pytest.mark.parametrize("scheme", [ft.UniformSampling(2), ft.MultinomialSampling(2)], ids=str)
def test_who_is_chosen_depends_on_the_seed_and_not_on_the_times(scheme: ft.Scheme) -> None:
    def chosen(values: Iterable[int], seed: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        line = ft.timeline(scheme, ft.FixedTimes(values), rounds=200, seed=seed)
        return [(found.participants, found.draws) for found in line.rounds]

    assert chosen([1, 2, 3, 4, 5], 3) == chosen([5, 1, 1, 2, 7], 3)
    assert chosen([1, 2, 3, 4, 5], 3) != chosen([1, 2, 3, 4, 5], 4)


@pytest.mark.parametrize("scheme", [ft.UniformSampling(2), ft.MultinomialSampling(3)], ids=str)
def test_being_chosen_and_being_slow_are_independent(scheme: ft.Scheme) -> None:
    """Durations above the median are half of those of the clients chosen."""
    case_times = ft.UniformTimes([1] * 5, [2] * 5)
    line = ft.timeline(scheme, case_times, rounds=20_000, seed=13)
    ticks = case_times.draw(line.client, line.job, seed=13)
    assert_share(int(np.sum(ticks * float(case_times.unit) > 1.5)), line.num_updates, 0.5, f"{scheme}: slow jobs")
