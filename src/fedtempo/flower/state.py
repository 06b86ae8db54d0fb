"""The folder of a run, from which it goes on after a crash or a power cut at any moment. Plain JSON and NPZ, no pickle.

    state.npz       the model, the version, the rule's state, what the server rule remembers, estimates, who is who,
                    written whole after a round
    rounds.jsonl    the journal; the state knows how much of it is true

A line is on the disk before the state that counts it, so that the state never promises more than there is. Who writes
holds a lock on the journal, which the system takes back when the process ends, however it ends.

`Saver` says when and what a training saves: what a round has made, before its jobs are sent. What is out or waits is
sent again after a crash.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo import files
from fedtempo.errors import DataMissing, InputError, ResultsConflict
from fedtempo.flower.arrays import Arrays
from fedtempo.flower.client_registry import ClientRegistry
from fedtempo.flower.estimates import Estimates
from fedtempo.flower.journal import Journal
from fedtempo.flower.reply_handler import ReplyHandler
from fedtempo.flower.settings import Settings
from fedtempo.flower.versions import Memory

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not a Unix: done without
    fcntl = None

FORMAT = 2
_SUM = 1
"""The format of runs without a server rule, which earlier versions read too."""


class RunFolder:
    """Where a run keeps what it needs to go on."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._written = 0
        self._lock: BinaryIO | None = None

    @property
    def _state(self) -> Path:
        return self.path / "state.npz"

    @property
    def _journal(self) -> Path:
        return self.path / "rounds.jsonl"

    def holds_a_run(self) -> bool:
        """Whether a run has been saved here."""
        return self._state.is_file()

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
                raise InputError(f"checkpoint: {self.path} cannot be made ({error.strerror}); choose another") from None
            raise

    def _refuse_a_run(self) -> None:
        if self.holds_a_run():
            raise ResultsConflict(
                f"checkpoint: {self.path} holds a run; pass resume=True to go on with it, or choose another folder"
            )

    def _hold(self, journal: BinaryIO) -> None:
        """Lock out other servers: two that write to one journal would destroy it."""
        self._lock = journal
        if fcntl is None:
            return
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ResultsConflict(
                f"checkpoint: another server writes to {self.path}; end it first, or choose another folder"
            ) from None
        except OSError:
            return  # a file system without locks: done without

    def release(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(
        self, state: Mapping[str, Any], arrays: Arrays, lines: list[str], memory: Sequence[NDArray[Any]] = ()
    ) -> None:
        """Save the lines, and then the state that counts them; all of it is on the disk when this returns."""
        if lines:
            self._written = files.append(self._journal, self._written, "".join(f"{line}\n" for line in lines).encode())
        ruled = "server" in state["about"]["scheme"]
        document = {"format": FORMAT if ruled else _SUM, "journal": self._written, "arrays": list(arrays), **state}
        named: dict[str, Any] = {f"array{place}": array for place, array in enumerate(arrays.values())}
        if ruled:
            document["memory"] = len(memory)
            named |= {f"memory{place}": part for place, part in enumerate(memory)}
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        files.write_whole(self._state, lambda file: np.savez(file, allow_pickle=False, document=text, **named))

    def read(self) -> tuple[dict[str, Any], Arrays, list[str]]:
        """The state, the model and the lines of the last round that was saved; `memory` of the state has arrays."""
        if not self.holds_a_run():
            raise DataMissing(f"{self.path}: no run is saved there (no state.npz); check the path")
        try:
            with np.load(self._state, allow_pickle=False) as saved:
                state: dict[str, Any] = json.loads(saved["document"].tobytes())
                found = int(state["format"])
                arrays = {name: saved[f"array{place}"] for place, name in enumerate(state["arrays"])}
                state["memory"] = [saved[f"memory{place}"] for place in range(state.get("memory", 0))]
        except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise InputError(f"{self._state}: cannot be read ({error}); choose another folder") from None
        if found > FORMAT:
            raise InputError(f"{self._state}: format {found}, and this version reads up to {FORMAT}")
        return state, arrays, self._lines(int(state["journal"]))

    def _lines(self, size: int) -> list[str]:
        """The lines that the state counts."""
        try:
            with self._journal.open("rb") as file:
                text = file.read(size)
            if len(text) < size:
                raise InputError(
                    f"{self._journal}: holds {len(text)} bytes of the {size} that state.npz counts, so rounds are "
                    "missing; put the whole file back, or choose another folder"
                )
            return text.decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self._journal}: cannot be read ({error}); put the file back that belongs to state.npz, or choose "
                "another folder"
            ) from None

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
        except BaseException:
            self.release()
            raise
        return state, arrays, lines


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first thing in which two runs differ, in words; None if they agree."""
    for key, value in json.loads(json.dumps(dict(here))).items():
        if there.get(key) != value:
            return f"its {key} is {_short(there.get(key))}, here it is {_short(value)}"
    return None


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"


class Saved(NamedTuple):
    """An earlier run, up to its last complete round."""

    state: dict[str, Any]
    arrays: Arrays
    lines: list[str]

    @property
    def server(self) -> dict[str, Any]:
        """The snapshot of its server."""
        snapshot: dict[str, Any] = self.state["server"]
        return snapshot

    @property
    def memory(self) -> Memory:
        """What its server rule remembered."""
        kept: Memory = self.state["memory"]
        return kept

    def take_up(self, handler: ReplyHandler, estimates: Estimates, journal: Journal) -> None:
        """Know what that run knew."""
        state = self.state
        journal.read(self.lines)
        journal.names, journal.importance = tuple(state["names"]), tuple(state["importance"])
        estimates.restore(state["estimates"])
        handler.registry = ClientRegistry.restore(state["roster"])
        handler.retries.restore(state["patience"])  # key of the file format
        handler.lengths.restore(state["norms"])  # key of the file format
        handler.guard.restore(state.get("guard", {}))
        handler.server_round = state["server_round"]


class Saver:
    """The folder of a training, if it has one."""

    def __init__(self, settings: Settings, model: Arrays, *, resume: bool) -> None:
        self._settings = settings
        self._about = {
            "scheme": settings.scheme.spec(),
            "weights": settings.weights.label,
            "server_lr": settings.server_lr,
            "model": [[name, list(array.shape), str(array.dtype)] for name, array in model.items()],
        }
        self._folder = None if settings.checkpoint is None else RunFolder(settings.checkpoint)
        self.found = self._look(resume)
        """What there is to go on from."""

    def _look(self, resume: bool) -> Saved | None:
        folder = self._folder
        if folder is None:
            return None
        if not (resume and folder.holds_a_run()):
            folder.begin()
            return None
        saved = Saved(*folder.resume())
        if (other := difference(saved.state["about"], self._about)) is not None:
            folder.release()
            raise ResultsConflict(f"checkpoint: {folder.path} holds another run ({other}); choose another folder")
        return saved

    def release(self) -> None:
        """Nothing more is saved: others may write to the folder."""
        if self._folder is not None:
            self._folder.release()

    @property
    def active(self) -> bool:
        """Whether anything is saved."""
        return self._folder is not None

    def due(self, server_round: int) -> bool:
        """Whether this round is one to save."""
        return self.active and server_round % self._settings.checkpoint_every == 0

    def write(
        self,
        snapshot: dict[str, Any],
        arrays: Arrays,
        handler: ReplyHandler,
        estimates: Estimates,
        journal: Journal,
        memory: Memory = (),
    ) -> None:
        """Save all that a later run needs to go on from here."""
        if self._folder is None:
            return
        state = {
            "about": self._about,
            "server": snapshot,
            "estimates": estimates.snapshot(),
            "roster": handler.registry.snapshot(),
            "patience": handler.retries.snapshot(),  # key of the file format
            "norms": handler.lengths.snapshot(),  # key of the file format
            "guard": handler.guard.snapshot(),
            "server_round": handler.server_round,
            "names": journal.names,
            "importance": journal.importance,
            "server_lr": journal.server_lr,
        }
        self._folder.write(state, arrays, journal.new_lines(), memory)
