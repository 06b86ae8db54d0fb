"""The claims of the paper's theory (sections 2 to 4, appendices A to C), each with its verdict and the tests behind it.

They stand in `claims_theory.toml`; a verdict is what the named tests show, a remark the correction or counter-example.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, get_args

TheoryVerdict = Literal["holds", "holds with a correction", "does not hold"]

_HEAD = """\
## The theory

Claims of sections 2 to 4 and appendices A to C, and what other sections say of the theory. **holds**: as printed.
**holds with a correction**: with the change or under the condition that is named. **does not hold**: with the
counter-example, or what is meant. The named tests decide. `docs/theory.md` has the corrected bounds.
"""


@dataclass(frozen=True)
class TheoryClaim:
    """One claim and whether it holds."""

    number: int
    statement: str
    place: str
    verdict: TheoryVerdict
    remark: str
    """The correction, the condition or the counter-example; may be empty where it holds."""
    tests: tuple[str, ...]
    """As `tests/file.py::test_name`."""


def theory_claims() -> list[TheoryClaim]:
    """All of them, in the order of the paper."""
    text = files("fedtempo.paper").joinpath("claims_theory.toml").read_text(encoding="utf-8")
    return [TheoryClaim(**(row | {"tests": tuple(row["tests"])})) for row in tomllib.loads(text)["claim"]]


def theory_tally(claims: Sequence[TheoryClaim]) -> str:
    """How many have which verdict."""
    found = Counter(claim.verdict for claim in claims)
    plural = {"holds": "hold", "holds with a correction": "hold with a correction", "does not hold": "do not hold"}
    return f"{len(claims)} claims: {', '.join(f'{found[v]} {plural[v]}' for v in get_args(TheoryVerdict))}."


def theory_section(claims: Sequence[TheoryClaim]) -> str:
    """The section of a page in Markdown."""
    rows = [
        "|no.|statement|place|verdict|correction or counter-example|tests|",
        "|---:|---|---|---|---|---|",
        *(
            f"|T{c.number}|{c.statement}|{c.place}|**{c.verdict}**|{c.remark}|{'<br>'.join(f'`{t}`' for t in c.tests)}|"
            for c in claims
        ),
    ]
    return "\n".join((_HEAD, theory_tally(claims), "", *rows, ""))
