"""Compression of contributions: bounds, unbiasedness, memory, and the same bits in simulation and on the wire."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtempo.errors import InputError
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.training.batches import compression_key
from fedtempo.training.batches import job_key as simulated_key
from fedtempo.training.compression import QSGD, Compression, LowRank, TopK, compression_of
from fedtempo.training.compression import numbers as bits
from fedtempo.training.compression.numbers import fold, job_key, uniforms
from fedtempo.training.compression.wire import Payload, decode, encode, first_state

METHODS = [
    QSGD(4, norm="euclidean"),
    QSGD(7, bucket=64, norm="euclidean"),
    QSGD(3, bucket=50),
    TopK(0.05),
    TopK("1/5", error_feedback=False),
    LowRank(2),
    LowRank(1, error_feedback=False),
]
FEW = [METHODS[1], METHODS[3], METHODS[5]]


def model(dtype=np.float32, seed=0, scale=1.0):
    """Matrices, a vector, a scalar, an array of four axes, counters, and nothing."""
    rng = np.random.default_rng(seed)
    drawn = {"w": (41, 9), "b": (9,), "s": (), "conv": (8, 3, 5, 5), "none": (0, 3)}
    arrays = {name: np.asarray(scale * rng.normal(size=shape)).astype(dtype) for name, shape in drawn.items()}
    return {**arrays, "n": np.arange(3, dtype=np.int32)}


@cache
def compiled(method: Compression):
    return jax.jit(method.compress)


def through(method, changes, seed=5, client=3):
    """What the server gets for a client's changes, in simulation and on the wire, job by job."""
    state, kept = method.start(changes[0]), None
    for job, change in enumerate(changes):
        key = simulated_key(compression_key(seed), client, job)
        got, state = compiled(method)(jax.tree.map(jnp.asarray, change), state, key)
        payload, kept = encode(method, change, kept, key=job_key(seed, client, job))
        yield change, jax.tree.map(np.asarray, got), payload, state, kept


# -- the two halves


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_simulation_and_wire_agree(method) -> None:
    """To the bit, as are the draws and the memory; LowRank's products to rounding."""
    low = isinstance(method, LowRank)
    changes = [model(seed=job, scale=1.0 if low else 10.0 ** (-3 * job)) for job in range(4)]
    for job, (change, got, payload, state, kept) in enumerate(through(method, changes)):
        decoded = decode(payload)
        assert decoded.keys() == change.keys() == got.keys()
        for place, name in enumerate(sorted(change)):
            assert decoded[name].dtype == got[name].dtype == change[name].dtype
            assert decoded[name].shape == got[name].shape == change[name].shape
            if low and name in ("w", "conv"):
                np.testing.assert_allclose(decoded[name], got[name], rtol=0, atol=1e-4 if job else 3e-6)
            else:
                np.testing.assert_array_equal(decoded[name], got[name])
            for part, array in kept.get(name, {}).items():
                np.testing.assert_allclose(array, state[place][part], rtol=1e-3, atol=2e-5)
        np.testing.assert_array_equal(got["n"], change["n"])
        assert np.abs(got["w"] - change["w"]).max() > 0, "something is lost, or nothing was compressed"


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_bytes_are_those_that_are_packed(method) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        arrays = model(dtype)
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}
        payload, _ = encode(method, arrays, key=job_key(0, 0, 0))
        assert sum(part.nbytes for part in payload.parts.values()) == payload.num_bytes == method.num_bytes(shapes)
        assert payload.num_bytes < sum(array.nbytes for array in arrays.values())
        assert len(payload.parts) <= 3


