"""Units of a study in other processes: the same bits, whoever trains, dies or does not see the folder."""

from __future__ import annotations

import logging
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError, WorkersLost
from fedtempo.simulation import desk as desk_file
from fedtempo.simulation import executors, worker
from fedtempo.simulation.checkpoint import DESKS
from fedtempo.simulation.desk import Desk, clear_desks, new_desk
from fedtempo.simulation.executors import Pool, Sender
from fedtempo.simulation.worker import Report, packed_problem
from support.executors import Changed, assert_same, elsewhere, init, loss, problem, study


@pytest.fixture(scope="module")
def whole() -> ft.History:
    return study()


@pytest.fixture
def forgetful(monkeypatch):
    """A process that has not had any study yet."""
    monkeypatch.setattr(worker, "_problems", type(worker._problems)())
    monkeypatch.setattr(worker, "_studies", type(worker._studies)())


# -- the same bits


def test_two_processes_one_of_which_is_killed_come_to_the_same_bits(whole, tmp_path) -> None:
    told: list[tuple[str, float]] = []
    killed: list[int] = []

    def kill(progress: ft.Progress) -> None:
        """Once some units are begun, the process of whoever is at one."""
        if not killed and progress.units_done < progress.units and list(tmp_path.glob(f"study/{DESKS}*/*.owner")):
            child = next(iter(pool._executor._processes))
            os.kill(child, signal.SIGKILL)
            killed.append(child)

    pools: list[Pool] = []

    class Kept(Pool):
        def __init__(self, workers: int) -> None:
            super().__init__(workers)
            pools.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "Pool", Kept)
        patch.setattr(worker, "LIVE_SECONDS", 0.0)

        def on_progress(progress: ft.Progress) -> None:
            nonlocal pool
            pool = pools[0]
            kill(progress)

        pool: Pool
        found = study(
            workers=2,
            checkpoint=tmp_path / "study",
            save_every=0.2,
            on_progress=on_progress,
            on_measure=lambda run, time, values: told.append((run.name, time)),
        )
    assert killed
    assert_same(found, whole)
    assert set(Counter(told).values()) == {1}
    assert len(told) == 11 * 16
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == [
        "history.nc",
        "live.jsonl",
        "study.json",
        "units",
    ]
    assert_same(ft.History.load(tmp_path / "study" / "history.nc"), whole)


def test_without_a_folder_in_common_units_travel(whole, tmp_path, forgetful) -> None:
    with Changed(elsewhere) as apart:
        found = study(executor=apart, checkpoint=tmp_path / "study", save_every=0.0)
    assert_same(found, whole)
    assert len(apart.orders) > 3 * 8  # each unit went out and came back several times
    assert any(order.saved is not None and not order.saved["finished"] for order in apart.orders)
    assert_same(ft.History.load(tmp_path / "study" / "history.nc"), whole)


def test_a_problem_of_many_bytes_travels_to_a_worker_once(whole, forgetful, monkeypatch) -> None:
    monkeypatch.setattr(executors, "SMALL", 0)
    with Changed() as one:
        assert_same(study(executor=one), whole)
        sent = [order.sent.problem is not None for order in one.orders]
        assert sum(sent) == 1
        study(executor=one, seeds=[7])
        assert sum(order.sent.problem is not None for order in one.orders) == 1


def test_a_study_stopped_under_workers_goes_on_without_them(whole, tmp_path, monkeypatch) -> None:
    def slow(order):
        time.sleep(0.2)
        return worker.work(order)

    def stop(progress: ft.Progress) -> None:
        if progress.units_done >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(executors, "work", slow)

    with Changed() as one, pytest.raises(KeyboardInterrupt):
        study(executor=one, checkpoint=tmp_path / "study", on_progress=stop)
    there = ft.History.load(tmp_path / "study" / "history.nc")
    assert not there.finished
    assert bool(there.begun.any())
    assert_same(study(checkpoint=tmp_path / "study"), whole)


