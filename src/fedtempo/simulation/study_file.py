"""A study as a description: the tables of a TOML file, or the flags of ``fedtempo run``, in one form.

    until = 100                    [problem]            [times]           [local]            [[schemes]]
    seeds = [0, 1, 2]              name = "digits"      times = "F80"     steps = 1          name = "fedfix"
    weights = ["time-based"]       clients = 20         law = "fixed"     lr = [0.1, 0.3]    wait = "1/2"

Several settings have a table each, [times.F0] and [times.F80], [problem.even] and [problem.skewed]: they become a
dimension. Every key has a default; a key that does not exist is refused. Names are those of the registries: of
schemes and their options in schemes/table.py, of problems in problems/naming.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtempo import compat
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import (
    AVAILABILITY,
    BANDWIDTH,
    needs_clients,
    read_times,
    with_availability,
    with_bandwidth,
)
from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import nearest
from fedtempo.schemes.table import registry_of, scheme_of

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem
    from fedtempo.problems.redealt import EachSeed
    from fedtempo.training.solvers import LocalRule

Description = dict[str, Any]
T = TypeVar("T")

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
"""What a study file means that says nothing: scikit-learn's digits, 20 unequal clients."""
WITHOUT_A_FILE: Description = {"problem": {"l2": 0.01}, "local": {"lr": "auto"}}
"""What ``fedtempo run`` adds without a study file: rates are searched, and digits have a penalty, with which clients
of different digits want different models."""

_TOP = (*DEFAULT, "rates", "measure_from", "dtype", "engine", "surrogate", "per_client", "bound", "base_memory")
_TIMES = ("times", "law", "spread", "resolution", *BANDWIDTH, *AVAILABILITY)
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
    local = description.get("local", {})
    known_keys("[local]", local, _LOCAL)
    out["local"] = {**DEFAULT["local"], **local}
    out["times"] = each_setting("times", description.get("times", {}), _merged_times)
    each = out["times"].values() if several(out["times"]) else [out["times"]]
    counted = not all(_counts_nobody(table) for table in each)
    out["problem"] = each_setting(
        "problem", description.get("problem", {}), lambda _, given: _merged_problem(given, counted)
    )
    if "schemes" not in description:
        out["schemes"] = _usual_schemes(out)
    if not isinstance(out["schemes"], list):
        raise InputError("schemes: give a list of tables, as [[schemes]] with a name")
    return out


def _usual_schemes(description: Description) -> list[Description]:
    """The schemes of a study that names none; a buffer holds no more updates than there are clients."""
    problem, times = (
        next(iter(t.values())) if several(t) else t for t in (description["problem"], description["times"])
    )
    known = known_times(times)
    clients = problem.get("clients") if known is None else known.num_clients
    most = clients if isinstance(clients, int) and clients > 0 else DEFAULT["schemes"][-1]["size"]
    return [{**one, "size": min(one["size"], most)} if "size" in one else one for one in DEFAULT["schemes"]]


def _merged_times(where: str, given: Mapping[str, Any]) -> Description:
    known_keys(where, given, _TIMES)
    return {**DEFAULT["times"], **given}


def _merged_problem(given: Mapping[str, Any], counted: bool) -> Description:
    """Digits have defaults; where client times are counted there are as many clients, unless the table says."""
    if given.get("name", DEFAULT["problem"]["name"]) != DEFAULT["problem"]["name"]:
        return dict(given)
    return {k: v for k, v in DEFAULT["problem"].items() if k != "clients" or not counted} | dict(given)


def _counts_nobody(times: Mapping[str, Any]) -> bool:
    """Whether a table of times leaves open how many clients there are."""
    return isinstance(times["times"], str) and needs_clients(times["times"])


def several(table: Mapping[str, Any]) -> bool:
    """Whether a table is one of several settings, each a table of its own."""
    return bool(table) and all(isinstance(value, Mapping) for value in table.values())


def each_setting(name: str, table: Mapping[str, Any], made: Callable[[str, Mapping[str, Any]], T]) -> T | dict[str, T]:
    """What `made` makes of a table, or of each where there are several, by name."""
    if not several(table):
        return made(f"[{name}]", table)
    return {setting: made(f"[{name}.{setting}]", inner) for setting, inner in table.items()}


def without_a_file(problem: str | None) -> Description:
    """What flags alone change: the study that ``fedtempo run`` does, of digits or of the problem named."""
    digits = problem in (None, DEFAULT["problem"]["name"])
    return {key: dict(table) for key, table in WITHOUT_A_FILE.items() if key != "problem" or digits}


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


def known_times(table: Mapping[str, Any]) -> ClientTimes | None:
    """The clients' times where their table says how many there are."""
    return None if _counts_nobody(table) else times_of(table, 0)


def times_of(table: Mapping[str, Any], clients: int) -> ClientTimes:
    """The clients' times from their table."""
    given = table["times"]
    text = ",".join(str(t) for t in given) if isinstance(given, list) else str(given)
    law, spread, resolution = (None if table.get(k) is None else str(table[k]) for k in _TIMES[1:4])
    if spread is not None and law in ("lognormal", "uniform"):
        compat.warn(f"[times] spread = {spread}", f'law = "{law}:{spread}"')
        law, spread = f"{law}:{spread}", None
    count = clients if _counts_nobody(table) else None
    times = with_bandwidth(read_times(text, count, law, spread, resolution), **{k: table.get(k) for k in BANDWIDTH})
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


def arguments_of(description: Description, problem: Problem | EachSeed | None = None) -> dict[str, Any]:
    """What `simulate` is called with for a merged description; `problem`: its problem, where it has been made."""
    from fedtempo.problems.redealt import problem_of

    if description.get("engine") == "oracle":
        raise InputError(
            "engine: the oracle keeps no checkpoints and is for short runs from Python, "
            "ft.simulate(…, engine='oracle'); use auto, events or waves"
        )
    known: Any = each_setting("times", description["times"], lambda _, table: known_times(table))
    counted = [one.num_clients for one in (known.values() if isinstance(known, dict) else [known]) if one is not None]
    count = counted[0] if counted else None
    problems: Any = problem
    if problem is None:
        problems = each_setting("problem", description["problem"], lambda _, table: problem_of(table, count))
    clients = (next(iter(problems.values())) if isinstance(problems, dict) else problems).num_clients
    if isinstance(known, dict):
        times: Any = {k: times_of(description["times"][k], clients) if t is None else t for k, t in known.items()}
    else:
        times = times_of(description["times"], clients) if known is None else known
    plain = {k: description[k] for k in _TOP if k in description and k not in ("problem", "times", "local", "schemes")}
    if "weights" in plain:
        given = plain["weights"] if isinstance(plain["weights"], list) else [plain["weights"]]
        plain["weights"] = [registry_of("weights").from_spec(one) for one in given]
    if "surrogate" in plain:
        plain["surrogate"] = scheme_of(plain["surrogate"], "surrogate")
    return {
        "problem": problems,
        "schemes": [scheme_of(spec, "schemes") for spec in description["schemes"]],
        "times": times,
        "local": local_of(description["local"]),
        **plain,
    }
