"""Networks against PyTorch's answers and against plain loops; the rules that every model keeps."""

from __future__ import annotations

import os
from itertools import product as cases
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems.models import channels_first, cnn, convolution, logistic, lstm
from fedtempo.problems.models.convolution import convolve, max_pool
from fedtempo.problems.models.precision import product
from fedtempo.problems.models.recurrent import plain_recurrence, recurrence

CLOSE = 1e-11 if "FEDTEMPO_FULL_COMPILE" in os.environ else 1e-6
"""Programs that were not optimised have exponentials of fewer digits; `make test-slow` looks closely."""
BY_TORCH = np.load(Path(__file__).parents[1] / "support" / "models_by_torch.npz")
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
COUNTS = {"authors": 122_570, "fedavg-cifar": 1_068_298, "fedavg-mnist": 1_663_370, "lstm": 132_720}
NAMES = tuple(COUNTS)


def network(name, **more):
    """As benchmarks/models_by_torch.py has it."""
    if name == "lstm":
        return lstm(80, **more)
    shape = (28, 28, 1) if name == "fedavg-mnist" else (32, 32, 3)
    return cnn(name, shape, mean=MEAN[: shape[2]], deviation=DEVIATION[: shape[2]], **more)


def stored(name):
    return jnp.asarray(BY_TORCH[f"{name}/x"]), jnp.asarray(BY_TORCH[f"{name}/y"])


def small(kind, **more):
    """A model that compiles fast, with a batch."""
    generator = np.random.default_rng(1)
    if kind == "lstm":
        model = lstm(11, embedding=3, hidden=5, **more)
        x, y = generator.integers(0, 11, (7, 6), dtype=np.uint8), generator.integers(0, 11, 7)
    elif kind == "logistic":
        model = logistic(12, 4, l2=0.1)
        x, y = generator.integers(0, 256, (7, 12), dtype=np.uint8), generator.integers(0, 4, 7)
    else:
        model = cnn("authors", (18, 18, 2), 4, mean=(0.4, 0.5), deviation=(0.2, 0.3), **more)
        x, y = generator.integers(0, 256, (7, 18, 18, 2), dtype=np.uint8), generator.integers(0, 4, 7)
    return model, (jnp.asarray(x), jnp.asarray(y, jnp.int32))


def as_float64(params):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)


def digest(leaf):
    flat = np.asarray(leaf, np.float64).ravel()
    places = np.arange(1, len(flat) + 1)
    return np.array([np.linalg.norm(flat), *(flat @ np.sin(j * places) for j in (1, 2, 3))])


def assert_as_torch(name, loss, gradient, tolerance):
    np.testing.assert_allclose(loss, BY_TORCH[f"{name}/loss"], rtol=tolerance)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        place = f"{name}/gradient/{jax.tree_util.keystr(path, simple=True, separator='.')}"
        expected = BY_TORCH[f"{place}/digest"]
        # a leaf's products with fixed vectors cancel: they are as exact as its norm, not as themselves
        np.testing.assert_allclose(digest(leaf), expected, rtol=0, atol=10 * tolerance * expected[0], err_msg=place)
        if f"{place}/whole" in BY_TORCH:
            whole = BY_TORCH[f"{place}/whole"]
            np.testing.assert_allclose(leaf, whole, rtol=0, atol=tolerance * np.abs(whole).max(), err_msg=place)


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_are_those_of_torch(name):
    model = network(name)
    params = model.init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == COUNTS[name]
    found = jax.jit(jax.value_and_grad(model.loss))
    if name in ("authors", "lstm"):
        assert_as_torch(name, *found(params, stored(name)), 2e-5)
    with jax.enable_x64(True):
        loss, gradient = found(as_float64(params), stored(name))
        assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype(np.float64)}
        assert_as_torch(name, loss, gradient, CLOSE)


def test_logits_are_those_of_torch():
    """The loss of a row under every label is −log softmax of its logits."""
    model, x, logits = network("lstm"), stored("lstm")[0], BY_TORCH["lstm/logits"]
    with jax.enable_x64(True):
        params, loss = as_float64(model.init(jax.random.key(0))), jax.jit(model.loss)
        labels = range(logits.shape[1])
        found = [[loss(params, (row[None], jnp.array([label]))) for label in labels] for row in x]
        expected = np.log(np.exp(logits).sum(axis=1, keepdims=True)) - logits
        np.testing.assert_allclose(found, expected, rtol=CLOSE)
        best = jnp.asarray(logits.argmax(axis=1)).at[0].add(1)  # one of four is wrong
        assert jax.jit(model.accuracy)(params, (x, best % logits.shape[1])) == 0.75


