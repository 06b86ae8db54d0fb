"""Which run a measured point belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RunInfo:
    """One run of a study: a scheme with one value of everything that the study has several of.

    It is what `on_measure` of ``ft.simulate`` and of the strategies on Flower is told with each point.

    Example:
        >>> def note(run: ft.RunInfo, time: float, values: dict[str, float]) -> None:
        ...     if time == 20:
        ...         print(run.name, run.labels["local_lr"])
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> local = ft.LocalSGD(lr=[0.1, 0.3])
        >>> _ = ft.simulate(problem, ft.FedAvg(), times, until=20, local=local, on_measure=note)
        FedAvg, time-based, local_lr 0.1, seed 0 0.1
        FedAvg, time-based, local_lr 0.3, seed 0 0.3
    """

    labels: Mapping[str, object]
    """Its coordinates in the history, as ``{"scheme": "FedAvg", "local_lr": 0.1, "seed": 0, …}``."""

    @property
    def name(self) -> str:
        """All labels in one line, as "FedAvg, time-based, local_lr 0.1, seed 0": no other run of the study has it."""
        return ", ".join(_text(name, value) for name, value in self.labels.items())


def _text(name: str, value: object) -> str:
    return value if isinstance(value, str) else f"{name} {str(value).removesuffix('.0')}"
