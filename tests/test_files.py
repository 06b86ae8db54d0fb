"""Files are written whole or not at all, whatever the disk does, and are on it when the call returns."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fedtempo as ft
from fedtempo import files
from support.power import REFUSALS, PowerCut, PowerCutDisk, RefusingDisk, survives_power_cuts, using


def content(root: Path) -> dict[str, bytes]:
    """What is there, less what a killed process has left."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: text for name, text in found.items() if not Path(name).name.startswith(".")}


def test_a_file_survives_a_power_cut_old_or_new(tmp_path) -> None:
    steps = [lambda root, text=text: files.write_text(root / "a", text) for text in ("one", "two" * 9000, "", "three")]
    survives_power_cuts(tmp_path, steps, content)


def test_a_file_in_new_folders_survives(tmp_path) -> None:
    def make(root: Path) -> None:
        files.make_folder(root / "x" / "y")
        files.write_text(root / "x" / "y" / "a", "text")

    survives_power_cuts(tmp_path, [make], content)


def test_what_was_removed_does_not_come_back(tmp_path) -> None:
    steps = [
        lambda root: files.write_text(root / "a", "one"),
        lambda root: files.write_text(root / "b", "two"),
        lambda root: files.remove(root / "a"),
        lambda root: files.remove(root / "b"),
    ]
    survives_power_cuts(tmp_path, steps, content)


def test_appended_bytes_are_there_as_far_as_they_are_counted(tmp_path) -> None:
    def begin(root: Path) -> None:
        files.write_text(root / "a", "")

    lines = [b"first\n", b"second\n" * 5000, b"third\n"]
    ends = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    steps = [lambda root, n=n: files.append(root / "a", ends[n], lines[n]) for n in range(len(lines))]

    def read(root: Path) -> int:
        """How many lines are there whole."""
        text = (root / "a").read_bytes() if (root / "a").exists() else b""
        whole = [n for n in range(len(ends)) if text[: ends[n]] == b"".join(lines[:n])]
        return max(whole) + (root / "a").exists()

    survives_power_cuts(tmp_path, [begin, *steps], read)


def test_appending_goes_on_at_the_counted_end(tmp_path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\nhalf of a li")
    assert files.append(path, 4, b"two\n") == 8
    assert path.read_bytes() == b"one\ntwo\n"
    with using(RefusingDisk(*REFUSALS["full disk"][:2])), pytest.raises(ft.InputError, match="No space left"):
        files.append(path, 8, b"x" * 100)
    assert path.read_bytes()[:8] == b"one\ntwo\n"
    assert files.append(path, 8, b"three\n") == 14
    assert path.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("lacks", ["sync", "sync_folder"])
def test_the_cut_is_felt_where_nothing_is_synced(lacks, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(PowerCutDisk, lacks, lambda self, it: it.flush() if lacks == "sync" else None)
    with pytest.raises(AssertionError, match="moment"):
        test_a_file_survives_a_power_cut_old_or_new(tmp_path)


def test_a_rename_is_not_believed_before_its_data_are_there(tmp_path) -> None:
    root = tmp_path / "r"
    root.mkdir()
    (root / "a").write_text("old")
    disk = PowerCutDisk(root, at=4)
    with disk.open(root / ".a", "xb") as file:
        file.write(b"the new text")
    disk.replace(root / ".a", root / "a")
    with pytest.raises(PowerCut):
        disk.sync_folder(root)
    left = [content(image).get("a") for image in disk.images(tmp_path / "left")]
    assert {b"", b"the ne", b"the new text", b"old"} == set(left)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_the_disk_refuses_is_said_and_the_old_file_stays(refusal, tmp_path) -> None:
    operation, number, told, cure = REFUSALS[refusal]
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with using(RefusingDisk(operation, number)), pytest.raises(ft.InputError) as caught:
        files.write_text(path, "new" * 100)
    assert str(caught.value) == (
        f"{path}: cannot write it ({told}); what was saved there before is intact; {cure}, or choose another place"
    )
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
    files.write_text(path, "new")
    assert path.read_text() == "new"


def test_a_folder_that_is_not_there_is_said(tmp_path) -> None:
    with pytest.raises(ft.InputError, match=r"the folder .*none does not exist; create it first"):
        files.write_text(tmp_path / "none" / "a", "text")


def test_what_fails_in_the_middle_leaves_nothing(tmp_path) -> None:
    def fill(file) -> None:
        file.write(b"half")
        raise LookupError

    with pytest.raises(LookupError):
        files.write_whole(tmp_path / "a", fill)
    assert not os.listdir(tmp_path)


def test_files_have_the_rights_that_other_files_get(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_file_system_that_cannot_sync_folders_is_done_without(tmp_path, monkeypatch) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(22, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_text(tmp_path / "a", "text")
    assert (tmp_path / "a").read_text() == "text"


def test_of_several_who_write_first_one_does(tmp_path) -> None:
    path = tmp_path / "study.json"
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda k: files.write_first(path, f"{k}" * 1000), range(8)))
    assert wrote.count(True) == 1
    assert path.read_text() == f"{wrote.index(True)}" * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_written_first_survives_a_power_cut(tmp_path) -> None:
    def first(folder: Path) -> None:
        files.write_first(folder / "a", "one")

    def read(folder: Path) -> str:
        return (folder / "a").read_text() if (folder / "a").exists() else ""

    survives_power_cuts(tmp_path, [first], read)


def test_a_file_system_without_links_will_do(tmp_path, monkeypatch) -> None:
    def no_links(*names) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    assert files.write_first(tmp_path / "a", "one")
    assert not files.write_first(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one"
