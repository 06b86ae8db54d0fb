"""The schemes as Flower strategies: one line changes in a server app.

    FedAvg waits for all, AsyncFedAvg for the next, FedBuff for m updates, FedFix for Δt

They have the arguments and record keys of Flower's FedAvg, and another loop inside `start` (training.py). `num_rounds`
counts aggregations: rounds that took at least one update. `timeout` is the deadline of each job, `until` the end of
training, both in seconds of the server's clock.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, Unpack, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact, exact, positive, positive_int
from fedtempo.errors import InputError
from fedtempo.flower.buffers import AUTO
from fedtempo.flower.clock import Clock, WallClock, nanoseconds
from fedtempo.flower.evaluation import EVALUATION, EvaluateFn, weighted_mean
from fedtempo.flower.examples import MAX_EXAMPLES
from fedtempo.flower.measures import refuse_unmet
from fedtempo.flower.result import Result
from fedtempo.flower.settings import (
    BASE_MEMORY,
    MetricsFn,
    Settings,
    by_identity,
    clock_of,
    count,
    folder,
    function,
    importances,
    key,
    known,
    mode,
    on_flower,
    one_of,
    patterns,
    share,
    yes_or_no,
)
from fedtempo.flower.state import Resume
from fedtempo.flower.training import Training
from fedtempo.schemes import named as schemes
from fedtempo.schemes.named import Scheme
from fedtempo.simulation.telling import listeners
from fedtempo.weighting.measured import Measured
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule, weight_rule

if TYPE_CHECKING:
    from fedtempo.simulation.telling import OnMeasure
    from fedtempo.training.server_rules import Server

log = logging.getLogger("flwr")

_Read = TypeVar("_Read")


class Options(TypedDict, total=False):
    """Arguments of every strategy here; those of Flower's FedAvg first."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFn | None
    evaluate_metrics_aggr_fn: MetricsFn | None
    evaluation: str
    evaluate_every: Exact | None
    weights: str | WeightRule
    step: str | None
    max_weight: float
    server: Server | None
    server_lr: float
    importance: Mapping[str, Exact] | str | None
    max_examples: float | None
    times: Mapping[str, Exact] | None
    identity_key: str | None
    authenticated: bool
    work_key: str | None
    loss_key: str | None
    seed: int
    clip_norm: float | None
    norm_limit: float | None
    buffers: str | Collection[str]
    guard: str | None
    loss_limit: float | None
    empty_waits: float
    max_failures: int
    retry_after: Exact
    checkpoint: str | Path | None
    checkpoint_every: int
    base_memory: float | None
    poll: Exact
    message: Callable[..., Message]
    clock: Clock | None
    on_measure: OnMeasure | Sequence[OnMeasure] | None


_INSTEAD = {
    "configure_train": "pass settings for clients in start(train_config=…), and choose clients with your own scheme",
    "aggregate_train": "set the aggregation with server=, the updates' weights with weights=, and what happens to "
    "metrics with train_metrics_aggr_fn=",
    "configure_evaluate": "pass settings for clients in start(evaluate_config=…), and their share as fraction_evaluate",
}
"""Hooks of Flower's strategies that rounds of one client each cannot call, and what does their work here."""


def _hooks() -> list[str]:
    """The methods of Flower's FedAvg that are not called here."""
    theirs = {name for cls in (flower.FedAvg, flower.Strategy) for name, each in vars(cls).items() if callable(each)}
    ours = {"summary", "start", "aggregate_evaluate"}
    return sorted(name for name in theirs - ours if not name.startswith("__"))


def _refuse_hooks(whose: str, changed: Collection[str]) -> None:
    for name in changed:
        instead = _INSTEAD.get(name, "leave it out")
        raise TypeError(
            f"{whose} overrides {name}, which is never called here: clients train at their own pace, and a round "
            f"takes the updates that have arrived. Instead, {instead}"
        )


