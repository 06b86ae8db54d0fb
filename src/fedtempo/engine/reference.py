"""A unit of a study run by the oracle, and measured by the definition: L_i is the loss of all rows of client i."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.generate import stream
from fedtempo.clock.timeline import Timeline
from fedtempo.engine.feedback import told_rounds
from fedtempo.engine.numerics import Precision, cast, numerics
from fedtempo.engine.oracle import Lines, oracle
from fedtempo.engine.program import grid_times
from fedtempo.engine.session import Plan, Recorder, Snapshot
from fedtempo.errors import InputError
from fedtempo.grid import Value
from fedtempo.local.batches import init_key
from fedtempo.local.rule import LocalRule
from fedtempo.local.solvers import LocalOptax
from fedtempo.parts import Parts
from fedtempo.problems.problem import Problem


def reference(
    plan: Plan, problem: Problem, local: LocalRule, shape: Mapping[str, Value], parts: Parts, dtype: Precision
) -> Snapshot:
    """What a unit measures, and its final models, run by run."""
    if not isinstance(local, LocalOptax):
        raise InputError(f"local: the oracle runs LocalSGD and LocalOptax, not {local!r}; choose another engine")
    measure = _Plainly(problem, dtype)
    unit = plan.unit
    recorder = Recorder(plan)
    line = _line(plan, measure, dtype)
    models = np.empty((plan.points, len(unit.seeds), len(unit.runs)), dtype=object)
    rounds = np.zeros(plan.points, dtype=np.int64)
    updates = np.zeros(plan.points, dtype=np.int64)
    ticks = [plan.setting.ticks(t) for t in grid_times(plan.until, plan.points, plan.start)]
    for s, seed in enumerate(unit.seeds):
        with numerics(dtype):
            first = cast(problem.init(init_key(seed)), dtype)
        for r, (rule, _) in enumerate(unit.runs):
            hyper = {**shape, **{name: float(values[r]) for name, values in plan.hyper.items()}}
            theta, point = first, 0
            done = (0, 0)
            if line is not None:
                weights = plan.weights[rule]
                trained = oracle(
                    problem, line, weights, local, hyper, parts=parts, clients=plan.clients, seed=seed, dtype=dtype
                )
                for closed in trained:
                    while point < plan.points and ticks[point] < closed.end:
                        models[point, s, r], (rounds[point], updates[point]) = theta, done
                        point += 1
                    theta, done = closed.model, (closed.number + 1, closed.updates)
            for rest in range(point, plan.points):
                models[rest, s, r], (rounds[rest], updates[rest]) = theta, done
    with numerics(dtype):
        if plan.start > 0:
            firsts = [cast(problem.init(init_key(seed)), dtype) for seed in unit.seeds]
            recorder.begin(_measured(measure, [[first] * len(unit.runs) for first in firsts]))
        for point in range(plan.points):
            recorder.record(point, int(rounds[point]), int(updates[point]), _measured(measure, models[point]))
    leaves = [[jax.tree.leaves(models[-1, s, r]) for r in range(len(unit.runs))] for s in range(len(unit.seeds))]
    final = [
        np.stack([np.stack([np.asarray(run[k]) for run in row], axis=-1) for row in leaves])
        for k in range(len(leaves[0][0]))
    ]
    return recorder.snapshot(final)


def _line(plan: Plan, measure: _Plainly, dtype: Precision) -> Timeline | Lines | None:
    """The rounds of a unit, or how they follow from its models; None if there are none."""
    if plan.asks:

        def told(newest: Callable[[], Any]) -> Iterator[Timeline]:
            def losses() -> NDArray[Any]:
                with numerics(dtype):
                    return np.asarray(measure(newest())["client_loss"])

            return told_rounds(plan.setting, plan.until, losses)

        return told
    lines = list(stream(plan.setting, until=plan.until))
    return Timeline.joined(lines) if lines else None


def _measured(measure: _Plainly, models: Any) -> dict[str, Any]:
    """[seeds, (clients,) runs] of every measure, of models [seeds][runs]."""
    values = [[measure(model) for model in row] for row in models]
    return {name: np.moveaxis(np.array([[v[name] for v in row] for row in values]), 1, -1) for name in values[0][0]}


class _Plainly:
    """Measures a model by calling the loss on whole data sets."""

    def __init__(self, problem: Problem, dtype: Precision) -> None:
        with numerics(dtype):
            self._clients = [cast(problem.client_data(i), dtype) for i in range(problem.num_clients)]
            self._test = [cast(part, dtype) for part in problem.test_data()]
            self._shared_test = problem.test_offsets is None
        self._functions: dict[str, Any] = {"loss": jax.jit(problem.loss)}
        self._functions |= {name: jax.jit(metric) for name, metric in problem.metrics.items()}

    def __call__(self, theta: Any) -> dict[str, Any]:
        """As the engine's meter: per-client losses, then what is measured on the test rows."""
        on_clients = ["loss"] if self._test else list(self._functions)
        out: dict[str, Any] = {
            f"client_{n}": np.array([float(self._functions[n](theta, data)) for data in self._clients])
            for n in on_clients
        }
        for n, f in self._functions.items() if self._test else ():
            means = np.array([float(f(theta, part)) for part in self._test])
            out |= {f"test_{n}": float(means[0])} if self._shared_test else {f"client_test_{n}": means}
        return out
