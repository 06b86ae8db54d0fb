"""A biased criterion, cured (appendix C.3): of every W rounds the first W_c choose by it, the others take all clients.

    draws_i = (W_c s_i + W − W_c)/W        s_i the criterion's
    rounds in a unit of time = W / (W_c/r + (W − W_c)/r')        r the criterion's, r' FedAvg's

W is `window`, W_c `biased`. The weights that make up for the choice over the window: schemes/window_cure.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.closed_form import ClosedForm
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Action, Close, Event, View
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules.sampled import SampledClients, sampled_chunks
from fedtempo.clock.rules.wait_for_all import WaitForAll
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError


@dataclass(frozen=True)
class CuredSample(SampledClients):
    """The clients of `criterion` in the first `biased` rounds of every `window`, all clients in the others.

    The state is that of the criterion, and the round's place in its window.
    """

    size: int = field(init=False, repr=False)
    random: bool = field(init=False, repr=False)
    counts_draws: bool = field(init=False, repr=False)
    needs: tuple[str, ...] = field(init=False, repr=False)
    one_set_of_clients = True

    criterion: SampledClients
    window: int
    biased: int

    def __post_init__(self) -> None:
        if not isinstance(self.criterion, SampledClients):
            raise InputError(
                f"criterion: {self.criterion!r} is not a client sampling rule; give one, as FastestClients(5)"
            )
        if isinstance(self.criterion, CuredSample):
            raise InputError(f"criterion: {self.criterion!r} is already cured; give the sampling rule inside it")
        if not 1 <= self.biased < self.window:
            raise InputError(
                f"biased: {self.biased} of the {self.window} rounds of a window; give at least 1 and fewer than "
                f"{self.window}, since the other rounds correct the bias"
            )
        for name in ("size", "random", "counts_draws", "needs"):
            object.__setattr__(self, name, getattr(self.criterion, name))

    def check(self, num_clients: int) -> None:
        self.criterion.check(num_clients)

    @property
    def min_clients(self) -> int:
        return self.criterion.min_clients

    def by_criterion(self, numbers: I64) -> NDArray[np.bool_]:
        """Which of these rounds choose by the criterion."""
        return np.asarray(numbers % self.window < self.biased)

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        inner, first = super().start(view)
        return (inner, view.version % self.window), first

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        inner, place = state
        inner, action = super().decide(inner, event, view)
        return (inner, (view.version + 1) % self.window if isinstance(action, Close) else place), action

    def phase(self, state: State) -> int | None:
        inner, place = state
        known = self.criterion.phase(inner)
        return None if known is None else known * self.window + int(place)

    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        if number % self.window < self.biased:
            return self.criterion.choose(number, attempt, view)
        return tuple(sorted(view.clients))

    def asked_a_round(self, num_clients: int) -> Fraction:
        return Fraction(self.biased, self.window) * self.criterion.asked_a_round(num_clients)

    def draws_a_round(self, num_clients: int) -> Fraction:
        chosen = self.biased * self.criterion.draws_a_round(num_clients)
        return (chosen + (self.window - self.biased) * num_clients) / self.window

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        if times.availability is not None:
            return None
        found = ClosedForm(window=self.window, mean_delay=0.0, mean_delay_by_weight=0.0, max_delay=0)
        inner = None if self.criterion.by_training else self.criterion.closed_form(times, importance)
        everybody = WaitForAll().closed_form(times, importance)
        if inner is None or inner.share is None or everybody is None:
            return found
        by, others = Fraction(self.biased, self.window), Fraction(self.window - self.biased, self.window)
        part, rest = float(by), float(others)
        return replace(
            found,
            share=part * inner.share + rest,
            exact=None if inner.exact is None else tuple(by * s + others for s in inner.exact),
            taking_part=None if inner.taking_part is None else part * inner.taking_part + rest,
            rounds_per_time=self._pace(inner.rounds_per_time, everybody.rounds_per_time),
        )

    def _pace(self, criterion: Fraction | float | None, everybody: Fraction | float | None) -> float | None:
        if criterion is None or everybody is None:
            return None
        return self.window / (self.biased / float(criterion) + (self.window - self.biased) / float(everybody))

    def chunks(self, config: ClockConfig) -> Iterator[Timeline] | None:
        if self.criterion.samples(config, np.zeros(0, dtype=np.int64)) is None:
            return WaitingRule.chunks(self, config)
        everybody = np.arange(config.num_clients)

        def draws(numbers: I64) -> tuple[I64, I64]:
            chosen = self.by_criterion(numbers)
            sample = self.criterion.samples(config, numbers[chosen])
            assert sample is not None
            sizes = np.where(chosen, sample.shape[1], len(everybody))
            own = np.repeat(chosen, sizes)
            named = np.empty(len(own), dtype=np.int64)
            named[own] = sample.ravel()
            named[~own] = np.tile(everybody, int((~chosen).sum()))
            return named, sizes

        return sampled_chunks(config, draws, config.num_clients)
