"""What a recommendation adds to the page of a plan: losses over time and against the wait, as trained and as predicted.

Predictions are the pilot's, of the final federated loss; they are there where the pilot covers the problem and the loss
is what was asked for. Each scheme has its best learning rate; options that it was trained with, such as a server
optimizer, are in its label.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.errors import InputError
from fedtempo.planning.recommendation import Choice, Recommendation
from fedtempo.report.browser.document import rounded
from fedtempo.report.recommendation_tables import measure_name
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme

HORIZONS = 12
"""Times for which losses are predicted."""
_MOST = 16
"""Schemes whose losses over time are predicted."""


def race_data(made: Recommendation, waits: Iterable[Fraction]) -> dict[str, Any]:
    """As `race.js` takes it."""
    choices = [_choice(one, made) for one in made.choices]
    return {
        "measure": made.measure_words,
        "over_time": "loss" if made.objective.kind == "time-to" else measure_name(made),
        "largest": made.objective.largest,
        "until": float(made.until),
        "choices": choices,
        "predicted_waits": _predicted_waits(made, waits),
        "best": made.best.scheme.label,
        "line": _line(made),
    }


def place_of(scheme: Scheme) -> dict[str, Any]:
    """Where the sliders stand for a scheme, whatever its options; kind None where they do not have it."""
    if isinstance(scheme, FedFix):
        return {"kind": "FedFix", "size": float(scheme.wait)}
    if isinstance(scheme, FedBuff):
        return {"kind": "FedBuff", "size": scheme.size}
    kind = next((kind.__name__ for kind in (FedAvg, AsyncFedAvg) if type(scheme) is kind), None)
    return {"kind": kind, "size": None}


def _choice(one: Choice, made: Recommendation) -> dict[str, Any]:
    curve = made.curves.get((one.scheme.label, one.local_lr))
    known = None if curve is None else [rounded(curve.times), rounded(curve.mean), rounded(curve.error, 3)]
    return place_of(one.scheme) | {
        "label": one.scheme.label,
        "lr": one.local_lr,
        "value": rounded(one.loss),
        "error": rounded(one.error, 3),
        "seeds": one.seeds,
        "trained": rounded(one.trained, 3),
        "curve": known,
        "predicted": _predicted(one, made) if one in made.choices[:_MOST] else None,
    }


def _covered(made: Recommendation) -> bool:
    return made.prior is not None and made.objective.kind == "loss"


def _predict(made: Recommendation, scheme: Scheme, until: Fraction, rates: Iterable[float]) -> float | None:
    """The predicted loss at the best of the rates; None where nothing is predicted, or only that it diverges."""
    assert made.model is not None
    try:
        found = made.model.predict(
            scheme,
            made.times,
            until=until,
            lr=np.array(list(rates)),
            rule=made.rule,
            step=made.step,
            server_lr=made.server_lr,
        )
    except InputError:
        return None
    loss = made.model.least_loss + float(found.excess.min())
    return loss if loss < 1e6 else None


def _predicted(one: Choice, made: Recommendation) -> list[Any] | None:
    """Times and the losses predicted for them."""
    if not _covered(made):
        return None
    times = [made.until * k / HORIZONS for k in range(1, HORIZONS + 1)]
    losses = [_predict(made, one.scheme, time, [one.local_lr]) for time in times]
    return None if all(loss is None for loss in losses) else [rounded(times), rounded(losses)]


def _predicted_waits(made: Recommendation, waits: Iterable[Fraction]) -> list[Any] | None:
    """Waits, and the loss predicted for the best rate that was tried."""
    if not _covered(made):
        return None
    rates = sorted({one.local_lr for one in made.cells})
    there = list(waits)
    losses = [_predict(made, FedFix(wait), made.until, rates) for wait in there]
    return [rounded(there), rounded(losses)]


def _line(made: Recommendation) -> str | None:
    try:
        return made.line()
    except InputError:  # Flower's strategies cannot host the choice
        return None
