"""Models that wait in a file: the same bits, bounded memory, and a disk that refuses or lies."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
import fedtempo.flower.strategy as strategy_module
from fedtempo import files
from fedtempo.errors import InputError, StorageError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded
from fedtempo.flower.training import Training
from fedtempo.flower.versions import Step, Versions
from fedtempo.simulation.model_file import ModelFile
from support.flower_fake import FakeGrid, on, record_of, shifting
from support.power import using

ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3).T,
    "b": np.array(True),
    "c": np.zeros((0, 4), dtype=np.float16),
    "d": np.array([1 + 2j, np.nan], dtype=np.complex64),
    "e": np.array([[7]], dtype=np.uint8),
    "f": np.array([1.0, -0.0, np.inf], dtype=np.float32),
    "g": np.zeros((5, 0)),
}
FIRST = {"w": np.linspace(-1, 1, 7), "b": np.zeros(3, dtype=np.float32), "fc.num_batches_tracked": np.array(0)}
ONE_MODEL = 1e-9  # gigabytes: a byte, so that only the current model is in memory
ALL = None


def test_a_model_is_read_back_as_it_was(tmp_path) -> None:
    found = ModelFile(tmp_path).put(ARRAYS).read()
    assert list(found) == list(ARRAYS)
    for name, array in found.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert array.tobytes() == ARRAYS[name].tobytes()


def test_a_place_is_used_again_when_nobody_holds_it(tmp_path) -> None:
    file = ModelFile(tmp_path)
    models = [{"w": np.full(100, k, dtype=np.float32)} for k in range(20)]
    held = [file.put(model) for model in models[:4]]
    handle = file._file
    size = os.fstat(handle.fileno()).st_size
    for number, model in enumerate(models[4:]):
        held[number % 4] = None  # of the places that are free the first is taken
        held[number % 4] = file.put(model)
    assert os.fstat(handle.fileno()).st_size == size
    assert sorted(place.read()["w"][0] for place in held) == [16, 17, 18, 19]
    file.close()
    assert handle.closed


def test_the_file_has_no_name(tmp_path) -> None:
    place = ModelFile(tmp_path).put(ARRAYS)
    assert not list(tmp_path.iterdir())
    assert place.read().keys() == ARRAYS.keys()


@pytest.mark.parametrize("damage", ["changed", "cut off"])
def test_a_model_that_the_disk_has_changed_is_not_taken(damage, tmp_path) -> None:
    file = ModelFile(tmp_path)
    first, second = file.put({"w": np.zeros(9)}), file.put({"w": np.ones(9)})
    if damage == "changed":
        file._file.seek(70)
        file._file.write(b"\x01")
    else:
        file._file.truncate(100)
    broken, told = (first, "has changed there") if damage == "changed" else (second, "cannot be read back")
    whole = second if damage == "changed" else first
    with pytest.raises(StorageError, match=told):
        broken.read()
    assert whole.read()["w"].tolist() == [1.0 if whole is second else 0.0] * 9


class Shut(files.Disk):
    """A disk on which some folders cannot be written, or that is full after so many bytes."""

    def __init__(self, *shut: Path, room: int | None = None) -> None:
        self.shut, self.room, self.opened = shut, room, []

    def open_nameless(self, folder):
        if any(folder.is_relative_to(each) for each in self.shut):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        self.opened.append(folder)
        file = super().open_nameless(folder)
        if self.room is None:
            return file
        disk, write = self, file.write

        class Small:
            def __getattr__(self, name):
                return getattr(file, name)

            def write(self, data):
                if disk.room <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                count = min(len(data), disk.room)
                disk.room -= count
                return write(data[:count])

        return Small()


def test_what_a_full_disk_refuses_takes_no_place(tmp_path) -> None:
    disk = Shut(room=50)
    with using(disk):
        file = ModelFile(tmp_path)
        for _ in range(3):
            with pytest.raises(StorageError, match="No space left"):
                file.put({"w": np.zeros(9)})
        disk.room = 100
        assert file.put({"w": np.ones(9)}).read()["w"].tolist() == [1] * 9
    assert file._places == 1


class Shared(files.Disk):
    """A disk with little room left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def free_bytes(self, folder):
        return self.left


