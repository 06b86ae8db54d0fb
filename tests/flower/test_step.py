"""One changed line that is safe: at its defaults every scheme goes where FedAvg goes, and no delay shakes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded
from fedtempo.simulation.engine.oracle import oracle
from fedtempo.weighting.weight_rules import weight_rule
from support.flower_fake import SECOND, FakeGrid, ProblemClients, answer, arrays_of, on, record_of, shifting

START = {"w": np.zeros(2)}
STRATEGIES = {
    "fedavg": lambda **o: FedAvg(**o),
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(30, **o),
    "fedfix-short": lambda **o: FedFix(7, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


def pulling(aim: float, part: float, seconds: float, first: float | None = None):
    """A client that goes `part` of the way to its aim; its first answer takes as long as `first`."""
    answers = []

    def behave(message):
        lasts = first if first is not None and not answers else seconds
        answers.append(lasts)
        w = arrays_of(message)["w"]
        return [(int(lasts * SECOND), answer(message, {"w": w + part * (aim - w)}, {"num-examples": 10}))]

    return behave


def federation(*clients) -> FakeGrid:
    grid = FakeGrid()
    for node, behave in enumerate(clients):
        grid.connect(100 + node, behave)
    return grid


@pytest.mark.parametrize("part", [0.5, 1.0])
@pytest.mark.parametrize("slowest", [60, 240])
@pytest.mark.parametrize("scheme", STRATEGIES)
def test_clients_that_go_a_part_of_the_way_come_to_the_fixed_point(scheme, slowest, part) -> None:
    """With the raw step asynchronous training of the second kind came to −2e9."""
    seconds = [12, 17, 26, 40, slowest]
    grid = federation(*(pulling(3.0, part, lasts) for lasts in seconds))
    result = STRATEGIES[scheme](**on(grid, guard=None, norm_limit=None)).start(
        grid, record_of(START), num_rounds=10**6, until=20 * slowest
    )
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3.0, rtol=2e-2)


def test_the_raw_step_diverges_there() -> None:
    grid = federation(*(pulling(3.0, 0.5, 10 + node) for node in range(10)))
    raw = AsyncFedAvg(**on(grid, step="paper", guard=None, norm_limit=None))
    assert np.abs(raw.start(grid, record_of(START), num_rounds=400).arrays["w"].numpy()).max() > 1e3


@pytest.mark.parametrize("weights", ["time-based", "own-time"])
@pytest.mark.parametrize("scheme", ["async", "fedfix", "fedbuff"])
def test_one_late_first_answer(scheme, weights) -> None:
    """Wait 30, timeout 3600, as in the guide: 1 000 s once, then as prompt as the others; their aims differ."""
    grid = federation(pulling(1.0, 0.5, 20), pulling(2.0, 0.5, 25), pulling(3.0, 0.5, 22, first=1000))
    strategy = STRATEGIES[scheme](**on(grid, weights=weights))
    result = strategy.start(grid, record_of(START), num_rounds=10**6, timeout=3600, until=6000)
    found = result.arrays["w"].numpy()
    assert np.abs(found - 2).max() < 0.25, "asynchronous models move around the fixed point by what one update is"
    assert not result.errors
    late = [update.weight for closed in result.rounds for update in closed.updates if update.client == 2]
    assert late[0] < 0.4
    assert max(weight for closed in result.rounds for weight in closed.weights) <= 1
    if weights == "time-based":
        assert max(late) < 0.5, "what follows is not inflated"


def test_silent_nodes_count_for_nothing_when_they_are_late() -> None:
    """97 of 100 never answer: Σω was 0.03 for three time-outs."""
    grid = federation(*(pulling(2.0, 1.0, 20 + node) for node in range(3)))
    for node in range(3, 100):
        grid.connect(100 + node, lambda message: [])
    result = FedFix(30, **on(grid)).start(grid, record_of(START), num_rounds=10, timeout=3600)
    total = [sum(closed.weights) for closed in result.rounds]
    assert total[:3] == pytest.approx([0.03, 3 / 197, 3 / 294], rel=0.02)
    assert total[3:] == pytest.approx([1.0] * 7)


# -- the same rule on both sides

PROBLEM = ft.problems.quadratics(4, dimension=6, noise=0.5, rows=[6, 9, 12, 5], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
TIMES = ft.ExponentialTimes(["1", "0.7", "0.5", "2.25"], resolution="0.001")
SAME = {
    "async": (ft.AsyncFedAvg(), lambda **o: AsyncFedAvg(**o)),
    "fedfix": (ft.FedFix("0.6"), lambda **o: FedFix(0.6, **o)),
    "fedbuff": (ft.FedBuff(3), lambda **o: FedBuff(3, **o)),
}


@pytest.mark.parametrize("step", ["stable", "paper", "proven"])
@pytest.mark.parametrize("rule", ["measured", "own-time"])
@pytest.mark.parametrize("scheme", SAME)
def test_weights_and_model_are_the_simulators(scheme, rule, step) -> None:
    wanted, strategy = SAME[scheme]
    clients = ProblemClients(PROBLEM, LOCAL, TIMES, seed=3)
    grid = clients.grid()
    importance = PROBLEM.importance.values.tolist()
    made = weight_rule(rule)
    options = {"weights": made, "importance": {f"node {100 + i}": p for i, p in enumerate(importance)}}
    started = strategy(**on(grid, step=step, norm_limit=None, guard=None, **options))
    result = started.start(grid, clients.initial, num_rounds=40)
    record = recorded(result)
    line = ft.timeline(wanted, TIMES, rounds=len(result.rounds), seed=3)
    weights = ft.weights(wanted, TIMES, importance=importance, rule=made, step=step)
    np.testing.assert_allclose(record.weights.applied(record.timeline), weights.applied(line), rtol=1e-9)
    hyper = {"local_lr": 0.1, "local_steps": 2, "batch_size": 4, "server_lr": 1.0}
    *_, last = oracle(PROBLEM, line, weights, LOCAL, hyper, seed=3)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), last.model, rtol=1e-8, atol=1e-10)


def test_the_step_is_measured_recorded_and_moves_smoothly(tmp_path) -> None:
    grid = federation(*(shifting(0, 10 + 5 * node) for node in range(6)))
    result = AsyncFedAvg(**on(grid, checkpoint=tmp_path)).start(grid, record_of(START), num_rounds=200)
    steps = np.array([closed.step for closed in result.rounds])
    assert steps[-1] == pytest.approx(1 / (6 * 1), rel=0.2), "about one over the clients"
    assert np.abs(np.diff(steps[40:]) / steps[40:-1]).max() < 0.1
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    written = [(line["round"] + [1.0])[5] for line in lines if "round" in line]
    assert written == steps.tolist()


def test_a_run_begun_with_060_goes_on_with_its_rule_and_step(tmp_path) -> None:
    """A folder that 0.6 wrote, and the weights and the model that 0.6 came to when it went on from there."""
    kept = Path(__file__).parents[1] / "support" / "run_060"
    shutil.copytree(kept, tmp_path / "run")
    then = json.loads((kept / "then.json").read_text())

    def grid() -> FakeGrid:
        made = FakeGrid()
        for node, (lasts, first) in enumerate([(6, 6), (13, 13), (22, 61)]):

            def behave(message, lasts=lasts, first=first):
                job = message.content["config"]["job"]
                return shifting(1 + job % 3, first if job == 0 else lasts, examples=10)(message)

            made.connect(100 + node, behave, f"key {node}".encode())
        return made

    world = grid()
    with pytest.raises(ResultsConflict, match="its step is"):
        FedFix(10, **on(world, checkpoint=tmp_path / "run", step="stable")).start(
            world, record_of(START), num_rounds=24, resume=True
        )
    options = on(world, checkpoint=tmp_path / "run", guard=None)
    result = FedFix(10, **options).start(world, record_of(START), num_rounds=24, resume=True)
    assert [list(closed.weights) for closed in result.rounds] == then["weights"]
    assert result.arrays["w"].numpy().tolist() == then["w"]


def test_a_killed_run_goes_on_with_what_it_had_measured(tmp_path) -> None:
    def grid() -> FakeGrid:
        made = FakeGrid()
        for node in range(4):
            made.connect(100 + node, shifting(1, 3 + 4 * node), f"key {node}".encode())
        return made

    world = grid()
    FedFix(5, **on(world, checkpoint=tmp_path, weights="own-time")).start(world, record_of(START), num_rounds=40)
    world = grid()
    result = FedFix(5, **on(world, checkpoint=tmp_path, weights="own-time")).start(
        world, record_of(START), num_rounds=80, resume=True
    )
    exact = {0: 1, 1: 2, 2: 3, 3: 3}
    for closed in result.rounds[-20:]:
        for update in closed.updates:
            assert update.weight == pytest.approx(exact[update.client] / 9, rel=0.05)


@pytest.mark.parametrize("wrong", ["raw", 1, True, ""])
def test_steps_that_there_are_not(wrong) -> None:
    with pytest.raises(InputError, match=r"step: .* is not known; use 'stable'"):
        FedFix(10, step=wrong)


def test_max_weight_must_let_weights_grow() -> None:
    with pytest.raises(InputError, match=r"max_weight: 0\.5 is not allowed"):
        FedFix(10, max_weight=0.5)
