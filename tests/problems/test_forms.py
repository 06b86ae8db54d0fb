"""Which form a loss has is found from its signature; what fits none is refused in a sentence."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtempo.errors import InputError
from fedtempo.problems import Problem
from support.stateful import DATA, START, dropout_loss, init, normed_loss, spread


def plain(params, batch):
    return jnp.mean(batch[0] @ params["a"])


def returning(state):
    return lambda params, batch, key, old: (plain(params, batch), state)


class Called:
    def __call__(self, params, batch, key):
        return dropout_loss(params, batch, key)


@pytest.mark.parametrize(
    ("loss", "keyed"),
    [
        (plain, False),
        (jax.jit(plain), False),
        (lambda *given: plain(*given), False),
        (lambda params, batch, key=None: plain(params, batch), False),
        (lambda params, batch, *, scale=2.0: scale * plain(params, batch), False),
        (dropout_loss, True),
        (jax.jit(dropout_loss), True),
        (Called(), True),
        (partial(lambda scale, params, batch, key: scale * dropout_loss(params, batch, key), 2.0), True),
        (lambda params, batch, key, state=None: dropout_loss(params, batch, key), True),
    ],
)
def test_the_arguments_without_a_default_count(loss, keyed):
    form = Problem(init, loss, DATA).form
    assert (form.keyed, form.stateful, form.plain) == (keyed, False, not keyed)


def test_a_state_is_a_tree_or_a_function_of_the_key():
    for state in (START, lambda key: START):
        problem = Problem(init, normed_loss, DATA, state=state, metrics={"spread": spread, "plain": plain})
        assert problem.form.stateful
        assert problem.state_shapes["bn"]["var"].shape == (3,)
        assert problem.spec()["state"] == 7
    assert "state" not in Problem(init, plain, DATA).spec()
    other = Problem(init, normed_loss, DATA, state={**START, "count": np.int32(4)})
    same = [Problem(init, normed_loss, DATA, state=START) for _ in range(2)]
    assert same[0].fingerprint() == same[1].fingerprint() != other.fingerprint()


def test_a_function_may_use_up_the_state_that_it_is_given():
    def loss(params, batch, key, state):
        state["count"] = state["count"] + 1
        return plain(params, batch), state

    form = Problem(init, loss, DATA, state={"count": np.int32(0)}).form
    state = {"count": jnp.int32(1)}
    with_key = form.training(init(jax.random.key(0)), DATA[0], jax.random.key(1), state)
    assert (int(with_key[1]["count"]), int(state["count"])) == (2, 1)


@pytest.mark.parametrize(
    ("loss", "state", "message"),
    [
        (lambda a, b, c, d, e: 0.0, None, r"loss takes 5 arguments; write loss\(params, batch\), "),
        (normed_loss, None, r"needs an initial state; give Problem\(..., state=...\)"),
        (plain, START, "state: the loss takes 2 arguments and no state; write"),
        (dropout_loss, START, "state: the loss takes 3 arguments and no state; write"),
        (lambda p, b, k, s: plain(p, b), START, r"does not return a pair; return \(mean loss, new state\)"),
        (returning({"bn": 1.0}), START, r"was given a state \(bn.mean: .* and returns \(bn: float32\[\]\); return the"),
        (returning({**START, "count": 0.5}), START, "count: float32.*; return the same arrays, with new values"),
        (returning({**START, "count": np.zeros(2, int)}), START, "return the same arrays, with new values"),
        (lambda p, b, k: jax.random.normal(k), None, "loss.params, batch, key. fails without a key on"),
        (lambda p, b, k, s: (b[1], s), START, r"loss\(params, batch, key, state\) is not a scalar"),
        (normed_loss, {}, "state: there are no arrays in it"),
        (normed_loss, {"x": "text"}, "state: making it fails"),
        (normed_loss, lambda: START, "state: making it fails"),
        (normed_loss, jax.random.key(0), "holds key<fry>; give numbers, and use the key for random values"),
    ],
)
def test_what_fits_no_form_is_refused_in_a_sentence(loss, state, message):
    with pytest.raises(InputError, match=message) as error:
        Problem(init, loss, DATA, state=state)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("metric", "state", "message"),
    [
        (spread, None, "metric 'm' takes a state, and the problem has none"),
        (lambda a, b, c, d: 0.0, START, "metric 'm' takes 4 arguments"),
        (lambda p, b, s: s["missing"], START, r"metric 'm'\(params, batch, state\) fails"),
        (lambda p, b, s: s["bn"]["mean"], START, r"metric 'm'\(params, batch, state\) is not a scalar"),
    ],
)
def test_metrics_that_fit_no_form(metric, state, message):
    loss = plain if state is None else normed_loss
    with pytest.raises(InputError, match=message):
        Problem(init, loss, DATA, state=state, metrics={"m": metric})
