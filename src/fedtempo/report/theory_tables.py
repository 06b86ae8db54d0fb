"""The theory of schemes as tables on a terminal, and as plain aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from fedtempo.clock.ticks import text
from fedtempo.report.tables import console, short, titled_table
from fedtempo.theory.document import SchemeTheory, Theory

_VERDICT = {True: "yes", False: "no", None: "open"}
_LISTED = 3
"""Up to how many values a table lists."""
_ROUNDING = 1e-12
"""Losses and their optima are known to about this: what is smaller is shown as 0."""


def show_theory(theory: Theory) -> None:
    """Quantities; with a problem also assumptions, constants, learning rates and the terms of the bound."""
    out = console()
    means, schemes = theory.times.mean_time, theory.schemes
    clients = theory.times.num_clients
    out.print(
        f"{clients} client{'s' * (clients != 1)}, {theory.times.law} times from {short(means.min())} to "
        f"{short(means.max())}, {theory.weight_rule} weights"
        + ("" if theory.problem is None else f"; {_named(theory)}")
    )
    _show_quantities(out, theory)
    if theory.problem is None:
        return
    _show_assumptions(out, schemes)
    _show_constants(out, theory)
    if any(s.ceiling is not None for s in schemes):
        _show_ceilings(out, [s for s in schemes if s.ceiling is not None])
    if any(s.bound is not None for s in schemes):
        _show_bounds(out, [s for s in schemes if s.bound is not None])
    _show_remarks(out, theory)


def _named(theory: Theory) -> str:
    assert theory.problem is not None
    p = theory.problem
    return f"{p.name}: {p.num_rows} rows, {p.num_parameters} parameters"


def _columns(
    out: Console, title: str, schemes: Sequence[SchemeTheory], rows: Iterable[tuple[str, str, Sequence[str]]]
) -> None:
    """A table with a column for each scheme; where they leave no room, without the words between symbol and values."""
    table = titled_table(out, title)
    worded = not out.is_terminal or len(schemes) == 1 or out.width >= 55 + 18 * len(schemes)
    table.add_column("", no_wrap=True)
    if worded:
        table.add_column("")
    for s in schemes:
        table.add_column(s.scheme.label, justify="right", min_width=min(len(s.scheme.label), 12))
    for symbol, what, values in rows:
        table.add_row(*((symbol, what) if worded else (symbol or what,)), *values)
    out.print(table)


def _show_quantities(out: Console, theory: Theory) -> None:
    over = "in the long run" if theory.until is None else f"until time {text(theory.until)}"
    rows = [("", "of", [_source(s) for s in theory.schemes])]
    raw = [s.quantities.to_dict() for s in theory.schemes]
    for same in zip(*(s.quantities.rows() for s in theory.schemes), strict=True):
        symbol, name = same[0][:2]
        rows.append((symbol, name, [_quantity(r[name], written) for r, (_, _, written) in zip(raw, same, strict=True)]))
    _columns(out, f"Quantities of tables 1 and 2, {over}", theory.schemes, rows)


def _quantity(value: object, written: str) -> str:
    """One value of a table row: a list as its range where it is long or constant."""
    if isinstance(value, list) and len(value) > 1:
        low, high = _number(min(value)), _number(max(value))
        return low if low == high else f"{low} to {high}" if len(value) > _LISTED else written
    return _number(value) if isinstance(value, float) else written.replace("inf", "∞")


def _source(s: SchemeTheory) -> str:
    return "the timeline" if s.source == "timeline" else "the law"


def _show_assumptions(out: Console, schemes: Sequence[SchemeTheory]) -> None:
    """One line an assumption, or one a scheme where the reasons differ."""
    table = titled_table(out, "The seven assumptions")
    several = len(schemes) > 1
    for name in ("", "assumption", "holds", *(["scheme"] * several), "reason"):
        table.add_column(name, no_wrap=name not in ("reason", "scheme"))
    for same in zip(*(s.assumptions for s in schemes), strict=True):
        groups: dict[tuple[str, str], list[str]] = {}
        for s, a in zip(schemes, same, strict=True):
            groups.setdefault((_VERDICT[a.holds], a.reason), []).append(s.scheme.label)
        for k, ((verdict, reason), who) in enumerate(groups.items()):
            head = (str(same[0].number), same[0].name) if k == 0 else ("", "")
            whose = "" if len(who) == len(schemes) else ", ".join(who)
            table.add_row(*head, verdict, *([whose] * several), reason)
    out.print(table)


def _show_constants(out: Console, theory: Theory) -> None:
    how = "" if theory.how == "exact" else ", estimated at a few points"
    table = titled_table(out, f"Constants of the problem{how}")
    table.add_column("symbol", no_wrap=True)
    table.add_column("name")
    for name in ("value", "rows read"):
        table.add_column(name, justify="right")
    for c in theory.constants:
        table.add_row(c.symbol, c.name, _number(c.value), "" if c.rows_read is None else str(c.rows_read))
    out.print(table)


def _show_ceilings(out: Console, schemes: Sequence[SchemeTheory]) -> None:
    found = [s.ceiling for s in schemes if s.ceiling is not None]
    rows = [
        ("as printed", "the formula of Theorem 1", [short(c.printed) for c in found]),
        ("six conditions", "of its proof, with the true β", [short(c.largest) for c in found]),
        ("binding", "the condition that sets it", [c.binding for c in found]),
        ("corrected", "what the corrected bound needs", [short(c.corrected) for c in found]),
    ]
    _columns(out, "Largest local learning rate η_l with a proof", schemes, rows)


def _show_bounds(out: Console, schemes: Sequence[SchemeTheory]) -> None:
    found = [s.bound for s in schemes if s.bound is not None]
    rows = [("η_l", "local learning rate", [short(b.steps.local_lr) for b in found])]
    rows += [(symbol, what, [_number(b.terms[symbol]) for b in found]) for symbol, what in TERMS.items()]
    for name, symbol, what in TOTALS:
        rows.append((symbol, what, [_number(getattr(b, name)) for b in found]))
        if name == "theorem_1":
            rows.append(("  as printed", "with the paper's constants", [_number(b.as_printed.total) for b in found]))
        if name in _MEASURED and any(s.measured is not None for s in schemes):
            met = [None if s.measured is None else float(getattr(s.measured, name).mean()) for s in schemes]
            rows.append(("  met", "its left-hand side in one run", [_number(value) for value in met]))
    steps = found[0].steps
    batch = "all rows" if steps.batch_size is None else f"{steps.batch_size} rows"
    title = f"The bound, term by term: K = {steps.local_steps}, {batch} a step, η_g = {short(steps.server_lr)}"
    _columns(out, title, schemes, rows)


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


def _show_remarks(out: Console, theory: Theory) -> None:
    """Why there is no bound, and what to know about one."""
    said: dict[str, list[str]] = {}
    for s in theory.schemes:
        reason = s.refused or theory.refused
        for remark in _remarks(s) if reason is None else [f"no bound: {reason}"]:
            said.setdefault(remark, []).append(s.scheme.label)
    if said:
        out.print()
    for remark, who in said.items():
        head = "" if len(who) == len(theory.schemes) else f"{', '.join(who)}: "
        out.print(f"{head}{remark}.", soft_wrap=not out.is_terminal, markup=False)


def _remarks(s: SchemeTheory) -> list[str]:
    if s.bound is None:
        return []
    said = list(s.bound.notes)
    open_ones = [symbol for symbol in ("ε_W", "U") if s.bound.terms[symbol] is None]
    if s.bound.terms["ε_W"] is None and s.quantities.expected.window is None:
        said.append("no window W is known, so that Theorem 3 says nothing")
        open_ones.remove("ε_W")
    if open_ones and s.measured is None:
        verb = "depends" if len(open_ones) == 1 else "depend"
        said.append(f"{' and '.join(open_ones)} {verb} on the models that a run meets: --measure makes one")
    return said


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if abs(value) < _ROUNDING else short(value)
