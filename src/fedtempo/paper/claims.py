"""Which statements of the paper's experiments (section 5, appendix D) hold in results, and what is known of the others.

`judge` asks each claim in turn; the claims of a figure are in a file of their own, each a definition, and the rules of
a verdict in `claims_rules`. The verdicts become a page in Markdown, with a table for each setting that has results, and
a table on a terminal. The claims of the theory are kept by hand (docs/claims_theory.md).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from fedtempo.paper import claims_schemes, claims_weights, claims_work
from fedtempo.paper.claims_cost import SERVED, duration
from fedtempo.paper.claims_kinds import Case, Claim, Deciding, Question
from fedtempo.paper.claims_rules import PARTITIONS, Verdict, Word, listed, verdicts
from fedtempo.paper.claims_runs import SETTINGS, Book, Results, stored
from fedtempo.paper.figure_file import TEXT
from fedtempo.report.page import console
from fedtempo.report.text import NONE

__all__ = ["CLAIMS", "Case", "Claim", "Question", "Results", "Verdict", "judge", "stored"]

CLAIMS: tuple[Question, ...] = tuple(
    sorted(
        (*claims_weights.CLAIMS, *claims_work.CLAIMS, *claims_schemes.CLAIMS, *claims_schemes.EXACT_CLAIMS),
        key=lambda question: question.id,
    )
)


def judge(results: Results, setting: str = TEXT) -> list[Claim]:
    """Every claim with its cases and its verdict, in order; "not run" for what is not in the results of a setting."""
    book = Book(results, setting)
    asked = [(question, tuple(question.ask(book))) for question in CLAIMS]
    tested = [(question, cases) for question, cases in asked if question.judge is None]
    found = verdicts([question.evidence(cases) for question, cases in tested])
    known = {question.id: verdict for (question, _), verdict in zip(tested, found, strict=True)}
    return [
        question.claim(cases, question.judge(cases) if question.judge else known[question.id])
        for question, cases in asked
    ]


_HEAD = f"""\
# What of the paper's experiments holds

A verdict is about the paper's statement, not about our runs. **holds** and **fails** are said only where we ran as far
as the paper speaks of, on at least {PARTITIONS} ways of dealing out the data, at learning rates that have a worse one
on both sides, and where the numbers are clear among all claims of a table. Anything less is an observation: **seen at
T = …** or **not seen at T = …**, T being how far our runs went, with the reasons why it is not more. "Not seen" does
not say that the paper is wrong, and "seen" does not say that it is right.

- The unit is a partition of the data: seeds are averaged within it. Intervals are 95 %, Student's, of paired
  differences. Where there are fewer than three partitions they are over seeds, and say nothing about other partitions.
- **seen**: in every case, unless the claim says otherwise, the whole interval is on the stated side (the sign alone
  where there are fewer than three runs). **not seen**: anything else; the cases say whether it was *the other way* or
  *unclear*. **open**: a question that asks for a place, and is not answered.
- **holds with a correction**: a mended form of the statement holds; the correction is said.
- A best rate needs a neighbour on both sides that was run as far and is worse, or that diverged. It is chosen on other
  runs than those that are judged: those of a first stage, those that were run at every rate, or a fifth. So it may
  differ from a figure's, which is chosen on all runs.
- "About" and "hardly" have a margin, which the table of what would decide a claim states.
- p-values are two-sided and pass Holm's procedure at 5 % over all claims of a table. A claim that a rule keeps from
  being decided counts there with p = 1.
- A diverged run counts as an infinitely large loss. T is in units of virtual time; nothing is extrapolated.
"""
_THEORY = "The claims of the paper's theory, with verdicts and tests: [claims_theory.md](claims_theory.md)."
_DECIDING = f"""\
## What would decide each claim

