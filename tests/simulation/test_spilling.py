"""Models that wait in a file give the bits of models in memory, are bounded in number, and survive stops."""

from __future__ import annotations

import errno
import random
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest

import fedtempo as ft
from fedtempo import files
from fedtempo.simulation import costs
from fedtempo.simulation.engine.program import Piece, Point
from fedtempo.simulation.engine.session import Session
from fedtempo.simulation.engine.spilling import LEAST, NEVER, OVERWRITTEN, SpillingMachine, Uses, read_last
from fedtempo.simulation.model_file import ModelFile, Place
from simulation.test_checkpoint import Stop, same, shorten

CLIENTS = 12
TIMES = ft.FixedTimes.spread(CLIENTS, 80)
SCHEMES = {
    "async": ft.AsyncFedAvg(),
    "fedbuff": ft.FedBuff(3),
    "fedfix": ft.FedFix("1/2"),
    "fedavg": ft.FedAvg(),
    "sampled": ft.UniformSampling(4),
    "by loss": ft.HighestLossSampling(3),
    "scaffold": ft.AsyncFedAvg().using(correction=ft.Scaffold(), label="scaffold"),
    "adam": ft.FedFix("1/2").using(server=ft.FedAdam(), label="adam"),
}


@pytest.fixture(scope="module")
def problem() -> ft.Problem:
    return ft.problems.digits(clients=CLIENTS)


def run(problem: ft.Problem, scheme: ft.Scheme | list[ft.Scheme], **changes: Any) -> ft.History:
    local = ft.LocalSGD(lr=[0.1, 0.3], steps=2, batch_size=8)
    given = {"until": 12, "local": local, "points": 7, "seeds": [0, 1]} | changes
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(stop := given.get("on_progress"), Stop):
            patch.setattr(Session, "train", stop.held(Session.train))
        return ft.simulate(problem, scheme, TIMES, **given)


