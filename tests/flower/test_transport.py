"""Flower as a carrier on a wall clock: looks, ticks, deadlines and what is pushed."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

import fedtempo.flower.strategy as strategy_module
import fedtempo.flower.transport as transport_module
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix
from fedtempo.flower.training import Training
from support.flower_fake import SECOND, FakeGrid, VirtualClock, make_message, on, record_of, shifting

INITIAL = {"w": np.zeros(2)}


def grid_of(*seconds: float, wakes: bool = True) -> FakeGrid:
    grid = FakeGrid(VirtualClock(5 * SECOND, wakes=wakes))  # a monotonic clock does not start at 0
    for node, each in enumerate(seconds):
        grid.connect(100 + node, shifting(1, each))
    return grid


def start(strategy, grid, num_rounds=8, **more):
    return strategy.start(grid, record_of(INITIAL), num_rounds=num_rounds, **more)


def test_ticks_stand_still_when_the_server_is_late_by_less_than_a_wait() -> None:
    grid = grid_of(0.9, 1.7, 3.1, wakes=False)
    grid.push_cost, grid.pull_cost = SECOND // 3, SECOND // 50
    result = start(FedFix(2, **on(grid)), grid, 20)
    assert [closed.end for closed in result.rounds] == [2 * SECOND * (n + 1) for n in range(len(result.rounds))]


@pytest.mark.parametrize("hundredths", [10, 60], ids=["a little", "longer than a poll"])
def test_ticks_stand_still_when_a_look_ends_after_them(hundredths) -> None:
    grid = grid_of(0.9, 1.7, 3.1, wakes=False)
    grid.pull_cost = hundredths * SECOND // 100
    result = start(FedFix(2, **on(grid, poll=0.25)), grid, 20)
    assert [closed.end for closed in result.rounds] == [2 * SECOND * (n + 1) for n in range(len(result.rounds))]
    assert all(update.arrived <= closed.end for closed in result.rounds for update in closed.updates)


def test_missed_ticks_are_skipped_and_do_not_bunch_up() -> None:
    grid = grid_of(0.5, 0.5)
    slow = [0]

    def behave(message):
        slow[0] += 1
        if slow[0] == 3:
            grid.clock.time += 7 * SECOND + SECOND // 2  # the process was stopped
        return shifting(1, 0.5)(message)

    grid.connect(100, behave)
    result = start(FedFix(2, **on(grid)), grid)
    ends = [closed.end for closed in result.rounds]
    late = [end for end in ends if end % (2 * SECOND)]
    assert len(late) == 1, "the tick that came too late says when it really was"
    assert all(later - sooner >= SECOND // 2 for sooner, later in itertools.pairwise(ends))
    assert [end % (2 * SECOND) for end in ends[ends.index(late[0]) + 1 :]] == [0] * (
        len(ends) - ends.index(late[0]) - 1
    )


def test_a_look_at_the_tick_counts_as_of_the_tick() -> None:
    """A thread that wakes a little late still takes what is there when it looks, at the tick's own time."""
    grid = grid_of(1.97, 0.4, wakes=False)
    grid.pull_cost = SECOND // 100
    result = start(FedFix(2, **on(grid, poll=0.25)), grid, 3)
    assert [len(closed.updates) for closed in result.rounds] == [2, 2, 2]
    assert all(update.arrived <= closed.end for closed in result.rounds for update in closed.updates)


@pytest.mark.parametrize("size", [2, 3])
def test_fedbuff_takes_exactly_as_many_as_it_should_however_many_come_in_one_look(size) -> None:
    grid = grid_of(1, 1.01, 1.02, 1.03, 1.04, wakes=False)
    result = start(FedBuff(size, **on(grid)), grid, 12)
    assert {len(closed.updates) for closed in result.rounds} == {size}


def test_arrivals_are_seen_by_polling_and_stamped_with_the_look() -> None:
    grid = grid_of(1.1, wakes=False)
    result = start(AsyncFedAvg(**on(grid, poll=0.25)), grid, 3)
    assert [closed.end for closed in result.rounds] == [1_250_000_000, 2_500_000_000, 3_750_000_000]


