"""Every fault by its name: it is recorded with its reason, does not stop the training and does not enter the model."""

from __future__ import annotations

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, recorded
from support.flower_fake import SECOND, FakeGrid, answer, arrays_of, failure, make_message, on, record_of, shifting

INITIAL = {"w": np.zeros(3), "n": np.zeros((), dtype=np.int64)}


def run(grid: FakeGrid, *, num_rounds: int = 6, timeout: float = 5.0, until: float | None = None, **options):
    """AsyncFedAvg with one weight for all, 1 after the server's rate, so that each update counts by its step alone."""
    strategy = AsyncFedAvg(**on(grid, weights="identical", **{"server_lr": float(len(grid.nodes)), **options}))
    return strategy.start(grid, record_of(INITIAL), num_rounds=num_rounds, timeout=timeout, until=until)


def kinds(result, client: int | None = None) -> list[str]:
    return [fault.kind for fault in result.errors if client is None or fault.client == client]


def only(result, kind: str):
    [fault] = [fault for fault in result.errors if fault.kind == kind]
    return fault


def once(bad, good):
    """A client whose first answer is bad."""
    first = [True]

    def behave(message):
        if first:
            first.clear()
            return bad(message)
        return good(message)

    return behave


def two(bad, **options):
    """One good client, which adds 1 every second, and one that begins badly and adds 0 then."""
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, once(bad, shifting(0, 1)))
    return run(grid, **options)


def steps(result) -> float:
    return float(result.arrays["w"].numpy()[0])


def moved(result, client: int) -> float:
    """What a client's steps of 1 come to, when the server's rate is 2."""
    return 2 * sum(update.weight for closed in result.rounds for update in closed.updates if update.client == client)


def taken(result, client: int) -> int:
    return sum(update.client == client for closed in result.rounds for update in closed.updates)


# -- what a client sends


def changed(**arrays):
    def bad(message):
        whole = {**arrays_of(message), **arrays}
        return [(SECOND // 2, answer(message, {k: v for k, v in whole.items() if v is not None}, {"num-examples": 9}))]

    return bad


def examples(number):
    def bad(message):
        metrics = {} if number is None else {"num-examples": number}
        return [
            (SECOND // 2, answer(message, {k: v + v.dtype.type(9) for k, v in arrays_of(message).items()}, metrics))
        ]

    return bad


def two_records(message):
    content = RecordDict({"a": record_of(INITIAL), "b": record_of(INITIAL), "m": MetricRecord({"num-examples": 1})})
    return [(SECOND // 2, Message(content=content, reply_to=message))]


def unreadable(message):
    arrays = ArrayRecord(
        {"w": Array("float64", (3,), "numpy.ndarray", b"\x93NUMPYnonsense"), "n": Array(np.zeros((), int))}
    )
    content = RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})})
    return [(SECOND // 2, Message(content=content, reply_to=message))]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(changed(w=np.array([0, np.nan, 0])), "'w' contains NaN in 1 of 3 entries", id="NaN"),
        pytest.param(changed(w=np.array([np.inf, 0, -np.inf])), "'w' contains Inf in 2 of 3 entries", id="Inf"),
        pytest.param(changed(w=np.zeros(4)), r"'w' has shape \(4,\) where the model has \(3,\)", id="wrong shapes"),
        pytest.param(changed(w=None), "it lacks w", id="a missing key"),
        pytest.param(changed(extra=np.zeros(1)), "it has extra", id="an extra key"),
        pytest.param(changed(w=None, v=np.zeros(3)), "it lacks w and has v", id="a renamed key"),
        pytest.param(
            changed(w=np.zeros(3, dtype=complex)), "dtype complex128, which cannot be converted to", id="dtype"
        ),
        pytest.param(
            changed(n=np.array(0.5)), "dtype float64, which cannot be converted to the model's int64", id="a counter"
        ),
        pytest.param(examples(0), "num-examples is 0; it must be above zero", id="zero examples"),
        pytest.param(examples(-4), "num-examples is -4", id="negative examples"),
        pytest.param(examples(float("nan")), "num-examples is nan", id="NaN examples"),
        pytest.param(examples(float("inf")), "num-examples is inf", id="infinite examples"),
        pytest.param(examples([1, 2]), "have no number 'num-examples'", id="a list of examples"),
        pytest.param(examples(None), "have no number 'num-examples'", id="no examples"),
        pytest.param(two_records, "has 2 ArrayRecords", id="two records"),
        pytest.param(unreadable, "'w' cannot be read", id="unreadable"),
    ],
)
def test_a_client_sends(bad, reason) -> None:
    result = two(bad)
    fault = only(result, "refused")
    assert (fault.client, fault.identity, fault.time) == (1, "node 101", 0.5)
    assert fault.reason.startswith("job 0: ")
    assert pytest.approx(steps(result), abs=1e-12) == taken(result, 0), "nothing of it has entered"
    assert taken(result, 1) > 0, "the job was sent again"
    assert len([closed for closed in result.rounds if closed.updates]) == 6
    assert re.search(reason, fault.reason)


def test_a_huge_norm() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    count = iter(range(100))

    def sometimes(message):
        step = 1e6 if next(count) == 6 else 0.5
        return shifting(step, 1)(message)

    grid.connect(101, sometimes)
    result = run(grid, num_rounds=20)
    assert "more than 100 times the usual" in only(result, "refused").reason
    assert steps(result) == pytest.approx(taken(result, 0) + 0.5 * taken(result, 1))
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, once(lambda m: shifting(1e6, 5.5)(m), shifting(0, 1)))
    free = run(grid, num_rounds=20, timeout=50, norm_limit=None)
    assert not free.errors
    assert steps(free) > 1e6


