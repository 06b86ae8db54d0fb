"""q_i(n): kinds of rounds against a plain loop, laws against what happens, section 4's statements on d_i."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft
import fedtempo.theory as theory
from fedtempo.theory.rounds import window_of

cases = settings(derandomize=True, deadline=None, max_examples=40)
whole = st.integers(min_value=1, max_value=6)
times = st.lists(st.builds(Fraction, whole, st.integers(min_value=1, max_value=2)), min_size=1, max_size=5)


def _schemes(clients):
    sizes = st.integers(min_value=1, max_value=clients)
    wait = st.builds(Fraction, st.integers(min_value=1, max_value=8), st.integers(min_value=1, max_value=3))
    return st.one_of(
        st.just(ft.FedAvg()),
        st.just(ft.AsyncFedAvg()),
        st.builds(ft.FedFix, wait),
        st.builds(ft.FedBuff, sizes),
        st.builds(ft.UniformSampling, sizes),
        st.builds(ft.MultinomialSampling, st.integers(min_value=1, max_value=4)),
    )


@st.composite
def settings_of_rounds(draw):
    values = draw(times)
    scheme = draw(_schemes(len(values)))
    parts = draw(st.lists(whole, min_size=len(values), max_size=len(values)))
    return scheme, ft.FixedTimes(values), [Fraction(p, sum(parts)) for p in parts]


def _by_hand(line, weights):
    """How often each row of weights occurs, round by round."""
    rows = Counter()
    for part in line.rounds:
        row = [0.0] * line.num_clients
        for client, draws in zip(part.participants, part.draws, strict=True):
            row[client] += draws * float(weights[client])
        rows[tuple(row)] += 1
    return rows


def _as_counter(found):
    return Counter(
        {tuple(row): count for row, count in zip(found.weights.tolist(), found.rounds.tolist(), strict=True)}
    )


@cases
@given(settings_of_rounds(), st.integers(min_value=1, max_value=60))
def test_kinds_of_rounds_are_those_of_a_plain_loop(setting, rounds):
    scheme, clients, importance = setting
    line = ft.timeline(scheme, clients, rounds=rounds, importance=importance)
    weights = ft.weights(scheme, clients, importance=importance)
    found = theory.expected_from_timeline(line, weights)
    by_hand = _by_hand(line, np.asarray(weights))
    assert _as_counter(found) == by_hand
    assert _as_counter(theory.expected_from_timeline(line, np.asarray(weights))) == by_hand
    assert (found.num_rounds, found.co_participation, found.weight_spread) == (rounds, 1.0, 0.0)
    assert found.max_delay == max((p.number - b for p in line.rounds for b in p.base_versions), default=0)
    totals = {row: sum(row) for row in by_hand}
    assert found.max_total_weight == pytest.approx(max(1.0, *totals.values()))
    mean = sum(np.array(row) * count for row, count in by_hand.items()) / rounds
    assert found.expected_weight == pytest.approx(mean, abs=1e-14)
    for row, normal in zip(found.weights, found.normalised, strict=True):
        assert normal == pytest.approx(row / row.sum() if row.sum() else np.zeros_like(row))


@cases
@given(settings_of_rounds(), st.integers(min_value=1, max_value=60))
def test_the_window_is_the_smallest_that_satisfies_assumption_6(setting, rounds):
    scheme, clients, importance = setting
    line = ft.timeline(scheme, clients, rounds=rounds, importance=importance)
    dense = np.zeros((rounds, clients.num_clients), dtype=int)
    for n, part in enumerate(line.rounds):
        dense[n, list(part.participants)] = part.draws
    fitting = [
        w
        for w in range(1, rounds + 1)
        if rounds % w == 0
        and (dense.reshape(rounds // w, w, -1).sum(axis=1) * (rounds // w) == dense.sum(axis=0)).all()
    ]
    weights = np.linspace(0.3, 0.7, clients.num_clients)
    assert theory.expected_from_timeline(line, weights).window == fitting[0]


@cases
@given(settings_of_rounds())
def test_time_based_weights_give_every_client_its_importance_over_a_window(setting):
    scheme, clients, importance = setting
    found = theory.expected_from_scheme(scheme, clients, importance)
    assert found.expected_weight == pytest.approx([float(p) for p in importance], rel=1e-12)
    assert found.normalised_run == pytest.approx([float(p) for p in importance], rel=1e-12)
    cycle = ft.limit_cycle(scheme, clients)
    if cycle is not None:  # and so it happens, whichever whole window is looked at
        line = ft.timeline(scheme, clients, rounds=cycle.start + 3 * found.window, importance=importance)
        weights = ft.weights(scheme, clients, importance=importance)
        later = theory.expected_from_timeline(line[cycle.start + found.window :], weights)
        assert later.normalised_run == pytest.approx([float(p) for p in importance], rel=1e-12)
        assert found.window % later.window == 0


@cases
@given(settings_of_rounds())
def test_the_stationary_law_of_fixed_times_is_what_happens_in_a_cycle(setting):
    scheme, clients, importance = setting
    cycle = ft.limit_cycle(scheme, clients)
    if cycle is None:  # sampling
        return
    found = theory.expected_from_scheme(scheme, clients, importance, rounds=7 * cycle.length)
    line = ft.timeline(scheme, clients, rounds=cycle.start + cycle.length, importance=importance)[cycle.start :]
    happened = theory.expected_from_timeline(line, ft.weights(scheme, clients, importance=importance))
    expected = {row: 7.0 * count for row, count in _as_counter(happened).items()}
    assert {row: round(count, 6) for row, count in _as_counter(found).items()} == expected
    assert found.max_delay >= happened.max_delay
    assert cycle.length % found.window == 0


def test_a_million_rounds_are_quick_and_few_kinds():
    clients = ft.FixedTimes.spread(10, 80)
    line = ft.timeline(ft.AsyncFedAvg(), clients, rounds=1_000_000)
    found = theory.expected_from_timeline(line, ft.weights(ft.AsyncFedAvg(), clients))
    assert found.weights.shape == (10, 10)
    assert found.rounds.tolist() == line.participation_counts[found.weights.argmax(axis=1)].tolist()


def test_empty_rounds_are_a_kind_of_their_own():
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([2, 4]), rounds=8)
    found = theory.expected_from_timeline(line, [1.0, 2.0])
    assert _as_counter(found) == {(0.0, 0.0): 4, (1.0, 0.0): 2, (1.0, 2.0): 2}
    assert found.normalised[found.total == 0].tolist() == [[0.0, 0.0]]
    nothing = theory.expected_from_timeline(line[:1], [1.0, 2.0])
    assert nothing.expected_weight.tolist() == nothing.normalised_run.tolist() == [0.0, 0.0]
    assert nothing.max_total_weight == 1.0


def test_discounts_and_stages_enter_the_weights_that_happened():
    clients = ft.FixedTimes([1, 3])
    rule = ft.Discounted(ft.Identical(), ft.PolynomialDiscount(1))
    line = ft.timeline(ft.AsyncFedAvg(), clients, rounds=12)
    weights = ft.weights(ft.AsyncFedAvg(), clients, rule=rule)
    found = theory.expected_from_timeline(line, weights)
    applied = Counter()
    for part in line.rounds:
        [client], [base] = part.participants, part.base_versions
        applied[client, round(1 / (1 + part.number - base), 12)] += 1
    seen = Counter()
    for row, count in zip(found.weights, found.rounds, strict=True):
        seen[int(row.argmax()), round(float(row.max()), 12)] += int(count)
    assert seen == applied
    staged = ft.StagedFedFix([(1, 4), (3, None)])
    line = ft.timeline(staged, clients, rounds=8)
    found = theory.expected_from_timeline(line, ft.weights(staged, clients))
    # client 1 has a job out when the stage changes, which the longer wait then catches in the next round
    assert sum(found.rounds) == 8
    assert {tuple(np.round(row, 12)) for row in found.weights} == {(0.5, 0.0), (0.5, 1.5), (0.5, 0.5)}


def test_the_expected_law_of_discounted_weights_is_that_of_the_cycle():
    clients = ft.FixedTimes([1, 3])
    rule = ft.Discounted(ft.Identical(), ft.PolynomialDiscount(1))
    found = theory.expected_from_scheme(ft.AsyncFedAvg(), clients, weights=rule)
    assert found.expected_weight == pytest.approx(ft.expected_weights(ft.AsyncFedAvg(), clients, rule=rule))


# --- random participation


def _moments(line, weights):
    """Means of ω_i and ω_i ω_j over a run, by a dense table."""
    table = np.zeros((line.num_rounds, line.num_clients))
    draws = 1 if line.draws is None else line.draws
    table[line.round_of_update - line.first_round, line.client] = np.asarray(weights)[line.client] * draws
    return table.mean(axis=0), table.T @ table / len(table), table


RANDOM = [
    (ft.AsyncFedAvg(), ft.ExponentialTimes([1, 2, 5])),
    (ft.AsyncFedAvg(), ft.LogNormalTimes([1, 2, 5])),
    (ft.FedFix("3/2"), ft.ExponentialTimes([1, 2, 5])),
    (ft.FedFix("3/2"), ft.UniformTimes([1, 1, 2], [2, 5, 4])),
    (ft.FedFix("3/2"), ft.TraceTimes([[1, 2, 7], [2, 3], [1]], mode="bootstrap")),
    (ft.FedBuff(2), ft.ExponentialTimes([1, 2, 5, 5])),
    (ft.FedBuff(2), ft.LogNormalTimes([1, 2, 5, 5])),
    (ft.UniformSampling(2), ft.FixedTimes([1, 2, 3, 4])),
    (ft.MultinomialSampling(3), ft.FixedTimes([1, 2, 3])),
]


@pytest.mark.parametrize(("scheme", "clients"), RANDOM, ids=lambda x: str(x))
def test_random_laws_have_the_moments_of_a_long_run(scheme, clients):
    found = theory.expected_from_scheme(scheme, clients, seed=1)
    weights = ft.weights(scheme, clients, seed=1)
    line = ft.timeline(scheme, clients, rounds=40_000, seed=2)[4_000:]
    mean, second, table = _moments(line, weights)
    blocks = table.reshape(40, -1, table.shape[1])  # block means carry the correlation in time
    error = blocks.mean(axis=1).std(axis=0) / np.sqrt(39)
    assert (np.abs(mean - found.weights[0]) <= 5 * error + 1e-12).all()
    # γ_i as defined, from the run's moments, with the run's uncertainty in E[ω_i ω_j]
    gap = second - found.co_participation * np.outer(mean, mean)
    gamma = np.diag(gap) + (np.abs(gap).sum(axis=1) - np.abs(np.diag(gap)))
    products = np.einsum("bri,brj->bij", blocks, blocks) / blocks.shape[1]
    noise = products.std(axis=0).sum(axis=1) / np.sqrt(39) + 2 * mean.sum() * error
    stationary = np.zeros(len(mean)) if found.gamma is None else found.gamma[0]
    assert (np.abs(gamma - stationary) <= 5 * noise + 1e-12).all()


def test_the_closed_forms_of_alpha_and_beta():
    fixed = ft.FixedTimes.spread(10, 80)
    drawn = ft.ExponentialTimes(fixed.exact_mean_time)
    tau, p = fixed.mean_time, 0.1
    eager = theory.expected_from_scheme(ft.AsyncFedAvg(), drawn)
    assert (eager.co_participation, eager.window, eager.max_delay) == (0.0, 1, None)
    assert eager.weight_spread == pytest.approx(p * (1 / tau).sum() * tau.max(), rel=1e-6)
    assert eager.weights[0] == pytest.approx(np.full(10, p))
    fix = theory.expected_from_scheme(ft.FedFix("1/2"), drawn)
    assert fix.co_participation == 1.0
    assert fix.weight_spread == pytest.approx((p / np.expm1(0.5 / tau)).max(), rel=1e-9)
    certain = theory.expected_from_scheme(ft.AsyncFedAvg(), fixed)
    assert (certain.co_participation, certain.weight_spread) == (1.0, 0.0)
    printed = theory.expected_from_scheme(ft.AsyncFedAvg(), fixed, co_participation=0)
    assert printed.weight_spread == pytest.approx(p * (1 / tau).sum() * tau.max()) == pytest.approx(2.128, abs=1e-3)
    assert printed.weight_spread <= tau.max() / tau.min()  # the paper's bound on β
    assert certain.max_delay == sum(-(-1 // Fraction(t)) for t in fixed.exact_mean_time) - 1 == 25  # no cycle in reach
    assert ft.timeline(ft.AsyncFedAvg(), fixed, rounds=50_000).staleness.max() <= 25
    half = theory.expected_from_scheme(ft.AsyncFedAvg(), fixed, co_participation=0.5)
    assert half.weight_spread == pytest.approx(printed.weight_spread / 2)


def test_a_window_is_not_always_at_least_as_long_as_the_largest_delay():
    """'By construction W ≥ τ' (section 3.4): exponential FedFix has W = 1 and delays without bound."""
    law = theory.expected_from_scheme(ft.FedFix("1/10"), ft.ExponentialTimes([1, 2]))
    line = ft.timeline(ft.FedFix("1/10"), ft.ExponentialTimes([1, 2]), rounds=2_000)
    assert law.window == 1
    assert law.max_delay is None
    assert line.staleness.max() > 20


# --- statements of section 4


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_equal_clients_have_a_window_of_m_and_delays_of_m_minus_one(clients):
    same = ft.FixedTimes([2] * clients)
    law = theory.expected_from_scheme(ft.AsyncFedAvg(), same)
    line = ft.timeline(ft.AsyncFedAvg(), same, rounds=6 * clients)
    happened = theory.expected_from_timeline(line, ft.weights(ft.AsyncFedAvg(), same))
    assert law.window == happened.window == clients
    assert law.max_delay == happened.max_delay == clients - 1
    assert (line.staleness[clients:] == clients - 1).all()


@cases
@given(times, st.integers(min_value=2, max_value=9))
def test_only_tau_times_p_matters_up_to_the_server_rate(values, factor):
    """η_g d_i ∝ τ_i p_i (section 4.3): weights and server rate matter through their product."""
    clients = ft.FixedTimes(values)
    weights = ft.weights(ft.AsyncFedAvg(), clients)
    assert len({w / t for w, t in zip(weights, clients.exact_mean_time, strict=True)}) == 1
    line = ft.timeline(ft.AsyncFedAvg(), clients, rounds=30)
    once = theory.expected_from_timeline(line, weights)
    more = theory.expected_from_timeline(line, factor * np.asarray(weights))
    assert more.weights / factor == pytest.approx(once.weights)
    assert more.normalised == pytest.approx(once.normalised)
    faster = ft.FixedTimes([t / factor for t in clients.exact_mean_time])
    assert tuple(ft.weights(ft.AsyncFedAvg(), faster)) == tuple(weights)


def test_fedfix_weights_between_asynchronous_and_synchronous():
    """d_i Δt → τ_i p_i as Δt → 0, within p_i Δt; d_i = p_i from Δt = τ_M on (section 4.4)."""
    clients = ft.FixedTimes([1, "5/3", 3, "22/7"])
    taus, p = clients.exact_mean_time, Fraction(1, 4)
    gaps = []
    for wait in (Fraction(1, 10), Fraction(1, 100), Fraction(1, 1000)):
        weights = ft.weights(ft.FedFix(wait), clients)
        assert all(0 <= d * wait - t * p < p * wait for d, t in zip(weights, taus, strict=True))
        eager = ft.weights(ft.AsyncFedAvg(), clients)
        shares = [np.array([float(d) for d in w]) for w in (weights, eager)]
        gaps.append(float(np.abs(shares[0] / shares[0].sum() - shares[1] / shares[1].sum()).max()))
    assert all(later < earlier / 5 for earlier, later in pairwise(gaps))
    for wait in (max(taus), max(taus) + 1):
        assert tuple(ft.weights(ft.FedFix(wait), clients)) == (p,) * 4
        law = theory.expected_from_scheme(ft.FedFix(wait), clients)
        assert (law.window, law.max_delay, len(law.rounds)) == (1, 0, 1)
    law = theory.expected_from_scheme(ft.FedFix(max(taus) * Fraction(99, 100)), clients)
    assert law.max_delay == 1


@cases
@given(times)
def test_asynchronous_makes_at_least_m_times_more_rounds(values):
    clients = ft.FixedTimes(values)
    until = 20 * max(clients.exact_mean_time)
    eager, calm = (theory.rounds_in(s, clients, until) for s in (ft.AsyncFedAvg(), ft.FedAvg()))
    assert eager >= clients.num_clients * calm


@cases
@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=5), st.integers(min_value=1, max_value=12))
def test_the_bounds_of_table_2(values, wait):
    clients = ft.FixedTimes(values)
    count, fast, slow = len(values), min(values), max(values)
    eager = theory.expected_from_scheme(ft.AsyncFedAvg(), clients, co_participation=0)
    assert eager.weight_spread <= slow / fast * (1 + 1e-12)
    assert count <= eager.window <= count * slow ** (count - 1)  # as in the text; the table has the power M
    assert eager.max_delay <= max(sum(-(-a // b) for j, b in enumerate(values) if j != i) for i, a in enumerate(values))
    assert eager.max_delay <= (count - 1) * -(-slow // fast)
    fix = theory.expected_from_scheme(ft.FedFix(wait), clients)
    assert fix.max_delay == -(-slow // wait) - 1
    assert fix.window <= (-(-slow // wait)) ** count
    if wait >= fast:  # what the table's bounds need
        assert fix.max_delay <= slow // fast
        assert fix.window <= count * (-(-slow // fast)) ** count


def test_table_2_bounds_fedfix_delays_only_from_the_fastest_time_on():
    law = theory.expected_from_scheme(ft.FedFix("1/2"), ft.FixedTimes([2, 3]))
    assert law.max_delay == 5 > 3 // 2


def test_the_bound_on_beta_needs_equal_importance():
    law = theory.expected_from_scheme(ft.AsyncFedAvg(), ft.FixedTimes([1, 1, 2]), [0.1, 0.1, 0.8], co_participation=0)
    assert law.weight_spread > 2


def test_other_schemes_have_laws_too():
    clients = ft.FixedTimes([1, 2, 4])
    staged = theory.expected_from_scheme(ft.StagedFedFix([(1, 4), (2, None)]), clients)
    last = theory.expected_from_scheme(ft.FedFix(2), clients)
    assert staged.weights.tolist() == last.weights.tolist()
    assert staged.window == last.window == 2
    fastest = theory.expected_from_scheme(ft.FastestSampling(2), ft.LogNormalTimes([1, 2, 4]), weights="identical")
    assert (fastest.weights > 0).tolist() == [[True, True, False]]
    assert (fastest.co_participation, fastest.weight_spread, fastest.max_delay) == (1.0, 0.0, 0)
    trace = ft.TraceTimes([[1, 3], [2]])
    replayed = theory.expected_from_scheme(ft.FedFix(1), trace)
    cycle = ft.limit_cycle(ft.FedFix(1), trace)
    assert replayed.window == cycle.length == 4
    assert replayed.expected_weight == pytest.approx([0.5, 0.5])
    assert replayed.max_delay == 2


def test_wrong_input_says_what_to_change():
    line = ft.timeline(ft.FedAvg(), ft.FixedTimes([1, 2]), rounds=3)
    with pytest.raises(ft.InputError, match="one number per client"):
        theory.expected_from_timeline(line, [1.0])
    with pytest.raises(ft.InputError, match="at least 0"):
        theory.expected_from_timeline(line, [1.0, -1.0])
    with pytest.raises(ft.InputError, match="no rounds"):
        theory.expected_from_timeline(line[:0], [1.0, 1.0])
    with pytest.raises(ft.InputError, match="between 0 and 1"):
        theory.expected_from_timeline(line, [1.0, 1.0], co_participation=2)
    with pytest.raises(ft.InputError, match="more time"):
        theory.expected_from_scheme(ft.FedAvg(), ft.FixedTimes([1, 2]), until="1/2")
    with pytest.raises(ft.InputError, match="not known"):
        theory.expected_from_scheme(ft.FedAvg(), ft.FixedTimes([1, 2]), weights="best")


def test_a_client_that_is_late_in_the_first_half_has_no_window_of_a_half():
    line = ft.timeline(ft.FedFix(1), ft.TraceTimes([[3, 1]]), rounds=8)  # rounds 2, 3, 6, 7
    assert theory.expected_from_timeline(line, [1.0]).window == 4
    assert theory.expected_from_timeline(line[:4], [1.0]).window == 4


def test_weights_that_change_have_the_whole_run_as_window():
    line = ft.timeline(ft.AsyncFedAvg(), ft.FixedTimes([1, 1]), rounds=6)
    applied = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 1.0])
    assert window_of(line, np.ones(6)) == 2
    assert window_of(line, applied) == 6