@pytest.mark.parametrize(("kind", "tolerance"), [("authors", 0.2), ("lstm", 0.01)])
def test_bfloat16_is_close_and_gradients_keep_the_parameters_type(kind, tolerance):
    """Of 448 hidden units of the convolutional network a few switch sides at zero: 10 % of its gradient."""
    exact, batch = small(kind)
    rounded, _ = small(kind, compute="bfloat16")
    params = exact.init(jax.random.key(3))
    loss, gradient = jax.jit(jax.value_and_grad(exact.loss))(params, batch)
    loss_16, gradient_16 = jax.jit(jax.value_and_grad(rounded.loss))(params, batch)
    assert loss_16.dtype == jnp.float32
    assert loss_16 != loss
    np.testing.assert_allclose(loss_16, loss, rtol=1e-3)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient_16)} == {np.dtype(np.float32)}
    one, other = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(d)]) for d in (gradient_16, gradient))
    assert np.linalg.norm(one - other) < tolerance * np.linalg.norm(other)


def test_bfloat16_rounds_no_sum_over_rows():
    """1 001 is no number of bfloat16, and ones added up in it stay at 256."""
    x, w = jnp.ones((1001, 2), jnp.bfloat16), jnp.ones((2, 3))
    assert (jax.grad(lambda w: product(x, w).astype(jnp.float32).sum())(w) == 1001).all()
    assert (jax.grad(lambda w: product(x.T, w, 0).astype(jnp.float32).sum())(w) == 1001).all()
    still = jnp.zeros((4, 1, 1001), jnp.bfloat16)
    bias = jax.grad(lambda b: recurrence(still, jnp.zeros((1, 4)), b).astype(jnp.float32).sum())(jnp.zeros(4))
    np.testing.assert_array_equal(bias, [0, 0, 1001 * 0.25, 0])  # o · i · g' with i = o = 1/2


def test_unknown_compute_is_refused():
    for make in (lambda: lstm(80, compute="float16"), lambda: cnn("authors", (32, 32, 3), compute="float16")):
        with pytest.raises(ft.InputError, match="compute: 'float16' is not known; use one of float32, bfloat16"):
            make()


@pytest.mark.parametrize(("same", "size", "height", "width"), [(False, 3, 5, 6), (True, 5, 6, 4), (True, 2, 3, 3)])
def test_convolution_is_the_plain_loop(same, size, height, width):
    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(2, height, width, 3)), generator.normal(size=(size, size, 3, 4))
    low = (size - 1) // 2 if same else 0
    tall, wide = (height, width) if same else (height - size + 1, width - size + 1)
    expected = np.zeros((2, tall, wide, 4))
    for r, c, i, j in cases(range(tall), range(wide), range(size), range(size)):
        if 0 <= r + i - low < height and 0 <= c + j - low < width:
            expected[:, r, c] += x[:, r + i - low, c + j - low] @ w[i, j]
    with jax.enable_x64(True):
        found = convolve(jnp.asarray(x), jnp.asarray(w), same=same)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 4), (7, 3)])
