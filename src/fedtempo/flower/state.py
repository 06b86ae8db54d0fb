"""What a training saves, when, and in which folder: what a round has made, before its jobs are sent.

What is out or waits is sent again after a crash. The folder and its files are run_folder.py's.

A save that the disk refuses does not end the training: the lines are kept, and the next save that is due tries again.

`resume="auto"` chooses the folder: FOLDER, FOLDER-2, FOLDER-3, … The newest run there that was cut off and is set to
the same goes on; if there is none, a new one begins in a folder of its own beside them.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtempo.errors import FedtempoError, InputError, ResultsConflict, StorageError
from fedtempo.files import process
from fedtempo.flower.arrays import Arrays
from fedtempo.flower.client_registry import ClientRegistry
from fedtempo.flower.estimates import Estimates
from fedtempo.flower.journal import Journal
from fedtempo.flower.reply_handler import ReplyHandler
from fedtempo.flower.run_folder import RunFolder
from fedtempo.flower.settings import BEFORE_STEPS, UNIFORM, Settings
from fedtempo.flower.versions import Memory

log = logging.getLogger("flwr")

Resume = bool | Literal["auto"]

WHEN_ABSENT: dict[str, Any] = {"step": BEFORE_STEPS, "authenticated": False}
"""Of settings that folders of 0.6 do not name: what they were there. A run whose folder does not name a setting, and
which is not here either, goes on with any."""


def about(settings: Settings, model: Arrays) -> dict[str, Any]:
    """What a run is set to, as far as another value would make it another run.

    Left out, since they may change from start to start: num_rounds, until, timeout, poll, checkpoint_every,
    retry_after, max_failures, norm_limit (its own message advises to change it), work_key, base_memory, the numbers of
    nodes, what evaluates.
    """
    steps = {"step": settings.step or "stable"} if settings.step != BEFORE_STEPS else {}
    return {
        "scheme": settings.scheme.spec(),
        "weights": settings.weights.label,
        **steps,
        **({"max_weight": settings.max_weight} if steps and settings.measured else {}),
        "server_lr": settings.server_lr,
        "model": [[name, list(array.shape), str(array.dtype)] for name, array in model.items()],
        "importance": _by_identity(settings.importance),
        "times": _by_identity(settings.times),
        "max_examples": settings.max_examples,
        "identity_key": settings.identity_key,
        "authenticated": settings.authenticated,
        "weighted_by_key": settings.examples_key,
        "clip_norm": settings.clip_norm,
        "seed": settings.seed,
        **({"loss_key": settings.loss_key} if "loss" in settings.rule.needs else {}),
    }


def _by_identity(given: Mapping[str, Any] | None) -> dict[str, str] | str | None:
    if given is not None and not given:
        return UNIFORM
    return None if given is None else {name: str(value) for name, value in given.items()}


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first thing in which two runs differ, in words; None if they agree."""
    for key, value in json.loads(json.dumps(dict(here))).items():
        known = there.get(key, WHEN_ABSENT.get(key, value))
        if known != value:
            if isinstance(known, dict) and isinstance(value, dict):
                part = next(name for name in [*value, *known] if known.get(name) != value.get(name))
                if key != "scheme":
                    key, known, value = f"{key} of {part!r}", known.get(part), value.get(part)
            return f"its {key} is {_short(known)}, here it is {_short(value)}"
    return None


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"


class Saved(NamedTuple):
    """An earlier run, up to its last complete round."""

    state: dict[str, Any]
    arrays: Arrays
    lines: list[str]
    warning: str = ""
    """Why this is the older of two states, if it is."""

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
        with reading_state():
            journal.names, journal.importance = tuple(state["names"]), tuple(state["importance"])
            estimates.restore(state["estimates"])
            handler.registry = ClientRegistry.restore(state["roster"])
            handler.retries.restore(state["patience"])  # key of the file format
            handler.lengths.restore(state["norms"])  # key of the file format
            handler.guard.restore(state.get("guard", {}))
            handler.server_round = int(state["server_round"])


