"""α, β and γ_i of Lemma 1: every closed form against all outcomes of a round, one by one."""

from itertools import combinations, permutations, product
from math import prod

import numpy as np
import pytest

import fedtempo as ft
import fedtempo.theory as theory
from fedtempo.clock.races import MAX_RACERS, race_pairs
from fedtempo.theory import covariance as co

RNG = np.random.default_rng(5)


def _uniform(weights, size):
    """[(probability, ω)] of all samples."""
    sets = list(combinations(range(len(weights)), size))
    return [(1 / len(sets), np.where(np.isin(np.arange(len(weights)), s), weights, 0.0)) for s in sets]


def _multinomial(weights, importance, size):
    out = []
    for draws in product(range(len(weights)), repeat=size):
        counts = np.bincount(draws, minlength=len(weights))
        out.append((prod(importance[i] for i in draws), counts * weights))
    return out


def _independent(weights, share):
    out = []
    for there in product((0, 1), repeat=len(weights)):
        chance = prod(s if t else 1 - s for s, t in zip(share, there, strict=True))
        out.append((chance, np.array(there) * weights))
    return out


def _one(weights, share):
    return [(s, np.where(np.arange(len(weights)) == i, weights, 0.0)) for i, s in enumerate(share)]


def _race(weights, means, size):
    """All orders in which exponential clients can finish: the next is i with probability rate_i / rates left."""
    out = []
    for order in permutations(range(len(means))):
        rates = [1 / means[i] for i in order]
        chance = prod(r / sum(rates[k:]) for k, r in enumerate(rates))
        out.append((chance, np.where(np.isin(np.arange(len(means)), order[:size]), weights, 0.0)))
    return out


def _moments(outcomes):
    mean = sum(chance * omega for chance, omega in outcomes)
    second = sum(chance * np.outer(omega, omega) for chance, omega in outcomes)
    assert sum(chance for chance, _ in outcomes) == pytest.approx(1.0)
    return mean, second


def _parts(clients):
    d, p = RNG.uniform(0.2, 2.0, clients), RNG.uniform(0.1, 1.0, clients)
    return d, p / p.sum(), RNG.uniform(0.05, 0.95, clients)


CASES = []
for m in (1, 2, 3, 4, 5):
    d, p, s = _parts(m)
    CASES += [(f"uniform {k} of {m}", co.uniform_sample(d, k), _uniform(d, k)) for k in range(1, m + 1)]
    CASES += [(f"multinomial {k} of {m}", co.multinomial_sample(d, p, k), _multinomial(d, p, k)) for k in (1, 2, 4)]
    CASES += [(f"independent {m}", co.independent(d, s), _independent(d, s))]
    CASES += [(f"one of {m}", co.one_at_a_time(d, p), _one(d, p))]
    CASES += [(f"certain {m}", co.fixed_set(d), [(1.0, d)])]


