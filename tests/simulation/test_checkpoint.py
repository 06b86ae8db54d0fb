"""A study that is stopped, killed or short of disk: what is there is whole, and goes on to the same bits."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import ledger, study
from fedtempo.simulation import unit_runner as runner
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.engine import machine, session
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.engine.program import Piece
from fedtempo.simulation.engine.session import Session
from fedtempo.simulation.history.history import History
from simulation.test_study import PROBLEM, TIMES, same

SCHEMES = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)]


def run(**changes) -> History:
    """A study of 32 runs."""
    given = {
        "problem": PROBLEM,
        "schemes": SCHEMES,
        "times": TIMES,
        "until": 150,
        "steps": 1,
        "lr": [0.05, 0.3],
        "weights": ("time-based", "identical"),
        "seeds": (0, 1),
        "points": 11,
        **changes,
    }
    local = ft.LocalSGD(steps=given.pop("steps"), lr=given.pop("lr"), batch_size=4)
    stop = given.get("on_progress")
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(stop, Stop):
            patch.setattr(Session, "train", stop.held(Session.train))
        return ft.simulate(given.pop("problem"), given.pop("schemes"), given.pop("times"), local=local, **given)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for those that are only for whoever watches."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "live.jsonl"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def events_done(folder: Path) -> dict[str, int]:
    """By unit that has been saved, how far it is; reads every file."""
    done = {}
    for path in sorted((folder / "units").glob("*.npz")):
        with np.load(path, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        assert all(array.dtype.kind in "biuf" for array in arrays.values())
        done[path.name] = 10**9 if arrays["finished"] else int(arrays["events_done"])
    return done


def shorten(monkeypatch) -> None:
    """Stop, report and save as often as can be, in programs of many pieces."""
    monkeypatch.setattr(session, "CALL_SECONDS", 0.0)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(ledger, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(machine, "MOST_EVENTS", 64)
    monkeypatch.setattr(machine, "MOST_POINTS", 4)


@pytest.fixture
def short_calls(monkeypatch) -> None:
    shorten(monkeypatch)


class Stop:
    """A callback that interrupts when so many updates are done; meanwhile units wait, so that none gets far beyond."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.raised = threading.Event()
        self._done = 0

    def __call__(self, progress: ft.Progress) -> None:
        if progress.updates >= self.updates:
            self.raised.set()
            raise KeyboardInterrupt

    def held(self, train: Callable[[Session, Piece], int]) -> Callable[[Session, Piece], int]:
        """`Session.train`, made to wait."""

        def waiting(unit: Session, piece: Piece) -> int:
            assert self._done < self.updates or self.raised.wait(60)
            events = train(unit, piece)
            self._done += events * unit.spec.unit.num_runs
            return events

        return waiting


def carry_out(unit: Session) -> Iterator[int]:
    """A unit to its end; yields after each call of the engine how many events it had."""
    while not unit.finished:
        piece = unit.piece()
        events = unit.train(piece)
        unit.measure(piece)
        yield events


# -- stopped and resumed


