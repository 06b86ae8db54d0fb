"""Several devices of one process: units side by side, and one unit over all of them, as on one device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.engine.machine import WaveMachine
from support.executors import study

_SCRIPT = """
import sys
import jax
import fedtempo as ft
from fedtempo.simulation import study as place
from fedtempo.simulation.engine import machine
from support.executors import study

seen = []
groups_of = place.groups_of
place.groups_of = lambda *given: seen.append(groups_of(*given)) or seen[-1]
programs = machine.PROGRAMS.compiled
texts, used = [], set()

def compiled(function, *args, **how):
    made = programs(function, *args, **how)
    texts.append(made.as_text())
    used.update(device.id for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array) for device in leaf.devices())
    return made

machine.PROGRAMS.compiled = compiled
assert len(jax.local_devices()) == 4

study(engine="waves").save(sys.argv[1] + "/many.nc")  # seeds go together: 4 units
assert [len(group) for group in seen[-1]] == [1, 1, 1, 1], seen
assert len({group[0] for group in seen[-1]}) == 4
assert used == {0, 1, 2, 3}, used

one = {"schemes": [ft.AsyncFedAvg()], "engine": "waves"}
study(**one).save(sys.argv[1] + "/split.nc")  # four runs of one unit: a unit each
assert len(seen[-1]) == 4

single = {**one, "seeds": [0], "local": ft.LocalSGD(lr=0.1, batch_size=4)}
study(**single)  # a small model gains nothing from many devices
assert [len(group) for group in seen[-1]] == [1], seen
machine.WaveMachine.gains_from = lambda self, devices: True
texts.clear()
study(**single).save(sys.argv[1] + "/single.nc")
assert [len(group) for group in seen[-1]] == [4], seen
assert any("all-gather" in text or "all-reduce" in text for text in texts)
assert any("num_partitions=4" in text for text in texts)
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Path:
    """What a process with four devices has found."""
    folder = tmp_path_factory.mktemp("four")
    tests = Path(__file__).parent.parent
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}"}
    done = subprocess.run([sys.executable, "-c", _SCRIPT, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("many", {}),
        ("split", {"schemes": [ft.AsyncFedAvg()]}),
        (
            "single",
            {"schemes": [ft.AsyncFedAvg()], "seeds": [0], "local": ft.LocalSGD(lr=0.1, batch_size=4)},
        ),
    ],
)
def test_four_devices_find_what_one_finds(file, changes, four) -> None:
    there, here = ft.History.load(four / f"{file}.nc"), study(engine="waves", **changes)
    assert set(there.dataset.data_vars) == set(here.dataset.data_vars)
    for name, values in here.dataset.items():
        if values.dtype.kind == "f":
            found = there.dataset[name].values
            assert np.allclose(found, values.values, rtol=1e-9, atol=1e-12, equal_nan=True), name
    assert float(here.final("loss").min()) < 0.9 * float(here.dataset["loss"].isel(time=0).max())


def test_what_is_shared_must_be_worth_it() -> None:
    """Four devices share a wave only where computing takes long beside bringing the contributions together."""
    machine = WaveMachine.__new__(WaveMachine)
    machine.width, machine._lanes_seconds, machine._gather_bytes = 8, 1e-5, 1000
    assert not machine.gains_from(4)
    machine._lanes_seconds = 1e-2
    assert machine.gains_from(4)
    machine._gather_bytes = 10**9
    assert not machine.gains_from(4)
    machine._gather_bytes, machine.width = 1000, 2
    assert not machine.gains_from(4)