def test_bytes_by_hand() -> None:
    logistic = {"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}
    assert QSGD(4).num_bytes(logistic) == 4 + 7840 // 2 + 4 + 5  # nine codes: four bits
    assert QSGD(3).num_bytes(logistic) == 4 + 7840 * 3 // 8 + 4 + 4  # seven codes: three bits
    assert QSGD(1, bucket=1000).num_bytes(logistic) == 8 * 4 + 7840 // 4 + 4 + 3
    assert TopK(0.01).num_bytes(logistic) == 79 * 4 + -(-79 * 13 // 8) + 4 + 1
    assert TopK(0.1).num_bytes(logistic) == 784 * 4 + 7840 // 8 + 4 + 1, "a bit an entry is less than 784 places"
    assert LowRank(2).num_bytes(logistic) == 2 * (784 + 10) * 4 + 10 * 4
    assert LowRank(10).num_bytes(logistic) == 7850 * 4, "factors that are not smaller"
    assert TopK(0.5).num_bytes({"n": np.zeros(3, np.int64), "one": np.zeros(1, np.float32)}) == 24 + 4


@pytest.mark.parametrize("method", FEW, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types_are_sent_in_float32_and_come_back_as_they_were(method, dtype) -> None:
    with numerics("float64"):
        changes = [model(dtype, seed=job) for job in range(2)]
        state, kept = method.start(changes[0]), None
        for job, change in enumerate(changes):
            key = simulated_key(compression_key(0), 1, job)
            got, state = jax.jit(method.compress)(jax.tree.map(jnp.asarray, change), state, key)
            payload, kept = encode(method, change, kept, key=job_key(0, 1, job))
            decoded = decode(payload)
            for name in change:
                assert got[name].dtype == decoded[name].dtype == change[name].dtype
                if isinstance(method, LowRank):
                    rough = 2e-3 if dtype is np.float16 else 1e-6
                    np.testing.assert_allclose(decoded[name], got[name], rtol=rough, atol=rough)
                else:
                    np.testing.assert_array_equal(decoded[name], got[name])
        if dtype is np.float64 and isinstance(method, TopK) and method.error_feedback:
            place = sorted(change).index("w")
            total = sum(c["w"] for c in changes)
            assert np.abs(np.asarray(got["w"], np.float32) - got["w"]).max() == 0, "no more than float32 travels"
            lost = np.asarray(state[place]["error"])
            first = decode(encode(method, changes[0], key=job_key(0, 1, 0))[0])["w"]
            np.testing.assert_allclose(first + got["w"] + lost, total, rtol=1e-14, atol=1e-14)


def test_draws_are_those_of_jax() -> None:
    for seed, client, job, leaf in ((0, 0, 0, 0), (7, 5, 1000, 3), (-1, 2**31, 2**32 - 1, 12)):
        key = jax.random.fold_in(simulated_key(compression_key(seed), jnp.uint32(client), jnp.uint32(job)), leaf)
        mine = fold(job_key(seed, client, job), leaf)
        np.testing.assert_array_equal(np.array(mine), jax.random.key_data(key))
        words = np.asarray(jax.random.bits(key, (70_000,), jnp.uint32)).astype(np.uint64)
        np.testing.assert_array_equal(uniforms(mine, 70_000), (words // 512 * 2 + 1) / 2.0**24)
    names = [1, 2, "1", "site-7", 2**32 + 1, 2**63 + 1, -1]
    assert len({tuple(map(int, job_key(0, name, 0))) for name in names}) == len(names), "each client its own"


@pytest.mark.parametrize("method", FEW, ids=str)
def test_runs_and_seeds_together_are_runs_by_themselves(method) -> None:
    """`vmap` over runs (the last axis, one key) and over seeds (the first, a key each)."""
    changes = [{k: v for k, v in model(seed=s).items() if k in ("w", "b", "n")} for s in range(3)]
    states = [method.start(change) for change in changes]
    keys = jax.random.split(jax.random.key(4), 3)
    alone = [compiled(method)(c, s, k) for c, s, k in zip(changes, states, keys, strict=True)]
    shared = [compiled(method)(c, s, keys[0]) for c, s in zip(changes, states, strict=True)]
    for axis, found, key, key_axis in ((0, alone, keys, 0), (-1, shared, keys[0], None)):
        stack = lambda *xs, axis=axis: jnp.stack(xs, axis)  # noqa: E731
        many = jax.jit(jax.vmap(method.compress, (axis, axis, key_axis), axis))
        out = many(jax.tree.map(stack, *changes), jax.tree.map(stack, *states), key)
        for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(jax.tree.map(stack, *found)), strict=True):
            if isinstance(method, LowRank):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)
            else:
                np.testing.assert_array_equal(a, b)


# -- QSGD


@pytest.mark.parametrize("method", [QSGD(1, norm="euclidean"), QSGD(5, bucket=16, norm="euclidean"), QSGD(2)], ids=str)
def test_qsgd_is_unbiased_and_within_its_bound(method) -> None:
    """Over many keys: the mean within four standard errors of x, the mean squared error under the bound."""
    rng = np.random.default_rng(1)
    many = 20_000
    keys = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(3), n))(jnp.arange(many))
    together = jax.jit(jax.vmap(lambda x, key: method.compress(x, (), key)[0], (None, 0)))
    for x in (rng.normal(size=50), rng.exponential(size=50) ** 3, np.eye(1, 50)[0] * 3, np.ones(50)):
        x32 = x.astype(np.float32)
        got = np.asarray(together(x32, keys), np.float64)
        size, s = method.bucket or 50, method.levels
        unit = np.repeat(encode(method, [x32], key=job_key(0, 0, 0))[0].parts["scales"].astype(np.float64), size)[:50]
        up = np.abs(x32) / np.where(unit > 0, unit, 1) % 1.0
        error = unit * np.sqrt(up * (1 - up) / many)
        assert (np.abs(got.mean(axis=0) - x32) <= 4.5 * error + 3 * unit / many).all()
        worst = min(size / s**2, np.sqrt(size) / s) * (x**2).sum()
        spread = ((got - x32) ** 2).sum(axis=1)
        assert spread.mean() <= worst + 4 * spread.std() / np.sqrt(many)


def test_qsgd_has_the_levels_that_it_says() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    for method in (QSGD(4, norm="euclidean"), QSGD(4)):
        payload, _ = encode(method, [x], key=job_key(0, 0, 0))
        [got] = decode(payload)
        [unit] = payload.parts["scales"]
        levels = got / unit
        assert set(np.unique(levels)) <= set(range(-4, 5))
        norm = np.abs(x).max() if method.norm == "max" else np.linalg.norm(x)
        assert norm <= 4 * unit * (1 + 1e-6)
        assert 4 * unit <= norm * (1 + 2.0**-11)
        assert (np.abs(got - x) <= unit * (1 + 1e-6)).all(), "one of the two levels around each entry"
        assert (np.sign(got) * np.sign(x) >= 0).all()
    with_max = np.sqrt(((got - x) ** 2).sum())
    [euclidean] = decode(encode(QSGD(4, norm="euclidean"), [x], key=job_key(0, 0, 0))[0])
    assert with_max < np.linalg.norm(euclidean - x) / 3


def test_extreme_numbers() -> None:
    nothing = np.zeros(40, np.float32)
    one = np.eye(1, 40, 7, dtype=np.float32)[0]
    for method in (QSGD(4), QSGD(4, norm="euclidean"), TopK(0.1)):
        for x in (nothing, one * np.float32(1e-30), one * np.float32(1e30), -one):
            got = np.asarray(compiled(method)(x, method.start(x), jax.random.key(0))[0])
            np.testing.assert_array_equal(got, x)
            [same] = decode(encode(method, [x], key=job_key(0, 0, 0))[0])
            np.testing.assert_array_equal(same, x)
    matrix = np.outer(np.arange(1, 21), np.arange(1, 11)).astype(np.float32)
    for scale in (0.0, 1e-15, 1e15):
        for method in (LowRank(1), LowRank(3)):
            x = matrix * np.float32(scale)
            got = np.asarray(compiled(method)(x, method.start(x), jax.random.key(0))[0])
            np.testing.assert_allclose(got, x, rtol=2e-6)
            np.testing.assert_allclose(decode(encode(method, [x], key=job_key(0, 0, 0))[0])[0], x, rtol=2e-6)


@pytest.mark.parametrize("method", [QSGD(4), QSGD(4, norm="euclidean"), TopK(0.01), LowRank(2)], ids=str)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_by_the_server(method, wrong) -> None:
    """A run that diverges must not look like one that stands still."""
    x = np.ones((30, 20), np.float32)
    x[3, 4] = wrong
    assert not np.isfinite(compiled(method)(x, method.start(x), jax.random.key(0))[0]).all()
    assert not np.isfinite(decode(encode(method, [x], key=job_key(0, 0, 0))[0])[0]).all()


# -- TopK


def test_top_k_takes_the_largest_and_of_equal_ones_the_first() -> None:
    x = np.array([1, -3, 2, 3, -2, 2, 0, 0, 3, -2], np.float32)
    wanted = {1: [1], 3: [1, 3, 8], 4: [1, 2, 3, 8], 6: [1, 2, 3, 4, 5, 8], 10: range(10)}
    for count, places in wanted.items():
        method = TopK(Fraction(count, 10), error_feedback=False)
        meant = np.where(np.isin(np.arange(10), list(places)), x, 0)
        np.testing.assert_array_equal(method.compress(x, (), jax.random.key(0))[0], meant)
        np.testing.assert_array_equal(decode(encode(method, [x], key=job_key(0, 0, 0))[0])[0], meant)


def test_top_k_is_within_its_bound_and_counts_exactly() -> None:
    rng = np.random.default_rng(0)
    for share, size in (("0.07", 100), (0.07, 100), (0.01, 785), (1e-9, 50), (1, 30), ("1/3", 3)):
        method = TopK(share, error_feedback=False)
        count = max(1, -(-size * Fraction(str(share)).numerator // Fraction(str(share)).denominator))
        assert method.count(size) == count
        for x in (rng.normal(size=size), np.ones(size), rng.exponential(size=size) ** 4):
            x32 = x.astype(np.float32)
            [got] = decode(encode(method, [x32], key=job_key(0, 0, 0))[0])
            assert np.count_nonzero(got) == count
            assert ((got - x32) ** 2).sum() <= (1 - count / size) * (x32**2).sum() * (1 + 1e-5)


@pytest.mark.parametrize("method", [TopK(0.05), LowRank(1)], ids=str)
def test_what_is_left_out_is_sent_later(method) -> None:
    """All that was sent and the memory are all that there was; without memory, what is small is never sent."""
    changes = [{"w": np.random.default_rng(job).normal(size=(20, 30)).astype(np.float32)} for job in range(30)]
    simulated = packed = 0.0
    for _, got, payload, *after in through(method, changes):
        simulated, packed = simulated + got["w"], packed + decode(payload)["w"]
        state, kept = after
    total = sum(change["w"] for change in changes)
    np.testing.assert_allclose(simulated + np.asarray(state[0]["error"]), total, atol=1e-4)
    np.testing.assert_allclose(packed + kept["w"]["error"], total, atol=1e-4)
    still = [{"w": np.linspace(1, 2, 600, dtype=np.float32).reshape(20, 30)}] * 200
    for memory in (True, False):
        other = TopK(0.05, error_feedback=memory)
        mean = sum(got["w"] for _, got, *_ in through(other, still)) / len(still)
        assert (np.abs(mean - still[0]["w"]).max() < 0.3) == memory
        assert (np.count_nonzero(mean) == 600) == memory


# -- LowRank


def test_low_rank_finds_a_matrix_of_that_rank_and_the_best_one_in_the_long_run() -> None:
    rng = np.random.default_rng(0)
    low = (rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20))).astype(np.float32)
    [got] = decode(encode(LowRank(2), [low], key=job_key(0, 0, 0))[0])
    np.testing.assert_allclose(got, low, atol=1e-5)
    left, values, right = np.linalg.svd(rng.normal(size=(30, 20)))
    values[2:] *= 0.5
    matrix = (left[:, :20] * values @ right).astype(np.float32)
    method, kept, errors = LowRank(2, error_feedback=False), None, []
    for _ in range(60):
        payload, kept = encode(method, [matrix], kept, key=job_key(0, 0, 0))
        errors.append(np.linalg.norm(decode(payload)[0] - matrix))
    best = np.sqrt((values[2:] ** 2).sum())
    assert errors[0] < np.linalg.norm(matrix)
    assert errors[-1] == pytest.approx(best, rel=1e-4)
    assert errors[0] > 1.01 * best, "the warm start is what finds it"


def test_low_rank_recovers_from_nothing() -> None:
    """A job that changes nothing leaves a direction to start from."""
    method = LowRank(2)
    matrix = np.outer(np.arange(20), np.arange(30)).astype(np.float32)
    changes = [{"w": factor * matrix} for factor in np.float32([0, 1, 0, -2])]
    for change, got, payload, *_ in through(method, changes):
        np.testing.assert_allclose(got["w"], change["w"], atol=1e-3)
        np.testing.assert_allclose(decode(payload)["w"], change["w"], atol=1e-3)


# -- the wire


@pytest.mark.parametrize("width", [0, 1, 3, 4, 7, 13, 24, 32])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 40_001])
def test_bits_come_back(width, count) -> None:
    numbers = np.random.default_rng(width).integers(0, 2**width, size=count)
    data = bits.pack(numbers, width)
    assert data.dtype == np.uint8
    assert len(data) == bits.packed_size(count, width) == -(-count * width // 8)
    np.testing.assert_array_equal(bits.unpack(data, count, width), numbers)


def test_lists_and_names() -> None:
    arrays = [np.random.default_rng(n).normal(size=5).astype(np.float32) for n in range(12)]
    named = {f"{n:02d}": array for n, array in enumerate(arrays)}
    for method in METHODS[:5]:
        listed, kept = encode(method, arrays, key=job_key(0, 0, 0))
        other, _ = encode(method, dict(reversed(named.items())), key=job_key(0, 0, 0))
        assert [*decode(other)] == sorted(named)
        for a, b in zip(decode(listed), decode(other).values(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert kept.keys() == first_state(method, arrays).keys()


def test_what_no_client_can_have_packed_is_refused() -> None:
    arrays = {"w": np.ones(100, np.float32), "n": np.arange(2)}
    for method, part, wrong, words in (
        (QSGD(4), "codes", 0xFF, "a code is 15, and 4 levels have codes up to 8"),
        (TopK(0.05), "places", 0xFF, "not 5 different ones of 100"),
        (TopK(0.05), "places", 0, "not 5 different ones of 100"),
        (TopK(0.3), "places", 0xFF, "not 30 different ones of 100"),
    ):
        payload, _ = encode(method, arrays, key=job_key(0, 0, 0))
        parts = {**payload.parts, part: np.full_like(payload.parts[part], wrong)}
        with pytest.raises(InputError, match=words):
            decode(Payload(method, payload.slots, False, parts))
        for bad in (payload.parts[part][:-1], payload.parts[part].astype(np.int16), payload.parts[part][None]):
            with pytest.raises(InputError, match=f"{part} is .* where uint8 of shape .* is expected"):
                decode(Payload(method, payload.slots, False, {**payload.parts, part: bad}))
        with pytest.raises(InputError, match=r"it has .* where .* are expected"):
            decode(Payload(method, payload.slots, False, {"codes": payload.parts[part]}))
        with pytest.raises(InputError, match="are expected"):
            decode(Payload(method, payload.slots, False, {}))


# -- methods as values


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_method_is_its_spec(method) -> None:
    again = compression_of(json.loads(json.dumps(method.spec())))
    assert again == method
    assert hash(again) == hash(method)
    assert method.unbiased == isinstance(method, QSGD)
    assert eval(repr(method), {"QSGD": QSGD, "TopK": TopK, "LowRank": LowRank}) == method


def test_labels() -> None:
    labels = [method.label for method in METHODS]
    assert labels == [
        "QSGD(4, euclidean)", "QSGD(7, by 64, euclidean)", "QSGD(3, by 50)", "TopK(5 %)", "TopK(20 %, no memory)",
        "LowRank(2)", "LowRank(1, no memory)",
    ]  # fmt: skip
    assert TopK(0.01).label == "TopK(1 %)"
    assert TopK(0.001) == TopK("1/1000")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: QSGD(0), "levels: 0 is not allowed; give a whole number from 1"),
        (lambda: QSGD(2.5), "levels: 2.5 is not allowed"),
        (lambda: QSGD(True), "levels: True"),
        (lambda: QSGD(4, bucket=0), "bucket: 0"),
        (lambda: QSGD(4, norm="one"), "norm: 'one' is not known; use max or euclidean"),
        (lambda: TopK(0), "share: 0 is not allowed; give a share above 0 and up to 1"),
        (lambda: TopK(1.5), "share: 1.5"),
        (lambda: TopK("much"), "share: 'much' is not a number"),
        (lambda: TopK(0.1, error_feedback=1), "error_feedback: 1 is not allowed; give True or False"),
        (lambda: LowRank(0), "rank: 0"),
        (lambda: compression_of({"name": "zip"}), "compression: 'zip' is not known; use one of qsgd, topk, lowrank"),
        (lambda: compression_of({"name": "topk", "size": 3}), "compression topk: the key 'size' does not exist"),
    ],
)
def test_what_does_not_do_is_refused(make, words) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_numpys_whole_numbers_do() -> None:
    for made, same in [
        (QSGD(np.int64(4), bucket=np.int32(8)), QSGD(4, bucket=8)),
        (LowRank(np.uint8(2)), LowRank(2)),
        (TopK(np.float64(0.25)), TopK("1/4")),
    ]:
        assert made == same
        assert compression_of(json.loads(json.dumps(made.spec()))) == same


def test_a_client_needs_no_jax() -> None:
    code = (
        "import sys, numpy as np\n"
        "from fedtempo.training.compression import QSGD, TopK, LowRank\n"
        "from fedtempo.training.compression.wire import encode, decode, job_key\n"
        "for method in (QSGD(4), TopK(0.1), LowRank(1)):\n"
        "    payload, state = encode(method, {'w': np.ones((9, 8), np.float32)}, key=job_key(0, 1, 2))\n"
        "    decode(payload)\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
