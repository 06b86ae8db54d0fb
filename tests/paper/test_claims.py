"""Claims: made-up results of which it is known what holds, and the intervals behind the verdicts."""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from fedtempo.errors import InputError
from fedtempo.paper import claims as claims_page
from fedtempo.paper.claims import CLAIMS, judge, stored
from fedtempo.paper.claims_cost import SPEED, Work, duration, jobs_in_time
from fedtempo.paper.claims_kinds import Case
from fedtempo.paper.claims_rules import MISSING, Evidence, Verdict, verdicts
from fedtempo.paper.claims_runs import Book, Part, partitions_of
from fedtempo.paper.statistics import (
    Estimate,
    chance_above,
    differences,
    largest_rise,
    mean_of,
    paired,
    ratio_of,
    rises_elsewhere,
)
from fedtempo.simulation.history.history import History

DATA = ("mnist", "mnist-shard", "cifar10", "shakespeare")
SCENARIOS = [f"{d}-{m}-{x}" for d in ("cifar10", "shakespeare") for m in (20, 50) for x in ("F0", "F80")]
SCHEMES = ("FedAvg", "AsyncFedAvg", "FedFix(1/2)", "FedBuff(10)")
OTHER = {"identical": "time-based", "time-based": "identical"}
SYMMETRIC = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15)  # turn around when the two weight rules change places
HORIZON = 100.0
RUNS = range(12)  # of which two choose the rate


def history(schemes, rules, rates, runs, times, values, *, amounts=None, attrs=None, partitioned=True):
    """`values(measure, scheme, rule, rate[, K], run)` is a curve over time, None for what was not run.

    A run is a partition of one seed, or a seed of one partition. A curve that is infinite somewhere diverged there.
    """
    hyper = {"local_lr": list(rates)} | ({} if amounts is None else {"local_steps": list(amounts)})
    shape = (len(schemes), len(rules), *map(len, hyper.values()), len(runs))
    names = ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation")
    found = {name: np.full((*shape, len(times)), np.nan) for name in names}
    gone = np.full(shape, np.nan)
    labels = [list(schemes), list(rules), *hyper.values(), list(runs)]
    for at in np.ndindex(*shape):
        for name in names:
            curve = values(name, *(label[k] for label, k in zip(labels, at, strict=True)))
            if curve is None:
                continue
            curve = np.broadcast_to(np.asarray(curve, dtype=float), len(times)).copy()
            if np.isinf(curve).any():
                first = int(np.argmax(np.isinf(curve)))
                gone[at], curve[first:] = times[first], np.nan
            found[name][at] = curve
    one, many = ("seed", "partition") if partitioned else ("partition", "seed")
    dims = ("scheme", "weights", *hyper, many)
    data = {name: ((*dims, "time"), array) for name, array in found.items()} | {"diverged_at": (dims, gone)}
    coords = {"scheme": list(schemes), "weights": list(rules), **hyper, many: list(runs), "time": times}
    dataset = xr.Dataset(data, coords=coords, attrs=attrs or {"horizon_of_paper": HORIZON})
    return History(dataset.expand_dims({one: [0]}) if partitioned else dataset)


@cache
def noise(*key):
    """A small number that depends on its key alone."""
    return 0.01 * np.random.default_rng(_stable(key)).standard_normal()


def _stable(key):
    return zlib.crc32(repr(key).encode())


# -- results in which everything that the paper says is true

TIMES = np.linspace(0.0, HORIZON, 51)


def weights_curve(part, measure, rule, rate, run):
    """Identical is quicker and ends higher; twice as much on MNIST-shard; the surrogate is the other way round."""
    size = {"mnist": 0.1, "mnist-shard": 0.2}.get(part, 0.3)
    better_surrogate = "time-based" if part == "shakespeare" else "identical"
    if measure == "surrogate_loss":
        level = 0.5 + (0.0 if rule == better_surrogate else size)
    else:
        level = 0.5 + (size if rule == "identical" else 0.0)
    pace = 0.3 if rule == "identical" else 0.2
    start = 3.0 if measure == "loss" else level
    floor = level + (0.05 if rate != 0.01 else 0.0) + 0.1 * noise(part, measure, rule, rate, run)
    return floor + (start - floor) * np.exp(-pace * TIMES)


def fig2(runs=RUNS, change=None, **how):
    def part(name):
        def values(measure, scheme, rule, rate, run):
            if rate == 1.0 and rule == "identical":
                return None  # a rate that only time-based weights were run at
            if rate == 1.0:
                return np.where(TIMES > 50, np.inf, 1.0)
            curve = weights_curve(name, measure, rule, rate, run)
            return curve if change is None else change(name, measure, rule, rate, run, curve)

        rates = [0.001, 0.01, 0.1, 1.0]
        return history(["AsyncFedAvg"], ["identical", "time-based"], rates, runs, TIMES, values, **how)

    return {name: part(name) for name in DATA}


AMOUNTS = (1, 2, 4, 8, 10, 12, 14, 16, 20, 25)
LATE = np.array([0.0, *np.linspace(95.0, HORIZON, 11)])
WOBBLE = np.array([0.0, *([1, -1] * 5), 0.0])


