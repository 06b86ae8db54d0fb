"""The server is killed at any moment and started again: no completed round is lost, and no update counts twice."""

from __future__ import annotations

import contextlib
import json
import logging
import os

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded
from flower_fake import FakeGrid, Killed, failure, on, record_of, shifting

INITIAL = {"w": np.zeros(3), "n": np.zeros(2, dtype=np.int32)}
STRATEGIES = {
    "fedavg": lambda **o: FedAvg(**o),
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(1.3, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


class Crashes:
    """Counts the calls at which a process can be killed, and kills it at one of them."""

    def __init__(self, monkeypatch) -> None:
        self.count, self.at = 0, None
        monkeypatch.setattr(os, "fsync", self._before(lambda handle: None))  # a kill is not a power cut
        monkeypatch.setattr(os, "replace", self._before(os.replace))
        for name in ("push_messages", "pull_messages", "get_nodes"):
            monkeypatch.setattr(FakeGrid, name, self._before(getattr(FakeGrid, name)))

    def _before(self, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.at is not None and self.count >= self.at:
                raise Killed
            return call(*args, **kwargs)

        return counted


def tokens(records, key):
    """What each update of a round was, by a number that no other has."""
    return MetricRecord({"tokens": [int(next(iter(r.metric_records.values()))["token"]) for r in records]})


def world() -> tuple[FakeGrid, dict[int, float]]:
    grid, steps = FakeGrid(), {}

    def client(seconds, step):
        def behave(message):
            token = len(steps)
            steps[token] = step + token / 100
            return shifting(steps[token], seconds, token=token)(message)

        return behave

    for node, seconds in enumerate([1, 0.7, 2.5]):
        grid.connect(100 + node, client(seconds, node))
    return grid, steps


def start(name, grid, folder, resume, rounds=6, **options):
    strategy = STRATEGIES[name](**on(grid, checkpoint=folder, train_metrics_aggr_fn=tokens, norm_limit=None, **options))
    return strategy.start(grid, record_of(INITIAL), num_rounds=rounds, timeout=9, resume=resume)


def check(result, steps) -> None:
    record = recorded(result)
    assert record.retold().equals(record.timeline)
    entered = [
        token for n in sorted(result.train_metrics_clientapp) for token in result.train_metrics_clientapp[n]["tokens"]
    ]
    updates = [update for closed in result.rounds for update in closed.updates]
    assert len(entered) == len(set(entered)) == len(updates)
    total = sum(update.weight * steps[token] for token, update in zip(entered, updates, strict=True))
    assert result.arrays["w"].numpy() == pytest.approx(np.full(3, total), rel=1e-9)
    assert [closed.number for closed in result.rounds] == list(range(len(result.rounds)))
    assert [c.server_round for c in result.rounds if c.updates] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", STRATEGIES)
def test_killed_at_every_moment(name, tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level(logging.CRITICAL, "flwr")
    crashes = Crashes(monkeypatch)
    grid, steps = world()
    whole = start(name, grid, tmp_path / "whole", resume=False)
    check(whole, steps)
    moments = crashes.count
    assert moments > 30
    for moment in range(1, moments + 1, 1 if name == "fedfix" else 4):
        folder = tmp_path / str(moment)
        grid, steps = world()
        crashes.count, crashes.at = 0, moment
        with pytest.raises(Killed):
            start(name, grid, folder, resume=False)
        crashes.at = None
        before = recorded(folder).timeline.num_rounds if (folder / "state.npz").exists() else 0
        saved = [closed.end for closed in whole.rounds[:before]]
        result = start(name, grid, folder, resume=True)
        assert [closed.end for closed in result.rounds[:before]] == saved, "completed rounds are as they were"
        check(result, steps)
        assert recorded(folder).timeline.equals(recorded(result).timeline)
        if 0 < before < len(result.rounds):
            assert [fault.kind for fault in result.errors].count("restart") == 1


def test_a_run_that_is_killed_again_and_again_comes_to_its_end(tmp_path, monkeypatch) -> None:
    crashes = Crashes(monkeypatch)
    grid, steps = world()
    lives, result = 0, None
    while result is None:
        lives += 1
        crashes.count, crashes.at = 0, 25
        with contextlib.suppress(Killed):
            result = start("fedfix", grid, tmp_path, resume=True)
    assert lives > 3
    crashes.at = None
    check(result, steps)


def test_time_goes_on_where_it_was(tmp_path) -> None:
    grid, _ = world()
    first = start("fedfix", grid, tmp_path, resume=False, rounds=3)
    grid.clock.time += 10**12  # the server was down for long
    second = start("fedfix", grid, tmp_path, resume=True)
    ends = [closed.end for closed in second.rounds]
    assert ends[: len(first.rounds)] == [closed.end for closed in first.rounds]
    assert ends == [1_300_000_000 * (n + 1) for n in range(len(ends))], "ticks go on as if nothing had happened"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_that_ended_by_time_can_be_given_more(name, tmp_path) -> None:
    """What happened between its last round and its end is known too."""
    grid, _ = world()
    grid.connect(103, lambda message: [(10**8, failure(message))])  # fails all the time
    options = on(grid, checkpoint=tmp_path, train_metrics_aggr_fn=tokens, norm_limit=None, retry_after=0.5)
    strategy = STRATEGIES[name](**options)
    for until in (4.1, 7.3, 11):
        result = strategy.start(grid, record_of(INITIAL), num_rounds=100, timeout=9, until=until, resume=True)
        assert result.stopped == f"the time is over: {until:g} s"
        record = recorded(result)
        assert record.retold().equals(record.timeline)
        assert recorded(tmp_path).told == record.told
    assert [fault.kind for fault in result.errors].count("restart") == 2
    entered = [token for metrics in result.train_metrics_clientapp.values() for token in metrics["tokens"]]
    assert len(entered) == len(set(entered)) == record.timeline.num_updates


def test_estimates_and_identities_are_kept(tmp_path) -> None:
    grid, _ = world()
    first = start("fedfix", grid, tmp_path, resume=False, rounds=6)
    again = start("fedfix", grid, tmp_path, resume=True, rounds=6)
    assert again.stopped == "6 rounds are done"
    assert again.client_times == first.client_times
    assert again.rounds == first.rounds
    assert again.arrays == first.arrays
    assert again.errors == first.errors
    assert recorded(again).importance == recorded(first).importance


def test_what_is_usual_is_known_after_a_restart(tmp_path) -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, token=0))
    for rounds in (6, 7):
        strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path))
        result = strategy.start(grid, record_of(INITIAL), num_rounds=rounds, until=20, resume=True)
        grid.nodes[100].behave = shifting(1e6, 1)
    assert {fault.kind for fault in result.errors} == {"restart", "refused", "set aside"}
    assert len(result.rounds) == 6


