"""A description written as a study file is read as the same description."""

from __future__ import annotations

import tomllib

import pytest

from fedtempo.simulation.study_file import DEFAULT
from fedtempo.simulation.study_text import study_text


@pytest.mark.parametrize(
    "description",
    [
        DEFAULT,
        {
            "until": 1e-7,
            "rates": {"FedFix(1/2)": [0.1, 1e20], 'a "quoted" name': []},
            "times": {"F0": {"times": [1, 2.5, "1/3"]}, "F80": {"times": "F80", "on": {"a.b": True}}},
            "schemes": [{"name": "fedfix", "wait": "1/2", "server": {"name": "fedadam", "b1": 0.9}}, {"name": "async"}],
            "local": {"options": {"nesterov": False, "deep": [[1, 2], [{"a": 1}, 3]]}, "text": "é\n\\\x7f'"},
        },
    ],
)
def test_it_comes_back(description) -> None:
    assert tomllib.loads(study_text(description)) == description


def test_what_is_not_said_is_left_out() -> None:
    assert tomllib.loads(study_text({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}
