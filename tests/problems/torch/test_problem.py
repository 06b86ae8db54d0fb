"""Problems made of PyTorch modules and data sets: every form of data, and every refusal in one line."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset  # noqa: E402

X = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
Y = torch.from_numpy(np.random.default_rng(1).integers(0, 3, 12))
PARTS = [[0, 2, 4, 6], [1, 3, 5], [7, 8, 9, 10, 11]]
TIMES = ft.FixedTimes([1, 2, 3])


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def losses(**given) -> list[float]:
    problem = ft.torch.problem(**{"model": linear(), "loss": F.cross_entropy, **given})
    local = ft.LocalSGD(steps=2, lr=0.3, batch_size=4)
    history = ft.simulate(problem, ft.FedFix(1), TIMES, until=6, local=local, points=4, engine="torch")
    return history.dataset.loss.values.ravel().tolist()


class Items(Dataset):
    """Items of (x, y), as most data sets have them."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, i: int):
        return X[i], int(Y[i])


class Ragged(Items):
    """Rows of unequal length, padded with zeros."""

    def __getitem__(self, i: int):
        return X[i][: 4 - i % 2], int(Y[i])


class Noised(Items):
    """Another item each time."""

    def __getitem__(self, i: int):
        return X[i] + 0.1 * torch.randn(4), int(Y[i])


def padded(items):
    rows = torch.zeros(len(items), 4)
    for k, (x, _) in enumerate(items):
        rows[k, : len(x)] = x
    return rows, torch.tensor([y for _, y in items])


class Hub:
    """What Hugging Face's data sets offer."""

    column_names = ("x", "label")

    def __init__(self, part) -> None:
        self._part = part

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, name):
        return {"x": X[self._part].numpy(), "label": Y[self._part].numpy()}[name]

    def with_format(self, kind: str) -> Hub:
        assert kind == "numpy"
        return self


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x)


def test_all_forms_of_data_train_alike() -> None:
    wanted = losses(data=[(X[part], Y[part]) for part in PARTS])
    assert wanted[-1] < wanted[0]
    for data in (
        [(X[part].numpy(), Y[part].numpy()) for part in PARTS],
        [TensorDataset(X[part], Y[part]) for part in PARTS],
        [Subset(Items(), part) for part in PARTS],
        [Subset(Subset(TensorDataset(X, Y), list(range(12))), part) for part in PARTS],
        [[Items()[i] for i in part] for part in PARTS],
    ):
        assert losses(data=data) == wanted
    assert losses(data=Items(), parts=PARTS) == wanted
    assert losses(data=Items(), parts=PARTS, stack=False) == wanted
    named = {"model": ByName(), "data": [Hub(part) for part in PARTS]}
    assert losses(**named) == pytest.approx(wanted, rel=1e-6)
    assert losses(**named, target="label") == pytest.approx(wanted, rel=1e-6)
    own = {"forward": lambda model, batch: model(batch["x"]), "target": "label"}
    assert losses(data=[Hub(part) for part in PARTS], **own) == wanted


def test_items_that_cannot_be_stacked_are_collated() -> None:
    rows, _ = padded([Ragged()[i] for i in range(12)])
    wanted = losses(data=[(rows[part], Y[part]) for part in PARTS])
    assert losses(data=Ragged(), parts=PARTS, collate=padded) == wanted
    with pytest.raises(ft.InputError, match=r"cannot be collated .* give collate="):
        losses(data=Ragged(), parts=[[0, 1, 2, 3], [4, 5], [6, 7]])
    with pytest.raises(ft.InputError, match=r"client 1, job 0: the module fails on a batch of float32"):
        losses(data=Ragged(), parts=PARTS)
    with pytest.raises(ft.InputError, match=r"cannot be stacked .* leave out stack=True"):
        losses(data=Ragged(), parts=PARTS, stack=True)


