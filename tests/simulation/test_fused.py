"""The kernel of linear classifiers: waves' answers, only where it applies, and a program that Triton can be given.

Pallas interprets it here. On a device it is compared with waves by `benchmarks/linear_kernel.py`.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import units
from fedtempo.simulation.engine import fused
from fedtempo.simulation.engine.devices import WANTED, has_kernels
from fedtempo.simulation.engine.machine import WaveMachine

CLIENTS, FEATURES, CLASSES = 5, 20, 3
TIMES = ft.FixedTimes(["1", "1", "2/3", "1/2", "1/5"])  # with ties
SCHEMES = [
    ft.AsyncFedAvg(),
    ft.FedAvg(),
    ft.FedFix("1/10"),  # rounds without any update
    ft.FedBuff(3),
    ft.MultinomialSampling(3),
    ft.FedFix("1/4").using(compensate="rate"),
]
LOCAL = ft.LocalSGD(lr=[0.05, 0.3], steps=1, batch_size=32)


def images(seed: int, features: int = FEATURES, kind: type = np.uint8) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of bytes whose brighter third says the class, client by client."""
    generator = np.random.default_rng(seed)
    found = []
    for rows in (7, 40, 33, 64, 50):
        y = generator.integers(0, CLASSES, rows)
        x = generator.integers(0, 120, (rows, features))
        x[:, :CLASSES] += 100 * (y[:, None] == np.arange(CLASSES))
        found.append((x.astype(kind), y.astype(np.int32)))
    return found


def classifier(seed: int = 0, *, features: int = FEATURES, kind: type = np.uint8, **options) -> ft.Problem:
    model = ft.problems.logistic(features, options.pop("classes", CLASSES), **options)
    data = images(seed, features, kind)
    return ft.Problem(model.init, model.loss, data, metrics={"accuracy": model.accuracy}, name="images")


@pytest.fixture
def interpreted(monkeypatch):
    """Waves as a processor runs them, then the kernel."""

    def both(problem, **given) -> tuple[ft.History, ft.History]:
        given = {"until": 12, "points": 4, "seeds": [0, 3], "local": LOCAL, "step": "paper", "engine": "waves"} | given
        run = partial(ft.simulate, problem, times=TIMES, **given)
        waves = run()
        made = []
        init = fused.FusedMachine.__init__
        monkeypatch.setattr(units, "has_kernels", lambda: True)
        monkeypatch.setattr(fused, "piece_loop", partial(fused.piece_loop, interpret=True))
        monkeypatch.setattr(
            fused.FusedMachine, "__init__", lambda self, *args: (made.append(self), init(self, *args))[1]
        )
        kernel = run()
        assert made
        return waves, kernel

    return both


def assert_same(one: ft.History, other: ft.History, tolerance: float) -> None:
    assert set(one.dataset) == set(other.dataset)
    for name, values in one.dataset.items():
        if "accuracy" not in str(name):  # of few rows, a step function
            np.testing.assert_allclose(other.dataset[name], values, rtol=tolerance, atol=tolerance, err_msg=str(name))


@pytest.mark.parametrize("options", [{"features_first": True}, {"mean": 0.13, "deviation": 0.31}])
@pytest.mark.parametrize("dtype", ["float32", "tensorfloat32"])
def test_the_kernel_does_what_waves_do(interpreted, options, dtype) -> None:
    schemes = SCHEMES if dtype == "float32" else SCHEMES[:1]
    given = {"schemes": schemes, "weights": ["identical", "time-based"], "dtype": dtype, "server_lr": 0.7}
    waves, kernel = interpreted(classifier(**options), **given)
    assert float(waves.final().max()) < 0.99 * np.log(CLASSES)  # it has learnt
    assert_same(waves, kernel, 2e-5)


def test_every_seed_reads_its_own_deal(interpreted) -> None:
    waves, kernel = interpreted(classifier, schemes=SCHEMES[:1], per_client=True)
    assert_same(waves, kernel, 2e-5)
    one = ft.simulate(classifier(3), SCHEMES[0], TIMES, until=12, points=4, seeds=[3], local=LOCAL, step="paper")
    np.testing.assert_allclose(kernel.dataset["loss"].sel(seed=3), one.dataset["loss"].sel(seed=3), rtol=2e-5)


