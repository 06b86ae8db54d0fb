"""Losses, deviations and metrics against their definitions in NumPy, client by client, whatever the blocks of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.engine.measures import HELD_BYTES, Meter, Shares, group_means, rows_of

SIZES = (1, 40, 3, 17, 16)
RNG = np.random.default_rng(0)
DATA = [{"x": RNG.normal(size=(n, 3)), "y": RNG.normal(size=n)} for n in SIZES]
TEST = {"x": RNG.normal(size=(23, 3)), "y": RNG.normal(size=23)}
TIMES = ft.FixedTimes(["1", "2/3", "1/2", "3/4", "1/3"])
IMPORTANCE = ["1/2", "1/8", "1/8", "1/16", "3/16"]


def init(key):
    return {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def off(params, batch):
    return jnp.mean(jnp.abs(batch["x"] @ params["w"] + params["b"] - batch["y"]))


def in_numpy(params, batch):
    """(loss, off) of a batch."""
    error = batch["x"] @ np.asarray(params["w"], np.float64) + float(params["b"]) - batch["y"]
    return (error**2).mean(), np.abs(error).mean()


def problem(**more):
    return ft.Problem(init, loss, DATA, metrics={"off": off}, importance=IMPORTANCE, **more)


def joined(data):
    return {n: jnp.asarray(np.concatenate([d[n] for d in data])) for n in ("x", "y")}


@pytest.mark.parametrize(("tile", "at_once"), [(512, 1), (4, 4 * 2 * 3 * 5), (512, 1 << 22)])
@pytest.mark.parametrize("sizes", [SIZES, (7, 7, 7, 7), (77,), (1, 1, 1)], ids=str)
def test_means_over_groups_whatever_the_tiles_and_blocks(sizes, tile, at_once, monkeypatch) -> None:
    """Groups of one row and of many, tiles that fit and that leave rows over, blocks of one tile and of all."""
    monkeypatch.setattr("fedtempo.simulation.engine.measures.EVALUATED_AT_ONCE", at_once)
    monkeypatch.setattr("fedtempo.simulation.engine.measures.TILE", tile)
    rng = np.random.default_rng(1)
    data = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in sizes]
    models = [{"w": rng.normal(size=3), "b": rng.normal()} for _ in range(2)]
    with jax.enable_x64(True):
        rows = rows_of(joined(data), sizes)
        together = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x], axis=-1), *models)
        found = jax.jit(lambda m: group_means([loss, off], m, rows))(together)
    want = [[[in_numpy(m, d)[f] for m in models] for d in data] for f in (0, 1)]
    np.testing.assert_allclose(found, want, rtol=1e-12)


@pytest.mark.parametrize(
    "sizes",
    [SIZES, (7, 7), (997, 997), (60, 60), (1000, 3, 2), (100_000, *[100] * 99), (600,)],
    ids=lambda s: str(s[:3]),
)
def test_tiles_cover_every_row_once(sizes) -> None:
    rows = rows_of(None, sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    seen, most = np.zeros(sum(sizes), dtype=int), 0
    for tiles in rows.tiles:
        length = len(tiles.span)
        assert np.asarray(tiles.span).tolist() == list(range(length))
        place = np.asarray(tiles.start)[:, None] + np.arange(length)
        np.add.at(seen, place, 1)
        assert (owner[place] == np.asarray(tiles.group)[:, None]).all()
        assert (np.diff(tiles.group) >= 0).all()
        most = max(most, length)
    assert (seen == 1).all()
    assert 1 <= most <= 512
    assert sum(len(tiles.start) for tiles in rows.tiles) <= sum(sizes) / most + len(sizes) * most


@pytest.mark.parametrize("held", [1.0, 1e3, 1e5])
def test_means_are_the_same_however_few_runs_are_looked_at_together(held, monkeypatch) -> None:
    monkeypatch.setitem(HELD_BYTES, "cpu", 1 << 20)
    rng = np.random.default_rng(2)
    models = {"w": jnp.asarray(rng.normal(size=(3, 7))), "b": jnp.asarray(rng.normal(size=7))}
    rows = rows_of(joined(DATA), SIZES)
    together = jax.jit(lambda m: group_means([loss, off], m, rows))(models)
    found = jax.jit(lambda m: group_means([loss, off], m, rows, held))(models)
    np.testing.assert_allclose(found, together, rtol=1e-5)


def test_the_meter_measures_clients_on_test_rows_of_their_own() -> None:
    values = {"w": RNG.normal(size=(1, 2, 3, 4)), "b": RNG.normal(size=(1, 2, 4))}
    with jax.enable_x64(True):
        slots = {n: jnp.asarray(v) for n, v in values.items()}
        rows = rows_of(joined(DATA), SIZES)
        found = jax.jit(Meter(loss, {"off": off}, True, shared_test=False))(slots, jnp.int32(0), rows, rows)
    assert set(found) == {"client_loss", "client_test_loss", "client_test_off"}
    np.testing.assert_allclose(found["client_test_loss"], found["client_loss"], rtol=1e-12)
    summary = Shares(np.array([0.5, 0.1, 0.1, 0.1, 0.2]), np.full(5, 0.2)).summary(found, per_client=False)
    np.testing.assert_allclose(summary["test_loss"], summary["loss"], rtol=1e-12)


def test_the_meter_measures_the_model_in_a_slot() -> None:
    """Slots × seeds × runs; test rows where there are some, else the metrics of every client."""
    values = RNG.normal(size=(3, 2, 3, 4)), RNG.normal(size=(3, 2, 4))
    with jax.enable_x64(True):
        slots = {"w": jnp.asarray(values[0]), "b": jnp.asarray(values[1])}
        train, test = rows_of(joined(DATA), SIZES), rows_of({n: jnp.asarray(v) for n, v in TEST.items()}, [23])
        tested = jax.jit(Meter(loss, {"off": off}, True))(slots, jnp.int32(1), train, test)
        untested = jax.jit(Meter(loss, {"off": off}, False))(slots, jnp.int32(1), train, None)
    assert {n: v.shape for n, v in tested.items()} == {
        "client_loss": (2, 5, 4),
        "test_loss": (2, 4),
        "test_off": (2, 4),
    }
    assert {n: v.shape for n, v in untested.items()} == {"client_loss": (2, 5, 4), "client_off": (2, 5, 4)}
    for s in range(2):
        for r in range(4):
            model = {"w": values[0][1, s, :, r], "b": values[1][1, s, r]}
            each = np.array([in_numpy(model, d) for d in DATA])
            np.testing.assert_allclose(tested["client_loss"][s, :, r], each[:, 0], rtol=1e-12)
            np.testing.assert_allclose(untested["client_off"][s, :, r], each[:, 1], rtol=1e-12)
            np.testing.assert_allclose([tested["test_loss"][s, r], tested["test_off"][s, r]], in_numpy(model, TEST))


def test_shares_weight_the_losses_of_clients() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
    losses = RNG.normal(size=(2, 3, 4))
    out = Shares(p, q).summary(
        {"client_loss": losses, "client_off": losses**2, "test_loss": losses[:, 0]}, per_client=True
    )
    for s in range(2):
        for r in range(4):
            own = losses[s, :, r]
            for share, name, deviation in ((p, "loss", "loss_deviation"), (q, "surrogate_loss", "surrogate_deviation")):
                mean = sum(w * x for w, x in zip(share, own, strict=True))
                assert out[name][s, r] == pytest.approx(mean)
                variance = sum(w * (x - mean) ** 2 for w, x in zip(share, own, strict=True))
                assert out[deviation][s, r] == pytest.approx(np.sqrt(variance))
            assert out["off"][s, r] == pytest.approx(p @ own**2)
            assert out["test_loss"][s, r] == own[0]
            assert out["client_loss"][s, r].tolist() == own.tolist()
    assert "client_loss" not in Shares(p, q).summary({"client_loss": losses}, per_client=False)


def test_losses_without_bounds_are_measured_quietly() -> None:
    wild = np.array([[[np.inf], [1e300], [np.nan]]])
    out = Shares(np.ones(3) / 3, np.ones(3) / 3).summary({"client_loss": wild}, per_client=False)
    assert np.isnan(out["loss"]).all()
    assert not np.isfinite(out["loss_deviation"]).any()


@pytest.mark.parametrize("engine", ["events", "oracle"])
@pytest.mark.parametrize("tested", [True, False])
def test_a_history_holds_what_its_models_have(engine, tested) -> None:
    """At time 0 the initial model's, at the end the final model's; the surrogate is the one of the named scheme."""
    given = problem(test=TEST) if tested else problem()
    shares = ft.expected_weights(ft.FedFix("1/2"), TIMES, importance=given.importance.exact, rule="identical")
    history = ft.simulate(
        given,
        ft.AsyncFedAvg(),
        TIMES,
        until=2,
        local=ft.LocalSGD(lr=[0.01, 0.05], batch_size=4),
        seeds=[0, 1],
        points=3,
        dtype="float64",
        engine=engine,
        surrogate=ft.FedFix("1/2"),
        per_client=True,
    )
    data = history.dataset
    assert data["client_loss"].dims[-2:] == ("time", "client")
    assert ("test_off" in data, "off" in data) == (tested, not tested)
    p, q = np.array([float(v) for v in given.importance.exact]), shares / shares.sum()
    assert not np.allclose(p, q)
    for rate in (0.01, 0.05):
        for seed in (0, 1):
            run = data.sel(local_lr=rate, seed=seed).isel(scheme=0, weights=0)
            model = history.model(local_lr=rate, seed=seed).parameters
            end = run.isel(time=-1)
            each = np.array([in_numpy(model, d) for d in DATA])
            want = {"client_loss": each[:, 0], "loss": p @ each[:, 0], "surrogate_loss": q @ each[:, 0]}
            want["loss_deviation"] = np.sqrt(p @ (each[:, 0] - want["loss"]) ** 2)
            want["surrogate_deviation"] = np.sqrt(q @ (each[:, 0] - want["surrogate_loss"]) ** 2)
            if tested:
                want["test_loss"], want["test_off"] = in_numpy(model, TEST)
            else:
                want["off"] = p @ each[:, 1]
            for name, value in want.items():
                np.testing.assert_allclose(end[name], value, rtol=1e-9, err_msg=name)
    start = data["loss"].isel(time=0)
    assert np.ptp(start.sel(seed=0).values) == 0
    assert (start.sel(seed=0).values != start.sel(seed=1).values).all()


def test_the_surrogate_is_asynchronous_fedavgs_unless_another_is_named() -> None:
    quadratics = ft.problems.quadratics(3, dimension=1, rows=1)
    times = ft.FixedTimes([1, 2, 4])
    history = ft.simulate(
        quadratics, ft.FedAvg(), times, until=4, points=2, per_client=True, dtype="float64", engine="oracle"
    )
    losses = history.dataset["client_loss"].values.reshape(2, 3)
    np.testing.assert_allclose(history.dataset["surrogate_loss"].values.ravel(), losses @ np.array([4, 2, 1]) / 7)
    assert history.attrs["surrogate"] == "AsyncFedAvg"