def work_curve(rule, rate, amount, run):
    """Falls until K = 8, then rises where weights are time-based, and for identical beyond 16."""
    level = 1.0 + 0.5 * (8 - amount) / 8 if amount < 8 else 1.0
    if rule == "time-based":
        level += 0.1 * (amount - 8) / 8 if amount > 8 else 0.0
        level += 0.01 * (amount <= 14) * -1
    elif amount > 16:
        level += 0.05
    level += {"time-based": -0.3, "identical": -0.1}[rule] * (rate == 0.002)
    slope = 2.0 if rule == "time-based" and amount > 8 else 1.0
    return (
        level
        + 0.05 * noise("level", rate, amount, run, rule)
        + 0.001 * amount * slope * WOBBLE * (1 + 0.1 * noise("wobble", run))
    )


def fig3(runs=RUNS, change=None, rates=(0.0005, 0.002, 0.005), **how):
    def values(measure, scheme, rule, rate, amount, run):
        if measure != "loss":
            return None
        curve = work_curve(rule, rate, amount, run)
        return curve if change is None else change(rule, rate, amount, run, curve)

    rules = ["identical", "time-based"]
    return {"cifar10": history(["AsyncFedAvg"], rules, rates, runs, LATE, values, amounts=AMOUNTS, **how)}


ENDS = {"FedFix(1/2)": 0.5, "FedBuff(10)": 0.6, "FedAvg": 0.7, "AsyncFedAvg": 0.8}
BEST = {"FedFix(1/2)": 0.1, "FedBuff(10)": 0.1, "FedAvg": 0.3, "AsyncFedAvg": 0.01}


def schemes_curve(name, scheme, rate, run):
    """FedFix, FedBuff, FedAvg, async; FedAvg on Shakespeare has a hump late in the run."""
    if rate == 1.0:
        return np.where(TIMES > 30, np.inf, 3.0)
    level = ENDS[scheme] + (0.0 if rate == BEST[scheme] else 0.5) + 0.5 * noise(name, scheme, rate, run)
    hump = 0.6 * np.exp(-(((TIMES - 60) / 5) ** 2)) if scheme == "FedAvg" and name.startswith("shake") else 0.0
    return level + (3 - level) * np.exp(-0.2 * TIMES) + hump * (1 + 5 * noise(name, "hump", run))


def fig4(runs=RUNS, change=None, schemes=SCHEMES, **how):
    def part(name):
        def values(measure, scheme, rule, rate, run):
            if measure != "loss":
                return None
            curve = schemes_curve(name, scheme, rate, run)
            return curve if change is None else change(name, scheme, rate, run, curve)

        return history(schemes, ["time-based"], [0.001, 0.01, 0.1, 0.3, 1.0], runs, TIMES, values, **how)

    return {name: part(name) for name in SCENARIOS}


def explored(runs=RUNS, order=("AsyncFedAvg", "FedFix(1/2)", "FedAvg"), **how):
    def values(measure, scheme, rule, rate, run):
        level = 1.0 + 0.2 * order.index(scheme) if scheme in order else 2.0
        level = 3.0 - level if rate >= 0.1 else level
        return level + 0.1 * noise(scheme, rate, run) + np.exp(-TIMES)

    return history(SCHEMES, ["time-based"], [0.001, 0.003, 0.01, 0.1], runs, TIMES, values, **how)


APPENDIX = {"fig5": "cifar10-20-F80", "fig6": "cifar10-50-F80", "fig7": "shakespeare-20-F80"}


def everything(**how):
    made = {"fig2": fig2(**how), "fig3": fig3(**how), "fig4": fig4(**how)}
    return made | {figure: {part: explored(**how)} for figure, part in APPENDIX.items()}


def words(claims):
    return {claim.id: claim.verdict.word for claim in claims}


def claim(number, results):
    """One claim by itself, as if nothing had been run for the others."""
    question = next(q for q in CLAIMS if q.id == number)
    cases = tuple(question.ask(Book(results)))
    others = [Evidence({"": [MISSING]})] * sum(q.judge is None for q in CLAIMS if q is not question)
    verdict = question.judge(cases) if question.judge else verdicts([question.evidence(cases), *others])[0]
    return question.claim(cases, verdict)


def word(number, results):
    return claim(number, results).verdict.word


def swapped(parts):
    """The same results with the two weight rules' names exchanged."""
    return {
        name: History(h.dataset.assign_coords(weights=[OTHER[w] for w in h.dataset["weights"].values]))
        for name, h in parts.items()
    }


@pytest.fixture(scope="module")
def true_results():
    return everything()


@pytest.fixture(scope="module")
def true_claims(true_results):
    return judge(true_results)


# -- statistics


def test_interval_is_that_of_scipy():
    rng = np.random.default_rng(1)
    for n in (3, 5, 20):
        a, b = rng.normal(1.0, 2.0, n), rng.normal(0.0, 1.0, n)
        theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
        ours = paired(a, b)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
        assert ours.number == pytest.approx(np.mean(a - b))


def test_seeds_without_both_values_are_left_out_and_few_have_no_interval():
    found = paired([1.0, np.nan, 3.0], [0.0, 0.0, np.nan])
    assert found == Estimate(1.0, None, None, 1)
    assert mean_of([]).seeds == 0
    assert not mean_of([1.0, 1.0]).above
    assert mean_of([1.0, 1.0, 1.0]).above
    assert not mean_of([0.0] * 5).above
    assert not mean_of([0.0] * 5).below


