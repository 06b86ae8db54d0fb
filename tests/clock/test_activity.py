"""What clients that come, go and fail did: the same as the timeline says, and nothing during an absence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.activity import ARRIVED, FAILED, LOST, RUNNING, activity_of
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline

SCHEMES = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(3), ft.UniformSampling(3)]
TIMES = ft.FixedTimes.spread(6, 80).available(failure="1/5", on=4, off=2, absences={1: [(0, 2), (5, 6)]})


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_rounds_have_taken_is_what_the_timeline_lists(scheme) -> None:
    config = ClockConfig.of(scheme.waiting, TIMES, seed=3)
    line = full_timeline(config, until=12)
    found = activity_of(config, int(12 / config.unit))
    taken = found.delay >= 0
    ends = line.ends[line.round_of_update]
    sent = np.concatenate([[0], line.ends])[line.base]
    seen = sorted(zip(found.taken[taken], found.client[taken], found.delay[taken], strict=True))
    assert seen == sorted(zip(ends, line.client, line.staleness, strict=True))
    assert (found.outcome[taken] == ARRIVED).all()
    assert (np.sort(found.sent[taken]) >= np.sort(sent)).all()  # a version may go out after it was made
    assert {FAILED, LOST} <= set(found.outcome.tolist())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_nobody_works_while_away_and_nobody_has_two_jobs(scheme) -> None:
    config = ClockConfig.of(scheme.waiting, TIMES, seed=3)
    last = int(12 / config.unit)
    found = activity_of(config, last)
    for client in range(6):
        mine, away = found.client == client, found.absences[found.absences[:, 0] == client][:, 1:]
        spans = [*zip(found.sent[mine], found.back[mine], strict=True), *away.tolist()]
        spans = sorted((int(a), int(b)) for a, b in spans if b > a)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert spans[-1][1] <= last
    begin, end = 5 / config.unit, 6 / config.unit
    assert any(c == 1 and a <= begin and b >= end for c, a, b in found.absences.tolist())
    assert (found.back[found.outcome == RUNNING] == last).all()


def test_who_is_away_when_the_server_starts_is_away_until_it_joins() -> None:
    times = ft.FixedTimes([1, 1]).available(absences={0: [(0, 2)], 1: [(0, 3)]})
    config = ClockConfig.of(ft.AsyncFedAvg().waiting, times)
    found = activity_of(config, int(6 / config.unit))
    assert sorted(map(tuple, found.absences.tolist())) == [
        (0, 0, int(2 / config.unit)),
        (1, 0, int(3 / config.unit)),
    ]
    assert found.sent.min() == int(2 / config.unit)
