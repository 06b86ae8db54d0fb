"""The last numbers and their middle, against sorting them anew."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtempo.flower.latest import Latest

NUMBERS = st.floats(min_value=0, allow_nan=False) | st.sampled_from([0.0, 1.0, 2.0])


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), NUMBERS), max_size=60))
def test_it_is_what_sorting_says(most, steps) -> None:
    latest, plain = Latest(most), deque(maxlen=most)
    for back, value in steps:
        if back:
            latest.take_back(value)
            if value in plain:
                plain.remove(value)
        else:
            latest.add(value)
            plain.append(value)
        assert list(latest) == list(plain)
        assert len(latest) == len(plain)
        assert latest.largest == max(plain, default=0.0)
        if plain:
            assert latest.middle == sorted(plain)[len(plain) // 2]
    assert list(Latest(most, plain)) == list(plain)
    latest.clear()
    assert (len(latest), latest.largest) == (0, 0.0)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_what_is_no_number_does_no_harm(most) -> None:
    latest = Latest(most)
    for value in [1.0, math.nan, math.inf, 2.0, math.nan, 3.0] + [4.0] * most:
        latest.add(value)
    assert latest.middle == latest.largest == 4.0
    assert len(latest) == most
