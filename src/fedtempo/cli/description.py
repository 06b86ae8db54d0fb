"""A study as a description: the tables of a TOML file, or the flags of ``fedtempo run``, in one form.

    until = 100                    [problem]            [times]           [local]            [[schemes]]
    seeds = [0, 1, 2]              name = "digits"      times = "F80"     steps = 1          name = "fedfix"
    weights = ["time-based"]       clients = 20         law = "fixed"     lr = [0.1, 0.3]    wait = "1/2"

Every key has a default; a key that does not exist is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtempo import rivals
from fedtempo.cli.availability import AVAILABILITY, with_availability
from fedtempo.cli.options import PLAIN, SIZED, nearest, read_times
from fedtempo.cli.parts import PARTS, parts_of
from fedtempo.errors import DataMissing, InputError
from fedtempo.schemes import CuredSampling, FedBuff, FedFix, HighestLossSampling, Scheme, StagedFedFix

if TYPE_CHECKING:
    from fedtempo.clock.times import ClientTimes
    from fedtempo.local.rule import LocalRule
    from fedtempo.problems.problem import Problem

Description = dict[str, Any]

DEFAULT: Description = {
    "until": 100,
    "seeds": [0, 1, 2],
    "weights": ["time-based", "identical"],
    "server_lr": 1.0,
    "points": 101,
    "problem": {"name": "digits", "clients": 20, "partition": "dirichlet:0.1"},
    "times": {"times": "F80"},
    "local": {"steps": 1, "lr": [0.03, 0.1, 0.3], "batch_size": 32},
    "schemes": [
        {"name": "fedavg"},
        {"name": "async"},
        {"name": "fedfix", "wait": "1/5"},
        {"name": "fedfix", "wait": "1/2"},
        {"name": "fedbuff", "size": 5},
    ],
}
"""What ``fedtempo run`` does when nothing is said: scikit-learn's digits, 20 unequal clients."""

_TOP = (*DEFAULT, "rates", "measure_from", "dtype", "engine", "surrogate", "per_client", "bound")
_TIMES = ("times", "law", "spread", "resolution", *AVAILABILITY)
_LOCAL = ("solver", "steps", "lr", "schedule", "batch_size", "clip", "momentum", "draw", "options")

_SCHEMES: dict[str, tuple[Callable[..., Scheme], tuple[str, ...], tuple[str, ...]]] = {
    **{name: (build, (), ()) for name, build in PLAIN.items()},
    **{name: (build, ("size",), ()) for name, build in SIZED.items()},
    "fedfix": (FedFix, ("wait",), ()),
    "fedbuff": (FedBuff, ("size",), ()),
    "fedfix-stages": (lambda stages: StagedFedFix([_stage(s) for s in stages]), ("stages",), ()),
    "highest-loss": (HighestLossSampling, ("size",), ("candidates",)),
    "cured": (
        lambda criterion, **rest: CuredSampling(scheme_of(criterion), **rest),
        ("criterion", "window", "biased"),
        (),
    ),
    "fedasync": (rivals.FedAsync, (), ("mixing", "staleness", "mu")),
    "fedbuff-published": (rivals.FedBuff, ("size",), ("staleness",)),
    "fednova": (rivals.FedNova, ("steps",), ()),
    "fedau": (lambda scheme, **rest: rivals.FedAU(scheme_of(scheme), **rest), ("scheme",), ("cutoff",)),
    "cutoff": (lambda scheme, **rest: rivals.CutOff(scheme_of(scheme), **rest), ("scheme", "limit"), ()),
}
"""By name: what makes a scheme, the keys that it needs, and those that it may have."""


def read_study(path: Path) -> Description:
    """The description in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataMissing(f"{path}: no such study file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def merged(description: Description) -> Description:
    """The description with defaults for what it does not say; a table of its own replaces what it names."""
    known_keys("study", description, _TOP)
    check_tables(description)
    out = {**DEFAULT, **description}
    for table, keys in (("times", _TIMES), ("local", _LOCAL)):
        given = description.get(table, {})
        known_keys(f"[{table}]", given, keys)
        out[table] = {**DEFAULT[table], **given}
    problem = description.get("problem", {})
    if problem.get("name", "digits") == "digits":
        out["problem"] = {**DEFAULT["problem"], **problem}
    if not isinstance(out["schemes"], list):
        raise InputError("schemes: give a list of tables, as [[schemes]] with a name")
    return out


def known_keys(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse a key that does not exist, and say which one may be meant."""
    for key in given:
        if key not in known:
            raise InputError(f"{where}: the key {key!r} does not exist{nearest(key, known)}")


