"""Robust rules on Flower: the simulator's model, a crash forgets nothing, the record replays, the hostile lose."""

from __future__ import annotations

import contextlib
import json
import logging

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedBuff, FedFix, TimedStrategy, recorded, replay
from fedtempo.flower.record import scheme_of
from fedtempo.flower.state import RunFolder
from fedtempo.flower.versions import RuleOnArrays, Step, Versions
from fedtempo.schemes.options import SchemeOptions
from fedtempo.simulation.engine.oracle import oracle
from support.flower_fake import SECOND, Crashes, FakeGrid, Killed, ProblemClients, answer, arrays_of, on, record_of

CLIENTS = 7
PROBLEM = ft.problems.quadratics(
    CLIENTS, dimension=5, noise=0.5, rows=[6, 9, 12, 5, 7, 8, 4], seed=1, importance="rows"
)
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
SECONDS = ["1", "0.7", "0.5", "2.25", "0.8", "1.1", "0.6"]
TIMES = ft.FixedTimes(SECONDS)
SCHEMES = {
    "fedfix": (ft.FedFix("0.6"), lambda **o: FedFix(0.6, **o)),
    "async": (ft.AsyncFedAvg(), lambda **o: AsyncFedAvg(**o)),
    "fedbuff": (ft.FedBuff(3), lambda **o: FedBuff(3, **o)),
}
RULES = {
    "median": ft.CoordinateMedian(CLIENTS),
    "trimmed-mean": ft.TrimmedMean(5),
    "krum": ft.Krum(CLIENTS),
    "norm-clipping": ft.NormClipping(CLIENTS),
}


def by_name(values) -> dict:
    return {f"node {100 + i}": value for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("scheme", "server", "given"),
    [
        ("async", "median", True),
        ("fedfix", "trimmed-mean", True),
        ("fedbuff", "krum", False),
        ("async", "norm-clipping", False),
    ],
)
def test_the_model_is_the_simulators(scheme, server, given) -> None:
    """By the simulator's own timeline and weights where times are given, and by the record's."""
    (wanted, strategy), rule = SCHEMES[scheme], RULES[server]
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    grid = clients.grid()
    options = {"times": by_name(SECONDS), "importance": by_name(PROBLEM.importance.values.tolist())} if given else {}
    result = strategy(**on(grid, server=rule, server_lr=0.3, **options)).start(grid, clients.initial, num_rounds=16)
    found = result.arrays["theta"].numpy()
    if given:
        line = ft.timeline(wanted, TIMES, rounds=len(result.rounds))
        weights = ft.weights(wanted, TIMES, importance=PROBLEM.importance.values.tolist(), step="stable")
        hyper = {"local_lr": 0.1, "local_steps": 2, "batch_size": 4, "server_lr": 0.3}
        *_, last = oracle(PROBLEM, line, weights, LOCAL, hyper, options=SchemeOptions(server=rule))
        *_, plain = oracle(PROBLEM, line, weights, LOCAL, hyper)
        np.testing.assert_allclose(found, last.model, rtol=1e-10, atol=1e-12)
        assert np.abs(found - np.asarray(plain.model)).max() > 1e-4, "a weighted sum would be another model"
    record = recorded(result)
    assert record.scheme == wanted.using(server=rule)
    np.testing.assert_allclose(found, replay(PROBLEM, record, LOCAL), rtol=1e-12, atol=1e-12)


def test_a_replay_by_other_numbers_is_refused() -> None:
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    grid = clients.grid()
    strategy = FedBuff(3, **on(grid, server=RULES["median"], server_lr=0.3))
    record = recorded(strategy.start(grid, clients.initial, num_rounds=6))
    with pytest.raises(InputError, match=r"CoordinateMedian\(7\) depends on the order of a round's updates"):
        replay(PROBLEM, record, LOCAL, clients={name: CLIENTS - 1 - i for i, name in enumerate(record.names)})


# -- killed and started again

FIRST = {"w": np.full(3, 5.0), "n": np.zeros(2, dtype=np.int32), "half": np.ones(2, dtype=np.float16)}


def halfway(aim: float, seconds: float, hostile: float | None = None):
    """A client that goes half of the way to its aim, or one that sends that times `hostile`."""

    def behave(message):
        arrays = arrays_of(message)
        moved = {name: array.copy() for name, array in arrays.items()}
        moved["w"] = arrays["w"] + (0.5 if hostile is None else 0.5 * hostile) * (aim - arrays["w"])
        return [(int(seconds * SECOND), answer(message, moved, {"num-examples": 10}))]

    return behave


