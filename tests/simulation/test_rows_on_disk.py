"""Rows that stay on disk give the bits of rows in memory, and are never all in memory."""

from __future__ import annotations

import os
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import mapped
from fedtempo.simulation.engine import streamed

SIZES = [7, 20, 3, 30, 12, 1, 25, 9]
BOUNDS = np.concatenate([[0], np.cumsum(SIZES)])


def _init(key: jax.Array) -> Any:
    return {"w": 0.1 * jax.random.normal(key, (5,)), "b": jnp.zeros(())}


def _loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) + params["b"] - batch["y"]) ** 2)


def _rows(dtype: str = "float32") -> dict[str, Any]:
    random = np.random.default_rng(3)
    total = int(BOUNDS[-1])
    return {"x": random.normal(size=(total, 5)).astype(dtype), "y": random.integers(0, 3, total).astype(np.int16)}


def _on_disk(folder: Path, rows: dict[str, Any]) -> dict[str, Any]:
    for name, leaf in rows.items():
        np.save(folder / f"{name}.npy", leaf)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in rows}


def _problem(rows: dict[str, Any], **more: Any) -> ft.Problem:
    clients = [{name: leaf[a:b] for name, leaf in rows.items()} for a, b in pairwise(BOUNDS)]
    return ft.Problem(_init, _loss, clients, metrics={"error": _loss}, **more)


TIMES = ft.FixedTimes(["1", "1/2", "3/4", "1/5", "2/3", "1", "1/3", "2/5"])
SCHEMES = {"float32": [ft.FedFix("1/2"), ft.FedBuff(3), ft.UniformSampling(3)], "float64": [ft.AsyncFedAvg()]}


def _same(one: ft.History, other: ft.History) -> None:
    names = [name for name in one.dataset.data_vars if "seconds" not in str(name)]
    assert "loss" in names
    for name in names:
        np.testing.assert_array_equal(one.dataset[name].values, other.dataset[name].values, err_msg=str(name))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_are_those_of_rows_in_memory(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtempo.simulation.engine.measures.EVALUATED_AT_ONCE", 120)  # several parts of a measure
    rows = _rows(dtype)
    here, there = _problem(rows), _problem(_on_disk(tmp_path, rows))
    assert mapped.any_mapped(there.rows)
    assert not mapped.any_mapped(here.rows)
    assert here.fingerprint() == there.fingerprint()
    local = ft.LocalSGD(lr=[0.05, 0.2], steps=2, batch_size=4)
    args: Any = {"local": local, "until": 6, "points": 4, "seeds": [0, 1], "dtype": dtype}
    _same(ft.simulate(here, SCHEMES[dtype], TIMES, **args), ft.simulate(there, SCHEMES[dtype], TIMES, **args))


def test_short_pieces_and_single_steps_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows()
    here, there = _problem(rows, importance="rows"), _problem(_on_disk(tmp_path, rows), importance="rows")
    args: Any = {"until": 40, "points": 15, "local": ft.LocalSGD(lr=0.1, batch_size=3)}
    expected = ft.simulate(here, ft.FedBuff(3), TIMES, **args)
    monkeypatch.setattr(streamed, "PIECE_BYTES", 1 << 10)  # 16 events at a time
    _same(expected, ft.simulate(there, ft.FedBuff(3), TIMES, **args))


@pytest.mark.parametrize(
    ("batch_size", "scheme"), [(None, ft.FedFix("1/2")), (3, ft.FedAvg().using(correction=ft.FedDANE(mu=0.1)))]
)
def test_gradients_of_all_rows_of_a_client(batch_size: int | None, scheme: ft.Scheme, tmp_path: Path) -> None:
    rows = _rows()
    here, there = _problem(rows, test=_rows()), _problem(_on_disk(tmp_path, rows), test=_rows())
    args: Any = {"until": 3, "points": 2, "local": ft.LocalSGD(lr=0.1, batch_size=batch_size)}
    _same(ft.simulate(here, scheme, TIMES, **args), ft.simulate(there, scheme, TIMES, **args))


def test_rows_dealt_in_their_order_stay_on_disk_and_others_are_copied(tmp_path: Path) -> None:
    rows = _on_disk(tmp_path, _rows())
    parts = [range(a, b) for a, b in pairwise(BOUNDS)]
    stays = ft.Problem.from_rows(_init, _loss, rows, parts)
    assert mapped.any_mapped(stays.rows)
    moved = ft.Problem.from_rows(_init, _loss, rows, parts[::-1])
    assert not mapped.any_mapped(moved.rows)
    np.testing.assert_array_equal(moved.client_data(0)["x"], stays.client_data(len(SIZES) - 1)["x"])
    views = [{name: leaf[part.start : part.stop] for name, leaf in rows.items()} for part in parts]
    assert mapped.any_mapped(ft.Problem(_init, _loss, views).rows)
    swapped = ft.Problem(_init, _loss, [views[1], views[0], *views[2:]])
    assert not mapped.any_mapped(swapped.rows)
    np.testing.assert_array_equal(swapped.client_data(0)["x"], views[1]["x"])
    private = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="c") for name in rows}
    assert not mapped.any_mapped(ft.Problem.from_rows(_init, _loss, private, parts).rows)


