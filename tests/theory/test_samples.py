"""Sampling (appendix C.2): all clients are FedAvg; α and β against a count of every possible sample."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

import fedtempo as ft
import fedtempo.theory as theory
from fedtempo.problems import quadratics
from fedtempo.theory import covariance as co
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.theorems import Steps
from fedtempo.theory.virtual_models import virtual_models


def test_sampling_of_everybody_is_fedavg():
    """The same rounds, weights, law, bound and models. Caught: samples of M − 1, d_i = p_i/M, α or β of m = M − 1."""
    p, clients = [Fraction(k, 10) for k in (2, 3, 5)], ft.FixedTimes([1, 2, 3])
    problem = quadratics(3, dimension=2, heterogeneity=2.0, importance=p, seed=1, rows=1)
    local, runs = ft.LocalSGD(steps=3, lr=1e-3, batch_size=None), []
    for scheme in (ft.UniformSampling(3), ft.FedAvg()):
        line, d = ft.timeline(scheme, clients, rounds=6, seed=4), ft.weights(scheme, clients, importance=p)
        updates = sorted(zip(line.round_of_update.tolist(), line.client.tolist(), line.base.tolist(), strict=True))
        models = virtual_models(constants(problem).losses, line, d, Steps(1e-3, 3, None, 1.0), init=np.zeros(2))
        found = theory.bound(problem, scheme=scheme, times=clients, local=local, rounds=6)
        runs.append((line.ends.tolist(), updates, np.asarray(d), np.array([v.models for v in models]), found))
    (ends, updates, d, models, found), (*fedavg, bound) = runs
    assert [ends, updates] == fedavg[:2]
    assert updates == [(n, i, n) for n in range(6) for i in range(3)]
    assert d == pytest.approx(fedavg[2])
    np.testing.assert_allclose(models, fedavg[3], rtol=1e-12)
    assert found.terms == pytest.approx(bound.terms)


def test_alpha_and_beta_of_samples_are_those_of_every_sample():
    """All samples of m of M = 4, counted; the formula that holds for m < M goes on to (1, 0). And multinomial draws.

    Caught: m for m − 1, or M for M − 1, in α or β; a β of m = M that is not 0.
    """
    p = np.array([0.1, 0.2, 0.3, 0.4])
    for m in (1, 2, 3, 4):
        d, subsets = p * 4 / m, list(combinations(range(4), m))
        omega = np.array([[d[i] if i in chosen else 0.0 for i in range(4)] for chosen in subsets])
        _is_the_law_of(co.uniform_sample(d, m), omega, np.full(len(subsets), 1 / len(subsets)))
        draws = list(product(range(4), repeat=m))
        counts = np.array([[drawn.count(i) / m for i in range(4)] for drawn in draws])
        _is_the_law_of(co.multinomial_sample(np.full(4, 1 / m), p, m), counts, p[np.array(draws)].prod(axis=1))
    everybody, with_return = co.uniform_sample(p, 4), co.multinomial_sample(np.full(4, 1 / 4), p, 4)
    assert (everybody.co_participation, everybody.weight_spread) == pytest.approx((1, 0))
    assert with_return.co_participation == pytest.approx(0.75)  # M draws with return are not FedAvg


def _is_the_law_of(found, omega, chance):
    """Against E[ω_i ω_j] over all outcomes, which is α q_i q_j for two clients."""
    q, second = chance @ omega, (omega * chance[:, None]).T @ omega
    assert found.expected == pytest.approx(q)
    ratio = (second / np.outer(q, q))[~np.eye(4, dtype=bool)]
    assert ratio == pytest.approx(found.co_participation)
    gamma = np.diag(second) - found.co_participation * q**2
    assert found.gamma == pytest.approx(gamma, abs=1e-12)
    assert found.weight_spread == pytest.approx((gamma / q).max(), abs=1e-12)


def test_alpha_and_beta_of_samples_are_not_proportional_to_their_size():
    p = np.full(8, 1 / 8)
    found = [co.uniform_sample(p * 8 / m, m) for m in (1, 2, 4)]
    alpha, beta = ([getattr(f, name) for f in found] for name in ("co_participation", "weight_spread"))
    assert alpha == sorted(alpha)
    assert alpha[0] == 0  # so not proportional to m
    assert beta == sorted(beta, reverse=True)
    assert beta[0] / beta[1] != pytest.approx(2)  # nor β to 1/m: (M − m)/m
