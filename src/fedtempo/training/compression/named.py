"""Compression by its JSON object, as `spec` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtempo.errors import InputError
from fedtempo.training.compression.low_rank import LowRank
from fedtempo.training.compression.method import Compression
from fedtempo.training.compression.qsgd import QSGD
from fedtempo.training.compression.top_k import TopK

_METHODS: dict[str, type[QSGD] | type[TopK] | type[LowRank]] = {kind.name: kind for kind in (QSGD, TopK, LowRank)}


def compression_of(spec: Mapping[str, Any]) -> Compression:
    """The method whose `spec` this is; an InputError if there is none."""
    given = dict(spec)
    name = given.pop("name", None)
    kind = _METHODS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InputError(f"compression: {name!r} is not known; use one of {', '.join(_METHODS)}")
    try:
        return kind(**given)
    except TypeError:
        raise InputError(f"compression: {name} has no {', '.join(map(str, given))}; leave out what it lacks") from None
