"""What a pilot predicts of every cell before the race, and which cells are then not begun."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.planning.asked import Asked
from fedtempo.planning.comparison import Cell
from fedtempo.planning.pilot import run_pilot
from fedtempo.planning.prediction import Model
from fedtempo.planning.recommendation import Prior
from fedtempo.planning.recommendation import Recommendation as Recommendation
from fedtempo.schemes.named import FedAvg
from fedtempo.simulation.rate_search import between
from fedtempo.training.solvers import LocalSGD

_LOWEST, _HIGHEST = 1e-4, 20.0
"""Times one over the largest curvature at the start."""
HOPELESS = 20.0
"""A rate below the best whose predicted loss is this many times the least is not begun."""
BEYOND = 10.0
"""A rate that is this many times the largest stable one is not begun."""


def rates_around(curvature: float) -> Floats:
    """1-2-5 steps over all rates that a loss of this largest curvature may stand."""
    low, high = _LOWEST / curvature, _HIGHEST / curvature
    return np.array(between(low * (1 - 1e-9), high * (1 + 1e-9)))


def prior_of(asked: Asked, share: float, seed: int) -> tuple[Prior | None, str]:
    """What a pilot predicts; or why there is none."""
    local = asked.local
    steps, batch_size = asked.number("local_steps"), asked.number("batch_size")
    if not isinstance(local, LocalSGD) or not local.plain:
        return None, "there was no pilot, which covers plain SGD alone"
    usual = FedAvg().options
    if any(scheme.options != usual for scheme in asked.compared):
        return None, "there was no pilot, which covers schemes without options alone"
    accesses = steps * (float(asked.problem.sizes.mean()) if batch_size is None else batch_size)
    try:
        pilot = run_pilot(asked.problem, int(share * asked.planned * accesses), local_steps=steps, seed=seed)
        model = Model.of(pilot, asked.problem.importance, steps, batch_size)
        rates = rates_around(pilot.start_curvature) if asked.rates is None else np.array(asked.rates)
        predict = partial(model.predict, until=asked.until, lr=rates, rule=asked.rule, step=asked.step, seed=seed)
        found = tuple(predict(scheme, asked.times, server_lr=asked.server_lr) for scheme in asked.compared)
    except InputError as error:
        return None, f"there was no pilot ({error})"
    if not any(np.isfinite(one.excess).any() for one in found):
        return None, "the pilot expected every cell to be unstable, and was not listened to"
    return Prior(pilot, model, found, accesses), ""


def predicted_losses(prior: Prior | None) -> dict[Cell, float]:
    """The predicted loss of every cell; infinite where training is expected to be unstable."""
    if prior is None:
        return {}
    least = prior.model.least_loss
    return {
        Cell(one.scheme.label, float(rate)): least + float(excess)
        for one in prior.predictions
        for rate, excess in zip(one.lr, one.excess, strict=True)
    }


def is_trusted(prior: Prior | None) -> bool:
    """Whether what the pilot predicts is listened to: not where it found that the loss is not convex."""
    return prior is not None and prior.pilot.least_curvature >= 0


def begun(cells: Sequence[Cell], prior: Prior | None, reference: str | None) -> list[Cell]:
    """The cells that are not hopeless: neither far beyond the stable rates, nor small rates far above the best loss.

    Where the loss is not convex at the pilot's end, what it predicts is not listened to. FedAvg always stays.
    """
    if prior is None or not is_trusted(prior):
        return list(cells)
    predicted = predicted_losses(prior)
    least = min(predicted.values())
    kept: list[Cell] = []
    for scheme in dict.fromkeys(cell.scheme for cell in cells):
        rates = [cell for cell in cells if cell.scheme == scheme]
        best = min(rates, key=predicted.__getitem__)
        stable = max((cell.rate for cell in rates if math.isfinite(predicted[cell])), default=best.rate)
        low = [cell for cell in rates if cell.rate < best.rate and predicted[cell] > HOPELESS * least > 0]
        high = [cell for cell in rates if cell.rate > BEYOND * stable]
        kept += [cell for cell in rates if scheme == reference or cell not in {*low, *high}]
    return kept
