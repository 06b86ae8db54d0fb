"""Parts of a scheme: every engine gives one answer with each of them, that of the method's own equations in NumPy."""

from __future__ import annotations

import numpy as np
import optax
import pytest

import fedtempo as ft
from simulation.test_engines import distance, flat

TIMES = ft.FixedTimes(["1", "2/3", "1/2"])
PROBLEM = ft.problems.quadratics(3, dimension=4, noise=0.5, rows=[6, 9, 12], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=3, lr=[0.05, 0.2], batch_size=4)
SCHEMES = (ft.AsyncFedAvg(), ft.FedFix("1/5"), ft.FedBuff(2), ft.UniformSampling(2))
PARTS = {
    "FedProx": {"correction": ft.FedProx(0.5)},
    "FedDANE": {"correction": ft.FedDANE(0.1)},
    "FedDyn": {"correction": ft.FedDyn(1.0)},
    "SCAFFOLD": {"correction": ft.Scaffold()},
    "SlowMo": {"server": ft.SlowMo(0.5)},
    "FedAdam": {"server": ft.FedAdam()},
    "FedYogi": {"server": ft.FedYogi()},
    "FedAdaGrad": {"server": ft.FedAdaGrad()},
    "mixing": {"server": ft.MixModels()},
    "any Optax": {"server": ft.ServerOptax(optax.nadam, {"b1": 0.5})},
    "SCAFFOLD and SlowMo": {"correction": ft.Scaffold(), "server": ft.SlowMo(0.5)},
    "rates": {"client_rates": (0.5, 1, 2)},
    "steps": {"client_steps": (1, 4, 2)},
    "SCAFFOLD, steps, rates": {
        "correction": ft.Scaffold(),
        "client_steps": (1, 4, 2),
        "client_rates": (0.5, 1, 2),
    },
    "by rate": {"compensate": "rate"},
    "TopK": {"compression": ft.TopK(0.5)},
    "QSGD": {"compression": ft.QSGD(2)},
    "LowRank": {"compression": ft.LowRank(1)},
    "FedDyn and TopK": {"correction": ft.FedDyn(1.0), "compression": ft.TopK(0.5)},
}


def run(schemes, engine, local=LOCAL, problem=PROBLEM, until=4, **options):
    options = {"dtype": "float64", "points": 2, "seeds": [3], "step": "paper"} | options
    return ft.simulate(problem, schemes, TIMES, until=until, local=local, engine=engine, **options)


@pytest.mark.parametrize("name", PARTS)
def test_every_engine_gives_one_answer_with_each_part(name):
    schemes = [scheme.using(**PARTS[name]) for scheme in SCHEMES]
    told = run(schemes, "oracle")
    for engine in ("events", "waves"):
        assert distance(flat(run(schemes, engine)), flat(told)) < 1e-9, engine


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedAdam", "TopK", "QSGD"])
def test_and_in_32_bits(name):
    schemes = [scheme.using(**PARTS[name]) for scheme in SCHEMES]
    one, other = (flat(run(schemes, engine, dtype="float32", until=3)) for engine in ("events", "waves"))
    assert distance(one, other) < 1e-4


# -- the methods' own equations, in NumPy, on full gradients


def gradient(client, theta):
    a, c = (np.asarray(x, np.float64) for x in PROBLEM.client_data(client))
    return (a * (theta - c)).mean(axis=0)


def by_hand(scheme, work, server, lr=0.2, steps=3, until=6, rule="time-based"):
    """The final model: `work(i, sent, steps, lr)` gives what a client sends, `server(model, answers)` the next one."""
    p = PROBLEM.importance.exact
    line = ft.timeline(scheme, TIMES, until=until, importance=p)
    omega = ft.weights(scheme, TIMES, importance=p, rule=rule).applied(line)
    versions = [(np.zeros(4), server.broadcast())]
    for n in range(line.num_rounds):
        part = range(int(line.offsets[n]), int(line.offsets[n + 1]))
        answers = []
        for u in part:
            i = int(line.client[u])
            sent = versions[line.base[u]]
            answers.append((i, omega[u], sent, work(i, sent, steps, lr)))
        model = server(versions[-1][0], answers) if answers else versions[-1][0]
        versions.append((model, server.broadcast()))
    return versions[-1][0]


class Sum:
    """Θ ← θ + Σ ωΔ."""

    def broadcast(self):
        return None

    def __call__(self, theta, answers):
        return theta + sum(omega * answer for _, omega, _, answer in answers)


P = PROBLEM.importance.values


def sgd(theta, steps, lr, step):
    for _ in range(steps):
        theta = theta - lr * step(theta)
    return theta


def prox(i, sent, steps, lr):
    base = sent[0]
    return sgd(base, steps, lr, lambda x: gradient(i, x) + 0.5 * (x - base)) - base


