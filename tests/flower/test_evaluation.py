"""Evaluation beside the training, by the server and by clients."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedFix
from fedtempo.flower.evaluation import Evaluator
from support.flower_fake import SECOND, FakeGrid, failure, on, record_of, shifting

INITIAL = {"w": np.zeros(2)}


def grid_of(*seconds: float) -> FakeGrid:
    grid = FakeGrid()
    for node, each in enumerate(seconds):
        grid.connect(100 + node, shifting(node + 1, each, examples=10 * (node + 1)))
    return grid


def first_value(number, arrays):
    return MetricRecord({"first": float(arrays["w"].numpy()[0])})


def test_the_first_and_the_last_model_are_evaluated_and_each_is_the_rounds_own() -> None:
    grid = grid_of(1)
    result = AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=5, evaluate_fn=first_value)
    found = {number: record["first"] for number, record in result.evaluate_metrics_serverapp.items()}
    assert {0, 5} <= found.keys()
    assert all(value == pytest.approx(number) for number, value in found.items())


def test_a_slow_evaluation_holds_up_no_round_and_the_newest_model_waits() -> None:
    go = threading.Event()
    evaluated = []

    def slow(number, arrays):
        assert go.wait(30)
        evaluated.append(number)
        return MetricRecord({"n": number})

    evaluator = Evaluator(slow)
    evaluator.submit(0, record_of(INITIAL), must=True)
    for number in (1, 2, 3, 4):
        evaluator.submit(number, record_of(INITIAL), must=number == 4)
    evaluator.submit(5, record_of(INITIAL))
    go.set()
    done = evaluator.finish()
    assert evaluated[0] == 0
    assert evaluated[-2:] == [4, 5]
    assert [each.server_round for each in done] == evaluated
    assert len(evaluated) <= 4, "those that were overtaken are left out"


def test_ticks_do_not_wait_for_an_evaluation() -> None:
    ended = threading.Event()

    def until_training_is_over(number, arrays):
        if number == 0:
            assert ended.wait(30)

    grid = grid_of(1)
    behave = grid.nodes[100].behave

    def last(message):
        if message.content["config"]["server-round"] == 6:
            ended.set()
        return behave(message)

    grid.nodes[100].behave = last
    result = FedFix(2, **on(grid)).start(grid, record_of(INITIAL), num_rounds=6, evaluate_fn=until_training_is_over)
    assert [closed.end for closed in result.rounds] == [2 * SECOND * (n + 1) for n in range(6)]


def test_every_round_is_evaluated_before_its_model_is_sent_where_that_is_asked_for() -> None:
    grid = grid_of(1)
    seen = []
    behave = grid.nodes[100].behave

    def working(message):
        seen.append(f"job from {message.content['config']['base-version']}")
        return behave(message)

    def slow(number, arrays):
        assert threading.current_thread() is threading.main_thread()
        grid.clock.time += SECOND // 2
        seen.append(f"evaluation of {number}")
        return MetricRecord({"first": float(arrays["w"].numpy()[0])})

    grid.nodes[100].behave = working
    strategy = AsyncFedAvg(**on(grid, evaluation="wait"))
    result = strategy.start(grid, record_of(INITIAL), num_rounds=5, evaluate_fn=slow)
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4, 5]
    assert [m["first"] for m in result.evaluate_metrics_serverapp.values()] == pytest.approx([0, 1, 2, 3, 4, 5])
    assert seen == [f"{what} {n}" for n in range(5) for what in ("evaluation of", "job from")] + ["evaluation of 5"]


def test_an_evaluation_that_is_waited_for_may_fail_and_may_be_interrupted() -> None:
    def broken(number, arrays):
        if number == 2:
            raise KeyboardInterrupt
        raise ZeroDivisionError("nothing to divide by")

    evaluator = Evaluator(broken, wait=True)
    evaluator.submit(1, record_of(INITIAL))
    assert [each.error for each in evaluator.finish()] == ["ZeroDivisionError: nothing to divide by"]
    with pytest.raises(KeyboardInterrupt):
        evaluator.submit(2, record_of(INITIAL))


def test_other_words_for_the_evaluation_are_refused() -> None:
    with pytest.raises(InputError, match="evaluation: 'never' is not known; give one of 'beside', 'wait'"):
        FedAvg(evaluation="never")


def test_an_evaluation_that_raises_is_recorded_and_training_goes_on() -> None:
    def broken(number, arrays):
        raise ZeroDivisionError("nothing to divide by")

    grid = grid_of(1)
    result = AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=3, evaluate_fn=broken)
    assert {fault.kind for fault in result.errors} == {"evaluation"}
    assert "round 0: ZeroDivisionError: nothing to divide by" in [fault.reason for fault in result.errors]
    assert len(result.rounds) == 3
    assert not result.evaluate_metrics_serverapp


def test_clients_evaluate_beside_the_training() -> None:
    grid = grid_of(1, 3)
    strategy = FedAvg(**on(grid, fraction_evaluate=1.0))
    config = ConfigRecord({"share": 0.5})
    result = strategy.start(grid, record_of(INITIAL), num_rounds=3, evaluate_config=config)
    losses = {number: record["loss"] for number, record in result.evaluate_metrics_clientapp.items()}
    assert losses[3] == pytest.approx((1 * 10 + 2 * 20) / 30)
    asked = [m for m in grid.nodes[100].got if m.metadata.message_type == MessageType.EVALUATE]
    assert [m.content["config"]["server-round"] for m in asked] == sorted(losses)
    assert asked[-1].content["config"]["share"] == 0.5
    last = asked[-1].content["arrays"]["w"].numpy()
    assert last == pytest.approx(result.arrays["w"].numpy())
    kinds = [m.metadata.message_type for m in grid.nodes[100].got]
    assert kinds[:3] == ["train", "train", "evaluate"], "the next job goes out before the evaluation"


def test_a_share_of_the_clients_evaluates() -> None:
    grid = grid_of(1, 1, 1, 1)
    options = on(grid, fraction_evaluate=0.5, min_evaluate_nodes=1)
    FedAvg(**options).start(grid, record_of(INITIAL), num_rounds=1)
    asked = [m.metadata.message_type for node in grid.nodes.values() for m in node.got]
    assert asked.count("evaluate") == 2


def test_clients_that_do_not_evaluate_are_not_waited_for_for_ever() -> None:
    grid = grid_of(1, 1, 1)
    for node, answer in ((100, lambda m: []), (101, lambda m: [(SECOND, failure(m))])):
        train = grid.nodes[node].behave

        def behave(message, train=train, answer=answer):
            return train(message) if message.metadata.message_type == "train" else answer(message)

        grid.nodes[node].behave = behave
    options = on(grid, fraction_evaluate=1.0)
    result = FedAvg(**options).start(grid, record_of(INITIAL), num_rounds=2, timeout=5)
    assert [fault.kind for fault in result.errors] == ["evaluation"] * 4
    assert result.evaluate_metrics_clientapp[2]["loss"] == 3


def gives_a_float(number, arrays):
    return 0.5


def gives_a_dict(number, arrays):
    return {"loss": np.float32(1)}


def exits(number, arrays):
    sys.exit("enough")


@pytest.mark.parametrize(
    ("evaluate", "told"),
    [
        (gives_a_float, "evaluate_fn returned a float; return a MetricRecord or None"),
        (gives_a_dict, "evaluate_fn returned a dict; return a MetricRecord or None"),
        (exits, "SystemExit: enough"),
    ],
)
@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
def test_an_evaluation_that_is_of_no_use_does_not_end_the_training(evaluate, told, saved, tmp_path) -> None:
    grid = grid_of(1)
    strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path if saved else None))
    result = strategy.start(grid, record_of(INITIAL), num_rounds=3, evaluate_fn=evaluate)
    assert result.stopped == "3 rounds are done"
    assert not result.evaluate_metrics_serverapp
    reasons = [fault.reason for fault in result.errors]
    assert {f"round 0: {told}", f"round 3: {told}"} <= {*reasons}


def test_an_evaluator_outlives_an_exit() -> None:
    evaluator = Evaluator(exits)
    evaluator.submit(0, record_of(INITIAL))
    ended = threading.Thread(target=evaluator.finish, daemon=True)
    ended.start()
    ended.join(30)
    assert not ended.is_alive()


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
def test_aggregated_measures_become_plain_numbers(saved, tmp_path) -> None:
    grid = grid_of(1)
    given = {"loss": np.float32(0.5), "count": np.int64(3), "list": [np.float64(1), 2.0]}
    options = on(grid, checkpoint=tmp_path if saved else None, train_metrics_aggr_fn=lambda records, key: given)
    for _ in range(1 + saved):
        result = AsyncFedAvg(**options).start(grid, record_of(INITIAL), num_rounds=2, resume=saved)
        assert not result.errors
        for found in result.train_metrics_clientapp.values():
            assert isinstance(found, MetricRecord)
            assert dict(found) == {"loss": 0.5, "count": 3, "list": [1.0, 2.0]}


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
def test_what_is_no_measure_is_noted_and_not_kept(saved, tmp_path) -> None:
    grid = grid_of(1)
    for given in (None, {"loss": np.zeros(3)}):
        folder = tmp_path / str(given is None) if saved else None
        options = on(grid, checkpoint=folder, train_metrics_aggr_fn=lambda records, key, given=given: given)
        result = AsyncFedAvg(**options).start(grid, record_of(INITIAL), num_rounds=2)
        assert [fault.kind for fault in result.errors] == ["metrics", "metrics"]
        assert not result.train_metrics_clientapp


def evaluating(grid: FakeGrid, node: int, answer) -> None:
    train = grid.nodes[node].behave
    grid.nodes[node].behave = lambda m: train(m) if m.metadata.message_type == "train" else answer(m)


@pytest.mark.parametrize("rounds", [20, 3], ids=["during training", "at the end"])
def test_a_client_that_is_gone_is_not_waited_for(rounds) -> None:
    grid = grid_of(1, 1, 1)
    evaluating(grid, 102, lambda message: [])
    grid.at(4.5, lambda: grid.disconnect(102))
    options = on(grid, fraction_evaluate=1.0, min_evaluate_nodes=1)
    result = AsyncFedAvg(**options).start(grid, record_of(INITIAL), num_rounds=rounds, timeout=3600)
    assert grid.clock.now() < 60 * SECOND
    told = [fault for fault in result.errors if fault.kind == "evaluation"]
    assert {fault.reason.partition(": ")[2] for fault in told} == {"it left, or did not answer in time"}
    assert all(fault.time >= 4.5 for fault in told), "when it was seen, and not when it was asked"
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx((1 * 10 + 2 * 20) / 30)
    assert rounds in result.evaluate_metrics_clientapp


def test_an_empty_reply_to_an_evaluation() -> None:
    grid = grid_of(1, 1)

    def empty(message):
        reply = failure(message)
        reply.has_error = lambda: False
        return [(SECOND, reply)]

    evaluating(grid, 101, empty)
    options = on(grid, fraction_evaluate=1.0)
    result = FedAvg(**options).start(grid, record_of(INITIAL), num_rounds=1)
    assert [(fault.time, fault.reason) for fault in result.errors] == [
        (2, "a client failed to evaluate round 1: its reply is empty")
    ]
    assert result.evaluate_metrics_clientapp[1]["loss"] == 1


def test_one_odd_evaluation_does_not_void_the_others(tmp_path, caplog) -> None:
    grid = grid_of(1, 1, 1)

    def odd(message):
        metrics = {"num-examples": 10, "loss": float("nan"), "row": [1.0] * 10**5}
        content = RecordDict({"arrays": record_of(INITIAL), "m": MetricRecord(metrics)})
        return [(SECOND, Message(content=content, reply_to=message))]

    evaluating(grid, 102, odd)
    options = on(grid, fraction_evaluate=1.0, checkpoint=tmp_path)
    with caplog.at_level("INFO", "flwr"):
        result = FedAvg(**options).start(grid, record_of(INITIAL), num_rounds=3)
    assert {fault.client for fault in result.errors} == {2}
    assert [fault.kind for fault in result.errors] == ["metrics", "metrics"], "too long and not finite, each once"
    for found in result.evaluate_metrics_clientapp.values():
        assert dict(found) == {"loss": pytest.approx((1 * 10 + 2 * 20) / 30)}
    assert "clients' evaluation of round 3: loss 1.667" in caplog.text


def test_a_failed_evaluation_says_why_and_whose() -> None:
    grid = grid_of(1, 1)
    evaluating(grid, 101, lambda m: [(SECOND, failure(m, 2, "<class 'ValueError'>:<'no\ndata'>"))])
    result = FedAvg(**on(grid, fraction_evaluate=1.0)).start(grid, record_of(INITIAL), num_rounds=1)
    [fault] = result.errors
    assert (fault.client, fault.kind) == (1, "evaluation")
    assert fault.reason.endswith("the client failed with Flower's code 2: <class 'ValueError'>:<'no data'>")
