"""Compressions by name: as text, topk:0.01, or as the JSON object that `spec` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtempo.registry import Registry
from fedtempo.training.compression.low_rank import LowRank
from fedtempo.training.compression.method import Compression
from fedtempo.training.compression.qsgd import QSGD
from fedtempo.training.compression.top_k import TopK

COMPRESSIONS: Registry[Compression] = Registry(
    "compression", {kind.name: kind for kind in (QSGD, TopK, LowRank)}, makes=(Compression,)
)
"""Compressions by name."""


def compression_of(spec: Mapping[str, Any]) -> Compression:
    """The method whose `spec` this is; an InputError if there is none."""
    return COMPRESSIONS.from_spec(spec)