class TimedStrategy(flower.FedAvg):
    """A scheme of fedtempo as a Flower strategy; ``TimedStrategy(Scheme(MyRule(), name="mine"))`` runs one's own rule.

    Beside the arguments of Flower's FedAvg (clients do not evaluate unless `fraction_evaluate` is given):

    weights            a weight rule or its name; "time-based" keeps every client's importance whatever its speed
    server             what makes a model of a round's contributions, as FedAdam(); None: their weighted sum
    step               "stable": the server's step is 1 over (1 + the mean staleness of what it applies), measured as
                       training goes on, so that one update of every client together weighs 1; "paper": the raw step of
                       the theory, for learning rates that are tuned to it; "proven": the largest that is proved stable
    server_lr          η_g, which multiplies the step
    max_weight         how many times its client's mean weight an update may count for, where times are measured
    importance         by identity, or "uniform": all count the same; without it, the examples that clients report
    max_examples       a client counts with at most this times the median of the others' examples; None: as it says
    times              seconds a job takes, by identity: weights follow from these, and nothing is estimated
    identity_key       reply metric that names a client, where nodes have no keys of their own
    authenticated      nodes have lasting keys (--enable-supernode-auth): no name is taken over by another key
    work_key           reply metric with a client's working seconds: shows the transport's share of the round trip
    loss_key           reply metric with a client's loss, for schemes that choose by it
    seed               of the draws of schemes that sample clients
    clip_norm          largest norm of a contribution; longer ones are shortened to it (mixed by less where models are)
    norm_limit         contributions whose norm times weight is beyond this times the usual (of the first five: than
                       this times the longest so far or the model's own norm) are refused; None: never
    buffers            arrays that are not trained, and averaged as values: "auto" knows BatchNorm's by their names in
                       PyTorch and Keras; or names and patterns, as ["*.running_*"]. Whole numbers always are
    guard              "recover": a run that refuses most clients, whose loss explodes or that takes no updates goes
                       back to its last good version with half the step; "stop": it ends; None: nothing is done
    loss_limit         times its best from which on the guard takes a loss for exploded; None: never
    empty_waits        waits without updates (or times the usual between rounds with any) that the guard bears
    max_failures       failures in a row after which a client is set aside
    retry_after        seconds after which it is tried again, doubling each time
    checkpoint         folder of the run, from which it goes on when it was killed or stopped and is started again
    checkpoint_every   rounds between two checkpoints
    evaluation         of evaluate_fn: "beside" the training, leaving out rounds if it is slow; or "wait" for each round
    evaluate_every     seconds that pass between two evaluations, at least; the first and the last model are evaluated
    base_memory        gigabytes of models in memory, from which jobs that are out started. Those beyond wait in a file
                       without a name, in the checkpoint's folder or else among the system's temporary files (TMPDIR),
                       which is gone when the run ends, however it ends; None: all are in memory
    on_measure         on_measure(run, time, values), or several, or sinks as ft.track.tensorboard("runs/"): told every
                       round and measure as it comes, and when a run goes on those of before again, first
    poll               seconds between two looks for replies
    message, clock     how messages are made and where the time comes from, for tests

    `summary`, `start` and `aggregate_evaluate` may be overridden; the other hooks of Flower's FedAvg are refused.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import TimedStrategy
        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     strategy = TimedStrategy(ft.FedFix(1), server=ft.SlowMo(0.5), clip_norm=10.0)
        ...     strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=3)
        >>> result = simulate_app(app, client_app, times=ft.FixedTimes([4, 2, 1]))
        >>> [round(closed.step, 2) for closed in result.rounds], result.stopped
        ([1.0, 0.75, 0.6], '3 rounds are done')
    """

    def __init_subclass__(cls) -> None:
        ours = [name for name in _hooks() if getattr(cls, name) is not getattr(TimedStrategy, name)]
        _refuse_hooks(cls.__name__, ours)
        super().__init_subclass__()

    def __init__(self, scheme: Scheme, **options: Unpack[Options]) -> None:
        known(options, Options.__annotations__, type(self).__name__)
        if not isinstance(scheme, Scheme):
            raise InputError(f"scheme: {scheme!r} is not a scheme; give one, as FedFix(30)")
        given = Options(**options)
        fraction = given.get("fraction_train", 1.0)
        if exact(fraction, "fraction_train") != 1:
            raise InputError(
                f"fraction_train: {fraction} would sample clients per round, but here each client trains at its own "
                "pace and its update enters the next round; leave it at 1, and use FedBuff(size=…) or "
                "FedFix(wait=…) for rounds of fewer clients"
            )
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            if given.get(name) is not None:
                function(given[name], name)
        super().__init__(
            min_train_nodes=count(given.get("min_train_nodes", 2), "min_train_nodes"),
            min_evaluate_nodes=count(given.get("min_evaluate_nodes", 2), "min_evaluate_nodes"),
            min_available_nodes=count(given.get("min_available_nodes", 2), "min_available_nodes"),
            weighted_by_key=key(given.get("weighted_by_key", "num-examples"), "weighted_by_key"),
            arrayrecord_key=key(given.get("arrayrecord_key", "arrays"), "arrayrecord_key"),
            configrecord_key=key(given.get("configrecord_key", "config"), "configrecord_key"),
            train_metrics_aggr_fn=given.get("train_metrics_aggr_fn") or weighted_mean,
            evaluate_metrics_aggr_fn=given.get("evaluate_metrics_aggr_fn") or weighted_mean,
        )
        self.fraction_evaluate = share(given.get("fraction_evaluate", 0.0), "fraction_evaluate")
        self.scheme = on_flower(scheme, given.get("server"))
        self.result: Result | None = None
        """What the last `start` has come to, also if it was stopped."""
        self._options = given
        self._settings()

    def save_in(self, folder: Path | None) -> None:
        """Write the run to this folder when it is done, or nowhere, whatever `checkpoint` says."""
        self._options = Options(**{**self._options, "checkpoint": folder, "checkpoint_every": 10**9})

    def _settings(self) -> Settings:
        given = self._options
        weights = given.get("weights", self.scheme.options.weights or "time-based")
        limit = given.get("norm_limit", 100.0)
        if not isinstance(weights, str | WeightRule):
            raise InputError(f"weights: {weights!r} is not a weight rule; give one, or its name")
        rule = weight_rule(weights)
        if rule.tracker(Importance(None, 1), 1) is not None and rule.stepping("paper") is None:
            raise InputError(
                f"weights: {rule.label} weights need the rounds of a simulation, and a server estimates its own; use "
                "time-based"
            )
        if self.scheme.own_weights is not None:
            rule = rule.fitted(self.scheme.own_weights)
        refuse_unmet(self.scheme.waiting, given.get("loss_key"))
        settings = Settings(
            scheme=self.scheme,
            weights=rule,
            step=_maybe(check_step, given.get("step", self.scheme.options.step), "step"),
            max_weight=Measured(_real(given.get("max_weight", 2.0), "max_weight")).max_weight,
            server_lr=float(positive(given.get("server_lr", 1.0), "server_lr")),
            importance=_maybe(importances, given.get("importance"), "importance"),
            max_examples=_maybe(_factor, given.get("max_examples", MAX_EXAMPLES), "max_examples"),
            times=_maybe(by_identity, given.get("times"), "times"),
            identity_key=_maybe(key, given.get("identity_key"), "identity_key"),
            authenticated=yes_or_no(given.get("authenticated", False), "authenticated"),
            work_key=_maybe(key, given.get("work_key"), "work_key"),
            loss_key=_maybe(key, given.get("loss_key"), "loss_key"),
            seed=count(given.get("seed", 0), "seed"),
            clip_norm=_maybe(_real, given.get("clip_norm"), "clip_norm"),
            norm_limit=_maybe(_real, limit, "norm_limit"),
            buffers=patterns(given.get("buffers", AUTO), "buffers"),
            guard=mode(given.get("guard", "recover"), "guard"),
            loss_limit=_maybe(_real, given.get("loss_limit", 10.0), "loss_limit"),
            empty_waits=_real(given.get("empty_waits", 20.0), "empty_waits"),
            max_failures=positive_int(given.get("max_failures", 3), "max_failures"),
            retry_after=nanoseconds(given.get("retry_after", 60.0), "retry_after"),
            checkpoint=_maybe(folder, given.get("checkpoint"), "checkpoint"),
            checkpoint_every=positive_int(given.get("checkpoint_every", 1), "checkpoint_every"),
            base_memory=_maybe(_gigabytes, given.get("base_memory", BASE_MEMORY / 1e9), "base_memory"),
            poll=nanoseconds(given.get("poll", 0.25), "poll"),
            message=function(given.get("message", Message), "message"),
            clock=clock_of(given.get("clock") or WallClock()),
            arrays_key=self.arrayrecord_key,
            config_key=self.configrecord_key,
            examples_key=self.weighted_by_key,
            train_metrics=self.train_metrics_aggr_fn,
            aggregate_evaluate=self.aggregate_evaluate,
            evaluation=one_of(given.get("evaluation", "beside"), "evaluation", EVALUATION),
            evaluate_every=_maybe(_ticks, given.get("evaluate_every"), "evaluate_every") or 0,
            fraction_evaluate=self.fraction_evaluate,
            min_evaluate_nodes=self.min_evaluate_nodes,
            min_nodes=max(self.min_available_nodes, self.min_train_nodes, 1),
            on_measure=listeners(given.get("on_measure")),
        )
        settings.check_weights()
        return settings

    def configure_train(self, *args: Any, **options: Any) -> NoReturn:
        """Not called here: see the class."""
        _not_a_part("configure_train", type(self).__name__)

    def configure_evaluate(self, *args: Any, **options: Any) -> NoReturn:
        """Not called here: see the class."""
        _not_a_part("configure_evaluate", type(self).__name__)

    def aggregate_train(self, *args: Any, **options: Any) -> NoReturn:
        """Not called here: see the class."""
        _not_a_part("aggregate_train", type(self).__name__)

    def initialize_parameters(self, *args: Any, **options: Any) -> NoReturn:
        """Of strategies before Flower 1.21: refused."""
        _legacy("initialize_parameters", type(self).__name__)

    def configure_fit(self, *args: Any, **options: Any) -> NoReturn:
        """Of strategies before Flower 1.21: refused."""
        _legacy("configure_fit", type(self).__name__)

    def aggregate_fit(self, *args: Any, **options: Any) -> NoReturn:
        """Of strategies before Flower 1.21: refused."""
        _legacy("aggregate_fit", type(self).__name__)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What clients' measures of a round come to; the replies all have content."""
        return self.evaluate_metrics_aggr_fn([reply.content for reply in replies], self.weighted_by_key)

    def summary(self) -> None:
        """Log what the strategy is set to."""
        settings = self._settings()
        log.info(
            "\t├──> Scheme: %s, weights %s, step %s, server_lr %g",
            self.scheme,
            settings.weights.label,
            settings.step or "stable",
            settings.server_lr,
        )
        log.info("\t├──> Nodes to start with: %d or more", settings.nodes_needed)
        log.info("\t├──> Share of clients that evaluate: %g", self.fraction_evaluate)
        log.info("\t├──> Checkpoint: %s", settings.checkpoint or "none")
        log.info(
            "\t└──> Keys in records: '%s', '%s', '%s'",
            self.weighted_by_key,
            self.arrayrecord_key,
            self.configrecord_key,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        until: float | None = None,
        resume: Resume = "auto",
    ) -> Result:
        """Train until `num_rounds` rounds have taken updates, or until `until` seconds have passed.

        resume   True: go on with the run in the checkpoint folder, if there is one; False: there must be none.
                 "auto": go on with a run there that was cut off and is set to the same, else begin one in a folder
                 beside it, as run-2. Where a run goes on, `initial_arrays` tells the model's shapes only.

        Ctrl-C and SIGTERM end the training when the round in the making is done and all is saved. The summary is
        logged, `result` has what there is, and then KeyboardInterrupt or SystemExit is raised as ever. The second one
        ends it at once.
        """
        settings = self._settings().on(grid)
        if not (isinstance(resume, bool) or resume == "auto"):
            raise InputError(f"resume: {resume!r} is not True, False or 'auto'")
        if resume is True and settings.checkpoint is None:
            raise InputError("resume: there is no folder to continue from; give the strategy checkpoint=")
        positive_int(num_rounds, "num_rounds")
        if evaluate_fn is not None:
            function(evaluate_fn, "evaluate_fn")
        settings.check_times()
        _refuse_hooks(type(self).__name__, [name for name in _hooks() if name in vars(self)])
        log.info("Starting %s:", self.scheme)
        self.summary()
        training = Training(
            settings,
            grid,
            initial_arrays,
            num_rounds=num_rounds,
            timeout=nanoseconds(timeout, "timeout"),
            until=None if until is None else nanoseconds(until, "until"),
            train_config=_config(train_config, "train_config"),
            evaluate_config=_config(evaluate_config, "evaluate_config"),
            evaluate_fn=evaluate_fn,
            resume=resume,
        )
        self.result = training.run()
        for line in self.result.summary().splitlines():
            log.info("%s", line)
        if training.interrupted is not None:
            raise training.interrupted
        return self.result


