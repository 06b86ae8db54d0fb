"""The models in use, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo.flower.strategy as strategy_module
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix
from fedtempo.flower.training import Training
from fedtempo.flower.versions import Versions
from flower_fake import FakeGrid, on, record_of, shifting


def test_a_model_lives_as_long_as_a_job_needs_it() -> None:
    versions = Versions({"w": np.zeros(2)})
    versions.hold()
    versions.hold()
    versions.advance([(0.5, {"w": np.ones(2)})])
    assert versions.base(0)["w"].tolist() == [0, 0]
    assert versions.arrays["w"].tolist() == [0.5, 0.5]
    assert versions.live == 2
    versions.release(0)
    assert versions.live == 2
    versions.release(0)
    assert versions.live == 1
    with pytest.raises(KeyError):
        versions.base(0)


def test_a_round_without_updates_is_the_same_model_under_another_number() -> None:
    versions = Versions({"w": np.zeros(2)})
    versions.hold()
    record = versions.record()
    versions.advance([])
    versions.hold()
    assert versions.live == 1
    assert versions.record() is record
    versions.advance([(1.0, {"w": np.ones(2)})])
    assert versions.base(0)["w"].tolist() == versions.base(1)["w"].tolist() == [0, 0]
    versions.release(0)
    assert versions.base(1)["w"].tolist() == [0, 0]
    versions.release(1)
    assert versions.live == 1


def test_a_model_that_nobody_works_on_is_changed_in_place() -> None:
    versions = Versions({"w": np.zeros(2)})
    array, record = versions.arrays["w"], versions.record()
    versions.advance([(1.0, {"w": np.ones(2)})])
    assert versions.arrays["w"] is array
    assert record["w"].numpy().tolist() == [0, 0], "what was serialised stays"
    assert versions.record()["w"].numpy().tolist() == [1, 1]


def test_whole_numbers_are_averaged_and_rounded() -> None:
    arrays = {
        "count": np.array([10, 20]),
        "byte": np.array([250, 3], dtype=np.uint8),
        "flag": np.array([True, False]),
        "half": np.array([1.0], dtype=np.float16),
    }
    versions = Versions(arrays)
    moves = {"count": np.array([3.0, -3.0]), "byte": np.array([90.0, -9.0]), "flag": np.array([-1.0, 1.0])}
    versions.advance([(0.5, {**{k: v.copy() for k, v in moves.items()}, "half": np.ones(1, dtype=np.float16)})] * 1)
    assert {name: array.tolist() for name, array in versions.arrays.items()} == {
        "count": [12, 18],
        "byte": [255, 0],
        "flag": [False, False],
        "half": [1.5],
    }
    assert {name: array.dtype for name, array in versions.arrays.items()} == {
        name: array.dtype for name, array in arrays.items()
    }


@pytest.mark.parametrize(
    "strategy",
    [FedAvg, AsyncFedAvg, lambda **o: FedFix(1, **o), lambda **o: FedBuff(3, **o)],
    ids=["fedavg", "async", "fedfix", "fedbuff"],
)
def test_five_hundred_rounds_keep_live_versions_only(strategy, monkeypatch) -> None:
    kept = []

    class Watched(Training):
        def _close(self, closed):
            super()._close(closed)
            bases = {job.base for job in self._server.in_flight.values()}
            kept.append((self._versions.live, len(bases | {self._versions.number}), len(self._desk.contributions)))

    monkeypatch.setattr(strategy_module, "Training", Watched)
    grid = FakeGrid()
    for node in range(8):
        grid.connect(100 + node, shifting(1, 0.3 + 0.37 * node))
    strategy(**on(grid)).start(grid, record_of({"w": np.zeros(4)}), num_rounds=500)
    assert len(kept) >= 500
    assert all(live <= needed <= 9 for live, needed, _ in kept)
    assert max(waiting for _, _, waiting in kept) <= 8