def test_no_copy_of_all_rows_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr("fedtempo.simulation.engine.measures.EVALUATED_AT_ONCE", 1 << 16)
    clients, each, width = 1000, 20, 80
    written = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (clients * each, width))
    written[:] = np.random.default_rng(0).normal(size=written.shape)
    written.flush()
    del written
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((batch @ params) ** 2)

    tracemalloc.start()
    try:
        parts = [range(i * each, (i + 1) * each) for i in range(clients)]
        problem = ft.Problem.from_rows(lambda key: jnp.ones(width), loss, rows, parts)
        problem.fingerprint()
        ft.simulate(problem, ft.FedFix("1/2"), FAST, until="1/2", points=2, local=ft.LocalSGD(lr=0.01, batch_size=2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.9 * rows.nbytes  # NumPy's own arrays; the parts take most of it
    resident = sum(int(line.split()[1]) for line in _map_lines(tmp_path / "x.npy"))
    assert resident * 1024 < 0.2 * rows.nbytes


FAST = ft.FixedTimes.spread(1000, 80)


def _map_lines(path: Path) -> list[str]:
    """Of the process's maps of a file: how much of each is in memory."""
    found, inside = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and ":" not in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found.append(line)
    return found


def test_bad_files_are_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "BLOCK_BYTES", 100)  # five rows
    rows = _rows()
    bad = {**rows, "x": rows["x"].copy()}
    bad["x"][11, 2] = np.nan
    with pytest.raises(ft.InputError, match="client 1: leaf x holds nan in row 4; repair"):
        _problem(_on_disk(tmp_path, bad))
    good = _on_disk(tmp_path, rows)
    problem = _problem(good)
    os.truncate(tmp_path / "x.npy", os.path.getsize(tmp_path / "x.npy") - 8)
    with pytest.raises(ft.InputError, match=r"x\.npy has .* it was cut off; write it again"):
        _problem(good)
    with pytest.raises(ft.InputError, match="it was cut off"):
        ft.simulate(problem, ft.FedAvg(), TIMES, until=3, local=ft.LocalSGD(lr=0.1, batch_size=2))


def test_waves_need_the_rows_on_the_device(tmp_path: Path) -> None:
    problem = _problem(_on_disk(tmp_path, _rows()))
    with pytest.raises(ft.InputError, match="'waves' needs all rows on the device"):
        ft.simulate(problem, ft.FedAvg(), TIMES, until=3, engine="waves", local=ft.LocalSGD(lr=0.1, batch_size=2))
