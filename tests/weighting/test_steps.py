"""Steps that are stable: the two bounds on random orders, overlaps against a plain loop, and the known factors."""

from __future__ import annotations

from collections import deque
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.timeline import Timeline
from fedtempo.errors import InputError
from fedtempo.theory.regimes import regime
from fedtempo.theory.stability import stability_limit
from fedtempo.weighting import steps
from fedtempo.weighting.steps import (
    STEPS,
    check_step,
    largest_overlap,
    proven_step,
    stable_step,
    step_of,
    step_per_time,
)
from support.step_cases import case_of, draw

F80 = ft.FixedTimes.spread(10, 80)
EXPONENTIAL = ft.ExponentialTimes(["1", "1/2", "3", "2"])


# orders of arrivals


def random_order(rng: np.random.Generator, clients: int) -> list[list[int]]:
    """Rounds of one or several clients, each client at least once, to be repeated for ever."""
    calls = rng.permutation(np.r_[np.arange(clients), rng.integers(0, clients, rng.integers(0, 9))]).tolist()
    order: list[list[int]] = []
    for client in calls:
        if order and client not in order[-1] and rng.random() < 0.3:
            order[-1].append(client)
        else:
            order.append([client])
    return order


def symmetric(rng: np.random.Generator, size: int, c: float) -> np.ndarray:
    """0 ≺ A ⪯ c with c among its eigenvalues, in directions of its own."""
    turned, _ = np.linalg.qr(rng.normal(size=(size, size)))
    values = c * np.where(rng.random(size) < 0.5, 1.0, rng.uniform(0.05, 1.0, size))
    values[0] = c
    return (turned * values) @ turned.T


def overlap_of(order: list[list[int]], w: np.ndarray) -> float:
    """Γ of an order that repeats, as a plain loop."""
    last: dict[int, int] = {}
    total, most = [0.0], 0.0
    for n, taken in enumerate(order * 3):
        for client in taken:
            if client in last:
                most = max(most, total[n] - total[last[client] + 1])
            last[client] = n
        total.append(total[-1] + w[taken].sum())
    return most


def radius(order: list[list[int]], w: np.ndarray, pulls: np.ndarray) -> float:
    """Spectral radius of one turn of the order on the state (θ, b_1, …, b_M)."""
    clients, size = pulls.shape[:2]
    state = np.eye((clients + 1) * size).reshape(clients + 1, size, -1)
    for taken in order:
        new = state[0] - sum(w[i] * pulls[i] @ state[i + 1] for i in taken)
        state[[0, *(i + 1 for i in taken)]] = new
    return float(np.abs(np.linalg.eigvals(state.reshape(state.shape[2], -1))).max())


def check_orders(numbers: range) -> None:
    for number in numbers:
        rng = np.random.default_rng(number)
        clients, size = int(rng.integers(2, 7)), int(rng.integers(2, 6))
        order, w = random_order(rng, clients), rng.uniform(0.01, 1.0, clients) ** rng.choice([1, 3])
        c = 0.999 * 2 / (w.sum() + overlap_of(order, w))
        pulls = np.array([symmetric(rng, size, c) for _ in range(clients)])
        assert radius(order, w, pulls) <= 1, number


def test_no_order_diverges_below_the_bound() -> None:
    check_orders(range(300))


def test_no_order_of_two_thousand_diverges_below_the_bound() -> None:
    check_orders(range(300, 2300))


def test_beyond_the_bound_orders_diverge() -> None:
    """FedAvg: the bound is the limit itself; round robin: twice as far is too far."""
    one = [[0, 1, 2]]
    assert radius(one, np.full(3, 1 / 3), np.full((3, 1, 1), 1.999)) < 1
    assert radius(one, np.full(3, 1 / 3), np.full((3, 1, 1), 2.001)) > 1
    turn, w = [[i] for i in range(10)], np.full(10, 0.1)
    c = 2 / (1 + overlap_of(turn, w))
    assert overlap_of(turn, w) == pytest.approx(0.9)
    assert radius(turn, w, np.full((10, 1, 1), c)) < 1 < radius(turn, w, np.full((10, 1, 1), 1.7 * c))


