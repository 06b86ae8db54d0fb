"""Carrying out the units of a study over the cores, or the devices, of this process; a stop keeps everything.

`run_unit` is the loop of one unit. Ctrl-C is a note and no exception, which would be lost where Python ignores those,
as inside the removal of an object.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType

from fedtempo.simulation.engine.devices import Devices
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.numerics import Precision, numerics
from fedtempo.simulation.engine.session import Session, Snapshot, UnitSpec
from fedtempo.simulation.ledger import POLL_SECONDS, Ledger, Table

SAVE_SHARE = 9
"""Training takes so many times as long as saving, at the least, unless it is saved after every call."""


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


def run_unit(
    spec: UnitSpec,
    machine: Machine,
    dtype: Precision,
    saved: Snapshot | None,
    *,
    save: Callable[[Session], None],
    look: Callable[[Session, int], bool],
    save_every: float,
) -> None:
    """One unit, from its start or from where it was saved, to its end or to a stop: the order of all it does.

    `look` is called between two calls of the engine, with the client updates of the last one, over all runs; whether
    to go on. If it raises, the unit is saved as it is.
    """
    with numerics(dtype), closing(Session(spec, machine, saved)) as session:
        next_save = time.monotonic() + save_every
        while True:
            piece = session.piece()  # events and measuring points in the order of time
            events = session.train(piece)  # clients' jobs and the server's rounds, for half a second
            session.measure(piece)  # the models at the points that have passed
            try:
                goes_on = look(session, events * spec.unit.num_runs)
            except BaseException:
                save(session)
                raise
            if session.finished or not goes_on:
                break
            if (begin := time.monotonic()) > next_save:
                save(session)
                end = time.monotonic()
                next_save = end + (save_every and max(save_every, SAVE_SHARE * (end - begin)))
        save(session)


class Runner:
    """Runs units in threads of this process, or one after the other in the one that calls."""

    def __init__(self, ledger: Ledger, dtype: Precision, devices: Devices, *, threads: int | None) -> None:
        """`threads`: how many units go at once; None: one after the other, in the thread that calls.

        PyTorch, whose own threads belong to the one that calls it, is twice as fast so.
        """
        self._ledger, self._dtype, self._devices, self._threads = ledger, dtype, devices, threads
        self._stop = threading.Event()

    @property
    def compile_seconds(self) -> float:
        """Over all threads."""
        return self._devices.compile_seconds

    def run(self) -> None:
        """To the end, or to an interrupt: then every unit is saved where it is, and it is raised."""
        numbers = range(len(self._ledger.units.specs))
        with noted() as interrupts:
            if self._threads is None:

                def look() -> None:
                    if interrupts.came:
                        self._stop.set()
                    self._ledger.look()

                for k in numbers:
                    self._run_unit(k, look)
            else:
                self._in_threads(self._threads, interrupts)
            self._ledger.look(last=True)

    def _in_threads(self, threads: int, interrupts: Interrupts) -> None:
        with ThreadPoolExecutor(threads, thread_name_prefix="fedtempo") as pool:
            running = {pool.submit(self._run_unit, k) for k in range(len(self._ledger.units.specs))}
            tasks = list(running)
            try:
                while running:
                    done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
                    for task in done:
                        task.result()
                    if interrupts.came:
                        raise KeyboardInterrupt
                    self._ledger.look()
            except BaseException:
                self._stop.set()
                for task in tasks:
                    task.cancel()
                wait(tasks)
                raise

    def _run_unit(self, k: int, look: Callable[[], None] = lambda: None) -> None:
        ledger = self._ledger
        spec, count, folder = ledger.units.specs[k], ledger.counts[k], ledger.folder
        if self._stop.is_set() or ledger.is_finished(k):
            return
        saved = folder.read_unit(spec.unit.number) if folder is not None else None

        def save(session: Session) -> None:
            outcome = session.snapshot()
            if folder is not None:
                folder.write_unit(spec.unit.number, outcome)
            ledger.note(k, outcome)

        def seen(session: Session, updates: int) -> bool:
            recorder = session.recorder
            ledger.tables[k] = lambda: Table(recorder.points_done, recorder.table, recorder.diverged)
            count.updates += updates
            count.share = session.share
            look()
            return not self._stop.is_set()

        with self._devices.machine(spec.unit.machine) as machine:
            run_unit(spec, machine, self._dtype, saved, save=save, look=seen, save_every=ledger.save_every)
