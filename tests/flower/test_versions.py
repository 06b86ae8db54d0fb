"""The models in use, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo.flower.strategy as strategy_module
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix
from fedtempo.flower.training import Training
from fedtempo.flower.versions import Step, Versions
from support.flower_fake import FakeGrid, on, record_of, shifting


def step(factor: float, value: float = 1.0, dtype: type = np.float64) -> Step:
    return Step(factor, {"w": np.full(2, value, dtype=dtype)}, abs(value) * 2**0.5)


def test_a_model_lives_as_long_as_a_job_needs_it() -> None:
    versions = Versions({"w": np.zeros(2)})
    versions.hold()
    versions.hold()
    versions.advance([step(0.5)])
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
    versions.advance([step(1.0)])
    assert versions.base(0)["w"].tolist() == versions.base(1)["w"].tolist() == [0, 0]
    versions.release(0)
    assert versions.base(1)["w"].tolist() == [0, 0]
    versions.release(1)
    assert versions.live == 1


def test_a_model_that_was_serialised_is_kept_once() -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3).T,
        "b": np.array(True),
        "c": np.zeros((0, 4), dtype=np.float16),
        "d": np.array([1 + 2j, 3], dtype=np.complex64),
        "e": np.array([[7]], dtype=np.uint8),
    }
    versions = Versions(dict(arrays))
    record = versions.record()
    for name, array in versions.arrays.items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])
        np.testing.assert_array_equal(record[name].numpy(), arrays[name])
        if array.size:
            assert np.shares_memory(array, np.frombuffer(record[name].data, dtype=np.uint8))


def test_an_update_that_is_alone_gives_its_memory() -> None:
    versions = Versions({"w": np.zeros(2)})
    array, record, update = versions.arrays["w"], versions.record(), step(1.0)
    versions.advance([update])
    assert versions.arrays["w"] is update.delta["w"]
    assert record["w"].numpy().tolist() == array.tolist() == [0, 0], "what was serialised stays"
    assert versions.record()["w"].numpy().tolist() == [1, 1]
    versions.advance([step(1.0), step(2.0)])
    assert versions.arrays["w"].tolist() == [4, 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_arrays_without_dimensions(dtype) -> None:
    versions = Versions({"w": np.array(0, dtype=dtype)})
    for count in (1, 2):
        versions.advance([Step(1.0, {"w": np.array(1, dtype=dtype)}, 1.0) for _ in range(count)])
        assert isinstance(versions.arrays["w"], np.ndarray)
        assert (versions.arrays["w"].dtype, versions.arrays["w"].shape) == (dtype, ())
    assert versions.arrays["w"] == 3


def test_the_new_model_is_finite_and_keeps_what_leaves_it_so() -> None:
    versions = Versions({"w": np.ones(2, dtype=np.float32)})
    single, large = np.float32, 3e38
    steps = [step(1, 1, single), step(1, large, single), step(0.5, 2, single), step(3, -large, single)]
    assert versions.advance(steps) == [3], "the longest, by its weight: the other then fits"
    assert versions.arrays["w"] == pytest.approx(np.full(2, large), rel=1e-6)
    assert versions.advance([step(1, large, single), step(1, -1, single), step(2, large, single)]) == [2, 0]
    assert np.isfinite(versions.arrays["w"]).all()
    before, number = versions.arrays["w"], versions.number
    assert versions.advance([step(2, large, single)]) == [0]
    assert versions.number == number + 1
    assert versions.arrays["w"] is before, "nothing was left: the same model under another number"


def test_a_sum_that_is_not_finite_says_nothing() -> None:
    versions = Versions({"w": np.full(2, 6e4, dtype=np.float16)})
    assert versions.advance([step(1, 100, np.float16), step(1, 100, np.float16)]) == []
    assert versions.arrays["w"].tolist() == [np.float16(6e4) + np.float16(200)] * 2


@pytest.mark.parametrize(
    "strategy",
    [FedAvg, AsyncFedAvg, lambda **o: FedFix(1, **o), lambda **o: FedBuff(3, **o)],
    ids=["fedavg", "async", "fedfix", "fedbuff"],
)
def test_five_hundred_rounds_keep_live_versions_only(strategy, monkeypatch) -> None:
    kept = []

    class Watched(Training):
        def _advise(self, record):
            super()._advise(record)
            bases = {job.base for job in self._server.in_flight.values()}
            kept.append((self._versions.live, len(bases | {self._versions.number}), len(self._handler.contributions)))

    monkeypatch.setattr(strategy_module, "Training", Watched)
    grid = FakeGrid()
    for node in range(8):
        grid.connect(100 + node, shifting(1, 0.3 + 0.37 * node))
    strategy(**on(grid)).start(grid, record_of({"w": np.zeros(4)}), num_rounds=500)
    assert len(kept) >= 500
    assert all(live <= needed <= 9 for live, needed, _ in kept)
    assert max(waiting for _, _, waiting in kept) <= 8
