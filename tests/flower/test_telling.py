"""`on_measure` on Flower: what the journal writes down is told, live, from the first round on also after a crash."""

from __future__ import annotations

import csv
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.flower import FedFix, simulate_app, track_run
from fedtempo.flower.telling import Followed
from fedtempo.flower.virtual.jobs import Here
from support import virtual_app as apps
from support.flower_fake import FakeGrid, Killed, on, record_of, shifting
from track.test_sinks import tensorboard_has

MODEL = {"w": np.zeros(2)}


def federation() -> FakeGrid:
    grid = FakeGrid()
    for node, seconds in enumerate([1, 0.7, 2.5]):
        grid.connect(100 + node, shifting(1, seconds, 10, loss=seconds))
    return grid


def start(grid, folder, on_measure, rounds=8, **options):
    strategy = FedFix(1.3, **on(grid, checkpoint=folder, on_measure=on_measure, evaluation="wait", **options))
    measured = lambda number, arrays: MetricRecord({"accuracy": number / 10, "confusion": [1, 2]})  # noqa: E731
    return strategy.start(grid, record_of(MODEL), num_rounds=rounds, timeout=9, evaluate_fn=measured)


class Told:
    """What was told, by time; a value that is told twice is an error."""

    def __init__(self) -> None:
        self.points: dict[float, dict[str, float]] = {}
        self.runs, self.closed = set(), 0

    def __call__(self, run, time, values) -> None:
        assert not self.closed
        point = self.points.setdefault(time, {})
        assert not point.keys() & values.keys()
        assert all(type(value) is float for value in values.values())
        point.update(values)
        self.runs.add(run.name)

    def close(self) -> None:
        self.closed += 1


def check(told: Told, result) -> None:
    assert told.runs == {"FedFix(13/10), time-based, server_lr 1, seed 0"}
    taken = [closed for closed in result.rounds if closed.updates]
    assert [*told.points] == [0.0, *(closed.time for closed in taken)]
    updates = np.cumsum([len(closed.updates) for closed in taken])
    for number, (closed, so_far) in enumerate(zip(taken, updates, strict=True), 1):
        point = told.points[closed.time]
        assert point["rounds"] == number
        assert point["updates"] == so_far
        assert point["round/updates"] == len(closed.updates)
        assert point["round/weight"] == pytest.approx(sum(closed.weights))
        assert point["round/staleness"] == pytest.approx(np.mean(closed.staleness))
        assert point["round/staleness_max"] == max(closed.staleness)
        assert point["train/loss"] == result.train_metrics_clientapp[number]["loss"]
        assert point["server/accuracy"] == number / 10
        assert "server/confusion" not in point
    assert told.points[0.0] == {"rounds": 0, "updates": 0, "bytes_up": 0, "server/accuracy": 0.0}


def test_every_round_and_measure_is_told_as_it_comes(tmp_path) -> None:
    grid, told, seen = federation(), Told(), []
    grid.at(5, lambda: seen.append(len(told.points)))
    result = start(grid, None, told)
    check(told, result)
    assert told.closed == 1
    assert seen == [4], "live: the start and three rounds in the first five seconds"


@pytest.mark.parametrize("every", [1, 3])
def test_after_a_crash_nothing_is_there_twice_and_lost_rounds_are_not(every, tmp_path) -> None:
    folder, runs, table = tmp_path / "run", tmp_path / "runs", tmp_path / "points.csv"
    grid, before = federation(), Told()
    grid.at(6.8, lambda: setattr(grid, "kill_at", 0))
    sinks = [ft.track.tensorboard(runs), ft.track.csv(table), before]
    with pytest.raises(Killed):
        start(grid, folder, sinks, checkpoint_every=every)
    for sink in sinks[:2]:
        sink.flush()
    assert len(before.points) == 6
    told = Told()
    grid.kill_at = None
    result = start(grid, folder, [ft.track.tensorboard(runs), ft.track.csv(table), told], checkpoint_every=every)
    check(told, result)
    lost = [time for time, point in before.points.items() if told.points.get(time) != point]
    assert bool(lost) == (every == 3)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["time"]) for row in rows] == [*told.points]
    assert [float(row["server/accuracy"]) for row in rows] == [number / 10 for number in range(9)]
    found = tensorboard_has(runs)
    assert all(len(values) == 1 for values in found.values())
    assert [values[0][0] for (_, _, tag), values in found.items() if tag == "rounds"] == [*told.points]
    again = Told()
    track_run(folder, again)
    assert (again.points, again.runs, again.closed) == (told.points, told.runs, 1)


