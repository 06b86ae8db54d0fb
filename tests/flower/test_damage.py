"""Damaged folders: each is answered by one sentence, or by the state before; nothing else is raised, ever."""

from __future__ import annotations

import json
import logging
import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedtempo import files
from fedtempo.cli.show import read_run
from fedtempo.errors import FedtempoError, InputError
from fedtempo.flower import recorded
from fedtempo.flower.run_folder import RunFolder, unsealed
from fedtempo.flower.watching import watched
from flower.test_checkpoint import start, world

NAMES = ("state.npz", "state.previous.npz", "rounds.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was cut off after each of its rounds, and another one."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    found = []
    for name, rounds in (("async", 5), ("fedfix", 4)):
        folder = tmp_path_factory.mktemp(name) / "run"
        grid, _ = world()
        grid.at(3.0, lambda grid=grid: setattr(grid, "kill_at", 0))
        with pytest.raises(BaseException, match=r"^$"):
            start(name, grid, folder, resume=False, rounds=100 * rounds)
        found.append(folder)
    yield found
    logging.getLogger("flwr").setLevel(logging.INFO)


def damage(draw: random.Random, folder: Path, other: Path) -> str:
    """Do something to a file of the folder; what it was."""
    path = folder / draw.choice(NAMES)
    if path.is_dir():
        path.rmdir()
    data = path.read_bytes() if path.exists() else b""
    kind = draw.choice(("flip", "cut", "delete", "swap", "other", "empty", "noise", "insert", "zeros", "folder"))
    place = draw.randrange(len(data) + 1)
    if kind == "flip":
        for _ in range(draw.choice((1, 1, 1, 3, 20))):
            place = draw.randrange(max(len(data), 1))
            data = data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :] if data else b""
    elif kind == "cut":
        data = data[:place]
    elif kind == "swap":
        mate = folder / draw.choice(NAMES)
        if mate.is_file() and path.exists():
            data, swapped = mate.read_bytes(), data
            mate.write_bytes(swapped)
    elif kind == "other":
        data = (other / path.name).read_bytes()
    elif kind == "empty":
        data = b""
    elif kind == "noise":
        data = draw.randbytes(draw.randrange(1, 300))
    elif kind == "insert":
        data = data[:place] + draw.randbytes(draw.randrange(1, 30)) + data[place:]
    elif kind == "zeros":
        data = data[:place] + bytes(len(data) - place)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind != "delete":
        path.write_bytes(data)
    return f"{kind} {path.name}"


def sentence_or(call, what: str):
    """What it gives, or the one sentence that it raises."""
    try:
        return call()
    except FedtempoError as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(what) from error
    assert "\n" not in said, what
    return said