def check_tables(description: Mapping[str, Any]) -> None:
    """Refuse a value where a table belongs."""
    for name in ("problem", "times", "local"):
        if not isinstance(given := description.get(name, {}), Mapping):
            raise InputError(f"{name}: {given!r} is not a table; write [{name}] and its keys below")


def scheme_of(spec: object) -> Scheme:
    """A scheme from its table, as {"name": "fedfix", "wait": "1/2"}."""
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise InputError(f'schemes: {spec!r} has no name; write {{name = "fedfix", wait = "1/2"}}')
    name, rest = str(spec["name"]), {k: v for k, v in spec.items() if k != "name"}
    if name not in _SCHEMES:
        raise InputError(f"schemes: {name!r} is not known{nearest(str(name), tuple(_SCHEMES))}")
    build, needed, others = _SCHEMES[name]
    known_keys(f"scheme {name}", rest, (*needed, *others, *PARTS))
    for key in needed:
        if key not in rest:
            raise InputError(f"scheme {name}: it needs {key}; write {{name = {name!r}, {key} = …}}")
    try:
        scheme = build(**{k: v for k, v in rest.items() if k in (*needed, *others)})
        parts = parts_of(rest)
        return scheme.using(**parts) if parts else scheme
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"scheme {name}: {dict(rest)} does not do ({error}); check its values") from None


def _stage(spec: Mapping[str, Any]) -> tuple[Any, int | None]:
    known_keys("stage", spec, ("wait", "rounds"))
    return spec.get("wait"), spec.get("rounds")


def times_of(table: Mapping[str, Any], clients: int) -> ClientTimes:
    """The clients' times from their table."""
    given = table["times"]
    text = ",".join(str(t) for t in given) if isinstance(given, list) else str(given)
    law, spread, resolution = (None if table.get(k) is None else str(table[k]) for k in _TIMES[1:4])
    count = clients if isinstance(given, str) and given[:1] in "Ff" else None
    times = read_times(text, count, law, spread, resolution)
    return with_availability(times, **{key: table.get(key) for key in AVAILABILITY})


def local_of(table: Mapping[str, Any]) -> LocalRule:
    """The local work from its table; `solver` is sgd or the name of an Optax solver."""
    from fedtempo.local.solvers import LocalOptax, LocalSGD

    rest = {k: v for k, v in table.items() if k != "solver"}
    if not isinstance(rest.get("options", {}), Mapping):
        raise InputError(
            f"[local]: options = {rest['options']!r} is not a table; write [local.options] and its keys below"
        )
    sizes = rest.get("batch_size")
    if sizes == "all":
        rest["batch_size"] = None
    elif isinstance(sizes, list):
        rest["batch_size"] = [None if size == "all" else size for size in sizes]
    name = table.get("solver", "sgd")
    if name == "sgd":
        return LocalSGD(**rest)
    import optax

    solver = getattr(optax, str(name), None)
    if not callable(solver):
        raise InputError(f"[local]: solver {name!r} is not one of Optax's; use sgd, adam, adamw, …")
    if "momentum" in rest:
        rest["options"] = {**rest.get("options", {}), "momentum": rest.pop("momentum")}
    return LocalOptax(solver=solver, **rest)


def arguments_of(description: Description, problem: Problem | None = None) -> dict[str, Any]:
    """What `simulate` is called with for a merged description; `problem`: its problem, where it has been made."""
    from fedtempo.problems import named

    if description.get("engine") == "oracle":
        raise InputError(
            "engine: the oracle keeps no checkpoints and is for short runs from Python, "
            "ft.simulate(…, engine='oracle'); use auto, events or waves"
        )
    problem = problem if problem is not None else named(dict(description["problem"]))
    plain = {k: description[k] for k in _TOP if k in description and k not in ("problem", "times", "local", "schemes")}
    if "surrogate" in plain:
        plain["surrogate"] = scheme_of(plain["surrogate"])
    return {
        "problem": problem,
        "schemes": [scheme_of(spec) for spec in description["schemes"]],
        "times": times_of(description["times"], problem.num_clients),
        "local": local_of(description["local"]),
        **plain,
    }
