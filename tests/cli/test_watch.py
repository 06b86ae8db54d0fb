"""`fedtempo watch`: a study or a run on Flower from outside, running, finished or killed, as text or as a page."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest

import fedtempo as ft
from cli.test_cli import in_process
from fedtempo.flower import AsyncFedAvg, FedFix, recorded
from fedtempo.flower.watching import watched
from flower.test_saving import rewritten
from support.flower_fake import FakeGrid, Killed, failure, on, record_of, shifting
from support.live_server import Stream, asked

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
    assert " ago; killed: process " in lines[0]
    assert lines[0].endswith(" is gone; it goes on when its server is started again")
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
        ({}, 3, "the folder is empty; give that of a study, or the one that checkpoint= names"),
        ({"a": b"", "b": b""}, 3, "no study (study.json) and no run of fedtempo.flower (state.npz) is there, but a, b"),
        ({"runs.json": b"{}"}, 3, "runs of an app in virtual time are there, which are done when they are saved"),
        ({"study.json": b"{}"}, 2, "study.json: this is not a study's description"),
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
    assert run("watch", tmp_path)[::2] == (code, err), "no page either"


def test_what_lies_elsewhere_is_named(killed, run, tmp_path) -> None:
    shutil.copytree(killed, tmp_path / "fedavg" / "run")
    _, _, err = run("watch", tmp_path)
    assert err.endswith(f"no study or run is there itself; there are some in {tmp_path / 'fedavg' / 'run'}: give one\n")
    _, _, err = run("watch", killed / "state.npz")
    assert "this is a file, and what runs is followed by its folder" in err
    code, _, err = run("watch", tmp_path / "nowhere")
    assert (code, "there is no such folder" in err) == (3, True)


def test_without_flower(killed, run, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedtempo.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, out, err = run("watch", killed, "--once")
    assert (code, out) == (2, "")
    assert "fedtempo.flower needs Flower: pip install 'fedtempo[flower]'" in err


# -- a study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study that is done, under a name that would like to be more."""
    folder = tmp_path_factory.mktemp("watch") / "study[red]<script>"
    problem = ft.problems.quadratics(3, dimension=2, rows=4, seed=1)
    local = ft.LocalSGD(lr=[0.1, 300.0], batch_size=2)
    schemes = [ft.FedAvg(), ft.FedFix(1)]
    ft.simulate(problem, schemes, ft.FixedTimes([1, 2, 3]), until=30, points=4, local=local, checkpoint=folder)
    return folder


def test_a_study_as_text(study, run) -> None:
    code, out, err = run("watch", study, "--once")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert out.splitlines()[0] == f"Study in {study}: Finished"
    assert out.splitlines()[1].startswith("done 100 %, ran ")
    assert ["FedFix(1)", "0", "2", "done", "100%", "1", "diverged"] in lines
    loss = ft.History.load(study / "history.nc").dataset["loss"].sel(scheme="FedAvg", local_lr=0.1, time=30).item()
    assert any(line[:4] == ["FedAvg", "0.1", "30", f"{loss:.4g}"] for line in lines)
    assert run("watch", study, "--text", "--once")[1] == out


def test_a_study_is_followed_until_interrupted(study, run, monkeypatch) -> None:
    looks = itertools.count(1)

    def sleep(seconds):
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedtempo.cli.watch.time.sleep", sleep)
    code, out, err = run("watch", "--text", study)
    assert (code, err) == (0, "")
    assert out.count(": Finished\n") == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--text", "--port", "8000"], "--port, --host and --open: they are for the page"),
        (["--once", "--open"], "--port, --host and --open: they are for the page"),
        (["--text", "--host", "0.0.0.0"], "--port, --host and --open: they are for the page"),
        (["--once", "--track", "csv"], "holds a study, and fedtempo run --track follows those"),
        (["--track", "csv"], "holds a study, and fedtempo run --track follows those"),
        (["--host", "192.0.2.1"], "--port: cannot listen on 192.0.2.1, port 0"),
    ],
)
def test_flags_that_do_not_fit(flags, said, study, run) -> None:
    code, out, err = run("watch", study, *flags)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_the_extra(study, run, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "fedtempo.report.browser.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, out, err = run("watch", study)
    assert (code, out) == (2, "")
    assert err == (
        "fedtempo: the live page needs Starlette and Uvicorn: pip install 'fedtempo[watch]'; or add --text for the "
        "terminal\n"
    )
    assert run("watch", study, "--once")[0] == 0


# -- the page


@contextmanager
def command(*words):
    """`fedtempo watch` in a process of its own, and the address that it prints."""
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-m", "fedtempo", "watch", *map(str, words)], stdout=-1, stderr=-1, text=True, env=told
    ) as process:
        assert process.stdout is not None
        yield process, SimpleNamespace(url=process.stdout.readline().strip())


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_page_until_ctrl_c(study, ending) -> None:
    with command(study) as (process, server):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", server.url)
        assert asked(server)[0] == 200
        stream = Stream(server)
        seen = stream.seen()
        assert seen["order"] == ["head", "chart:loss", "chart:surrogate_loss", "table:units", "table:diverged"]
        assert seen["sections"]["head"]["title"] == "Study in study[red]<script>"
        process.send_signal(ending)
        while stream.line():
            pass
        stream.close()
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", f"fedtempo: following {study}; Ctrl-C ends it\n")


def test_other_machines_are_let_in_only_when_asked_and_that_is_said(study) -> None:
    with command(study, "--host", "0.0.0.0") as (process, server):
        assert urlsplit(server.url).hostname == socket.gethostname().lower()
        port = urlsplit(server.url).port
        here = SimpleNamespace(url=server.url.replace(f"//{socket.gethostname()}", "//127.0.0.1"))
        assert asked(here)[0] == 200
        assert asked(here, headers={"Host": f"evil.example:{port}"})[0] == 421
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert "this page is open to other machines, under 0.0.0.0: whoever has the address reads it" in err


def test_a_run_is_tracked_behind_its_page(killed, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    with command(folder, "--track", "csv") as (process, server):
        stream = Stream(server)
        assert stream.seen()["order"][:2] == ["head", "table:clients"]
        stream.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert len(list(folder.glob("track/**/*.csv"))) == 1
