"""`fedtempo watch`: a run on Flower from outside, running, finished or killed."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time

import numpy as np
import pytest

from cli.test_cli import in_process
from fedtempo.flower import AsyncFedAvg, FedFix, recorded
from fedtempo.flower.watching import watched
from flower.test_saving import rewritten
from support.flower_fake import FakeGrid, Killed, failure, on, record_of, shifting

MODEL = {"w": np.zeros(2)}


@pytest.fixture
def run(capsys, monkeypatch):
    return lambda *words: in_process(capsys, monkeypatch, *map(str, words))


def federation() -> FakeGrid:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, loss=0.5))
    grid.connect(101, shifting(1, 0.7, loss=0.25))
    grid.connect(102, shifting(1, 10**6))  # never answers
    grid.connect(103, lambda message: [(10**8, failure(message, reason="ValueError: [red]\x1b[2Jno"))])
    return grid


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run whose server was killed."""
    folder = tmp_path_factory.mktemp("watch") / "run"
    grid = federation()
    grid.at(30.2, lambda: setattr(grid, "kill_at", 0))
    with pytest.raises(Killed):
        FedFix(1.5, **on(grid, checkpoint=folder, loss_key="loss")).start(
            grid, record_of(MODEL), num_rounds=200, timeout=3600, until=5000
        )
    return folder


def test_what_a_killed_run_shows(killed, run) -> None:
    os.utime(killed / "state.npz")  # as if it had been saved just now
    before = {path.name: path.read_bytes() for path in killed.iterdir()}
    code, out, err = run("watch", "--text", killed, "--once")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"FedFix(3/2) in {killed}: round 20 of 200, 30.0 of 5000 s of training; saved ")
    assert lines[0].endswith("not ended: it is running, or was interrupted")
    assert any(line.startswith("3 jobs out, 1 silent; timeout 3600 s") for line in lines)
    [never] = [line.split() for line in lines if line.startswith("node 102")]
    assert never[2:3] == ["0"]
    assert float(never[3]) >= 30
    assert never[4:] == ["–", "20", "silent"]
    assert "Set aside: node 103" in lines
    [last] = [line.split() for line in lines if line.split()[:2] == ["20", "30.0"]]
    assert last[2] == "2", "updates"
    assert float(last[3]) == pytest.approx(sum(recorded(killed).weights.values[-2:]), rel=1e-3)
    assert "clients' training     20  loss  0.375" in lines
    [lengths] = [line for line in lines if line.startswith("Norm × weight of the last 40 updates: ")]
    assert float(lengths.split()[9].rstrip(",")) == pytest.approx(
        2**0.5 * recorded(killed).weights.values[-1], rel=1e-3
    )
    assert any("client 3 (node 103): error: job 0" in line and "[red]no" in line for line in lines)
    assert "\x1b" not in out
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == before, "nothing is written"


def test_jobs_grow_older_until_the_run_has_ended(killed, tmp_path, run) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    for ago, silent in ((1, 1), (60, 3)):  # rounds come every 1.5 s
        os.utime(folder / "state.npz", (time.time() - ago,) * 2)
        assert sum(job.silent for job in watched(folder).jobs) == silent
    hour = time.time() - 3600
    os.utime(folder / "state.npz", (hour, hour))
    seen = watched(folder)
    assert seen.saved_ago == pytest.approx(3600, abs=60)
    assert {job.client: job.age > 3600 for job in seen.jobs} == dict.fromkeys(
        ("node 100", "node 101", "node 102"), True
    )
    assert all(job.silent for job in seen.jobs)
    assert "saved 60 min ago" in run("watch", folder, "--once")[1]
    rewritten(folder, lambda document: document.update(ended="20 rounds are done"))
    os.utime(folder / "state.npz", (hour, hour))
    seen = watched(folder)
    assert [job.silent for job in seen.jobs] == [True, False, False]
    out = run("watch", folder, "--once")[1]
    assert "ended: 20 rounds are done" in out
    assert "3 jobs out at the end, 1 silent" in out


def test_a_run_that_goes_on_is_seen_at_every_save(tmp_path) -> None:
    grid, seen = federation(), []
    for moment in (1.6, 3.1, 4.7):
        grid.at(moment, lambda: seen.append(watched(tmp_path).server_round))
    result = FedFix(1.5, **on(grid, checkpoint=tmp_path)).start(
        grid, record_of(MODEL), num_rounds=5, evaluate_fn=lambda number, arrays: None
    )
    assert seen == [1, 2, 3]
    last = watched(tmp_path)
    assert (last.server_round, last.ended) == (5, "5 rounds are done")
    assert last.rounds == tuple(closed for closed in result.rounds if closed.updates)
    assert last.faults == tuple(result.errors[-6:])


def test_a_long_run_costs_no_more_than_its_end(tmp_path, monkeypatch) -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, loss=0.5))
    AsyncFedAvg(**on(grid, checkpoint=tmp_path, checkpoint_every=50)).start(grid, record_of(MODEL), num_rounds=200)
    monkeypatch.setattr("fedtempo.flower.watching.TAIL", 5000)
    seen = watched(tmp_path)
    assert [closed.server_round for closed in seen.rounds] == list(range(193, 201))
    assert seen.measures["train"][0] == 200


def test_a_folder_of_060_is_shown(killed, tmp_path, run) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    rewritten(folder, lambda document: [document.pop(key) for key in ("asked", "ended", "journal_crc")])
    code, out, _ = run("watch", folder, "--once")
    assert code == 0
    assert "round 20, 30.0 s of training" in out


def test_it_follows_until_interrupted(killed, run, monkeypatch) -> None:
    looks = itertools.count(1)

    def sleep(seconds):
        assert seconds == 2
        if next(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedtempo.cli.watch.time.sleep", sleep)
    code, out, err = run("watch", "--text", killed)
    assert (code, err) == (0, "")
    assert out.count("of training; saved") == 3


def test_an_older_state_is_said(killed, tmp_path, run) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    (folder / "state.npz").write_bytes(b"x")
    code, out, _ = run("watch", folder, "--once")
    assert code == 0
    assert "round 19 of 200" in out
    assert "the older state, state.previous.npz, is intact and used instead" in out


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ({}, 3, "no run of fedtempo.flower is there; give the folder that checkpoint= names"),
        ({"rounds.jsonl": b""}, 3, "no round of the run there is saved yet"),
        ({"state.npz": b"x"}, 2, "state.npz: cannot be read (File is not a zip file)"),
    ],
)
def test_folders_that_hold_something_else(files, code, said, run, tmp_path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found, out, err = run("watch", tmp_path, "--once")
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert run("watch", tmp_path / "without positive curvature")[0] == 3


def test_without_flower(killed, run, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedtempo.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, out, err = run("watch", killed, "--once")
    assert (code, out) == (2, "")
    assert "fedtempo.flower needs Flower: pip install 'fedtempo[flower]'" in err
