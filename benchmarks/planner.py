"""The planner's choices on 60 settings, judged by what every cell of their grids really gives.

    make bench-planner
    python benchmarks/planner.py [--grid planner_truth.npz | FOLDER] [--only penalty-3,open-7] [--seed 0]
        [--write FILE.json [--again]] [--markdown FILE.md] [--workers 1]

The settings are those of planner_settings.py; what their cells give, scheme by scheme and rate by rate over many seeds,
was trained by planner_grid.py. The best cell is found on one half of those seeds; the regret of a choice, by which
share its loss is above that cell's, is measured on the other half. The planner's own seeds are others.

Beside the planner, with as many client updates: the pilot's prediction alone, random search over cells, and Optuna's
TPE over schemes and rates. The last two train each cell once, under one seed that their regret is not measured on.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner_grid import COUNTS, Truth, truth
from planner_settings import GROUPS, RATES, setting

GRID = Path(__file__).with_name("planner_truth.npz")
SEARCHED = 1000
"""The seed of the searches' trainings."""
FEW = 4
"""Seeds of the measuring half; a cell that has fewer is measured on all but the searches'."""
DRAWS, REPEATS = 20, 5
RIVALS = {"predictor": "prediction alone", "random": "random search", "tpe": "Optuna's TPE"}

BUDGET = "25%"
"""Of the grid's updates: what the planner may use."""


def choose(name: str, seed: int) -> dict[str, Any]:
    """What the planner chooses in one setting."""
    import jax

    import fedtempo as ft

    group, k = name.split("-")
    s = setting(group, int(k))
    begin = time.perf_counter()
    made = ft.recommend(
        s.problem,
        s.times,
        until=s.until,
        local=s.local(RATES[0]),
        schemes=s.schemes,
        rates=RATES,
        budget=BUDGET,
        seed=seed,
    )
    seconds = time.perf_counter() - begin
    labels = [scheme.label for scheme in s.schemes]
    predicted = None
    if made.predictions:
        # the first of equals, as the schemes were given
        order = sorted(made.predictions, key=lambda p: labels.index(p.scheme.label))
        first = min(order, key=lambda p: p.excess.min())
        predicted = [labels.index(first.scheme.label), place(first.lr[first.best])]
    jax.clear_caches()
    return {
        "setting": s.said | ({"momentum": s.momentum} if s.momentum else {}),
        "labels": labels,
        "seed": seed,
        "cell": [labels.index(made.best.scheme.label), place(made.best.local_lr)],
        "bound": float(made.regret.high),
        "updates": float(made.spent.updates),
        "grid": float(made.spent.grid),
        "trainings": made.spent.trainings,
        "to_the_end": made.spent.to_the_end,
        "ended": made.ended,
        "predicted": predicted,
        "seconds": seconds,
    }


def place(rate: float) -> int:
    """Which of the grid's rates this is."""
    return int(np.argmin(abs(np.log(np.array(RATES) / rate))))


class Measured(NamedTuple):
    """By which share a cell is worse than the best, and the standard error of that."""

    regret: float
    error: float


class Ruler:
    """What the truth says of the cells of one setting."""

    def __init__(self, known: Truth) -> None:
        self.loss = np.asarray(known.loss, dtype=np.float64)
        self.seeds = np.asarray(known.seeds)
        self.updates = float(np.mean(known.updates))
        """Client updates of training a cell, in the mean."""
        self.other = np.arange(len(self.seeds)) % 2 == 1
        self.mean = _mean(self.loss)
        count = (~np.isnan(self.loss)).sum(-1)
        well = count >= min(8, count.max())  # only cells near the best were trained more than twice
        halves = np.where(well, _mean(self.loss[..., ~self.other]), np.inf)
        self.best = _cell(halves)
        self.fedavg = (0, int(np.argmin(np.where(well[0], self.mean[0], np.inf))))
        if not np.isfinite(self.mean[self.fedavg]) or not well[self.fedavg]:
            self.fedavg = (0, int(np.argmin(self.mean[0])))

    def regret(self, cell: tuple[int, int]) -> Measured:
        """On the half of the seeds on which the best cell was not found, under the same seeds."""
        if cell == self.best:
            return Measured(0.0, 0.0)
        a, b = self.loss[cell], self.loss[self.best]
        both = ~np.isnan(a) & ~np.isnan(b)
        use = both & self.other
        if use.sum() < FEW:
            use = both & (self.seeds != SEARCHED)
        if not use.any():
            use = both
        if not np.isfinite(a[both]).all():
            return Measured(np.inf, 0.0)
        ratio = a[use].mean() / b[use].mean()
        shown = use if use.sum() > 1 else both
        return Measured(float(ratio - 1), float(_error(a[shown] - ratio * b[shown]) / b[shown].mean()))

    def above_fedavg(self, cell: tuple[int, int]) -> tuple[float, bool]:
        """The loss over that of FedAvg's best cell, and whether it is above 1.05 of it beyond two standard errors."""
        a, b = self.loss[cell], self.loss[self.fedavg]
        both = ~np.isnan(a) & ~np.isnan(b)
        if not np.isfinite(a[both]).all():
            return np.inf, True
        over = a[both] - 1.05 * b[both]
        return float(a[both].mean() / b[both].mean()), bool(over.mean() > 2 * _error(over))

    def searched(self, cells: Any) -> tuple[int, int]:
        """The cell that a search takes: the lowest under its one seed."""
        one = self.one_seed
        return min(map(tuple, cells), key=lambda cell: one[cell])

    @property
    def one_seed(self) -> Any:
        """[schemes, rates] what one training says."""
        found = self.loss[..., int(np.flatnonzero(self.seeds == SEARCHED)[0])]
        return np.where(np.isnan(found), np.inf, found)