@pytest.mark.parametrize("server", ["median", "krum"])
def test_a_killed_run_comes_to_the_same_bits(server, tmp_path, monkeypatch, caplog) -> None:
    """All clients answer within a wait, so that what is sent again after a crash is what was out."""
    caplog.set_level(logging.CRITICAL, "flwr")
    seconds = [1, 0.7, 1.2, 0.9, 1.1]

    def start(folder, grid):
        rule = type(RULES[server])(5)
        options = on(grid, server=rule, server_lr=0.5, checkpoint=folder, times=by_name(map(str, seconds)))
        return FedFix(1.3, **options).start(grid, record_of(FIRST), num_rounds=5, resume=True)

    def world() -> FakeGrid:
        grid = FakeGrid()
        for node, time in enumerate(seconds):
            grid.connect(100 + node, halfway(float(node), time))
        return grid

    crashes = Crashes(monkeypatch)
    whole = start(tmp_path / "whole", world())
    memory = RunFolder(tmp_path / "whole").read()[0]["memory"]
    shapes = [part.shape for part in memory]
    assert {(5, 2), (5, 3)} <= set(shapes), "as many models as clients are kept"
    assert document(tmp_path / "whole")["format"] == 2
    between = 0
    for moment in range(1, crashes.count + 1, 5):
        folder = tmp_path / str(moment)
        crashes.count, crashes.at = 0, moment
        with contextlib.suppress(Killed):
            start(folder, world())
        crashes.at = None
        between += (folder / "state.npz").exists()
        result = start(folder, world())
        assert result.arrays == whole.arrays, "bit by bit"
        for one, other in zip(RunFolder(folder).read()[0]["memory"], memory, strict=True):
            np.testing.assert_array_equal(one, other)
    assert between > 3


def document(folder) -> dict:
    with np.load(folder / "state.npz", allow_pickle=False) as saved:
        return json.loads(saved["document"].tobytes())


def test_a_run_that_is_killed_again_and_again_replays(tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level(logging.CRITICAL, "flwr")
    crashes, lives, result = Crashes(monkeypatch), 0, None
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    while result is None:
        lives += 1
        crashes.count, crashes.at = 0, 41
        grid = clients.grid()
        with contextlib.suppress(Killed):
            strategy = AsyncFedAvg(**on(grid, server=RULES["trimmed-mean"], server_lr=0.3, checkpoint=tmp_path))
            result = strategy.start(grid, clients.initial, num_rounds=16, resume=True)
    crashes.at = None
    assert lives > 2
    record = recorded(tmp_path)
    assert record.scheme == ft.AsyncFedAvg().using(server=RULES["trimmed-mean"])
    np.testing.assert_allclose(result.arrays["theta"].numpy(), replay(PROBLEM, record, LOCAL), rtol=1e-10)


# -- the hostile


@pytest.mark.parametrize("server", [None, *RULES])
def test_a_fifth_that_is_hostile_does_not_decide(server) -> None:
    """Ten clients that want 0.5 to 1.5, two of them, the fastest, pull away from it ten times as hard."""
    aims, seconds = np.linspace(0.5, 1.5, 10), 0.3 + 0.1 * np.arange(10)
    grid = FakeGrid()
    for node in range(10):
        grid.connect(100 + node, halfway(aims[node], round(seconds[node], 1), -10 if node < 2 else None))
    rule = None if server is None else type(RULES[server])(10)
    strategy = AsyncFedAvg(**on(grid, server=rule, norm_limit=None, guard=None))
    result = strategy.start(grid, record_of({"w": np.zeros(4)}), num_rounds=250)
    found = result.arrays["w"].numpy()
    if server is None:
        assert np.abs(found).max() > 1e3, "they take the weighted sum wherever they want"
    else:
        assert np.abs(found - aims[2:].mean()).max() < (1.0 if server == "norm-clipping" else 0.3)


def test_a_hostile_client_cannot_spoil_the_memory() -> None:
    """Its contribution is finite, but no distance to it is: it is left out, and nothing of it is kept."""
    arrays = {"w": np.zeros(2, dtype=np.float32)}
    rule = RuleOnArrays(ft.Krum(5), 1.0, arrays)
    versions = Versions(arrays, rule=rule)

    def step(client, value):
        return Step(0.2, {"w": np.full(2, value, dtype=np.float32)}, abs(value), 0.2, client=client, share=3.0)

    assert versions.advance([*(step(i, 1.0) for i in range(4)), step(4, 1e30)]) == [4]
    assert versions.advance([step(4, 1.0)]) == []
    np.testing.assert_allclose(versions.arrays["w"], 1.0, rtol=1e-6)


# -- arguments


def test_how_many_models_are_kept_must_be_said() -> None:
    says = (
        "on Flower the number of clients is not known ahead; give last=, ideally the number of clients and at least 5"
    )
    for make in (
        lambda: FedFix(1, server=ft.CoordinateMedian()),
        lambda: TimedStrategy(ft.FedFix(1).using(server=ft.Krum())),
    ):
        with pytest.raises(InputError, match=says):
            make()
    scheme = FedFix(1, server=ft.CoordinateMedian(8)).scheme
    assert scheme_of(json.loads(json.dumps(scheme.spec()))) == scheme


def test_too_few_clients_are_told(caplog) -> None:
    def start(clients):
        caplog.clear()
        grid = FakeGrid()
        for node in range(clients):
            grid.connect(100 + node, halfway(1.0, 0.5))
        with caplog.at_level(logging.WARNING, "flwr"):
            strategy = FedFix(1, **on(grid, server=ft.CoordinateMedian(12)))
            return strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=3).arrays["w"].numpy()

    assert start(4).tolist() == [0, 0]
    assert "CoordinateMedian(12) needs updates of 6 clients before its first step" in caplog.text
    assert "but 4 are connected" in caplog.text
    assert start(6).min() > 0
    assert "before its first step" not in caplog.text