def overflowing(message):
    return [(SECOND, answer(message, {"w": np.full(3, 3e38, dtype=np.float32)}, {"num-examples": 10, "loss": 9.0}))]


def test_a_finite_update_that_would_make_the_model_infinite() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, loss=1.0))
    grid.connect(101, once(overflowing, shifting(2, 1, loss=1.0)))
    strategy = FedAvg(**on(grid, server_lr=4, norm_limit=None))
    result = strategy.start(grid, record_of({"w": np.zeros(3, dtype=np.float32)}), num_rounds=3)
    fault = only(result, "refused")
    assert (fault.client, fault.identity, fault.time) == (1, "node 101", 1.0)
    assert fault.reason == "job 0: with this update, of norm 5.2e+38, the new model would not be finite"
    assert [closed.contributors for closed in result.rounds] == [("node 100",), *[("node 100", "node 101")] * 2]
    assert result.arrays["w"].numpy() == pytest.approx(np.full(3, 4 * 0.5 + 2 * 4 * 1.5)), "the rest has entered"
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 1.0}, "nor do its metrics count"
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)


def test_a_round_of_which_nothing_is_left_does_not_count() -> None:
    grid = FakeGrid()
    grid.connect(100, once(overflowing, shifting(1, 1)))
    strategy = AsyncFedAvg(**on(grid, server_lr=4))
    result = strategy.start(grid, record_of({"w": np.zeros(3, dtype=np.float32)}), num_rounds=3)
    assert kinds(result) == ["refused"]
    assert [(closed.server_round, len(closed.updates)) for closed in result.rounds] == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert result.arrays["w"].numpy().tolist() == [12, 12, 12]
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    assert "Rounds: 3 (and 1 without updates) in 4.0 s, 3 updates" in result.summary()


def test_contributions_are_clipped_where_that_is_asked_for() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(4, 1))
    result = run(grid, num_rounds=3, clip_norm=0.3)
    [update] = result.rounds[0].updates
    assert update.clipped == pytest.approx(0.3 / np.sqrt(3 * 16))
    assert result.arrays["w"].numpy() == pytest.approx(np.full(3, 3 * 0.3 / np.sqrt(3)))


# -- what a client does


def test_a_client_raises() -> None:
    result = two(lambda message: [(SECOND // 2, failure(message))])
    fault = only(result, "error")
    assert (fault.client, fault.reason) == (1, "job 0: the client failed with Flower's code 2: ValueError: no")
    assert taken(result, 1) > 0


def test_a_client_hangs_and_its_late_answer_is_not_taken() -> None:
    result = two(lambda message: shifting(100, 7)(message), num_rounds=12)
    assert only(result, "deadline").reason == "job 0: no answer within 5 s"
    late = only(result, "late")
    assert (late.client, late.time) == (1, 7.0)
    assert "job 0 from version 0" in late.reason, "that version was gone long ago"
    assert steps(result) == pytest.approx(moved(result, 0))


def test_a_client_dies_and_its_job_is_not_waited_for() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, shifting(0, 50))
    grid.at(2.5, lambda: grid.disconnect(101))
    result = FedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=3, timeout=500)
    fault = only(result, "left")
    assert (fault.client, fault.reason) == (1, "node 101 is no longer connected")
    assert [closed.contributors for closed in result.rounds] == [("node 100",)] * 3
    assert [closed.weights for closed in result.rounds] == [(1.0,)] * 3, "it counts no more"


def test_a_client_is_not_heard_of_for_a_while_and_then_answers() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, once(shifting(100, 11), shifting(0, 1)))
    grid.at(2.5, lambda: grid.hidden.add(101))
    grid.at(6.5, lambda: grid.hidden.discard(101))
    result = run(grid, num_rounds=20, timeout=50)
    assert kinds(result, 1) == ["left", "came back", "late"]
    assert steps(result) == pytest.approx(moved(result, 0)), "the job was given up when the client left"
    assert taken(result, 1) > 2


