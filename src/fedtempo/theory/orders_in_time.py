"""The printed forms of ε with N expressed in the training time T (section 4.1 and table 2).

p_i = 1/M, η_g = 1, η_l = 1/√(KN), time-based weights, N = `rounds_in(scheme, times, T)`, τ_i = E[T_i].
"""

from __future__ import annotations

from math import sqrt

from fedtempo.clock.rules import FixedInterval, MultinomialSample, UniformSample, WaitForAll, WaitForNext
from fedtempo.clock.ticks import Exact
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme
from fedtempo.theory.expected import Expected, expected_from_scheme, rounds_in
from fedtempo.theory.orders import Order, asynchronous, centralized, fedavg, fedfix, unbiased_sampling
from fedtempo.theory.rounds import check_always_there


def order_of(
    scheme: Scheme,
    times: ClientTimes,
    *,
    until: Exact,
    local_steps: int,
    distance: float,
    sigma: float,
    disparity: float = 0.0,
    as_printed: bool = True,
) -> Order:
    """ε of a scheme after the time `until`; W, α and β are the scheme's own, W counts as 1 where it is not known."""
    check_always_there(times, "the printed form of ε")
    n, k, clients = rounds_in(scheme, times, until), local_steps, times.num_clients
    if n < 1:
        raise InputError(f"until: no round of {scheme} ends by {until}; give more time")
    rate = 1.0 / sqrt(k * n)
    if isinstance(scheme.waiting, WaitForAll):
        if clients == 1:
            return centralized(rounds=n, local_steps=k, distance=distance, sigma=sigma, local_lr=rate)
        return fedavg(rounds=n, local_steps=k, clients=clients, distance=distance, sigma=sigma)
    law: Expected = expected_from_scheme(scheme, times, rounds=max(1, int(n)))
    match scheme.waiting:
        case WaitForNext():
            return asynchronous(
                rounds=n,
                local_steps=k,
                clients=clients,
                distance=distance,
                sigma=sigma,
                disparity=disparity,
                slowest_over_fastest=float(times.mean_time.max() / times.mean_time.min()),
                window=law.window or 1,
                as_printed=as_printed,
            )
        case FixedInterval(wait=wait):
            return fedfix(
                rounds=n,
                local_steps=k,
                clients=clients,
                distance=distance,
                sigma=sigma,
                disparity=disparity,
                slowest_rounds=float(times.expected_rounds(wait).max()),
                window=law.window or 1,
                as_printed=as_printed,
            )
        case UniformSample() | MultinomialSample():
            return unbiased_sampling(
                rounds=n,
                local_steps=k,
                clients=clients,
                distance=distance,
                sigma=sigma,
                co_participation=law.co_participation,
                weight_spread=law.weight_spread,
                local_lr=rate,
            )
    raise InputError(
        f"{scheme}: the paper gives no form of ε for it; use FedAvg, AsyncFedAvg, FedFix, sampling or centralized"
    )
