"""What happened in a study, in sentences: who reached the target first, what identical weights cost, what diverged.

Two values differ when their distance is more than the root of the sum of their squared deviations over seeds.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from fedtempo.report.history_summary import FAIR, REFERENCE, Row, Summary
from fedtempo.report.phrases import both, counted, differing, plain, signed, some, verb_for
from fedtempo.report.tables import short

if TYPE_CHECKING:
    from fedtempo.history import History


def sentences(history: History, summary: Summary) -> list[str]:
    """What happened, in plain words; nothing that the numbers do not show."""
    told = [_who_was_first(history, summary), *_what_bias_cost(summary), _what_they_minimise(history, summary)]
    told += [_what_diverged(history), _what_is_missing(history, summary), _edge_of_rates(history, summary)]
    if history.dataset.sizes["seed"] == 1:
        told.append("There is one seed, so small differences may be chance.")
    return [sentence for sentence in told if sentence]


def _who_was_first(history: History, summary: Summary) -> str:
    if math.isnan(summary.target):
        return "No scheme's federated loss fell, so there is no target to reach."
    rule = FAIR if any(r.weights == FAIR for r in summary.rows) else summary.rows[0].weights
    rows = [r for r in summary.rows if r.weights == rule]
    there = sorted((r for r in rows if not math.isnan(r.time_to_target)), key=lambda r: r.time_to_target)
    goal = f"a federated loss of {short(summary.target)}"
    end = short(history.dataset["time"].values[-1])
    if not there:
        return f"With {rule} weights no scheme reaches {goal} by time {end}."
    if len(rows) == 1:
        return f"{rows[0].scheme} reaches {goal} at time {short(there[0].time_to_target)}."
    if there[-1].time_to_target == 0.0:
        return f"Every scheme is at or below {goal} from the start: choose a lower target."
    fastest = there[0]
    first = [r for r in there if _equal_times(fastest, r)]
    names = both([r.scheme for r in first])
    times = both([short(t) for t in dict.fromkeys(r.time_to_target for r in first)])
    if len(first) == len(rows):
        return f"With {rule} weights all schemes reach {goal} at about the same time ({times})."
    together = ", equal within the deviation over seeds," if len({r.time_to_target for r in first}) > 1 else ""
    said = f"With {rule} weights {names} {verb_for(first, 'reach')} {goal} first, at time {times}{together}".rstrip(",")
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
    told = []
    if higher:
        listed = some([by for _, by in sorted(higher, reverse=True)])
        told.append(f"The bias of identical weights costs federated loss, against time-based ones: {listed}.")
    if lower:
        listed = some([by for _, by in sorted(lower)])
        told.append(f"With identical weights the federated loss ends lower here than with time-based ones: {listed}.")
    if same:
        told.append(f"For {both(same)} identical weights end no differently, within the deviation over seeds.")
    return told


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
    said = f"{total} of {counted(gone.size, 'run')} diverged"
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
    nothing = [f"{r.scheme} ({r.weights})" for r in summary.rows if math.isnan(r.loss) and r.diverged]
    if nothing and summary.hyper:
        said.append(f"At every rate a seed diverged: {both(nothing)}.")
    missing = int(history.unfinished.sum())
    if missing or not history.finished:
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


def _edge_of_rates(history: History, summary: Summary) -> str:
    """A best rate that is the last one tried may not be the best there is."""
    if "local_lr" not in history.hyper or history.dataset.sizes["local_lr"] < 2:
        return ""
    tried = history.dataset["local_lr"].values
    rows = [r for r in summary.rows if r.weights == FAIR and not math.isnan(r.loss)]
    parts = []
    for edge, end in ((tried.max(), "largest"), (tried.min(), "smallest")):
        at = [r.scheme for r in rows if r.chosen["local_lr"] == edge]
        if at:
            parts.append(f"the {end} local_lr tried ({plain(edge)}) is the best for {both(at)}")
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}: rates beyond may do better still." if told else ""


def _differs(row: Row, fair: Row) -> bool:
    return abs(row.loss - fair.loss) > _noise(row.loss_over_seeds, fair.loss_over_seeds, row.loss)


def _equal_times(a: Row, b: Row) -> bool:
    return abs(a.time_to_target - b.time_to_target) <= _noise(a.time_over_seeds, b.time_over_seeds, 0.0)


def _noise(a: float, b: float, size: float) -> float:
    """What two values may differ by without a difference: their deviations, and the last digits of a float."""
    return max(math.hypot(*(0.0 if math.isnan(x) else x for x in (a, b))), 1e-6 * abs(size))
