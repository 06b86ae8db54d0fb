"""The server is killed at any moment and started again: no completed round is lost, and no update counts twice."""

from __future__ import annotations

import contextlib
import json
import logging

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict

import fedtempo as ft
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, recorded
from fedtempo.flower.evaluation import ClientEvaluation, Evaluator
from fedtempo.flower.state import Saver
from support.flower_fake import (
    SECOND,
    Crashes,
    FakeGrid,
    Killed,
    VirtualClock,
    arrays_of,
    failure,
    on,
    record_of,
    shifting,
)

INITIAL = {"w": np.zeros(3), "n": np.zeros(2, dtype=np.int32)}
STRATEGIES = {
    "fedavg": lambda **o: FedAvg(**o),
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(1.3, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


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
    assert record.replay_events().equals(record.timeline)
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


CHOOSING = {
    "uniform": (ft.UniformSampling(2), "time-based"),
    "multinomial": (ft.MultinomialSampling(3), "time-based"),
    "fastest": (ft.FastestSampling(1), "identical"),
    "cured": (ft.CuredSampling(ft.FastestSampling(1), window=5, biased=1), "time-based"),
    "highest loss": (ft.HighestLossSampling(1, candidates=2), "identical"),
}


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("calls", [17, 26, 40])
def test_what_a_rule_needs_is_known_after_a_crash(name, calls, tmp_path, monkeypatch) -> None:
    crashes = Crashes(monkeypatch)
    scheme, rule = CHOOSING[name]
    grid = FakeGrid()
    for node, (seconds, examples) in enumerate([(2.5, 30), (1, 20), (0.7, 50)]):
        grid.connect(100 + node, shifting(node, seconds, examples, loss=seconds))
    options = on(grid, checkpoint=tmp_path, weights=rule, loss_key="loss", seed=4, poll=1)
    lives, result = 0, None
    while result is None:
        lives += 1
        crashes.count, crashes.at = 0, calls
        with contextlib.suppress(Killed):
            strategy = TimedStrategy(scheme, **options)
            result = strategy.start(grid, record_of(INITIAL), num_rounds=24, resume=True)
    assert lives > 2
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    assert recorded(tmp_path).replay_events().equals(record.timeline)
    if name == "highest loss":
        return  # nobody knows its weights ahead
    weights = ft.weights(scheme, ft.FixedTimes([3, 2, 1]), importance=["0.3", "0.2", "0.5"], rule=rule)
    used, meant = record.weights.applied(record.timeline), weights.applied(record.timeline)
    late = record.timeline.round_of_update >= 10  # before, not all have answered
    np.testing.assert_allclose(used[late], meant[late], rtol=1e-12)


def test_a_rule_that_needs_nothing_keeps_the_format_of_its_journal(tmp_path) -> None:
    grid, _ = world()
    start("fedbuff", grid, tmp_path, resume=False)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert {**lines[0], "crc": None} == {"first": [0, 1, 2], "crc": None}
    assert {event[1] for line in lines for event in line.get("told", ())} == {"arrived"}
    assert {len(update) for line in lines if "round" in line for update in line["round"][3]} == {8}


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
        assert record.replay_events().equals(record.timeline)
        assert recorded(tmp_path).events == record.events
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
        strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path, guard=None))
        result = strategy.start(grid, record_of(INITIAL), num_rounds=rounds, until=20, resume=True)
        grid.nodes[100].behave = shifting(1e6, 1)
    assert {fault.kind for fault in result.errors} == {"restart", "refused", "set aside"}
    assert sum(bool(closed.updates) for closed in result.rounds) == 6


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
        ResultsConflict, match="contains a run; pass resume=True to continue it, or choose another folder"
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
    with pytest.raises(InputError, match="resume: there is no folder to continue from; give the strategy checkpoint="):
        AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), resume=True)
    check(start("async", grid, tmp_path / "new", resume=True), steps)


