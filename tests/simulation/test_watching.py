"""A study seen from outside by what lies in its folder: running, finished, stopped, failed, killed, or not known."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import ledger, live, unit_runner, watching
from fedtempo.simulation.engine import machine, session
from fedtempo.simulation.live import Live
from fedtempo.simulation.watching import WatchedStudy
from simulation.test_study import PROBLEM, TIMES

SCHEMES = [ft.FedAvg(), ft.FedFix("1/2")]


def run(**changes) -> ft.History:
    """Twelve runs in four units, or more."""
    given = {"until": 60, "points": 11, "seeds": (0, 1), "lr": [0.05, 0.2, 400.0], **changes}
    local = ft.LocalSGD(lr=given.pop("lr"), batch_size=4)
    return ft.simulate(given.pop("problem", PROBLEM), SCHEMES, given.pop("times", TIMES), local=local, **given)


def slow_down(patch: pytest.MonkeyPatch) -> None:
    """Look often, in programs of many pieces."""
    patch.setattr(session, "CALL_SECONDS", 0.0)
    patch.setattr(machine, "MOST_EVENTS", 16)
    patch.setattr(machine, "MOST_POINTS", 2)
    patch.setattr(unit_runner, "POLL_SECONDS", 0.001)
    patch.setattr(ledger, "POLL_SECONDS", 0.0)
    patch.setattr(live, "LIVE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, ft.History]:
    folder = tmp_path_factory.mktemp("live") / "study"
    return folder, run(checkpoint=folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A study that Ctrl-C has stopped once some units were under way."""
    folder = tmp_path_factory.mktemp("live") / "study"

    def stop(progress: ft.Progress) -> None:
        if progress.done > 0.2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        slow_down(patch)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=folder, on_progress=stop)
    return folder


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place / "study"))


def changed(folder: Path, **about: object) -> None:
    """Change the first line of the file, and take the last one away, as if its process were still at it."""
    path = folder / "live.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= about
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines if "ended" not in line))


def test_what_is_seen_at_the_end_is_what_the_history_has(finished) -> None:
    folder, history = finished
    seen = WatchedStudy(folder).look()
    assert (seen.condition, seen.words, seen.done, seen.left, seen.others) == ("finished", "", 1.0, None, 0)
    assert len(seen.curves) == 2 * 3
    assert sum(unit.runs for unit in seen.units) == 2 * 3 * 2
    for curve in seen.curves:
        there = history.dataset.sel({name: curve.labels[name] for name in ("scheme", "weights", "local_lr")})
        loss = there["loss"].transpose("seed", "time").values
        known = np.isfinite(curve.values["loss"])
        assert np.allclose(curve.values["loss"][known], loss[known], rtol=1e-5)
        assert np.array_equal(curve.times, there["time"].values)
        at = there["diverged_at"].values
        assert sorted(curve.diverged) == sorted(at[np.isfinite(at)])
        assert known.all() == (not curve.diverged)
    assert {curve.labels["local_lr"] for curve in seen.curves if curve.diverged} == {400.0}
    assert sum(unit.diverged for unit in seen.units) == 2 * 2


def test_while_it_runs_it_grows_and_every_point_is_there_once(tmp_path) -> None:
    watched, seen = WatchedStudy(tmp_path), []

    def look(progress: ft.Progress) -> None:
        seen.append(watched.look())

    with pytest.MonkeyPatch.context() as patch:
        slow_down(patch)
        run(checkpoint=tmp_path, on_progress=look)
    assert {one.condition for one in seen} == {"running"}
    assert all(one.words == f"process {os.getpid()} on {os.uname().nodename}" for one in seen)
    grown = [one.done for one in seen]
    assert grown == sorted(grown)
    assert any(0 < done < 1 for done in grown)
    assert any(one.left is not None for one in seen)
    assert watched.look().condition == "finished"
    lines = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]
    told = Counter((line["unit"], line["point"]) for line in lines if "point" in line)
    units = {line["unit"] for line in lines if line.get("finished")}
    assert set(told.values()) == {1}
    assert len(units) == len(lines[0]["units"])


