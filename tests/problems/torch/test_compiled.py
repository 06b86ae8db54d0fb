"""Modules of PyTorch as functions of JAX: equal to PyTorch, in every mode, or refused in a line."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if find_spec("torchax") is None:  # not imported here: that would change torch, which one of the tests looks at
    pytest.skip("torchax is not installed", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fedtempo.problems.torch.compiled import NotCompilable, compiled  # noqa: E402

ROWS, CLASSES = 6, 4
GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(ROWS, 5)).astype(np.float32)
IMAGES = GENERATOR.normal(size=(ROWS, 2, 8, 8)).astype(np.float32)
TEXTS = GENERATOR.integers(0, 9, (ROWS, 7)).astype(np.int32)
Y = GENERATOR.integers(0, CLASSES, ROWS).astype(np.int32)
FULLY = {"xla_backend_optimization_level": 3}
CLOSE = {"float32": 1e-4, "float64": 1e-9}


def cross_entropy(module, batch):
    return F.cross_entropy(module(batch[0]), batch[1])


def accuracy(module, batch):
    return (module(batch[0]).argmax(1) == batch[1]).float().mean()


class Texts(nn.Module):
    """Of an embedding, `middle` and a linear layer."""

    def __init__(self, middle, width, pick):
        super().__init__()
        self.embedding, self.middle, self.out = nn.Embedding(9, 8), middle, nn.Linear(width, CLASSES)
        self.pick = pick

    def forward(self, x):
        return self.out(self.pick(self.middle(self.embedding(x))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 9)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        place = torch.arange(x.shape[1])
        return self.out((self.embedding(x) * place[:, None]).mean(1))


class Mixed(nn.Module):
    """Half of it in 16 bits."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8).bfloat16(), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.second(self.first(x.bfloat16()).to(x.dtype))


class Buffered(nn.Module):
    """Keeps a mean, by a new tensor each time."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, CLASSES)
        self.register_buffer("mean", torch.zeros(CLASSES))

    def forward(self, x):
        y = self.linear(x)
        if self.training:
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
        return y - self.mean


def frozen():
    module = nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(), nn.Linear(6, CLASSES))
    module[0].requires_grad_(False)
    return module


def last(found):
    return found[0][:, -1]


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, CLASSES)), X),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3),
            nn.Flatten(),
            nn.Linear(16, 4),
        ),
        IMAGES,
    ),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 4)
        ),
        IMAGES,
    ),
    "batch norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
        ),
        IMAGES,
    ),
    "batch norm of rows": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Linear(6, 4)), X),
    "lstm": (lambda: Texts(nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True), 10, last), TEXTS),
    "gru": (lambda: Texts(nn.GRU(8, 5, batch_first=True), 5, last), TEXTS),
    "rnn": (lambda: Texts(nn.RNN(8, 5, batch_first=True, bias=False, nonlinearity="relu"), 5, last), TEXTS),
    "transformer": (
        lambda: Texts(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), 8, lambda h: h.mean(1)),
        TEXTS,
    ),
    "tied": (Tied, TEXTS),
    "frozen": (frozen, X),
    "buffered": (Buffered, X),
    "spectral norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))), X),
}


def made(name):
    """The module and a batch."""
    make, x = MODULES[name]
    torch.manual_seed(5)
    return make(), (x, Y)


def tensors(batch, kind):
    x, y = (torch.tensor(np.asarray(leaf)) for leaf in batch)
    return x.to(kind) if x.is_floating_point() else x.long(), y.long()


def parameters(module):
    """Those that are trained."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def arrays(named, dtype):
    def array(each):
        found = each.detach().numpy()
        return jnp.array(found, dtype if found.dtype.kind == "f" else None)  # a copy: PyTorch goes on with its own

    return {name: array(each) for name, each in named.items()}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", MODULES)
def test_loss_gradient_and_buffers_are_pytorchs_for_two_models_at_once(name, dtype, training):
    module, batch = made(name)
    function = compiled(module, cross_entropy, {}, batch, dtype)
    with jax.enable_x64(dtype == "float64"):
        params, state = arrays(parameters(module), dtype), arrays(dict(module.named_buffers()), dtype)
        two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf * 1.25]), params)

        def loss(params):
            key = jax.random.key(0) if training else None
            return function.loss(params, jax.tree.map(jnp.asarray, batch), key, state)

        step = jax.vmap(jax.value_and_grad(loss, has_aux=True))
        (values, states), gradients = jax.jit(step, compiler_options=FULLY)(two)
        for k, scale in enumerate((1, 1.25)):
            own = copy.deepcopy(module).to(getattr(torch, dtype)).train(training)
            with torch.no_grad():
                for each in parameters(own).values():
                    each.mul_(scale)
            expected = cross_entropy(own, tensors(batch, getattr(torch, dtype)))
            expected.backward()
            close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
            np.testing.assert_allclose(values[k], expected.detach(), **close)
            assert set(gradients) == set(parameters(own))
            for place, each in parameters(own).items():
                np.testing.assert_allclose(gradients[place][k], each.grad, **close, err_msg=place)
            assert set(states) == {place for place, _ in own.named_buffers()}
            for place, each in own.named_buffers():
                np.testing.assert_allclose(states[place][k], each, **close, err_msg=place)
                assert states[place].dtype == state[place].dtype


