"""Histories: what is chosen, measured, kept on disk and given back."""

from __future__ import annotations

import json
import os
import resource
from collections import namedtuple

import jax
import numpy as np
import pytest
import xarray as xr

import fedtempo as ft
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.model import Model, leaf_paths

SCHEMES = ("FedAvg", "AsyncFedAvg", "FedFix(1/5)", "FedFix(1/2)", "FedBuff(10)")
RULES = ("time-based", "identical")
RATES = (0.01, 0.03, 0.1)
SEEDS = (0, 1, 2)


def study(schemes=SCHEMES, rules=RULES, rates=RATES, seeds=SEEDS, points=61, until=60.0, clients=4, models=True):
    """A made-up study: schemes of different speed, identical weights that end higher, the largest rate too large."""
    times = np.linspace(0.0, until, points)
    shape = (len(schemes), len(rules), len(rates), len(seeds))
    noise = np.random.default_rng(0)
    speed = {"FedAvg": 1.0, "AsyncFedAvg": 4.0, "FedFix(1/5)": 3.2, "FedFix(1/2)": 2.0, "FedBuff(10)": 2.6}
    bias = {"FedAvg": 0.0, "AsyncFedAvg": 0.35, "FedFix(1/5)": 0.3, "FedFix(1/2)": 0.12, "FedBuff(10)": 0.2}
    loss = np.empty((*shape, points))
    gone = np.full(shape, np.nan)
    for s, w, r, k in np.ndindex(*shape):
        pace = speed.get(schemes[s], 1.5) * rates[r]
        floor = 0.30 * (1 + bias.get(schemes[s], 0.1) * (rules[w] == "identical")) + 0.4 * rates[r]
        curve = floor + (2.303 - floor) * np.exp(-np.sqrt(pace * times) * 1.2)
        jitter = 0.02 * noise.standard_normal() * (times > 0)
        loss[s, w, r, k] = curve * (1 + jitter) + 0.004 * noise.standard_normal(points)
        if len(rates) > 1 and rates[r] == max(rates) and schemes[s] == "AsyncFedAvg" and k != 1:
            at = min(points // 5 + k, points - 1)
            gone[s, w, r, k] = times[at]
            loss[s, w, r, k, at:] = np.nan
    runs = ("scheme", "weights", "local_lr", "seed")
    over = (*runs, "time")
    counts = np.array([[t * speed.get(s, 1.5) * 5 for t in times] for s in schemes])
    counts = np.repeat(counts[:, None], len(seeds), axis=1)
    dataset = xr.Dataset(
        {
            "loss": (over, loss, {"long_name": "federated loss"}),
            "loss_deviation": (over, 0.3 * loss, {"long_name": "deviation of the loss over clients"}),
            "surrogate_loss": (
                over,
                loss * np.where(np.array(rules) == "identical", 0.65, 0.95)[None, :, None, None, None],
            ),
            "surrogate_deviation": (over, 0.25 * loss),
            "test_accuracy": (over, 1 - loss / 2.6, {"long_name": "accuracy on test data"}),
            "client_loss": ((*over, "client"), loss[..., None] * np.linspace(0.5, 1.5, clients)),
            "rounds": (("scheme", "seed", "time"), np.floor(counts)),
            "updates": (("scheme", "seed", "time"), np.floor(counts * 4)),
            "diverged_at": (runs, gone),
        },
        coords={
            "scheme": list(schemes),
            "weights": list(rules),
            "local_lr": list(rates),
            "seed": list(seeds),
            "time": ("time", times, {"long_name": "virtual time"}),
            "server_lr": 1.0,
        },
        attrs={
            "format": 1,
            "kind": "fedtempo history",
            "problem": json.dumps({"name": "digits", "clients": 20}),
            "configuration": json.dumps({"until": until, "note": "é, ½"}),
            "versions": "{}",
            "seeds": [0, 1, 2],
            "hardware": "2 cores",
            "engine": "event",
            "dtype": "float32",
            "created": "2025-01-01T00:00:00",
            "finished": 1,
            "surrogate": "shares of AsyncFedAvg",
        },
    )
    if models:
        index = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        dataset["parameter:layers/0/w"] = ((*runs, "layers/0/w_0"), index[..., None] + np.float32([0.25, 0.5]))
        dataset["parameter:bias"] = (runs, index)
    return dataset


def history(**kwargs):
    return History(study(**kwargs))


# -- files


def test_a_history_comes_back_from_disk_as_it_was(tmp_path) -> None:
    dataset = study()
    dataset["loss"][0, 0, 0, 0, 3] = np.nan
    dataset["parameter:100%"] = (("scheme", "a%2Fb"), np.ones((5, 2), dtype=np.int32))
    dataset.attrs |= {"seeds": [7], "empty": "", "flag": True, "configuration": "x" * 200_000, "memory": 1.5}
    before = dataset.copy(deep=True)
    History(dataset).save(tmp_path / "h.nc")
    xr.testing.assert_identical(dataset, before)
    back = History.load(tmp_path / "h.nc")
    xr.testing.assert_identical(back.dataset, before)
    assert {str(n): v.dtype for n, v in back.dataset.variables.items()} == {
        str(n): v.dtype for n, v in before.variables.items()
    }
    assert back.attrs == before.attrs
    assert all(type(back.attrs[n]) is type(v) for n, v in before.attrs.items())


def test_best_histories_are_kept_on_disk_too(tmp_path) -> None:
    best = history().best()
    best.save(tmp_path / "h.nc")
    xr.testing.assert_identical(History.load(tmp_path / "h.nc").dataset, best.dataset)


def test_a_time_in_seconds_stays_a_number(tmp_path) -> None:
    dataset = study()
    dataset["time"].attrs["units"] = "seconds"
    History(dataset).save(tmp_path / "h.nc")
    xr.testing.assert_identical(History.load(tmp_path / "h.nc").dataset, dataset)


def test_a_loaded_file_is_closed(tmp_path) -> None:
    path = tmp_path / "h.nc"
    history(models=False).save(path)
    loaded = History.load(path)
    open_files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    assert str(path) not in open_files
    path.unlink()
    assert np.isfinite(loaded.dataset["loss"].values[0]).any()


def test_a_full_disk_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "h.nc"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ft.InputError, match="cannot write"):
            history().save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_history_is_said_to_be_none(tmp_path) -> None:
    with pytest.raises(ft.DataMissing, match="no such file"):
        History.load(tmp_path / "none.nc")
    with pytest.raises(ft.InputError, match="a folder"):
        History.load(tmp_path)
    text = tmp_path / "text.nc"
    text.write_text("not this")
    with pytest.raises(ft.InputError, match="not a NetCDF file"):
        History.load(text)
    other = tmp_path / "other.nc"
    xr.Dataset({"a": 1}).to_netcdf(other, engine="h5netcdf")
    with pytest.raises(ft.InputError, match="not a history"):
        History.load(other)
    whole = tmp_path / "h.nc"
    history().save(whole)
    cut = tmp_path / "cut.nc"
    cut.write_bytes(whole.read_bytes()[:5000])
    with pytest.raises(ft.InputError, match="not a NetCDF file"):
        History.load(cut)
    newer = xr.load_dataset(whole, engine="h5netcdf").assign_attrs(format=2)
    newer.to_netcdf(tmp_path / "newer.nc", engine="h5netcdf")
    with pytest.raises(ft.InputError, match=r"format 2.*newer"):
        History.load(tmp_path / "newer.nc")