def test_jobs_that_know_nothing_of_each_other_are_one_study(whole, tmp_path) -> None:
    from fedtempo.simulation.shares import study_in

    folder = tmp_path / "study"
    first = study(units="1/3", checkpoint=folder)
    assert first.finished
    joined, said = study_in(folder)
    assert not joined.finished
    assert said == "1 of 3 jobs (nothing yet from 2, 3)"
    study(units="3/3", checkpoint=folder)
    study(units="2/3", checkpoint=folder)
    joined, said = study_in(folder)
    assert joined.finished
    assert said == "3 of 3 jobs"
    assert_same(joined, whole)
    begun = Counter(path.stat().st_mtime_ns for path in (folder / "units").iterdir())
    assert_same(study(checkpoint=folder), whole)
    assert Counter(path.stat().st_mtime_ns for path in (folder / "units").iterdir()) == begun
    assert study(units="9/9", checkpoint=tmp_path / "many").finished  # more jobs than units: nothing to do


def test_a_recommendation_is_the_same_by_workers(forgetful) -> None:
    def asked(**where: object) -> ft.Recommendation:
        return ft.recommend(
            problem(),
            ft.FixedTimes([1, 2, 2, 5]),
            until=60,
            local=ft.LocalSGD(lr=[0.02, 0.1, 0.3], batch_size=4),
            schemes=[ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(2)],
            dtype="float64",
            engine="events",
            **where,
        )

    def number(made: ft.Recommendation) -> list[object]:
        return [(one.scheme.label, one.local_lr, one.loss, one.error, one.seeds) for one in made.choices]

    with Changed() as one:
        there = asked(executor=one)
    here = asked()
    assert len(one.orders) > 5
    assert number(there) == number(here)
    assert there.spent.updates == here.spent.updates


