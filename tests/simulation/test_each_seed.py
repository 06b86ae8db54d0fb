"""A study whose data every seed deals anew gives, under seed s, the run of the problem of s."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems.redealt import problem_of
from fedtempo.simulation import study as planning
from fedtempo.simulation.costs import estimate
from fedtempo.simulation.engine.session import Session
from problems.test_redealt import dealt
from simulation.test_checkpoint import Stop, short_calls
from simulation.test_study import same

__all__ = ["short_calls"]  # a fixture

TIMES = ft.FixedTimes(["1", "3/2", "5/2", "4"])
SEEDS = (3, 0, 5)
SCHEMES = [ft.AsyncFedAvg(), ft.FedFix("5/2")]


def study(problem, **changes):
    given = {"until": 12, "points": 4, "seeds": SEEDS, "dtype": "float64", "weights": ["time-based", "identical"]}
    given |= {"schemes": SCHEMES, "times": TIMES, "local": local(), "step": "paper", "per_client": True, **changes}
    return ft.simulate(problem, given.pop("schemes"), given.pop("times"), **given)


def local(batch_size=2, lr=(0.1, 0.5)):
    return ft.LocalSGD(steps=2, lr=list(lr) if isinstance(lr, tuple) else lr, batch_size=batch_size)


def assert_of_each(whole, make, near=0.0, **changes):
    """The runs of each seed are those of its problem alone, all measures and models."""
    measured = {"loss", "loss_deviation", "surrogate_loss", "surrogate_deviation", "client_loss", "parameter:w"}
    for seed in SEEDS:
        alone = study(make(seed), seeds=[seed], **changes).dataset
        assert measured <= set(alone)
        assert set(whole.dataset) == set(alone)
        for name, values in alone.items():
            found = whole.dataset[name]
            found = (found.sel(seed=[seed]) if "seed" in found.dims else found).transpose(*values.dims)
            np.testing.assert_allclose(found.values, values.values, rtol=near, atol=near, err_msg=f"{name} {seed}")


@pytest.mark.parametrize(
    ("engine", "near", "batch_size"),
    [
        ("events", 0.0, 2),
        ("events", 0.0, None),
        ("waves", 1e-13, 2),
        ("waves", 1e-13, None),
        ("oracle", 0.0, 2),
        pytest.param("oracle", 0.0, None, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_that_of_the_problem_of_its_seed(engine, near, batch_size):
    """Waves measure the models of all seeds as one batch, which rounds otherwise, whatever the problem."""
    tested = "own" if batch_size else "all"
    changes = {"engine": engine, "local": local(batch_size)}
    whole = study(lambda seed: dealt(seed, tested), **changes)
    assert float(np.ptp(whole.dataset["loss"].isel(time=0).values)) > 0.01  # the data are others from the start
    assert_of_each(whole, lambda seed: dealt(seed, tested), near, **changes)


def test_models_of_waves_are_the_same_bits():
    whole = study(dealt, engine="waves").dataset["parameter:w"]
    for seed in SEEDS:
        alone = study(dealt(seed), engine="waves", seeds=[seed]).dataset["parameter:w"]
        np.testing.assert_array_equal(whole.sel(seed=[seed]).values, alone.values)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["events", "waves"])
def test_seeds_of_random_times_too(engine):
    """Each seed has a timeline of its own, and so a unit of its own."""
    times = ft.ExponentialTimes([1, 2, 3, 4])
    whole = study(dealt, times=times, schemes=[ft.AsyncFedAvg()], engine=engine)
    assert_of_each(whole, dealt, 1e-13, times=times, schemes=[ft.AsyncFedAvg()], engine=engine)


def test_full_gradients_of_corrections_and_clients_that_are_chosen_by_their_loss():
    changes = {
        "schemes": [ft.FedFix("5/2").using(correction=ft.FedDANE(0.1)), ft.HighestLossSampling(2)],
        "weights": ["identical"],
    }
    assert_of_each(study(dealt, **changes), dealt, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["events", "waves"])
def test_in_32_bits_too(engine):
    changes = {"engine": engine, "dtype": "float32"}
    assert_of_each(study(dealt, **changes), dealt, 2e-6, **changes)


def test_other_workers_have_the_same_bits():
    same(study(dealt, workers=1), study(dealt))


def test_a_study_that_was_stopped_goes_on_to_the_same_bits(short_calls, tmp_path):
    changes = {"until": 200, "points": 9}
    whole = study(dealt, **changes)
    stop = Stop(300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "train", stop.held(Session.train))
        with pytest.raises(KeyboardInterrupt):
            study(dealt, **changes, checkpoint=tmp_path / "x", save_every=0.01, on_progress=stop)
    assert not ft.History.load(tmp_path / "x" / "history.nc").finished
    same(study(dealt, **changes, checkpoint=tmp_path / "x"), whole)
    same(ft.History.load(tmp_path / "x" / "history.nc"), whole)


def test_a_folder_with_other_deals_is_left_alone(tmp_path):
    study(dealt, checkpoint=tmp_path / "x")
    with pytest.raises(ft.ResultsConflict):
        study(lambda seed: dealt(9 if seed == 5 else seed), checkpoint=tmp_path / "x")
    with pytest.raises(ft.ResultsConflict):
        study(dealt(3), checkpoint=tmp_path / "x")


def test_histories_are_kept_and_merged(tmp_path):
    whole = study(dealt)
    whole.save(tmp_path / "h.nc")
    same(ft.History.load(tmp_path / "h.nc"), whole)
    parts = [study(dealt, schemes=[scheme]) for scheme in SCHEMES]
    np.testing.assert_array_equal(ft.merge(parts).dataset["loss"].values, whole.dataset["loss"].values)
    with pytest.raises(ft.InputError, match="have other data"):
        ft.merge([whole, study(dealt, seeds=[7])])


def test_more_seeds_of_named_data_that_are_dealt_anew_are_merged():
    def found(seeds, partition="dirichlet:0.1"):
        times, local = ft.FixedTimes.spread(4, 80), ft.LocalSGD(lr=0.1, batch_size=8)
        problem = problem_of({"name": "digits", "clients": 4, "partition": partition, "seed": "each"})
        return ft.simulate(problem, ft.FedAvg(), times, until=2, points=3, seeds=seeds, local=local)

    whole, parts = found([1, 4]), [found([1]), found([4])]
    np.testing.assert_allclose(ft.merge(parts).dataset["loss"].values, whole.dataset["loss"].values, rtol=1e-6)
    with pytest.raises(ft.InputError, match="of different problems"):
        ft.merge([parts[0], found([4], "iid")])


@pytest.mark.slow
def test_several_problems_of_which_one_is_dealt_anew():
    found = study({"each": dealt, "one": dealt(3)})
    for name, problem in (("each", dealt), ("one", dealt(3))):
        alone = study(problem).dataset["loss"]
        np.testing.assert_array_equal(found.dataset["loss"].sel(problem=name), alone)


@pytest.mark.slow
def test_rates_find_themselves_on_all_deals():
    found = study(dealt, local=local(lr="auto"))
    given = study(dealt, local=local(lr=tuple(found.dataset["local_lr"].values.tolist())))
    np.testing.assert_allclose(found.dataset["loss"].values, given.dataset["loss"].values, rtol=1e-12)


def test_a_plan_takes_one_problem():
    with pytest.raises(ft.InputError, match="is not a problem; use"):
        ft.recommend(dealt, TIMES, until=4)


@pytest.mark.parametrize("engine", ["events", "waves"])
def test_the_rows_of_all_deals_count_in_the_estimate_of_memory(engine, monkeypatch):
    def data(problem, seeds):
        with monkeypatch.context() as patch:
            patch.setattr(planning, "run_study", lambda found, folder, how: found)
            units = planning.units_of(study(problem, seeds=seeds, engine=engine), 1)
        return estimate(units.specs, units.machines, 1).data

    assert data(dealt, SEEDS) == 3 * data(dealt, [3]) == 3 * data(dealt(3), SEEDS) > 0
