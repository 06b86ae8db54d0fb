"""What `simulate` accepts, and what it gives back."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import costs as memory
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.history.history import History

SIZES = [3, 8, 5, 12]
PROBLEM = ft.problems.quadratics(4, dimension=3, noise=0.3, rows=SIZES, seed=1, importance="rows")
TIMES = ft.FixedTimes([1, 2, 3, 5])
FLEETING = ("created", "run_seconds", "compile_seconds")


def same(one: History, other: History) -> None:
    """Two histories with the same bits: measures, parameters, coordinates and attributes."""
    assert set(one.dataset.variables) == set(other.dataset.variables)
    for name, values in one.dataset.variables.items():
        theirs = other.dataset.variables[name]
        assert (values.dims, values.dtype, values.attrs) == (theirs.dims, theirs.dtype, theirs.attrs), name
        numeric = values.dtype.kind == "f"
        assert np.array_equal(values.values, theirs.values, equal_nan=numeric), name
    kept = [{n: v for n, v in history.attrs.items() if n not in FLEETING} for history in (one, other)]
    assert kept[0] == kept[1]


# -- the shape of a history


@pytest.fixture(scope="module")
def rich() -> History:
    """Several lists at once, in an order of their own."""
    return ft.simulate(
        PROBLEM,
        [ft.FedBuff(2), ft.FedAvg()],
        TIMES,
        until="50/3",
        local=ft.LocalSGD(steps=[2, 1], lr=[0.2, 0.05, 0.1], batch_size=4),
        weights=("identical", "time-based"),
        server_lr=0.5,
        seeds=[7, 3],
        points=8,
        dtype="float64",
        per_client=True,
    )


def test_lists_become_dimensions_and_numbers_coordinates(rich) -> None:
    loss = rich.dataset["loss"]
    assert loss.dims == ("scheme", "weights", "local_steps", "local_lr", "seed", "time")
    assert rich.hyper == ("local_steps", "local_lr")
    expected = {
        "scheme": ["FedBuff(2)", "FedAvg"],
        "weights": ["identical", "time-based"],
        "local_steps": [2, 1],
        "local_lr": [0.2, 0.05, 0.1],
        "seed": [7, 3],
    }
    assert {name: rich.dataset[name].values.tolist() for name in expected} == expected
    assert rich.dataset["server_lr"].ndim == rich.dataset["batch_size"].ndim == 0
    assert (rich.dataset["server_lr"].item(), rich.dataset["batch_size"].item()) == (0.5, 4)
    assert rich.dataset["client_loss"].dims == (*loss.dims, "client")
    assert rich.dataset["rounds"].dims == rich.dataset["updates"].dims == ("scheme", "seed", "time")
    assert rich.dataset["diverged_at"].dims == loss.dims[:-1]
    assert rich.finished
    assert np.isfinite(loss.values).all()


def test_the_grid_of_times_ends_at_until_exactly(rich) -> None:
    assert rich.dataset["time"].values.tolist() == [float(Fraction(50, 3) * k / 7) for k in range(8)]


def test_losses_are_those_of_the_models(rich) -> None:
    """Through known formulas: at time 0 of the start, at the end of the parameters that are kept."""
    p = PROBLEM.importance.values
    q = np.array([1, 1 / 2, 1 / 3, 1 / 5])
    q /= q.sum()
    runs = ("scheme", "weights", "local_steps", "local_lr", "seed")
    stacked = rich.dataset.stack(run=runs, create_index=False)
    for run in range(stacked.sizes["run"]):
        one = stacked.isel(run=run)
        for at, theta in ((0, np.zeros(3)), (-1, one["parameter:"].values)):
            losses = PROBLEM.client_losses(theta)
            point = one.isel(time=at)
            np.testing.assert_allclose(point["client_loss"].values, losses, rtol=1e-10)
            for name, share in (("loss", p), ("surrogate_loss", q)):
                mean = share @ losses
                deviation = math.sqrt(share @ (losses - mean) ** 2)
                np.testing.assert_allclose(point[name].item(), mean, rtol=1e-10)
                other = "loss_deviation" if name == "loss" else "surrogate_deviation"
                np.testing.assert_allclose(point[other].item(), deviation, rtol=1e-10)


def test_runs_lie_where_their_coordinates_say(rich) -> None:
    """Each corner of the grid, run alone, is the run that the grid has there."""
    for scheme, rule, steps, rate, seed in (
        (ft.FedBuff(2), "identical", 1, 0.2, 3),
        (ft.FedAvg(), "time-based", 2, 0.1, 7),
    ):
        alone = ft.simulate(
            PROBLEM,
            scheme,
            TIMES,
            until="50/3",
            local=ft.LocalSGD(steps=steps, lr=rate, batch_size=4),
            weights=rule,
            server_lr=[0.5],
            seeds=[seed],
            points=8,
            dtype="float64",
        )
        assert alone.dataset["loss"].dims == ("scheme", "weights", "server_lr", "seed", "time")
        assert alone.dataset["seed"].values.tolist() == [seed]
        where = {"scheme": scheme.label, "weights": rule, "local_steps": steps, "local_lr": rate, "seed": seed}
        there = rich.dataset["loss"].sel(where).values
        np.testing.assert_allclose(alone.dataset["loss"].values.ravel(), there, rtol=1e-12)
        others = rich.dataset["loss"].sel(where | {"seed": 10 - seed}).values
        assert not np.allclose(alone.dataset["loss"].values.ravel(), others, rtol=1e-3)


def test_the_model_of_a_run_is_its_parameters(rich) -> None:
    where = {"scheme": "FedAvg", "local_steps": 1, "local_lr": 0.05, "seed": 3}
    model = rich.model(**where)
    assert model.parameters.dtype == np.float64
    there = rich.dataset["parameter:"].sel({**where, "weights": "time-based"}).values
    assert np.array_equal(model.parameters, there)
    assert model.where["weights"] == "time-based"


def test_means_over_seeds_are_over_seeds(rich) -> None:
    both = rich.dataset["loss"].values
    mean, deviation = rich.mean("loss")["loss"], rich.deviation("loss")["loss"]
    np.testing.assert_allclose(mean.values, both.mean(axis=4))
    np.testing.assert_allclose(deviation.values, np.abs(both[..., 0, :] - both[..., 1, :]) / math.sqrt(2), atol=1e-15)


def test_a_history_tells_how_to_repeat_it(rich) -> None:
    attrs = rich.attrs
    told = json.loads(attrs["configuration"])
    assert told["problem"] == json.loads(attrs["problem"]) == json.loads(json.dumps(PROBLEM.spec()))
    assert told["fingerprint"] == PROBLEM.fingerprint()
    assert (told["until"], told["points"], told["seeds"]) == ("50/3", 8, [7, 3])
    assert told["weights"] == ["identical", "time-based"]
    assert told["local"]["local_lr"] == [0.2, 0.05, 0.1]
    assert told["server_lr"] == 0.5
    assert json.loads(attrs["versions"])["jax"] == jax.__version__
    assert (attrs["format"], attrs["kind"], attrs["dtype"], attrs["finished"]) == (1, "fedtempo history", "float64", 1)
    assert attrs["engine"] in ("events", "waves")
    assert attrs["hardware"].startswith(jax.devices()[0].platform)
    assert attrs["surrogate"] == "AsyncFedAvg"
    assert attrs["run_seconds"] >= 0
    assert attrs["compile_seconds"] > 0


@pytest.mark.parametrize(
    "times", [TIMES, ft.ExponentialTimes([1, 2, 3, 5])], ids=["fixed times", "a timeline for each seed"]
)
def test_rounds_and_updates_are_those_of_the_timeline(times) -> None:
    schemes = [ft.FedFix("1/2"), ft.UniformSampling(2)]
    until, points = 30, 7
    history = ft.simulate(PROBLEM, schemes, times, until=until, seeds=(0, 5), points=points)
    seen = set()
    for scheme in schemes:
        for seed in (0, 5):
            one = history.dataset.sel(scheme=scheme.label, seed=seed)
            line = ft.timeline(scheme, times, until=until, importance=PROBLEM.importance.exact, seed=seed)
            ends = [one_round.end for one_round in line.rounds]
            for k in range(points):
                rounds = sum(end <= Fraction(until * k, points - 1) for end in ends)
                assert one["rounds"].values[k] == rounds
                assert one["updates"].values[k] == line.offsets[rounds]
            seen.add((scheme.label, tuple(one["updates"].values)))
    assert len(seen) == (4 if times.random else 3)


def test_left_to_themselves_clients_do_one_step_of_sgd() -> None:
    history = ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=10, points=2)
    chosen = {name: history.dataset[name].item() for name in ("local_lr", "local_steps", "batch_size", "server_lr")}
    assert chosen == {"local_lr": 0.1, "local_steps": 1, "batch_size": 32, "server_lr": 1.0}
    named = ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=10, points=2, local=ft.LocalSGD())
    same(history, named)
    assert history.dataset["seed"].values.tolist() == [0]
    assert history.dataset["weights"].values.tolist() == ["time-based"]


def test_the_surrogate_can_be_another_scheme() -> None:
    history = ft.simulate(
        PROBLEM, ft.AsyncFedAvg(), TIMES, until=10, points=3, surrogate=ft.FedAvg(), per_client=True, dtype="float64"
    )
    losses = history.dataset["client_loss"].values
    np.testing.assert_allclose(history.dataset["surrogate_loss"].values, losses.mean(axis=-1))
    assert not np.allclose(history.dataset["surrogate_loss"].values, history.dataset["loss"].values)


# -- precision


def test_precision_is_as_asked_and_the_callers_is_left_alone(rich) -> None:
    def run(dtype: str) -> History:
        return ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=10, points=3, dtype=dtype)

    assert not jax.config.jax_enable_x64
    assert rich.dataset["parameter:"].dtype == np.float64
    double, single = run("float64"), run("float32")
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == np.float32
    assert (double.dataset["parameter:"].dtype, single.dataset["parameter:"].dtype) == (np.float64, np.float32)
    gap = np.abs(double.dataset["loss"].values - single.dataset["loss"].values).max()
    assert 0 < gap < 1e-5
    with jax.enable_x64(True):
        inside = run("float32")
        assert jnp.ones(1).dtype == np.float64
    same(inside, single)


# -- runs that fail


def test_a_run_that_diverges_is_noted_and_the_others_go_on() -> None:
    rates = [0.1, 50.0]
    seen = []
    history = ft.simulate(
        PROBLEM,
        ft.AsyncFedAvg(),
        TIMES,
        until=60,
        local=ft.LocalSGD(lr=rates, batch_size=4),
        seeds=(0, 1),
        points=31,
        on_progress=seen.append,
    )
    grid, one = history.dataset["time"].values, history.dataset.isel(scheme=0, weights=0)
    assert history.diverged.values.ravel().tolist() == [False, False, True, True]
    assert np.isfinite(one["loss"].sel(local_lr=0.1).values).all()
    for seed in (0, 1):
        run = one.sel(local_lr=50.0, seed=seed)
        at = int(np.flatnonzero(grid == run["diverged_at"].item())[0])
        assert at > 0
        for name in ("loss", "loss_deviation", "surrogate_loss"):
            assert np.isfinite(run[name].values[:at]).all()
            assert np.isnan(run[name].values[at:]).all()
        assert (run["loss"].values[:at] <= 1e6 * max(1.0, run["loss"].values[0])).all()
    with pytest.raises(ft.InputError, match="it diverged"):
        history.model(local_lr=50.0, seed=0)
    assert history.finished
    assert seen[-1].updates == 4 * one["updates"].values[0, -1]


def test_a_study_in_which_all_diverge_ends_early() -> None:
    seen = []
    history = ft.simulate(
        PROBLEM,
        ft.AsyncFedAvg(),
        TIMES,
        until=20_000,
        local=ft.LocalSGD(lr=50.0, batch_size=4),
        points=2001,
        on_progress=seen.append,
    )
    assert history.finished
    assert history.diverged.all()
    at = int(np.flatnonzero(history.dataset["time"].values == history.dataset["diverged_at"].item())[0])
    assert np.isnan(history.dataset["loss"].values.ravel()[at:]).all()
    assert np.isnan(history.dataset["updates"].values.ravel()[at + 1 :]).all()
    assert seen[-1].updates < 20_000
    assert seen[-1].done == 1.0


def test_the_bound_decides_what_counts_as_diverged() -> None:
    def gone(bound: float) -> float:
        local = ft.LocalSGD(lr=4.0, batch_size=None)
        return (
            ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=300, local=local, points=301, bound=bound, dtype="float64")
            .dataset["diverged_at"]
            .item()
        )

    assert gone(10.0) < gone(1e6) < gone(1e12)


def test_an_error_in_the_loss_comes_out_as_it_is() -> None:
    broken = []

    def loss(params, batch):
        if broken:
            raise RuntimeError("rows of the wrong colour")
        return jnp.mean((params - batch) ** 2)

    problem = ft.Problem(lambda key: jnp.zeros(2), loss, [np.ones((3, 2)), np.zeros((4, 2))])
    broken.append(True)
    with pytest.raises(RuntimeError, match="rows of the wrong colour"):
        ft.simulate(problem, [ft.FedAvg(), ft.AsyncFedAvg()], ft.FixedTimes([1, 2]), until=5)
    assert not jax.config.jax_enable_x64


# -- bad input


def call(**changes):
    given = {"problem": PROBLEM, "schemes": ft.FedAvg(), "times": TIMES, "until": 10, "points": 3} | changes
    return ft.simulate(given.pop("problem"), given.pop("schemes"), given.pop("times"), **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": [[1.0]]}, r"problem: \[\[1\.0\]\] is not a problem; use ft\.problems\.digits"),
        ({"times": ft.FixedTimes([1, 2])}, "times: 2 clients, but the problem has 4; give one time per client"),
        ({"times": [1, 2, 3, 5]}, r"times: \[1, 2, 3, 5\] are not client times; give ft\.FixedTimes"),
        ({"schemes": []}, "schemes: none given"),
        ({"schemes": "FedAvg"}, r"schemes: 'FedAvg' is not a scheme; give ft\.FedAvg\(\)"),
        ({"schemes": [ft.FedAvg(), 3]}, "schemes: 3 is not a scheme"),
        ({"schemes": ft.FedAvg}, "is not a scheme"),
        ({"schemes": [ft.FedFix("1/2"), ft.FedAvg(), ft.FedFix("1/2")]}, "names one twice"),
        ({"schemes": ft.Centralized()}, "centralized training has one client, not 4"),
        ({"schemes": ft.UniformSampling(5)}, "5"),
        ({"schemes": ft.FastestSampling(2)}, "never takes part.*identical"),
        ({"weights": "fair"}, "weights: 'fair' is not known; use one of time-based, identical"),
        ({"weights": ()}, "weights: .*at least one"),
        ({"weights": 3}, "weights: 3 is not known"),
        ({"weights": ("identical", "time-based", "identical")}, "each once"),
        ({"points": 1}, "points: 1 is not a whole number of at least 2"),
        ({"points": 10.0}, r"points: 10\.0"),
        ({"points": True}, "points: True"),
        ({"seeds": []}, r"seeds: \[\] is empty or repeats a seed; give at least one"),
        ({"seeds": (1, 2, 1)}, "each once"),
        ({"seeds": 1.5}, r"seeds: 1\.5 is not a whole number"),
        ({"seeds": "12"}, "seeds: '12' is not a whole number"),
        ({"seeds": [0, None]}, "seeds: None is not a whole number"),
        ({"seeds": [2**64]}, "64 bits"),
        ({"until": 0}, "until: 0 is not above zero"),
        ({"until": -3}, "until: -3 is not above zero"),
        ({"until": float("inf")}, "until: inf"),
        ({"until": "14/3"}, "until: no round ends by 14/3; give more time"),
        ({"until": "soon"}, "until: 'soon' is not a number"),
        ({"engine": "gpu"}, "engine: 'gpu' is not known; use one of auto, events, waves, oracle"),
        ({"dtype": "float16"}, "dtype: 'float16' is not known; use one of float32, float64"),
        ({"local": 0.1}, r"local: 0\.1 is not a local solver; give ft\.LocalSGD"),
        ({"local": ft.LocalSGD}, "is not a local solver"),
        ({"server_lr": 0.0}, r"server_lr: 0\.0 is not allowed; give a number above 0"),
        ({"server_lr": [1.0, 1.0]}, "server_lr: .*twice"),
        ({"surrogate": "async"}, "surrogate: 'async' is not a scheme"),
        ({"surrogate": ft.Centralized()}, "centralized"),
        ({"bound": 0}, "bound: 0 is not allowed"),
        ({"bound": float("nan")}, "bound: nan"),
        ({"bound": "large"}, "bound: 'large'"),
        ({"save_every": -1}, "save_every: -1"),
    ],
)
def test_bad_input_is_one_message_and_leaves_no_folder(changes, message, tmp_path) -> None:
    with pytest.raises(ft.InputError, match=message) as caught:
        call(checkpoint=tmp_path / "results", **changes)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_oracle_keeps_no_checkpoint(tmp_path) -> None:
    with pytest.raises(ft.InputError, match="checkpoint: the oracle saves none"):
        call(engine="oracle", checkpoint=tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_a_study_that_does_not_fit_the_memory_is_refused(monkeypatch, tmp_path) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__)
    with pytest.raises(ft.InputError, match=r"needs about .* this machine has 3\.9 MiB; give fewer"):
        call(checkpoint=tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_what_numpy_counts_with_is_accepted() -> None:
    history = call(seeds=np.arange(2), points=np.int64(4), until=np.float64(7.5), server_lr=np.array([0.5, 1.0]))
    assert history.dataset.sizes["seed"] == history.dataset.sizes["server_lr"] == 2
    assert history.dataset["time"].values[-1] == 7.5


def test_measures_can_begin_late() -> None:
    whole = ft.simulate(PROBLEM, ft.AsyncFedAvg(), TIMES, until=10, points=11)
    late = ft.simulate(PROBLEM, ft.AsyncFedAvg(), TIMES, until=10, points=3, measure_from=8)
    assert late.dataset["time"].values.tolist() == [8, 9, 10]
    assert np.array_equal(late.dataset["loss"], whole.dataset["loss"].isel(time=slice(8, None)))
    plain = ft.simulate(PROBLEM, ft.AsyncFedAvg(), TIMES, until=10, points=3, measure_from=8, engine="oracle")
    np.testing.assert_allclose(late.dataset["loss"], plain.dataset["loss"], rtol=1e-4)
    assert json.loads(late.attrs["configuration"])["measure_from"] == "8"
    for given in (-1, 10, "11"):
        with pytest.raises(ft.InputError, match=f"measure_from: {given} is not between 0 and the end, 10"):
            ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=10, measure_from=given)


def test_matrix_units_are_used_only_when_asked_for() -> None:
    def lowered(dtype) -> str:
        with numerics(dtype):
            return jax.jit(jnp.dot).lower(jnp.ones((4, 4)), jnp.ones((4, 4))).as_text()

    assert "HIGHEST" in lowered("float32")
    assert "HIGHEST" not in lowered("tensorfloat32")
    short = ft.simulate(PROBLEM, ft.FedAvg(), TIMES, until=10, points=2, dtype="tensorfloat32")
    assert short.dataset["parameter:"].dtype == np.float32


def test_a_run_that_diverged_before_it_is_measured_has_diverged() -> None:
    local = ft.LocalSGD(lr=[0.1, 3.0], batch_size=None)
    for engine in ("events", "oracle"):
        late = ft.simulate(
            PROBLEM, ft.FedAvg(), TIMES, until=60, points=3, measure_from=50, local=local, bound=1e3, engine=engine
        )
        assert late.diverged.values.ravel().tolist() == [False, True]
        assert late.dataset["diverged_at"].values.ravel()[1] == 50


def test_schemes_may_have_rates_of_their_own() -> None:
    schemes, local = [ft.FedAvg(), ft.AsyncFedAvg()], ft.LocalSGD(lr=[0.1, 0.2, 0.3])
    whole = ft.simulate(PROBLEM, schemes, TIMES, until=10, points=3, local=local)
    some = ft.simulate(PROBLEM, schemes, TIMES, until=10, points=3, local=local, rates={"AsyncFedAvg": [0.2, 0.3]})
    there = some.dataset["loss"].isel(time=-1, seed=0, weights=0).notnull().values
    assert there.tolist() == [[True, True, True], [False, True, True]]
    for scheme, rate in (("FedAvg", 0.1), ("AsyncFedAvg", 0.3)):
        same = [h.select(scheme=scheme, local_lr=rate).dataset["loss"].values for h in (whole, some)]
        np.testing.assert_allclose(*same, rtol=1e-6)
    assert some.finished
    for rates, said in (
        ({"FedBuff(2)": [0.1]}, r"there is no scheme 'FedBuff\(2\)'; the schemes are FedAvg, AsyncFedAvg"),
        ({"FedAvg": [0.5]}, r"FedAvg has \[0.5\]; give some of the local learning rates \[0.1, 0.2, 0.3\]"),
        ({"FedAvg": []}, r"FedAvg has \[\]"),
        ([0.1], "is not a table"),
    ):
        with pytest.raises(ft.InputError, match=said):
            ft.simulate(PROBLEM, schemes, TIMES, until=10, local=local, rates=rates)


# -- seeds: a number says how many, a list says which


def test_a_number_of_seeds_is_how_many(tmp_path) -> None:
    with pytest.warns(FutureWarning, match=r"seeds=3 runs seeds 0 to 2\. Up to 0\.6 it was seed number 3"):
        three = call(seeds=3)
    assert three.dataset["seed"].values.tolist() == [0, 1, 2]
    same(three, call(seeds=range(3)))
    assert call(seeds=[3]).dataset["seed"].values.tolist() == [3]
    for number in (0, -1, 10**9):
        with pytest.raises(ft.InputError, match=f"A number says how many, .* seeds=\\[{number}\\]"):
            call(seeds=number)


def test_a_study_goes_on_with_the_seeds_that_it_was_begun_with(tmp_path) -> None:
    call(seeds=[3], checkpoint=tmp_path)  # as version 0.6 understood seeds=3
    again = call(seeds=3, checkpoint=tmp_path)
    assert again.dataset["seed"].values.tolist() == [3]
    with (
        pytest.warns(FutureWarning),
        pytest.raises(ft.ResultsConflict, match=r"its seeds is \[3\], here it is \[0, 1\]"),
    ):
        call(seeds=2, checkpoint=tmp_path)
