"""The curves of histories as a page's data: measures over time and over other costs, and ends against rates.

A line is the mean over seeds, with one deviation over seeds to either side; behind a switch there are the seeds
themselves. Columns are sent once: places on the horizontal axis are kept in a pool, and lines name theirs. Where a
study is so large that a page of it would be slow, single seeds are left out, then all rates but the best.

    pool        distinct lists of places          combos   {at, setting, label, best, gone, means, deviations, seeds}
    axes        what measures are drawn over      ends     final values against a hyper-parameter
    measures    what is drawn                     dims     what lines are switched by
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.report.browser.document import rounded
from fedtempo.report.text import plain, titled
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import ALWAYS
from fedtempo.simulation.history.summary import FAIR

MOST_NUMBERS = 1_500_000
"""Of one group of charts: some ten megabytes, which a browser still reads in a second."""
MEAN = "mean"
"""What a line over all seeds is called beside those of single seeds."""
COSTS = ("time", "rounds", "updates", "bytes_up", "bytes_down")
"""What a measure can be drawn over."""
_CLIENTS = "client_loss"
_WORST = "worst_client"
_TITLES = {
    "loss": "Federated loss",
    "test_accuracy": "Accuracy on test data",
    _WORST: "Loss of the worst client",
    "loss_deviation": "Deviation of the loss over clients",
}
"""The first charts, in this order."""
_AXES = {
    "time": "virtual time",
    "rounds": "server rounds",
    "updates": "client updates",
    "bytes_up": "bytes sent by clients",
    "bytes_down": "bytes sent to clients",
}
_SHORT = {RATE: "lr", "server_lr": "server lr", "local_steps": "K", "batch_size": "B"}
_WIDE = 4.0
"""So many times the smallest value is the largest where an axis is logarithmic."""
_BEST_VIEW = {"name": "best", "label": "each scheme at its best rates"}
_SHARED_VIEW = {"name": "shared", "label": "all at the rate that is best for identical weights, as in the paper"}
_ALL_VIEW = {"name": "all", "label": "all rates"}
"""Which runs are seen."""
_NOTHING = 1e-2
_DASHES = (None, "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2")


@dataclass
class _Pool:
    """Lists of places, each once."""

    lists: list[list[Any]] = field(default_factory=list)
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def place(self, values: Floats | None) -> int:
        """Where a list is, up to what is known of it; −1 where that is nothing."""
        if values is None or not np.isfinite(values).any():
            return -1
        known = np.flatnonzero(np.isfinite(values))
        key = tuple(rounded(values[: int(known[-1]) + 1]))
        if key not in self._known:
            self._known[key] = len(self.lists)
            self.lists.append(list(key))
        return self._known[key]


def curve_data(
    settings: Mapping[str, History],
    schemes: Sequence[str],
    targets: Mapping[str, float],
    shared: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The data of a group of charts; of several settings (problems, times, parts) one is shown at a time.

    `schemes`: those of the page, which have its colours, in their order. `shared`: by setting, a learning rate at which
    all are to be seen side by side, too.
    """
    seeds = _seeds(settings)
    numbers = sum(_numbers(history) for history in settings.values())
    singly = len(seeds) > 1 and numbers * (len(seeds) + 2) <= MOST_NUMBERS
    every = numbers * 2 <= MOST_NUMBERS
    pool = _Pool()
    names = _measures(settings)
    axes = [name for name in COSTS if _axis_known(settings, name)]
    rules = list(dict.fromkeys(w for h in settings.values() for w in h.dataset["weights"].values.tolist()))
    hyper = list(dict.fromkeys(name for h in settings.values() for name in h.hyper))
    combos, ends = [], []
    for k, (setting, history) in enumerate(settings.items()):
        chosen = _best_places(history)
        same = (shared or {}).get(setting)
        combos += [
            {"setting": k, "shared": same is None or _is_at(one, hyper, same), **one}
            for one in _combos(history, chosen, names, axes, pool, hyper, every=every, singly=singly)
        ]
        ends += [{"setting": k, **one} for one in _ends(history)]
    there = {one["at"][0] for one in combos}
    inks = [{"value": s, "colour": f"var(--c{k})"} for k, s in enumerate(schemes) if s in there]
    dims: list[dict[str, Any]] = [{"name": "scheme", "values": inks}]
    if rules != [FAIR]:
        styled = zip(rules, _dashes(rules), strict=True)
        dims.append({"name": "weights", "values": [{"value": r, "dash": d} for r, d in styled]})
    for name in hyper if every else ():
        values = sorted({_value(v) for h in settings.values() if name in h.hyper for v in h.dataset[name].values})
        dims.append({"name": name, "hyper": True, "values": [{"value": v, "label": plain(v)} for v in values]})
    if singly:
        listed = [{"value": MEAN, "label": "mean over seeds"}]
        dims.append({"name": "seed", "values": listed + [{"value": s, "off": True} for s in seeds]})
    logs = {name: _on_log([one for one in combos if one["best"]], i) for i, name in enumerate(names)}
    return {
        "settings": list(settings),
        "axes": [{"name": name, "label": _axis_label(settings, name)} for name in axes],
        "measures": [
            {
                "name": name,
                "title": _title(settings, name),
                "log": None if "accuracy" in name else logs[name],
                "share": "accuracy" in name,
            }
            for name in names
        ],
        "targets": [targets.get(name) for name in settings],
        "dims": dims,
        "views": [_BEST_VIEW, *([_SHARED_VIEW] if shared else []), _ALL_VIEW] if hyper and every else [_BEST_VIEW],
        "left_out": "" if every and (singly or len(seeds) < 2) else _left_out(every),
        "combos": combos,
        "ends": [_end_chart(name, [one for one in ends if one["over"] == name]) for name in _over(ends)],
        "pool": pool.lists,
    }


