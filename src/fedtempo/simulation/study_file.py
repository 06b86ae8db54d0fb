"""When clients are there, as commands and study files say it: ``--failure 0.1 --on 10 --off 5``, or the same keys.

Parts of schemes as text or tables: ``fedprox:0.1``, or {name = "fedprox", mu = 0.1}.

correction    fedprox:μ   feddane:μ   feddyn:α   scaffold
server        slowmo:β    fedadam     fedyogi    fedadagrad    mixing
compression   topk:share  qsgd:levels lowrank:rank

A study as a description: the tables of a TOML file, or the flags of ``fedtempo run``, in one form.

    until = 100                    [problem]            [times]           [local]            [[schemes]]
    seeds = [0, 1, 2]              name = "digits"      times = "F80"     steps = 1          name = "fedfix"
    weights = ["time-based"]       clients = 20         law = "fixed"     lr = [0.1, 0.3]    wait = "1/2"

Every key has a default; a key that does not exist is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli.options import PLAIN, SIZED, nearest, read_times
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import DataMissing, InputError
from fedtempo.schemes import published
from fedtempo.schemes.named import CuredSampling, FedBuff, FedFix, HighestLossSampling, Scheme, StagedFedFix

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem
    from fedtempo.training.solvers import LocalRule

Failure = Annotated[
    str | None,
    typer.Option("--failure", help="Probability that a job fails: 0.1, or one per client.", show_default="0"),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", help="Mean time that a client is there, before it goes away; with --off.", show_default="always"
    ),
]
Off = Annotated[
    str | None,
    typer.Option(
        "--off", help="Mean time that it is away, before it comes back; one, or one per client.", show_default=False
    ),
]
Absences = Annotated[
    str | None,
    typer.Option("--absences", help="When clients are away: a file with client,leaves,returns.", show_default=False),
]
Period = Annotated[
    str | None, typer.Option("--period", help="Time after which the absences repeat.", show_default="they do not")
]

AVAILABILITY = ("failure", "on", "off", "absences", "period")
"""What says when clients are there, as keys and as flags."""


def with_availability(times: ClientTimes, **given: object) -> ClientTimes:
    """The clients as `--failure`, `--on`, `--off`, `--absences` and `--period` say; lists may be text, as 0.1,0.2."""
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in ("failure", "on", "off"):
        value = found.get(name)
        if isinstance(value, str) and "," in value:
            found[name] = [part.strip() for part in value.split(",")]
    if isinstance(found.get("absences"), str):
        found["absences"] = Path(found["absences"])
    return times.available(**found) if found else times


PARTS = ("correction", "server", "compression", "compensate", "weights", "client_steps", "client_rates", "label")
"""Keys that every scheme's table may have."""


def parts_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The parts in a scheme's table, made."""
    found: dict[str, Any] = {key: table[key] for key in PARTS if key in table}
    for kind, made in (("correction", _corrections), ("server", _servers), ("compression", _compressions)):
        if kind in found:
            found[kind] = _made(kind, found[kind], made())
    for key in ("client_steps", "client_rates"):
        if key in found:
            found[key] = tuple(found[key]) if isinstance(found[key], list) else found[key]
    return found


Makers = dict[str, tuple[Callable[..., Any], tuple[str, ...]]]
"""By name: what makes a part, and its numbers in the order in which text gives them."""


def _corrections() -> Makers:
    from fedtempo.training.corrections import FedDANE, FedDyn, FedProx, Scaffold

    return {
        "fedprox": (FedProx, ("mu",)),
        "feddane": (FedDANE, ("mu",)),
        "feddyn": (FedDyn, ("alpha",)),
        "scaffold": (Scaffold, ()),
    }


def _servers() -> Makers:
    from fedtempo.training.server_rules import FedAdaGrad, FedAdam, FedYogi, MixModels, SlowMo

    return {
        "slowmo": (SlowMo, ("momentum",)),
        "fedadam": (FedAdam, ("b1", "b2", "eps")),
        "fedyogi": (FedYogi, ("b1", "b2", "eps")),
        "fedadagrad": (FedAdaGrad, ("eps",)),
        "mixing": (MixModels, ()),
    }


def _compressions() -> Makers:
    from fedtempo.training.compression import QSGD, LowRank, TopK

    return {
        "topk": (TopK, ("share", "error_feedback")),
        "qsgd": (QSGD, ("levels", "bucket", "norm")),
        "lowrank": (LowRank, ("rank", "error_feedback")),
    }


def _made(kind: str, given: object, makers: Makers) -> Any:
    if isinstance(given, str):
        name, *numbers = given.split(":")
        keys = makers[name][1] if name in makers else ()
        if name in makers and len(numbers) > len(keys):
            raise InputError(f"{kind}: {given!r} has {len(numbers)} numbers; {name} takes {len(keys)} at most")
        options: dict[str, Any] = {key: _number(kind, text) for key, text in zip(keys, numbers, strict=False)}
    elif isinstance(given, Mapping) and "name" in given:
        name, options = str(given["name"]), {k: v for k, v in given.items() if k != "name"}
    else:
        raise InputError(f"{kind}: {given!r} is not one; give a name as {next(iter(makers))!r}, or a table with it")
    if name not in makers:
        raise InputError(f"{kind}: {name!r} is not known{nearest(name, tuple(makers))}")
    make, keys = makers[name]
    for key in options:
        if key not in keys:
            raise InputError(f"{kind} {name}: the key {key!r} does not exist{nearest(key, keys)}")
    try:
        return make(**options)
    except TypeError:
        raise InputError(f"{kind} {name}: {options} does not do; write it as {name}:0.1") from None


def _number(kind: str, text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    if text in ("max", "euclidean"):
        return text
    value = exact(text, kind)
    return int(value) if value.denominator == 1 and "." not in text else float(value)


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
    "fedasync": (published.FedAsync, (), ("mixing", "staleness", "mu")),
    "fedbuff-published": (published.FedBuff, ("size",), ("staleness",)),
    "fednova": (published.FedNova, ("steps",), ()),
    "fedau": (lambda scheme, **rest: published.FedAU(scheme_of(scheme), **rest), ("scheme",), ("cutoff",)),
    "cutoff": (lambda scheme, **rest: published.CutOff(scheme_of(scheme), **rest), ("scheme", "limit"), ()),
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
    from fedtempo.training.solvers import LocalOptax, LocalSGD

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
