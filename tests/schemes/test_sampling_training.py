"""Training under sampled clients: the cure goes to the federated optimum, the criterion alone elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.schemes.named import CuredSampling
from fedtempo.weighting.other_rules import ParticipationHistory

TIMES = ft.FixedTimes.spread(clients=6, slowdown=80)
PROBLEM = ft.problems.quadratics(clients=6, dimension=4, importance=[0.1, 0.15, 0.2, 0.25, 0.2, 0.1], seed=2)
FASTEST = ft.FastestSampling(3)
CURED = CuredSampling(FASTEST, window=7, biased=2)


def losses(scheme, rule, *, engine="events", until=20, lr=0.05) -> np.ndarray:
    local = ft.LocalSGD(steps=2, lr=lr, batch_size=None)
    given = {"until": until, "points": 21, "local": local, "weights": rule, "engine": engine, "dtype": "float64"}
    return ft.simulate(PROBLEM, scheme, TIMES, **given).dataset.loss.values.ravel()


@pytest.mark.parametrize(
    ("scheme", "rule"),
    [
        (CURED, "time-based"),
        (CuredSampling(ft.MultinomialSampling(3), window=30, biased=2), "time-based"),
        (ft.FedFix("1/2"), ParticipationHistory(cutoff=3)),
    ],
    ids=lambda x: getattr(x, "label", x),
)
def test_the_engine_and_the_oracle_agree(scheme, rule) -> None:
    found, meant = (losses(scheme, rule, engine=engine) for engine in ("events", "oracle"))
    np.testing.assert_allclose(found, meant, rtol=1e-10)


def test_the_cure_goes_to_the_optimum_and_the_criterion_elsewhere() -> None:
    p = PROBLEM.importance.values
    q = ft.expected_weights(FASTEST, TIMES, importance=PROBLEM.importance.exact, rule="identical")
    off = float(p @ PROBLEM.client_losses(PROBLEM.optimum(q))) - PROBLEM.optimal_loss
    cured, alone = (
        [losses(scheme, rule, until=1500 * 0.05 / lr, lr=lr)[-1] - PROBLEM.optimal_loss for lr in (0.1, 0.05, 0.025)]
        for scheme, rule in ((CURED, "time-based"), (FASTEST, "identical"))
    )
    assert alone == pytest.approx([off] * 3, rel=0.1)
    assert off > 0.01
    assert cured[0] < off / 20
    assert cured[1] < cured[0] / 3  # the distance to the optimum falls with the rate, the loss with its square
    assert cured[2] < cured[1] / 3