@pytest.mark.parametrize("n", [3, 4, 5, 10])
def test_diverged_runs_are_the_limit_of_ever_larger_losses(n):
    rng = np.random.default_rng(2)
    for up in range(n + 1):
        for down in range(n + 1 - up):
            if up + down == 0:
                continue
            finite = rng.normal(size=n - up - down)
            ours = mean_of([*finite, *[np.inf] * up, *[-np.inf] * down])
            large = mean_of([*finite, *[1e12] * up, *[-1e12] * down])
            assert (ours.above, ours.below) == (large.above, large.below)
            assert math.isinf(ours.number) or up == down


def test_two_diverged_runs_are_equal():
    np.testing.assert_array_equal(differences([np.inf, np.inf, 1.0], [np.inf, 2.0, np.inf]), [0.0, np.inf, -np.inf])


@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.3])
def test_chance_is_that_of_scipy(mean):
    values = np.random.default_rng(4).normal(mean, 0.5, 12)
    theirs = scipy.stats.ttest_1samp(values, 0.0, alternative="greater").pvalue
    assert chance_above(values) == pytest.approx(theirs)
    assert chance_above(values[:2]) == 1.0
    assert chance_above([1.0] * 3) == 0.0
    assert chance_above([0.0] * 3) == chance_above([-1.0] * 3) == 1.0
    assert chance_above([math.inf, *values]) == pytest.approx(chance_above([1e9, *(0 * values)]))


def test_ratio_interval_is_where_the_paired_test_accepts():
    rng = np.random.default_rng(3)
    y = rng.normal(1.0, 0.2, 6)
    x = 2 * y + rng.normal(0.0, 0.3, 6)
    found = ratio_of(x, y)
    for theta in (found.low, found.high):
        assert scipy.stats.ttest_1samp(x - theta * y, 0.0).pvalue == pytest.approx(0.05, rel=1e-6)
    assert found.low < found.number < found.high


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.9])
def test_ratio_interval_covers_as_often_as_it_says(correlation):
    rng = np.random.default_rng(4)
    repeats, n = 3000, 5
    pairs = rng.multivariate_normal([2.0, 1.0], 0.04 * np.array([[1, correlation], [correlation, 1]]), (repeats, n))
    found = [ratio_of(p[:, 0], p[:, 1]) for p in pairs]
    bounded = [f for f in found if f.low is not None]
    assert len(bounded) > 0.98 * repeats
    covered = np.mean([f.low <= 2.0 <= f.high for f in bounded])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / repeats)


def test_ratio_to_nothing_has_no_interval():
    assert ratio_of([1.0, 2.0, 3.0], [1.0, -1.0, 0.5]).low is None
    assert math.isnan(ratio_of([1.0, 2.0], [1.0, -1.0]).number)


def test_largest_rise_is_the_largest_of_all_pairs():
    rng = np.random.default_rng(5)
    for _ in range(20):
        curve = rng.normal(size=12).cumsum()
        since, to, rise = largest_rise(curve)
        assert rise == pytest.approx(max(curve[j] - curve[i] for j in range(12) for i in range(j)))
        assert curve[to] - curve[since] == pytest.approx(rise)
    assert largest_rise(np.array([3.0, 2.0, 1.0]))[2] < 0


def test_noise_alone_does_not_rise_elsewhere():
    rng = np.random.default_rng(6)
    curves = [rng.normal(size=(5, 40)) for _ in range(300)]
    rises = [rises_elsewhere(c) for c in curves]
    assert abs(np.mean(rises)) < 0.1
    assert np.mean([r.mean() > 2 * r.std(ddof=1) for r in rises]) < 0.05
    # between times chosen from the same seeds, noise would be called a rise far more often
    same = [c[:, to] - c[:, since] for c in curves for since, to, _ in [largest_rise(c.mean(axis=0))]]
    assert np.mean([r.mean() > 2 * r.std(ddof=1) for r in same]) > 0.15


# -- verdicts of statements


def test_everything_holds_where_it_was_made_to(true_claims):
    found = words(true_claims)
    assert list(found) == list(range(1, 23))
    assert found.pop(22) == "answered"
    assert found.pop(21) == "holds with a correction"
    assert set(found.values()) == {"holds"}, found


def test_exchanged_weight_rules_turn_what_holds_into_what_fails(true_results):
    turned = words(judge({"fig2": swapped(true_results["fig2"]), "fig3": swapped(true_results["fig3"])}))
    for number in SYMMETRIC:
        assert turned[number] == "fails", number


def test_exchanged_schemes_turn_what_holds_into_what_fails(true_results):
    names = {
        "FedAvg": "FedFix(1/2)",
        "FedFix(1/2)": "FedAvg",
        "AsyncFedAvg": "AsyncFedAvg",
        "FedBuff(10)": "FedBuff(10)",
    }

    def rename(h):
        return History(h.dataset.assign_coords(scheme=[names[s] for s in h.dataset["scheme"].values]))

    assert word(16, {"fig4": {n: rename(h) for n, h in true_results["fig4"].items()}}) == "fails"
    fast = judge({"fig4": fig4(change=lambda name, scheme, rate, run, curve: curve - 0.5 * (scheme == "AsyncFedAvg"))})
    assert words(fast)[17] == words(fast)[18] == "fails"
    back = explored(order=("FedAvg", "FedFix(1/2)", "AsyncFedAvg"))
    assert word(19, {"fig5": {"cifar10-20-F80": back}}) == "fails"