@pytest.mark.parametrize(
    ("engine", "steps", "stops"),
    [("events", 1, (1, 400, 900)), ("events", 5, (300,)), ("waves", 1, (300, 900))],
)
def test_a_study_that_was_stopped_goes_on_to_the_same_bits(engine, steps, stops, short_calls, tmp_path) -> None:
    given = {"engine": engine, "steps": steps, "until": 300}
    whole = run(**given)
    assert not whole.diverged.all()
    folder = tmp_path / "results"
    reached: list[int] = []
    for updates in stops:
        often = 1e9 if updates == 1 else 0.01  # at the first stop of several, nothing was saved before
        with pytest.raises(KeyboardInterrupt):
            run(**given, checkpoint=folder, save_every=often, on_progress=Stop(updates))
        part = History.load(folder / "history.nc")
        assert part.attrs["finished"] == 0
        known = part.dataset["loss"].notnull()
        reached.append(int(known.sum()))
        assert np.array_equal(part.dataset["loss"].where(known), whole.dataset["loss"].where(known), equal_nan=True)
    assert reached == sorted(reached)
    assert 0 < reached[-1] < whole.dataset["loss"].size
    same(run(**given, checkpoint=folder), whole)
    same(History.load(folder / "history.nc"), whole)
    before = contents(folder / "units")
    same(run(**given, checkpoint=folder), whole)
    assert contents(folder / "units") == before


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("engine", ["events", "waves"])
def test_a_unit_can_be_cut_after_every_call(engine, steps, short_calls, monkeypatch, tmp_path) -> None:
    """Each snapshot of a run, through a file, goes on to the same measures and the same model."""
    monkeypatch.setattr(study, "run_study", lambda planned, folder, how: planned)
    planned = run(
        engine=engine,
        schemes=[ft.FedBuff(2), ft.StagedFedFix([("1/4", 40), ("1/2", None)])],
        until=200,
        steps=steps,
        lr=[0.05, 40.0],
    )
    (tmp_path / "units").mkdir()
    folder = Folder(tmp_path)
    units = study.units_of(planned, 1)
    (made,) = units.machines
    for spec in units.specs[:: 1 if engine == "waves" else 2]:
        with numerics("float32"):
            first = Session(spec, made)
            cuts = 0
            for _ in carry_out(first):
                folder.write_unit(cuts, first.snapshot())
                cuts += 1
            end = first.snapshot()
            assert first.finished
            assert 0 < (end["diverged"] >= 0).sum() < end["diverged"].size
            assert cuts > 5
            for k in {0, 1, *range(2, cuts, 1 + cuts // 10), cuts - 2, cuts - 1}:
                saved = folder.read_unit(k)
                assert saved is not None
                assert bool(saved["finished"]) == (k == cuts - 1)
                if k < cuts - 1:
                    later = Session(spec, made, saved)
                    for _ in carry_out(later):
                        pass
                    saved = later.snapshot()
                assert saved.keys() == end.keys()
                for name, array in end.items():
                    assert np.array_equal(saved[name], array, equal_nan=array.dtype.kind == "f"), (k, name)


def test_a_unit_that_another_version_lays_out_otherwise_is_left_alone(short_calls, monkeypatch, tmp_path) -> None:
    given = {"schemes": ft.AsyncFedAvg(), "checkpoint": tmp_path / "r"}
    with pytest.raises(KeyboardInterrupt):
        run(**given, save_every=0, on_progress=Stop(50))
    before = contents(tmp_path)
    monkeypatch.setattr(machine, "MOST_EVENTS", 128)
    with pytest.raises(ft.ResultsConflict, match="started by another version"):
        run(**given)
    assert contents(tmp_path) == before


def test_random_times_and_other_numbers_of_cores_go_on_too(short_calls, monkeypatch, tmp_path) -> None:
    """A study begun on one core is cut as it began, whatever resumes it."""
    given = {"schemes": [ft.AsyncFedAvg()], "times": ft.LogNormalTimes([1, 2, 3, 5], sigma=0.5), "dtype": "float64"}
    monkeypatch.setattr(study, "cores", lambda: 1)
    whole = run(**given)
    with pytest.raises(KeyboardInterrupt):
        run(**given, checkpoint=tmp_path / "r", save_every=0, on_progress=Stop(200))
    monkeypatch.setattr(study, "cores", lambda: 7)
    same(run(**given, checkpoint=tmp_path / "r"), whole)


def test_an_error_in_the_callback_stops_and_saves(short_calls, tmp_path) -> None:
    def on_progress(progress: ft.Progress) -> None:
        if progress.updates >= 200:
            raise LookupError("no logger there")

    with pytest.raises(LookupError, match="no logger there"):
        run(checkpoint=tmp_path / "r", on_progress=on_progress)
    assert max(events_done(tmp_path / "r").values()) > 0
    same(run(checkpoint=tmp_path / "r"), run())


# -- killed


CHILD = """
import sys
sys.path.insert(0, {tests!r})
import fedtempo.simulation.engine.session as session, fedtempo.simulation.engine.machine as machine
session.CALL_SECONDS = 0.0
machine.MOST_EVENTS, machine.MOST_POINTS = 64, 4
from simulation import test_checkpoint
{before}
test_checkpoint.run(checkpoint={folder!r}, save_every=0, until={until}, dtype="float64")
"""
LONG = 2000


def child(folder: Path, tmp_path: Path, *, before: str = "") -> subprocess.Popen[str]:
    """A process that runs the long study; it may be killed, and so keeps compiled programs for itself."""
    script = CHILD.format(tests=str(Path(__file__).parents[1]), folder=str(folder), until=LONG, before=before)
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process: subprocess.Popen[str], condition) -> None:
    """Until something is there."""
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.02)