def jobs_drawn(rng: np.random.Generator, events: int) -> tuple[list[tuple[list[int], list[int]]], np.ndarray]:
    """Events that take some of the jobs that are out and start others, and each job's weight; 0: it never counts."""
    out: deque[int] = deque()
    drawn, started = [], 0
    for _ in range(events):
        leave = [job for job in out if rng.random() < rng.choice([0.1, 0.5])]
        out = deque(job for job in out if job not in leave)
        begin = list(range(started, started + int(rng.integers(0 if out else 1, 4))))
        started += len(begin)
        out.extend(begin)
        drawn.append((leave, begin))
    return drawn, np.where(rng.random(started) < 0.15, 0.0, rng.uniform(0.05, 1.0, started))


@pytest.mark.parametrize("seed", range(20))
def test_the_energy_of_jobs_is_bounded_for_weights_that_vary(seed) -> None:
    """Σ w‖g‖² ≤ ‖θ⁰‖²/δ and ‖y‖ ≤ ‖θ⁰‖: weights by job, jobs that never count, any number at once."""
    rng = np.random.default_rng(seed)
    events, w = jobs_drawn(rng, 60)
    begins, ends = np.full(len(w), -1), np.full(len(w), len(events))
    for n, (leave, begin) in enumerate(events):
        begins[begin], ends[leave] = n, n
    together = (begins[:, None] < ends) & (begins < ends[:, None])
    most = float((together @ w)[w > 0].max())
    c = 0.97 * 2 / most
    pulls = [symmetric(rng, 3, c) for _ in w]
    theta = first = rng.normal(size=3)
    g = np.zeros((len(w), 3))
    energy, out = 0.0, set[int]()
    for leave, begin in events:
        theta = theta - w[leave] @ g[leave]
        for job in begin:
            g[job] = pulls[job] @ theta
            energy += w[job] * g[job] @ g[job]
        out = (out - set(leave)) | set(begin)
        y = theta - sum(w[job] * g[job] for job in out)
        assert np.linalg.norm(y) <= np.linalg.norm(first) + 1e-12
    assert energy <= first @ first / (2 / c - most) + 1e-12
    assert np.linalg.norm(theta) <= np.linalg.norm(first) * (1 + np.sqrt(most / (2 / c - most)))


@pytest.mark.parametrize("seed", range(10))
def test_clients_that_go_at_most_all_the_way_never_leave_the_range(seed) -> None:
    """In each direction, at c × (weight out at once) = 1: |θ| ≤ |θ⁰| in any order, weights that vary; and it falls."""
    rng = np.random.default_rng([7, seed])
    events, w = jobs_drawn(rng, 200)
    out, heaviest = set[int](), 0.0
    for leave, begin in events:
        out = (out - set(leave)) | set(begin)
        heaviest = max(heaviest, w[list(out)].sum())
    pull = np.where(rng.random((len(w), 50)) < 0.5, 1.0, rng.uniform(0.2, 1.0, (len(w), 50))) / heaviest
    theta, g = np.ones(50), np.zeros((len(w), 50))
    for leave, begin in events:
        theta = theta - w[leave] @ g[leave]
        g[begin] = pull[begin] * theta
        assert np.abs(theta).max() <= 1 + 1e-12
    assert np.abs(theta).max() < 0.1


def test_all_the_way_is_as_far_as_one_can_promise() -> None:
    """One slow client that has nearly all the weight: what the others have mended it mends again."""
    order, w = [[1]] * 2000 + [[0]], np.array([0.99, 0.01])
    assert radius(order, w, np.ones((2, 1, 1))) < 1 < radius(order, w, np.full((2, 1, 1), 1.02))


# overlaps


def overlap_by_loop(line: Timeline, d: np.ndarray) -> float:
    """Γ of a timeline, as a plain loop: what the rounds from an update's base to its own apply."""
    rounds = list(line.rounds)
    applied = [sum(d[i] for i in r.participants) for r in rounds]
    return max(
        (sum(applied[base : r.number]) for r in rounds for base in r.base_versions),
        default=0.0,
    )