def test_noise_shows_nothing_about_weights():
    def alike(name, measure, rule, rate, run, curve):
        level = 1.0 + 0.01 * (rate != 0.01)
        return level + np.exp(-0.3 * TIMES) + (0.01 * (run % 2 - 0.5) if rule == "identical" else 0.0)

    found = judge({"fig2": fig2(change=alike)})[:9]
    assert {c.verdict.word for c in found} == {"not seen"}
    assert {case.word for c in found for case in c.cases} <= {"unclear", "the other way"}
    assert {c.word for claim in found if claim.id not in (3, 4) for c in claim.cases} == {"unclear"}


def test_nothing_run(true_claims):
    nothing = judge({})
    assert {c.verdict.word for c in nothing if c.id != 21} == {"not run"}
    for c in nothing:
        if c.id != 21:
            assert all("fedtempo reproduce fig" in case.note for case in c.cases)
            assert all(case.number is None for case in c.cases)
    assert "fedtempo reproduce fig3 --scale paper" in claims_page.markdown({"text": nothing})
    assert [c.statement for c in nothing] == [c.statement for c in true_claims]


def test_a_missing_part_leaves_a_statement_open_unless_it_fails(true_results):
    some_parts = {name: h for name, h in true_results["fig2"].items() if name != "cifar10"}
    found = claim(1, {"fig2": some_parts})
    assert found.verdict == Verdict("not seen", (100.0,), ("not all of it was run",))
    assert [c.word for c in found.cases if not c.beside] == ["as stated", "as stated", "not run", "as stated"]
    assert word(5, {"fig2": some_parts}) == "holds"
    assert word(1, {"fig2": swapped(some_parts)}) == "fails"


# -- no verdict beyond its rule, through all claims


def decided(claims):
    """The claims with a verdict, but for the one that needs no results."""
    strong = ("holds", "fails", "holds with a correction", "answered")
    return [c.id for c in claims if c.verdict.word in strong and c.id != 21]


def changed(results, change):
    return {
        figure: {name: History(change(h.dataset)) for name, h in parts.items()} for figure, parts in results.items()
    }


@pytest.mark.slow
def test_short_runs_decide_nothing(true_results):
    longer = judge(changed(true_results, lambda data: data.assign_attrs(horizon_of_paper=4000)))
    assert decided(longer) == [9]  # which is about the beginning
    for c in longer:
        if c.id not in (9, 21):
            assert c.verdict.reasons[0] == "horizon 100 of 4 000"
            assert str(c.verdict) == ("open" if c.id == 22 else "seen") + " at T = 100"
    assert not decided(judge(changed(true_results, lambda data: data.assign_attrs(horizon_of_paper="?"))))[1:]


@pytest.mark.parametrize("runs", [1, 2, 12])
def test_one_partition_decides_nothing_however_many_its_seeds(runs):
    found = judge(everything(runs=range(runs), partitioned=False))
    assert decided(found) == []
    for c in found:
        if c.id != 21:
            assert "1 partition of 10" in c.verdict.reasons
            assert any("no interval" in reason for reason in c.verdict.reasons) == (runs < 3)


def test_nine_partitions_judged_decide_nothing(true_results):
    assert decided(judge(changed(true_results, lambda data: data.isel(partition=slice(0, 9))))) == []


def test_a_best_rate_at_the_edge_decides_nothing(true_results):
    """Without the rates beyond the best ones: of the weights' claims 0.01, of the schemes' 0.3."""
    cut = changed(true_results, lambda data: data.sel(local_lr=data["local_lr"].values >= 0.01))
    fig2_alone = words(judge({"fig2": cut["fig2"]}))
    assert {fig2_alone[k] for k in range(1, 10)} == {"seen"}
    top = changed(true_results, lambda data: data.sel(local_lr=data["local_lr"].values < 0.5))
    found = judge({"fig4": top["fig4"]})
    assert {c.id: c.verdict.reasons for c in found if c.id in (16, 17, 18, 20, 22)} == dict.fromkeys(
        (16, 17, 18, 20, 22), ("best rate at the edge",)
    )


def test_both_schemes_at_the_same_largest_rate_are_at_an_edge():
    def change(name, scheme, rate, run, curve):
        best = scheme in ("FedAvg", "FedFix(1/2)") and rate == 1.0
        return ENDS[scheme] + noise(name, scheme, run) + np.exp(-TIMES) if best else curve

    found = claim(16, {"fig4": fig4(change=change)})
    assert found.verdict == Verdict("seen", (100.0,), ("best rate at the edge",))
    assert "local_lr 1 (largest of those run so far)" in found.cases[0].note