def _left_out(every: bool) -> str:
    if every:
        return "Single seeds are left out here: the study has so many runs that the page would be slow."
    return "Only the best rates are drawn: the study has so many runs that the page would be slow."


def _seeds(settings: Mapping[str, History]) -> tuple[int, ...]:
    return tuple(sorted({int(s) for h in settings.values() for s in h.dataset["seed"].values}))


def _numbers(history: History) -> int:
    """Numbers of the means over seeds."""
    return len(_drawn(history)) * history.dataset["loss"].size // max(history.dataset.sizes["seed"], 1)


def _measures(settings: Mapping[str, History]) -> list[str]:
    found = dict.fromkeys(name for history in settings.values() for name in _drawn(history))
    first = list(_TITLES)
    return sorted(found, key=lambda name: (first.index(name) if name in first else len(first), list(found).index(name)))


def _drawn(history: History) -> list[str]:
    """The measures of which a line can be drawn, and the worst client where the clients' losses are there."""
    runs = {*ALWAYS, *history.settings, *history.hyper}
    found = [n for n in history.measures if n not in COSTS and set(history.dataset[n].dims) <= runs]
    found = [n for n in found if bool(history.dataset[n].notnull().any())] or ["loss"]
    clients = _CLIENTS in history.measures and "client" in history.dataset[_CLIENTS].dims
    return [*found, _WORST] if clients else found


def _with_worst(history: History) -> History:
    if _WORST not in _drawn(history):
        return history
    worst = history.dataset[_CLIENTS].max("client", skipna=False)
    return History(history.dataset.assign({_WORST: worst}))


def _title(settings: Mapping[str, History], name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    attrs = next(h.dataset[name].attrs for h in settings.values() if name in h.dataset)
    said = titled(dict(attrs), name.replace("_", " "))
    return f"{said[0].upper()}{said[1:]}"


def _axis_label(settings: Mapping[str, History], name: str) -> str:
    attrs = next((h.dataset[name].attrs for h in settings.values() if name in h.dataset), {})
    units = {key: value for key, value in attrs.items() if key == "units"}  # of Flower's runs: seconds
    return titled(units, _AXES[name])


def _axis_known(settings: Mapping[str, History], name: str) -> bool:
    return name == "time" or any(
        name in h.dataset and "time" in h.dataset[name].dims and bool(h.dataset[name].notnull().any())
        for h in settings.values()
    )


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)


