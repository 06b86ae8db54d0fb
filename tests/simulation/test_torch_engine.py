"""The PyTorch engine against JAX's on the same problem, and against a loop in plain PyTorch that shares no code."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedtempo as ft
from fedtempo.simulation.model_file import ModelFile, Place
from fedtempo.training.batches import batch_key, job_rows

torch = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn

TIMES = ft.FixedTimes(["1", "3/2", "5/2", "4"])
ROWS, INPUTS, CLASSES = (9, 14, 6, 11), 5, 3


def rows(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, INPUTS)), rng.integers(0, CLASSES, n)) for n in ROWS]


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def accuracy(output, target):
    return (output.argmax(1) == target).double().mean()


def by_torch(module=None, **more) -> ft.Problem:
    given = {"loss": F.cross_entropy, "data": rows(), "test": rows(1)[0], "metrics": {"accuracy": accuracy}, **more}
    return ft.torch.problem(model=mlp() if module is None else module, **given)


def by_jax(module=None) -> ft.Problem:
    """The same perceptron in JAX."""
    start = {name: p.detach().double().numpy() for name, p in (module or mlp()).named_parameters()}

    def logits(params, x):
        return jnp.tanh(x @ params["0.weight"].T + params["0.bias"]) @ params["2.weight"].T + params["2.bias"]

    def loss(params, batch):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch[0]), batch[1]).mean()

    def right(params, batch):
        return (logits(params, batch[0]).argmax(1) == batch[1]).mean(dtype=float)

    return ft.Problem(
        lambda key: jax.tree.map(jnp.asarray, start), loss, rows(), test=rows(1)[0], metrics={"accuracy": right}
    )


def compare(schemes, local, tolerance=1e-9, **more) -> None:
    given = {"until": 12, "points": 7, "local": local, "dtype": "float64", "seeds": [0, 1], "per_client": True, **more}
    ours = ft.simulate(by_torch(), schemes, TIMES, engine="torch", **given).dataset
    theirs = ft.simulate(by_jax(), schemes, TIMES, engine="events", **given).dataset
    for name in theirs.data_vars:
        if name.startswith("diverged"):
            continue
        np.testing.assert_allclose(
            ours[name].values, theirs[name].values, rtol=tolerance, atol=tolerance, err_msg=str(name)
        )


SCHEMES = [
    ft.FedAvg(),
    ft.FedFix("3/2"),
    ft.FedBuff(2),
    ft.AsyncFedAvg(),
    ft.UniformSampling(2),
]


@pytest.mark.parametrize("steps", [1, 5])
def test_every_scheme_is_as_compiled(steps) -> None:
    compare(SCHEMES, ft.LocalSGD(steps=steps, lr=[0.1, 0.5], batch_size=4), weights=["time-based", "identical"])


def test_clients_are_chosen_by_the_losses_of_the_trained_model() -> None:
    compare(ft.HighestLossSampling(2), ft.LocalSGD(steps=2, lr=0.3, batch_size=4), weights="identical")


def test_the_oracle_says_the_same() -> None:
    given = {"until": 6, "points": 3, "local": ft.LocalSGD(steps=3, lr=0.3, batch_size=4), "dtype": "float64"}
    ours = ft.simulate(by_torch(), ft.FedFix("1"), TIMES, engine="torch", **given).dataset.loss
    theirs = ft.simulate(by_jax(), ft.FedFix("1"), TIMES, engine="oracle", **given).dataset.loss
    np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-9)


@pytest.mark.parametrize(
    "local",
    [
        ft.LocalSGD(steps=4, lr=0.2, momentum=[0.5, 0.9], batch_size=4),
        ft.LocalSGD(steps=3, lr=0.5, clip=0.3, batch_size=None),
        ft.LocalOptax(solver=optax.adam, steps=3, lr=0.05, batch_size=4, options={"b1": [0.5, 0.9]}),
        ft.LocalSGD(steps=2, lr=0.2, batch_size=5, draw="epochs"),
    ],
    ids=["momentum", "clip, all rows", "adam", "epochs"],
)
def test_local_work_is_as_compiled(local) -> None:
    compare([ft.FedFix("3/2"), ft.AsyncFedAvg()], local)


def test_options_of_schemes_are_as_compiled() -> None:
    fixed = ft.FedFix("3/2")
    compare(
        [
            fixed.using(correction=ft.FedProx(0.3), label="prox"),
            ft.AsyncFedAvg().using(correction=ft.Scaffold(), label="scaffold"),
            ft.FedAvg().using(correction=ft.FedDANE(0.1), label="dane"),
            fixed.using(correction=ft.FedDyn(0.2), label="dyn"),
            fixed.using(compression=ft.TopK(0.3), label="topk"),
            fixed.using(compression=ft.QSGD(4), label="qsgd"),
            fixed.using(server=ft.FedAdam(), label="adam"),
            ft.AsyncFedAvg().using(server=ft.MixModels(), label="mix"),
            fixed.using(client_rates=[1, 0.5, 2, 1], client_steps=[1, 2, 3, 3], label="own"),
        ],
        ft.LocalSGD(steps=3, lr=0.2, batch_size=4),
        seeds=[2],
    )


def test_float32_is_close_to_compiled() -> None:
    compare([ft.FedAvg(), ft.AsyncFedAvg()], ft.LocalSGD(steps=5, lr=0.3, batch_size=4), 1e-4, dtype="float32")


# -- against a loop of its own


class Noisy(nn.Module):
    """BatchNorm, dropout, an embedding, tied and frozen weights, a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        here = torch.tanh(self.norm(self.inner(self.table(x).mean(1)))) * self.scale.clone()
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.99)
        return self.out(self.drop(here + self.frozen(here)))