def test_a_dask_worker_that_is_killed_changes_no_bit(whole, tmp_path) -> None:
    distributed = pytest.importorskip("distributed")
    told: list[tuple[str, float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Dask's own: ports, ways to say goodbye
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        )
        client = distributed.Client(cluster)
        try:
            pids = list(client.run(os.getpid).values())

            def kill(progress: ft.Progress) -> None:
                if len(pids) == 2 and list(tmp_path.glob(f"study/{DESKS}*/*.owner")):
                    os.kill(pids.pop(), signal.SIGKILL)

            found = study(
                executor=client.get_executor(pure=False),
                checkpoint=tmp_path / "study",
                save_every=0.2,
                on_progress=kill,
                on_measure=lambda run, time, values: told.append((run.name, time)),
            )
        finally:
            client.close()
            cluster.close()
    assert len(pids) == 1
    assert_same(found, whole)
    assert set(Counter(told).values()) == {1}


# -- what is asked of an executor, and of a problem


def test_what_is_not_an_executor_is_said(tmp_path) -> None:
    with pytest.raises(InputError, match="executor: 'dask' is not an executor"):
        study(executor="dask")
    with pytest.raises(InputError, match="workers: 0 processes cannot be; give at least 1"):
        study(workers=0)
    with Changed() as one, pytest.raises(InputError, match="leave workers out, or the executor"):
        study(executor=one, workers=2)
    closed = ProcessPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(WorkersLost, match="executor: it is closed; what was saved is kept") as lost:
        study(executor=closed, checkpoint=tmp_path / "study")
    assert lost.value.exit_code == 5
    assert not study(checkpoint=tmp_path / "study", until=60).unfinished.any()


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ("3", "'3' is not a share of them; give which of how many jobs, as 3/8"),
        ("0/2", "'0/2' is not a share"),
        ("3/2", "'3/2' is not a share"),
    ],
)
def test_a_share_that_is_none_is_said(units, said, tmp_path) -> None:
    with pytest.raises(InputError, match=said):
        study(units=units, checkpoint=tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_share_needs_a_folder_and_given_rates(tmp_path) -> None:
    with pytest.raises(InputError, match="give checkpoint="):
        study(units="1/2")
    with pytest.raises(InputError, match="must not remove what others have done"):
        study(units="1/2", checkpoint=tmp_path / "study", overwrite=True)
    with pytest.raises(InputError, match="give the rates as a list"):
        study(units="1/2", checkpoint=tmp_path / "study", local=ft.LocalSGD(lr="auto"))


def test_what_cannot_be_sent_is_said_with_its_cure(monkeypatch) -> None:
    pytest.importorskip("distributed")  # loaded while it can be: half a Dask would stay
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    mine = problem()
    mine.loss = lambda params, batch: 0.0
    with (
        Changed() as one,
        pytest.raises(InputError, match=r"the problem 'made of arrays' cannot be sent .* \"my_module:make\""),
    ):
        study(problem=mine, executor=one)

    def here(params, batch):
        return loss(params, batch)

    here.__module__, here.__qualname__ = "__main__", "here"
    mine.loss = here
    with pytest.raises(InputError, match="here is defined in __main__, and cloudpickle is not installed"):
        packed_problem(mine)


def test_a_problem_is_known_by_its_name_elsewhere(tmp_path) -> None:
    digits = ft.problems.digits(clients=3, partition="iid")
    assert len(pickle.dumps(digits)) < 1000
    assert pickle.loads(pickle.dumps(digits)).fingerprint() == digits.fingerprint()
    pooled = digits.with_importance(["1/2", "1/3", "1/6"]).pooled()
    again = pickle.loads(pickle.dumps(pooled))
    assert again.fingerprint() == pooled.fingerprint()
    assert again.num_clients == 1
    made, (spec, *others, _) = digits.__reduce__()
    with pytest.raises(InputError, match="problem digits has other rows here"):
        made(spec, *others, "another")


def test_rows_on_disk_are_sent_as_the_place_where_they_lie(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.arange(400.0, dtype=np.float32).reshape(80, 5))
    np.save(tmp_path / "y.npy", np.arange(80.0, dtype=np.float32))
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    mine = ft.Problem(init, loss, [{"x": x[k : k + 20], "y": y[k : k + 20]} for k in (10, 30, 50)])
    sent = pickle.dumps(mine)
    assert len(sent) < 2000
    again = pickle.loads(sent)
    assert again.fingerprint() == mine.fingerprint()
    assert np.array_equal(again.client_data(1)["x"], x[30:50])


# -- the desk


def test_only_the_last_attempt_saves(tmp_path) -> None:
    desk = new_desk(tmp_path, "history")
    desk.take(3, "a.1")
    assert desk.is_mine(3, "a.1")
    assert desk.is_begun(3, "a")
    desk.take(3, "a.2")  # the executor has lost the first, and given the order again
    assert not desk.is_mine(3, "a.1")
    assert desk.is_begun(3, "a")
    desk.take(3, "b.1")
    assert not desk.is_begun(3, "a")
    assert not desk.is_mine(4, "b.1")
    desk.close()
    assert not list(tmp_path.iterdir())
    assert not desk.is_mine(3, "b.1")


def test_a_desk_that_is_in_use_is_left_alone(tmp_path, monkeypatch) -> None:
    mine = new_desk(tmp_path, "history")
    with pytest.raises(ft.ResultsConflict, match=rf"another process is training .* \(process {os.getpid()} on "):
        clear_desks(tmp_path, "history")
    clear_desks(tmp_path, "history.1-of-2")  # another job's
    assert mine.path.exists()
    with pytest.raises(ft.ResultsConflict, match="another process is training"):
        study(checkpoint=_begun(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (mine.path / "sign").write_text(f"{platform.node()} {gone.pid} 1")
    clear_desks(tmp_path, "history")
    assert not mine.path.exists()

    monkeypatch.setattr(desk_file, "SIGN_SECONDS", 0.02)
    far = new_desk(tmp_path, "history")
    (far.path / "sign").write_text("elsewhere 7 1")
    with ThreadPoolExecutor(1) as pool:
        stop = threading.Event()

        def renew() -> None:
            while not stop.wait(0.005):
                (far.path / "sign").write_text(f"elsewhere 7 {time.time_ns()}")

        pool.submit(renew)
        with pytest.raises(ft.ResultsConflict, match="process 7 on elsewhere"):
            clear_desks(tmp_path, "history")
        stop.set()
    clear_desks(tmp_path, "history")  # nobody renews the sign
    assert not far.path.exists()


def _begun(folder):
    """Where somebody is at a study already."""
    study(checkpoint=folder / "study")
    new_desk(folder / "study", "history")
    return folder / "study"


def test_a_folder_that_is_removed_in_the_middle_is_said(tmp_path) -> None:
    desk = new_desk(tmp_path / "study", "history")
    shutil.rmtree(tmp_path / "study")
    with pytest.raises(ft.ResultsConflict, match="was removed while it was trained"):
        desk.touch()
    desk.stop()
    desk.close()


def test_what_fails_on_the_way_leaves_a_history(tmp_path) -> None:
    def fail(run, time, values) -> None:
        if time > 0:
            raise RuntimeError("no more room for curves")

    for name, where in (("here", {}), ("there", {"executor": Changed()})):
        with pytest.raises(RuntimeError, match="no more room"):
            study(on_measure=fail, checkpoint=tmp_path / name, **where)
        assert bool(ft.History.load(tmp_path / name / "history.nc").begun.any())
        assert not list((tmp_path / name).glob(f"{DESKS}*"))


def test_workers_end_when_they_are_asked_to_or_nobody_is_there(tmp_path, monkeypatch) -> None:
    desk = new_desk(tmp_path, "history")
    clock = [0.0]
    monkeypatch.setattr(desk_file.time, "monotonic", lambda: clock[0])
    assert not desk.asks_to_stop()
    clock[0] = desk_file.GONE_SECONDS - 1
    assert not desk.asks_to_stop()
    os.utime(desk.path / "sign", ns=(5, 5))  # as `touch` does
    clock[0] = desk_file.GONE_SECONDS + 50
    assert not desk.asks_to_stop()
    clock[0] += desk_file.GONE_SECONDS + 1
    assert desk.asks_to_stop()
    os.utime(desk.path / "sign", ns=(6, 6))
    assert not desk.asks_to_stop()
    desk.stop()
    assert desk.asks_to_stop()


def test_a_worker_that_was_replaced_saves_nothing(tmp_path, forgetful) -> None:
    """The study's folder belongs to a later attempt, whatever the one before still does."""
    orders = []

    def keep(order):
        orders.append(order)
        return order

    folder = tmp_path / "study"
    with Changed(keep) as one:
        study(executor=one, checkpoint=folder)
    unit = folder / "units" / "0000.npz"
    before = unit.read_bytes()
    unit.unlink()
    desk = Desk(orders[0].desk)
    desk.path.mkdir()
    desk.touch()
    take = Desk.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Desk, "take", lambda self, number, owner: take(self, number, "somebody else"))
        report = worker.work(orders[0])
    assert report.ending == "taken over"
    assert not unit.exists()
    assert worker.work(orders[0]).ending == "finished"
    assert unit.read_bytes()[:100] == before[:100]
    desk.close()
    assert worker.work(orders[0]) == Report("no folder", worker.here())


def test_what_a_worker_raises_ends_the_study(tmp_path) -> None:
    def fail(order):
        raise InputError("the disk is gone")

    with Changed() as one:
        one.change = lambda order: order._replace(unit=99)
        with pytest.raises(IndexError):
            study(executor=one, checkpoint=tmp_path / "study")
    assert not list((tmp_path / "study").glob(f"{DESKS}*"))


def test_a_unit_that_ends_its_process_again_and_again_is_given_up() -> None:
    pool = Pool(1)
    try:
        sender = Sender(pool)
        for _ in range(executors.DEATHS - 1):
            assert sender.result(sender.submit(os._exit, 3), "unit") is None
        with pytest.raises(WorkersLost, match="has ended its process 3 times"):
            sender.result(sender.submit(os._exit, 3), "unit")
    finally:
        pool.close()


def test_the_script_is_not_run_again_by_its_workers() -> None:
    main = sys.modules["__main__"]
    pool = Pool(1)
    try:
        assert pool.submit(_main_file).result() is None
    finally:
        pool.close()
    assert sys.modules["__main__"] is main


def _main_file() -> str | None:
    return getattr(sys.modules["__main__"], "__file__", None)
