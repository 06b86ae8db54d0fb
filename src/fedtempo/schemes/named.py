"""The schemes by their names in the literature: each is a waiting rule under a name.

FedAvg, AsyncFedAvg, FedFix(Δt), FedBuff(m), client sampling, centralized learning, and FedFix in stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from fedtempo import compat
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules import (
    CuredSample,
    FastestClients,
    FixedInterval,
    HighestLoss,
    IntervalStages,
    MultinomialSample,
    UniformSample,
    WaitForAll,
    WaitForNext,
    WaitForSome,
)
from fedtempo.clock.ticks import Exact, positive, positive_int, text
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.registry import own_label, own_spec, was_made
from fedtempo.schemes.options import SchemeOptions
from fedtempo.schemes.window_cure import WindowCure

if TYPE_CHECKING:
    from fedtempo.weighting.weight_rules import WeightRule


OPTIONS = (
    "correction",
    "server",
    "compression",
    "compensate",
    "weights",
    "client_steps",
    "client_rates",
    "step",
    "label",
)
"""Keys that every scheme's table may have."""


class Scheme:
    """A waiting rule under a name. A rule of one's own: ``Scheme(MyRule(), name="mine")``.

    `waiting` ends rounds and says who gets the new model, `name` is what study files and tables call it, `label` (the
    name unless given) what they print. `using` gives the same scheme with other options.

    Example:
        >>> from fedtempo.rules import Close, WaitingRule, resend
        >>> class TakeAll(WaitingRule):
        ...     def decide(self, state, event, view):
        ...         return state, resend(event) or (Close(tuple(view.arrived.values())) if view.arrived else None)
        >>> scheme = ft.Scheme(TakeAll(), name="take-all").using(server=ft.SlowMo(0.9))
        >>> print(scheme)
        take-all + SlowMo(0.9)
        >>> ft.timeline(scheme, ft.FixedTimes([1, 2]), until=4).num_rounds
        6
    """

    own_weights: WeightRule | None = None
    """What takes the place of time-based weights, where those of a client follow from its choice of clients."""

    def __init__(self, waiting: WaitingRule, *, name: str, label: str | None = None) -> None:
        self.waiting = waiting
        self.name = name
        self.label = label if label is not None else name
        self.options = SchemeOptions()
        self._named = self.label, self.options
        """What it is called, and the options that the name stands for."""
        self._first_label = self.label

    def using(self, *, label: str | None = None, **options: Any) -> Self:
        """The same scheme with other options: ``ft.FedFix("1/2").using(correction=ft.FedProx(0.1))``.

        `correction`, `server` and `compression` are objects, as ft.Scaffold(), ft.FedAdam() and ft.TopK(0.01);
        `weights` a weight rule or its name, whatever rules a study compares; `step` "stable", "paper" or "proven".
        `compensate` says by what clients that come rarely count as they should: "weights", "rate" (of learning) or
        "work" (local steps). `client_steps` and `client_rates` are one number per client: its local steps, and its
        factor of the local learning rate. What the scheme had stays unless it is named; an option that does not exist
        is an InputError. `label` replaces the words that are printed.
        """
        known = [field.name for field in fields(SchemeOptions)]
        for name in options:
            if name not in known:
                raise InputError(f"using: there is no option {name!r}; the options are {', '.join(known)}")
        if label is not None and not str(label).strip():
            raise InputError(f"label: {label!r} is not a label; give a short text")
        made = copy(self)
        made.options = replace(self.options, **options)
        if label is not None:
            made.label = str(label)
            made._named = made.label, made.options
        else:
            name, stands_for = self._named
            made.label = " + ".join([name, *made.options.words(stands_for)])
        return made

    @property
    def parts(self) -> SchemeOptions:
        """The old name of `options`."""
        compat.warn("Scheme.parts", "Scheme.options")
        return self.options

    def spec(self) -> dict[str, object]:
        """The scheme as a JSON object, of which `scheme_of` makes it again; one's own by its place."""
        if type(self) is not Scheme and type(self).__module__ == __name__:
            return {"name": self.name, **self.options.spec()}
        plain = type(self) is Scheme
        written = own_spec(self.waiting if plain and not was_made(self) else self, reserved=OPTIONS)
        usual = own_label(self.waiting) if plain else self._first_label
        if self._named[0] != usual or "repr" in written:
            written["label"] = self._named[0]
        return {**written, **self.options.spec()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scheme) and (self.name, self.waiting, self.options) == (
            other.name,
            other.waiting,
            other.options,
        )

    def __hash__(self) -> int:
        return hash((self.name, self.waiting, self.options))

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return self.label if self.label.endswith(")") else f"{self.label}()"


class FedAvg(Scheme):
    """Synchronous FedAvg: every round waits for all clients.

    Example:
        >>> line = ft.timeline(ft.FedAvg(), ft.FixedTimes([4, 2, 1]), until=8)
        >>> for round in line.rounds:
        ...     print(round.end, round.participants)
        4 (0, 1, 2)
        8 (0, 1, 2)
    """

    def __init__(self) -> None:
        super().__init__(WaitForAll(), name="fedavg", label="FedAvg")


