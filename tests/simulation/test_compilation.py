"""Programs are compiled once, by what they compute; and JAX keeps them on disk unless the user has said otherwise."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.compilation import PROGRAMS, Programs

TIMES = ft.FixedTimes([1, 2])


def problem(factor: Any = 1.0, name: str = "error") -> ft.Problem:
    """A loss that reads a number, or whatever it is given, when it is traced."""

    def loss(params: Any, batch: Any) -> Any:
        scale = factor() if callable(factor) else factor
        return scale * jnp.mean((batch - params) ** 2)

    rows = [np.arange(4.0), np.arange(6.0) + 1]
    return ft.Problem(lambda key: jnp.zeros(()), loss, rows, metrics={name: loss})


def losses(given: ft.Problem, **more: Any) -> np.ndarray:
    local = ft.LocalSGD(lr=[0.1, 0.2], batch_size=2)
    history = ft.simulate(given, [ft.FedFix(1)], TIMES, until=6, local=local, points=3, **more)
    return np.asarray(history.dataset.loss.values)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of programs that are really compiled."""
    PROGRAMS.clear()
    made: list[str] = []
    whole = jax.stages.Lowered.compile

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(self.as_text())
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    return made


def test_the_same_study_is_compiled_once_to_the_same_bits(compiled: list[str]) -> None:
    one = problem()
    first = losses(one)
    before = len(compiled)
    assert before
    assert np.array_equal(losses(one), first)
    assert np.array_equal(losses(problem()), first)  # made again, of the same functions
    assert len(compiled) == before
    assert not np.array_equal(losses(one, seeds=[5]), first)  # other numbers, the same programs
    assert len(compiled) == before
    losses(one, dtype="float64")
    assert len(compiled) > before


def test_what_a_loss_reads_counts(compiled: list[str]) -> None:
    scale = [1.0]
    one = problem(lambda: scale[0])
    first = losses(one)
    scale[0] = 2.0
    assert np.array_equal(losses(one)[..., 0], 2 * first[..., 0])
    table = np.ones(1000, dtype=np.float32)
    big = problem(lambda: jnp.asarray(table)[-1])
    first = losses(big)
    table[-1] = 2.0
    assert np.array_equal(losses(big)[..., 0], 2 * first[..., 0])


def test_names_of_measures_count(compiled: list[str]) -> None:
    for name in ("error", "other"):
        local = ft.LocalSGD(lr=0.1, batch_size=2)
        history = ft.simulate(problem(name=name), [ft.FedFix(1)], TIMES, until=3, local=local, points=2)
        assert name in history.dataset


def test_what_calls_python_is_not_kept() -> None:
    kept = Programs()
    for add in (1.0, 2.0):
        called = lambda x, add=add: np.asarray(x + add, x.dtype)  # noqa: E731
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        program = kept.compiled(lambda x, called=called, shape=shape: jax.pure_callback(called, shape, x), jnp.ones(()))
        assert float(program(jnp.ones(()))) == 1.0 + add
    assert len(kept) == 0


HOISTED = """
import jax, jax.numpy as jnp
from fedtempo.simulation.compilation import Programs
kept, x = Programs(), jnp.zeros(20)
print([float(kept.compiled(lambda x, c=jnp.full(20, v): x + c, x)(x)[0]) for v in (1.0, 3.0)], len(kept))
"""


def test_arrays_that_are_not_in_the_text_count() -> None:
    environment = os.environ | {"JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1"}
    done = subprocess.run([sys.executable, "-c", HOISTED], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[1.0, 3.0] 0"


SEVERAL = """
import jax, jax.numpy as jnp
from fedtempo.simulation.compilation import Programs
kept = Programs()
for device in jax.devices() * 2:
    x = jax.device_put(jnp.zeros(20), device)
    print(kept.compiled(lambda x: x + 1, x)(x).devices() == {device}, len(kept))
"""


def test_where_arguments_lie_counts() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SEVERAL], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:4] == ["True 1", "True 2", "True 2", "True 2"]


def test_old_problems_go_and_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    PROGRAMS.clear()
    monkeypatch.setattr(PROGRAMS, "_most", 4)
    gone = []
    for k in range(4):
        one = problem(1.0 + k)
        losses(one)
        gone += [weakref.ref(one), weakref.ref(one.loss), weakref.ref(one.form)]
        del one
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)
    assert len(PROGRAMS) == 4


SCRIPT = """
import sys, jax
{before}
from fedtempo.simulation.compilation import keep_on_disk
keep_on_disk()
print(jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs)
"""


def settings(before: str = "", **variables: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "FEDTEMPO"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(before=before)],
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_jax_keeps_programs_in_our_folder(tmp_path: Path) -> None:
    compiled_before = "jax.jit(lambda x: x + 1)(1.0)"
    assert settings(compiled_before, FEDTEMPO_CACHE=str(tmp_path)) == [str(tmp_path / "jax"), "0.2"]
    seconds = settings(FEDTEMPO_CACHE=str(tmp_path), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1")
    assert seconds == [str(tmp_path / "jax"), "1.0"]


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("", {"FEDTEMPO_CACHE": "off"}, ["None", "1.0"]),
        ("", {"JAX_COMPILATION_CACHE_DIR": "/own"}, ["/own", "1.0"]),
        ("jax.config.update('jax_compilation_cache_dir', '/own')", {}, ["/own", "1.0"]),
        ("jax.config.update('jax_enable_compilation_cache', False)", {}, ["None", "1.0"]),
        ("", {"FEDTEMPO_CACHE": "/proc/nowhere"}, ["None", "1.0"]),
    ],
)
def test_what_the_user_has_set_stays(
    before: str, variables: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    assert settings(before, **({"FEDTEMPO_CACHE": str(tmp_path)} | variables)) == expected
