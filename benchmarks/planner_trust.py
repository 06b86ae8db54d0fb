"""How far early scores can be trusted: the tables of `fedtempo/planning/calibration.py`, from trained curves.

    python benchmarks/planner_grid.py --out FOLDER --groups calibration --seeds 0:2 --curves
    python benchmarks/planner_trust.py --grid FOLDER [--race]

At a rung the cells of a setting are ranked by their score; `per_scheme` times the number of schemes go on. What is
lost is log(best of those that went on / best of the others) at the end, where that is above 0. The table has what is
lost at most in 98 % of settings, seeds and grids: whole ones, and drawn parts of them. With --race the planner's race
is run on the curves, as if they were being trained, and its choices are judged by the means over seeds.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtempo.planning.calibration import PER_SCHEME
from fedtempo.planning.comparison import Cell
from fedtempo.planning.race import Race
from planner_grid import POINTS, load
from planner_settings import CALIBRATION, RATES

LAST = POINTS - 1
RUNGS = {1 / 16: LAST // 16, 1 / 4: LAST // 4, 1 / 2: LAST // 2, 1.0: LAST}
LEVEL = 0.98
DRAWS = 12


def curves(folder: Path) -> dict[int, tuple[Any, Any]]:
    """By setting, [schemes, rates, seeds, points] losses and the schemes' client updates."""
    found = {}
    for (group, k), schemes in load(folder).items():
        if group != CALIBRATION:
            continue
        blocks = [sorted(schemes[s], key=lambda block: block["seeds"][0]) for s in sorted(schemes)]
        loss = np.array([np.concatenate([block["curves"] for block in of_one], axis=1) for of_one in blocks])
        found[k] = np.where(np.isfinite(loss), loss, np.inf).astype(np.float64), [b[0]["updates"] for b in blocks]
    return found


def score(loss: Any, rung: float) -> Any:
    """The mean over the last tenth of the time to a rung."""
    point = RUNGS[rung]
    return loss[..., min(math.ceil(0.9 * point + 1e-9), point - (point < 20)) : point + 1].mean(axis=-1)


def parts(schemes: int, rates: int, draw: np.random.Generator) -> dict[str, tuple[Any, Any]]:
    """Parts of a grid: few schemes, few rates, one scheme."""

    def some(most: int) -> Any:
        return np.sort(draw.choice(schemes, min(schemes, most), replace=False))

    first = int(draw.integers(0, 3))
    return {
        "few schemes, every other rate": (some(int(draw.integers(3, 7))), np.arange(first, rates, 2)),
        "two schemes, every third rate": (some(2), np.arange(first, rates, 3)),
        "two schemes": (some(2), np.arange(rates)),
        "one scheme": (some(1), np.arange(rates)),
    }


def lost(early: Any, final: Any) -> list[float]:
    """By how many go on a scheme, what is lost; [schemes, rates] scores."""
    order = np.argsort(early.ravel())
    ended = np.log(final.ravel()[order])
    counts = [max(1, round(m * len(early))) for m in PER_SCHEME]
    return [max(0.0, ended[:n].min() - ended[n:].min(initial=np.inf)) for n in counts]


def table(known: dict[int, tuple[Any, Any]], rung: float) -> dict[str, Any]:
    """By kind of grid, the quantile of what is lost for each number that goes on."""
    draw = np.random.default_rng(0)
    found: dict[str, list[list[float]]] = {}
    for loss, _ in known.values():
        for seed in range(loss.shape[2]):
            early, final = score(loss[:, :, seed], rung), score(loss[:, :, seed], 1.0)
            found.setdefault("whole", []).append(lost(early, final))
            for _ in range(DRAWS):
                for kind, (a, b) in parts(*early.shape, draw).items():
                    if np.isfinite(early[np.ix_(a, b)]).any():
                        found.setdefault(kind, []).append(lost(early[np.ix_(a, b)], final[np.ix_(a, b)]))
    return {kind: np.quantile(np.array(rows), LEVEL, axis=0) for kind, rows in found.items()}


