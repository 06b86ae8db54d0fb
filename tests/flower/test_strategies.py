"""The strategies as a Flower user meets them: arguments, results, messages in words."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower

import fedtempo as ft
from fedtempo.clock.rules import WaitForSome
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, Result, TimedStrategy
from fedtempo.flower.strategy import Options
from support.flower_fake import FakeGrid, on, record_of, shifting

INITIAL = {"w": np.zeros(2)}


def grid_of(*seconds: float, **metrics) -> FakeGrid:
    grid = FakeGrid()
    for node, each in enumerate(seconds):
        grid.connect(100 + node, shifting(node, each, examples=10 * (node + 1), **metrics))
    return grid


def test_flowers_signature_and_types() -> None:
    theirs, ours = (inspect.signature(cls.start).parameters for cls in (flower.Strategy, TimedStrategy))
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
    for cls in (FedAvg, AsyncFedAvg, FedFix, FedBuff):
        assert issubclass(cls, flower.FedAvg)
    assert issubclass(Result, flower.Result)


def test_synchronous_fedavg_is_flowers() -> None:
    """The weighted mean of what clients send, and of their metrics."""
    grid = grid_of(1, 2, 3)
    result = FedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=2)
    assert result.arrays["w"].numpy() == pytest.approx(2 * (1 * 20 + 2 * 30) / 60)
    assert [closed.time for closed in result.rounds] == [3, 6]
    assert [closed.weights for closed in result.rounds] == [pytest.approx((1 / 6, 2 / 6, 3 / 6))] * 2
    assert [closed.staleness for closed in result.rounds] == [(0, 0, 0)] * 2
    assert result.rounds[0].durations == (1, 2, 3)
    assert result.rounds[0].contributors == ("node 100", "node 101", "node 102")
    assert result.client_times == {"node 100": 1, "node 101": 2, "node 102": 3}


def test_metrics_are_averaged_by_examples_or_aggregated_by_the_users_function() -> None:
    grid = grid_of(1, 2, loss=0.25)
    result = FedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=2)
    assert dict(result.train_metrics_clientapp[2]) == {"loss": pytest.approx(0.25)}
    seen = []

    def largest(records, key):
        seen.append((len(records), key))
        return MetricRecord({"most": max(next(iter(r.metric_records.values()))[key] for r in records)})

    grid = grid_of(1, 2)
    result = FedAvg(**on(grid, train_metrics_aggr_fn=largest)).start(grid, record_of(INITIAL), num_rounds=1)
    assert seen == [(2, "num-examples")]
    assert dict(result.train_metrics_clientapp[1]) == {"most": 20}


def test_metrics_that_cannot_be_aggregated_do_not_stop_training() -> None:
    def broken(records, key):
        raise RuntimeError("no such thing")

    grid = grid_of(1)
    result = FedAvg(**on(grid, train_metrics_aggr_fn=broken)).start(grid, record_of(INITIAL), num_rounds=2)
    assert [fault.kind for fault in result.errors] == ["metrics"] * 2
    assert "those of round 1 cannot be aggregated: no such thing" in result.errors[0].reason
    assert len(result.rounds) == 2


def test_record_keys_and_weighting_key_are_the_users() -> None:
    grid = FakeGrid()

    def behave(message):
        assert set(message.content) == {"model", "settings"}
        [(delay, reply)] = shifting(1, 1, rows=40)(_renamed(message))
        return [(delay, reply)]

    grid.connect(100, behave)
    grid.connect(101, behave)
    keys = {"arrayrecord_key": "model", "configrecord_key": "settings", "weighted_by_key": "rows"}
    result = FedAvg(**on(grid, **keys)).start(grid, record_of(INITIAL), num_rounds=1)
    assert not result.errors
    assert result.arrays["w"].numpy() == pytest.approx(1)


def _renamed(message):
    from flwr.app import Message, RecordDict

    return Message(content=RecordDict({"arrays": message.content["model"]}), metadata=message.metadata)


def test_importance_by_identity() -> None:
    grid = grid_of(1, 1)
    importance = {"node 100": 3, "node 101": 1}
    result = FedAvg(**on(grid, importance=importance)).start(grid, record_of(INITIAL), num_rounds=1)
    assert result.rounds[0].weights == pytest.approx((0.75, 0.25))


def test_a_sampled_round_has_no_meaning_here() -> None:
    with pytest.raises(
        InputError, match=r"fraction_train: 0.5 would sample clients per round.*use FedBuff\(size=…\) or FedFix"
    ):
        FedFix(3, fraction_train=0.5)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("server_lr", 0, "server_lr: 0 is not above zero"),
        ("weights", "best", "weights: 'best' is not known; use one of time-based"),
        ("clip_norm", -1, "clip_norm: -1 is not above zero"),
        ("norm_limit", 0, "norm_limit: 0 is not above zero"),
        ("max_failures", 0, "max_failures: 0 is not a whole number of at least 1"),
        ("checkpoint_every", 1.5, "checkpoint_every: 1.5 is not a whole number"),
        ("poll", 0, "poll: 0 is not above zero"),
        ("retry_after", -2, "retry_after: -2 is not above zero"),
        ("fraction_evaluate", 2, "fraction_evaluate: 2 is not a fraction"),
        ("fraction_evaluate", "a", "fraction_evaluate: 'a' is not a number"),
        ("fraction_train", None, "fraction_train: None is not a number"),
        ("checkpoint", 5, "checkpoint: 5 is not a folder; give a path"),
        ("weights", [1], r"weights: \[1\] is not a weight rule"),
        ("min_available_nodes", "3", "min_available_nodes: '3' is not a whole number"),
        ("min_train_nodes", -1, "min_train_nodes: -1 is not a whole number of at least 0"),
        ("min_evaluate_nodes", 1.5, "min_evaluate_nodes: 1.5 is not a whole number"),
        (
            "importance",
            [1, 2],
            "importance: a list does not say which client each number belongs to; give them by identity",
        ),
        ("importance", {"a": -1}, "importance of 'a': -1 is not above zero"),
        ("importance", {}, "importance: nothing is given"),
        ("times", [3], "times: a list does not say which client"),
        ("times", {"a": "x"}, "times of 'a': 'x' is not a number"),
        ("identity_key", 4, "identity_key: 4 is not the name of"),
        ("work_key", "", "work_key: '' is not the name of"),
        ("weighted_by_key", 3, "weighted_by_key: 3 is not the name of"),
        ("arrayrecord_key", None, "arrayrecord_key: None is not the name of"),
        ("configrecord_key", b"c", "configrecord_key: b'c' is not the name of"),
        ("train_metrics_aggr_fn", 4, "train_metrics_aggr_fn: 4 cannot be called"),
        ("evaluate_metrics_aggr_fn", "f", "evaluate_metrics_aggr_fn: 'f' cannot be called"),
        ("message", 3, "message: 3 cannot be called"),
        ("clock", 3, r"clock: 3 has no now\(\) and sleep"),
        (
            "checkpont",
            "run/",
            "checkpont: FedAvg has no such argument; did you mean checkpoint.*There are fraction_train",
        ),
        ("wait", 3, "wait: FedAvg has no such argument"),
    ],
)
def test_wrong_options_are_refused_when_they_are_given(option, value, words) -> None:
    with pytest.raises(InputError, match=words):
        FedAvg(**{option: value})


def test_wrong_ends_are_refused() -> None:
    grid = grid_of(1)
    strategy = FedAvg(**on(grid))
    for wrong in ({"num_rounds": 0}, {"timeout": -1}, {"until": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            strategy.start(grid, record_of(INITIAL), **wrong)
    with pytest.raises(InputError, match="importance of 'x': 0 is not above zero"):
        FedAvg(**on(grid, importance={"x": 0})).start(grid, record_of(INITIAL))
    with pytest.raises(InputError, match="times: nothing is given"):
        FedAvg(**on(grid, times={})).start(grid, record_of(INITIAL))
    with pytest.raises(InputError, match="there are no arrays"):
        strategy.start(grid, ArrayRecord())
    with pytest.raises(InputError, match="a dict is not an ArrayRecord"):
        strategy.start(grid, INITIAL)
    with pytest.raises(InputError, match="evaluate_fn: 3 cannot be called"):
        strategy.start(grid, record_of(INITIAL), evaluate_fn=3)
    for name in ("train_config", "evaluate_config"):
        with pytest.raises(InputError, match=f"{name}: 5 is not a ConfigRecord"):
            strategy.start(grid, record_of(INITIAL), **{name: 5})
    with pytest.raises(InputError, match="scheme: 'fedavg' is not a scheme"):
        TimedStrategy("fedavg")


def test_flowers_own_arguments_are_all_there() -> None:
    theirs = inspect.signature(flower.FedAvg).parameters
    assert set(theirs) <= set(Options.__annotations__)
    FedAvg(**{name: each.default for name, each in theirs.items() if name != "fraction_evaluate"})


def test_times_from_which_no_weights_follow_are_refused_before_training(tmp_path) -> None:
    grid, folder = grid_of(1, 2), tmp_path / "run"
    wild = {"node 100": f"1/{10**9 + 7}", "node 101": f"1/{10**9 + 9}", "node 102": f"1/{10**9 + 21}"}
    with pytest.raises(InputError, match=r"times: those of node 100, .* give no weights: .*leave times out"):
        AsyncFedAvg(**on(grid, times=wild, checkpoint=folder)).start(grid, record_of(INITIAL))
    assert not folder.exists()
    assert not grid.calls
    fastest = ft.FastestSampling(1)
    with pytest.raises(InputError, match="client 1 never takes part"):
        TimedStrategy(fastest, **on(grid, times={"node 100": 1, "node 101": 2})).start(grid, record_of(INITIAL))
    few = FedBuff(2, **on(grid, times={"node 100": 1}))
    assert few.start(grid, record_of(INITIAL), num_rounds=1).rounds, "more may be there than are named"


def test_clients_do_not_evaluate_unless_asked(caplog) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        assert FedAvg().fraction_evaluate == 0
        FedFix(30).summary()
    assert "FedFix(30), weights time-based" in caplog.text
    assert "will be skipped" not in caplog.text


def test_a_rule_of_ones_own() -> None:
    grid = grid_of(1, 2, 3)
    scheme = ft.Scheme(WaitForSome(2), name="mine")
    result = TimedStrategy(scheme, **on(grid)).start(grid, record_of(INITIAL), num_rounds=4)
    assert {len(closed.updates) for closed in result.rounds} == {2}


HOOKS = ["_check_and_log_replies", "_construct_messages", "aggregate_train", "configure_evaluate", "configure_train"]


def test_all_hooks_of_flowers_base_class_are_known() -> None:
    """A later Flower may have others: they are refused too."""
    theirs = {name for cls in flower.FedAvg.__mro__ for name in vars(cls) if inspect.isfunction(getattr(cls, name))}
    called = {"start", "summary", "aggregate_evaluate"}
    assert sorted(name for name in theirs - called if not name.startswith("__")) == HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_would_not_be_called_is_refused(hook) -> None:
    def mine(self, *args):
        raise AssertionError

    with pytest.raises(TypeError, match=f"Mine overrides {hook}, which is never called here.*Instead, "):
        type("Mine", (FedAvg,), {hook: mine})
    with pytest.raises(TypeError, match=f"Mine overrides {hook}"):
        type("Mine", (type("Mixin", (), {hook: mine}), FedAvg), {})
    grid = grid_of(1)
    strategy = FedAvg(**on(grid))
    setattr(strategy, hook, mine)
    with pytest.raises(TypeError, match=f"FedAvg overrides {hook}"):
        strategy.start(grid, record_of(INITIAL), num_rounds=1)
    assert not grid.calls


@pytest.mark.parametrize("hook", [name for name in HOOKS if not name.startswith("_")])
def test_a_strategy_that_wraps_ours_is_told_that_it_makes_the_rounds_itself(hook) -> None:
    with pytest.raises(TypeError, match=f"{hook} of FedFix was called. A strategy that wraps another one does that"):
        getattr(FedFix(30), hook)(1, None)


def test_hooks_that_are_called_may_be_changed(caplog) -> None:
    class Mine(FedAvg):
        def summary(self):
            logging.getLogger("flwr").info("this is mine")

        def aggregate_evaluate(self, server_round, replies):
            found = super().aggregate_evaluate(server_round, replies)
            return MetricRecord({"round": server_round, "replies": len(replies), **found})

    grid = grid_of(1, 2)
    with caplog.at_level(logging.INFO, "flwr"):
        result = Mine(**on(grid, fraction_evaluate=1.0)).start(grid, record_of(INITIAL), num_rounds=2)
    assert "this is mine" in caplog.text
    assert dict(result.evaluate_metrics_clientapp[2]) == {"round": 2, "replies": 2, "loss": pytest.approx(2 / 3)}


def test_a_wait_below_the_carriers_floor_is_said_once(caplog) -> None:
    grid = grid_of(1, 2)
    with caplog.at_level(logging.WARNING, "flwr"):
        FedFix(1.5, **on(grid)).start(grid, record_of(INITIAL), num_rounds=8)
    assert caplog.text.count("a wait of 1.5 s is shorter than Flower's transport takes") == 1


def test_the_result_in_words() -> None:
    grid = grid_of(1, 2)
    text = str(AsyncFedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=3))
    assert "Global Arrays:" in text
    assert "Rounds: 3 in 2.0 s, 3 updates; stopped: 3 rounds are done" in text
    assert "Client times: node 100 1 s, node 101 2 s" in text
    assert text.endswith("Faults: 0")


def test_the_summary_counts_what_it_says() -> None:
    grid = grid_of(25, 47)
    grid.at(30, lambda: grid.connect(555, shifting(1, 1000)))
    grid.at(60, lambda: grid.disconnect(555))
    result = FedFix(10, **on(grid)).start(grid, record_of(INITIAL), num_rounds=3)
    empty = sum(not closed.updates for closed in result.rounds)
    assert empty > 0
    assert f"Rounds: 3 (and {empty} without updates) in {result.rounds[-1].time} s, 3 updates;" in result.summary()
    assert [fault.kind for fault in result.errors] == ["joined", "left"]
    assert result.summary().endswith("Faults: 1 (left 1)"), "one that joins is no fault"
    assert "1 update (node 100)" in str(next(closed for closed in result.rounds if closed.updates))


def test_a_discounted_rule_lowers_what_is_stale() -> None:
    grid = grid_of(1, 3.5)
    rule = ft.Discounted(ft.Identical(), ft.PolynomialDiscount())
    result = AsyncFedAvg(**on(grid, weights=rule)).start(grid, record_of(INITIAL), num_rounds=12)
    for closed in result.rounds:
        assert closed.weights[0] == pytest.approx(ft.PolynomialDiscount()(np.array(closed.staleness))[0] / 2)
    assert max(closed.staleness[0] for closed in result.rounds) == 4


def test_fedtempo_does_not_import_flower_and_says_how_to_get_it() -> None:
    code = (
        "import sys, fedtempo; assert 'flwr' not in sys.modules; fedtempo.FedFix(1); assert 'flwr' not in sys.modules\n"
        "sys.modules['flwr'] = None\n"
        "try:\n    import fedtempo.flower\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fedtempo.flower needs Flower: pip install 'fedtempo[flower]'"


def test_public_names() -> None:
    import fedtempo.flower as package

    assert package.__all__ == [
        "AsyncFedAvg", "Clock", "Fault", "FedAvg", "FedBuff", "FedFix", "MeasuredTimes", "Record", "Result",
        "RoundRecord", "TimedStrategy", "TransportCosts", "UpdateRecord", "VirtualGrid", "WallClock", "compressing",
        "recorded", "replay", "simulate_app", "track_run",
    ]  # fmt: skip
    assert all(getattr(package, name).__doc__ for name in package.__all__)


def test_names_of_earlier_versions() -> None:
    import fedtempo.flower as package

    grid = grid_of(1)
    result = FedAvg(**on(grid)).start(grid, record_of(INITIAL), num_rounds=1)
    record = package.recorded(result)
    with pytest.warns(FutureWarning, match=r"called fedtempo\.flower\.TransportCosts"):
        assert package.CarrierCosts is package.TransportCosts
    with pytest.warns(FutureWarning, match=r"called Record\.replay_events"):
        assert record.retold().equals(record.timeline)
    with pytest.warns(FutureWarning, match=r"called Record\.events"):
        assert record.told == record.events
    with pytest.warns(FutureWarning, match=r"called Result\.transport"):
        assert result.carrier is result.transport
    with pytest.raises(AttributeError, match="no attribute 'Carrier'"):
        _ = package.Carrier