def _mean(values: Any) -> Any:
    """Over the seeds that there are; infinite where there is none."""
    there = ~np.isnan(values)
    mean = np.where(there, values, 0.0).sum(-1) / there.sum(-1).clip(1)
    return np.where(there.any(-1), mean, np.inf)


def _error(values: Any) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def _cell(values: Any) -> tuple[int, int]:
    row, column = np.unravel_index(np.argmin(values), values.shape)
    return int(row), int(column)


def random_search(ruler: Ruler, trainings: int, seed: int) -> Iterator[tuple[int, int]]:
    """Cells drawn without repetition, each trained once; the lowest."""
    draw = np.random.default_rng([seed, 1])
    every = np.array(list(np.ndindex(ruler.mean.shape)))
    for _ in range(DRAWS):
        yield ruler.searched(every[draw.choice(len(every), min(trainings, len(every)), replace=False)])


def tpe(ruler: Ruler, trainings: int, seed: int) -> Iterator[tuple[int, int]]:
    """Optuna's sampler over the scheme, a category, and the rate's place; a cell that comes again costs nothing."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    schemes, rates = ruler.mean.shape
    one = np.minimum(ruler.one_seed, 1e30)
    for repeat in range(REPEATS):
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=(seed + repeat) % 2**31))
        seen: set[tuple[int, int]] = set()
        for _ in range(3 * trainings):
            trial = study.ask()
            scheme = trial.suggest_categorical("scheme", list(range(schemes)))
            cell = scheme, trial.suggest_int("rate", 0, rates - 1)
            study.tell(trial, float(one[cell]))
            seen.add(cell)
            if len(seen) == min(trainings, schemes * rates):
                break
        yield ruler.searched(seen)


def judge(name: str, choice: dict[str, Any], known: Truth) -> dict[str, Any]:
    """What the truth says of a choice, and of what others choose for as many updates."""
    ruler = Ruler(known)
    cell = tuple(choice["cell"])
    measured = ruler.regret(cell)
    of_fedavg, worse = ruler.above_fedavg(cell)
    trainings = max(1, round(choice["updates"] / ruler.updates))
    rivals: dict[str, list[float] | None] = {"predictor": None, "tpe": None}
    if choice["predicted"] is not None:
        rivals["predictor"] = [ruler.regret(tuple(choice["predicted"])).regret]
    searches: dict[str, Callable[[Ruler, int, int], Iterator[tuple[int, int]]]] = {"random": random_search}
    if find_spec("optuna") is not None:
        searches["tpe"] = tpe
    for rival, search in searches.items():
        rivals[rival] = [ruler.regret(found).regret for found in search(ruler, trainings, zlib.crc32(name.encode()))]
    return {
        "best": list(ruler.best),
        "best_loss": float(ruler.mean[ruler.best]),
        "loss": float(ruler.mean[cell]),
        "regret": measured.regret,
        "error": measured.error,
        "of_fedavg": of_fedavg,
        "worse_than_fedavg": worse,
        "searches": trainings,
        "rivals": rivals,
    }


def said(name: str, one: dict[str, Any]) -> str:
    """One setting in one line."""
    choice, found = one["choice"], one["judged"]
    head = f"{name:12} {cell_words(choice, choice['cell']):22}"
    tail = f"updates {share(choice):5.1%}  {choice['ended']:7} {choice['seconds']:4.0f} s"
    if found is None:
        return f"{head} no truth yet; bound {percent(choice['bound'])}  {tail}"
    beside = "  ".join(f"{rival} {percent(_average(found['rivals'][rival]))}" for rival in RIVALS)
    flag = " !" if found["worse_than_fedavg"] else ""
    return (
        f"{head} best {cell_words(choice, found['best']):22} regret {percent(found['regret'])} ± {found['error']:.1%}, "
        f"bound {percent(choice['bound'])}  of FedAvg {found['of_fedavg']:.2f}{flag}  {beside}  {tail}"
    )


def cell_words(choice: dict[str, Any], cell: list[int]) -> str:
    return f"{choice['labels'][cell[0]]} at {RATES[cell[1]]:g}"


def share(choice: dict[str, Any]) -> float:
    """Of the grid's updates."""
    return float(choice["updates"] / choice["grid"])


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}" if value < 10 else "> 1000%"