def words() -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(5)
    return [
        (torch.from_numpy(rng.integers(0, 7, (n, 3))), torch.from_numpy(rng.integers(0, 7, n))) for n in (8, 12, 10)
    ]


def plain_loop(module, data, scheme, times, until, *, steps, lr, batch, optimizer, seed=0, own_statistics=False):
    """Algorithm 1 by state dicts; buffers by the equations of docs/deploy.md."""
    from fedtempo.simulation.engine.torch_machine import job_seed

    line = ft.timeline(scheme, times, until=until)
    applied = ft.weights(scheme, times, step="stable").applied(line)
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    buffers = [name for name, _ in module.named_buffers()]
    versions = [copy.deepcopy(module.state_dict())]
    kept: dict[int, dict] = {}
    update = 0
    for closed in line.rounds:
        theta = copy.deepcopy(versions[-1])
        seen = []
        for client, base in zip(closed.participants, closed.base_versions, strict=True):
            local = copy.deepcopy(module).train()
            local.load_state_dict(versions[base])
            if own_statistics and client in kept:
                local.load_state_dict(kept[client], strict=False)
            solver = optimizer([p for p in local.parameters() if p.requires_grad], lr=lr)
            job = int(line.job[update])
            x, y = data[client]
            numbers = job_rows(
                batch_key(seed),
                np.int32(client),
                jnp.int32(job),
                jnp.int32(len(y)),
                steps=steps,
                batch_size=batch,
                draw="uniform",
            )
            torch.manual_seed(job_seed(seed, client, job))
            for which in np.asarray(numbers):
                solver.zero_grad()
                F.cross_entropy(local(x[which.astype(np.int64)]), y[which.astype(np.int64)]).backward()
                solver.step()
            after = local.state_dict()
            weight = float(applied[update])
            for name in trained:
                theta[name] = theta[name] + weight * (after[name] - versions[base][name])
            seen.append((weight, {name: after[name].clone() for name in buffers}))
            kept[client] = {name: after[name].clone() for name in buffers}
            update += 1
        if seen:
            mass = sum(weight for weight, _ in seen)
            share = min(1.0, mass)
            before = versions[-1]

            def mean(of, share=share, seen=seen, mass=mass, before=before):
                return (1 - share) * of(before) + share * sum(w * of(v) for w, v in seen) / mass

            for name in buffers:
                if name.endswith("num_batches_tracked"):
                    theta[name] = max([before[name], *(v[name] for _, v in seen)])
                elif name.endswith("running_var"):
                    other = name.replace("running_var", "running_mean")
                    second = mean(lambda v, name=name, other=other: v[name] + v[other] ** 2)
                    theta[name] = second - mean(lambda v, other=other: v[other]) ** 2
                else:
                    theta[name] = mean(lambda v, name=name: v[name])
        for alias in ("out.weight",):
            if alias in theta:
                theta[alias] = theta["table.weight"]
        versions.append(theta)
    return versions


def total_loss(module, state, data) -> float:
    here = copy.deepcopy(module).eval()
    here.load_state_dict(state)
    with torch.no_grad():
        return float(np.mean([F.cross_entropy(here(x), y).item() for x, y in data]))


