"""Sinks that need no service: what the tools' own readers find, live, after a kill, and where it cannot work."""

from __future__ import annotations

import csv
import io
import math
import os
import struct
import subprocess
import sys
import threading
import time as clock
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError, StorageError
from fedtempo.simulation.run_info import RunInfo
from fedtempo.track import sink as base
from fedtempo.track.event_files import folder_name
from support import feed

ROOT = Path(__file__).parents[2]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams import plugin_data_pb2


def tensorboard_has(folder: Path) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """By run, step and tag: times and values, as TensorBoard reads them."""
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for run in sorted(folder.iterdir()):
        accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0})
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(tag):
                found.setdefault((run.name, event.step, tag), []).append((event.wall_time, event.value))
    return found


def table_has(path: Path) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """The same of a table."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        from pyarrow import parquet

        rows = parquet.read_table(io.BytesIO(path.read_bytes())).to_pylist()  # one look: it may be replaced
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for row in rows:
        name = RunInfo({"scheme": row["scheme"], "weights": row["weights"], "lr": row["lr"], "seed": row["seed"]}).name
        if isinstance(row["seed"], str):
            name = f"{row['scheme']}, {row['weights']}, lr {row['lr']}, seed {row['seed']}"
        for measure in ("loss", "rounds"):
            key = (folder_name(name), round(float(row["time"]) / 2.5), measure)
            found.setdefault(key, []).append((float(row["time"]), float(row[measure])))
    return found


READERS = {"tensorboard": tensorboard_has, "csv": table_has, "parquet": table_has}
PLACES = {"tensorboard": "runs", "csv": "points.csv", "parquet": "points.parquet"}
KINDS = pytest.mark.parametrize("kind", READERS)


def check(kind: str, place: Path, points: int = feed.POINTS, runs=feed.RUNS) -> None:
    """Each point that was told is there once, as it was told."""
    found = READERS[kind](place)
    meant = {
        (folder_name(run.name), point, name): (feed.time(point), np.float32(value) if kind == "tensorboard" else value)
        for run in runs
        for point in range(points)
        for name, value in feed.values(run, point).items()
    }
    assert found.keys() == meant.keys()
    for key, [there] in found.items():
        np.testing.assert_array_equal(there, meant[key])


@KINDS
def test_the_reader_finds_what_was_told(kind, tmp_path) -> None:
    place = tmp_path / "deep" / PLACES[kind]
    with feed.SINKS[kind](place) as sink:
        feed.tell(sink)
    check(kind, place)


@KINDS
def test_killed_and_told_again_each_point_is_there_once(kind, tmp_path) -> None:
    place = tmp_path / PLACES[kind]
    command = [sys.executable, ROOT / "tests/support/feed.py", kind, place]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths}
    killed = subprocess.run([*command, "4"], env=environment, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    check(kind, place, 4)
    if kind == "tensorboard":  # half a record is left where a process is killed while it writes
        with next(place.glob("FedAvg*seed 0/*")).open("ab") as file:
            file.write(struct.pack("<Q", 100) + b"torn")
    if kind == "csv":
        with place.open("a") as file:
            file.write("FedAvg,time-b")
    again = subprocess.run([*command, str(feed.POINTS)], env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    check(kind, place)


@KINDS
def test_it_is_there_while_it_trains(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(base, "SECONDS", 0.05)
    place = tmp_path / PLACES[kind]
    sink = feed.SINKS[kind](place)
    sink._every = 0.05
    for points in (1, 3, feed.POINTS):  # a study tells everything from the start only once: here the runs change
        runs = [RunInfo({**run.labels, "weights": f"after {points}"}) for run in feed.RUNS[:2]]
        feed_values = {run.name: of for run, of in zip(runs, feed.RUNS, strict=False)}
        for point in range(points):
            for run in runs:
                sink(run, feed.time(point), feed.values(feed_values[run.name], point))
        deadline = clock.monotonic() + 5
        there = None
        while there != 2 * points and clock.monotonic() < deadline:
            clock.sleep(0.05)
            if place.exists():
                there = sum(f"after {points}" in name and tag == "loss" for name, _, tag in READERS[kind](place))
        assert there == 2 * points, "nobody closed or flushed"
    sink.close()


@KINDS
def test_the_same_sink_told_the_same_runs_again_keeps_the_later(kind, tmp_path) -> None:
    """As in a notebook, where a cell is run again; other runs stay."""
    place = tmp_path / PLACES[kind]
    sink = feed.SINKS[kind](place)
    feed.tell(sink, 5, feed.RUNS[:2])
    sink.close()
    feed.tell(sink, 3, feed.RUNS[1:])
    sink.close()
    found = READERS[kind](place)
    counts = [sum(name == folder_name(run.name) and tag == "loss" for name, _, tag in found) for run in feed.RUNS]
    assert counts == [5, 3, 3, 3]
    assert all(len(values) == 1 for values in found.values())


def test_steps_begin_anew_when_a_sink_was_closed(tmp_path) -> None:
    sink = ft.track.tensorboard(tmp_path)
    for step in (2.5, 0.5):
        for point in range(3):
            sink(feed.RUNS[0], step * point, {"loss": 1.0})
        sink.close()
        found = tensorboard_has(tmp_path)
        assert {(number, time) for (_, number, _), [(time, _)] in found.items()} == {(k, step * k) for k in range(3)}


@KINDS
def test_values_that_come_later_join_their_point(kind, tmp_path) -> None:
    """As evaluations on Flower do."""
    place = tmp_path / PLACES[kind]
    run = feed.RUNS[0]
    sink = feed.SINKS[kind](place)
    sink(run, feed.time(0), {"loss": 1.0, "rounds": 5.0})
    for point in (1, 2):
        sink(run, feed.time(point), {"loss": 1.0})
    sink.flush()
    sink(run, feed.time(3), {"loss": 0.5})
    sink(run, feed.time(1), {"rounds": 7.0})
    sink.flush()
    if kind == "csv":
        assert len(place.read_text().splitlines()) == 5, "no row is there twice in between"
    sink.close()
    if kind == "tensorboard":
        found = tensorboard_has(place)
        assert found[folder_name(run.name), 1, "rounds"] == [(feed.time(1), 7.0)]
        assert len(found) == 6
        return
    if kind == "csv":
        with place.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        from pyarrow import parquet

        rows = parquet.read_table(io.BytesIO(place.read_bytes())).to_pylist()
    assert [float(row["rounds"] or -1) for row in rows] == [5, 7, -1, -1]
    assert [float(row["loss"]) for row in rows] == [1, 1, 1, 0.5]


def test_labels_are_tensorboards_hyper_parameters(tmp_path) -> None:
    with ft.track.tensorboard(tmp_path) as sink:
        feed.tell(sink, 1, feed.RUNS[:1])
    [path] = tmp_path.rglob("events.*")
    [content] = [
        value.metadata.plugin_data.content
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    ]
    found = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert {name: value.string_value or value.number_value for name, value in found.items()} == feed.RUNS[0].labels


def test_a_running_tensorboard_sees_no_point_twice(tmp_path) -> None:
    """It has read the first file when a second process removes it."""
    with ft.track.tensorboard(tmp_path) as first:
        feed.tell(first, 4, feed.RUNS[:1])
    [run] = tmp_path.iterdir()
    running = EventAccumulator(str(run), size_guidance={"scalars": 0})
    running.Reload()
    assert len(running.Scalars("loss")) == 4
    for points in (5, 6):
        with ft.track.tensorboard(tmp_path) as again:
            feed.tell(again, points, feed.RUNS[:1])
        running.Reload()
        assert [event.step for event in running.Scalars("loss")] == [*range(points)]
    assert sorted(path.stat().st_size > 0 for path in run.iterdir()) == [False, True]


def test_what_others_have_written_there_stays(tmp_path) -> None:
    folder = tmp_path / folder_name(feed.RUNS[0].name)
    folder.mkdir()
    (folder / "events.out.tfevents.1.host").write_bytes(b"")
    with ft.track.tensorboard(tmp_path) as sink:
        feed.tell(sink, 1, feed.RUNS[:1])
    assert (folder / "events.out.tfevents.1.host").exists()


def test_a_value_beyond_32_bits_is_infinite_for_tensorboard(tmp_path) -> None:
    with ft.track.tensorboard(tmp_path) as sink:
        sink(feed.RUNS[0], 0.0, {"loss": 1e300, "low": -1e300, "no": math.nan})
    found = {tag: values[0][1] for (_, _, tag), values in tensorboard_has(tmp_path).items()}
    assert found["loss"] == math.inf
    assert found["low"] == -math.inf
    assert math.isnan(found["no"])


def test_names_of_runs_become_folders_of_their_own() -> None:
    assert folder_name("FedAvg, lr 0.1") == "FedAvg, lr 0.1"
    assert "/" not in folder_name("FedFix(1/2)")
    others = ["..", "a:b", "a-b", "a?b", "x" * 300, "x" * 301, "y.", ""]
    names = [folder_name(name) for name in others]
    assert len({*names}) == len(others)
    assert all(0 < len(name.encode()) < 256 and not set(name) & set('/\\:*?"<>|') for name in names)
    assert not {".", "..", ""} & {*names}


@KINDS
def test_a_hundred_runs_hold_no_files_open(kind, tmp_path) -> None:
    runs = [RunInfo({"scheme": "FedAvg", "weights": "time-based", "lr": 0.1, "seed": k}) for k in range(100)]
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with feed.SINKS[kind](tmp_path / PLACES[kind]) as sink:
        for run in runs:
            sink(run, 0.0, {"loss": 1.0})
        sink.flush()
        assert len(os.listdir("/proc/self/fd")) <= before + 5
        assert threading.active_count() <= threads + 1


def test_a_csv_file_grows_by_its_new_rows(tmp_path) -> None:
    path = tmp_path / "points.csv"
    sink = ft.track.csv(path)
    feed.tell(sink, 1)
    sink.flush()
    inode = path.stat().st_ino
    sink(feed.RUNS[0], feed.time(1), feed.values(feed.RUNS[0], 1))
    sink.flush()
    assert path.stat().st_ino == inode, "appended to"
    assert len(path.read_text().splitlines()) == 6
    sink(feed.RUNS[0], feed.time(2), {"loss": 1.0, "test_loss": 2.0})
    sink.flush()
    assert path.stat().st_ino != inode, "another column: written again"
    assert path.read_text().splitlines()[0] == "scheme,weights,lr,seed,time,loss,rounds,test_loss"
    for run in feed.RUNS[1:2]:
        sink(run, feed.time(1), feed.values(run, 1))
    sink.flush()
    assert path.read_text().splitlines()[-1].startswith("FedAvg"), "appended to"
    sink.close()
    schemes = [line.split(",")[0] for line in path.read_text().splitlines()[1:]]
    assert schemes == ["FedAvg"] * 5 + ["FedFix(1/2)"] * 2, "at the end the rows of a run stand together"


def test_a_disk_that_refuses_is_said_at_the_next_point_and_at_the_end(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    sink = ft.track.csv(tmp_path / "file" / "points.csv")
    sink._every = 0.02
    sink(feed.RUNS[0], 0.0, {"loss": 1.0})
    clock.sleep(0.2)
    with pytest.raises(StorageError, match=r"points.csv: cannot write it"):
        sink(feed.RUNS[0], 1.0, {"loss": 1.0})
    other = ft.track.tensorboard(tmp_path / "file")
    other(feed.RUNS[0], 0.0, {"loss": 1.0})
    with pytest.raises(StorageError, match="choose another place"):
        other.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ft.track.tensorboard(""), "track tensorboard: '' is not a path"),
        (lambda: ft.track.csv(3), "track csv: 3 is not a path"),
        (lambda: ft.track.wandb(""), "track wandb: '' is not the name of a project"),
        (lambda: ft.track.wandb("p", mode="of"), "mode 'of' is not known; use one of offline, online"),
        (lambda: ft.track.mlflow("x", ""), "track mlflow: '' is not the name of an experiment"),
    ],
)
def test_bad_input(make, said) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["mlflow", "wandb", "parquet", "tensorboard"])
def test_what_is_not_installed_names_its_extra(name, monkeypatch, tmp_path) -> None:
    for module in [*sys.modules]:
        if module.split(".")[0] in (name, "pyarrow") or module == "fedtempo.track.event_files":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyarrow" if name == "parquet" else name, None)
    with pytest.raises(InputError) as error:
        feed.SINKS[name](tmp_path / "x")
    assert str(error.value).endswith(f"pip install 'fedtempo[{name}]'")
    assert "\n" not in str(error.value)


def test_the_package_loads_no_tool() -> None:
    code = (
        "import sys, fedtempo as ft; ft.track.tensorboard; ft.track.csv('y')\n"
        "print([m for m in ('jax', 'xarray', 'tensorboard', 'mlflow', 'wandb', 'pyarrow') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