def test_all_in_one_look_are_rounds_of_their_own() -> None:
    grid = grid_of(1, 1, 1)
    result = start(AsyncFedAvg(**on(grid)), grid, 6)
    assert [(closed.end // SECOND, closed.updates[0].client) for closed in result.rounds] == [
        (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    assert [closed.updates[0].base for closed in result.rounds] == [0, 0, 0, 1, 2, 3]


def test_the_end_by_time() -> None:
    grid = grid_of(1, 3)
    result = start(FedFix(2, **on(grid)), grid, 100, until=10)
    assert result.stopped == "the time is over: 10 s"
    assert [closed.end // SECOND for closed in result.rounds] == [2, 4, 6, 8, 10]
    result = start(FedAvg(**on(grid)), grid, 100, until=10)
    assert [closed.end // SECOND for closed in result.rounds] == [3, 6, 9]


def test_rounds_without_updates_are_not_counted() -> None:
    grid = grid_of(5)
    result = start(FedFix(2, **on(grid)), grid, 3)
    assert [len(closed.updates) for closed in result.rounds] == [0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert [closed.server_round for closed in result.rounds] == [0, 0, 1, 1, 1, 2, 2, 2, 3]
    told = [message.content["config"] for message in grid.nodes[100].got]
    assert [(c["server-round"], c["job"], c["base-version"]) for c in told] == [(1, 0, 0), (2, 1, 3), (3, 2, 6)]


def test_what_is_sent() -> None:
    grid = grid_of(1)
    made = []

    def message(**what):
        made.append(what)
        return make_message(**what)

    strategy = FedAvg(**on(grid, message=message, arrayrecord_key="arrays", configrecord_key="config"))
    start(strategy, grid, 2, timeout=77, train_config=ConfigRecord({"lr": 0.5}))
    assert [what["ttl"] for what in made] == [137, 137], "Flower forgets a message a minute after we do"
    assert [what["message_type"] for what in made] == ["train", "train"]
    assert [what["group_id"] for what in made] == ["1", "2"]
    assert dict(made[1]["content"]["config"]) == {"lr": 0.5, "server-round": 2, "job": 1, "base-version": 1}
    assert made[1]["content"]["arrays"]["w"].numpy() == pytest.approx(1)


class ForgettingGrid(FakeGrid):
    """As Flower's: a message that is not answered in its time to live is answered by an error of code 3."""

    def __init__(self, seconds: float, **options) -> None:
        super().__init__(**options)
        self.out: dict[str, tuple[int, Message]] = {}
        self.connect(100, shifting(1, seconds))

    def push_messages(self, messages):
        messages = list(messages)
        self.out |= {message.metadata.message_id: (self.clock.now(), message) for message in messages}
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        for reply in found:
            self.out.pop(reply.metadata.reply_to_message_id, None)
        for name in message_ids:
            sent, message = self.out.get(name, (self.clock.now(), None))
            if message is not None and self.clock.now() - sent >= message.metadata.ttl * SECOND:
                found.append(Message(Error(3, "Error: Message Unavailable"), reply_to=message))
                del self.out[name]
        return found


@pytest.mark.parametrize("timeout", [5, 800])
def test_an_answer_just_after_the_timeout_is_late_and_no_error_of_flowers(timeout) -> None:
    grid = ForgettingGrid(timeout * 1.01)
    result = start(AsyncFedAvg(**on(grid, max_failures=9)), grid, 2, until=timeout * 2.5, timeout=timeout)
    assert [fault.kind for fault in result.errors if fault.kind != "guard"][:2] == ["deadline", "late"]
    assert "error" not in {fault.kind for fault in result.errors}


def test_a_message_that_flower_gives_up_near_the_timeout_has_met_its_deadline() -> None:
    def gives_up(seconds):
        return lambda message: [(int(seconds * SECOND), Message(Error(3, "Message Unavailable"), reply_to=message))]

    told = {}
    for seconds in (4.6, 4.4):
        grid = FakeGrid()
        grid.connect(100, gives_up(seconds))
        result = start(AsyncFedAvg(**on(grid)), grid, 1, until=5, timeout=5)
        told[seconds] = result.errors[0].kind, result.errors[0].reason
    assert told[4.6] == ("deadline", "job 0: no answer within 4.6 s, and Flower has dropped the message")
    assert told[4.4] == ("error", "job 0: the client failed with Flower's code 3: Message Unavailable")


def test_a_version_is_serialised_once_for_all_that_get_it() -> None:
    grid = grid_of(1, 1, 1)
    start(FedAvg(**on(grid)), grid, 1)
    records = [node.got[0].content["arrays"] for node in grid.nodes.values()]
    assert records[0] is records[1] is records[2]


def test_messages_that_are_too_large_together_are_pushed_one_by_one(monkeypatch) -> None:
    grid = grid_of(1, 2, 3)
    push = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda messages: push(messages) if len(messages) == 1 else [])
    result = start(FedAvg(**on(grid)), grid, 2)
    assert not result.errors
    assert [len(closed.updates) for closed in result.rounds] == [3, 3]


def test_training_starts_when_enough_nodes_are_there() -> None:
    grid = FakeGrid()
    for node in range(3):
        grid.at(1 + 10 * node, lambda node=node: grid.connect(100 + node, shifting(1, 1)))
    result = FedBuff(3, **on(grid, min_available_nodes=2)).start(grid, record_of(INITIAL), num_rounds=1)
    assert result.rounds[0].end == SECOND, "time begins with training"
    assert len(result.rounds[0].updates) == 3


def test_what_the_carrier_costs_is_counted() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 3, seconds_of_work=2.5))
    result = start(AsyncFedAvg(**on(grid, work_key="seconds_of_work")), grid, 5)
    costs = result.transport
    assert costs.calls["push"] == 5
    assert costs.calls["aggregation"] == 5 + 5
    assert costs.round_trip_overhead == {"node 100": pytest.approx(0.5)}
    assert costs.floor == pytest.approx(0.5)
    assert costs.transport > 0
    assert costs.own > 0


def test_a_node_that_goes_while_training_starts() -> None:
    """Those who were counted are those who are there at the start; who has gone is told after it."""
    grid = grid_of(1, 1, 1)
    listed, looks = grid.get_nodes, itertools.count()

    def get_nodes():
        nodes = listed()
        if next(looks) == 0:
            grid.disconnect(102)
        return nodes

    grid.get_nodes = get_nodes
    result = start(FedBuff(3, **on(grid)), grid, 2, until=20)
    assert [fault.kind for fault in result.errors] == ["not sent", "left"]
    assert {len(closed.updates) for closed in result.rounds} <= {2, 3}


def test_a_client_that_is_missing_for_long_is_said_once(caplog) -> None:
    grid = grid_of(8, 3000)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(FedFix(10, **on(grid)), grid, 22)
        assert "has not answered" in caplog.text
        caplog.clear()
        start(FedFix(10, **on(grid)), grid, 250)
    assert caplog.text.count("client 1 (node 101) has not answered for 21 rounds of 10 s") == 1
    assert caplog.text.count("has not answered") == 1


def test_a_client_that_is_missing_is_said_although_nobody_answers(caplog) -> None:
    grid = grid_of(3000)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(FedFix(10, **on(grid)), grid, 22, until=500)
    assert caplog.text.count("client 0 (node 100) has not answered for 21 rounds of 10 s") == 1


def test_ends_of_jobs_that_have_come_back_are_forgotten(monkeypatch) -> None:
    """Of a job that is out the end is known, however many have come and gone since."""
    kept = []

    class Watched(Training):
        def _advise(self, record):
            super()._advise(record)
            kept.append(len(self._transport._ends))

    monkeypatch.setattr(strategy_module, "Training", Watched)

    def run():
        grid = grid_of(0.1, 0.3)
        grid.connect(200, lambda message: [])  # never answers
        result = start(AsyncFedAvg(**on(grid, max_failures=9)), grid, 200, timeout=5)
        return result.rounds, [(fault.time, fault.kind) for fault in result.errors]

    whole = run()
    assert max(kept) > 50
    kept.clear()
    monkeypatch.setattr(transport_module, "_ENDS_KEPT", 5)
    assert run() == whole
    assert [kind for _, kind in whole[1]] == ["deadline"] * 3
    assert max(kept) <= 2 * 3 + 6