def test_a_stopped_study_says_so_and_goes_on_without_doubles(stopped, tmp_path) -> None:
    folder = copied(stopped, tmp_path)
    watched = WatchedStudy(folder)
    before = watched.look()
    assert (before.condition, before.words) == ("stopped", "what was done is kept")
    assert 0 < before.done < 1
    assert not any(unit.running for unit in before.units)
    with pytest.MonkeyPatch.context() as patch:
        slow_down(patch)
        run(checkpoint=folder)
    after = watched.look()
    whole = WatchedStudy(folder).look()
    assert after.condition == whole.condition == "finished"
    for one, other in zip(after.curves, whole.curves, strict=True):
        assert one.labels == other.labels
        assert all(np.array_equal(one.values[n], other.values[n], equal_nan=True) for n in other.values)


def test_a_killed_process_is_gone_at_once(tmp_path) -> None:
    code = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from simulation.test_watching import ft, run, slow_down, pytest
def die(progress):
    if progress.done > 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
with pytest.MonkeyPatch.context() as patch:
    slow_down(patch)
    run(checkpoint=sys.argv[1], on_progress=die)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), *sys.path])
    assert done.returncode == -signal.SIGKILL
    seen = WatchedStudy(tmp_path).look()
    assert seen.condition == "killed"
    assert "is gone: it was killed, or its machine went down" in seen.words
    assert 0 < seen.done < 1
    assert seen.left is None


def test_of_another_machine_a_renewed_sign_counts_and_not_its_clock(stopped, tmp_path) -> None:
    folder = copied(stopped, tmp_path)
    path = folder / "live.jsonl"
    changed(folder, machine="another", host="far")
    assert WatchedStudy(folder).look().condition == "running", "it was written a moment ago"
    os.utime(path, (1.0, 1.0))
    watched = WatchedStudy(folder)
    seen = watched.look()
    assert seen.condition == "silent"
    assert "on far gives no sign; from here it cannot be asked" in seen.words
    os.utime(path, (2.0, 2.0))  # by its clock that was long ago
    assert watched.look().condition == "running"
    monotonic = time.monotonic
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching.time, "monotonic", lambda: monotonic() + watching.SILENT_SECONDS + 1)
        assert watched.look().condition == "silent"
    changed(folder, machine=live.process()["machine"])
    assert WatchedStudy(folder).look().condition == "killed"
    with path.open("ab") as file:
        live.hold(file)
        os.utime(path, (1.0, 1.0))
        seen = WatchedStudy(folder).look()
    assert seen.condition == "running", "whoever holds the lock is there"
    assert "it compiles, or is suspended" in seen.words


def test_without_locks_the_sign_decides(stopped, tmp_path, monkeypatch) -> None:
    folder = copied(stopped, tmp_path)
    changed(folder)
    monkeypatch.setattr(watching, "is_held", lambda path: None)
    assert WatchedStudy(folder).look().condition == "running"
    os.utime(folder / "live.jsonl", (1.0, 1.0))
    assert WatchedStudy(folder).look().condition == "silent"


def test_jobs_of_one_study_are_seen_together(tmp_path) -> None:
    run(checkpoint=tmp_path, units="1/2")
    seen = WatchedStudy(tmp_path).look()
    assert (seen.condition, seen.words) == ("stopped", "1 of its jobs finished; others have not begun")
    assert (seen.done, len(seen.units), seen.others) == (0.5, 2, 2)
    watched, during = WatchedStudy(tmp_path), []
    run(checkpoint=tmp_path, units="2/2", on_progress=lambda progress: during.append(watched.look()))
    assert {one.condition for one in during} == {"running"}
    assert all(one.words.startswith("job 2/2, process ") for one in during)
    seen = watched.look()
    assert (seen.condition, seen.done, len(seen.units), seen.others) == ("finished", 1.0, 4, 0)
    changed_file = tmp_path / "live.2-of-2.jsonl"
    changed_file.write_text(changed_file.read_text().replace('"ended":"finished"', '"ended":"failed"'))
    assert WatchedStudy(tmp_path).look().condition == "failed"