@pytest.mark.parametrize(("found", "outcomes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_lemma_1_is_an_identity(found, outcomes):
    mean, second = _moments(outcomes)
    assert found.expected == pytest.approx(mean, abs=1e-13)
    vectors = RNG.normal(size=(len(mean), 3))
    directly = sum(chance * float(((omega @ vectors) ** 2).sum()) for chance, omega in outcomes)
    assert co.mean_square(second, vectors) == pytest.approx(directly, rel=1e-11)
    assert co.lemma_1(found, vectors) == pytest.approx(directly, rel=1e-11)
    assert found.gamma == pytest.approx(np.diag(second) - found.co_participation * mean**2, abs=1e-12)
    pairs = second - found.co_participation * np.outer(mean, mean)
    assert pairs - np.diag(np.diag(pairs)) == pytest.approx(0.0, abs=1e-12)
    assert (found.gamma >= 0).all()
    assert found.weight_spread == pytest.approx(max(found.gamma / mean), abs=1e-12)


def test_the_printed_values_of_sampling():
    clients, size = 7, 3
    p = RNG.uniform(0.5, 1.0, clients)
    p /= p.sum()
    uniform = co.uniform_sample(p * clients / size, size)
    assert uniform.co_participation == pytest.approx(clients * (size - 1) / (size * (clients - 1)))
    assert uniform.weight_spread == pytest.approx(p.max() * clients * (clients - size) / (size * (clients - 1)))
    multinomial = co.multinomial_sample(np.full(clients, 1 / size), p, size)
    assert multinomial.co_participation == pytest.approx(1 - 1 / size)
    assert multinomial.weight_spread == pytest.approx(1 / size)
    assert uniform.expected == pytest.approx(p)
    assert multinomial.expected == pytest.approx(p)


def test_fedfix_with_exponential_times():
    tau, wait = np.array([0.2, 0.7, 1.0, 3.0]), 0.5
    share = -np.expm1(-wait / tau)
    p = np.full(4, 0.25)
    found = co.independent(p / share, share)
    assert found.co_participation == 1.0
    assert found.weight_spread == pytest.approx((p / np.expm1(wait / tau)).max())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("found", "outcomes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_with_another_alpha_lemma_1_is_a_bound(found, outcomes, alpha):
    mean, second = _moments(outcomes)
    square = np.diag(second)
    other = co.one_ratio(mean, square, found.co_participation, alpha)
    by_pairs = co.by_pairs(mean, second, alpha)
    assert other.gamma == pytest.approx(by_pairs.gamma, abs=1e-12)
    for _ in range(5):
        vectors = RNG.normal(size=(len(mean), 2)) * RNG.choice([-1, 1], size=(len(mean), 1))
        assert co.mean_square(second, vectors) <= co.lemma_1(other, vectors) * (1 + 1e-12) + 1e-13


def test_certain_participation_with_another_alpha():
    """Any α goes with β = (1 − α) max q(n): for one client a round that is (1 − α) max d_i."""
    d = np.array([0.5, 1.5, 0.7])
    assert co.fixed_set(d, 0.25).weight_spread == pytest.approx(0.75 * d.sum())
    assert co.fixed_set(np.diag(d), 0.25).weight_spread == pytest.approx(0.75 * d.max())
    assert co.fixed_set(np.zeros(3), 0.25).weight_spread == 0.0


@pytest.mark.parametrize(("clients", "size"), [(2, 1), (3, 2), (4, 1), (4, 2), (5, 3), (5, 5), (6, 4)])
def test_pairs_in_an_exponential_race_are_those_of_all_orders(clients, size):
    means = np.exp(RNG.normal(size=clients) * 1.5)
    _, second = _moments(_race(np.ones(clients), means, size))
    assert race_pairs(means, size) == pytest.approx(second, abs=1e-12)


def test_fedbuff_has_no_single_alpha_and_gets_the_one_with_the_smallest_beta():
    means = np.array([1.0, 2.0, 4.0, 8.0])
    pairs = race_pairs(means, 2)
    share = np.diag(pairs)
    d = 0.25 / share
    mean, second = _moments(_race(d, means, 2))
    ratio = second / np.outer(mean, mean)
    apart = ratio[~np.eye(4, dtype=bool)]
    assert apart.max() / apart.min() > 1.2
    found = co.by_pairs(mean, second)
    spreads = [co.by_pairs(mean, second, alpha).weight_spread for alpha in np.linspace(0, 1, 401)]
    assert found.weight_spread <= min(spreads) + 1e-12
    for _ in range(50):
        vectors = RNG.normal(size=(4, 2))
        assert co.mean_square(second, vectors) <= co.lemma_1(found, vectors) * (1 + 1e-12)
    without = co.Covariance(mean, np.diag(second) - found.co_participation * mean**2, found.co_participation)
    signs = [np.array(v, dtype=float)[:, None] for v in product((-1, 1), repeat=4)]
    assert any(co.mean_square(second, v) > co.lemma_1(without, v) for v in signs)  # the pairs' part is needed
    law = theory.expected_from_scheme(ft.FedBuff(2), ft.ExponentialTimes([1, 2, 4, 8]))
    assert law.weight_spread == pytest.approx(found.weight_spread, rel=1e-9)


@pytest.mark.parametrize(("clients", "size"), [(3, 2), (5, 2), (6, 3), (10, 3)])
def test_no_alpha_gives_a_smaller_beta(clients, size):
    means = np.linspace(0.2, 1.0, clients)
    pairs = race_pairs(means, size)
    d = 1 / clients / np.diag(pairs)
    second = d[:, None] * pairs * d
    mean = d * np.diag(pairs)
    found = co.by_pairs(mean, second)
    spreads = [co.by_pairs(mean, second, alpha).weight_spread for alpha in np.linspace(0, 1, 1001)]
    assert found.weight_spread <= min(spreads) + 1e-9
    assert 0 < found.co_participation < 1


def test_the_printed_beta_charges_clients_that_do_not_take_part():
    """β = max{d_i − α q_i} would be d_i > 0 for a client with q_i(n) = 0, against the paper's own β = 0 for FedFix."""
    d, taking = np.array([0.5, 1.5]), np.array([True, False])
    found = co.fixed_set(np.where(taking, d, 0.0))
    printed = (d - found.co_participation * found.expected).max()
    assert found.weight_spread == 0.0
    assert printed == 1.5


def test_the_remark_under_lemma_1_is_false():
    """Σ_{i≠j} q_i q_j ⟨x_i, x_j⟩ ≥ 0 fails for x_1 = −x_2."""
    q, x = np.array([0.5, 0.5]), np.array([[1.0], [-1.0]])
    cross = float(((q @ x) ** 2).sum() - (q**2 @ (x**2).sum(axis=1)))
    assert cross < 0


def test_what_cannot_be_is_refused():
    with pytest.raises(ft.InputError, match="between 0 and 1"):
        co.fixed_set(np.ones(2), -0.1)
    with pytest.raises(ft.InputError, match="too many pairs"):
        race_pairs(np.ones(MAX_RACERS + 1), 3)
