"""When and what a training saves, and how it takes up what an earlier one has saved.

Saved is what a round has made, before its jobs are sent: what is out or waits is sent again after a crash.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedtempo.errors import ResultsConflict
from fedtempo.flower.arrays import Arrays
from fedtempo.flower.desk import ClientDesk
from fedtempo.flower.estimates import Estimates
from fedtempo.flower.identity import Roster
from fedtempo.flower.journal import Journal
from fedtempo.flower.settings import Settings
from fedtempo.flower.state import RunFolder, difference
from fedtempo.flower.versions import Memory


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

    def take_up(self, desk: ClientDesk, estimates: Estimates, journal: Journal) -> None:
        """Know what that run knew."""
        state = self.state
        journal.read(self.lines)
        journal.names, journal.importance = tuple(state["names"]), tuple(state["importance"])
        estimates.restore(state["estimates"])
        desk.roster = Roster.restore(state["roster"])
        desk.patience.restore(state["patience"])
        desk.admission.restore(state["norms"])
        desk.server_round = state["server_round"]


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
        desk: ClientDesk,
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
            "roster": desk.roster.snapshot(),
            "patience": desk.patience.snapshot(),
            "norms": desk.admission.snapshot(),
            "server_round": desk.server_round,
            "names": journal.names,
            "importance": journal.importance,
            "server_lr": journal.server_lr,
        }
        self._folder.write(state, arrays, journal.new_lines(), memory)
