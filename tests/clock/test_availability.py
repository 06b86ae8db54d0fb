"""Clients that come and go: the clock against a rival, the law of what is drawn, and what is refused."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Joined, Left, View
from fedtempo.clock.presence import Failures, Presence
from fedtempo.errors import DataMissing, InputError
from support.rival_availability import Clock, toggles

RETURNING = {
    "fedavg": ft.FedAvg(),
    "async": ft.AsyncFedAvg(),
    "fedbuff": ft.FedBuff(3),
    "fedfix": ft.FedFix("3/2"),
    "fedfix-stages": ft.StagedFedFix([("1/2", 7), ("2", None)]),
}
SAMPLING = {
    "uniform": ft.UniformSampling(3),
    "multinomial": ft.MultinomialSampling(4),
    "fastest": ft.FastestSampling(2),
}
SCHEMES = RETURNING | SAMPLING
UNTIL = Fraction(60)


def some_absences(draw: random.Random, clients: int, end: int, *, for_good: bool) -> dict[int, list[tuple]]:
    """Of every client that is named: a few, not overlapping, on a grid with many ties."""
    found = {}
    for client in range(clients):
        edges = sorted(draw.sample(range(2 * end + 1), 2 * draw.randint(0, 2)))
        rows = [(Fraction(a, 2), Fraction(b, 2)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        if for_good and draw.random() < 0.3:
            rows.append((rows[-1][1] + 3 if rows else Fraction(draw.randint(1, end)), None))
        if rows and rows[0] != (0, end):
            found[client] = rows
    return found


def told(scheme: ft.Scheme, times: ft.ClientTimes, seed: int = 0, until: Fraction = UNTIL) -> list[tuple]:
    line = ft.timeline(scheme, times, until=until, seed=seed)
    line.validate()
    jobs = np.split(line.job, line.offsets[1:-1])
    return [
        (r.end, r.participants, r.base_versions, r.draws, tuple(j.tolist()))
        for r, j in zip(line.rounds, jobs, strict=True)
    ]


def rivals(scheme: ft.Scheme, times: ft.ClientTimes, presence, first, seed: int = 0) -> list[tuple]:
    config = ClockConfig.of(scheme.waiting, times, seed=seed)
    fails = Failures(times.availability.failure, seed)

    def duration(client: int, job: int) -> Fraction:
        return int(times.draw(np.array(client), np.array(job), seed=seed)) * times.unit

    def choose(number: int, attempt: int, present) -> tuple[int, ...]:
        view = View(0, config.unit, number, set(present), {}, {}, config.measures(), seed)
        return scheme.waiting.choose(number, attempt, view)

    clock = Clock(
        scheme.name,
        presence,
        first,
        duration,
        fails,
        size=getattr(scheme, "size", 0),
        wait=getattr(scheme, "wait", Fraction(0)),
        stages=getattr(scheme, "stages", ()),
        choose=choose if scheme.name in SAMPLING else None,
    )
    return [tuple(r) for r in clock.run(UNTIL)]


@pytest.mark.parametrize("kind", ["once", "periodic", "failing", "random times"])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_clock_is_the_rivals(name, kind) -> None:
    draw = random.Random(f"{name} {kind}")
    compared = 0
    for seed in range(12):
        clients = draw.randint(4, 7)
        means = [Fraction(draw.randint(1, 8), 2) for _ in range(clients)]
        plain = ft.ExponentialTimes(means, resolution="1/6") if kind == "random times" else ft.FixedTimes(means)
        period = Fraction(draw.randint(9, 20)) if kind == "periodic" else None
        away = some_absences(draw, clients, int(period or 40), for_good=period is None)
        times = plain.available(absences=away, period=period if away else None, failure=0.2 if kind == "failing" else 0)
        if times.availability is None:
            continue
        presence, first = toggles(away, clients, UNTIL, period)
        expected = rivals(SCHEMES[name], times, presence, first, seed)
        assert told(SCHEMES[name], times, seed) == expected
        compared += len(expected)
    assert compared > 50


@pytest.mark.parametrize("name", SCHEMES)
def test_nobody_there_does_not_stop_the_clock(name) -> None:
    scheme = SCHEMES[name]
    away = {0: [(0, 5), (20, 31)], 1: [(0, 3), (18, 30)], 2: [(0, 4), (20, 30)]}
    times = ft.FixedTimes([1, "3/2", 2]).available(absences=away)
    presence, first = toggles(away, 3, UNTIL)
    assert told(scheme, times) == rivals(scheme, times, presence, first)
    ends = [end for end, participants, *_ in told(scheme, times) if participants]
    assert min(ends) >= Fraction(9, 2)
    assert not any(Fraction(45, 2) < end < Fraction(63, 2) for end in ends)
    assert any(end > 31 for end in ends)


@pytest.mark.parametrize("name", RETURNING)
def test_everybody_leaves_for_good(name) -> None:
    times = ft.FixedTimes([1, 2, 3, 4]).available(absences={i: [(10, None)] for i in range(4)})
    line = ft.timeline(RETURNING[name], times, until=30)
    taken = [r for r in line.rounds if r.participants]
    assert taken[-1].end <= 10 if not name.startswith("fedfix") else taken[-1].end <= 12
    if name.startswith("fedfix"):
        assert line.num_rounds > len(taken)  # its rounds go on, empty
    else:
        with pytest.raises(InputError, match="left for good"):
            ft.timeline(RETURNING[name], times, rounds=1000)


def test_a_round_that_never_ends_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.generate._MAX_QUIET", 1000)
    times = ft.FixedTimes([5, 5, 5]).available(absences={i: [(1, 2)] for i in range(3)}, period=2)
    with pytest.raises(InputError, match="does not end"):
        ft.timeline(ft.FedAvg(), times, rounds=1)


def moments(times: ft.ClientTimes, until: int, seed: int = 0) -> tuple[frozenset[int], list[tuple]]:
    """Who is there at 0, and (time, joins, client) of every change."""
    config = ClockConfig.of(ft.FedAvg().waiting, times, seed=seed)
    presence = Presence(config, times.availability)
    out = []
    for tick, event in presence.changes():
        if tick * config.unit > until:
            return presence.first, out
        assert isinstance(event, (Joined, Left))
        out.append((tick * config.unit, isinstance(event, Joined), event.client))
    return presence.first, out


def test_stays_are_exponential_and_begin_as_if_always_so() -> None:
    times = ft.FixedTimes([1] * 300).available(on=3, off=2)
    first, changes = moments(times, 150)
    assert abs(len(first) - 180) < 4 * np.sqrt(300 * 0.6 * 0.4)
    stays: dict[bool, list[float]] = {False: [], True: []}
    last, seen = [Fraction(0)] * 300, [0] * 300
    for moment, joins, client in changes:
        if seen[client] < 20:  # the first ones, all of which are over by then
            stays[joins].append(float(moment - last[client]))
        last[client], seen[client] = moment, seen[client] + 1
    assert min(seen) >= 20
    for joins, mean in ((False, 3.0), (True, 2.0)):  # what ends by leaving was a stay
        found = np.array(stays[joins])
        assert abs(found.mean() / mean - 1) < 4 / np.sqrt(len(found))
        assert abs((found > mean).mean() - np.exp(-1)) < 2 / np.sqrt(len(found))
        assert abs((found > 3 * mean).mean() - np.exp(-3)) < 1 / np.sqrt(len(found))
    here = np.zeros(300)
    here[list(first)] = 1
    for _, joined, client in changes:
        assert here[client] != joined  # in turn
        here[client] = joined


def test_draws_depend_on_their_names_alone() -> None:
    """Not on the scheme, on what else is there, on the other clients, or on the blocks in which they are drawn."""
    plain = ft.FixedTimes([1, 2, 3, 4])
    alone = plain.available(on=5, off=2)
    assert moments(alone, 500) == moments(alone.available(failure=0.5), 500)
    assert moments(alone, 500) != moments(alone, 500, seed=1)
    more = ft.FixedTimes([1, 2, 3, 4, 7]).available(on=5, off=2)
    assert [c for c in moments(more, 500)[1] if c[2] < 4] == moments(alone, 500)[1]
    failures = Failures((Fraction(1, 4),) * 3, seed=7)
    forth = [failures(1, job) for job in range(300)]
    assert forth == [Failures((Fraction(1, 4),) * 3, seed=7)(1, job) for job in range(300)]
    assert abs(np.mean(forth) - 0.25) < 0.1
    assert not any(Failures((Fraction(0),), seed=7)(0, job) for job in range(50))
    share = np.mean([Failures((Fraction(1, 10),) * 40, seed=1)(c, j) for c in range(40) for j in range(100)])
    assert abs(share - 0.1) < 0.02


def test_on_and_off_meet_absences() -> None:
    """A client is there while it is on and not absent."""
    away = {0: [(5, 20)], 1: [(0, 30), (40, 41)]}
    plain = ft.FixedTimes([1, 2, 3])
    chain, both = plain.available(on=4, off=3), plain.available(on=4, off=3, absences=away)

    known = {times.availability.absences[0]: moments(times, 60) for times in (chain, both)}

    def there(times: ft.ClientTimes, client: int, moment: Fraction) -> bool:
        first, changes = known[times.availability.absences[0]]
        here = client in first
        for when, joins, who in changes:
            if who == client and when <= moment:
                here = joins
        return here

    for client in range(3):
        for k in range(120):
            moment = Fraction(k, 2) + Fraction(1, 7)
            absent = any(begin <= moment < end for begin, end in away.get(client, ()))
            assert there(both, client, moment) == (there(chain, client, moment) and not absent)


def test_a_lost_jobs_number_is_not_used_again() -> None:
    times = ft.FixedTimes([1, 1]).available(failure=[0.5, 0])
    line = ft.timeline(ft.AsyncFedAvg(), times, until=200)
    mine = line.job[line.client == 0]
    fails = Failures(times.availability.failure, 0)
    assert mine.tolist() == [job for job in range(200) if not fails(0, job)]


def test_what_clients_had_stays_unless_it_is_named() -> None:
    plain = ft.FixedTimes.spread(clients=20, slowdown=80)
    times = plain.available(failure=0.1).available(on=10, off=5).available(absences={7: [(25, None)]})
    assert times.availability.failure == (Fraction(1, 10),) * 20
    assert times.availability.on == (Fraction(10),) * 20
    assert times.availability.absences[7] == ((Fraction(25), None),)
    assert times.always is plain
    assert times.random
    assert not plain.available(absences={7: [(25, None)]}).random
    assert times.available(failure=0.2).availability.failure[3] == Fraction(1, 5)
    assert times.available(failure=0.2) != times
    assert times.available() == times
    assert hash(times.available()) == hash(times)
    assert plain.available(failure=0) is plain
    assert times.law != times.available(failure=0.2).law  # results of the one are not those of the other
    assert plain.available(on=[10] * 20, off=5) == plain.available(on=10, off=5)


def test_the_clock_stays_exact() -> None:
    times = ft.FixedTimes([1, 2]).available(absences={0: [("1/3", "5/7")]})
    assert times.unit == Fraction(1, 21)
    assert ft.FixedTimes([1, 2]).available(failure=0.5).unit == 1
    fine = ft.FixedTimes([1, 2]).available(on=10, off=5)
    assert Fraction(5) / fine.unit >= 10**6  # rounding up moves no mean by more than a millionth
    assert (1 / fine.unit).denominator == 1
    line = ft.timeline(ft.FedFix("1/3"), fine, until=10)
    assert [r.end for r in line.rounds] == [Fraction(k, 3) for k in range(1, 31)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"failure": 1}, "every job would fail"),
        ({"failure": -0.1}, "it is a probability"),
        ({"failure": [0.1, 0.2]}, "2 values for 3 clients"),
        ({"failure": "often"}, "not a number"),
        ({"on": 10}, "with off="),
        ({"off": 10}, "with on="),
        ({"on": -1, "off": 3}, "client 0 is there: -1 is not above zero"),
        ({"on": 3, "off": [1, 2, 0]}, "client 2 is away: 0 is not above zero"),
        ({"absences": {3: [(0, 1)]}}, "no client 3"),
        ({"absences": {"x": [(0, 1)]}}, "not the number of a client"),
        ({"absences": {0: [(3, 8), (5, 9)]}}, "overlaps the next, which begins at 5"),
        ({"absences": {0: [(3, None), (5, 9)]}}, "overlaps the next, which begins at 5"),
        ({"absences": {0: [(3, 3)]}}, "ends before it begins"),
        ({"absences": {0: [(-3, 3)]}}, "before time 0"),
        ({"absences": {0: [(1, 2, 3)]}}, r"not \(begin, end\)"),
        ({"absences": {0: (1, 2)}}, r"not \(begin, end\)"),
        ({"absences": [(0, 3)]}, "not a dict by client"),
        ({"absences": {0: [(0, None)]}}, "never available"),
        ({"absences": {0: [(0, 24)]}, "period": 24}, "never available"),
        ({"absences": {0: [(22, 6)]}, "period": 24}, r"give \(22, 24\) and \(0, 6\)"),
        ({"absences": {0: [(20, 30)]}, "period": 24}, "the period ends at 24"),
        ({"absences": {0: [(20, None)]}, "period": 24}, "never ends"),
        ({"period": 24}, "give absences="),
        ({"absences": {0: [(1, 2)]}, "period": 0}, "not above zero"),
    ],
)
def test_what_cannot_work_is_refused(given, said) -> None:
    with pytest.raises(InputError, match=said):
        ft.FixedTimes([1, 2, 3]).available(**given)


def test_absences_from_a_file(tmp_path) -> None:
    file = tmp_path / "away.csv"
    file.write_text("client,leaves,returns\n1,40,60\n1,0,12\n2,25,\n")
    times = ft.FixedTimes([1, 2, 3])
    assert times.available(absences=file) == times.available(absences={1: [(0, 12), (40, 60)], 2: [(25, None)]})
    named = ft.TraceTimes([[1], [2], [3]], names=["a", "b", "c"])
    file.write_text("client,leaves,returns\nb,0,12\n")
    assert named.available(absences=str(file)).availability.absences[1] == ((0, 12),)
    with pytest.raises(DataMissing, match="no such absences file"):
        times.available(absences=tmp_path / "none.csv")
    file.write_text("client,begin\n1,4\n")
    with pytest.raises(InputError, match="columns client, leaves and returns"):
        times.available(absences=file)


def test_stretches_in_which_the_same_clients_are_there() -> None:
    times = ft.FixedTimes([1, 2, 3]).available(absences={0: [(0, 12), (40, 60)], 2: [(25, None)]}, failure=0.1)
    assert [(s.begin, s.clients) for s in times.availability.stretches] == [
        (0, (1, 2)),
        (12, (0, 1, 2)),
        (25, (0, 1)),
        (40, (1,)),
        (60, (0, 1)),
    ]
    assert times.only((0, 1)) == ft.FixedTimes([1, 2]).available(failure=0.1)
    assert times.available(failure=0).only((0, 1)) == ft.FixedTimes([1, 2])


@pytest.mark.parametrize(
    "times",
    [
        ft.FixedTimes([1, 2, 3]),
        ft.ExponentialTimes([1, 2, 3]),
        ft.LogNormalTimes([1, 2, 3], sigma=[0.1, 0.2, 0.3]),
        ft.UniformTimes([1, 2, 3], [2, 3, 4]),
        ft.TraceTimes([[1, 2], [2], [3, 4]]),
    ],
    ids=lambda times: times.law,
)
def test_the_times_of_some_clients_are_those_they_had(times) -> None:
    some = times.only([2, 0])
    assert type(some) is type(times)
    assert some.mean_time.tolist() == times.mean_time[[2, 0]].tolist()
    assert some.survival(1.7).tolist() == times.survival(1.7)[[2, 0]].tolist()
    assert some.unit % times.unit == 0