def test_a_client_that_is_gone_when_the_server_comes_back(tmp_path) -> None:
    grid, _ = world()
    start("fedavg", grid, tmp_path, resume=False, rounds=2)
    grid.disconnect(102)
    grid.connect(103, shifting(0, 1, token=10**6))
    result = start("fedavg", grid, tmp_path, resume=True, rounds=4)
    assert [len(closed.updates) for closed in result.rounds] == [3, 3, 3, 3]
    assert [update.client for update in result.rounds[-1].updates] == [0, 1, 3]
    assert {fault.kind for fault in result.errors} == {"restart", "left", "joined"}


def test_every_few_rounds(tmp_path) -> None:
    grid, steps = world()
    grid.kill_at = 40
    with pytest.raises(Killed):
        start("async", grid, tmp_path, resume=False, rounds=100, checkpoint_every=4)
    grid.kill_at = None
    done = recorded(tmp_path).timeline.num_rounds
    assert done >= 4
    assert done % 4 == 0
    assert len(steps) > done


def test_a_folder_with_a_run_is_not_written_over(tmp_path) -> None:
    grid, _ = world()
    start("async", grid, tmp_path, resume=False)
    with pytest.raises(
        ResultsConflict, match="holds a run; pass resume=True to go on with it, or choose another folder"
    ):
        start("async", grid, tmp_path, resume=False)
    with pytest.raises(ResultsConflict, match=r'holds another run .its scheme is {"name": "async"}, here it is'):
        start("fedavg", grid, tmp_path, resume=True)
    with pytest.raises(ResultsConflict, match="its server_lr is"):
        start("async", grid, tmp_path, resume=True, server_lr=0.5)
    strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path))
    with pytest.raises(ResultsConflict, match="its model is"):
        strategy.start(grid, record_of({"w": np.zeros(4)}), resume=True)


def test_resuming_needs_a_folder_and_starts_anew_in_an_empty_one(tmp_path) -> None:
    grid, steps = world()
    with pytest.raises(InputError, match="resume: there is no folder to go on from; give the strategy checkpoint="):
        AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), resume=True)
    check(start("async", grid, tmp_path / "new", resume=True), steps)


def test_what_is_on_the_disk_is_plain(tmp_path) -> None:
    grid, _ = world()
    start("fedfix", grid, tmp_path, resume=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounds.jsonl", "state.npz"]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert {key for line in lines for key in line} == {"first", "round", "told", "measured"}
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        assert saved["array0"].shape == (3,)
        assert saved["array1"].dtype == np.int32
    (tmp_path / "state.npz").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"state\.npz: cannot be read"):
        start("fedfix", grid, tmp_path, resume=True)
