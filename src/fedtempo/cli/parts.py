"""Parts of schemes as text or tables: ``fedprox:0.1``, or {name = "fedprox", mu = 0.1}.

correction    fedprox:μ   feddane:μ   feddyn:α   scaffold
server        slowmo:β    fedadam     fedyogi    fedadagrad    mixing
compression   topk:share  qsgd:levels lowrank:rank
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedtempo.cli.options import nearest
from fedtempo.clock.ticks import exact
from fedtempo.errors import InputError

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
    from fedtempo.local.corrections import FedDANE, FedDyn, FedProx, Scaffold

    return {
        "fedprox": (FedProx, ("mu",)),
        "feddane": (FedDANE, ("mu",)),
        "feddyn": (FedDyn, ("alpha",)),
        "scaffold": (Scaffold, ()),
    }


def _servers() -> Makers:
    from fedtempo.server_steps import FedAdaGrad, FedAdam, FedYogi, MixModels, SlowMo

    return {
        "slowmo": (SlowMo, ("momentum",)),
        "fedadam": (FedAdam, ("b1", "b2", "eps")),
        "fedyogi": (FedYogi, ("b1", "b2", "eps")),
        "fedadagrad": (FedAdaGrad, ("eps",)),
        "mixing": (MixModels, ()),
    }


def _compressions() -> Makers:
    from fedtempo.compression import QSGD, LowRank, TopK

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