def test_a_client_joins_late() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.at(4.25, lambda: grid.connect(101, shifting(0, 1)))
    result = run(grid, num_rounds=12)
    assert only(result, "joined").client == 1
    first = next(update for closed in result.rounds for update in closed.updates if update.client == 1)
    assert first.base > 0, "it starts from the current model"
    assert taken(result, 1) >= 3


@pytest.mark.parametrize("how", ["key", "name"])
def test_a_client_comes_back_under_another_node_id(how) -> None:
    grid = FakeGrid()
    key = b"a key of its own" if how == "key" else b""
    grid.connect(100, shifting(1, 1, who=7))
    grid.connect(101, shifting(0, 1, who=9, examples=30), key)
    grid.at(2.5, lambda: grid.disconnect(101))
    grid.at(6.5, lambda: grid.connect(555, shifting(0, 1, who=9, examples=30), key))
    result = run(grid, num_rounds=25, identity_key="who" if how == "name" else None)
    back = [fault for fault in result.errors if fault.kind == "came back"]
    assert (back[-1].client, back[-1].reason) == (1, "at node 555")
    times = [update.sent for closed in result.rounds for update in closed.updates if update.client == 1]
    assert max(times) > 7 * SECOND, "it goes on under its own number"
    if how == "name":
        assert (back[0].client, back[0].reason) == (2, "it came back as client 1")
        assert taken(result, 2) == 0, "the update by which it was recognised is not taken"
        assert result.client_times.keys() == {"7", "9"}
    else:
        assert len(result.client_times) == 2


def test_two_nodes_say_that_they_are_the_same() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, who=7))
    grid.connect(101, shifting(0, 1.5, who=7))
    result = run(grid, num_rounds=10, identity_key="who")
    fault = only(result, "same identity")
    assert fault.client == 1
    assert "like client 0 at node 100, which is still connected" in fault.reason
    assert taken(result, 1) > 2, "it counts as a client of its own"
    assert result.client_times.keys() == {"7", "node 101"}


def take_over(**options):
    """A large client goes, and another node says that it is that one: the importance of `7` is 9 times that of `8`."""
    grid = FakeGrid()
    grid.connect(100, shifting(0, 1, who=7), b"key of 7")
    grid.connect(101, shifting(0, 1, who=8), b"key of 8")
    grid.at(2.5, lambda: grid.disconnect(100))
    grid.at(3.5, lambda: grid.connect(555, shifting(1, 1, who=7), b"another key"))
    importance = {"7": 9, "8": 1, "9": 1}
    strategy = FedAvg(**on(grid, identity_key="who", importance=importance, **options))
    return strategy.start(grid, record_of(INITIAL), num_rounds=15, timeout=5)


def test_a_node_does_not_inherit_a_client_that_is_away_where_keys_tell() -> None:
    result = take_over(authenticated=True)
    fault = only(result, "same identity")
    assert (fault.client, taken(result, 0)) == (2, 2)
    assert taken(result, 2) > 5, "it counts as a client of its own"
    weights = [update.weight for closed in result.rounds for update in closed.updates if update.client == 2]
    assert max(weights) == pytest.approx(0.5)


def test_without_lasting_keys_names_tell() -> None:
    result = take_over()
    back = [fault for fault in result.errors if fault.kind == "came back"]
    assert [fault.client for fault in back] == [2, 0]
    assert back[1].reason == "at node 555, by its name only: its key is different"
    weights = [update.weight for closed in result.rounds[-5:] for update in closed.updates if update.client == 0]
    assert max(weights) == pytest.approx(0.9)


def test_a_client_answers_twice() -> None:
    result = two(lambda message: shifting(0, 0.5)(message) * 2)
    fault = only(result, "double")
    assert (fault.client, fault.reason) == (1, "job 0 from version 0 answered twice; the answer is ignored")
    jobs = [update.job for closed in result.rounds for update in closed.updates if update.client == 1]
    assert jobs == sorted(set(jobs))


def test_an_answer_to_nothing_that_was_asked() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    foreign = make_message(RecordDict({"arrays": record_of(INITIAL)}), 77, "train")
    grid.at(1.5, lambda: grid.unasked.append(answer(foreign, INITIAL, {"num-examples": 1})))
    result = run(grid)
    assert only(result, "unknown").reason == "a reply of node 77 to a message that was not sent"
    assert steps(result) == 6