@pytest.mark.parametrize(
    ("scheme", "times"),
    [
        (ft.AsyncFedAvg(), ft.FixedTimes([1] * 4)),
        (ft.AsyncFedAvg(), ft.FixedTimes([5, 3, 2])),
        (ft.FedFix("1/2"), ft.FixedTimes(["1/3", "5/4", "2", "3/4"])),
        (ft.FedFix("1/7"), ft.FixedTimes(["1/3", "1/2", "2/5"])),
        (ft.FedBuff(2), ft.FixedTimes([5, 3, 2, 1])),
        (ft.FedBuff(3), F80),
        (ft.FedAvg(), F80),
    ],
    ids=str,
)
def test_overlaps_of_fixed_times_are_those_of_a_plain_loop(scheme, times) -> None:
    case = case_of(scheme, times)
    found, sure = largest_overlap(case.run, case.d)
    assert sure
    cycle = case.run.observation.cycle
    line = Timeline.joined(case.run.record.rounds(cycle.start + 3 * cycle.length))
    assert found == pytest.approx(overlap_by_loop(line, case.d))


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)], ids=str)
def test_overlaps_of_random_times_are_only_seen(scheme, monkeypatch) -> None:
    monkeypatch.setattr(steps, "MAX_UPDATES", 3000)
    monkeypatch.setattr(steps, "MAX_ASKED_UPDATES", 3000)
    case = case_of(scheme, EXPONENTIAL)
    found, sure = largest_overlap(case.run, case.d)
    assert not sure
    rounds = int(3000 / case.run.participation.updates_per_round) + 1
    assert found == pytest.approx(overlap_by_loop(Timeline.joined(case.run.record.rounds(rounds)), case.d))


@pytest.mark.parametrize("number", [n for n in range(60) if n % 3 != 1])
def test_where_the_cycle_is_too_long_a_bound_takes_its_place(number, monkeypatch) -> None:
    """Of asynchronous FedAvg and FedFix; never below what is exact, and the same for two clients."""
    case = draw(number)
    exact, sure = largest_overlap(case.run, case.d)
    assert sure
    monkeypatch.setattr(steps, "MAX_UPDATES", 0)
    bound, sure = largest_overlap(case.run, case.d)
    assert sure
    assert bound >= exact - 1e-12
    if len(case.d) == 2:
        assert bound == pytest.approx(exact)


def test_the_bound_is_met_where_all_phases_occur() -> None:
    """Times without a common divisor: some job of the slowest meets every other client as often as it can."""
    case = case_of(ft.AsyncFedAvg(), ft.FixedTimes([7, 5, 3, 2]))
    exact, _ = largest_overlap(case.run, case.d)
    assert steps._bound(case.run, case.d) == pytest.approx(exact)


def test_overlaps_of_clients_whose_jobs_fail(monkeypatch) -> None:
    """Some jobs begin between rounds, and some never count: charged are starts from later versions, up to its round."""
    monkeypatch.setattr(steps, "MAX_AVAILABLE_UPDATES", 500)
    times = ft.FixedTimes([1, 2, 9]).available(failure=["1/2", "1/2", 0])
    case = case_of(ft.AsyncFedAvg(), times)
    found, sure = largest_overlap(case.run, case.d)
    assert not sure
    rounds = int(500 / case.run.participation.updates_per_round) + 1
    line = Timeline.joined(case.run.record.rounds(rounds))
    number, weight = line.round_of_update, case.d[line.client]
    each = [weight[(line.base > b) & (line.base <= n)].sum() for b, n in zip(line.base, number, strict=True)]
    assert found == pytest.approx(max(each))


# steps


def test_names_of_steps() -> None:
    assert [check_step(name) for name in STEPS] == ["stable", "paper", "proven"]
    for wrong in ("Stable", "", None, 1.0, ["stable"]):
        with pytest.raises(InputError, match=r"server step: .* use 'stable' .* 'paper' .* 'proven'"):
            check_step(wrong, "server step")


def test_asynchronous_weights_are_importance_times_time() -> None:
    importance = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    case = case_of(ft.AsyncFedAvg(), ft.FixedTimes([1, 4, 2]), importance)
    p, tau = np.array([1 / 2, 1 / 3, 1 / 6]), np.array([1, 4, 2])
    assert stable_step(case.run, case.d) * case.d == pytest.approx(p * tau / (p @ tau))


