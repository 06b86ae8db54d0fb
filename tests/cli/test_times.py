"""``fedtempo times``: the catalogue, and one of its entries."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import fedtempo as ft
from fedtempo.cli.app import app


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["times", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_every_entry_is_listed_with_its_source() -> None:
    printed = said()
    for name, entry in ft.devices.CATALOGUE.items():
        assert f"\n{name}\n" in f"\n{printed}"
        assert entry.source.split(",")[0] in printed
    assert [one["name"] for one in json.loads(said("--json"))] == list(ft.devices.CATALOGUE)


def test_one_entry_shows_its_times() -> None:
    printed = said("tifl", "--clients", "5", "--seed", "1")
    assert sorted(printed.splitlines()[-1].split(), key=float) == ["0.25", "0.5", "1", "2", "10"]
    document = json.loads(said("quafl", "--clients", "4", "--json"))
    assert document["law"] == "exponential"
    assert document["times"] == ft.devices.named("quafl", 4).describe()


def test_an_unknown_name_is_one_line() -> None:
    with pytest.raises(ft.InputError, match="did you mean tifl"):
        said("tiffl")
