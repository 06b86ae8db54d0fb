"""A timeline in a file has the rows of the timeline in memory, in flat memory, whole or not at all."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedtempo as ft
from fedtempo.cli.app import app
from fedtempo.clock.timeline import Timeline
from fedtempo.schemes import timeline_file

parquet = pytest.importorskip("pyarrow.parquet")

MEANS = ft.FixedTimes.spread(30, 80).exact_mean_time
TIMES = ft.LogNormalTimes(MEANS)


@pytest.mark.parametrize(
    "scheme",
    [ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(7), ft.FedAvg(), ft.MultinomialSampling(9)],
    ids=lambda scheme: scheme.label,
)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_rows_are_those_in_memory(
    scheme: ft.Scheme, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_file, "GROUP_ROWS", 500)
    line = ft.timeline(scheme, TIMES, until=90, seed=3)
    written = ft.write_timeline(tmp_path / f"line.{ending}", scheme, TIMES, until=90, seed=3)
    assert written == (line.num_rounds, line.num_updates)
    assert written.updates > 500
    path = tmp_path / f"line.{ending}"
    found = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    expected = line.table()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert set(found) == {*expected, "round_end_ticks"}
    if ending == "parquet":
        about = json.loads(parquet.ParquetFile(path).schema_arrow.metadata[b"fedtempo"])
        assert Fraction(about["unit"]) == line.unit
        np.testing.assert_array_equal(found["round_end_ticks"], line.ends[found["round"]])
        assert parquet.ParquetFile(path).num_row_groups > 1


def test_rounds_alone_may_end_it_and_empty_ones_have_no_row(tmp_path: Path) -> None:
    written = ft.write_timeline(tmp_path / "a.parquet", ft.FedFix("1/100"), ft.FixedTimes([1, 2]), rounds=150)
    assert written == (150, 1)
    assert len(pd.read_parquet(tmp_path / "a.parquet")) == 1
    written = ft.write_timeline(tmp_path / "b.parquet", ft.FedFix("1/100"), ft.FixedTimes([1, 2]), rounds=50)
    assert written == (50, 0)
    assert list(pd.read_parquet(tmp_path / "b.parquet")) == list(pd.read_parquet(tmp_path / "a.parquet"))


def test_memory_does_not_grow_with_the_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_file, "GROUP_ROWS", 1 << 14)
    monkeypatch.setattr("fedtempo.clock.config.CHUNK_UPDATES", 1 << 14)

    def peak(rounds: int) -> int:
        tracemalloc.start()
        try:
            ft.write_timeline(tmp_path / "a.parquet", ft.AsyncFedAvg(), ft.FixedTimes(MEANS), rounds=rounds)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(800_000) < 1.3 * peak(100_000)


def test_what_is_stopped_leaves_no_file_and_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("old")
    real = timeline_file.stream

    def stopped(*args: object, **more: object) -> Iterator[Timeline]:
        for number, line in enumerate(real(*args, **more)):  # type: ignore[arg-type]
            if number == 3:
                raise KeyboardInterrupt
            yield line

    monkeypatch.setattr(timeline_file, "stream", stopped)
    monkeypatch.setattr(timeline_file, "GROUP_ROWS", 500)
    with pytest.raises(KeyboardInterrupt):
        ft.write_timeline(path, ft.AsyncFedAvg(), TIMES, rounds=100_000)
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
    assert path.read_text() == "old"


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ft.InputError, match=r"ends in \.parquet or \.csv"):
        ft.write_timeline(tmp_path / "a.feather", ft.FedAvg(), TIMES, until=3)
    with pytest.raises(ft.InputError, match="needs an end"):
        ft.write_timeline(tmp_path / "a.csv", ft.FedAvg(), TIMES)
    with pytest.raises(ft.InputError, match="before the end of the first round"):
        ft.write_timeline(tmp_path / "a.csv", ft.FedAvg(), TIMES, until="1/1000")
    with pytest.raises(ft.InputError, match="does not exist; create it first"):
        ft.write_timeline(tmp_path / "no" / "a.csv", ft.FedAvg(), TIMES, until=3)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ft.InputError, match=r"pip install 'fedtempo\[parquet\]'"):
        ft.write_timeline(tmp_path / "a.parquet", ft.FedAvg(), TIMES, until=3)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtempo.cli.timeline.MAX_LISTED", 100)
    args = ["timeline", "--times", "1,2,5/2", "--scheme", "fedfix", "--wait", "1/2", "--until", "200"]
    path = tmp_path / "line.parquet"
    done = CliRunner().invoke(app, [*args, "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert "400 rounds, 380 updates of 3 clients" in done.output
    line = ft.timeline(ft.FedFix("1/2"), ft.FixedTimes([1, 2, "5/2"]), until=200)
    np.testing.assert_array_equal(pd.read_parquet(path)["client"], line.client)