def test_metrics_are_in_evaluation_mode():
    module, batch = made("batch norm")
    module.train()
    function = compiled(module, cross_entropy, {"accuracy": accuracy, "loss": cross_entropy}, batch)
    params, state = arrays(parameters(module), "float32"), arrays(dict(module.named_buffers()), "float32")
    module.eval()
    for name, expected in (("accuracy", accuracy), ("loss", cross_entropy)):
        found = jax.jit(function.metrics[name])(params, batch, state)
        np.testing.assert_allclose(found, expected(module, tensors(batch, torch.float32)).detach(), rtol=1e-5)
    value, after = function.loss(params, batch, None, state)
    np.testing.assert_allclose(value, function.metrics["loss"](params, batch, state), rtol=1e-6)
    assert all(np.array_equal(after[name], state[name]) for name in state)


def test_tied_parameters_count_once_and_frozen_ones_are_constants():
    for name, expected in (("tied", {"embedding.weight", "out.bias"}), ("frozen", {"2.weight", "2.bias"})):
        module, batch = made(name)
        assert set(parameters(module)) == expected
        function = compiled(module, cross_entropy, {}, batch)
        with pytest.raises(ValueError, match="params: give the arrays"):
            function.loss({}, batch, None, {})


def test_dropout_is_the_keys():
    x = np.ones((4, 1000), np.float32)
    module = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Dropout(0.25))
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(1000))
    function = compiled(module, lambda module, x: module(x).mean(), {}, x)
    params = arrays(parameters(module), "float32")

    def loss(key):
        return function.loss(params, x, key, {})[0]

    keys = jax.random.split(jax.random.key(1), 50)
    values = jax.jit(jax.vmap(loss))(keys)
    assert len(set(np.asarray(values).tolist())) > 40
    np.testing.assert_array_equal(values, jax.jit(jax.vmap(loss))(keys))
    np.testing.assert_allclose(values[3], loss(keys[3]), rtol=1e-6)
    assert abs(values.mean() - 1) < 5 * np.sqrt(0.25 / 0.75 / 4000 / 50)
    assert loss(None) == pytest.approx(1)


def test_dropout_between_recurrent_layers_and_in_attention():
    for middle, width, pick in (
        (nn.LSTM(8, 5, 2, batch_first=True, dropout=0.5), 5, last),
        (nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.5), 8, lambda h: h.mean(1)),
    ):
        module = Texts(middle, width, pick)
        function, params = compiled(module, cross_entropy, {}, (TEXTS, Y)), arrays(parameters(module), "float32")
        values = [float(function.loss(params, (TEXTS, Y), jax.random.key(k), {})[0]) for k in (1, 1, 2)]
        assert values[0] == values[1] != values[2]


def test_sixteen_bits_beside_thirty_two():
    module = Mixed()
    function = compiled(module, cross_entropy, {}, (X, Y))
    params = {name: jnp.asarray(each.detach().float().numpy()) for name, each in module.named_parameters()}
    params |= {name: each.astype(jnp.bfloat16) for name, each in params.items() if name.startswith("first")}
    gradient = jax.grad(lambda params: function.loss(params, (X, Y), None, {})[0])(params)
    assert gradient["first.weight"].dtype == jnp.bfloat16
    assert gradient["second.weight"].dtype == jnp.float32


def test_buffers_walk_along_in_a_loop():
    module, batch = made("batch norm")
    function = compiled(module, cross_entropy, {}, batch)
    params, state = arrays(parameters(module), "float32"), arrays(dict(module.named_buffers()), "float32")

    def step(k, carry):
        params, state = carry
        key = jax.random.fold_in(jax.random.key(0), k)
        gradient, state = jax.grad(function.loss, has_aux=True)(params, batch, key, state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), state

    params, state = jax.jit(lambda *both: jax.lax.fori_loop(0, 4, step, both))(params, state)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(4):
        optimiser.zero_grad()
        cross_entropy(module, tensors(batch, torch.float32)).backward()
        optimiser.step()
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        np.testing.assert_allclose((params | state)[name], each.detach(), rtol=1e-3, atol=1e-4, err_msg=name)
    assert state["1.num_batches_tracked"] == 4


