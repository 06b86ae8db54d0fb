"""A study's folder, a history and a model on a disk that fails: what was saved is read back whole, old or new."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fedtempo as ft
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.model import Model
from simulation.test_checkpoint import run, shorten
from simulation.test_study import same
from support.power import REFUSALS, PowerCut, PowerCutDisk, RefusingDisk, survives_power_cuts, using

CONFIGURATION, LAYOUT = {"until": "10"}, {"blocks": 1}


def unit(value: float) -> dict[str, np.ndarray]:
    return {
        "finished": np.array(False),
        "points_done": np.array(3),
        "diverged": np.array([[-1]]),
        "state:0": np.full(3000, value),  # more than a buffer
    }


def history(value: float) -> History:
    axes = {"scheme": ["FedAvg"], "weights": ["time-based"], "seed": [0], "time": [0.0, 1.0]}
    return History(xr.Dataset({"loss": (tuple(axes), np.full((1, 1, 1, 2), value))}, axes))


def save_unit(root: Path, value: float) -> None:
    Folder(root / "study").write_unit(0, unit(value))


def save_history(root: Path, value: float) -> None:
    history(value).save(root / "h.nc")


def save_model(root: Path, value: float) -> None:
    Model({"w": np.full(3000, value)}).save(root / "m.npz")


def begin(root: Path, configuration: dict[str, str] = CONFIGURATION) -> None:
    folder = Folder(root / "study")
    folder.check(configuration)
    folder.begin(configuration, LAYOUT)


def read_unit(root: Path) -> float | None:
    found = Folder(root / "study").read_unit(0)
    if found is None:
        return None
    assert np.array_equal(found["state:0"], np.full(3000, found["state:0"][0]))
    return float(found["state:0"][0])


def read_study(root: Path) -> tuple[dict[str, int] | None, float | None]:
    return Folder(root / "study").check(CONFIGURATION), read_unit(root)


def read_history(root: Path) -> float | None:
    return History.load(root / "h.nc").dataset["loss"].values.item(1) if (root / "h.nc").exists() else None


def read_model(root: Path) -> float | None:
    return Model.load(root / "m.npz").parameters["w"][2999] if (root / "m.npz").exists() else None


SUBJECTS = {
    "checkpoint": ([begin], save_unit, read_study),
    "history": ([], save_history, read_history),
    "model": ([], save_model, read_model),
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_power_is_cut_at_any_moment(subject, tmp_path) -> None:
    before, save, read = SUBJECTS[subject]
    survives_power_cuts(tmp_path, [*before, lambda root: save(root, 1.0), lambda root: save(root, 2.0)], read)


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_disk_that_refuses_leaves_what_was_saved(subject, refusal, tmp_path) -> None:
    operation, number, told, cure = REFUSALS[refusal]
    before, save, read = SUBJECTS[subject]
    for step in before:
        step(tmp_path)
    save(tmp_path, 1.0)
    saved, names = read(tmp_path), sorted(tmp_path.rglob("*"))
    with using(RefusingDisk(operation, number)), pytest.raises(ft.InputError) as caught:
        save(tmp_path, 2.0)
    assert f"cannot write it ({told}); what was saved there before is intact; {cure}" in str(caught.value)
    assert (read(tmp_path), sorted(tmp_path.rglob("*"))) == (saved, names)
    save(tmp_path, 2.0)
    assert read(tmp_path) != saved


@pytest.mark.parametrize("refusal", ["full disk", "read-only", "no permission"])
def test_a_study_that_cannot_be_begun_says_so(refusal, tmp_path) -> None:
    operation, number, told, _ = REFUSALS[refusal]
    with using(RefusingDisk(operation, number)), pytest.raises(ft.InputError, match=f"study.*{told}.*choose another"):
        begin(tmp_path)
    begin(tmp_path)
    assert read_study(tmp_path) == (LAYOUT, None)


def test_a_study_that_takes_anothers_place_never_inherits_its_units(tmp_path) -> None:
    """The old study, less of it, nothing, or the new one, however the power was cut while one replaced the other."""
    other = {"until": "20"}

    def replaced(root: Path) -> None:
        Folder(root / "study").clear()
        begin(root, other)
        save_unit(root, 2.0)

    def started(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        begin(root)
        save_unit(root, 1.0)
        history(1.0).save(root / "study" / "history.nc")
        return root

    whole = PowerCutDisk(started("whole"))
    with using(whole):
        replaced(whole.root)
    seen = set()
    for moment in range(1, whole.count + 1):
        disk = PowerCutDisk(started(str(moment)), at=moment)
        with using(disk), pytest.raises(PowerCut):
            replaced(disk.root)
        for image in disk.images(tmp_path / f"left {moment}"):
            study = image / "study" / "study.json"
            if study.exists():
                there = json.loads(study.read_text())["configuration"]
                assert read_unit(image) in ((None, 1.0) if there == CONFIGURATION else (None, 2.0))
                assert there == CONFIGURATION or not (image / "study" / "history.nc").exists()
            else:
                there = Folder(image / "study").check(other)  # no conflict: the new study can be begun
                assert there is None
            seen.add((str(there), read_unit(image)))
    assert len(seen) == 5


def test_a_study_goes_on_after_a_power_cut_to_the_same_bits(tmp_path, monkeypatch) -> None:
    shorten(monkeypatch)
    given = {"schemes": ft.FedAvg(), "lr": 0.05, "until": 200}
    root = tmp_path / "0"
    root.mkdir()
    for moment in range(7, 700, 33):  # how many histories are saved before the first unit depends on the machine
        disk = PowerCutDisk(root, at=moment)
        with using(disk), pytest.raises(PowerCut):
            run(**given, checkpoint=root / "r", save_every=0)
        root = disk.worst(tmp_path / str(moment))
        if Folder(root / "r").read_unit(0) is not None:
            break
    assert Folder(root / "r").read_unit(0) is not None
    whole = run(**given)
    same(run(**given, checkpoint=root / "r"), whole)
    same(History.load(root / "r" / "history.nc"), whole)


def test_a_study_that_is_not_there_can_be_cleared(tmp_path) -> None:
    Folder(tmp_path / "nowhere" / "study").clear()
    assert not (tmp_path / "without positive curvature").exists()
