"""Section 5.2.3, the remark on F0: where all clients take one unit of time, FedFix(1/2) is FedAvg with η_g = 2.

d_i = ⌈τ_i / Δt⌉ p_i = 2 p_i            every second round is empty, in the others every client counts twice

τ_i is `mean_time`, Δt `wait`, p_i `importance`, d_i `weights`, η_g `server_lr`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from fedtempo.reproduce.claims_kinds import Case, claim
from fedtempo.reproduce.claims_runs import Book

TOLERANCE = 1e-9
ROUNDS = (1, 3, 10)


@cache
def distances() -> dict[int, tuple[float, float]]:
    """After so many units of time, how far FedFix's model is from FedAvg's, and from AsyncFedAvg's, with η_g = 2."""
    import fedtempo as ft

    problem = ft.problems.quadratics(clients=4, dimension=3, noise=1.0, seed=0)
    times = ft.FixedTimes([1] * 4)
    local = ft.LocalSGD(steps=2, lr=0.05, batch_size=2)
    schemes = [ft.FedFix(wait="1/2"), ft.FedAvg(), ft.AsyncFedAvg()]
    found = {}
    for until in ROUNDS:
        history = ft.simulate(
            problem,
            schemes,
            times,
            until=until,
            local=local,
            server_lr=[1.0, 2.0],
            points=2,
            dtype="float64",
            engine="oracle",  # the readable engine, which has little to compile
        )
        fixed, *doubled = (
            np.asarray(history.model(scheme=scheme, server_lr=rate).parameters)
            for scheme, rate in zip(schemes, (1.0, 2.0, 2.0), strict=True)
        )
        found[until] = (float(np.abs(fixed - doubled[0]).max()), float(np.abs(fixed - doubled[1]).max()))
    return found


@claim(
    21,
    "section 5.2.3, on F0",
    "With clients of equal speed FedFix(1/2) is FedAvg with the server rate 2 (the paper says asynchronous).",
    f"largest distance between the two models' parameters, at most {TOLERANCE:g}; exact, on quadratics in 64 bits",
)
def fedfix_is_fedavg(book: Book) -> Iterator[Case]:
    """After one, a few and more rounds."""
    for rounds, (synchronous, asynchronous) in distances().items():
        name = f"after {rounds} round{'s' * (rounds > 1)} of FedAvg"
        note = f"to AsyncFedAvg with the server rate 2: {asynchronous:.2g}"
        yield Case(name, synchronous, None, None, "holds" if synchronous <= TOLERANCE else "fails", note)


CLAIMS = (fedfix_is_fedavg,)