@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.FedFix("3/2"), ft.AsyncFedAvg(), ft.FedBuff(2)], ids=str)
@pytest.mark.parametrize("own", [False, True], ids=["average", "client"])
def test_statistics_dropout_tied_and_frozen_weights_are_a_plain_loops(scheme, own) -> None:
    torch.manual_seed(1)
    module = Noisy().double()
    times = ft.FixedTimes(["1", "2", "3"])
    wanted = plain_loop(
        module, words(), scheme, times, 9, steps=3, lr=0.2, batch=4, optimizer=torch.optim.SGD, own_statistics=own
    )
    problem = ft.torch.problem(model=module, loss=F.cross_entropy, data=words(), buffers="client" if own else "average")
    local = ft.LocalSGD(steps=3, lr=0.2, batch_size=4)
    history = ft.simulate(problem, scheme, times, until=9, local=local, dtype="float64", points=10, engine="torch")
    assert "torch" in json.loads(history.attrs["versions"])
    found = history.model().state_dict()
    assert set(found) == set(module.state_dict())
    for name, value in wanted[-1].items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-6, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(
        float(history.dataset.loss.isel(time=-1).squeeze()), total_loss(module, wanted[-1], words()), rtol=1e-6
    )


def test_frozen_statistics_stay() -> None:
    module = Noisy()
    before = copy.deepcopy(module.state_dict())
    problem = ft.torch.problem(model=module, loss=F.cross_entropy, data=words(), buffers="frozen")
    history = ft.simulate(problem, ft.FedFix("1"), ft.FixedTimes([1, 2, 3]), until=5)
    after = history.model().state_dict()
    assert torch.equal(after["norm.running_var"], before["norm.running_var"])
    assert not torch.equal(after["inner.weight"], before["inner.weight"])
    assert torch.equal(module.state_dict()["inner.weight"], before["inner.weight"])  # the user's own is not touched


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_any_optimizer_is_a_plain_loops(optimizer) -> None:
    torch.manual_seed(2)
    module, times = Noisy().double(), ft.FixedTimes(["1", "2", "3"])
    wanted = plain_loop(module, words(), ft.FedFix("3/2"), times, 6, steps=4, lr=0.01, batch=4, optimizer=optimizer)
    problem = ft.torch.problem(model=module, loss=F.cross_entropy, data=words())
    local = ft.torch.LocalTorch(optimizer, lr=0.01, steps=4, batch_size=4)
    history = ft.simulate(problem, ft.FedFix("3/2"), times, until=6, local=local, dtype="float64", points=2)
    for name, value in history.model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), wanted[-1][name].numpy(), rtol=1e-6, atol=1e-9, err_msg=name)


# -- what is kept


def test_the_users_random_numbers_go_on_as_they_were() -> None:
    problem = ft.torch.problem(model=Noisy(), loss=F.cross_entropy, data=words())
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    ft.simulate(problem, ft.FedAvg(), ft.FixedTimes([1, 2, 3]), until=6, points=2, engine="torch")
    assert torch.equal(torch.rand(3), wanted)


def test_a_function_makes_another_model_for_each_seed() -> None:
    problem = ft.torch.problem(model=lambda: nn.Linear(INPUTS, CLASSES), loss=F.cross_entropy, data=rows())
    history = ft.simulate(problem, ft.FedAvg(), TIMES, until=8, seeds=[0, 1, 2], points=2, engine="torch")
    first = history.dataset.loss.isel(time=0).values.ravel()
    assert len(set(first.tolist())) == 3
    again = ft.simulate(problem, ft.FedAvg(), TIMES, until=8, seeds=[2], points=2, engine="torch")
    assert float(again.dataset.loss.isel(time=0).squeeze()) == first[2]


def study(folder: Path | None, **more):
    problem = ft.torch.problem(model=Noisy(), loss=F.cross_entropy, data=words(), buffers="client")
    schemes = [ft.FedFix("3/2"), ft.AsyncFedAvg().using(correction=ft.Scaffold(), compression=ft.TopK(0.5))]
    local = ft.LocalSGD(steps=2, lr=[0.1, 0.2], batch_size=4)
    return ft.simulate(
        problem, schemes, ft.FixedTimes(["1", "2", "3"]), until=30, local=local, seeds=[0, 1], checkpoint=folder, **more
    )


