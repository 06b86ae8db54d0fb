"""Real Flower processes that are killed, turned away or lie: ``pytest -s tests/flower/long_running.py``, ten minutes.

Each case prints what was seen and asserts on the record; none asserts on seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedtempo.flower.journal import Journal
from fedtempo.flower.local import LocalFederation, Run
from support.flower_real import (
    APP,
    ENV,
    check_oracle,
    check_rule,
    journal_of,
    measured,
    odd_app,
    settings,
    site,
    start_sites,
)

LIMIT = 300.0


def until(federation: LocalFederation, run: Run, happened: Callable[[], bool]) -> None:
    """Wait for something to happen while a run goes on."""
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline, federation.run_log(run)
        time.sleep(0.2)


def rounds_of(folder: Path) -> int:
    """Models that are safe in the folder so far."""
    state = folder / "run" / "state.npz"
    return sum(bool(closed.updates) for closed in journal_of(folder).rounds) if state.exists() else 0


def has_contributed(folder: Path, identity: str) -> bool:
    """Whether the server knows a client by its own word."""
    return rounds_of(folder) > 0 and identity in contributions(journal_of(folder))


def show(record: Journal) -> None:
    """What happened, for people."""
    for closed in record.rounds:
        if closed.updates:
            print(f"  {closed.time:6.1f} s  round {closed.server_round}: {', '.join(closed.contributors)}")
    for fault in record.faults:
        print(f"  {fault.time:6.1f} s  {fault}")


def contributions(record: Journal) -> Counter[str]:
    return Counter(name for closed in record.rounds for name in closed.contributors)


def kinds(record: Journal, identity: str) -> list[str]:
    return [fault.kind for fault in record.faults if fault.identity == identity]


def test_tls_and_keys_strangers_are_turned_away_and_a_client_is_known_by_its_key(tmp_path: Path) -> None:
    pauses = {0: 0.0, 1: 1.0, 2: 3.0}
    with LocalFederation(tmp_path / "federation", secure=True, env=ENV) as federation:
        start_sites(federation, pauses)
        known = set(federation.online())
        stranger = federation.start_node("stranger", key=federation.new_key("stranger", register=False))
        plaintext = federation.start_node("plaintext", insecure=True)
        stranger.process.wait(LIMIT)
        run = federation.submit(APP, settings(tmp_path, 3, wait=8.0, num_rounds=10, identity_key="", timeout=60.0))
        until(federation, run, lambda: rounds_of(tmp_path) >= 2)
        node = federation.nodes["site-1"]
        node.process.terminate()  # politely: after a kill -9 Flower refuses its key until heartbeats have failed
        node.process.wait(LIMIT)
        until(federation, run, lambda: "left" in [fault.kind for fault in journal_of(tmp_path).faults])
        before = rounds_of(tmp_path)
        federation.start_node("site-1", site(1, pauses), key=node.key)
        assert federation.wait(run, limit=LIMIT).completed, federation.run_log(run)
        assert stranger.process.returncode != 0
        assert "Failed to activate" in stranger.log.read_text()
        assert plaintext.process.poll() is None
        assert len(known) == 3
    record = journal_of(tmp_path)
    print(
        f"\nTLS and keys: {len(record.names)} clients {record.names}; an unregistered node ended, {stranger.log.name}"
    )
    show(record)
    assert len(record.names) == 3, "a client that came back with its key is no new one"
    [back] = [fault.identity for fault in record.faults if fault.kind == "came back"]
    assert any(back in closed.contributors and closed.server_round > before for closed in record.rounds)
    assert set(contributions(record)) == set(record.names)
    check_rule(tmp_path)


def test_a_killed_supernode_is_missed_and_comes_back_under_its_number(tmp_path: Path) -> None:
    pauses = {0: 0.0, 1: 1.0, 2: 2.0}
    with LocalFederation(tmp_path / "federation", env=ENV) as federation:
        start_sites(federation, pauses)
        run = federation.submit(APP, settings(tmp_path, 3, wait=8.0, num_rounds=20, timeout=30.0))
        until(federation, run, lambda: has_contributed(tmp_path, "2"))
        node = federation.nodes["site-2"]
        until(federation, run, lambda: bool(federation.app_processes(node)))
        node.process.kill()
        node.process.wait()
        before = rounds_of(tmp_path)
        until(federation, run, lambda: "left" in kinds(journal_of(tmp_path), "2"))
        federation.start_node("site-2", site(2, pauses))
        assert federation.wait(run, limit=LIMIT).completed, federation.run_log(run)
    record = journal_of(tmp_path)
    print("\nkill -9 of a SuperNode:")
    show(record)
    assert {"deadline", "left", "error"} & set(kinds(record, "2")), "its loss is recorded"
    assert "came back" in kinds(record, "2")
    last = max(closed.server_round for closed in record.rounds if "2" in closed.contributors)
    assert last > before, "it contributes again"
    check_rule(tmp_path)
    check_oracle(tmp_path, 3)


def test_a_killed_clientapp_loses_its_job_and_gets_another(tmp_path: Path) -> None:
    pauses = {0: 0.0, 1: 1.0, 2: 4.0}
    with LocalFederation(tmp_path / "federation", env=ENV) as federation:
        start_sites(federation, pauses)
        run = federation.submit(APP, settings(tmp_path, 3, wait=8.0, num_rounds=16, timeout=25.0))
        node = federation.nodes["site-2"]
        until(federation, run, lambda: has_contributed(tmp_path, "2") and bool(federation.app_processes(node)))
        [pid] = federation.app_processes(node)
        os.kill(pid, signal.SIGKILL)
        before = rounds_of(tmp_path)
        assert federation.wait(run, limit=LIMIT).completed, federation.run_log(run)
    record = journal_of(tmp_path)
    print("\nkill -9 of a ClientApp:")
    show(record)
    assert {"deadline", "error"} & set(kinds(record, "2")), "the lost job is recorded"
    assert any("2" in closed.contributors and closed.server_round > before for closed in record.rounds)
    check_rule(tmp_path)
    check_oracle(tmp_path, 3)


def test_a_killed_server_goes_on_where_it_was(tmp_path: Path) -> None:
    pauses = {0: 0.0, 1: 1.0, 2: 6.0}
    with LocalFederation(tmp_path / "federation", env=ENV) as federation:
        start_sites(federation, pauses)
        told = settings(tmp_path, 3, wait=8.0, num_rounds=6, timeout=60.0)
        run = federation.submit(APP, told)
        until(federation, run, lambda: rounds_of(tmp_path) >= 3)
        [pid] = federation.app_processes()
        os.kill(pid, signal.SIGKILL)
        until(federation, run, lambda: not federation.app_processes())
        before = journal_of(tmp_path)
        federation.run(APP, told | {"resume": True}, limit=LIMIT)
    record = journal_of(tmp_path)
    print(f"\nkill -9 of the server after {len(before.rounds)} rounds:")
    show(record)
    assert record.rounds[: len(before.rounds)] == before.rounds, "nothing of a completed round is lost"
    numbers = [closed.number for closed in record.rounds]
    assert numbers == list(range(len(numbers)))
    jobs = Counter((update.client, update.job) for closed in record.rounds for update in closed.updates)
    assert set(jobs.values()) == {1}, "no update is counted twice"
    assert "restart" in [fault.kind for fault in record.faults]
    assert record.names == before.names
    assert measured(tmp_path)[-1]["round"] == 6
    check_rule(tmp_path)
    check_oracle(tmp_path, 3)


def test_nan_errors_and_plain_clients(tmp_path: Path) -> None:
    pauses = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    with LocalFederation(tmp_path / "federation", env=ENV) as federation:
        start_sites(federation, pauses, odd={1: "nan", 2: "raises", 3: "plain"})
        told = settings(tmp_path, 4, scheme="async", num_rounds=12, timeout=60.0)
        federation.run(odd_app(tmp_path), told, limit=LIMIT)
    record = journal_of(tmp_path)
    print("\nclients that send NaN, that raise, and that know nothing of jobs:")
    show(record)
    came = contributions(record)
    assert set(came) == {"0", "3"}, "only the sound ones enter"
    reasons = " ".join(fault.reason for fault in record.faults)
    assert "NaN" in reasons
    assert "disk of this site is full" in reasons
    assert "set aside" in [fault.kind for fault in record.faults]
    found = measured(tmp_path)
    assert found[-1]["loss"] < found[0]["loss"]
    with np.load(tmp_path / "model.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model.files)
    check_rule(tmp_path)
