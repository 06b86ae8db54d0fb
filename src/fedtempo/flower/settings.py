"""What a training on Flower is set to, and how arguments are read: wrong ones are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import exact, positive
from fedtempo.clock.times import FixedTimes
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.flower.buffers import AUTO
from fedtempo.flower.clock import NANOSECOND, Clock, WallClock
from fedtempo.flower.guard import Mode
from fedtempo.schemes.named import Scheme
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.measured import OnlineWeights, measured_of
from fedtempo.weighting.weight_rules import WeightRule

if TYPE_CHECKING:
    from fedtempo.simulation.telling import OnMeasure

BEFORE_STEPS = "0.6"
"""The step of runs that were begun before there were steps: the paper's, with weights from means of all rounds."""
NEVER = 1 << 60
"""Nanoseconds between two looks, where something that happens ends a sleep."""
ENDLESS = 10**9
"""Rounds of a run that time ends."""
BASE_MEMORY = 1e9
"""Bytes of models in memory, where nothing else is said."""
UNIFORM = "uniform"
"""For importance: every client counts the same."""

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
_Function = TypeVar("_Function")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All choices but the model and the end; durations in nanoseconds."""

    scheme: Scheme
    weights: WeightRule
    step: str | None
    """The server's, which `server_lr` multiplies; None: stable, or that of the run that goes on."""
    max_weight: float
    server_lr: float
    seed: int
    importance: Mapping[str, Fraction] | None
    """By identity; empty: every client counts the same; None: by the number of examples."""
    max_examples: float | None
    times: Mapping[str, Fraction] | None
    identity_key: str | None
    authenticated: bool
    work_key: str | None
    loss_key: str | None
    clip_norm: float | None
    norm_limit: float | None
    max_failures: int
    retry_after: int
    checkpoint: Path | None
    checkpoint_every: int
    poll: int
    message: Callable[..., Message]
    clock: Clock
    arrays_key: str
    config_key: str
    examples_key: str
    train_metrics: MetricsFn
    aggregate_evaluate: Callable[[int, Sequence[Message]], MetricRecord | None]
    evaluation: str
    fraction_evaluate: float
    min_evaluate_nodes: int
    min_nodes: int
    buffers: str | tuple[str, ...] = AUTO
    guard: Mode | None = "recover"
    loss_limit: float | None = 10.0
    empty_waits: float = 20.0
    evaluate_every: int = 0
    base_memory: float | None = BASE_MEMORY
    """Bytes of models in memory; those beyond wait in a file."""
    on_measure: tuple[OnMeasure, ...] = ()

    def on(self, grid: Grid) -> Settings:
        """As they are on this grid: one in virtual time has a clock of its own, on which nobody has to poll."""
        if not isinstance(self.clock, WallClock) or not hasattr(grid, "take_clock"):
            return self
        virtual = cast(Any, grid)
        clock = virtual.take_clock(self.rule.waits)
        return replace(self, clock=clock, message=virtual.message, poll=NEVER, evaluation="wait")

    @property
    def virtual(self) -> bool:
        """Whether time passes only where nobody works."""
        return bool(getattr(self.clock, "virtual", False))

    @property
    def rule(self) -> WaitingRule:
        """What ends a round."""
        return self.scheme.waiting

    @cached_property
    def wait(self) -> int:
        """The rule's own interval in ticks, 0 if it has none."""
        return int(max(self.rule.waits, default=0 * NANOSECOND) // NANOSECOND)

    @property
    def nodes_needed(self) -> int:
        """How many nodes must be there for training to start."""
        return max(self.min_nodes, self.rule.min_clients)

    @cached_property
    def tracked(self) -> bool:
        """Whether weights follow from the rounds, as those that a scheme brings."""
        return self.weights.stepping("paper") is None and self.weights.tracker(Importance(None, 1), 1) is not None

    @property
    def measured(self) -> bool:
        """Whether weights follow from the times between updates, as they are seen."""
        rule, asked = self.rule, measured_of(self.weights) is not None
        alike = rule.returns_to_contributors and not rule.synchronous and not rule.by_training
        return self.step != BEFORE_STEPS and not self.tracked and (asked or (alike and self.times is None))

    def online(self) -> OnlineWeights:
        """The weights of a training in which they are measured."""
        rule = measured_of(self.weights)
        most, own = (self.max_weight, False) if rule is None else (rule.max_weight, rule.own)
        return OnlineWeights(self.weights, self.step_taken, most, own=own)

    @property
    def step_taken(self) -> str:
        """The step by name; the paper's where the weights have a step in them already."""
        has_its_own = measured_of(self.weights) is None and self.weights.stepping("paper") is not None
        return "paper" if has_its_own else self.step or "stable"

    def check_weights(self) -> None:
        """Refuse weights that nobody can know."""
        if self.rule.by_training and self.weights.needs_shares and not self.tracked:
            raise InputError(
                f"weights: how often {self.scheme} chooses a client depends on the trained models, so its "
                f"{self.weights.label} weights are not known; cure it, as CuredSampling({self.scheme}, window=8, "
                "biased=2), or give weights='identical' and accept the bias"
            )

    def check_times(self) -> None:
        """Refuse given times from which no weights follow."""
        if self.times is None:
            return
        importance = Importance(None, len(self.times))
        try:
            times = FixedTimes(self.times.values())
            if self._can_run(times.num_clients) and not self.rule.by_training:
                for _, rule in self.rule.in_stages():
                    self.weights.base(importance, LongRun(rule, times, importance).participation)
        except InputError as error:
            names = ", ".join(list(self.times)[:5])
            raise InputError(
                f"times: those of {names} give no weights: {error}. Or leave times out, and they are estimated"
            ) from error

    def _can_run(self, clients: int) -> bool:
        """Whether the rule can do with so few: more may be there than are named."""
        try:
            self.rule.check(clients)
        except InputError:
            return False
        return True


def on_flower(scheme: Scheme, server: object) -> Scheme:
    """The scheme with a server rule; options that are the clients' work are refused: clients are the user's own."""
    options = scheme.options
    if options.correction is not None:
        raise _clients_own("scheme", options.correction.label)
    if options.compression is not None:
        raise InputError(
            f"scheme: {options.compression.label} is done by clients; leave it out, and compress in the ClientApp "
            "with fedtempo.flower's compressing"
        )
    if options.client_steps or options.client_rates or options.compensate in ("rate", "work"):
        raise InputError(
            "scheme: local steps and local learning rates are set in the ClientApp on Flower; leave client_steps, "
            "client_rates and compensate out"
        )
    if server is None and options.server is None:
        return scheme
    from fedtempo.training.corrections import Correction  # JAX, which is there where a server rule was made
    from fedtempo.training.robust_rules import FEWEST, RobustRule
    from fedtempo.training.server_rules import Server

    if isinstance(server, Correction):
        raise _clients_own("server", server.label)
    if server is not None:
        if not isinstance(server, Server):
            raise InputError(
                f"server: {server!r} is not a server rule; give one, as fedtempo's FedAdam(), SlowMo(0.9) or "
                "MixModels(), "
                "or leave it out for the weighted sum"
            )
        scheme = scheme.using(server=server)
    chosen = scheme.options.server
    if isinstance(chosen, RobustRule) and chosen.last is None:
        raise InputError(
            f"server: {chosen.label} keeps an update of every client, but on Flower the number of clients is not "
            f"known ahead; give last=, ideally the number of clients and at least {FEWEST} (the server keeps that "
            "many models)"
        )
    return scheme


def _clients_own(what: str, correction: str) -> InputError:
    return InputError(
        f"{what}: {correction} changes what clients do, but on Flower that is your own ClientApp, which sends back "
        "only a model; leave it out, or simulate it"
    )


def known(given: Collection[str], there: Collection[str], whose: str) -> None:
    """Refuse arguments that there are not."""
    for name in given:
        if name not in there:
            close = get_close_matches(name, there, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(f"{name}: {whose} has no such argument; {hint}There are {', '.join(there)}")


def share(value: object, what: str) -> float:
    """A number from 0 to 1."""
    number = float(exact(value, what))
    if not 0.0 <= number <= 1.0:
        raise InputError(f"{what}: {value} is not a fraction; give a number from 0 to 1")
    return number


def count(value: object, what: str) -> int:
    """A whole number of at least 0."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else -1
    if number < 0:
        raise InputError(f"{what}: {value!r} is not a whole number of at least 0")
    return number


def key(value: object, what: str) -> str:
    """The name of a record or metric."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{what}: {value!r} is not the name of a record or metric; give a string")
    return value


def patterns(value: object, what: str) -> str | tuple[str, ...]:
    """Names of arrays, or patterns of them; or "auto"."""
    if value == AUTO:
        return AUTO
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(v, str) for v in value):
        raise InputError(f'{what}: {value!r} are not names of arrays; give "auto", or a list, as ["*.running_mean"]')
    return tuple(value)