@pytest.mark.parametrize("buffers", ["average", "frozen"])
def test_other_processes_train_a_module_that_has_no_name(buffers) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    problem = ft.torch.problem(model=module, loss=F.cross_entropy, data=rows(), buffers=buffers)
    again = pickle.loads(pickle.dumps(problem))
    assert again.form.stateful is problem.form.stateful is (buffers == "average")
    given = {"until": 8, "points": 2, "seeds": [0, 1], "engine": "torch"}
    here = ft.simulate(problem, ft.FedAvg(), TIMES, **given).dataset
    there = ft.simulate(problem, ft.FedAvg(), TIMES, **given, workers=2).dataset
    np.testing.assert_array_equal(there["loss"].values, here["loss"].values)


@pytest.fixture
def moved(monkeypatch) -> list[str]:
    """What is written to files and read back."""
    seen: list[str] = []
    put, read = ModelFile.put, Place.read
    monkeypatch.setattr(ModelFile, "put", lambda self, arrays: seen.append("put") or put(self, arrays))
    monkeypatch.setattr(Place, "read", lambda self: seen.append("read") or read(self))
    return seen


def test_models_that_wait_in_a_file_give_the_same_bits(moved, tmp_path) -> None:
    torch.manual_seed(0)
    whole = study(None).dataset
    assert not moved
    for number, (before, after) in enumerate([(1e-9, 1e-9), (1e-9, None), (None, 1e-9)]):
        torch.manual_seed(0)
        rest = study(None, base_memory=before or after).dataset
        assert {"put", "read"} <= set(moved)
        for name in whole.data_vars:
            np.testing.assert_array_equal(rest[name].values, whole[name].values, err_msg=str(name))
        folder, calls = tmp_path / str(number), 0

        def stop(progress) -> None:
            nonlocal calls
            calls += 1
            if calls > 3:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedtempo.simulation.ledger.POLL_SECONDS", 0.0)
            patch.setattr("fedtempo.simulation.engine.session.CALL_SECONDS", 0.0)
            torch.manual_seed(0)
            with pytest.raises(KeyboardInterrupt):
                study(folder, base_memory=before, on_progress=stop)
        torch.manual_seed(0)
        rest = study(folder, base_memory=after).dataset
        for name in whole.data_vars:
            np.testing.assert_array_equal(rest[name].values, whole[name].values, err_msg=str(name))


SCRIPT = """
    import sys, torch
    sys.path.insert(0, {tests!r})
    from simulation.test_torch_engine import study
    torch.manual_seed(0)
    study({folder!r}, save_every=0.0)
"""


def test_a_killed_study_goes_on_to_the_same_bits(tmp_path) -> None:
    torch.manual_seed(0)
    whole = study(None).dataset
    folder = tmp_path / "run"
    tests = str(Path(__file__).parent.parent)
    script = textwrap.dedent(SCRIPT.format(tests=tests, folder=str(folder)))
    kills = 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script])
        units, seen = folder / "units", -1.0
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            stamps = [path.stat().st_mtime for path in units.glob("*.npz")] if units.is_dir() else []
            if stamps and max(stamps) != seen and seen >= 0:
                break
            seen = max(stamps, default=-1.0)
            time.sleep(0.01)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills
    torch.manual_seed(0)
    rest = study(folder).dataset
    for name in whole.data_vars:
        np.testing.assert_array_equal(rest[name].values, whole[name].values, err_msg=str(name))


def test_another_engine_does_not_go_on_with_it(tmp_path) -> None:
    folder = tmp_path / "run"
    ft.simulate(by_torch(), ft.FedAvg(), TIMES, until=4, points=2, checkpoint=folder, engine="torch")
    with pytest.raises(ft.ResultsConflict):
        ft.simulate(by_jax(), ft.FedAvg(), TIMES, until=4, points=2, checkpoint=folder, engine="events")


def test_a_model_is_saved_as_tensors_and_as_arrays(tmp_path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    problem = ft.torch.problem(model=Noisy(), loss=F.cross_entropy, data=words())
    history = ft.simulate(problem, ft.FedAvg(), ft.FixedTimes([1, 2, 3]), until=3, points=2, engine="torch")
    history.save(tmp_path / "history.nc")
    model = ft.History.load(tmp_path / "history.nc").model()
    wanted = history.model().state_dict()
    model.save(tmp_path / "model.safetensors")
    model.save(tmp_path / "model.npz")
    for found in (
        safetensors.load_file(tmp_path / "model.safetensors"),
        ft.Model.load(tmp_path / "model.npz").state_dict(),
        model.state_dict(),
    ):
        assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in wanted.items()}
        assert all(torch.equal(found[name], x) for name, x in wanted.items())
        Noisy().load_state_dict(found)
    with pytest.raises(ft.InputError, match="not a PyTorch module"):
        ft.Model({"w": np.zeros(2)}).state_dict()
