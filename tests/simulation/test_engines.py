"""Several engines, one answer: oracle, events and waves against each other and against Algorithm 1 in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedtempo as ft
from fedtempo.rules import Arrived, Close, WaitingRule
from fedtempo.simulation.engine.machine import CompiledMachine
from fedtempo.simulation.engine.oracle import oracle
from fedtempo.training.batches import batch_key, job_rows
from simulation.test_program import Hoard

UNTIL, BATCH = 100, 4
TIMES = ft.FixedTimes(["1", "2/3", "1/2"])
QUADRATICS = ft.problems.quadratics(3, dimension=5, noise=0.5, rows=[6, 9, 12], seed=1, importance="rows")
SCHEMES = (
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("1/5"),  # rounds without any update
    ft.FedBuff(2),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
    ft.FastestSampling(2),
    ft.StagedFedFix([("1/4", 60), ("1/2", None)]),
)
RATES = {
    "quadratics": (0.14, 0.48, 1.05),
    "digits": (0.05, 0.2),
}
HALF_LIMIT = {  # for K = 1 and K = 5: half the rate beyond which full gradients on these quadratics diverge
    "FedAvg": (1.44, 1.09),
    "AsyncFedAvg": (0.54, 0.17),
    "FedFix(1/2)": (0.88, 0.94),
    "FedFix(1/5)": (0.48, 0.145),
    "FedBuff(2)": (1.14, 1.01),
    "UniformSampling(2)": (1.5, 1.09),
    "MultinomialSampling(3)": (1.5, 1.1),
    "FastestSampling(2)": (1.44, 1.09),
    "FedFix(1/4→1/2)": (0.86, 0.94),
}


class Unbiased(ft.WeightRule):
    """Time-based weights; nothing for clients that never take part."""

    name = "unbiased"

    def base(self, importance, participation):
        share = participation.share
        return np.divide(importance.values, share, out=np.zeros(len(share)), where=share > 0), None


WEIGHTS = (Unbiased(), ft.Discounted(ft.Identical(), ft.PolynomialDiscount()))


@cache
def digits():
    return ft.problems.digits(clients=3, partition=ft.Dirichlet(0.5), seed=0)


def problem_named(name):
    return QUADRATICS if name == "quadratics" else digits()


# -- Algorithm 1, once more, in NumPy: models are vectors, one a run


@cache
def _rows(key_seed, sizes, jobs, steps, draw="uniform"):
    """[clients, jobs, steps, batch]"""
    draw_one = lambda i, j, n: job_rows(batch_key(key_seed), i, j, n, steps=steps, batch_size=BATCH, draw=draw)  # noqa: E731
    of_client = jax.vmap(draw_one, (None, 0, None))
    drawn = jax.jit(jax.vmap(of_client, (0, None, 0)))(
        jnp.arange(len(sizes)), jnp.arange(jobs, dtype=jnp.int32), jnp.array(sizes, dtype=jnp.int32)
    )
    return np.asarray(drawn)


def quadratic_gradient(theta, batch):
    a, c = batch
    return (a * (theta[:, None] - c)).mean(axis=1)


def logistic_gradient(theta, batch):
    """θ is [runs, 10 + 10·64]: bias, then weights, as in the model's tree."""
    x, y = batch
    z = theta[:, :10, None] + theta[:, 10:].reshape(-1, 10, x.shape[1]) @ x.T
    z = np.exp(z - z.max(axis=1, keepdims=True))
    residual = (z / z.sum(axis=1, keepdims=True) - (np.arange(10)[:, None] == y)) / len(y)
    return np.concatenate([residual.sum(axis=2), (residual @ x).reshape(len(theta), -1)], axis=1)