def _maybe(read: Callable[[object, str], _Read], value: object, what: str) -> _Read | None:
    """What was given, or None."""
    return None if value is None else read(value, what)


def _not_a_part(name: str, whose: str) -> NoReturn:
    raise TypeError(
        f"{name} of {whose} was called. A strategy that wraps another one does that, such as Flower's server-side "
        "differential privacy. It would make the rounds itself, and the scheme would not run. Remove the wrapper, "
        f"and call start of {whose}. clip_norm= clips contributions here, and LocalDpMod in the ClientApp adds noise "
        "to them: docs/security.md"
    )


def _legacy(name: str, whose: str) -> NoReturn:
    raise TypeError(
        f"{name} of {whose} was called, as Flower's older servers and workflows do, such as SecAggPlusWorkflow. Call "
        f"start of {whose} in a ServerApp's main function. Secure aggregation cannot work here: the server weighs "
        "each update by its client's pace and checks it alone, but masked updates are only useful as a sum over a "
        "fixed set of clients. LocalDpMod in the ClientApp protects updates here: docs/security.md"
    )


def _real(value: object, what: str) -> float:
    return float(positive(value, what))


def _gigabytes(value: object, what: str) -> float:
    return min(1e9 * _real(value, what), sys.float_info.max)


def _ticks(value: object, what: str) -> int:
    return nanoseconds(cast(Exact, value), what)