def test_pooling_is_the_plain_loop(height, width):
    x = np.random.default_rng(0).normal(size=(2, height, width, 3)).astype(np.float32)
    pull = np.random.default_rng(1).normal(size=(2, height // 2, width // 2, 3)).astype(np.float32)
    expected, gradient = np.zeros_like(pull), np.zeros_like(x)
    for n, r, c, k in np.ndindex(*pull.shape):
        square = x[n, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2, k]
        i, j = divmod(int(square.argmax()), 2)
        expected[n, r, c, k] = square[i, j]
        gradient[n, 2 * r + i, 2 * c + j, k] = pull[n, r, c, k]
    found, back = jax.vjp(max_pool, jnp.asarray(x))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(back(jnp.asarray(pull))[0], gradient)


def test_recurrence_and_its_gradient_are_those_of_the_equations():
    generator = np.random.default_rng(0)
    hidden, length, rows = 3, 5, 4
    shapes = ((4 * hidden, length, rows), (hidden, 4 * hidden), (4 * hidden,))
    with jax.enable_x64(True):
        given = tuple(jnp.asarray(generator.normal(size=shape)) for shape in shapes)
        pull, ways = (
            jnp.asarray(generator.normal(size=(hidden, length, rows))),
            tuple(jnp.asarray(generator.normal(size=shape)) for shape in shapes),
        )
        found, back = jax.vjp(recurrence, *given)
        plain, plain_back = jax.vjp(plain_recurrence, *given)
        np.testing.assert_allclose(found, plain, rtol=1e-12)
        for one, other in zip(back(pull), plain_back(pull), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
        h = 1e-6
        ahead, behind = (
            recurrence(*(a + sign * h * way for a, way in zip(given, ways, strict=True))) for sign in (1, -1)
        )
        slope = ((ahead - behind) * pull).sum() / (2 * h)
        along = sum((d * way).sum() for d, way in zip(back(pull), ways, strict=True))
        np.testing.assert_allclose(along, slope, rtol=1e-7)


@pytest.mark.parametrize("kind", ["authors", "lstm", "logistic"])
def test_runs_side_by_side_are_as_one_by_one(kind):
    """Parameters have the runs along their last axis, and any axes before them, as the engines have them."""
    model, batch = small(kind)
    init = jax.jit(model.init)
    many = [jax.tree.map(lambda leaf: leaf + 0.01, init(jax.random.key(k))) for k in range(3)]
    many[1] = jax.tree.map(lambda leaf: -leaf, many[1])  # logistic regression starts at one place
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=-1)[None], *many)
    gradient = jax.jit(jax.value_and_grad(model.loss))
    runs = jax.vmap(jax.vmap(gradient, (-1, None), (0, -1)), (0, None))
    losses, found = jax.jit(runs)(together, batch)
    for k, params in enumerate(many):
        loss, expected = gradient(params, batch)
        np.testing.assert_allclose(losses[0, k], loss, rtol=1e-5)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one[0, ..., k], other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(
    ("kind", "lr", "more"), [("authors", 0.1, {}), ("lstm", 0.5, {"compute": "bfloat16"}), ("logistic", 0.5, {})]
)
def test_training_lowers_the_loss(kind, lr, more):
    model, batch = small(kind, **more)
    start = model.init(jax.random.key(0))

    def step(_, params):
        return jax.tree.map(lambda p, d: p - lr * d, params, jax.grad(model.loss)(params, batch))

    end = jax.jit(lambda params: jax.lax.fori_loop(0, 60, step, params))(start)
    loss, accuracy = jax.jit(model.loss), jax.jit(model.accuracy)
    assert loss(end, batch) < 0.8 * loss(start, batch)
    assert accuracy(end, batch) > accuracy(start, batch)


@pytest.mark.parametrize("kind", ["authors", "lstm"])
def test_init_is_the_same_in_64_bits_and_draws_every_leaf_apart(kind):
    model, _ = small(kind)
    init = jax.jit(model.init)
    plain = init(jax.random.key(5))
    with jax.enable_x64(True):
        wide = init(jax.random.key(5))
    leaves = jax.tree.leaves(plain)
    for one, other in zip(leaves, jax.tree.leaves(wide), strict=True):
        np.testing.assert_array_equal(one, other)
    starts = [tuple(np.asarray(leaf / np.abs(leaf).max()).ravel()[:2].tolist()) for leaf in leaves]
    assert len(set(starts)) == len(starts)


def test_a_leaf_keeps_its_start_when_others_are_added():
    one, two = (lstm(11, embedding=3, hidden=5, layers=layers).init(jax.random.key(0)) for layers in (1, 2))
    np.testing.assert_array_equal(one["lstm0"]["hidden"], two["lstm0"]["hidden"])
    np.testing.assert_array_equal(one["output"]["weights"], two["output"]["weights"])


def test_layers_start_within_one_over_the_root_of_their_inputs():
    params = cnn("authors", (32, 32, 3)).init(jax.random.key(0))
    for layer, fan_in in (("conv0", 27), ("conv1", 288), ("dense0", 1024)):
        for leaf in params[layer].values():
            assert 0.9 < np.abs(leaf).max() * fan_in**0.5 <= 1


def test_bytes_are_scaled():
    """A 1 × 1 image of a linear model: the loss tells the number that a byte becomes."""
    model = logistic(1, 2)
    params = {"weights": jnp.array([[0.0], [2.0]]), "bias": jnp.zeros(2)}
    byte = model.loss(params, (jnp.array([[51]], jnp.uint8), jnp.array([1])))
    number = model.loss(params, (jnp.array([[0.2]]), jnp.array([1])))
    np.testing.assert_allclose([byte, number], np.log1p(np.exp(-0.4)), rtol=1e-6)


def test_images_are_scaled_by_mean_and_deviation():
    given, (x, y) = small("authors")
    plain = cnn("authors", (18, 18, 2), 4)
    params = given.init(jax.random.key(0))
    level = jnp.full_like(x, 51)  # 0.2, which (0.4, 0.5) and (0.2, 0.3) make −1
    flipped = jax.tree.map(lambda leaf: leaf, params) | {
        "conv0": {"weights": -5 * params["conv0"]["weights"], "bias": params["conv0"]["bias"]}
    }
    np.testing.assert_allclose(given.loss(params, (level, y)), plain.loss(flipped, (level, y)), rtol=1e-5)


def test_the_crop_is_central():
    model = cnn("fedavg-cifar", (32, 32, 3))
    params = model.init(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8))
    loss = jax.jit(model.loss)
    of = [
        loss(params, (image, jnp.array([3])))
        for image in (x, jnp.zeros_like(x).at[:, 4:28, 4:28].set(x[:, 4:28, 4:28]))
    ]
    assert of[0] == of[1]
    assert all(loss(params, (x.at[:, i, j].add(99), jnp.array([3]))) != of[0] for i, j in ((4, 4), (27, 27)))


