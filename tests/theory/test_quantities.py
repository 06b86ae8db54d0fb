"""The tables' quantities by name, data types, and remaining times against a plain clock."""

import inspect
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft
import fedtempo.theory as theory

cases = settings(derandomize=True, deadline=None, max_examples=40)
whole = st.integers(min_value=1, max_value=6)


# --- data types


@cases
@given(st.data())
def test_types_add_up_their_clients(data):
    values = data.draw(st.lists(whole, min_size=1, max_size=6))
    labels = data.draw(st.lists(st.sampled_from("abc"), min_size=len(values), max_size=len(values)))
    clients = ft.FixedTimes(values)
    line = ft.timeline(ft.FedFix(2), clients, rounds=20)
    found = theory.quantities(timeline=line, weights="identical", scheme=ft.FedFix(2), times=clients, types=labels)
    q, names = found.expected, sorted(set(labels), key=labels.index)
    for j, name in enumerate(names):
        members = [i for i, label in enumerate(labels) if label == name]
        assert found.types.clients[j] == tuple(members)
        assert found.by_type.type_importance[j] == pytest.approx(len(members) / len(values))
        assert found.by_type.expected_weight[j] == pytest.approx(sum(q.expected_weight[i] for i in members))
        for k in range(len(q.rounds)):
            assert found.by_type.weights[k, j] == pytest.approx(sum(q.weights[k, i] for i in members))
    total = 0.0
    for k, count in enumerate(q.rounds):
        s = found.by_type.weights[k]
        here = [j for j in range(len(names)) if s[j] > 0]
        assert found.by_type.represented[k].nonzero()[0].tolist() == here
        share = s / s.sum() if s.sum() > 0 else s
        r = found.by_type.type_importance
        chi = sum((r[j] - share[j]) ** 2 / share[j] for j in here)
        assert found.by_type.chi_squared[k] == pytest.approx(chi)
        total += count * chi
    assert found.chi_squared_mean == pytest.approx(total / 20)


def test_chi_squared_of_a_run_is_that_of_its_shares():
    found = theory.quantities(scheme=ft.AsyncFedAvg(), times=ft.FixedTimes([1, 3]), weights="identical")
    assert found.by_type.normalised_run == pytest.approx([0.75, 0.25])
    assert found.by_type.chi_squared_run == pytest.approx(0.25**2 / 0.75 + 0.25**2 / 0.25)
    assert found.max_bias == pytest.approx(0.5)
    never = theory.quantities(scheme=ft.FastestSampling(1), times=ft.FixedTimes([1, 3]), weights="identical")
    assert never.by_type.chi_squared_run == float("inf")
    assert never.to_dict()["chi_squared"] is None
    same = theory.quantities(scheme=ft.AsyncFedAvg(), times=ft.FixedTimes([1, 3]), weights="identical", types="zz")
    assert same.by_type.chi_squared_run == same.chi_squared_mean == 0.0  # iid: fair whoever takes part


def test_example_1_is_fair_to_types_and_not_to_clients():
    """Four clients of two types; each round has one client of each type: s̃_j(n) = r_j, but q̃_i(n) ≠ p_i."""
    line = ft.timeline(ft.FedBuff(2), ft.FixedTimes([1, 1, 1, 1]), rounds=8)
    weights = theory.type_weights(theory.DataTypes([1, 2, 1, 2]), [0.5] * 4)
    assert weights.tolist() == [0.5] * 4
    fair = theory.quantities(timeline=line, weights=weights, types=[1, 2, 1, 2])
    assert fair.by_type.normalised.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert fair.by_type.chi_squared.tolist() == [0.0, 0.0]
    assert set(fair.expected.normalised.ravel()) == {0.0, 0.5}
    unfair = theory.quantities(timeline=line, weights=weights)
    assert unfair.by_type.chi_squared.tolist() == [0.25, 0.25]
    assert fair.expected.window == 2


@cases
@given(st.data())
def test_type_weights_need_one_participating_client_a_type(data):
    labels = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=7))
    parts = data.draw(st.lists(whole, min_size=len(labels), max_size=len(labels)))
    importance = [Fraction(p, sum(parts)) for p in parts]
    types = theory.DataTypes(labels)
    first = {label: labels.index(label) for label in labels}
    share = np.array([0.25 * (1 + i) / len(labels) if first[label] == i else 0.0 for i, label in enumerate(labels)])
    weights = theory.type_weights(types, share, importance)
    r = types.sums([float(p) for p in importance])
    assert types.sums(weights * share) == pytest.approx(r)
    more = share + data.draw(st.sampled_from([0.0, 0.125]))
    assert types.sums(theory.type_weights(types, more, importance) * more) == pytest.approx(r)


def test_a_type_that_never_takes_part_is_refused():
    with pytest.raises(ft.InputError, match="type 'b'"):
        theory.type_weights(theory.DataTypes("ab"), [1.0, 0.0])
    with pytest.raises(ft.InputError, match="2 clients"):
        theory.DataTypes("ab").sums([1.0, 2.0, 3.0])
    with pytest.raises(ft.InputError, match="no labels"):
        theory.DataTypes([])


