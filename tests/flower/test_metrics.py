"""Metrics of a round: the same numbers as Flower's own default gives, and within bounds whatever clients send."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy
from hypothesis import given
from hypothesis import strategies as st

from fedtempo.flower import FedAvg, FedFix
from fedtempo.flower.evaluation import shown, weighted_mean
from fedtempo.flower.metrics import LARGEST_CONFIG, LONGEST_LIST, LONGEST_NAME, MOST_NAMES, bounded
from support.flower_fake import SECOND, FakeGrid, arrays_of, on, record_of, shifting

KEY = "num-examples"
number = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)
numbers = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2) | st.lists(st.integers(-9, 9), min_size=2, max_size=2)
MORE = {"loss": number, "accuracy": number, "row": numbers}
weights = {KEY: st.integers(1, 10**9) | st.floats(1e-3, 1e9)}
alike = st.sets(st.sampled_from(sorted(MORE))).flatmap(
    lambda names: st.lists(
        st.tuples(
            st.fixed_dictionaries({**weights, **{name: MORE[name] for name in names}}),
            st.fixed_dictionaries({"time": number}) if "row" in names else st.none(),
        ),
        min_size=1,
        max_size=6,
    )
)
"""Replies of clients that all send the same metrics."""


def record(metrics: dict, more: dict | None = None) -> RecordDict:
    parts = {"metrics": MetricRecord(metrics), "config": ConfigRecord({"a": 1})}
    return RecordDict(parts | ({} if more is None else {"more": MetricRecord(more)}))


@given(alike)
def test_it_is_flowers_own_mean(replies) -> None:
    records = [record(*one) for one in replies]
    theirs = strategy.FedAvg().train_metrics_aggr_fn
    assert theirs is not weighted_mean
    assert dict(weighted_mean(records, KEY)) == dict(theirs(records, KEY))


def test_it_is_the_strategies_own_where_none_is_given() -> None:
    plain, given = FedAvg(), FedAvg(evaluate_metrics_aggr_fn=lambda records, key: MetricRecord())
    assert plain.train_metrics_aggr_fn is plain.evaluate_metrics_aggr_fn is given.train_metrics_aggr_fn is weighted_mean
    assert given.evaluate_metrics_aggr_fn is not weighted_mean


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("sent", "mean"),
    [
        ([(1, {"loss": 1.0}), (3, {"loss": 3.0}), (50, {})], {"loss": 2.5}),
        ([(1, {"loss": 1.0}), (3, {"loss": 3.0}), (50, {"loss": NAN})], {"loss": 2.5}),
        ([(1, {"loss": 1.0}), (3, {"loss": 3.0}), (50, {"loss": -INF})], {"loss": 2.5}),
        ([(1, {"loss": 1.0}), (3, {"loss": 3.0}), (50, {"loss": [7.0, 7.0]})], {"loss": 2.5}),
        ([(1, {"row": [1, 2]}), (1, {"row": [3, 4]}), (9, {"row": [5, 6, 7]})], {"row": [2.0, 3.0]}),
        ([(1, {"row": [1, 2]}), (1, {"row": [3, 4]}), (9, {"row": 5.0})], {"row": [2.0, 3.0]}),
        ([(1, {"row": [1.0, NAN]}), (1, {"row": [3.0, 4.0]})], {"row": [2.0, 4.0]}),
        ([(1, {"loss": 1.0, "mine": 5.0}), (1, {"loss": 2.0})], {"loss": 1.5, "mine": 5.0}),
        ([(1e308, {"loss": 1.0}), (1e308, {"loss": 3.0})], {"loss": 2.0}),
    ],
)
def test_one_odd_client_does_not_void_the_others(sent, mean) -> None:
    records = [record({KEY: weight, **metrics}) for weight, metrics in sent]
    for order in (records, records[::-1]):
        assert dict(weighted_mean(order, KEY)) == {name: pytest.approx(value) for name, value in mean.items()}


def test_where_nobody_sends_a_finite_number_the_mean_is_not_either() -> None:
    found = weighted_mean([record({KEY: 1, "loss": NAN}), record({KEY: 1, "loss": INF})], KEY)
    assert math.isnan(found["loss"])


def test_a_metric_in_two_records_of_a_reply_counts_once() -> None:
    found = weighted_mean([record({KEY: 1, "loss": 1.0}, {"loss": 9.0}), record({KEY: 1, "loss": 3.0})], KEY)
    assert found["loss"] == 2.0


def kinds(found) -> list[str]:
    return [remark.kind for remark in found.remarks]


def test_a_reply_within_bounds_is_left_as_it_is() -> None:
    metrics = {KEY: 3, **{f"m{i}": float(i) for i in range(MOST_NAMES)}, "größe": 1.0}
    del metrics["m0"]
    sent = record({**metrics, "m1": [0.5] * LONGEST_LIST})
    found = bounded(sent, KEY)
    assert not found.remarks
    assert found.content["metrics"] is sent["metrics"]
    assert found.values.keys() == metrics.keys()


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"row": [0.0] * (LONGEST_LIST + 1)}, "'row', a list of 1001 numbers"),
        ({"a" * (LONGEST_NAME + 1): 1.0}, "a name that is too long"),
        ({"a\nb": 1.0}, "not printable ('a b')"),
        ({"\x1b[31mred": 1.0}, "not printable ('red')"),
        ({"\u202egnp.exe": 1.0}, "not printable"),
        ({"": 1.0}, "not printable"),
        ({f"m{i}": 1.0 for i in range(MOST_NAMES)}, "all after its first 100 names"),
    ],
)
def test_what_is_beyond_the_bounds_is_left_out(metrics, words) -> None:
    found = bounded(record({"loss": 0.5, KEY: 7, **metrics}), KEY)
    assert kinds(found) == ["dropped"]
    assert words in found.remarks[0].words
    assert found.remarks[0].words.isprintable()
    assert (found.values["loss"], found.values[KEY]) == (0.5, 7)
    kept = found.content["metrics"]
    assert dict(kept) == found.values
    assert not set(list(metrics)[MOST_NAMES - 1 :] if len(metrics) > 1 else metrics) & kept.keys()


def test_names_that_are_read_here_are_kept_whatever_else_comes() -> None:
    many = {f"m{i}": 1.0 for i in range(10 * MOST_NAMES)}
    found = bounded(record({**many, "who": 5, KEY: 7}), KEY, {"who"})
    assert (found.values["who"], found.values[KEY], len(found.values)) == (5, 7, MOST_NAMES + 2)


def test_texts_and_records_have_bounds_too() -> None:
    content = record({KEY: 1})
    content["long"] = ConfigRecord({"text": "a" * (LARGEST_CONFIG + 1)})
    found = bounded(content, KEY)
    assert (list(found.content), kinds(found)) == (["metrics", "config"], ["dropped"])
    many = RecordDict({KEY: MetricRecord({KEY: 1}), **{str(i): MetricRecord({}) for i in range(10_000)}})
    assert len(bounded(many, KEY).content) == 100


def test_the_record_with_the_count_comes_first() -> None:
    content = RecordDict({"a": MetricRecord({"loss": 1.0}), "b": MetricRecord({KEY: 4}), "c": MetricRecord({KEY: 9})})
    found = bounded(content, KEY)
    assert list(found.content) == ["b", "a", "c"]
    assert found.values == {"loss": 1.0, KEY: 4}
    assert dict(weighted_mean([found.content], KEY)) == {"loss": 1.0}


def sending(metrics, seconds=1.0, split=False):
    """A client that adds 1 and sends these metrics, in one record or in two."""

    def behave(message):
        arrays = {name: array + 1 for name, array in arrays_of(message).items()}
        parts = (
            {"m": MetricRecord(metrics)} if not split else {"x": MetricRecord({"a": 1.0}), "m": MetricRecord(metrics)}
        )
        content = RecordDict({"arrays": record_of(arrays), **parts})
        return [(int(seconds * SECOND), Message(content=content, reply_to=message))]

    return behave


def run(*metrics, rounds=3, **options):
    grid = FakeGrid()
    for node, each in enumerate(metrics):
        grid.connect(100 + node, sending(each) if isinstance(each, dict) else each)
    return FedAvg(**on(grid, **options)).start(grid, record_of({"w": np.zeros(2)}), num_rounds=rounds)


GOOD = {KEY: 10, "loss": 0.5, "row": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({KEY: 10}, []),
        ({KEY: 10, "loss": NAN}, ["metrics"]),
        ({KEY: 10, "loss": [0.1, 0.2, 0.3], "row": 3.0}, []),
        ({KEY: 10, "loss": 0.5, "row": [1.0]}, []),
        ({KEY: 10, "loss": 0.5, "row": [1.0] * 10**6}, ["metrics"]),
        ({KEY: 10, "loss": 0.5, **{f"m{i}": 1.0 for i in range(10_000)}}, ["metrics"]),
        (sending({KEY: 10, "loss": 0.5}, split=True), []),
    ],
    ids=["no metric", "NaN", "another kind", "another length", "a long list", "many names", "two records"],
)
def test_odd_metrics_enter_no_mean_and_their_update_enters_the_model(odd, said, tmp_path) -> None:
    result = run(GOOD, GOOD, odd, checkpoint=tmp_path)
    assert [fault.kind for fault in result.errors] == said, "once a client"
    for found in result.train_metrics_clientapp.values():
        assert found["loss"] == pytest.approx(0.5)
        assert found["row"] == pytest.approx([1.0, 2.0])
    assert result.arrays["w"].numpy() == pytest.approx([3, 3])
    assert (tmp_path / "rounds.jsonl").stat().st_size < 30_000


def test_users_functions_are_given_what_is_within_bounds() -> None:
    seen = []

    def mine(records, key):
        seen.extend(next(iter(record.metric_records.values())) for record in records)
        return MetricRecord({"n": len(records)})

    run(sending({KEY: 10, "row": [1.0] * 10**5, "loss": 0.5}, split=True), rounds=1, train_metrics_aggr_fn=mine)
    assert [dict(record) for record in seen] == [{KEY: 10, "loss": 0.5}]


def test_a_round_and_its_metrics_are_in_the_log(caplog) -> None:
    with caplog.at_level("INFO", "flwr"):
        run(GOOD, GOOD, rounds=2)
    lines = caplog.text.splitlines()
    [place] = [place for place, line in enumerate(lines) if "[ROUND 2/2]" in line]
    assert lines[place + 1].endswith("└──> Σω 1; clients' metrics: loss 0.5, row [2 numbers]")
    many = {f"m{i}": i / 3 for i in range(30)}
    assert shown(many) == "m0 0, m1 0.3333, m2 0.6667, m3 1, m4 1.333, m5 1.667, … (30 in all)"


def test_the_journal_of_a_flood_of_metrics_stays_small(tmp_path) -> None:
    grid = FakeGrid()
    for node in range(3):
        grid.connect(100 + node, shifting(1, 1, **{f"m{i}": [0.5] * 2000 for i in range(50)}, loss=1.0))
    FedFix(2, **on(grid, checkpoint=tmp_path)).start(grid, record_of({"w": np.zeros(2)}), num_rounds=5)
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    measured = [json.loads(line)["measured"] for line in lines if "measured" in line]
    assert all(metrics == {"loss": 1.0} for _, _, metrics in measured)
    assert sum(map(len, lines)) < 20_000
