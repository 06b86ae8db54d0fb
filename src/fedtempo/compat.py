"""Names of version 0.6, which keep working for one release with a FutureWarning that says where things are.

    modules    imported under an old name, they are the modules of today (`OldModules`, a finder of imports)
    names      read from a package that was a module once, they are those of `fedtempo` (`old_name`)
    classes    what a user's class defines under an old name, it has under the present one too (`renamed`)

Nothing is imported before an old name is used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType

MODULES = {
    "compression": "training.compression",
    "data": "problems.data",
    "discounts": "weighting.weight_rules",
    "engine": "simulation.engine",
    "flower.costs": "flower.clock",
    "flower.strategies": "flower.strategy",
    "flower_local": "flower.local",
    "flower_local.errors": "flower.local.federation",
    "history": "simulation.history.history",
    "local": "training",
    "local.correction": "training.corrections",
    "local.rule": "training.solvers",
    "model": "simulation.history.model",
    "models": "problems.models",
    "models.classifier": "problems.models.classifiers",
    "models.regression": "problems.models.classifiers",
    "normalised": "weighting.other_rules",
    "participation": "weighting.long_run",
    "participation_history": "weighting.other_rules",
    "planner": "planning",
    "planner.choosing": "planning.recommend",
    "rivals": "schemes.published",
    "runner": "simulation.unit_runner",
    "running": "schemes.timelines",
    "server_steps": "training.server_rules",
    "study": "simulation.study",
}
"""Modules that the documentation named or that public names came from; what lies in a package follows it."""

NAMES = {
    "fedtempo.schemes": (
        "AsyncFedAvg Centralized CuredSampling FastestSampling FedAvg FedBuff FedFix HighestLossSampling "
        "MultinomialSampling Scheme StagedFedFix UniformSampling"
    ),
    "fedtempo.weighting": (
        "Discounted Identical ImportanceOnly TimeBased WeightRule Weights expected_weights participation_of"
    ),
}
"""By package: the public names of the module that it was."""


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Say where something is that was asked for under an old name; by default, to who called the caller."""
    warnings.warn(
        f"{old} is called {new}; the old name works in this release and not in the next",
        FutureWarning,
        stacklevel=stacklevel,
    )


def new_module(name: str) -> str | None:
    """The present name of a module, if this is an old one."""
    package, _, rest = name.partition(".")
    if package != "fedtempo":
        return None
    inside: list[str] = []
    while rest:
        if rest in MODULES:
            return ".".join(["fedtempo", MODULES[rest], *inside])
        rest, _, last = rest.rpartition(".")
        inside.insert(0, last)
    return None


class OldModules:
    """Finds modules under their old names, and loads the present ones in their place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A specification for an old name; None leaves any other to the finders that follow."""
        return None if new_module(name) is None else ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual empty module, which `exec_module` puts aside."""

    def exec_module(self, module: ModuleType) -> None:
        """Let the old name stand for the module of today."""
        old, new = module.__name__, new_module(module.__name__)
        assert new is not None
        sys.modules[old] = import_module(new)
        warn(old, new)


def install() -> None:
    """Let imports find old names; first, since what lies in a renamed package would be found there a second time."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldModules())


def old_name(package: str, name: str) -> object:
    """For `__getattr__` of a package: a name of the module that it was."""
    if name in NAMES[package].split():
        warn(f"{package}.{name}", f"fedtempo.{name}", stacklevel=4)
        return getattr(import_module("fedtempo"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def renamed(cls: type, **new_names: str) -> None:
    """For `__init_subclass__` of an abstract class: what a user's class has under an old name, it has under both."""
    for old, new in new_names.items():
        if old in vars(cls) and new not in vars(cls):
            warn(f"{cls.__name__}.{old}", f"{cls.__name__}.{new}", stacklevel=5)
            setattr(cls, new, property(attrgetter(old)))
