"""The state that the server makes of a round's answers is the one that a deployed server makes of its buffers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.training.state_average import StateAverage

cases = settings(derandomize=True, deadline=None, max_examples=30)
weights = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 2.5]), min_size=1, max_size=5)


def some_state(generator):
    return {
        "bn": {"running_mean": generator.normal(size=3) * 10, "running_var": generator.random(3)},
        "free": generator.normal(size=(2, 2)),
        "num_batches_tracked": np.array(generator.integers(-9, 9)),
    }


def shapes(tree):
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree))


def after_a_round(state, given):
    average = StateAverage.of(shapes(state))
    held = average.start(jax.tree.map(jnp.asarray, state), jnp.zeros(()))
    for weight, values in given:
        held = average.add(held, jax.tree.map(jnp.asarray, values), jnp.asarray(weight))
    return average.close(held)


@cases
@given(weights, st.integers(0, 99))
def test_it_is_what_a_deployed_server_makes_of_buffers(weights, seed):
    buffers = pytest.importorskip("fedtempo.flower.buffers")
    generator = np.random.default_rng(seed)
    state, *answers = (some_state(generator) for _ in range(len(weights) + 1))

    def flat(tree):
        return {
            jax.tree_util.keystr(p, simple=True): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)
        }

    named = list(zip(weights, map(flat, answers), strict=True))
    want = buffers.Buffers(flat(state), list(flat(state))).averaged(flat(state), named)
    with jax.enable_x64(True):
        found = after_a_round(state, list(zip(weights, answers, strict=True)))
        for name, value in flat(found.state).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-12, atol=1e-12, err_msg=name)
    assert float(found.mass) == 0


def test_nothing_cancels_in_a_variance():
    """Means of a million and variances of a millionth, in 32 bits: m₂ − mean² would be noise."""
    state = {"mean": np.full(2, 1e6, np.float32), "var": np.full(2, 1e-6, np.float32)}
    found = after_a_round(state, [(0.25, state), (0.5, state)]).state
    np.testing.assert_allclose(found["var"], 1e-6, rtol=1e-6)


def test_answers_of_no_weight_do_not_enter_even_where_they_are_no_numbers():
    state = {"free": np.ones(2), "count": np.int32(4)}
    found = after_a_round(state, [(0.0, {"free": np.full(2, np.nan), "count": np.int32(9)})]).state
    assert found["free"].tolist() == [1, 1]
    assert int(found["count"]) == 4


@pytest.mark.parametrize(
    ("mean", "variance", "belong"),
    [
        ("running_mean", "running_var", True),
        ("moving_mean", "moving_variance", True),
        ("moving_mean", "moving_var", True),
        ("mean", "var", True),
        ("other_mean", "var", False),
        ("mean", "variants", False),
    ],
)
def test_means_are_found_beside_their_variances(mean, variance, belong):
    found = StateAverage.of(shapes({mean: np.ones(2, np.float32), variance: np.ones(2, np.float32)}))
    assert found.mean_of == (None, 0 if belong else None)


def test_a_mean_of_another_shape_or_layer_is_none():
    ones, three = np.ones(2, np.float32), np.ones(3, np.float32)
    assert StateAverage.of(shapes({"mean": ones, "var": three})).mean_of == (None, None)
    assert StateAverage.of(shapes({"a": {"mean": ones}, "b": {"var": ones}})).mean_of == (None, None)
    assert StateAverage.of(shapes({"bn": {"mean": [ones], "var": [ones]}})).mean_of == (None, 0)
