"""Messages and pages are in plain English: phrases that readers stumbled over do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedtempo"

OWN_PAGES = {"claims.md", "claims_theory.md"}
"""Pages that are written from results."""

PER = r"(step|client|round|job|batch|core|channel|coordinate|entry|draw|reply)"
ODD = [
    r"\bdoes not do\b(?! again)",
    r"(?<!there )\b(is|are) no (local|client|server|weight|sampling|folder|fraction|names?|record|place|single)\b",
    r"(?<!there )\b(is|are) no (Config|Array)Record\b",
    r"\b(rows|steps|labels|updates|bytes|bits|ms|s|windows|value|one|importance|seconds) a " + PER + r"\b(?! \w+s\b)",
    r"\bis none\b",
    r"\bis not one\b;",
    r"\bnobody (knows|is called)\b",
    r"\bto blame\b",
    r"\bput a whole copy\b",
    r"\bgive yourself the right\b",
    r"\bbe rid of\b",
    r"\bworked out anew\b",
    r"\bwho is done\b",
    r"\bnothing would be trained\b",
    r"\bits key is another\b",
    r"\bas good as .* at its end\b",
]
_ODD = re.compile("|".join(f"(?:{phrase})" for phrase in ODD))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text of a module that is not documentation: its line, and its words with … for what is filled in."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation | inside:
            yield node.lineno, node.value


def test_messages_are_in_plain_english() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{line}: {found.group()!r} in {words!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, words in texts(ast.parse(path.read_text(encoding="utf-8")))
        if (found := _ODD.search(words))
    ]
    assert not odd, "\n".join(odd)


def test_pages_are_in_plain_english() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{number}: {found.group()!r}"
        for path in sorted((ROOT / "docs").glob("*.md"))
        if path.name not in OWN_PAGES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := _ODD.search(line))
    ]
    assert not odd, "\n".join(odd)


@pytest.mark.parametrize(
    "words",
    [
        "local_lr: -0.1 does not do; give a number above 0",
        "local: 0.1 is no local work; give ft.LocalSGD",
        "give rows a step, or all",
        "metric 'wide': it is no single number",
        "model: Net has no parameters with requires_grad; nothing would be trained",
        "the number of clients that nobody knows ahead",
        "scheme: 3 is none; give a Scheme",
        "one value a channel",
    ],
)
def test_the_phrases_are_found(words: str) -> None:
    assert _ODD.search(words)


@pytest.mark.parametrize(
    "words",
    [
        "local_lr: -0.1 is not allowed; give a number above 0",
        "there is no client 3; the clients are 0 to 2",
        "the rows a job trains on",
        "there is no folder to continue from",
        "no client is called 'bob'",
    ],
)
def test_plain_sentences_are_left_alone(words: str) -> None:
    assert not _ODD.search(words)
