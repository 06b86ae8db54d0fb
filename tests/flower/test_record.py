"""What really happened, in the simulator's format: it replays, it plans, it comes from a result or from a folder."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import DataMissing, InputError
from fedtempo.flower import AsyncFedAvg, FedFix, Result, recorded, replay
from fedtempo.simulation.engine.oracle import oracle
from support.flower_fake import FakeGrid, ProblemClients, on, record_of, shifting

PROBLEM = ft.problems.quadratics(3, dimension=4, noise=0.5, rows=[6, 9, 12], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
TIMES = ft.FixedTimes(["1.0004", "0.7", "2.25"])
HYPER = {"local_lr": 0.1, "local_steps": 2, "batch_size": 4, "server_lr": 0.5}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    grid = clients.grid()
    strategy = FedFix(0.8, **on(grid, server_lr=0.5, checkpoint=folder, clip_norm=0.2))
    return strategy.start(grid, clients.initial, num_rounds=15), folder


def test_the_folder_and_the_result_tell_the_same(run) -> None:
    result, folder = run
    one, other = recorded(result), recorded(folder)
    assert one.timeline.equals(other.timeline)
    assert one.scheme == other.scheme == ft.FedFix("0.8")
    assert one.names == other.names == ("node 100", "node 101", "node 102")
    assert one.importance == other.importance == pytest.approx(PROBLEM.importance.values)
    assert one.times == other.times
    assert one.events == other.events
    np.testing.assert_array_equal(one.weights.values, other.weights.values)


def test_times_are_the_durations_in_whole_milliseconds_rounded_up(run) -> None:
    record = recorded(run[0])
    assert record.times.names == record.names
    assert record.times.exact_mean_time == (Fraction(1001, 1000), Fraction(7, 10), Fraction(9, 4))
    assert ft.compare(record.times) is not None, "the plan of a federation can be made from a run"


def test_the_oracle_takes_the_recorded_weights_as_they_are(run) -> None:
    """Clipping is part of them: a shortened contribution is one with a smaller weight."""
    result, _ = run
    record = recorded(result)
    assert {update.clipped for closed in result.rounds for update in closed.updates} != {1.0}
    *_, last = oracle(PROBLEM, record.timeline, record.weights, LOCAL, HYPER)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), last.model, rtol=1e-12)
    np.testing.assert_allclose(replay(PROBLEM, record, LOCAL), last.model, rtol=1e-12)
    part = record.timeline[3:9]
    begin, end = record.timeline.offsets[[3, 9]]
    np.testing.assert_array_equal(record.weights.applied(part), record.weights.values[begin:end])
    with pytest.raises(InputError, match="belong to the recorded timeline"):
        record.weights.applied(ft.timeline(ft.FedFix("0.8"), TIMES, rounds=50))


def test_clients_are_numbered_as_the_problem_numbers_them() -> None:
    """Node ids are drawn at random: the names that clients give are what the problem knows them by."""
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    grid = FakeGrid()
    for node, client in ((100, 2), (200, 0), (300, 1)):
        grid.connect(node, naming(clients.behave(client), client))
    strategy = AsyncFedAvg(**on(grid, identity_key="partition-id"))
    result = strategy.start(grid, clients.initial, num_rounds=20)
    record = recorded(result)
    assert record.names == ("2", "0", "1")
    np.testing.assert_allclose(result.arrays["theta"].numpy(), replay(PROBLEM, record, LOCAL), rtol=1e-12)
    same = replay(PROBLEM, record, LOCAL, clients={"2": 2, "0": 0, "1": 1})
    np.testing.assert_allclose(result.arrays["theta"].numpy(), same, rtol=1e-12)
    other = replay(PROBLEM, record, LOCAL, clients={"2": 0, "0": 1, "1": 2})
    assert np.abs(np.asarray(other) - result.arrays["theta"].numpy()).max() > 1e-6
    with pytest.raises(InputError, match="1 took part but have no number"):
        replay(PROBLEM, record, LOCAL, clients={"2": 2, "0": 0})
    with pytest.raises(InputError, match="have the same number"):
        replay(PROBLEM, record, LOCAL, clients={"2": 2, "0": 0, "1": 0})
    with pytest.raises(InputError, match="the problem has 3"):
        replay(PROBLEM, record, LOCAL, clients={"2": 2, "0": 0, "1": 7})


def naming(behave, client):
    def named(message):
        [(delay, reply)] = behave(message)
        reply.content["metrics"]["partition-id"] = client
        return [(delay, reply)]

    return named


def test_a_run_in_which_nothing_happened_has_no_record(tmp_path) -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 50))
    result = AsyncFedAvg(**on(grid)).start(grid, record_of({"w": np.zeros(1)}), until=3)
    with pytest.raises(InputError, match="no round took an update"):
        recorded(result)
    with pytest.raises(InputError, match="has no journal"):
        recorded(Result())
    with pytest.raises(DataMissing, match="no run is saved there"):
        recorded(tmp_path)


def test_numbers_that_were_never_clients_have_no_importance() -> None:
    """A client that comes back under a new node has two numbers until it says its name."""
    for importance in (None, {"1": 1, "2": 4}):
        grid = FakeGrid()
        grid.connect(1, shifting(1, 1, 30, id=1))
        grid.connect(2, shifting(1, 2, 10, id=2))
        grid.at(6.5, lambda grid=grid: (grid.disconnect(2), grid.connect(9, shifting(1, 2, 10, id=2))))
        strategy = AsyncFedAvg(**on(grid, identity_key="id", importance=importance))
        record = recorded(strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=60))
        assert record.names[:2] == ("1", "2")
        assert len(record.names) == 3
        assert record.importance == pytest.approx((0.75, 0.25, 0) if importance is None else (0.2, 0.8, 0))
