"""A run on Flower as the sections of a page: what a look reads, and what it makes of it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Any

import numpy as np
import pytest

from fedtempo import files
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedFix, recorded
from fedtempo.flower import live_run as module
from fedtempo.flower.journal import Journal
from fedtempo.flower.live_run import WatchedRun
from fedtempo.flower.run_folder import RunFolder
from flower.test_saving import rewritten
from support.flower_fake import FakeGrid, Killed, failure, on, record_of, shifting

MODEL = {"w": np.zeros(2)}
HOSTILE = "<script>alert(1)</script>"


def federation() -> FakeGrid:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, loss=0.5))
    grid.connect(101, shifting(1, 0.7, loss=0.25))
    grid.connect(102, shifting(1, 10**6))  # never answers
    grid.connect(103, lambda message: [(10**8, failure(message, reason=f"ValueError: {HOSTILE}\x1b[2J"))])
    return grid


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live") / HOSTILE.replace("/", "")
    grid = federation()
    grid.at(30.2, lambda: setattr(grid, "kill_at", 0))
    with pytest.raises(Killed):
        FedFix(1.5, **on(grid, checkpoint=folder, loss_key="loss")).start(
            grid, record_of(MODEL), num_rounds=200, timeout=3600, until=5000
        )
    return folder


def rows(section: Any) -> dict[str, list[Any]]:
    return {row["cells"][0]: row["cells"][1:] for row in section["rows"]}


def test_a_killed_run_as_sections(killed) -> None:
    os.utime(killed / "state.npz")
    before = {path.name: path.read_bytes() for path in killed.iterdir()}
    found = WatchedRun(killed).sections()
    head = found["head"]
    assert (head["title"], head["condition"], head["label"]) == ("FedFix(3/2) on Flower", "killed", "Killed")
    assert head["words"].startswith(f"process {os.getpid()} on ")
    assert head["done"] == 0.1, "twenty of 200 rounds; of the time less"
    facts = dict(head["facts"])
    assert (facts["round"], facts["in flight"]) == ("20 of 200", "3, 1 silent")
    clients = rows(found["table:clients"])
    assert clients["node 102"][0] == "silent"
    assert clients["node 102"][2:] == ["–", "20", "0", "–"]
    assert clients["node 103"][0].startswith("resting, ")
    record = recorded(killed)
    counts = record.timeline.participation_counts
    assert [int(clients[f"node {100 + k}"][4]) for k in range(4)] == list(counts)
    loss = found["chart:measure loss"]
    assert [line["label"] for line in loss["lines"]] == ["clients' training"]
    assert loss["lines"][0]["ys"][-1] == 0.375
    assert loss["lines"][0]["xs"] == [round(1.5 * k, 1) for k in range(1, 21)]
    mean, largest = found["chart:round staleness"]["lines"]
    assert (mean["label"], largest["label"]) == ("mean", "largest")
    assert found["chart:round updates"]["lines"][0]["ys"][-1] == 2
    assert len(found["chart:round norms"]["lines"][0]["ys"]) == 40
    assert rows(found["table:rounds"])["20"][:2] == ["30.0", "2"]
    faults = found["table:faults"]["rows"]
    times = [float(row["cells"][0]) for row in faults]
    assert times == sorted(times, reverse=True)
    reasons = " ".join(row["cells"][3] for row in faults)
    assert HOSTILE in reasons
    assert "\x1b" not in reasons
    assert len({row["key"] for row in faults}) == len(faults)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == before, "nothing is written"


def test_who_runs_it(killed, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)

    def condition() -> str:
        return str(WatchedRun(folder).sections()["head"]["condition"])

    assert condition() == "killed"
    with (folder / "rounds.jsonl").open("ab") as journal:
        files.hold(journal)
        assert condition() == "running"
    rewritten(folder, lambda document: document["who"].update(machine="another"))
    assert condition() == "running", "it was saved a moment ago"
    os.utime(folder / "state.npz", (time.time() - 3600,) * 2)
    assert condition() == "silent"
    rewritten(folder, lambda document: document["who"].update(stopped="stopped by SIGTERM"))
    assert condition() == "stopped"
    rewritten(folder, lambda document: document.update(ended="200 rounds are done"))
    found = WatchedRun(folder).sections()
    assert (found["head"]["condition"], found["head"]["label"]) == ("finished", "Ended")
    assert found["head"]["words"] == "200 rounds are done"
    assert rows(found["table:clients"])["node 100"][0] == "in flight at the end"
    rewritten(folder, lambda document: [document.pop(key) for key in ("who", "ended", "asked", "journal_crc")])
    os.utime(folder / "state.npz", (time.time() - 3600,) * 2)
    assert condition() == "silent", "a folder of an earlier version"


def test_a_polite_stop_is_none_of_a_kill(tmp_path) -> None:
    grid = federation()
    grid.at(10.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        FedFix(1.5, **on(grid, checkpoint=tmp_path)).start(grid, record_of(MODEL), num_rounds=200)
    assert WatchedRun(tmp_path).sections()["head"]["condition"] == "stopped"


def test_a_look_reads_what_was_added_and_sees_what_one_look_at_the_end_sees(tmp_path, monkeypatch) -> None:
    grid, watched, lines = federation(), WatchedRun(tmp_path), []
    read = Journal.read

    def reading(self: Journal, new: list[str], where: str = "") -> None:
        if where.endswith(": rounds.jsonl"):
            lines.append(len(new))
        read(self, new, where)

    monkeypatch.setattr(Journal, "read", reading)
    conditions = []
    for moment in (1.6, 3.1, 3.2, 9.1, 15.4):
        grid.at(moment, lambda: conditions.append(watched.sections()["head"]["condition"]))
    FedFix(1.5, **on(grid, checkpoint=tmp_path, loss_key="loss")).start(grid, record_of(MODEL), num_rounds=20)
    assert set(conditions) == {"running"}
    assert len(lines) == 4, "nothing was saved between 3.1 and 3.2"
    grown = watched.sections()
    total = sum(lines)
    assert total == len((tmp_path / "rounds.jsonl").read_bytes().splitlines()), "every line once"
    whole = WatchedRun(tmp_path).sections()
    assert grown.keys() == whole.keys()
    for name in whole:
        if name != "head":
            assert grown[name] == whole[name], name


def test_another_run_in_the_same_place_is_read_from_its_beginning(killed, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    watched = WatchedRun(folder)
    watched.sections()
    shutil.rmtree(folder)
    with pytest.raises(Exception, match="no run is saved there"):
        watched.sections()
    grid = FakeGrid()
    grid.connect(7, shifting(1, 1, loss=0.125))
    AsyncFedAvg(**on(grid, checkpoint=folder, loss_key="loss")).start(grid, record_of(MODEL), num_rounds=60)
    found = watched.sections()
    assert found["head"]["title"] == "AsyncFedAvg on Flower"
    assert rows(found["table:clients"])["node 7"][4] == "60"
    assert "table:faults" not in found


def test_a_run_that_goes_on_from_an_older_state_is_read_anew(killed, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    watched = WatchedRun(folder)
    assert watched.sections()["head"]["facts"][0] == ["round", "20 of 200"]
    (folder / "state.npz").write_bytes(b"x")
    found = watched.sections()
    assert found["head"]["facts"][0] == ["round", "19 of 200"]
    assert "the older state, state.previous.npz, is intact and used instead" in found["head"]["warning"]
    assert len(found["chart:measure loss"]["lines"][0]["xs"]) == 19


def test_the_end_of_the_journal_is_held_to_its_checksum(killed, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    grown = RunFolder(folder).growth(0, 0)
    assert grown.anew
    nothing = RunFolder(folder).growth(grown.end, grown.crc)
    assert (nothing.lines, nothing.anew, nothing.crc) == ([], False, grown.crc)
    other = RunFolder(folder).growth(grown.end, grown.crc ^ 1)
    assert (other.lines, other.anew) == (grown.lines, True)
    path = folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"arrived"', b'"arrivee"', 1))
    with pytest.raises(InputError, match="its end is damaged"):
        WatchedRun(folder).sections()


def test_old_points_of_a_long_run_grow_sparse(monkeypatch) -> None:
    monkeypatch.setattr(module, "_POINTS", 100)
    series = module._Series()
    for k in range(1000):
        series.add(k, -k)
    assert 50 <= len(series.xs) <= 100
    assert (series.xs[0], series.xs[-1]) == (0, 999)
    assert series.ys == [-x for x in series.xs]
    gaps = np.diff(series.xs)
    assert list(gaps) == sorted(gaps, reverse=True)