def test_a_study_of_several_is_running_between_its_parts_too(tmp_path) -> None:
    other = ft.FixedTimes([1, 1, 1, 2])
    watched, seen = WatchedStudy(tmp_path), []

    def look(progress: ft.Progress) -> None:
        seen.append(watched.look())

    run(checkpoint=tmp_path, times={"even": other, "uneven": TIMES}, on_progress=look)
    assert {one.condition for one in seen} == {"running"}
    last = watched.look()
    assert (last.condition, last.done) == ("finished", 1.0)
    assert len(last.units) == 8
    assert {curve.labels["times"] for curve in last.curves} == {"even", "uneven"}
    changed(tmp_path)
    assert WatchedStudy(tmp_path).look().condition == "killed"
    assert any(part.name.endswith("part 02") for part in last.units)


def test_what_fails_is_said(tmp_path) -> None:
    def fail(run, time, values) -> None:
        raise RuntimeError("no more room for <b>curves</b>")

    with pytest.raises(RuntimeError):
        run(checkpoint=tmp_path, on_measure=fail)
    seen = WatchedStudy(tmp_path).look()
    assert (seen.condition, seen.words) == ("failed", "RuntimeError: no more room for <b>curves</b>")


@pytest.mark.parametrize(
    "torn",
    [
        b'{"unit":0,"point":3,"at":1,"rounds":1,"upda',
        b"\0" * 300 + b"\n",
        b'{"unit":99,"point":0,"values":{}}\n[]\nnull\n7\n{"unit":0,"point":10000,"values":{"loss":[[1,1]]}}\n',
        b'{"unit":0,"point":2,"values":{"loss":"<script>"}}\n{"unit":0,"point":"x","values":{}}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
    ],
    ids=["half", "zeros", "others", "words", "deep", "bytes"],
)
def test_what_cannot_be_read_is_left_out(finished, tmp_path, torn) -> None:
    folder = copied(finished[0], tmp_path)
    path = folder / "live.jsonl"
    head, *lines = path.read_bytes().splitlines(keepends=True)
    watched = WatchedStudy(folder)
    path.write_bytes(head + b"".join(lines[:5]) + torn)
    watched.look()
    with path.open("ab") as file:
        file.write((b"" if torn.endswith(b"\n") else b"\n") + b"".join(lines[5:]))
    seen, whole = watched.look(), WatchedStudy(finished[0]).look()
    assert seen.condition == "finished"
    for one, other in zip(seen.curves, whole.curves, strict=True):
        assert all(np.array_equal(one.values[n], other.values[n], equal_nan=True) for n in other.values)


def test_what_is_half_written_is_read_when_it_is_whole(finished, tmp_path) -> None:
    folder = copied(finished[0], tmp_path)
    path = folder / "live.jsonl"
    text = path.read_bytes()
    watched = WatchedStudy(folder)
    for end in range(0, len(text), 997):
        path.write_bytes(text[:end])
        watched.look()
    path.write_bytes(text)
    seen, whole = watched.look(), WatchedStudy(finished[0]).look()
    assert seen.units == whole.units
    for one, other in zip(seen.curves, whole.curves, strict=True):
        assert all(np.array_equal(one.values[n], other.values[n], equal_nan=True) for n in other.values)


def test_a_look_reads_only_what_is_new(finished, tmp_path, monkeypatch) -> None:
    folder = copied(finished[0], tmp_path)
    parsed = []
    loads = json.loads
    monkeypatch.setattr(watching.json, "loads", lambda line: parsed.append(line) or loads(line))
    watched = WatchedStudy(folder)
    watched.look()
    first = len(parsed)
    assert first == len((folder / "live.jsonl").read_bytes().splitlines())
    watched.look()
    assert len(parsed) == first
    with (folder / "live.jsonl").open("ab") as file:
        file.write(b'{"ended":"stopped","why":"","at":9.0}\n')
    assert watched.look().condition == "stopped"
    assert len(parsed) == first + 1


