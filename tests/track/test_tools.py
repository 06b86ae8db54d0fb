"""MLflow and Weights & Biases, without a network: what their own readers find."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import time as clock
from pathlib import Path

import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.simulation.run_info import RunInfo
from support import feed

pytestmark = [pytest.mark.track, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]


def mlflow_has(place: Path, experiment: str = "study") -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """By run, step and metric: times and values."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    number = client.get_experiment_by_name(experiment).experiment_id
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for run in client.search_runs([number]):
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                found.setdefault((run.info.run_name, metric.step, name), []).append(
                    (metric.timestamp / 1000, metric.value)
                )
    return found


def records_of(path: Path) -> list:
    """The records of a run that has ended: the process of W&B may write them a moment later."""
    deadline = clock.monotonic() + 10
    while True:
        found = list(_records_in(path.read_bytes()))
        if found[-1:] and found[-1].WhichOneof("record_type") == "exit":
            return found
        assert clock.monotonic() < deadline, f"{path} has no end"
        clock.sleep(0.05)


def _records_in(content: bytes):
    """The records of a .wandb file, whose last block a process that was killed may not have written.

    A header of 7 bytes, then blocks of 32 KiB with chunks, each with checksum, length and kind: whole, first, middle,
    last; where less than 7 bytes are left of a block, the next one begins.
    """
    from wandb.proto import wandb_internal_pb2

    place, parts = 7, b""
    assert content[:4] in (b":W&B", b"")
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        if kind == 0 or place + 7 + length > len(content):
            return
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def wandb_has(place: Path) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """The same, of the files that `wandb sync` would send."""
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for path in (place / "wandb").glob("offline-run-*/*.wandb"):
        name = ""
        for record in records_of(path):
            if record.WhichOneof("record_type") == "run":
                name = record.run.display_name
            if record.WhichOneof("record_type") == "history":
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                for measure in row.keys() - {"time", "point"}:
                    if not measure.startswith("_"):
                        value = (float(row["time"]), float(row[measure]))
                        found.setdefault((name, row["point"], measure), []).append(value)
    return found


READERS = {"mlflow": mlflow_has, "wandb": wandb_has}
KINDS = pytest.mark.parametrize("kind", READERS)


def check(kind: str, place: Path, points: int = feed.POINTS, runs=feed.RUNS) -> None:
    found = READERS[kind](place)
    meant = {
        (run.name, point, name): (feed.time(point), value)
        for run in runs
        for point in range(points)
        for name, value in feed.values(run, point).items()
    }
    assert {key for key in found if key[2] != "time"} == meant.keys()
    for key, (time, value) in meant.items():
        [(found_time, found_value)] = found[key]
        assert found_time == time
        assert found_value == value or (math.isnan(found_value) and math.isnan(value))