def versions(count: float, problem: ft.Problem, units: int = 2, runs: int = 2, size: int = 4) -> float:
    """Gigabytes of so many versions in each of the units that go at once."""
    return count * units * runs * size * problem.num_parameters / 1e9


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written to files and read back."""
    seen: list[str] = []
    put, read = ModelFile.put, Place.read
    monkeypatch.setattr(ModelFile, "put", lambda self, arrays: seen.append("put") or put(self, arrays))
    monkeypatch.setattr(Place, "read", lambda self: seen.append("read") or read(self))
    return seen


@pytest.mark.parametrize("name", SCHEMES)
def test_the_bits_are_those_of_models_in_memory(name: str, problem: ft.Problem, moved: list[str]) -> None:
    given = {"weights": "identical"} if name == "by loss" else {}
    whole = run(problem, SCHEMES[name], **given)
    assert not moved
    for count in (LEAST, 5):
        same(run(problem, SCHEMES[name], **given, base_memory=versions(count, problem)), whole)
    assert bool(moved) == (name != "by loss")  # whose rounds start from one version


def test_in_64_bits_and_with_one_run(problem: ft.Problem, moved: list[str]) -> None:
    given: Any = {"local": ft.LocalSGD(lr=0.1, steps=3, batch_size=4), "dtype": "float64", "seeds": [3], "points": 3}
    whole = run(problem, SCHEMES["async"], **given)
    same(run(problem, SCHEMES["async"], **given, base_memory=1e-9), whole)
    assert moved


def test_rows_on_disk_too(problem: ft.Problem, tmp_path: Any, moved: list[str]) -> None:
    x, y = problem.rows
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    ends = [0, *np.cumsum(problem.sizes).tolist()]
    clients = [(mapped[a:b], y[a:b]) for a, b in pairwise(ends)]
    there = ft.Problem(problem.init, problem.loss, clients)
    whole = run(there, SCHEMES["fedbuff"])
    same(run(there, SCHEMES["fedbuff"], base_memory=1e-9), whole)
    assert moved


def test_no_more_models_are_in_memory_than_asked_for(problem: ft.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    advance = SpillingMachine.advance

    def counted(self: Any, state: Any, *given: Any) -> Any:
        done = advance(self, state, *given)
        most.append(len(jax.tree.leaves(done.state.slots)[0]))
        assert len(done.places) + len(done.free) == most[-1]
        return done

    monkeypatch.setattr(SpillingMachine, "advance", counted)
    for count, room in ((0.1, LEAST), (3.5, 3), (6, 6), (1000, 24)):
        most.clear()
        run(problem, SCHEMES["async"], base_memory=versions(count, problem))
        assert set(most) == {room}


# -- which version goes out


def piece(read: list[int], write: list[int], points: tuple[Point, ...] = ()) -> Piece:
    none = np.zeros(len(read), dtype=np.int32)
    closes = np.ones(len(read), dtype=np.bool_)
    slots = (np.array(part, dtype=np.int32) for part in (read, write))
    return Piece(0, none, none, *slots, closes, np.ones((1, len(read))), points, 9)


def test_when_a_slot_is_read_next() -> None:
    uses = Uses(piece([2, 2, 3, 4], [3, 4, 2, 3], (Point(0, 3, 2, 3, 3),)))
    assert [uses.next(2, event) for event in range(5)] == [0, 3, OVERWRITTEN, NEVER, NEVER]
    assert [uses.next(3, event) for event in range(5)] == [OVERWRITTEN, 6, 6, OVERWRITTEN, NEVER]
    assert uses.next(4, 2) == 9
    assert uses.next(7, 0) == NEVER
    assert Uses(piece([2, 2], [3, 2], (Point(0, 2, 3, 2, 2),))).next(3, 1) == 5  # it is measured after the last event


def test_the_version_that_is_read_last_goes_out_and_one_that_is_overwritten_before() -> None:
    uses = Uses(piece([2, 3, 4, 2], [5, 5, 6, 3]))
    assert read_last([2, 3, 4], uses, 0) == (4, True)
    assert read_last([2, 4, 7, 8], uses, 0) == (7, True)  # nobody knows who reads these: the first
    assert read_last([2, 5, 7], uses, 1) == (5, False)


def least_reads(read: list[int], write: list[int], room: int) -> int:
    """Loads from the file that any order of moves needs, by trying all of them."""
    now: dict[tuple[int, ...], int] = {(2,): 0}
    for r, w in zip(read, write, strict=True):
        following: dict[tuple[int, ...], int] = {}
        for here, cost in now.items():
            loads = cost + (r not in here)
            with_r = [{*here, r}] if len({*here, r}) <= room else [{*here, r} - {out} for out in here]
            for held in with_r:
                full = len(held | {w}) > room
                for kept in [(held - {out}) | {w} for out in held] if full else [held | {w}]:
                    place = tuple(sorted(kept))
                    following[place] = min(loads, following.get(place, 1 << 30))
        now = following
    return min(now.values())


@pytest.mark.parametrize("seed", range(30))
def test_no_other_order_reads_the_file_less_often(seed: int) -> None:
    """Random programs, against all ways of choosing what goes out."""
    draw = random.Random(seed)
    slots, room = draw.randint(4, 6), 3
    written, read, write = {2}, [], []
    for _ in range(draw.randint(8, 14)):
        read.append(draw.choice(sorted(written)))
        write.append(draw.choice([slot for slot in range(2, 2 + slots) if slot != read[-1]]))
        written.add(write[-1])
    uses, here, reads = Uses(piece(read, write)), [2], 0
    for event, (r, w) in enumerate(zip(read, write, strict=True)):
        for slot, writes in ((r, False), (w, True)):
            if slot not in here:
                reads += not writes
                if len(here) == room:
                    here.remove(read_last(reversed(here), uses, event, has_read=writes)[0])
                here.append(slot)
    assert reads == least_reads(read, write, room)


# -- stops


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@pytest.mark.parametrize("limited", [True, False])
def test_a_study_that_was_stopped_goes_on_to_the_same_bits(
    limited: bool, problem: ft.Problem, tmp_path: Any, short_calls: None, moved: list[str]
) -> None:
    """Also where all models were in memory at first."""
    few = versions(4, problem)
    given: Any = {"until": 40, "seeds": [0]}
    whole = run(problem, SCHEMES["async"], **given)
    given["checkpoint"], first = tmp_path / "r", few if limited else None
    with pytest.raises(KeyboardInterrupt):
        run(problem, SCHEMES["async"], **given, base_memory=first, save_every=0, on_progress=Stop(300))
    assert bool(moved) == limited
    same(run(problem, SCHEMES["async"], **given, base_memory=few), whole)
    assert moved


def test_a_study_that_was_stopped_needs_its_limit_again(problem: ft.Problem, tmp_path: Any, short_calls: None) -> None:
    given: Any = {"until": 40, "seeds": [0], "checkpoint": tmp_path / "r"}
    with pytest.raises(KeyboardInterrupt):
        run(problem, SCHEMES["async"], **given, base_memory=1e-9, save_every=0, on_progress=Stop(300))
    with pytest.raises(ft.ResultsConflict, match="give base_memory again"):
        run(problem, SCHEMES["async"], **given)


def test_a_snapshot_after_every_call_goes_on(problem: ft.Problem, short_calls: None) -> None:
    """What is saved is read when it is written, and is a session's to the bit."""
    from fedtempo.simulation import study
    from fedtempo.simulation.engine.numerics import numerics

    made = study.study_of(
        problem, SCHEMES["adam"], TIMES, until=6, local=ft.LocalSGD(lr=0.1, steps=2, batch_size=8), seeds=(0,),
        engine="events", points=3, base_memory=1e-9,
    )  # fmt: skip
    units = study.units_of(made, 1)
    (spec,), (machine,) = units.specs, units.machines
    with numerics("float32"):
        first, cuts = Session(spec, machine), []
        while not first.finished:
            part = first.piece()
            first.train(part)
            first.measure(part)
            cuts.append({name: np.array(array) for name, array in first.snapshot().items()})
        assert len(cuts) > 5
        for cut in cuts[:-1:3]:
            later = Session(spec, machine, cut)
            while not later.finished:
                part = later.piece()
                later.train(part)
                later.measure(part)
            for one, other in zip(later.model or [], first.model or [], strict=True):
                np.testing.assert_array_equal(one, other)


