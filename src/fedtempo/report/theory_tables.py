"""The theory of schemes: quantities, assumptions, constants, learning rates, and bounds term by term."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedtempo.clock.ticks import text
from fedtempo.report.page import BLANK, Column, Grid, Line, Page, names, page, table, words
from fedtempo.report.text import NONE, counted, short
from fedtempo.theory.document import SchemeTheory, Theory
from fedtempo.theory.tables import Quantities

if TYPE_CHECKING:
    from fedtempo.theory.bounds import Bound
    from fedtempo.theory.ceiling import Ceiling
    from fedtempo.theory.virtual_models import Measured

_VERDICT = {True: "yes", False: "no", None: "open"}
_LISTED = 3
"""Up to how many values a table lists."""
_ROUNDING = 1e-12
"""Losses and their optima are known to about this: what is smaller is shown as 0."""


def show_theory(theory: Theory) -> None:
    """Print it."""
    theory_page(theory).show()


def theory_page(theory: Theory) -> Page:
    """Quantities; with a problem also assumptions, constants, learning rates and the terms of the bound."""
    means, schemes = theory.times.mean_time, theory.schemes
    head = (
        f"{counted(theory.times.num_clients, 'client')}, {theory.times.law} times from {short(means.min())} to "
        f"{short(means.max())}, {theory.weight_rule} weights"
    )
    over = "in the long run" if theory.until is None else f"until time {text(theory.until)}"
    labels = [s.scheme.label for s in schemes]
    quantities = quantities_grid([s.quantities for s in schemes], labels, over)
    if theory.problem is None:
        return page(head, quantities)
    ceilings = {s.scheme.label: s.ceiling for s in schemes if s.ceiling is not None}
    bounds = {s.scheme.label: s.bound for s in schemes if s.bound is not None}
    measured = [s.measured for s in schemes if s.bound is not None]
    return page(
        f"{head}; {_named(theory)}",
        quantities,
        _assumptions(schemes),
        _constants(theory),
        _ceilings(list(ceilings.values()), list(ceilings)) if ceilings else None,
        _bounds(list(bounds.values()), list(bounds), measured) if bounds else None,
        *_said(theory),
    )


def quantities_page(found: Quantities) -> Page:
    """What is known of one run without a model."""
    of = found.expected
    label = found.label or "value"
    over = f"{counted(of.num_clients, 'client')}, {counted(of.num_rounds, 'round')}"
    return page(quantities_grid([found], [label], over))


def bound_page(found: Bound) -> Page:
    """Learning rates with a proof, the bound term by term, and what to know about it."""
    label = found.label or "value"
    notes = _notes(found, cure="give measured=ft.theory.measure(…)")
    return page(
        _ceilings([found.ceiling], [label]),
        _bounds([found], [label], [None]),
        *([BLANK] if notes else []),
        *(f"{note}." for note in notes),
    )


def _named(theory: Theory) -> str:
    assert theory.problem is not None
    p = theory.problem
    return f"{p.name}: {p.num_rows} rows, {p.num_parameters} parameters"


def _columns(title: str, labels: Sequence[str], rows: Iterable[tuple[str, str, Sequence[str]]]) -> Grid:
    """A table with a column for each scheme; where they leave no room, without the words between symbol and values."""
    listed = list(rows)
    values = [Column(label, least=min(len(label), 12)) for label in labels]
    wide = table(title, (names(""), words(""), *values), [(symbol, what, *found) for symbol, what, found in listed])
    narrow = table(title, (names(""), *values), [(symbol or what, *found) for symbol, what, found in listed])
    return replace(wide, narrow=narrow, room=0 if len(labels) == 1 else 55 + 18 * len(labels))


def quantities_grid(found: Sequence[Quantities], labels: Sequence[str], over: str) -> Grid:
    """A row a quantity, a column a scheme."""
    rows = [("", "of", [_source(one) for one in found])]
    raw = [one.to_dict() for one in found]
    for same in zip(*(one.rows() for one in found), strict=True):
        symbol, name = same[0][:2]
        rows.append((symbol, name, [_quantity(r[name], written) for r, (_, _, written) in zip(raw, same, strict=True)]))
    return _columns(f"Quantities of tables 1 and 2, {over}", labels, rows)


def _quantity(value: object, written: str) -> str:
    """One value of a table row: a list as its range where it is long or constant."""
    if isinstance(value, list) and len(value) > 1:
        low, high = _number(min(value)), _number(max(value))
        return low if low == high else f"{low} to {high}" if len(value) > _LISTED else written
    return _number(value) if isinstance(value, float) else written.replace("inf", "∞")


def _source(found: Quantities) -> str:
    return "the timeline" if found.expected.source == "timeline" else "the law"


def _assumptions(schemes: Sequence[SchemeTheory]) -> Grid:
    """One line an assumption, or one a scheme where the reasons differ."""
    several = len(schemes) > 1
    rows = []
    for same in zip(*(s.assumptions for s in schemes), strict=True):
        groups: dict[tuple[str, str], list[str]] = {}
        for s, a in zip(schemes, same, strict=True):
            groups.setdefault((_VERDICT[a.holds], a.reason), []).append(s.scheme.label)
        for k, ((verdict, reason), who) in enumerate(groups.items()):
            head = (str(same[0].number), same[0].name) if k == 0 else ("", "")
            whose = "" if len(who) == len(schemes) else ", ".join(who)
            rows.append((*head, verdict, *([whose] * several), reason))
    columns = (names(""), names("assumption"), names("holds"), *([words("scheme")] * several), words("reason"))
    return table("The seven assumptions", columns, rows)


def _constants(theory: Theory) -> Grid:
    how = "" if theory.how == "exact" else ", estimated at a few points"
    return table(
        f"Constants of the problem{how}",
        (names("symbol"), words("name"), "value", "rows read"),
        (
            (c.symbol, c.name, _number(c.value), "" if c.rows_read is None else str(c.rows_read))
            for c in theory.constants
        ),
    )


def _ceilings(found: Sequence[Ceiling], labels: Sequence[str]) -> Grid:
    rows = [
        ("as printed", "the formula of Theorem 1", [short(c.printed) for c in found]),
        ("six conditions", "of its proof, with the true β", [short(c.largest) for c in found]),
        ("binding", "the condition that sets it", [c.binding for c in found]),
        ("corrected", "what the corrected bound needs", [short(c.corrected) for c in found]),
    ]
    return _columns("Largest local learning rate η_l with a proof", labels, rows)


def _bounds(found: Sequence[Bound], labels: Sequence[str], measured: Sequence[Measured | None]) -> Grid:
    rows = [("η_l", "local learning rate", [short(b.steps.local_lr) for b in found])]
    rows += [(symbol, what, [_number(b.terms[symbol]) for b in found]) for symbol, what in TERMS.items()]
    for name, symbol, what in TOTALS:
        rows.append((symbol, what, [_number(getattr(b, name)) for b in found]))
        if name == "theorem_1":
            rows.append(("  as printed", "with the paper's constants", [_number(b.as_printed.total) for b in found]))
        if name in _MEASURED and any(met is not None for met in measured):
            sides = [None if met is None else float(getattr(met, name).mean()) for met in measured]
            rows.append(("  met", "its left-hand side in one run", [_number(value) for value in sides]))
    steps = found[0].steps
    batch = "all rows" if steps.batch_size is None else f"{steps.batch_size} rows"
    title = f"The bound, term by term: K = {steps.local_steps}, {batch} a step, η_g = {short(steps.server_lr)}"
    return _columns(title, labels, rows)


TERMS = {
    "R": "rounds with optima of their own",
    "ε_F": "distance of the first model",
    "ε_K": "drift over local steps",
    "ε_α": "clients that take part together",
    "ε_β": "chance of taking part",
    "ε_W": "windows longer than a round",
    "P": "rounds that are not fair",
    "U": "clients that a round leaves out",
}
TOTALS = (
    ("theorem_1", "Theorem 1", "mean L^n − min L^n"),
    ("theorem_2", "Theorem 2", "mean ‖∇L‖²"),
    ("theorem_3", "Theorem 3", "mean L̄ − min L̄"),
    ("theorem_3_gradient", "  gradient", "mean ‖∇L‖²"),
    ("corollary_1", "Corollary 1", "mean L − min L"),
)
_MEASURED = ("theorem_1", "theorem_2", "theorem_3")


def _said(theory: Theory) -> list[Line]:
    """Why there is no bound, and what to know about one."""
    said: dict[str, list[str]] = {}
    for s in theory.schemes:
        reason = s.refused or theory.refused
        for remark in _remarks(s) if reason is None else [f"no bound: {reason}"]:
            said.setdefault(remark, []).append(s.scheme.label)
    heads = {remark: "" if len(who) == len(theory.schemes) else f"{', '.join(who)}: " for remark, who in said.items()}
    found = [Line(f"{head}{remark}.") for remark, head in heads.items()]
    return [BLANK, *found] if found else []


def _remarks(s: SchemeTheory) -> list[str]:
    return [] if s.bound is None else _notes(s.bound, cure=None if s.measured is not None else "--measure makes one")


def _notes(bound: Bound, *, cure: str | None) -> list[str]:
    """What to know about a bound; `cure` says how to measure what depends on the models met."""
    said = list(bound.notes)
    unknown = [symbol for symbol in ("ε_W", "U") if bound.terms[symbol] is None]
    if bound.terms["ε_W"] is None and bound.expected.window is None:
        said.append("no window W is known, so that Theorem 3 says nothing")
        unknown.remove("ε_W")
    if unknown and cure is not None:
        verb = "depends" if len(unknown) == 1 else "depend"
        said.append(f"{' and '.join(unknown)} {verb} on the models that a run meets: {cure}")
    return said


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    return "0" if abs(value) < _ROUNDING else short(value)