def test_a_rate_that_diverged_in_the_first_stage_was_tried(true_results):
    """The second stage went on with three rates; the next larger one had diverged before."""
    whole = true_results["fig4"]
    kept = {n: History(h.dataset.sel(local_lr=[0.001, 0.01, 0.1, 0.3])) for n, h in whole.items()}
    first = {n: History(h.dataset.isel(partition=slice(0, 2))) for n, h in whole.items()}
    assert word(16, {"fig4": kept}) == "seen"
    assert word(16, {"fig4": kept, "fig4.scout": first}) == "holds"
    tame = {n: History(h.dataset.drop_vars("diverged_at").fillna({"loss": 3.0})) for n, h in first.items()}
    assert word(16, {"fig4": kept, "fig4.scout": tame}) == "seen"  # it was slow there, and might not be later


def test_rates_are_chosen_on_other_runs_than_those_judged():
    """The rate that is best on the runs that choose is much worse on all others."""

    def change(name, measure, rule, rate, run, curve):
        return curve + (-1.0 if run < 2 else 1.0) if rate == 0.1 and rule == "time-based" else curve

    own = [c for c in claim(1, {"fig2": fig2(change=change)}).cases if c.beside]
    assert all("local_lr 0.1 " in f"{c.note.rsplit('against ', 1)[1]} " for c in own)
    assert {c.word for c in own} == {"the other way"}


def test_runs_that_choose_are_those_of_the_first_stage_or_a_fifth():
    about = {"study": {"problem": {"name": "mnist", "seed": 3}}, "paper": {"until": 100}}
    for first_stage, seeds, expected in (({}, 5, 1), ({}, 10, 2), ({"seeds": 2}, 5, 2), ({}, 1, 1)):
        attrs = {"reproduction": json.dumps(about | {"first_stage": first_stage})}
        h = fig2(runs=range(seeds), partitioned=False, attrs=attrs)["mnist"]
        part = Part.of("mnist", h)
        assert part.choosing["partition"].values.tolist() == [3]
        assert part.choosing.values[0].tolist() == [s < expected for s in range(seeds)]
        runs = part.best("Async", "identical")
        assert runs.choice.runs == {(3, s) for s in range(expected)}
        judged = runs.final().notnull().values[0].tolist()
        assert judged == [s >= expected or seeds == 1 for s in range(seeds)]


# -- figure 2


def test_own_rates_stand_beside_and_do_not_count():
    """Time-based weights are worse at the shared rate, and better at another one."""

    def change(name, measure, rule, rate, run, curve):
        return curve + (0.8 if rate == 0.01 else 0.0) if rule == "time-based" else curve

    found = claim(1, {"fig2": fig2(change=change)})
    assert found.verdict.word == "fails"
    assert {c.word for c in found.cases if c.beside} == {"as stated"}
    rates = [re.search(r"local_lr 0.01 against local_lr (\S+)", c.note)[1] for c in found.cases if c.beside]
    assert set(rates) <= {"0.001", "0.1"}


def test_ratio_is_that_of_the_gaps():
    for factor, expected in ((1.0, "holds"), (0.4, "fails"), (0.75, "not seen"), (3.0, "fails")):

        def change(name, measure, rule, rate, run, curve, factor=factor):
            return curve + 0.2 * (factor - 1) * (name == "mnist-shard" and rule == "identical") * (rate < 1)

        found = claim(3, {"fig2": fig2(change=change)})
        assert found.cases[0].number == pytest.approx(2 * factor, rel=0.05)
        assert found.verdict.word == expected


def test_a_gap_of_the_other_sign_is_not_about_twice():
    """Both gaps are negative, and their ratio is 2."""

    def change(name, measure, rule, rate, run, curve):
        return curve - 2 * {"mnist": 0.1, "mnist-shard": 0.2}.get(name, 0) * (rule == "identical") * (rate < 1)

    found = claim(3, {"fig2": fig2(change=change)})
    assert found.cases[0].number == pytest.approx(2, rel=0.05)
    assert found.verdict.word == "fails"


def test_a_run_that_diverged_counts_as_infinitely_bad():
    def lose(rule, runs):
        def change(name, measure, which, rate, run, curve):
            return np.where(TIMES > 90, np.inf, curve) if which == rule and run in runs else curve

        return {"fig2": fig2(change=change)}

    bad = claim(1, lose("time-based", RUNS))
    assert bad.verdict.word == "fails"
    assert bad.cases[0].number == -math.inf
    assert "0 and 10 of 10 runs diverged" in bad.cases[0].note
    once = claim(1, lose("time-based", [5]))
    assert once.verdict.word == "not seen"
    assert {c.word for c in once.cases if not c.beside} == {"unclear"}
    assert claim(3, lose("identical", [5])).verdict.reasons == ("a seed diverged, so there is no gap",)
    page = claims_page.markdown({"text": [bad]})
    assert "−∞" in page
    assert "inf" not in page.replace("infinite", "")


def test_a_combination_that_was_not_run_is_named():
    def change(name, measure, rule, rate, run, curve):
        return None if rule == "time-based" and rate == 0.01 else curve

    found = claim(1, {"fig2": fig2(change=change)})
    assert found.verdict.word == "not run"
    assert found.cases[0].note == "AsyncFedAvg with time-based weights was not run at local_lr 0.01"
    assert {c.word for c in found.cases if c.beside} == {"as stated"}


def test_runs_that_are_not_there_yet_are_left_out():
    def change(name, measure, rule, rate, run, curve):
        return None if rule == "time-based" and run == 4 else curve

    found = claim(1, {"fig2": fig2(change=change)})
    assert found.verdict == Verdict("seen", (100.0,), ("9 partitions of 10",))


