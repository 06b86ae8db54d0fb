"""Progress, errors and stops of a study in execution."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation import study
from fedtempo.simulation import unit_runner as runner
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.engine.devices import cores
from fedtempo.simulation.engine.program import Piece
from fedtempo.simulation.engine.session import Session
from fedtempo.simulation.history.history import History
from fedtempo.simulation.ledger import Progress
from fedtempo.simulation.unit_runner import noted
from simulation.test_checkpoint import Stop, contents, run, shorten
from simulation.test_study import same


@pytest.fixture(autouse=True)
def _short_calls(monkeypatch) -> None:
    shorten(monkeypatch)


# -- progress


def test_progress_rises_to_one_and_counts_every_update() -> None:
    seen: list[Progress] = []
    history = run(on_progress=seen.append)
    done = [p.done for p in seen]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert any(0 < share < 1 for share in done)
    for name in ("updates", "seconds", "units_done"):
        values = [getattr(p, name) for p in seen]
        assert values == sorted(values)
    assert (seen[-1].units_done, seen[-1].units) == (8, 8)
    runs_of_a_timeline = 2 * 2  # weight rules × rates
    assert seen[-1].updates == runs_of_a_timeline * history.dataset["updates"].isel(time=-1).sum()
    assert seen[-1].rate == pytest.approx(seen[-1].updates / seen[-1].seconds)


def test_progress_of_a_resumed_study_counts_what_this_call_does(tmp_path) -> None:
    whole: list[Progress] = []
    run(on_progress=whole.append)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path / "r", on_progress=Stop(600))
    seen: list[Progress] = []
    run(checkpoint=tmp_path / "r", on_progress=seen.append)
    assert seen[-1].done == 1.0
    assert 0 < seen[-1].updates <= whole[-1].updates - 600
    again: list[Progress] = []
    run(checkpoint=tmp_path / "r", on_progress=again.append)
    assert (again[-1].done, again[-1].updates, again[-1].units_done) == (1.0, 0, 8)


def test_the_time_left_follows_from_the_pace_of_this_call() -> None:
    at = Progress(done=0.5, updates=1000, seconds=10.0, units_done=1, units=4)
    assert at.rate == 100.0
    assert at.left == pytest.approx(10.0)
    assert replace(at, began=0.25).left == pytest.approx(20.0)
    assert replace(at, began=0.5).left is None
    assert Progress(done=0.0, updates=0, seconds=0.0, units_done=0, units=4).rate == 0.0


# -- several cores


def test_units_go_to_several_threads(monkeypatch) -> None:
    names: set[str] = set()
    train = Session.train

    def noted(self: Session, piece: Piece) -> int:
        names.add(threading.current_thread().name)
        return train(self, piece)

    monkeypatch.setattr(Session, "train", noted)
    for count in (1, 3):
        names.clear()
        monkeypatch.setattr(study, "cores", lambda count=count: count)
        run()
        assert len(names) <= count
        assert threading.current_thread().name not in names
        assert len(names) == 1 or count == 3
    assert len(names) > 1
    assert cores() >= 1


def test_a_single_scheme_is_cut_so_that_every_core_has_work(monkeypatch) -> None:
    given = {"schemes": ft.AsyncFedAvg(), "seeds": [0], "dtype": "float64"}
    seen: list[Progress] = []
    monkeypatch.setattr(study, "cores", lambda: 1)
    one = run(**given, on_progress=seen.append)
    assert seen[-1].units == 1
    monkeypatch.setattr(study, "cores", lambda: 3)
    three = run(**given, on_progress=seen.append)
    assert seen[-1].units == 3
    for name in ("loss", "surrogate_deviation", "parameter:"):
        np.testing.assert_allclose(three.dataset[name].values, one.dataset[name].values, rtol=1e-10)


# -- stops and errors


def test_a_stop_keeps_what_earlier_calls_had_measured(tmp_path) -> None:
    """Also of units that this call has not come to."""
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=folder, on_progress=Stop(2500))
    before = History.load(folder / "history.nc").dataset["loss"]
    assert before.notnull().all("time").sum() > 4
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=folder, on_progress=Stop(0))
    after = History.load(folder / "history.nc").dataset["loss"]
    known = before.notnull()
    assert known.sum() > 0
    assert np.array_equal(after.where(known), before, equal_nan=True)
    same(run(checkpoint=folder), run())


def test_a_stop_before_anything_is_done_leaves_an_empty_history(tmp_path) -> None:
    folder = tmp_path / "r"

    def at_once(progress: Progress) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=folder, until=3000, on_progress=at_once)
        part = History.load(folder / "history.nc")
        assert part.attrs["finished"] == 0
        assert part.dataset["loss"].shape == (4, 2, 2, 2, 11)
        assert "not finished" in repr(part)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_would_ignore_still_stops(which, tmp_path) -> None:
    """One that arrives while an object is being removed is told to stderr and dropped, as an exception."""

    class Last:
        def __del__(self) -> None:
            signal.raise_signal(which)

    before = signal.signal(which, signal.default_int_handler)
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 2:
            Last()

    try:
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=tmp_path / "r", until=3000, on_progress=on_progress)
        assert signal.getsignal(which) is signal.default_int_handler
    finally:
        signal.signal(which, before)
    assert len(seen) == 2
    assert not History.load(tmp_path / "r" / "history.nc").finished


def test_a_second_interrupt_is_raised_at_once_and_handlers_of_others_are_kept() -> None:
    with pytest.raises(KeyboardInterrupt), noted() as interrupts:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        assert interrupts.came
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one came to nothing")
    with pytest.raises(KeyboardInterrupt), noted():  # not acted on
        signal.raise_signal(signal.SIGINT)
    own: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: own.append(number))
    try:
        with noted() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert (own, interrupts.came) == ([signal.SIGINT], False)
    finally:
        signal.signal(signal.SIGINT, before)


def test_studies_run_in_other_threads_too() -> None:
    found: list[History] = []
    worker = threading.Thread(target=lambda: found.append(run(schemes=ft.FedAvg(), until=20)))
    worker.start()
    worker.join()
    same(found[0], run(schemes=ft.FedAvg(), until=20))


def test_an_error_in_one_unit_stops_all_and_comes_out(monkeypatch, tmp_path) -> None:
    train = Session.train

    calls: list[int] = []

    def failing(self: Session, piece: Piece) -> int:
        calls.append(self.spec.unit.number)
        if calls.count(1) == 3:
            raise MemoryError("no room for unit 1")
        return train(self, piece)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "train", failing)
        with pytest.raises(MemoryError, match="no room for unit 1"):
            run(checkpoint=tmp_path / "r", until=600)
    assert len(list((tmp_path / "r" / "units").glob("*.npz"))) < 8
    assert not [t for t in threading.enumerate() if t.name.startswith("fedtempo")]
    same(run(checkpoint=tmp_path / "r", until=600), run(until=600))


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(schemes=ft.FedAvg(), save_every=0)
    with pytest.raises(KeyboardInterrupt):
        run(on_progress=Stop(100), save_every=0)
    assert contents(tmp_path) == {}


def test_a_study_is_saved_at_the_intervals_asked_for(tmp_path, monkeypatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(study, "cores", lambda: 1)
    monkeypatch.setattr(Folder, "write_unit", lambda self, number, arrays: written.append(number))
    clock = iter(np.arange(0.0, 1e6, 1.0))
    monkeypatch.setattr(runner.time, "monotonic", lambda: float(next(clock)))
    given = {"schemes": ft.AsyncFedAvg(), "seeds": [0]}
    run(**given, checkpoint=tmp_path / "never", save_every=1e9)
    assert written == [0]
    written.clear()
    run(**given, checkpoint=tmp_path / "always", save_every=0)
    calls = len(written) - 1
    assert calls > 10
    written.clear()
    run(**given, checkpoint=tmp_path / "sometimes", save_every=4.5)
    assert 1 < len(written) < calls / 2  # how long a call is depends on the machine, and on what else it does
    written.clear()

    def slowly(self: Folder, number: int, arrays: object) -> None:
        written.append(number)
        for _ in range(1000):
            next(clock)

    monkeypatch.setattr(Folder, "write_unit", slowly)  # as of gigabytes: that takes a tenth of the time at most
    run(**given, checkpoint=tmp_path / "slowly", save_every=4.5)
    assert len(written) == 2


def test_models_are_let_go_when_a_study_ends_and_not_when_python_collects(monkeypatch) -> None:
    monkeypatch.setattr("fedtempo.simulation.engine.machine.POINT_BYTES", 1)  # as of large models
    made = []
    begin = Session.__init__
    monkeypatch.setattr(Session, "__init__", lambda self, *given: made.append(weakref.ref(self)) or begin(self, *given))
    gc.collect()
    gc.disable()
    try:
        run(schemes=[ft.AsyncFedAvg(), ft.FedAvg()])
        assert made
        assert [one() for one in made] == [None] * len(made)
    finally:
        gc.enable()


def test_metrics_of_ones_own_are_measured_and_resumed(tmp_path) -> None:
    """With names that would upset files."""

    def loss(params, batch):
        return jnp.mean(jnp.sum((params["a/b"] - batch) ** 2, axis=-1))

    def first(params, batch):
        return jnp.mean(params["a/b"][0] + 0 * batch[:, 0])

    rows = np.random.default_rng(0).normal(size=(4, 6, 2))
    problem = ft.Problem(
        lambda key: {"a/b": jnp.ones(2)},
        loss,
        list(rows),
        test=rows[0],
        metrics={"my__first: x/y": first},
    )
    given = {"problem": problem, "schemes": [ft.FedAvg(), ft.FedBuff(2)], "dtype": "float64"}
    whole = run(**given)
    values = whole.dataset["test_my__first: x/y"]
    np.testing.assert_allclose(values.isel(time=-1), whole.dataset["parameter:a%2Fb"].values[..., 0])
    with pytest.raises(KeyboardInterrupt):
        run(**given, checkpoint=tmp_path / "r", save_every=0, on_progress=Stop(200))
    same(run(**given, checkpoint=tmp_path / "r"), whole)
    same(History.load(tmp_path / "r" / "history.nc"), whole)
    model = whole.model(scheme="FedAvg", local_lr=0.05, seed=0)
    assert model.parameters["a/b"].shape == (2,)
