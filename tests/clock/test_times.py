"""Client times: the fixed ones exactly, the random ones against SciPy's laws."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedtempo as ft
from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.times import checked_ticks

cases = settings(derandomize=True, deadline=None, max_examples=150)
small = st.builds(Fraction, st.integers(min_value=1, max_value=400), st.integers(min_value=1, max_value=24))

MEANS = ["1", "0.25", "7/3", "40"]
LOW, HIGH = ["1", "0.25", "1/3", "40"], ["2", "0.75", "13/3", "41"]
SIGMA = [0.2, 0.5, 1.0, 1.5]


def _lognormal(mean, sigma):
    return stats.lognorm(sigma, scale=float(Fraction(mean)) * math.exp(-(sigma**2) / 2))


SHAPE, SHIFT = Fraction(5, 2), Fraction(3, 10)


def _pareto(mean, shape=SHAPE):
    return stats.pareto(float(shape), scale=float(Fraction(mean) * (shape - 1) / shape))


def _shifted(mean, shift=SHIFT):
    return stats.expon(float(Fraction(mean) * shift), float(Fraction(mean) * (1 - shift)))


LAWS = {
    "exponential": (ft.ExponentialTimes(MEANS), [stats.expon(scale=float(Fraction(m))) for m in MEANS]),
    "lognormal": (
        ft.LogNormalTimes(MEANS, sigma=SIGMA),
        [_lognormal(m, s) for m, s in zip(MEANS, SIGMA, strict=True)],
    ),
    "pareto": (ft.ParetoTimes(MEANS, shape=SHAPE), [_pareto(m) for m in MEANS]),
    "shifted-exponential": (ft.ShiftedExponentialTimes(MEANS, shift=SHIFT), [_shifted(m) for m in MEANS]),
    "uniform": (
        ft.UniformTimes(LOW, HIGH),
        [stats.uniform(float(Fraction(a)), float(Fraction(b) - Fraction(a))) for a, b in zip(LOW, HIGH, strict=True)],
    ),
}
every_law = pytest.mark.parametrize("law", LAWS)


# --- fixed times


@cases
@given(st.lists(small, min_size=1, max_size=8))
def test_fixed_times_are_whole_ticks_of_their_unit(values):
    times = ft.FixedTimes(values)
    assert times.exact_mean_time == tuple(values) == times.longest()
    assert all(int(t) * times.unit == v for t, v in zip(times.ticks, values, strict=True))
    assert math.gcd(*times.ticks.tolist()) == 1
    assert times.describe() == [str(v) for v in values]


@cases
@given(st.lists(small, min_size=1, max_size=6), small)
def test_fixed_rounds_are_the_ceiling_of_time_over_wait(values, wait):
    times = ft.FixedTimes(values)
    needed = [math.ceil(v / wait) for v in values]
    assert times.rounds_needed(wait).tolist() == needed
    assert times.expected_rounds(wait).tolist() == needed
    assert times.exact_expected_rounds(wait) == tuple(needed)


def test_fixed_rounds_stay_exact_where_64_bits_do_not_hold_the_products():
    times = ft.FixedTimes([10**9 + 7, 3])
    wait = Fraction(10**9 + 7, 10**12 + 39)
    assert times.rounds_needed(wait).tolist() == [10**12 + 39, math.ceil(3 / wait)]


def test_every_job_of_a_fixed_client_takes_its_time():
    times = ft.FixedTimes(["1/2", 3, 0.2])
    drawn = times.draw(np.array([[0], [1], [2]]), np.arange(4), seed=9)
    assert drawn.tolist() == [[5] * 4, [30] * 4, [2] * 4]
    assert times.unit == Fraction(1, 10)
    assert not times.random
    assert times.job_period.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "no clients: time is an empty list"),
        ([1, 0], "time of client 1: 0 is not above zero"),
        ([1, 2, -3], "time of client 2: -3 is not above zero"),
        ([float("inf")], "time of client 0: inf is not finite"),
        ([1, float("nan")], "time of client 1: nan is not finite"),
        (["x"], "time of client 0: 'x' is not a number"),
        ([True], "time of client 0: True is not a number"),
        ([1, None], "time of client 1: None is not a number"),
    ],
)
def test_a_wrong_fixed_time_is_named_with_its_client(values, words):
    with pytest.raises(ft.InputError, match=words):
        ft.FixedTimes(values)


@pytest.mark.parametrize("values", [["1e-12", 10**7], [Fraction(1, 2**40 - 87), Fraction(1, 2**40 + 15)]])
def test_fixed_times_that_no_64_bit_tick_can_hold_overflow(values):
    with pytest.raises(ft.ClockOverflow):
        ft.FixedTimes(values)


@pytest.mark.parametrize("others", [[], [1]])
def test_a_fixed_time_too_large_for_a_float_is_refused(others):
    with pytest.raises(ft.InputError):
        ft.FixedTimes([*others, 10**400])


@cases
@given(
    st.lists(st.integers(min_value=1, max_value=2000), min_size=1, max_size=8), st.sampled_from([1, 7, 10, 100, 1000])
)
def test_a_fixed_time_is_over_at_its_own_moment(tops, bottom):
    values = [Fraction(top, bottom) for top in tops]
    times = ft.FixedTimes(values)
    assert times.mean_time.tolist() == [float(v) for v in values]
    for moment in values:
        assert times.distribution(float(moment)).tolist() == [float(v <= moment) for v in values]


# --- F<X>


@cases
@given(st.integers(min_value=1, max_value=60), st.decimals(min_value=0, max_value="99.9", places=1))
def test_spread_is_one_minus_x_percent_evenly(clients, slowdown):
    share = Fraction(slowdown) / 100
    expected = tuple(1 - share * (Fraction(i, clients - 1) if clients > 1 else 0) for i in range(clients))
    times = ft.FixedTimes.spread(clients, str(slowdown))
    assert times.exact_mean_time == expected
    assert times == ft.FixedTimes(expected)
    assert hash(times) == hash(ft.FixedTimes(expected))


@pytest.mark.parametrize(
    ("clients", "slowdown", "expected"),
    [
        (1, 80, ["1"]),
        (1, 0, ["1"]),
        (4, 0, ["1", "1", "1", "1"]),
        (5, 80, ["1", "4/5", "3/5", "2/5", "1/5"]),
        (3, "33.3", ["1", "1667/2000", "667/1000"]),
        (2, 99.9, ["1", "1/1000"]),
        (4, "1/3", ["1", "899/900", "449/450", "299/300"]),
    ],
)
def test_spread_is_pinned(clients, slowdown, expected):
    assert ft.FixedTimes.spread(clients, slowdown).describe() == expected


def test_spread_over_many_clients_keeps_its_ends_exact():
    times = ft.FixedTimes.spread(200_001, "33.3")
    assert (times.num_clients, times.ticks[0] * times.unit) == (200_001, 1)
    assert int(times.ticks[100_000]) * times.unit == 1 - Fraction(333, 2000)
    assert int(times.ticks[-1]) * times.unit == 1 - Fraction(333, 1000)


@pytest.mark.parametrize("slowdown", [100, "100", -1, "-0.1", 250])
def test_a_spread_outside_0_to_100_is_refused(slowdown):
    with pytest.raises(ft.InputError, match=f"F{slowdown}: the slowdown must be at least 0 and below 100"):
        ft.FixedTimes.spread(5, slowdown)


@pytest.mark.parametrize(("clients", "slowdown", "words"), [(0, 80, "no clients: 0"), (5, "x", "slowdown: 'x'")])
def test_a_spread_of_nobody_or_by_no_number_is_refused(clients, slowdown, words):
    with pytest.raises(ft.InputError, match=words):
        ft.FixedTimes.spread(clients, slowdown)


def test_a_spread_with_too_many_digits_overflows():
    with pytest.raises(ft.ClockOverflow, match=r"F33\.3333333333333 has too many digits for 100000 clients"):
        ft.FixedTimes.spread(100_000, "33.3333333333333")


# --- hardware


@cases
@given(st.lists(st.tuples(small, st.integers(min_value=1, max_value=50), small, small), min_size=1, max_size=2))
def test_hardware_times_are_steps_plus_transfer(rows):
    seconds, steps, sent, bandwidth = (list(column) for column in zip(*rows, strict=True))
    times = ft.FixedTimes.hardware(step_seconds=seconds, steps=steps, bytes_sent=sent, bytes_per_second=bandwidth)
    assert times.exact_mean_time == tuple(s * k + b / r for s, k, b, r in rows)


def test_one_hardware_value_holds_for_every_client():
    times = ft.FixedTimes.hardware(
        step_seconds="0.01", steps=(10, 20), bytes_sent=np.array([0, 3e6]), bytes_per_second=[1e6]
    )
    assert times.describe() == ["1/10", "16/5"]
    alone = ft.FixedTimes.hardware(step_seconds="1/3", steps=2, bytes_sent=0, bytes_per_second=1)
    assert alone.describe() == ["2/3"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": [1, 2, 3]}, "lists have different lengths, {'step_seconds': 2, 'steps': 3}"),
        ({"steps": []}, "lists have different lengths, {'step_seconds': 2, 'steps': 0}"),
        ({"step_seconds": [1, 0]}, "step_seconds of client 1: 0 is not above zero"),
        ({"steps": [0, 1]}, "steps of client 0: 0 is not above zero"),
        ({"bytes_sent": [5, -1]}, "bytes_sent of client 1: -1 is below zero"),
        ({"bytes_sent": "many"}, "bytes_sent of client 0: 'many' is not a number"),
        ({"bytes_per_second": [9, 0]}, "bytes_per_second of client 1: 0 is not above zero"),
        ({"bytes_per_second": float("inf")}, "bytes_per_second of client 0: inf is not finite"),
    ],
)
def test_wrong_hardware_is_named(changed, words):
    right = {"step_seconds": [1, 2], "steps": 3, "bytes_sent": 10, "bytes_per_second": 5}
    with pytest.raises(ft.InputError) as caught:
        ft.FixedTimes.hardware(**(right | changed))
    assert words in str(caught.value)


# --- random times


@every_law
def test_the_mean_is_the_law_s(law):
    times, rivals = LAWS[law]
    assert times.law == law
    assert times.num_clients == len(rivals)
    assert times.mean_time == pytest.approx([rival.mean() for rival in rivals], rel=1e-12)


@every_law
def test_the_distribution_is_the_law_s(law):
    times, rivals = LAWS[law]
    for moment in (-1.0, 0.0, 0.01, 0.25, 0.5, 1.0, 1.7, 5.0, 40.25, 300.0):
        assert times.distribution(moment) == pytest.approx([rival.cdf(moment) for rival in rivals], abs=1e-13)


@every_law
@cases
@given(
    seed=st.integers(min_value=-(2**70), max_value=2**70),
    jobs=st.lists(
        st.tuples(st.integers(min_value=0, max_value=3), st.integers(min_value=0, max_value=2**32 - 1)),
        min_size=1,
        max_size=10,
    ),
)
def test_a_draw_is_the_quantile_rounded_up_to_the_resolution(law, seed, jobs):
    times, rivals = LAWS[law]
    client, job = map(np.array, zip(*jobs, strict=True))
    shares = uniforms(stream_key("times", seed), client, job)
    drawn = times.draw(client, job, seed=seed)
    assert drawn.dtype == np.int64
    for ticks, i, share in zip(drawn.tolist(), client.tolist(), shares.tolist(), strict=True):
        quantile = rivals[i].ppf(share) / float(times.unit)
        assert ticks >= 1
        assert ticks - 1 < quantile * (1 + 1e-12)
        assert quantile * (1 - 1e-12) <= ticks


@every_law
def test_a_draw_depends_on_seed_client_and_job_alone(law):
    times, _ = LAWS[law]
    client, job = np.arange(4)[:, None], np.arange(50)
    table = times.draw(client, job, seed=3)
    assert np.array_equal(times.draw(client.T, job[:, None], seed=3), table.T)
    assert np.array_equal(times.draw(np.array([2]), job[::-7], seed=3), table[2, ::-7])
    assert times.draw(np.array(1), np.array(17), seed=3).tolist() == table[1, 17]
    assert np.array_equal(times.draw(client, job, seed=3), table)
    assert (times.draw(client, job, seed=4) != table).mean() > 0.99
    assert (times.draw(client, job + 1, seed=3) != table).mean() > 0.99


@pytest.mark.parametrize(
    ("law", "drawn"),
    [
        ("exponential", [[4655, 6273, 226], [3266, 5586, 558]]),
        ("lognormal", [[7498, 8456, 3233], [2792, 5252, 654]]),
        ("uniform", [[17444, 19319, 10446], [4323, 4733, 3000]]),
        ("pareto", [[7228, 7712, 6055], [2530, 3667, 1640]]),
        ("shifted-exponential", [[7328, 8137, 5113], [2883, 4043, 1529]]),
    ],
)
def test_draws_are_pinned(law, drawn):
    coarse = {
        "exponential": ft.ExponentialTimes([1, "1/4"], resolution="1e-4"),
        "lognormal": ft.LogNormalTimes([1, "1/4"], sigma=[0.5, 1], resolution="1e-4"),
        "uniform": ft.UniformTimes([1, "1/4"], [3, "1/2"], resolution="1e-4"),
        "pareto": ft.ParetoTimes([1, "1/4"], resolution="1e-4"),
        "shifted-exponential": ft.ShiftedExponentialTimes([1, "1/4"], resolution="1e-4"),
    }[law]
    assert coarse.draw(np.array([[0], [1]]), np.array([0, 1, 1000]), seed=0).tolist() == drawn


@every_law
def test_samples_have_the_law_s_mean_and_distribution(law):
    times, rivals = LAWS[law]
    count = 20_000
    for i, rival in enumerate(rivals):
        drawn = np.sort(times.draw(np.array([i]), np.arange(count), seed=12345) * float(times.unit))
        assert abs(drawn.mean() - rival.mean()) < 4 * rival.std() / math.sqrt(count) + float(times.unit)
        curve = rival.cdf(drawn)
        furthest = max(
            np.abs(curve - np.arange(count) / count).max(), np.abs(curve - (np.arange(count) + 1) / count).max()
        )
        assert furthest < math.sqrt(math.log(2 / 1e-6) / (2 * count))  # Dvoretzky, Kiefer, Wolfowitz and Massart


@every_law
def test_clients_and_jobs_are_drawn_independently(law):
    times, rivals = LAWS[law]
    count = 20_000
    drawn = times.draw(np.arange(4)[:, None], np.arange(count), seed=77) * float(times.unit)
    shares = np.array([rival.cdf(row) for rival, row in zip(rivals, drawn, strict=True)])
    between_clients = np.corrcoef(shares)[np.triu_indices(4, 1)]
    between_jobs = [np.corrcoef(row[1:], row[:-1])[0, 1] for row in shares]
    assert max(map(abs, [*between_clients, *between_jobs])) < 4 / math.sqrt(count)


@pytest.mark.parametrize(
    ("means", "unit"),
    [
        (["1"], Fraction(1, 10**6)),
        (["0.999"], Fraction(1, 10**7)),
        (["25", "1000"], Fraction(1, 10**5)),
        (["1/1000", "3"], Fraction(1, 10**9)),
        (["5e6"], Fraction(1)),
    ],
)
def test_the_resolution_is_a_power_of_ten_below_a_millionth_of_the_smallest_mean(means, unit):
    assert ft.ExponentialTimes(means).unit == ft.LogNormalTimes(means).unit == unit


def test_a_given_resolution_is_the_unit():
    for times in (
        ft.ExponentialTimes([1, 2], resolution="1/128"),
        ft.LogNormalTimes([1, 2], resolution="1/128"),
        ft.UniformTimes([1, 2], [2, 3], resolution="1/128"),
    ):
        assert times.unit == Fraction(1, 128)


def test_uniform_times_stay_within_their_bounds():
    times, _ = LAWS["uniform"]
    drawn = times.draw(np.arange(4)[:, None], np.arange(50_000), seed=5)
    for row, low, high, longest in zip(drawn, LOW, HIGH, times.longest(), strict=True):
        assert int(row.min()) * times.unit > Fraction(low)
        assert int(row.max()) * times.unit <= longest
        assert Fraction(high) <= longest < Fraction(high) + times.unit


def test_only_bounded_laws_have_a_longest_time():
    assert [law for law, (times, _) in LAWS.items() if times.longest() is not None] == ["uniform"]


# --- expected rounds

WAITS = ["1/500", "1/20", "0.3", "1", "7/3", "11", "90", "700", "20000"]


def _rounds_between(rival, mean_beyond, wait):
    """Bounds of Σ_k P(T > k·wait): the first terms, then the tail's integral with and without its first term."""
    terms = 200_000
    head = rival.sf(np.arange(terms) * wait).sum()
    tail = mean_beyond(terms * wait) / wait
    return head + tail, head + tail + rival.sf(terms * wait)


