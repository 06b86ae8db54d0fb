"""Guarantees over lower bounds in a plan: who has one, in the document, in the table, and in print."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import fedtempo as ft
from cli.test_cli import in_process

F80 = ft.FixedTimes.spread(10, 80)
WITHOUT = [
    ft.FedFix("1/2"),
    ft.FedFix(1),
    ft.FedBuff(3),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
    ft.FastestSampling(2),
    ft.FedAvg().using(correction=ft.FedProx(0.1)),
    ft.AsyncFedAvg().using(step="paper"),
    ft.published.FedAsync(0.6),
]
KEYS = [f"{kind}over_optimal{end}" for kind in ("", "homogeneous_") for end in ("", "_no_noise", "_all_noise")]


def document(*words, **options) -> dict:
    plan = ft.compare(*words, **options)
    return json.loads(json.dumps(plan.to_dict(), allow_nan=False))


def test_f80_in_a_plan() -> None:
    found = document(F80, [ft.FedAvg(), ft.AsyncFedAvg()])
    sync, other = found["schemes"]
    assert found["noise"] is None
    assert (sync["over_optimal"], sync["homogeneous_over_optimal"]) == (None, None)
    assert sync["over_optimal_no_noise"] == pytest.approx(1)
    assert sync["over_optimal_all_noise"] == pytest.approx(1.67, abs=0.005)
    assert sync["homogeneous_over_optimal_no_noise"] == pytest.approx(5)
    assert sync["homogeneous_over_optimal_all_noise"] == pytest.approx(2.13, abs=0.005)
    assert (other["over_optimal_no_noise"], other["over_optimal_all_noise"]) == (None, None)
    assert other["homogeneous_over_optimal_all_noise"] == pytest.approx(1)


def test_at_a_given_noise() -> None:
    tau, s = F80.mean_time, 7
    found = document(F80, [ft.FedAvg(), ft.AsyncFedAvg()], noise=s)
    sync, other = found["schemes"]
    alike = min((m + s) / (1 / np.sort(tau)[:m]).sum() for m in range(1, 11))
    assert found["noise"] == 7
    assert sync["over_optimal"] == pytest.approx((1 + s / 10) / (1 + 0.6 * s / 10))
    assert sync["homogeneous_over_optimal"] == pytest.approx((1 + s / 10) / alike)
    assert other["over_optimal"] is None
    assert other["homogeneous_over_optimal"] == pytest.approx((10 + s) / (1 / tau).sum() / alike)


@pytest.mark.parametrize("scheme", WITHOUT, ids=str)
def test_schemes_without_a_guarantee(scheme) -> None:
    (one,) = ft.compare(F80, scheme, noise=3).schemes
    assert one.over_optimal is None
    assert [one.to_dict()[key] for key in KEYS] == [None] * 6
    assert "lower bound" not in str(one)


def test_clients_to_which_no_guarantee_applies() -> None:
    (unequal,) = ft.compare(ft.FixedTimes([1, 2]), ft.FedAvg(), importance=["1/4", "3/4"]).schemes
    (away,) = ft.compare(ft.FixedTimes([1, 2]).available(failure=0.1), ft.FedAvg()).schemes
    assert unequal.over_optimal is None
    assert away.over_optimal is None
    thirds = ft.compare(ft.FixedTimes([1, 2, 3]), ft.FedAvg(), importance=["1/3"] * 3)
    assert thirds.schemes[0].over_optimal is not None


def test_random_times_count_with_their_means_and_that_is_said() -> None:
    exact = ft.compare(ft.FixedTimes([1, 2, 4]), ft.FedAvg())
    drawn = ft.compare(ft.ExponentialTimes([1, 2, 4]), ft.FedAvg())
    assert exact.schemes[0].over_optimal == drawn.schemes[0].over_optimal
    assert "with mean times" in str(drawn)
    assert "with mean times" not in str(exact)


def test_the_printed_column() -> None:
    text = str(ft.compare(F80, [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2")]))
    head, sync, other, fix = text.splitlines()[3:7]
    assert head.endswith("over optimal")
    assert sync.endswith(" 1–1.67")
    assert other.endswith(" –")
    assert fix.endswith(" –")
    assert "from no noise to noise alone." in text
    assert "If all clients drew from the same data: FedAvg 5 to 2.13, AsyncFedAvg 2.35 to 1." in text
    assert max(map(len, text.splitlines())) <= 100
    at = str(ft.compare(F80, [ft.FedAvg(), ft.AsyncFedAvg()], noise=2))
    assert "at noise σ²/ε = 2." in at
    assert at.splitlines()[4].endswith(f" {1.2 / 1.12:.3g}")


def test_as_a_table() -> None:
    made = ft.compare(F80, [ft.FedAvg(), ft.FedFix("1/2")]).table()
    assert set(KEYS) & set(made) == {key for key in KEYS if key.endswith("_noise")}
    assert made["over_optimal_all_noise"][0] == pytest.approx(1 / 0.6)
    assert math.isnan(made["over_optimal_all_noise"][1])
    given = ft.compare(F80, [ft.FedFix("1/2"), ft.FedAvg()], noise=1).table()
    assert set(KEYS) <= set(given)
    assert given["over_optimal"][1] == pytest.approx(1.1 / 1.06)
    assert math.isnan(given["over_optimal"][0])


@pytest.mark.parametrize("noise", [-1, math.nan, math.inf, True, "3", 10**400, [1]])
def test_noise_that_is_none_is_refused(noise) -> None:
    with pytest.raises(ft.InputError, match=r"noise: .* is not σ²/ε; give a number"):
        ft.compare(F80, noise=noise)


@pytest.mark.parametrize("noise", [0, 0.5, np.float64(3), np.int64(3), 1e300])
def test_noise_of_any_number(noise) -> None:
    (one,) = ft.compare(F80, ft.FedAvg(), noise=noise).schemes
    assert 1 - 1e-12 <= one.over_optimal.at_noise.heterogeneous <= 1 / 0.6 + 1e-12


def test_on_the_command_line(capsys, monkeypatch) -> None:
    words = "plan --clients 10 --times F80 --scheme fedavg"
    code, out, _ = in_process(capsys, monkeypatch, f"{words} --noise 2")
    assert (code, out) == (0, f"{ft.compare(F80, ft.FedAvg(), noise=2)}\n")
    _, out, _ = in_process(capsys, monkeypatch, f"{words} --noise 2 --json")
    assert json.loads(out)["schemes"][0]["over_optimal"] == pytest.approx(1.2 / 1.12)
    for more, said in (("--noise -1", "noise: -1.0 is not"), ("--noise 1 --problem digits --until 9", "--noise: it")):
        code, out, err = in_process(capsys, monkeypatch, f"{words} {more}")
        assert (code, out) == (2, "")
        assert said in err
