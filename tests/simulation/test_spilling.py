"""Models that wait in a file give the bits of models in memory, are bounded in number, and survive stops."""

from __future__ import annotations

import errno
import pickle
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest

import fedtempo as ft
from fedtempo import files
from fedtempo.simulation import costs, study
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.engine.machine import EventMachine
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.engine.program import Piece, Point
from fedtempo.simulation.engine.session import Session
from fedtempo.simulation.engine.spilling import LEAST, SpillingMachine
from fedtempo.simulation.engine.waiting import NEVER, OVERWRITTEN, Uses, reads
from fedtempo.simulation.model_file import ModelFile, Place
from simulation.test_checkpoint import Stop, carry_out, same, shorten

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
    for count, room in ((0.1, LEAST), (3.5, 3), (6, 6)):
        most.clear()
        run(problem, SCHEMES["async"], base_memory=versions(count, problem))
        assert set(most) == {room}
    most.clear()
    run(problem, SCHEMES["async"], base_memory=versions(1000, problem))
    assert not most, "all fit"


def test_a_limit_is_shared_by_the_units_that_go_at_once(problem: ft.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception):
        pass

    made: list[float | None] = []

    def noted(made_of: study.Study, splits: int, units_of: Any = study.units_of) -> Any:
        made.append(made_of.unit_memory)
        if made_of.unit_memory is not None:
            raise Enough
        return units_of(made_of, splits)

    monkeypatch.setattr(study, "units_of", noted)
    monkeypatch.setattr(study, "cores", lambda: 2)
    one_run = ft.LocalSGD(lr=0.1, batch_size=8)
    for given in ({"seeds": [0, 1, 2, 3]}, {"seeds": [0, 1, 2, 3], "workers": 4}, {"seeds": [0], "local": one_run}):
        with pytest.raises(Enough):
            run(problem, SCHEMES["async"], base_memory=1, **given)
    assert made == [None, 5e8, None, 2.5e8, None, 1e9]


