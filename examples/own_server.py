"""A server optimizer of one's own: a step along the round's contribution, never longer than `limit`.

Any solver of Optax works by itself: ``ft.ServerOptax(optax.adam)``, or ``--server optax:adam`` on the command line.
This one, in the folder of this file: ``fedtempo run --server own_server:Bounded:0.02``.
"""

from dataclasses import dataclass
from typing import Any

import optax

import fedtempo as ft


@dataclass(frozen=True)
class Bounded(ft.ServerOptimizer):
    """θ ← θ + η_g u · min(1, limit/‖u‖), u = Σ ω_i Δ_i."""

    limit: float

    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        """What the server does with −u, as if it were a gradient."""
        return optax.chain(optax.clip_by_global_norm(self.limit), optax.sgd(server_lr))


if __name__ == "__main__":
    problem = ft.problems.quadratics(5, dimension=4, heterogeneity=2.0)
    times = ft.FixedTimes.spread(clients=5, slowdown=80)
    fix = ft.FedFix("1/2")
    servers = [None, Bounded(0.02), ft.ServerOptax(optax.adam, options={"b1": 0.5})]
    schemes = [fix.using(server=server) for server in servers]
    history = ft.simulate(problem, schemes, times, until=20, local=ft.LocalSGD(lr=0.05), server_lr=0.5)
    for scheme in schemes:
        loss = history.dataset.loss.sel(scheme=scheme.label).squeeze().values
        print(f"{scheme}: loss {loss[0]:.3f}, then {loss[20]:.3f}, at last {loss[-1]:.3f}")
