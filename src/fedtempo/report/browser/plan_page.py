"""The page of a plan: sliders, and the timeline, weights, staleness and pace that follow them.

All numbers are those of `planning/explore.py`; the page picks and draws them. Of a timeline it gets the ends of rounds
and who took part, as a string of letters: when a client was sent its model, and how stale its update is, follow from
the round in which it took part before. Where a rule sends models to others, or clients come and go, jobs are listed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.ticks import text
from fedtempo.clock.timeline import I64
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.planning.compare import Plan
from fedtempo.planning.explore import RULES, Exploration, Federation, Ruled, Setting, explore
from fedtempo.planning.recommendation import Recommendation
from fedtempo.report.browser.document import WebPage, asset, document, escape, rounded
from fedtempo.report.browser.race import place_of, race_data
from fedtempo.report.browser.recommendation import recommendation_body, recommendation_schemes
from fedtempo.report.browser.tables import section
from fedtempo.report.jobs import work_of
from fedtempo.report.text import counted
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.schemes.options import SchemeOptions

LANES = 40
"""Clients that the page shows, at most: of more, some from the fastest to the slowest."""
TICKS = 10_000
"""Times of a timeline are whole numbers of such parts of what it shows."""
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BARS = 40
"""Of a histogram, at most."""
_ROUNDS = 2_000
_SHOWN = 7
"""Digits of what the page prints with four: a number that is rounded twice can end beside the one of the plan."""
"""Rounds of a timeline that are sent, at most."""
KINDS: dict[type[Scheme], str] = {
    FedAvg: "FedAvg",
    AsyncFedAvg: "AsyncFedAvg",
    FedFix: "FedFix",
    FedBuff: "FedBuff",
}


def plan_page(plan: Plan, recommendation: Recommendation | None = None) -> WebPage:
    """The page of a plan; with what a recommendation for the same clients has trained."""
    if recommendation is not None and recommendation.times != plan.times:
        raise InputError("recommendation: it is for other clients than the plan; make both with the same times")
    found = explore(plan)
    data, body, scripts = page_data(found), page_body(title_of(found)), ["chart.js", "lanes.js", "bars.js", "plan.js"]
    schemes = list(KINDS.values())
    if recommendation is not None:
        data["race"] = race_data(recommendation, _waits(found))
        best = place_of(recommendation.best.scheme)
        data["given"] |= best if best["kind"] in data["kinds"] else {}
        schemes = list(dict.fromkeys([*schemes, *recommendation_schemes(recommendation)]))
        tables, data["charts"] = recommendation_body(recommendation, schemes)
        body += section("All that was trained", tables)
        scripts = [*scripts[:-1], "race.js", "plan.js", "charts.js", "table.js"]
    return document(
        f"{counted(plan.times.num_clients, 'client')}, {plan.times.always.law} times",
        body,
        data=data,
        scripts=scripts,
        schemes=schemes,
    )


def _waits(found: Exploration) -> list[Fraction]:
    """Those of the federation that was asked for."""
    return [one.scheme.wait for one in found.federations[0].settings if isinstance(one.scheme, FedFix)]


def title_of(found: Exploration) -> str:
    """What the page is about."""
    times = found.federations[0].times
    slowest, fastest = float(times.mean_time.max()), float(times.mean_time.min())
    between = f"from {slowest:.4g} to {fastest:.4g}" if fastest < slowest else f"of {slowest:.4g}"
    return f"{counted(times.num_clients, 'client')} with {times.always.law} times {between}"


def page_body(title: str) -> str:
    """The page's parts; `plan.js` fills them."""
    return f"<style>{asset('plan.css')}</style>\n" + asset("plan.html").replace("{title}", escape(title))


def page_data(found: Exploration) -> dict[str, Any]:
    """All that the page knows."""
    first = found.federations[0]
    plan = found.plan
    chosen = plan.schemes[0].scheme if len(plan.schemes) == 1 else _sensible(first)
    return {
        "rules": list(found.rules),
        "kinds": _kinds(found),
        "given": _place(first) | {"rule": plan.weight_rule.label, **_named(chosen)},
        "step": plan.step,
        "ticks": TICKS,
        "fair": RULES[0],
        "federations": [_federation(one) for one in found.federations],
    }


