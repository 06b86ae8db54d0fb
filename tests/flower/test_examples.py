"""Numbers of examples that clients report, and how far they are believed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, recorded
from fedtempo.flower.examples import Judged, capped
from support.flower_fake import SECOND, FakeGrid, on, record_of, shifting

INITIAL = {"w": np.zeros(1)}
counts = st.lists(st.floats(1e-300, 1e308) | st.integers(1, 10**6), min_size=1, max_size=9)


def slow_cap(values: list[float], factor: float) -> list[float]:
    """As the formula is written."""
    out = []
    for i, value in enumerate(values):
        others = sorted(values[:i] + values[i + 1 :])
        out.append(min(value, factor * others[len(others) // 2]) if others else value)
    return out


@given(counts, st.floats(1, 1e3))
def test_the_cap_is_a_multiple_of_the_median_of_the_others(values, factor) -> None:
    found = capped(np.array(values, dtype=float), factor).tolist()
    assert found == slow_cap([float(value) for value in values], factor)
    assert capped(np.array(values, dtype=float), None).tolist() == values


@given(st.lists(st.floats(1, 9), min_size=2, max_size=9), st.lists(st.floats(1e-9, 1e300), max_size=9))
def test_no_minority_takes_more_than_its_cap_and_none_lowers_the_honest(honest, others) -> None:
    others = others[: len(honest) - 1]
    found = capped(np.array([*honest, *others]), 10.0)
    assert found[: len(honest)].tolist() == honest
    assert (found[len(honest) :] <= 90).all()


def federation(*examples, seconds=1.0) -> FakeGrid:
    """Client i adds i and says that it has so many examples."""
    grid = FakeGrid()
    for node, each in enumerate(examples):
        grid.connect(100 + node, shifting(node, seconds, examples=each))
    return grid


def said(result) -> list:
    return [(fault.client, fault.reason) for fault in result.errors if fault.kind == "examples"]


@pytest.mark.parametrize("claim", [1e30, 10**18, 1.7e308], ids=str)
@pytest.mark.parametrize("place", [0, 4], ids=["first", "last"])
@pytest.mark.parametrize(
    "strategy",
    [lambda **o: FedAvg(**o), lambda **o: AsyncFedAvg(**o), lambda **o: FedBuff(2, **o), lambda **o: FedFix(2, **o)],
)
def test_a_client_does_not_buy_the_model(strategy, place, claim) -> None:
    examples = [10.0] * 5
    examples[place] = claim
    grid = federation(*examples)
    result = strategy(**on(grid)).start(grid, record_of(INITIAL), num_rounds=12)
    [(client, reason)] = said(result)
    assert client == place
    assert reason == (
        f"it reports {claim:.6g} examples and counts as 100, 10 times the median of the others. "
        "If it is right, raise max_examples, or give importance"
    )
    record = recorded(result)
    assert record.importance[place] == pytest.approx(100 / 140)
    honest = [update.weight for closed in result.rounds for update in closed.updates if update.client != place]
    assert min(honest) > 0.01, "nobody's update is lost, not even before the claim is judged"


def test_the_first_claim_is_judged_when_others_are_known() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1, examples=1e30))
    grid.connect(101, shifting(0, 3.5, examples=10))
    result = AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=8)
    [fault] = [fault for fault in result.errors if fault.kind == "examples"]
    assert (fault.client, fault.time) == (0, 3.5)
    weights = [update.weight for closed in result.rounds for update in closed.updates if update.client == 1]
    assert weights[0] == pytest.approx(10 / 110), "ten times the other's ten, and no more"


def test_the_factor_is_the_users() -> None:
    grid = federation(10, 10, 30)
    result = FedAvg(**on(grid, max_examples=2)).start(grid, record_of(INITIAL), num_rounds=1)
    assert result.rounds[0].weights == pytest.approx((0.25, 0.25, 0.5))
    grid = federation(10, 10, 10**6)
    result = FedAvg(**on(grid, max_examples=None, norm_limit=None)).start(grid, record_of(INITIAL), num_rounds=1)
    assert not result.errors
    assert result.rounds[0].weights[2] > 0.9999


@pytest.mark.parametrize("wrong", [0, -1, 0.5, "many", float("nan"), True])
def test_factors_that_make_no_sense(wrong) -> None:
    with pytest.raises(InputError, match="max_examples"):
        FedAvg(max_examples=wrong)


def test_a_claim_weighs_no_more_in_means_of_metrics() -> None:
    grid = FakeGrid()
    for node, (count, loss) in enumerate([(10, 1.0), (10, 1.0), (1e30, 0.0)]):
        grid.connect(100 + node, shifting(0, 1, examples=count, loss=loss))
    result = FedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=3)
    assert result.train_metrics_clientapp[3]["loss"] == pytest.approx(20 / 120)
    grid = FakeGrid()
    for node, (count, loss) in enumerate([(10, 1.0), (10, 1.0), (1e30, 0.0)]):
        grid.connect(100 + node, shifting(0, 1, examples=count, loss=loss))
    result = FedAvg(**on(grid, importance="uniform")).start(grid, record_of(INITIAL), num_rounds=3)
    assert result.train_metrics_clientapp[3]["loss"] == pytest.approx(20 / 120)
    assert said(result)[0][1].endswith("raise max_examples")


def test_what_a_rule_that_samples_by_importance_hears_is_capped() -> None:
    grid = federation(10, 10, 1e30)
    strategy = TimedStrategy(ft.MultinomialSampling(2), **on(grid, seed=3))
    result = strategy.start(grid, record_of(INITIAL), num_rounds=60)
    taken = [update.client for closed in result.rounds for update in closed.updates]
    assert {0, 1} <= set(taken[-40:]), "the others still have their turn"
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)


# -- every client the same


def test_every_client_counts_the_same(tmp_path) -> None:
    grid = federation(10, 500, 1e30)
    result = FedAvg(**on(grid, importance="uniform", checkpoint=tmp_path)).start(grid, record_of(INITIAL), num_rounds=2)
    assert result.rounds[1].weights == pytest.approx((1 / 3,) * 3)
    assert recorded(tmp_path).importance == pytest.approx((1 / 3,) * 3)
    with np.load(tmp_path / "state.npz") as saved:
        about = json.loads(saved["document"].tobytes())["about"]
    assert about["importance"] == "uniform"


def test_uniform_weights_keep_slow_clients_in() -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(0, 1, examples=1))
    grid.connect(101, shifting(1, 4, examples=99))
    result = FedFix(1, **on(grid, importance="uniform")).start(grid, record_of(INITIAL), num_rounds=40)
    used = np.zeros(2)
    for closed in result.rounds[8:]:
        for update in closed.updates:
            used[update.client] += update.weight
    assert used[0] / used.sum() == pytest.approx(0.5, abs=0.05)


def test_words_that_are_no_importance() -> None:
    with pytest.raises(InputError, match="importance: 'equal' is not known; give one of 'uniform'"):
        FedAvg(importance="equal")
    with pytest.raises(InputError, match="nothing is given"):
        FedAvg(importance={})


def test_a_run_goes_on_with_the_same_trust(tmp_path) -> None:
    def start(**options):
        grid = federation(10, 20)
        strategy = FedAvg(**on(grid, checkpoint=tmp_path, **options))
        return strategy.start(grid, record_of(INITIAL), num_rounds=2, resume=True)

    start(max_examples=3)
    start(max_examples=3)
    with pytest.raises(ResultsConflict, match=r"its max_examples is 3\.0, here it is null"):
        start(max_examples=None)


# -- in evaluation


def evaluating(count, loss):
    def behave(message):
        if message.metadata.message_type == MessageType.TRAIN:
            return shifting(0, 1)(message)
        metrics = {"loss": loss} if count is None else {"num-examples": count, "loss": loss}
        return [(SECOND // 10, Message(content=RecordDict({"m": MetricRecord(metrics)}), reply_to=message))]

    return behave


@pytest.mark.parametrize(
    ("count", "kind", "mean"),
    [
        (1e30, "examples", 0.5 + 100 / 120 * 8.5),
        (float("nan"), "evaluation", 0.5),
        (float("inf"), "evaluation", 0.5),
        (0, "evaluation", 0.5),
        (-5, "evaluation", 0.5),
        ([1, 2], "evaluation", 0.5),
        (None, "evaluation", 0.5),
    ],
)
def test_counts_of_evaluations_are_checked_as_in_training(count, kind, mean) -> None:
    grid = FakeGrid()
    for node, (examples, loss) in enumerate([(10, 0.5), (10, 0.5), (count, 9.0)]):
        grid.connect(100 + node, evaluating(examples, loss))
    result = FedAvg(**on(grid, fraction_evaluate=1.0)).start(grid, record_of(INITIAL), num_rounds=1)
    assert [(fault.client, fault.kind) for fault in result.errors] == [(2, kind)]
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(mean)


def test_many_clients_are_not_judged_at_each_answer() -> None:
    judged, looks = Judged(), 0
    for changes in range(1, 10_001):
        if judged.due(changes, 10.0, 10.0):
            looks += 1
            judged.done(changes, changes, 10.0)
    assert looks < 150
    assert judged.due(10_001, 1e9, 10.0), "one that stands out is judged at once"
    judged.done(10_001, 10_001, 10.0)
    assert not judged.due(10_001, 1e9, 10.0), "nothing has changed"