@pytest.mark.parametrize("cases", [range(100), range(100, 700)], ids=["some", "many"])
def test_whatever_is_done_to_a_folder_is_said_in_a_sentence(cases, runs, tmp_path, caplog, monkeypatch) -> None:
    caplog.set_level(logging.CRITICAL, "flwr")
    monkeypatch.setattr(files.Disk, "sync", lambda self, file: file.flush())  # to be quick: no power is cut here
    monkeypatch.setattr(files.Disk, "sync_folder", lambda self, path: None)
    first, other = runs
    looks = (recorded, read_run, watched)
    whole = recorded(first)
    went_on = 0
    for case in cases:
        draw = random.Random(f"damage {case}")
        folder = tmp_path / str(case)
        shutil.copytree(first, folder)
        done = [damage(draw, folder, other) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        read = [sentence_or(partial(look, folder), f"case {case}: {done}") for look in looks]
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before, (case, done)
        record = None if isinstance(read[0], str) or read[0].scheme != whole.scheme else read[0]
        assert all(str(folder) in said for said in read if isinstance(said, str)), (case, done)
        if record is not None:
            n = record.timeline.num_updates
            assert np.array_equal(record.weights.values, whole.weights.values[:n]), (case, done)
            assert whole.timeline[: record.timeline.num_rounds].equals(record.timeline), (case, done)
        grid, _ = world()
        result = sentence_or(partial(start, "async", grid, folder, True, 9), f"case {case}: {done}")
        if isinstance(result, str):
            assert record is None, (case, done, result)
            continue
        went_on += record is not None
        if "; rounds after" in result.stopped and any(path.is_dir() for path in folder.iterdir()):
            continue  # a folder stands where a state is to be
        assert result.stopped == "9 rounds are done", (case, done)
        assert recorded(folder).timeline.equals(recorded(result).timeline), (case, done)
        if record is not None:
            assert recorded(result).timeline[: record.timeline.num_rounds].equals(record.timeline), (case, done)
        shutil.rmtree(folder)
    assert len(cases) // 4 < went_on < len(cases), "some are mended, some are not"


def harmed(runs, tmp_path) -> Path:
    shutil.copytree(runs[0], tmp_path / "run")
    return tmp_path / "run"


def refused(folder: Path) -> str:
    """What is said of it, the same to those who read and to those who go on."""
    with pytest.raises(InputError) as one:
        recorded(folder)
    with pytest.raises(InputError) as two:
        start("async", world()[0], folder, resume=True)
    assert str(one.value) == str(two.value)
    return str(one.value)


def weights_of(folder: Path) -> list[float]:
    return recorded(folder).weights.values.tolist()


def alter(folder: Path, line: int) -> None:
    """Another weight in a line of the journal."""
    journal = folder / "rounds.jsonl"
    lines = journal.read_text().splitlines()
    what = json.loads(unsealed(lines[line - 1]))
    old = what["round"][3][0][5]
    lines[line - 1] = lines[line - 1].replace(f"{old!r},1.0,", f"7{repr(old)[1:]},1.0,", 1)
    journal.write_text("\n".join(lines) + "\n")


def rounds_of(folder: Path) -> list[int]:
    """The lines with rounds."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [place for place, line in enumerate(lines, 1) if line.startswith('{"round"')]


def test_an_altered_weight_is_named_by_its_line(runs, tmp_path) -> None:
    folder = harmed(runs, tmp_path)
    line = rounds_of(folder)[1]
    alter(folder, line)
    assert refused(folder) == (
        f"{folder}/rounds.jsonl: line {line} is damaged (its checksum does not match); the "
        "lines before it and the model in state.npz are intact; restore the folder from a copy, or choose another "
        "folder"
    )


def test_an_altered_weight_of_the_last_round_takes_the_state_before(runs, tmp_path, caplog) -> None:
    folder = harmed(runs, tmp_path)
    whole = weights_of(folder)
    alter(folder, rounds_of(folder)[-1])
    with caplog.at_level(logging.WARNING, "flwr"):
        assert weights_of(folder) == whole[:-1]
    assert "the older state, state.previous.npz, is intact and used instead" in caplog.text
    grid, _ = world()
    result = start("async", grid, folder, resume=True, rounds=12)
    assert [fault.kind for fault in result.errors] == ["checkpoint", "restart"]
    assert "is intact and used instead" in result.errors[0].reason
    assert weights_of(folder)[: len(whole) - 1] == whole[:-1]


@pytest.mark.parametrize("what", [b"5\n", b"[]\n", b"null\n", b'{"round":5}\n', b'{"told":3}\n', b"{{{\n", b"\xff\n"])
def test_a_garbled_line_is_named(what, runs, tmp_path) -> None:
    folder = harmed(runs, tmp_path)
    journal = folder / "rounds.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2] = what.rstrip().ljust(len(lines[2]) - 1) + b"\n"
    journal.write_bytes(b"".join(lines))
    said = refused(folder)
    assert said.count("line 3 ") == 1 or "is not the journal that belongs to state.npz" in said
    assert said.startswith(f"{journal}: ")


def test_a_state_that_is_damaged_is_replaced_by_the_one_before(runs, tmp_path) -> None:
    folder = harmed(runs, tmp_path)
    whole = weights_of(folder)
    damaged = bytearray((folder / "state.npz").read_bytes())
    damaged[damaged.index(b"array0") + 150] ^= 1
    (folder / "state.npz").write_bytes(damaged)
    assert weights_of(folder) == whole[:-1]
    found = RunFolder(folder)
    found.resume()
    assert found.fallen_back.startswith(
        f"{folder}/state.npz: cannot be read (Bad CRC-32 for file 'array0.npy'); the older"
    )
    older = (folder / "state.previous.npz").read_bytes()
    state, arrays, _ = found.read()
    for key in ("format", "journal", "journal_crc", "arrays", "memory"):
        del state[key]
    found.write(state, arrays, [])
    found.release()
    assert (folder / "state.previous.npz").read_bytes() == older, "the damaged state does not become the older one"
    result = start("async", world()[0], folder, resume=True, rounds=8)
    assert recorded(folder).timeline.equals(recorded(result).timeline)


def test_both_states_damaged_says_what_is_whole(runs, tmp_path) -> None:
    folder = harmed(runs, tmp_path)
    for path in folder.glob("state*"):
        path.write_bytes(b"nonsense")
    lines = len((folder / "rounds.jsonl").read_bytes().splitlines())
    assert refused(folder) == (
        f"{folder}/state.npz: cannot be read (File is not a zip file), and the older state cannot be used either "
        f"({folder}/state.previous.npz: cannot be read (File is not a zip file)); rounds.jsonl is intact up to line "
        f"{lines}; restore the folder from a copy, or choose another folder"
    )


def test_a_journal_of_another_run_is_known_as_such(runs, tmp_path) -> None:
    folder = harmed(runs, tmp_path)
    shutil.copy(runs[1] / "rounds.jsonl", folder / "rounds.jsonl")
    text = (folder / "rounds.jsonl").read_bytes()
    (folder / "rounds.jsonl").write_bytes(text * 3)
    said = refused(folder)
    assert "rounds.jsonl: " in said


def test_a_file_that_may_not_be_read_is_not_taken_for_damage(runs, tmp_path, monkeypatch) -> None:
    """Else a wrong owner would cost a round."""
    folder = harmed(runs, tmp_path)

    def no(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zipfile.ZipFile", no)
    with pytest.raises(InputError, match=r"state\.npz: cannot be read \(Permission denied\); get permission"):
        recorded(folder)


def test_a_state_of_a_later_version_is_not_taken_for_damage(runs, tmp_path) -> None:
    folder = harmed(runs, tmp_path)
    with np.load(folder / "state.npz") as saved:
        arrays = dict(saved)
    document = json.loads(arrays.pop("document").tobytes())
    document["format"] = 77
    np.savez(folder / "state.npz", document=np.frombuffer(json.dumps(document).encode(), np.uint8), **arrays)
    assert "format 77, and this version reads up to" in refused(folder)


def test_a_document_that_lacks_something_is_said(runs, tmp_path) -> None:
    """Written by hand: its checksums are right."""
    for key in ("names", "importance", "server_lr", "roster", "estimates", "server", "server_round", "norms", "arrays"):
        folder = tmp_path / key
        shutil.copytree(runs[0], folder)
        (folder / "state.previous.npz").unlink()
        with np.load(folder / "state.npz") as saved:
            arrays = dict(saved)
        document = json.loads(arrays.pop("document").tobytes())
        for wrong in (None, 7, {}):
            document[key] = wrong
            text = np.frombuffer(json.dumps(document).encode(), np.uint8)
            np.savez(folder / "state.npz", document=text, **arrays)
            for look in (recorded, watched, lambda f: start("async", world()[0], f, resume=True, rounds=7)):
                sentence_or(partial(look, folder), f"{key} is {wrong}")