def test_what_is_on_the_disk_is_plain(tmp_path) -> None:
    grid, _ = world()
    start("fedfix", grid, tmp_path, resume=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounds.jsonl", "state.npz", "state.previous.npz"]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert {key for line in lines for key in line} == {"first", "round", "told", "measured", "crc"}
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        assert saved["array0"].shape == (3,)
        assert saved["array1"].dtype == np.int32
    for name in ("state.npz", "state.previous.npz"):
        (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"state\.npz: cannot be read"):
        start("fedfix", grid, tmp_path, resume=True)


def joins(grid) -> None:
    grid.at(2.9, lambda: grid.connect(101, shifting(5, 2)))


def rests_no_longer(grid) -> None:
    """Its rest ends at 24 s, when the other client answers."""
    grid.connect(101, lambda message: [(SECOND // 2, failure(message))])


def leaves(grid) -> None:
    grid.connect(101, shifting(5, 100))
    grid.at(5.9, lambda: grid.disconnect(101))


def is_set_aside(grid) -> None:
    grid.connect(101, lambda message: [(SECOND, failure(message))])


@pytest.mark.parametrize("what", [joins, rests_no_longer, leaves, is_set_aside])
@pytest.mark.parametrize("back", [True, False], ids=["there", "gone"])
def test_killed_before_the_server_was_told_who_came_and_went(what, back, tmp_path, monkeypatch) -> None:
    """The look that ended a round has found it, and the round was saved first."""
    grid = FakeGrid(VirtualClock(wakes=False))
    grid.connect(100, shifting(1, 3))
    what(grid)
    kept = Saver.write

    def write(self, snapshot, arrays, handler, *more, **named) -> None:
        kept(self, snapshot, arrays, handler, *more, **named)
        ready = {client for client in handler.registry.there if not handler.retries.resting(client)}
        if set(snapshot["clients"]) != ready and (what is not rests_no_longer or 1 in ready):
            raise Killed

    options = {"checkpoint": tmp_path, "retry_after": 22.5 if what is rests_no_longer else 1000}
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "write", write)
        with pytest.raises(Killed):
            AsyncFedAvg(**on(grid, **options)).start(grid, record_of(INITIAL), num_rounds=300)
    before = len(recorded(tmp_path).faults)
    grid = FakeGrid()
    grid.connect(100, shifting(1, 3))
    if back:
        grid.connect(101, shifting(5, 2))
    result = AsyncFedAvg(**on(grid, **options)).start(
        grid, record_of(INITIAL), num_rounds=300, until=100, timeout=200, resume=True
    )
    assert {fault.kind for fault in result.errors[before:]} <= {"restart", "left", "came back"}
    assert grid.nodes[100].got
    if back:
        assert bool(grid.nodes[101].got) == (what is not is_set_aside), "who is set aside rests on"
    assert recorded(result).replay_events().equals(recorded(result).timeline)


def test_a_node_that_was_away_when_the_server_went_down_is_the_same_client_after_it(tmp_path) -> None:
    grid, _ = world()
    grid.at(3.1, lambda: grid.hidden.add(102))
    start("async", grid, tmp_path, resume=False, rounds=24)
    grid.hidden.clear()
    result = start("async", grid, tmp_path, resume=True, rounds=40)
    assert recorded(result).names == ("node 100", "node 101", "node 102")
    assert result.errors[-1].kind == "came back"


def cut(text: bytes) -> bytes:
    return text[:-20]


def lacks_lines(text: bytes) -> bytes:
    return b"".join(text.splitlines(keepends=True)[:-2])


def scrambled(text: bytes) -> bytes:
    return b"{" * len(text)


def no_text(text: bytes) -> bytes:
    return b"\xff" * len(text)


@pytest.mark.parametrize("damage", [cut, lacks_lines, scrambled, no_text, None])
def test_a_journal_that_is_damaged_is_said_and_left_as_it_is(damage, tmp_path) -> None:
    grid, _ = world()
    start("async", grid, tmp_path, resume=False)
    journal = tmp_path / "rounds.jsonl"
    damaged = None if damage is None else damage(journal.read_bytes())
    if damaged is None:
        journal.unlink()
    else:
        journal.write_bytes(damaged)
    for read in (lambda: recorded(tmp_path), lambda: start("async", grid, tmp_path, resume=True, rounds=8)):
        with pytest.raises(InputError, match=r"rounds\.jsonl: .*choose another folder"):
            read()
        assert (journal.read_bytes() if journal.exists() else None) == damaged


@pytest.mark.parametrize(
    ("resume", "when", "told"),
    [
        (False, 0.5, "another server is writing to"),  # nothing is saved yet
        (True, 0.5, "another server is writing to"),
        (False, 1.5, "contains a run"),
        (True, 1.5, "another server is writing to"),
    ],
)
def test_two_servers_do_not_write_to_one_folder(resume, when, told, tmp_path) -> None:
    grid, steps = world()
    refused = []

    def second() -> None:
        with pytest.raises(ResultsConflict, match=told):
            start("async", world()[0], tmp_path, resume=resume)
        refused.append(told)

    grid.at(when, second)
    check(start("async", grid, tmp_path, resume=False), steps)
    assert refused
    check(start("async", grid, tmp_path, resume=True), steps)


def test_a_start_that_is_refused_leaves_the_folder_free(tmp_path, monkeypatch) -> None:
    grid, steps = world()

    def no(*args, **options):
        raise InputError("no")

    for resume in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr("fedtempo.flower.training.RoundWeights", no)
            with pytest.raises(InputError) as first:
                start("async", grid, tmp_path, resume=resume)
        assert str(first.value) == "no"
        with pytest.raises(ResultsConflict) if resume else contextlib.nullcontext() as second:
            start("async", grid, tmp_path, resume=resume, rounds=6, server_lr=0.5 if resume else 1.0)
        assert second is None or "its server_lr is" in str(second.value)
    check(start("async", grid, tmp_path, resume=True), steps)


def test_the_last_model_is_evaluated_if_the_server_was_killed_before(tmp_path, monkeypatch) -> None:
    grid, _ = world()
    asked = []

    def evaluate(number, arrays):
        asked.append(number)
        return MetricRecord({"first": float(arrays["w"].numpy()[0])})

    def again(evaluate_fn):
        strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path))
        return strategy.start(grid, record_of(INITIAL), num_rounds=3, resume=True, evaluate_fn=evaluate_fn)

    def killed(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "finish", killed)
        with pytest.raises(Killed):
            again(lambda number, arrays: None)
    for _ in range(2):
        result = again(evaluate)
        assert result.evaluate_metrics_serverapp[3]["first"] == result.arrays["w"].numpy()[0]
        assert result.stopped == "3 rounds are done"
    assert asked == [3], "and only once"


def test_clients_evaluate_the_last_model_if_the_server_was_killed_before(tmp_path, monkeypatch) -> None:
    grid, _ = world()
    train = {number: node.behave for number, node in grid.nodes.items()}
    asked = []

    def evaluate(message):
        asked.append(message.content["config"]["server-round"])
        first = float(arrays_of(message)["w"][0])
        content = RecordDict({"metrics": MetricRecord({"first": first, "num-examples": 10})})
        return [(SECOND, Message(content=content, reply_to=message))]

    for number, node in grid.nodes.items():
        node.behave = lambda m, work=train[number]: work(m) if m.metadata.message_type == "train" else evaluate(m)

    def again():
        strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path, fraction_evaluate=1.0))
        return strategy.start(grid, record_of(INITIAL), num_rounds=3, resume=True)

    def killed(self, transport):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ClientEvaluation, "finish", killed)
        with pytest.raises(Killed):
            again()
    asked.clear()
    for _ in range(2):
        result = again()
        assert result.evaluate_metrics_clientapp[3]["first"] == pytest.approx(result.arrays["w"].numpy()[0])
        assert result.stopped == "3 rounds are done"
    assert set(asked) == {3}
    assert len(asked) == len(grid.nodes), "each client, and only once"


def test_fewer_rounds_than_are_done_already(tmp_path) -> None:
    grid, _ = world()
    start("async", grid, tmp_path, resume=False, rounds=4)
    assert start("async", grid, tmp_path, resume=True, rounds=2).stopped == "4 rounds are done"
