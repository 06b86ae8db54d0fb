"""Algorithm 1, plainly: one run, one round after the other, one job after the other. The reference for every engine.

    θ_i ← θ^{ρ_i(n)};  K times: θ_i ← θ_i + u(∇L_i(θ_i, ξ));  Δ_i ← θ_i − θ^{ρ_i(n)}
    θ^{n+1} ← θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i
    virtual models (section 2.4):  θ^{n,k} = θ^n + η_g Σ_{i∈S_n} ω_i(n) (θ_i^{k} − θ^{ρ_i(n)})

u is a solver's update (−η_l · gradient for SGD), η_g `server_lr`, ω_i(n) the applied weight, ξ a batch. Where a
scheme has options (corrections, compression, another server rule), each takes its place in the same loop. `reference`
runs a unit of a study so, and measures by the definition: L_i is the loss of all rows of client i.

A problem's state s starts a job as it was sent, goes from step to step, and comes back as v_i. At the end of a round
s ← (1 − A) s + A Σ ω_i v_i/Σ ω_i, A = min(1, Σ ω_i), of second moments where it is a variance; of whole numbers the
largest. ω_i are then the weights at the stable step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import keystr, tree_leaves_with_path
from numpy.typing import NDArray

from fedtempo.clock.generate import stream
from fedtempo.clock.timeline import Timeline
from fedtempo.errors import InputError
from fedtempo.grid import RATE, Value
from fedtempo.problems.forms import LossForm
from fedtempo.problems.problem import Problem
from fedtempo.schemes.options import SchemeOptions
from fedtempo.simulation.engine.feedback import chosen_rounds
from fedtempo.simulation.engine.numerics import Precision, cast, kept_as, numerics
from fedtempo.simulation.engine.session import Recorder, Snapshot, UnitSpec
from fedtempo.training.batches import Draw, batch_key, compression_key, init_key, job_key, job_rows, noise_key
from fedtempo.training.server_rules import Arrival, WeightedSum, server_rule
from fedtempo.training.solvers import STEPS, Answer, LocalOptax, LocalRule, Sent
from fedtempo.weighting.weights import Weights

if TYPE_CHECKING:
    from fedtempo.training.compression import Compression

Params = Any
PLAIN = SchemeOptions()


class OracleRound(NamedTuple):
    """A round as the oracle ran it."""

    number: int
    model: Params
    """θ^{n+1}."""
    virtual: tuple[Params, ...]
    """θ^{n,0} … θ^{n,K}, where they were asked for."""
    end: int
    """When it ended, in ticks."""
    updates: int
    """Client updates since the start of the run."""
    state: Any = ()
    """The problem's, of the new version; () if it has none."""


class Return(NamedTuple):
    """A server that went back after a round: model and memory are those of an earlier version."""

    version: int
    server_lr: float
    """From then on."""


Newest = Callable[[], tuple[Params, Any]]
"""The newest model, and the problem's state."""
Lines = Callable[[Newest], Iterator[Timeline]]
"""Rounds that follow from the newest model, which they can ask for; all start from it."""