def test_whole_numbers_are_indices_labels_and_numbers_to_convert():
    def loss(module, batch):
        chosen = module(batch["x"]).gather(1, batch["y"].long()[:, None]).mean()
        hot = F.one_hot(batch["y"], CLASSES).to(batch["x"].dtype)
        weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=batch["x"].dtype, device="cpu")
        weighted = F.cross_entropy(module(batch["x"]), batch["y"], weight=weights)
        return chosen + (module(batch["x"]) * hot).sum() + weighted + batch["bytes"].to(batch["x"].dtype).mean() / 255

    batch = {"x": X, "y": Y, "bytes": GENERATOR.integers(0, 256, (ROWS, 3), dtype=np.uint8)}
    for dtype in CLOSE:
        for kind in (np.int32, np.int64):
            compiled(nn.Linear(5, CLASSES), loss, {}, batch | {"y": Y.astype(kind)}, dtype)


def test_derivatives_at_bends_are_pytorchs():
    x = np.array([-2, -1, 0, 1, 6], np.float32)
    bends = (torch.abs, F.relu, F.relu6, F.leaky_relu, F.hardtanh, lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=0))

    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor(x))

    for bend in bends:
        compiled(
            Direct(), lambda module, y, bend=bend: (bend(module.x) * y).sum(), {}, np.arange(1, 6, dtype=np.float32)
        )


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(5, CLASSES)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.randn(CLASSES)


def overwritten(module, batch):
    y = module(batch[0])
    y.view(-1)[:3].zero_()
    return y.mean()


@pytest.mark.parametrize(
    ("module", "loss", "why"),
    [
        (nn.Linear(5, 4), lambda m, b: m(b[0]).mean() if m(b[0]).sum() > 0 else m(b[0]).sum(), "looks at the values"),
        (nn.Linear(5, 4), lambda m, b: m(b[0]).mean() * m(b[0]).sum().item(), r"\.item\(\).*at test_compiled.py:\d+"),
        (nn.Linear(5, 4), lambda m, b: m(b[0])[b[1] > 1].mean(), "a mask as an index"),
        (
            nn.Linear(5, 4),
            lambda m, b: F.adaptive_max_pool1d(m(b[0])[None], 2).mean(),
            "does not have an operator .*aten::",
        ),
        (nn.Linear(5, 4), lambda m, b: m(b[0]).mean(1), r"its loss has the shape \(6,\); return a scalar"),
        (nn.Linear(5, 4), overwritten, "its compiled loss is .* where PyTorch's is"),
        (nn.Linear(3, 4), cross_entropy, "PyTorch itself fails on the example: RuntimeError: mat1 and mat2"),
        (nn.LazyLinear(4), cross_entropy, "its parameter weight has no shape yet"),
        (Counting(), cross_entropy, "its attribute calls changes when it runs; register it as a buffer"),
        (Noisy(5, 4), cross_entropy, "it draws random numbers in evaluation mode"),
    ],
)
def test_what_cannot_be_compiled_is_said_in_a_line(module, loss, why):
    with pytest.raises(NotCompilable, match=why) as caught:
        compiled(module, loss, {}, (X, Y))
    assert "\n" not in str(caught.value)


def test_torch_is_left_as_it_was():
    module, batch = made("transformer")
    module.train()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    fast, drawn = torch.backends.mha.get_fastpath_enabled(), torch.random.get_rng_state()
    seen, stop = [], threading.Event()

    def meanwhile():
        while not stop.is_set():
            found = torch.zeros(2) + torch.ones(2)
            seen.append((type(found), found.device.type, found.tolist()))

    other = threading.Thread(target=meanwhile)
    other.start()
    function = compiled(module, cross_entropy, {}, batch)
    params = arrays(parameters(module), "float32")
    jax.jit(jax.grad(lambda params: function.loss(params, batch, None, {})[0]))(params)
    with pytest.raises(NotCompilable):
        compiled(module, lambda m, b: 1 / 0, {}, batch)
    stop.set()
    other.join()
    assert set(map(str, seen)) == {str((torch.Tensor, "cpu", [1.0, 1.0]))}
    assert fast
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert module.training
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
    assert type(torch.ones(1) * 2) is torch.Tensor
    module(torch.as_tensor(TEXTS).long()).sum().backward()


def test_threads_trace_the_same_module():
    module, batch = made("batch norm")
    function = compiled(module, cross_entropy, {}, batch)
    params, state = arrays(parameters(module), "float32"), arrays(dict(module.named_buffers()), "float32")
    expected = function.loss(params, batch, jax.random.key(0), state)[0]

    def one(k):
        def loss(params):
            return function.loss(params, batch, jax.random.key(0) if k % 2 else None, state)[0]

        return float(jax.jit(loss)(jax.tree.map(lambda leaf: leaf * 1.0, params)))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(12)))
    np.testing.assert_allclose(found[1::2], expected, rtol=1e-5)
    np.testing.assert_allclose(found[::2], function.loss(params, batch, None, state)[0], rtol=1e-5)