def by_hand(problem, gradient, size, line, applied, rates, steps, seed, server_lr=1.0):
    """[runs, size] the final models; `applied` has ω of every update, [runs, updates], `rates` η_l of each run."""
    rows = _rows(seed, tuple(problem.sizes.tolist()), 256, steps)
    data = [tuple(np.asarray(x, np.float64 if x.dtype.kind == "f" else x.dtype) for x in d) for d in _data(problem)]
    models, rates = {0: np.zeros((len(rates), size))}, np.array(rates)[:, None]
    for n, begin, end in zip(range(line.num_rounds), line.offsets[:-1], line.offsets[1:], strict=True):
        theta = models[n].copy()
        for update in range(begin, end):
            i, sent = line.client[update], models[line.base[update]]
            local = sent
            for k in range(steps):
                mine = rows[i, line.job[update], k]
                batch = tuple(x[mine] for x in data[i])
                local = local - rates * gradient(local, batch)
            theta += server_lr * applied[:, update, None] * (local - sent)
        models[n + 1] = theta
        models.pop(n - 40, None)
    return models[line.num_rounds]


def _data(problem):
    return [problem.client_data(i) for i in range(problem.num_clients)]


def line_of(scheme, problem, seed, times=TIMES, until=UNTIL):
    return ft.timeline(scheme, times, until=until, importance=problem.importance.exact, seed=seed)


def weights_of(scheme, problem, rule, times=TIMES):
    return ft.weights(scheme, times, importance=problem.importance.exact, rule=rule)


# -- what is compared


def flat(history):
    """[…, size] the final models, every run's leaves end to end; and the dimensions before."""
    leaves = [v for n, v in history.dataset.items() if n.startswith("parameter:")]
    dims = history.dataset["diverged_at"].dims
    values = [v.transpose(*dims, ...).values.reshape(*history.dataset["diverged_at"].shape, -1) for v in leaves]
    return np.concatenate(values, axis=-1).astype(np.float64)


def distance(one, other):
    """The largest ‖a − b‖/‖b‖ of all runs."""
    apart, size = np.linalg.norm(one - other, axis=-1), np.linalg.norm(other, axis=-1)
    return np.where(apart == 0, 0, apart / np.where(size == 0, 1e-300, size)).max()


def study(name, engine, dtype="float64", *, schemes=SCHEMES, steps=(1, 5), seeds=(0, 1), **more):
    given = {"until": UNTIL, "points": 5, "weights": WEIGHTS, "per_client": True, "step": "paper"} | more
    local = ft.LocalSGD(steps=list(steps), lr=list(given.pop("lr", RATES[name])), batch_size=BATCH)
    return ft.simulate(
        problem_named(name), schemes, TIMES, local=local, seeds=seeds, engine=engine, dtype=dtype, **given
    )


@pytest.fixture(scope="module", params=["quadratics", "digits"])
def compiled(request):
    return request.param, {
        "events": study(request.param, "events"),
        "waves": study(request.param, "waves", seeds=(0, 1) if request.param == "quadratics" else [1]),
    }


@cache
def expected(name, steps, seed):
    """[schemes, weights, rates, size] by hand."""
    problem, rates = problem_named(name), RATES[name]
    gradient, size = (quadratic_gradient, 5) if name == "quadratics" else (logistic_gradient, 650)
    out = []
    for scheme in SCHEMES:
        line = line_of(scheme, problem, seed)
        applied = np.repeat([weights_of(scheme, problem, rule).applied(line) for rule in WEIGHTS], len(rates), axis=0)
        found = by_hand(problem, gradient, size, line, applied, rates * len(WEIGHTS), steps, seed)
        out.append(found.reshape(len(WEIGHTS), len(rates), size))
    return np.array(out)


def settled(history, name):
    """Which runs have not diverged; those at up to half the stability limit must not have."""
    fine = ~history.diverged
    if name == "quadratics":
        for scheme, limits in HALF_LIMIT.items():
            for steps, limit in zip((1, 5), limits, strict=True):
                here = fine.sel(scheme=scheme, local_steps=steps)
                assert here.sel(local_lr=[r for r in RATES[name] if r <= limit]).all()
    return fine.values


