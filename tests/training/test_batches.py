"""Which rows a job trains on: pinned, the same with whatever they are drawn, uniform, each once an epoch."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedtempo as ft
from fedtempo.clock.streams import stream_key, threefry
from fedtempo.training.batches import _times, batch_key, init_key, job_rows, permuted, scaled


@cache
def _drawn(steps, batch_size, draw):
    """[jobs, steps, batch] of (key, client, jobs, size)."""
    one = partial(job_rows, steps=steps, batch_size=batch_size, draw=draw)
    return jax.jit(jax.vmap(one, (None, None, 0, None)))


def rows(seed, client, jobs, size, *, steps=1, batch_size=8, draw="uniform"):
    numbers = np.atleast_1d(np.array(jobs, dtype=np.int32))
    found = _drawn(steps, batch_size, draw)(batch_key(seed), np.int32(client), numbers, np.int32(size))
    return np.asarray(found).reshape(*np.shape(jobs), steps, batch_size)


def by_hand(seed, client, job, size, count):
    """The uniform draw with NumPy's generator: two keys folded in, one counter a row."""
    key = stream_key("batches", seed)
    for number in (client, job):
        left, right = threefry(key, np.zeros(1, np.uint32), np.array([number], np.uint32))
        key = (left[0], right[0])
    left, right = threefry(key, np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32))
    return [int(word) * size >> 32 for word in (left ^ right).tolist()]


GOLDEN = {
    ("uniform", 0, 0, 0, 1000): [130, 747, 359, 481, 870, 291, 294, 583],
    ("uniform", 7, 3, 12345, 60000): [58291, 50106, 39578, 26502, 10977, 56526, 11845, 6417],
    ("uniform", 123456789, 9999, 2000000, 2**31 - 1): [
        862626578,
        1957237502,
        1725658418,
        1474013532,
        1355048961,
        1239075755,
        1699666218,
        1581425205,
    ],
    ("epochs", 0, 0, 0, 1000): [40, 978, 498, 87, 130, 374, 334, 844],
    ("epochs", 7, 3, 12345, 60000): [54395, 48706, 28712, 32624, 2740, 20012, 9878, 40175],
    ("epochs", 123456789, 9999, 2000000, 2**31 - 1): [
        1915802231,
        1049967534,
        210744720,
        1513433881,
        1261221157,
        194932438,
        1041654764,
        1592586166,
    ],
}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_golden_vectors(case, bits) -> None:
    draw, seed, client, job, size = case
    with jax.enable_x64(bits == 64):
        found = rows(seed, client, job, size, draw=draw)
        assert found.dtype == np.int32
        assert found.ravel().tolist() == GOLDEN[case]


def test_uniform_rows_are_those_of_the_generator_in_numpy() -> None:
    for seed, client, job, size in ((0, 0, 0, 10), (1, 2, 3, 999), (5, 70_000, 2**31 - 1, 2**20 + 1)):
        assert rows(seed, client, job, size).ravel().tolist() == by_hand(seed, client, job, size, 8)


@pytest.mark.parametrize("draw", ["uniform", "epochs"])
def test_rows_do_not_depend_on_what_is_drawn_beside_them(draw) -> None:
    key = batch_key(4)
    one = partial(job_rows, steps=3, batch_size=5, draw=draw)
    alone = jax.jit(one)
    clients_together, seeds_together = (
        jax.jit(jax.vmap(one, (None, 0, 0, 0))),
        jax.jit(jax.vmap(one, (0, None, None, None))),
    )
    cases = [(i, j, n) for i in (0, 3, 11) for j in (0, 1, 500) for n in (1, 17, 1000)]
    columns = [np.array(c, dtype=np.int32) for c in zip(*cases, strict=True)]
    keys = jnp.stack([batch_key(9), key])
    for (i, j, n), found in zip(cases, np.asarray(clients_together(key, *columns)), strict=True):
        args = (np.int32(i), np.int32(j), np.int32(n))
        want = np.asarray(alone(key, *args))
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(seeds_together(keys, *args)[1], want)


