"""What the claims read beside a figure: many partitions of one seed each, the beginning, small rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from fedtempo.paper.claims import judge
from fedtempo.paper.claims_kinds import compared, minus
from fedtempo.paper.claims_rules import reasons
from fedtempo.paper.claims_runs import (
    BEGINNING,
    IDENTICAL,
    PARTITIONS,
    SMALL_RATES,
    TIME_BASED,
    Book,
    NotRun,
    Part,
    by_partition,
    stored,
)
from fedtempo.simulation.history.history import History
from paper.test_claims import (
    DATA,
    RUNS,
    TIMES,
    claim,
    explored,
    fig2,
    fig3,
    history,
    kept_on_disk,
    noise,
    swapped,
    weights_curve,
    word,
)

EACH = {"problem": {"name": "mnist", "seed": "each"}}


def one_partition(**how):
    """The figure's own runs: five seeds of one partition."""
    return fig2(runs=range(5), partitioned=False, **how)


def shifted(parts, by, **where):
    """The same results with another loss of one weight rule."""
    out = {}
    for name, h in parts.items():
        data = h.dataset.copy(deep=True)
        data["loss"].loc[where] += by
        out[name] = History(data)
    return out


# -- seeds that deal the data are partitions


def test_each_seed_of_data_dealt_anew_is_a_partition(tmp_path):
    made = fig2(runs=[42, 1, 2], partitioned=False)["mnist"]
    kept_on_disk(tmp_path, "fig2-mnist.partitions.nc", made, study=EACH, run="partitions")
    kept_on_disk(tmp_path, "fig2-mnist.nc", made, study={"problem": {"name": "mnist", "seed": 7}})
    found = stored(tmp_path)["text"]
    assert set(found) == {"fig2", "fig2.partitions"}
    dealt, own = (found[figure]["mnist"].dataset for figure in ("fig2.partitions", "fig2"))
    assert sorted(dealt["partition"].values.tolist()) == [1, 2, 42]
    assert dealt["seed"].values.tolist() == [0]
    assert (own["partition"].values.tolist(), sorted(own["seed"].values.tolist())) == ([7], [1, 2, 42])
    for partition in (42, 1, 2):
        values = dealt["loss"].sel(partition=partition, seed=0).transpose("scheme", "weights", "local_lr", "time")
        np.testing.assert_allclose(values, made.dataset["loss"].sel(seed=partition))
    assert by_partition(found["fig2.partitions"]["mnist"]) is found["fig2.partitions"]["mnist"]


def test_runs_beside_the_authors_setting_stay_in_it(tmp_path):
    made = fig2(runs=[42, 1], partitioned=False)["mnist"]
    kept_on_disk(tmp_path, "fig2-mnist.authors.partitions.nc", made, study=EACH, run="partitions", setting="authors")
    kept_on_disk(tmp_path, "stable-mnist.nc", made, figure="stable")
    found = stored(tmp_path)
    assert {setting: set(figures) for setting, figures in found.items()} == {"authors": {"fig2.partitions"}}


# -- what is read in whose place


def test_a_part_is_read_from_the_first_run_beside_it_that_is_there():
    own, dealt = one_partition()["mnist"], fig2()["mnist"]
    book = Book({"fig2": {"mnist": own}, "fig2.partitions": {"mnist": dealt}})

    def partitions(*beside):
        return book.part("fig2", "mnist", *beside).history.dataset.sizes["partition"]

    assert (partitions(), partitions(PARTITIONS), partitions(BEGINNING)) == (1, len(RUNS), 1)
    assert partitions(BEGINNING, PARTITIONS) == partitions(PARTITIONS, BEGINNING) == len(RUNS)
    assert book.part("fig2", "mnist", PARTITIONS) is book.part("fig2", "mnist", BEGINNING, PARTITIONS)
    with pytest.raises(NotRun, match="fedtempo reproduce fig2 --scale paper"):
        book.part("fig2", "cifar10", PARTITIONS)


@pytest.mark.parametrize("number", range(1, 10))
def test_weights_are_judged_by_the_partitions(number):
    """The figure's own runs have one partition, and say the opposite."""
    dealt, opposite = fig2(), swapped(one_partition())
    assert claim(number, {"fig2": opposite}).verdict.reasons[0] == "1 partition of 10"
    assert word(number, {"fig2": opposite, "fig2.partitions": dealt}) == "holds"
    assert word(number, {"fig2": opposite, "fig2.partitions": swapped(dealt)}) == "fails"
    assert word(number, {"fig2.partitions": dealt}) == "holds"