def test_types_are_found_in_the_data():
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=np.float32)
    label = np.array([0, 1, 1])
    other = np.array([1, 1, 1])
    data = [
        (rows, label),
        (rows[::-1], label[::-1]),  # another order
        (np.concatenate([rows, rows]), np.concatenate([label, label])),  # the same distribution
        (rows, other),
        (np.concatenate([rows, rows[:1]]), np.concatenate([label, label[:1]])),
    ]
    problem = ft.Problem(lambda key: np.zeros(2, dtype=np.float32), lambda t, b: ((b[0] @ t - b[1]) ** 2).mean(), data)
    types = theory.DataTypes.by_data(problem)
    assert types.clients == ((0, 1, 2), (3,), (4,))


# --- remaining times


def _by_clock(line, values):
    """Each client's finishing moment, followed from round to round."""
    finish = [Fraction(v) for v in values]
    out = []
    for part in line.rounds:
        out.append([max(Fraction(0), f - part.start) for f in finish])
        for client in part.participants:
            finish[client] = part.end + values[client]
    return out


@cases
@given(
    st.lists(st.builds(Fraction, whole, st.integers(min_value=1, max_value=2)), min_size=1, max_size=4),
    st.sampled_from([ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("3/2"), ft.FedFix("1/3"), ft.FedBuff(1)]),
)
def test_remaining_times_are_those_of_a_plain_clock(values, scheme):
    clients = ft.FixedTimes(values)
    line = ft.timeline(scheme, clients, rounds=25)
    found = theory.remaining_times(line, clients)
    assert found == pytest.approx(np.array(_by_clock(line, values), dtype=float))
    without = theory.remaining_times(line)
    known = ~np.isnan(without)
    assert (without[known] >= found[known] - 1e-12).all()
    for n, part in enumerate(line.rounds):
        done = {i for i in range(len(values)) if found[n, i] <= float(part.end - part.start) + 1e-12}
        if isinstance(scheme, (ft.FedAvg, ft.FedFix)):
            assert done == set(part.participants)  # S_n = {i : T_i^n ≤ Δt^n}
        assert done >= set(part.participants)


def test_remaining_times_of_random_and_sampled_clients():
    drawn = ft.ExponentialTimes([1, 2, 3])
    line = ft.timeline(ft.FedFix("1/2"), drawn, rounds=200, seed=4)
    found = theory.remaining_times(line, drawn, seed=4)
    for n, part in enumerate(line.rounds):
        assert set(np.flatnonzero(found[n] <= 0.5 + 1e-9)) == set(part.participants)
    fixed = ft.FixedTimes([1, 2, 3])
    line = ft.timeline(ft.UniformSampling(2), fixed, rounds=20)
    found = theory.remaining_times(line, fixed)
    for n, part in enumerate(line.rounds):
        expected = [float(t) if i in part.participants else np.inf for i, t in enumerate((1, 2, 3))]
        assert found[n].tolist() == expected
    with pytest.raises(ft.InputError, match="from round 0"):
        theory.remaining_times(line[3:])
    with pytest.raises(ft.InputError, match="give its own"):
        theory.remaining_times(line, ft.FixedTimes([1]))


# --- the table


def test_quantities_of_a_timeline_and_of_a_law_agree_over_a_window():
    clients = ft.FixedTimes.spread(10, 80)
    scheme = ft.FedFix("1/4")
    law = theory.quantities(scheme=scheme, times=clients)
    window = law.expected.window
    line = ft.timeline(scheme, clients, rounds=window)
    happened = theory.quantities(timeline=line, weights=ft.weights(scheme, clients), times=clients)
    a, b = law.to_dict(), happened.to_dict()
    assert a == b | {"mean_delay": pytest.approx(b["mean_delay"])}
    assert law.expected.max_delay == 3
    assert law.mean_delay == pytest.approx(10 / (1 / clients.expected_rounds(Fraction(1, 4))).sum() - 1)


def test_the_mean_delay_of_asynchronous_fedavg_is_m_minus_one():
    for clients in (ft.FixedTimes([1, 2, 5]), ft.ExponentialTimes([1, 2, 5]), ft.LogNormalTimes([1, 2, 5])):
        law = theory.quantities(scheme=ft.AsyncFedAvg(), times=clients)
        line = ft.timeline(ft.AsyncFedAvg(), clients, rounds=30_000)
        happened = theory.quantities(timeline=line, weights=[1, 1, 1])
        assert law.mean_delay == 2.0
        assert happened.mean_delay == pytest.approx(2.0, abs=1e-3)  # only the first and last jobs are off


def test_rows_and_json_name_the_same_things():
    found = theory.quantities(scheme=ft.AsyncFedAvg(), times=ft.ExponentialTimes([1, 2, 3]), types="aab")
    document = found.to_dict()
    assert [name for _, name, _ in found.rows()] == list(document)
    assert json.loads(json.dumps(document)) == document
    values = {symbol: text for symbol, _, text in found.rows() if symbol}
    assert values["α"] == "0"
    assert values["W"] == "1"
    assert values["τ"] == "–"
    assert values["r_j"] == "0.6667, 0.3333"


def test_what_is_missing_is_said():
    line = ft.timeline(ft.FedAvg(), ft.FixedTimes([1, 2]), rounds=3)
    with pytest.raises(ft.InputError, match="a timeline with its weights, or a scheme with times"):
        theory.quantities(scheme=ft.FedAvg())
    with pytest.raises(ft.InputError, match="scheme and times too"):
        theory.quantities(timeline=line)


def test_public_names_can_be_read_twice():
    first = {name: getattr(theory, name) for name in theory.__all__}
    assert all(getattr(theory, name) is first[name] for name in theory.__all__)
    assert not any(inspect.ismodule(thing) for thing in first.values())