def oracle(
    problem: Problem,
    line: Timeline | Lines,
    weights: Weights,
    local: LocalOptax,
    hyper: Mapping[str, Value],
    *,
    options: SchemeOptions = PLAIN,
    clients: Mapping[str, NDArray[Any]] | None = None,
    shares: Sequence[float] | None = None,
    seed: int = 0,
    dtype: Precision = "float64",
    virtual: bool = False,
    returns: Mapping[int, Return] | None = None,
    state_weights: Weights | None = None,
) -> Iterator[OracleRound]:
    """The rounds of `line`, trained one by one; `hyper` has local_lr, local_steps, batch_size, server_lr, …

    Instead of a timeline it can be a function that makes one on the way, from the newest model.
    `clients` has factors of the local learning rate and numbers of local steps, one a client, where they differ.
    `shares` are p_i, where they are not the problem's.
    Virtual models are those of the paper's aggregation: a scheme whose options replace it has none.
    `returns` says, by round of a timeline, after which the server went back.
    `state_weights` are those by which a problem's state is averaged: at the stable step.
    """
    if problem.form.stateful and state_weights is None:
        raise InputError(
            "problem: its loss has a state, and the weights for averaging it are not known here; give the oracle "
            "state_weights, or a problem without a state"
        )
    client = Client(problem, local, hyper, seed, dtype, options, clients)
    server = OracleServer(problem, hyper, seed, dtype, options, shares)
    plain = isinstance(server.rule, WeightedSum) and options.compression is None and STEPS not in (clients or {})
    if virtual and not plain:
        raise InputError("virtual: virtual models exist only for plain aggregation; leave out the scheme's options")
    lines = iter([line]) if isinstance(line, Timeline) else line(lambda: (server.version.model, server.values))
    last_use: dict[int, int] = {}
    if isinstance(line, Timeline):
        last_use = dict(zip(line.base.tolist(), line.round_of_update.tolist(), strict=True))
    both = (weights,) if state_weights is None else (weights, state_weights)
    apply = [each.applied if isinstance(line, Timeline) else each.applier() for each in both]
    back = dict(returns or {})
    last_use |= {to.version: max(n, last_use.get(to.version, n)) for n, to in sorted(back.items())}
    sent, kept, values = {0: server.version}, {0: server.state}, {0: server.values}
    updates = 0
    for part in lines:
        applied, update = [of_updates(part) for of_updates in apply], 0
        for closed in part.rounds:
            n = closed.number
            trained: list[Trained] = []
            for i, base in zip(closed.participants, closed.base_versions, strict=True):
                path, answer, state = client.train(sent[base], i, int(part.job[update]), values[base])
                weight, of_state = float(applied[0][update]), float(applied[-1][update])
                trained.append(Trained(i, weight, sent[base], path, answer, state, of_state))
                update += 1
            between = server.virtual(trained) if virtual else ()
            server.step(trained)
            if n in back:
                to = back[n].version
                server.go_back(sent[to], kept[to], values[to], back[n].server_lr)
            sent[n + 1] = server.version
            sent = {v: version for v, version in sent.items() if v == n + 1 or last_use.get(v, -1) > n}
            values = {v: server.values if v == n + 1 else values[v] for v in sent}
            if back:
                kept = {v: server.state if v == n + 1 else kept[v] for v in sent}
            updates += len(trained)
            end = int(part.ends[n - part.first_round])
            yield OracleRound(n, server.version.model, between, end, updates, server.values)


class Trained(NamedTuple):
    """A job that is done."""

    client: int
    weight: float
    """ω_i(n)."""
    sent: Sent
    path: list[Params]
    """θ_i^0 … θ_i^K."""
    answer: Answer
    state: Any = ()
    """The problem's, as it came back."""
    state_weight: float = 0.0
    """ω_i(n) at the stable step."""


class OracleServer:
    """θ^n, what a method remembers beside it, and the problem's state, `values`."""

    def __init__(
        self,
        problem: Problem,
        hyper: Mapping[str, Value],
        seed: int,
        dtype: Precision,
        options: SchemeOptions = PLAIN,
        shares: Sequence[float] | NDArray[Any] | None = None,
    ) -> None:
        self.rule = server_rule(options.correction, options.server, problem.num_clients)
        self._share, self._dtype = problem.importance.values if shares is None else shares, dtype
        self._lr, self._steps = float(hyper["server_lr"] or 0), int(hyper["local_steps"] or 1)
        with numerics(dtype):
            theta, self.values = _first(problem, seed, dtype)
            self._acc = None if isinstance(self.rule, WeightedSum) else self.rule.start(theta)
            self.version = Sent(theta, () if self._acc is None else self.rule.broadcast(self._acc))

    @property
    def state(self) -> Any:
        """What a method remembers."""
        return self._acc

    def go_back(self, version: Sent, state: Any, values: Any, server_lr: float) -> None:
        """An earlier version again, what was remembered there, and the problem's state."""
        self.version, self._acc, self.values, self._lr = version, state, values, server_lr

    def step(self, trained: list[Trained]) -> None:
        """A round's answers make the next version; none leave it as it is."""
        if not trained:
            return
        with numerics(self._dtype):
            self.values = _averaged(self.values, [(job.state_weight, job.state) for job in trained])
            if self._acc is None:
                weighted = [(self._lr * job.weight, job.answer.change) for job in trained]
                self.version = Sent(_sum(self.version.model, weighted))
                return
            number = kept_as(self._dtype).type
            hyper: Any = {"server_lr": number(self._lr)}
            for job in trained:
                weight, share = number(job.weight), number(self._share[job.client])
                arrival = Arrival(job.answer, weight, share, job.sent, np.int32(job.client))
                self._acc = self.rule.add(self._acc, arrival, hyper)
            model, self._acc = self.rule.close(self._acc, hyper)
            self.version = Sent(model, self.rule.broadcast(self._acc))

    def virtual(self, trained: list[Trained]) -> tuple[Params, ...]:
        """θ^{n,0} … θ^{n,K}."""
        theta = self.version.model
        with numerics(self._dtype):
            moved = [(self._lr * job.weight, [_minus(here, job.sent.model) for here in job.path]) for job in trained]
            steps = range(self._steps + 1)
            return tuple(_sum(theta, [(omega, path[k]) for omega, path in moved]) for k in steps)


