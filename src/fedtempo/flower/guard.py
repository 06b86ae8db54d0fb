"""A guard that recovers: it sees that a run goes wrong, and says to which version to go back.

    lengths    an update is too long if ω_i‖Δ_i‖ > norm_limit × the usual ω‖Δ‖: an old one with a small weight may be
               long, a usual one with a huge weight may not
    alarms     more than half of the clients that have answered are refused, twice in a row each
               the loss is not finite, or `loss_limit` times its best and above a tenth of the first
               no round has taken updates for `empty_waits` waits, or as many times the usual time between such rounds

A version is good when every client that answers has had an update accepted that started from it or later, or when an
evaluation found its loss no worse than twice the best; the first one is good. After an alarm the run goes back to the
last good one, with the server rule's memory, halves its step, and goes on; jobs that started from versions that are
undone do not count. Where that has not helped three times, without a good version in between, the run stops.

Losses are evaluate_fn's, the clients' evaluations', and the median of what clients last reported with their updates:
one client alone raises no alarm. Where nobody answers, no model is to blame: it is said, and the run waits on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fedtempo.clock.events import Job, Tick
from fedtempo.flower.clock import seconds
from fedtempo.flower.latest import Latest
from fedtempo.flower.result import RoundRecord
from fedtempo.flower.versions import Memory, Model

Mode = Literal["recover", "stop"]

_ENOUGH_LENGTHS, _LENGTHS_KEPT = 5, 101
_REFUSALS = 2
"""In a row, of a client: once may be chance."""
_MOST_IN_A_ROW = 3
_PATIENT = 20
"""Updates a client after which a version is good though some have not answered."""
_ENOUGH_INTERVALS, _INTERVALS_KEPT = 5, 21
_LOSSES = ("loss", "eval_loss", "val_loss", "test_loss", "train_loss", "training_loss")


class Lengths:
    """ω‖Δ‖ of what was let in lately, and what is too long beside it."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._kept = Latest(_LENGTHS_KEPT)
        self._by_model = True

    def too_long(self, weight: float, norm: float, model: Callable[[], float]) -> str | None:
        """Why an update of this weight and norm does not enter a model of that norm; else it counts from now on."""
        length = abs(weight) * norm if weight else 0.0
        if self._limit is not None:
            usual, said = self._usual(model)
            if 0 < usual < math.inf and length > self._limit * usual:
                return (
                    f"its norm {norm:.3g} times its weight {weight:.3g} is more than {self._limit:g} times {said} "
                    f"{usual:.3g}; if that is right, raise norm_limit or set it to None"
                )
        self._kept.add(length)
        return None

    def _usual(self, model: Callable[[], float]) -> tuple[float, str]:
        """A length to measure by, 0 if there is none yet: the median, and before that the most that speaks for it."""
        if len(self._kept) >= _ENOUGH_LENGTHS:
            return self._kept.middle, "the usual"
        known, own = self._kept.largest, model() if self._by_model else 0.0
        return (known, "the longest so far,") if known >= own else (own, "the model's own norm,")

    def take_back(self, weight: float, norm: float) -> None:
        """Such an update was let in and has been refused after all: it says nothing of what is usual."""
        self._kept.take_back(abs(weight) * norm if weight else 0.0)

    def forget(self) -> None:
        """What was usual is no measure any more, nor is the model: the next one is."""
        self._kept.clear()
        self._by_model = False

    def snapshot(self) -> list[float]:
        """What was let in lately."""
        return list(self._kept)

    def restore(self, saved: Iterable[float]) -> None:
        """What `snapshot` gave."""
        self._kept = Latest(_LENGTHS_KEPT, saved)


@dataclass
class Good:
    """A version to go back to."""

    version: int
    model: Model
    memory: Memory
    """What the server rule remembered."""
    lengths: list[float]
    changed: int | None = None
    """The first later version that is another model."""


class Alarm(NamedTuple):
    """Something is wrong, and what is to be done about it."""

    reason: str
    action: Literal["say", "back", "stop"]


@dataclass
class _Loss:
    """A loss as it came, from one source."""

    first: float
    best: float
    last: float

    @property
    def good(self) -> bool:
        return math.isfinite(self.last) and (self.best < 0 or self.last <= 2 * self.best)

    def bad(self, limit: float) -> bool:
        if not math.isfinite(self.last):
            return True
        return 0 <= self.best < self.last / limit and self.last > self.first / 10


