"""placeholder merged from theory branch"""

from __future__ import annotations

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.weighting.long_run import LongRun

STEPS = ("stable", "paper", "proven")


def check_step(given: object, what: str = "step") -> str:
    if not isinstance(given, str) or given not in STEPS:
        raise InputError(f"{what}: {given!r} is not known; use stable, paper or proven")
    return given


def stable_step(run: LongRun, d: Floats) -> float:
    if run.rule.synchronous:
        return 1.0
    share = run.participation.share
    there = share > 0
    return float((d * share)[there].sum() / d[there].sum())


def step_of(step: str, run: LongRun, d: Floats) -> float:
    return 1.0 if step == "paper" else stable_step(run, d)