def test_a_data_set_without_partitions_is_judged_by_its_own_runs():
    dealt = fig2()
    some = {name: dealt[name] for name in DATA[:2]}
    found = claim(1, {"fig2": one_partition(), "fig2.partitions": some})
    assert found.verdict.word == "seen"
    assert found.verdict.reasons == ("1 partition of 10",)
    counted = [len(case.finding.reasons) for case in found.cases if not case.beside]
    assert counted == [0, 0, 1, 1]
    assert word(3, {"fig2": one_partition(), "fig2.partitions": some}) == "holds"
    own = claim(3, {"fig2": one_partition()})
    mixed = claim(3, {"fig2": one_partition(), "fig2.partitions": {"mnist": dealt["mnist"]}})  # a ratio needs both
    assert mixed.verdict == own.verdict
    assert mixed.verdict.reasons == ("1 partition of 10",)


def test_work_is_judged_by_the_partitions():
    own = fig3(runs=range(5), partitioned=False)
    assert claim(13, {"fig3": own}).verdict.reasons == ("1 partition of 10",)
    found = claim(13, {"fig3": own, "fig3.partitions": fig3()})
    assert found.verdict.word == "holds"
    assert word(13, {"fig3": own, "fig3.partitions": swapped(fig3())}) == "fails"
    for number in (10, 11, 12, 14, 15):  # of which nothing was run beside it
        alone, beside = (claim(number, {"fig3": own} | more) for more in ({}, {"fig3.partitions": swapped(fig3())}))
        assert alone.cases == beside.cases


def test_the_order_at_small_rates_is_read_beside_figure_4():
    names = ("cifar10-20-F80", "cifar10-50-F80", "shakespeare-20-F80")
    small = {name: explored() for name in names}
    large = {
        f"fig{k}": {name: explored(order=("FedAvg", "FedFix(1/2)", "AsyncFedAvg"))}
        for k, name in zip((5, 6, 7), names, strict=True)
    }
    assert word(19, large) == "fails"
    assert word(19, {"fig4.small-rates": small} | large) == "holds"
    assert word(19, {"fig4.small-rates": small}) == "holds"
    some = {"fig4.small-rates": {name: small[name] for name in names[:2]}, "fig7": {names[2]: explored()}}
    assert word(19, some) == "holds"
    found = claim(19, {"fig4.small-rates": {names[0]: small[names[0]]}})
    assert found.verdict.word == "seen" or "not all of it was run" in found.verdict.reasons
    assert "fedtempo reproduce fig6" in " ".join(case.note for case in found.cases)
    assert SMALL_RATES == ".small-rates"


# -- the rules, on partitions of one seed


def dealt_by(partitions, rates=(0.01, 0.1, 1.0), level=lambda rule, rate, run: 0.0, attrs=None):
    """Partitions of one seed: time-based is lower by 0.1; 0.1 is the best rate unless `level` says otherwise."""

    def values(measure, scheme, rule, rate, run):
        apart = 0.1 * (rule == IDENTICAL) + 0.5 * (rate != 0.1)
        return 1 + apart + 0.001 * noise(rule, rate, run) + level(rule, rate, run) + np.exp(-TIMES)

    return history(["AsyncFedAvg"], [IDENTICAL, TIME_BASED], rates, partitions, TIMES, values, attrs=attrs)


def judged(h, **more):
    return claim(1, {"fig2.partitions": dict.fromkeys(DATA, h)} | more)


@pytest.mark.parametrize(("partitions", "choosing"), [(20, 4), (12, 2), (10, 2), (4, 1)])
def test_rates_are_chosen_on_a_fifth_of_the_partitions_and_judged_on_the_others(partitions, choosing):
    runs = [42, *range(1, partitions)]
    part = Part.of("mnist", dealt_by(runs))
    best = part.best("Async", IDENTICAL)
    assert best.choice.runs == frozenset((p, 0) for p in runs[:choosing])
    final = best.final().squeeze("seed")
    assert final["partition"].values[final.notnull().values].tolist() == runs[choosing:]
    found = judged(dealt_by(runs))
    if partitions - choosing < 10:
        assert found.verdict.reasons == (f"{partitions - choosing} partitions of 10",)
    else:
        assert found.verdict.word == "holds"