class AsyncFedAvg(Scheme):
    """Asynchronous FedAvg: every single update makes a new model.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> for round in ft.timeline(ft.AsyncFedAvg(), times, until=3).rounds:
        ...     print(round.end, round.participants)
        1 (2,)
        2 (1,)
        2 (2,)
        3 (2,)
        >>> print(*ft.weights(ft.AsyncFedAvg(), times))
        7/3 7/6 7/12
    """

    def __init__(self) -> None:
        super().__init__(WaitForNext(), name="async", label="AsyncFedAvg")


class FedFix(Scheme):
    """Rounds of fixed length: a new model every `wait`, from the updates that have arrived by then.

    `wait` is in the unit of the client times: a number above 0, a text as "1/2", or a Fraction; 0.2 means 1/5 exactly.

    Example:
        >>> times = ft.FixedTimes([3, 2, 1])
        >>> for round in ft.timeline(ft.FedFix(wait=1), times, until=4).rounds:
        ...     print(round.end, round.participants)
        1 (2,)
        2 (1, 2)
        3 (0, 2)
        4 (1, 2)
        >>> print(*ft.weights(ft.FedFix(wait=1), times))
        1 2/3 1/3
    """

    def __init__(self, wait: Exact) -> None:
        self.wait: Fraction = positive(wait, "wait")
        super().__init__(FixedInterval(self.wait), name="fedfix", label=f"FedFix({text(self.wait)})")

    def spec(self) -> dict[str, object]:
        return {**super().spec(), "wait": text(self.wait)}


class _Sized(Scheme):
    """A scheme that is its rule and a number of clients."""

    def __init__(self, waiting: Callable[[int], WaitingRule], size: int, *, name: str, what: str) -> None:
        self.size = positive_int(size, what)
        super().__init__(waiting(self.size), name=name, label=f"{type(self).__name__}({size})")

    def spec(self) -> dict[str, object]:
        return {**super().spec(), "size": self.size}


class FedBuff(_Sized):
    """Buffered aggregation: every `size` updates make a new model.

    What arrives at once is taken in the order of clients; updates beyond `size` wait for the next round.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> for round in ft.timeline(ft.FedBuff(size=2), times, until=6).rounds:
        ...     print(round.end, round.participants)
        2 (1, 2)
        4 (0, 2)
        5 (1, 2)
        >>> print(*ft.weights(ft.FedBuff(size=2), times))
        1 1/2 1/3
    """

    def __init__(self, size: int) -> None:
        super().__init__(WaitForSome, size, name="fedbuff", what="buffer")


class UniformSampling(_Sized):
    """FedAvg with `size` clients per round, drawn without replacement.

    More than there are clients is an InputError when the scheme meets them.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> for round in ft.timeline(ft.UniformSampling(size=2), times, rounds=3, seed=1).rounds:
        ...     print(round.end, round.participants)
        4 (0, 1)
        6 (1, 2)
        10 (0, 1)
        >>> print(*ft.weights(ft.UniformSampling(size=2), times))
        1/2 1/2 1/2
    """

    def __init__(self, size: int) -> None:
        super().__init__(UniformSample, size, name="uniform", what="sample")


class MultinomialSampling(_Sized):
    """FedAvg with `size` draws per round, client i with probability p_i, with replacement.

    Example:
        >>> importance = ["1/2", "1/4", "1/4"]
        >>> line = ft.timeline(ft.MultinomialSampling(2), ft.FixedTimes([4, 2, 1]), rounds=3, importance=importance)
        >>> for round in line.rounds:
        ...     print(round.end, round.participants, round.draws)
        1 (2,) (2,)
        5 (0, 1) (1, 1)
        9 (0, 1) (1, 1)
    """

    def __init__(self, size: int) -> None:
        super().__init__(MultinomialSample, size, name="multinomial", what="sample")


class FastestSampling(_Sized):
    """FedAvg with the `size` fastest clients: biased, since the others never take part.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> [round.participants for round in ft.timeline(ft.FastestSampling(size=2), times, rounds=2).rounds]
        [(1, 2), (1, 2)]
        >>> ft.expected_weights(ft.FastestSampling(size=2), times, rule="identical")
        array([0. , 0.5, 0.5])
    """

    def __init__(self, size: int) -> None:
        super().__init__(FastestClients, size, name="fastest", what="sample")


class HighestLossSampling(Scheme):
    """FedAvg with the `size` clients of highest loss among `candidates` drawn by importance: biased.

    It is Power-of-Choice (Cho, Wang, Joshi, 2020); candidates None: all clients. Its rounds follow from training.

    Example:
        >>> times = ft.FixedTimes([4, 3, 2, 1])
        >>> scheme = ft.HighestLossSampling(2, candidates=3)
        >>> history = ft.simulate(ft.problems.quadratics(4), scheme, times, until=40, points=2, weights="identical")
        >>> history.table()[["scheme", "rounds", "updates"]]
                                         scheme  rounds  updates
        0  HighestLossSampling(2, candidates=3)    11.0     22.0
    """

    def __init__(self, size: int, *, candidates: int | None = None) -> None:
        self.size = positive_int(size, "sample")
        self.candidates = None if candidates is None else positive_int(candidates, "candidates")
        among = "" if candidates is None else f", candidates={candidates}"
        super().__init__(
            HighestLoss(self.size, self.candidates), name="highest-loss", label=f"HighestLossSampling({size}{among})"
        )

    def spec(self) -> dict[str, object]:
        return {**super().spec(), "size": self.size, "candidates": self.candidates}


