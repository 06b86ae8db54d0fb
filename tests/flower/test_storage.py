"""The state and the journal of a run on Flower, on a disk that fails: the last saved round is read back whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedtempo.errors import DataMissing, InputError
from fedtempo.flower import recorded
from fedtempo.flower.state import RunFolder
from flower.test_checkpoint import STRATEGIES, check, start, world
from support.power import REFUSALS, PowerCut, PowerCutDisk, RefusingDisk, survives_power_cuts, using

STATE = {"about": {"scheme": {"name": "async"}}}


class Run:
    """A run that saves rounds, and is begun or gone on with by whoever finds its folder."""

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root / "run")
        if self.folder.holds_a_run():
            self.folder.resume()
        else:
            self.folder.begin()

    def save(self, number: int) -> None:
        lines = [f'{{"round": {number}, "part": {part}}}' for part in range(400)]  # more than a buffer
        self.folder.write({**STATE, "number": number}, {"w": np.full(2000, number)}, lines)


def save(root: Path, number: int) -> None:
    run = Run(root)
    try:
        run.save(number)
    finally:
        run.folder.release()


def read(root: Path) -> int | None:
    """The last round that is there; all of it fits together."""
    try:
        state, arrays, lines = RunFolder(root / "run").read()
    except DataMissing:
        return None
    number: int = state["number"]
    assert np.array_equal(arrays["w"], np.full(2000, number))
    assert lines == [f'{{"round": {n}, "part": {part}}}' for n in range(1, number + 1) for part in range(400)]
    return number


def test_the_power_is_cut_at_any_moment(tmp_path) -> None:
    survives_power_cuts(tmp_path, [lambda root, n=n: save(root, n) for n in (1, 2, 3)], read)


@pytest.mark.parametrize(
    ("part", "refusal"),
    [*(("state", name) for name in REFUSALS), *(("journal", name) for name in REFUSALS if name != "no rename")],
)
def test_a_disk_that_refuses_leaves_the_last_round(part, refusal, tmp_path, monkeypatch) -> None:
    operation, number, told, cure = REFUSALS[refusal]
    run = Run(tmp_path)
    run.save(1)
    disk = RefusingDisk(operation, number)
    if part == "state":  # the journal is written as ever
        monkeypatch.setattr("fedtempo.files.append", _append)
    with using(disk), pytest.raises(InputError) as caught:
        run.save(2)
    name = "state.npz" if part == "state" else "rounds.jsonl"
    assert f"{name}: cannot write it ({told}); what was saved there before is intact; {cure}" in str(caught.value)
    assert read(tmp_path) == 1
    run.folder.release()
    save(tmp_path, 2)
    assert read(tmp_path) == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "rounds.jsonl",
        "state.npz",
        "state.previous.npz",
    ]


def _append(path: Path, end: int, content: bytes) -> int:
    with path.open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        return end + file.write(content)


@pytest.mark.parametrize("refusal", ["read-only", "no permission"])
def test_a_folder_that_cannot_be_written_is_said(refusal, tmp_path) -> None:
    operation, number, told, _ = REFUSALS[refusal]
    disk = RefusingDisk(operation, number)
    with (
        using(disk),
        pytest.raises(InputError, match=rf"checkpoint: .*run cannot be created \({told}\); choose another"),
    ):
        save(tmp_path, 1)
    save(tmp_path, 1)
    with using(disk), pytest.raises(InputError, match=rf"rounds\.jsonl: cannot be written \({told}\); choose another"):
        save(tmp_path, 2)
    assert read(tmp_path) == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_training_goes_on_after_a_power_cut(name, tmp_path) -> None:
    """Nothing was written that was not synced; no completed round is lost, and no update counts twice."""
    grid, steps = world()
    disk = PowerCutDisk(tmp_path)
    with using(disk):
        start(name, grid, tmp_path / "run", resume=False)
    for moment in range(1, disk.count + 1, 5):
        root = tmp_path / str(moment)
        root.mkdir()
        grid, steps = world()
        cut = PowerCutDisk(root, at=moment)
        with using(cut), pytest.raises(PowerCut):
            start(name, grid, root / "run", resume=False)
        folder = cut.worst(tmp_path / f"left {moment}") / "run"
        result = start(name, grid, folder, resume=True)
        check(result, steps)
        assert recorded(folder).timeline.equals(recorded(result).timeline)