@pytest.mark.parametrize("wait", WAITS)
def test_exponential_rounds_are_the_sum_of_survivals(wait):
    times, rivals = LAWS["exponential"]
    step = float(Fraction(wait))
    found = times.rounds_of_law(Fraction(wait))
    assert found == pytest.approx([1 / (1 - math.exp(-step / rival.mean())) for rival in rivals], rel=1e-10)
    for value, rival in zip(found, rivals, strict=True):
        low, high = _rounds_between(rival, lambda s, rival=rival: rival.mean() * rival.sf(s), step)
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("wait", WAITS)
def test_lognormal_rounds_are_the_sum_of_survivals(sigma, wait):
    means, step = ["1", "0.04", "30"], float(Fraction(wait))
    found = ft.LogNormalTimes(means, sigma=sigma).rounds_of_law(Fraction(wait))
    for value, mean in zip(found, map(float, means), strict=True):
        rival = _lognormal(str(mean), sigma)

        def beyond(start, mean=mean, rival=rival):
            score = math.log(start / mean) / sigma
            return mean * stats.norm.sf(score - sigma / 2) - start * rival.sf(start)

        low, high = _rounds_between(rival, beyond, step)
        assert high / low - 1 < 1e-6  # a sharp rival
        assert low * (1 - 5e-6) <= value <= high * (1 + 5e-6)


