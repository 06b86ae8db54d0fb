"""All that a client does with what it is sent: corrected steps, then compression of what it sends back.

sent (θ^ρ, broadcast state) → K steps along corrected gradients → Δ_i → what the server gets of it, and a report

A problem's own state goes from step to step beside them, and back as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax

from fedtempo.training.corrections import Correction, steps_of
from fedtempo.training.solvers import Answer, Hyper, Job, Params, Sent, State, Stepper

if TYPE_CHECKING:
    from fedtempo.training.compression import Compression


class Kept(NamedTuple):
    """What a client keeps from job to job."""

    solver: State
    correction: State
    compression: State


@dataclass(frozen=True)
class ClientWork:
    """A job, its correction and its compression, as one."""

    job: Job
    correction: Correction | None = None
    compression: Compression | None = None

    def start(self, model: Params) -> Kept:
        """Before a client's first job."""
        return Kept(
            self.job.init(model),
            () if self.correction is None else self.correction.client_start(model),
            () if self.compression is None else self.compression.start(model),
        )

    def __call__(
        self,
        stepper: Stepper,
        full_gradient: Callable[[Params], Params],
        sent: Sent,
        kept: Kept,
        hyper: Hyper,
        key: jax.Array | None,
        state: State = (),
    ) -> tuple[Answer, Kept, State]:
        """What the server gets, what the client keeps, and the problem's `state` after the last step.

        `key` is for this job's compression alone.
        """
        correction, compression = self.correction, self.compression
        taken = stepper
        begun = None if correction is None else correction.begin(sent, kept.correction, full_gradient)
        if correction is not None and begun is not None:

            def taken(here: Params, k: object, state: State) -> tuple[Params, State]:
                gradient, state = stepper(here, k, state)
                return correction.corrected(gradient, here, begun), state

        moved, solver, state = self.job.run(taken, sent.model, kept.solver, hyper, state)
        change, memory = moved, kept.compression
        if compression is not None:
            assert key is not None
            change, memory = compression.compress(moved, memory, key)
        report, own = (), kept.correction
        if correction is not None and begun is not None:
            report, own = correction.finish(moved, change, begun, steps_of(self.job, hyper), hyper)
        return Answer(change, report), Kept(solver, own, memory), state