# -- what goes wrong


def test_a_disk_that_is_full_is_said(problem: ft.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, folder: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.Disk, "open_nameless", full)
    with pytest.raises(ft.InputError, match=r"cannot be written .*no room for them in memory; set TMPDIR"):
        run(problem, SCHEMES["async"], base_memory=1e-9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"base_memory": 0}, "base_memory: 0 is not allowed; give a number above zero"),
        ({"base_memory": "2 GB"}, "base_memory: '2 GB' is not allowed"),
        ({"base_memory": 1, "engine": "waves"}, "the engine 'waves' has all models in memory; use engine='events'"),
        ({"base_memory": 1, "engine": "oracle"}, "the engine 'oracle' has all models in memory"),
    ],
)
def test_bad_limits_are_refused(given: dict[str, Any], said: str, problem: ft.Problem) -> None:
    with pytest.raises(ft.InputError, match=said):
        run(problem, SCHEMES["async"], **given)


def test_models_that_do_not_fit_into_this_machine_wait_in_a_file(
    problem: ft.Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moved: list[str]
) -> None:
    whole = run(problem, SCHEMES["async"])
    monkeypatch.setattr(costs, "memory_here", lambda: costs._BASE + (100 << 20))
    same(run(problem, SCHEMES["async"]), whole)
    assert not moved
    rates = ft.LocalSGD(lr=np.geomspace(0.01, 0.1, 300).tolist(), steps=1, batch_size=8)
    history = run(problem, SCHEMES["async"], local=rates, until=2, seeds=[0])
    assert moved
    assert "models that are needed last wait in a file" in caplog.text
    monkeypatch.setattr(costs, "memory_here", lambda: None)
    same(run(problem, SCHEMES["async"], local=rates, until=2, seeds=[0]), history)