def test_room_to_save_the_run_is_left_beside_the_file(tmp_path) -> None:
    disk, model = Shared(1000 * 64), {"w": np.zeros(8)}
    with using(disk):
        file = ModelFile(tmp_path)
        held = [file.put(model)]
        disk.left = 5 * 64
        held.append(file.put(model))
        disk.left -= 1
        for _ in range(2):
            with pytest.raises(StorageError, match=r"is needed to save the run.* choose a checkpoint on a larger one"):
                file.put(model)
        assert os.fstat(file._file.fileno()).st_size == 2 * 64
        held.pop()
        held.append(file.put(model))  # a place that is there takes no more room
        assert [place.read()["w"].tolist() for place in held] == [[0] * 8] * 2


def test_a_refused_model_takes_no_room(tmp_path) -> None:
    disk = Shut(room=100)
    with using(disk):
        file = ModelFile(tmp_path)
        place = file.put({"w": np.ones(8)})
        with pytest.raises(StorageError, match="No space left"):
            file.put({"w": np.zeros(8)})
    assert os.fstat(file._file.fileno()).st_size == 64
    assert place.read()["w"].tolist() == [1] * 8


def test_places_that_lose_models_are_not_used_again_and_three_are_enough(tmp_path) -> None:
    file = ModelFile(tmp_path)
    model = {"w": np.ones(8)}
    for number in range(3):
        place = file.put(model)
        assert place._number == number
        file._file.seek(64 * number)
        file._file.write(b"\x07")
        with pytest.raises(StorageError, match="has changed there"):
            place.read()
        del place
    with pytest.raises(StorageError, match="3 models of jobs that are out could not be read back"):
        file.put(model)


def test_it_lies_in_the_folder_or_where_temporary_files_do(tmp_path, monkeypatch) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(theirs))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for shut, where in (((), mine), ((mine,), theirs)):
        disk = Shut(*shut)
        with using(disk):
            place = ModelFile(mine).put(ARRAYS)
        assert disk.opened == [where]
        assert place.read()["e"].tolist() == [[7]]
    with using(Shut(mine, theirs)), pytest.raises(StorageError, match=r"mine \(Permission denied\) or .*theirs"):
        ModelFile(mine).put(ARRAYS)


# -- versions


def test_the_oldest_models_are_put_away_and_the_current_one_never(tmp_path) -> None:
    file = ModelFile(tmp_path)
    versions = Versions({"w": np.zeros(4)}, file=file, room=3 * 32)
    for number in range(10):
        versions.hold()
        versions.record()
        versions.advance([Step(1.0, {"w": np.ones(4)}, 2.0)])
        versions.make_room()
        assert versions.in_memory == min(number + 2, 3)
        assert versions.live == number + 2
    for number in range(10):
        assert versions.base(number)["w"].tolist() == [number] * 4
    assert [file._places, len(file._free)] == [8, 0]
    for number in (0, 7, 8):
        versions.release(number)
    assert versions.in_memory == 2
    assert len(file._free) == 2
    with pytest.raises(KeyError):
        versions.base(7)


def test_a_model_that_is_gone_back_to_is_in_memory_again(tmp_path) -> None:
    versions = Versions({"w": np.zeros(4)}, file=ModelFile(tmp_path), room=1)
    versions.hold()
    good = versions.model
    for _ in range(3):
        versions.advance([Step(1.0, {"w": np.ones(4)}, 2.0)])
        versions.hold()
        versions.make_room()
    assert versions.in_memory == 1
    versions.put_back(good)
    versions.make_room()
    assert versions.in_memory == 1
    assert versions.model is good
    assert good._place is None
    assert versions.record()["w"].numpy().tolist() == versions.base(0)["w"].tolist() == [0] * 4
    assert versions.base(2)["w"].tolist() == [2] * 4
    versions.release(0)  # the current model has this number too
    assert versions.arrays["w"].tolist() == [0] * 4


# -- trainings