def test_an_unfinished_study_is_read_up_to_the_time_that_both_have_reached():
    def change(name, measure, rule, rate, run, curve):
        return np.where(TIMES > 50, np.nan, curve) if rule == "time-based" else np.where(TIMES > 50, 0.0, curve)

    found = claim(1, {"fig2": fig2(change=change)})
    assert found.verdict == Verdict("seen", (50.0,), ("horizon 50 of 100",))


def test_horizons_are_told_apart(true_results):
    h = true_results["fig2"]["mnist"]
    far = History(h.dataset.assign_attrs(horizon_of_paper=200_000))
    middle = History(h.dataset.assign_attrs(horizon_of_paper=4000).isel(time=slice(0, 31)))
    short = History(h.dataset.assign_attrs(horizon_of_paper=4000))
    found = claim(1, {"fig2": {"mnist": h, "mnist-shard": far, "cifar10": middle, "shakespeare": short}})
    assert str(found.verdict) == "seen at T = 100 and 60"
    assert claims_page.why(found) == "horizon 100 of 200 000; horizon 60 and 100 of 4 000"


def test_a_grid_that_begins_too_late_does_not_show_the_beginning(true_results):
    late = {n: History(h.dataset.isel(time=[0, *range(20, 51)])) for n, h in true_results["fig2"].items()}
    found = claim(9, {"fig2": late})
    assert found.verdict.reasons == ("first seen after 100 % of the descent",)
    assert str(found.verdict) == "not seen at T = 40"


# -- figure 3


def test_work_is_judged_by_rate():
    def change(rule, rate, amount, run, curve):
        return curve - 1.2 * amount / 25 if rate == 0.005 else curve

    found = claim(10, {"fig3": fig3(change=change)})
    assert found.verdict == Verdict("holds with a correction", (100.0,), ("local_lr 0.0005 only",))
    assert found.remark == "at local_lr 0.0005: 4 of 4 as stated; at local_lr 0.005: 2 of 4 as stated"
    assert "lowest at the end, K = 25" in next(c for c in found.cases if c.word == "the other way").note


def test_the_best_amount_of_work_is_chosen_on_other_runs():
    """On the two runs that choose, K = 25 is lowest; on the others K = 8 as before."""

    def change(rule, rate, amount, run, curve):
        return curve - 0.25 if run < 2 and amount == 25 else curve

    found = claim(10, {"fig3": fig3(change=change)})
    assert found.verdict == Verdict("seen", (100.0,), ("the lowest K is at an end on some runs only",))
    assert {c.note for c in found.cases} == {"", "lowest at the end, K = 25"}


def test_a_lowest_end_that_is_hardly_lower_decides_nothing():
    def hardly(rule, rate, amount, run, curve):
        level = {25: 0.5 + 0.01 * (run % 2 - 0.5), 20: 0.5001}.get(amount, 1.0)
        return level + 0.001 * WOBBLE

    found = claim(10, {"fig3": fig3(change=hardly)})
    assert found.verdict.word == "not seen"
    assert {c.word for c in found.cases} == {"as stated", "unclear"}


def test_a_growing_deviation_with_one_dip():
    """At K = 12 it is smaller than at K = 10, for all runs or for a few."""

    def dip(runs):
        def change(rule, rate, amount, run, curve):
            return curve - 0.008 * WOBBLE if amount == 12 and run in runs else curve

        return {"fig3": fig3(change=change)}

    assert word(11, dip(RUNS)) == "fails"
    assert word(11, dip([])) == "holds"
    assert word(11, dip([1, 2, 3, 4, 5])) == "not seen"
    assert "K = 10 to 12; rank correlation 0.927" in claim(11, dip(RUNS)).cases[0].note


def test_large_steps_that_diverge():
    def change(rule, rate, amount, run, curve):
        return np.where(LATE > 96, np.inf, curve) if amount == 25 else curve

    found = words(judge({"fig3": fig3(change=change)}))
    assert found[10] == found[11] == found[14] == "holds"
    assert found[12] == "not seen"  # at K = 25 both diverged


def test_flat_fails_and_is_unclear():
    for size, expected in ((0.0, "holds"), (0.05, "not seen"), (0.3, "fails")):
        results = {"fig3": fig3(change=lambda rule, rate, k, run, c, size=size: c + size * (k == 12))}
        assert word(14, results) == expected, size


def test_rates_of_the_text_and_caption_that_were_not_run():
    found = claim(12, {"fig3": fig3(rates=(0.005, 0.05))})
    assert found.verdict == Verdict("seen", (100.0,), ("local_lr 0.005 only", "not all of it was run"))
    assert found.remark == "at local_lr 0.0005: 0 of 1 as stated; at local_lr 0.005: 6 of 6 as stated"


def test_a_searched_rate_at_an_edge_decides_nothing():
    assert claim(15, {"fig3": fig3(rates=(0.0005, 0.002))}).verdict.reasons == ("best rate at the edge",)


# -- figures 4 to 7


