"""Which statements of the paper's experiments (section 5, appendix D) hold in results, and which do not.

`judge` asks each claim in turn; the claims of a figure are in a file of their own, each a definition.
"""

from __future__ import annotations

from fedtempo.reproduce import claims_exact, claims_schemes, claims_weights, claims_work
from fedtempo.reproduce.claims_kinds import Case, Claim, Question, Verdict
from fedtempo.reproduce.claims_runs import Book, Results

__all__ = ["CLAIMS", "Case", "Claim", "Question", "Results", "Verdict", "judge"]

CLAIMS: tuple[Question, ...] = tuple(
    sorted(
        (*claims_weights.CLAIMS, *claims_work.CLAIMS, *claims_schemes.CLAIMS, *claims_exact.CLAIMS),
        key=lambda question: question.id,
    )
)


def judge(results: Results) -> list[Claim]:
    """Every claim with its cases and its verdict, in order; "not run" for what is not in the results."""
    book = Book(results)
    return [question.judged(book) for question in CLAIMS]
