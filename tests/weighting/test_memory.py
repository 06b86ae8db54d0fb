"""Long runs are made once: what is remembered is what would be worked out, to the bit."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo import cache
from fedtempo.clock import cycle
from fedtempo.clock.importance import Importance
from fedtempo.weighting import long_run, memory
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.steps import largest_overlap
from fedtempo.weighting.windows import practical_window
from support.own_parts import EveryFew

F = Fraction


def same(one: Any, other: Any) -> bool:
    """To the bit, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one.hex() == other.hex() if isinstance(one, float) else one == other


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDTEMPO_CACHE", str(tmp_path))
    monkeypatch.setattr(memory, "WORTH_SECONDS", 0.0)
    for name in ("MAX_ROUNDS", "MAX_UPDATES", "MAX_RANDOM_UPDATES", "MAX_ASKED_UPDATES"):
        monkeypatch.setattr(cycle, name, 2000)
    monkeypatch.setattr(cycle, "MAX_AVAILABLE_UPDATES", 40)
    memory.forget_all()
    yield tmp_path / "long-runs"
    memory.forget_all()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Runs of the clock that were really made."""
    made: list[object] = []

    def counted(record: Any) -> Any:
        made.append(record)
        return cycle.observe(record, max_rounds=500)

    monkeypatch.setattr(long_run, "observe", counted)
    return made


def of(scheme: ft.Scheme, times: ft.ClientTimes, seed: int = 0) -> LongRun:
    return LongRun(scheme.waiting, times, Importance(None, times.num_clients), seed)


BUFF, TRACE = ft.FedBuff(2), ft.TraceTimes([[1, 2], [3, 1, 5], [4], ["1/3", 2]])

times = st.lists(st.fractions(F(1, 4), 4, max_denominator=6), min_size=3, max_size=6).flatmap(
    lambda means: st.sampled_from(
        [
            ft.FixedTimes(means),
            ft.LogNormalTimes(means),
            ft.UniformTimes(means, [2 * mean for mean in means]),
            ft.TraceTimes([[mean, 2, mean + 1] for mean in means]),
            ft.TraceTimes([[mean, 2] for mean in means], mode="bootstrap"),
            ft.FixedTimes(means).available(failure="1/5"),
            ft.ExponentialTimes(means).available(on=9, off=2),
            ft.FixedTimes(means).available(absences={0: [(1, 3)]}, period=7),
        ]
    )
)
schemes = st.sampled_from(
    [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2), ft.UniformSampling(2), ft.MultinomialSampling(2)]
)


@given(schemes, times, st.integers(-3, 10**12))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_remembered_is_what_is_worked_out(folder: Path, scheme: Any, times: Any, seed: int) -> None:
    memory.forget_all()
    fresh = of(scheme, times, seed)._observed()
    first = of(scheme, times, seed).observation
    here = of(scheme, times, seed).observation
    memory.forget_all()
    on_disk = of(scheme, times, seed).observation
    assert same(first, fresh)
    assert same(here, fresh)
    assert same(on_disk, fresh)


def test_the_clock_is_run_once(folder: Path, runs: list[object]) -> None:
    first = of(BUFF, TRACE).observation
    assert same(of(BUFF, TRACE).observation, first)
    assert len(runs) == 1
    memory.forget_all()
    assert same(of(BUFF, TRACE).observation, first)
    assert len(runs) == 1
    assert not same(of(ft.FedBuff(3), TRACE).observation, first)
    assert len(runs) == 2


def test_what_a_caller_does_to_a_result_is_its_own(folder: Path) -> None:
    first = of(BUFF, TRACE).observation
    kept = first.batch_counts.copy()
    first.batch_counts[:] = 0
    second = of(BUFF, TRACE).observation
    assert np.array_equal(second.batch_counts, kept)
    second.batch_counts[:] = 0
    assert np.array_equal(of(BUFF, TRACE).observation.batch_counts, kept)


def test_limits_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = ft.LogNormalTimes([1, 2, 3])
    first = of(BUFF, times).observation
    monkeypatch.setattr(cycle, "MAX_RANDOM_UPDATES", 8000)
    assert of(BUFF, times).observation.rounds > first.rounds


def test_windows_overlaps_discounts_and_cycles_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, d = ft.FixedTimes.spread(6, 80), np.linspace(1, 2, 6)

    def asked() -> tuple[Any, ...]:
        run = of(ft.FedBuff(3), times)
        discounted = ft.expected_weights(
            ft.FedBuff(3), times, rule=ft.Discounted(ft.TimeBased(), ft.PolynomialDiscount(0.5))
        )
        return (
            practical_window(run),
            largest_overlap(run, d),
            discounted,
            ft.limit_cycle(ft.FedBuff(3), times, max_rounds=300),
        )

    first = asked()
    memory.forget_all()
    made: list[object] = []
    monkeypatch.setattr("fedtempo.clock.generate.stream", lambda *a, **k: made.append(a) or iter(()))
    assert same(asked(), first)


def test_damage_is_no_harm(folder: Path, runs: list[object]) -> None:
    first = of(BUFF, TRACE).observation
    [path] = folder.iterdir()
    whole = path.read_bytes()
    other = of(ft.FedBuff(3), TRACE).observation
    [foreign] = [each.read_bytes() for each in folder.iterdir() if each != path]
    assert not same(first, other)
    for bad in (b"", b"no zip", whole[:-30], whole[: len(whole) // 2], foreign):
        path.write_bytes(bad)
        memory.forget_all()
        before = len(runs)
        assert same(of(BUFF, TRACE).observation, first)
        assert len(runs) == before + 1
        memory.forget_all()
        assert same(of(BUFF, TRACE).observation, first)  # written again
        assert len(runs) == before + 1
    middle = len(whole) // 3
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    memory.forget_all()
    assert same(of(BUFF, TRACE).observation, first)


@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError, zlib.error, MemoryError, RecursionError])
def test_whatever_a_damaged_file_leads_to(
    error: type[Exception], folder: Path, runs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    first = of(BUFF, TRACE).observation
    for k, where in enumerate(("numpy.load", "json.loads"), 2):
        memory.forget_all()
        with monkeypatch.context() as patch:
            patch.setattr(where, fails)
            assert same(of(BUFF, TRACE).observation, first)
        assert len(runs) == k


def test_a_process_whose_source_was_edited_leaves_the_disk_alone(
    folder: Path, runs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "source_is_the_same", lambda: False)
    first = of(BUFF, TRACE).observation
    assert same(of(BUFF, TRACE).observation, first)
    assert len(runs) == 1
    assert not folder.exists()
    monkeypatch.setattr(memory, "source_is_the_same", lambda: True)
    memory.forget_all()
    of(BUFF, TRACE).observation  # noqa: B018
    monkeypatch.setattr(memory, "source_is_the_same", lambda: False)
    memory.forget_all()
    of(BUFF, TRACE).observation  # noqa: B018
    assert len(runs) == 3


def test_a_pickle_is_not_read(folder: Path, runs: list[object]) -> None:
    first = of(BUFF, TRACE).observation
    [path] = folder.iterdir()
    with path.open("wb") as file:
        np.savez(file, head=np.array([{"a": 1}], dtype=object))
    memory.forget_all()
    assert same(of(BUFF, TRACE).observation, first)
    assert len(runs) == 2


def test_off_and_places_that_cannot_be_written(
    folder: Path, runs: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for place in ("off", "OFF", str(tmp_path / "file"), str(tmp_path / "file" / "below"), "/proc/nowhere"):
        monkeypatch.setenv("FEDTEMPO_CACHE", place)
        memory.forget_all()
        of(BUFF, TRACE)  # nothing is made ahead
        first = of(BUFF, TRACE).observation
        before = len(runs)
        assert same(of(BUFF, TRACE).observation, first)  # in this process all the same
        assert len(runs) == before
        memory.forget_all()
        assert same(of(BUFF, TRACE).observation, first)
        assert len(runs) == before + 1
    assert not folder.exists()


def test_what_was_not_used_for_longest_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        cache.write_result(name, {"x": np.zeros(1000)})
        path = folder / f"{name}.npz"
        os.utime(path, (ord(name), ord(name)))
    size = path.stat().st_size
    assert cache.read_result("a") is not None
    monkeypatch.setattr(cache, "MAX_BYTES", 3 * size)
    cache.write_result("e", {"x": np.zeros(1000)})
    assert sorted(path.stem for path in folder.iterdir()) == ["a", "d", "e"]


def test_what_is_not_ours_stays_and_is_not_in_the_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_result("a", {"x": np.zeros(1000)})
    (folder / "below").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / ".a.npz.half").write_bytes(bytes(3000))  # of a process that was killed
    for k, name in enumerate(("below", "notes.txt", ".a.npz.half", "a.npz")):
        os.utime(folder / name, (k, k))
    monkeypatch.setattr(cache, "MAX_BYTES", 9000)
    cache.write_result("b", {"x": np.zeros(1000)})
    assert sorted(path.name for path in folder.iterdir()) == ["b.npz", "below", "notes.txt"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.forget_all()
    monkeypatch.setattr(memory, "MAX_RESULTS", 3)
    for k in range(6):
        assert of(ft.FedBuff(2), ft.FixedTimes([1, 2, k + 3])).observation.rounds
    assert len(memory._results) == 3
    monkeypatch.setattr(memory, "MAX_BYTES", 1)
    of(ft.FedBuff(2), ft.FixedTimes([1, 2, 99])).observation  # noqa: B018
    assert len(memory._results) == 0


def test_rules_of_ones_own_are_remembered_here_and_not_on_disk(folder: Path, runs: list[object]) -> None:
    first = LongRun(EveryFew(2), TRACE, Importance(None, 4)).observation
    assert same(LongRun(EveryFew(2), TRACE, Importance(None, 4)).observation, first)
    assert len(runs) == 1
    assert not same(LongRun(EveryFew(3), TRACE, Importance(None, 4)).observation, first)
    assert not folder.exists()


VALUES = [None, True, 2**70, -3, 0.1, float("inf"), -0.0, F(2**80, 3), "text", (1, (2.5, F(1, 2))), np.arange(3)]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_written_down_exactly(value: Any) -> None:
    packed = memory.pack((value,))
    assert packed is not None
    assert same(memory.unpacked(packed), (value,))


def test_what_is_not_numbers_is_not_written_down() -> None:
    assert memory.pack(object()) is None
    assert memory.pack((1, [2])) is None
    assert memory.pack(np.array([None])) is None
