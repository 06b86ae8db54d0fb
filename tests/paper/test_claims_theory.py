"""Every claim of the theory has its place, its verdict, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from fedtempo.paper.claims import markdown
from fedtempo.paper.claims_theory import TheoryVerdict, theory_claims, theory_section, theory_tally

ROOT = Path(__file__).parents[2]
CLAIMS = theory_claims()


@cache
def functions_of(path: str) -> frozenset[str]:
    """The names of the functions of a test file, without running it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"T{c.number}")
def test_a_claim_has_a_place_a_verdict_and_tests_that_exist(claim):
    assert claim.statement.endswith(".")
    assert claim.place.startswith(("section", "appendi", "table"))
    assert claim.verdict in get_args(TheoryVerdict)
    assert claim.remark or claim.verdict == "holds"
    assert claim.tests
    for test in claim.tests:
        path, name = test.split("::")
        assert name.startswith("test_")
        assert name in functions_of(path), test


def test_numbers_are_consecutive_and_statements_are_said_once():
    assert [c.number for c in CLAIMS] == list(range(1, len(CLAIMS) + 1))
    assert len({(c.statement, c.place) for c in CLAIMS}) == len(CLAIMS)


def test_every_test_of_the_claims_file_is_behind_a_claim():
    path = "tests/test_theory_claims.py"
    named = {t.split("::")[1] for c in CLAIMS for t in c.tests if t.startswith(path)}
    assert {name for name in functions_of(path) if name.startswith("test_")} == named


def test_remarks_refer_to_claims_that_are_there():
    referred = {int(n) for c in CLAIMS for n in re.findall(r"\(T(\d+)\)", c.remark)}
    assert referred <= {c.number for c in CLAIMS}


def test_the_section_has_a_row_for_each_claim_and_counts_them():
    section = theory_section(CLAIMS)
    for c in CLAIMS:
        assert section.count(f"\n|T{c.number}|") == 1
    assert all(line.count("|") == 7 for line in section.splitlines() if line.startswith("|"))
    found = [int(word) for word in theory_tally(CLAIMS).replace(",", "").split() if word.isdigit()]
    assert found[0] == len(CLAIMS) == sum(found[1:])
    assert section in markdown([])
