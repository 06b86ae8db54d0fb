"""Shares of rounds: closed forms against limit cycles, and weights against long runs under another seed."""

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import observe
from fedtempo.clock.generate import Recording
from fedtempo.clock.importance import Importance
from fedtempo.clock.races import exponential_race
from fedtempo.clock.rules import WaitForSome
from fedtempo.weighting.long_run import LongRun, estimated

cases = settings(derandomize=True, deadline=None, max_examples=60)
whole = st.integers(min_value=1, max_value=8)
small = st.builds(Fraction, whole, st.integers(min_value=1, max_value=3))
waits = st.builds(Fraction, st.integers(min_value=1, max_value=12), st.integers(min_value=1, max_value=4))


def _run(scheme, times, importance=None, seed=0):
    return LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed)


# --- fixed times, exactly


def _equals_its_cycle(scheme, times):
    """The closed form and the counts over the limit cycle, which know nothing of each other."""
    found = ft.participation_of(scheme, times)
    cycle = ft.limit_cycle(scheme, times)
    assert found.source == "closed form"
    assert found.exact == cycle.participation == tuple(Fraction(int(c), cycle.length) for c in cycle.counts)
    assert found.share == pytest.approx([float(s) for s in found.exact], rel=1e-13)
    assert found.error is None
    assert _run(scheme, times).rounds_per_time == pytest.approx(float(cycle.length / cycle.duration), rel=1e-12)


@cases
@given(st.lists(whole, min_size=1, max_size=5))
def test_fedavg_takes_everybody_every_round(values):
    _equals_its_cycle(ft.FedAvg(), ft.FixedTimes(values))


@cases
@given(st.lists(whole, min_size=1, max_size=5))
def test_asynchronous_shares_are_inverse_times(values):
    times = ft.FixedTimes(values)
    _equals_its_cycle(ft.AsyncFedAvg(), times)
    total = sum(Fraction(1, t) for t in values)
    assert ft.participation_of(ft.AsyncFedAvg(), times).exact == tuple(1 / (t * total) for t in values)


@cases
@given(st.lists(small, min_size=1, max_size=4))
def test_asynchronous_shares_of_rational_times_are_those_of_the_cycle(values):
    _equals_its_cycle(ft.AsyncFedAvg(), ft.FixedTimes(values))


@cases
@given(st.lists(small, min_size=1, max_size=5), waits)
def test_fedfix_takes_a_client_every_ceiling_of_its_time_over_the_wait(values, wait):
    times = ft.FixedTimes(values)
    _equals_its_cycle(ft.FedFix(wait), times)
    assert ft.participation_of(ft.FedFix(wait), times).exact == tuple(Fraction(1, math.ceil(t / wait)) for t in values)


@cases
@given(st.lists(st.lists(small, min_size=1, max_size=3), min_size=1, max_size=3), waits)
def test_replayed_traces_share_by_their_means(rows, wait):
    times = ft.TraceTimes(rows)
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(wait)):
        _equals_its_cycle(scheme, times)


def _buffered(values, size, rounds):
    """FedBuff by hand: each round takes the `size` earliest updates, by arrival and then by client."""
    due, now, took = list(values), Fraction(0), []
    for _ in range(rounds):
        chosen = sorted(range(len(values)), key=lambda i: (due[i], i))[:size]
        now = max(now, *(due[i] for i in chosen))
        for i in chosen:
            due[i] = now + values[i]
        took.append((now, chosen))
    return took


few = st.lists(whole, min_size=2, max_size=6).flatmap(
    lambda values: st.tuples(st.just(values), st.integers(min_value=1, max_value=len(values)))
)
many = st.tuples(
    st.lists(st.integers(min_value=1, max_value=5), min_size=20, max_size=24), st.integers(min_value=14, max_value=19)
)


@cases
@given(st.one_of(few, many))
def test_fedbuff_shares_are_those_of_its_cycle(case):
    values, size = case
    scheme, times = ft.FedBuff(size), ft.FixedTimes(values)
    found, cycle = ft.participation_of(scheme, times), ft.limit_cycle(scheme, times)
    took = _buffered(values, size, cycle.start + 3 * cycle.length)
    for k in range(3):
        part = took[cycle.start + k * cycle.length : cycle.start + (k + 1) * cycle.length]
        counts = [sum(i in chosen for _, chosen in part) for i in range(len(values))]
        assert cycle.counts.tolist() == counts
    assert found.exact == cycle.participation
    assert sum(found.exact) == size
    assert found.updates_per_round == pytest.approx(size)
    last, before = took[-1][0], took[-1 - cycle.length][0]
    assert _run(scheme, times).rounds_per_time == pytest.approx(float(cycle.length / (last - before)), rel=1e-12)


@cases
@given(st.lists(whole, min_size=1, max_size=5))
def test_a_buffer_of_one_is_asynchronous_and_of_all_synchronous(values):
    times = ft.FixedTimes(values)
    assert ft.participation_of(ft.FedBuff(1), times).exact == ft.participation_of(ft.AsyncFedAvg(), times).exact
    assert ft.participation_of(ft.FedBuff(len(values)), times).exact == (Fraction(1),) * len(values)


