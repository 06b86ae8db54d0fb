"""Where model versions live: a version keeps its slot while a job that started from it is still to come.

At most min(M, largest delay + 1) versions are held, plus the current one and the one in the making.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedtempo.clock.setting import Setting
from fedtempo.clock.timeline import I32, Timeline
from fedtempo.errors import UnlawfulRule

NOBODYS = 0
"""A slot that is never read: where a model goes that nobody needs."""
MAKING = 1
"""Where an engine may keep the model in the making."""
FIRST = 2
"""The slot of version 0."""


class Slots:
    """Slots given out ahead of the run, round by round, and taken back by counting readers."""

    def __init__(self, setting: Setting, readers: I32 | None = None) -> None:
        """`readers`: how many jobs that count start from each version; None if the rule says so by itself."""
        self._barrier = setting.rule.barrier
        self._readers = readers
        self.current = FIRST
        """The slot of the newest version."""
        self.count = FIRST + 1
        """Slots in use so far, at most."""
        self._free: list[int] = []
        self._where = {0: FIRST}
        self._versions: dict[int, list[int]] = {FIRST: [0]}
        self._waiting = {FIRST: self._expected(0, setting.num_clients)}
        self._held: set[int] = set()

    def _expected(self, version: int, contributors: int) -> int:
        """Jobs that start from a version: those of the contributors that it goes back to."""
        if self._readers is not None:
            return int(self._readers[version]) if version < len(self._readers) else 0
        return 0 if self._barrier else contributors

    def take(self, line: Timeline) -> tuple[I32, I32]:
        """For every update the slot that it reads and the one that it writes."""
        read: list[int] = []  # lists: this runs once an update, and beside an accelerator it must keep up
        write: list[int] = []
        bases, offsets = line.base.tolist(), line.offsets.tolist()
        version = line.first_round
        for begin, end in pairwise(offsets):
            version += 1
            if begin == end:
                self._alias(version)
                continue
            made = self._new()
            for base in bases[begin:end]:
                read.append(self._read(base))
                write.append(made)
            self._close(version, made, end - begin)
        return np.array(read, dtype=np.int32), np.array(write, dtype=np.int32)

    def hold(self, slot: int) -> None:
        """Keep what is in a slot until `release`."""
        self._held.add(slot)

    def release(self) -> None:
        """Let go of what was held."""
        held, self._held = self._held, set()
        for slot in held:
            self._try_free(slot)

    def _new(self) -> int:
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def _read(self, base: int) -> int:
        slot = self._where.get(base)
        if slot is None:
            raise UnlawfulRule(
                f"a job starts from version {base}, which nobody waits for any more: the rule sends models to others "
                "than the contributors; set returns_to_contributors = False on it"
            )
        if not self._barrier:
            self._waiting[slot] = left = self._waiting[slot] - 1
            if not left:
                self._try_free(slot)
        return slot

    def _alias(self, version: int) -> None:
        """An empty round makes no new model."""
        self._where[version] = self.current
        self._versions[self.current].append(version)
        self._waiting[self.current] += self._expected(version, 0)

    def _close(self, version: int, slot: int, contributors: int) -> None:
        before, self.current = self.current, slot
        self._where[version] = slot
        self._versions[slot] = [version]
        self._waiting[slot] = self._expected(version, contributors)
        self._try_free(before)

    def _try_free(self, slot: int) -> None:
        if slot == self.current or slot in self._held or self._waiting.get(slot, 1) > 0:
            return
        for version in self._versions.pop(slot):
            del self._where[version]
        del self._waiting[slot]
        self._free.append(slot)
