"""The folder of a run, from which it goes on after a crash or a power cut at any moment. Plain JSON and NPZ, no pickle.

    state.npz             the model, the version, the rule's state, what the server rule remembers, estimates, who is
                          who, written whole after a round
    state.previous.npz    the state before that one
    rounds.jsonl          the journal; a state knows how much of it is true, and its checksum

A line is on the disk before the state that counts it, so that a state never promises more than there is. Who writes
holds a lock on the journal, which the system takes back when the process ends, however it ends.

Damage is noticed: every part of a state has a CRC-32 (the zip file's own), every line ends with that of what stands
before it (`"crc"`), and a state knows that of all the lines it counts. Where the newer state, or what it alone counts,
is damaged, the older one is taken. Lines and states of earlier versions, which have no checksums, are read as they are.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedtempo import files
from fedtempo.errors import DataMissing, FedtempoError, InputError, ResultsConflict, StorageError
from fedtempo.flower.arrays import Arrays

log = logging.getLogger("flwr")

_Read = TypeVar("_Read")

FORMAT = 2
_SUM = 1
"""The format of runs without a server rule, which earlier versions read too."""
_SEAL = re.compile(r',"crc":"([0-9a-f]{8})"}$')
_ANEW = "restore the folder from a copy, or choose another folder"


class Damaged(Exception):
    """What is wrong with a file, in words, and what of the folder is whole."""

    def __init__(self, what: str, whole: str = "") -> None:
        super().__init__(what)
        self.whole = f"; {whole}" if whole else ""


class Tail(NamedTuple):
    """The end of a run as its folder has it."""

    state: dict[str, Any]
    lines: list[str]
    saved: float
    """When it was saved, in seconds of the system's clock."""


class Growth(NamedTuple):
    """What a run has saved since an earlier look."""

    state: dict[str, Any]
    lines: list[str]
    saved: float
    end: int
    """Bytes of the journal that are counted."""
    crc: int
    """Their checksum."""
    anew: bool
    """Whether the lines are all there are: the earlier look saw another run, or one that has lost its end."""


def seal(line: str) -> str:
    """A line of the journal with its checksum."""
    return f'{line[:-1]},"crc":"{zlib.crc32(line.encode()):08x}"}}'


def unsealed(line: str) -> str:
    """The line without its checksum, if it has one; a ValueError if that is another's."""
    found = _SEAL.search(line)
    if found is None:
        return line
    plain = line[: found.start()] + "}"
    if int(found[1], 16) != zlib.crc32(plain.encode()):
        raise ValueError("its checksum does not match")
    return plain