SHARES = ["0.1", "0.4", "1/6", "1/3"]


@pytest.mark.parametrize(
    "scheme",
    [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedFix(3), ft.FedBuff(2), ft.FedBuff(3)],
    ids=str,
)
@pytest.mark.parametrize(
    "times",
    [ft.FixedTimes([1, 2, "5/2", 6]), ft.TraceTimes([[1, 2], ["1/2"], [3, 3, 4], [2]])],
    ids=["fixed", "replay"],
)
def test_share_times_weight_is_importance_exactly(scheme, times):
    weights = ft.weights(scheme, times, importance=SHARES)
    cycle = ft.limit_cycle(scheme, times)
    products = [w * int(c) / cycle.length for w, c in zip(weights, cycle.counts, strict=True)]
    assert products == [Fraction(p) for p in SHARES]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_samples_of_fixed_clients_take_as_long_as_their_slowest(size):
    values, chances = [Fraction(3), Fraction(1, 2), Fraction(5), Fraction(2)], [Fraction(p) for p in SHARES]
    times = ft.FixedTimes(values)
    sets = list(combinations(values, size))
    assert _run(ft.UniformSampling(size), times).rounds_per_time == pytest.approx(
        float(len(sets) / sum(map(max, sets))), rel=1e-13
    )
    lasts = sum(
        math.prod(chances[i] for i in draws) * max(values[i] for i in draws) for draws in product(range(4), repeat=size)
    )
    assert _run(ft.MultinomialSampling(size), times, SHARES).rounds_per_time == pytest.approx(
        float(1 / lasts), rel=1e-13
    )


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sampling_shares_are_known_exactly(size):
    times = ft.ExponentialTimes([1, 2, 3, 4, 5])
    importance = ["1/2", "1/4", "1/8", "1/16", "1/16"]
    uniform = ft.participation_of(ft.UniformSampling(size), times)
    assert uniform.exact == (Fraction(size, 5),) * 5
    drawn = ft.participation_of(ft.MultinomialSampling(size), times, importance=importance)
    assert drawn.exact == tuple(size * Fraction(p) for p in importance)
    once = [1 - (1 - Fraction(p)) ** size for p in importance]
    assert drawn.taking_part == pytest.approx([float(s) for s in once], rel=1e-13)
    assert drawn.updates_per_round == pytest.approx(float(sum(once)), rel=1e-13)


def test_the_fastest_take_every_round_and_the_others_none():
    times = ft.FixedTimes([3, 1, 2, 1])
    found = ft.participation_of(ft.FastestSampling(2), times)
    assert found.exact == (0, 1, 0, 1)
    assert _run(ft.FastestSampling(3), times).rounds_per_time == 0.5
    with pytest.raises(ft.InputError, match="client 0, 2 never takes part"):
        ft.weights(ft.FastestSampling(2), times)


def test_of_stages_the_last_one_lasts():
    times = ft.FixedTimes([1, 2, "5/2"])
    staged = ft.StagedFedFix([("1/2", 10), (1, 7), ("3/4", None)])
    assert ft.participation_of(staged, times).exact == ft.participation_of(ft.FedFix("3/4"), times).exact


# --- random times: weights from one seed, a long run under another

ANOTHER_SEED = 20_230_807
MEANS = ["1", "0.4", "2", "0.3", "3"]
IMPORTANCE = ["0.1", "0.3", "0.2", "0.15", "0.25"]
RECORDED = [[1, 2, 5], ["1/2", "1/3"], [3, 1, 1, 1], [7, 2], ["5/2"]]
LAWS = {
    "exponential": ft.ExponentialTimes(MEANS),
    "lognormal": ft.LogNormalTimes(MEANS, sigma=[1, 0.3, 0.6, 0.5, 0.6]),
    "uniform": ft.UniformTimes(["0.5", "0.1", "1", "0.2", "1"], ["1.5", "0.7", "3", "0.4", "5"]),
    "bootstrap": ft.TraceTimes(RECORDED, mode="bootstrap"),
    "replay": ft.TraceTimes(RECORDED),
}
SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/4"),
    ft.FedFix("3/2"),
    ft.FedBuff(2),
    ft.FedBuff(4),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
]
every_law = pytest.mark.parametrize("law", LAWS)
BATCHES = 50


@pytest.fixture(autouse=True)
def _shorter_estimates(monkeypatch):
    """Where there is no closed form, 400 000 updates are enough for these tests; their error is taken into account."""
    monkeypatch.setattr("fedtempo.clock.cycle.MAX_RANDOM_UPDATES", 400_000)