def test_partitions_that_are_judged_have_no_say_in_the_rate():
    """On those that choose 0.1 is the best; on all the others 0.01, by far."""
    runs = list(range(20))
    other = dealt_by(runs, level=lambda rule, rate, run: -3.0 if run >= 4 and rate == 0.01 else 0.0)
    assert Part.of("mnist", other).tuned("Async", IDENTICAL) == 0.1
    other = dealt_by(runs, level=lambda rule, rate, run: -3.0 if run < 4 and rate == 0.01 else 0.0)
    assert Part.of("mnist", other).tuned("Async", IDENTICAL) == 0.01


def test_what_was_used_for_choosing_is_not_judged():
    part = Part.of("mnist", dealt_by(range(20)))
    best, other = (part.best("Async", rule, tuned_on=IDENTICAL) for rule in (IDENTICAL, TIME_BASED))
    honest = compared(part, minus(best.final(), other.final()), choices=[best.choice])
    assert reasons(honest) == ()
    everything = [part.at("Async", rule, 0.1).final() for rule in (IDENTICAL, TIME_BASED)]
    assert reasons(compared(part, minus(*everything), choices=[best.choice])) == ("rate chosen on the seeds judged",)


def test_made_up_partitions_at_which_each_rule_refuses():
    good = dealt_by(range(20))
    assert judged(good).verdict.word == "holds"
    far = dealt_by(range(20), attrs={"horizon_of_paper": 200_000.0})
    assert judged(far).verdict.reasons == ("horizon 100 of 200 000",)
    unknown = dealt_by(range(20), attrs={"about": "nothing"})
    assert judged(unknown).verdict.reasons == ("the paper's horizon is not known",)
    edge = dealt_by(range(20), rates=(0.01, 0.1))
    assert judged(edge).verdict.reasons == ("best rate at the edge",)
    few = dealt_by(range(12))
    few.dataset["loss"].loc[{"partition": 7}] = np.nan
    assert judged(few).verdict.reasons == ("9 partitions of 10",)


def test_a_partition_that_diverged_is_the_worst():
    lost = dealt_by(range(20))
    lost.dataset["loss"].loc[{"partition": [8, 9], "weights": TIME_BASED, "local_lr": 0.1}] = np.nan
    lost.dataset["diverged_at"].loc[{"partition": [8, 9], "weights": TIME_BASED, "local_lr": 0.1}] = 50.0
    found = judged(lost)
    assert found.verdict.word != "holds"
    assert "0 and 2 of 16 runs diverged" in found.cases[0].note


def test_rates_that_diverged_in_the_first_stage_of_the_figure_are_known():
    edge = dealt_by(range(20), rates=(0.01, 0.1))
    scout = dealt_by(range(2), rates=(0.01, 0.1, 1.0))
    for name in ("loss", "diverged_at"):
        scout.dataset[name].loc[{"local_lr": 1.0}] = np.nan if name == "loss" else 5.0
    assert judged(edge, **{"fig2.scout": dict.fromkeys(DATA, scout)}).verdict.word == "holds"


# -- the beginning

EARLY = np.linspace(0.0, 10.0, 51)


def begun(runs=range(20), rates=(0.01, 0.1), pace=(0.3, 0.2), floor=0.5, times=EARLY, change=None):
    """The first of the time on a finer grid; identical falls faster."""

    def values(measure, scheme, rule, rate, run):
        quick = pace[rule != IDENTICAL] * (1 + noise(rule, run))
        curve = floor + (3.0 - floor) * np.exp(-quick * times)
        return curve if change is None else change(rule, rate, run, curve)

    return {name: history(["AsyncFedAvg"], [IDENTICAL, TIME_BASED], rates, runs, times, values) for name in DATA}


def whole(runs=range(20)):
    return fig2(runs=runs)


