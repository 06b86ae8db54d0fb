"""The catalogue of published client times: each entry makes what it says, from its seed alone."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.devices import CATALOGUE
from fedtempo.clock.times_text import needs_clients, read_times

every_entry = pytest.mark.parametrize("name", CATALOGUE)


@every_entry
def test_an_entry_says_what_was_published_and_where(name):
    entry = CATALOGUE[name]
    assert all(len(text) > 10 for text in (entry.found, entry.derived, entry.source, entry.unit))
    assert entry.name == name


@every_entry
def test_a_seed_deals_out_the_devices(name):
    times = ft.devices.named(name, clients=60, seed=3)
    assert times.num_clients == 60
    assert times == ft.devices.named(name, 60, seed=3)
    assert times != ft.devices.named(name, 60, seed=4)
    assert ft.devices.named(name, 60) == CATALOGUE[name](60) == ft.devices.named(name, 60, seed=0)
    assert ft.devices.named(name, 1).num_clients == 1


@pytest.mark.parametrize(
    ("name", "times"),
    [("tifl", ["1/4", "1/2", "1", "2", "10"]), ("tifl-mnist", ["1/2", "1", "4/3", "2", "4"])],
)
def test_tifl_has_groups_of_equal_size(name, times):
    made = ft.devices.named(name, clients=50)
    assert Counter(made.describe()) == dict.fromkeys(times, 10)
    few = Counter(ft.devices.named(name, clients=7).describe())
    assert set(few.values()) == {1, 2}
    assert made.describe() != sorted(made.describe(), key=Fraction)


def test_quafl_has_three_slow_clients_in_ten():
    for clients, slow in ((1, 1), (10, 3), (11, 4), (100, 30)):
        made = ft.devices.named("quafl", clients)
        assert isinstance(made, ft.ExponentialTimes)
        assert Counter(made.mean_time.tolist()) == {k: v for k, v in {8: slow, 2: clients - slow}.items() if v}


@pytest.mark.parametrize(
    ("name", "means", "deviations"),
    [
        ("flash-femnist", [1.642, 0.588, 0.179], [0.0995, 0.0239, 0.0023]),
        ("flash-celeba", [5.392, 1.355, 0.561], [0.9825, 0.0546, 0.0203]),
        ("flash-reddit", [2.596, 0.916, 0.5277], [0.3355, 0.0206, 0.049]),
        ("flash-shakespeare", [28.621, 13.579, 10.681], [1.7207, 0.1046, 0.1256]),
    ],
)
def test_flash_has_the_phones_and_the_deviations_that_were_measured(name, means, deviations):
    clients = 20_000
    made = ft.devices.named(name, clients)
    counts = Counter(made.mean_time.tolist())
    shares = np.array([18820, 16428, 159]) / 35407
    assert set(counts) == set(means)
    seen = np.array([counts[mean] for mean in means]) / clients
    assert (np.abs(seen - shares) < 4 * np.sqrt(shares * (1 - shares) / clients)).all()
    for mean, deviation in zip(means, deviations, strict=True):
        client = made.mean_time.tolist().index(mean)
        jobs = made.draw(np.array([client]), np.arange(20_000)) * float(made.unit)
        assert jobs.mean() == pytest.approx(mean, rel=0.006)
        assert jobs.std() == pytest.approx(deviation, rel=0.05)


def test_phones_are_spread_as_their_scores():
    made = ft.devices.named("ai-benchmark", 20_000).mean_time
    assert np.quantile(made, [0.05, 0.5, 0.95]) == pytest.approx([0.192, 0.458, 3.247], rel=0.05)
    assert made.mean() == pytest.approx(1, abs=0.05)
    assert (made.min(), made.max()) == pytest.approx((0.164, 6.752), rel=0.02)
    assert ft.devices.named("ai-benchmark", 30).unit >= Fraction(1, 1000)


def test_plato_sleeps_for_a_pareto_time():
    made = ft.devices.named("plato", 20_000).mean_time - 10
    assert made.min() >= 0
    assert made.max() == 30
    for seconds in (0.5, 1, 4, 20):
        assert (made > seconds).mean() == pytest.approx(1 / (1 + seconds), abs=0.015)


def test_text_names_devices_and_their_seed():
    assert read_times("tifl", 20, None) == ft.devices.named("tifl", 20)
    assert read_times("tifl:3", 20, None) == ft.devices.named("tifl", 20, seed=3)
    assert [needs_clients(text) for text in ("F80", "tifl:1", "flash-reddit", "1,2", "f.csv")] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ft.devices.named("tiffl", 5), "'tiffl' is not in the catalogue; did you mean tifl?"),
        (lambda: ft.devices.named("tifl", 0), "clients: 0 is not a whole number of at least 1"),
        (lambda: ft.devices.named("tifl", 5, seed="a"), "seed: 'a' is not a whole number"),
        (lambda: read_times("tifl", None, None), "--times tifl needs the number of clients: add --clients 20"),
        (lambda: read_times("tifl:x", 5, None), "the seed is a whole number, as in tifl:1"),
        (lambda: read_times("tifl", 5, "exponential"), "tifl has its own law"),
        (lambda: read_times("tiffl", 5, None), "did you mean tifl?"),
    ],
)
def test_what_is_not_there_is_said(call, words):
    with pytest.raises(ft.InputError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("law", "made"),
    [
        ("lognormal", ft.LogNormalTimes([1, 2], sigma=0.5)),
        ("lognormal:0.3", ft.LogNormalTimes([1, 2], sigma=0.3)),
        ("uniform:1/4", ft.UniformTimes(["3/4", "3/2"], ["5/4", "5/2"])),
        ("pareto", ft.ParetoTimes([1, 2], shape=2.5)),
        ("pareto:1.5", ft.ParetoTimes([1, 2], shape="3/2")),
        ("shifted-exponential:0.2", ft.ShiftedExponentialTimes([1, 2], shift=0.2)),
    ],
)
def test_a_law_has_its_number_behind_a_colon(law, made):
    assert read_times("1,2", None, law) == made


def test_the_number_of_a_law_under_its_old_name_warns():
    with pytest.warns(FutureWarning, match=r"--spread 0\.3 is called --law lognormal:0\.3"):
        made = read_times("1,2", None, "lognormal", "0.3")
    assert made == ft.LogNormalTimes([1, 2], sigma=0.3)


@pytest.mark.parametrize(
    ("law", "spread", "words"),
    [
        ("exponential:2", None, "exponential takes no number"),
        ("lognormal:", None, "sigma of lognormal: '' is not a number"),
        ("uniform:1", None, "half width between 0 and 1"),
        ("pareto:1", None, "shape: 1 must lie between"),
        ("lognormal:1", "0.5", "has its number already"),
        ("pareto", "2", "--spread: it belongs to"),
    ],
)
def test_a_wrong_number_of_a_law_is_refused(law, spread, words):
    with pytest.raises(ft.InputError) as caught:
        read_times("1,2", None, law, spread)
    assert words in str(caught.value)
