"""A unit of a study in another process or on another machine: what it is told, what it does, what it gives back.

    Order → Report       a unit to its end; where no folder is shared, for a while, and what it then was
    Stretch → Stretched  some runs of a unit up to a measuring point, as a race asks for them

A problem comes as bytes once: a worker keeps the last ones by their digests, and says so when it does not have one. A
worker that sees the study's folder saves there itself, and tells how far it is by a small file beside it. One that does
not see it trains for `save_every` seconds at a time and gives the unit back, from which any worker goes on.

Whether a folder is the same one, whether to stop, and whether somebody still waits for a unit, a worker sees at the
desk of the one who gives the orders (desk.py).
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import pickle
import platform
import secrets
import sys
import threading
import time
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedtempo.errors import InputError, in_one_line
from fedtempo.problems.problem import Problem
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.compilation import keep_on_disk
from fedtempo.simulation.desk import Desk
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.engine.session import Session, Snapshot
from fedtempo.simulation.unit_runner import run_unit
from fedtempo.simulation.units import Units, units_of

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study

LIVE_SECONDS = 1.0
"""How often a worker tells how far it is, by a file."""
HELD = 4
"""Studies that a worker keeps, and problems, at most."""

Ending = Literal["finished", "stopped", "no problem", "no folder", "taken over"]


class Sent(NamedTuple):
    """A study on its way to a worker."""

    study: bytes
    """Without its problem, and into how many units its runs are split."""
    key: str
    """Of the problem."""
    problem: bytes | None
    """None where the worker may have it already."""
    path: str
    """A folder in which modules are found that the study names."""


class Order(NamedTuple):
    """One unit of a study to be trained, or to go on with."""

    sent: Sent
    unit: int
    """Its place in the units of the study."""
    attempt: str
    """Only the last attempt at a unit may save it."""
    folder: str | None
    """Of the study, where the worker sees it; else the unit is given back."""
    desk: str
    saved: Snapshot | None
    """To go on from, where no folder is shared."""
    save_every: float


class Report(NamedTuple):
    """What has come of an order."""

    ending: Ending
    worker: str
    updates: int = 0
    compile_seconds: float = 0.0
    unit: Snapshot | None = None
    """Where no folder is shared: the unit, with its state if it is not finished."""


class Stretch(NamedTuple):
    """Some runs of a unit to be trained up to a measuring point, or for a while."""

    sent: Sent
    unit: int
    times: tuple[Fraction, ...]
    """When they are measured."""
    capacity: int
    before: tuple[int, ...]
    """The runs, by their places in the unit, that `saved` is of."""
    runs: tuple[int, ...]
    """Those that go on."""
    saved: Snapshot | None
    point: int
    seconds: float


class Stretched(NamedTuple):
    """What has come of a stretch."""

    worker: str
    events: int
    unit: Snapshot | None
    """None: the problem is missing."""


# -- sending


@dataclass(frozen=True)
class Packed:
    """A thing as bytes, and their digest."""

    key: str
    content: bytes


def packed_problem(problem: Problem) -> Packed:
    """A problem for workers; what cannot be sent is said, and how it can."""
    return _as_bytes(
        problem,
        f"the problem {problem.name!r}",
        'put its functions into a module, and let the module make it: problem "my_module:make"',
    )


def packed_study(study: Study, splits: int) -> Packed:
    """A study without its problem, and into how many units its runs are split."""
    bare = replace(study, problem=None)  # type: ignore[arg-type]
    return _as_bytes((bare, splits), "the study", "put functions and classes of your own into a module")


def _as_bytes(thing: object, name: str, cure: str) -> Packed:
    try:
        content = _pickled(thing)
    except Exception as error:
        raise InputError(f"executor: {name} cannot be sent to other processes ({in_one_line(error)}); {cure}") from None
    return Packed(digest(content), content)


def digest(content: bytes) -> str:
    """What bytes are known by."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _pickled(thing: object) -> bytes:
    """With cloudpickle, where it is installed, also what a script or a notebook has defined itself."""
    try:
        import cloudpickle
    except ImportError:
        out = io.BytesIO()
        _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
        return out.getvalue()
    made: bytes = cloudpickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    return made


class _Pickler(pickle.Pickler):
    """Refuses what lies in a script or a notebook: another process has another one."""

    def reducer_override(self, thing: Any) -> Any:
        if callable(thing) and getattr(thing, "__module__", None) == "__main__":
            name = getattr(thing, "__qualname__", type(thing).__name__)
            raise pickle.PicklingError(f"{name} is defined in __main__, and cloudpickle is not installed")
        return NotImplemented


# -- at work


def here() -> str:
    """What this process is called."""
    return f"{platform.node()}, process {os.getpid()}"


@dataclass
class _Held:
    """A study that this process has, with all that it has compiled."""

    study: Study
    units: Units
    lock: threading.Lock = field(default_factory=threading.Lock)
    """For engines that have a device, or threads, of their own."""

    @property
    def turn(self) -> AbstractContextManager[object]:
        """Inside, nobody else trains where that would be in the way."""
        return self.lock if self.study.engine in ("waves", "torch") else nullcontext()