@pytest.mark.parametrize("draw", ["uniform", "epochs"])
def test_rows_do_not_depend_on_jax_settings(draw) -> None:
    one = partial(job_rows, steps=3, batch_size=5, draw=draw)
    args = (jnp.int32(2), jnp.int32(7), jnp.int32(1000))
    want = rows(3, 2, 7, 1000, steps=3, batch_size=5, draw=draw)
    plain = jax.random.bits(jax.random.key(0), (15,))
    with jax.threefry_partitionable(False):
        assert (jax.random.bits(jax.random.key(0), (15,)) != plain).any()
        if draw == "uniform":
            np.testing.assert_array_equal(one(batch_key(3), *args), want)
        np.testing.assert_array_equal(jax.jit(lambda *a: one(*a))(batch_key(3), *args), want)
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(jax.jit(lambda *a: one(*a))(batch_key(3), *args), want)


def test_a_shorter_job_takes_the_first_rows_of_a_longer_one() -> None:
    long = rows(2, 1, 5, 77, steps=4, batch_size=6).ravel()
    for steps, batch_size in ((1, 1), (2, 5), (6, 4)):
        short = rows(2, 1, 5, 77, steps=steps, batch_size=batch_size).ravel()
        np.testing.assert_array_equal(short, long[: len(short)])


def test_a_batch_goes_on_where_the_last_one_ended() -> None:
    """In epochs the sequence is the client's; how it is cut into jobs and steps does not matter."""
    want = rows(2, 1, np.arange(60), 37, batch_size=1, draw="epochs").ravel()
    for steps, batch_size in ((2, 3), (5, 12)):
        jobs = np.arange(60 // (steps * batch_size))
        np.testing.assert_array_equal(
            rows(2, 1, jobs, 37, steps=steps, batch_size=batch_size, draw="epochs").ravel(), want
        )


@pytest.mark.parametrize("draw", ["uniform", "epochs"])
def test_every_seed_client_and_job_has_rows_of_its_own(draw) -> None:
    size = 10**6
    cases = [(s, i, j) for s in (0, 1, 2**40) for i in (0, 1, 2) for j in (0, 1, 2, 3)]
    seen = {(*c,): tuple(rows(c[0], c[1], c[2], size, draw=draw).ravel().tolist()) for c in cases}
    assert len(set(seen.values())) == len(cases)
    assert not np.array_equal(jax.random.key_data(batch_key(0)), jax.random.key_data(init_key(0)))


SIZES = [1, 2, 3, 5, 7, 100, 1000, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**20 + 7, 2**30, 2**31 - 2, 2**31 - 1]


@pytest.mark.parametrize("bits", [32, 64])
def test_scaling_is_exact(bits) -> None:
    words = [0, 1, 2, 2**16 - 1, 2**16, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    words += np.random.default_rng(0).integers(0, 2**32, 500).tolist()
    with jax.enable_x64(bits == 64):
        table = scaled(jnp.array(words, dtype=jnp.uint32)[:, None], jnp.array(SIZES, dtype=jnp.uint32))
    assert np.asarray(table).tolist() == [[w * n >> 32 for n in SIZES] for w in words]


@pytest.mark.parametrize("bits", [32, 64])
def test_products_are_divided_exactly(bits) -> None:
    rng = np.random.default_rng(1)
    cases = [(a, b, n) for a in (0, 1, 2**31 - 1, 2**32 - 1) for b in (1, 37, 2**20) for n in (2**20, 2**31 - 1)]
    cases += [
        tuple(int(v) for v in (rng.integers(2**32), rng.integers(1, 2**24), rng.integers(2**24, 2**31)))
        for _ in range(300)
    ]
    with jax.enable_x64(bits == 64):
        columns = [jnp.array(c, dtype=jnp.uint32) for c in zip(*cases, strict=True)]
        quotient, rest = jax.jit(jax.vmap(_times))(*columns)
    assert [(int(q), int(r)) for q, r in zip(quotient, rest, strict=True)] == [divmod(a * b, n) for a, b, n in cases]


@pytest.mark.parametrize("size", [2, 7, 100, 1000])
def test_uniform_rows_are_uniform(size) -> None:
    found = rows(11, 3, np.arange(1000), size, steps=2, batch_size=25).ravel()
    assert found.min() >= 0
    assert found.max() < size
    assert 1e-3 < stats.chisquare(np.bincount(found, minlength=size)).pvalue < 1 - 1e-3
    pairs = found[:-1] * size + found[1:]
    if size < 100:
        assert stats.chisquare(np.bincount(pairs, minlength=size * size)).pvalue > 1e-3


def test_every_epoch_is_a_permutation() -> None:
    """For sizes 1 to 100, and 1000: jobs of 7 rows, which do not end where epochs do."""
    one = partial(job_rows, steps=1, batch_size=7, draw="epochs")
    over = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0, None)), (None, None, None, 0)))
    sizes = np.arange(1, 101, dtype=np.int32)
    drawn = np.asarray(over(batch_key(0), np.int32(5), np.arange(45, dtype=np.int32), sizes)).reshape(100, -1)
    for size, found in zip(sizes.tolist(), drawn, strict=True):
        epochs = found[: len(found) // size * size].reshape(-1, size)
        assert len(epochs) >= 3
        np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(size), (len(epochs), 1)))
        if size >= 12:  # 12! orders: no two alike
            assert len({tuple(e) for e in epochs.tolist()}) == len(epochs)
    found = rows(0, 5, np.arange(430), 1000, batch_size=7, draw="epochs").ravel()[:3000].reshape(3, 1000)
    np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(1000), (3, 1)))