def _average(regrets: list[float] | None) -> float | None:
    return None if regrets is None else float(np.mean(regrets))


def methods(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By method, over settings and draws: in how many within 1.1 and 1.5, the median, the mean when cut at 1."""
    found = {}
    for method in ("planner", *RIVALS):
        lists = [[r["judged"]["regret"]] if method == "planner" else r["judged"]["rivals"][method] for r in rows]
        there = [np.array(regrets) for regrets in lists if regrets is not None]
        found[method] = {
            "within_1.1": sum(float((regrets <= 0.1).mean()) for regrets in there),
            "within_1.5": sum(float((regrets <= 0.5).mean()) for regrets in there),
            "median": _median(there) if there else None,
            "mean": float(np.mean([regrets.clip(max=1.0).mean() for regrets in there])) if there else None,
            "missing": len(lists) - len(there),
        }
    return found


def _median(there: list[Any]) -> float:
    """Over settings and draws, each setting with the same weight."""
    values = np.concatenate(there)
    weight = np.concatenate([np.full(len(regrets), 1 / len(regrets)) for regrets in there])
    order = np.argsort(values)
    half = weight.sum() / 2 + np.array([-1e-9, 1e-9])
    return float(values[order][np.searchsorted(weight[order].cumsum(), half)].mean())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of a group of settings."""
    regret = np.array([row["judged"]["regret"] for row in rows])
    error = np.nan_to_num([row["judged"]["error"] for row in rows])
    bound = np.array([row["choice"]["bound"] for row in rows])
    shares = np.array([share(row["choice"]) for row in rows])
    seconds = np.array([row["choice"]["seconds"] for row in rows])
    return {
        "settings": len(rows),
        "methods": methods(rows),
        "worse_than_fedavg": sum(row["judged"]["worse_than_fedavg"] for row in rows),
        "largest_share": float(shares.max()),
        "median_share": float(np.median(shares)),
        "covered": int((bound >= regret - 1e-9).sum()),
        "covered_but_for_noise": int((bound >= regret - 2 * error - 1e-9).sum()),
        "median_bound": float(np.median(np.where(np.isnan(bound), np.inf, bound))),
        "median_error": float(np.median(error)),
        "seconds": float(seconds.sum()),
        "median_seconds": float(np.median(seconds)),
        "largest_seconds": float(seconds.max()),
    }


def summary_words(name: str, s: dict[str, Any]) -> str:
    """A group in some lines."""
    n, planner = s["settings"], s["methods"]["planner"]
    lines = [
        f"{name}: {n} settings; within 1.1 of the best {planner['within_1.1']:.0f}, within 1.5 "
        f"{planner['within_1.5']:.0f}; median regret {percent(planner['median'])} (the truth's own error "
        f"{s['median_error']:.1%}); above 1.05 of FedAvg's best beyond two errors: {s['worse_than_fedavg']}",
        f"    the bound holds in {s['covered']}, but for two errors of the truth in {s['covered_but_for_noise']}; its "
        f"median {percent(s['median_bound'])}; of the grid's updates at most {s['largest_share']:.1%}, median "
        f"{s['median_share']:.1%}; {s['seconds']:.0f} s in all, median {s['median_seconds']:.0f}, "
        f"at most {s['largest_seconds']:.0f}",
    ]
    for rival, words in RIVALS.items():
        one = s["methods"][rival]
        if one["median"] is None:
            lines.append(f"    {words}: -")
            continue
        lines.append(
            f"    {words}: within 1.1 {one['within_1.1']:.1f}, within 1.5 {one['within_1.5']:.1f}; median regret "
            f"{percent(one['median'])}" + (f"; missing in {one['missing']}" if one["missing"] else "")
        )
    return "\n".join(lines)


def markdown(rows: dict[str, dict[str, Any]], summaries: dict[str, dict[str, Any]]) -> str:
    """Both tables, for a page."""
    lines = _table("settings", "chosen by", "within 1.1", "within 1.5", "median regret", "mean regret, at most 100 %")
    for group, s in summaries.items():
        for method, words in {"planner": "`recommend`", **RIVALS}.items():
            one = s["methods"][method]
            if one["median"] is None:
                cells = ["-"] * 4
            else:
                digits = 0 if method in ("planner", "predictor") else 1
                cells = [f"{one[key]:.{digits}f}" for key in ("within_1.1", "within_1.5")]
                cells += [percent(one["median"]), percent(one["mean"])]
                if one["missing"]:
                    cells[0] += f" ({one['missing']} without)"
            lines.append(_row(f"{group} ({s['settings']})", words, *cells))
    lines += ["", *_table("settings", "above 1.05 of FedAvg", "bound holds", "but for noise", "median bound", "share")]
    for group, s in summaries.items():
        spent = f"{s['median_share']:.0%}, at most {s['largest_share']:.0%}"
        counts = (s["worse_than_fedavg"], s["covered"], s["covered_but_for_noise"])
        lines.append(_row(f"{group} ({s['settings']})", *counts, percent(s["median_bound"]), spent))
    about = ("clients", "times", "problem", "partition", "local_steps", "batch_size", "until")
    heads = ("", "M", "times", "problem", "partition", "K", "B", "T", "chosen", "best cell", "regret", "bound")
    lines += ["", *_table(*heads, "of FedAvg", "prediction", "random", "TPE", "share")]
    for name, one in rows.items():
        choice, found = one["choice"], one["judged"]
        cells = [name, *(choice["setting"][key] for key in about)]
        cells += [cell_words(choice, choice["cell"]), cell_words(choice, found["best"]), percent(found["regret"])]
        cells += [percent(choice["bound"]), f"{found['of_fedavg']:.2f}"]
        cells += [percent(_average(found["rivals"][rival])) for rival in RIVALS]
        lines.append(_row(*cells, f"{share(choice):.0%}"))
    return "\n".join(lines) + "\n"


def _table(*heads: str) -> list[str]:
    return [_row(*heads), "|" + "---|" * len(heads)]


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def choices(names: list[str], seed: int, workers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """By setting, as they are made."""
    if workers == 1:
        yield from ((name, choose(name, seed)) for name in names)
        return
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_named, [(name, seed) for name in names], chunksize=1)


def _named(task: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    return task[0], choose(*task)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--grid", type=Path, default=GRID, help="the packed truth, or a folder of planner_grid.py's files")
    ask.add_argument("--only", help="settings by name; all of the three groups otherwise")
    ask.add_argument("--seed", type=int, default=0, help="the planner's first seed")
    ask.add_argument("--write", type=Path, help="keep what was found here; choices that are there are not made again")
    ask.add_argument("--again", action="store_true", help="make them again")
    ask.add_argument("--markdown", type=Path)
    ask.add_argument("--workers", type=int, default=1, help="processes; one planner uses all cores")
    asked = ask.parse_args()
    names = asked.only.split(",") if asked.only else [f"{group}-{k}" for group in GROUPS for k in range(COUNTS[group])]
    if not asked.grid.exists():
        ask.error(f"{asked.grid} is not there; benchmarks/planner_grid.py makes it")
    known = {name: one for name, one in truth(asked.grid).items() if one.full}
    kept: dict[str, dict[str, Any]] = {}
    if asked.write is not None and asked.write.exists():
        kept = json.loads(asked.write.read_text())["settings"]

    def judged(name: str, choice: dict[str, Any], before: dict[str, Any] | None = None) -> None:
        """Judge, say and keep; what the same truth said before is taken as it is."""
        mark = zlib.crc32(np.asarray(known[name].loss, dtype=np.float32).tobytes()) if name in known else None
        found = before["judged"] if before is not None and before["truth"] == mark else None
        if found is None and name in known:
            found = judge(name, choice, known[name])
        kept[name] = {"choice": choice, "truth": mark, "judged": found}
        print(said(name, kept[name]), flush=True)
        save()

    def save(summaries: dict[str, Any] | None = None) -> None:
        if asked.write is not None:
            temporary = asked.write.with_suffix(".part")
            temporary.write_text(json.dumps({"settings": kept, "summaries": summaries}, indent=1))
            temporary.replace(asked.write)

    there = [name for name in names if name in kept and kept[name]["choice"]["seed"] == asked.seed and not asked.again]
    for name in there:
        judged(name, kept[name]["choice"], kept[name])
    for name, choice in choices([name for name in names if name not in there], asked.seed, asked.workers):
        judged(name, choice)
    rows = {name: kept[name] for name in names if kept[name]["judged"] is not None}
    groups = {group: [rows[name] for name in rows if name.startswith(f"{group}-")] for group in GROUPS}
    summaries = {group: summary(found) for group, found in groups.items() if found}
    if len(summaries) > 1:
        summaries["all"] = summary(list(rows.values()))
    for group, found in summaries.items():
        print(summary_words(group, found), flush=True)
    if len(rows) < len(names):
        print(f"without a truth: {', '.join(name for name in names if name not in rows)}")
    save(summaries)
    if asked.markdown is not None:
        asked.markdown.write_text(markdown(rows, summaries))


if __name__ == "__main__":
    main()
