"""A SuperLink and three SuperNodes as processes, offline: FedFix trains, and its record can be replayed."""

from __future__ import annotations

from pathlib import Path

from fedtempo.flower.local import LocalFederation
from support.flower_real import APP, ENV, check_oracle, check_rule, journal_of, measured, settings, start_sites


def test_fedfix_trains_on_real_nodes_and_its_record_replays(tmp_path: Path) -> None:
    pauses = {0: 0.0, 1: 1.0, 2: 3.0}
    with LocalFederation(tmp_path / "federation", env=ENV) as federation:
        start_sites(federation, pauses)
        run = federation.run(APP, settings(tmp_path, 3, wait=4.0, num_rounds=3, timeout=80.0), limit=150.0)
        assert run.completed
    assert federation.processes.marked() == {}
    found = measured(tmp_path)
    assert 0 < found[-1]["loss"] < 10
    assert found[-1]["loss"] != found[0]["loss"], "it has trained; a few one-sided updates need not help"
    record = check_rule(tmp_path)
    assert len(record.names) == 3
    journal = journal_of(tmp_path)
    assert {name for closed in journal.rounds for name in closed.contributors} <= {"0", "1", "2"}
    assert sum(bool(closed.updates) for closed in journal.rounds) == 3
    assert [fault for fault in journal.faults if fault.kind == "refused"] == []
    check_oracle(tmp_path, 3)
