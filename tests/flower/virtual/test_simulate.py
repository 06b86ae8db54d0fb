"""A Flower app in virtual time: the simulator's rounds, the oracle's model, and Flower's own strategies."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as flower

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, MeasuredTimes, TimedStrategy, recorded, replay
from fedtempo.flower import simulate_app as simulate
from fedtempo.flower.virtual.jobs import Here
from support import virtual_app as apps

TIMES = {
    "F80": ft.FixedTimes.spread(4, 80),
    "thirds": ft.FixedTimes(["1/3", "2/3", "1/7", "1"]),
    "exponential": ft.ExponentialTimes(["1", "0.7", "0.5", "2.25"]),
    "trace": ft.TraceTimes([["1", "0.5"], ["0.7"], ["0.25", "2", "0.75"], ["2.25", "3.5"]]),
}
SCHEMES = {
    "fedavg": (ft.FedAvg(), lambda: FedAvg(server_lr=0.9)),
    "async": (ft.AsyncFedAvg(), lambda: AsyncFedAvg(server_lr=0.9)),
    "fedfix": (ft.FedFix("1/3"), lambda: FedFix("1/3", server_lr=0.9)),
    "fedbuff": (ft.FedBuff(3), lambda: FedBuff(3, server_lr=0.9)),
    "uniform": (ft.UniformSampling(2), lambda: TimedStrategy(ft.UniformSampling(2), server_lr=0.9, seed=apps.SEED)),
}
IMPORTANCE = apps.PROBLEM.importance.values.tolist()


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, "flwr")


def simulated(*args, executor=None, **kwargs):
    return simulate(*args, executor=executor or Here(), **kwargs)


def exact(line: ft.Timeline):
    jobs = iter(line.job.tolist())
    return [
        (r.number, r.end, r.participants, r.base_versions, tuple(next(jobs) for _ in r.participants))
        for r in line.rounds
    ]


def same(a, b) -> bool:
    return a.rounds == b.rounds and all(
        a.arrays[name].numpy().tobytes() == b.arrays[name].numpy().tobytes() for name in a.arrays
    )


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_record_is_the_simulators_timeline_and_the_model_is_the_oracles(scheme, times) -> None:
    wanted, strategy = SCHEMES[scheme]
    server = apps.server(strategy(), rounds=15, start=apps.oracle_start())
    result = simulated(server, apps.oracle_app, times=TIMES[times], seed=apps.SEED)
    record = recorded(result)
    line = ft.timeline(wanted, TIMES[times], rounds=len(result.rounds), seed=apps.SEED, importance=IMPORTANCE)
    assert exact(record.timeline) == exact(line)
    assert exact(record.replay_events()) == exact(line)
    assert record.timeline.unit == line.unit
    model = replay(apps.PROBLEM, record, apps.LOCAL, seed=apps.SEED)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), model, rtol=1e-12, atol=1e-14)
    assert not result.errors


AVAILABLE = {
    "failing": {"failure": "0.3"},
    "coming and going": {"on": "4", "off": "1"},
    "absent": {"absences": {0: [(2, 4)], 2: [(3, 9)]}},
}


@pytest.mark.parametrize("how", AVAILABLE)
@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2), ft.FedAvg()], ids=str)
def test_clients_come_go_and_fail_as_in_the_simulator(how, scheme) -> None:
    times = ft.FixedTimes(["1", "0.7", "0.5", "1.3"]).available(**AVAILABLE[how])
    result = simulated(
        apps.server(FedAvg(min_available_nodes=1)), apps.app, times=times, until=14, scheme=scheme, seed=5
    )
    record = recorded(result).numbered({f"node {i}": i for i in range(4)})
    line = ft.timeline(scheme, times, until=14, seed=5)
    got = [r for r in exact(record.timeline) if r[2]]
    assert got == [r for r in exact(line) if r[2]]
    assert len(got) > 6


def test_flowers_fedavg_is_ours_and_both_are_in_the_record() -> None:
    times = ft.FixedTimes(["1", "0.7", "0.5", "2.25"])
    theirs = simulated(apps.server(flower.FedAvg(), rounds=8, evaluate_fn=apps.squared), apps.app, times=times)
    ours = simulated(apps.server(flower.FedAvg(), rounds=8), apps.app, times=times, scheme=ft.FedAvg())
    np.testing.assert_allclose(theirs.arrays["w"].numpy(), ours.arrays["w"].numpy(), rtol=1e-12)
    assert exact(recorded(theirs).timeline) == exact(recorded(ours).timeline)
    assert exact(recorded(theirs).timeline) == exact(ft.timeline(ft.FedAvg(), times, rounds=8))
    assert recorded(theirs).scheme.label == "flwr FedAvg"
    np.testing.assert_allclose(recorded(theirs).weights.values[:4], np.array([5, 6, 7, 8]) / 26)
    assert list(theirs.evaluate_metrics_serverapp) == list(range(9))
    assert list(theirs.evaluate_metrics_clientapp) == list(range(1, 9))


@pytest.mark.parametrize(
    "strategy",
    [flower.FedAdam(eta=0.1), flower.Krum(), flower.FedMedian(), flower.FedProx(proximal_mu=0.1)],
    ids=lambda s: type(s).__name__,
)
def test_other_strategies_of_flowers_run_as_they_are(strategy) -> None:
    result = simulated(apps.server(strategy, rounds=5), apps.app, times=TIMES["F80"])
    assert [r.time for r in result.rounds] == [1, 2, 3, 4, 5]
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert float(abs(result.arrays["w"].numpy()).sum()) > 0


def test_a_sample_of_clients_is_the_same_again() -> None:
    def run(seed):
        strategy = flower.FedAvg(fraction_train=0.5, fraction_evaluate=0.5)
        return simulated(apps.server(strategy), apps.app, times=TIMES["trace"], seed=seed)

    assert same(run(0), run(0))
    assert not same(run(0), run(1))
    assert recorded(run(0)).scheme == ft.UniformSampling(2).using(label="flwr FedAvg")


def test_the_end_of_time_ends_any_strategy() -> None:
    times = ft.FixedTimes(["1", "0.7", "0.5", "2.25"])
    theirs = simulated(apps.server(flower.FedAvg(), rounds=3), apps.app, times=times, until=10)
    assert (len(theirs.rounds), theirs.stopped) == (4, "the time is over: 10 s")
    ours = simulated(apps.server(FedFix(1), rounds=3), apps.app, times=times, until=10)
    assert len(ours.rounds) == 10
    assert len(simulated(apps.server(FedFix(1), rounds=3), apps.app, times=times, rounds=5).rounds) == 5
    assert len(simulated(apps.server(FedFix(1), rounds=3, until=2), apps.app, times=times).rounds) == 2


def test_schemes_train_as_long_as_the_apps_rounds_of_fedavg_would_take() -> None:
    times = ft.FixedTimes(["1", "0.7", "0.5", "2.25"])
    result = simulated(apps.server(flower.FedAvg(), rounds=4), apps.app, times=times, scheme=ft.FedFix("1/2"))
    assert result.rounds[-1].time == 9.0


def test_a_scheme_keeps_keys_configs_and_evaluation_of_the_apps_strategy() -> None:
    strategy = flower.FedProx(proximal_mu=0.25, fraction_evaluate=1.0, weighted_by_key="n", arrayrecord_key="model")
    seen: list[dict] = []
    client = apps.ClientApp()

    @client.train()
    def train(message, context):
        seen.append(dict(message.content["config"]))
        w = message.content["model"]["w"].numpy()
        return apps.answered(message, {"w": w + 1}, n=3)

    @client.evaluate()
    def evaluate(message, context):
        return Message(apps.RecordDict({"m": MetricRecord({"n": 1, "loss": 2.0})}), reply_to=message)

    server = apps.server(strategy, rounds=3, config={"lr": 0.5})
    result = simulated(server, client, times=ft.FixedTimes([1, 2]), scheme=ft.FedFix(1))
    assert seen[0]["proximal-mu"] == 0.25
    assert seen[0]["lr"] == 0.5
    assert "server-round" in seen[0]
    assert result.evaluate_metrics_clientapp[len(result.rounds)]["loss"] == 2.0


def test_jobs_have_seeds_of_their_own_and_state_stays_with_its_client() -> None:
    seeds: dict[tuple[int, int], int] = {}
    client = apps.ClientApp()

    @client.train()
    def train(message, context):
        i, number = context.node_config["partition-id"], apps.jobs_so_far(context)
        seeds[i, number] = message.content["config"]["job-seed"]
        return apps.answered(message, {"w": message.content["arrays"]["w"].numpy() + 1}, **{"num-examples": 1})

    simulated(apps.server(AsyncFedAvg(), rounds=12), client, times=TIMES["F80"], seed=7)
    first = dict(seeds)
    assert len(set(first.values())) == len(first) >= 12
    assert {number for i, number in first if i == 3} == set(range(len([1 for i, _ in first if i == 3])))
    seeds.clear()
    simulated(apps.server(FedAvg(), rounds=3), client, times=TIMES["trace"], seed=7)
    assert {job: seeds[job] for job in seeds if job in first} == {job: first[job] for job in seeds if job in first}
    assert set(seeds) & set(first)


def test_bandwidth_makes_models_take_time_and_less_bytes_less_of_it() -> None:
    def run(bandwidth):
        return simulated(apps.server(FedAvg(), rounds=2), apps.app, times=ft.FixedTimes([1, 1]), bandwidth=bandwidth)

    size = apps.Array(np.zeros(3)).data
    slow, fast = run(len(size)), run([len(size), 2 * len(size)])
    assert [r.time for r in slow.rounds] == [3.0, 6.0]  # down and up take a second each
    assert [u.arrived for u in fast.rounds[0].updates] == [3 * 10**9, 2 * 10**9]


def test_measured_times_are_the_processors_times_the_slowdown() -> None:
    slowdown = MeasuredTimes((Fraction("1"), Fraction("1000")))
    result = simulated(apps.server(AsyncFedAvg(), rounds=20), apps.app, times=slowdown)
    taken = [update.client for closed in result.rounds for update in closed.updates]
    assert taken.count(0) > 10 * max(taken.count(1), 1) or taken.count(1) == 0
    assert all(update.duration > 0 for closed in result.rounds for update in closed.updates)


WRONG = {
    "raise": ("error", "no data here"),
    "nothing": ("error", "returned a NoneType; return a Message"),
    "nan": ("refused", "NaN"),
    "shape": ("refused", "shape"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_client_that_misbehaves_is_a_fault_with_its_reason_as_in_deployment(wrong) -> None:
    kind, words = WRONG[wrong]
    server = apps.server(AsyncFedAvg(), rounds=30, config={"who": 1, "wrong": wrong, "from": 1})
    result = simulated(server, apps.app, times=TIMES["F80"])
    fault = next(f for f in result.errors if f.kind == kind)
    assert words in fault.reason
    assert fault.client == 1
    assert len(result.rounds) == 30


def test_flowers_own_strategies_go_on_without_those_who_raise() -> None:
    server = apps.server(flower.FedAvg(), rounds=3, config={"who": 2, "wrong": "raise", "from": 1})
    result = simulated(server, apps.app, times=TIMES["F80"])
    assert [len(closed.updates) for closed in result.rounds] == [4, 3, 3]
    assert [fault.client for fault in result.errors] == [2, 2]
    assert "no data here" in result.errors[0].reason


def test_who_leaves_in_the_middle_of_a_round_answers_flowers_strategies_by_an_error() -> None:
    times = ft.FixedTimes([1, 1, 2]).available(absences={2: [("1/2", 3)]})
    result = simulated(apps.server(flower.FedAvg(min_train_nodes=1), rounds=3), apps.app, times=times)
    assert [[u.client for u in closed.updates] for closed in result.rounds] == [[0, 1], [0, 1], [0, 1]]
    assert result.errors[0].client == 2


def test_a_strategy_that_waits_for_nodes_gets_those_that_come() -> None:
    times = ft.FixedTimes([1, 1]).available(absences={1: [(0, 5)]})
    result = simulated(apps.server(FedAvg(min_available_nodes=2), rounds=1), apps.app, times=times)
    assert len(result.rounds[0].updates) == 2


BAD = {
    "old interface": (lambda: ServerApp(server_fn=lambda context: None), {}, "@app.main()"),
    "no strategy": (lambda: _empty(), {}, "did not start a strategy"),
    "too few clients": (
        lambda: apps.server(flower.FedAvg(min_available_nodes=9)), {}, "4 of 4 are available; the server waits"
    ),
    "no such app": (lambda: "support.nothing:app", {}, "support.nothing cannot be imported"),
    "no such name": (lambda: "support.virtual_app:nothing", {}, "has no 'nothing'"),
    "no app": (lambda: "support.virtual_app:SEED", {}, "is a int, not a ServerApp"),
    "bandwidth": (lambda: apps.server(FedAvg()), {"bandwidth": [1, 2]}, "2 numbers for 4 clients"),
    "evaluate time": (lambda: apps.server(FedAvg()), {"evaluate_time": -1}, "below zero"),
    "until": (lambda: apps.server(FedAvg()), {"until": 0}, "until"),
    "rounds": (lambda: apps.server(FedAvg()), {"rounds": 0}, "rounds"),
}  # fmt: skip


def _empty() -> ServerApp:
    made = ServerApp()
    made.main()(lambda grid, context: None)
    return made


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_run_is_refused_with_what_to_change(name, monkeypatch) -> None:
    make, more, words = BAD[name]
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # Flower's own wait for nodes
    with pytest.raises(InputError, match=re.escape(words)):
        simulated(make(), apps.app, times=TIMES["F80"], **more)


def test_strategies_wait_in_vain_for_nodes_that_never_come() -> None:
    with pytest.raises(InputError, match="waits for more"):
        simulated(apps.server(FedAvg(min_available_nodes=9)), apps.app, times=TIMES["F80"])


def test_messages_and_strategies_are_as_they_were_afterwards() -> None:
    before = (Message.__init__, flower.Strategy.start, TimedStrategy.start)
    simulated(apps.server(FedAvg(), rounds=1), apps.app, times=TIMES["F80"])
    assert (Message.__init__, flower.Strategy.start, TimedStrategy.start) == before
    with pytest.raises(RuntimeError):
        Message(apps.RecordDict({"config": ConfigRecord({})}), 1, "train")


def test_a_loop_of_ones_own_over_push_and_pull_runs_too() -> None:
    seen = []
    made = ServerApp()

    @made.main()
    def main(grid, context):
        model = apps.ArrayRecord({"w": apps.Array(np.zeros(3))})
        record = apps.RecordDict({"arrays": model, "config": ConfigRecord({})})
        ids = list(grid.push_messages([Message(record, node, "train") for node in grid.get_node_ids()]))
        while len(seen) < 4:
            seen.extend((reply.metadata.src_node_id, grid.clock.time) for reply in grid.pull_messages(ids))
        flower.FedAvg().start(grid, model, num_rounds=1)

    simulated(made, apps.app, times=TIMES["F80"])
    times = TIMES["F80"].exact_mean_time
    assert seen == sorted(enumerate(times), key=lambda pair: pair[1])


def test_threads_run_clients_too() -> None:
    here = simulated(apps.server(FedFix(1), rounds=4), apps.app, times=TIMES["F80"])
    with ThreadPoolExecutor(1) as pool:
        there = simulated(apps.server(FedFix(1), rounds=4), apps.app, times=TIMES["F80"], executor=pool)
    assert same(here, there)


def test_replies_that_come_too_late_are_let_go() -> None:
    grids = []
    made = ServerApp()

    @made.main()
    def main(grid, context):
        grids.append(grid)
        model = apps.ArrayRecord({"w": apps.Array(np.zeros(3))})
        flower.FedAvg().start(grid, model, num_rounds=3, timeout=0.6)

    result = simulated(made, apps.app, times=TIMES["F80"])
    assert [[u.client for u in closed.updates] for closed in result.rounds[:1]] == [[2, 3]]
    assert [closed.time for closed in result.rounds] == pytest.approx([0.6, 1.6, 2.6])  # all evaluate, when free
    assert not grids[0]._ready