def test_events_and_waves_do_what_algorithm_1_says(compiled) -> None:
    name, histories = compiled
    for engine, history in histories.items():
        fine, found = settled(history, name), flat(history)
        assert fine.mean() > 0.85
        for k, steps in enumerate((1, 5)):
            for s, seed in enumerate(history.dataset["seed"].values.tolist()):
                want = expected(name, steps, seed)
                good = fine[:, :, k, :, s]
                assert distance(found[:, :, k, :, s][good], want[good]) < 1e-9, (engine, steps, seed)


def test_events_and_waves_agree_along_the_way(compiled) -> None:
    name, histories = compiled
    other = histories["waves"].dataset
    one = histories["events"].dataset.sel(seed=other["seed"])
    np.testing.assert_array_equal(one["diverged_at"], other["diverged_at"])
    for measure in ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation", "client_loss"):
        np.testing.assert_allclose(one[measure], other[measure], rtol=1e-9, err_msg=measure)
    if name == "digits":
        np.testing.assert_allclose(one["test_loss"], other["test_loss"], rtol=1e-9)
        np.testing.assert_allclose(one["test_accuracy"], other["test_accuracy"], atol=1e-9)


def test_rounds_and_updates_are_those_of_the_timeline(compiled) -> None:
    name, histories = compiled
    for history in histories.values():
        counts = history.dataset[["rounds", "updates"]]
        for scheme in SCHEMES:
            for seed in counts["seed"].values.tolist():
                line = line_of(scheme, problem_named(name), seed)
                ends = np.array([float(end * line.unit) for end in line.ends])
                rounds = [int((ends <= t).sum()) for t in (0, 25, 50, 75, 100)]
                here = counts.sel(scheme=scheme.label, seed=seed)
                assert here["rounds"].values.tolist() == rounds
                assert here["updates"].values.tolist() == line.offsets[rounds].tolist()
        empty = counts.sel(scheme="FedFix(1/5)").isel(time=-1)
        assert (empty["rounds"] > empty["updates"]).all()


def test_the_oracle_agrees(compiled) -> None:
    """K = 1 over hundreds of rounds; K = 5 over the first half, on digits the first quarter."""
    name, histories = compiled
    rate = RATES[name][0]
    plain = study(
        name, "oracle", steps=[1], lr=[rate], weights=WEIGHTS[0], seeds=(0, 1) if name == "quadratics" else [1]
    )
    part = {"until": 50, "points": 3} if name == "quadratics" else {"until": 25, "points": 2}
    deep = study(name, "oracle", steps=[5], lr=[rate], seeds=[1], weights=WEIGHTS[0], **part)
    assert not plain.diverged.any()
    assert not deep.diverged.any()
    for history in histories.values():
        same = history.select(weights="unbiased", local_lr=[rate])
        seeds = plain.dataset["seed"].values.tolist()
        assert distance(flat(same.select(local_steps=[1], seed=seeds)), flat(plain)) < 1e-9
        for oracles, steps, chosen in ((plain, 1, seeds), (deep, 5, [1])):
            here = same.dataset.sel(local_steps=[steps], seed=chosen, time=oracles.dataset["time"])
            want = oracles.dataset.sel(seed=chosen)
            for measure in oracles.measures:
                np.testing.assert_allclose(here[measure], want[measure], rtol=1e-9, atol=1e-12, err_msg=measure)


@pytest.mark.parametrize(("name", "steps"), [("quadratics", 5), ("digits", 1)])
def test_in_32_bits_all_agree_to_a_ten_thousandth(name, steps) -> None:
    given = {"steps": [steps], "lr": RATES[name][:1], "weights": WEIGHTS[0], "seeds": [1], "per_client": False}
    want = expected(name, steps, 1)[:, 0, 0]
    for engine, schemes in (("events", SCHEMES), ("waves", SCHEMES), ("oracle", SCHEMES[: 4 if steps == 1 else 1])):
        history = study(name, engine, "float32", schemes=schemes, **given)
        assert history.dataset[next(n for n in history.dataset if n.startswith("parameter:"))].dtype == np.float32
        assert distance(flat(history)[:, 0, 0, 0, 0], want[: len(schemes)]) < 1e-4, engine


