"""Flower is one more transport: on the fake Grid the rounds are the simulator's, and the models are the oracle's."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, recorded, replay
from fedtempo.flower.clock import NANOSECOND
from fedtempo.flower.journal import LoggedMeasure
from fedtempo.rules import Close, resend
from fedtempo.simulation.engine.oracle import oracle
from support.flower_fake import (
    SECOND,
    FakeGrid,
    ProblemClients,
    VirtualClock,
    answer,
    arrays_of,
    failure,
    on,
    record_of,
    shifting,
)

PROBLEM = ft.problems.quadratics(4, dimension=6, noise=0.5, rows=[6, 9, 12, 5], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
TIMES = {
    "fixed": ft.FixedTimes(["1", "0.7", "0.5", "2.25"]),
    "exponential": ft.ExponentialTimes(["1", "0.7", "0.5", "2.25"], resolution="0.001"),
    "trace": ft.TraceTimes([["1", "0.5"], ["0.7"], ["0.25", "2", "0.75"], ["2.25", "3.5"]]),
}
SCHEMES = {
    "fedavg": (ft.FedAvg(), lambda **o: FedAvg(**o)),
    "async": (ft.AsyncFedAvg(), lambda **o: AsyncFedAvg(**o)),
    "fedfix": (ft.FedFix("0.6"), lambda **o: FedFix(0.6, **o)),
    "fedfix-long": (ft.FedFix("2"), lambda **o: FedFix(2, **o)),
    "fedbuff": (ft.FedBuff(3), lambda **o: FedBuff(3, **o)),
}


def exact(line: ft.Timeline):
    jobs = iter(line.job.tolist())
    return [
        (r.number, r.end, r.participants, r.base_versions, tuple(next(jobs) for _ in r.participants))
        for r in line.rounds
    ]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_recorded_rounds_are_the_simulators_and_the_model_is_the_oracles(scheme, times) -> None:
    wanted, strategy = SCHEMES[scheme]
    clients = ProblemClients(PROBLEM, LOCAL, TIMES[times], seed=3)
    grid = clients.grid()
    result = strategy(**on(grid, server_lr=0.9)).start(grid, clients.initial, num_rounds=20)
    record = recorded(result)
    assert exact(record.timeline) == exact(ft.timeline(wanted, TIMES[times], rounds=len(result.rounds), seed=3))
    assert exact(record.replay_events()) == exact(record.timeline)
    assert len(result.rounds) >= 20
    assert result.rounds[-1].server_round == 20
    model = replay(PROBLEM, record, LOCAL, seed=3)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), model, rtol=1e-12, atol=1e-14)
    assert not result.errors
    assert record.scheme == wanted


@pytest.mark.parametrize("scheme", SCHEMES)
def test_given_times_give_the_simulators_weights(scheme) -> None:
    wanted, strategy = SCHEMES[scheme]
    times = TIMES["fixed"]
    clients = ProblemClients(PROBLEM, LOCAL, times)
    grid = clients.grid()
    given = {f"node {100 + i}": t for i, t in enumerate(["1", "0.7", "0.5", "2.25"])}
    importance = {f"node {100 + i}": float(p) for i, p in enumerate(PROBLEM.importance.values)}
    result = strategy(**on(grid, times=given, importance=importance)).start(grid, clients.initial, num_rounds=12)
    record = recorded(result)
    weights = ft.weights(wanted, times, importance=PROBLEM.importance.values.tolist(), step="stable")
    np.testing.assert_allclose(record.weights.applied(record.timeline), weights.applied(record.timeline), rtol=1e-12)
    assert record.importance == pytest.approx(PROBLEM.importance.values)


@pytest.mark.parametrize("scheme", ["fedavg", "async", "fedfix", "fedbuff"])
def test_estimated_weights_come_to_the_simulators(scheme) -> None:
    """With fixed times what is estimated is what the closed forms say, once every client has answered."""
    wanted, strategy = SCHEMES[scheme]
    times = TIMES["fixed"]
    clients = ProblemClients(PROBLEM, LOCAL, times)
    grid = clients.grid()
    result = strategy(**on(grid)).start(grid, clients.initial, num_rounds=150)
    record = recorded(result)
    weights = ft.weights(wanted, times, importance=PROBLEM.importance.values.tolist(), step="stable")
    used, meant = record.weights.applied(record.timeline), weights.applied(record.timeline)
    rough = 0.12 if scheme == "fedbuff" else 1e-12  # FedBuff's limit cycle is longer than the memory
    np.testing.assert_allclose(used[-20:], meant[-20:], rtol=rough)


# -- schemes that choose their clients, and rules of one's own


@dataclass(frozen=True)
class HalfOfImportance(ft.WaitingRule):
    """A round ends when half of the importance has arrived."""

    needs = ("importance",)

    def decide(self, state, event, view):
        if (again := resend(event)) is not None:
            return state, again
        importance = view.measures["importance"]
        if 2 * sum(importance[client] for client in view.arrived) >= 1:
            return state, Close(tuple(view.arrived.values()))
        return state, None


CHOOSING = {
    "uniform": (ft.UniformSampling(2), None),
    "multinomial": (ft.MultinomialSampling(5), None),
    "fastest": (ft.FastestSampling(2), "identical"),
    "cured fastest": (ft.CuredSampling(ft.FastestSampling(2), window=4, biased=2), None),
    "cured uniform": (ft.CuredSampling(ft.UniformSampling(3), window=5, biased=2), None),
    "cured multinomial": (ft.CuredSampling(ft.MultinomialSampling(4), window=9, biased=1), None),
    "stages": (ft.StagedFedFix([("0.6", 7), ("2", 3), ("1.1", None)]), None),
    "own": (ft.Scheme(HalfOfImportance(), name="half"), None),
}
NAMED_TIMES = {f"node {100 + i}": t for i, t in enumerate(["1", "0.7", "0.5", "2.25"])}
IMPORTANCE = PROBLEM.importance.values.tolist()
NAMED_IMPORTANCE = {f"node {100 + i}": p for i, p in enumerate(IMPORTANCE)}
HYPER = {"local_lr": 0.1, "local_steps": 2, "batch_size": 4, "server_lr": 0.9}


def chosen(name, grid, **options) -> TimedStrategy:
    scheme, weights = CHOOSING[name]
    rule = {} if weights is None else {"weights": weights}
    return TimedStrategy(scheme, **on(grid, seed=3, server_lr=0.9, **rule, **options))


@pytest.mark.parametrize("name", CHOOSING)
def test_same_clients_times_and_importance_make_the_simulators_rounds_weights_and_model(name) -> None:
    scheme, rule = CHOOSING[name]
    times = TIMES["fixed"]
    clients = ProblemClients(PROBLEM, LOCAL, times, seed=3)
    grid = clients.grid()
    strategy = chosen(name, grid, times=NAMED_TIMES, importance=NAMED_IMPORTANCE)
    result = strategy.start(grid, clients.initial, num_rounds=24)
    record = recorded(result)
    line = ft.timeline(scheme, times, rounds=len(result.rounds), importance=IMPORTANCE, seed=3)
    assert record.timeline.equals(replace(line, unit=NANOSECOND, ends=line.ends * int(line.unit / NANOSECOND)))
    assert record.replay_events().equals(record.timeline)
    weights = ft.weights(scheme, times, importance=IMPORTANCE, rule=rule, step="stable")
    np.testing.assert_allclose(record.weights.applied(record.timeline), weights.applied(line), rtol=1e-12)
    *_, last = oracle(PROBLEM, line, weights, LOCAL, HYPER, seed=3)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), last.model, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(replay(PROBLEM, record, LOCAL, seed=3), last.model, rtol=1e-11, atol=1e-13)
    assert not result.errors


@pytest.mark.parametrize("name", CHOOSING)
def test_what_is_found_out_comes_to_what_is_given(name) -> None:
    """Without times and importance: these are known when every client has answered, and so are the weights."""
    scheme, rule = CHOOSING[name]
    times = TIMES["fixed"]
    clients = ProblemClients(PROBLEM, LOCAL, times, seed=3)
    grid = clients.grid()
    result = chosen(name, grid).start(grid, clients.initial, num_rounds=120)
    record = recorded(result)
    assert record.replay_events().equals(record.timeline)
    weights = ft.weights(scheme, times, importance=IMPORTANCE, rule=rule, step="stable")
    last = record.timeline[-36:]
    apply = weights.applier()
    meant = np.concatenate([apply(record.timeline[:-36]), apply(last)])[-last.num_updates :]
    rough = 0.4 if name == "own" else 0.06 if name == "stages" else 1e-12  # these two are estimated
    np.testing.assert_allclose(record.weights.applied(last), meant, rtol=rough)


def test_the_fastest_are_found_by_trying_all() -> None:
    """The slowest is the first node."""
    grid = FakeGrid()
    for node, seconds in enumerate([9, 5, 7, 2, 3]):
        grid.connect(node, shifting(0, seconds))
    strategy = TimedStrategy(ft.FastestSampling(2), **on(grid, weights="identical"))
    result = strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=8)
    assert [[u.client for u in closed.updates] for closed in result.rounds] == [[0, 1], [2, 3], [3, 4], *[[3, 4]] * 5]
    assert {closed.weights for closed in result.rounds} == {(0.5, 0.5)}
    known = [measure for measure in recorded(result).events if isinstance(measure, LoggedMeasure)]
    assert {(m.client, m.value) for m in known} == {(0, 9.0), (1, 5.0), (2, 7.0), (3, 2.0), (4, 3.0)}


def test_a_fast_client_that_becomes_slow_is_no_longer_taken() -> None:
    grid, jobs = FakeGrid(), itertools.count()
    grid.connect(0, lambda message: shifting(0, 2 if next(jobs) < 3 else 9)(message))
    grid.connect(1, shifting(0, 3))
    strategy = TimedStrategy(ft.FastestSampling(1), **on(grid, weights="identical"))
    result = strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=8)
    assert [closed.updates[0].client for closed in result.rounds] == [0, 1, 0, 0, 0, 1, 1, 1]
    assert recorded(result).replay_events().equals(recorded(result).timeline)


def test_the_highest_loss_is_the_one_that_clients_report() -> None:
    grid = FakeGrid()
    for node, loss in enumerate([0.1, 0.5, 0.3, float("nan")]):
        grid.connect(node, shifting(0, 1, train_loss=loss))
    scheme = ft.HighestLossSampling(2)
    for options, words in (
        (
            {},
            r"HighestLoss\(.*needs 'loss' .*which a server on Flower does not supply; put .* as loss_key='train_loss'",
        ),
        ({"loss_key": "train_loss"}, "its time-based weights are not known; cure it"),
    ):
        with pytest.raises(InputError, match=words):
            TimedStrategy(scheme, **on(grid, **options))
    strategy = TimedStrategy(scheme, **on(grid, loss_key="train_loss", weights="identical"))
    result = strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=6)
    assert [[u.client for u in closed.updates] for closed in result.rounds] == [[0, 1], [2, 3], *[[1, 3]] * 4]
    assert {closed.weights for closed in result.rounds} == {(0.5, 0.5)}
    assert recorded(result).replay_events().equals(recorded(result).timeline)
    grid.nodes[1].behave = shifting(0, 1)
    result = strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=2)
    assert "the reply's metrics have no number 'train_loss'" in result.errors[0].reason


def test_cured_weights_where_a_client_is_missing() -> None:
    """The round that should have all clients has not: weights that are right on average, and a fault."""
    grid = FakeGrid()
    fails = itertools.count()
    for node in range(3):
        grid.connect(node, shifting(0, 1 + node))

    def now_and_then(message):
        return [(SECOND, failure(message) if next(fails) == 1 else answer(message, arrays_of(message), EXAMPLES))]

    EXAMPLES = {"num-examples": 10}
    grid.nodes[2].behave = now_and_then
    scheme = ft.CuredSampling(ft.FastestSampling(1), window=4, biased=1)
    result = TimedStrategy(scheme, **on(grid)).start(grid, record_of({"w": np.zeros(1)}), num_rounds=40)
    assert Counter(fault.kind for fault in result.errors) == {"error": 1, "weights": 1}
    [fault] = [fault for fault in result.errors if fault.kind == "weights"]
    assert "must have all 3 clients" in fault.reason
    total = Counter()
    for closed in result.rounds[8:]:
        total.update({update.client: update.weight for update in closed.updates})
    assert [total[client] / 32 for client in range(3)] == pytest.approx([1 / 3] * 3)


def test_what_a_rule_needs_and_nobody_supplies_is_refused() -> None:
    @dataclass(frozen=True)
    class Wants(ft.WaitingRule):
        needs = ("battery",)
        decide = HalfOfImportance.decide

    with pytest.raises(InputError, match=r"needs 'battery', which a server on Flower does not supply; it supplies"):
        TimedStrategy(ft.Scheme(Wants(), name="wants"))

    @dataclass(frozen=True)
    class Silent(ft.WaitingRule):
        decide = HalfOfImportance.decide

    grid = FakeGrid()
    grid.connect(1, shifting(0, 1))
    with pytest.raises(ft.UnlawfulRule, match=r"reads 'importance' .*add needs = \('importance',\) to its class"):
        TimedStrategy(ft.Scheme(Silent(), name="silent"), **on(grid)).start(grid, record_of({"w": np.zeros(1)}))


def test_clients_that_never_take_part_are_refused_before_anything_is_sent() -> None:
    grid = FakeGrid()
    for node in range(3):
        grid.connect(node, shifting(0, 1))
    with pytest.raises(InputError, match=r"client 2 never takes part.*weights='identical'"):
        TimedStrategy(ft.FastestSampling(2), **on(grid)).start(grid, record_of({"w": np.zeros(1)}))
    scheme = ft.CuredSampling(ft.FastestSampling(1), window=3, biased=2)
    with pytest.raises(InputError, match="more than 1, its share of a whole window"):
        TimedStrategy(scheme, **on(grid)).start(grid, record_of({"w": np.zeros(1)}))
    assert not any(node.got for node in grid.nodes.values())


# -- over many rounds every client counts by its importance: Σ_n ω_i(n) = p_i · rounds

LONG_RUN = {
    "async": lambda **o: AsyncFedAvg(**o),
    "fedfix": lambda **o: FedFix(10, **o),
    "fedbuff": lambda **o: FedBuff(2, **o),
}


def working(rng, *, slow=0.0, fails=0.0, seconds=13):
    """A client that takes ten times as long for a share of its jobs, and fails in a share of them."""

    def behave(message):
        lasts = seconds * (10 if rng.random() < slow else 1) * SECOND
        if rng.random() < fails:
            return [(lasts, failure(message))]
        return [(lasts, answer(message, arrays_of(message), {"num-examples": 10}))]

    return behave


def counted(strategy, clients, rounds, *, grid=None, skip=0.2, **options):
    """Σ ω_i(n) a round, by client, after the first rounds."""
    grid = grid or FakeGrid()
    for node, behave in enumerate(clients):
        grid.connect(node, behave)
    result = strategy(**on(grid, **options)).start(grid, record_of({"w": np.zeros(1)}), num_rounds=rounds)
    closed = result.rounds[int(len(result.rounds) * skip) :]
    total = np.zeros(len(clients))
    for each in closed:
        for update in each.updates:
            total[update.client] += update.weight
    return total / len(closed)


@pytest.mark.parametrize("scheme", LONG_RUN)
def test_a_client_with_two_speeds_counts_by_its_importance(scheme) -> None:
    rng = np.random.default_rng(0)
    clients = [working(rng, seconds=6), working(rng, seconds=6), working(rng, seconds=6, slow=0.2)]
    found = counted(LONG_RUN[scheme], clients, 4000 if scheme == "async" else 1500)
    np.testing.assert_allclose(found / found.sum(), 1 / 3, atol=0.02)


@pytest.mark.parametrize("scheme", LONG_RUN)
def test_a_client_that_fails_now_and_then_counts_by_its_importance(scheme) -> None:
    rng = np.random.default_rng(0)
    clients = [working(rng, seconds=6), working(rng), working(rng, fails=0.5)]
    found = counted(LONG_RUN[scheme], clients, 1500, max_failures=10**6)
    np.testing.assert_allclose(found / found.sum(), 1 / 3, atol=0.02)


@pytest.mark.parametrize("scheme", ["fedfix", "fedbuff"])
def test_tries_before_rests_count_too(scheme) -> None:
    """Importance is that of the clients that are there, so that it sums to 1 however often one of them rests."""
    rng = np.random.default_rng(0)
    clients = [working(rng, seconds=6), working(rng), working(rng, fails=0.5)]
    found = counted(LONG_RUN[scheme], clients, 1500, max_failures=3, retry_after=20, step="paper")
    assert found.sum() == pytest.approx(1, abs=0.02)


def test_failures_before_a_client_left_do_not_count() -> None:
    """It was not there, and then it is another process."""
    grid = FakeGrid()
    grid.connect(1, shifting(0, 6))
    grid.connect(2, lambda message: [(5 * SECOND, failure(message))], b"key")
    grid.at(8, lambda: grid.disconnect(2))
    grid.at(100, lambda: grid.connect(3, shifting(0, 1), b"key"))
    result = FedFix(10, **on(grid)).start(grid, record_of({"w": np.zeros(1)}), num_rounds=16)
    weights = [update.weight for closed in result.rounds for update in closed.updates if update.client == 1]
    assert len(weights) > 2
    assert max(weights) <= 1, "half of two rounds at most"


def test_rounds_that_the_server_skips_do_not_count() -> None:
    """A push of 25 s in a wait of 10 s: each round is three intervals long, and every client is in every round."""
    grid = FakeGrid()
    grid.push_cost = 25 * SECOND
    found = counted(LONG_RUN["fedfix"], [shifting(0, 8), shifting(0, 13)], 60, grid=grid)
    assert found == pytest.approx([0.5, 0.5])


def test_a_wait_that_is_no_whole_number_of_nanoseconds_counts_as_the_simulators() -> None:
    grid = FakeGrid(VirtualClock(wakes=False))
    clients = [shifting(0, "0.2"), shifting(0, "0.3")]
    found = counted(lambda **o: FedFix("1/3", **o), clients, 60, grid=grid, poll=1)
    assert found == pytest.approx([0.5, 0.5])


def test_the_first_update_of_a_slow_client_counts_as_another_clients() -> None:
    """One late answer says little: it counts as the others do; the next ones show that the client is slow."""
    grid = FakeGrid()
    for node, lasts in enumerate([6, 118]):
        grid.connect(node, shifting(0, lasts))
    result = FedFix(10, **on(grid)).start(grid, record_of({"w": np.zeros(1)}), num_rounds=96)
    weights = [update.weight for closed in result.rounds for update in closed.updates if update.client == 1]
    assert weights[0] == pytest.approx(1 / 2)
    assert weights[1] == pytest.approx(2 / 3), "at most twice as much as it counted before"
    assert weights[-1] == pytest.approx(12 / 13, abs=0.01), "V̂ of 120 s and of 10 s"
    assert max(weights) <= 1


# -- numbers and names that clients and users give


@pytest.mark.parametrize("scheme", [*LONG_RUN, "fedavg"])
def test_large_numbers_of_examples_count_in_proportion(scheme) -> None:
    strategy = LONG_RUN.get(scheme, FedAvg)
    clients = [shifting(0, 2, 1.7e308), shifting(0, 3, 1.7e308), shifting(0, 5, 0.85e308)]
    found = counted(strategy, clients, 60)
    np.testing.assert_allclose(found / found.sum(), [0.4, 0.4, 0.2], atol=0.03)


@pytest.mark.parametrize("metric", [{"num-examples": 10**400}, {"id": 10**400}, {"work": 10**400}])
def test_whole_numbers_that_no_float_holds_are_refused(metric) -> None:
    def behave(message):
        return [(SECOND, answer(message, arrays_of(message), {"num-examples": 5, "id": 7, **metric}))]

    grid = FakeGrid()
    grid.connect(1, shifting(1, 1, id=3))
    grid.connect(2, behave)
    strategy = AsyncFedAvg(**on(grid, identity_key="id", work_key="work"))
    result = strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=5)
    [name] = metric
    refused = [fault for fault in result.errors if fault.kind == "refused"]
    assert refused
    assert {fault.client for fault in refused} == {1}
    assert f"'{name}' is a whole number of more than 64 bits" in refused[0].reason


@pytest.mark.parametrize("key", [None, "id"])
def test_names_that_nobody_has_are_said_once_when_all_have_answered(key, caplog) -> None:
    grid = FakeGrid()
    for node in (1, 2):
        grid.connect(node, shifting(0, 3 * node, id=node))
    first = "1" if key else "node 1"
    options = on(grid, identity_key=key, importance={first: 2, "bob": 1}, times={"alice": 3, first: 3})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        AsyncFedAvg(**options).start(grid, record_of({"w": np.zeros(1)}), num_rounds=20)
    said = [line for line in caplog.messages if "no client is called" in line]
    names = "'1', '2'" if key else "'node 1', 'node 2'"
    assert [line.split(";")[0] for line in said] == [
        "importance: no client is called 'bob'",
        "times: no client is called 'alice'",
    ]
    assert all(f"the clients are {names}." in line for line in said)


def test_names_that_clients_have_are_not_said(caplog) -> None:
    grid = FakeGrid()
    for node in (1, 2):
        grid.connect(node, shifting(0, 3 * node, id=node))
    options = on(grid, identity_key="id", importance={"1": 2, "2": 1})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        AsyncFedAvg(**options).start(grid, record_of({"w": np.zeros(1)}), num_rounds=20)
    assert not [line for line in caplog.messages if "nobody" in line]
