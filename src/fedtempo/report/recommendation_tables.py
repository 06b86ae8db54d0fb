"""A recommendation in words: the choice, how sure it is, every scheme at its best rate, and what that took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from fedtempo.errors import InputError
from fedtempo.planning.recommendation import ENDED, Choice, Interval, Spent
from fedtempo.planning.saved_recommendation import AnyRecommendation
from fedtempo.report.page import Column, Grid, Line, Page, names, page, table, words
from fedtempo.report.text import NONE, both, cell, counted, differing

_MOST_NAMES, _MOST_CROSSINGS = 4, 3
_TIMES = 9.995
"""Shares from here on are said as a multiple."""


def show_recommendation(made: AnyRecommendation) -> None:
    """Print it."""
    recommendation_page(made).show()


def recommendation_page(made: AnyRecommendation) -> Page:
    """The choice first and how sure it is, then what it was chosen from and what that took."""
    return page(
        Line("", bold=f"{made.best.scheme.label} with local learning rate {made.best.local_lr:g}: {value_words(made)}"),
        _certainty(made),
        _fedavg(made),
        schemes_grid(made),
        *_flower(made),
        _crossings(made),
        _spent(made),
        *_pilot(made),
        *made.notes,
    )


# -- words for the figure too


def measure_name(made: AnyRecommendation) -> str:
    """What the values are, as "loss" or "test accuracy"; "time" where a loss is to be reached."""
    return "time" if made.objective.kind == "time-to" else _parted(made, float(made.until))[0]


def value_words(made: AnyRecommendation) -> str:
    """What the choice gives, as "loss 0.0142 at time 200"."""
    best, objective = made.best, made.objective
    end = float(made.until) * min(best.trained, 1.0)
    if not math.isfinite(best.loss):
        return "it diverged"
    if objective.kind == "time-to":
        if objective.reached(best.loss, end):
            return f"a loss of {objective.number:g} at time {best.loss:.4g}"
        return f"a loss of {objective.number:g} is not reached by time {end:g}"
    name, when = _parted(made, end)
    return f"{name} {best.loss:.4g} {when}{', where it was left' if best.trained < 1 else ''}"


def _parted(made: AnyRecommendation, end: float) -> tuple[str, str]:
    """The measure's name, and when it is taken."""
    whole = made.objective.words(end)
    mark = " after " if made.objective.kind == "bytes" else " at time "
    name, found, when = whole.rpartition(mark)
    return (name, f"{found}{when}".strip()) if found else (whole, "")


# -- sentences


def _certainty(made: AnyRecommendation) -> str:
    """How much worse than the best it may be, and what cannot be told from it."""
    ties = f"{_listed([one.scheme.label for one in made.ties])} cannot be told from it" if made.ties else ""
    if len(made.cells) == 1:
        return "Nothing else was compared."
    high = max(made.regret.high, 0.0)
    if not math.isfinite(high):
        said = "How far it may be from the best is not known: too little was trained"
    else:
        than = {"time-to": "later than"}.get(made.objective.kind, "below" if made.objective.largest else "above")
        far = f"{1 + high:.2g} times" if high > _TIMES and than == "above" else f"{_percent(high)} {than}"
        said = f"At most {far} the best of the {len(made.cells)} cells compared (95%)"
    return f"{'; '.join(filter(None, (said, ties)))}."


def _fedavg(made: AnyRecommendation) -> str | None:
    """What FedAvg would have given."""
    one, best, until = made.fedavg, made.best, float(made.until)
    if one is None or one.scheme.label == best.scheme.label or best.trained < one.trained:
        return None
    who = f"{one.scheme.label} at its best rate ({one.local_lr:g})"
    if one.trained < 1:
        return f"{who} was not trained to the end{f': {one.why}' if one.why else ''}."
    if not math.isfinite(one.loss):
        return f"{who} diverges."
    if made.objective.kind == "time-to":
        if not made.objective.reached(one.loss, until):
            either = "" if made.objective.reached(best.loss, until) else " either"
            return f"{who} does not reach it by time {until:g}{either}."
        ratio = one.loss / best.loss if best.loss > 0 else math.inf
        much = f"{ratio:.2g} times as long" if ratio >= 1.1 else f"{_percent(ratio - 1)} longer"
        return f"{who} takes {one.loss:.4g}{f', {much}' if math.isfinite(ratio) else ''}."
    if one.loss == best.loss:
        return f"{who} ends at {one.loss:.4g} too."
    if made.objective.largest or best.loss <= 0 or one.loss <= 0:
        return f"{who} ends at {differing(one.loss, best.loss)}."
    ratio = one.loss / best.loss
    if ratio >= 1.1:
        return f"{who} ends at {one.loss:.4g}: {ratio:.2g} times the {measure_name(made)}."
    return f"{who} ends at {one.loss:.4g}, {_percent(abs(ratio - 1))} {'above' if ratio > 1 else 'below'} it."


def _flower(made: AnyRecommendation) -> Iterator[str]:
    try:
        yield f"On Flower: {made.line()}"
    except InputError:
        return