@pytest.mark.parametrize("name", ["quadratics", "digits"])
def test_centralized_training_is_sgd_on_all_rows(name) -> None:
    pooled = problem_named(name).pooled()
    gradient, size = (quadratic_gradient, 5) if name == "quadratics" else (logistic_gradient, 650)
    line = ft.timeline(ft.Centralized(), ft.FixedTimes([1]), until=UNTIL)
    for engine in ("events", "waves", "oracle") if name == "quadratics" else ("events",):
        history = ft.simulate(
            pooled,
            ft.Centralized(),
            ft.FixedTimes([1]),
            until=UNTIL,
            local=ft.LocalSGD(steps=5 if name == "quadratics" else 1, lr=0.2, batch_size=BATCH),
            dtype="float64",
            engine=engine,
            points=2,
        )
        steps = int(history.dataset["local_steps"])
        want = by_hand(pooled, gradient, size, line, np.ones((1, UNTIL)), [0.2], steps, 0)
        assert distance(flat(history)[0, 0], want) < 1e-9, engine
        assert history.dataset["rounds"].values[0, 0, -1] == UNTIL


# -- the oracle against the closed form of full gradients


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_oracle_and_its_virtual_models_are_those_of_the_paper(scheme) -> None:
    """θ^{n,k} = θ^n + η_g Σ ω_i (θ_i^k − θ^{ρ_i}), with θ_i^k = c_i + (1 − η a_i)^k (θ^{ρ_i} − c_i)."""
    a, c, rate, server_lr, steps = QUADRATICS.curvatures, QUADRATICS.centers, 0.1, 0.7, 3
    line = line_of(scheme, QUADRATICS, 3, until=12)
    weights = weights_of(scheme, QUADRATICS, WEIGHTS[0])
    local = ft.LocalSGD(steps=steps, lr=rate, batch_size=None)
    hyper = {"local_lr": rate, "local_steps": steps, "batch_size": None, "server_lr": server_lr}
    made = list(oracle(QUADRATICS, line, weights, local, hyper, seed=3, virtual=True))
    assert [r.number for r in made] == list(range(line.num_rounds))
    models, applied = [np.zeros(5)], weights.applied(line)
    for n, done in enumerate(made):
        virtual = np.tile(models[n], (steps + 1, 1))
        for u in range(line.offsets[n], line.offsets[n + 1]):
            i, sent = line.client[u], models[line.base[u]]
            for k in range(steps + 1):
                virtual[k] += server_lr * applied[u] * ((1 - rate * a[i]) ** k - 1) * (sent - c[i])
        models.append(virtual[-1])
        np.testing.assert_allclose(np.array(done.virtual), virtual, rtol=1e-10, atol=1e-13)
        np.testing.assert_array_equal(done.virtual[-1], done.model)
        np.testing.assert_array_equal(done.virtual[0], made[n - 1].model if n else np.zeros(5))


# -- runs beside each other