def test_a_push_to_a_node_that_is_gone() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, shifting(0, 1))
    grid.at(1.0, lambda: grid.disconnect(101))
    result = run(grid, poll=100)  # the nodes are not looked at before the push fails
    assert kinds(result, 1) == ["deadline", "not sent", "left"]
    assert steps(result) == pytest.approx(moved(result, 0))


def test_a_client_that_keeps_failing_is_set_aside_and_tried_later() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    node = grid.connect(101, lambda message: [(SECOND // 10, failure(message))])

    def recovers():
        node.behave = shifting(0, 1)

    grid.at(60, recovers)
    result = run(grid, num_rounds=300, max_failures=3, retry_after=10, until=120)
    mine = [fault for fault in result.errors if fault.client == 1]
    assert [fault.kind for fault in mine] == [
        *["error"] * 3,
        "set aside",
        *["tried again", "error", "set aside"] * 2,
        "tried again",
    ]
    rests = [fault.reason for fault in mine if fault.kind == "set aside"]
    assert [rest.rsplit("in ", 1)[1] for rest in rests] == ["10 s", "20 s", "40 s"]
    assert taken(result, 1) > 20


def test_a_client_that_comes_back_starts_anew() -> None:
    """Another process is not blamed for what the last one did."""
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, lambda message: [(SECOND // 10, failure(message))], b"its key")
    again = once(lambda message: [(SECOND // 10, failure(message))], shifting(0, 1))
    grid.at(5, lambda: (grid.disconnect(101), grid.connect(102, again, b"its key")))
    result = run(grid, num_rounds=30, max_failures=2, retry_after=1000)
    mine = [fault.kind for fault in result.errors if fault.client == 1]
    assert mine == ["error", "error", "set aside", "left", "came back", "error"]
    assert taken(result, 1) > 5


def test_fedbuff_goes_on_with_fewer_clients_than_its_buffer() -> None:
    grid = FakeGrid()
    for node in range(3):
        grid.connect(100 + node, shifting(1, 1 + node))
    grid.at(10, lambda: grid.disconnect(102))
    result = FedBuff(3, **on(grid)).start(grid, record_of(INITIAL), num_rounds=12)
    sizes = [len(closed.updates) for closed in result.rounds]
    assert sizes[0] == 3
    assert sizes[-1] == 2


@pytest.mark.parametrize("strategy", [AsyncFedAvg, lambda **o: FedFix(2, **o)], ids=["async", "fedfix"])
def test_training_waits_while_everybody_is_gone(strategy) -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.at(3.5, lambda: grid.disconnect(100))
    grid.at(100, lambda: grid.connect(101, shifting(1, 1)))
    result = strategy(**on(grid)).start(grid, record_of(INITIAL), num_rounds=8)
    assert result.stopped == "8 rounds are done"
    assert {closed.contributors for closed in result.rounds if closed.time > 100} == {("node 101",)}


# -- several things in one look


def test_a_client_whose_rest_ends_when_it_is_seen_to_be_gone_does_not_come_back() -> None:
    """Nodes are listed every third second here; the rest ends with that look."""
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, lambda message: [(SECOND, failure(message))])
    grid.at(2, lambda: grid.disconnect(101))
    result = run(grid, num_rounds=8, max_failures=1, retry_after=2, poll=0.25)
    assert kinds(result, 1) == ["error", "set aside", "left"]
    assert [fault.time for fault in result.errors] == [1, 1, 3]
    assert recorded(result).replay_events().equals(recorded(result).timeline)


def test_a_client_that_comes_back_while_its_update_is_taken_has_one_job() -> None:
    """It is sent the new model as a contributor, and again as one who has joined: only the second job counts."""
    grid = FakeGrid()
    grid.connect(100, shifting(1, 3))
    grid.connect(101, shifting(1, 1), b"key")

    def move() -> None:
        grid.disconnect(101)
        grid.connect(102, shifting(1, 1), b"key")

    grid.at(2, move)
    strategy = FedBuff(2, **on(grid, poll=0.25))
    result = strategy.start(grid, record_of(INITIAL), num_rounds=3, timeout=9)
    assert kinds(result, 1) == ["left", "came back", "late"]
    assert only(result, "late").reason.startswith("job 1 from version 1 ")
    assert [[update.job for update in closed.updates] for closed in result.rounds] == [[0, 0], [1, 2], [2, 3]]
    assert recorded(result).replay_events().equals(recorded(result).timeline)
