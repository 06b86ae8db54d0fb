"""A recommendation as a line of Python, to be pasted: a strategy for Flower's server, or a scheme for `ft.simulate`.

    FedFix(wait=30.0, server=ft.FedAdam(), server_lr=0.01)  # clients: lr=0.5, 5 local steps, batches of 32

Names without a module are those of `fedtempo.flower`, `ft` is fedtempo. What a line leaves out is as it is by default.
What clients do is theirs: on Flower that is the ClientApp, which a line for the server cannot set, so the comment says
it. What no ClientApp can do there is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import fedtempo
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import text
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.registry import arguments_of, own_spec, place_of, was_made
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.schemes.options import SchemeOptions
from fedtempo.weighting.weight_rules import WEIGHT_RULES, WeightRule, weight_rule

if TYPE_CHECKING:
    from fedtempo.planning.recommendation import Recommendation
    from fedtempo.training.server_rules import Server

_STRATEGIES: dict[type[Scheme], Callable[[Any], str]] = {
    FedAvg: lambda scheme: "",
    AsyncFedAvg: lambda scheme: "",
    FedFix: lambda scheme: f"wait={float(scheme.wait)!r}",
    FedBuff: lambda scheme: f"size={scheme.size}",
}
"""Schemes with a strategy of their own on Flower, and its argument; `TimedStrategy` has the others."""
_LOSS_KEY = "train_loss"


def strategy_line(made: Recommendation) -> str:
    """The choice as a strategy of `fedtempo.flower`, with the clients' settings in a comment.

    The wait is in the unit of the times; Flower's are seconds.
    """
    scheme = made.best.scheme
    _refuse_what_flower_cannot(scheme)
    code = _Code()
    rule, step = _weights(made, scheme), scheme.options.step or made.step
    options = {
        "weights": None if rule == weight_rule("time-based") else code.weights(rule),
        "step": None if step == "stable" else code.of(step),
        "server": None if scheme.options.server is None else code.of(_placed(scheme.options.server, made)),
        "server_lr": None if made.server_lr == 1 else code.of(float(made.server_lr)),
        "loss_key": code.of(_LOSS_KEY) if "loss" in scheme.waiting.needs else None,
    }
    own = _STRATEGIES.get(type(scheme))
    first = code.scheme(scheme, plain=True) if own is None else own(scheme)
    name = "TimedStrategy" if own is None else type(scheme).__name__
    arguments = [first, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    clients = _local_words(made, code)
    if scheme.options.correction is not None:
        clients.append(f"in the ClientApp's loss the term of {code.of(scheme.options.correction)}")
    if scheme.options.compression is not None:
        clients.append(f"ClientApp(mods=[compressing({code.of(scheme.options.compression)})])")
    if options["loss_key"] is not None:
        clients.append(f"their loss in the replies' metrics, as {_LOSS_KEY}")
    return f"{name}({', '.join(filter(None, arguments))})  # clients: {', '.join(clients)}{code.imports()}"


def scheme_line(made: Recommendation) -> str:
    """The choice as a scheme for `ft.simulate`, with its other settings in a comment."""
    scheme, code = made.best.scheme, _Code()
    line = code.scheme(scheme)
    said = [", ".join(_local_words(made, code))]
    if scheme.options.own_weights is None:
        said.append(f"weights={code.weights(_weights(made, scheme))}")
    if scheme.options.step is None:
        said.append(f"step={code.of(made.step)}")
    if made.server_lr != 1:
        said.append(f"server_lr={made.server_lr:g}")
    return f"{line}  # local: {'; '.join(said)}{code.imports()}"


# -- what is said


def _weights(made: Recommendation, scheme: Scheme) -> WeightRule:
    """The scheme's own rule, or the plan's."""
    return scheme.options.own_weights or weight_rule(made.rule)


def _local_words(made: Recommendation, code: _Code) -> list[str]:
    """What clients are set to: rate, steps, batches, and what is not plain SGD."""
    local: Any = made.local
    if is_dataclass(local) and any(field.name == "lr" for field in fields(local)):
        local = replace(local, lr=made.best.local_lr)  # type: ignore[type-var]  # not a class
    numbers = {axis.name: axis.values[0] for axis in local.axes}
    steps, rows = numbers.pop("local_steps", 1), numbers.pop("batch_size", None)
    numbers.pop(RATE, None)
    spec = local.spec()
    solver = spec.get("solver", spec.get("optimizer"))
    return [
        f"lr={made.best.local_lr:g}",
        f"{steps} local step{'' if steps == 1 else 's'}",
        "batches of all rows" if rows is None else f"batches of {rows}",
        *([] if solver in (None, "optax.sgd") else [str(solver)]),
        *(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in numbers.items()),
        *(["each row once an epoch"] if spec.get("draw") == "epochs" else []),
        *(["lr divided by the root of steps times rounds"] if spec.get("schedule") == "horizon" else []),
    ]


def _refuse_what_flower_cannot(scheme: Scheme) -> None:
    """What neither the server's line nor the ClientApp can do on Flower; `fedtempo.flower` refuses it, too."""
    options = scheme.options
    if getattr(scheme.waiting, "alone", False):
        raise InputError(f"{scheme.label}: on Flower every client has data of its own; choose another scheme")
    if options.correction is not None and options.correction.remembers:
        raise InputError(
            f"{scheme.label}: {options.correction.label} needs more of clients than a model, but on Flower a ClientApp "
            "sends back only that; leave it out, or use FedProx, which the ClientApp can do by itself"
        )
    if options.client_steps or options.client_rates or options.compensate in ("rate", "work"):
        raise InputError(
            f"{scheme.label}: its clients differ in local steps or rates, which a strategy on Flower cannot tell them; "
            "leave client_steps, client_rates and compensate out"
        )
    rule = options.own_weights
    if rule is not None and rule.tracker(Importance(None, 1), 1) is not None and rule.stepping("paper") is None:
        raise InputError(
            f"{scheme.label}: {rule.label} weights need the rounds of a simulation, but a server on Flower estimates "
            "its own; use time-based weights"
        )