def world(clients: int = 6) -> FakeGrid:
    grid = FakeGrid()
    for node in range(clients):
        grid.connect(100 + node, shifting(0.1 * (node + 1), 0.3 + 0.37 * node))
    return grid


RUNS = {
    "fedavg": lambda **o: FedAvg(**o),
    "async": lambda **o: AsyncFedAvg(**o),
    "fedbuff": lambda **o: FedBuff(2, **o),
    "fedfix": lambda **o: FedFix(0.5, **o),
    "mixing": lambda **o: FedBuff(2, server=ft.MixModels(), **o),
    "adam": lambda **o: AsyncFedAvg(server=ft.FedAdam(), **o),
}


@pytest.fixture
def puts(monkeypatch):
    """How many models were put away."""
    counted, put = [], ModelFile.put
    monkeypatch.setattr(ModelFile, "put", lambda self, arrays: counted.append(1) or put(self, arrays))
    return counted


def run(name, *, rounds=40, grid=None, **options):
    grid = grid or world()
    return RUNS[name](**on(grid, **options)).start(grid, record_of(FIRST), num_rounds=rounds, timeout=60)


def same(one, two) -> None:
    assert one.rounds == two.rounds
    assert recorded(one).events == recorded(two).events
    for name in FIRST:
        assert one.arrays[name].data == two.arrays[name].data


@pytest.mark.parametrize("name", RUNS)
def test_a_training_has_the_same_bits_whatever_is_in_memory(name, puts) -> None:
    whole = run(name, base_memory=ALL)
    assert not puts
    same(run(name, base_memory=ONE_MODEL), whole)
    assert (len(puts) > 0) == (name != "fedavg"), "FedAvg has one model that jobs start from"
    few = len(puts)
    puts.clear()
    same(run(name), whole)
    assert not puts, "a small model and a few clients stay in memory"
    assert few < 2 * len(whole.rounds)


def test_memory_is_bounded(monkeypatch, puts) -> None:
    seen = []

    class Watched(Training):
        def _advise(self, record):
            super()._advise(record)
            seen.append((self._versions.in_memory, self._versions.live))

    monkeypatch.setattr(strategy_module, "Training", Watched)
    size = sum(array.nbytes for array in FIRST.values())
    run("async", base_memory=3 * size / 1e9, grid=world(12))
    assert max(held for held, _ in seen) == 3
    assert max(live for _, live in seen) > 8


def test_a_guard_that_goes_back_finds_its_model(puts) -> None:
    def start(memory):
        grid = world(4)
        losses = iter([1.0, 1.0, 1.0, 1.0, 1e9, *[1.0] * 100])
        made = AsyncFedAvg(**on(grid, base_memory=memory, evaluation="wait"))
        return made.start(
            grid,
            record_of(FIRST),
            num_rounds=25,
            timeout=60,
            evaluate_fn=lambda n, arrays: strategy_module.MetricRecord({"loss": next(losses)}),
        )

    whole = start(ALL)
    assert [fault.kind for fault in whole.errors].count("guard") >= 1
    same(start(ONE_MODEL), whole)
    assert puts


@pytest.mark.parametrize("room", [0, 1000])
def test_a_full_disk_is_said_once_and_the_training_goes_on(room, puts) -> None:
    whole = run("async", base_memory=ALL)
    with using(Shut(room=room)):
        result = run("async", base_memory=ONE_MODEL)
    same(result, whole)
    [fault] = [fault for fault in result.errors if fault.kind == "memory"]
    assert "(No space left on device), so they stay in memory; make room there, or set TMPDIR" in fault.reason
    assert not fault.quiet


def test_a_disk_that_has_room_again_is_used_again(puts) -> None:
    disk, grid = Shut(room=0), world()
    grid.at(2.0, lambda: setattr(disk, "room", 10**9))
    grid.at(4.0, lambda: setattr(disk, "room", 0))
    with using(disk):
        result = run("async", base_memory=ONE_MODEL, grid=grid)
    same(result, run("async", base_memory=ALL))
    assert [fault.kind for fault in result.errors] == ["memory", "memory"]
    assert disk.room == 0