def _batches(scheme, times, rounds):
    """Of the consecutive parts of a long run but the first: draws a round [batch, client] and time a round [batch];
    and each client's share of all rounds.
    """
    size = rounds // BATCHES
    clients = times.num_clients
    counts = np.zeros(BATCHES * clients)
    present = np.zeros(clients)
    ends = []
    for chunk in ft.timeline_chunks(scheme, times, rounds=rounds, importance=IMPORTANCE, seed=ANOTHER_SEED):
        place = chunk.round_of_update // size * clients + chunk.client
        counts += np.bincount(place, weights=chunk.draws, minlength=len(counts))
        present += chunk.participation_counts
        ends.append(chunk.ends)
    moments = np.concatenate([[0], np.concatenate(ends)[size - 1 :: size]]) * float(chunk.unit)
    return counts.reshape(BATCHES, clients)[1:] / size, np.diff(moments)[1:] / size, present / rounds


def _rounds(scheme):
    return 120_000 if isinstance(scheme, ft.FedBuff) else 400_000


def _check_unbiased(scheme, times):
    """Weights from seed 0 and the shares of a long run under another seed give importance, within their errors."""
    p = np.array([float(Fraction(x)) for x in IMPORTANCE])
    weights = np.asarray(ft.weights(scheme, times, importance=IMPORTANCE, seed=0))
    known = ft.participation_of(scheme, times, importance=IMPORTANCE, seed=0)
    assert weights * known.share == pytest.approx(p, rel=1e-12)

    shares, _, _ = _batches(scheme, times, _rounds(scheme))
    parts = shares * weights
    error = np.sqrt(parts.var(axis=0, ddof=1) / len(parts) + (0 if known.error is None else weights * known.error) ** 2)
    assert (error < 0.01 * p).all()  # the run is long enough to tell
    few_rounds = 5 * weights / _rounds(scheme)  # what may happen too seldom to show in the error
    assert (np.abs(parts.mean(axis=0) - p) <= 4.5 * error + few_rounds).all()


@every_law
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_client_counts_by_its_importance_in_a_long_run(law, scheme):
    _check_unbiased(scheme, LAWS[law])


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix("3/8"), ft.FedBuff(2)], ids=str)
def test_a_coarse_resolution_leaves_weights_unbiased(scheme):
    _check_unbiased(scheme, ft.ExponentialTimes(MEANS, resolution="1/4"))


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix("1/4"), ft.FedBuff(2)], ids=str)
def test_the_long_run_would_tell_identical_weights_from_unbiased_ones(scheme):
    times = LAWS["exponential"]
    p = np.array([float(Fraction(x)) for x in IMPORTANCE])
    weights = np.asarray(ft.weights(scheme, times, importance=IMPORTANCE, rule="identical"))
    parts = _batches(scheme, times, _rounds(scheme))[0] * weights
    error = np.sqrt(parts.var(axis=0, ddof=1) / len(parts))
    assert (np.abs(parts.mean(axis=0) - p) > 20 * error).any()


@every_law
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_rounds_come_at_the_expected_pace_in_a_long_run(law, scheme):
    times = LAWS[law]
    run = _run(scheme, times, IMPORTANCE)
    expected = 1 / run.rounds_per_time
    seen = vars(run).get("observation")  # there if the pace had to be estimated
    _, lasted, _ = _batches(scheme, times, _rounds(scheme))
    error = lasted.std(ddof=1) / math.sqrt(len(lasted))
    if seen is not None and seen.cycle is None:
        error *= math.sqrt(1 + _rounds(scheme) / seen.rounds)
    assert error < 0.01 * expected
    assert abs(lasted.mean() - expected) <= 4.5 * error + 1e-9


@pytest.mark.parametrize("law", ["exponential", "replay"])
def test_clients_drawn_several_times_take_part_once_a_round(law):
    times, scheme = LAWS[law], ft.MultinomialSampling(3)
    known = ft.participation_of(scheme, times, importance=IMPORTANCE)
    _, _, present = _batches(scheme, times, 200_000)
    error = np.sqrt(known.taking_part * (1 - known.taking_part) / 200_000)
    assert (np.abs(present - known.taking_part) <= 4.5 * error).all()


def test_estimates_agree_with_the_closed_form_within_their_own_error():
    """Exponential clients under FedBuff have a closed form, against which 16 estimates are held."""
    times = LAWS["exponential"]
    shares, _ = exponential_race(times.mean_time, 2)
    scores = []
    for seed in range(16):
        seen = observe(Recording(ClockConfig.of(WaitForSome(2), times, seed=seed)), max_updates=20_000)
        found = estimated(seen)
        assert found.source == "estimate"
        assert found.share.sum() == pytest.approx(2)
        scores.append((found.share - shares) / found.error)
    spread = np.sqrt(np.mean(np.square(scores)))
    assert 0.7 < spread < 1.6  # 1, were the error known and not estimated
    assert np.abs(np.mean(scores, axis=0)).max() < 4.5 * spread / 4


def test_an_estimate_depends_on_its_seed_alone():
    one, again, other = (
        ft.participation_of(ft.FedBuff(2), LAWS["uniform"], seed=seed).share.tolist() for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