At the least, in one setting: {SERVED} partitions, of which two choose the rate. Times are estimates for one H200, from
the number of local steps and measured speeds ([performance.md](performance.md): 3.3 million updates a second for
MNIST's regression, 35.8 thousand steps for CIFAR-10's network, 8.3 thousand for Shakespeare's), without compiling and
measuring. Claims of one figure share runs. A partition of Shakespeare is another choice of roles.

| no. | the paper's horizon | unit | margin | runs | on one GPU, about |
|---:|---|---|---|---|---:|"""
_FEW = 4  # so many cases fit in a cell
_WIDE = 110  # columns of a terminal in which the reasons fit
_ORDER: tuple[Word, ...] = (
    "holds", "holds with a correction", "answered", "fails", "seen", "not seen", "open", "not run",
)  # fmt: skip
_COLOURS = {
    "holds": "green", "holds with a correction": "green", "answered": "green", "fails": "red", "not run": "dim",
}  # fmt: skip


def markdown(settings: Mapping[str, Sequence[Claim]]) -> str:
    """A page: what verdicts mean, a table of the claims for each setting, what would decide them, and every case."""
    known = [*(name for name in SETTINGS if name in settings), *(name for name in settings if name not in SETTINGS)]
    tables = [_table_of(name, settings[name]) for name in known]
    first = next(iter(settings.values()))
    needs = "\n".join((_DECIDING, *(_needs(c.id, c.deciding) for c in first)))
    details = [
        "\n\n".join((f"## Case by case: {_title(name)}", *(_details(c) for c in settings[name]))) for name in known
    ]
    return "\n\n".join((_HEAD.rstrip(), _THEORY, *tables, needs, *details)) + "\n"


def _title(setting: str) -> str:
    name = SETTINGS.get(setting, setting)
    return name[0].lower() + name[1:]


def _table_of(setting: str, claims: Sequence[Claim]) -> str:
    rows = [
        f"## {SETTINGS.get(setting, setting)}",
        "",
        tally(claims),
        "",
        "| no. | statement | place | measured, with 95 % interval | verdict | why no more than that |",
        "|---:|---|---|---|---|---|",
        *(
            f"| {c.id} | {_cell(c.statement)} | {c.place} | {_cell(measured(c))} | **{c.verdict}** "
            f"| {_cell(why(c) or NONE)} |"
            for c in claims
        ),
    ]
    return "\n".join(rows)


def _needs(number: int, deciding: Deciding) -> str:
    cost = duration(sum(work.seconds for work in deciding.work)) if deciding.work else NONE
    return f"| {number} | {deciding.horizon} | {deciding.unit} | {deciding.margin} | {deciding.what} | {cost} |"


def tally(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict."""
    found = Counter(c.verdict.word for c in claims)
    plural = {"holds": "hold", "fails": "fail", "holds with a correction": "hold with a correction"}
    counts = [f"{found[w]} {plural.get(w, w) if found[w] != 1 else w}" for w in _ORDER if found[w]]
    return f"{len(claims)} claims: {', '.join(counts)}."


def why(claim: Claim) -> str:
    """The reasons of a verdict, those about horizons in one."""
    horizons: dict[str, list[str]] = {}
    rest = []
    for reason in claim.verdict.reasons:
        found = re.fullmatch(r"horizon (.+) of (.+)", reason)
        if found:
            horizons.setdefault(found[2], []).append(found[1])
        else:
            rest.append(reason)
    return "; ".join((*(f"horizon {listed(times)} of {most}" for most, times in horizons.items()), *rest))


def measured(claim: Claim) -> str:
    """What was found, short enough for a cell: a few cases by themselves, more of them counted."""
    counted = [case for case in claim.cases if not case.beside]
    ran = [case for case in counted if case.word != "not run"]
    if not ran:
        return "; ".join(dict.fromkeys(case.note for case in claim.cases if case.note)) or NONE
    if claim.remark and len(ran) > _FEW:
        return claim.remark
    if len(ran) > _FEW:
        found = sorted(case.number for case in ran if case.number is not None)
        words = Counter(case.word for case in counted)
        counts = ", ".join(f"{words[w]} {w}" for w in ("as stated", "the other way", "unclear", "not run") if words[w])
        return counts + (f"; from {number(found[0])} to {number(found[-1])}" if found else "")
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


def table(claims: Sequence[Claim], *, reasons: bool = True) -> Table:
    """The claims for a terminal, with or without the reasons of their verdicts."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("no.", "statement", "measured", "verdict", *(["why no more"] if reasons else [])):
        rows.add_column(name, justify="right" if name == "no." else "left", no_wrap=name == "no.")
    for c in claims:
        colour = _COLOURS.get(c.verdict.word, "yellow")
        cells = [escape(c.statement), escape(measured(c)), f"[{colour}]{escape(str(c.verdict))}[/]"]
        rows.add_row(str(c.id), *cells, *([escape(why(c) or NONE)] if reasons else []))
    return rows


def show_claims(settings: Mapping[str, Sequence[Claim]]) -> None:
    """Print a table for each setting, and how many claims have which verdict."""
    out = console()
    out.print("[bold]What of the paper's experiments holds[/bold]")
    for setting, claims in settings.items():
        rows = table(claims, reasons=out.width >= _WIDE)
        if not out.is_terminal:
            rows.box = None
        if len(settings) > 1:
            out.print(SETTINGS.get(setting, setting), markup=False)
        out.print(rows)
        out.print()
        out.print(tally(claims), markup=False, soft_wrap=not out.is_terminal)
    for line in (
        "holds, fails: at the paper's own horizon and on enough partitions. Else what was seen, and how far we ran.",
        "The claims of the theory: docs/claims_theory.md.",
    ):
        out.print(line, markup=False, soft_wrap=not out.is_terminal)


def _details(claim: Claim) -> str:
    lines = [f"**{claim.id}. {claim.verdict}**: {claim.measured}."]
    if claim.remark:
        lines[0] += f" {claim.remark[0].upper()}{claim.remark[1:]}."
    lines.append("")
    for case in claim.cases:
        said = f"{_named(case)}: " + (f"{interval(case)}, " if case.number is not None else "")
        said += f"{case.word}" + (", beside" if case.beside else "")
        lines.append(f"- {said}{f' ({case.note})' if case.note else ''}")
    return "\n".join(lines)


def _named(case: Case) -> str:
    return f"{case.group}, {case.name}" if case.group else case.name


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