def test_runs_do_not_touch_each_other_and_diverge_at_the_same_time() -> None:
    """A grid of 24 runs, some of which diverge slowly, at once, or to infinity in one step; and runs alone."""
    tame = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3]
    wild = [2.5, 7.0, 1e30, 1e200]
    given = {
        "until": 40,
        "points": 41,
        "dtype": "float64",
        "weights": ("time-based", "identical"),
        "seeds": [0, 1],
        "step": "paper",
    }

    def run(rates, engine, **more):
        local = ft.LocalSGD(lr=rates, batch_size=BATCH)
        return ft.simulate(
            QUADRATICS, [ft.AsyncFedAvg(), ft.FedFix("1/5")], TIMES, local=local, engine=engine, **(given | more)
        )

    grid = {engine: run(tame + wild, engine) for engine in ("events", "waves")}
    for history in grid.values():
        at = history.dataset["diverged_at"]
        assert at.sel(local_lr=tame).isnull().all()
        assert at.sel(local_lr=wild).notnull().all()
        assert (at.sel(local_lr=7.0) > 1).all()
        assert (at.sel(local_lr=2.5) > at.sel(local_lr=7.0)).all()
        assert (at.sel(local_lr=1e200) <= at.sel(local_lr=1e30)).all()
        loss = history.dataset["loss"]
        np.testing.assert_array_equal(loss.isnull(), (history.dataset["time"] >= at).transpose(*loss.dims))
    np.testing.assert_array_equal(grid["events"].dataset["diverged_at"], grid["waves"].dataset["diverged_at"])
    few = run([0.1, 7.0, 1e200], "oracle", seeds=[1], until=12, points=13, weights="identical")
    same = grid["events"].dataset.sel(seed=[1], local_lr=[0.1, 7.0, 1e200], weights=["identical"])
    np.testing.assert_array_equal(few.dataset["diverged_at"], same["diverged_at"])

    free = run([2.5], "oracle", seeds=[1], weights="identical", bound=1e300)
    loss, at = free.dataset["loss"], grid["events"].dataset["diverged_at"]
    for scheme in free.dataset["scheme"].values:
        curve = loss.sel(scheme=scheme, local_lr=2.5).values.ravel()
        beyond = curve > 1e6 * max(1, curve[0])
        assert at.sel(scheme=scheme, weights="identical", local_lr=2.5, seed=1) == beyond.argmax()
    assert not free.diverged.any()

    alone = run(0.2, "events", seeds=[1], weights="identical")
    for history in grid.values():
        same = history.select(seed=1, weights="identical", local_lr=0.2)
        assert distance(flat(same), flat(alone)) < 1e-12
        np.testing.assert_allclose(same.dataset["loss"], alone.dataset["loss"], rtol=1e-12)


# -- other work, other models, other clocks


def agree(problem, schemes, times, local, *, seeds=(0, 1), tolerance=1e-9, **more):
    """All three engines; what they agree on."""
    given = {"until": 20, "dtype": "float64", "points": 6, "seeds": seeds} | more
    histories = [
        ft.simulate(problem, schemes, times, local=local, engine=engine, **given)
        for engine in ("events", "waves", "oracle")
    ]
    *others, plain = histories
    assert not plain.diverged.any()
    assert np.isfinite(flat(plain)).all()
    for history in others:
        assert distance(flat(history), flat(plain)) < tolerance
        assert history.measures == plain.measures
        for measure in plain.measures:
            np.testing.assert_allclose(history.dataset[measure], plain.dataset[measure], rtol=1e-8, atol=1e-12)
    return plain


def test_random_times_epochs_momentum_and_clipping() -> None:
    times = ft.ExponentialTimes(["1", "1/2", "3/4"])
    problem = ft.problems.quadratics(3, dimension=2, noise=0.5, rows=[3, 5, 4], seed=1)
    local = ft.LocalSGD(steps=3, lr=0.1, batch_size=4, draw="epochs", momentum=[0.0, 0.9], clip=[0.05, 100.0])
    schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)]
    history = agree(problem, schemes, times, local, until=6, points=3)
    models = flat(history)
    for axis in (2, 3, 4):  # momentum, clip and seed each matter
        assert np.abs(np.diff(models, axis=axis)).min() > 1e-4
    for scheme in schemes:
        for seed in (0, 1):
            line = ft.timeline(scheme, times, until=6, seed=seed)
            end = history.dataset.sel(scheme=scheme.label, seed=seed).isel(time=-1)
            assert (end["rounds"], end["updates"]) == (line.num_rounds, line.num_updates)
    updates = history.dataset["updates"].isel(time=-1).sel(scheme="AsyncFedAvg").values
    assert updates[0] != updates[1]


def _layers(params, x):
    hidden = jnp.tanh(x @ params["hidden"][0]["w"] + params["hidden"][0]["b"])
    return hidden @ params["out"]


