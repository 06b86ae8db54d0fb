"""The estimate of memory: what it counts, and that it refuses what does not fit."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import costs as memory
from fedtempo.simulation import study
from fedtempo.simulation.costs import Memory, check_memory, estimate
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.engine.session import Session
from simulation.test_checkpoint import carry_out


def problem(clients: int, dimension: int = 4, rows: int = 2) -> ft.Problem:
    data = [np.full((rows, dimension), i, dtype=np.float32) for i in range(clients)]
    return ft.Problem(lambda key: jnp.zeros(dimension), lambda p, b: jnp.mean((p - b) ** 2), data)


def planned(monkeypatch, clients=40, dimension=4, rows=2, scheme=None, **changes):
    """The units of a study and their machines, without running them."""
    with monkeypatch.context() as patch:
        patch.setattr(study, "run_study", lambda found, folder, how: found)
        local = ft.LocalSGD(lr=changes.pop("lr", 0.1), batch_size=changes.pop("batch_size", 2))
        found = ft.simulate(
            problem(clients, dimension, rows),
            scheme or ft.AsyncFedAvg(),
            ft.FixedTimes(range(clients, 2 * clients)),
            local=local,
            **{"until": 20 * clients, "points": 5} | changes,
        )
    units = study.units_of(found, 1)
    return units.specs, units.machines


def needed(monkeypatch, threads=1, **changes) -> Memory:
    return estimate(*planned(monkeypatch, **changes), threads)


def test_it_grows_with_live_versions_and_not_with_clients(monkeypatch) -> None:
    few, many = (needed(monkeypatch, clients=n, dimension=500) for n in (20, 200))
    assert many.versions > 3 * few.versions
    few, many = (needed(monkeypatch, clients=n, dimension=500, scheme=ft.FedAvg()) for n in (20, 200))
    assert many.versions == few.versions


def test_versions_are_held_for_every_run_that_goes_at_once(monkeypatch) -> None:
    one = needed(monkeypatch)
    assert needed(monkeypatch, lr=[0.1, 0.2, 0.3]).versions == 3 * one.versions
    assert needed(monkeypatch, lr=[0.1, 0.2, 0.3]).results == 3 * one.results - 2 * 16 * 5  # rounds and updates once
    assert needed(monkeypatch, dtype="float64").versions == 2 * one.versions
    assert needed(monkeypatch, seeds=range(4), engine="events").versions == one.versions
    assert needed(monkeypatch, seeds=range(4), engine="events", threads=2).versions == 2 * one.versions
    assert needed(monkeypatch, seeds=range(4), engine="waves").versions > 3 * one.versions
    assert needed(monkeypatch, seeds=range(4)).results == 4 * one.results


def test_it_is_flat_in_the_horizon(monkeypatch) -> None:
    short, long = (needed(monkeypatch, until=until) for until in (20_000, 20_000_000))
    assert long.total <= short.total


def test_data_batches_and_results_are_counted(monkeypatch) -> None:
    one = needed(monkeypatch)
    assert one.data == 2 * 40 * 2 * 4 * 4
    assert needed(monkeypatch, rows=20).data == 10 * one.data
    assert needed(monkeypatch, batch_size=200).batches > 30 * one.batches
    assert needed(monkeypatch, points=501).results > 50 * one.results
    assert needed(monkeypatch, per_client=True).results >= one.results + 5 * 40 * 8


@pytest.mark.parametrize("engine", ["events", "waves"])
def test_what_is_held_in_truth_is_no_more(monkeypatch, engine) -> None:
    specs, machines = planned(monkeypatch, dimension=300, engine=engine, lr=[0.1, 0.2], seeds=(0, 1))
    told = estimate(specs, machines, 1)
    with numerics("float32"):
        session = Session(specs[0], machines[0])
        for _ in carry_out(session):
            pass
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(session.state))
    assert 0.5 * told.versions < held <= told.versions
    outcome = session.recorder.snapshot(session.model)
    assert 0.9 * told.results < sum(array.nbytes for array in outcome.values()) * len(specs) < 1.1 * told.results


def test_it_says_what_takes_how_much() -> None:
    said = str(Memory(data=3 * 2**30, versions=5 * 2**20, batches=2048, results=0))
    assert re.fullmatch(
        r"3\.4 GiB of memory \(data 3\.0 GiB, model versions 5\.0 MiB, batches 2 KiB, results 0 KiB\)", said
    )


def test_what_does_not_fit_is_refused(monkeypatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**18}
    monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__)
    check_memory(Memory(data=0, versions=2**29, batches=0, results=0))
    with pytest.raises(ft.InputError, match=r"needs about 1\.4 GiB .*model versions 1\.0 GiB.* machine has 1\.0 GiB"):
        check_memory(Memory(data=0, versions=2**30, batches=0, results=0))
    monkeypatch.setattr(memory.jax, "default_backend", lambda: "gpu")
    check_memory(Memory(data=0, versions=2**30, batches=0, results=0))
