"""Axes: numbers or lists of numbers, and all their combinations."""

from __future__ import annotations

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.grid import Axis, combinations, counts, numbers


def test_one_number_is_an_axis_that_is_no_dimension() -> None:
    assert numbers("rate", 2) == Axis("rate", (2.0,), listed=False)
    assert numbers("rate", [2]) == Axis("rate", (2.0,), listed=True)
    assert counts("steps", 2) == Axis("steps", (2,), listed=False, traced=False)
    assert counts("steps", (2, 1)) == Axis("steps", (2, 1), listed=True, traced=False)
    assert counts("batch", [None, 3], none="all rows").values == (None, 3)


@pytest.mark.parametrize(
    "given",
    [
        [0.5, 2],
        (0.5, 2.0),
        np.array([0.5, 2.0]),
        np.array([0.5, 2], np.float32),
        [Fraction(1, 2), np.int64(2)],
        jnp.array([0.5, 2.0]),
    ],
    ids=["list", "tuple", "float64", "float32", "mixed", "jax"],
)
def test_lists_of_many_kinds_are_plain_floats(given) -> None:
    axis = numbers("rate", given)
    assert axis.values == (0.5, 2.0)
    assert {type(v) for v in axis.values} == {float}
    assert axis.listed


@pytest.mark.parametrize("given", [np.array(0.5), np.float32(0.5), jnp.array(0.5), Fraction(1, 2)], ids=repr)
def test_scalars_of_many_kinds_are_numbers(given) -> None:
    assert numbers("rate", given) == Axis("rate", (0.5,), listed=False)


def test_whole_numbers_of_many_kinds() -> None:
    assert counts("steps", range(1, 4)).values == (1, 2, 3)
    assert counts("steps", np.arange(1, 3)).values == (1, 2)
    assert {type(v) for v in counts("steps", np.arange(1, 3)).values} == {int}
    assert counts("steps", np.int32(4)) == Axis("steps", (4,), listed=False, traced=False)


def test_values_that_become_equal_are_named() -> None:
    for given in ([1, 1.0], [0.1, Fraction(1, 10)], [0.1, np.float64(0.1)]):
        with pytest.raises(ft.InputError, match="twice"):
            numbers("rate", given)


def test_limits() -> None:
    assert numbers("momentum", 0, reaches=True).values == (0.0,)
    assert numbers("x", [1.5], above=1).values == (1.5,)
    with pytest.raises(ft.InputError, match="above 0"):
        numbers("rate", [0.1, 0.0])
    with pytest.raises(ft.InputError, match="at least 0"):
        numbers("momentum", -0.1, reaches=True)
    with pytest.raises(ft.InputError, match="whole number"):
        counts("batch", None)


def test_combinations_are_all_of_them_the_last_axis_fastest() -> None:
    axes = [numbers("a", [1, 2]), numbers("b", 7), numbers("c", [3, 4, 5])]
    found = combinations(axes)
    assert [(c["a"], c["c"]) for c in found] == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert {c["b"] for c in found} == {7.0}
    assert combinations([]) == [{}]


def test_each_list_is_a_dimension_and_each_run_has_its_place() -> None:
    """One step of full gradient descent on θ²/2 from 1: θ = 1 − η_g (1 − (1 − η_l)^K), for every combination."""
    problem = ft.Problem(lambda key: jnp.ones(()), lambda theta, x: jnp.mean(theta**2 / 2 + 0 * x), [np.ones(2)])
    rates, server, steps = [0.1, 0.5, 0.2], [1.0, 0.5], [3, 1]
    history = ft.simulate(
        problem,
        ft.FedAvg(),
        ft.FixedTimes([1]),
        until=1,
        local=ft.LocalSGD(steps=steps, lr=rates, batch_size=None),
        server_lr=server,
        dtype="float64",
        points=2,
    )
    theta = history.dataset["parameter:"]
    assert theta.dims == ("scheme", "weights", "local_steps", "local_lr", "server_lr", "seed")
    for k in steps:
        for rate in rates:
            for step in server:
                found = theta.sel(local_steps=k, local_lr=rate, server_lr=step).item()
                assert found == pytest.approx(1 - step * (1 - (1 - rate) ** k), rel=1e-14)
    np.testing.assert_allclose(history.dataset["loss"].isel(time=-1), theta**2 / 2, rtol=1e-14)
