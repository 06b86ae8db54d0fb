"""A study as a description: the tables of a TOML file, or the flags of ``fedtempo run``, in one form.

    until = 100                    [problem]            [times]           [local]            [[schemes]]
    seeds = [0, 1, 2]              name = "digits"      times = "F80"     steps = 1          name = "fedfix"
    weights = ["time-based"]       clients = 20         law = "fixed"     lr = [0.1, 0.3]    wait = "1/2"

Every key has a default; a key that does not exist is refused. Names are those of the registries: of schemes and their
options in schemes/table.py, of problems in problems/naming.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import AVAILABILITY, read_times, with_availability
from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import nearest
from fedtempo.schemes.table import registry_of, scheme_of

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem
    from fedtempo.training.solvers import LocalRule

Description = dict[str, Any]

DEFAULT: Description = {
    "until": 100,
    "seeds": [0, 1, 2],
    "weights": ["time-based", "identical"],
    "step": "stable",
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


def times_of(table: Mapping[str, Any], clients: int) -> ClientTimes:
    """The clients' times from their table."""
    given = table["times"]
    text = ",".join(str(t) for t in given) if isinstance(given, list) else str(given)
    law, spread, resolution = (None if table.get(k) is None else str(table[k]) for k in _TIMES[1:4])
    count = clients if isinstance(given, str) and given[:1] in "Ff" else None
    times = read_times(text, count, law, spread, resolution)
    return with_availability(times, **{key: table.get(key) for key in AVAILABILITY})


def local_of(table: Mapping[str, Any]) -> LocalRule:
    """The local work from its table; `solver` is sgd, the name of an Optax solver, or "module:solver"."""
    from fedtempo.training.solvers import LocalOptax, LocalSGD, solver_of

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
    solver = solver_of(str(name), "[local]: solver")
    if "momentum" in rest:
        rest["options"] = {**rest.get("options", {}), "momentum": rest.pop("momentum")}
    return LocalOptax(solver=solver, **rest)


def names_own_code(description: object, key: str = "") -> bool:
    """Whether a description names code of one's own, as "my_module:MyRule"."""
    if isinstance(description, Mapping):
        return any(names_own_code(value, name) for name, value in description.items())
    if isinstance(description, list):
        return any(names_own_code(value, key) for value in description)
    own = key in ("name", "server", "correction", "compression", "weights", "solver") and isinstance(description, str)
    return own and re.match(r"[^\W\d][\w.]*:[^\W\d]", str(description)) is not None


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
    if "weights" in plain:
        given = plain["weights"] if isinstance(plain["weights"], list) else [plain["weights"]]
        plain["weights"] = [registry_of("weights").from_spec(one) for one in given]
    if "surrogate" in plain:
        plain["surrogate"] = scheme_of(plain["surrogate"], "surrogate")
    return {
        "problem": problem,
        "schemes": [scheme_of(spec, "schemes") for spec in description["schemes"]],
        "times": times_of(description["times"], problem.num_clients),
        "local": local_of(description["local"]),
        **plain,
    }
