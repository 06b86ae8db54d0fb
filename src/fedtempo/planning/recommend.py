"""`recommend`: which scheme, wait and learning rate to use, and why.

    a pilot, of at most a share of the planned client updates → a quadratic model → each candidate's loss → the lowest

Candidates are schemes with waits and buffer sizes, and learning rates in steps of 1, 2, 5. The planned client updates
are those that the clients can make in the time, Σ T/E[T_i]; one is K·B accesses to rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtempo import display
from fedtempo.clock.ticks import Exact, positive, text
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Shown, frame_of, one_line
from fedtempo.errors import InputError
from fedtempo.planning.pilot import Pilot, run_pilot
from fedtempo.planning.prediction import Model, Prediction
from fedtempo.problems.batch_mean import check_batch_mean
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.simulation.compilation import keep_on_disk
from fedtempo.simulation.costs import model_bytes
from fedtempo.theory.stability import StabilityLimit, stability_limit
from fedtempo.training.solvers import LocalSGD
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_WAITS = tuple(Fraction(n, 8) for n in (1, 2, 4, 6))
"""Of the slowest client's mean time."""
_SIZES = (0.1, 0.25, 0.5, 0.75)
"""Of the number of clients."""
_LOWEST, _HIGHEST = 1e-4, 20.0
"""Times one over the largest curvature at the start."""


def schemes_for(
    times: ClientTimes, waits: Iterable[Exact] | None = None, sizes: Iterable[int] | None = None
) -> tuple[Scheme, ...]:
    """FedAvg, asynchronous FedAvg, FedFix over waits, FedBuff over sizes."""
    clients = times.num_clients
    slowest = Fraction(round(100 * float(times.mean_time.max())), 100) or Fraction(1, 100)
    waits = [slowest * part for part in _WAITS] if waits is None else [positive(w, "wait") for w in waits]
    if sizes is None:
        sizes = sorted({round(clients * part) for part in _SIZES} - {0, 1, clients})
    if clients == 1:
        return (FedAvg(),)
    return (FedAvg(), AsyncFedAvg(), *(FedFix(wait) for wait in waits), *(FedBuff(size) for size in sizes))


def rates_around(curvature: float) -> Floats:
    """1-2-5 steps over all rates that a loss of this largest curvature may stand."""
    low, high = _LOWEST / curvature, _HIGHEST / curvature
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = np.array([float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)])
    return every[(every >= low) & (every <= high)]


def checked_rates(rates: Iterable[float]) -> Floats:
    """Given rates, ascending."""
    found = np.unique(np.array([float(rate) for rate in rates]))
    if not len(found) or not np.isfinite(found).all() or found[0] <= 0:
        raise InputError(f"rates: {found.tolist()} must be positive numbers; give at least one")
    return found


FORMAT = 1
SHARE = 0.05
"""Of the planned client updates: what the pilot may use."""


