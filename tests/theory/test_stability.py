"""Limits of the learning rate: closed forms, dense products, and runs that decay below and grow above."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.races import exponential_race, race_sets
from fedtempo.theory.recursion import pull_of
from fedtempo.theory.regimes import Drawn, Independent, Repeating, Sampled, regime
from fedtempo.theory.stability import stability_limit

TIMES = ft.FixedTimes(["1", "3/4", "1/2", "1/4"])
EXPONENTIAL = ft.ExponentialTimes(["1", "3/4", "1/2", "1/4"])
CURVATURE = np.random.default_rng(3).uniform(0.2, 1.0, (4, 2))


def log_distances(line, d, curvature, lr, steps):
    """log |θ^n| of a run towards zero, a plain loop over stored versions; rescaled so that nothing overflows."""
    pull = pull_of(curvature, lr, steps)[:, 0]
    versions, shift, out = {0: np.ones(curvature.shape[1])}, 0.0, []
    last = np.full(line.num_rounds + 1, -1)
    np.maximum.at(last, line.base, line.round_of_update)
    omega, offsets = d.applied(line), line.offsets
    for n in range(line.num_rounds):
        theta = versions[n].copy()
        for u in range(offsets[n], offsets[n + 1]):
            theta -= omega[u] * pull[line.client[u]] * versions[line.base[u]]
        versions[n + 1] = theta
        for done in {n, *line.base[offsets[n] : offsets[n + 1]].tolist()}:
            if last[done] <= n:
                versions.pop(done, None)
        size = max(np.abs(v).max() for v in versions.values())
        if not 1e-50 < size < 1e50:
            versions = {k: v / size for k, v in versions.items()}
            shift += np.log(size)
        out.append(shift + np.log(max(np.abs(v).max() for v in versions.values())))
    return np.array(out)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)], ids=str)
def test_runs_decay_below_the_limit_and_grow_above(scheme, steps) -> None:
    limit = stability_limit(CURVATURE, scheme, TIMES, local_steps=steps)
    assert limit.exact
    assert limit.error == 0
    line, d = ft.timeline(scheme, TIMES, rounds=3000), ft.weights(scheme, TIMES)
    for factor, sign in ((0.98, -1), (1.02, 1)):
        way = log_distances(line, d, CURVATURE, factor * limit.lr, steps)
        assert sign * (way[-1] - way[1000]) > 1, factor


def test_one_delay_has_the_known_limit() -> None:
    """M clients of equal times under async all have delay M − 1: gain 2 sin(π/(2(2τ + 1)))."""
    for clients in (1, 2, 3, 6):
        limit = stability_limit(np.ones(clients), ft.AsyncFedAvg(), ft.FixedTimes([1] * clients))
        assert limit.lr == pytest.approx(2 * np.sin(np.pi / (2 * (2 * clients - 1))), rel=1e-8)


@pytest.mark.parametrize("steps", [1, 5])
def test_the_order_of_the_schemes(steps) -> None:
    """Async < FedFix < FedAvg at F80, M = 10, each with time-based weights."""
    times = ft.FixedTimes.spread(10, 80)
    schemes = (ft.AsyncFedAvg(), ft.FedFix("1/5"), ft.FedFix("1/2"), ft.FedAvg())
    limits = [stability_limit(np.ones(10), s, times, local_steps=steps, rounds=6000) for s in schemes]
    assert not limits[0].exact
    assert 0 < limits[0].error < 0.01 * limits[0].lr
    assert all(a.lr < b.lr or b.lr == pytest.approx(2, rel=1e-6) for a, b in pairwise(limits))
    assert 5 * limits[0].lr < limits[2].lr
    assert limits[-1].lr == pytest.approx(2, rel=1e-6)


def test_a_long_cycle_is_followed_instead() -> None:
    """The estimate along a timeline agrees with the cycle's product, within three of its errors and a part in 10³."""
    law = regime(ft.AsyncFedAvg(), TIMES)
    assert isinstance(law, Repeating)
    pull = pull_of(CURVATURE, [0.1, 0.3, 0.5], 2)
    line = ft.timeline(ft.AsyncFedAvg(), TIMES, rounds=4000)
    from fedtempo.theory.recursion import schedule

    estimate, error = Drawn(line, schedule(line, ft.weights(ft.AsyncFedAvg(), TIMES))).growth(pull)
    exact, none = law.growth(pull)
    assert not none.any()
    assert (np.abs(estimate - exact) < 3 * error + 1e-3).all()