def test_a_job_whose_model_is_lost_is_sent_again_and_nobody_is_to_blame(monkeypatch) -> None:
    read, lost = ModelFile.read, []

    def lie(self, number, crc):
        if not lost:
            lost.append(number)
            crc += 1
        return read(self, number, crc)

    monkeypatch.setattr(ModelFile, "read", lie)
    result = run("async", base_memory=ONE_MODEL)
    [fault] = result.errors
    assert (fault.kind, lost) == ("memory", [0])
    assert "is sent again: a model that was put into a file in" in fault.reason
    failed = [event for event in recorded(result).events if event.kind == "failed"]
    assert [event.client for event in failed] == [fault.client]
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    assert result.stopped == "40 rounds are done"


def test_a_good_model_that_is_lost_ends_the_run_with_the_current_one(monkeypatch) -> None:
    def lie(self, number, crc):
        raise StorageError("it has changed")

    monkeypatch.setattr(ModelFile, "read", lie)
    grid, losses = world(4), iter([1.0, 1.0, 1.0, 1.0, 1e9, *[1.0] * 100])
    made = AsyncFedAvg(**on(grid, base_memory=ONE_MODEL, evaluation="wait"))
    result = made.start(
        grid,
        record_of(FIRST),
        num_rounds=25,
        timeout=60,
        evaluate_fn=lambda n, arrays: strategy_module.MetricRecord({"loss": next(losses)}),
    )
    assert "the last good one, is lost: it has changed" in result.stopped
    assert result.arrays.keys() == FIRST.keys()
    assert "is lost" in [fault.reason for fault in result.errors if fault.kind == "memory"][-1]


def test_a_memory_without_end_keeps_all(puts) -> None:
    same(run("async", base_memory=1e300), run("async", base_memory=ALL))
    assert not puts


def test_who_evaluates_may_empty_the_record() -> None:
    def evaluate(server_round, arrays):
        return strategy_module.MetricRecord(
            {"loss": float(sum(a.sum() for a in arrays.to_numpy_ndarrays(keep_input=False)))}
        )

    grid = world(3)
    result = FedAvg(**on(grid, evaluation="wait")).start(
        grid, record_of(FIRST), num_rounds=3, timeout=60, evaluate_fn=evaluate
    )
    assert not result.errors
    assert result.arrays.keys() == FIRST.keys()


@pytest.mark.parametrize("wrong", [0, -1, "much", float("nan")])
def test_a_memory_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(InputError, match="base_memory"):
        AsyncFedAvg(base_memory=wrong)


# -- kill -9

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fedtempo.flower.evaluation import weighted_mean
from fedtempo.simulation.model_file import ModelFile
from flower.test_put_away import run, world

rounds, put = [], ModelFile.put
puts = []
ModelFile.put = lambda self, arrays: puts.append(1) or put(self, arrays)

def metrics(records, key):
    rounds.append(1)
    if len(rounds) == {kill}:
        print(len(puts), sorted(os.listdir({folder!r})), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return weighted_mean(records, key)

run("async", checkpoint={folder!r}, base_memory={memory}, train_metrics_aggr_fn=metrics)
"""


def test_killed_while_models_wait_in_a_file(tmp_path) -> None:
    ends = []
    for name, memory in (("few", ONE_MODEL), ("all", ALL)):
        folder = tmp_path / name
        tests = str(Path(__file__).parents[1])
        code = KILLED.format(tests=tests, kill=21, folder=str(folder), memory=memory)
        killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        puts, there = killed.stdout.strip().splitlines()[-1].split(" ", 1)
        assert (int(puts) > 10) == (memory is not None)
        assert there == "['rounds.jsonl', 'state.npz', 'state.previous.npz']"
        result = run("async", checkpoint=folder, base_memory=memory, rounds=60)
        assert [fault.kind for fault in result.errors].count("restart") == 1
        assert len(result.rounds) == 60
        record = recorded(folder)
        assert record.timeline.equals(recorded(result).timeline)
        assert record.replay_events().equals(record.timeline)
        assert sorted(path.name for path in folder.iterdir()) == ["rounds.jsonl", "state.npz", "state.previous.npz"]
        ends.append(result)
    same(*ends)