def test_fedbuffs_place(true_claims):
    place = true_claims[-1]
    assert {(c.number, c.low, c.high) for c in place.cases} == {(2, 2, 2)}
    assert place.remark == "FedBuff is second in 8 of 8 scenarios by mean loss; the place is certain in 8"
    close = fig4(change=lambda n, s, r, run, c: c + (-0.1 + noise("x", n, run)) * (s == "FedBuff(10)"))
    found = claim(22, {"fig4": close})
    assert found.verdict.word == "open"
    assert {(c.low, c.high) for c in found.cases} >= {(1, 2)}


def test_a_scheme_that_diverges_at_every_rate():
    gone = fig4(change=lambda n, s, r, run, c: np.where(TIMES > 10, np.inf, c) if s == "AsyncFedAvg" else c)
    found = claim(17, {"fig4": gone})
    assert {c.word for c in found.cases} == {"as stated"}
    assert found.verdict.reasons == ("best rate at the edge",)  # smaller ones might not
    once = fig4(
        change=lambda n, s, r, run, c: np.where(TIMES > 10, np.inf, c) if s == "FedFix(1/2)" and run == 5 else c
    )
    assert word(16, {"fig4": once}) == "not seen"


def test_a_scheme_that_is_missing():
    results = {"fig4": fig4(schemes=SCHEMES[:3])}
    assert word(16, results) == "holds"
    found = claim(22, results)
    assert found.verdict.word == "not run"
    assert found.cases[0].note == "FedBuff was not run"


def test_a_steady_descent_is_no_rise():
    steady = fig4(change=lambda n, s, r, run, c: 3 * np.exp(-0.02 * TIMES) + noise(run) + (r != 0.3))
    assert word(20, {"fig4": steady}) == "fails"
    wiggly = fig4(change=lambda n, s, r, run, c: 1 + (r != 0.3) + np.sin(TIMES * (1 + _stable((n, run)) % 7)))
    assert word(20, {"fig4": wiggly}) != "holds"


@pytest.mark.parametrize(("spread", "expected"), [(1 / 1.7, "unclear"), (1 / 3, "as stated")])
def test_a_rise_is_large_beside_its_deviation(spread, expected):
    """Ten runs: one deviation is significant long before it is twice as large."""
    hump = np.exp(-(((TIMES - 60) / 5) ** 2))
    parts = fig4(
        change=lambda n, s, r, run, c: (
            (np.where(TIMES > 30, np.inf, 3.0) if r == 1.0 else 1 + (r != 0.3) + np.exp(-TIMES))
            + (1 + spread * (run % 2 * 2 - 1)) * hump
        )
    )
    found = claim(20, {"fig4": parts})
    assert found.verdict.word == ("holds" if expected == "as stated" else "seen")
    assert found.verdict.reasons == (() if expected == "as stated" else ("the rise is not twice its deviation",))


def test_a_rise_before_the_time_of_which_the_paper_speaks_does_not_count():
    """The hump at 60 of 100 is at 3 000 of 5 000, where the paper speaks of the time after 4 000."""
    slow = {
        n: History(h.dataset.assign_coords(time=50 * TIMES).assign_attrs(horizon_of_paper=5000))
        for n, h in fig4().items()
    }
    assert word(20, {"fig4": slow}) == "fails"
    shift = fig4(change=lambda n, s, r, run, c: np.roll(c, 13) if s == "FedAvg" and r < 1 else c)
    late = {
        n: History(h.dataset.assign_coords(time=50 * TIMES).assign_attrs(horizon_of_paper=5000))
        for n, h in shift.items()
    }
    assert word(20, {"fig4": late}) == "holds"


def test_the_exact_claim_tells_schemes_apart(true_claims):
    exact = true_claims[20]
    assert exact.id == 21
    assert exact.verdict.word == "holds with a correction"
    assert all(case.number <= 1e-9 for case in exact.cases)
    assert all(float(case.note.rsplit(" ", 1)[1]) > 1e-3 for case in exact.cases)


# -- results on disk


def kept_on_disk(folder, name, h, **about):
    said = {"figure": "fig2", "part": "mnist", "study": {"problem": {"name": "mnist"}}, "paper": {"until": 100}} | about
    data = h.dataset.squeeze("partition", drop=True) if h.dataset.sizes.get("partition") == 1 else h.dataset
    History(data.assign_attrs(reproduction=json.dumps(said))).save(folder / name)


def test_results_say_their_setting_figure_and_partition(tmp_path, true_results):
    h = true_results["fig2"]["mnist"]
    for seed in (7, 2):
        one = History(h.dataset.isel(partition=[seed]).assign_coords(partition=[0]))
        study = {"problem": {"name": "mnist", "seed": seed}}
        kept_on_disk(tmp_path, f"fig2-mnist.{seed}.nc", one, study=study, setting="authors")
    kept_on_disk(tmp_path, "fig2-mnist.nc", h)
    other = {"problem": {"name": "mnist", "seed": 99}}
    kept_on_disk(tmp_path, "fig2-mnist.one.nc", History(h.dataset.isel(partition=[0])), study=other)
    kept_on_disk(tmp_path, "fig4-cifar10-20-F80.scout.nc", h, figure="fig4", part="cifar10-20-F80")
    kept_on_disk(tmp_path, "figure-of-mine.nc", h, figure="mine")
    found = stored(tmp_path)
    assert set(found) == {"text", "authors"}
    assert set(found["text"]) == {"fig2", "fig4.scout", "fig5"}
    assert found["text"]["fig5"]["cifar10-20-F80"] is found["text"]["fig4.scout"]["cifar10-20-F80"]
    assert found["text"]["fig2"]["mnist"].dataset["partition"].values.tolist() == list(RUNS)  # not that of seed 99
    joined = found["authors"]["fig2"]["mnist"].dataset
    assert joined["partition"].values.tolist() == [2, 7]
    np.testing.assert_allclose(
        joined["loss"].transpose(*h.dataset["loss"].dims), h.dataset["loss"].isel(partition=[2, 7]), rtol=1e-6
    )


