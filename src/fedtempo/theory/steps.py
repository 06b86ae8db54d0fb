"""η_l, K, B and η_g as single numbers: what the theory needs to know of the local work and of the server."""

from __future__ import annotations

from dataclasses import dataclass

from fedtempo.arguments import local_rule, real
from fedtempo.errors import InputError
from fedtempo.local.rule import LocalRule
from fedtempo.local.solvers import LocalSGD


@dataclass(frozen=True)
class Steps:
    """K plain SGD steps of one rate, and a server step."""

    local_lr: float
    local_steps: int
    batch_size: int | None
    server_lr: float
    clip: float | None = None

    @property
    def effective_lr(self) -> float:
        """η̃ = η_g η_l."""
        return self.server_lr * self.local_lr

    @classmethod
    def of(cls, local: LocalRule, server_lr: float = 1.0) -> Steps:
        """From local work; the theory covers plain SGD with fresh rows in every step, one value of each number."""
        rule = local_rule(local)
        if not isinstance(rule, LocalSGD):
            raise InputError(f"local: the bounds cover SGD, not {rule!r}; give ft.LocalSGD(steps=5, lr=0.1)")
        if rule.options:
            raise InputError(f"local: the bounds cover SGD without {', '.join(rule.options)}; leave it out")
        chosen = {}
        for axis in rule.axes:
            if len(axis.values) != 1:
                raise InputError(f"{axis.name}: {list(axis.values)}; a bound is for one value, give one at a time")
            chosen[axis.name] = axis.values[0]
        batch = chosen["batch_size"]
        if rule.draw != "uniform" and batch is not None:
            raise InputError(
                f"draw: {rule.draw!r} makes a step's rows depend on the steps before, so that its gradient is biased "
                "(Assumption 3); use draw='uniform'"
            )
        clip = chosen.get("clip")
        return cls(
            local_lr=float(chosen["local_lr"] or 0.0),
            local_steps=int(chosen["local_steps"] or 1),
            batch_size=None if batch is None else int(batch),
            server_lr=real("server_lr", server_lr),
            clip=None if clip is None else float(clip),
        )