def _placed(server: Server, made: Recommendation) -> Server:
    """A rule against hostile clients says on Flower of how many it keeps an update."""
    from fedtempo.training.robust_rules import RobustRule  # JAX, which is there where a server rule was made

    return server.among(made.times.num_clients) if isinstance(server, RobustRule) else server


# -- what is written


class _Code:
    """Things as the Python that makes them again, and what has to be imported for that."""

    def __init__(self) -> None:
        self._modules: set[str] = set()

    def imports(self) -> str:
        """As the end of a comment; fedtempo's own names need none."""
        return "".join(f"; import {name}" for name in sorted(self._modules))

    def weights(self, rule: WeightRule) -> str:
        """A rule by its name where it has one, as "identical" or "measured:3"."""
        numbers = [value for key, value in arguments_of(rule).items() if key != "step" and value is not None]
        plain = all(isinstance(value, int | float) for value in numbers)
        if rule.name in WEIGHT_RULES and plain:
            for name in (rule.name, ":".join([rule.name, *(f"{value:g}" for value in numbers)])):
                if weight_rule(name) == rule:
                    return self.of(name)
        return self.of(rule)

    def scheme(self, scheme: Scheme, *, plain: bool = False) -> str:
        """The scheme with its options, or without them."""
        if type(scheme) is Scheme:
            names = {"name": scheme.name} | ({} if plain else {"label": scheme._first_label})
            told = [f"{key}={self.of(value)}" for key, value in names.items() if key == "name" or value != scheme.name]
            line = f"ft.Scheme({', '.join([self.of(scheme.waiting), *told])})"
        else:
            line = self._made(scheme)
        if plain or scheme.options.plain:
            return line
        options: dict[str, Any] = {field.name: getattr(scheme.options, field.name) for field in fields(SchemeOptions)}
        options["label"] = None if scheme.label == _usual_label(scheme) else scheme.label
        given = [
            f"{name}={self.weights(value) if isinstance(value, WeightRule) else self.of(value)}"
            for name, value in options.items()
            if value is not None
        ]
        return f"{line}.using({', '.join(given)})"

    def of(self, value: object) -> str:
        """Any argument."""
        if value is None or isinstance(value, bool | int | float):
            return repr(value)
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, Fraction):
            return str(value) if value.denominator == 1 else f'"{text(value)}"'
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.of(key)}: {self.of(each)}' for key, each in value.items())}}}"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.of, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, Iterable):
            return f"[{', '.join(map(self.of, value))}]"
        if isinstance(value, Scheme):
            return self.scheme(value)
        return self._made(value)

    def _made(self, thing: object) -> str:
        """A call of its class, or of the function that the user named; or the function that it is."""
        if callable(thing) and hasattr(thing, "__qualname__"):
            return self._named(thing, place_of(thing))
        if was_made(thing):
            spec = own_spec(thing)
            told = (f"{key}={self.of(value)}" for key, value in spec.items() if key != "name")
            return f"{self._named(thing, str(spec['name']))}({', '.join(told)})"
        kind = type(thing)
        name = _public(kind) or self._named(thing, place_of(kind))
        try:
            given = arguments_of(thing)
        except AttributeError:
            raise _unwritable(thing) from None
        shown, by_name = [], False
        for key, parameter in signature(kind).parameters.items():
            default = parameter.default
            if default is not Parameter.empty and type(default) is type(given[key]) and default == given[key]:
                by_name = True
                continue
            if is_dataclass(kind) and given[key] == _factory(kind, key):
                by_name = True
                continue
            by_name = by_name or parameter.kind is Parameter.KEYWORD_ONLY
            shown.append(f"{key}={self.of(given[key])}" if by_name else self.of(given[key]))
        return f"{name}({', '.join(shown)})"

    def _named(self, thing: object, place: str | None) -> str:
        """``package.module.attribute``, and the module is imported."""
        if place is None or place.startswith("__main__:"):
            raise _unwritable(thing)
        module, _, attribute = place.partition(":")
        self._modules.add(module)
        return f"{module}.{attribute}"


def _public(kind: type) -> str | None:
    """A class of fedtempo's under its public name."""
    if not kind.__module__.startswith("fedtempo."):
        return None
    name = kind.__name__
    if name in fedtempo.__all__ and getattr(fedtempo, name) is kind:
        return f"ft.{name}"
    published = fedtempo.published
    return f"ft.published.{name}" if getattr(published, name, None) is kind else None


def _factory(kind: Any, key: str) -> object:
    """What a field of a dataclass is unless given, where it is made anew each time."""
    made = next((field.default_factory for field in fields(kind) if field.name == key), None)
    return made() if callable(made) else object()


def _usual_label(scheme: Scheme) -> str:
    """What the scheme would be called without a label of its own."""
    return " + ".join([scheme._first_label, *scheme.options.words(SchemeOptions())])


def _unwritable(thing: object) -> InputError:
    return InputError(
        f"{thing!r} cannot be written as a line: it is not in a module that can be imported, or its arguments are not "
        "kept; put its class into a module, and its arguments into attributes of the same names"
    )
