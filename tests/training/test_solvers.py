"""K local steps: SGD and Optax solvers against loops by hand, and what is said about wrong arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedtempo as ft
from fedtempo.grid import combinations

SENT = {"a": jnp.array([1.0, -2.0, 3.0]), "b": jnp.array(0.5)}
TARGETS = jnp.array([[0.3, -1.0, 2.0], [4.0, 1.0, -3.0], [0.0, 0.5, 0.5]])


def gradient(params, k):
    """Of ½‖a − target_k‖² + ½ a₀ b²: another function at every step."""
    pull = params["a"] - TARGETS[k]
    return {"a": pull + jnp.array([0.5, 0.0, 0.0]) * params["b"] ** 2, "b": params["a"][0] * params["b"]}


def contribution(local, **hyper):
    """What a job sends back, with the local rule's own shape."""
    shape = combinations([axis for axis in local.axes if not axis.traced])[0]
    job = local.job(shape)
    numbers = {axis.name: axis.values[0] for axis in local.axes if axis.traced} | hyper
    sent, state = jax.jit(lambda p, h: job.work(gradient, p, (), h))(
        SENT, {n: jnp.float32(v) for n, v in numbers.items()}
    )
    assert state == ()
    return sent


def by_hand(solver, steps):
    theta, memory = SENT, solver.init(SENT)
    for k in range(steps):
        update, memory = solver.update(gradient(theta, k), memory, theta)
        theta = optax.apply_updates(theta, update)
    return jax.tree.map(lambda x, y: x - y, theta, SENT)


def same(one, other):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), one, other)


@pytest.mark.parametrize("steps", [1, 3])
def test_sgd_is_gradient_descent(steps) -> None:
    theta = {n: np.array(x, dtype=np.float64) for n, x in SENT.items()}
    for k in range(steps):
        slope = gradient(theta, k)
        theta = {n: theta[n] - 0.1 * np.asarray(slope[n], dtype=np.float64) for n in theta}
    same(contribution(ft.LocalSGD(steps=steps, lr=0.1)), {n: theta[n] - np.asarray(SENT[n]) for n in theta})


def test_momentum_starts_from_nothing_and_goes_on_within_a_job() -> None:
    local = ft.LocalSGD(steps=3, lr=0.1, momentum=0.9)
    velocity, theta = dict.fromkeys(SENT, 0.0), dict(SENT)
    for k in range(3):
        slope = gradient(theta, k)
        velocity = {n: 0.9 * velocity[n] + slope[n] for n in theta}
        theta = {n: theta[n] - 0.1 * velocity[n] for n in theta}
    same(contribution(local), {n: theta[n] - SENT[n] for n in theta})
    first = contribution(ft.LocalSGD(steps=1, lr=0.1, momentum=0.9))
    same(first, contribution(ft.LocalSGD(steps=1, lr=0.1)))


def test_clipping_shortens_long_gradients_only() -> None:
    free = contribution(ft.LocalSGD(steps=1, lr=0.1))
    length = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(free))) / 0.1
    same(contribution(ft.LocalSGD(steps=1, lr=0.1, clip=length * 1.01)), free)
    short = contribution(ft.LocalSGD(steps=1, lr=0.1, clip=length / 4))
    same(short, jax.tree.map(lambda x: x / 4, free))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("local", "solver"),
    [
        (ft.LocalOptax(solver=optax.adam, lr=0.05), optax.adam(0.05)),
        (ft.LocalOptax(solver=optax.adam, lr=0.05, options={"b1": 0.5, "b2": 0.9}), optax.adam(0.05, b1=0.5, b2=0.9)),
        (
            ft.LocalOptax(solver=optax.adamw, lr=0.05, options={"weight_decay": 0.2}),
            optax.adamw(0.05, weight_decay=0.2),
        ),
        (
            ft.LocalOptax(solver=optax.rmsprop, lr=0.01, clip=0.5),
            optax.chain(optax.clip_by_global_norm(0.5), optax.rmsprop(0.01)),
        ),
        (
            ft.LocalOptax(solver=partial(optax.sgd, nesterov=True), lr=0.1, options={"momentum": 0.9}),
            optax.sgd(0.1, 0.9, True),
        ),
        (ft.LocalSGD(lr=0.1, momentum=0.9, clip=1.0), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, 0.9))),
    ],
    ids=["adam", "adam with options", "adamw", "clipped rmsprop", "nesterov", "clipped momentum"],
)
def test_solvers_are_optax(local, solver, steps) -> None:
    same(contribution(replace(local, steps=steps)), by_hand(solver, steps))


def test_hyper_parameters_come_from_the_run() -> None:
    local = ft.LocalSGD(steps=2, lr=[0.1, 0.2], momentum=[0.0, 0.5])
    found = contribution(local, local_lr=0.2, momentum=0.5)
    same(found, by_hand(optax.sgd(0.2, 0.5), 2))


def test_small_steps_keep_their_digits() -> None:
    """The contribution is not the difference of two models: at a rate of 10⁻⁶ that would have one digit left."""
    found = contribution(ft.LocalSGD(steps=3, lr=1e-6))
    slope = sum(np.asarray(gradient(SENT, k)["a"], dtype=np.float64) for k in range(3))
    np.testing.assert_allclose(found["a"], -1e-6 * slope, rtol=1e-4)