@pytest.mark.parametrize(
    "scheme",
    [ft.FedAvg(), ft.UniformSampling(3), ft.MultinomialSampling(3), ft.Centralized()],
    ids=str,
)
def test_without_staleness_steps_stay(scheme) -> None:
    case = case_of(scheme, F80 if scheme != ft.Centralized() else ft.FixedTimes([1]))
    assert [step_of(name, case.run, case.d) for name in STEPS] == [1, 1, 1]
    assert largest_overlap(case.run, case.d) == (0, True)
    assert proven_step(case.run, case.d) == pytest.approx(2)


@pytest.mark.parametrize("weights", ["time-based", "identical", "importance"])
@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix("1/5"), ft.FedFix("7/10"), ft.FedBuff(4)], ids=str)
def test_one_update_of_every_client_together_weighs_one(scheme, weights) -> None:
    case = case_of(scheme, F80, weights=weights)
    assert stable_step(case.run, case.d) * case.d.sum() == pytest.approx(1)


def test_the_second_cycle_counts() -> None:
    """In the first, all start together; then the second client starts while a job of the first is out."""
    case = case_of(ft.AsyncFedAvg(), ft.FixedTimes([1, 1]), [Fraction(1, 4), Fraction(3, 4)])
    assert largest_overlap(case.run, case.d) == (pytest.approx(1.5), True)


def test_the_heaviest_round_of_sampled_clients() -> None:
    """Those who are never chosen do not count, and who is drawn three times counts three times."""
    fastest = case_of(ft.FastestSampling(2), F80, weights="identical")
    assert proven_step(fastest.run, fastest.d) == pytest.approx(2)
    drawn = case_of(ft.MultinomialSampling(3), ft.FixedTimes([1, 2]))
    assert proven_step(drawn.run, drawn.d) == pytest.approx(2)
    heavy = case_of(ft.UniformSampling(1), ft.FixedTimes([1, 2]), [Fraction(1, 10), Fraction(9, 10)])
    assert step_of("stable", heavy.run, heavy.d) == 1
    assert step_of("proven", heavy.run, heavy.d) == 1
    assert proven_step(heavy.run, heavy.d) == pytest.approx(2 / 1.8)


def test_stable_steps_by_name() -> None:
    fix = case_of(ft.FedFix("1/2"), F80)
    assert step_of("stable", fix.run, fix.d) == pytest.approx(1 / 1.6)
    assert step_of("paper", fix.run, fix.d) == 1
    assert largest_overlap(fix.run, fix.d) == (pytest.approx(0.4), True)
    assert proven_step(fix.run, fix.d) == pytest.approx(1)
    assert step_of("proven", fix.run, fix.d) == pytest.approx(1 / 1.6)
    buff = case_of(ft.FedBuff(5), F80)
    assert step_of("stable", buff.run, buff.d) == pytest.approx(1 / (0.1 / buff.run.participation.share).sum())
    free = case_of(ft.AsyncFedAvg(), F80)
    assert step_of("proven", free.run, free.d) == proven_step(free.run, free.d) < stable_step(free.run, free.d)
    even = case_of(ft.AsyncFedAvg(), ft.FixedTimes([1] * 5), weights="identical")
    assert stable_step(even.run, even.d) == pytest.approx(1 / 5)
    assert proven_step(even.run, even.d) == pytest.approx(2 / 9)
    with pytest.raises(InputError, match="step: 'papers' is not known"):
        step_of("papers", fix.run, fix.d)


def test_random_times_have_the_step_of_their_shares() -> None:
    case = case_of(ft.AsyncFedAvg(), EXPONENTIAL)
    tau = np.array([1, 1 / 2, 3, 2])
    assert stable_step(case.run, case.d) * case.d == pytest.approx(tau / tau.sum(), rel=1e-5)


def test_clients_that_never_take_part_do_not_count() -> None:
    """Client 2 leaves for good: its weight is left out."""
    gone = ft.FixedTimes([1, 2, 3]).available(absences={2: [(4, None)]})
    case = case_of(ft.AsyncFedAvg(), gone)
    d = np.array([3 / 4, 3 / 2, 99.0])
    assert case.run.participation.share[2] == 0
    assert stable_step(case.run, d) == pytest.approx(1 / 2.25)
    alone = case_of(ft.AsyncFedAvg(), ft.FixedTimes([1, 2]))
    assert largest_overlap(case.run, d) == largest_overlap(alone.run, d[:2])
    assert proven_step(case.run, d) == proven_step(alone.run, d[:2])