class Client:
    """What clients do with what they are sent, and what they keep."""

    def __init__(
        self,
        problem: Problem,
        local: LocalOptax,
        hyper: Mapping[str, Value],
        seed: int,
        dtype: Precision,
        options: SchemeOptions = PLAIN,
        clients: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        own = clients or {}
        self._steps = own.get(STEPS, np.full(problem.num_clients, int(hyper["local_steps"] or 1)))
        self._factor = own.get(RATE, np.ones(problem.num_clients))
        self._problem, self._dtype, self._local, self._options = problem, dtype, local, options
        self._hyper = {k: kept_as(dtype).type(v) for k, v in hyper.items() if v is not None}
        self._gradient, self._full_gradient = _gradients(problem.form)
        self._batch_size = hyper["batch_size"]
        self._key, self._noise = batch_key(seed), compression_key(seed)
        self._drawn = noise_key(seed) if problem.form.keyed else None
        self._rows = _rows(int(self._steps.max()), int(self._batch_size or 1), local.draw)
        self._kept: dict[int, tuple[Any, Any]] = {}

    def train(self, sent: Sent, client: int, job: int, state: Any = ()) -> tuple[list[Params], Answer, Any]:
        """θ_i^0 … θ_i^K, what the client sends back, and the problem's state after the last step."""
        with numerics(self._dtype):
            return self._train(sent, client, job, state)

    def _train(self, sent: Sent, client: int, job: int, state: Any) -> tuple[list[Params], Answer, Any]:
        correction, compression = self._options.correction, self._options.compression
        data = self._problem.client_data(client)
        size = np.int32(self._problem.sizes[client])
        rows = np.asarray(self._rows(self._key, np.int32(client), np.int32(job), size))
        steps = int(self._steps[client])
        hyper = {**self._hyper, RATE: kept_as(self._dtype).type(self._hyper[RATE] * self._factor[client])}
        memory, error = self._kept.get(client, (None, None))
        begun = None
        if correction is not None:
            memory = correction.client_start(sent.model) if memory is None else memory
            everything, first = cast(data, self._dtype), state
            begun = correction.begin(sent, memory, lambda theta: self._full_gradient(theta, everything, first))
        solver = self._local.transformation(hyper)
        memory_of_solver, theta = solver.init(sent.model), sent.model
        path = [theta]
        for k in range(steps):
            batch = data if self._batch_size is None else jax.tree.map(lambda x, which=rows[k]: x[which], data)
            key = None if self._drawn is None else jax.random.fold_in(job_key(self._drawn, client, job), k)
            gradient, state = self._gradient(theta, cast(batch, self._dtype), key, state)
            if correction is not None and begun is not None:
                gradient = correction.corrected(gradient, theta, begun)
            update, memory_of_solver = solver.update(gradient, memory_of_solver, theta)
            theta = optax.apply_updates(theta, update)
            path.append(theta)
        moved = change = _minus(theta, sent.model)
        if compression is not None:
            error = compression.start(sent.model) if error is None else error
            change, error = _compress(compression)(moved, error, job_key(self._noise, client, job))
        report: Any = ()
        if correction is not None and begun is not None:
            report, memory = correction.finish(moved, change, begun, steps, hyper)
        self._kept[client] = memory, error
        return path, Answer(change, report), state


@lru_cache(maxsize=8)
def _gradients(form: LossForm) -> tuple[Callable[..., tuple[Params, Any]], Callable[..., Params]]:
    """Of (θ, batch, key, state) in a step, with the state after it; and of (θ, rows, state) as it is measured."""
    loss = form.function

    def plain(theta: Params, batch: Any, key: Any, state: Any) -> tuple[Params, Any]:
        return jax.grad(loss)(theta, batch), state

    def keyed(theta: Params, batch: Any, key: Any, state: Any) -> tuple[Params, Any]:
        return jax.grad(loss)(theta, batch, key), state

    def stateful(theta: Params, batch: Any, key: Any, state: Any) -> tuple[Params, Any]:
        gradient, new = jax.grad(loss, has_aux=True)(theta, batch, key, state)
        return gradient, jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, state)

    step = stateful if form.stateful else keyed if form.keyed else plain
    return jax.jit(step), jax.jit(jax.grad(form.evaluation))