def test_a_study_trains_where_the_file_cannot_be_written(tmp_path) -> None:
    (tmp_path / "study" / "live.jsonl").mkdir(parents=True)
    (tmp_path / "study" / "units").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtempo.simulation.checkpoint.Folder._unfinished", lambda self, path: True)
        assert run(checkpoint=tmp_path / "study").finished
    assert WatchedStudy(tmp_path / "study").look().condition == "finished", "of the history"


def test_what_the_disk_refuses_is_written_later(tmp_path) -> None:
    writer = Live(tmp_path / "live.jsonl")
    writer.begin({"parts": True})
    file = writer._file
    assert file is not None

    class Full:
        """Takes five bytes, and then no more."""

        def write(self, content: bytes) -> int:
            file.write(content[:5])
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

    writer._file = Full()
    writer.progress(0.1)
    writer._file = file
    writer.progress(0.2)
    writer.end("finished")
    lines = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]
    assert [line.get("done", line.get("ended")) for line in lines[1:]] == [0.1, 0.2, "finished"]


def test_numbers_are_short_and_what_is_not_finite_is_null() -> None:
    given = np.array([[0.0, 1.23456789, -9876543.21], [1e-300, float("nan"), float("-inf")]])
    assert live._plain(given) == [[0.0, 1.23457, -9876540.0], [1e-300, None, None]]
    assert live._plain(np.float32(0.1)) == 0.1
    assert live._plain(np.array(float("nan"))) is None


def test_one_process_writes(tmp_path) -> None:
    one, other = Live(tmp_path / "live.jsonl"), Live(tmp_path / "live.jsonl")
    one.begin({"parts": True})
    before = (tmp_path / "live.jsonl").read_bytes()
    other.begin({"parts": True})
    other.progress(0.5)
    other.end("finished")
    assert (tmp_path / "live.jsonl").read_bytes() == before
    one.end("stopped")


def test_a_study_of_an_earlier_version_is_seen_by_its_history(finished, stopped, tmp_path) -> None:
    for folder, condition in ((finished[0], "finished"), (stopped, "unknown")):
        place = tmp_path / condition
        place.mkdir()
        there = copied(folder, place)
        (there / "live.jsonl").unlink()
        seen, with_file = WatchedStudy(there).look(), WatchedStudy(folder).look()
        assert seen.condition == condition
        losses = {tuple(map(str, c.labels.values())): c.values["loss"] for c in seen.curves}
        for curve in with_file.curves:
            key = tuple(str(curve.labels[name]) for name in ("scheme", "weights", "local_lr"))
            if key in losses and not curve.diverged:
                known = curve.values["loss"].shape[1]
                assert np.allclose(losses[key][:, :known], curve.values["loss"], rtol=1e-5, equal_nan=True)
        assert losses
    (there / "history.nc").unlink()
    seen = WatchedStudy(there).look()
    assert (seen.condition, seen.curves) == ("unknown", ())


def test_a_study_that_is_gone_is_said(finished, tmp_path) -> None:
    folder = copied(finished[0], tmp_path)
    watched = WatchedStudy(folder)
    watched.look()
    shutil.rmtree(folder)
    with pytest.raises(ft.FedtempoError, match="no study is there any more"):
        watched.look()
    copied(finished[0], tmp_path)
    assert watched.look().condition == "finished"
    assert len(watched.look().curves) == 6


def test_overwriting_removes_it(finished, tmp_path) -> None:
    folder = copied(finished[0], tmp_path)
    (folder / "live.1-of-2.jsonl").write_text("")
    ft.simulate(PROBLEM, SCHEMES, TIMES, until=20, checkpoint=folder, overwrite=True)
    assert sorted(path.name for path in folder.glob("live*")) == ["live.jsonl"]


def test_looking_loads_no_jax() -> None:
    code = "import sys, fedtempo.simulation.watching, fedtempo.report.watch_text; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