def test_clients_that_come_and_go_have_a_step() -> None:
    times = ft.FixedTimes([1, 2, 4]).available(failure=["1/4", 0, 0])
    case = case_of(ft.AsyncFedAvg(), times)
    rate = np.array([3 / 4, 1 / 2, 1 / 4])
    assert stable_step(case.run, case.d) * case.d == pytest.approx((1 / rate) / (1 / rate).sum())


def test_weights_that_follow_from_what_happened_have_no_step_ahead() -> None:
    case = case_of(ft.AsyncFedAvg(), F80)
    for name in ("stable", "proven"):
        with pytest.raises(InputError, match="give step='paper'"):
            step_of(name, case.run, np.full(10, np.nan))


@pytest.mark.parametrize("wait", ["1/5", "1/2", "7/10", "1"])
@pytest.mark.parametrize("spread", [0, 80])
def test_pace_of_fedfix_against_fedavg(wait, spread) -> None:
    times = ft.FixedTimes.spread(10, spread)
    fix, avg = case_of(ft.FedFix(wait), times), case_of(ft.FedAvg(), times)
    paces = [step_per_time(c.run, c.d, stable_step(c.run, c.d)) for c in (fix, avg)]
    dt = float(Fraction(wait))
    assert paces[1] == pytest.approx(1)
    assert paces[0] == pytest.approx(1 / (dt * np.mean(times.rounds_needed(Fraction(wait)))))
    if (wait, spread) == ("7/10", 0):
        assert paces[0] == pytest.approx(0.714, abs=1e-3)


def test_asynchronous_pace_is_one_over_the_mean_time() -> None:
    case = case_of(ft.AsyncFedAvg(), F80)
    assert step_per_time(case.run, case.d, stable_step(case.run, case.d)) == pytest.approx(1 / F80.mean_time.mean())
    assert step_per_time(case.run, case.d, 1.0) == pytest.approx(float((1 / F80.mean_time).sum()))


# stability


def growth(case, step: float, pull: np.ndarray) -> float:
    """The largest growth a round over clients that go pull[client, trial] of the way."""
    law = regime(case.scheme, case.times, importance=case.importance, server_lr=step)
    return float(law.growth(pull[:, None, :])[0].max())


@pytest.mark.parametrize("number", range(45))
def test_the_stable_step_is_stable_up_to_all_the_way(number) -> None:
    """Equal and unequal fractions of the way, random fixed times; the proven one too."""
    case = draw(number)
    rng, clients = np.random.default_rng(number), len(case.d)
    same = np.tile([0.1, 0.5, 0.9, 0.995], (clients, 1))
    unequal = 0.995 * rng.random((clients, 10)) ** 0.3
    for name in ("stable", "proven"):
        assert growth(case, step_of(name, case.run, case.d), np.hstack([same, unequal])) < 0


@pytest.mark.parametrize(
    ("times", "largest"),
    [
        (ft.FixedTimes([1] * 5), 1.736),
        (ft.FixedTimes.spread(5, 80), 2.167),
        (ft.FixedTimes([10, 1, 1, 1, 1]), 1.402),
        (ft.FixedTimes([100, 1, 1, 1, 1]), 1.056),
    ],
)
def test_how_far_clients_may_go_under_the_stable_step(times, largest) -> None:
    case = case_of(ft.AsyncFedAvg(), times)
    limit = stability_limit(np.ones(5), case.scheme, times, server_lr=stable_step(case.run, case.d))
    assert limit.lr == pytest.approx(largest, abs=1e-3)


def test_updates_a_round_over_clients_would_not_do() -> None:
    """The mean staleness by count: with one client 100 times slower it diverges for clients that go 9 % of the way."""
    case = case_of(ft.AsyncFedAvg(), ft.FixedTimes([100, 1, 1, 1, 1]))
    assert growth(case, 1 / 5, np.full((5, 1), 0.09)) > 0
    assert growth(case, stable_step(case.run, case.d), np.full((5, 1), 0.995)) < 0
