"""An untouched module by PyTorch, compiled, and by the oracle: one answer."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import fedtempo as ft

torch = pytest.importorskip("torch")
pytest.importorskip("torchax")
nn, F = torch.nn, torch.nn.functional

TIMES = ft.FixedTimes(["1", "3/2", "5/2"])
SCHEMES = [ft.FedAvg(), ft.FedFix("3/2"), ft.FedBuff(2), ft.AsyncFedAvg(), ft.UniformSampling(2)]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.inner(self.table(x))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.inner = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.inner(self.table(x)).mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def convolutional() -> nn.Module:
    first = (nn.Conv2d(1, 3, 3, stride=1, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


MODULES = {
    "mlp": (perceptron, (6,), None),
    "cnn": (convolutional, (1, 6, 6), None),
    "lstm": (Recurrent, (4,), 9),
    "transformer": (Attentive, (4,), 9),
    "batchnorm": (normed, (6,), None),
}


def problem(kind: str) -> ft.Problem:
    make, shape, words = MODULES[kind]
    rng = np.random.default_rng(0)
    torch.manual_seed(0)

    def client(n: int):
        x = rng.normal(size=(n, *shape)) if words is None else rng.integers(0, words, (n, *shape))
        return x, rng.integers(0, 3, n)

    metrics = {"accuracy": lambda out, y: (out.argmax(1) == y).double().mean()}
    data = [client(n) for n in (7, 10, 8)]
    return ft.torch.problem(model=make(), loss=F.cross_entropy, data=data, test=client(6), metrics=metrics)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("steps", [1, 5])
def test_three_engines_give_one_answer(kind, steps) -> None:
    given = {"until": 6, "points": 4, "dtype": "float64", "local": ft.LocalSGD(steps=steps, lr=0.2, batch_size=4)}
    made = problem(kind)
    found = {e: ft.simulate(made, SCHEMES, TIMES, engine=e, **given) for e in ("torch", "events", "oracle")}
    for engine in ("events", "oracle"):
        for name in ("loss", "test_loss", "test_accuracy", "loss_deviation"):
            ours, theirs = found["torch"].dataset[name].values, found[engine].dataset[name].values
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=f"{engine}: {name}")
        for scheme in ("FedFix(3/2)", "AsyncFedAvg"):
            ours, theirs = (found[e].model(scheme=scheme).state_dict() for e in ("torch", engine))
            assert list(ours) == list(theirs) == list(made.template.state_dict())
            for name, value in ours.items():
                np.testing.assert_allclose(value.numpy(), theirs[name].numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("local", ["momentum", "adam"])
def test_solvers_give_one_answer(local) -> None:
    import optax

    work = {
        "momentum": ft.LocalSGD(steps=4, lr=0.1, momentum=0.9, batch_size=4),
        "adam": ft.LocalOptax(solver=optax.adam, steps=4, lr=0.02, batch_size=4),
    }[local]
    found = [
        ft.simulate(problem("cnn"), ft.FedFix("3/2"), TIMES, until=6, points=3, engine=e, dtype="float64", local=work)
        for e in ("torch", "events")
    ]
    np.testing.assert_allclose(*(history.dataset.loss.values for history in found), rtol=1e-9)


def test_single_precision_is_close() -> None:
    local = ft.LocalSGD(steps=5, lr=0.2, batch_size=4)
    found = [
        ft.simulate(problem(kind), SCHEMES[:2], TIMES, until=6, points=3, engine=e, local=local).dataset.loss.values
        for kind in ("cnn", "transformer")
        for e in ("torch", "events")
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
    np.testing.assert_allclose(found[2], found[3], rtol=1e-4)


def test_auto_compiles_what_it_can(caplog) -> None:
    assert ft.simulate(problem("mlp"), ft.FedAvg(), TIMES, until=5, points=2).attrs["engine"] == "events"

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x):
            return self.inner(x) if x.sum() > 0 else self.inner(-x)

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(8, 6)), rng.integers(0, 3, 8)) for _ in range(3)]
    own = ft.torch.problem(model=Looking(), loss=F.cross_entropy, data=data)
    with caplog.at_level(logging.WARNING):
        history = ft.simulate(own, ft.FedAvg(), TIMES, until=5, points=2)
    assert history.attrs["engine"] == "torch"
    assert "Looking is run by PyTorch: its code looks at the values of tensors" in caplog.text
    with pytest.raises(ft.InputError, match=r"engine: 'events' cannot compile Looking: .* use 'torch'"):
        ft.simulate(own, ft.FedAvg(), TIMES, until=5, points=2, engine="events")


def test_a_folder_goes_on_with_its_engine(tmp_path) -> None:
    ft.simulate(problem("mlp"), ft.FedAvg(), TIMES, until=5, points=2, engine="torch", checkpoint=tmp_path / "run")
    history = ft.simulate(problem("mlp"), ft.FedAvg(), TIMES, until=5, points=2, checkpoint=tmp_path / "run")
    assert history.attrs["engine"] == "torch"
    with pytest.raises(ft.ResultsConflict, match="engine"):
        ft.simulate(problem("mlp"), ft.FedAvg(), TIMES, until=5, points=2, engine="events", checkpoint=tmp_path / "run")
