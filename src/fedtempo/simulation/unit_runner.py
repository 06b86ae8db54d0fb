"""Carrying out the units of a study over the cores, with progress, checkpoints, and a stop that keeps everything.

`Runner.run_unit` is the loop of one unit. Ctrl-C is a note and no exception, which would be lost where Python ignores
those, as inside the removal of an object.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.engine.numerics import Precision, numerics
from fedtempo.simulation.engine.session import Session, Snapshot
from fedtempo.simulation.units import Units

SAVE_SECONDS = 30.0
POLL_SECONDS = 0.2


@dataclass
class Interrupts:
    """Whether one has come."""

    came: bool = False


@contextmanager
def noted() -> Iterator[Interrupts]:
    """Notes the first signal that would raise KeyboardInterrupt, for the block to act on; a second one raises it.

    A block that ends without having acted on it ends in KeyboardInterrupt.
    """
    found = Interrupts()

    def note(number: int, frame: FrameType | None) -> None:
        if found.came:
            raise KeyboardInterrupt
        found.came = True

    here = threading.current_thread() is threading.main_thread()
    signals = [s for s in (signal.SIGINT, signal.SIGTERM) if here and signal.getsignal(s) is signal.default_int_handler]
    for number in signals:
        signal.signal(number, note)
    try:
        yield found
    finally:
        for number in signals:
            signal.signal(number, signal.default_int_handler)
    if found.came:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    done: float
    """Share of the virtual time of all runs that has been trained, from 0 to 1."""
    updates: int
    """Client updates since this call began, over all runs."""
    seconds: float
    units_done: int
    units: int
    memory: int = 0
    """Bytes that the study will take, estimated before it began."""
    began: float = 0.0
    """Share that was done when this call began."""

    @property
    def rate(self) -> float:
        """Client updates a second, over all runs."""
        return self.updates / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds to go at this pace; None while there is none."""
        gained = self.done - self.began
        return None if gained <= 0 else self.seconds * (1.0 - self.done) / gained


@dataclass
class _Count:
    """What one unit has done; written by its thread alone."""

    share: float = 0.0
    updates: int = 0