def _sensible(federation: Federation) -> Scheme:
    """What the page begins with: FedFix at the wait next to half of the slowest client's time, if it is there."""
    fixes = [one.scheme for one in federation.settings if isinstance(one.scheme, FedFix)]
    if not fixes:
        return federation.settings[0].scheme
    half = float(federation.times.mean_time.max()) / 2
    return min(fixes, key=lambda scheme: abs(float(scheme.wait) - half))


def _kinds(found: Exploration) -> list[str]:
    """The schemes of the page: the four, then those of one's own."""
    there = [_named(setting.scheme)["kind"] for one in found.federations for setting in one.settings]
    return [kind for kind in KINDS.values() if kind in there] + [
        kind for kind in dict.fromkeys(there) if kind not in KINDS.values()
    ]


def _named(scheme: Scheme) -> dict[str, Any]:
    """What a scheme is on the page: its kind, and where its slider stands; one with options is a kind of its own."""
    kind = KINDS.get(type(scheme)) if scheme.options == SchemeOptions() else None
    if isinstance(scheme, FedFix) and kind:
        return {"kind": kind, "size": text(scheme.wait)}
    if isinstance(scheme, FedBuff) and kind:
        return {"kind": kind, "size": scheme.size}
    return {"kind": kind or scheme.label, "size": None}


def _place(federation: Federation) -> dict[str, Any]:
    """Where a federation is among the others."""
    spread = federation.spread
    return {
        "clients": federation.times.num_clients,
        "spread": None if spread is None else float(spread),
        "law": federation.times.always.law,
    }


def _federation(federation: Federation) -> dict[str, Any]:
    times = federation.times
    shown = _shown(times.mean_time)
    horizon = float(federation.horizon)
    settings = [_setting(one, federation, shown, horizon) for one in federation.settings]
    jobs = max((int(one.line.job.max(initial=0)) for one in federation.settings), default=0) + 2
    names = times.names
    return _place(federation) | {
        "times": rounded(times.mean_time[shown]),
        "shown": shown.tolist() if len(shown) < times.num_clients else None,
        "names": None if names is None else [names[i] for i in shown],
        "importance": _alike(federation.importance.values[shown]),
        "horizon": horizon,
        "durations": _durations(federation.config, shown, jobs, horizon),
        "settings": settings,
    }


def _shown(means: Floats) -> I64:
    """The clients that the page shows, by number."""
    if len(means) <= LANES:
        return np.arange(len(means))
    order: I64 = np.argsort(-means, kind="stable")
    chosen: I64 = order[np.linspace(0, len(means) - 1, LANES).round().astype(int)]
    return chosen


def _durations(config: ClockConfig, shown: I64, jobs: int, horizon: float) -> list[Any]:
    """How long each client's first jobs take: one number for a client whose jobs are all alike."""
    clients, numbers = np.meshgrid(shown, np.arange(min(jobs, _ROUNDS)), indexing="ij")
    ticks = config.times.draw(clients.ravel(), numbers.ravel(), seed=config.seed) * config.scale * float(config.unit)
    rows = np.ceil(ticks.reshape(clients.shape) * TICKS / horizon).astype(int).tolist()
    return [row[0] if len(set(row)) == 1 else row for row in rows]


def _setting(one: Setting, federation: Federation, shown: I64, horizon: float) -> dict[str, Any]:
    delay = one.max_delay
    return _named(one.scheme) | {
        "label": one.scheme.label,
        "wait": float(one.scheme.wait) if isinstance(one.scheme, FedFix) else None,
        "rounds": rounded(one.rounds_per_time, _SHOWN),
        "updates": rounded(one.updates_per_time, _SHOWN),
        "idle": round(one.idle_share, 6),
        "delay": rounded(one.mean_delay, _SHOWN),
        "most": None if delay is None else list(delay),
        "window": None if one.window is None else _short_whole(one.window),
        "practical": one.practical_window,
        "bias": rounded(one.identical_bias, _SHOWN),
        "alike": _alike(one.counted_alike[shown]),
        "rules": {name: _ruled(ruled, shown) for name, ruled in one.rules.items()},
        "delays": _histogram(one.delays),
        "line": _line(one, federation, shown, horizon),
    }


