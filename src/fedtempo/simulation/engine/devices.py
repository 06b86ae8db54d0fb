"""Which devices of this process run which units: each its own, or several one together where units are fewer.

    4 devices, 30 units    one unit a device, four at once
    4 devices, 1 unit      the clients of a wave are dealt over all four, where they compute for longer than it takes
                           to bring their contributions together

The runs and seeds of a study are dealt over units first (units.py), since units have nothing to say to each other.
"""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from fedtempo.simulation.engine.machine import LANES, Machine, OnDevice, WaveMachine

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study

Group = tuple[Any, ...]
"""Devices that run one unit; none: where JAX puts it."""


LEAST_CAPABILITY = 8.0
"""Of an NVIDIA device whose matrix units our kernels use."""
WANTED = "FEDTEMPO_KERNELS"
"""The environment's word for kernels of our own; "1" turns them on."""


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_devices(study: Study) -> int:
    """How many units of a study have a device of their own."""
    return len(jax.local_devices()) if study.engine == "waves" else 1


def has_kernels() -> bool:
    """Whether kernels of our own are wanted and run here."""
    return os.environ.get(WANTED) == "1" and can_have_kernels()


def can_have_kernels() -> bool:
    """Whether they could: on NVIDIA's devices from Ampere on, where JAX compiles Triton's programs."""
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))  # AMD's devices have a name there
    if device.platform != "gpu" or not re.fullmatch(r"\d+\.\d+", capability) or float(capability) < LEAST_CAPABILITY:
        return False
    try:
        from jax.experimental.pallas.triton import debug_barrier, dot, load, store  # noqa: F401
    except ImportError:  # in other versions of JAX
        return False
    return True


def groups_of(study: Study, machines: Sequence[Machine], units: int) -> list[Group]:
    """The devices, in groups that run a unit each."""
    devices = jax.local_devices() if study.engine == "waves" else []
    if len(devices) < 2:
        return [()]
    together = len(devices) // units
    if together > 1 and all(isinstance(one, WaveMachine) and one.gains_from(together) for one in machines):
        return [tuple(devices[k * together : (k + 1) * together]) for k in range(units)]
    return [(device,) for device in devices[:units]]


class Devices:
    """The machines of a study on each group of devices, made when a unit first needs them."""

    def __init__(self, study: Study, machines: Sequence[Machine], groups: Sequence[Group]) -> None:
        self._study, self._machines = study, machines
        self._free: queue.SimpleQueue[Group] = queue.SimpleQueue()
        for group in groups:
            self._free.put(group)
        self._lock = threading.Lock()
        self._made: dict[tuple[Group, int], Machine] = {}
        self._rows: dict[Group, OnDevice] = {}

    @property
    def compile_seconds(self) -> float:
        """Over all of them."""
        return sum(machine.compile_seconds for machine in (*self._machines, *self._made.values()))

    @contextmanager
    def machine(self, number: int) -> Iterator[Machine]:
        """One of the machines, on devices that nobody else uses inside the block."""
        if self._study.engine != "waves":
            yield self._machines[number]
            return
        group = self._free.get()
        try:
            with jax.default_device(group[0]) if group else nullcontext():
                yield self._on(group, number) if group else self._machines[number]
        finally:
            self._free.put(group)

    def _on(self, group: Group, number: int) -> Machine:
        with self._lock:
            if (group, number) not in self._made:
                mesh = Mesh(list(group), (LANES,)) if len(group) > 1 else None
                if group not in self._rows:
                    self._rows[group] = OnDevice(self._study.problem, self._study.dtype, mesh)
                machine = self._machines[number]
                assert isinstance(machine, WaveMachine)
                self._made[group, number] = machine.on(self._rows[group])
            return self._made[group, number]