@pytest.mark.parametrize("shape", ["6/5", "3/2", "5/2", "7", "20"])
@pytest.mark.parametrize("wait", WAITS)
def test_pareto_rounds_are_the_sum_of_survivals(shape, wait):
    shape, step = Fraction(shape), float(Fraction(wait))
    means = ["1", "0.04", "30"]
    found = ft.ParetoTimes(means, shape=shape).rounds_of_law(Fraction(wait))
    for value, mean in zip(found, means, strict=True):
        rival = _pareto(mean, shape)

        def beyond(start, rival=rival):
            least = rival.support()[0]
            return start * rival.sf(start) / (float(shape) - 1) + max(0.0, least - start)

        low, high = _rounds_between(rival, beyond, step)
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)


@cases
@given(small, st.fractions(min_value="1/20", max_value="19/20", max_denominator=40), small)
def test_shifted_exponential_rounds_are_the_sum_of_survivals(mean, shift, wait):
    rival, step = _shifted(mean, shift), float(wait)
    found = ft.ShiftedExponentialTimes([mean], shift=shift).rounds_of_law(wait)[0]
    low, high = _rounds_between(rival, lambda s: rival.expect(lambda t: t - s, lb=s) if s < 1 else 0.0, step)
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


def test_a_shift_that_a_wait_divides_is_still_running_then():
    times = ft.ShiftedExponentialTimes([1], shift="1/2")  # P(T > 1/2) = 1: a job never ends at its shift
    expected = 2 + sum(math.exp(-(k / 2 - 0.5) / 0.5) for k in range(2, 200))
    assert times.rounds_of_law(Fraction(1, 2))[0] == pytest.approx(expected, rel=1e-13)
    assert times.survival(0.5).tolist() == ft.ParetoTimes([1], shape=2).survival(0.5).tolist() == [1.0]


