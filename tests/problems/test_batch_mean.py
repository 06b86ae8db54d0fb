"""A loss is a mean over the batch's rows: a sum is refused, and rows that interact are said."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import batch_mean
from fedtempo.problems.batch_mean import check_batch_mean

RNG = np.random.default_rng(0)
DATA = [
    {
        "x": RNG.normal(size=(size, 5)),
        "y": RNG.integers(0, 3, size),
        "image": RNG.integers(0, 256, (size, 2), dtype=np.uint8),
    }
    for size in (1, 6, 9)
]


def init(key):
    return {"w": jax.random.normal(key, (5, 3)), "b": jnp.zeros(3)}


def each(params, batch):
    scores = batch["x"] @ params["w"] + params["b"] + batch["image"].sum(axis=1, keepdims=True) / 255
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["y"][:, None], axis=1)[:, 0]


def mean(params, batch):
    return each(params, batch).mean()


def l2(params):
    return sum((p**2).sum() for p in jax.tree.leaves(params))


def key_only_in_training(params, batch, key):
    noise = 0.0 if key is None else jax.random.normal(key)
    return each(params, batch).mean() + noise


def stateful(params, batch, key, state):
    return each(params, batch).mean() + 0.0 * state["seen"].sum(), {"seen": state["seen"] + 1}


def contrastive(params, batch):
    scores = batch["x"] @ params["w"]
    return -jnp.diagonal(jax.nn.log_softmax(scores @ scores.T)).mean()


def check(loss, data=DATA, **more):
    check_batch_mean(ft.Problem(init, loss, data, **more))


@pytest.mark.parametrize("data", [DATA, DATA[1:]], ids=["one row", "four rows"])
@pytest.mark.parametrize(
    "loss",
    [
        mean,
        lambda p, b: mean(p, b) + l2(p),
        lambda p, b: 1e-9 * mean(p, b),
        lambda p, b: -mean(p, b),
        lambda p, b: 0.0 * mean(p, b),
        key_only_in_training,
    ],
    ids=["mean", "regularised", "small", "negative", "zero", "key"],
)
def test_a_mean_is_accepted_without_a_word(loss, data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(loss, data)


def test_a_mean_with_a_state_is_accepted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(stateful, state={"seen": jnp.zeros(2)})


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b: each(p, b).sum(),
        lambda p, b: each(p, b).sum() / 32,
        lambda p, b: each(p, b).sum() + l2(p),
        lambda p, b, key: each(p, b).sum(),
        lambda p, b: mean(p, b) + each(p, b).sum(),
    ],
    ids=["sum", "fixed size", "regularised", "key", "mean and sum"],
)
@pytest.mark.parametrize("data", [DATA, DATA[1:]], ids=["one row", "four rows"])
def test_a_sum_is_refused_with_the_cure(loss, data):
    with pytest.raises(ft.InputError, match=r"^loss: it is a sum over the batch: .* as jnp\.mean does$"):
        check(loss, data)


def test_rows_that_interact_are_said():
    with pytest.warns(UserWarning, match=r"not the mean over the batch's rows: 4 rows give .* twice"):
        check(contrastive, DATA[1:])


def test_simulate_refuses_a_sum_and_says_the_numbers():
    problem = ft.Problem(init, lambda p, b: each(p, b).sum(), DATA[1:])
    once = float(each(init(jax.random.key(0)), jax.tree.map(lambda x: x[:4], DATA[1])).sum())
    with pytest.raises(ft.InputError) as caught:
        ft.simulate(problem, ft.FedAvg(), ft.FixedTimes([1, 2]), until=3)
    assert f"4 rows give {once:.4g}, and the same rows twice {2 * once:.4g}" in str(caught.value)


def test_a_problem_is_looked_at_once_and_ours_not_at_all(monkeypatch):
    looks = []
    monkeypatch.setattr(batch_mean, "check_repeated", lambda *given: looks.append(given))
    problem = ft.Problem(init, lambda p, b: mean(p, b), DATA)
    for _ in range(3):
        check_batch_mean(problem)
    check_batch_mean(ft.problems.digits(clients=2))
    assert len(looks) == 1


def test_a_loss_that_fails_is_left_to_where_it_is_trained():
    def fails(params, batch):
        if not isinstance(batch["x"], jax.core.Tracer) or batch["x"].shape[0] > 2:
            raise ValueError("no such batch")
        return mean(params, batch)

    check(fails, DATA[1:])


def test_a_loss_that_is_not_a_number_from_the_start_is_refused() -> None:
    with pytest.raises(ft.InputError, match="loss: it is nan for the initial model on the first 1 rows of client 0"):
        check(lambda p, b: jnp.float32(jnp.nan) * mean(p, b))


def test_the_planner_refuses_a_sum_too() -> None:
    problem = ft.Problem(init, lambda p, b: each(p, b).sum(), DATA[1:])
    with pytest.raises(ft.InputError, match="it is a sum over the batch"):
        ft.recommend(problem, ft.FixedTimes([1, 2]), until=20)