def test_a_nested_model_with_adam_metrics_and_no_test_rows() -> None:
    def init(key):
        one, two = jax.random.split(key)
        hidden = {"w": jax.random.normal(one, (2, 4)), "b": jnp.zeros(4)}
        return {"hidden": (hidden,), "out": jax.random.normal(two, (4,))}

    def loss(params, batch):
        return jnp.mean((_layers(params, batch["x"]) - batch["y"]) ** 2)

    def off(params, batch):
        return jnp.mean(jnp.abs(_layers(params, batch["x"]) - batch["y"]))

    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)} for n in (3, 8, 5)]
    problem = ft.Problem(init, loss, data, metrics={"off": off}, importance=["1/2", "1/4", "1/4"])
    local = ft.LocalOptax(solver=optax.adam, steps=3, lr=0.02, options={"b1": [0.5, 0.9]}, batch_size=2)
    times = ft.LogNormalTimes(["1", "1/2", "3/4"], sigma=0.5)
    schemes = [ft.AsyncFedAvg(), ft.UniformSampling(2)]
    history = agree(problem, schemes, times, local, until=3, points=3, server_lr=[0.5, 1.0])
    model = history.model(scheme="AsyncFedAvg", server_lr=0.5, b1=0.9, seed=1).parameters
    assert jax.tree.structure(model) == jax.tree.structure(problem.parameter_shapes)
    mean = sum(
        float(p) * np.abs(np.asarray(_layers(jax.tree.map(np.asarray, model), d["x"])) - d["y"]).mean()
        for p, d in zip(("0.5", "0.25", "0.25"), data, strict=True)
    )
    here = history.dataset["off"].sel(scheme="AsyncFedAvg", server_lr=0.5, b1=0.9, seed=1)
    here = here.squeeze("weights")
    assert float(here.isel(time=-1)) == pytest.approx(mean, rel=1e-5)
    start = history.dataset["loss"].isel(time=0)
    assert np.ptp(start.sel(seed=0).values) == 0
    assert np.abs((start.sel(seed=0) - start.sel(seed=1)).values).min() > 1e-3


@dataclass(frozen=True)
class Relay(WaitingRule):
    """Two clients are busy; each update makes a model, which goes to the next client in turn that is free."""

    returns_to_contributors = False

    def start(self, view):
        return 0, tuple(sorted(view.clients))[:2]

    def decide(self, state, event, view):
        if not isinstance(event, Arrived):
            return state, None
        free = sorted({*(view.clients - view.in_flight.keys() - view.arrived.keys()), event.job.client})
        chosen = min(free, key=lambda c: ((c - state - 1) % 8, c))
        return chosen, Close((event.job,), (chosen,))


