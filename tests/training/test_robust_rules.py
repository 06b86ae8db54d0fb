"""Robust server rules: each against slow plain NumPy, what they keep, when they move, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.schemes.table import scheme_of
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.training.robust_rules import FEWEST, SILENT, middle
from fedtempo.training.server_contract import Arrival
from fedtempo.training.server_rules import server_rule
from fedtempo.training.solvers import Answer, Sent
from simulation.test_engines import distance, flat

RULES = {
    "median": ft.CoordinateMedian(),
    "median alone": ft.CoordinateMedian(mix=False),
    "trimmed-mean": ft.TrimmedMean(),
    "trimmed-mean alone": ft.TrimmedMean(mix=False),
    "trimmed-mean more": ft.TrimmedMean(trim=0.3),
    "krum": ft.Krum(),
    "krum of one": ft.Krum(hostile=1, chosen=1),
    "norm-clipping": ft.NormClipping(),
    "norm-clipping longer": ft.NormClipping(factor=1.5),
}


# -- the middle


def by_copies(values, counts, trim: Fraction):
    """Every value as often as it counts; what lies at the ends is thrown away, copy by copy."""
    total = sum(counts)
    fine = (trim * total).denominator
    copies = np.sort(np.repeat(values, [c * fine for c in counts]))
    cut = int(trim * total * fine)
    return copies[cut : len(copies) - cut].mean()


@pytest.mark.parametrize("seed", range(12))
def test_the_middle_is_that_of_copies(seed) -> None:
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, 6, size=draw.integers(5, 9)).tolist()
    values = draw.normal(size=(len(counts), 3, 2))
    values[draw.integers(len(counts))] = 1e6
    trim = Fraction(int(draw.integers(0, 12)), 25)
    with numerics("float64"):
        found = middle(jnp.asarray(values), jnp.asarray(np.array(counts) / sum(counts)), float(trim))
    for place in np.ndindex(3, 2):
        wanted = by_copies(values[(slice(None), *place)], counts, trim)
        np.testing.assert_allclose(found[place], wanted, rtol=1e-9)


@pytest.mark.parametrize("count", [5, 6, 11, 20])
def test_of_equal_weights_it_is_the_textbooks_median(count) -> None:
    values = np.random.default_rng(count).normal(size=(count, 50))
    with numerics("float64"):
        found = middle(jnp.asarray(values), jnp.full(count, 1 / count), 0.5 - 0.5 / count)
    np.testing.assert_allclose(found, np.median(values, axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [5, 10, 20, 30])
def test_rounding_lets_nobody_in(count, dtype) -> None:
    """Exactly a fifth is hostile, and of any size: not a part in 10¹⁶ of it may count."""
    values = np.ones((count, 4), dtype)
    values[: count // 5] = 1e30
    with numerics("float64"):
        found = middle(jnp.asarray(values), jnp.full(count, 1 / count, dtype), 0.2)
    np.testing.assert_allclose(found, 1, rtol=1e-5)


# -- the rules, by hand


class ByHand:
    """θ and what is kept, in lists and loops."""

    def __init__(self, rule, theta, places):
        self.rule, self.theta, self.places = rule, theta.copy(), places
        self.kept: list[dict] = []
        self.updates, self.waiting = 0, 0.0

    def enter(self, client, share, change):
        self.updates += 1
        entry = {"client": client, "share": share, "change": change, "came": self.updates}
        for place, old in enumerate(self.kept):
            if old["client"] == client:
                self.kept[place] = entry
                return
        if len(self.kept) == self.places:
            self.kept.remove(min(self.kept, key=lambda old: old["came"]))
        self.kept.append(entry)

    @property
    def there(self):
        return [e for e in self.kept if self.updates - e["came"] < SILENT * self.places]

    @property
    def needed(self):
        needed = max(FEWEST, (self.places + 1) // 2)
        return max(needed, 2 * self.hostile + 3) if isinstance(self.rule, ft.Krum) else needed

    @property
    def hostile(self):
        return self.places // 5 if self.rule.hostile is None else self.rule.hostile

    def between(self, values, cut):
        """The mean of what lies between the cuts, weight by weight."""
        shares = np.array([e["share"] for e in self.there])
        total = shares.sum()
        order = np.argsort(values)
        at, mean, mass = 0.0, 0.0, 0.0
        for i in order:
            low, at = at, at + shares[i] / total
            left = max(0.0, min(at, 1 - cut) - max(low, cut))
            left = left if left > 1e-13 else 0.0
            mean, mass = mean + left * values[i], mass + left
        return mean / mass

    def middle(self, vectors):
        count = len(self.there)
        cut = 0.5 - 0.5 / count
        if isinstance(self.rule, ft.TrimmedMean):
            cut = min(self.rule.trim * self.places / count, cut)
        return np.array([self.between(column, cut) for column in np.array(vectors).T])

    @property
    def mixed(self):
        """Each contribution as the mean of those nearest to it, itself among them."""
        entries = self.there
        if not self.rule.mix:
            return [e["change"] for e in entries]
        trim = self.rule.trim if isinstance(self.rule, ft.TrimmedMean) else 0.2
        near = len(entries) - int(trim * self.places + 1e-9)
        found = []
        for one in entries:
            best = sorted(entries, key=lambda o: np.sum((one["change"] - o["change"]) ** 2))[:near]
            found.append(sum(e["share"] * e["change"] for e in best) / sum(e["share"] for e in best))
        return found

    def krum(self):
        entries = self.there
        f, count = self.hostile, len(entries)
        scores = []
        for one in entries:
            others = sorted(np.sum((one["change"] - o["change"]) ** 2) for o in entries if o is not one)
            scores.append(sum(others[: count - f - 2]))
        many = count - f if self.rule.chosen is None else self.rule.chosen
        best = [entries[i] for i in np.argsort(scores, kind="stable")[:many]]
        return sum(e["share"] * e["change"] for e in best) / sum(e["share"] for e in best)

    def round(self, arrivals, lr):
        step, mass = 0.0, 0.0
        for client, share, weight, change in arrivals:
            if weight == 0:
                continue
            self.enter(client, share, change)
            mass += weight
            if isinstance(self.rule, ft.NormClipping) and len(self.there) >= self.needed:
                bound = self.rule.factor * self.middle([[np.linalg.norm(e["change"])] for e in self.there])[0]
                step = step + weight * change * min(1, bound / np.linalg.norm(change))
        if isinstance(self.rule, ft.NormClipping):
            self.theta = self.theta + lr * step
        elif mass and len(self.there) >= self.needed:
            middle = self.krum() if isinstance(self.rule, ft.Krum) else self.middle(self.mixed)
            self.theta = self.theta + lr * (mass + self.waiting) * middle
            self.waiting = 0.0
        elif mass:
            self.waiting = min(1.0, self.waiting + mass)


def arrivals_of(seed, rounds, clients=9):
    """Rounds of 0 to 3 arrivals; client 0 is silent for long, client 1 comes often and far away."""
    draw = np.random.default_rng(seed)
    shares = draw.uniform(0.5, 2, clients)
    for n in range(rounds):
        who = [i for i in draw.permutation(clients)[: draw.integers(0, 4)] if i != 0 or n < 10 or n > rounds - 10]
        who += [1] * (1 not in who and n % 3 == 0)
        weights = draw.choice([0.0, 0.1, 0.3], size=len(who), p=[0.1, 0.5, 0.4])
        changes = [draw.normal(size=7) + 9 * (i == 1) for i in who]
        yield [(int(i), shares[i], float(w), change) for i, w, change in zip(who, weights, changes, strict=True)]


def tree(vector):
    return {"a": jnp.asarray(vector[:3]), "b": jnp.asarray(vector[3:]).reshape(2, 2)}


@pytest.mark.parametrize("places", [6, 9])
@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_its_own_loop(name, places) -> None:
    rule = RULES[name].among(9) if places == 9 else type(RULES[name])(6, *list(vars(RULES[name]).values())[1:])
    hand = ByHand(rule, np.zeros(7), places)
    moved = set()
    with numerics("float64"):
        acc = rule.start(tree(np.zeros(7)))
        add, close = jax.jit(rule.add), jax.jit(rule.close)
        hyper = {"server_lr": np.float64(0.7)}
        for arrivals in arrivals_of(3, 120):
            for client, share, weight, change in arrivals:
                answer, scalars = Answer(tree(change)), np.array([weight, share])
                acc = add(acc, Arrival(answer, *scalars, Sent({}), np.int32(client)), hyper)
            if arrivals:
                model, acc = close(acc, hyper)
                before = hand.theta
                hand.round(arrivals, 0.7)
                moved.add(bool(np.any(before != hand.theta)))
                found = np.concatenate([np.asarray(model["a"]), np.asarray(model["b"]).ravel()])
                np.testing.assert_allclose(found, hand.theta, rtol=1e-10, atol=1e-12)
    assert moved == {True, False}, "it stood still at first"


def test_a_client_that_comes_often_has_one_voice() -> None:
    rule = ft.CoordinateMedian(8)
    acc = rule.start({"w": jnp.zeros(1)})
    hyper = {"server_lr": 1.0}

    def come(client, value):
        change = Answer({"w": jnp.full(1, value)})
        return rule.add(acc, Arrival(change, jnp.float32(0.1), jnp.float32(1.0), Sent({}), client), hyper)

    for client in range(7):
        acc = come(client, 1.0)
    for _ in range(30):
        acc = come(7, -100.0)
    assert Counter(acc.latest.client.tolist()) == Counter(range(8))
    model, _ = rule.close(acc, hyper)
    assert model["w"][0] > 0


def test_until_there_are_enough_the_model_stands_still_and_the_mass_waits() -> None:
    rule, hyper = ft.TrimmedMean(10), {"server_lr": 1.0}
    acc = rule.start({"w": jnp.zeros(1)})
    models = []
    for client in range(8):
        arrival = Arrival(Answer({"w": jnp.ones(1)}), jnp.float32(0.3), jnp.float32(1.0), Sent({}), client)
        model, acc = rule.close(rule.add(acc, arrival, hyper), hyper)
        models.append(float(model["w"][0]))
    np.testing.assert_allclose(models, [0, 0, 0, 0, 1.3, 1.6, 1.9, 2.2], rtol=1e-6, err_msg="4 · 0.3 waits, 1 at most")
    dropped = Arrival(Answer({"w": jnp.ones(1)}), jnp.float32(0.0), jnp.float32(1.0), Sent({}), 9)
    model, after = rule.close(rule.add(acc, dropped, hyper), hyper)
    assert float(model["w"][0]) == pytest.approx(2.2), "a dropped update is no step"
    assert 9 not in after.latest.client.tolist()


# -- in every engine

PROBLEM = ft.problems.quadratics(6, dimension=4, noise=0.5, rows=[6, 9, 12, 5, 7, 8], seed=1, importance="rows")
TIMES = ft.FixedTimes(["1", "2/3", "1/2", "3/4", "5/4", "3/5"])
SCHEMES = (ft.AsyncFedAvg(), ft.FedFix("3/5"), ft.FedBuff(2), ft.FedAvg())


def run(schemes, engine, **options):
    options = {"dtype": "float64", "points": 2, "seeds": [2], "until": 3} | options
    local = ft.LocalSGD(steps=2, lr=[0.05, 0.2], batch_size=4)
    return ft.simulate(PROBLEM, schemes, TIMES, local=local, engine=engine, server_lr=0.5, **options)


@pytest.mark.parametrize(
    "rule", [ft.CoordinateMedian(5), ft.TrimmedMean(), ft.Krum(), ft.NormClipping()], ids=lambda rule: rule.name
)
def test_every_engine_gives_one_answer(rule) -> None:
    schemes = [s.using(server=rule) for s in SCHEMES[: 3 if rule.last else 4]]
    told = flat(run(schemes, "oracle"))
    for engine in ("events", "waves"):
        assert distance(flat(run(schemes, engine)), told) < 1e-9, engine
    assert distance(flat(run(SCHEMES[: len(schemes)], "events")), told) > 1e-3, "the plain sum is another model"


# -- against the hostile


def hostile(rule):
    """The rule, when clients 0 and 1 send −10 times what they should."""

    @dataclass(frozen=True)
    class Attacked(type(rule)):
        def spec(self):
            return {"name": "attacked"}

        def add(self, acc, arrival, hyper):
            factor = jnp.where(arrival.client < 2, -10, 1)
            change = jax.tree.map(lambda x: (factor * x).astype(x.dtype), arrival.answer.change)
            return super().add(acc, arrival._replace(answer=arrival.answer._replace(change=change)), hyper)

    return Attacked()


@pytest.mark.parametrize(
    "rule", [ft.CoordinateMedian(), ft.TrimmedMean(), ft.Krum(), ft.NormClipping()], ids=lambda rule: rule.name
)
def test_digits_are_learned_beside_the_hostile(rule) -> None:
    """Two of ten, the fastest; benchmarks/robust.py has more attacks and schemes."""
    problem = ft.problems.digits(clients=10, partition="iid", l2=0.01)
    times = ft.FixedTimes([f"{3 + i}/10" for i in range(10)])
    rate = 1 / (times.mean_time.mean() * (1 / times.mean_time).sum())
    local = ft.LocalSGD(steps=5, lr=0.5, batch_size=32)
    scheme, found = ft.AsyncFedAvg(), []
    for one in (scheme, scheme.using(server=hostile(rule))):
        history = ft.simulate(problem, one, times, until=8, local=local, server_lr=rate, step="paper", points=17)
        found.append(float(history.dataset["test_accuracy"].isel(time=slice(-5, None)).mean()))
    assert found[0] > 0.85
    assert found[1] > found[0] - 0.03


# -- what is refused


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ft.CoordinateMedian(4), "last=4 is too small or not a whole number; give at least 5"),
        (lambda: ft.CoordinateMedian(5.0), "last=5.0 is too small or not a whole number"),
        (lambda: ft.TrimmedMean(trim=0.5), "trim=0.5 is not allowed; give a number from 0 to below 0.5"),
        (lambda: ft.Krum(hostile=-1), "hostile=-1 is not allowed; give a whole number of at least 0"),
        (lambda: ft.Krum(chosen=0), "chosen=0 is not allowed; give a whole number of at least 1"),
        (lambda: ft.Krum(8, hostile=3), "among 8 contributions at most 2 may be hostile .* give hostile=2, or last=9"),
        (lambda: ft.Krum(9, hostile=3, chosen=7), "give chosen=6 or less"),
        (lambda: ft.NormClipping(factor=0), "factor: 0 is not allowed; give a number above 0"),
        (lambda: ft.FedFix(1).using(server=ft.Krum), "give an object such as ft.FedAdam"),
        (
            lambda: server_rule(ft.Scaffold(), ft.CoordinateMedian()),
            "SCAFFOLD: its server trusts what every client reports, but CoordinateMedian trusts none",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, says) -> None:
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize(
    ("scheme", "clients", "says"),
    [
        (ft.AsyncFedAvg().using(server=ft.Krum()), 4, "4 clients are too few .* use 5 or more"),
        (ft.AsyncFedAvg().using(server=ft.CoordinateMedian(10)), 6, "give last=6, or leave it out"),
        (ft.AsyncFedAvg().using(server=ft.Krum(hostile=2)), 6, "give hostile=1, or last=7"),
        (ft.UniformSampling(6).using(server=ft.TrimmedMean()), 9, r"a round of UniformSampling\(6\).* give last=6"),
        (ft.UniformSampling(3).using(server=ft.TrimmedMean()), 9, "give last=5"),
        (ft.FastestSampling(4).using(server=ft.TrimmedMean(5)), 9, "4 clients are too few"),
        (ft.FedAvg().using(server=ft.NormClipping(5)), 6, "but only 5 would be kept; give last=6 or more"),
    ],
)
def test_what_a_federation_cannot_have_is_refused_before_anything_runs(scheme, clients, says) -> None:
    problem = ft.problems.quadratics(clients, dimension=2)
    with pytest.raises(InputError, match=says):
        ft.simulate(problem, scheme, ft.FixedTimes([1] * clients), until=2)


def test_a_study_file_names_them() -> None:
    table = {"name": "fedfix", "wait": "1/2", "server": {"name": "trimmed-mean", "trim": 0.1}}
    assert scheme_of(table) == ft.FedFix("1/2").using(server=ft.TrimmedMean(trim=0.1))
    assert ft.FedFix("1/2").using(server=ft.CoordinateMedian(7)).label == "FedFix(1/2) + CoordinateMedian(7)"
    assert ft.Krum().spec() == {"name": "krum"}
    for one, other in pairwise([ft.CoordinateMedian(), ft.TrimmedMean(), ft.Krum(), ft.NormClipping()]):
        assert one != other