class Guard:
    """What it has seen of the run since it last went back."""

    def __init__(
        self,
        mode: Mode | None,
        *,
        loss_limit: float | None,
        empty_waits: float,
        wait: Tick,
        timeout: Tick,
        loss_key: str | None = None,
    ) -> None:
        self._mode, self._limit, self._waits = mode, loss_limit, empty_waits
        self._wait, self._timeout, self._loss_key = wait, timeout, loss_key
        self.factor = 1.0
        """Of the step: halved each time that the run goes back to another model."""
        self.undone: set[Job] = set()
        """Jobs that are out, or have arrived, and started from a version that is undone."""
        self.good: Good | None = None
        self._in_a_row = 0
        self._next: Good | None = None
        self._accepted: set[int] = set()
        """Clients with an update accepted that started from `_next` or later."""
        self._updates = 0
        self._sweeps = 0
        """Since `_next`: how often as many updates as there are clients were taken."""
        self._asked: dict[int, Good] = {}
        """The versions that are being evaluated, by round."""
        self._evaluates = False
        self._known: set[int] = set()
        """Clients that have answered at all."""
        self._refusals: dict[int, int] = {}
        """In a row, by client that has answered since the run last went back."""
        self._refused: set[int] = set()
        self._erred: set[int] = set()
        self._waiting: set[int] = set()
        """Clients with an update that may enter, since a round took any: a rule that waits for more is not stuck."""
        self._wrong: tuple[str, str] | None = None
        """What is wrong with the last answer since a round took updates: kind and reason."""
        self._losses: dict[str, _Loss] = {}
        self._of_clients: dict[int, float] = {}
        self._doubt: str | None = None
        self._since: Tick = 0
        self._between: deque[Tick] = deque(maxlen=_INTERVALS_KEPT)
        self._patience = self._patience_now()
        self._said = False

    # -- what happens

    def begin(self, good: Good, now: Tick) -> None:
        """Training starts from here."""
        self._since = now
        self.good = good if self._mode == "recover" else None

    def arrived(self, client: int) -> None:
        """An update that may enter."""
        self._waiting.add(client)

    def accepted(self, job: Job, metrics: Mapping[str, Any]) -> None:
        """A round has taken an update."""
        if self._mode is None:
            return
        client = job.client
        self._known.add(client)
        self._refusals[client] = 0
        self._refused.discard(client)
        self._erred.discard(client)
        if self._next is not None and job.base >= self._next.version:
            self._accepted.add(client)
        if (loss := self._loss_in(metrics)) is not None:
            self._of_clients[client] = loss

    def refused(self, client: int, reason: str) -> None:
        """An update does not enter."""
        self._known.add(client)
        self._waiting.discard(client)
        self._refusals[client] = self._refusals.get(client, 0) + 1
        if self._refusals[client] >= _REFUSALS:
            self._refused.add(client)
        self._wrong = "refused", reason

    def failed(self, client: int, reason: str) -> None:
        """A client says that it has failed."""
        self._erred.add(client)
        if self._wrong is None:
            self._wrong = "error", reason

    def closed(self, record: RoundRecord, clients: Set[int], current: Callable[[], Good]) -> None:
        """A round has taken updates; `clients` are there, and `current` is the version that it made."""
        if self._mode is None:
            return
        self._between.append(record.end - self._since)
        self._patience = self._patience_now()
        self._since, self._wrong, self._said = record.end, None, False
        self._waiting.clear()
        for good in (self.good, self._next, *self._asked.values()):
            if good is not None and good.changed is None:
                good.changed = record.number + 1
        self._updates += len(record.updates)
        if self._updates >= len(self._known):  # as many as there are clients: not in every round, for the time it takes
            self._updates, self._sweeps = 0, self._sweeps + 1
            self._look_at_clients(clients)
            if self._next is not None and self._all_accepted(clients) and not self._evaluates and self._no_doubt:
                self._promote(self._next)
                self._next = None
        if self._next is None and self._mode == "recover":
            self._next, self._updates, self._sweeps = current(), 0, 0
            self._accepted.clear()

    def _all_accepted(self, clients: Set[int]) -> bool:
        active = self._known & clients
        seen = self._accepted & active
        most = 2 * len(seen) > len(active)
        return bool(active) and (seen == active or (most and self._sweeps >= _PATIENT))

    def _promote(self, good: Good) -> None:
        if self.good is None or good.version > self.good.version:
            self.good = good if self._mode == "recover" else None
        self._in_a_row = 0

    # -- losses

    def asked(self, server_round: int, current: Callable[[], Good], still: Set[int]) -> None:
        """A version is to be evaluated; `still`: the rounds whose evaluation may yet come."""
        if self._mode is not None and self._limit is not None:
            self._asked = {number: good for number, good in self._asked.items() if number in still}
            self._asked[server_round] = current()

    def evaluated(self, whose: str, server_round: int, metrics: Mapping[str, Any]) -> None:
        """What an evaluation found; of versions that are undone it says nothing."""
        good = self._asked.get(server_round)
        if good is None or (loss := self._loss_in(metrics)) is None:
            return
        self._evaluates |= math.isfinite(loss)
        if self._hear(f"{whose}, round {server_round}", whose, loss):
            self._promote(good)

    def _hear(self, words: str, source: str, value: float) -> bool:
        """A loss, from a source that has given finite ones before or does now; whether it is good."""
        found = self._losses.get(source)
        if found is None:
            if not math.isfinite(value):
                return False
            found = self._losses[source] = _Loss(value, value, value)
        found.last = value
        if self._limit is not None and found.bad(self._limit):
            self._doubt = f"the loss is {value:.3g} ({words}), and its best was {found.best:.3g}"
        found.best = min(found.best, value) if math.isfinite(value) else found.best
        return found.good

    def _look_at_clients(self, clients: Set[int]) -> None:
        """The median of the clients' last losses, if half of them have said any; the lower one of two."""
        last = sorted(
            math.inf if math.isnan(loss) else loss for client, loss in self._of_clients.items() if client in clients
        )
        if last and 2 * len(last) >= len(clients):
            self._hear("the median of what clients report", "clients", last[(len(last) - 1) // 2])

    @property
    def _no_doubt(self) -> bool:
        return self._doubt is None and all(loss.good for loss in self._losses.values())

    def _loss_in(self, metrics: Mapping[str, Any]) -> float | None:
        """The loss among some metrics: the one that the user names, else the first with a name for it."""
        if self._loss_key is not None and self._loss_key in metrics:
            names: list[str] = [self._loss_key]
        else:
            plain = {name.lower().replace("-", "_"): name for name in metrics}
            names = [plain[name] for name in _LOSSES if name in plain]
        value = metrics[names[0]] if names else None
        return float(value) if isinstance(value, (int, float)) else None

    # -- alarms

    def alarm(self, now: Tick, there: Callable[[], Collection[int]]) -> Alarm | None:
        """What is wrong; `there`: the clients that are connected, resting or not."""
        if self._mode is None:
            return None
        if self._doubt is not None:
            return self._act(self._doubt)
        if 2 * len(self._refused) > len(self._refusals):
            here = self._refusals.keys() & there()
            wrong = self._refused & here
            if 2 * len(wrong) > len(here):
                last = self._wrong[1] if self._wrong is not None else "no reason is known"
                return self._act(
                    f"{len(wrong)} of the {len(here)} clients that answered are refused; the last reason: {last}"
                )
        if now - self._since > self._patience:
            return self._silence(now)
        return None

    def _patience_now(self) -> Tick:
        """How long rounds may take no updates: longer before the first, and where clients need many waits."""
        ordered = sorted(self._between)
        usual = self._wait or (ordered[len(ordered) // 2] if ordered else 0)
        known = len(ordered) >= (1 if self._wait else _ENOUGH_INTERVALS)
        return max(int(self._waits * usual), 3 * (ordered[-1] if ordered else 0), 0 if known else self._timeout)

    def _silence(self, now: Tick) -> Alarm | None:
        lasted = now - self._since
        words = f"no round has taken updates for {seconds(lasted):.3g} s"
        other = self.good is None or self.good.changed is not None
        if not self._waiting and self._wrong is not None and (self._wrong[0] == "refused" or other):
            return self._act(f"{words}, and the last answer was {self._wrong[0]}: {self._wrong[1]}")
        if self._mode == "stop" and lasted > self._timeout:
            return Alarm(words, "stop")
        if self._said:
            return None
        self._said = True
        return Alarm(f"{words}; the model is not the cause, so the run keeps waiting", "say")

    def _act(self, reason: str) -> Alarm:
        if self._mode == "stop":
            return Alarm(reason, "stop")
        if self._in_a_row >= _MOST_IN_A_ROW:
            return Alarm(f"{reason}; rolling back {_MOST_IN_A_ROW} times has not helped", "stop")
        return Alarm(reason, "back")

    def go_back(self, now: Tick, out: Iterable[Job]) -> Good:
        """The version to go back to; `out` are the jobs that are out or have arrived, and know another model."""
        good = self.good
        assert good is not None
        changed = good.changed
        self.undone = {job for job in out if job in self.undone or (changed is not None and job.base >= changed)}
        self._in_a_row += 1
        if changed is not None:  # else no step has done any harm
            self.factor /= 2
        good.changed = None
        self._next, self._updates, self._wrong, self._doubt = None, 0, None, None
        for clients in (self._accepted, self._refused, self._erred, self._waiting):
            clients.clear()
        for memory in (self._refusals, self._asked, self._of_clients):
            memory.clear()
        for loss in self._losses.values():
            loss.last = loss.best
        self._since, self._said = now, False
        return good

    @property
    def again(self) -> bool:
        """Whether the run has gone back more than once, without a good version in between."""
        return self._in_a_row > 1

    @property
    def blamed(self) -> set[int]:
        """Clients whose last answer was refused, or an error."""
        return self._erred | {client for client, refusals in self._refusals.items() if refusals}

    # -- what is kept

    def snapshot(self) -> dict[str, Any]:
        """What a run that goes on must know, as JSON."""
        return {
            "factor": self.factor,
            "in_a_row": self._in_a_row,
            "losses": {source: [loss.first, loss.best] for source, loss in self._losses.items()},
            "evaluates": self._evaluates,
            "between": list(self._between),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """What `snapshot` gave; nothing of runs of older versions."""
        self.factor, self._in_a_row = saved.get("factor", 1.0), saved.get("in_a_row", 0)
        self._evaluates = saved.get("evaluates", False)
        self._losses = {source: _Loss(first, best, best) for source, (first, best) in saved.get("losses", {}).items()}
        self._between.extend(saved.get("between", ()))
        self._patience = self._patience_now()
