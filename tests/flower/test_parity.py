"""Flower is one more carrier: on the fake Grid the rounds are the simulator's, and the models are the oracle's."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded, replay
from support.flower_fake import (
    SECOND,
    FakeGrid,
    ProblemClients,
    VirtualClock,
    answer,
    arrays_of,
    failure,
    on,
    record_of,
    shifting,
)

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
    assert exact(record.replay_events()) == exact(record.timeline)
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


# -- over many rounds every client counts by its importance: Σ_n ω_i(n) = p_i · rounds

LONG_RUN = {
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(10, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


def working(rng, *, slow=0.0, fails=0.0, seconds=13):
    """A client that takes ten times as long for a share of its jobs, and fails in a share of them."""

    def behave(message):
        lasts = seconds * (10 if rng.random() < slow else 1) * SECOND
        if rng.random() < fails:
            return [(lasts, failure(message))]
        return [(lasts, answer(message, arrays_of(message), {"num-examples": 10}))]

    return behave


def counted(strategy, clients, rounds, *, grid=None, skip=0.2, **options):
    """Σ ω_i(n) a round, by client, after the first rounds."""
    grid = grid or FakeGrid()
    for node, behave in enumerate(clients):
        grid.connect(node, behave)
    result = strategy(**on(grid, **options)).start(grid, record_of({"w": np.zeros(1)}), num_rounds=rounds)
    closed = result.rounds[int(len(result.rounds) * skip) :]
    total = np.zeros(len(clients))
    for each in closed:
        for update in each.updates:
            total[update.client] += update.weight
    return total / len(closed)


@pytest.mark.parametrize("scheme", LONG_RUN)
def test_a_client_with_two_speeds_counts_by_its_importance(scheme) -> None:
    rng = np.random.default_rng(0)
    clients = [working(rng, seconds=6), working(rng, seconds=6), working(rng, seconds=6, slow=0.2)]
    found = counted(LONG_RUN[scheme], clients, 4000 if scheme == "async" else 1500)
    np.testing.assert_allclose(found / found.sum(), 1 / 3, atol=0.02)


@pytest.mark.parametrize("scheme", LONG_RUN)
def test_a_client_that_fails_now_and_then_counts_by_its_importance(scheme) -> None:
    rng = np.random.default_rng(0)
    clients = [working(rng, seconds=6), working(rng), working(rng, fails=0.5)]
    found = counted(LONG_RUN[scheme], clients, 1500, max_failures=10**6)
    np.testing.assert_allclose(found / found.sum(), 1 / 3, atol=0.02)


@pytest.mark.parametrize("scheme", ["fedfix", "fedbuff"])
def test_tries_before_rests_count_too(scheme) -> None:
    """Importance is that of the clients that are there, so that it sums to 1 however often one of them rests."""
    rng = np.random.default_rng(0)
    clients = [working(rng, seconds=6), working(rng), working(rng, fails=0.5)]
    found = counted(LONG_RUN[scheme], clients, 1500, max_failures=3, retry_after=20)
    assert found.sum() == pytest.approx(1, abs=0.02)


def test_failures_before_a_client_left_do_not_count() -> None:
    """It was not there, and then it is another process."""
    grid = FakeGrid()
    grid.connect(1, shifting(0, 6))
    grid.connect(2, lambda message: [(5 * SECOND, failure(message))], b"key")
    grid.at(8, lambda: grid.disconnect(2))
    grid.at(100, lambda: grid.connect(3, shifting(0, 1), b"key"))
    result = FedFix(10, **on(grid)).start(grid, record_of({"w": np.zeros(1)}), num_rounds=16)
    weights = [update.weight for closed in result.rounds for update in closed.updates if update.client == 1]
    assert len(weights) > 2
    assert max(weights) <= 1, "half of two rounds at most"


def test_rounds_that_the_server_skips_do_not_count() -> None:
    """A push of 25 s in a wait of 10 s: each round is three intervals long, and every client is in every round."""
    grid = FakeGrid()
    grid.push_cost = 25 * SECOND
    found = counted(LONG_RUN["fedfix"], [shifting(0, 8), shifting(0, 13)], 60, grid=grid)
    assert found == pytest.approx([0.5, 0.5])


def test_a_wait_that_is_no_whole_number_of_nanoseconds_counts_as_the_simulators() -> None:
    grid = FakeGrid(VirtualClock(wakes=False))
    clients = [shifting(0, "0.2"), shifting(0, "0.3")]
    found = counted(lambda **o: FedFix("1/3", **o), clients, 60, grid=grid, poll=1)
    assert found == pytest.approx([0.5, 0.5])


def test_the_first_update_of_a_slow_client_counts_for_the_rounds_that_it_took() -> None:
    """In a short run too: in twelve rounds a client of 118 s is taken once, with the weight of twelve."""
    found = counted(LONG_RUN["fedfix"], [shifting(0, 6), shifting(0, 118)], 12, skip=0)
    assert found == pytest.approx([0.5, 0.5])


# -- numbers and names that clients and users give


@pytest.mark.parametrize("scheme", [*LONG_RUN, "fedavg"])
def test_large_numbers_of_examples_count_in_proportion(scheme) -> None:
    strategy = LONG_RUN.get(scheme, FedAvg)
    clients = [shifting(0, 2, 1.7e308), shifting(0, 3, 1.7e308), shifting(0, 5, 0.85e308)]
    found = counted(strategy, clients, 60)
    np.testing.assert_allclose(found, [0.4, 0.4, 0.2], atol=0.03)


@pytest.mark.parametrize("metric", [{"num-examples": 10**400}, {"id": 10**400}, {"work": 10**400}])
def test_whole_numbers_that_no_float_holds_are_refused(metric) -> None:
    def behave(message):
        return [(SECOND, answer(message, arrays_of(message), {"num-examples": 5, "id": 7, **metric}))]

    grid = FakeGrid()
    grid.connect(1, shifting(1, 1, id=3))
    grid.connect(2, behave)
    strategy = AsyncFedAvg(**on(grid, identity_key="id", work_key="work"))
    result = strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=5)
    [name] = metric
    refused = [fault for fault in result.errors if fault.kind == "refused"]
    assert refused
    assert {fault.client for fault in refused} == {1}
    assert f"'{name}' is a whole number of more than 64 bits" in refused[0].reason


@pytest.mark.parametrize("key", [None, "id"])
def test_names_that_nobody_has_are_said_once_when_all_have_answered(key, caplog) -> None:
    grid = FakeGrid()
    for node in (1, 2):
        grid.connect(node, shifting(0, 3 * node, id=node))
    first = "1" if key else "node 1"
    options = on(grid, identity_key=key, importance={first: 2, "bob": 1}, times={"alice": 3, first: 3})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        AsyncFedAvg(**options).start(grid, record_of({"w": np.zeros(1)}), num_rounds=20)
    said = [line for line in caplog.messages if "nobody is called" in line]
    names = "'1', '2'" if key else "'node 1', 'node 2'"
    assert [line.split(";")[0] for line in said] == [
        "importance: nobody is called 'bob'",
        "times: nobody is called 'alice'",
    ]
    assert all(f"the clients are {names}." in line for line in said)


def test_names_that_clients_have_are_not_said(caplog) -> None:
    grid = FakeGrid()
    for node in (1, 2):
        grid.connect(node, shifting(0, 3 * node, id=node))
    options = on(grid, identity_key="id", importance={"1": 2, "2": 1})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        AsyncFedAvg(**options).start(grid, record_of({"w": np.zeros(1)}), num_rounds=20)
    assert not [line for line in caplog.messages if "nobody" in line]