@cases
@given(small, small, small)
def test_uniform_rounds_are_the_sum_of_survivals(low, width, wait):
    high = low + width
    total, k = Fraction(0), 0
    while k * wait < high:
        total += min(Fraction(1), (high - k * wait) / width)
        k += 1
    assert ft.UniformTimes([low], [high]).rounds_of_law(wait)[0] == pytest.approx(float(total), rel=1e-14)


@every_law
@pytest.mark.parametrize("wait", ["1/10", "1", "12"])
def test_drawn_jobs_need_the_expected_rounds_on_average(law, wait):
    times, _ = LAWS[law]
    ticks = int(Fraction(wait) / times.unit)
    assert ticks * times.unit == Fraction(wait)
    needed = -(-times.draw(np.arange(4)[:, None], np.arange(20_000), seed=2024) // ticks)
    error = needed.std(axis=1) / math.sqrt(needed.shape[1])
    assert (
        np.abs(needed.mean(axis=1) - times.expected_rounds(Fraction(wait))) <= 4 * error + 1e-4
    ).all()  # of what 20 000 draws can see


# --- limits and refusals


def test_a_tail_too_heavy_for_its_resolution_overflows():
    heavy = ft.LogNormalTimes([1], sigma=5, resolution="1e-17")
    with pytest.raises(ft.ClockOverflow, match="tail is too heavy"):
        heavy.draw(np.array([0]), np.arange(10_000), seed=0)
    assert ft.LogNormalTimes([1], sigma=5).draw(np.array([0]), np.arange(10_000), seed=0).max() > 10**6


@pytest.mark.parametrize("value", [float(MAX_TICKS), float("inf"), float("nan")])
def test_a_duration_that_64_bits_cannot_hold_overflows(value):
    with pytest.raises(ft.ClockOverflow):
        checked_ticks(np.array([1.0, value]))


def test_a_duration_is_at_least_one_tick():
    assert checked_ticks(np.array([0.0, 1.0, 2.0**60])).tolist() == [1, 1, 2**60]
    assert checked_ticks(np.empty(0)).tolist() == []


def test_jobs_are_numbered_in_32_bits():
    times, _ = LAWS["exponential"]
    times.draw(np.array([0]), np.array([2**32 - 1]))
    with pytest.raises(ft.ClockOverflow, match="jobs"):
        times.draw(np.array([0]), np.array([2**32]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ft.ExponentialTimes([]), "no clients: mean time is an empty list"),
        (lambda: ft.ExponentialTimes([1, 0]), "mean time of client 1: 0 is not above zero"),
        (lambda: ft.ExponentialTimes([1], resolution=0), "resolution: 0 is not above zero"),
        (lambda: ft.ExponentialTimes([5, 1], resolution=2), "resolution: 2 is longer than the shortest mean"),
        (lambda: ft.LogNormalTimes([1, "x"]), "mean time of client 1: 'x' is not a number"),
        (lambda: ft.LogNormalTimes([1], sigma=0), "sigma: 0 must lie above 0"),
        (lambda: ft.LogNormalTimes([1], sigma=-1), "sigma: -1 must lie above 0"),
        (lambda: ft.LogNormalTimes([1], sigma=5.1), "sigma: 5.1 must lie above 0 and be at most 5"),
        (lambda: ft.LogNormalTimes([1], sigma=float("nan")), "sigma: nan is not finite"),
        (lambda: ft.LogNormalTimes([1, 2, 3], sigma=[1, 2]), "sigma: 2 values for 3 clients"),
        (lambda: ft.LogNormalTimes([1], sigma="wide"), "sigma: 'wide'"),
        (
            lambda: ft.ParetoTimes([1], shape=1),
            "shape: 1 must lie between 1.2 and 20: at 1 or below the mean is infinite",
        ),
        (lambda: ft.ParetoTimes([1], shape="21"), "shape: 21 must lie between 1.2 and 20"),
        (lambda: ft.ParetoTimes([1], shape="heavy"), "shape: 'heavy' is not a number"),
        (lambda: ft.ShiftedExponentialTimes([1], shift=0), "shift: 0 must lie between 0 and 1"),
        (lambda: ft.ShiftedExponentialTimes([1], shift=1), "for 1 FixedTimes"),
        (lambda: ft.ShiftedExponentialTimes([0]), "mean time of client 0: 0 is not above zero"),
        (lambda: ft.UniformTimes([1, 2], [2, 2]), "client 1: low time 2 is not below high time 2"),
        (lambda: ft.UniformTimes([1, 2], [3]), "2 low and 1 high times"),
        (lambda: ft.UniformTimes([0], [1]), "low time of client 0: 0 is not above zero"),
    ],
)
def test_a_wrong_law_is_refused_and_named(make, words):
    with pytest.raises(ft.InputError) as caught:
        make()
    assert words in str(caught.value)


