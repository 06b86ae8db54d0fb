"""Recommendations that nobody trained for: what is asked for is filled in, all else follows from a simple rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.clock.importance import Importance
from fedtempo.planning.objective import Objective
from fedtempo.planning.pilot import Path, Pilot
from fedtempo.planning.prediction import Curves, Model, Prediction
from fedtempo.planning.recommendation import Choice, Curve, Interval, Prior, Recommendation, Spent
from fedtempo.planning.spectrum import Spectrum
from fedtempo.schemes.named import Scheme

TIMES = ft.FixedTimes(range(1, 11))
UNTIL = Fraction(200)
RATES = (0.1, 0.5, 1.0)
WHY = "at least 30% behind"

TWO = ("FedAvg", "AsyncFedAvg")
TEN = (
    *("FedFix(5/4)", "AsyncFedAvg", "FedBuff(2)", "FedFix(5/2)", "FedAvg"),
    *("FedBuff(3)", "FedFix(5/8)", "FedFix(15/4)", "FedBuff(4)", "FedBuff(5)"),
)
FOURTEEN = (*TEN, "FedFix(1/4)", "FedFix(5)", "FedBuff(6)", "FedBuff(8)")


def scheme(label: str) -> Scheme:
    """A scheme by its label."""
    name, _, number = label.rstrip(")").partition("(")
    if name == "FedFix":
        return ft.FedFix(number)
    if name == "FedBuff":
        return ft.FedBuff(int(number))
    return {"FedAvg": ft.FedAvg, "AsyncFedAvg": ft.AsyncFedAvg}[name]()


def choices(labels: Sequence[str], objective: Objective, *, ended: int | None = None) -> tuple[Choice, ...]:
    """Each worse than the one before, the first `ended` of them (half, at least two) trained to the end."""
    ended = max(2, len(labels) // 2) if ended is None else ended
    found = []
    for k, label in enumerate(labels):
        trained = 1.0 if k < ended else 0.25 if k % 2 else 0.0625
        far = 0.08 * k if trained == 1.0 else 0.3 + 0.2 * k
        if objective.kind == "time-to":
            loss = 31 * (1 + far) * (1.0 if trained == 1.0 else 10 * trained)
        elif objective.largest:
            loss = 0.9 - 0.2 * far
        else:
            loss = 0.0142 * (1 + far)
        seeds = 3 if k < 2 else 1
        found.append(
            Choice(
                scheme=scheme(label),
                local_lr=(0.5, 1.0, 0.2)[k % 3],
                loss=loss,
                excess=0.0142 * far,
                error=0.04 * loss if seeds > 1 else math.nan,
                seeds=seeds,
                trained=trained,
                behind=Interval(0.0, 0.0) if k == 0 else Interval(far - 0.04, far + 0.05),
                predicted=0.016 * (1 + far),
                why="" if trained == 1.0 else WHY,
            )
        )
    return tuple(found)


def _usual(one: Choice) -> tuple[int, Fraction]:
    """Families as `recommend` lists them, waits and sizes ascending."""
    name, _, number = one.scheme.label.rstrip(")").partition("(")
    return ("FedAvg", "AsyncFedAvg", "FedFix", "FedBuff").index(name), Fraction(number or 0)


def cells(best: Sequence[Choice], rates: Sequence[float] = RATES) -> tuple[Choice, ...]:
    """Every rate of every scheme: those that are not the best of their scheme were left early."""
    left = {"seeds": 1, "error": math.nan, "trained": 0.0625, "predicted": math.nan, "why": WHY}
    return tuple(
        one if rate == one.local_lr else replace(one, local_lr=rate, loss=2 * one.loss, excess=one.loss, **left)
        for one in sorted(best, key=_usual)
        for rate in sorted({*rates, one.local_lr})
    )


def curves(best: Sequence[Choice], objective: Objective) -> dict[tuple[str, float], Curve]:
    """Of what was trained to the end: they fall, or rise, to their value."""
    times = np.linspace(0, float(UNTIL), 41)
    found = {}
    for k, one in enumerate(best):
        if one.trained < 1:
            continue
        falls, end = np.exp(-times / (20 + 3 * k)), one.loss
        if not math.isfinite(end):
            mean = np.where(times > times[-1] / 2, math.inf, 1.0)
        elif objective.largest:
            mean = end * (1 - 0.9 * falls)
        elif objective.kind == "time-to":
            mean = objective.number * np.exp(1 - times / max(end, 1.0))
        else:
            mean = end + (1.0 - end) * falls
        error = 0.04 * mean if one.seeds > 1 else np.full(len(times), math.nan)
        found[one.scheme.label, one.local_lr] = Curve(times, mean, error)
    return found


def prior(labels: Sequence[str], lr: Sequence[float] = RATES) -> Prior:
    """A pilot that saw round numbers."""
    flat = Spectrum(np.array([0.1, 1.0]), np.array([0.5, 0.5]))
    few = np.ones(10)
    path = Path(np.arange(3.0), np.array([3.0, 2.0, 1.5]), np.ones(3), np.full(3, 0.7), 10)
    seen = Pilot(
        **{"used": 150, "budget": 160, "path": path, "start_loss": 3.0, "start_curvature": 1.0, "end_time": 3.0},
        **{"end_loss": 1.1, "end_loss_error": 0.01, "clients": np.arange(10), "noise": few, "heterogeneity": few},
        **{"mean_noise": 1.0, "mean_heterogeneity": 1.0, "gradient_square": 0.1, "gradient_square_error": 0.01},
        **{"distance": 2.0, "way": flat, "way_energy": 1.0, "of_noise": flat, "of_heterogeneity": flat},
        **{"of_gradient": flat, "own_curvature": None, "drift_square": 0.0, "least_curvature": 0.1, "flattening": 1.0},
    )
    goes_on = Curves(np.ones(1), np.ones(1), np.ones(1), np.ones(1))
    model = Model(seen, Importance(None, 10), 1, 4, goes_on, 1.5, 1.0)
    rates = np.array(sorted(lr))
    predictions = tuple(
        Prediction(
            scheme=scheme(label),
            lr=rates,
            num_rounds=40 * (k + 1),
            num_updates=160 * (k + 1),
            progress=0.001 / rates,
            noise=0.01 * rates,
            heterogeneity=0.001 * rates,
            drift=np.zeros(len(rates)),
            proven_lr=0.03,
            proven_loss=0.4,
        )
        for k, label in enumerate(labels)
    )
    return Prior(seen, model, predictions, accesses_an_update=4.0)


def recommendation(
    labels: Sequence[str] = TEN,
    *,
    objective: Objective | None = None,
    ended: int | None = None,
    pilot: bool = False,
    change: Mapping[str, Mapping[str, Any]] | None = None,
    **given: Any,
) -> Recommendation:
    """A recommendation of the first of `labels`; `change` says what is otherwise of a scheme, `given` of all."""
    objective = Objective() if objective is None else objective
    best = tuple(
        replace(one, **(change or {}).get(one.scheme.label, {})) for one in choices(labels, objective, ended=ended)
    )
    best = best if pilot else tuple(replace(one, predicted=math.nan) for one in best)
    made: dict[str, Any] = {
        "times": TIMES,
        "until": UNTIL,
        "local": ft.LocalSGD(batch_size=4),
        "server_lr": 1.0,
        "rule": "time-based",
        "step": "stable",
        "objective": objective,
        "choices": best,
        "cells": cells(best),
        "fedavg": next((one for one in best if one.scheme.label == "FedAvg"), None),
        "ties": (),
        "regret": Interval(0.0, 0.04),
        "tolerance": 0.1,
        "curves": curves(best, objective),
        "crossings": (),
        "spent": Spent(updates=1.9e6, grid=8.3e6, seconds=34.2, trainings=212, to_the_end=14),
        "ended": "sure",
        "planned_updates": 586.0,
        "prior": prior(labels) if pilot else None,
        "notes": (),
    }
    return Recommendation(**{**made, **given})