def test_many_points_of_a_large_model_do_not_hide_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are short then, and the first tells little."""
    monkeypatch.setattr("fedtempo.simulation.engine.machine.POINT_BYTES", 1)
    problem, times = ft.problems.digits(clients=40), ft.FixedTimes.spread(40, 80)
    made = study.study_of(
        problem, ft.AsyncFedAvg(), times, until=9, local=ft.LocalSGD(lr=0.1), seeds=(0,), engine="events", points=101
    )
    grown: list[int] = []
    monkeypatch.setattr(EventMachine, "grown", lambda self, state, n: grown.append(n) or state)
    for large, slots in ((1 << 24, range(3, 40)), (1, range(43, 46))):
        monkeypatch.setattr("fedtempo.simulation.units.LARGE_SLOT", large)
        monkeypatch.setattr("fedtempo.simulation.engine.session.LARGE_SLOT", large)
        units = study.units_of(made, 1)
        assert units.specs[0].num_slots in slots
    with numerics("float32"):
        session = Session(units.specs[0], units.machines[0])
        assert sum(carry_out(session)) > 100
    assert not grown


def test_where_nothing_moves_bits_stay_even_if_events_are_taken_together(problem: ft.Problem) -> None:
    scheme = ft.FedBuff(3).using(server=ft.FedAdam())
    given: Any = {"local": ft.LocalSGD(lr=0.1, batch_size=4), "seeds": [0]}
    same(run(problem, scheme, **given, base_memory=1), run(problem, scheme, **given))


# -- which version goes out


def piece(read: list[int], write: list[int], points: tuple[Point, ...] = ()) -> Piece:
    none = np.zeros(len(read), dtype=np.int32)
    closes = np.ones(len(read), dtype=np.bool_)
    slots = (np.array(part, dtype=np.int32) for part in (read, write))
    return Piece(0, none, none, *slots, closes, np.ones((1, len(read))), points, 9)


def test_when_a_slot_is_read_next() -> None:
    uses = Uses(piece([2, 2, 3, 4], [3, 4, 2, 3], (Point(0, 3, 2, 3, 3),)))
    before = [reads(event) - 1 for event in range(5)]
    assert [uses.next(2, moment) for moment in before] == [0, 3, OVERWRITTEN, NEVER, NEVER]
    assert [uses.next(3, moment) for moment in before] == [OVERWRITTEN, 6, 6, OVERWRITTEN, NEVER]
    assert uses.next(2, reads(0)) == reads(1)  # after what the first event has read
    assert uses.next(2, reads(1)) == OVERWRITTEN
    assert uses.next(4, before[2]) == reads(3)
    assert uses.next(7, -1) == NEVER
    assert Uses(piece([2, 2], [3, 2], (Point(0, 2, 3, 2, 2),))).next(3, before[1]) == 5  # measured after the last event


def test_the_version_that_is_read_last_goes_out_and_one_that_is_overwritten_before() -> None:
    uses = Uses(piece([2, 3, 4, 2], [5, 5, 6, 3]))
    assert uses.last([2, 3, 4], -1) == (4, True)
    assert uses.last([2, 4, 7, 8], -1) == (7, True)  # nobody knows who reads these: the first
    assert uses.last([2, 5, 7], reads(1) - 1) == (5, False)


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
    uses, here, loads = Uses(piece(read, write)), [2], 0
    for event, (r, w) in enumerate(zip(read, write, strict=True)):
        for slot, moment in ((r, reads(event) - 1), (w, reads(event))):
            if slot not in here:
                loads += slot == r and moment < reads(event)
                if len(here) == room:
                    here.remove(uses.last(reversed(here), moment)[0])
                here.append(slot)
    assert loads == least_reads(read, write, room)


# -- stops


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, None), (None, 4)])
def test_a_study_that_was_stopped_goes_on_to_the_same_bits(
    before: int | None, after: int | None, problem: ft.Problem, tmp_path: Any, short_calls: None, moved: list[str]
) -> None:
    """Also where all models are in memory before, or afterwards."""
    given: Any = {"until": 20, "seeds": [0]}
    whole = run(problem, SCHEMES["async"], **given)
    given["checkpoint"] = tmp_path / "r"
    first, then = (None if count is None else versions(count, problem) for count in (before, after))
    with pytest.raises(KeyboardInterrupt):
        run(problem, SCHEMES["async"], **given, base_memory=first, save_every=0, on_progress=Stop(150))
    assert bool(moved) == (first is not None)
    moved.clear()
    same(run(problem, SCHEMES["async"], **given, base_memory=then), whole)
    assert bool(moved) == (then is not None)


def test_a_unit_is_read_as_it_was_when_it_was_opened(tmp_path: Any) -> None:
    """Another process may replace it meanwhile."""
    folder = Folder(tmp_path)
    (tmp_path / "units").mkdir()
    about = {"finished": np.array(False), "points_done": np.array(1), "diverged": np.zeros(1)}
    folder.write_unit(0, {**about, "state:slot.2": np.arange(3), "state:slot.3": np.arange(4)})
    there = folder.read_unit(0) or {}
    first = np.asarray(there["state:slot.2"])
    folder.write_unit(0, {**about, "finished": np.array(True)})
    assert [first.tolist(), np.asarray(there["state:slot.3"]).tolist()] == [[0, 1, 2], [0, 1, 2, 3]]
    assert pickle.loads(pickle.dumps(there["state:slot.3"])).tolist() == [0, 1, 2, 3]


def test_a_snapshot_after_every_call_goes_on(problem: ft.Problem, short_calls: None) -> None:
    """What is saved is read when it is written, and is a session's to the bit."""
    local = ft.LocalSGD(lr=0.1, steps=2, batch_size=8)
    made = study.study_of(problem, SCHEMES["adam"], TIMES, until=6, local=local, seeds=(0,), engine="events", points=3)
    units = study.units_of(replace(made, unit_memory=1.0), 1)
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