def test_the_beginning_is_judged_by_its_own_runs_at_the_rate_of_the_whole():
    """At the rate that is best on the whole, 0.01, identical falls faster; at 0.1 it does not."""

    def change(rule, rate, run, curve):
        return curve if rate == 0.01 or rule != IDENTICAL else np.full_like(curve, 3.0)

    found = claim(9, {"fig2.partitions": whole(), "fig2.beginning": begun(change=change)})
    assert found.verdict.word == "holds"
    assert {len(case.finding.reasons) for case in found.cases} == {0}
    # a tenth of the way from 3 to 0.5 and a little: between two points of the fine grid
    assert all(0.2 <= case.finding.time <= 0.6 for case in found.cases)
    assert word(9, {"fig2.partitions": whole(), "fig2.beginning": swapped(begun())}) == "fails"
    assert word(9, {"fig2": one_partition(), "fig2.beginning": swapped(begun())}) == "fails"


def test_the_partitions_that_choose_the_rate_do_not_judge_the_beginning():
    """On the four by which the rate was chosen the others would turn the answer round."""

    def change(rule, rate, run, curve):
        return curve - (50.0 * (rule != IDENTICAL) * (EARLY > 0) if run < 4 else 0.0)

    assert word(9, {"fig2.partitions": whole(), "fig2.beginning": begun(change=change)}) == "holds"
    found = claim(9, {"fig2.partitions": whole(range(12)), "fig2.beginning": begun(range(11))})
    assert found.verdict.reasons == ("9 partitions of 10",)


def test_the_descent_is_that_of_the_whole_run():
    """The beginning alone falls by 0.4; a tenth of that comes sooner than a tenth of the whole."""
    short = begun(pace=(0.02, 0.01))
    found = claim(9, {"fig2.partitions": whole(), "fig2.beginning": short})
    lowest = {name: float(weights_curve(name, "loss", IDENTICAL, 0.01, 5).min()) for name in DATA}
    for case in found.cases:
        data = short[case.name].dataset["loss"].sel(weights=IDENTICAL, local_lr=0.01, partition=range(4, 20))
        mean = data.mean(["partition", "seed", "scheme"])
        reached = mean["time"].values[(mean <= mean[0] - 0.1 * (3.0 - lowest[case.name])).values]
        assert case.finding.time == pytest.approx(reached[0], abs=0.21)
    late = claim(9, {"fig2.partitions": whole(), "fig2.beginning": begun(pace=(0.002, 0.001))})
    assert late.verdict.word == "not run"
    assert "the loss has not done 10 % of its descent by time 10" in late.cases[0].note


def test_without_its_own_runs_the_beginning_is_that_of_the_partitions():
    dealt = whole()
    alone, beside = (claim(9, {"fig2.partitions": dealt} | more) for more in ({}, {"fig2": swapped(one_partition())}))
    assert alone.cases == beside.cases
    assert alone.verdict.word == "holds"


def test_a_best_rate_at_the_edge_of_the_whole_keeps_the_beginning_undecided():
    edge = dict.fromkeys(DATA, dealt_by(range(20), rates=(0.01, 0.1)))
    found = claim(9, {"fig2.partitions": edge, "fig2.beginning": begun()})
    assert found.verdict.word == "seen"
    assert found.verdict.reasons == ("best rate at the edge",)


def test_what_is_left_to_run_is_said_with_its_setting():
    found = judge({"fig2.beginning": begun()}, "authors")
    command = "run: fedtempo reproduce fig2 --scale paper --setting authors"
    assert {case.note for case in found[0].cases} == {command}
    assert {case.note for case in found[8].cases} == {f"{command} (for the rate; the beginning is there)"}
    assert found[8].verdict.word == "not run"
    assert judge({})[0].cases[0].note == "run: fedtempo reproduce fig2 --scale paper"


def test_a_best_rate_that_was_not_run_at_the_beginning_is_named():
    found = claim(9, {"fig2.partitions": whole(), "fig2.beginning": begun(rates=(0.05, 0.1))})
    assert "was not run at local_lr 0.01" in found.cases[0].note


def test_a_part_without_some_runs_keeps_what_it_says_of_itself():
    part = Part.of("mnist", dealt_by(range(20)))
    choice = part.choice("Async", IDENTICAL, 0.1)
    rest = part.without(choice)
    assert (rest.horizon, rest.time) == (part.horizon, part.time)
    kept = rest.history.dataset["loss"].notnull().any(["scheme", "weights", "local_lr", "time", "seed"])
    assert kept.values.tolist() == [False] * 4 + [True] * 16
    xr.testing.assert_identical(part.without(None).history.dataset, part.history.dataset)
    assert part.without(replace(choice, runs=frozenset({(3, 9)}))).history.dataset["loss"].notnull().all()