def test_wrong_networks_are_refused():
    with pytest.raises(ft.InputError, match="model: 'resnet' is not known; use one of authors, fedavg-cifar"):
        cnn("resnet", (32, 32, 3))
    for name, side in (("authors", 17), ("fedavg-cifar", 23), ("fedavg-mnist", 3)):
        with pytest.raises(ft.InputError, match=f"images of {side} × 40 are too small for {name}; give larger ones"):
            cnn(name, (side, 40, 1))
    with pytest.raises(ft.InputError, match="mean: 2 numbers for 3 channels; give one, or one for each"):
        cnn("authors", (32, 32, 3), mean=(0.5, 0.5))


def test_images_need_not_be_square():
    model = cnn("authors", (18, 23, 1), 3)
    batch = jnp.zeros((2, 18, 23, 1), jnp.uint8), jnp.array([0, 2])
    assert jax.eval_shape(model.loss, model.init(jax.random.key(0)), batch).shape == ()


@pytest.mark.parametrize(("name", "side"), [("authors", 20), ("fedavg-cifar", 24)])
def test_both_orders_of_images_give_the_same_network(name, side, monkeypatch) -> None:
    """Processors have rows first, accelerators channels first."""
    model = cnn(name, (side, side, 3), mean=(0.5, 0.4, 0.3), deviation=(0.2, 0.3, 0.1))
    rng = np.random.default_rng(5)
    batch = (jnp.asarray(rng.integers(0, 256, (3, side, side, 3)), jnp.uint8), jnp.array([1, 7, 3]))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.init(jax.random.key(0)))
        found = []
        for backend in ("cpu", "gpu"):
            with monkeypatch.context() as patch:
                patch.setattr(jax, "default_backend", lambda backend=backend: backend)
                found.append(jax.jit(jax.value_and_grad(lambda p: model.loss(p, batch)))(params))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_pooling_channels_first_is_pooling() -> None:
    x = np.random.default_rng(6).normal(size=(2, 5, 7, 3))
    turned = jnp.asarray(x.transpose(3, 1, 2, 0))
    plain, back = jax.vjp(convolution.max_pool, jnp.asarray(x))
    other, back_other = jax.vjp(channels_first.max_pool, turned)
    np.testing.assert_allclose(other.transpose(3, 1, 2, 0), plain)
    dy = jnp.asarray(np.random.default_rng(7).normal(size=plain.shape), plain.dtype)
    np.testing.assert_allclose(back_other(dy.transpose(3, 1, 2, 0))[0].transpose(3, 1, 2, 0), back(dy)[0])
    flat = channels_first.max_pool(jnp.ones((1, 2, 2, 1)))
    gradient = jax.grad(lambda x: channels_first.max_pool(x).sum())(jnp.ones((1, 2, 2, 1)))
    assert float(flat.sum()) == 1
    assert gradient.ravel().tolist() == [1, 0, 0, 0]


def test_the_network_of_the_scripts_has_no_relu_after_its_third_convolution():
    scripts, plain = (cnn(name, (18, 18, 2), 4) for name in ("scripts", "authors"))
    params = scripts.init(jax.random.key(3))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), params, plain.init(jax.random.key(3)))
    assert all(jax.tree.leaves(same))
    x, y = small("authors")[1]

    def layer(z, name):
        z = jax.lax.conv_general_dilated(
            z, params[name]["weights"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return z + params[name]["bias"]

    def pool(z):
        return jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    z = layer(pool(jax.nn.relu(layer(pool(jax.nn.relu(layer(x / 255.0, "conv0"))), "conv1"))), "conv2")
    flat = z.reshape(len(x), -1)
    hidden = jax.nn.relu(flat @ params["dense0"]["weights"] + params["dense0"]["bias"])
    logits = hidden @ params["dense1"]["weights"] + params["dense1"]["bias"]
    expected = float(jnp.mean(jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(len(y)), y]))
    assert float(scripts.loss(params, (x, y))) == pytest.approx(expected, rel=1e-5)
    assert float(plain.loss(params, (x, y))) != pytest.approx(expected, rel=1e-4)