def test_random_items_are_the_same_under_the_same_seed() -> None:
    first, again = (losses(data=Noised(), parts=PARTS) for _ in range(2))
    assert first[1:-1] == again[1:-1] or first == again
    assert first != losses(data=Items(), parts=PARTS)


def test_several_inputs_and_a_test_set() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, a, b):
            return self.inner(a + b)

    problem = ft.torch.problem(
        model=Two(),
        loss=F.cross_entropy,
        data=[(X[part], X[part], Y[part]) for part in PARTS],
        test=(X, X, Y),
        metrics={"accuracy": lambda out, y: (out.argmax(1) == y).float().mean().item()},
        importance="rows",
    )
    history = ft.simulate(problem, ft.FedAvg(), TIMES, until=6, points=2)
    assert {"test_loss", "test_accuracy"} <= set(history.dataset.data_vars)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = linear(), 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": lambda out, y: F.cross_entropy(out, y, reduction="none")}, r"shape \(4,\), not a scalar; return"),
        ({"loss": lambda out, y: F.cross_entropy(out, y).item()}, "is a float, not a scalar"),
        ({"loss": lambda out, y: F.cross_entropy(out.detach(), y)}, "has no gradient"),
        ({"loss": lambda out, y: F.cross_entropy(out, y) * float("nan")}, "is nan for the initial model .* check the"),
        ({"loss": lambda out, y: F.cross_entropy(out, y) + (out * 0).sum().sqrt()}, "gradient by .* is not finite"),
        ({"loss": lambda out, y: F.mse_loss(out, y)}, "the module fails on a batch of"),
        ({"model": Counting()}, "keeps 'calls' in a Python attribute, .*register_buffer"),
        ({"model": linear().requires_grad_(False)}, "no trainable parameters"),
        ({"model": lambda: 3}, "makes a int; give a torch.nn.Module"),
        ({"data": [(X, Y), (X[:, :3], Y), (X, Y)]}, r"client 1: .* shape \(12, 3\)"),
        ({"data": [(X, Y), (X, Y[:5]), (X, Y)]}, "12 rows|has 5 rows"),
        ({"data": []}, "no clients"),
        ({"data": Items()}, "parts="),
        ({"data": [Stream()] * 3}, "no items by index"),
        ({"data": [(X * float("inf"), Y)] * 3}, "client 0: leaf 0 holds -?inf"),
        ({"buffers": "mean"}, "use one of average, client, frozen"),
        ({"device": "abacus"}, "device: 'abacus' cannot be used"),
        ({"metrics": {"wide": lambda out, y: out}}, "metric 'wide': it is not a single number"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(given, said) -> None:
    good = {"model": linear(), "loss": F.cross_entropy, "data": [(X, Y)] * 3}
    with pytest.raises(ft.InputError, match=said) as caught:
        ft.torch.problem(**{**good, **given})
    assert "\n" not in str(caught.value)


def test_engines_and_local_work_that_do_not_fit_are_refused() -> None:
    problem = ft.torch.problem(model=linear(), loss=F.cross_entropy, data=[(X, Y)] * 3)
    with pytest.raises(ft.InputError, match=r"tensorfloat32|float32 or float64"):
        ft.simulate(problem, ft.FedAvg(), TIMES, until=6, dtype="tensorfloat32", engine="torch")
    with pytest.raises(ft.InputError, match=r"ft.torch.problem"):
        ft.simulate(ft.problems.digits(clients=3), ft.FedAvg(), TIMES, until=6, engine="torch")
    local = ft.torch.LocalTorch(torch.optim.AdamW, lr=0.1)
    with pytest.raises(ft.InputError, match=r"PyTorch"):
        ft.simulate(ft.problems.digits(clients=3), ft.FedAvg(), TIMES, until=6, local=local)
    with pytest.raises(ft.InputError, match=r"cannot be made"):
        ft.torch.LocalTorch(torch.optim.AdamW, lr=0.1, options={"speed": 3})
