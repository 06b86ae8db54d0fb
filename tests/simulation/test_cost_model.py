"""How much work a loss and its gradient are, against counts by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.engine.cost_model import gradient_work, loss_work


def problem(loss, features=3):
    return ft.Problem(lambda key: jnp.zeros((features, 2)), loss, [np.ones((5, features), dtype=np.float32)])


def test_a_product_is_two_operations_for_each_multiplication():
    linear = problem(lambda w, x: jnp.mean((x @ w) ** 2))
    assert loss_work(linear, 10).operations == 2 * 10 * 3 * 2
    assert gradient_work(linear, 10).operations == 2 * (2 * 10 * 3 * 2)  # forwards, and the gradient of w
    assert gradient_work(linear, 20).operations == 2 * gradient_work(linear, 10).operations


def test_a_loop_counts_as_often_as_it_runs():
    def walk(w, x):
        return jnp.mean(jax.lax.scan(lambda h, _: (jnp.tanh(h @ w[:2]), None), x[:, :2], None, length=7)[0])

    assert loss_work(problem(walk), 10).operations == 7 * 2 * 10 * 2 * 2
    assert loss_work(problem(walk), 10).kernels > 7


def test_what_is_held_grows_with_the_rows():
    linear = problem(lambda w, x: jnp.mean(jax.nn.relu(x @ w)))
    few, many = loss_work(linear, 10).held, loss_work(linear, 1000).held
    assert many == pytest.approx(100 * few, rel=0.2)


def test_a_choice_between_two_ways_counts_both():
    def either(w, x):
        return jax.lax.cond(x[0, 0] > 0, lambda: jnp.mean(x @ w), lambda: jnp.mean((x @ w) ** 2))

    assert loss_work(problem(either), 10).operations == 2 * 2 * 10 * 3 * 2
