"""Pictures of timelines with a lane a client: what they must show."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline
from fedtempo.files import write_whole
from fedtempo.report.timeline_figure import save_timeline, timeline_figure

SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("1/7"),
    ft.FedBuff(2),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
    ft.StagedFedFix([("1/4", 5), ("1/2", None)]),
]


def drawn(scheme, times, until):
    config = ClockConfig.of(scheme.waiting, times)
    line = full_timeline(config, until=until)
    return line, timeline_figure(config, line, until=float(until), title="title").axes[0]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("clients", [2, 9, 20])
def test_one_lane_a_client_and_bars_that_do_not_overlap(scheme, clients) -> None:
    times = ft.FixedTimes.spread(clients, 80)
    line, axes = drawn(scheme, times, 6)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "server"
    assert len(labels) == clients + 1
    lanes: dict[int, list[tuple[float, float]]] = {}
    for patch in axes.patches:
        lanes.setdefault(round(patch.get_y() + patch.get_height() / 2), []).append(
            (patch.get_x(), patch.get_x() + patch.get_width())
        )
    full = sum(patch.get_height() > 0.5 for patch in axes.patches)
    assert full >= line.num_updates
    for bars in lanes.values():
        bars.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(bars))
        assert bars[-1][1] <= 6 + 1e-9


def test_a_bar_is_a_job_from_the_model_sent_to_the_update_back() -> None:
    _, axes = drawn(ft.FedFix(1), ft.FixedTimes(["3/2", "1/2"]), 2)
    bars = {
        (round(p.get_y() + p.get_height() / 2), round(p.get_x(), 6), round(p.get_width(), 6), p.get_height() > 0.5)
        for p in axes.patches
    }
    assert bars == {
        (0, 0.0, 1.5, True),
        (0, 1.5, 0.5, False),
        (1, 0.0, 0.5, True),
        (1, 0.5, 0.5, False),
        (1, 1.0, 0.5, True),
        (1, 1.5, 0.5, False),
    }


def test_the_same_picture_twice_is_the_same_file(tmp_path) -> None:
    config = ClockConfig.of(ft.FedBuff(2).waiting, ft.FixedTimes([1, 2, 3]))
    line = full_timeline(config, until=9)
    for name in ("a.svg", "b.svg"):
        save_timeline(config, line, tmp_path / name, until=9.0, title="t")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert not re.search(r"<dc:date>", text)


def test_empty_rounds_are_hollow_dots() -> None:
    line, axes = drawn(ft.FedFix("1/4"), ft.FixedTimes([1, 1]), 2)
    dots = [c for c in axes.collections if np.allclose(c.get_offsets()[:, 1], -1.1) and len(c.get_offsets())]
    assert sorted(len(c.get_offsets()) for c in dots) == [2, 6]
    assert line.num_rounds == 8


def test_a_file_is_written_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fails(file) -> None:
        file.write(b"half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_whole(path, fails)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ft.InputError, match="does not exist"):
        write_whole(tmp_path / "no" / "file", fails)
