"""Flower is one more carrier: on the fake Grid the rounds are the simulator's, and the models are the oracle's."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded, replay
from flower_fake import ProblemClients, on

PROBLEM = ft.problems.quadratics(4, dimension=6, noise=0.5, rows=[6, 9, 12, 5], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
TIMES = {
    "fixed": ft.FixedTimes(["1", "0.7", "0.5", "2.25"]),
    "exponential": ft.ExponentialTimes(["1", "0.7", "0.5", "2.25"], resolution="0.001"),
    "trace": ft.TraceTimes([["1", "0.5"], ["0.7"], ["0.25", "2", "0.75"], ["2.25", "3.5"]]),
}
SCHEMES = {
    "fedavg": (ft.FedAvg(), lambda **o: FedAvg(**o)),
    "async": (ft.AsyncFedAvg(), lambda **o: AsyncFedAvg(**o)),
    "fedfix": (ft.FedFix("0.6"), lambda **o: FedFix(0.6, **o)),
    "fedfix-long": (ft.FedFix("2"), lambda **o: FedFix(2, **o)),
    "fedbuff": (ft.FedBuff(3), lambda **o: FedBuff(3, **o)),
}


def exact(line: ft.Timeline):
    jobs = iter(line.job.tolist())
    return [
        (r.number, r.end, r.participants, r.base_versions, tuple(next(jobs) for _ in r.participants))
        for r in line.rounds
    ]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_recorded_rounds_are_the_simulators_and_the_model_is_the_oracles(scheme, times) -> None:
    wanted, strategy = SCHEMES[scheme]
    clients = ProblemClients(PROBLEM, LOCAL, TIMES[times], seed=3)
    grid = clients.grid()
    result = strategy(**on(grid, server_lr=0.9)).start(grid, clients.initial, num_rounds=20)
    record = recorded(result)
    assert exact(record.timeline) == exact(ft.timeline(wanted, TIMES[times], rounds=len(result.rounds), seed=3))
    assert exact(record.retold()) == exact(record.timeline)
    assert len(result.rounds) >= 20
    assert result.rounds[-1].server_round == 20
    model = replay(PROBLEM, record, LOCAL, seed=3)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), model, rtol=1e-12, atol=1e-14)
    assert not result.errors
    assert record.scheme == wanted


@pytest.mark.parametrize("scheme", SCHEMES)
def test_given_times_give_the_simulators_weights(scheme) -> None:
    wanted, strategy = SCHEMES[scheme]
    times = TIMES["fixed"]
    clients = ProblemClients(PROBLEM, LOCAL, times)
    grid = clients.grid()
    given = {f"node {100 + i}": t for i, t in enumerate(["1", "0.7", "0.5", "2.25"])}
    importance = {f"node {100 + i}": float(p) for i, p in enumerate(PROBLEM.importance.values)}
    result = strategy(**on(grid, times=given, importance=importance)).start(grid, clients.initial, num_rounds=12)
    record = recorded(result)
    weights = ft.weights(wanted, times, importance=PROBLEM.importance.values.tolist())
    np.testing.assert_allclose(record.weights.applied(record.timeline), weights.applied(record.timeline), rtol=1e-12)
    assert record.importance == pytest.approx(PROBLEM.importance.values)


@pytest.mark.parametrize("scheme", ["fedavg", "async", "fedfix", "fedbuff"])
def test_estimated_weights_come_to_the_simulators(scheme) -> None:
    """With fixed times what is estimated is what the closed forms say, once every client has answered."""
    wanted, strategy = SCHEMES[scheme]
    times = TIMES["fixed"]
    clients = ProblemClients(PROBLEM, LOCAL, times)
    grid = clients.grid()
    result = strategy(**on(grid)).start(grid, clients.initial, num_rounds=150)
    record = recorded(result)
    weights = ft.weights(wanted, times, importance=PROBLEM.importance.values.tolist())
    used, meant = record.weights.applied(record.timeline), weights.applied(record.timeline)
    rough = 0.12 if scheme == "fedbuff" else 1e-12  # FedBuff's limit cycle is longer than the memory
    np.testing.assert_allclose(used[-20:], meant[-20:], rtol=rough)