def alone() -> dict[str, str]:
    """The environment of a process that shares nothing with this one: no process of W&B's, which would go on."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"} | {"PYTHONPATH": paths}


@KINDS
def test_killed_and_told_again_each_point_is_there_once(kind, tmp_path) -> None:
    place = tmp_path / "deep" / "place"
    command = [sys.executable, ROOT / "tests/support/feed.py", kind, place]
    environment = alone()
    killed = subprocess.run([*command, "4"], env=environment, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    if kind == "mlflow":
        check(kind, place, 4)
    ids = ids_of(kind, place)
    again = subprocess.run([*command, str(feed.POINTS)], env=environment, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    check(kind, place)
    assert ids_of(kind, place) == ids, "the same runs"


def ids_of(kind: str, place: Path) -> object:
    if kind == "wandb":
        return json.loads((place / "wandb" / "fedtempo.json").read_text())
    return {run.info.run_name: run.info.run_id for run in runs_of(place)}


def runs_of(place: Path):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    return client.search_runs([client.get_experiment_by_name("study").experiment_id])


@KINDS
def test_the_same_sink_told_the_same_runs_again(kind, tmp_path) -> None:
    sink = feed.SINKS[kind](tmp_path)
    for points in (4, feed.POINTS):
        feed.tell(sink, points)
        sink.close()
        check(kind, tmp_path, points)


def test_killed_while_mlflow_makes_its_database(tmp_path) -> None:
    command = [sys.executable, ROOT / "tests/support/feed.py", "mlflow", tmp_path]
    environment = alone()
    process = subprocess.Popen([*command, str(feed.POINTS)], env=environment, stderr=subprocess.DEVNULL)
    deadline = clock.monotonic() + 60
    while not [path for path in tmp_path.iterdir() if path.stat().st_size] and clock.monotonic() < deadline:
        clock.sleep(0.01)
    clock.sleep(0.3)
    process.kill()
    process.wait()
    assert [path.name for path in tmp_path.iterdir()] != [], "too early"
    assert not (tmp_path / "mlflow.db").exists(), "too late"
    with feed.SINKS["mlflow"](tmp_path) as sink:
        feed.tell(sink)
    check("mlflow", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_labels_and_status_of_mlflow(tmp_path) -> None:
    sink = feed.SINKS["mlflow"](tmp_path)
    feed.tell(sink, 2, feed.RUNS[:1])
    sink.flush()
    [run] = runs_of(tmp_path)
    assert run.data.params == {"scheme": "FedAvg", "weights": "time-based", "lr": "0.1", "seed": "0"}
    assert run.info.status == "RUNNING"
    sink.close()
    assert runs_of(tmp_path)[0].info.status == "FINISHED"
    feed.tell(sink, 3, feed.RUNS[:1])
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        sink.close()
    assert [run.info.status for run in runs_of(tmp_path)] == ["KILLED"]
    check("mlflow", tmp_path, 3, feed.RUNS[:1])


def test_another_study_takes_the_place_in_mlflow(tmp_path) -> None:
    """Also where it differs late: a deployed server whose last rounds were not saved."""
    run = feed.RUNS[0]
    for last in (3.0, 4.0):
        with feed.SINKS["mlflow"](tmp_path) as sink:
            for point, loss in enumerate([1.0, 2.0, last]):
                sink(run, feed.time(point), {"loss": loss})
                sink.flush()
    found = mlflow_has(tmp_path)
    assert {step: values for (_, step, name), values in found.items() if name == "loss"} == {
        0: [(0.0, 1.0)],
        1: [(2.5, 2.0)],
        2: [(5.0, 4.0)],
    }


def test_names_that_mlflow_would_refuse(tmp_path) -> None:
    with feed.SINKS["mlflow"](tmp_path) as sink:
        sink(RunInfo({"scheme": "s" * 1000, "a:b*": 1}), 0.0, {"server/top-1 (%)": 1.0, "loss": math.inf})
    names = {name for *_, name in mlflow_has(tmp_path)}
    assert names == {"server/top-1 ___", "loss", "time"}


def test_labels_of_wandb_are_its_config(tmp_path) -> None:
    with feed.SINKS["wandb"](tmp_path) as sink:
        feed.tell(sink, 1, feed.RUNS[:1])
    [path] = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    config: dict[str, object] = {}
    axes = set()
    for record in records_of(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if kind == "metric":
            axes.add((record.metric.name or record.metric.glob_name, record.metric.step_metric))
    assert {name: config[name] for name in feed.RUNS[0].labels} == feed.RUNS[0].labels
    assert ("*", "time") in axes


def test_where_mlflow_cannot_write(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    sink = feed.SINKS["mlflow"](tmp_path / "file" / "inside")
    feed.tell(sink, 1)
    with pytest.raises(InputError, match="cannot write it"):
        sink.close()
    with pytest.raises(InputError, match=r"track mlflow: nothing://there cannot be written \("):
        ft.track.mlflow("nothing://there")


def test_wandb_online_needs_a_login_before_anything_runs(tmp_path, monkeypatch) -> None:
    for name in ("WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(InputError, match="and for mode 'online' the network and `wandb login`"):
        ft.track.wandb("study", dir=tmp_path)