def test_several_problems_of_a_study_are_partitions(true_results):
    def renamed(h, part, seeds=RUNS):
        return h.dataset.rename(partition="problem").assign_coords(problem=[f"{part}-{seed}" for seed in seeds])

    named = {"fig2": {n: History(renamed(h, n)) for n, h in true_results["fig2"].items()}}
    assert word(1, named) == "holds"
    both = [renamed(true_results["fig2"][n], n, [42, *range(1, 12)]) for n in DATA[:2]]
    study = History(xr.concat(both, dim="problem"))
    parts = {n: partitions_of(study, n) for n in DATA[:2]}
    assert parts["mnist"].dataset["partition"].values.tolist() == [42, *range(1, 12)]
    assert claim(3, {"fig2": parts}).cases == claim(3, true_results).cases
    with pytest.raises(InputError, match="there is no problem cifar10-SEED"):
        partitions_of(study, "cifar10")


# -- what would decide a claim


def test_jobs_in_a_unit_of_time():
    times = np.linspace(0.2, 1, 10)
    expected = {
        "FedAvg": 10,
        "async": (1 / times).sum(),
        "FedFix": (1 / (np.ceil(times / 0.5) / 2)).sum(),
        "FedBuff": 10,
    }
    for name, jobs in expected.items():
        assert jobs_in_time(name, 10, 80) == pytest.approx(jobs, rel=0.01), name


def test_cost_is_steps_over_speed():
    work = Work("cifar10", 25_000, 12, amounts=(16, 25))
    assert work.steps == pytest.approx(25_000 * 21.284 * 12 * 41, rel=1e-3)
    assert work.seconds == pytest.approx(work.steps / SPEED["cifar10"])
    said = {30: "30 s", 155: "2.6 min", 7000: "1.9 h", 80_000: "22 h", 200_000: "2.3 days", 0.2: "1 s"}
    assert {seconds: duration(seconds) for seconds in said} == said


def test_every_claim_says_what_would_decide_it():
    for question in CLAIMS:
        deciding = question.deciding
        assert all((deciding.horizon, deciding.unit, deciding.margin, deciding.what)), question.id
        assert (not deciding.work) == (question.id == 21)


# -- the page


def test_page_has_every_claim_once(true_claims):
    page = claims_page.markdown({"text": true_claims})
    for c in true_claims:
        assert page.count(f"| {c.id} | {c.statement} | ") == 1
        assert page.count(f"**{c.id}. {c.verdict}**") == 1
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * (1 + len(true_claims))
    assert all(line.count(" | ") == 5 for line in rows)
    assert "22 claims: 20 hold, 1 holds with a correction, 1 answered." in page
    for odd in ("nan", "NaN", "None", "inf "):
        assert odd not in page


def test_page_has_a_table_for_each_setting(true_claims):
    page = claims_page.markdown({"mine": judge({}), "authors": judge({}), "text": true_claims})
    heads = [line for line in page.splitlines() if line.startswith("## ")]
    assert heads[:4] == ["## The paper's text", "## The authors' scripts", "## mine", "## What would decide each claim"]
    assert page.count("| no. |") == 4
    assert page.count("**1. holds**") == 1
    assert page.count("**1. not run**") == 2


def test_page_without_results_has_no_numbers_that_are_none():
    page = claims_page.markdown({"text": judge({})})
    for odd in ("nan", "NaN", "None"):
        assert odd not in page
    assert "21 not run" in page


def test_numbers_in_cells():
    assert claims_page.interval(Case("a", 0.012345, -0.01, 0.5)) == "0.0123 [−0.01, 0.5]"
    assert claims_page.interval(Case("a", -math.inf, -math.inf, math.inf)) == "−∞ [−∞, ∞]"
    assert claims_page.interval(Case("a", 1.0)) == "1"
    assert claims_page.interval(Case("a", 1.0, None, 2.0)) == "1"
    assert claims_page.interval(Case("a")) == claims_page.number(math.nan) == "–"


def test_table_on_a_terminal(true_claims, capsys):
    assert claims_page.table(true_claims).row_count == 22
    short = replace(true_claims[3], verdict=Verdict("not seen", (60.0,), ("horizon 60 of 4 000",)))
    claims_page.show_claims({"text": [*true_claims[:3], short], "authors": true_claims[:1]})
    printed = capsys.readouterr().out
    assert "4 claims: 3 hold, 1 not seen." in printed
    assert "not seen at T = 60" in printed
    assert "horizon 60 of 4 000" in printed
    assert "The authors' scripts" in printed
    for c in true_claims[:4]:
        assert c.statement in printed
