"""A script written for 0.6.0 runs, with warnings that say where things are."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import fedtempo as ft
from fedtempo import compat
from fedtempo.clock.rules import WaitForAll
from fedtempo.rules import Close
from fedtempo.testing import check_rule
from fedtempo.training.solvers import Sent

README = Path(__file__).parent / "support" / "readme_060.md"


def in_a_process(code: str, *options: str, **given) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, **given)


# -- modules


def test_an_old_module_is_the_one_of_today_and_says_so() -> None:
    code = (
        "import sys, warnings\nfrom importlib import import_module\nfrom fedtempo import compat\n"
        "for old, new in compat.MODULES.items():\n"
        "    with warnings.catch_warnings(record=True) as caught:\n"
        "        warnings.simplefilter('always')\n"
        "        exec(f'import fedtempo.{old}')\n"
        "    assert sys.modules[f'fedtempo.{old}'] is import_module(f'fedtempo.{new}'), old\n"
        "    told = f'fedtempo.{old} is called fedtempo.{new}; the old name works in this release'\n"
        "    assert (str(caught[-1].message)[: len(told)], caught[-1].filename) == (told, '<string>'), told\n"
    )
    done = in_a_process(code)
    assert done.returncode == 0, done.stderr


OLD = {
    "compression.wire": "encode decode job_key",
    "data": "get load_cifar10 load_mnist load_shakespeare",
    "engine.oracle": "oracle",
    "flower_local": "LocalFederation FederationError Node Run",
    "flower_local.federation": "LocalFederation",
    "history": "History",
    "local.batches": "batch_key init_key job_rows",
    "local.corrections": "FedProx",
    "model": "Model",
    "models": "CNNS Classifier cnn logistic lstm",
    "models.regression": "logistic",
    "planner.choosing": "recommend Recommendation",
    "planning": "compare Plan SchemePlan",
    "rivals": "FedAsync FedBuff CutOff FedNova FedAU Mixing",
    "running": "timeline timeline_chunks limit_cycle",
    "schemes": compat.NAMES["fedtempo.schemes"],
    "weighting": compat.NAMES["fedtempo.weighting"],
}
"""By module of 0.6.0, names that were there."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_names_are_where_they_were() -> None:
    for module, names in OLD.items():
        found = importlib.import_module(f"fedtempo.{module}")
        for name in names.split():
            thing = getattr(found, name)
            assert not isinstance(thing, type(sys)), name
            assert thing is getattr(ft, name, thing) or module == "rivals", name


def test_names_are_where_they_were_when_nothing_else_was_imported() -> None:
    done = in_a_process("\n".join(f"from fedtempo.{module} import {', '.join(OLD[module].split())}" for module in OLD))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("FutureWarning") >= len(OLD)


def test_a_class_is_the_same_under_both_names() -> None:
    code = (
        "from fedtempo.local.batches import batch_key as old\nfrom fedtempo.training.batches import batch_key as new\n"
        "import fedtempo.local.solvers, fedtempo.training.solvers\n"
        "assert old is new and fedtempo.local.solvers.LocalSGD is fedtempo.training.solvers.LocalSGD\n"
        "import fedtempo.training.batches as b; assert b.__name__ == b.__spec__.name == 'fedtempo.training.batches'"
    )
    done = in_a_process(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["nothing", "rivals_of_mine", "data.nothing", "schemes.nothing"])
def test_a_module_that_never_was_is_not_found(name) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"fedtempo.{name}")


def test_other_names_of_the_packages_are_not_there() -> None:
    assert not hasattr(importlib.import_module("fedtempo.schemes"), "Parts")
    assert not hasattr(importlib.import_module("fedtempo.weighting"), "nothing")


def test_names_of_today_do_not_warn() -> None:
    code = (
        "import sys, fedtempo as ft\n"
        "assert not {'numpy', 'fedtempo.schemes'} & set(sys.modules)\n"
        "from fedtempo.schemes import named, published, timelines\n"
        "from fedtempo.weighting import long_run, weights\n"
        "from fedtempo.planning import compare, recommend\n"
        "ft.FedAvg().options, [getattr(ft, name) for name in ft.__all__]"
    )
    done = in_a_process(code, "-W", "error::FutureWarning")
    assert done.returncode == 0, done.stderr


def test_there_is_one_finder() -> None:
    compat.install()
    assert sum(isinstance(finder, compat.OldModules) for finder in sys.meta_path) == 1


# -- attributes


def test_rivals_are_published() -> None:
    vars(ft).pop("rivals", None)  # an import of the module has left it there
    with pytest.warns(FutureWarning, match=r"fedtempo\.rivals is called fedtempo\.published") as caught:
        found = ft.rivals
    assert found is ft.published
    assert caught[0].filename == __file__


def test_parts_are_options() -> None:
    scheme = ft.FedFix("1/2").using(correction=ft.FedProx(0.1))
    with pytest.warns(FutureWarning, match=r"Scheme\.parts is called Scheme\.options") as caught:
        assert scheme.parts is scheme.options
    assert caught[0].filename == __file__


