"""Convolutions and pooling as products: equal to PyTorch's for any stride, padding, dilation and groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from fedtempo.problems.torch import accelerated, convolution, foreign  # noqa: E402


def random_case(seed):
    """Images, a kernel and how it walks."""
    generator = np.random.default_rng(seed)
    axes, groups = int(generator.integers(1, 3)), int(generator.choice([1, 1, 2, 3]))
    before, after = groups * generator.integers(1, 4, 2)
    size, stride, dilation = (generator.integers(1, high, axes).tolist() for high in (5, 4, 3))
    padding = [int(generator.integers(0, k + 1)) for k in size]
    shape = [d * (k - 1) + 1 + int(generator.integers(0, 7)) for d, k in zip(dilation, size, strict=True)]
    x = generator.normal(size=(int(generator.integers(1, 8)), before, *shape))
    return x, generator.normal(size=(after, before // groups, *size)), (stride, padding, dilation, groups)


def compare(ours, theirs, *arrays):
    """Value and gradients."""
    tensors = [torch.tensor(each, requires_grad=True) for each in arrays]
    expected = theirs(*tensors)
    dy = np.random.default_rng(0).normal(size=expected.shape)
    expected.backward(torch.tensor(dy))
    with jax.enable_x64(True):
        found, back = jax.vjp(ours, *map(jnp.asarray, arrays))
        np.testing.assert_allclose(found, expected.detach(), atol=1e-11)
        for gradient, tensor in zip(back(jnp.asarray(dy)), tensors, strict=True):
            np.testing.assert_allclose(gradient, tensor.grad, atol=1e-11)


@pytest.mark.parametrize("cached", [1, 3000, 1 << 22])
@pytest.mark.parametrize("seed", range(12))
def test_convolutions_are_pytorchs(seed, cached, monkeypatch):
    """One image at a time, a few, and all of them."""
    monkeypatch.setattr(convolution, "CACHED", cached)
    x, kernel, how = random_case(seed)
    theirs = F.conv1d if x.ndim == 3 else F.conv2d
    compare(lambda x, w: convolution.convolve(x, w, *how), lambda x, w: theirs(x, w, None, *how), x, kernel)


def test_models_that_are_batched_take_turns(monkeypatch):
    monkeypatch.setattr(convolution, "CACHED", 3000)
    x, kernel, how = random_case(3)

    def loss(kernel, x):
        return (convolution.convolve(x, kernel, *how) ** 2).sum()

    with jax.enable_x64(True):
        kernels = jnp.stack([kernel, 2 * kernel, -kernel])
        together = jax.jit(jax.vmap(jax.grad(loss), in_axes=(0, None)))(kernels, jnp.asarray(x))
        alone = [jax.grad(loss)(each, jnp.asarray(x)) for each in kernels]
        np.testing.assert_allclose(together, jnp.stack(alone), atol=1e-9)


@pytest.mark.parametrize("saved", [0, 1 << 26])
@pytest.mark.parametrize("seed", range(12))
def test_those_of_graphics_processors_are_pytorchs(seed, saved, monkeypatch):
    """Patches kept for the backward pass or made again; without a gradient, too."""
    monkeypatch.setattr(accelerated, "SAVED", saved)
    x, kernel, (stride, padding, dilation, _) = random_case(seed)
    x, how = x[:, : kernel.shape[1]], (stride, padding, dilation)
    theirs = F.conv1d if x.ndim == 3 else F.conv2d
    compare(lambda x, w: accelerated.convolve(x, w, *how), lambda x, w: theirs(x, w, None, *how), x, kernel)
    with jax.enable_x64(True):
        value = accelerated.convolve(jnp.asarray(x), jnp.asarray(kernel), *how)
        np.testing.assert_allclose(value, theirs(torch.tensor(x), torch.tensor(kernel), None, *how), atol=1e-11)


def test_graphics_processors_take_many_models_at_once():
    x, kernel, (stride, padding, dilation, _) = random_case(1)
    x = x[:, : kernel.shape[1]]

    def loss(kernel, x):
        return (accelerated.convolve(x, kernel, stride, padding, dilation) ** 2).sum()

    with jax.enable_x64(True):
        kernels = jnp.stack([kernel, 2 * kernel, -kernel])
        together = jax.jit(jax.vmap(jax.grad(loss), in_axes=(0, None)))(kernels, jnp.asarray(x))
        alone = [jax.grad(loss)(each, jnp.asarray(x)) for each in kernels]
        np.testing.assert_allclose(together, jnp.stack(alone), atol=1e-9)


@pytest.mark.parametrize("processor", [True, False])
@pytest.mark.parametrize(
    ("size", "stride", "padding", "dilation"),
    [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), ((2, 3), (1, 2), (1, 0), (2, 1))],
)
def test_pooling_is_pytorchs_where_numbers_are_equal_too(size, stride, padding, dilation, processor, monkeypatch):
    monkeypatch.setattr(convolution, "_processor", lambda: processor)
    x = np.random.default_rng(1).integers(0, 3, (2, 3, 9, 8)).astype(float)
    pair = [(each, each) if isinstance(each, int) else each for each in (size, stride, padding, dilation)]
    compare(lambda x: convolution.max_pool(x, *pair), lambda x: F.max_pool2d(x, size, stride, padding, dilation), x)
    compare(lambda x: convolution.average_pool(x, *pair[:3]), lambda x: F.avg_pool2d(x, size, stride, padding), x)


FOREIGN = pytest.mark.skipif(not foreign.available(), reason="this XLA takes no functions of Python's")


@FOREIGN
@pytest.mark.parametrize("seed", range(12))
def test_pytorchs_own_inside_a_program(seed):
    x, kernel, (stride, padding, dilation, groups) = random_case(seed)
    bias = np.random.default_rng(seed).normal(size=len(kernel))
    theirs = F.conv1d if x.ndim == 3 else F.conv2d
    places = theirs(torch.tensor(x), torch.tensor(kernel), None, stride, padding, dilation, groups).shape[2:]
    numbers = (*stride, *padding, *dilation, groups)
    compare(
        jax.jit(lambda *given: foreign.convolve(numbers, tuple(places), *given)),
        lambda *given: theirs(*given, stride, padding, dilation, groups),
        *(x, kernel, bias),
    )


@FOREIGN
def test_pytorchs_own_for_models_at_once_in_a_loop_and_in_threads():
    generator = np.random.default_rng(2)
    x, kernels = generator.normal(size=(64, 3, 9, 8)), generator.normal(size=(4, 5, 3, 3, 3))
    x, kernels = x.astype(np.float32), kernels.astype(np.float32)

    def total(x, kernels):
        def one(kernel):
            return foreign.convolve((1, 1, 1, 1, 1, 1, 1), (9, 8), x, kernel, jnp.zeros(5, x.dtype))

        def step(total, _):
            return total + jnp.abs(jax.vmap(one)(kernels)).sum(), None

        return jax.lax.scan(step, jnp.zeros((), x.dtype), None, length=3)[0]

    each = [F.conv2d(torch.tensor(x), torch.tensor(kernel), padding=1).abs().sum() for kernel in kernels]
    program = jax.jit(total)
    with ThreadPoolExecutor(6) as pool:
        found = [float(each) for each in pool.map(lambda _: program(x, kernels), range(24))]
    np.testing.assert_allclose(found, 3 * float(sum(each)), rtol=1e-4)


@FOREIGN
def test_threads_share_many_images(monkeypatch):
    monkeypatch.setattr(foreign, "SHARED", 1)
    monkeypatch.setattr(foreign, "_SHARES", 3)
    generator, before = np.random.default_rng(3), torch.get_num_threads()
    compare(
        jax.jit(lambda *given: foreign.convolve((2, 1, 1, 1, 1, 1, 1), (4, 7), *given)),
        lambda *given: F.conv2d(*given, stride=(2, 1), padding=1),
        *(generator.normal(size=shape) for shape in ((7, 3, 8, 7), (5, 3, 3, 3), (5,))),
    )
    assert torch.get_num_threads() == before


@FOREIGN
def test_an_error_of_pytorch_comes_out():
    x, kernel, bias = jnp.ones((2, 3, 5)), jnp.ones((4, 2, 2)), jnp.zeros(4)
    with pytest.raises(Exception, match="RuntimeError: Given groups=1, weight of size"):
        jax.block_until_ready(foreign.convolve((1, 0, 1, 1), (4,), x, kernel, bias))
