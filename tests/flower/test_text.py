"""What clients write, before it is logged or kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.flower import AsyncFedAvg
from fedtempo.flower.text import clean, is_clean, last_words
from support.flower_fake import SECOND, FakeGrid, answer, failure, on, record_of, shifting


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain, Ünïcode, 日本", "plain, Ünïcode, 日本"),
        ("two\nlines\r\nand a\ttab", "two lines and a tab"),
        ("\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1Htop", "red top"),
        ("\x1b]0;title\x07bell \x1b]8;;http://evil\x1b\\link", "bell link"),
        ("\x9b31mred", "red"),
        ("nul\x00 back\x08space", "nul backspace"),
        ("turned \u202egnp.exe, hidden\u200b", "turned gnp.exe, hidden"),
        ("line\u2028separator \ud800", "line separator"),
        ("\x1bcreset", "reset"),
        ("", ""),
    ],
)
def test_one_line_without_control_characters(text, left) -> None:
    assert clean(text) == left


@settings(max_examples=60)
@given(st.text(max_size=40), st.integers(1, 30))
def test_whatever_is_written_is_one_short_line(text, longest) -> None:
    left = clean(text, longest)
    assert len(left) <= longest
    assert left.splitlines() in ([], [left])
    assert "\x1b" not in left
    assert clean(left, longest) == left, "it is clean then"
    assert left == text or not is_clean(text, longest) or "\x1b" in text


def test_long_texts_are_cut() -> None:
    assert clean("a" * 10**6, 10) == "a" * 9 + "…"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Traceback …\nValueError: no", "ValueError: no"),
        ("Traceback (most recent call last):\n  File 1\n    x()\nValueError: two\nlines", "ValueError: two lines"),
        (
            "<class 'ValueError'>:<'the first line\nand the second'>",
            "<class 'ValueError'>:<'the first line and the second'>",
        ),
        ("  \n ", "no reason given"),
        (None, "no reason given"),
        ("Traceback", "Traceback"),
        ("Traceback (most recent call last):\n  only calls", "only calls"),
    ],
)
def test_what_an_error_says(reason, said) -> None:
    assert last_words(reason) == said


FORGED = "\x1b[2K\rno\n1.0 s: client 0 (node 100): joined: \x1b[32mall is well\x1b[0m"


def test_a_client_writes_nothing_into_the_log_but_one_line(caplog, tmp_path) -> None:
    grid = FakeGrid()
    grid.connect(100, shifting(1, 1))
    grid.connect(101, lambda m: [(SECOND, failure(m, 2, FORGED))])
    grid.connect(102, lambda m: [(SECOND, answer(m, {"w\n\x1b[31m" * 100: np.zeros(2)}, {"num-examples": 1}))])
    grid.connect(103, shifting(1, 1, **{"loss\n\x1b[31m": 1.0}))
    with caplog.at_level("INFO", "flwr"):
        options = on(grid, checkpoint=tmp_path)
        result = AsyncFedAvg(**options).start(grid, record_of({"w": np.zeros(2)}), num_rounds=8)
    assert {fault.kind for fault in result.errors} >= {"error", "refused", "metrics"}
    for fault in result.errors:
        assert fault.reason.isprintable()
        assert len(fault.reason) <= 1000
    said = [record.getMessage() for record in caplog.records]
    assert all("\x1b" not in line and "\r" not in line and "\n" not in line for line in said)
    for line in (tmp_path / "rounds.jsonl").read_text().splitlines():
        assert "\\u001b" not in line
        assert json.loads(line)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "Traceback (most recent call last):\n  File x\n    call()\nValueError: no\nsecond line",
            "ValueError: no second line",
        ),
        (
            "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: no room\n\n  first\n  tried 2 GiB",
            "torch.OutOfMemoryError: no room first tried 2 GiB",
        ),
        (
            "<class 'RuntimeError'>:<'Error(s) for Net:\n\tsize mismatch'>",
            "<class 'RuntimeError'>:<'Error(s) for Net: size mismatch'>",
        ),
    ],
)
def test_an_exception_of_several_lines_is_said_whole(told, said) -> None:
    assert last_words(told) == said
