"""Tracks on which nothing is trained: a cell's score is a function of the share of the time, and of seeds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtempo.planning.comparison import Cell
from fedtempo.planning.race import Race
from fedtempo.planning.standings import Stopped
from fedtempo.simulation.rate_search import beyond

RUNGS = (1 / 16, 1 / 4, 1 / 2, 1.0)
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
REFERENCE = "FedAvg"
WHOLE = 1000.0
"""Client updates of a training, where nothing else is said."""

Mean = Callable[[Cell, float], float]
"""(cell, share of the time) → what its score is beside the seeds."""


@dataclass
class DrawnTrack:
    """Scores are exp(noise) times a mean, less `shift`; what is trained is counted, and how far it came is known."""

    mean: Mean
    rungs: tuple[float, ...] = RUNGS
    common: float = 0.0
    """Of noise that all cells have under a seed."""
    own: float = 0.0
    """Of noise that each cell has under each seed."""
    shift: float = 0.0
    draw: int = 0
    updates: Mapping[str, float] = field(default_factory=dict)
    """By scheme, `WHOLE` where it is not there."""
    dies: Mapping[Cell, float] = field(default_factory=dict)
    """From which share of the time on a cell has diverged; infinite or not there: never."""
    dies_too: Mapping[tuple[Cell, int], float] = field(default_factory=dict)
    """The same under one seed."""
    stop: tuple[int, str, float] | None = None
    """At which call it is stopped, why, and which share of its cells came to the rung before."""
    spent: float = 0.0
    came: dict[tuple[Cell, int], int] = field(default_factory=dict)
    """The rung that a cell has come to under a seed."""
    kept: set[Cell] | None = None
    """What may go on; what was forgotten begins again."""
    calls: list[tuple[tuple[Cell, ...], tuple[int, ...], int]] = field(default_factory=list)
    begun_again: list[Cell] = field(default_factory=list)
    _ready: set[tuple[Cell, int]] = field(default_factory=set)
    _noise: dict[tuple[Cell, int], float] = field(default_factory=dict)

    def train(self, cells: Iterable[Cell], seeds: Sequence[int], rung: int) -> None:
        cells = list(cells)
        self.calls.append((tuple(cells), tuple(seeds), rung))
        stopped = self.stop is not None and len(self.calls) > self.stop[0]
        for cell in cells[: int(self.stop[2] * len(cells))] if stopped and self.stop else cells:
            for seed in seeds:
                self._bring(cell, seed, rung)
        if stopped and self.stop:
            raise Stopped(self.stop[1])

    def _bring(self, cell: Cell, seed: int, rung: int) -> None:
        place = (cell, seed)
        before = self.came.get(place)
        if before is not None and before >= rung:
            return
        start = 0.0 if before is None or place not in self._ready else self.rungs[before]
        if before is not None and place not in self._ready:
            self.begun_again.append(cell)
        end = min(self.rungs[rung], max(start, self._death(cell, seed)))
        self.spent += self.updates.get(cell.scheme, WHOLE) * (end - start)
        self.came[place] = rung
        self._ready.add(place)

    def _death(self, cell: Cell, seed: int) -> float:
        return min(self.dies.get(cell, math.inf), self.dies_too.get((cell, seed), math.inf))

    def score(self, cell: Cell, seed: int, rung: int) -> float:
        came = self.came.get((cell, seed))
        if came is None:
            return math.nan
        if self._death(cell, seed) <= self.rungs[came]:
            return math.inf
        return self._value(cell, seed, self.rungs[rung]) if came >= rung else math.nan

    def _value(self, cell: Cell, seed: int, share: float) -> float:
        if (cell, seed) not in self._noise:
            name = zlib.crc32(f"{cell.scheme} {cell.rate:g}".encode())
            everyones = np.random.default_rng([self.draw, seed]).standard_normal()
            ones = np.random.default_rng([self.draw, seed, name]).standard_normal()
            self._noise[cell, seed] = float(self.common * everyones + self.own * ones)
        with np.errstate(over="ignore"):
            value = float(self.mean(cell, share) * np.exp(self._noise[cell, seed])) - self.shift
        return value if math.isfinite(value) else math.inf

    def fall(self, cell: Cell, seed: int, rung: int) -> float:
        if not math.isfinite(self.score(cell, seed, rung)):
            return 0.0
        now, before = self.mean(cell, self.rungs[rung]), self.mean(cell, self.rungs[rung] / 2)
        return math.log(before / now) if now > 0 and 0 < before < math.inf else 0.0

    def cost(self, cell: Cell, rung: int, before: int | None = None) -> float:
        return self.updates.get(cell.scheme, WHOLE) * (self.rungs[rung] - (0 if before is None else self.rungs[before]))

    def keep(self, cells: Iterable[Cell]) -> None:
        kept = set(cells)
        self._ready = {place for place in self._ready if place[0] in kept}

    # -- what only a test knows

    def end(self, cell: Cell) -> float:
        """The true score at the end."""
        gone = self.dies.get(cell, math.inf) <= 1
        return math.inf if gone else self.mean(cell, 1.0) - self.shift

    def regret(self, race: Race) -> float:
        """log(true end of the choice / least true end) over all cells that were trained."""
        ends = [self.end(cell) for cell in race.standing]
        return math.log(self.end(race.compare().best) / min(ends))

    def whole(self, cells: Iterable[Cell]) -> float:
        """Client updates of training all of these."""
        return sum(self.cost(cell, len(self.rungs) - 1) for cell in cells)


@dataclass(frozen=True)
class Sgd:
    """Curves such as SGD has: floor + (1 + speed·rate·t)^-power + noise·rate, each scheme with numbers of its own.

    Small rates are slow and end low; large ones are fast and end high, or diverge.
    """

    floor: Mapping[str, float]
    speed: Mapping[str, float]
    power: Mapping[str, float]
    noise: Mapping[str, float]

    def __call__(self, cell: Cell, share: float) -> float:
        s = cell.scheme
        falls = (1 + self.speed[s] * cell.rate * share) ** -self.power[s]
        return self.floor[s] + falls + self.noise[s] * cell.rate


def names(schemes: int) -> list[str]:
    """FedAvg and others."""
    return [REFERENCE, *(f"scheme {k}" for k in range(1, schemes))]


def grid(labels: Sequence[str], rates: Sequence[float] = RATES) -> list[Cell]:
    """All schemes at all rates."""
    return [Cell(label, rate) for label in labels for rate in rates]


def sgd(draw: int, schemes: int = 6, *, rates: Sequence[float] = RATES, noise: float = 0.02, **more: Any) -> DrawnTrack:
    """A track of curves such as SGD has, drawn by a number; some of the largest rates diverge."""
    by = np.random.default_rng(draw)
    labels = names(schemes)
    every = float(np.exp(by.normal(0, 0.7)))  # the problem's; schemes differ less
    found = Sgd(
        floor=dict(zip(labels, 0.05 * np.exp(by.normal(0, 0.3, schemes)), strict=True)),
        speed=dict(zip(labels, 300 * every * np.exp(by.normal(0, 0.4, schemes)), strict=True)),
        power=dict(zip(labels, by.uniform(0.5, 1.0, schemes), strict=True)),
        noise=dict(zip(labels, 0.1 * every * np.exp(by.normal(0, 0.4, schemes)), strict=True)),
    )
    limit = dict(zip(labels, np.exp(by.normal(math.log(2), 0.7, schemes)), strict=True))
    dies = {cell: float(by.uniform(0.001, 0.8)) for cell in grid(labels, rates) if cell.rate > limit[cell.scheme]}
    updates = dict(zip(labels, WHOLE * np.round(by.uniform(0.5, 2, schemes), 3), strict=True))
    return DrawnTrack(
        found,
        common=2 * noise,
        own=noise,
        draw=draw,
        **{"updates": updates, "dies": dies, **more},  # type: ignore[arg-type]
    )


def race_on(track: DrawnTrack, cells: Sequence[Cell], budget: float = 1.0, **given: Any) -> Race:
    """A race of cells, whose budget is a share of training them all."""
    whole = track.whole(cells)
    made: dict[str, Any] = {
        "reference": REFERENCE,
        "allowance": lambda: budget * whole,
        "tolerance": 0.1,
        "given": f"{budget * whole:g}",
        "grid": whole,
    }
    return Race(track, list(cells), **{**made, **given})


def widening(rates: Sequence[float] = RATES) -> Callable[..., Sequence[float]]:
    """Rates beyond the first ones, as `recommend` adds them."""
    return lambda scheme, tried, best, diverged: beyond(tried, best, diverged, (rates[0], rates[-1]))