@pytest.mark.parametrize("size", [3, 4, 5, 10, 30])
def test_permutations_send_every_place_everywhere(size) -> None:
    epochs = 6000
    keys = jax.vmap(lambda e: jax.random.key_data(jax.random.fold_in(batch_key(1), e)))(jnp.arange(epochs))
    places = jnp.arange(size, dtype=jnp.uint32)
    table = np.asarray(
        jax.jit(jax.vmap(jax.vmap(permuted, (None, 0, None)), (0, None, None)))(keys, places, jnp.uint32(size))
    )
    for place in range(size):
        assert stats.chisquare(np.bincount(table[:, place], minlength=size)).pvalue > 1e-4
    if size <= 5:
        orders = np.unique(table, axis=0, return_counts=True)[1]
        assert len(orders) == np.prod(np.arange(1, size + 1))
        assert orders.max() < 2 * orders.mean() < 4 * orders.min()  # a network on so few numbers is not quite uniform


class Ones(ft.WeightRule):
    """Every update counts one."""

    name = "ones"

    def base(self, importance, participation):
        return np.ones(len(importance.values)), None


@pytest.mark.parametrize(
    ("engine", "dtype", "draw"), [("events", "float32", "uniform"), ("waves", "float64", "epochs")]
)
def test_one_seed_gives_the_same_batches_under_every_scheme(engine, dtype, draw) -> None:
    """With the loss −θ[row] and η_l = B each update adds one for every time that a row was drawn."""
    sizes, steps, batch = [5, 9, 4], 2, 3
    numbers = np.split(np.arange(18, dtype=np.int32), np.cumsum(sizes)[:-1])
    problem = ft.Problem(lambda key: jnp.zeros(18), lambda theta, row: -jnp.mean(theta[row]), numbers)
    times = ft.FixedTimes(["1", "2/3", "1/2"])
    schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("2/5"), ft.FedBuff(2)]
    schemes += [ft.UniformSampling(2)] if engine == "events" else []
    local = ft.LocalSGD(steps=steps, lr=float(batch), batch_size=batch, draw=draw)
    history = ft.simulate(
        problem,
        schemes,
        times,
        until=10,
        local=local,
        step="paper",
        weights=Ones(),
        seeds=[3, 8],
        engine=engine,
        dtype=dtype,
        points=2,
    )
    for scheme in schemes:
        for seed in (3, 8):
            line = ft.timeline(scheme, times, until=10, seed=seed)
            want = np.zeros(18)
            for i, job in zip(line.client.tolist(), line.job.tolist(), strict=True):
                mine = rows(seed, i, job, sizes[i], steps=steps, batch_size=batch, draw=draw).ravel()
                np.add.at(want, numbers[i][mine], 1)
            found = history.model(scheme=scheme.label, seed=seed).parameters
            np.testing.assert_allclose(found, want, atol=1e-4)
            assert want.sum() == line.num_updates * steps * batch