def test_names_on_flower() -> None:
    from fedtempo import flower

    with pytest.warns(FutureWarning, match="TransportCosts"):
        assert flower.CarrierCosts is flower.TransportCosts
    assert not hasattr(flower, "Nothing")
    assert not hasattr(flower.Record, "told_again")
    with pytest.warns(FutureWarning, match="replay_events"), pytest.raises(AttributeError):
        flower.Record.retold(None)


# -- classes of one's own


def test_a_rule_that_was_written_with_the_old_names() -> None:
    with pytest.warns(FutureWarning, match=r"Mine\.barrier is called Mine\.synchronous") as caught:

        @dataclass(frozen=True)
        class Mine(ft.WaitingRule):
            barrier = True

            def decide(self, state, event, view):
                return WaitForAll().decide(state, event, view)

    assert caught[0].filename == __file__
    assert Mine().synchronous is True
    assert check_rule(Mine()).rounds > 0
    times = ft.FixedTimes([1, 2, 5])
    line = ft.timeline(ft.Scheme(Mine(), name="mine"), times, rounds=20)
    assert line.equals(ft.timeline(ft.FedAvg(), times, rounds=20))


def test_a_rule_that_asks_for_losses_under_the_old_name() -> None:
    with pytest.warns(FutureWarning, match=r"Asking\.asks_for is called Asking\.needs"):

        @dataclass(frozen=True)
        class Asking(ft.WaitingRule):
            asks_for: tuple[str, ...] = field(init=False, repr=False)

            def __post_init__(self) -> None:
                object.__setattr__(self, "asks_for", ("loss",))

            def decide(self, state, event, view):
                return state, Close(tuple(view.arrived))

    assert Asking().needs == ("loss",)
    with pytest.raises(ft.InputError, match="chooses clients by the losses of trained models"):
        ft.timeline(ft.Scheme(Asking(), name="asking"), ft.FixedTimes([1, 2]), rounds=3)


def scaffold_of_060() -> type[ft.Correction]:
    @dataclass(frozen=True)
    class OldScaffold(ft.Correction):
        label = "old"
        remembers = True

        def spec(self):
            return {"name": "old"}

        def client_start(self, model):
            return ft.Scaffold().client_start(model)

        def corrected(self, gradient, here, begun):
            assert begun.sent.letter is begun.sent.broadcast
            return ft.Scaffold().corrected(gradient, here, begun)

        def finish(self, *given):
            return ft.Scaffold().finish(*given)

        def server_start(self, model):
            return ft.Scaffold().server_start(model)

        def letter(self, memory):
            return ft.Scaffold().broadcast(memory)

        def receive(self, *given):
            return ft.Scaffold().receive(*given)

    return OldScaffold


def test_a_correction_that_was_written_with_the_old_names() -> None:
    with pytest.warns(FutureWarning, match=r"OldScaffold\.letter is called OldScaffold\.broadcast") as caught:
        old = scaffold_of_060()
    assert caught[0].filename == __file__
    problem = ft.problems.quadratics(3, dimension=2, noise=0.1, seed=0)
    given = {"times": ft.FixedTimes([1, 2, 3]), "until": 12, "local": ft.LocalSGD(steps=2, lr=0.05), "points": 3}
    with pytest.warns(FutureWarning, match=r"Sent\.letter is called Sent\.broadcast"):
        found = ft.simulate(problem, ft.FedAvg().using(correction=old()), **given)
    whole = ft.simulate(problem, ft.FedAvg().using(correction=ft.Scaffold()), **given)
    assert np.array_equal(found.dataset["loss"].values, whole.dataset["loss"].values)


def test_what_was_sent_is_a_plain_tuple_still() -> None:
    assert Sent._fields == ("model", "broadcast")
    with pytest.warns(FutureWarning, match="broadcast"):
        assert Sent(1, 2).letter == 2


# -- the README of 0.6.0


def test_the_readme_of_060_runs_with_warnings_at_most(tmp_path) -> None:
    """Its blocks of Python one after the other, as they were printed; less is trained."""
    text = README.read_text(encoding="utf-8").replace("until=20,", "until=2,").replace("lr=[0.01, 0.1]", "lr=[0.1]")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 4
    done = in_a_process("\n".join(blocks), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    warned = re.findall(r"(\w*Warning): (.*)", done.stderr)
    assert [kind for kind, _ in warned] == ["FutureWarning"]
    assert "fedtempo.rivals is called fedtempo.published" in warned[0][1]
    printed = done.stdout.splitlines()
    shown = [line for block in blocks for line in block.splitlines() if line.startswith("print(")]
    assert len(printed) == len(shown)
    assert printed[0] == "1"
    assert printed[3:6] == ["200 2800 1", "1/10 1/20", printed[5]]
    assert printed[-1] == "2966"
    assert {path.name for path in tmp_path.iterdir()} >= {"loss.png", "model.npz"}