@dataclass(frozen=True)
class Choice:
    """A scheme at a learning rate, and the loss that is expected of it."""

    scheme: Scheme
    local_lr: float
    loss: float
    """Predicted federated loss over the last tenth of the time."""
    excess: float
    """Above the least loss."""


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation(Shown):
    """Every candidate's prediction, and the choice; ``print`` shows the tables of ``fedtempo plan --problem``."""

    times: ClientTimes
    until: Fraction
    local_steps: int
    batch_size: int | None
    server_lr: float
    pilot: Pilot
    model: Model
    predictions: tuple[Prediction, ...]
    planned_updates: float
    accesses_an_update: float
    """K·B."""
    rule: str | WeightRule
    step: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Each scheme at its best rate, the lowest prediction first."""
        found = [self._choice(one) for one in self.predictions]
        return tuple(sorted(found, key=lambda one: one.excess))

    @property
    def best(self) -> Choice:
        """The recommended one: the lowest prediction."""
        return self.choices[0]

    def _choice(self, one: Prediction) -> Choice:
        excess = float(one.excess[one.best])
        return Choice(one.scheme, float(one.lr[one.best]), self.model.least_loss + excess, excess)

    def prediction(self, scheme: Scheme) -> Prediction:
        """The prediction of one of the schemes."""
        for one in self.predictions:
            if one.scheme.label == scheme.label:
                return one
        raise InputError(f"{scheme} is not among the schemes compared; give it in schemes=")

    @property
    def pilot_updates(self) -> float:
        """What the pilot used, in client updates."""
        return self.pilot.used / self.accesses_an_update

    @cached_property
    def limits(self) -> dict[str, StabilityLimit]:
        """By scheme's label, the learning rate from which training is unstable along the largest final curvature."""
        steepest = np.full(self.times.num_clients, self.model.final_curvature)
        return {
            one.scheme.label: stability_limit(
                steepest,
                one.scheme,
                self.times,
                weights=self.rule,
                local_steps=self.local_steps,
                server_lr=self.server_lr * one.step,
            )
            for one in self.predictions
        }

    @property
    def waits(self) -> list[tuple[Fraction, Choice]]:
        """FedFix's waits with the choice for each, ascending."""
        found = [(one.scheme.wait, self._choice(one)) for one in self.predictions if isinstance(one.scheme, FedFix)]
        return sorted(found, key=lambda pair: pair[0])

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the prediction takes for granted, in sentences."""
        said = [
            "Near the pilot's end the clients' losses are quadratics with common axes; updates are plain SGD.",
            f"The pilot ended {self.model.remaining:.3g} above the minimum loss, as estimated from its own descent.",
        ]
        if self.pilot.least_curvature < 0:
            said.append(
                f"Negative curvature was found ({self.pilot.least_curvature:.2g}): the loss is not convex there. Such "
                "directions are taken as flat, and the minimum loss is that of the pilot's basin."
            )
        last = self.prediction(self.best.scheme)
        if last.best in (0, len(last.lr) - 1):
            side = "smallest" if last.best == 0 else "largest"
            said.append(f"The best learning rate is the {side} of those compared; give more in rates.")
        return tuple(said)

    def plot(self, path: str | Path | None = None, *, style: str = "light") -> Figure:
        """Predicted losses and rates against the time between two models; with `path` also a file.

        The ending of `path` says whether it is SVG, PNG or PDF; `style` is light or dark.
        """
        return display.recommendation_figure(self, path=path, style=style)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; what is not finite is null."""
        return {
            "format": FORMAT,
            "until": text(self.until),
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "step": self.step,
            "best": _choice_dict(self.best),
            "schemes": [
                {
                    **_choice_dict(self._choice(one)),
                    "rounds": one.num_rounds,
                    "updates": one.num_updates,
                    "server_step": one.step,
                    "rates": one.lr.tolist(),
                    "predicted_excess": _finite(one.excess),
                    "progress": _finite(one.progress),
                    "noise": _finite(one.noise),
                    "heterogeneity": _finite(one.heterogeneity),
                    "drift": _finite(one.drift),
                    "stability_limit": self.limits[one.scheme.label].lr,
                    "proven_lr": one.proven_lr,
                    "proven_loss": one.proven_loss,
                }
                for one in self.predictions
            ],
            "pilot": {
                "updates": self.pilot_updates,
                "planned_updates": self.planned_updates,
                "rows": self.pilot.used,
                "loss": self.pilot.end_loss,
                "remaining": self.model.remaining,
                "largest_curvature": self.pilot.largest_curvature,
                "final_curvature": self.model.final_curvature,
                "noise": self.pilot.mean_noise,
                "heterogeneity": self.pilot.mean_heterogeneity,
            },
            "assumes": list(self.assumes),
        }

    def table(self, *, every: bool = False) -> pd.DataFrame:
        """A row a scheme at its best learning rate, the lowest loss first; with `every` a row a scheme and rate.

        `predicted_loss` is the loss, `excess` what it is above the least, and `progress`, `noise`, `heterogeneity` and
        `drift` the parts of that, infinite where training is unstable. A scheme also has its `rounds`, `updates` and
        `server_step`, the `stability_limit` of its rate, and the `proven_lr` with its `proven_loss`.
        """
        return frame_of(self, every=every)

    def __repr__(self) -> str:
        best = self.best
        return one_line(
            "Recommendation",
            f"{best.scheme.label} at local_lr {best.local_lr:g}, the lowest of {len(self.predictions)} schemes for "
            f"{self.times.num_clients} clients at time {float(self.until):g}: predicted loss {best.loss:.4g}",
        )