def test_a_run_is_followed_while_it_is_saved(tmp_path) -> None:
    grid, told, seen = federation(), Told(), []
    followed = None

    def look() -> None:
        nonlocal followed
        followed = followed or Followed(tmp_path, told)
        followed.look()
        seen.append(len(told.points))

    for moment in (3, 5, 5.1, 9):
        grid.at(moment, look)
    result = start(grid, tmp_path, None)
    look()
    check(told, result)
    assert seen == [3, 4, 4, 7, 9]


def test_who_fails_is_told_no_more_and_training_goes_on(tmp_path, caplog) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    calls, told = [], Told()

    def fails(run, time, values) -> None:
        calls.append(time)
        if len(calls) == 3:
            raise ValueError("no room")

    result = start(federation(), tmp_path, [fails, told])
    check(told, result)
    assert len(calls) == 3
    [line] = [line for line in caplog.messages if "on_measure" in line]
    assert line.endswith("fails, and is told no more: ValueError: no room")


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InputError, match="on_measure: 'runs/' cannot be called"):
        FedFix(1, on_measure="runs/")


def test_a_scheme_has_the_same_name_live_and_from_its_folder(tmp_path) -> None:
    grid, live, later = federation(), Told(), Told()
    start(grid, tmp_path, live, rounds=2, server=ft.SlowMo(0.5), seed=3)
    track_run(Path(tmp_path), later)
    assert live.runs == later.runs == {"FedFix(13/10) + slowmo, time-based, server_lr 1, seed 3"}
    assert not math.isnan(live.points[0.0]["rounds"])


def test_in_virtual_time_an_apps_strategy_and_one_in_its_place_tell_virtual_seconds(tmp_path) -> None:
    times = ft.FixedTimes(["1/3", "2/3", "1/7", "1"])
    told = Told()
    own = apps.server(FedFix("1/3", on_measure=told, fraction_evaluate=1.0), evaluate_fn=apps.squared)
    result = simulate_app(own, apps.app, times=times, executor=Here(), folder=tmp_path / "own")
    taken = [closed.time for closed in result.rounds if closed.updates]
    assert [*told.points] == [0.0, *taken]
    assert taken == pytest.approx([k / 3 for k in range(1, 7)], abs=1e-8)
    assert {"evaluate/loss", "server/loss", "train/loss", "rounds"} <= told.points[taken[-1]].keys()
    assert told.closed == 1
    again, instead = Told(), Told()
    track_run(tmp_path / "own", again)
    assert again.points == told.points
    options = {"on_measure": instead}
    simulate_app(own, apps.app, times=times, executor=Here(), scheme=ft.AsyncFedAvg(), rounds=5, options=options)
    assert instead.points.keys() >= {0.0}
    assert max(point["rounds"] for point in instead.points.values()) == 5
    assert instead.runs == {"AsyncFedAvg, time-based, server_lr 1, seed 0"}


def test_runs_of_flowers_own_strategies_can_be_told_from_their_folder(tmp_path) -> None:
    times = ft.FixedTimes(["1/3", "2/3", "1/7", "1"])
    result = simulate_app(apps.server_app, apps.app, times=times, executor=Here(), folder=tmp_path / "run")
    told = Told()
    track_run(tmp_path / "run", told)
    assert [*told.points] == [0.0, *(closed.time for closed in result.rounds)]
    assert told.points[result.rounds[-1].time]["rounds"] == 4
