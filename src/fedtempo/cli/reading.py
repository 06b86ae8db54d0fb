"""What the commands make of their common flags (`fedtempo.cli.options`).

times       `client_times`                         as [times] of a study file
schemes     `read_schemes`, `scheme_tables`        as [[schemes]]
problem     `problem_table`, `problem_and_times`   as [problem]; --set is any other key
local work  `local_table`                          as [local]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import needs_clients, read_times, with_availability
from fedtempo.errors import InputError
from fedtempo.planning.compare import sensible_sizes, sensible_waits
from fedtempo.schemes.named import FedFix, Scheme, StagedFedFix
from fedtempo.schemes.table import SCHEMES

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem

T = TypeVar("T")


def client_times(
    times: str, clients: int | None, law: str | None, spread: str | None, resolution: str | None, **availability: Any
) -> ClientTimes:
    """The clients' times, and when clients are there."""
    return with_availability(read_times(times, clients, law, spread, resolution), **availability)


# -- the problem and the local work


def problem_table(
    name: str | None, partition: str | None, settings: Sequence[str] | None, data_dir: Path | None
) -> dict[str, Any]:
    """What flags say of a problem, as [problem] of a study file; the number of clients apart."""
    given = {"name": name, "partition": partition, "data_dir": None if data_dir is None else str(data_dir)}
    return {key: value for key, value in given.items() if value is not None} | read_settings(settings)


_OWN_FLAGS = {"partition": "--partition", "data_dir": "--data-dir"}


def read_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """`--set KEY=VALUE` as the keys of a table: numbers, truth values and lists as TOML writes them, else text."""
    found: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise InputError(f"--set: {text!r} is not KEY=VALUE; write it as l2=0.01")
        if key == "name":
            raise InputError(f"--set: the name of the problem is --problem {value}")
        if key in _OWN_FLAGS:
            raise InputError(f"--set: {key} has a flag of its own; write {_OWN_FLAGS[key]} {value}")
        if key in found:
            raise InputError(f"--set: {key} is given twice; give one value")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def check_clients(clients: int | None, settings: Mapping[str, Any]) -> None:
    """Refuse two numbers of clients."""
    if clients is not None and settings.get("clients", clients) != clients:
        raise InputError(f"--clients: {clients} given, but also --set clients={settings['clients']}; give one of them")


def problem_and_times(
    table: Mapping[str, Any], times: str, clients: int | None, *rest: str | None, **availability: Any
) -> tuple[Problem, ClientTimes]:
    """The problem and the client times that flags describe, with the same number of clients.

    Where neither the times nor `--clients` say how many there are, the problem does.
    """
    from fedtempo.problems.naming import named

    if clients is None and needs_clients(times):
        made = named(table)
        return made, client_times(times, made.num_clients, *rest, **availability)
    check_clients(clients, table)
    known = client_times(times, clients, *rest, **availability)
    asked = {} if clients is None else {"clients": clients}
    return named({**asked, **table}, known.num_clients), known


def refuse_without_problem(**given: object) -> None:
    """Refuse flags that say something of a problem where there is none."""
    for name, value in given.items():
        if not (value is None or value is False or value == []):  # 0 is a value
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag}: it belongs to a problem; add one, as --problem digits")


def local_table(**given: Sequence[str] | None) -> dict[str, Any]:
    """What flags say of the training, by the keys of a study file: a number, or a list of them."""
    found = {
        key: one_or_list(f"--{key.replace('_', '-')}", texts, *_NUMBERS[key]) for key, texts in given.items() if texts
    }
    if isinstance(found.get("lr"), list) and "auto" in found["lr"]:
        raise InputError("--lr: auto searches the rates by itself; give auto alone, or numbers, as 0.1,0.3")
    return found


def one_or_list(flag: str, given: Sequence[str], read: Callable[[str], Any], what: str, example: str) -> Any:
    """What a flag says, repeated or with commas: one value stays one, several make a list."""
    values = []
    for part in (part.strip() for text in given for part in text.split(",")):
        try:
            values.append(read(part))
        except (ValueError, ZeroDivisionError):
            raise InputError(f"{flag}: {part!r} is not {what}; write it as {example}") from None
    return values if len(values) > 1 else values[0]


def _number(text: str) -> float:
    return float(Fraction(text)) if "/" in text else float(text)


_NUMBERS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "lr": (lambda text: text if text == "auto" else _number(text), "a number", "0.1, 0.1,0.3 or auto"),
    "steps": (int, "a whole number", "5 or 1,5"),
    "batch_size": (lambda text: text if text == "all" else int(text), "a whole number of rows", "32, 16,64 or all"),
    "momentum": (_number, "a number", "0.9 or 0,0.9"),
    "clip": (_number, "a number", "1 or 1,10"),
    "server_lr": (_number, "a number", "1 or 0.5,1"),
}
"""How each number of the training is read, what it must be, and an example."""