class Replay:
    """A track on which cells are not trained, but read from curves."""

    rungs = tuple(RUNGS)

    def __init__(self, loss: Any, updates: Sequence[float]) -> None:
        self.loss, self._updates, self.spent = loss, updates, 0.0
        self._reached: dict[tuple[Cell, int], int] = {}
        self._kept: set[Cell] | None = None

    def place(self, cell: Cell) -> tuple[int, int]:
        """Where a cell's curve lies."""
        return int(cell.scheme), RATES.index(cell.rate)

    def train(self, cells: Iterable[Cell], seeds: Sequence[int], rung: int) -> None:
        """Up to a rung; from the start, if its state was not kept."""
        for cell in cells:
            for seed in seeds:
                known = self._reached.get((cell, seed))
                if known is not None and known >= rung:
                    continue
                lives = known is not None and (self._kept is None or cell in self._kept)
                self.spent += self.cost(cell, rung, known if lives else None)
                self._reached[cell, seed] = rung

    def score(self, cell: Cell, seed: int, rung: int) -> float:
        """NaN if it was not trained so far."""
        if self._reached.get((cell, seed), -1) < rung:
            return math.nan
        found = float(score(self.loss[(*self.place(cell), seed)], self.rungs[rung]))
        return found if math.isfinite(found) else math.inf

    def fall(self, cell: Cell, seed: int, rung: int) -> float:
        """Over the second half of the time."""
        loss = self.loss[(*self.place(cell), seed)]
        before, now = loss[RUNGS[self.rungs[rung]] // 2], score(loss, self.rungs[rung])
        return float(np.log(before / now)) if np.isfinite([before, now]).all() else 0.0

    def cost(self, cell: Cell, rung: int, before: int | None = None) -> float:
        """Client updates."""
        return self._updates[int(cell.scheme)] * (self.rungs[rung] - (0.0 if before is None else self.rungs[before]))

    def keep(self, cells: Iterable[Cell]) -> None:
        """Others begin anew."""
        self._kept = set(cells)


def raced(known: dict[int, tuple[Any, Any]], share: float) -> Iterator[tuple[float, float, float, str]]:
    """Of each setting the regret, its stated bound, the share of the grid that was spent, and why it ended."""
    for loss, updates in known.values():
        track = Replay(loss, updates)
        cells = [Cell(str(s), rate) for s in range(len(loss)) for rate in RATES]
        grid = sum(track.cost(cell, len(RUNGS) - 1) for cell in cells)
        widen: Callable[..., Sequence[float]] = lambda *given: []  # noqa: E731
        race = Race(track, cells, "0", lambda grid=grid: share * grid, 0.1, seeds=range(loss.shape[2]), widen=widen)
        race.run()
        found, final = race.compare(), score(loss, 1.0).mean(axis=-1)
        bound = math.expm1(sum(race.lost.values()) + found.regret)
        yield final[track.place(found.best)] / final.min() - 1, bound, track.spent / grid, race.ended


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--grid", type=Path, required=True)
    ask.add_argument("--race", action="store_true")
    asked = ask.parse_args()
    known = curves(asked.grid)
    print(f"{len(known)} settings; on go, times the number of schemes: {PER_SCHEME}")
    for rung in (1 / 16, 1 / 4, 1 / 2):
        for kind, values in table(known, rung).items():
            print(f"T/{1 / rung:<3.0f} {kind:30} {' '.join(f'{v:.3f}' for v in values)}")
    spread = []
    for loss, _ in known.values():
        final = score(loss, 1.0)
        near = np.log(final[final.mean(axis=-1) <= 1.2 * final.mean(axis=-1).min()])
        left = near - near.mean(axis=1, keepdims=True) - near.mean(axis=0) + near.mean()
        spread.append(math.sqrt((left**2).sum() / max(1, (near.shape[0] - 1) * (near.shape[1] - 1))))
    print(f"scatter over seeds: median {np.median(spread):.4f}, largest {max(spread):.4f}")
    for share in (0.12, 0.25, 1.0) if asked.race else ():
        regret, bound, spent, ended = (list(part) for part in zip(*raced(known, share), strict=True))
        print(
            f"{share:.0%} of the grid: within 1.1 {sum(r <= 0.1 for r in regret)}, regret at most {max(regret):.3f}, "
            f"covered {sum(r <= b for r, b in zip(regret, bound, strict=True))}, the bound's median "
            f"{np.median(bound):.3f}, spent {np.median(spent):.3f}, {dict(Counter(ended))}"
        )


if __name__ == "__main__":
    main()