class CuredSampling(Scheme):
    """Biased sampling in the first `biased` of every `window` rounds, and all clients in the others (appendix C.3).

    It brings weights of its own, by which every client has its importance over each window.

    Example:
        >>> scheme = ft.CuredSampling(ft.FastestSampling(1), window=4, biased=2)
        >>> times = ft.FixedTimes([2, 1])
        >>> [round.participants for round in ft.timeline(scheme, times, rounds=4).rounds]
        [(1,), (1,), (0, 1), (0, 1)]
        >>> ft.expected_weights(scheme, times)  # as if nobody had been preferred
        array([0.5, 0.5])
    """

    def __init__(self, criterion: Scheme, *, window: int, biased: int) -> None:
        waiting = getattr(criterion, "waiting", None)
        if waiting is None or waiting.draws_a_round(1) is None or not criterion.options.plain:
            raise InputError(
                f"criterion: {criterion!r} is not a client sampling scheme without other options; give one, as "
                "CuredSampling(FastestSampling(5), window=8, biased=2), and pass options to the result"
            )
        rule = CuredSample(waiting, positive_int(window, "window"), positive_int(biased, "biased"))
        label = f"CuredSampling({criterion.label}, window={window}, biased={biased})"
        super().__init__(rule, name="cured", label=label)
        self.criterion, self.window, self.biased = criterion, rule.window, rule.biased
        self.own_weights = WindowCure(rule)

    def spec(self) -> dict[str, object]:
        return {**super().spec(), "criterion": self.criterion.spec(), "window": self.window, "biased": self.biased}


class Centralized(Scheme):
    """One client that owns all data.

    Give it times of a single client, and a problem with one owner: ``problem.pooled()``.

    Example:
        >>> problem = ft.problems.quadratics(4).pooled()
        >>> history = ft.simulate(problem, ft.Centralized(), ft.FixedTimes([2]), until=20, points=2)
        >>> history.table()[["scheme", "rounds"]]
                scheme  rounds
        0  Centralized    10.0
    """

    def __init__(self) -> None:
        super().__init__(WaitForAll(alone=True), name="centralized", label="Centralized")


class StagedFedFix(Scheme):
    """FedFix whose wait changes: (wait, rounds) of each stage, the last with rounds None.

    `over_windows` keeps each wait for whole windows, as section 4.4 asks, so that weights stay unbiased.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> scheme = ft.StagedFedFix([(4, 1), (2, 2), (1, None)])  # one round of 4, two of 2, then rounds of 1
        >>> [str(round.end) for round in ft.timeline(scheme, times, until=12).rounds]
        ['4', '6', '8', '9', '10', '11', '12']
        >>> print(*ft.weights(scheme, times).stage(2))
        4/3 2/3 1/3
        >>> ft.StagedFedFix.over_windows(times, [(2, 3), (1, None)]).stages
        ((Fraction(2, 1), 6), (Fraction(1, 1), None))
    """

    def __init__(self, stages: Sequence[tuple[Exact, int | None]]) -> None:
        rule = IntervalStages(
            tuple((positive(wait, "wait"), None if n is None else positive_int(n, "rounds")) for wait, n in stages)
        )
        super().__init__(rule, name="fedfix-stages", label=f"FedFix({'→'.join(text(wait) for wait in rule.waits)})")
        self.stages = rule.stages

    @classmethod
    def over_windows(cls, times: ClientTimes, stages: Sequence[tuple[Exact, int | None]]) -> StagedFedFix:
        """Each wait for a number of windows W = lcm(⌈τ_i/Δt⌉) of these clients; the last with None."""
        rounds: list[tuple[Exact, int | None]] = []
        for wait, windows in stages:
            if windows is None:
                rounds.append((wait, None))
                continue
            rule = FixedInterval(positive(wait, "wait"))
            length = rule.closed_form(times, Importance(None, times.num_clients)).window if not times.random else None
            if length is None:
                raise InputError(
                    f"stages: the window at wait {wait} is not known for {times!r}; "
                    "give numbers of rounds instead: StagedFedFix([(wait, rounds), …])"
                )
            rounds.append((wait, positive_int(windows, "windows") * length))
        return cls(rounds)

    def spec(self) -> dict[str, object]:
        return {**super().spec(), "stages": [{"wait": text(wait), "rounds": n} for wait, n in self.stages]}


def without_options(scheme: Scheme) -> Scheme:
    """The scheme, where what is asked of it holds for plain local SGD and the weighted sum alone."""
    if not scheme.options.plain:
        raise InputError(
            f"{scheme.label}: the theory covers only plain local SGD and weighted sums of contributions; leave out "
            "the scheme's options, or simulate it"
        )
    return scheme