def _factor(value: object, what: str) -> float:
    factor = _real(value, what)
    if factor < 1:
        raise InputError(
            f"{what}: {value} is below 1, so every client would count less than the others; give 1 or more, or None"
        )
    return factor


def _config(given: object, what: str) -> ConfigRecord:
    if given is None:
        return ConfigRecord()
    try:
        return given if isinstance(given, ConfigRecord) else ConfigRecord(dict(cast(Any, given)))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: {given!r} is not a ConfigRecord ({error}); give ConfigRecord({{…}})") from error


class FedAvg(TimedStrategy):
    """Synchronous FedAvg: a round waits for every connected client.

    The options are those of `TimedStrategy`, by name.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import FedAvg
        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     FedAvg().start(grid, ArrayRecord([np.zeros(1)]), num_rounds=2)
        >>> result = simulate_app(app, client_app, times=ft.FixedTimes([4, 2, 1]))
        >>> [(round.time, len(round.updates)) for round in result.rounds]
        [(4.0, 3), (8.0, 3)]
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(schemes.FedAvg(), **options)


class AsyncFedAvg(TimedStrategy):
    """Asynchronous FedAvg: every single update makes a new model.

    The options are those of `TimedStrategy`, by name.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import AsyncFedAvg
        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     AsyncFedAvg().start(grid, ArrayRecord([np.zeros(1)]), num_rounds=4)
        >>> result = simulate_app(app, client_app, times=ft.FixedTimes([4, 2, 1]))
        >>> [(round.time, round.contributors) for round in result.rounds]
        [(1.0, ('node 2',)), (2.0, ('node 1',)), (2.0, ('node 2',)), (3.0, ('node 2',))]
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(schemes.AsyncFedAvg(), **options)


