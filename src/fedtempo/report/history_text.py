"""A history in words: one line, a table, and sentences about what happened.

The sentences say who reached the target first, what identical weights cost and what diverged. Two values differ when
their distance is more than the root of the sum of their squared deviations over seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedtempo.grid import RATE
from fedtempo.report.page import BLANK, Grid, Line, Page, page, table, words
from fedtempo.report.text import NONE, both, cell, counted, differing, plain, short, signed, some, verb_for
from fedtempo.simulation.history.selection import SEARCHED
from fedtempo.simulation.history.summary import FAIR, OWN, REFERENCE, Row, Summary, summarise

if TYPE_CHECKING:
    from fedtempo.simulation.history.history import History


def headline(history: History) -> str:
    """The study in a line: its problem, its size, how it was computed."""
    attrs, dataset = history.attrs, history.dataset
    try:
        problem = json.loads(attrs.get("problem", "{}"))
    except ValueError:
        problem = {"name": attrs["problem"]}
    problem = problem if isinstance(problem, dict) else {"name": str(problem)}
    clients = problem.get("clients", problem.get("num_clients"))
    clients = dataset.sizes.get("client") if not isinstance(clients, int) else clients
    what = [str(problem["name"])] if problem.get("name") else []
    what += [counted(clients, "client")] if clients else []
    size = [
        counted(dataset.sizes[name], "problem") if name == "problem" else f"{dataset.sizes[name]} times"
        for name in history.settings
    ]
    size += [counted(dataset.sizes["scheme"], "scheme"), counted(dataset.sizes["weights"], "weight rule")]
    size += [f"{dataset.sizes[name]} {name}" for name in history.hyper]
    size += [counted(dataset.sizes["seed"], "seed")]
    span = f"virtual time 0 to {short(dataset['time'].values[-1])}"
    how = [f"{attrs['engine']} engine" if attrs.get("engine") else "", str(attrs.get("dtype", ""))]
    own = ["each with its own data"] if _dealt_anew(problem) else []
    about = ", ".join(filter(None, [*own, span, *how]))
    return f"{', '.join(what)}{': ' * bool(what)}{' × '.join(size)}, {about}"


def _dealt_anew(problem: Mapping[str, Any]) -> bool:
    """Whether every seed dealt the data (problems/redealt.py, which is not loaded to print)."""
    arguments = problem.get("arguments")
    said = arguments if isinstance(arguments, Mapping) else problem
    return said.get("seed") == "each"


def sentences(history: History, summary: Summary) -> list[str]:
    """What happened, in plain words; nothing that the numbers do not show."""
    found = [_who_was_first(history, summary), *_what_bias_cost(summary), _what_they_minimise(history, summary)]
    found += [_what_diverged(history), _what_is_missing(history, summary), _edge_of_rates(history, summary)]
    if history.dataset.sizes["seed"] == 1:
        found.append("There is one seed, so small differences may be chance.")
    found += [_how_rates_were_found(history), _at_the_rate_of_fedavg(history, summary)]
    return [sentence for sentence in found if sentence]


def _main(summary: Summary) -> tuple[str, list[Row]]:
    """The rule that schemes are compared under, in words, and its rows, with those of schemes that bring their own."""
    rules = [r.weights for r in summary.rows]
    rule = FAIR if FAIR in rules else next((name for name in rules if name != OWN), OWN)
    rows = [r for r in summary.rows if r.weights in (rule, OWN)]
    said = f"{rule} weights, or their own," if OWN in rules and rule != OWN else f"{rule} weights"
    return said.replace("its own", "their own"), rows


def _who_was_first(history: History, summary: Summary) -> str:
    if math.isnan(summary.target):
        return "No scheme's federated loss fell, so there is no target to reach."
    rule, rows = _main(summary)
    there = sorted((r for r in rows if not math.isnan(r.time_to_target)), key=lambda r: r.time_to_target)
    goal = f"a federated loss of {short(summary.target)}"
    end = short(history.dataset["time"].values[-1])
    if not there:
        return f"With {rule} no scheme reaches {goal} by time {end}."
    if len(rows) == 1:
        return f"{rows[0].scheme} reaches {goal} at time {short(there[0].time_to_target)}."
    if there[-1].time_to_target == 0.0:
        return f"Every scheme is at or below {goal} from the start: choose a lower target."
    fastest = there[0]
    first = [r for r in there if _equal_times(fastest, r)]
    names = both([r.scheme for r in first])
    times = both([short(t) for t in dict.fromkeys(r.time_to_target for r in first)])
    if len(first) == len(rows):
        return f"With {rule} all schemes reach {goal} at about the same time ({times})."
    together = ", equal within the deviation over seeds," if len({r.time_to_target for r in first}) > 1 else ""
    said = f"With {rule} {names} {verb_for(first, 'reach')} {goal} first, at time {times}{together}".rstrip(",")
    fedavg = next((r for r in rows if r.scheme == REFERENCE), None)
    if fedavg in first or fedavg is None:
        said += "; no scheme is sooner than FedAvg" if fedavg else ""
    elif math.isnan(fedavg.time_to_target):
        said += f"; FedAvg does not by time {short(fedavg.reached) if fedavg.reached == fedavg.reached else end}"
    elif fastest.time_to_target > 0:
        ratio = fedavg.time_to_target / fastest.time_to_target
        said += f": {ratio:.2g} times sooner than FedAvg, at {short(fedavg.time_to_target)}"
    last = float(history.dataset["time"][-1])
    never = [r.scheme for r in rows if math.isnan(r.time_to_target) and r is not fedavg]
    never = [s for s in never if any(r.scheme == s and (r.diverged or r.reached == last) for r in rows)]
    return said + (f". Not reached by {both(never)}." if never else ".")


def _what_bias_cost(summary: Summary) -> list[str]:
    """One sentence for those that end higher, one for those that do not."""
    higher: list[tuple[float, str]] = []
    lower: list[tuple[float, str]] = []
    same: list[str] = []
    for row in summary.rows:
        fair = summary.row(row.scheme)
        if (
            row.weights != "identical"
            or fair is None
            or math.isnan(row.loss + fair.loss)
            or row.reached != fair.reached
        ):
            continue
        if abs(row.loss - fair.loss) <= _noise(row.loss_over_seeds, fair.loss_over_seeds, row.loss):
            same.append(row.scheme)
        else:
            by = f"{row.scheme} ends at {differing(row.loss, fair.loss)}"
            by += "" if math.isnan(row.bias_cost) else f" ({signed(row.bias_cost)})"
            (higher if row.loss > fair.loss else lower).append((row.bias_cost, by))
    found = []
    if higher:
        listed = some([by for _, by in sorted(higher, reverse=True)])
        found.append(f"The bias of identical weights costs federated loss, against time-based ones: {listed}.")
    if lower:
        listed = some([by for _, by in sorted(lower)])
        found.append(f"With identical weights the federated loss ends lower here than with time-based ones: {listed}.")
    if same:
        found.append(f"For {both(same)} identical weights end no differently, within the deviation over seeds.")
    return found


def _what_they_minimise(history: History, summary: Summary) -> str:
    """The surrogate under both weight rules, for the scheme whose shares it has, or the most biased."""
    rows = [r for r in summary.rows if r.weights == "identical" and r.bias_cost > 0 and not math.isnan(r.surrogate)]
    pairs = [(r, fair) for r in rows if (fair := summary.row(r.scheme)) is not None and _differs(r, fair)]
    if not pairs:
        return ""
    whose = str(history.attrs.get("surrogate", ""))
    row, fair = min(pairs, key=lambda pair: (pair[0].scheme not in whose, -pair[0].bias_cost))
    gap = fair.surrogate - row.surrogate
    if not gap > _noise(row.surrogate_over_seeds, fair.surrogate_over_seeds, row.surrogate):
        return ""
    shares = f" ({whose})" if whose else ""
    return (
        f"What identical weights minimise instead is the surrogate loss, in which clients count as often as they come"
        f"{shares}: there {row.scheme} ends at {differing(row.surrogate, fair.surrogate)} with time-based ones."
    )


def _what_diverged(history: History) -> str:
    gone = history.diverged
    if not bool(gone.any()):
        return ""
    total = int(gone.sum())
    said = f"{total} of {counted(int(history.begun.sum()), 'run')} diverged"
    kept = (
        gone.stack(combination=history.hyper, create_index=False) if history.hyper else gone.expand_dims("combination")
    )
    parts = []
    for k in range(kept.sizes["combination"]):
        one = kept.isel(combination=k)
        if not bool(one.any()):
            continue
        named = one.any(["weights", "seed"])
        who = [str(s) for s in named["scheme"].values[named.values]]
        at = " ".join(f"{name} {plain(one[name].item())}" for name in history.hyper)
        parts.append((int(one.sum()), f"at {at} ({', '.join(who)})" if at else f"({', '.join(who)})"))
    if len(parts) == 1:
        return f"{said} {parts[0][1]}."
    more = f", and more at {len(parts) - 4} other combinations" if len(parts) > 4 else ""
    return f"{said}: {', '.join(f'{count} {where}' for count, where in parts[:4])}{more}."


def _what_is_missing(history: History, summary: Summary) -> str:
    said = []
    nothing = [f"{r.scheme} ({r.weights})" for r in summary.rows if _gone(history, r)]
    if nothing and summary.hyper:
        said.append(f"At every rate a seed diverged: {both(nothing)}.")
    missing = int(history.unfinished.sum())
    if not missing and not history.finished:
        said.append("The study is not finished: more rates or settings are to come.")
    elif missing:
        ends = sorted((r.reached, r.scheme) for r in summary.rows if not math.isnan(r.reached))
        far = [
            f"{short(end)} for {both(list(dict.fromkeys(name for _, name in group)))}"
            for end, group in groupby(ends, lambda pair: pair[0])
        ]
        upto = f"time {short(ends[0][0])}" if len(far) == 1 else "; ".join(far)
        shown = f"the table speaks of what there is up to {upto}" if far else "there is no value yet"
        said.append(
            f"The study is not finished: {missing} of {counted(history.diverged.size, 'run')} are open, and {shown}."
        )
    return " ".join(said)


def _gone(history: History | None, row: Row) -> bool:
    """Whether all that was to be run of a scheme has run, and nothing is left of it."""
    if not (math.isnan(row.loss) and row.diverged):
        return False
    if history is None or history.finished:
        return True
    rule = history.dataset["weights"].values[0] if row.weights == OWN else row.weights
    return bool(history.begun.sel(scheme=row.scheme, weights=rule).all())


def _edge_of_rates(history: History, summary: Summary) -> str:
    """A best rate that is the last one tried may not be the best there is."""
    if RATE not in history.hyper or history.dataset.sizes[RATE] < 2:
        return ""
    tried = history.dataset[RATE].values
    rows = [r for r in _main(summary)[1] if not math.isnan(r.loss)]
    parts = []
    for edge, end in ((tried.max(), "largest"), (tried.min(), "smallest")):
        at = [r.scheme for r in rows if r.chosen[RATE] == edge]
        if at:
            parts.append(f"the {end} local_lr tried ({plain(edge)}) is the best for {both(at)}")
    both_ends = "; ".join(parts)
    return f"{both_ends[0].upper()}{both_ends[1:]}: rates beyond may do better still." if both_ends else ""


def _how_rates_were_found(history: History) -> str:
    """What was tried by a search, and what that cost."""
    if SEARCHED not in history.attrs or RATE not in history.hyper:
        return ""
    search, rates = json.loads(history.attrs[SEARCHED]), history.dataset[RATE].values
    ends = history.dataset["updates"].isel(time=-1, drop=True) if "updates" in history.dataset else None
    cost = "" if ends is None else f", {float((history.begun * ends).sum()):.2g} client updates in all"
    inside = "; the best of each scheme has worse ones on both sides"
    if search["ended"] != "inside" or rates.tolist() != search.get("rates", rates.tolist()):
        inside = ""
    return f"Learning rates were searched: {len(rates)} from {plain(rates[0])} to {plain(rates[-1])}{cost}{inside}."


def _at_the_rate_of_fedavg(history: History, summary: Summary) -> str:
    """Who is sooner, and ends no worse, when the scheme is changed and nothing else: all at FedAvg's best rates."""
    fedavg = summary.row(REFERENCE)
    alone = len({row.scheme for row in summary.rows}) == 1
    if fedavg is None or alone or RATE not in history.hyper or not fedavg.time_to_target > 0:
        return ""
    same = history.select(**fedavg.chosen)
    when = same.time_to(summary.target, over="seed")
    each = same.time_to(summary.target).std("seed", ddof=1)
    ends, spread = same.final().mean("seed", skipna=False), same.final().std("seed", ddof=1)
    sooner, perhaps, others = False, False, []
    for row in _main(summary)[1]:
        at = {"scheme": row.scheme, "weights": FAIR if row.weights == FAIR else history.dataset["weights"].values[0]}
        time, noise = float(when.sel(at)), _noise(float(each.sel(at)), fedavg.time_over_seeds, 0.0)
        perhaps |= row.scheme != REFERENCE and time < fedavg.time_to_target
        if row.scheme != REFERENCE and time < fedavg.time_to_target - noise:
            sooner = True
            end, doubt = float(ends.sel(at)), _noise(float(spread.sel(at)), fedavg.loss_over_seeds, fedavg.loss)
            if end <= fedavg.loss + max(doubt, _AS_LOW * abs(fedavg.loss)):
                others.append((time, row.scheme))
    rate = f"At FedAvg's own learning rate ({plain(fedavg.chosen[RATE])})"
    if not others:
        but = " and ends as low" if sooner else " by more than the deviation over seeds" if perhaps else ""
        return f"{rate} no scheme reaches the target sooner than FedAvg{but}."
    time, name = min(others)
    ratio = fedavg.time_to_target / time if time > 0 else math.inf
    return (
        f"{rate}: change FedAvg to {name}, nothing else, and a loss of {short(summary.target)} is reached at time "
        f"{short(time)} instead of {short(fedavg.time_to_target)}, {ratio:.2g} times sooner."
    )


