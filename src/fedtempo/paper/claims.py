"""Which statements of the paper's experiments (section 5, appendix D) hold in results, and which do not.

`judge` asks each claim in turn; the claims of a figure are in a file of their own, each a definition. Their verdicts
become a page in Markdown, and a table on a terminal. The claims of the theory are kept by hand (docs/claims_theory.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from fedtempo.paper import claims_schemes, claims_weights, claims_work
from fedtempo.paper.claims_kinds import Case, Claim, Question, Verdict
from fedtempo.paper.claims_runs import Book, Results
from fedtempo.report.page import console
from fedtempo.report.text import NONE

__all__ = ["CLAIMS", "Case", "Claim", "Question", "Results", "Verdict", "judge"]

CLAIMS: tuple[Question, ...] = tuple(
    sorted(
        (*claims_weights.CLAIMS, *claims_work.CLAIMS, *claims_schemes.CLAIMS, *claims_schemes.EXACT_CLAIMS),
        key=lambda question: question.id,
    )
)


def judge(results: Results) -> list[Claim]:
    """Every claim with its cases and its verdict, in order; "not run" for what is not in the results."""
    book = Book(results)
    return [question.judged(book) for question in CLAIMS]


_HEAD = """\
# What of the paper's experiments holds

- **holds**, **fails**: the whole 95 % interval is on the stated side of the bound, or the whole of it on the other,
  unless the claim says otherwise.
- **undecided**: the interval reaches over the bound, or there are fewer than three seeds. **not run**: no results.
- Intervals are Student's, of paired differences over seeds (the same seed: the same batches), each case by itself, so
  that of 40 cases without any difference about one fails by chance.
- A statement on several cases holds if all of them do and fails if one does, unless it says otherwise.
- Where a best rate is the smallest or largest of those run to the end, that is said: beyond it only the short first
  stage was run, if at all. Where it is that of the scheme that ends higher, the case is undecided.
- A diverged run counts as an infinitely large loss. Horizons are units of virtual time; nothing is extrapolated.
"""
_THEORY = "The claims of the paper's theory, with verdicts and tests: [claims_theory.md](claims_theory.md)."
_FEW = 4  # so many cases fit in a cell
_WIDE = 110  # columns of a terminal in which horizons fit
_ORDER = ("holds", "answered", "fails", "undecided", "not run")
_COLOURS = {"holds": "green", "answered": "green", "fails": "red", "undecided": "yellow", "not run": "dim"}


def markdown(claims: Sequence[Claim]) -> str:
    """A page: what verdicts mean, a table of the claims, and every case of each."""
    rows = [
        "| no. | statement | place | measured, with 95 % interval | horizon | verdict |",
        "|---:|---|---|---|---|---|",
        *(
            f"| {c.id} | {_cell(c.statement)} | {c.place} | {_cell(measured(c))} | {_cell(c.horizon or NONE)} "
            f"| **{c.verdict}** |"
            for c in claims
        ),
    ]
    details = ["## Case by case", *(_details(c) for c in claims)]
    return "\n".join((_HEAD, _THEORY, "", tally(claims), "", *rows, "", "\n\n".join(details), ""))


def tally(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict."""
    return f"{len(claims)} claims: {_counts([c.verdict for c in claims])}."


def measured(claim: Claim) -> str:
    """What was found, short enough for a cell: a few cases by themselves, more of them counted."""
    ran = [case for case in claim.cases if not case.beside and case.verdict != "not run"]
    counted = [case.verdict for case in claim.cases if not case.beside]
    if not ran:
        return "; ".join(dict.fromkeys(case.note for case in claim.cases if case.note)) or NONE
    if claim.verdict == "answered" or (claim.remark and len(ran) > _FEW):
        return claim.remark
    if len(ran) > _FEW:
        found = sorted(case.number for case in ran if case.number is not None)
        return _counts(counted) + (f"; from {number(found[0])} to {number(found[-1])}" if found else "")
    missing = len(counted) - len(ran)
    shown = "; ".join(f"{_named(case)} {interval(case)}" if len(counted) > 1 else interval(case) for case in ran)
    return shown + (f"; {missing} not run" if missing else "")


def interval(case: Case) -> str:
    """A number with its interval, as "0.012 [0.01, 0.014]"."""
    if case.number is None:
        return NONE
    if case.low is None or case.high is None:
        return number(case.number)
    return f"{number(case.number)} [{number(case.low)}, {number(case.high)}]"


def number(value: float) -> str:
    """Three digits, ∞ for what is beyond all."""
    if math.isnan(value):
        return NONE
    digits = "∞" if math.isinf(value) else f"{abs(value):.3g}"
    return f"−{digits}" if value < 0 else digits


def table(claims: Sequence[Claim], *, horizon: bool = True) -> Table:
    """The claims for a terminal, with or without the horizons."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("no.", "statement", "measured", *(["horizon"] if horizon else []), "verdict"):
        rows.add_column(name, justify="right" if name == "no." else "left", no_wrap=name in ("no.", "verdict"))
    for c in claims:
        verdict = f"[{_COLOURS[c.verdict]}]{c.verdict}[/]"
        cells = [c.statement, measured(c), *([c.horizon or NONE] if horizon else [])]
        rows.add_row(str(c.id), *map(escape, cells), verdict)
    return rows


def show_claims(claims: Sequence[Claim]) -> None:
    """Print the table, and how many claims have which verdict."""
    out = console()
    rows = table(claims, horizon=out.width >= _WIDE)
    if not out.is_terminal:
        rows.box = None
    out.print("[bold]What of the paper's experiments holds[/bold]")
    out.print(rows)
    out.print()
    out.print(tally(claims), markup=False, soft_wrap=not out.is_terminal)
    out.print("The claims of the theory: docs/claims_theory.md.", markup=False, soft_wrap=not out.is_terminal)
    out.print(
        "Intervals are 95 %, of paired differences over seeds; a diverged run counts as an infinite loss.",
        markup=False,
        soft_wrap=not out.is_terminal,
    )


def _details(claim: Claim) -> str:
    lines = [f"**{claim.id}. {claim.verdict}**: {claim.measured}."]
    if claim.remark:
        lines[0] += f" {claim.remark[0].upper()}{claim.remark[1:]}."
    lines.append("")
    for case in claim.cases:
        said = f"{_named(case)}: " + (f"{interval(case)}, " if case.number is not None else "")
        said += f"{case.verdict}" + (", beside" if case.beside else "")
        lines.append(f"- {said}{f' ({case.note})' if case.note else ''}")
    return "\n".join(lines)


def _named(case: Case) -> str:
    return f"{case.group}, {case.name}" if case.group else case.name


def _counts(verdicts: Sequence[str]) -> str:
    """As "5 hold, 1 fails", in a fixed order."""
    found = Counter(verdicts)
    plural = {"holds": "hold", "fails": "fail"}
    return ", ".join(f"{found[v]} {plural.get(v, v) if found[v] != 1 else v}" for v in _ORDER if found[v])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
