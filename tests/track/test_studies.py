"""Sinks of a study: the numbers of its history, also when it was stopped and goes on."""

from __future__ import annotations

import pandas as pd
import pytest

import fedtempo as ft
from track.test_sinks import tensorboard_has

KEYS = ["scheme", "weights", "local_lr", "seed", "time"]


def study(folder, **options) -> ft.History:
    return ft.simulate(
        ft.problems.quadratics(4, dimension=3, noise=0.3, rows=[8, 8, 8, 8], seed=1),
        [ft.FedAvg(), ft.FedFix(1)],
        ft.FixedTimes([1, 1, 2, 3]),
        until=60,
        local=ft.LocalSGD(lr=[0.1, 0.2], steps=2, batch_size=8),
        points=7,
        seeds=[0],
        checkpoint=folder,
        save_every=0.01,
        **options,
    )


def test_the_points_are_those_of_the_history_also_when_it_was_stopped(tmp_path) -> None:
    folder = tmp_path / "study"
    history = study(folder, on_measure=ft.track.csv(tmp_path / "whole.csv"))
    runs, table = folder / "track" / "runs", tmp_path / "again.parquet"
    again = study(folder, on_measure=[ft.track.tensorboard(runs), ft.track.parquet(table)])  # nothing left to train
    pd.testing.assert_frame_equal(again.to_dataframe(), history.to_dataframe())
    fixed = ["diverged_at", "batch_size", "local_steps", "server_lr"]  # the same in all runs
    frame = history.to_dataframe().drop(columns=fixed)
    for found in (pd.read_csv(tmp_path / "whole.csv"), pd.read_parquet(table)):
        assert {*found.columns} == {*frame.columns}
        found = found[list(frame.columns)].sort_values(KEYS, ignore_index=True)
        pd.testing.assert_frame_equal(found, frame.sort_values(KEYS, ignore_index=True), check_exact=True)
    losses = [values for (_, _, tag), values in tensorboard_has(runs).items() if tag == "loss"]
    assert len(losses) == len(frame)
    assert all(len(values) == 1 for values in losses)


def test_a_study_that_is_replaced_takes_its_sinks_along(tmp_path) -> None:
    from fedtempo.simulation.checkpoint import Folder

    folder = Folder(tmp_path / "study")
    folder.begin({}, {"blocks": 1})
    with ft.track.csv(folder.track / "points.csv") as sink:
        from support import feed

        feed.tell(sink)
    folder.clear()
    assert not folder.track.exists()


def test_a_sink_that_fails_loses_no_study(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ft.InputError, match=r"points.csv: cannot write it"):
        study(tmp_path / "study", on_measure=ft.track.csv(tmp_path / "file" / "points.csv"))
    assert ft.History.load(tmp_path / "study" / "history.nc").begun.any()
