"""Digits and classification: the loss against SciPy and scikit-learn, the split, labels that are refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedtempo.errors import InputError
from fedtempo.problems import Dirichlet, NaturalKey, Problem, classification_problem, digits, logistic, named
from fedtempo.problems.classification import held_out

rng = np.random.Generator(np.random.Philox(5))
x, y = rng.normal(size=(40, 6)), rng.integers(0, 3, 40)


def _params(features, classes):
    return {"weights": rng.normal(size=(classes, features)), "bias": rng.normal(size=classes)}


def test_digits_are_scikit_learns_images_each_once():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    problem = digits()
    assert repr(problem) == "Problem(digits: 20 clients, 1437 rows, 650 parameters)"
    pixels = np.concatenate([problem.rows[0], problem.test[0]])
    marks = np.concatenate([problem.rows[1], problem.test[1]])
    mine = np.column_stack([pixels * 16, marks])
    theirs = np.column_stack([images, labels])
    assert np.array_equal(mine[np.lexsort(mine.T)], theirs[np.lexsort(theirs.T)])
    assert (problem.rows[0].dtype, problem.rows[1].dtype) == (np.float32, np.int32)
    assert problem.sizes.max() - problem.sizes.min() <= 1


def test_the_test_rows_depend_on_neither_seed_nor_clients_nor_partition():
    first = digits(seed=0)
    for other in (digits(seed=1), digits(7), digits(partition="iid")):
        assert all(np.array_equal(a, b) for a, b in zip(first.test, other.test, strict=True))
        assert first.fingerprint() != other.fingerprint()
    assert first.fingerprint() == digits(20, Dirichlet(0.1), seed=0).fingerprint()


def test_one_client_owns_all_rows():
    problem = digits(clients=1)
    assert problem.sizes.tolist() == [1437]
    assert digits(clients=1, test=None).sizes.tolist() == digits(clients=1, test=0).sizes.tolist() == [1797]
    assert digits(clients=1, test=0).test is None


def test_training_reaches_the_accuracy_that_digits_are_known_for():
    problem = digits(5, "iid", l2=1e-3)
    whole = jax.tree.map(jnp.asarray, problem.pooled().client_data(0))
    flat, unflatten = ravel_pytree(problem.init(jax.random.key(0)))
    slope = jax.jit(jax.value_and_grad(lambda v: problem.loss(unflatten(v), whole)))
    assert float(slope(flat)[0]) == pytest.approx(np.log(10), rel=1e-6)
    found = minimize(
        lambda v: [np.asarray(part, dtype=np.float64) for part in slope(v)],
        flat,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 60},
    )
    accuracy = float(problem.metrics["accuracy"](unflatten(jnp.asarray(found.x, dtype=jnp.float32)), problem.test))
    assert 0.93 < accuracy < 0.99


@pytest.mark.parametrize("l2", [0.0, 0.7])
def test_the_loss_is_cross_entropy_with_a_ridge(l2):
    _, loss, accuracy = logistic(6, 3, l2=l2)
    params = _params(6, 3)
    z = x @ params["weights"].T + params["bias"]
    ridge = l2 / 2 * ((params["weights"] ** 2).sum() + (params["bias"] ** 2).sum())
    with jax.enable_x64(True):
        assert float(loss(params, (x, y))) == pytest.approx(
            -log_softmax(z, axis=1)[np.arange(40), y].mean() + ridge, rel=1e-12
        )
        slope = jax.grad(loss)(params, (jnp.asarray(x), jnp.asarray(y)))
        share = np.exp(log_softmax(z, axis=1)) - np.eye(3)[y]
        assert np.allclose(slope["weights"], share.T @ x / 40 + l2 * params["weights"], atol=1e-12)
        assert np.allclose(slope["bias"], share.mean(axis=0) + l2 * params["bias"], atol=1e-12)
        assert float(accuracy(params, (x, y))) == pytest.approx((z.argmax(axis=1) == y).mean(), rel=1e-12)


def test_the_loss_stays_finite_where_logits_are_large():
    _, loss, _ = logistic(1, 3)
    params = {"weights": jnp.array([[1e4], [0.0], [-1e4]]), "bias": jnp.zeros(3)}
    value, slope = jax.value_and_grad(loss)(params, (jnp.ones((2, 1)), jnp.array([0, 2])))
    assert float(value) == pytest.approx(1e4)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def test_held_out_rows_are_the_share_rounded_up_and_pinned():
    train, out = held_out(10, 0.25)
    assert out.tolist() == [3, 5, 8]
    assert sorted([*train.tolist(), *out.tolist()]) == list(range(10))
    assert len(held_out(1797, 0.2)[1]) == 360
    assert len(held_out(10, "3/10")[1]) == 3


def test_a_classification_problem_of_ones_own():
    problem = classification_problem(x, y, clients=4, partition="iid", test=(x[:5], y[:5]), importance="rows")
    assert (problem.num_clients, problem.num_rows, problem.num_parameters) == (4, 40, 21)
    assert np.array_equal(problem.test[0], x[:5])
    wide = classification_problem(x, y, clients=4, classes=9)
    assert wide.num_parameters == 63


def test_rows_and_their_labels_stay_together_and_out_of_the_test_rows():
    numbered = np.arange(40.0)[:, None]
    problem = classification_problem(numbered, y, clients=3, partition="dirichlet:0.5", test=0.25)
    assert np.array_equal(y[problem.rows[0][:, 0].astype(int)], problem.rows[1])
    assert np.array_equal(y[problem.test[0][:, 0].astype(int)], problem.test[1])
    assert sorted([*problem.rows[0][:, 0], *problem.test[0][:, 0]]) == list(range(40))


def test_a_natural_key_follows_the_rows_that_are_left():
    keys = np.arange(40) // 10
    problem = classification_problem(keys[:, None] * 1.0, y, clients=None, partition=NaturalKey(keys), test=0.25)
    assert problem.num_clients == 4
    assert [np.unique(problem.client_data(i)[0]).tolist() for i in range(4)] == [[0], [1], [2], [3]]


def test_a_model_of_ones_own_takes_rows_of_any_shape():
    def init(key):
        return jax.random.normal(key, (2, 3))

    def loss(params, batch):
        images, labels = batch
        return jnp.mean((jnp.sum(images * params, axis=(1, 2)) - labels) ** 2)

    problem = classification_problem(x.reshape(40, 2, 3), y, clients=2, model=(init, loss, loss))
    assert isinstance(problem, Problem)
    assert problem.parameter_shapes.shape == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"classes": 2}, r"y: labels out of range: row \d+ has label 2, but 2 classes are labelled 0 to 1"),
        ({"y": y - 1}, "y: labels out of range: row [0-9]+ has label -1"),
        ({"test": (x, y + 1)}, "test y: labels out of range: row [0-9]+ has label 3"),
        ({"y": y * 1.0}, "labels are whole numbers"),
        ({"y": y[:-1]}, "y has 39 labels"),
        ({"x": x.reshape(40, 3, 2)}, "flatten it"),
        ({"test": (x, y, y)}, "test: 3 values"),
        ({"test": 1.5}, "leaves no rows for training or for the test"),
        ({"test": 0.99}, "leaves no rows for training or for the test"),
        ({"test": "some"}, "test: 'some' is not a number"),
        ({"test": (x[:, :5], y)}, r"test: leaf 0 has shape \(40, 5\)"),
        ({"model": (1, 2)}, "model: 2 values"),
        ({"clients": 41}, "41 clients cannot share 40 rows"),
    ],
)
def test_what_cannot_be_classified_is_refused(arguments, said):
    given = {"x": x, "y": y, "clients": 2, **arguments}
    with pytest.raises(InputError, match=said):
        classification_problem(given.pop("x"), given.pop("y"), **given)


def test_the_spec_makes_the_digits_again():
    problem = digits(6, "shards:2", seed=4, l2=0.5, test="1/3", importance="rows")
    spec = json.loads(json.dumps(problem.spec()))
    assert spec["arguments"]["partition"] == {"name": "shards", "per_client": 2}
    again = named({"name": "digits", **spec["arguments"]})
    assert again.fingerprint() == problem.fingerprint()
    assert again.spec() == problem.spec()