def only_one(table: Mapping[str, Any], command: str, keys: Sequence[str]) -> None:
    """Refuse lists where a command takes one value."""
    for key in keys:
        if isinstance(table.get(key), list):
            flag, given = "--" + key.replace("_", "-"), ",".join(map(str, table[key]))
            raise InputError(f"{flag}: {given}: fedtempo {command} takes one; fedtempo run compares several")


# -- importance and schemes


def read_importance(given: str | None) -> list[Fraction] | None:
    """`--importance` as rationals."""
    if given is None:
        return None
    return [exact(part, f"--importance of client {i}") for i, part in enumerate(given.split(","))]


def read_schemes(
    names: Sequence[str] | None,
    times: ClientTimes,
    *,
    waits: Sequence[str] | None,
    buffers: Sequence[int] | None,
    samples: Sequence[int] | None,
    stages: Sequence[str] | None,
) -> list[Scheme] | None:
    """The schemes asked for, in order; None if none was named."""
    found = scheme_tables(names, times, waits=waits, buffers=buffers, samples=samples, stages=stages)
    return None if found is None else list(found)


def scheme_tables(
    names: Sequence[str] | None,
    times: ClientTimes,
    *,
    waits: Sequence[str] | None,
    buffers: Sequence[int] | None,
    samples: Sequence[int] | None,
    stages: Sequence[str] | None,
) -> dict[Scheme, dict[str, object]] | None:
    """The schemes asked for, in order, each with its table in a study file; None if none was named."""
    texts = list(dict.fromkeys(names or []))
    bare = [text for text in texts if text in SCHEMES]
    _belongs("--wait", waits, bare, ["fedfix"])
    _belongs("--buffer", buffers, bare, list(_BUFFERED))
    _belongs("--sample", samples, bare, list(_SAMPLED))
    _belongs("--stage", stages, bare, list(_STAGED))
    if not texts:
        return None
    out: list[Scheme] = []
    written: dict[Scheme, dict[str, object]] = {}
    for text in texts:
        if text in _SAMPLED:
            out += [_one(text, size=size) for size in _needed("--sample 5", samples, text)]
        elif text == "fedfix":
            out += [FedFix(wait) for wait in (waits or sensible_waits(times))]
        elif text in _BUFFERED:
            sizes = _needed("--buffer 5", buffers or sensible_sizes(times), text)
            for size in sizes:
                out.append(_one(text, size=size))
                written[out[-1]] = {"name": text, "size": size}
        elif text in _STAGED:
            out.append(_staged(_needed("--stage 1/4:10 --stage 1/2", stages, text), times))
        else:
            out.append(_one(text))
            written[out[-1]] = {"name": text}
    for scheme in out:
        scheme.waiting.check(times.num_clients)
    return {scheme: written.get(scheme) or scheme.spec() for scheme in out}


_SAMPLED = ("uniform", "multinomial", "fastest", "highest-loss")
"""Schemes whose size is --sample."""
_BUFFERED = ("fedbuff", "fedbuff-published")
"""Schemes whose size is --buffer."""
_STAGED = ("stages", "fedfix-stages")


def _one(text: str, **arguments: object) -> Scheme:
    return SCHEMES.from_spec({"name": text, **arguments}, "--scheme")


def _belongs(flag: str, values: Sequence[object] | None, asked: Sequence[str], schemes: list[str]) -> None:
    if values and not set(schemes) & set(asked):
        raise InputError(
            f"{flag}: it belongs to --scheme {' or '.join(schemes)}, which was not asked for; add --scheme {schemes[0]}"
        )


def _needed(example: str, values: Sequence[T] | None, name: str) -> Sequence[T]:
    if not values:
        raise InputError(f"--scheme {name}: it needs a number; add {example}")
    return values


def _staged(given: Sequence[str], times: ClientTimes) -> Scheme:
    stages: list[tuple[Fraction, int | None]] = []
    for k, stage in enumerate(given):
        wait, _, windows = stage.partition(":")
        last = k == len(given) - 1
        if last == bool(windows) or (windows and not windows.isdecimal()):
            raise InputError(
                f"--stage: {stage!r} cannot stand there; each stage but the last says for how many windows, as 1/4:10, "
                "and the last is just a wait, as 1/2"
            )
        stages.append((exact(wait, "--stage"), int(windows) if windows else None))
    return StagedFedFix.over_windows(times, stages)