def _differs(row: Row, fair: Row) -> bool:
    return abs(row.loss - fair.loss) > _noise(row.loss_over_seeds, fair.loss_over_seeds, row.loss)


def _equal_times(a: Row, b: Row) -> bool:
    return abs(a.time_to_target - b.time_to_target) <= _noise(a.time_over_seeds, b.time_over_seeds, 0.0)


def _noise(a: float, b: float, size: float) -> float:
    """What two values may differ by without a difference: their deviations, and the last digits of a float."""
    return max(math.hypot(*(0.0 if math.isnan(x) else x for x in (a, b))), 1e-6 * abs(size))


_AS_LOW = 0.01  # of FedAvg's final loss: who ends this much above it still counts as ending as low

_SPARE = ("rounds", "spread", "updates")  # what a narrow terminal is not shown, in this order


def show_history(history: History, *, target: float | None = None) -> None:
    """Print it."""
    history_page(history, target=target).show()


def history_page(history: History, *, target: float | None = None) -> Page:
    """The table of a study, and what it says in a few sentences; of several settings, one after the other."""
    return summaries_page(history, summaries_of(history, target=target))


def summaries_of(history: History, *, target: float | None = None) -> dict[Any, Summary]:
    """The summary of each setting, by its name or names; of a study without several, by nothing."""
    each = history.split() if history.settings else {(): history}
    return {setting: summarise(one, target=target) for setting, one in each.items()}