def test_growth_of_a_cycle_against_dense_products() -> None:
    law = regime(ft.FedFix("1/2"), TIMES)
    assert isinstance(law, Repeating)
    d = np.asarray(ft.weights(ft.FedFix("1/2"), TIMES))
    pull = pull_of(CURVATURE, 0.8, 1)[:, 0, 0]
    whole = np.eye(5)
    part = law.line[law.start : law.start + law.length]
    for n in range(part.num_rounds):
        took = part.client[part.offsets[n] : part.offsets[n + 1]]
        new = np.eye(5)[0]
        for i in took:
            new = new - d[i] * pull[i] * np.eye(5)[1 + i]
        turn = np.eye(5)
        turn[[0, *(1 + took)]] = new
        whole = turn @ whole
    expected = np.log(np.abs(np.linalg.eigvals(whole)).max()) / law.length
    assert law.growth(pull_of(CURVATURE, 0.8, 1))[0][0, 0] == pytest.approx(expected, rel=1e-9)


def test_matrices_that_commute_are_their_coordinates() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((2, 2)))
    matrices = np.stack([turn @ np.diag(a) @ turn.T for a in CURVATURE])
    for scheme, times in (
        (ft.AsyncFedAvg(), TIMES),
        (ft.FedFix("1/2"), TIMES),
        (ft.UniformSampling(2), TIMES),
        (ft.AsyncFedAvg(), EXPONENTIAL),
    ):
        plain, blocks = (stability_limit(c, scheme, times, local_steps=2) for c in (CURVATURE, matrices))
        assert plain.lr == pytest.approx(blocks.lr, rel=1e-6), scheme


def test_matrices_that_do_not_commute_by_a_plain_run() -> None:
    root = np.random.default_rng(5).standard_normal((4, 3, 3))
    matrices = root @ root.mT / 3
    limit = stability_limit(matrices, ft.FedBuff(2), TIMES)
    line, d = ft.timeline(ft.FedBuff(2), TIMES, rounds=2000), np.asarray(ft.weights(ft.FedBuff(2), TIMES))
    for factor, sign in ((0.98, -1), (1.02, 1)):
        versions = np.ones((line.num_rounds + 1, 3))
        for n in range(line.num_rounds):
            took = range(line.offsets[n], line.offsets[n + 1])
            moves = [d[line.client[u]] * matrices[line.client[u]] @ versions[line.base[u]] for u in took]
            versions[n + 1] = versions[n] - factor * limit.lr * sum(moves)
        size = np.log(np.abs(versions).max(axis=1))
        assert sign * (size[-20:].max() - size[500:520].max()) > 1, factor


def test_second_moments_of_random_rounds_against_dense_matrices() -> None:
    """E[T_S ⊗ T_S], set by set."""
    sets, probability = race_sets(EXPONENTIAL.mean_time, 2)
    law = Independent(sets, probability, np.array([0.5, 0.4, 0.3, 0.2]), 1.0)
    pull = pull_of(CURVATURE, 0.9, 2)[:, 0, 0]
    whole = np.zeros((25, 25))
    for row, p in zip(sets, probability, strict=True):
        turn = np.eye(5)
        turn[np.append(True, row > 0)] = np.append(1.0, -row * law.weight * pull)
        whole += p * np.kron(turn, turn)
    state = np.random.default_rng(0).standard_normal((5, 5))
    state = state @ state.T
    found = law.second_moment(pull[:, None, None])(state)
    np.testing.assert_allclose(found.ravel(), whole @ state.ravel(), rtol=1e-12)
    value, _ = law.growth(pull[:, None, None])
    assert value[0, 0] == pytest.approx(0.5 * np.log(np.abs(np.linalg.eigvals(whole)).max()), rel=1e-9)


@pytest.mark.parametrize("places", [1, 2, 3])
def test_sets_of_a_race_have_its_shares(places) -> None:
    sets, probability = race_sets(EXPONENTIAL.mean_time, places)
    assert probability.sum() == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(probability @ sets, exponential_race(EXPONENTIAL.mean_time, places)[0], rtol=1e-8)


