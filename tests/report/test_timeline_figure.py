"""Timelines that draw themselves: slices, clients that come and go, many clients, names."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgba

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline
from fedtempo.clock.timeline import Timeline
from fedtempo.report.dense_timeline import bins_of, painted, rows_by_time
from fedtempo.report.inks import LIGHT
from fedtempo.report.jobs import work_of
from fedtempo.report.timeline_figure import LANES, delay_colours, lost_colour

UNRELIABLE = ft.FixedTimes.spread(6, 80).available(failure="1/5", absences={2: [("1/2", 2)]}, on=5, off=1)


def bars(axes, low=0.0, high=1.0):
    """(client, from, to) of the bars whose height lies between two numbers."""
    found = [p for p in axes.patches if low < p.get_height() < high]
    return [(round(p.get_y() + p.get_height() / 2), p.get_x(), p.get_x() + p.get_width()) for p in found]


def test_what_a_timeline_was_made_from_makes_no_difference_to_it() -> None:
    line = ft.timeline(ft.FedFix("1/2"), ft.FixedTimes([1, 2]), until=5)
    bare = full_timeline(line.origin.config, until=5)
    assert bare.origin is None
    assert line.equals(bare)
    assert repr(line) == repr(bare)
    assert line.origin.until == 5
    assert line[2:].origin.until == 5
    assert line[:3].origin.until is None
    assert Timeline.joined([line[:3], line[3:]]).origin.config is line.origin.config
    assert all(part.origin is not None for part in ft.timeline_chunks(ft.AsyncFedAvg(), ft.FixedTimes([1, 2]), until=5))
    with pytest.raises(ft.InputError, match="does not know its scheme and client times"):
        bare.plot()
    with pytest.raises(ft.InputError, match="no rounds"):
        line[:0].plot()


def test_a_slice_shows_its_own_rounds_with_jobs_that_began_before() -> None:
    line = ft.timeline(ft.AsyncFedAvg(), ft.FixedTimes([5, 1]), until=10)
    late = line[3:6]
    assert int(late.base.min()) < late.first_round
    axes = late.plot().axes[0]
    assert axes.get_xlim() == (3.0, 5.0)
    assert sorted(bars(axes, 0.5)) == [(0, 3.0, 5.0), (1, 3.0, 4.0), (1, 4.0, 5.0)]
    numbers = [text.get_text() for text in axes.texts]
    assert numbers[0] == r"$\theta^{4}$"


def test_a_job_is_not_drawn_over_an_absence_of_its_client() -> None:
    axes = ft.timeline(ft.FedBuff(2), UNRELIABLE, until=8, seed=1).plot().axes[0]
    jobs, away = bars(axes, 0.5, 0.7), bars(axes, 0.8)
    assert any(client == 2 and a <= 0.5 and b >= 2 for client, a, b in away)
    assert not any(i == j and a < d - 1e-9 and c < b - 1e-9 for i, a, b in jobs for j, c, d in away)
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert {"client away", "work lost", "job failed"} <= set(legend)
    work = work_of(ClockConfig.of(ft.FedBuff(2).waiting, UNRELIABLE, seed=1), None, 8.0)
    crosses = [c.get_offsets() for c in axes.collections if to_rgba(LIGHT.lost) in map(tuple, c.get_edgecolor())]
    assert len(crosses) == 1
    assert np.array_equal(crosses[0], np.column_stack([work.failed.end, work.failed.client]))
    assert len(work.failed.client) > 0
    lost = [p for p in axes.patches if p.get_facecolor() == to_rgba(lost_colour(LIGHT))]
    assert len(lost) == len(work.failed.client) + len(work.lost.client)


def test_numbers_of_models_do_not_touch() -> None:
    figure = ft.timeline(ft.AsyncFedAvg(), ft.FixedTimes.spread(8, 80), until=6)[:40].plot()
    figure.canvas.draw()
    found = sorted((t.get_window_extent() for t in figure.axes[0].texts), key=lambda box: box.x0)
    assert len(found) > 10
    assert all(a.x1 <= b.x0 for a, b in pairwise(found))


def test_clients_of_a_trace_have_their_names(tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,duration\nphone,1\nphone,2\ntablet,3\n")
    line = ft.timeline(ft.FedAvg(), ft.TraceTimes.read(path), until=9)
    labels = [label.get_text() for label in line.plot().axes[0].get_yticklabels()]
    assert labels[1:] == ["phone  (τ 1.5)", "tablet  (τ 3)"]


def test_more_clients_are_rows_sorted_by_time_with_their_throughput() -> None:
    times = ft.FixedTimes([1 + (7 * i) % 30 for i in range(30)])
    line = ft.timeline(ft.FedFix(2), times, until=60)
    above, below = line.plot().axes
    assert not below.patches
    assert above.get_ylabel().startswith("updates taken")
    assert sum(p.get_height() * p.get_width() for p in above.patches) == pytest.approx(line.num_updates)
    shown = [label.get_text() for label in below.get_yticklabels()]
    means = [float(text.split("τ ")[1].rstrip(")")) for text in shown]
    assert means == sorted(means)
    assert means[0] == 1
    assert means[-1] == 30
    assert [ax.get_xlim() for ax in (above, below)] == [(0, 60), (0, 60)]


def test_rows_are_painted_with_what_their_clients_do() -> None:
    times = ft.FixedTimes([4, 1, 2])
    config = ClockConfig.of(ft.FedFix(2).waiting, times)
    line = full_timeline(config, until=8)
    assert rows_by_time(times.mean_time).tolist() == [2, 0, 1]
    colours, norm = delay_colours(1)
    work = work_of(config, line, 8.0)
    image = painted(work, rows_by_time(times.mean_time), (0.0, 8.0), colours, norm, LIGHT)
    thick = image.shape[0] // 3

    def at(row: int, time: float) -> tuple[float, ...]:
        return tuple(image[row * thick, int(time / 8 * image.shape[1])].astype(float).round(3))

    fresh, stale, waiting = (tuple(np.round(c, 3)) for c in (colours(0), colours(1), to_rgba(LIGHT.waiting[0])))
    assert [at(0, t) for t in (0.5, 1.5, 2.5, 3.5)] == [fresh, waiting, fresh, waiting]
    assert [at(1, t) for t in (0.5, 1.5, 2.5, 3.5)] == [fresh, fresh, fresh, fresh]
    assert [at(2, t) for t in (0.5, 1.5, 2.5, 3.5)] == [stale, stale, stale, stale]


def test_bins_end_where_rounds_end() -> None:
    assert bins_of(np.arange(11.0)).tolist() == list(range(11))
    uneven = bins_of(np.array([0.0, 1.0, 1.5, 4.0, 4.0, 5.0, 7.0, 7.5, 9.0]))
    assert uneven.tolist() == [0.0, 4.0, 9.0]
    assert bins_of(np.array([0.0, 1.0, 3.0])).tolist() == [0.0, 3.0]
    assert len(bins_of(np.cumsum(np.random.default_rng(0).uniform(0, 1, 5000)))) <= 81


@pytest.mark.parametrize("clients", [LANES, LANES + 1])
def test_up_to_twenty_clients_have_lanes(clients) -> None:
    figure = ft.timeline(ft.FedAvg(), ft.FixedTimes.spread(clients, 80), until=3).plot()
    assert len(figure.axes) == (1 if clients <= LANES else 2)


def test_a_thousand_clients_make_a_small_file(tmp_path) -> None:
    line = ft.timeline(ft.FedFix("1/4"), ft.FixedTimes.spread(1000, 80), until=12)
    assert line.num_updates > 18_000
    line.plot(tmp_path / "many.svg")
    assert (tmp_path / "many.svg").stat().st_size < 500_000


def test_what_cannot_be_read_is_refused_with_a_cure() -> None:
    line = ft.timeline(ft.AsyncFedAvg(), ft.FixedTimes([1, 2]), until=20_000)
    with pytest.raises(ft.InputError, match=r"30000 updates make no readable picture; draw line\[:20000\]"):
        line.plot()
    assert len(line[:20_000].plot().axes) == 2  # thousands of jobs are rows too
