"""Metrics of a round: the same numbers as Flower's own default gives."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy
from hypothesis import given
from hypothesis import strategies as st

from fedtempo.flower import FedAvg
from fedtempo.flower.evaluation import weighted_mean

KEY = "num-examples"
number = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)
numbers = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2) | st.lists(st.integers(-9, 9), min_size=2, max_size=2)
reply = st.fixed_dictionaries(
    {KEY: st.integers(1, 10**9) | st.floats(1e-3, 1e9)}, optional={"loss": number, "accuracy": number, "row": numbers}
)


def record(metrics: dict, more: dict | None = None) -> RecordDict:
    parts = {"metrics": MetricRecord(metrics), "config": ConfigRecord({"a": 1})}
    return RecordDict(parts | ({} if more is None else {"more": MetricRecord(more)}))


@given(st.lists(st.tuples(reply, st.none() | st.fixed_dictionaries({"time": number})), min_size=1, max_size=6))
def test_it_is_flowers_own_mean(replies) -> None:
    records = [record(*one) for one in replies]
    theirs = strategy.FedAvg().train_metrics_aggr_fn
    assert theirs is not weighted_mean
    assert dict(weighted_mean(records, KEY)) == dict(theirs(records, KEY))


def test_it_is_the_strategies_own_where_none_is_given() -> None:
    plain, given = FedAvg(), FedAvg(evaluate_metrics_aggr_fn=lambda records, key: MetricRecord())
    assert plain.train_metrics_aggr_fn is plain.evaluate_metrics_aggr_fn is given.train_metrics_aggr_fn is weighted_mean
    assert given.evaluate_metrics_aggr_fn is not weighted_mean


@pytest.mark.parametrize("other", [1.0, [1.0, 2.0, 3.0]], ids=["a number", "another length"])
def test_unlike_lists_are_refused(other) -> None:
    with pytest.raises(TypeError, match="'row' is not the same number of numbers in each reply; send it alike"):
        weighted_mean([record({KEY: 1, "row": [1.0, 2.0]}), record({KEY: 1, "row": other})], KEY)
