"""The rules of a verdict on made-up numbers: for each rule, results that would be clear were it not for that rule."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from fedtempo.paper.claims_rules import (
    MISSING,
    PARTITIONS,
    RULES,
    Choice,
    Comparison,
    Evidence,
    Verdict,
    answer,
    at_edge,
    exact,
    examine,
    holm,
    reasons,
    sample,
    together,
    verdicts,
)

GRID = (0.01, 0.1, 1.0)
INSIDE = Choice(0.1, GRID, GRID, (), frozenset({(90, 0), (91, 0)}))
DECIDED = ("holds", "holds with a correction", "fails")


def dealt(partitions=12, seeds=2, mean=1.0, spread=0.1, key=0):
    """Numbers around a mean, by partition and seed."""
    rng = np.random.default_rng(key)
    return {p: {s: float(mean + spread * rng.standard_normal()) for s in range(seeds)} for p in range(partitions)}


def kept(mean=1.0, **changed):
    """A comparison that breaks no rule."""
    return replace(Comparison((dealt(mean=mean),), time=100.0, horizon=100.0, choices=(INSIDE,)), **changed)


def verdict(*comparisons, **how):
    return verdicts([Evidence({"": [examine(c) for c in comparisons]}, **how)])[0]


def test_where_every_rule_is_kept_there_is_a_verdict():
    assert verdict(kept()) == Verdict("holds", (100.0,))
    assert verdict(kept(mean=-1.0)) == Verdict("fails", (100.0,))
    unclear = verdict(kept(numbers=(dealt(mean=0.0, spread=1.0),)))
    assert unclear == Verdict("not seen", (100.0,), ("not clear enough among all claims",))


BROKEN = {
    "horizon 60 of 4 000": {"time": 60.0, "horizon": 4000.0},
    "the paper's horizon is not known": {"horizon": None},
    "1 partition of 10": {"numbers": (dealt(partitions=1, seeds=20),)},
    "9 partitions of 10": {"numbers": (dealt(partitions=9, seeds=20),)},
    "2 seeds, no interval": {"numbers": (dealt(partitions=1, seeds=2),), "about_data": False},
    "best rate at the edge": {"choices": (INSIDE, replace(INSIDE, rate=1.0))},
    "rate chosen on the seeds judged": {"choices": (replace(INSIDE, runs=frozenset({(3, 1)})),)},
    "no margin stated": {"kind": "no worse"},
    "a flaw": {"flaws": ("a flaw",)},
}


@pytest.mark.parametrize("reason", BROKEN)
@pytest.mark.parametrize("mean", [1.0, -1.0])
def test_a_broken_rule_refuses(reason, mean):
    change = dict(BROKEN[reason])
    if "numbers" in change:
        numbers = change["numbers"][0]
        change["numbers"] = ({p: {s: mean * v for s, v in row.items()} for p, row in numbers.items()},)
    found = verdict(kept(mean=mean, **change))
    assert found.word == ("seen" if mean > 0 else "not seen")
    assert found.reasons == (reason,)
    assert f" at T = {change.get('time', 100):g}" in str(found)


def test_every_rule_has_its_made_up_results():
    said = {rule.__name__ for change in BROKEN.values() for rule in RULES if rule(kept(**change))}
    assert said == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("kind", ["same", "no worse", "about"])
def test_what_is_the_same_needs_a_margin(kind):
    near = kept(numbers=(dealt(mean=0.02, spread=0.01),), kind=kind)
    assert verdict(near).word in ("seen", "not seen")
    assert "no margin stated" in verdict(near).reasons
    assert verdict(replace(near, margin=0.05)).word == "holds"


def test_a_margin_moves_the_bound():
    worse = dealt(mean=-0.04, spread=0.01)
    assert verdict(kept(numbers=(worse,))).word == "fails"
    assert verdict(kept(numbers=(worse,), kind="no worse", margin=0.05)).word == "holds"
    assert verdict(kept(numbers=(worse,), kind="no worse", margin=0.03)).word == "fails"
    for mean in (0.06, -0.06):
        other = kept(numbers=(dealt(mean=mean, spread=0.01),), kind="same", margin=0.05)
        assert verdict(other).word == "fails"
        assert verdict(replace(other, margin=0.07)).word == "holds"


# -- edges of a grid


@pytest.mark.parametrize(
    ("rate", "finished", "diverged", "end"),
    [
        (0.1, GRID, (), ""),
        (1.0, GRID, (), "largest"),
        (0.01, GRID, (), "smallest"),
        (0.1, (0.01, 0.1), (1.0,), ""),  # the next one diverges
        (0.1, (0.01, 0.1), (), "largest"),  # the next one was not run as far
        (0.1, (0.1, 1.0), (), "smallest"),
        (0.01, (0.01,), (0.1, 1.0), "smallest"),  # whatever diverges above it
        (0.01, GRID, (0.01,), "smallest"),
        (1.0, GRID, (1.0,), "largest"),  # it diverged itself
        (1.0, GRID, (10.0,), ""),  # a first stage went beyond the grid
        (0.1, (0.01, 0.1, 10.0), (), "largest"),  # 1.0 is known, and was not run as far
    ],
)
def test_a_rate_is_inside_its_grid_if_both_neighbours_are_worse(rate, finished, diverged, end):
    assert at_edge(Choice(rate, GRID, finished, diverged, frozenset())) == end


def test_a_shared_edge_is_an_edge():
    """Two schemes that are both best at the largest rate might both go on to fall beyond it."""
    largest = replace(INSIDE, rate=1.0)
    assert verdict(kept(choices=(largest, largest))).reasons == ("best rate at the edge",)


# -- the unit


def test_seeds_are_averaged_within_a_partition():
    numbers = {p: dict.fromkeys(range(100), 1.0 if p % 3 else -1.5) for p in range(12)}
    assert sample(numbers) == [1.0 if p % 3 else -1.5 for p in range(12)]
    assert verdict(kept(numbers=(numbers,))).word == "not seen"  # 1 200 runs would be clear


def test_more_seeds_are_no_more_partitions():
    few = kept(numbers=(dealt(partitions=3, seeds=400),))
    assert verdict(few) == Verdict("seen", (100.0,), ("3 partitions of 10",))
    assert verdict(kept(numbers=(dealt(partitions=1, seeds=12),), about_data=False)).word == "holds"


def test_partitions_without_a_known_number_do_not_count():
    numbers = dealt(partitions=12)
    for p in (0, 1, 2):
        numbers[p] = {0: math.nan, 1: math.nan}
    assert verdict(kept(numbers=(numbers,))).reasons == ("9 partitions of 10",)


@pytest.mark.parametrize("lost", range(13))
def test_a_diverged_seed_is_the_worst(lost):
    """The one that is said to be better diverged on some partitions."""
    numbers = dealt()
    for p in range(lost):
        numbers[p][1] = -math.inf
    found = verdict(kept(numbers=(numbers,)))
    assert (found.word == "holds") == (lost == 0)
    # as in a test of large losses, in which finite differences vanish
    large = scipy.stats.ttest_1samp([1.0] * lost + [0.0] * (12 - lost), 0.0).pvalue if 0 < lost < 12 else 0.0
    assert (found.word == "fails") == (lost > 0 and large < 0.05)


def test_seeds_that_diverged_under_both_cancel():
    numbers = dealt()
    numbers[0] = {0: math.inf, 1: -math.inf}
    assert sample(numbers)[0] == 0.0


# -- several cases, several claims


def test_p_values_are_those_of_the_t_test():
    numbers = dealt(seeds=1, mean=0.1, spread=0.3)
    values = sample(numbers)
    found = examine(kept(numbers=(numbers,)))
    assert found.holds == pytest.approx(scipy.stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)
    assert found.fails == pytest.approx(scipy.stats.ttest_1samp(values, 0.0, alternative="less").pvalue)


def test_holm_is_over_all_claims():
    assert holm([0.04]) == [True]
    assert holm([0.04, 1.0]) == [False, False]
    assert holm([0.024, 0.04]) == [True, True]
    assert holm([0.03, 0.001, 0.02]) == [True, True, True]
    assert holm([0.03, 0.001, 0.026]) == [False, True, False]
    numbers = dealt(seeds=1, mean=0.1, spread=0.14)
    alone = Evidence({"": [examine(kept(numbers=(numbers,)))]})
    assert 0.05 / 20 < alone.chance < 0.05
    assert verdicts([alone])[0].word == "holds"
    undecided = Evidence({"": [examine(kept(time=1.0))]})
    among = verdicts([alone, *[undecided] * 19])[0]
    assert among == Verdict("seen", (100.0,), ("not clear enough among all claims",))


def test_how_many_cases_are_needed():
    true, false, nothing = kept(), kept(mean=-1.0), kept(time=1.0)
    assert verdict(true, true).word == "holds"
    assert verdict(true, false).word == "fails"
    assert verdict(true, nothing).word == "seen"
    assert verdict(false, nothing).word == "fails"  # one true counter-example refutes "every"
    assert verdict(true, false, some=True).word == verdict(true, nothing, some=True).word == "holds"
    assert verdict(false, nothing, some=True).word == "seen"  # where the horizon was short
    assert verdict(false, false, some=True).word == "fails"
    assert verdict(true, true, true, false, most=True).word == "holds"
    assert verdict(true, true, false, false, most=True).word == "fails"
    assert verdict(true, true, nothing, false, most=True).word == "seen"


def test_together_is_bonferroni_of_some_and_the_largest_of_all():
    assert together([0.01, 0.02, 0.3], 3) == 0.3
    assert together([0.01, 0.02, 0.3], 1) == pytest.approx(0.03)
    assert together([0.01, 0.02, 0.3], 2) == pytest.approx(0.04)
    assert together([0.9, 0.8], 1) == 1.0


def test_several_numbers_have_to_be_above_zero_together():
    assert verdict(kept(numbers=(dealt(), dealt(key=1)))).word == "holds"
    assert verdict(kept(numbers=(dealt(), dealt(mean=-1.0)))).word == "fails"
    assert verdict(kept(numbers=(dealt(), dealt(mean=0.0, spread=1.0)))).word == "not seen"


def test_settings_the_paper_leaves_open_are_judged_each():
    true, false, unclear = (examine(kept(mean=m)) for m in (1.0, -1.0, 0.001))
    assert verdicts([Evidence({"a": [true], "b": [true]})])[0].word == "holds"
    assert verdicts([Evidence({"a": [false], "b": [false]})])[0].word == "fails"
    mixed = verdicts([Evidence({"a": [false], "b": [true]})])[0]
    assert (mixed.word, mixed.reasons) == ("holds with a correction", ("b only",))
    half = verdicts([Evidence({"a": [unclear], "b": [true]})])[0]
    assert (half.word, half.reasons[0]) == ("seen", "b only")


def test_what_was_not_run():
    assert verdicts([Evidence({"": [MISSING, MISSING]})])[0] == Verdict("not run")
    some = verdicts([Evidence({"": [examine(kept()), MISSING]})])[0]
    assert some == Verdict("not seen", (100.0,), ("not all of it was run",))
    assert verdicts([Evidence({"": [examine(kept(mean=-1.0)), MISSING]})])[0].word == "fails"


def test_exact_statements_and_questions():
    assert exact(True) == Verdict("holds")
    assert exact(True, "of b, not of a") == Verdict("holds with a correction", (), ("of b, not of a",))
    assert exact(False, "of b, not of a") == Verdict("fails")
    assert answer([examine(kept())], certain=True) == Verdict("answered", (100.0,))
    assert answer([examine(kept())], certain=False).word == "open"
    assert answer([examine(kept(time=1.0))], certain=True) == Verdict("open", (1.0,), ("horizon 1 of 100",))
    assert answer([MISSING], certain=True) == Verdict("not run")


# -- all rules at once


def broken_at_random(rng):
    """A comparison with clear numbers, and whether it keeps every rule, worked out here by hand."""
    partitions, seeds = int(rng.choice([1, 2, 5, 9, 10, 11, 20])), int(rng.choice([1, 2, 6]))
    horizon = float(rng.choice([60, 4000, math.nan]))
    time = float(rng.choice([20, 60, 3999, 4000, 5000]))
    kind = str(rng.choice(["above", "above", "same", "no worse", "about"]))
    margin = None if rng.random() < 0.3 else 0.01
    about_data = bool(rng.random() < 0.8)
    rate = float(rng.choice(GRID, p=[0.1, 0.8, 0.1]))
    finished = tuple(r for r in GRID if r == rate or rng.random() < 0.9)
    diverged = tuple(r for r in GRID if r != rate and rng.random() < 0.2)
    chosen = frozenset({(0, 0)} if rng.random() < 0.2 else {(99, 0)})
    numbers = dealt(partitions, seeds, mean=float(rng.choice([1.0, -1.0])), spread=1e-3)
    good = (
        not math.isnan(horizon)
        and time >= horizon
        and (partitions >= PARTITIONS or not about_data)
        and (partitions >= 3 or partitions * seeds >= 3)
        and rate == 0.1
        and all(r in finished or r in diverged for r in GRID)
        and chosen == frozenset({(99, 0)})
        and (kind == "above" or margin is not None)
    )
    choice = Choice(rate, GRID, finished, diverged, chosen)
    h = None if math.isnan(horizon) else horizon
    return Comparison((numbers,), time, h, about_data, (choice,), kind, margin), good


def test_no_verdict_beyond_its_rule():
    rng = np.random.default_rng(7)
    counted = {True: 0, False: 0}
    for _ in range(3000):
        comparison, good = broken_at_random(rng)
        assert (reasons(comparison) == ()) == good
        found = verdict(comparison)
        counted[good] += found.word in DECIDED
        if not good:
            assert found.word not in DECIDED
            assert found.reasons
            finding = examine(comparison)
            assert (finding.holds, finding.fails) == (1.0, 1.0)
        elif comparison.about_data:
            assert found.word in DECIDED
    assert counted[True] > 100


def test_no_verdict_on_several_cases_of_which_none_may_decide():
    rng = np.random.default_rng(8)
    tried = 0
    while tried < 300:
        several = [broken_at_random(rng) for _ in range(3)]
        if any(good for _, good in several):
            continue
        tried += 1
        for how in ({}, {"most": True}, {"some": True}):
            assert verdict(*[c for c, _ in several], **how).word not in DECIDED


def test_every_case_has_to_keep_the_rules_for_a_statement_about_all():
    rng = np.random.default_rng(9)
    for _ in range(300):
        several = [broken_at_random(rng) for _ in range(3)]
        if not all(good for _, good in several):
            assert verdict(*[c for c, _ in several]).word != "holds"
            assert verdict(*[c for c, _ in several], some=True).word != "fails"
