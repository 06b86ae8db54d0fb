"""What is written down of a run, line by line: rounds with what was told before they ended, faults, measures.

The same lines are kept in memory and, where there is a folder, in `rounds.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from flwr.app import MetricRecord

from fedtempo.errors import InputError
from fedtempo.flower.faults import Fault
from fedtempo.flower.result import RoundRecord, UpdateRecord
from fedtempo.flower.told import Told

Measured = Literal["train", "evaluate", "server"]
"""Whose measures: clients' of training, clients' of evaluation, the server's own."""


class Journal:
    """Everything that has happened, in order."""

    def __init__(self, *, scheme: dict[str, object], server_lr: float, on_disk: bool) -> None:
        self.scheme, self.server_lr = scheme, server_lr
        self.names: tuple[str, ...] = ()
        self.importance: tuple[float, ...] = ()
        self.first: tuple[int, ...] = ()
        """The clients that were there at the start."""
        self.rounds: list[RoundRecord] = []
        self.told: list[Told] = []
        self.faults: list[Fault] = []
        self.measured: dict[Measured, dict[int, MetricRecord]] = {"train": {}, "evaluate": {}, "server": {}}
        self._on_disk = on_disk
        self._lines: list[str] = []
        self._written = 0

    def _line(self, **what: Any) -> None:
        if self._on_disk:
            self._lines.append(json.dumps(what, separators=(",", ":")))

    @property
    def has_lines(self) -> bool:
        """Whether there are lines that nobody has asked for."""
        return bool(self._lines)

    def new_lines(self) -> list[str]:
        """The lines since the last time that this was asked."""
        lines, self._lines = self._lines, []
        return lines

    def begin(self, first: Iterable[int]) -> None:
        """Training starts with these clients."""
        self.first = tuple(sorted(first))
        self._line(first=self.first)

    def tell(self, told: Told) -> None:
        """The server is told something; it is written with the round that it leads to."""
        self.told.append(told)

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""
        self.rounds.append(closed)
        self._line(round=closed, told=self.told[self._written :])
        self._written = len(self.told)

    def tell_rest(self) -> None:
        """Write down what was told after the last round."""
        if self._written < len(self.told):
            self._line(told=self.told[self._written :])
            self._written = len(self.told)

    def fault(self, fault: Fault) -> None:
        """Something went wrong."""
        self.faults.append(fault)
        self._line(fault=fault)

    def measure(self, whose: Measured, server_round: int, record: Mapping[str, Any]) -> None:
        """Measures of a round; a TypeError or ValueError if they are no numbers."""
        plain = _plain(record)
        self.measured[whose][server_round] = MetricRecord(plain)
        self._line(measured=[whose, server_round, plain])

    def read(self, lines: Iterable[str]) -> None:
        """Take up what an earlier run has written."""
        on_disk, self._on_disk = self._on_disk, False
        for place, line in enumerate(lines, 1):
            try:
                what = json.loads(line)
            except ValueError as error:
                raise InputError(
                    f"rounds.jsonl: line {place} cannot be read ({error}); choose another folder"
                ) from None
            self.told += [Told(*told) for told in what.get("told", ())]
            if "round" in what:
                number, server_round, end, updates, names = what["round"]
                taken = tuple(UpdateRecord(*update) for update in updates)
                self.round(RoundRecord(number, server_round, end, taken, tuple(names)))
            elif "fault" in what:
                self.fault(Fault(*what["fault"]))
            elif "measured" in what:
                whose, server_round, record = what["measured"]
                self.measure(whose, server_round, MetricRecord(record))
            elif "first" in what:
                self.begin(what["first"])
        self._written = len(self.told)
        self._on_disk = on_disk


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Measures as numbers that JSON knows, lists of them too."""
    if not isinstance(record, Mapping):
        raise TypeError(f"a {type(record).__name__} was given; give a MetricRecord")
    return {name: [*map(_number, v)] if isinstance(v, list) else _number(v) for name, v in record.items()}


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, (int, np.integer)) else float(value)