def mode(value: object, what: str) -> Mode | None:
    """What the guard does."""
    if value is None or value == "recover" or value == "stop":
        return value
    raise InputError(f'{what}: {value!r} is not a mode; give "recover", "stop" or None')


def function(value: _Function, what: str) -> _Function:
    """Something that can be called."""
    if not callable(value):
        raise InputError(f"{what}: {value!r} cannot be called; give a function")
    return value


def folder(value: object, what: str) -> Path:
    """A path."""
    if not isinstance(value, str | Path):
        raise InputError(f"{what}: {value!r} is not a folder; give a path")
    return Path(value)


def yes_or_no(value: object, what: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{what}: {value!r} is neither True nor False")
    return value


def one_of(value: object, what: str, words: Sequence[str]) -> str:
    """One of these words."""
    if value not in words:
        raise InputError(f"{what}: {value!r} is not known; give one of {', '.join(map(repr, words))}")
    return str(value)


def importances(given: object, what: str) -> dict[str, Fraction]:
    """Numbers by identity, or nobody's where every client is to count the same."""
    if isinstance(given, str):
        one_of(given, what, (UNIFORM,))
        return {}
    return by_identity(given, what)


def by_identity(given: object, what: str) -> dict[str, Fraction]:
    """Positive numbers by the identity of clients."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{what}: a {type(given).__name__} does not say which client each number belongs to; give them by "
            "identity, as {'node 17': 2}"
        )
    if not given:
        raise InputError(f"{what}: nothing is given; name at least one client, or leave {what} out")
    return {str(name): positive(value, f"{what} of {name!r}") for name, value in given.items()}


def of_names(given: Mapping[str, Fraction], names: Sequence[str]) -> list[Fraction]:
    """The values of these identities; the middle one of all for those that are not named, 1 where nobody is."""
    middle = sorted(given.values())[len(given) // 2] if given else Fraction(1)
    return [given.get(name, middle) for name in names]


def clock_of(value: object) -> Clock:
    """A clock."""
    if not (callable(getattr(value, "now", None)) and callable(getattr(value, "sleep", None))):
        raise InputError(f"clock: {value!r} has no now() and sleep(until); leave it out for the computer's clock")
    return cast(Clock, value)
