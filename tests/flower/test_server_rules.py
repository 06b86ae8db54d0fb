"""Server rules on Flower: the simulator's steps on Flower's arrays, kept over a crash, told by the record."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedtempo as ft
import fedtempo.flower.strategy as strategy_module
from fedtempo.errors import InputError, ResultsConflict
from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy, recorded, replay
from fedtempo.flower.buffers import Buffers
from fedtempo.flower.record import scheme_of
from fedtempo.flower.state import RunFolder
from fedtempo.flower.training import Training
from fedtempo.flower.versions import RuleOnArrays, Step, Versions
from fedtempo.schemes.options import SchemeOptions
from fedtempo.simulation.engine.oracle import oracle
from fedtempo.training.server_rules import ServerOptimizer
from support.flower_fake import (
    SECOND,
    Crashes,
    FakeGrid,
    Killed,
    ProblemClients,
    answer,
    arrays_of,
    failure,
    on,
    record_of,
    shifting,
)

PROBLEM = ft.problems.quadratics(4, dimension=6, noise=0.5, rows=[6, 9, 12, 5], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
SECONDS = ["1", "0.7", "0.5", "2.25"]
TIMES = ft.FixedTimes(SECONDS)
HYPER = {"local_lr": 0.1, "local_steps": 2, "batch_size": 4}
SCHEMES = {
    "fedfix": (ft.FedFix("0.6"), lambda **o: FedFix(0.6, **o)),
    "async": (ft.AsyncFedAvg(), lambda **o: AsyncFedAvg(**o)),
    "fedbuff": (ft.FedBuff(3), lambda **o: FedBuff(3, **o)),
}
SERVERS = {
    "slowmo": (ft.SlowMo(0.9), 0.1),
    "fedadam": (ft.FedAdam(), 0.05),
    "mixing": (ft.MixModels(), 0.8),
    "fedyogi": (ft.FedYogi(b1=0.8), 0.05),
    "fedadagrad": (ft.FedAdaGrad(), 0.05),
    "optax": (ft.ServerOptax(optax.adam, {"b1": 0.5}), 0.05),
}


def by_name(values) -> dict:
    return {f"node {100 + i}": value for i, value in enumerate(values)}


# -- the same model as in simulation


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_is_the_simulators(scheme, server) -> None:
    """By the simulator's own timeline and weights, and by the record's."""
    (wanted, strategy), (rule, lr) = SCHEMES[scheme], SERVERS[server]
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    grid = clients.grid()
    options = {"times": by_name(SECONDS), "importance": by_name(PROBLEM.importance.values.tolist())}
    result = strategy(**on(grid, server=rule, server_lr=lr, **options)).start(grid, clients.initial, num_rounds=25)
    line = ft.timeline(wanted, TIMES, rounds=len(result.rounds))
    weights = ft.weights(wanted, TIMES, importance=PROBLEM.importance.values.tolist(), step="stable")
    hyper = {**HYPER, "server_lr": lr}
    *_, last = oracle(PROBLEM, line, weights, LOCAL, hyper, options=SchemeOptions(server=rule))
    *_, plain = oracle(PROBLEM, line, weights, LOCAL, hyper)
    found = result.arrays["theta"].numpy()
    np.testing.assert_allclose(found, last.model, rtol=1e-10, atol=1e-12)
    assert np.abs(found - np.asarray(plain.model)).max() > 1e-3, "a weighted sum would be another model"
    record = recorded(result)
    assert record.scheme == wanted.using(server=rule)
    np.testing.assert_allclose(found, replay(PROBLEM, record, LOCAL), rtol=1e-10, atol=1e-12)
    assert record.replay_events().equals(record.timeline)


def test_fedasync_as_published() -> None:
    """θ ← (1 − α s(x))θ + α s(x) θ_i, by hand, from what clients have sent."""
    weights = ft.Discounted(ft.published.Mixing(0.6), ft.PolynomialDiscount(0.5))
    sent: list[np.ndarray] = []

    def client(step, seconds):
        def behave(message):
            theta = 0.9 * arrays_of(message)["w"] + step
            sent.append(theta)
            number = len(sent) - 1
            return [(int(seconds * SECOND), answer(message, {"w": theta}, {"num-examples": 1, "number": number}))]

        return behave

    models = []
    for strategy in (
        lambda **o: AsyncFedAvg(server=ft.MixModels(), weights=weights, **o),
        lambda **o: TimedStrategy(ft.published.FedAsync(0.6), **o),
    ):
        sent.clear()
        grid = FakeGrid()
        for node, (step, seconds) in enumerate([(1, 1), (-2, 0.7), (5, 3.1)]):
            grid.connect(node, client(step, seconds))
        taken: list[int] = []

        def metrics(records, key, taken=taken):
            taken.append(int(next(iter(records[0].metric_records.values()))["number"]))
            raise ValueError

        options = on(grid, train_metrics_aggr_fn=metrics, norm_limit=None)
        result = strategy(**options).start(grid, record_of({"w": np.zeros(3)}), num_rounds=30)
        theta = np.zeros(3)
        for closed, number in zip(result.rounds, taken, strict=True):
            share = 0.6 * (1 + closed.staleness[0]) ** -0.5
            theta = (1 - share) * theta + share * sent[number]
        assert max(closed.staleness[0] for closed in result.rounds) > 3
        np.testing.assert_allclose(result.arrays["w"].numpy(), theta, rtol=1e-12)
        models.append(result.arrays["w"].numpy())
    np.testing.assert_array_equal(*models)


def test_clipped_contributions_and_renumbered_clients_replay() -> None:
    for server, lr in (SERVERS["fedadam"], SERVERS["mixing"]):
        clients = ProblemClients(PROBLEM, LOCAL, TIMES)
        grid = clients.grid()
        strategy = FedFix(0.8, **on(grid, server=server, server_lr=lr, clip_norm=0.2))
        result = strategy.start(grid, clients.initial, num_rounds=12)
        assert {update.clipped for closed in result.rounds for update in closed.updates} != {1.0}
        record = recorded(result)
        np.testing.assert_allclose(result.arrays["theta"].numpy(), replay(PROBLEM, record, LOCAL), rtol=1e-10)
        other = {name: 3 - i for i, name in enumerate(record.names)}
        with pytest.raises(InputError, match="order") if lr == 0.8 else contextlib.nullcontext():
            replay(PROBLEM, record, LOCAL, clients=other)


# -- arrays of every type


def step(weight: float, lr: float = 1.0, base: dict | None = None, **arrays) -> Step:
    values = {name: arrays.pop(name) for name in ("count", "flag") if name in arrays}
    return Step(lr * weight, arrays, 1.0, weight, base, values=values, even=weight)


def test_whole_numbers_are_averaged_and_types_stay() -> None:
    arrays = {
        "count": np.array([10, 20], dtype=np.int32),
        "flag": np.array(True),
        "half": np.array([1.0], dtype=np.float16),
        "none": np.array(2.0, dtype=np.float32),
        "pair": np.array([[1 + 2j], [3 - 1j]], dtype=np.complex64),
        "long": np.zeros(2),
    }
    trained = Buffers(arrays).trained(arrays)
    versions = Versions(arrays, rule=RuleOnArrays(ft.SlowMo(0.5), 0.5, trained))
    theta = {name: np.asarray(array, dtype=np.result_type(array, np.float32)) for name, array in arrays.items()}
    velocity = {name: np.zeros_like(array) for name, array in theta.items()}
    for n in range(3):
        moves = {
            name: np.full_like(array, n + (1j if array.dtype.kind == "c" else 1.0))
            for name, array in theta.items()
            if name not in ("count", "flag")
        }
        versions.advance(
            [step(w, 0.5, count=np.array([60, -20], dtype=np.int32), flag=np.array(False), **moves) for w in (0.3, 0.5)]
        )
        for name, move in moves.items():
            velocity[name] = 0.5 * velocity[name] + 0.8 * move
            theta[name] = theta[name] + 0.5 * velocity[name]
    assert {name: (a.dtype, a.shape) for name, a in versions.arrays.items()} == {
        name: (a.dtype, a.shape) for name, a in arrays.items()
    }
    assert versions.arrays["count"].tolist() == [60, -20], "0.2 s + 0.8 v, three times, rounded"
    assert not versions.arrays["flag"]
    for name, rough in (("half", 2e-3), ("none", 1e-6), ("pair", 1e-6), ("long", 1e-14)):
        np.testing.assert_allclose(versions.arrays[name], theta[name], rtol=rough)


def test_a_round_without_updates_is_no_step() -> None:
    arrays = {"w": np.zeros(2)}
    rule = RuleOnArrays(ft.SlowMo(0.9), 1.0, arrays)
    versions = Versions(arrays, rule=rule)
    versions.advance([step(1.0, w=np.ones(2))])
    before, memory = versions.arrays["w"], rule.memory
    versions.advance([])
    assert versions.number == 2
    assert versions.arrays["w"] is before
    assert rule.memory is memory


@pytest.mark.parametrize("alone", [True, False])
def test_what_would_spoil_the_rules_memory_is_left_out(alone) -> None:
    """The model would be finite, but Adam's second mean would be infinite, and the model would never move again."""
    arrays = {"w": np.zeros(2, dtype=np.float32)}
    rule, other = (RuleOnArrays(ft.FedAdam(), 0.1, arrays) for _ in range(2))
    versions, calm = Versions(arrays, rule=rule), Versions(arrays, rule=other)
    large = Step(0.1, {"w": np.full(2, 1e30, dtype=np.float32)}, 1e30, 1.0)
    small = [step(1.0, 0.1, w=np.ones(2, dtype=np.float32))] * (not alone)
    assert versions.advance([large, *small]) == [0]
    calm.advance(small)
    for one, two in zip([versions.arrays["w"], *rule.memory], [calm.arrays["w"], *other.memory], strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_model_is_kept_with_an_update_until_it_is_mixed_in(monkeypatch) -> None:
    kept, bases = [], []

    class Watched(Training):
        def _fold(self, closed, weighed):
            bases.extend(held.base is not None for held in self._handler.contributions.values())
            return super()._fold(closed, weighed)

        def _advise(self, record):
            super()._advise(record)
            kept.append((self._versions.live, len(self._handler.contributions)))

    monkeypatch.setattr(strategy_module, "Training", Watched)
    grid = FakeGrid()
    for node in range(5):
        grid.connect(100 + node, shifting(1, 0.3 + 0.37 * node))
    grid.connect(200, lambda message: [(SECOND // 3, failure(message))])
    options = on(grid, server=ft.MixModels(), retry_after=0.5)
    FedFix(0.5, **options).start(grid, record_of({"w": np.zeros(4)}), num_rounds=150)
    assert 3 <= max(live for live, _ in kept) <= 6
    assert not any(waiting for _, waiting in kept)
    assert all(bases)
    bases.clear()
    grid = FakeGrid()
    grid.connect(1, shifting(1, 1))
    AsyncFedAvg(**on(grid, server=ft.FedAdam())).start(grid, record_of({"w": np.zeros(4)}), num_rounds=5)
    assert not any(bases)


# -- killed and started again


def drawn(rate: float, seconds: float):
    """A client whose work follows from the model that it was sent alone."""

    def behave(message):
        arrays = arrays_of(message)
        moved = {"w": arrays["w"] - rate * (arrays["w"] - np.arange(3)), "n": arrays["n"] + 1}
        moved["half"] = (arrays["half"] + rate).astype(np.float16)
        return [(int(seconds * SECOND), answer(message, moved, {"num-examples": 10}))]

    return behave


FIRST = {"w": np.full(3, 5.0), "n": np.zeros(2, dtype=np.int32), "half": np.ones(2, dtype=np.float16)}


@pytest.mark.parametrize("server", ["slowmo", "fedadam", "mixing"])
def test_a_killed_run_comes_to_the_same_bits(server, tmp_path, monkeypatch, caplog) -> None:
    """All clients answer within a wait, so that what is sent again after a crash is what was out."""
    caplog.set_level(logging.CRITICAL, "flwr")
    rule, lr = SERVERS[server]

    def start(folder, grid):
        options = on(grid, server=rule, server_lr=lr, checkpoint=folder, times=by_name(["1", "0.7", "1.2"]))
        return FedFix(1.3, **options).start(grid, record_of(FIRST), num_rounds=6, resume=True)

    def world() -> FakeGrid:
        grid = FakeGrid()
        for node, (rate, seconds) in enumerate([(0.1, 1), (0.3, 0.7), (0.5, 1.2)]):
            grid.connect(100 + node, drawn(rate, seconds))
        return grid

    crashes = Crashes(monkeypatch)
    whole = start(tmp_path / "whole", world())
    memory = RunFolder(tmp_path / "whole").read()[0]["memory"]
    assert [part.shape for part in memory] == {
        "slowmo": [(2,), (3,)], "fedadam": [(2,), (3,), (2,), (3,)], "mixing": []
    }[server]  # fmt: skip
    between = 0
    for moment in range(1, crashes.count + 1, 3):
        folder, grid = tmp_path / str(moment), world()
        crashes.count, crashes.at = 0, moment
        with contextlib.suppress(Killed):
            start(folder, grid)
        crashes.at = None
        between += (folder / "state.npz").exists()
        result = start(folder, world())
        assert [closed.weights for closed in result.rounds] == [closed.weights for closed in whole.rounds]
        assert result.arrays == whole.arrays, "bit by bit"
        for one, other in zip(RunFolder(folder).read()[0]["memory"], memory, strict=True):
            np.testing.assert_array_equal(one, other)
    assert between > 8


@pytest.mark.parametrize("server", ["fedadam", "mixing"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_that_is_killed_again_and_again_replays(scheme, server, tmp_path, monkeypatch, caplog) -> None:
    """Jobs that were out are done again with other batches, and the record says which."""
    caplog.set_level(logging.CRITICAL, "flwr")
    rule, lr = SERVERS[server]
    crashes, lives, result = Crashes(monkeypatch), 0, None
    clients = ProblemClients(PROBLEM, LOCAL, TIMES)
    while result is None:
        lives += 1
        crashes.count, crashes.at = 0, 31
        grid = clients.grid()
        with contextlib.suppress(Killed):
            strategy = SCHEMES[scheme][1](**on(grid, server=rule, server_lr=lr, checkpoint=tmp_path))
            result = strategy.start(grid, clients.initial, num_rounds=12, resume=True)
    crashes.at = None
    assert lives > 2
    record = recorded(tmp_path)
    assert record.scheme == SCHEMES[scheme][0].using(server=rule)
    np.testing.assert_allclose(result.arrays["theta"].numpy(), replay(PROBLEM, record, LOCAL), rtol=1e-10)


def test_another_rule_does_not_go_on_with_a_run(tmp_path) -> None:
    def start(**options):
        grid = FakeGrid()
        grid.connect(1, drawn(0.1, 1))
        return AsyncFedAvg(**on(grid, checkpoint=tmp_path, **options)).start(
            grid, record_of(FIRST), num_rounds=3, resume=True
        )

    start(server=ft.FedAdam())
    for other in (ft.FedAdam(eps=1e-4), ft.MixModels(), None):
        with pytest.raises(ResultsConflict, match="its scheme is"):
            start(server=other)
    start(server=ft.FedAdam())


def test_a_memory_of_another_form_is_refused() -> None:
    arrays = {"w": np.zeros(3)}
    for memory in ([], [np.zeros(3)], [np.zeros((), np.int32), np.zeros(3), np.zeros(4)]):
        with pytest.raises(InputError, match="the saved state of FedAdam has another form than here"):
            RuleOnArrays(ft.FedAdam(), 1.0, arrays, memory)


# -- what the folder says, and what it does not know


def document(folder) -> dict:
    with np.load(folder / "state.npz", allow_pickle=False) as saved:
        return json.loads(saved["document"].tobytes())


def test_folders_of_runs_without_a_rule_are_as_they_were(tmp_path) -> None:
    for name, server in (("plain", None), ("ruled", ft.MixModels())):
        grid = FakeGrid()
        grid.connect(1, drawn(0.1, 1))
        strategy = AsyncFedAvg(**on(grid, checkpoint=tmp_path / name, server=server))
        strategy.start(grid, record_of(FIRST), num_rounds=2)
    plain, ruled = document(tmp_path / "plain"), document(tmp_path / "ruled")
    assert plain["format"] == 1
    assert "memory" not in plain
    assert plain["about"]["scheme"] == {"name": "async"}
    assert ruled["format"] == 2, "which versions without server rules refuse, for they would leave the rule out"
    assert ruled["about"]["scheme"] == {"name": "async", "server": {"name": "mixing"}}
    assert recorded(tmp_path / "plain").scheme.options.plain
    assert recorded(tmp_path / "ruled").scheme.options.server == ft.MixModels()


@pytest.mark.parametrize("server", SERVERS)
def test_a_rule_is_known_again(server) -> None:
    scheme = ft.FedFix("0.6").using(server=SERVERS[server][0])
    assert scheme_of(json.loads(json.dumps(scheme.spec()))) == scheme


@dataclass(frozen=True)
class Mine(ServerOptimizer):
    """Signs of the contributions."""

    label = "mine"

    def spec(self) -> dict[str, object]:
        return {"name": "mine"}

    def transformation(self, server_lr):
        return optax.chain(optax.stateless(lambda g, _: {k: jnp.sign(v) for k, v in g.items()}), optax.sgd(server_lr))


def test_a_rule_of_ones_own_runs_and_is_not_guessed_at(tmp_path) -> None:
    """It calls itself "mine", which nobody can look up: a result knows it, a folder knows its name alone."""
    grid = FakeGrid()
    grid.connect(1, shifting(3.0, 1))
    strategy = AsyncFedAvg(**on(grid, server=Mine(), server_lr=0.5, checkpoint=tmp_path))
    result = strategy.start(grid, record_of({"w": np.zeros(2)}), num_rounds=4)
    assert result.arrays["w"].numpy().tolist() == [2.0, 2.0]
    assert recorded(result).scheme.options.server == Mine()
    named = recorded(tmp_path).scheme
    assert named.label == "AsyncFedAvg + mine"
    with pytest.raises(InputError, match="mine is named there but was not imported; give the scheme with its server"):
        named.options.server.transformation(1.0)
    assert recorded(tmp_path, scheme=ft.AsyncFedAvg().using(server=Mine())).scheme.options.server == Mine()
    with pytest.raises(InputError, match=r'the record is of {"name": "async", .* but {"name": "async"'):
        recorded(tmp_path, scheme=ft.AsyncFedAvg().using(server=ft.FedAdam()))
    with pytest.raises(InputError, match=r"server: 'mine' is not known; .*slowmo, fedadam"):
        recorded(tmp_path, trust=True)
    with pytest.raises(InputError, match="server fedadam: the key 'b3' does not exist"):
        scheme_of({"name": "async", "server": {"name": "fedadam", "b3": 1}})


# -- arguments


@pytest.mark.parametrize("given", ["fedadam", ft.FedAdam, 3, optax.adam(1.0)])
def test_what_is_no_rule_is_refused(given) -> None:
    with pytest.raises(InputError, match=r"server: .* is not a server rule; give one, as fedtempo's FedAdam\(\)"):
        FedFix(1, server=given)


def test_what_clients_would_have_to_do_is_refused() -> None:
    corrects = "changes what clients do, but on Flower that is your own ClientApp"
    with pytest.raises(InputError, match=f"server: SCAFFOLD {corrects}"):
        FedFix(1, server=ft.Scaffold())
    with pytest.raises(InputError, match=corrects):
        TimedStrategy(ft.FedFix(1).using(correction=ft.Scaffold(), server=ft.FedAdam()))
    with pytest.raises(InputError, match="compress in the ClientApp"):
        TimedStrategy(ft.FedFix(1).using(compression=ft.TopK(0.1)))
    with pytest.raises(InputError, match="local steps and local learning rates are set in the ClientApp"):
        TimedStrategy(ft.FedFix(1).using(compensate="rate"))
    grid = FakeGrid()
    grid.connect(1, shifting(1, 1))
    with pytest.raises(InputError, match="it has no trainable arrays: n are whole numbers"):
        AsyncFedAvg(**on(grid, server=ft.FedAdam())).start(grid, record_of({"n": np.zeros(2, dtype=np.int64)}))


def test_the_rule_is_in_the_log(caplog) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        FedAvg(server=ft.SlowMo(0.9)).summary()
    assert "FedAvg + SlowMo(0.9), weights time-based" in caplog.text


def test_without_a_rule_there_is_no_jax() -> None:
    code = (
        "import sys, numpy as np\n"
        "from fedtempo.flower import FedFix\n"
        "from fedtempo.flower.versions import Step, Versions\n"
        "FedFix(1, server=None).summary()\n"
        "Versions({'w': np.zeros(2)}).advance([Step(1.0, {'w': np.ones(2)}, 1.0)])\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