@contextmanager
def reading_state() -> Iterator[None]:
    """A state whose checksums are right, and which is none, is said in words."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"state.npz: it is not the state of a run ({type(error).__name__}: {error}); the journal is intact; "
            "restore the folder from a copy, or choose another folder"
        ) from None


class Saver:
    """The folder of a training, if it has one."""

    def __init__(
        self, settings: Settings, model: Arrays, *, resume: Resume, asked: Mapping[str, float | None] | None = None
    ) -> None:
        """`asked`: the `rounds`, `until` and `timeout` that this start was given, for those who watch."""
        self.settings = settings
        """With the step of the run that goes on, where none was asked for."""
        self._model, self._asked = model, dict(asked or {})
        self._about = about(settings, model)
        self._folder = None if settings.checkpoint is None else RunFolder(settings.checkpoint)
        self._pending: list[str] = []
        self.ended: str | None = None
        """Why training has ended, once it has."""
        self.stopped = ""
        """What has stopped it before its end, in words, where that was politely."""
        self.failure: str | None = None
        """Why the last save did not work, if it did not."""
        self.found = self._look(resume)
        """What there is to go on from."""

    @property
    def path(self) -> Path | None:
        """Where the run is saved."""
        return None if self._folder is None else self._folder.path

    def _look(self, resume: Resume) -> Saved | None:
        folder = self._folder
        if folder is None:
            return None
        if resume == "auto":
            return self._choose(folder.path)
        if not (resume and folder.holds_a_run()):
            folder.begin()
            _say_new(folder)
            return None
        return self._go_on(folder)

    def _go_on(self, folder: RunFolder) -> Saved:
        """Take up the run in a folder, if it is this one."""
        saved = Saved(*folder.resume(), folder.fallen_back)
        there = saved.state["about"]
        try:
            settings = self._with_step_of(there)
            here = about(settings, self._model)
            if (other := difference(there, here)) is not None:
                raise ResultsConflict(f"checkpoint: {folder.path} holds another run ({other}); choose another folder")
            with reading_state():
                int(saved.server["version"]), int(saved.server["now"])
            self.settings, self._about = settings, here
        except BaseException:
            folder.release()
            raise
        log.info("Checkpoint: the run in %s continues after round %s", folder.path, saved.state.get("server_round"))
        return saved

    def _with_step_of(self, there: Mapping[str, Any]) -> Settings:
        """The settings with the step of the run that is there, unless another was asked for."""
        asked = self.settings
        return asked if asked.step is not None else replace(asked, step=there.get("step", BEFORE_STEPS))

    def _choose(self, first: Path) -> Saved | None:
        """Go on with the newest run that was cut off and is this one; else begin in a new folder beside the others."""
        first = first if first.name.strip(".") else first.resolve()
        numbers = sorted(_numbers(first), reverse=True)
        why = ""
        for number in numbers:
            folder = RunFolder(_numbered(first, number))
            if not folder.holds_a_run():
                continue
            try:
                against = self._against(folder.document())
                if not against:
                    self._folder = folder
                    return self._go_on(folder)
            except ResultsConflict as error:  # another server writes to it
                against = str(error).removeprefix("checkpoint: ").partition(";")[0]
            except FedtempoError:
                if number == numbers[0]:
                    raise
                continue
            why = why or f", since {folder.path} {against}"
        for number in itertools.count(numbers[0] if numbers else 1):
            folder = self._folder = RunFolder(_numbered(first, number))
            if number > 1 and not folder.is_free():
                continue
            with suppress(ResultsConflict):  # there is a run in it, or somebody begins one
                folder.begin()
                break
        _say_new(folder, why)
        return None

    def _against(self, state: Mapping[str, Any]) -> str:
        """Why a run is not gone on with, in words; "" if it is."""
        done = int(state["server_round"]) if "server_round" in state else 0
        ended = state.get("ended", f"{done} rounds are done" if done >= (self._asked.get("rounds") or 0) else None)
        if ended is not None:  # folders of 0.6 do not say whether they have
            return f"has come to its end ({ended})"
        other = difference(state["about"], about(self._with_step_of(state["about"]), self._model))
        return "" if other is None else f"holds another run ({other})"

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
        return self.active and server_round % self.settings.checkpoint_every == 0

    def write(
        self,
        snapshot: dict[str, Any],
        arrays: Arrays,
        handler: ReplyHandler,
        estimates: Estimates,
        journal: Journal,
        memory: Memory = (),
        **more: object,
    ) -> None:
        """Save all that a later run needs to go on from here; `failure` says whether the disk has refused."""
        if self._folder is None:
            return
        state = {
            "about": self._about,
            "asked": self._asked,
            "ended": self.ended,
            "who": {**process(), "stopped": self.stopped},
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
            **more,
        }
        self._pending += journal.new_lines()
        try:
            self._folder.write(state, arrays, self._pending, memory, journal.lines)
        except (StorageError, ResultsConflict) as error:
            self.failure = str(error)
        else:
            self.failure, self._pending = None, []


def _say_new(folder: RunFolder, why: str = "") -> None:
    log.info("Checkpoint: a new run starts in %s%s", folder.path, why)


def _numbers(first: Path) -> Iterable[int]:
    """The numbers of the folders that there are: 1 is the one that was named."""
    if first.exists():
        yield 1
    name = re.compile(rf"{re.escape(first.name)}-([2-9]|[1-9][0-9]+)")
    for other in first.parent.iterdir() if first.parent.is_dir() else ():
        if (found := name.fullmatch(other.name)) is not None:
            yield int(found[1])


def _numbered(first: Path, number: int) -> Path:
    return first if number == 1 else first.with_name(f"{first.name}-{number}")