@pytest.mark.parametrize("scheme", [ft.UniformSampling(2), ft.MultinomialSampling(2)], ids=str)
def test_sampling_by_listing_every_draw(scheme) -> None:
    from itertools import combinations, product

    p = np.array([0.4, 0.3, 0.2, 0.1])
    law = regime(scheme, TIMES, importance=p.tolist())
    assert isinstance(law, Sampled)
    d = np.asarray(ft.weights(scheme, TIMES, importance=p.tolist()))
    gain = d * pull_of(CURVATURE, 1.3, 1)[:, 0, 0]
    if isinstance(scheme, ft.UniformSampling):
        cases = [(s, 1 / 6) for s in combinations(range(4), 2)]
    else:
        cases = [(s, p[s[0]] * p[s[1]]) for s in product(range(4), repeat=2)]
    square = sum(chance * (1 - gain[list(s)].sum()) ** 2 for s, chance in cases)
    assert law.growth(pull_of(CURVATURE, 1.3, 1))[0][0, 0] == pytest.approx(0.5 * np.log(square), rel=1e-9)


def cloned_growth(law, pull, rounds, particles, seed):
    """Growth of E|z|² by plain runs, cloned in proportion to |z|² so that rare large ones are seen."""
    rng = np.random.default_rng(seed)
    z = np.ones((particles, 1 + len(pull)))
    total = 0.0
    for n in range(rounds):
        chosen = law.sets[rng.choice(len(law.sets), size=particles, p=law.probability)]
        theta = z[:, 0] - (chosen * law.weight * pull * z[:, 1:]).sum(axis=1)
        z[:, 1:] = np.where(chosen > 0, theta[:, None], z[:, 1:])
        z[:, 0] = theta
        square = (z**2).sum(axis=1)
        if n >= rounds // 4:
            total += np.log(square.mean())
        z = z[rng.choice(particles, size=particles, p=square / square.sum())]
        z /= np.sqrt((z**2).sum(axis=1, keepdims=True))
    return total / (rounds - rounds // 4) / 2


def test_exponential_times_by_cloned_runs() -> None:
    """At 0.98 and 1.02 of the mean-square limit E|θ|² falls and rises."""
    for scheme in (ft.AsyncFedAvg(), ft.FedFix("1/2")):
        law = regime(scheme, EXPONENTIAL)
        assert isinstance(law, Independent)
        limit = stability_limit(CURVATURE[:, 0], scheme, EXPONENTIAL)
        for factor, sign in ((0.98, -1), (1.02, 1)):
            pull = pull_of(CURVATURE[:, :1], factor * limit.lr, 1)[:, 0, 0]
            found = cloned_growth(law, pull, 800, 3000, 1)
            assert sign * found > 0, (scheme, factor)
            assert found == pytest.approx(law.growth(pull[:, None, None])[0][0, 0], abs=2e-3)


def test_typical_runs_stand_more_than_their_mean_square() -> None:
    mean, typical = (
        stability_limit(CURVATURE, ft.AsyncFedAvg(), EXPONENTIAL, sense=s, rounds=5000)
        for s in ("mean-square", "typical")
    )
    assert mean.exact
    assert not typical.exact
    assert typical.lr - 3 * typical.error > mean.lr


def test_times_of_other_laws_are_estimated() -> None:
    times = ft.LogNormalTimes(["1", "3/4", "1/2", "1/4"])
    found = stability_limit(CURVATURE, ft.AsyncFedAvg(), times, rounds=3000)
    assert found.kind == "timeline"
    assert found.error > 0


@pytest.mark.parametrize(
    ("curvature", "match"),
    [
        (np.zeros(4), "without positive curvature"),
        (np.array([1.0, -1.0, -1.0, -1.0]), "no learning rate is stable"),
        (np.ones(3), "one per client"),
        (np.ones((4, 2, 3)), "shape"),
        (np.triu(np.ones((4, 2, 2))), "symmetric"),
    ],
)
def test_what_has_no_limit_is_refused(curvature, match) -> None:
    with pytest.raises(ft.InputError, match=match):
        stability_limit(curvature, ft.FedFix("1/2"), TIMES)
