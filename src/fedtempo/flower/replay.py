"""The model of a recorded run by the oracle: Algorithm 1 on the recorded timeline, with the weights that were used.

The server rule is the recorded one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from fedtempo.errors import InputError
from fedtempo.flower.record import Record
from fedtempo.parts import Parts

if TYPE_CHECKING:
    from fedtempo.engine.numerics import Precision
    from fedtempo.grid import Value
    from fedtempo.local.solvers import LocalOptax
    from fedtempo.problems.problem import Problem
    from fedtempo.weighting import Weights


def replay(
    problem: Problem,
    record: Record,
    local: LocalOptax,
    *,
    clients: Mapping[str, int] | None = None,
    seed: int = 0,
    dtype: Precision = "float64",
) -> Any:
    """The parameters after the last recorded round, when clients train `problem` by `local` on the simulator's batches.

    `clients` numbers identities as the problem does; without it, identities that are whole numbers are those numbers,
    and others are numbered as the record numbers them. Batches are those of (client, job) under `seed`.
    """
    if clients is None:
        active = [(record.names[i], i) for i in sorted(set(record.timeline.client.tolist()))]
        whole = all(name.isdecimal() for name, _ in active)
        clients = {name: int(name) if whole else i for name, i in active}
    run = record.numbered(clients)
    if run.timeline.num_clients > problem.num_clients:
        raise InputError(
            f"clients: the run has clients up to number {run.timeline.num_clients - 1}, the problem has "
            f"{problem.num_clients} of them; give clients= by identity"
        )
    hyper: dict[str, Value] = {"server_lr": run.server_lr}
    for axis in local.axes:
        if len(axis.values) > 1:
            raise InputError(f"local: {axis.name} has {len(axis.values)} values; a run had one")
        hyper[axis.name] = axis.values[0]
    from fedtempo.engine.oracle import oracle  # JAX, which a client that imports fedtempo.flower need not load
    from fedtempo.server_steps import MixModels

    server = run.scheme.parts.server
    in_order = [clients[record.names[i]] for i in record.timeline.client.tolist()]
    if isinstance(server, MixModels) and in_order != run.timeline.client.tolist():
        raise InputError(
            "clients: mixing goes by the order of a round's updates, and by these numbers it would be another; number "
            "the clients in the record's order"
        )
    model = None
    weights = cast("Weights", run.weights)
    parts = Parts(server=server)
    for closed in oracle(problem, run.timeline, weights, local, hyper, parts=parts, seed=seed, dtype=dtype):
        model = closed.model
    return model