# --- equality

SAME = [
    (lambda: ft.FixedTimes([1, 0.5]), lambda: ft.FixedTimes(["1", Fraction(1, 2)])),
    (lambda: ft.FixedTimes.spread(3, 50), lambda: ft.FixedTimes([1, "0.75", "1/2"])),
    (lambda: ft.ExponentialTimes([1, 2]), lambda: ft.ExponentialTimes(["1", 2.0], resolution="1e-6")),
    (lambda: ft.LogNormalTimes([1, 2]), lambda: ft.LogNormalTimes([1, 2], sigma=[0.5, 0.5])),
    (lambda: ft.UniformTimes([1], [2]), lambda: ft.UniformTimes(["1"], [2.0])),
    (lambda: ft.ParetoTimes([1, 2]), lambda: ft.ParetoTimes(["1", 2], shape="5/2")),
    (lambda: ft.ShiftedExponentialTimes([1, 2]), lambda: ft.ShiftedExponentialTimes([1, 2.0], shift="1/2")),
]
DIFFERENT = [
    ft.FixedTimes([1, 2]),
    ft.FixedTimes([2, 1]),
    ft.FixedTimes([2, 4]),
    ft.FixedTimes([1, 2, 2]),
    ft.ExponentialTimes([1, 2]),
    ft.ExponentialTimes([2, 1]),
    ft.ExponentialTimes([1, 2], resolution="1e-7"),
    ft.LogNormalTimes([1, 2]),
    ft.LogNormalTimes([1, 2], sigma=1),
    ft.LogNormalTimes([1, 2], sigma=[1, 0.5]),
    ft.LogNormalTimes([1, 2], resolution="1e-7"),
    ft.ParetoTimes([1, 2]),
    ft.ParetoTimes([1, 2], shape=2),
    ft.ShiftedExponentialTimes([1, 2]),
    ft.ShiftedExponentialTimes([1, 2], shift=0.25),
    ft.UniformTimes([1, 1], [3, 3]),
    ft.UniformTimes(["1/2", 1], ["7/2", 3]),
    ft.UniformTimes([1, 1], [3, 4]),
    ft.UniformTimes([1, 1], [3, 3], resolution="1e-7"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_times_are_equal_and_hash_alike(one, other):
    assert one() == other()
    assert hash(one()) == hash(other())


def test_different_times_are_unequal():
    assert len(set(DIFFERENT)) == len(DIFFERENT)
    for i, one in enumerate(DIFFERENT):
        assert [one == other for other in DIFFERENT] == [i == j for j in range(len(DIFFERENT))]
        assert one != "times"
