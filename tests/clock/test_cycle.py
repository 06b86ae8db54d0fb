"""The limit cycle, against a rival that remembers every state."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import observe
from fedtempo.clock.generate import Recording, full_timeline
from fedtempo.clock.importance import Importance


def remembered(scheme: ft.Scheme, times, limit: int = 20_000) -> tuple[int, int] | None:
    """(start, length) by keeping the full state before every round in a dictionary."""
    line = ft.timeline(scheme, times, rounds=limit)
    period = times.job_period
    sent, base, job = ([Fraction(0)] * line.num_clients, [0] * line.num_clients, [0] * line.num_clients)
    seen: dict[object, int] = {}
    for closed in line.rounds:
        state = tuple(
            (closed.start - sent[i], closed.number - base[i], job[i] % int(period[i])) for i in range(line.num_clients)
        )
        if state in seen:
            return seen[state], closed.number - seen[state]
        seen[state] = closed.number
        for i in closed.participants:
            sent[i], base[i], job[i] = closed.end, closed.number + 1, job[i] + 1
    return None


@pytest.mark.parametrize("case", range(60))
def test_start_length_and_participation_are_the_rivals(case: int) -> None:
    draw = random.Random(f"cycle {case}")
    clients = draw.randint(1, 5)
    if case % 3:
        times = ft.FixedTimes([Fraction(draw.randint(1, 6), draw.choice([1, 1, 2])) for _ in range(clients)])
    else:
        times = ft.TraceTimes([[draw.randint(1, 4) for _ in range(draw.randint(1, 3))] for _ in range(clients)])
    schemes = [
        ft.FedAvg(),
        ft.AsyncFedAvg(),
        ft.FedFix(Fraction(draw.randint(1, 5), draw.randint(1, 3))),
        ft.FedBuff(draw.randint(1, clients)),
        ft.StagedFedFix([("1/2", draw.randint(1, 9)), (draw.randint(1, 3), None)]),
    ]
    for scheme in schemes[:-1]:
        expected = remembered(scheme, times)
        found = ft.limit_cycle(scheme, times, max_rounds=20_000)
        assert expected is not None
        assert found is not None, (scheme, times)
        assert (found.start, found.length) == expected, (scheme, times)
        line = ft.timeline(scheme, times, rounds=found.start + 2 * found.length)
        for part in (line[found.start : found.start + found.length], line[found.start + found.length :]):
            assert part.participation_counts.tolist() == found.counts.tolist()
            assert part.duration == found.duration
        assert found.participation == tuple(Fraction(int(c), found.length) for c in found.counts)
    staged = ft.limit_cycle(schemes[-1], times, max_rounds=3000)
    assert staged is not None
    first_of_last = schemes[-1].stages[0][1]
    assert staged.start >= first_of_last


def test_fedbuff_locks_into_a_cycle_of_twelve_rounds() -> None:
    times = ft.FixedTimes.spread(clients=10, slowdown=80)
    cycle = ft.limit_cycle(ft.FedBuff(5), times)
    assert cycle is not None
    assert cycle.length == 12
    assert cycle.counts.tolist() == [3, 3, 4, 4, 4, 6, 6, 6, 12, 12]
    by_speed = 1 / times.mean_time
    assert not np.allclose(cycle.counts / cycle.counts.sum(), by_speed / by_speed.sum(), rtol=0.05)


@pytest.mark.parametrize("case", range(40))
def test_closed_windows_are_cycle_lengths(case: int) -> None:
    draw = random.Random(f"window {case}")
    times = ft.FixedTimes([draw.randint(1, 7) for _ in range(draw.randint(1, 5))])
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(Fraction(draw.randint(1, 7), draw.randint(1, 2)))):
        cycle = ft.limit_cycle(scheme, times, max_rounds=20_000)
        assert cycle is not None
        assert scheme.waiting.closed_form(times, Importance(None, times.num_clients)).window == cycle.length, (
            scheme,
            times,
        )


def test_random_times_have_no_cycle_and_a_limit_is_kept() -> None:
    assert ft.limit_cycle(ft.AsyncFedAvg(), ft.ExponentialTimes([1, 2]), max_rounds=5000) is None
    assert ft.limit_cycle(ft.UniformSampling(1), ft.FixedTimes([1, 2]), max_rounds=5000) is None
    assert ft.limit_cycle(ft.AsyncFedAvg(), ft.FixedTimes.spread(10, 80), max_rounds=5000) is None


def test_a_hash_that_collides_does_not_make_a_cycle(monkeypatch) -> None:
    """With all hash weights equal many states collide; the exact check must throw those out."""
    from fedtempo.clock import cycle as module

    original = module._States.__init__

    def weak(self, config) -> None:
        original(self, config)
        for name in ("_age", "_lag", "_place"):
            setattr(self, name, np.zeros(config.num_clients, dtype=np.uint64))

    monkeypatch.setattr(module._States, "__init__", weak)
    config = ClockConfig.of(ft.AsyncFedAvg().waiting, ft.FixedTimes([5, 4, 3]))
    assert observe(Recording(config), max_rounds=2000).cycle is None


def test_a_recording_read_twice_and_beyond_its_memory_is_the_same() -> None:
    config = ClockConfig.of(ft.FedBuff(3).waiting, ft.FixedTimes.spread(7, 80))
    record = Recording(config, keep=5000)
    line = full_timeline(config, max_rounds=6000)
    for count in (10, 6000, 2500, 6000):
        assert ft.Timeline.joined(record.rounds(count)).equals(line[:count])