def _on_log(combos: Sequence[Mapping[str, Any]], measure: int) -> bool:
    """Whether the lines that are seen at first spread far, those aside that diverged.

    Where equal models begin, clients may deviate by next to nothing: such a start would be all that one sees.
    """
    lines = [one["means"][measure] for one in combos if one["means"][measure] and not one["gone"]]
    later = [value for line in lines for value in line[len(line) // 5 :] if np.isfinite(value)]
    first = [value for line in lines for value in line[: len(line) // 5] if np.isfinite(value)]
    return _is_wide(later) and min(first, default=np.inf) > _NOTHING * min(later)


def _dashes(rules: Sequence[str]) -> list[str | None]:
    """Time-based weights have a solid line."""
    ordered = sorted(rules, key=lambda rule: rule != FAIR)
    return [_DASHES[ordered.index(rule) % len(_DASHES)] for rule in rules]


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _own(history: History) -> dict[str, str]:
    """The schemes that bring their own weights: they were run once, under the first rule."""
    found: dict[str, str] = json.loads(history.attrs.get("own_weights", "{}"))
    return found


# -- lines


def _is_at(combo: Mapping[str, Any], hyper: Sequence[str], rate: float) -> bool:
    """Whether a combination has a learning rate."""
    return RATE not in hyper or combo["at"][2 + hyper.index(RATE)] in (rate, None)


def _best_places(history: History) -> dict[tuple[str, str], dict[str, Any]]:
    """By scheme and weight rule the hyper-parameters of the lowest final loss, where there is one."""
    if not history.hyper:
        return {}
    best = history.only().best("loss").dataset
    found = {}
    for scheme in best["scheme"].values.tolist():
        for rule in best["weights"].values.tolist():
            at = {"scheme": scheme, "weights": rule}
            picked = {name: _value(best[name].sel(at).values[()]) for name in history.hyper}
            if not any(isinstance(v, float) and np.isnan(v) for v in picked.values()):
                found[scheme, rule] = picked
    return found


def _combos(
    history: History,
    best: Mapping[tuple[str, str], Mapping[str, Any]],
    names: Sequence[str],
    axes: Sequence[str],
    pool: _Pool,
    hyper: Sequence[str],
    *,
    every: bool,
    singly: bool,
) -> Iterator[dict[str, Any]]:
    """Each scheme, weight rule and combination of hyper-parameters of which there is something."""
    whole = _with_worst(history)
    there = [name for name in names if name in whole.measures]
    mean, deviation = whole.mean(*there), whole.deviation(*there)
    order = ("scheme", "weights", *history.hyper)
    begun, gone = whole.begun.transpose(*order, "seed").values, whole.diverged.transpose(*order, "seed").values
    means = {n: _shaped(mean[n], whole, (*order, "time")) for n in there}
    errors = {n: _shaped(deviation[n], whole, (*order, "time")) for n in there}
    single = {n: _shaped(whole.dataset[n], whole, (*order, "seed", "time")) for n in there} if singly else {}
    places = {n: _shaped(whole.dataset[n], whole, (*order, "seed", "time")) for n in axes if n in whole.dataset}
    coords = [whole.dataset[d].values.tolist() for d in order]
    own = _own(history)
    rules = whole.dataset["weights"].values.tolist()
    for where in np.ndindex(begun.shape[:-1]):
        if not begun[where].any():
            continue
        chosen = dict(zip(order, (c[i] for c, i in zip(coords, where, strict=True)), strict=True))
        scheme, rule = chosen["scheme"], chosen["weights"]
        is_best = not history.hyper or best.get((scheme, rule)) == {n: chosen[n] for n in history.hyper}
        if not every and not is_best:
            continue
        runs = np.flatnonzero(begun[where])
        yield {
            "at": [scheme, rule, *(chosen.get(name) for name in hyper)],
            "label": _label(chosen, own, several=len(rules) > 1),
            "best": is_best,
            "own": scheme in own,
            "gone": bool(gone[where].any()),
            "xs": [pool.place(places[n][where][runs].mean(axis=0)) if n in places else -1 for n in axes],
            "means": [rounded(means[n][where]) if _is_known(means.get(n), where) else None for n in names],
            "deviations": [rounded(errors[n][where], 3) if _is_known(errors.get(n), where) else None for n in names],
            "seeds": [
                {
                    "seed": int(seed),
                    "gone": bool(gone[where][k]),
                    "xs": [pool.place(places[n][where][k]) if n in places else -1 for n in axes],
                    "values": [rounded(single[n][where][k]) if n in single else None for n in names],
                }
                for k, seed in enumerate(whole.dataset["seed"].values)
                if singly and begun[where][k]
            ],
        }


def _shaped(values: xr.DataArray, whole: History, order: Sequence[str]) -> Floats:
    """Over all of `order`, also where the same holds for several runs."""
    missing = {d: whole.dataset[d].values for d in order if d not in values.dims}
    found: Floats = values.expand_dims(missing).transpose(*order).values.astype(float)
    return found


def _is_known(values: Floats | None, where: tuple[int, ...]) -> bool:
    return values is not None and bool(np.isfinite(values[where]).any())


def _label(chosen: Mapping[str, Any], own: Mapping[str, str], *, several: bool) -> str:
    rates = [named(n, v) for n, v in chosen.items() if n not in ("scheme", "weights")]
    rule = "own weights" if chosen["scheme"] in own else str(chosen["weights"])
    return ", ".join([str(chosen["scheme"]), *([rule] if several else []), *rates])


def named(name: str, value: Any) -> str:
    """A hyper-parameter with its value, as "lr 0.3"."""
    return f"{_SHORT.get(name, name.replace('_', ' '))} {plain(value)}"


# -- ends


def _ends(history: History) -> Iterator[dict[str, Any]]:
    """The final loss against each hyper-parameter of numbers, the others at their best."""
    if not history.hyper:
        return
    final = history.final("loss")
    gone = history.diverged.any("seed")
    mean = final.mean("seed").where(~gone)
    deviation = final.std("seed", ddof=1) if final.sizes["seed"] > 1 else mean * np.nan
    own, rules = _own(history), history.dataset["weights"].values.tolist()
    for name in history.hyper:
        if history.dataset[name].dtype.kind not in "iuf" or history.dataset.sizes[name] < 2:
            continue
        places = history.dataset[name].values.astype(float)
        for scheme in history.dataset["scheme"].values.tolist():
            for rule in rules[:1] if scheme in own else rules:
                at = {"scheme": scheme, "weights": rule}
                here = mean.sel(at).transpose(name, ...).values.reshape(len(places), -1)
                spread = deviation.sel(at).transpose(name, ...).values.reshape(len(places), -1)
                if not np.isfinite(here).any():
                    continue
                pick = np.where(np.isfinite(here), here, np.inf).argmin(axis=1)
                rows = np.arange(len(places))
                ys, off = here[rows, pick], spread[rows, pick]
                order = np.argsort(places)
                chosen = {"scheme": scheme, "weights": rule}
                yield {
                    "over": name,
                    "at": [scheme, rule],
                    "label": _label(chosen, own, several=len(rules) > 1),
                    "own": scheme in own,
                    "xs": rounded(places[order]),
                    "ys": rounded(ys[order]),
                    "deviations": rounded(off[order], 3) if np.isfinite(off).any() else None,
                }


def _over(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["over"] for one in ends))


def _end_chart(name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A chart of final losses over one hyper-parameter."""
    places = [x for line in lines for x in line["xs"]]
    values = [y for line in lines for y in line["ys"] if np.isfinite(y)]
    words = "learning rate" if name == RATE else name.replace("_", " ")
    return {
        "title": f"Final loss against the {words}",
        "x": {"label": name, "log": _is_wide(places)},
        "y": {"label": "final federated loss", "log": _is_wide(values)},
        "lines": lines,
    }
