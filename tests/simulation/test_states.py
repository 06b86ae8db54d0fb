"""Losses with a key and with a state: every engine gives the answer of a plain loop, to be saved and gone on from."""

from functools import cache

import jax
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.training.batches import batch_key, init_key, job_rows, noise_key
from simulation.test_checkpoint import Stop, run, shorten
from simulation.test_study import same
from support.stateful import START, TIMES, dropout_problem, normed_problem

BATCH, RATE, UNTIL = 4, 0.05, 3
SCHEMES = (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2))
BOTH_STEPS = (*SCHEMES, *(scheme.using(step="paper") for scheme in SCHEMES[1:]))
PROBLEMS = {"dropout": dropout_problem, "batch norm": normed_problem}


@cache
def study(name, engine, steps=5):
    return ft.simulate(
        PROBLEMS[name](),
        BOTH_STEPS,
        TIMES,
        until=UNTIL,
        points=3,
        local=ft.LocalSGD(steps=steps, lr=RATE, batch_size=BATCH),
        weights=["time-based", "identical"],
        server_lr=0.8,
        seeds=[3],
        engine=engine,
        dtype="float64",
    )


def assert_same(one, other, within=1e-9):
    assert set(one.dataset) == set(other.dataset)
    for name, values in one.dataset.items():
        np.testing.assert_allclose(values, other.dataset[name], rtol=within, atol=within, err_msg=name)


@pytest.mark.parametrize("engine", ["events", "waves"])
@pytest.mark.parametrize("steps", [5, 1])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_engine_does_what_the_oracle_does(name, steps, engine):
    assert_same(study(name, engine, steps), study(name, "oracle", steps))


def by_hand(problem, scheme, step, steps, server_lr=0.8, seed=3):
    """Model and state after the last round: Algorithm 1 once more, with means over whole rounds."""
    line = ft.timeline(scheme, TIMES, until=UNTIL, importance=problem.importance.exact, seed=seed)
    given = {"importance": problem.importance.exact}
    applied = ft.weights(scheme, TIMES, step=step, **given).applied(line)
    stable = ft.weights(scheme, TIMES, step="stable", **given).applied(line)
    gradient = jax.jit(jax.grad(problem.loss, has_aux=True))
    theta = jax.tree.map(lambda x: np.asarray(x, np.float64), problem.init(init_key(seed)))
    versions = [(theta, START)]
    for begin, end in zip(line.offsets[:-1], line.offsets[1:], strict=True):
        theta, state = versions[-1]
        answers = []
        for u in range(begin, end):
            i, j = int(line.client[u]), int(line.job[u])
            sent, own = versions[line.base[u]]
            here = sent
            rows = job_rows(
                batch_key(seed), i, j, np.int32(problem.sizes[i]), steps=steps, batch_size=BATCH, draw="uniform"
            )
            for k in range(steps):
                key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(noise_key(seed), i), j), k)
                batch = tuple(x[np.asarray(rows[k])] for x in problem.client_data(i))
                slope, own = gradient(here, batch, key, own)
                here = jax.tree.map(lambda x, g: x - RATE * g, here, slope)
            theta = jax.tree.map(lambda t, h, s, w=applied[u]: t + server_lr * w * (h - s), theta, here, sent)
            answers.append((stable[u], own))
        if answers:
            mass = sum(weight for weight, _ in answers)
            share = min(1, mass)
            parts = [(1 - share, state), *((share * weight / mass, values) for weight, values in answers)]
            mean = sum(a * s["bn"]["mean"] for a, s in parts)
            second = sum(a * (s["bn"]["var"] + s["bn"]["mean"] ** 2) for a, s in parts)
            largest = max(int(s["count"]) for _, s in parts)
            state = {"bn": {"mean": mean, "var": second - mean**2}, "count": np.int32(largest)}
        versions.append((theta, state))
    return versions[-1]