def test_a_study_that_was_stopped_goes_on(interpreted, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(WaveMachine, "capacity", lambda self, seeds, expected: 16)  # many pieces
    _, whole = interpreted(classifier(), schemes=SCHEMES[0], until=40)

    def stop(progress: ft.Progress) -> None:
        if progress.done >= 0.4:
            raise KeyboardInterrupt

    run = partial(
        ft.simulate,
        classifier(),
        SCHEMES[0],
        TIMES,
        until=40,
        points=4,
        seeds=[0, 3],
        local=LOCAL,
        step="paper",
        engine="waves",
        checkpoint=tmp_path / "study",
        save_every=0.01,
    )
    with pytest.raises(KeyboardInterrupt):
        run(on_progress=stop)
    again = run()
    for name, values in whole.dataset.items():
        np.testing.assert_array_equal(again.dataset[name], values, err_msg=str(name))


PLAIN = {"problem": classifier(), "scheme": ft.AsyncFedAvg(), "local": LOCAL, "dtype": "float32"}


@pytest.mark.parametrize(
    ("taken", "given"),
    [
        (True, {}),
        (True, {"dtype": "tensorfloat32"}),
        (True, {"local": ft.LocalSGD(lr=0.1, steps=1, batch_size=128)}),
        (True, {"problem": classifier(classes=16)}),
        (False, {"problem": classifier(classes=17)}),
        (False, {"dtype": "float64"}),
        (False, {"problem": classifier(l2=0.1)}),
        (False, {"problem": classifier(kind=np.float32)}),
        (False, {"problem": classifier(features=18)}),
        (False, {"problem": classifier(features=1028)}),
        (False, {"problem": ft.problems.digits(5)}),
        (False, {"local": ft.LocalSGD(lr=0.1, steps=2, batch_size=32)}),
        (False, {"local": ft.LocalSGD(lr=0.1, steps=1, batch_size=16)}),
        (False, {"local": ft.LocalSGD(lr=0.1, steps=1, batch_size=None)}),
        (False, {"local": ft.LocalSGD(lr=0.1, steps=1, batch_size=32, momentum=0.9)}),
        (False, {"local": ft.LocalSGD(lr=0.1, steps=1, batch_size=32, clip=1.0)}),
        (False, {"scheme": ft.AsyncFedAvg().using(server=ft.FedAdam())}),
        (False, {"scheme": ft.AsyncFedAvg().using(correction=ft.Scaffold())}),
        (False, {"scheme": ft.AsyncFedAvg().using(compression=ft.TopK(0.5))}),
    ],
)
def test_the_kernel_trains_what_it_can_and_nothing_else(taken, given, monkeypatch) -> None:
    class Chosen(Exception):
        pass

    def chosen(*args: object) -> None:
        raise Chosen

    monkeypatch.setattr(units, "has_kernels", lambda: True)
    monkeypatch.setattr(fused, "FusedMachine", chosen)
    asked = PLAIN | given
    problem, scheme = asked.pop("problem"), asked.pop("scheme")
    run = partial(
        ft.simulate, problem, scheme, TIMES, until=1, points=2, seeds=[0], engine="waves", step="paper", **asked
    )
    if taken:
        with pytest.raises(Chosen):
            run()
    else:
        assert np.isfinite(run().final().values).all()


@pytest.mark.parametrize("terms", [1, 3])
def test_it_is_a_program_for_triton(terms, monkeypatch) -> None:
    """JAX makes Triton's program without a device; operations that Triton has not would be refused here."""
    found = []

    def advance(self, state, runs, loaded, first, last):
        program = jax.jit(fused.piece_loop(self.task, self._linear, terms=terms))
        args = (state, self.on_device.data, runs, loaded, np.int32(last - first))
        found.append(program.trace(*args).lower(lowering_platforms=("cuda",)).as_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(units, "has_kernels", lambda: True)
    monkeypatch.setattr(fused.FusedMachine, "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        ft.simulate(
            classifier(features=784), SCHEMES[0], TIMES, until=2, seeds=[0], local=LOCAL, engine="waves", step="paper"
        )
    assert "gpu.triton" in found[0]


def test_a_weight_is_the_sum_of_numbers_that_matrix_units_take() -> None:
    sizes = np.float32(10) ** np.random.default_rng(1).integers(-5, 5, 10_000).astype(np.float32)
    weights = np.random.default_rng(0).normal(size=10_000).astype(np.float32) * sizes
    left = weights
    terms = []
    for _ in range(fused.TERMS["float32"]):
        terms.append(np.asarray(fused._high(left)))
        left = left - terms[-1]
    mantissa, _ = np.frexp(np.stack(terms))
    np.testing.assert_array_equal(mantissa * 2**11, np.round(mantissa * 2**11))
    np.testing.assert_array_equal(np.sum(terms, axis=0, dtype=np.float64), weights)


@pytest.mark.parametrize(
    ("device", "known"),
    [
        (SimpleNamespace(platform="gpu", compute_capability="9.0"), True),
        (SimpleNamespace(platform="gpu", compute_capability="7.5"), False),
        (SimpleNamespace(platform="gpu", compute_capability="gfx942"), False),
        (SimpleNamespace(platform="gpu"), False),
        (SimpleNamespace(platform="cpu"), False),
    ],
)
def test_kernels_are_for_nvidia_devices_with_matrix_units_and_for_who_asks(device, known, monkeypatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.delenv(WANTED, raising=False)
    assert has_kernels() is False
    monkeypatch.setenv(WANTED, "1")
    assert has_kernels() is known
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)  # as in a JAX without it
    assert has_kernels() is False