def _crossings(made: AnyRecommendation) -> str | None:
    """Whether a shorter time would have had another choice, of those that can be compared over all of it."""
    if not made.crossings:
        followed = {label for label, _ in made.curves}
        others = len(followed - {made.best.scheme.label})
        if not others or made.best.scheme.label not in followed:
            return None
        who = "The other scheme" if others == 1 else f"None of the {others} other schemes"
        was = "was never clearly ahead of it" if others == 1 else "was ever clearly ahead of it"
        return f"{who} trained to the end {was}."
    last = made.crossings[-_MOST_CROSSINGS:]
    said = ", ".join(
        f"until {'time ' * (k == 0)}{one.time:.3g} {one.scheme}{' was ahead' * (k == 0)}" for k, one in enumerate(last)
    )
    return f"{said[0].upper()}{said[1:]}."


def _spent(made: AnyRecommendation) -> str:
    spent = made.spent
    took = (
        f"It took {_updates(spent)}, {_seconds(spent.seconds)} and {counted(spent.trainings, 'training')}, "
        f"{spent.to_the_end} of them to the end"
    )
    if made.ended == "stopped":
        return f"{took}; it was {ENDED[made.ended]}."
    tolerance = f", {_percent(made.tolerance)}" if made.ended == "sure" else ""
    return f"{took}; it ended because {ENDED[made.ended]}{tolerance}."


def _updates(spent: Spent) -> str:
    if not spent.grid > 0:
        return f"{spent.updates:.0f} client updates"
    size, name = next(((s, f" {n}") for s, n in ((1e9, "billion"), (1e6, "million")) if spent.grid >= s), (1.0, ""))
    used, grid = (f"{n:.2g}" if size > 1 and n < 10 else f"{n:.0f}" for n in (spent.updates / size, spent.grid / size))
    return f"{used} of {grid}{name} client updates of the full grid ({_percent(spent.share)})"


def _seconds(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _pilot(made: AnyRecommendation) -> Iterator[str]:
    if made.pilot is not None:
        yield f"The pilot used {made.pilot_updates:.0f} of them and ended at loss {made.pilot.end_loss:.3g}."


# -- the table


def schemes_grid(made: AnyRecommendation) -> Grid:
    """A row a scheme at its best rate."""
    about = "; ± is one standard error over seeds" if any(_has_error(one) for one in made.choices) else ""
    return _grid(made, made.choices, f"Schemes, each at its best learning rate{about}")


def cells_grid(made: AnyRecommendation) -> Grid:
    """A row a scheme and rate that was trained at all."""
    return _grid(made, made.cells, "Every scheme at every learning rate that was trained")


def _grid(made: AnyRecommendation, cells: Sequence[Choice], title: str) -> Grid:
    value = measure_name(made)
    columns: list[Column | str] = [names("scheme"), "lr", value, "±", "behind", "seeds", "trained"]
    predicted = "predicted" if value == "loss" else "predicted loss"
    rows = [list(_row(made, one)) for one in cells]
    if made.prior is not None:
        columns.append(predicted)
        for row, one in zip(rows, cells, strict=True):
            row.append("unstable" if one.predicted == math.inf else cell(one.predicted, ".3g"))
    if any(one.why for one in cells):
        columns.append(words("why no further"))
        for row, one in zip(rows, cells, strict=True):
            row.append(one.why)
    grid = table(title, columns, rows)
    return grid if made.prior is None else replace(grid, spare=(predicted,))


def _row(made: AnyRecommendation, one: Choice) -> Iterator[str]:
    yield one.scheme.label
    yield f"{one.local_lr:g}"
    yield _value(made, one)
    yield f"{one.error:.2g}" if _has_error(one) else NONE
    yield NONE if one is made.best else _interval(one.behind)
    yield str(one.seeds)
    yield _share(one.trained)


def _has_error(one: Choice) -> bool:
    return one.seeds > 1 and math.isfinite(one.error)


def _value(made: AnyRecommendation, one: Choice) -> str:
    end = float(made.until) * min(one.trained, 1.0)
    if math.isnan(one.loss):
        return NONE
    if math.isinf(one.loss):
        return "diverged"
    return f"{one.loss:.4g}" if made.objective.reached(one.loss, end) else f"> {end:.4g}"


def _share(trained: float) -> str:
    """A share of the time, as "1/16"."""
    near = Fraction(trained).limit_denominator(16)
    if near >= 1:
        return "all"
    return str(near) if near and abs(float(near) - trained) < 1e-3 else _percent(trained)


def _interval(behind: Interval) -> str:
    """As "+12–18%"; "−2 to +4%" where it may be better."""
    low, high = behind
    if math.isnan(low) or math.isnan(high):
        return NONE
    if math.isinf(high):
        return f"> {_percent(low)}" if math.isfinite(low) else NONE
    if high > _TIMES:
        return f"× {max(1 + low, 0):.2g}–{1 + high:.2g}"
    digits = 1 if max(abs(low), high) < 0.0095 else 0
    first, last = (f"{100 * share:.{digits}f}" for share in (low, high))
    if float(first) < 0:
        return f"−{first[1:]} to {f'+{last}' if float(last) > 0 else last.replace('-', '−')}%"
    first = first.removeprefix("-")
    if first == last:
        return f"+{first}%" if float(first) else "0%"
    return f"{'+' if float(first) else ''}{first if float(first) else '0'}–{last}%"


def _percent(share: float) -> str:
    """With a digit after the point where there would be none before it."""
    return f"{share:.1%}" if 0.0005 <= abs(share) < 0.00995 else f"{share:.0%}"


def _listed(labels: Sequence[str]) -> str:
    """As "a, b and c"; of many the first, and how many more."""
    if len(labels) <= _MOST_NAMES + 1:
        return both(labels)
    return both([*labels[:_MOST_NAMES], f"{len(labels) - _MOST_NAMES} more"])
