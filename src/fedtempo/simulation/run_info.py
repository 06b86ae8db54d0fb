"""Which run a measured point belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RunInfo:
    """One run of a study: a scheme with one value of everything that the study has several of."""

    labels: Mapping[str, object]
    """Its coordinates in the history, as ``{"scheme": "FedAvg", "weights": "time-based", "lr": 0.1, "seed": 0}``."""

    @property
    def name(self) -> str:
        """All labels in one line, as "FedAvg, time-based, lr 0.1, seed 0": no other run of the study has it."""
        return ", ".join(_text(name, value) for name, value in self.labels.items())


def _text(name: str, value: object) -> str:
    return value if isinstance(value, str) else f"{name} {str(value).removesuffix('.0')}"