def test_rules_of_ones_own_full_gradients_and_a_model_that_is_one_number(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.simulation.engine.task.FULL_ROWS", 8)
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_ASKED_UPDATES", 5_000)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=n) for n in (1, 8, 30, 7, 9)]

    def loss(theta, x):
        return jnp.mean(jnp.logaddexp(0.0, (theta - x) * 2)) + 0.5 * theta**2 - 3 * jnp.log(theta)

    problem = ft.Problem(lambda key: jnp.ones(()), loss, data)
    times = ft.FixedTimes(["1", "2/3", "1/2", "3/4", "1/3"])
    schemes = [ft.Scheme(Relay(), name="relay"), ft.Scheme(Hoard(), name="hoard"), ft.FedBuff(3)]
    local = ft.LocalSGD(steps=2, lr=[0.01, 0.03], batch_size=None)
    history = agree(problem, schemes, times, local, seeds=(0,), weights=("identical", "importance"), step="paper")

    line = ft.timeline(schemes[0], times, until=20)
    assert (line.staleness > 0).any()
    weights, models = ft.weights(schemes[0], times, rule="identical"), [1.0]
    for n in range(line.num_rounds):
        (u,) = range(line.offsets[n], line.offsets[n + 1])
        sent = theta = models[line.base[u]]
        for _ in range(2):
            slope = np.mean(2 / (1 + np.exp(-2 * (theta - data[line.client[u]])))) + theta - 3 / theta
            theta -= 0.03 * slope
        models.append(models[n] + float(weights[line.client[u]]) * (theta - sent))
    found = history.model(scheme="relay", weights="identical", local_lr=0.03, seed=0).parameters
    assert float(found) == pytest.approx(models[-1], rel=1e-10)


def test_a_rule_that_lies_about_who_gets_models_is_found_out(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_ASKED_UPDATES", 5_000)
    problem = ft.problems.quadratics(4, dimension=1)
    with pytest.raises(ft.UnlawfulRule, match="returns_to_contributors = False"):
        ft.simulate(
            problem,
            ft.Scheme(Hoard(True), name="liar"),
            ft.FixedTimes([4, 3, 2, 1]),
            until=50,
            weights="identical",
            points=2,
        )


def test_a_scheme_without_a_round_keeps_its_first_model() -> None:
    problem = ft.problems.quadratics(2, dimension=2, noise=0.1)
    history = agree(problem, [ft.FedAvg(), ft.AsyncFedAvg()], ft.FixedTimes([5, 1]), ft.LocalSGD(), until=4, points=5)
    idle = history.dataset.sel(scheme="FedAvg")
    assert (idle["rounds"] == 0).all()
    assert np.ptp(idle["loss"].values) == 0
    assert (idle["parameter:"] == 0).all()
    assert history.dataset["rounds"].sel(scheme="AsyncFedAvg", seed=0).values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("engine", ["events", "waves"])
def test_small_pieces_and_a_growing_number_of_slots_change_nothing(engine, monkeypatch) -> None:
    """24 clients in flight with versions of their own, in pieces of 16 events and one measuring point."""
    problem = ft.problems.quadratics(24, dimension=2, noise=0.1, rows=4)
    times = ft.FixedTimes([Fraction(24 + i, 24) for i in range(24)])
    schemes = [ft.AsyncFedAvg(), ft.FedAvg()]

    def run():
        local = ft.LocalSGD(lr=[0.01, 0.02], batch_size=2)
        return ft.simulate(
            problem,
            schemes,
            times,
            until=6,
            points=31,
            local=local,
            dtype="float64",
            engine=engine,
            weights="identical",
        )

    whole = run()
    monkeypatch.setattr("fedtempo.simulation.engine.machine.MOST_EVENTS", 16)
    monkeypatch.setattr("fedtempo.simulation.engine.machine.POINT_BYTES", 1)
    grown = []
    grow = CompiledMachine.grown
    monkeypatch.setattr(CompiledMachine, "grown", lambda self, state, n: grown.append(n) or grow(self, state, n))
    cut = run()
    assert max(grown) > 24
    assert distance(flat(cut), flat(whole)) < 1e-12
    for measure in whole.measures:
        np.testing.assert_allclose(cut.dataset[measure], whole.dataset[measure], rtol=1e-12)
    line = ft.timeline(ft.AsyncFedAvg(), times, until=6)
    assert cut.dataset["updates"].values[0, 0, -1] == line.num_updates > 90


def test_waves_that_are_padding_do_not_spoil_a_model() -> None:
    """One client, waves of one event: the rest of a group reads a slot of zeros, where this loss has no end."""
    problem = ft.Problem(
        lambda key: jnp.ones(()), lambda theta, x: theta**2 / 2 - jnp.mean(x) * jnp.log(theta), [np.full(1, 4.0)]
    )
    given = {
        "until": 40,
        "points": 2,
        "dtype": "float64",
        "local": ft.LocalSGD(lr=0.1, batch_size=1),
        "engine": "waves",
    }
    found = ft.simulate(problem, ft.Centralized(), ft.FixedTimes([1]), **given).dataset["parameter:"].item()
    theta = 1.0
    for _ in range(40):
        theta -= 0.1 * (theta - 4 / theta)
    assert found == pytest.approx(theta, rel=1e-12)
