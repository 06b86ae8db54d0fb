"""Times that follow from hardware and the bytes of an update."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft

cases = settings(derandomize=True, deadline=None, max_examples=60)
small = st.builds(Fraction, st.integers(min_value=1, max_value=400), st.integers(min_value=1, max_value=24))
ROWS = {"step_seconds": ["1/10", "1/5"], "steps": 3, "bytes_per_second": [1000, 500]}


@cases
@given(st.lists(st.tuples(small, small, small), min_size=1, max_size=4), st.integers(0, 999), st.integers(0, 999))
def test_open_bytes_are_filled_in_exactly(rows, up, down):
    seconds, rate, download = (list(column) for column in zip(*rows, strict=True))
    given_bytes = {"step_seconds": seconds, "steps": 2, "bytes_per_second": rate, "download_bytes_per_second": download}
    times = ft.FixedTimes.hardware(**given_bytes)
    made = times.for_traffic(up, down)
    assert made.exact_mean_time == tuple(2 * s + up / r + down / d for s, r, d in rows)
    assert made == ft.FixedTimes.hardware(**given_bytes, bytes_sent=up, bytes_received=down)


def test_without_a_download_rate_receiving_takes_no_time():
    times = ft.FixedTimes.hardware(**ROWS)
    assert times.for_traffic(500, 10**9).describe() == ["4/5", "8/5"]
    assert times.num_clients == 2
    assert times.by_traffic
    assert not ft.FixedTimes([1]).by_traffic


def test_other_times_do_not_depend_on_bytes():
    times = ft.ExponentialTimes([1, 2])
    assert times.for_traffic(10, 20) is times


def test_what_is_said_of_them_tells_them_apart():
    plain, down = ft.FixedTimes.hardware(**ROWS), ft.FixedTimes.hardware(**ROWS, download_bytes_per_second=9)
    assert plain.describe() == ["3/10 + up/(1000)", "3/5 + up/(500)"]
    assert down.describe() == ["3/10 + up/(1000) + down/(9)", "3/5 + up/(500) + down/(9)"]
    assert plain == ft.FixedTimes.hardware(**ROWS)
    assert hash(plain) == hash(ft.FixedTimes.hardware(**ROWS))
    assert len({plain, down, plain.available(failure=0.1), ft.FixedTimes([1, 2])}) == 4
    assert plain.law != plain.available(failure=0.1).law


def test_clients_that_come_and_go_do_so_with_any_bytes():
    times = ft.FixedTimes.hardware(**ROWS).available(failure=0.1).available(on=10, off=5)
    known = ft.FixedTimes(["4/5", "8/5"]).available(failure=0.1, on=10, off=5)
    assert times.for_traffic(500, 0) == known
    assert times.random
    assert times.only([1]).for_traffic(500, 0) == known.only([1])
    with pytest.raises(ft.InputError, match="failure of client 0"):
        ft.FixedTimes.hardware(**ROWS).available(failure=2)


@pytest.mark.parametrize(
    "ask",
    [
        lambda times: ft.compare(times, [ft.FedAvg()]),
        lambda times: ft.timeline(ft.FedAvg(), times, until=3),
        lambda times: times.mean_time,
        lambda times: times.draw(np.array([0]), np.array([0])),
        lambda times: times.expected_rounds(Fraction(1)),
        lambda times: times.survival(1.0),
    ],
)
def test_nothing_is_known_before_the_bytes_are(ask):
    with pytest.raises(ft.InputError, match="times: hardware times without bytes_sent need a problem"):
        ask(ft.FixedTimes.hardware(**ROWS))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bytes_received": 5}, "bytes_received: also give bytes_sent"),
        ({"bytes_received": 5, "bytes_sent": 5}, "and download_bytes_per_second"),
        ({"bytes_sent": 5, "download_bytes_per_second": 5}, "also give bytes_received"),
        ({"download_bytes_per_second": 0}, "download_bytes_per_second of client 0: 0 is not above zero"),
        ({"bytes_per_second": [1, 2, 3]}, "lists have different lengths"),
    ],
)
def test_wrong_hardware_is_named(changed, words):
    with pytest.raises(ft.InputError, match=words):
        ft.FixedTimes.hardware(**(ROWS | changed))