def _ruled(ruled: Ruled, shown: I64) -> list[Any]:
    weights = ruled.weights
    least, most = float(weights.min()), float(weights.max())
    counts = _alike(ruled.expected[shown])
    return [*rounded([ruled.step, ruled.pace, least, most], _SHOWN), _alike(weights[shown]), counts]


def _alike(values: Floats) -> Any:
    """Numbers of clients; one if they are all the same."""
    found = rounded(values)
    return found[0] if found and len(set(found)) == 1 else found


def _short_whole(number: int) -> int | str:
    """A whole number that JavaScript can hold, else as text."""
    if number < 10**9:
        return number
    return f"{number:.3g}".replace("e+", "e") if number < 10**300 else f"1e{len(str(number)) - 1}"


def _histogram(delays: I64) -> list[Any]:
    """Where the bars begin, how wide they are, and the share of updates in each."""
    there = np.flatnonzero(delays)
    first, last = int(there[0]), int(there[-1])
    width = max(1, -(-(last - first + 1) // _BARS))
    bars = np.add.reduceat(delays[first : last + 1], np.arange(0, last - first + 1, width))
    return [first, width, rounded(bars / delays.sum(), 3)]


def _line(one: Setting, federation: Federation, shown: I64, horizon: float) -> dict[str, Any]:
    """The first rounds: their ends, and who took part."""
    line, config = one.line, one.config
    part = TICKS / horizon
    if not config.rule.returns_to_contributors or config.availability is not None:
        return _listed_jobs(one, shown, horizon)
    unit = float(line.unit) * part
    lane = np.full(line.num_clients, -1)
    lane[shown] = np.arange(len(shown))
    lanes = lane[line.client]
    kept = lanes >= 0
    rounds = line.round_of_update[kept]
    seen = np.arange(line.num_rounds) if line.num_rounds <= _ROUNDS else np.unique(rounds)[:_ROUNDS]
    begins = np.searchsorted(rounds, seen)
    stops = np.searchsorted(rounds, seen, side="right")
    mine = lanes[kept]
    who = ",".join("".join(_LETTERS[k] for k in mine[a:b]) for a, b in zip(begins, stops, strict=True))
    ends = np.round(line.ends[seen] * unit).astype(int)
    wait = _even(ends)
    found: dict[str, Any] = {"who": who, "ends": ends.tolist() if wait is None else wait, "rounds": len(seen)}
    if len(seen) < line.num_rounds:
        found["numbers"] = seen.tolist()
    return found


def _even(ends: I64) -> float | None:
    """The length of rounds that all last equally long, in parts."""
    if len(ends) < 3:
        return None
    wait = float(ends[-1]) / len(ends)
    return round(wait, 4) if np.abs(ends - wait * np.arange(1, len(ends) + 1)).max() <= 1 else None


def _listed_jobs(one: Setting, shown: I64, horizon: float) -> dict[str, Any]:
    """Jobs one by one, those that came to nothing, and absences."""
    work = work_of(one.config, one.line, horizon)
    lane = {int(client): k for k, client in enumerate(shown)}
    part = TICKS / horizon

    def of_shown(client: Any, *columns: Any) -> list[list[Any]]:
        which = np.isin(client, shown)
        lanes = [lane[int(i)] for i in client[which]]
        return [lanes, *(np.round(column[which]).astype(int).tolist() for column in columns)]

    jobs = work.jobs
    return {
        "jobs": of_shown(jobs.client, jobs.sent * part, jobs.back * part, jobs.taken * part, jobs.delay),
        "failed": of_shown(work.failed.client, work.failed.begin * part, work.failed.end * part),
        "lost": of_shown(work.lost.client, work.lost.begin * part, work.lost.end * part),
        "away": of_shown(work.away.client, work.away.begin * part, work.away.end * part),
        "ends": np.round(one.line.ends[:_ROUNDS] * float(one.line.unit) * part).astype(int).tolist(),
    }
