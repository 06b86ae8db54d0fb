"""What is written down of a run, line by line: rounds with what was told before they ended, faults, measures.

The same lines are kept in memory and, where there is a folder, in `rounds.jsonl`. In memory they are plain tuples,
which Python's garbage collector soon lets alone; records are made of them when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
        self.faults: list[Fault] = []
        self._rounds: list[tuple[Any, ...]] = []
        self._told: list[tuple[Any, ...]] = []
        self._measured: dict[Measured, dict[int, dict[str, Any]]] = {"train": {}, "evaluate": {}, "server": {}}
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

    @property
    def rounds(self) -> list[RoundRecord]:
        """The rounds that have ended."""
        return [_round(row) for row in self._rounds]

    @property
    def told(self) -> list[Told]:
        """What the server was told."""
        return [Told(*row) for row in self._told]

    def measured(self, whose: Measured) -> dict[int, MetricRecord]:
        """Measures by round."""
        return {server_round: MetricRecord(plain) for server_round, plain in self._measured[whose].items()}

    def has_measured(self, whose: Measured, server_round: int) -> bool:
        """Whether there are measures of this round."""
        return server_round in self._measured[whose]

    def begin(self, first: Iterable[int]) -> None:
        """Training starts with these clients."""
        self.first = tuple(sorted(first))
        self._line(first=self.first)

    def tell(self, told: Told) -> None:
        """The server is told something; it is written with the round that it leads to."""
        self._told.append(tuple(told))

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""
        row = (*closed[:3], tuple(map(tuple, closed.updates)), closed.contributors)
        self._rounds.append(row)
        self._line(round=row, told=self._told[self._written :])
        self._written = len(self._told)

    def tell_rest(self) -> None:
        """Write down what was told after the last round."""
        if self._written < len(self._told):
            self._line(told=self._told[self._written :])
            self._written = len(self._told)

    def fault(self, fault: Fault) -> None:
        """Something went wrong."""
        self.faults.append(fault)
        self._line(fault=fault)

    def measure(self, whose: Measured, server_round: int, record: Mapping[str, Any]) -> None:
        """Measures of a round; a TypeError or ValueError if they are no numbers."""
        plain = _plain(record)
        if not isinstance(record, MetricRecord):
            MetricRecord(plain)  # it refuses what it cannot hold
        self._measured[whose][server_round] = plain
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
            self._told += map(tuple, what.get("told", ()))
            if "round" in what:
                self.round(_round(what["round"]))
            elif "fault" in what:
                self.fault(Fault(*what["fault"]))
            elif "measured" in what:
                whose, server_round, record = what["measured"]
                self.measure(whose, server_round, MetricRecord(record))
            elif "first" in what:
                self.begin(what["first"])
        self._written = len(self._told)
        self._on_disk = on_disk


def _round(row: Sequence[Any]) -> RoundRecord:
    number, server_round, end, updates, names = row
    return RoundRecord(number, server_round, end, tuple(UpdateRecord(*update) for update in updates), tuple(names))


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Measures as numbers that JSON knows, lists of them too."""
    if not isinstance(record, Mapping):
        raise TypeError(f"a {type(record).__name__} was given; give a MetricRecord")
    return {name: [*map(_number, v)] if isinstance(v, list) else _number(v) for name, v in record.items()}


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, (int, np.integer)) else float(value)