def test_a_dataset_without_a_loss_or_time_is_refused() -> None:
    with pytest.raises(ft.InputError, match="lacks loss"):
        History(study().drop_vars("loss"))
    with pytest.raises(ft.InputError, match="lacks time"):
        History(study().isel(time=0))


# -- best


@pytest.mark.parametrize("points", [1, 9, 61])
def test_best_is_the_lowest_mean_over_seeds_of_the_last_tenth(points) -> None:
    dataset = study(points=points)
    dataset["loss"].values[:] += np.random.default_rng(1).normal(0, 0.2, dataset["loss"].shape)
    best = History(dataset).best().dataset
    assert best["loss"].dims == ("scheme", "weights", "seed", "time")
    assert best["local_lr"].dims == ("scheme", "weights")
    tail = -(-points // 10)
    picked = set()
    for s, w in np.ndindex(5, 2):
        scores = {}
        for r in range(3):
            if np.isnan(dataset["diverged_at"].values[s, w, r]).all():
                scores[r] = np.mean([dataset["loss"].values[s, w, r, k, -tail:].mean() for k in range(3)])
        r = min(scores, key=scores.__getitem__)
        picked.add(r)
        assert best["local_lr"].values[s, w] == RATES[r]
        for name in ("loss", "test_accuracy", "client_loss", "diverged_at", "parameter:layers/0/w"):
            np.testing.assert_array_equal(best[name].values[s, w], dataset[name].values[s, w, r])
    assert len(picked) > 1
    xr.testing.assert_identical(best["rounds"].drop_vars("server_lr"), dataset["rounds"].drop_vars("server_lr"))
    assert best["loss"].attrs == dataset["loss"].attrs


def test_a_combination_of_which_a_seed_diverged_is_out() -> None:
    dataset = study()
    dataset["loss"].values[1, :, 2] = 1e-3
    dataset["loss"].values[1, 0, 2, 1, 40:] = np.nan
    dataset["diverged_at"].values[1, :, 2] = np.nan
    dataset["diverged_at"].values[1, 0, 2, 1] = 40.0
    best = History(dataset).best().dataset["local_lr"].sel(scheme="AsyncFedAvg")
    assert float(best.sel(weights="identical")) == 0.1
    assert float(best.sel(weights="time-based")) < 0.1


def test_where_every_combination_diverged_there_is_nothing(tmp_path) -> None:
    dataset = study()
    dataset["diverged_at"].values[1, 0, :, 0] = [3.0, 5.0, 4.0]
    best = History(dataset).best()
    gone = best.dataset.sel(scheme="AsyncFedAvg", weights="time-based")
    assert np.isnan(gone["loss"]).all()
    assert np.isnan(gone["parameter:bias"]).all()
    assert np.isnan(gone["local_lr"])
    assert float(gone["diverged_at"].sel(seed=0)) == 5.0
    assert np.isfinite(best.dataset["loss"].drop_sel(scheme="AsyncFedAvg")).all()
    best.save(tmp_path / "h.nc")


def test_accuracies_are_best_when_high() -> None:
    dataset = study()
    dataset["test_accuracy"].values[:] = 0.5
    dataset["test_accuracy"].values[:, :, 1] = 0.9
    dataset["test_accuracy"].values[:, :, 0] = 0.1
    assert (History(dataset).best("test_accuracy").dataset["local_lr"] == 0.03).all()
    assert (History(dataset).best("test_accuracy", highest=False).dataset["local_lr"] == 0.01).all()


def test_several_hyper_parameters_are_chosen_together() -> None:
    one = study(models=False)
    both = xr.concat([one, one], xr.DataArray([1, 5], dims="local_steps", name="local_steps"))
    both = both.transpose("scheme", "weights", "local_lr", "local_steps", "seed", "time", "client")
    both = both.assign(rounds=one["rounds"], updates=one["updates"])
    both["loss"] = both["loss"].copy(data=np.full(both["loss"].shape, 1.0))
    both["loss"][2, 1, 0, 1] = 0.5
    both["loss"][2, 0, 2, 0] = 0.5
    best = History(both).best().dataset
    assert best["local_lr"].values[2].tolist() == [0.1, 0.01]
    assert best["local_steps"].values[2].tolist() == [1, 5]
    assert best["local_steps"].dtype == both["local_steps"].dtype


def test_an_unfinished_study_is_judged_where_it_is() -> None:
    dataset = study()
    dataset["loss"].values[2, :, :, :, 20:] = np.nan
    dataset["loss"].values[3, :, :, 2, :] = np.nan
    dataset["loss"].values[4] = np.nan
    unfinished = History(dataset.assign_attrs(finished=0))
    final = unfinished.final()
    np.testing.assert_allclose(final.values[2], dataset["loss"].values[2, ..., 18:20].mean(-1))
    assert np.isnan(final.values[3, :, :, 2]).all()
    assert np.isfinite(final.values[3, :, :, :2]).all()
    best = unfinished.best()
    assert np.isfinite(best.dataset["local_lr"].values[:4]).all()
    assert np.isnan(best.dataset["local_lr"].values[4]).all()
    assert unfinished.reached.values[:, 0].tolist()[:4] == [60.0, 60.0, 19.0, 60.0]
    assert int(unfinished.unfinished.sum()) == 2 * 3 * (3 + 1 + 3)
    assert not History(dataset.assign_attrs(finished=1)).unfinished.any()  # not asked for


# -- numbers


def test_time_to_a_target_is_the_first_time_at_or_below_it() -> None:
    data = history()
    target = 0.5
    when = data.time_to(target)
    assert when.dims == ("scheme", "weights", "local_lr", "seed")
    times = data.dataset["time"].values
    reached = 0
    for at in np.ndindex(*when.shape):
        hits = [t for t, v in zip(times, data.dataset["loss"].values[at], strict=True) if v <= target]
        reached += bool(hits)
        assert when.values[at] == hits[0] if hits else np.isnan(when.values[at])
    assert 0 < reached < when.size
    exact = float(data.dataset["loss"].values[0, 0, 0, 0].min())
    assert np.isfinite(data.time_to(exact).values[0, 0, 0, 0])
    assert np.isnan(data.time_to(np.nextafter(exact, 0)).values[0, 0, 0, 0])


def test_time_to_an_accuracy_looks_upwards_and_over_seeds() -> None:
    data = history()
    curve = data.dataset["test_accuracy"].values.mean(axis=3)[0, 0, 2]
    expected = data.dataset["time"].values[np.argmax(curve >= 0.7)]
    assert float(data.time_to(0.7, "test_accuracy", over="seed")[0, 0, 2]) == expected > 0
    with pytest.raises(ft.InputError, match="over='time'"):
        data.time_to(0.7, over="time")
    with pytest.raises(ft.InputError, match=r"no measure 'lost'.*surrogate_loss"):
        data.time_to(0.7, "lost")


def test_mean_and_deviation_over_seeds() -> None:
    data = history()
    loss = data.dataset["loss"].values
    mean, deviation = data.mean(), data.deviation()
    np.testing.assert_allclose(mean["loss"].values[0], loss[0].mean(axis=2))
    np.testing.assert_allclose(deviation["loss"].values[0], loss[0].std(axis=2, ddof=1))
    assert mean["loss"].dims == ("scheme", "weights", "local_lr", "time")
    assert mean["rounds"].dims == ("scheme", "time")
    assert not any(str(name).startswith("parameter") for name in mean)
    assert int(mean["diverged"].sel(scheme="AsyncFedAvg", weights="identical", local_lr=0.1)) == 2
    gone = mean["loss"].sel(scheme="AsyncFedAvg", local_lr=0.1).values[0]
    assert np.isfinite(gone[:12]).all()
    assert np.isnan(gone[12:]).all()
    assert np.isnan(history(seeds=(3,)).deviation()["loss"]).all()


def test_seeds_not_yet_computed_are_left_out_of_the_mean() -> None:
    dataset = study()
    dataset["loss"].values[0, 0, 0, 2] = np.nan
    mean = History(dataset).mean()["loss"].values[0, 0, 0]
    np.testing.assert_allclose(mean, dataset["loss"].values[0, 0, 0, :2].mean(axis=0))


def test_a_data_frame_has_a_row_for_each_run_and_time() -> None:
    frame = history().to_dataframe()
    assert len(frame) == 5 * 2 * 3 * 3 * 61
    assert {"scheme", "weights", "local_lr", "seed", "time", "loss", "rounds", "diverged_at"} <= set(frame.columns)
    row = frame[(frame.scheme == "FedBuff(10)") & (frame.local_lr == 0.03) & (frame.seed == 1) & (frame.time == 7)]
    expected = study()["loss"].sel(scheme="FedBuff(10)", local_lr=0.03, seed=1, time=7).values
    assert row.loss.tolist() == expected.tolist()


# -- selecting


def test_select_keeps_what_every_history_has() -> None:
    part = history().select(scheme=ft.FedFix("1/2"), weights="identical", local_lr=np.float32(0.03), seed=2)
    assert dict(part.dataset["loss"].sizes) == {"scheme": 1, "weights": 1, "seed": 1, "time": 61}
    expected = study()["loss"].sel(scheme="FedFix(1/2)", weights="identical", local_lr=0.03, seed=2)
    np.testing.assert_array_equal(part.dataset["loss"].values.ravel(), expected.values)
    assert float(part.dataset["local_lr"]) == 0.03
    lists = history().select(local_lr=[0.1, 0.01], time=slice(10, 20), server_lr=1)
    assert lists.dataset["local_lr"].values.tolist() == [0.1, 0.01]
    assert lists.dataset["time"].values.tolist() == list(range(10, 21))
    assert lists.sel(seed=1).dataset["seed"].values.tolist() == [1]


@pytest.mark.parametrize(
    ("coords", "message"),
    [
        ({"local_lr": 0.05}, r"local_lr has no value 0.05; it has 0.01, 0.03, 0.1"),
        ({"local_lr": "high"}, r"local_lr has no value 'high'"),
        ({"scheme": "fedavg"}, r"scheme has no value 'fedavg'; it has FedAvg, AsyncFedAvg"),
        ({"rate": 1}, r"no coordinate 'rate'.*local_lr"),
        ({"server_lr": 2.0}, r"server_lr has no value 2.0; it has 1"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(coords, message) -> None:
    with pytest.raises(ft.InputError, match=message):
        history().select(**coords)


def test_a_chosen_hyper_parameter_cannot_be_selected() -> None:
    with pytest.raises(ft.InputError, match="chosen for each scheme"):
        history().best().select(local_lr=0.03)


# -- models


def test_a_model_is_that_of_its_run(tmp_path) -> None:
    data = history()
    model = data.model(scheme="FedFix(1/2)", local_lr=0.03, seed=1)
    index = np.ravel_multi_index((3, 0, 1, 1), (5, 2, 3, 3))
    assert model.parameters["bias"] == index
    np.testing.assert_array_equal(model.parameters["layers"]["0"]["w"], np.float32([index + 0.25, index + 0.5]))
    assert model.where == {
        "scheme": "FedFix(1/2)",
        "weights": "time-based",
        "local_lr": 0.03,
        "seed": 1,
        "server_lr": 1.0,
    }
    biased = data.model(scheme="FedFix(1/2)", weights="identical", local_lr=0.03, seed=1)
    assert biased.parameters["bias"] == index + 9
    data.save(tmp_path / "h.nc")
    again = History.load(tmp_path / "h.nc").model(scheme="FedFix(1/2)", local_lr=0.03, seed=1)
    assert again.parameters["bias"] == index
    chosen = data.best().model(scheme="FedFix(1/2)", seed=1)
    assert chosen.where["local_lr"] == 0.1


def test_a_model_has_the_structure_of_the_problem() -> None:
    tree = {"bias": 0, "layers": [{"w": 0}]}
    data = History(study(), structure=jax.tree_util.tree_structure(tree))
    model = data.model(scheme="FedAvg", local_lr=0.01, seed=0)
    assert isinstance(model.parameters["layers"], list)
    np.testing.assert_array_equal(model.parameters["layers"][0]["w"], [0.25, 0.5])
    assert data.best().select(seed=0).structure is data.structure
    other = History(study(), structure=jax.tree_util.tree_structure({"a": 0}))
    with pytest.raises(ft.InputError, match="leaves"):
        other.model(scheme="FedAvg", local_lr=0.01, seed=0)


def test_a_model_that_is_not_there_is_explained() -> None:
    with pytest.raises(ft.InputError, match=r"also give local_lr \(0.01, 0.03, 0.1\); seed \(0, 1, 2\)"):
        history().model(scheme="FedAvg")
    with pytest.raises(ft.InputError, match="keeps no models"):
        history(models=False).model(scheme="FedAvg", local_lr=0.01, seed=0)
    dataset = study()
    for name in ("parameter:bias", "parameter:layers/0/w"):
        dataset[name].values[:2] = np.nan
    with pytest.raises(ft.InputError, match="did not reach the end"):
        History(dataset).model(scheme="FedAvg", local_lr=0.1, seed=0)
    with pytest.raises(ft.InputError, match="diverged"):
        History(dataset).model(scheme="AsyncFedAvg", local_lr=0.1, seed=0)


def test_models_are_saved_without_pickle(tmp_path) -> None:
    tree = {"file": np.float32([[1, 2]]), "linear/w": jax.numpy.arange(3), "a%2Fb": {"allow_pickle": np.float64(3.5)}}
    path = tmp_path / "model.npz"
    Model(tree, {"scheme": "FedFix(½)", "seed": 1}).save(path)
    back = Model.load(path)
    assert back.where == {"scheme": "FedFix(½)", "seed": 1}
    assert jax.tree_util.tree_structure(back.parameters) == jax.tree_util.tree_structure(tree)
    for a, b in zip(jax.tree_util.tree_leaves(back.parameters), jax.tree_util.tree_leaves(tree), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    with np.load(path, allow_pickle=False) as stored:
        assert sorted(stored.files) == sorted(leaf_paths(tree))
    Model(np.arange(3)).save(path)
    assert Model.load(path).parameters.tolist() == [0, 1, 2]


def test_bad_model_files_are_refused(tmp_path) -> None:
    with pytest.raises(ft.DataMissing, match="no such file"):
        Model.load(tmp_path / "none.npz")
    with pytest.raises(ft.InputError, match=r"name the file model\.npz"):
        Model({"w": np.ones(1)}).save(tmp_path / "model.pt")
    with pytest.raises(ft.InputError, match="not an array of plain numbers"):
        Model({"w": np.array(["a"])}).save(tmp_path / "model.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ft.InputError, match="not a model"):
        Model.load(tmp_path / "text.npz")
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ft.InputError, match="not a model"):
        Model.load(tmp_path / "pickled.npz")


def test_paths_of_leaves() -> None:
    pair = namedtuple("pair", "left right")
    assert leaf_paths({"b": [1, {"w": 2}], "a": pair(3, (4,))}) == ["a/left", "a/right/0", "b/0", "b/1/w"]
    assert leaf_paths(np.ones(2)) == [""]
    assert leaf_paths({"x/y": 1}) == ["x%2Fy"]


# -- what a person sees


def test_repr_is_a_line_that_says_what_is_in_it() -> None:
    text = repr(history())
    assert text.startswith("<History: digits, 20 clients: 5 schemes × 2 weight rules × 3 local_lr × 3 seeds, ")
    assert "virtual time 0 to 60" in text
    assert "\n" not in text
    dataset = study().assign_attrs(finished=0)
    dataset["loss"].values[0, 0, ..., 50:] = np.nan
    assert repr(History(dataset)).startswith("<History: not finished, 9 of 90 runs open; digits, 20 clients")


def test_html_shows_the_table_and_escapes_names() -> None:
    dataset = study().assign_coords(scheme=["<b>", *SCHEMES[1:]])
    page = History(dataset)._repr_html_()
    assert ">&lt;b&gt;</td>" in page
    assert "<b>" not in page.split("</table>")[0]
    assert page.split("</table>")[0].count("<tr") == 11
    assert "xr-wrap" in page