class Runner:
    """Runs units, each in one thread; between calls of the engine it looks whether it should save or stop."""

    def __init__(
        self,
        units: Units,
        dtype: Precision,
        folder: Folder | None,
        *,
        threads: int | None,
        save_every: float = SAVE_SECONDS,
        memory: int = 0,
    ) -> None:
        """`threads`: how many units go at once; None: one after the other, in the thread that calls.

        PyTorch, whose own threads belong to the one that calls it, is twice as fast so.
        """
        self._units, self._dtype, self._folder = units, dtype, folder
        self._threads, self._save_every, self._memory = threads, save_every, memory
        self._stop = threading.Event()
        self._counts = [_Count() for _ in units.specs]
        self.outcomes: list[Snapshot | None] = [None] * len(units.specs)
        """By unit: what it has measured; None if it has not begun."""
        self.seconds = 0.0
        self._began = 0.0

    def run(
        self, on_progress: Callable[[Progress], None] | None = None, on_save: Callable[[], object] | None = None
    ) -> None:
        """To the end, or to an interrupt: then every unit is saved where it is, and it is raised."""
        begin = time.perf_counter()
        self._recall()
        if self._threads is None:
            self._one_by_one(begin, on_progress, on_save)
            return
        with noted() as interrupts, ThreadPoolExecutor(self._threads, thread_name_prefix="fedtempo") as pool:
            tasks = [pool.submit(self.run_unit, k) for k in range(len(self._units.specs))]
            try:
                self._watch(tasks, begin, interrupts, on_progress, on_save)
            except BaseException:
                self._stop.set()
                for task in tasks:
                    task.cancel()
                wait(tasks)
                raise
            finally:
                self.seconds = time.perf_counter() - begin

    def _one_by_one(
        self, begin: float, on_progress: Callable[[Progress], None] | None, on_save: Callable[[], object] | None
    ) -> None:
        last = {"told": 0.0, "saved": time.monotonic()}
        with noted() as interrupts:

            def look() -> None:
                """Between two calls of the engine: stop, tell, save."""
                now = time.monotonic()
                if interrupts.came:
                    self._stop.set()
                if on_progress is not None and now - last["told"] > POLL_SECONDS:
                    on_progress(self._progress(begin))
                    last["told"] = now
                if on_save is not None and self._folder is not None and now - last["saved"] > self._save_every:
                    self.seconds = time.perf_counter() - begin
                    on_save()
                    last["saved"] = now

            try:
                for k in range(len(self._units.specs)):
                    self.run_unit(k, look)
                if on_progress is not None:
                    on_progress(self._progress(begin))
            finally:
                self.seconds = time.perf_counter() - begin

    def _watch(
        self,
        tasks: list[Future[None]],
        begin: float,
        interrupts: Interrupts,
        on_progress: Callable[[Progress], None] | None,
        on_save: Callable[[], object] | None,
    ) -> None:
        last_saved = time.monotonic()
        while True:
            done, running = wait(tasks, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for task in done:
                task.result()
            if interrupts.came:
                raise KeyboardInterrupt
            if on_progress is not None:
                on_progress(self._progress(begin))
            if not running:
                return
            if on_save is not None and self._folder is not None and time.monotonic() - last_saved > self._save_every:
                self.seconds = time.perf_counter() - begin
                on_save()
                last_saved = time.monotonic()

    def _progress(self, begin: float) -> Progress:
        return Progress(
            done=sum(count.share for count in self._counts) / len(self._counts),
            updates=sum(count.updates for count in self._counts),
            seconds=time.perf_counter() - begin,
            units_done=sum(outcome is not None and bool(outcome["finished"]) for outcome in self.outcomes),
            units=len(self._units.specs),
            memory=self._memory,
            began=self._began,
        )

    def _recall(self) -> None:
        """What earlier calls had measured."""
        for k, spec in enumerate(self._units.specs):
            saved = self._folder.read_unit(spec.unit.number, state=False) if self._folder is not None else None
            if saved is not None:
                self.outcomes[k] = saved
                self._counts[k].share = 1.0 if saved["finished"] else int(saved["points_done"]) / spec.points
        self._began = sum(count.share for count in self._counts) / len(self._counts)

    def run_unit(self, k: int, look: Callable[[], None] | None = None) -> None:
        """One unit, from its start or from where it was saved, to its end or to a stop: the order of all it does.

        `look` is called between two calls of the engine. If it raises, the unit is saved as it is.
        """
        spec, count, before = self._units.specs[k], self._counts[k], self.outcomes[k]
        if self._stop.is_set() or (before is not None and bool(before["finished"])):
            return
        saved = self._folder.read_unit(spec.unit.number) if self._folder is not None else None
        with numerics(self._dtype):
            session = Session(spec, self._units.machines[spec.unit.machine], saved)
            last_saved = time.monotonic()
            while True:
                piece = session.piece()  # events and measuring points in the order of time
                events = session.train(piece)  # clients' jobs and the server's rounds, for half a second
                session.measure(piece)  # the models at the points that have passed
                count.updates += events * spec.unit.num_runs
                count.share = session.share
                if look is not None:
                    try:
                        look()
                    except BaseException:
                        self._save(k, session)
                        raise
                if session.finished or self._stop.is_set():
                    break
                if self._folder is not None and time.monotonic() - last_saved > self._save_every:
                    self._save(k, session)
                    last_saved = time.monotonic()
            self._save(k, session)

    def _save(self, k: int, session: Session) -> None:
        outcome = session.snapshot()
        if self._folder is not None:
            self._folder.write_unit(self._units.specs[k].unit.number, outcome)
        self.outcomes[k] = {name: array for name, array in outcome.items() if not name.startswith("state:")}


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