def _first(problem: Problem, seed: int, dtype: Precision) -> tuple[Params, Any]:
    """The initial model and the problem's state."""
    key = init_key(seed)
    return cast(problem.init(key), dtype), cast(problem.initial_state(key), dtype)


def _averaged(state: Any, given: list[tuple[float, Any]]) -> Any:
    """The state after a round; `given` has a weight and the values of each client."""
    given = [(weight, values) for weight, values in given if weight > 0]
    if not given or not jax.tree.leaves(state):
        return state
    total = sum(weight for weight, _ in given)
    moved = min(1.0, total)
    shares = [1.0 - moved, *(moved * weight / total for weight, _ in given)]
    trees = [
        {_path(p): np.asarray(x) for p, x in tree_leaves_with_path(tree)} for tree in (state, *(v for _, v in given))
    ]

    def leaf(name: str) -> Any:
        values = [tree[name] for tree in trees]
        if values[0].dtype.kind != "f":
            return np.maximum.reduce(values)
        mean = _mean_of(name)
        if mean in trees[0] and trees[0][mean].shape == values[0].shape:
            means = [tree[mean].astype(np.float64) for tree in trees]
            middle = _mean(means, shares)
            values = [np.maximum(v, 0) + (m - middle) ** 2 for v, m in zip(values, means, strict=True)]
        return _mean(values, shares).astype(trees[0][name].dtype)

    return jax.tree.unflatten(jax.tree.structure(state), [jnp.asarray(leaf(name)) for name in trees[0]])


def _mean(values: list[NDArray[Any]], shares: list[float]) -> NDArray[np.float64]:
    total = np.zeros(values[0].shape)
    for value, share in zip(values, shares, strict=True):
        total = total + share * value
    return total


def _path(path: Any) -> str:
    return keystr(path, simple=True, separator="/")


def _mean_of(name: str) -> str | None:
    """Where the mean of a variance would lie: bn/running_mean of bn/running_var, bn/mean/value of bn/var/value."""
    found = re.fullmatch(r"(.*?)var(iance)?(/[^/]*)?", name)
    return None if found is None else f"{found[1]}mean{found[3] or ''}"


@lru_cache(maxsize=8)
def _compress(method: Compression) -> Callable[..., tuple[Params, Any]]:
    return jax.jit(method.compress)


@lru_cache(maxsize=8)
def _rows(steps: int, batch_size: int, draw: Draw) -> Callable[..., jax.Array]:
    return jax.jit(partial(job_rows, steps=steps, batch_size=batch_size, draw=draw))


def _minus(a: Params, b: Params) -> Params:
    return jax.tree.map(lambda x, y: x - y, a, b)


def _sum(start: Params, weighted: list[tuple[float, Params]]) -> Params:
    """Start + Σ ω Δ."""
    for omega, delta in weighted:
        start = jax.tree.map(lambda x, d, omega=omega: x + omega * d, start, delta)
    return start