class DynByHand(Sum):
    """Acar et al.: h_i on clients, h on the server."""

    def __init__(self, alpha):
        self.alpha, self.h, self.clients = alpha, np.zeros(4), np.zeros((3, 4))

    def work(self, i, sent, steps, lr):
        base = sent[0]
        end = sgd(base, steps, lr, lambda x: gradient(i, x) - self.clients[i] + self.alpha * (x - base))
        self.clients[i] -= self.alpha * (end - base)
        return end - base

    def __call__(self, theta, answers):
        for i, _, _, change in answers:
            self.h -= self.alpha * P[i] * change
        np.testing.assert_allclose(self.h, P @ self.clients, atol=1e-12)
        mass = sum(omega for _, omega, _, _ in answers)
        return super().__call__(theta, answers) - mass * self.h / self.alpha


class ScaffoldByHand(Sum):
    """Karimireddy et al., option II; a client's variate is the mean of its last job's gradients."""

    def __init__(self):
        self.c, self.clients = np.zeros(4), np.zeros((3, 4))

    def broadcast(self):
        return self.c.copy()

    def work(self, i, sent, steps, lr):
        base, c = sent
        seen = []

        def step(x):
            seen.append(gradient(i, x))
            return seen[-1] - self.clients[i] + c

        end = sgd(base, steps, lr, step)
        fresh = np.mean(seen, axis=0)
        np.testing.assert_allclose(fresh, self.clients[i] - c + (base - end) / (steps * lr), atol=1e-12)
        difference, self.clients[i] = fresh - self.clients[i], fresh
        return end - base, difference

    def __call__(self, theta, answers):
        for i, _, _, (_, difference) in answers:
            self.c = self.c + P[i] * difference
        np.testing.assert_allclose(self.c, P @ self.clients, atol=1e-12)
        return theta + sum(omega * change for _, omega, _, (change, _) in answers)


class DaneByHand(Sum):
    """Li et al., with the federated gradient of the clients' last jobs."""

    def __init__(self, mu):
        self.mu, self.clients, self.told = mu, np.zeros((3, 4)), set()

    def broadcast(self):
        return (P @ self.clients).copy(), len(self.told) == 3

    def work(self, i, sent, steps, lr):
        base, (mean, known) = sent
        own = gradient(i, base)
        tilt = mean - own if known else 0
        end = sgd(base, steps, lr, lambda x: gradient(i, x) + tilt + self.mu * (x - base))
        return end - base, own

    def __call__(self, theta, answers):
        for i, _, _, (_, own) in answers:
            self.clients[i] = own
            self.told.add(i)
        return theta + sum(omega * change for _, omega, _, (change, _) in answers)


class MomentumByHand(Sum):
    def __init__(self, beta):
        self.beta, self.u = beta, np.zeros(4)

    def __call__(self, theta, answers):
        self.u = self.beta * self.u + sum(omega * answer for _, omega, _, answer in answers)
        return theta + self.u


class MixByHand(Sum):
    def __call__(self, theta, answers):
        for _, omega, (base, _), change in answers:
            theta = (1 - omega) * theta + omega * (base + change)
        return theta


class AdaptiveByHand(Sum):
    """Reddi et al., Algorithm 2, with its three second means."""

    def __init__(self, kind, b1=0.9, tau=1e-3):
        self.kind, self.b1, self.tau = kind, b1, tau
        self.m, self.v = np.zeros(4), np.full(4, tau**2)

    def __call__(self, theta, answers):
        step = sum(omega * answer for _, omega, _, answer in answers)
        self.m = self.b1 * self.m + (1 - self.b1) * step
        if self.kind == "FedAdam":
            self.v = 0.99 * self.v + 0.01 * step**2
        elif self.kind == "FedYogi":
            self.v = self.v - 0.01 * step**2 * np.sign(self.v - step**2)
        else:
            self.v = self.v + step**2
        return theta + self.m / (np.sqrt(self.v) + self.tau)


def plain(i, sent, steps, lr):
    return sgd(sent[0], steps, lr, lambda x: gradient(i, x)) - sent[0]


def hands(name):
    if name == "FedProx":
        return prox, Sum()
    if name == "SlowMo":
        return plain, MomentumByHand(0.5)
    if name in ("FedAdam", "FedYogi"):
        return plain, AdaptiveByHand(name)
    if name == "FedAdaGrad":
        return plain, AdaptiveByHand(name, b1=0.0)
    if name == "mixing":
        return plain, MixByHand()
    made = {"FedDyn": lambda: DynByHand(1.0), "SCAFFOLD": ScaffoldByHand, "FedDANE": lambda: DaneByHand(0.1)}[name]()
    return made.work, made


BY_HAND = ["FedProx", "FedDANE", "FedDyn", "SCAFFOLD", "SlowMo", "FedAdam", "FedYogi", "FedAdaGrad", "mixing"]


@pytest.mark.parametrize("name", BY_HAND)
def test_each_method_is_its_own_equations(name):
    schemes = [s for s in SCHEMES if not s.waiting.random]
    local = ft.LocalSGD(steps=3, lr=0.2, batch_size=None)
    made = run([s.using(**PARTS[name]) for s in schemes], "events", local=local, until=6)
    for scheme, model in zip(schemes, flat(made).reshape(len(schemes), -1), strict=True):
        work, server = hands(name)
        np.testing.assert_allclose(model, by_hand(scheme, work, server), rtol=1e-9, err_msg=scheme.label)
