"""Named randomness: Threefry by its published answers, and numbers that depend on their counters alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.clock import streams
from fedtempo.clock.streams import stream_key, threefry, uniforms

cases = settings(derandomize=True, deadline=None, max_examples=100)
words = st.integers(min_value=0, max_value=2**32 - 1)


def _words(*values):
    return np.array(values, dtype=np.uint32)


def _plain_threefry(key, counter):
    """Threefry-2x32-20 as in the paper, in whole numbers."""
    whole = 2**32
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (counter[0] + keys[0]) % whole, (counter[1] + keys[1]) % whole
    turns = (13, 15, 26, 6, 17, 29, 16, 24)
    for r in range(20):
        x = (x + y) % whole
        y = ((y << turns[r % 8]) | (y >> (32 - turns[r % 8]))) % whole ^ x
        if r % 4 == 3:
            s = r // 4 + 1
            x, y = (x + keys[s % 3]) % whole, (y + keys[(s + 1) % 3] + s) % whole
    return x, y


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers_of_random123(key, counter, answer):
    x, y = threefry((np.uint32(key[0]), np.uint32(key[1])), _words(counter[0]), _words(counter[1]))
    assert (int(x[0]), int(y[0])) == answer == _plain_threefry(key, counter)


@cases
@given(words, words, st.lists(st.tuples(words, words), min_size=1, max_size=20))
def test_threefry_is_the_plain_algorithm_at_every_counter(k0, k1, counters):
    a, b = (np.array(side, dtype=np.uint32) for side in zip(*counters, strict=True))
    before = a.copy(), b.copy()
    x, y = threefry((np.uint32(k0), np.uint32(k1)), a, b)
    assert list(zip(x.tolist(), y.tolist(), strict=True)) == [_plain_threefry((k0, k1), c) for c in counters]
    assert np.array_equal(a, before[0])
    assert np.array_equal(b, before[1])


@cases
@given(words, words, words, words)
def test_a_uniform_is_the_middle_of_one_of_two_to_the_52_cells(k0, k1, a, b):
    high, low = _plain_threefry((k0, k1), (a, b))
    cell = (high << 20) | (low >> 12)
    assert float(uniforms((np.uint32(k0), np.uint32(k1)), a, b)) == (2 * cell + 1) / 2**53


@pytest.mark.parametrize(
    ("bits", "expected"), [(0, 2.0**-53), (0xFFFFFFFF, 1 - 2.0**-53)], ids=["all bits 0", "all bits 1"]
)
def test_uniforms_lie_strictly_between_0_and_1_at_the_extremes(monkeypatch, bits, expected):
    monkeypatch.setattr(streams, "threefry", lambda key, a, b: (np.full_like(a, bits), np.full_like(b, bits)))
    value = float(uniforms(stream_key("times", 0), 0, 0))
    assert value == expected
    assert 0 < value < 1


@pytest.mark.parametrize(
    ("name", "seed", "key", "numbers"),
    [
        (
            "times",
            0,
            (4169175081, 3084577785),
            [0.3721748229670553, 0.7291441966327393, 0.7764580948978369, 0.016677356212819183],
        ),
        (
            "times",
            1,
            (1495331841, 1634726343),
            [0.12337530121983031, 0.20396068271312007, 0.5280415581756187, 0.010888483440601004],
        ),
        (
            "sampling",
            0,
            (3676821185, 3132918857),
            [0.8639924992825582, 0.6242918612268263, 0.4684615438656151, 0.33934750497480104],
        ),
        (
            "times",
            -1,
            (1173074731, 1423684559),
            [0.195941075040169, 0.23222564403935475, 0.49427563589330725, 0.407928665619698],
        ),
        (
            "times",
            10**30,
            (157393318, 3132861719),
            [0.5750016180345282, 0.37803269190897326, 0.560182774507152, 0.4018467831038198],
        ),
    ],
)
def test_keys_and_uniforms_are_pinned(name, seed, key, numbers):
    found = stream_key(name, seed)
    assert tuple(map(int, found)) == key
    assert uniforms(found, [0, 1, 7, 2**32 - 1], [0, 0, 3, 2**32 - 1]).tolist() == numbers


def test_any_whole_number_is_a_seed_of_its_own():
    seeds = [0, 1, -1, 2, 2**31, 2**32, 2**32 + 1, 2**63, 2**64, -(2**64), 10**100, -(10**100)]
    keys = {tuple(map(int, stream_key(name, seed))) for name in ("times", "sampling", "cycle") for seed in seeds}
    assert len(keys) == 3 * len(seeds)
    assert stream_key("times", np.int64(5)) == stream_key("times", 5)


@pytest.mark.parametrize(("one", "other"), [(("times", 3), ("times", 4)), (("times", 3), ("sampling", 3))])
def test_different_seeds_and_names_give_unrelated_numbers(one, other):
    counter = np.arange(10_000)
    x, y = uniforms(stream_key(*one), counter, 0), uniforms(stream_key(*other), counter, 0)
    assert not (x == y).any()
    assert abs(np.corrcoef(x, y)[0, 1]) < 4 / math.sqrt(len(counter))


@cases
@given(
    st.integers(min_value=-(2**70), max_value=2**70),
    st.lists(st.tuples(words, words), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_a_number_does_not_depend_on_its_neighbours_or_their_order(seed, counters, shuffler):
    key = stream_key("times", seed)
    alone = {pair: float(uniforms(key, *pair)) for pair in counters}
    mixed = counters * 2
    shuffler.shuffle(mixed)
    a, b = zip(*mixed, strict=True)
    assert uniforms(key, a, b).tolist() == [alone[pair] for pair in mixed]


def test_a_number_does_not_depend_on_the_shape_of_its_batch():
    key = stream_key("times", 7)
    rows, columns = np.arange(5)[:, None], np.arange(7)
    table = uniforms(key, rows, columns)
    assert table.shape == (5, 7)
    assert np.array_equal(uniforms(key, rows.T, columns[:, None]), table.T)
    assert np.array_equal(uniforms(key, np.repeat(np.arange(5), 7), np.tile(columns, 5)), table.ravel())
    assert np.array_equal(uniforms(key, 3, columns), table[3])
    assert uniforms(key, 3, 4).shape == ()
    assert float(uniforms(key, 3, 4)) == table[3, 4]
    assert uniforms(key, np.empty(0), np.empty(0)).shape == (0,)


def test_a_number_does_not_depend_on_the_block_it_falls_in():
    key = stream_key("times", 7)
    count = 2 * streams._BLOCK + 5
    whole = uniforms(key, np.arange(count), 9)
    for place in (0, 1, streams._BLOCK - 1, streams._BLOCK, 2 * streams._BLOCK, count - 1):
        assert whole[place] == float(uniforms(key, place, 9))


@pytest.mark.parametrize("along", ["first counter", "second counter"])
def test_uniforms_are_uniform_and_neighbours_unrelated(along):
    count = 100_000
    counter = np.arange(count)
    drawn = uniforms(stream_key("times", 11), *((counter, 5) if along == "first counter" else (5, counter)))
    ranks = np.sort(drawn)
    furthest = max(
        np.abs(ranks - np.arange(count) / count).max(), np.abs(ranks - np.arange(1, count + 1) / count).max()
    )
    assert furthest < math.sqrt(math.log(2 / 1e-6) / (2 * count))  # Dvoretzky, Kiefer, Wolfowitz and Massart
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / math.sqrt(count)