def test_axes_and_their_order() -> None:
    local = ft.LocalSGD(steps=[1, 5], lr=[0.1, 0.2, 0.3], batch_size=[None, 8], momentum=0.9, clip=[1.0, 2.0])
    axes = {axis.name: axis for axis in local.axes}
    assert list(axes) == ["local_steps", "batch_size", "local_lr", "clip", "momentum"]
    assert [axis.name for axis in local.axes if not axis.traced] == ["local_steps", "batch_size"]
    assert [axis.name for axis in local.axes if axis.listed] == ["local_steps", "batch_size", "local_lr", "clip"]
    assert axes["batch_size"].values == (None, 8)
    job = local.job({"local_steps": 5, "batch_size": None})
    assert (job.steps, job.batch_size, job.draw) == (5, None, "uniform")


@pytest.mark.parametrize(
    "local",
    [
        ft.LocalSGD(),
        ft.LocalSGD(steps=[1, 2], lr=np.array([0.1, 0.2]), batch_size=None, momentum=np.float32(0.5), clip=3),
        ft.LocalOptax(solver=optax.adam, options={"b1": [0.5, 0.9]}, draw="epochs"),
        ft.LocalOptax(solver=partial(optax.sgd, nesterov=True)),
        ft.LocalSGD(lr=range(1, 3)),
    ],
    ids=["plain", "arrays", "adam", "partial", "range"],
)
def test_a_rule_can_be_written_down(local) -> None:
    spec = local.spec()
    assert json.loads(json.dumps(spec)) == spec
    assert spec["draw"] == local.draw
    assert set(spec) == {"solver", "draw", *(axis.name for axis in local.axes)}
    assert spec["local_lr"] == (list(local.axes[2].values) if local.axes[2].listed else local.axes[2].values[0])


def test_specs_of_different_rules_differ() -> None:
    rules = [
        ft.LocalSGD(),
        ft.LocalSGD(momentum=0.9),
        ft.LocalSGD(lr=[0.1]),
        ft.LocalSGD(draw="epochs"),
        ft.LocalSGD(batch_size=None),
        ft.LocalOptax(solver=optax.adam),
        ft.LocalOptax(solver=optax.adamw),
    ]
    assert len({json.dumps(rule.spec()) for rule in rules}) == len(rules)
    assert ft.LocalSGD().spec()["solver"] == "optax.sgd"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0}, r"^local_lr: 0 is not allowed; give a number above 0"),
        ({"lr": -0.1}, "local_lr: -0.1 is not allowed"),
        ({"lr": "x"}, "local_lr: 'x' is text"),
        ({"lr": ["x"]}, "local_lr: 'x' is not allowed"),
        ({"lr": None}, "local_lr: None is not allowed"),
        ({"lr": True}, "local_lr: True is not allowed"),
        ({"lr": float("nan")}, "local_lr: nan is not allowed"),
        ({"lr": float("inf")}, "local_lr: inf is not allowed"),
        ({"lr": []}, "local_lr: the list is empty"),
        ({"lr": [0.1, 0.1]}, "local_lr: .* names a value twice"),
        ({"lr": [[0.1, 0.2]]}, r"local_lr: \[0.1, 0.2\] is not allowed"),
        ({"lr": np.ones((2, 2))}, r"local_lr: array\(.*\) is not allowed"),
        ({"lr": (x for x in (0.1, 0.2))}, "local_lr: .* can be read only once; give a list"),
        ({"steps": 0}, "local_steps: 0 is not a whole number of at least 1"),
        ({"steps": 1.5}, "local_steps: 1.5"),
        ({"steps": None}, "local_steps: None"),
        ({"steps": [1, 2, 1]}, "local_steps: .* twice"),
        ({"batch_size": 0}, "batch_size: 0 .* or None for all rows"),
        ({"batch_size": True}, "batch_size: True"),
        ({"clip": 0}, "clip: 0 is not allowed"),
        ({"momentum": -1}, "momentum: -1 is not allowed; give a number at least 0"),
        ({"draw": "shuffled"}, "draw: 'shuffled' is not known; use one of uniform, epochs"),
        ({"solver": "adam"}, "solver: 'adam' cannot be called"),
        ({"solver": None}, "solver: None cannot be called"),
        ({"solver": optax.adam, "momentum": 0.9}, "solver: optax.adam cannot be made .*momentum.*; check its options"),
        ({"solver": lambda learning_rate: 3}, "solver: .* does not make an Optax transformation"),
        ({"options": {"local_lr": 0.1}}, "options: 'local_lr' is an argument of its own"),
        ({"options": {"learning_rate": 0.1}}, "options: 'learning_rate' is an argument of its own"),
        ({"options": {"seed": 0.1}}, "options: 'seed' is an argument of its own"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
def test_wrong_arguments_are_named(arguments, message) -> None:
    with pytest.raises(ft.InputError, match=message) as caught:
        ft.LocalSGD(**arguments)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value) or "at least 1" in str(caught.value)