class RunFolder:
    """Where a run keeps what it needs to go on."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.fallen_back = ""
        """Why the older state was read, if it was."""
        self._written = self._crc = 0
        self._whole = True
        """Whether state.npz may become the older state."""
        self._anew = False
        """Whether the whole journal is to be written."""
        self._lock: BinaryIO | None = None

    @property
    def _state(self) -> Path:
        return self.path / "state.npz"

    @property
    def _previous(self) -> Path:
        return self.path / "state.previous.npz"

    @property
    def _journal(self) -> Path:
        return self.path / "rounds.jsonl"

    def holds_a_run(self) -> bool:
        """Whether a run has been saved here."""
        return self._state.is_file() or self._previous.is_file()

    def is_free(self) -> bool:
        """Whether there is nothing here, or what a run has begun and not saved."""
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        return (self.path.is_dir() or not self.path.exists()) and names <= {self._journal.name}

    # -- who writes

    def begin(self) -> None:
        """Make the folder ready for a run of its own, and write there until `release`."""
        self._refuse_a_run()
        try:
            files.make_folder(self.path)
            self._hold(files.disk.open(self._journal, "ab"))
            self._refuse_a_run()  # there may have been one until now
            files.remove_unfinished(self.path, self._state.name)
            files.disk.sync_folder(self.path)  # the journal has its name before a state counts its lines
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise InputError(
                    f"checkpoint: {self.path} cannot be created ({error.strerror}); choose another"
                ) from None
            raise

    def _refuse_a_run(self) -> None:
        if self.holds_a_run():
            raise ResultsConflict(
                f"checkpoint: {self.path} contains a run; pass resume=True to continue it, or choose another folder"
            )

    def _hold(self, journal: BinaryIO) -> None:
        """Lock out other servers: two that write to one journal would destroy it."""
        self._lock = journal
        try:
            files.hold(journal)
        except BlockingIOError:
            self.release()
            raise ResultsConflict(
                f"checkpoint: another server is writing to {self.path}; stop it first, or choose another folder"
            ) from None

    def release(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_held(self) -> bool | None:
        """Whether a server writes here, as far as this machine sees."""
        return files.is_held(self._journal)

    # -- writing

    def write(
        self,
        state: Mapping[str, Any],
        arrays: Arrays,
        lines: list[str],
        memory: Sequence[NDArray[Any]] = (),
        whole: Callable[[], list[str]] | None = None,
    ) -> None:
        """Save the lines, and then the state that counts them; all of it is on the disk when this returns.

        After a StorageError the same lines, and those that have come since, are to be given again. Where the folder is
        gone it is made again, with the `whole` journal.
        """
        if whole is not None:
            self._keep_place()
            lines = whole() if self._anew else lines
        content = "".join(f"{seal(line)}\n" for line in lines).encode()
        end = files.append(self._journal, self._written, content) if lines else self._written
        crc = zlib.crc32(content, self._crc)
        ruled = "server" in state["about"]["scheme"]
        counted = {"format": FORMAT if ruled else _SUM, "journal": end, "journal_crc": crc}
        document = {**counted, "arrays": list(arrays), **state}
        named: dict[str, Any] = {f"array{place}": array for place, array in enumerate(arrays.values())}
        if ruled:
            document["memory"] = len(memory)
            named |= {f"memory{place}": part for place, part in enumerate(memory)}
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        files.write_whole(
            self._state,
            lambda file: np.savez(file, allow_pickle=False, document=text, **named),
            keep=self._previous if self._whole else None,
        )
        self._written, self._crc, self._whole, self._anew = end, crc, True, False

    def _keep_place(self) -> None:
        """See that the journal is the one that we write to; where somebody has removed it, it is made again."""
        with files.storage_errors(self._journal):
            there = self._journal.stat() if self._journal.exists() else None
            held = None if self._lock is None else os.fstat(self._lock.fileno())
            same = there is not None and held is not None and os.path.samestat(there, held)
            if there is not None and same and there.st_size >= self._written:
                return
            if there is not None and not same and self.holds_a_run() and not self._is_a_copy():
                raise StorageError(
                    f"{self.path}: another run has replaced this one; move it away, and this run is saved there again"
                )
            harmed = there is None or not self._is_a_copy()
            if harmed:
                self._written, self._crc, self._anew = 0, 0, True
            self.release()
            files.make_folder(self.path)
            self._hold(files.disk.open(self._journal, "ab"))
            files.disk.sync_folder(self.path)
            if harmed:
                log.warning("%s was removed or truncated; all of it is written again", self._journal)

    def _is_a_copy(self) -> bool:
        """Whether the journal has all that we have written: it was put back, or its file system knows no inodes."""
        with self._journal.open("rb") as file:
            text = file.read(self._written)
        return 0 < self._written == len(text) and zlib.crc32(text) == self._crc

    # -- reading

    def read(self) -> tuple[dict[str, Any], Arrays, list[str]]:
        """The state, the model and the lines of the last round that was saved; `memory` of the state has arrays."""
        return self._first_whole(self._read)

    def lines(self) -> tuple[dict[str, Any], list[str]]:
        """What the run is set to, and the lines of the last round that was saved, without the model."""
        return self._first_whole(self._read_lines)

    def document(self) -> dict[str, Any]:
        """The state without its arrays."""
        return self._first_whole(self._document)

    def tail(self, most: int) -> Tail:
        """The state without its arrays, and the lines in the last `most` bytes."""
        return self._first_whole(lambda path: self._tail(path, most))

    def growth(self, begin: int, crc: int) -> Growth:
        """The state without its arrays, and the lines from byte `begin` on, before which there is that checksum."""
        return self._first_whole(lambda path: self._growth(path, begin, crc))

    def _first_whole(self, read: Callable[[Path], _Read]) -> _Read:
        """What is read of the newer state, or else of the older one."""
        if not self.holds_a_run():
            raise DataMissing(f"{self.path}: no run is saved there (no state.npz); check the path")
        self.fallen_back = ""
        with suppress(Damaged):
            return read(self._state)
        try:
            return read(self._state)  # somebody may have been writing it
        except Damaged as error:
            newer = error
        if not self._previous.is_file():
            raise InputError(f"{newer}{newer.whole}; {_ANEW}")
        try:
            found = read(self._previous)
        except Damaged as older:
            also = "" if str(older) == str(newer) else f", and the older state cannot be used either ({older})"
            raise InputError(f"{newer}{also}{newer.whole}; {_ANEW}") from None
        self.fallen_back = f"{newer}; the older state, {self._previous.name}, is intact and used instead"
        return found

    def _read(self, path: Path) -> tuple[dict[str, Any], Arrays, list[str]]:
        with self._opened(path) as archive:
            state = _document(archive)
            arrays = {name: _part(archive, f"array{place}") for place, name in enumerate(state["arrays"])}
            state["memory"] = [_part(archive, f"memory{place}") for place in range(state.get("memory", 0))]
        return state, arrays, self._lines(state, path)

    def _read_lines(self, path: Path) -> tuple[dict[str, Any], list[str]]:
        state = self._document(path)
        return state["about"], self._lines(state, path)

    def _document(self, path: Path) -> dict[str, Any]:
        with self._opened(path) as archive:
            return _document(archive)

    def _tail(self, path: Path, most: int) -> Tail:
        with self._opened(path) as archive:
            state, saved = _document(archive), path.stat().st_mtime
        end = int(state["journal"])
        begin = max(end - most, 0)
        with _reading(self._journal), self._journal.open("rb") as file:
            file.seek(begin)
            text = file.read(end - begin)
        lines = text.splitlines()[begin > 0 :]
        _, why = _first_bad(lines)
        if len(text) < end - begin or why:
            raise Damaged(f"{self._journal}: its end is damaged{why and f' ({why})'}")
        return Tail(state, [_SEAL.sub("}", line.decode()) for line in lines], saved)

    def _growth(self, path: Path, begin: int, crc: int) -> Growth:
        with self._opened(path) as archive:
            state, saved = _document(archive), path.stat().st_mtime
        end = int(state["journal"])
        with _reading(self._journal), self._journal.open("rb") as file:
            file.seek(begin)
            text = file.read(max(end - begin, 0))
            now = zlib.crc32(text, crc)
            anew = begin == 0 or end < begin or state.get("journal_crc", now) != now
            if anew and begin:
                file.seek(0)
                text = file.read(end)
                now = zlib.crc32(text)
        lines = text.splitlines()
        _, why = _first_bad(lines)
        if why or len(text) < (end if anew else end - begin):
            raise Damaged(f"{self._journal}: its end is damaged{why and f' ({why})'}")
        return Growth(state, [_SEAL.sub("}", line.decode()) for line in lines], saved, end, now, anew)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[zipfile.ZipFile]:
        """A state; what is wrong with it is `Damaged`, with what is whole of the journal."""
        try:
            with _reading(path), zipfile.ZipFile(path) as archive:
                yield archive
        except Damaged as error:
            raise Damaged(str(error), self._of_the_journal()) from None

    def _of_the_journal(self) -> str:
        """What of the journal is whole, in words."""
        try:
            lines = self._journal.read_bytes().splitlines()
        except OSError:
            return ""
        good = _first_bad(lines)[0] - 1
        return f"rounds.jsonl is intact up to line {good}" if good else ""

    def _lines(self, state: Mapping[str, Any], path: Path) -> list[str]:
        """The lines that the state counts."""
        size, model = int(state["journal"]), f"the model in {path.name} is intact"
        with _reading(self._journal), self._journal.open("rb") as file:
            text = file.read(size)
        whole = len(text) == size and zlib.crc32(text) == state.get("journal_crc", zlib.crc32(text))
        lines = text.splitlines()
        bad, why = _first_bad(lines) if not whole or "journal_crc" not in state else (len(lines) + 1, "")
        if whole and not why:
            return [_SEAL.sub("}", line) for line in text.decode().splitlines()]
        if why and (bad < len(lines) or len(text) == size):
            before = f"the lines before it and the model in {path.name} are intact" if bad > 1 else model
            raise Damaged(f"{self._journal}: line {bad} is damaged ({why})", before)
        if len(text) < size:
            raise Damaged(
                f"{self._journal}: holds {len(text)} bytes of the {size} that {path.name} counts, so rounds are "
                f"missing after line {bad - 1}",
                model,
            )
        raise Damaged(f"{self._journal}: is not the journal that belongs to {path.name}", model)

    def resume(self) -> tuple[dict[str, Any], Arrays, list[str]]:
        """As `read`; what was written after the last complete round is cut off, and writing goes on until `release`."""
        try:
            self._hold(files.disk.open(self._journal, "r+b"))
        except FileNotFoundError:
            pass  # `read` says it in words
        except OSError as error:
            raise InputError(f"{self._journal}: cannot be written ({error.strerror}); choose another folder") from None
        try:
            state, arrays, lines = self.read()
            with files.storage_errors(self._state):
                files.remove_unfinished(self.path, self._state.name)
            self._written = files.append(self._journal, int(state["journal"]), b"")
            self._crc = zlib.crc32(self._journal.read_bytes()[: self._written])
            self._whole = not self.fallen_back
        except BaseException:
            self.release()
            raise
        return state, arrays, lines


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong with a file that cannot be read, in words."""
    try:
        yield
    except PermissionError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); get permission to read it") from None
    except FileNotFoundError:
        raise Damaged(f"{path}: not found") from None
    except FedtempoError:
        raise
    except Exception as error:  # whatever bytes are there
        raise Damaged(f"{path}: cannot be read ({_in_a_line(error)})") from None


def _part(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of a state; all of it is read, and with it its checksum."""
    found: NDArray[Any] = npy.read_array(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
    return found


def _document(archive: zipfile.ZipFile) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(_part(archive, "document").tobytes())
    found, journal, about = int(state["format"]), int(state["journal"]), state["about"]
    if found > FORMAT:
        raise InputError(f"{archive.filename}: format {found}, and this version reads up to {FORMAT}; use a newer one")
    if journal < 0 or not isinstance(about, dict):
        raise ValueError("it is not the state of a run")
    return state


def _first_bad(lines: Sequence[bytes]) -> tuple[int, str]:
    """The number of the first line that is damaged, and how; the number after the last if none is."""
    for place, line in enumerate(lines, 1):
        try:
            if not isinstance(json.loads(unsealed(line.decode())), dict):
                return place, "it is not a line of a journal"
        except (ValueError, RecursionError) as error:
            return place, _in_a_line(error)
    return len(lines) + 1, ""


def _in_a_line(error: BaseException) -> str:
    """What an exception says, in one short line."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 120 else f"{said[:117]}…"
