"""Quadratic families: closed forms against numerical minimisation and against the rows themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedtempo.errors import InputError
from fedtempo.problems import named, quadratics

cases = settings(derandomize=True, deadline=None, max_examples=25)
families = st.fixed_dictionaries(
    {
        "clients": st.integers(min_value=1, max_value=5),
        "dimension": st.integers(min_value=1, max_value=4),
        "heterogeneity": st.sampled_from([0.0, 0.5, 10.0]),
        "noise": st.sampled_from([0.0, 0.25, 9.0]),
        "rows": st.integers(min_value=2, max_value=7),
        "seed": st.integers(min_value=0, max_value=10**6),
    }
)


def _losses(problem, point):
    """L_i straight from the rows, one client and one row at a time."""
    out = []
    for i in range(problem.num_clients):
        a, c = problem.client_data(i)
        out.append(
            np.mean(
                [0.5 * sum(ak * (t - ck) ** 2 for ak, t, ck in zip(*row, strict=True)) for row in _rows(a, point, c)]
            )
        )
    return np.array(out)


def _rows(a, point, c):
    return [(a[r], point, c[r]) for r in range(len(a))]


@cases
@given(families)
def test_the_optimum_is_where_a_minimiser_ends(arguments):
    problem = quadratics(**arguments)
    weights = np.arange(1.0, problem.num_clients + 1)
    for given_weights, used in ((None, problem.importance.values), (weights, weights)):
        found = minimize(lambda t, w=used: w @ problem.client_losses(t), np.zeros(arguments["dimension"]), tol=1e-12)
        assert np.allclose(problem.optimum(given_weights), found.x, atol=1e-5)
    assert problem.optimal_loss == pytest.approx(
        problem.importance.values @ _losses(problem, problem.optimum()), abs=1e-12
    )


@cases
@given(families)
def test_the_gradient_of_all_rows_vanishes_at_the_optimum_of_each_client(arguments):
    problem = quadratics(**arguments)
    for i in range(problem.num_clients):
        a, c = problem.client_data(i)
        alone = problem.optimum(np.eye(problem.num_clients)[i])
        assert np.allclose(alone, problem.centers[i], atol=1e-12)
        assert np.abs((a * (alone - c)).mean(axis=0)).max() < 1e-13 * max(1.0, np.abs(c).max())


@cases
@given(families)
def test_smoothness_convexity_noise_and_heterogeneity_are_as_asked(arguments):
    problem = quadratics(**arguments, smoothness=3.0, convexity=0.5)
    wide = arguments["dimension"] > 1
    assert (problem.smoothness, problem.convexity) == (3.0, 0.5 if wide else 3.0)
    assert problem.noise == pytest.approx(arguments["noise"], abs=1e-12)
    for i in range(problem.num_clients):
        a, c = problem.client_data(i)
        gradients = a * (np.ones(arguments["dimension"]) - c)  # of each row, away from the optimum
        assert gradients.var(axis=0).sum() == pytest.approx(arguments["noise"], abs=1e-9)
    away = problem.centers - problem.centers.mean(axis=0)
    asked = arguments["heterogeneity"] if problem.num_clients > 1 else 0.0
    assert np.sqrt((away**2).sum(axis=1).mean()) == pytest.approx(asked, abs=1e-12)
    assert np.linalg.norm(problem.centers.mean(axis=0)) == pytest.approx(1.0)


def test_the_hessian_of_each_client_is_the_diagonal_of_its_curvatures():
    problem = quadratics(3, dimension=4, noise=2.0, rows=6, smoothness=3.0, convexity=0.5)
    hessian = jax.jit(jax.hessian(problem.loss))
    for i in range(3):
        found = hessian(jnp.zeros(4), jax.tree.map(jnp.asarray, problem.client_data(i)))
        assert np.allclose(found, np.diag(problem.curvatures[i]), atol=1e-6)
        assert sorted(problem.curvatures[i]) == pytest.approx(np.linspace(0.5, 3.0, 4))
    assert len({tuple(a) for a in problem.curvatures}) == 3


def test_the_loss_is_the_mean_over_the_rows_of_a_batch():
    problem = quadratics(3, dimension=4, noise=2.0, rows=[2, 5, 6], seed=1)
    point = np.linspace(-1, 1, 4)
    by_jax = [float(problem.loss(jnp.asarray(point), problem.client_data(i))) for i in range(3)]
    assert np.allclose(by_jax, problem.client_losses(point), rtol=1e-5)
    assert np.allclose(problem.client_losses(point), _losses(problem, point), rtol=1e-12)
    assert problem.sizes.tolist() == [2, 5, 6]


def test_the_papers_two_clients():
    problem = quadratics(centers=[[0], [1]], rows=1)
    assert problem.num_clients == 2
    assert problem.optimum().tolist() == [0.5]
    assert problem.optimum([1, 3]).tolist() == [0.75]
    assert problem.optimal_loss == 0.125
    assert problem.noise == 0.0
    steeper = quadratics(centers=[[0], [1]], curvatures=[[1], [3]], importance=["1/4", "3/4"])
    assert steeper.optimum().tolist() == [0.9]  # (3/4·3·1)/(1/4·1 + 3/4·3)
    assert (steeper.smoothness, steeper.convexity) == (3.0, 1.0)


@cases
@given(families)
def test_pooled_rows_have_the_optimum_of_importance_by_rows(arguments):
    rows = list(range(2, 2 + arguments["clients"]))
    problem = quadratics(**{**arguments, "rows": rows})
    pooled = problem.pooled()
    assert pooled.num_clients == 1
    assert np.allclose(pooled.optimum(), problem.with_importance("rows").optimum(), atol=1e-12)
    assert pooled.optimal_loss == pytest.approx(problem.with_importance("rows").optimal_loss)
    a, c = pooled.client_data(0)
    assert pooled.noise == pytest.approx((a * (pooled.optimum() - c)).var(axis=0).sum())


def test_families_are_pinned():
    problem = quadratics(2, dimension=3, noise=1.0, rows=2, seed=7)
    assert problem.curvatures.tolist() == [[0.1, 1.0, 0.55], [0.1, 0.55, 1.0]]
    assert np.allclose(
        problem.centers,
        [[0.672142393332, -0.124693547827, -0.128446395714], [0.482558145047, 1.279394086206, 1.283146934093]],
        atol=1e-11,
    )
    assert np.allclose(
        problem.client_data(1)[1],
        [[1.309382736696, 2.761229543105, 0.709628735823], [-0.344266446602, -0.202441370692, 1.856665132363]],
        atol=1e-11,
    )


def test_a_client_does_not_change_with_the_number_of_clients_beside_it():
    few, many = quadratics(3, noise=1.0, heterogeneity=0.0), quadratics(8, noise=1.0, heterogeneity=0.0)
    for i in range(3):
        for mine, same in zip(few.client_data(i), many.client_data(i), strict=True):
            assert np.array_equal(mine, same)


def test_parameters_start_at_zero_in_the_precision_that_is_asked():
    problem = quadratics(dimension=5)
    with jax.enable_x64(True):
        params = problem.init(jax.random.key(0))
    assert params.dtype == np.float64
    assert params.shape == (5,)
    assert not params.any()
    assert problem.rows[0].dtype == np.float64


def test_the_spec_makes_it_again():
    for problem in (
        quadratics(4, noise=0.5, rows=3, seed=2, importance="rows"),
        quadratics(centers=[[0, 1], [2, 3]], curvatures=2, importance=[0.25, 0.75]),
    ):
        again = named({"name": "quadratics", **problem.spec()["arguments"]})
        assert again.fingerprint() == problem.fingerprint()
        assert again.spec() == problem.spec()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"centers": [0, 1]}, r"centers: shape \(2,\)"),
        ({"centers": [[1, 2], [3]]}, "centers: not a table of numbers"),
        ({"centers": [["a"]]}, "centers: not a table of numbers"),
        ({"centers": [[np.inf]]}, "centers must be finite"),
        ({"centers": [[0], [1]], "clients": 3}, "clients: 3, but centers has shape"),
        ({"centers": [[0], [1]], "dimension": 3}, "dimension: 3, but centers has shape"),
        ({"curvatures": [[1, 2]]}, r"curvatures: shape \(1, 2\) does not fit 10 clients × 20"),
        ({"curvatures": 0}, "curvatures must be above zero"),
        ({"convexity": 2}, "convexity 2 is above smoothness"),
        ({"convexity": 0}, "convexity: 0 is not above zero"),
        ({"noise": -1}, "noise: -1 is below zero"),
        ({"noise": 1, "rows": 1}, "at least two rows"),
        ({"rows": [1, 2]}, "rows: 2 numbers for 10 clients"),
        ({"heterogeneity": -1}, "heterogeneity: -1 is below zero"),
        ({"seed": 0.5}, "seed: 0.5"),
        ({"clients": 0}, "clients: 0"),
    ],
)
def test_what_is_no_family_is_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        quadratics(**arguments)


@pytest.mark.parametrize(
    ("weights", "said"), [([1, 2], "give one per client"), ([0] * 10, "nor all zero"), ([-1] * 10, "below zero")]
)
def test_weights_of_an_optimum_are_checked(weights, said):
    with pytest.raises(InputError, match=said):
        quadratics().optimum(weights)