def summaries_page(history: History, summaries: Mapping[Any, Summary]) -> Page:
    """The page of a history whose summaries are made."""
    parts = []
    for setting, summary in summaries.items():
        values = setting if isinstance(setting, tuple) else (setting,)
        where = ", ".join(f"{name} {value}" for name, value in zip(history.settings, values, strict=True))
        parts += _results(summary.history or history, summary, where)
    return page(headline(history), *parts)


def summary_page(summary: Summary) -> Page:
    """A summary with the sentences of the history that it is of; without that, its table alone."""
    if summary.history is None:
        return page(summary_grid(summary))
    return summaries_page(summary.history, {(): summary})


def _results(history: History, summary: Summary, where: str = "") -> list[Grid | Line]:
    said = (legend(history, summary), *sentences(history, summary))
    return [summary_grid(summary, where), BLANK, *(Line(sentence) for sentence in said)]


def summary_grid(summary: Summary, where: str = "") -> Grid:
    """A row a scheme and weight rule; columns in which nothing is known are left out."""
    level = NONE if math.isnan(summary.target) else short(summary.target)
    numbers = {
        "loss": ["diverged" if _gone(summary.history, r) else _pm(r) for r in summary.rows],
        "spread": [cell(r.loss_over_clients, ".3g") for r in summary.rows],
        "test": [cell(r.accuracy, ".1%") for r in summary.rows],
        **{name: [cell(r.metrics[name], ".4g") for r in summary.rows] for name in _own_metrics(summary)},
        f"to {level}": [cell(r.time_to_target, ".4g") for r in summary.rows],
        "rounds": [cell(r.rounds, ".0f") for r in summary.rows],
        "updates": [cell(r.updates, ".0f") for r in summary.rows],
    }
    shown = {name: cells for name, cells in numbers.items() if name == "loss" or set(cells) != {NONE}}
    rows = (
        (
            r.scheme,
            r.weights,
            *(plain(r.chosen[name]) for name in summary.hyper),
            *(cells[k] for cells in shown.values()),
        )
        for k, r in enumerate(summary.rows)
    )
    title = "every scheme at its best rates" if summary.hyper else "every scheme"
    title = f"{where}: {title}" if where else f"{title[0].upper()}{title[1:]}"
    made = table(title, (words("scheme"), words("weights"), *summary.hyper, *shown), rows)
    return replace(made, spare=tuple(name for name in _SPARE if name in shown))


