"""The units of a study in other processes or on other machines, by an executor of `concurrent.futures`.

    every unit is an order → the executor gives it to a worker → the worker trains, saves and tells how far it is
    a worker that dies       its unit is ordered again, and goes on from where it was saved
    no folder in common      units come back every `save_every` seconds and are ordered again from there
    Ctrl-C                   workers are asked to save and end; then it is raised

Which worker runs a unit, and how often it was begun, changes no bit of what it measures: units and their programs are
the same everywhere.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fedtempo.errors import InputError, WorkersLost, in_one_line
from fedtempo.problems.problem import Problem
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.desk import SIGN_SECONDS, Desk, new_desk
from fedtempo.simulation.engine.devices import cores
from fedtempo.simulation.ledger import POLL_SECONDS, Ledger, Table
from fedtempo.simulation.unit_runner import Interrupts, noted
from fedtempo.simulation.worker import Order, Packed, Report, Sent, packed_problem, packed_study, work

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study

DEATHS = 3
"""So often a unit may end its worker before it is given up."""
SMALL = 1 << 16
"""Bytes of a problem that goes with every order."""
LAST_SECONDS = 90.0
"""So long workers that are asked to save and end may take."""


class Pool:
    """Processes of this machine; where one dies, which breaks the executor, there are new ones."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._spawn = multiprocessing.get_context("spawn")
        self._leave = self._spawn.Event()
        """Set: processes end at once, whatever they do."""
        self._executor = self._made()

    def _made(self) -> ProcessPoolExecutor:
        threads = max(1, cores() // self.workers)
        given = [entry for entry in sys.path if entry], self._leave, threads
        return ProcessPoolExecutor(self.workers, mp_context=self._spawn, initializer=_begin_process, initargs=given)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Give it to a process."""
        with _without_main():
            try:
                return self._executor.submit(function, *args)
            except BrokenProcessPool:
                self._executor.shutdown(wait=False)
                self._executor = self._made()
                return self._executor.submit(function, *args)

    def close(self, *, at_once: bool = False) -> None:
        """End the processes, when they have done what they are at, or at once."""
        if at_once:
            self._leave.set()
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start inside do not run the user's script again: what they need of it comes with the study."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin_process(path: list[str], leave: Event, threads: int) -> None:
    """A process of the pool: what it prints goes to standard error, and Ctrl-C is for the one that started it.

    XLA gets its share of the cores: threads of processes that all take every core wait for each other.
    """
    os.dup2(2, 1)
    os.environ.setdefault("NPROC", str(threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    for end in (leave.wait, parent.join if parent is not None else leave.wait):
        threading.Thread(target=_end_after, args=(end,), daemon=True).start()
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]


def _end_after(wait: Callable[[], object]) -> None:
    """End this process when it is told to, or when the one that has started it is gone, also if that was killed."""
    wait()
    os._exit(1)


@contextmanager
def workers_of(executor: object, workers: Any) -> Iterator[Sender | None]:
    """What gives units to the executor, or to a pool of so many processes; None: this process runs them itself."""
    if executor is not None and workers is not None:
        raise InputError("workers: the executor has its own; leave workers out, or the executor")
    if executor is not None:
        if not isinstance(executor, Executor):
            cure = "client.get_executor()" if hasattr(executor, "get_executor") else "ProcessPoolExecutor(4)"
            raise InputError(f"executor: {executor!r} is not an executor of concurrent.futures; give one, as {cure}")
        yield Sender(executor)
        return
    if workers is None:
        yield None
        return
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers: {workers!r} processes cannot be; give at least 1, or leave it out for this one")
    pool = Pool(workers)
    sender = Sender(pool)
    try:
        yield sender
    except BaseException:
        sender.is_abandoned = True
        raise
    finally:
        pool.close(at_once=sender.is_abandoned)


def _here() -> str:
    """Where modules of one's own lie, if that is known."""
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


class Sender:
    """Gives orders to an executor; a problem of many bytes travels to a worker once.

    An order without it comes back from a worker that does not have it. The first to come back from a worker is given
    again with the problem, and what else had been given before that without: it finds the problem there.
    """

    def __init__(self, executor: Executor | Pool) -> None:
        self.executor = executor
        self._deaths: dict[object, int] = {}
        self._given: WeakKeyDictionary[Future[Any], int] = WeakKeyDictionary()
        """When an order was given, counted in orders."""
        self._orders = 0
        self._problem_at: dict[tuple[str, str], int] = {}
        """When a problem was last sent for a worker."""
        self._packed: WeakKeyDictionary[Problem, Packed] = WeakKeyDictionary()
        self.is_abandoned = False
        """Whether workers of ours may end in the middle of what they do."""

    @property
    def workers(self) -> int | None:
        """How many there are, where that is known."""
        return self.executor.workers if isinstance(self.executor, Pool) else None

    def sent(self, study: Packed, problem: Problem, *, with_problem: bool = False) -> Sent:
        """A study for an order."""
        packed = self._packed.get(problem)
        if packed is None:
            packed = self._packed[problem] = packed_problem(problem)
        goes = with_problem or len(packed.content) <= SMALL
        return Sent(study.content, packed.key, packed.content if goes else None, _here())

    def submit(self, function: Callable[[Any], Any], order: object) -> Future[Any]:
        """Give it away."""
        try:
            task = self.executor.submit(function, order)
        except Exception as error:
            raise self.lost(error) from None
        self._orders += 1
        self._given[task] = self._orders
        return task

    def is_missing(self, task: Future[Any], worker: str, problem: Problem) -> bool:
        """Whether the problem is to go along, now that an order has come back from a worker without it."""
        key = worker, self._packed[problem].key
        if self._given[task] < self._problem_at.get(key, 0):
            return False
        self._problem_at[key] = self._orders + 1
        return True

    def abandon(self, tasks: Iterable[Future[Any]]) -> None:
        """Nobody waits for these any more, and there is nothing in them to keep."""
        for task in tasks:
            task.cancel()
        self.is_abandoned = True

    def result(self, task: Future[Any], unit: object, *, begun: bool = True) -> Any:
        """What has come of an order; None where the process has died, and it is to be given again.

        All orders that were out have died with it, since nobody knows whose fault it was; those that had `begun` are
        counted.
        """
        try:
            return task.result()
        except BrokenExecutor as error:
            if not isinstance(self.executor, Pool):
                raise self.lost(error) from None
            self._deaths[unit] = self._deaths.get(unit, 0) + begun
            if self._deaths[unit] < DEATHS:
                return None
            raise WorkersLost(
                f"workers: the same work has ended its process {DEATHS} times, perhaps for want of memory; what was "
                "saved is kept; give fewer workers, fewer seeds or rates, or a smaller model"
            ) from None
        except CancelledError as error:
            raise self.lost(error) from None

    def lost(self, error: BaseException) -> WorkersLost:
        """What it means that nothing can be given to the executor, or comes back."""
        if isinstance(error, RuntimeError) and "shutdown" in str(error):
            what = "it is closed"
        elif isinstance(error, CancelledError):
            what = "it has let go of what it was given: its scheduler, or its workers, are gone"
        elif isinstance(error, BrokenExecutor):
            what = f"its workers are gone ({in_one_line(error)})"
        else:
            what = f"it does not take the work ({in_one_line(error)})"
        return WorkersLost(
            f"executor: {what}; what was saved is kept, and goes on from there by the same call, without it or with "
            "another"
        )


class ExecutorRunner:
    """Runs the units of a study by an executor."""

    def __init__(self, ledger: Ledger, study: Study, splits: int, sender: Sender) -> None:
        self._ledger, self._sender = ledger, sender
        self._packed, self._problem = packed_study(study, splits), study.problem
        self._shared = True
        """Whether workers have seen the study's folder, as far as is known."""
        self._where = {spec.unit.number: k for k, spec in enumerate(ledger.units.specs)}
        """By a unit's number in the study, its place in the ledger."""
        self._out: dict[Future[Report], Order] = {}
        self._updates = [0] * len(ledger.units.specs)
        """By unit, of orders that are done."""
        self._told_at: dict[int, int] = {}
        self._sign = 0.0
        self.compile_seconds = 0.0

    def run(self) -> None:
        """To the end, or to an interrupt: then workers save their units, and it is raised."""
        with self._place() as (folder, desk), noted() as interrupts:
            self._folder, self._desk = folder, desk
            try:
                self._order_all()
                while self._out:
                    self._hear(wait(self._out, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done)
                    if interrupts.came:
                        raise KeyboardInterrupt
                    self._look()
                self._ledger.look(last=True)
            except BaseException:
                interrupts.came = False
                self._end(interrupts)
                interrupts.came = False
                raise

    @contextmanager
    def _place(self) -> Iterator[tuple[Folder, Desk]]:
        """The study's folder, or a passing one, and the desk in it."""
        kept = self._ledger.folder
        path = kept.path if kept is not None else Path(tempfile.mkdtemp(prefix="fedtempo-"))
        folder = kept if kept is not None else Folder(path)
        if kept is None:
            (path / "units").mkdir()
        desk = new_desk(path, folder.history.stem)
        try:
            yield folder, desk
        finally:
            desk.close()
            if kept is None:
                shutil.rmtree(path, ignore_errors=True)

    # -- orders

    def _order_all(self) -> None:
        for k in range(len(self._ledger.units.specs)):
            if not self._ledger.is_finished(k):
                self._order(k)

    def _order(self, k: int, *, with_problem: bool = False) -> None:
        """Order a unit, from where it was saved."""
        saved = None if self._shared else self._folder.read_unit(self._ledger.units.specs[k].unit.number)
        order = Order(
            sent=self._sender.sent(self._packed, self._problem, with_problem=with_problem),
            unit=self._ledger.units.specs[k].unit.number,
            attempt=secrets.token_hex(8),
            folder=str(self._folder.path.absolute()) if self._shared else None,
            desk=str(self._desk.path.absolute()),
            saved=saved,
            save_every=self._ledger.save_every,
        )
        self._out[self._sender.submit(work, order)] = order

    def _hear(self, done: set[Future[Report]]) -> None:
        """What has come of orders, and what follows from it."""
        for task in done:
            order = self._out.pop(task)
            begun = not self._shared or self._desk.is_begun(order.unit, order.attempt)
            report = self._sender.result(task, order.unit, begun=begun)
            k = self._where[order.unit]
            if report is None:
                self._order(k)
            elif report.ending == "no problem":
                self._order(k, with_problem=self._sender.is_missing(task, report.worker, self._problem))
            else:
                self._heard(k, order, report)

    def _heard(self, k: int, order: Order, report: Report) -> None:
        if report.ending == "no folder":
            self._shared = False
            self._order(k)
            return
        self._updates[k] += report.updates
        self.compile_seconds += report.compile_seconds
        self._ledger.counts[k].updates = self._updates[k]
        if report.unit is not None:
            self._folder.write_unit(self._ledger.units.specs[k].unit.number, report.unit)
        self._recall(k)
        if not self._ledger.is_finished(k) and all(other.unit != order.unit for other in self._out.values()):
            self._order(k)

    # -- in between

    def _look(self) -> None:
        """Give a sign, see how far units are, and tell."""
        now = time.monotonic()
        if now - self._sign > SIGN_SECONDS:
            self._sign = now
            self._desk.touch()
        for order in self._out.values():
            self._see(order)
        self._ledger.look()

    def _see(self, order: Order) -> None:
        """How far a unit is, as its worker has told by a file."""
        k = self._where[order.unit]
        at = self._desk.told_at(order.unit)
        if at in (0, self._told_at.get(k)):
            return
        found = self._desk.read(order.unit, order.attempt)
        if found is None:
            return
        self._told_at[k] = at
        updates, measured = found
        table, count = Table.of(measured), self._ledger.counts[k]
        count.updates = self._updates[k] + updates
        count.share = table.points / self._ledger.units.specs[k].points
        self._ledger.tables[k] = lambda: table

    # -- the end

    def _end(self, interrupts: Interrupts) -> None:
        """Workers save and end; a second interrupt waits for nobody."""
        self._desk.stop()
        for task, order in [*self._out.items()]:
            if order.folder is None or not self._desk.is_begun(order.unit, order.attempt):  # as it was saved last
                task.cancel()
                del self._out[task]
        until = time.monotonic() + LAST_SECONDS
        while self._out and time.monotonic() < until and not interrupts.came:
            for task in wait(self._out, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                self._recall(self._where[self._out.pop(task).unit])

    def _recall(self, k: int) -> None:
        """What a unit has saved."""
        saved = self._folder.read_unit(self._ledger.units.specs[k].unit.number, state=False)
        self._ledger.tables.pop(k, None)
        if saved is not None:
            self._ledger.note(k, saved)