_problems: OrderedDict[str, Problem] = OrderedDict()
_studies: OrderedDict[str, _Held] = OrderedDict()
_making = threading.Lock()


def _held(sent: Sent) -> _Held | None:
    """The study; None where its problem has yet to be sent."""
    key = f"{digest(sent.study)}{sent.key}"
    with _making:
        _take_only_its_share_of_cores()
        _find_modules_in(sent.path)
        if key not in _studies:
            if sent.key not in _problems:
                if sent.problem is None:
                    return None
                _keep(_problems, sent.key, _unpacked(sent.problem))
            keep_on_disk()
            bare, splits = _unpacked(sent.study)
            study = replace(bare, problem=_problems[sent.key])
            _keep(_studies, key, _Held(study, units_of(study, splits)))
        return _studies[key]


def _keep(held: OrderedDict[str, Any], key: str, thing: Any) -> None:
    held[key] = thing
    while len(held) > HELD:
        held.popitem(last=False)


def _unpacked(content: bytes) -> Any:
    try:
        return pickle.loads(content)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"executor: the worker on {here()} cannot make the study again ({in_one_line(error)}); install there what "
            "is installed here, in the same versions, and put modules of your own where it finds them"
        ) from None


def _take_only_its_share_of_cores() -> None:
    """XLA has as many threads as a worker of Dask, in a process that is one; several may be on this machine."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is not None and multiprocessing.parent_process() is not None:
        with suppress(ValueError):  # not one
            os.environ.setdefault("NPROC", str(distributed.get_worker().state.nthreads))


def _find_modules_in(folder: str) -> None:
    """Also there, if it is there."""
    if folder and folder not in sys.path and os.path.isdir(folder):
        sys.path.append(folder)


def train(stretch: Stretch) -> Stretched:
    """Some runs of a unit, up to a measuring point or for a while."""
    held = _held(stretch.sent)
    if held is None:
        return Stretched(here(), 0, None)
    spec = replace(held.units.specs[stretch.unit], times=stretch.times, capacity=stretch.capacity)
    machine, events = held.units.machines[spec.unit.machine], 0
    with held.turn, numerics(held.study.dtype):
        until = time.monotonic() + stretch.seconds
        session = Session(spec.narrowed(stretch.before), machine, stretch.saved)
        if stretch.runs != stretch.before:
            session.narrow([stretch.before.index(run) for run in stretch.runs])
        while not session.is_at(stretch.point) and (not events or time.monotonic() < until):
            piece = session.piece()
            events += session.train(piece, stretch.point - 1)
            session.measure(piece)
        return Stretched(here(), events, session.snapshot())


def work(order: Order) -> Report:
    """A unit, to its end or to a stop."""
    if order.folder is not None:
        desk = Desk(order.desk)
        if not desk.is_there():
            return Report("no folder", here())
        if desk.asks_to_stop():
            return Report("stopped", here())
    held = _held(order.sent)
    return Report("no problem", here()) if held is None else _Unit(order, held).run()


class _Unit:
    """One order at work."""

    def __init__(self, order: Order, held: _Held) -> None:
        self._order, self._held = order, held
        self._spec = held.units.specs[order.unit]
        self._machine = held.units.machines[self._spec.unit.machine]
        self._folder = None if order.folder is None else Folder(Path(order.folder))
        self._desk = Desk(order.desk)
        self._mine = f"{order.attempt}.{secrets.token_hex(4)}"
        """An executor may give an order to a second worker when it has lost the first."""
        self._until = time.monotonic() + order.save_every
        self._live = 0.0
        self._updates = 0
        self._unit: Snapshot | None = None
        self._taken = False

    def run(self) -> Report:
        """To the end, to a stop, or for a while."""
        order, number = self._order, self._spec.unit.number
        before = self._machine.compile_seconds
        saved = order.saved
        if self._folder is not None:
            self._desk.take(order.unit, self._mine)
            saved = self._folder.read_unit(number)
        study = self._held.study
        if saved is None or not saved["finished"]:
            with self._held.turn:
                run_unit(
                    self._spec,
                    self._machine,
                    study.dtype,
                    saved,
                    save=self._save,
                    look=self._look,
                    save_every=order.save_every,
                )
        elif self._folder is None:
            self._unit = saved
        done = self._unit is None or bool(self._unit["finished"])
        ending: Ending = "taken over" if self._taken else "finished" if done else "stopped"
        compiling = self._machine.compile_seconds - before
        return Report(ending, here(), self._updates, compiling, None if self._folder is not None else self._unit)

    def _save(self, session: Session) -> None:
        self._unit = session.snapshot()
        if self._folder is None:
            return
        if self._desk.is_mine(self._order.unit, self._mine):
            self._folder.write_unit(self._spec.unit.number, self._unit)
        else:
            self._taken = True

    def _look(self, session: Session, updates: int) -> bool:
        self._updates += updates
        now = time.monotonic()
        if self._folder is None:
            return now < self._until
        if now - self._live > LIVE_SECONDS:
            self._live = now
            self._taken = self._taken or not self._desk.is_mine(self._order.unit, self._mine)
            if not self._taken:
                self._desk.tell(self._order.unit, self._order.attempt, self._updates, session)
        return not self._taken and not self._desk.asks_to_stop()