def _own_metrics(summary: Summary) -> list[str]:
    return list(summary.rows[0].metrics) if summary.rows else []


def legend(history: History, summary: Summary) -> str:
    """What the columns mean."""
    seeds = history.dataset.sizes["seed"]
    parts = [
        "loss: the federated loss, averaged over the last tenth of the time"
        + (f", ± its deviation over {seeds} seeds" if seeds > 1 else "")
    ]
    if any(not math.isnan(r.loss_over_clients) for r in summary.rows):
        parts.append("spread: its deviation over clients")
    if any(not math.isnan(r.accuracy) for r in summary.rows):
        parts.append("test: accuracy on test data")
    if own := _own_metrics(summary):
        parts.append(f"{', '.join(own)}: on test data")
    if any(not math.isnan(r.time_to_target) for r in summary.rows):
        when = "when the mean over seeds comes to that loss" if seeds > 1 else "time to that loss"
        parts.append(f"to {short(summary.target)}: {when}, the target ({summary.target_rule})")
    return f"{'; '.join(parts)}."


def _pm(row: Row) -> str:
    """The final loss to the first digit of its deviation over seeds, and at most four."""
    value, deviation = row.loss, row.loss_over_seeds
    if math.isnan(value):
        return NONE
    if math.isnan(deviation) or deviation <= 1e-4 * abs(value):
        return short(value)
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}±{deviation:.1g}"
    places = max(-math.floor(math.log10(deviation)), 2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{places}f}±{deviation:.{places}f}"
