"""What is written down of a run, and what it costs to keep."""

from __future__ import annotations

import gc
import json

from flwr.app import MetricRecord

from fedtempo.flower.journal import Journal, LoggedEvent
from fedtempo.flower.result import RoundRecord, UpdateRecord


def journal(*, on_disk: bool, rounds: int = 3) -> Journal:
    kept = Journal(scheme={"name": "asynchronous"}, server_lr=1.0, on_disk=on_disk)
    kept.begin([1, 0])
    for n in range(rounds):
        kept.log(LoggedEvent(10 * n, "arrived", 1, n))
        update = UpdateRecord(1, n, n, 10 * n - 5, 10 * n, 0.5, 1.0, 100)
        kept.round(RoundRecord(n, n + 1, 10 * n, (update,), ("b",)))
        kept.measure("train", n + 1, MetricRecord({"loss": 1 / (n + 1), "row": [1, 2]}))
    kept.log(LoggedEvent(99, "left", 0))
    kept.write_rest()
    return kept


def test_records_are_what_was_given() -> None:
    kept = journal(on_disk=False)
    assert kept.rounds[1] == RoundRecord(1, 2, 10, (UpdateRecord(1, 1, 1, 5, 10, 0.5, 1.0, 100),), ("b",))
    assert kept.rounds[1].updates[0].bytes_up == 100
    assert kept.events[-1] == LoggedEvent(99, "left", 0)
    assert kept.events[-1].kind == "left"
    assert kept.measured("train")[2] == MetricRecord({"loss": 0.5, "row": [1, 2]})
    assert kept.has_measured("train", 3)
    assert not kept.has_measured("server", 3)


def test_lines_give_the_same_journal() -> None:
    kept = journal(on_disk=True)
    lines = kept.new_lines()
    assert json.loads(lines[0]) == {"first": [0, 1]}
    read = Journal(scheme=kept.scheme, server_lr=1.0, on_disk=True)
    read.read(lines)
    assert (read.first, read.rounds, read.events) == (kept.first, kept.rounds, kept.events)
    assert read.measured("train") == kept.measured("train")
    assert not read.has_lines


def test_long_runs_leave_the_garbage_collector_nothing_to_visit() -> None:
    kept = journal(on_disk=False, rounds=1)
    gc.freeze()  # nothing else is looked at
    before = len(gc.get_objects())
    for n in range(1, 2000):
        kept.log(LoggedEvent(n, "arrived", n % 7, n))
        kept.round(RoundRecord(n, n, n, (UpdateRecord(n % 7, n, n, 0, n, 0.5, 1.0, 100),), ("b",)))
        kept.measure("train", n, MetricRecord({"loss": 1.0 / n}))
    for _ in range(3):  # what holds other tuples is let alone one pass later
        gc.collect()
    tracked = len(gc.get_objects()) - before
    gc.unfreeze()
    assert tracked < 200, "what is kept of 2 000 rounds is tracked"