def long_run(**changes) -> History:
    """What the child runs."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return run(until=LONG, dtype="float64", **changes)


@pytest.fixture(scope="module")
def long_study() -> History:
    return long_run()


def test_kill_9_at_any_moment_loses_the_last_interval_at_most(tmp_path, long_study) -> None:
    folder = tmp_path / "r"
    chance = random.Random(3)
    done: dict[str, int] = {}
    for _ in range(3):
        process = child(folder, tmp_path)
        wait_for(process, lambda: folder.is_dir() and events_done(folder) != done)  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = events_done(folder)
        assert all(now[unit] >= events for unit, events in done.items())
        assert now != done
        done = now
        assert json.loads((folder / "study.json").read_text())["format"] == 1
        if (folder / "history.nc").exists():
            assert not History.load(folder / "history.nc").finished
    assert not Folder(folder).finished()
    for half in ("units/.0003.npz.abcd1234", ".history.nc.abcd1234"):
        (folder / half).write_bytes(b"half a file")
    same(long_run(checkpoint=folder), long_study)
    assert not list(folder.rglob(".*"))


def test_an_interrupt_keeps_the_partial_history(tmp_path, long_study) -> None:
    folder = tmp_path / "r"
    process = child(folder, tmp_path)
    wait_for(process, lambda: folder.is_dir() and len(events_done(folder)) > 0)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in told
    part = History.load(folder / "history.nc")
    assert part.attrs["finished"] == 0
    assert not part.finished
    known = part.dataset["loss"].notnull()
    assert 0 < int(known.sum()) < known.size
    assert np.array_equal(part.dataset["loss"].where(known), long_study.dataset["loss"].where(known), equal_nan=True)
    assert "not finished" in repr(part)
    same(long_run(checkpoint=folder), long_study)


def test_what_a_process_killed_at_its_very_start_leaves_is_no_hindrance(tmp_path) -> None:
    given = {"schemes": ft.FedAvg(), "until": 10}
    whole = run(**given)
    for number, left in enumerate(
        (["units/"], [".study.json.abc"], ["units/", "units/.0001.npz.abc", ".study.json.abc"])
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in left:
            (folder / name).mkdir() if name.endswith("/") else (folder / name).write_bytes(b'{"form')
        if number == 2:
            same(run(**given, checkpoint=folder), whole)
            assert not list(folder.glob(".*"))
        else:
            assert Folder(folder).check({}) is None


# -- conflicts


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """The folder of a study that is finished."""
    folder = tmp_path_factory.mktemp("study") / "r"
    run(schemes=ft.FedAvg(), until=10, checkpoint=folder)
    return folder


def refused(folder: Path, error: type[Exception], message: str, **changes) -> None:
    """A call that ends in one message and leaves every file as it was."""
    before = contents(folder if folder.is_dir() else folder.parent)
    with pytest.raises(error, match=message) as caught:
        run(**{"schemes": ft.FedAvg(), "until": 10, "checkpoint": folder} | changes)
    assert "\n" not in str(caught.value)
    assert contents(folder if folder.is_dir() else folder.parent) == before


OTHER_DATA = ft.problems.quadratics(4, dimension=3, noise=0.3, rows=[3, 8, 5, 12], seed=1, importance="rows")
OTHER_DATA.rows = jax.tree.map(lambda x: x * 1.5, OTHER_DATA.rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lr": [0.05, 0.2]},
            r"another study \(its local\.local_lr is .*; choose another folder",
        ),
        ({"problem": OTHER_DATA}, "another study .its fingerprint is "),
        ({"schemes": ft.FedFix("1/2")}, "its schemes is"),
        ({"until": 11}, 'its until is "10", here it is "11"'),
        ({"seeds": (0, 2)}, r"its seeds is \[0, 1\], here it is \[0, 2\]"),
        ({"times": ft.FixedTimes([1, 2, 3, 4])}, "its times is"),
        ({"engine": "waves"}, 'its engine is "events", here it is "waves"'),
        ({"dtype": "float64"}, "its dtype is"),
        ({"bound": 10.0}, "its bound is"),
    ],
)
def test_the_results_of_another_study_are_left_alone(begun, changes, message) -> None:
    assert OTHER_DATA.spec() == PROBLEM.spec()
    refused(begun, ft.ResultsConflict, message, **changes)


def test_a_folder_of_something_else_is_left_alone(tmp_path) -> None:
    folder = tmp_path / "photos"
    (folder / "units").mkdir(parents=True)
    (folder / "units" / "0000.npz").write_bytes(b"of a study whose description was lost")
    refused(folder, ft.ResultsConflict, "contains other files and no study; choose another folder")
    other = tmp_path / "other"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"meow")
    refused(other, ft.ResultsConflict, "contains other files and no study")
    file = tmp_path / "file"
    file.write_text("a file")
    refused(file, ft.ResultsConflict, "there is a file of that name")
    refused(file / "below", ft.InputError, "cannot make this folder")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a study's description"),
        ("not JSON", "not a study's description"),
        ("[1, 2]", "not a study's description"),
        ('{"format": 1}', "not a study's description"),
        ('{"format": 1, "configuration": [3], "layout": {"blocks": 1}}', "not a study's description"),
        ('{"format": 1, "configuration": {}}', "not a study's description"),
        ('{"format": 2, "study": {}}', "format 2, and this version reads up to 1; use a newer fedtempo"),
        ("\x00\xff", "not a study's description"),
    ],
)
def test_a_description_that_cannot_be_read_is_left_alone(tmp_path, text, message) -> None:
    (tmp_path / "study.json").write_bytes(text.encode("latin-1"))
    refused(tmp_path, ft.InputError, message)


def test_a_unit_file_that_is_damaged_is_named_and_left_alone(tmp_path, begun) -> None:
    for name, content in contents(begun).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    unit = tmp_path / "units" / "0000.npz"
    good = unit.read_bytes()
    for bad in (good[: len(good) // 2], b"", good[:200] + bytes(50) + good[250:], b"no archive"):
        unit.write_bytes(bad)
        refused(tmp_path, ft.InputError, r"0000\.npz: cannot be read .*remove it to run this part again")
    with unit.open("wb") as file:
        np.savez(file, photo=np.zeros(3))
    refused(tmp_path, ft.InputError, "cannot be read .it is not a unit of a study")
    unit.unlink()
    same(run(schemes=ft.FedAvg(), until=10, checkpoint=tmp_path), History.load(begun / "history.nc"))


def test_a_folder_without_a_study_is_said_to_have_none(tmp_path, begun) -> None:
    with pytest.raises(ft.DataMissing, match=r"no study is there \(no study\.json\)"):
        Folder(tmp_path).description()
    assert json.loads((begun / "study.json").read_text())["configuration"]["until"] == "10"


def test_overwriting_replaces_a_study_and_nothing_else(tmp_path) -> None:
    folder, given = tmp_path / "r", {"schemes": ft.FedAvg(), "until": 10}
    run(**given, checkpoint=folder)
    (folder / "notes.txt").write_text("mine")
    other = run(**given, lr=[0.2, 0.1], checkpoint=folder, overwrite=True, description={"about": "the second"})
    same(other, run(**given, lr=[0.2, 0.1]))
    same(History.load(folder / "history.nc"), other)
    assert (folder / "notes.txt").read_text() == "mine"
    assert Folder(folder).description() == {"about": "the second"}
    assert Folder(folder).finished()
    refused(folder, ft.ResultsConflict, "another study")
    refused(folder, ft.InputError, "times: 2 clients", times=ft.FixedTimes([1, 2]), overwrite=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    refused(tmp_path / "photos", ft.ResultsConflict, "contains other files", overwrite=True)
    refused(tmp_path / "photos" / "cat.jpg", ft.ResultsConflict, "there is a file of that name", overwrite=True)


def test_a_study_begun_from_python_has_no_description(begun) -> None:
    with pytest.raises(ft.InputError, match="started from Python; continue with the same call of simulate"):
        Folder(begun).description()


# -- a full disk


def stopped(folder: Path) -> dict[str, bytes]:
    with pytest.raises(KeyboardInterrupt):
        long_run(checkpoint=folder, save_every=0, on_progress=Stop(200))
    return contents(folder)


def one_message(told: str) -> str:
    """The last line of a traceback, of one error that is ours."""
    last = told.strip().splitlines()[-1]
    assert last.startswith("fedtempo.errors.StorageError: "), told
    assert "During handling" not in told
    return last


def test_a_disk_that_is_full_leaves_the_last_checkpoint(tmp_path, long_study) -> None:
    """By a limit on the size of files, which any user can set."""
    folder = tmp_path / "r"
    before = stopped(folder)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    _, told = (process := child(folder, tmp_path, before=limit)).communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"(\d{4}\.npz|history\.nc): cannot write it \(File too large\)", one_message(told))
    assert contents(folder) == before
    same(long_run(checkpoint=folder), long_study)


def test_a_file_system_without_room_leaves_the_last_checkpoint(tmp_path) -> None:
    """On a real one of 48 KiB, where it may be mounted."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "none", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    try:
        folder = small / "r"
        process = child(folder, tmp_path)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 1
        assert re.search(r"cannot write it \(No space left on device\)", one_message(told))
        assert json.loads((folder / "study.json").read_text())["format"] == 1
        assert len(events_done(folder)) > 0
        assert not list(folder.rglob(".*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


# -- no pickle


def test_nothing_is_pickled(begun, tmp_path) -> None:
    assert len(events_done(begun)) == 2
    for path in Path(ft.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if path.name == "worker.py":  # from process to process, as executors do it, and never a file
            assert not re.search(r"pickle\.load\(|pickle\.dump\(", text)
            continue
        assert not re.search(r"import\s+\w*pickle|from\s+\w*pickle|allow_pickle\s*=\s*True|joblib|dill|marshal", text)
        for opened in re.findall(r"np\.load\(.*", text):
            assert "allow_pickle=False" in opened, path
    with pytest.raises(ValueError, match=r"[Oo]bject arrays cannot be saved"):
        Folder(begun).write_unit(99, {"finished": np.array([{}])})
    assert not (begun / "units" / "0099.npz").exists()
    np.savez(tmp_path / "0000.npz", finished=np.array([{}], dtype=object))
    (tmp_path / "units").mkdir()
    os.replace(tmp_path / "0000.npz", tmp_path / "units" / "0000.npz")
    with pytest.raises(ft.InputError, match="cannot be read"):
        Folder(tmp_path).read_unit(0)


def test_names_of_measures_survive_the_file(tmp_path) -> None:
    (tmp_path / "units").mkdir()
    arrays = {
        "finished": np.array(False),
        "points_done": np.array(3),
        "diverged": np.array([[-1]]),
        "table:my__own:metric": np.arange(3.0),
        "table:file": np.arange(2.0),
        "model:0": np.zeros((1, 2, 1), dtype=np.float32),
    }
    Folder(tmp_path).write_unit(3, arrays)
    back = Folder(tmp_path).read_unit(3)
    assert back is not None
    assert back.keys() == arrays.keys()
    assert all(np.array_equal(back[name], arrays[name]) and back[name].dtype == arrays[name].dtype for name in arrays)
    assert Folder(tmp_path).read_unit(4) is None


def test_a_study_goes_on_with_the_engine_that_it_was_begun_with(tmp_path) -> None:
    given = {"schemes": [ft.FedAvg()], "until": 5, "lr": 0.05, "seeds": [1]}
    begun = run(**given, engine="waves", checkpoint=tmp_path / "w")
    assert begun.attrs["engine"] == "waves"
    assert run(**given, checkpoint=tmp_path / "w").attrs["engine"] == "waves"
    with pytest.raises(ft.ResultsConflict, match="engine"):
        run(**given, engine="events", checkpoint=tmp_path / "w")
