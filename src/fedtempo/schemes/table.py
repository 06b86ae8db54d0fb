"""Schemes by name, as flags, study files and records have them: ``fedfix:1/2``, or a table with its options.

    {name = "fedfix", wait = "1/2", correction = "fedprox:0.1", server = "fedadam", compression = "topk:0.01"}
    {name = "my_rules:EveryOther", size = 2}

The published ones (``fedasync:0.6``, ``fedbuff-published:5``, ``fednova:1,2,5``, …) are named like the others. Where an
argument is itself something with a number, the number stands in brackets: ``cutoff:fedfix(1/2):20``,
``fedasync:0.6:hinge(10,4)``. One's own is a `Scheme` or a `WaitingRule`: a class, an object, or a function that returns
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedtempo.clock.events import Action, Event, View
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError
from fedtempo.registry import Given, NotImported, Registry, own_label
from fedtempo.schemes import named as schemes
from fedtempo.schemes import published
from fedtempo.schemes.named import OPTIONS, Scheme


def scheme_of(given: object, where: str = "scheme") -> Scheme:
    """The scheme that a text or a table names, with its options."""
    if isinstance(given, Scheme):
        return given
    if not isinstance(given, (str, Mapping)):
        raise InputError(f'{where}: {given!r} has no name; write {{name = "fedfix", wait = "1/2"}}')
    table: Given = given if isinstance(given, str) else {k: v for k, v in given.items() if k not in OPTIONS}
    scheme = SCHEMES.from_spec(table, where)
    options = {} if isinstance(given, str) else options_of(given)
    made = scheme.using(**options) if options else scheme
    if "label" in options and type(made) is Scheme:
        made.name = made.label
    return made


def options_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a scheme's table, made."""
    found: dict[str, Any] = {key: table[key] for key in OPTIONS if key in table}
    for kind in ("correction", "server", "compression", "weights"):
        if isinstance(found.get(kind), (str, Mapping)):
            found[kind] = registry_of(kind).from_spec(found[kind])
    for key in ("client_steps", "client_rates"):
        if key in found:
            found[key] = tuple(found[key]) if isinstance(found[key], list) else found[key]
    return found


def registry_of(kind: str) -> Registry[Any]:
    """The names of a kind of options; those that need JAX are loaded when they are asked for."""
    if kind == "correction":
        from fedtempo.training.corrections import CORRECTIONS

        return CORRECTIONS
    if kind == "server":
        from fedtempo.training.server_rules import SERVERS

        return SERVERS
    if kind == "compression":
        from fedtempo.training.compression import COMPRESSIONS

        return COMPRESSIONS
    if kind == "weights":
        from fedtempo.weighting.weight_rules import WEIGHT_RULES

        return WEIGHT_RULES
    return SCHEMES


def _scheme(made: object) -> object:
    """A rule of one's own is a scheme under its own name."""
    if not isinstance(made, WaitingRule):
        return made
    label = own_label(made)
    return Scheme(made, name=label, label=label)


def _stages(stages: Sequence[Any]) -> Scheme:
    for stage in stages:
        if not isinstance(stage, Mapping) or not stage.keys() <= {"wait", "rounds"}:
            raise InputError(f"scheme fedfix-stages: {stage!r} is not a stage; write {{wait = '1/4', rounds = 10}}")
    return schemes.StagedFedFix([(stage.get("wait", ""), stage.get("rounds")) for stage in stages])


def _cured(criterion: object, window: int, biased: int) -> Scheme:
    return schemes.CuredSampling(scheme_of(_inner(criterion), "criterion"), window=window, biased=biased)


def _fedasync(mixing: float = 0.6, staleness: object = "polynomial:0.5", mu: float | None = None) -> Scheme:
    return published.FedAsync(mixing, _inner(staleness), mu)  # type: ignore[arg-type]


def _published_fedbuff(size: int, staleness: object = "polynomial:0.5") -> Scheme:
    return published.FedBuff(size, _inner(staleness))  # type: ignore[arg-type]


def _fednova(steps: object) -> Scheme:
    """`steps` as a list, or as text: 1,2,5."""
    if not isinstance(steps, str):
        return published.FedNova(steps)  # type: ignore[arg-type]
    parts = steps.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"scheme fednova: steps {steps!r} are not whole numbers; give the local steps of each client, as "
            "fednova:1,2,5"
        )
    return published.FedNova([int(part) for part in parts])


def _fedau(scheme: object, cutoff: int = 50) -> Scheme:
    return published.FedAU(scheme_of(_inner(scheme)), cutoff)


def _cutoff(scheme: object, limit: int) -> Scheme:
    return published.CutOff(scheme_of(_inner(scheme)), limit)


def _inner(given: object) -> object:
    """A name with its numbers in brackets, as text has it inside another: fedfix(1/2) is fedfix:1/2."""
    bracketed = re.fullmatch(r"([\w.-]+)\((.*)\)", given) if isinstance(given, str) else None
    return given if bracketed is None else ":".join([bracketed[1], *map(str.strip, bracketed[2].split(","))])


SCHEMES: Registry[Scheme] = Registry(
    "scheme",
    {
        "fedavg": schemes.FedAvg,
        "async": schemes.AsyncFedAvg,
        "centralized": schemes.Centralized,
        "uniform": schemes.UniformSampling,
        "multinomial": schemes.MultinomialSampling,
        "fastest": schemes.FastestSampling,
        "fedfix": schemes.FedFix,
        "fedbuff": schemes.FedBuff,
        "fedfix-stages": _stages,
        "highest-loss": schemes.HighestLossSampling,
        "cured": _cured,
        "fedasync": _fedasync,
        "fedbuff-published": _published_fedbuff,
        "fednova": _fednova,
        "fedau": _fedau,
        "cutoff": _cutoff,
    },
    makes=(Scheme, WaitingRule),
    aliases={"stages": "fedfix-stages"},
    finish=_scheme,
)
"""Schemes by name."""


class NamedRule(WaitingRule):
    """A waiting rule of which no more is known than what was written down: it is printed, and cannot run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        raise NotImported(
            f"scheme: {self.name} is written there and was not imported; give it, as recorded(folder, scheme=…), or "
            "trust=True if you trust the folder"
        )


def only_named_scheme(spec: Mapping[str, Any]) -> Scheme:
    """What stands for a scheme that is not imported: its name and its numbers, to be printed."""
    numbers = [str(value) for key, value in spec.items() if key not in ("name", "repr", *OPTIONS)]
    name = str(spec.get("name"))
    label = str(spec.get("label") or name + (f"({', '.join(numbers)})" if numbers else ""))
    return Scheme(NamedRule(name), name=name, label=label)
