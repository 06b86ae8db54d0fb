"""Hardware times in a study: each scheme has the times of its own updates."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.study_file import arguments_of, merged, times_of

PROBLEM = ft.problems.digits(clients=3, seed=0)  # 64 × 10 weights and 10 biases, 4 bytes each
MODEL = 2600
KEPT = 7 * (4 + 2)  # TopK(1 %): 7 of 650 numbers, each with its place in 2 bytes
TIMES = ft.FixedTimes.hardware(
    step_seconds=["1/10", "1/5", "1/2"], steps=5, bytes_per_second=1000, download_bytes_per_second=2000
)
LOCAL = ft.LocalSGD(steps=5, lr=0.1, batch_size=8)
PLAIN, SHORT = ft.FedFix(2), ft.FedFix(2).using(compression=ft.TopK(0.01))


def by_hand(up: int) -> ft.FixedTimes:
    return ft.FixedTimes([5 * Fraction(s) + Fraction(up, 1000) + Fraction(MODEL, 2000) for s in ("1/10", "1/5", "1/2")])


def run(schemes, times=TIMES, **more) -> ft.History:
    return ft.simulate(PROBLEM, schemes, times, until=40, local=LOCAL, points=9, dtype="float64", **more)


@pytest.fixture(scope="module")
def both() -> ft.History:
    return run([PLAIN, SHORT])


@pytest.mark.parametrize(("scheme", "up"), [(PLAIN, MODEL), (SHORT, KEPT)])
def test_a_scheme_that_compresses_has_the_timeline_of_shorter_times(both, scheme, up) -> None:
    line = ft.timeline(scheme, by_hand(up), until=40)
    mine = both.dataset.isel(time=-1).sel(scheme=scheme.label)
    assert mine.bytes_up.item() == up * line.num_updates
    assert mine.updates.item() == line.num_updates
    assert mine.rounds.item() == line.num_rounds


def test_compression_makes_jobs_shorter(both) -> None:
    updates = both.dataset.updates.isel(time=-1)
    assert updates.sel(scheme=SHORT.label).item() > updates.sel(scheme=PLAIN.label).item() > 0


@pytest.mark.parametrize(("scheme", "up"), [(PLAIN, MODEL), (SHORT, KEPT)])
def test_weights_and_losses_are_those_of_the_times_written_out(both, scheme, up) -> None:
    known = run([scheme], by_hand(up), surrogate=ft.FedAvg())
    mine = both.dataset.loss.sel(scheme=scheme.label)
    assert np.array_equal(known.dataset.loss.values.ravel(), mine.values.ravel())


def test_a_study_with_hardware_times_goes_on_and_others_are_refused(both, tmp_path) -> None:
    first = run([PLAIN, SHORT], checkpoint=tmp_path / "r")
    again = run([PLAIN, SHORT], checkpoint=tmp_path / "r")
    assert np.array_equal(first.dataset.loss, again.dataset.loss)
    assert np.array_equal(first.dataset.loss, both.dataset.loss)
    assert json.loads(first.attrs["configuration"])["times"][0] == "1/2 + up/(1000) + down/(2000)"
    other = ft.FixedTimes.hardware(step_seconds=["1/10", "1/5", "1/2"], steps=5, bytes_per_second=999)
    with pytest.raises(ft.ResultsConflict):
        run([PLAIN, SHORT], other, checkpoint=tmp_path / "r")


def test_a_study_file_has_bandwidths() -> None:
    table = {"times": ["1", "2", "5/2"], "bytes_per_second": 1000, "download_bytes_per_second": [1, 2, 3]}
    made = times_of(table, 3)
    assert made.for_traffic(500, 6).describe() == ["15/2", "11/2", "5"]
    assert times_of({"times": "tifl", "bytes_per_second": 1}, 5).for_traffic(0, 0) == ft.devices.named("tifl", 5)
    description = merged({"times": {"times": "quafl:2"}, "problem": {"clients": 7}})
    assert arguments_of(description)["times"] == ft.devices.named("quafl", 7, seed=2)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"download_bytes_per_second": 1}, "give bytes_per_second"),
        ({"bytes_per_second": 1, "law": "exponential"}, "it needs fixed times, not exponential ones"),
    ],
)
def test_a_bandwidth_that_means_nothing_is_refused(keys, words) -> None:
    with pytest.raises(ft.InputError, match=words):
        times_of({"times": "1,2", **keys}, 2)


def test_the_planner_takes_the_bytes_of_the_model() -> None:
    made = ft.recommend(PROBLEM, TIMES, until=400, local=LOCAL, schemes=[ft.FedAvg()], rates=[0.1])
    assert made.times == by_hand(MODEL)