def reference(
    spec: UnitSpec,
    problem: Problem,
    local: LocalRule,
    static: Mapping[str, Value],
    options: SchemeOptions,
    dtype: Precision,
) -> Snapshot:
    """What a unit measures, and its final models, run by run."""
    if not isinstance(local, LocalOptax):
        raise InputError(f"local: the oracle runs LocalSGD and LocalOptax, not {local!r}; choose another engine")
    unit = spec.unit
    measures = [_Plainly(problem.for_seed(seed), dtype) for seed in unit.seeds]
    recorder = Recorder(spec)
    line = _line(spec, measures[0], dtype)
    models = np.empty((spec.points, len(unit.seeds), len(unit.runs)), dtype=object)
    rounds = np.zeros(spec.points, dtype=np.int64)
    updates = np.zeros(spec.points, dtype=np.int64)
    ticks = [spec.config.ticks(t) for t in spec.times]
    for s, seed in enumerate(unit.seeds):
        with numerics(dtype):
            first = _first(problem, seed, dtype)
        for r, (rule, _) in enumerate(unit.runs):
            hyper = {**static, **{name: float(values[r]) for name, values in spec.hyper.items()}}
            version, point = first, 0
            done = (0, 0)
            if line is not None:
                rules = len(spec.weights) // 2
                trained = oracle(
                    problem.for_seed(seed),
                    line,
                    spec.weights[rule],
                    local,
                    hyper,
                    options=options,
                    clients=spec.clients,
                    seed=seed,
                    dtype=dtype,
                    state_weights=spec.weights[rules + rule] if problem.form.stateful else None,
                )
                for closed in trained:
                    while point < spec.points and ticks[point] < closed.end:
                        models[point, s, r], (rounds[point], updates[point]) = version, done
                        point += 1
                    version, done = (closed.model, closed.state), (closed.number + 1, closed.updates)
            for rest in range(point, spec.points):
                models[rest, s, r], (rounds[rest], updates[rest]) = version, done
    with numerics(dtype):
        if spec.times[0] > 0:
            firsts = [_first(problem, seed, dtype) for seed in unit.seeds]
            recorder.begin(_measured(measures, [[first] * len(unit.runs) for first in firsts]))
        for point in range(spec.points):
            recorder.record(point, int(rounds[point]), int(updates[point]), _measured(measures, models[point]))
    leaves = [[jax.tree.leaves(models[-1, s, r]) for r in range(len(unit.runs))] for s in range(len(unit.seeds))]
    final = [
        np.stack([np.stack([np.asarray(run[k]) for run in row], axis=-1) for row in leaves])
        for k in range(len(leaves[0][0]))
    ]
    return recorder.snapshot(final)


def _line(spec: UnitSpec, measure: _Plainly, dtype: Precision) -> Timeline | Lines | None:
    """The rounds of a unit, or how they follow from its models; None if there are none."""
    if spec.asks:

        def choosing(newest: Newest) -> Iterator[Timeline]:
            def losses() -> NDArray[Any]:
                with numerics(dtype):
                    return np.asarray(measure(*newest())["client_loss"])

            return chosen_rounds(spec.config, spec.until, losses)

        return choosing
    lines = list(stream(spec.config, until=spec.until))
    return Timeline.joined(lines) if lines else None


def _measured(measures: Sequence[_Plainly], models: Any) -> dict[str, Any]:
    """[seeds, (clients,) runs] of every measure, of models and states [seeds][runs]."""
    values = [[of(model, state) for model, state in row] for of, row in zip(measures, models, strict=True)]
    return {name: np.moveaxis(np.array([[v[name] for v in row] for row in values]), 1, -1) for name in values[0][0]}


class _Plainly:
    """Measures a model by calling the loss on whole data sets."""

    def __init__(self, problem: Problem, dtype: Precision) -> None:
        with numerics(dtype):
            self._clients = [cast(problem.client_data(i), dtype) for i in range(problem.num_clients)]
            self._test = [cast(part, dtype) for part in problem.test_data()]
            self._shared_test = problem.test_offsets is None
        self._functions: dict[str, Any] = {"loss": jax.jit(problem.form.evaluation)}
        self._functions |= {name: jax.jit(metric) for name, metric in problem.metric_forms.items()}

    def __call__(self, theta: Any, state: Any) -> dict[str, Any]:
        """As the engine's meter: per-client losses, then what is measured on the test rows."""
        on_clients = ["loss"] if self._test else list(self._functions)
        out: dict[str, Any] = {
            f"client_{n}": np.array([float(self._functions[n](theta, data, state)) for data in self._clients])
            for n in on_clients
        }
        for n, f in self._functions.items() if self._test else ():
            means = np.array([float(f(theta, part, state)) for part in self._test])
            out |= {f"test_{n}": float(means[0])} if self._shared_test else {f"client_test_{n}": means}
        return out