class FedFix(TimedStrategy):
    """Rounds of fixed length: a new model every `wait` seconds, from the updates that have arrived.

    The options are those of `TimedStrategy`, by name.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import FedFix
        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     FedFix(wait=2).start(grid, ArrayRecord([np.zeros(1)]), num_rounds=3)
        >>> result = simulate_app(app, client_app, times=ft.FixedTimes([4, 2, 1]))
        >>> [(round.time, len(round.updates)) for round in result.rounds]
        [(2.0, 2), (4.0, 3), (6.0, 2)]
    """

    def __init__(self, wait: Exact, **options: Unpack[Options]) -> None:
        super().__init__(schemes.FedFix(wait), **options)


class FedBuff(TimedStrategy):
    """Buffered aggregation: every `size` updates make a new model.

    The options are those of `TimedStrategy`, by name.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import FedBuff
        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     FedBuff(size=2).start(grid, ArrayRecord([np.zeros(1)]), num_rounds=3)
        >>> result = simulate_app(app, client_app, times=ft.FixedTimes([4, 2, 1]))
        >>> [(round.time, round.contributors) for round in result.rounds]
        [(2.0, ('node 1', 'node 2')), (4.0, ('node 0', 'node 2')), (5.0, ('node 1', 'node 2'))]
    """

    def __init__(self, size: int, **options: Unpack[Options]) -> None:
        super().__init__(schemes.FedBuff(size), **options)