def recommend(
    problem: Problem,
    times: ClientTimes,
    *,
    until: Exact,
    local: LocalSGD | None = None,
    schemes: Sequence[Scheme] | None = None,
    waits: Iterable[Exact] | None = None,
    sizes: Iterable[int] | None = None,
    rates: Iterable[float] | None = None,
    weights: str | WeightRule = "time-based",
    step: str = "stable",
    server_lr: float = 1.0,
    share: float = SHARE,
    seed: int = 0,
) -> Recommendation:
    """Choose scheme, wait and learning rate for a time `until`, from a pilot of `share` of the planned client updates.

    `local` gives K and B (its learning rate does not matter); `schemes`, or `waits` and `sizes`, what is compared.
    """
    keep_on_disk()
    horizon = positive(until, "until")
    check_batch_mean(problem)
    if problem.num_clients != times.num_clients:
        raise InputError(
            f"the problem has {problem.num_clients} clients, the times {times.num_clients}; give as many of each"
        )
    if times.by_traffic:
        times = times.for_traffic(model_bytes(problem), model_bytes(problem))
    steps, batch_size = _plain(LocalSGD() if local is None else local)
    if not 0 < share <= 1:
        raise InputError(f"share: {share} is not a share of the client updates; give a number such as 0.05")
    planned = float(horizon) * float((1 / times.mean_time).sum())
    accesses = steps * (float(problem.sizes.mean()) if batch_size is None else batch_size)
    budget = int(share * planned * accesses)
    pilot = run_pilot(problem, budget, local_steps=steps, seed=seed)
    model = Model.of(pilot, problem.importance, steps, batch_size)
    lr = rates_around(pilot.start_curvature) if rates is None else checked_rates(rates)
    compared = tuple(schemes) if schemes is not None else schemes_for(times, waits, sizes)
    predictions = tuple(
        model.predict(scheme, times, until=horizon, lr=lr, rule=weights, step=step, server_lr=server_lr, seed=seed)
        for scheme in compared
    )
    if not any(np.isfinite(one.excess).any() for one in predictions):
        raise InputError(f"no scheme is stable at any of the rates {lr.tolist()}; give smaller ones in rates")
    return Recommendation(
        times=times,
        until=horizon,
        local_steps=steps,
        batch_size=batch_size,
        server_lr=server_lr,
        pilot=pilot,
        model=model,
        predictions=predictions,
        planned_updates=planned,
        accesses_an_update=accesses,
        rule=weights,
        step=check_step(step),
    )


def _plain(local: LocalSGD) -> tuple[int, int | None]:
    """(K, B) of plain local SGD."""
    given: object = local
    if not isinstance(given, LocalSGD) or local.momentum is not None or local.clip is not None:
        raise InputError(f"local: {local!r}; the planner covers only LocalSGD without momentum and clip")
    if not isinstance(local.steps, int) or not (local.batch_size is None or isinstance(local.batch_size, int)):
        raise InputError("local: give one number of steps and one batch size; plan each separately")
    return local.steps, local.batch_size


def _choice_dict(one: Choice) -> dict[str, Any]:
    return {
        "scheme": one.scheme.spec(),
        "label": one.scheme.label,
        "local_lr": one.local_lr,
        "predicted_loss": one.loss if np.isfinite(one.loss) else None,
        "excess": one.excess if np.isfinite(one.excess) else None,
    }


def _finite(values: Floats) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
