"""Where runs lie in a model's arrays, how many events a step of the loop has, and how runs are cut into units.

Each is a choice of speed alone: what is trained, measured and saved must not depend on it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import study as simulated
from fedtempo.simulation import units
from fedtempo.simulation.engine import event_loop
from fedtempo.simulation.engine.machine import EventMachine, OnDevice
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.engine.session import Session
from fedtempo.simulation.engine.task import INNERMOST, OUTERMOST

TIMES = ft.FixedTimes([4, 3, 2])
PROBLEM = ft.problems.quadratics(3, dimension=5, noise=0.5, rows=[6, 9, 12], seed=1)
PARTS = {
    "plain": ft.AsyncFedAvg(),
    "memory of server and clients": ft.FedBuff(2).using(server=ft.SlowMo(0.5), correction=ft.Scaffold()),
}


def planned(monkeypatch, problem=PROBLEM, scheme=PARTS["plain"], splits=1, **more):
    """The study and its units, without running them."""
    given = {"until": 60, "points": 4, "dtype": "float64", "local": ft.LocalSGD(lr=[0.05, 0.1, 0.2], batch_size=4)}
    with monkeypatch.context() as patch:
        patch.setattr(simulated, "run_study", lambda found, folder, how: found)
        found = ft.simulate(problem, scheme, TIMES, **given | more)
    return found, units.units_of(found, splits)


def sessions(found, spec, machine):
    """One of each layout, about to begin."""
    made = []
    for axis in (OUTERMOST, INNERMOST):
        task = replace(machine.task, runs_axis=axis)
        own = EventMachine(found.problem, task, found.dtype, OnDevice(found.problem, found.dtype))
        made.append(Session(spec, own))
    return made


def step(session, events=7):
    """The next events: as many whatever time they take."""
    piece = session.piece()
    session._events_per_call = events
    session.train(piece)
    session.measure(piece)


def close(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.shape == other[name].shape, name
        np.testing.assert_allclose(array, other[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_runs_lie_first_on_processors_and_last_on_accelerators(monkeypatch) -> None:
    for engine, axis in (("events", OUTERMOST), ("waves", INNERMOST)):
        _, made = planned(monkeypatch, engine=engine)
        assert [machine.task.runs_axis for machine in made.machines] == [axis]


@pytest.mark.parametrize("scheme", PARTS.values(), ids=PARTS)
def test_what_is_measured_and_saved_is_the_same_wherever_runs_lie(scheme, monkeypatch) -> None:
    """After every call; a state that one layout has saved goes on in the other, with some of its runs."""
    found, made = planned(monkeypatch, scheme=scheme, seeds=[0], engine="events")
    (spec,), (machine,) = made.specs, made.machines
    with numerics("float64"):
        first, last = sessions(found, spec, machine)
        close(first.snapshot(), last.snapshot())
        for _ in range(3):
            step(first)
            step(last)
        saved = first.snapshot()
        close(saved, last.snapshot())
        assert any(name.startswith("state:") and array.shape[-1] == 3 for name, array in saved.items())
        others = [Session(spec, machine, saved) for machine in (first.machine, last.machine)]
        for other in others:
            other.narrow([2, 0])
        for session in (first, *others):
            while not session.finished:
                step(session)
        close(others[0].snapshot(), others[1].snapshot())
        for whole, part in zip(first.model, others[0].model, strict=True):
            np.testing.assert_allclose(part, whole[..., [2, 0]], rtol=1e-12)
            assert not np.allclose(part[..., 0], part[..., 1])


def test_several_events_make_a_step_for_one_run_of_a_small_model_alone(monkeypatch) -> None:
    def steps(**more):
        _, made = planned(monkeypatch, engine="events", seeds=[0], **more)
        return made.machines[0].events_per_step

    assert steps(local=ft.LocalSGD(lr=0.1, batch_size=4)) == event_loop.TOGETHER
    assert steps(local=ft.LocalSGD(lr=[0.1, 0.2], batch_size=4)) == 1
    assert steps(local=ft.LocalSGD(lr=0.1, batch_size=4, steps=2)) == 1
    assert steps(local=ft.LocalSGD(lr=0.1, batch_size=None)) == 1
    monkeypatch.setattr(event_loop, "SHORT", -1.0)
    assert steps(local=ft.LocalSGD(lr=0.1, batch_size=4)) == 1


def test_steps_of_several_events_train_the_same_bits(monkeypatch) -> None:
    """Whole steps and the events that are left over, in calls of every length."""
    given = {"until": 61, "points": 3, "seeds": [0], "dtype": "float64", "engine": "events"}
    found = []
    for together in (1, 4, 7):
        monkeypatch.setattr(event_loop, "TOGETHER", together)
        history = ft.simulate(PROBLEM, PARTS["plain"], TIMES, local=ft.LocalSGD(lr=0.1, batch_size=4), **given)
        found.append([history.dataset[name].values for name in ("loss", "parameter:")])
    for other in found[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("cores", "seeds", "rates", "splits"),
    [
        (2, 1, 24, 2),  # every core has work
        (2, 5, 24, 2),  # five units would leave one of two cores idle for a sixth of the time
        (2, 4, 24, 1),
        (2, 5, 1, 1),  # a run cannot be cut
        (2, 11, 24, 1),  # 4 % of the time are not worth narrower units
        (3, 4, 24, 1),  # two each would leave as much idle as one
        (8, 3, 2, 2),
    ],
)
def test_runs_are_cut_into_units_that_end_together(cores, seeds, rates, splits, monkeypatch) -> None:
    local = ft.LocalSGD(lr=np.geomspace(0.01, 0.1, rates).tolist(), batch_size=4)
    found, _ = planned(monkeypatch, local=local, seeds=range(seeds), engine="events")
    assert units.splits_of(found, cores) == splits