@pytest.mark.parametrize(("scheme", "step"), [(SCHEMES[2], "paper"), (SCHEMES[3], "stable")], ids=str)
def test_a_plain_loop_comes_to_the_same_model_and_state(scheme, step):
    with jax.enable_x64(True), jax.threefry_partitionable(True):
        theta, state = by_hand(normed_problem(), scheme, step, 5)
    label = (scheme.using(step="paper") if step == "paper" else scheme).label
    found = study("batch norm", "events").model(scheme=label)
    for one, other in zip(jax.tree.leaves((found.params, found.state)), jax.tree.leaves((theta, state)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_the_state_does_not_go_by_the_step_or_the_server_rate():
    """Under FedAvg a round of all clients replaces it, at a server's rate of 0.8 too; other steps leave it alone."""
    history = study("batch norm", "events")
    assert int(history.model(scheme="FedAvg").state["count"]) == 3 + UNTIL * 5
    for scheme in SCHEMES[1:]:
        one, other = (history.model(scheme=s, weights="identical") for s in (scheme, scheme.using(step="paper")))
        assert one.state["count"] == other.state["count"]
        assert not np.allclose(one.params["b"], other.params["b"])


def test_what_is_drawn_depends_on_seed_client_job_and_step_alone():
    """The same run beside others, in a study of its own, and under another seed."""
    alone = ft.simulate(
        normed_problem(), SCHEMES[2], TIMES, until=UNTIL, points=3, local=ft.LocalSGD(steps=5, lr=RATE, batch_size=4),
        server_lr=0.8, seeds=[3, 4], dtype="float64",
    )  # fmt: skip
    beside = study("batch norm", "events").model(scheme=SCHEMES[2])
    for name in ("a", "b"):
        np.testing.assert_allclose(alone.model(seed=3).params[name], beside.params[name], rtol=1e-12)
    assert not np.allclose(alone.model(seed=4).params["b"], beside.params["b"])


@pytest.mark.parametrize("scheme", [ft.FedFix("1/2").using(correction=ft.FedDANE(0.1), compression=ft.TopK(0.5))])
def test_corrections_and_compression_do_not_see_the_state(scheme):
    given = {"until": 3, "points": 2, "local": ft.LocalSGD(steps=2, lr=RATE, batch_size=BATCH), "dtype": "float64"}
    histories = [ft.simulate(normed_problem(), scheme, TIMES, engine=e, **given) for e in ("events", "waves", "oracle")]
    for history in histories[:2]:
        assert_same(history, histories[2])


@pytest.mark.parametrize("engine", ["events", "waves"])
def test_a_stopped_study_goes_on_to_the_same_bits(engine, monkeypatch, tmp_path):
    shorten(monkeypatch)
    given = {"problem": normed_problem(), "schemes": [ft.FedFix("1/2")], "times": TIMES, "until": 20, "lr": 0.05}
    given |= {"steps": 3, "engine": engine, "seeds": [0]}
    whole = run(**given)
    with pytest.raises(KeyboardInterrupt):
        run(**given, checkpoint=tmp_path / "s", save_every=0, on_progress=Stop(30))
    assert not ft.History.load(tmp_path / "s" / "history.nc").finished
    same(run(**given, checkpoint=tmp_path / "s"), whole)


def test_a_model_is_kept_with_its_state(tmp_path):
    history = study("batch norm", "events")
    where = {"scheme": SCHEMES[0]}
    model = history.model(**where)
    assert model.state["count"].dtype == np.int32
    assert int(model.state["count"]) == 3 + UNTIL * 5
    history.save(tmp_path / "h.nc")
    model.save(tmp_path / "m.npz")
    for found in (ft.History.load(tmp_path / "h.nc").model(**where), ft.Model.load(tmp_path / "m.npz")):
        for one, other in zip(
            jax.tree.leaves((found.params, found.state)), jax.tree.leaves((model.params, model.state)), strict=True
        ):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    assert ft.Model({"w": np.ones(2)}).state is None


def test_bytes_count_the_state_both_ways():
    last = study("batch norm", "events").dataset.isel(scheme=0, time=-1, weights=0, seed=0)
    each = 4 * (16 + 7)
    assert last["bytes_up"] == last["bytes_down"] == each * last["updates"]


def test_a_state_may_follow_from_the_key_of_the_model():
    made = normed_problem(lambda key: {**START, "bn": {"mean": jax.random.normal(key, (3,)), "var": np.ones(3)}})
    given = {"until": 1, "points": 2, "dtype": "float64", "engine": "oracle", "seeds": [7]}
    given |= {"local": ft.LocalSGD(steps=1, lr=0.0001, batch_size=BATCH)}
    with jax.enable_x64(True), jax.threefry_partitionable(True):
        moved = (np.asarray(made.initial_state(init_key(7))["bn"]["mean"]) - START["bn"]["mean"]) * 0.7
    one, other = (ft.simulate(p, ft.FedAvg(), TIMES, **given).model() for p in (made, normed_problem()))
    np.testing.assert_allclose(one.state["bn"]["mean"] - other.state["bn"]["mean"], moved, rtol=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_all_rows_at_once_are_refused(problem):
    with pytest.raises(ft.InputError, match=r"batch_size: None .* give a number of rows"):
        ft.simulate(problem(), ft.FedAvg(), TIMES, until=3, local=ft.LocalSGD(batch_size=None))


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_pilot_and_the_theory_say_that_they_need_a_plain_loss(problem):
    local = ft.LocalSGD(batch_size=BATCH)
    made = ft.recommend(problem(), TIMES, until=9, local=local, schemes=[ft.FedAvg()], rates=[0.1], share=1)
    assert made.prior is None
    assert any("needs a loss of (params, batch) only" in sentence for sentence in made.notes)
    with pytest.raises(ft.InputError, match=r"the theory needs a loss of \(params, batch\) only"):
        ft.theory.optimum(problem())
