"""What fedtempo computes, written down: run it on two versions of the code, and compare the files.

    golden.py --out FILE [--tests DIR] [--only SECTION ...] [--skip SECTION ...] [--no-cache]
    golden.py --compare A.json B.json [--ignore PREFIX ...] [--most N]

Public names alone are used: fedtempo.*, fedtempo.rules, fedtempo.testing, fedtempo.flower, and the command line.
Sections: timelines, longrun, theory, trained, flower, cli. An item is one line: "section/what/…": value. Floats are
written exactly. Long arrays are digests, followed by their sum in six digits (~), so that a change of a last bit can be
told from a change of values. Names of the older version are used where both have them. What raises is written as "!Type: message".

The process keeps to one core, since the number of cores decides how a study is cut into units. Compiled programs are
kept in .pytest_cache/golden of the project; JAX finds them by what they compute, so that equal programs are compiled once.
"""

# ruff: noqa: B008, E501, SIM102, SIM113

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "MPLBACKEND": "Agg",
    "COLUMNS": "200",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "golden"
SECTIONS = ("timelines", "longrun", "theory", "trained", "flower", "cli")


# -- writing down

SHORT = 10
"""Up to how many numbers of an array are written out."""


def number(value) -> str:
    """A number, exactly."""
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, (bool, int, Fraction)) else repr(float(value))


def digest(array) -> str:
    """An array as its type, its shape, a digest of its bytes, and roughly its sum."""
    import numpy as np

    array = np.ascontiguousarray(array)
    if array.dtype.kind in "OUS":
        return digest_of_text("\n".join(map(str, array.ravel().tolist())))
    sha = hashlib.sha256(array.tobytes()).hexdigest()[:24]
    with np.errstate(all="ignore"):
        total = float(np.nansum(array, dtype=np.float64))
    missing = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    nan = f" nan {missing}" if missing else ""
    return f"{array.dtype}{list(array.shape)} {sha} ~{total:.6g}{nan}".replace(", ", ",")


def digest_of_text(text: str) -> str:
    return f"text[{len(text)}] {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def plain(value):
    """A value as one line."""
    import numpy as np

    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value if len(value) <= 400 else f"{value[:80]}… {digest_of_text(value)}"
    if isinstance(value, (float, Fraction, np.generic)):
        return number(value)
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            return plain(list(map(str, array.ravel().tolist())))
        return " ".join(map(number, array.tolist())) if array.ndim == 1 and 0 < array.size <= SHORT else digest(array)
    if isinstance(value, (list, tuple)):
        if all(isinstance(v, (bool, int, float, Fraction, str, type(None), np.generic)) for v in value):
            text = " ".join(v if isinstance(v, str) else "None" if v is None else number(v) for v in value)
            return text if len(text) <= 260 else f"{len(value)} values, {digest_of_text(text)}"
    return plain(json.dumps(value, sort_keys=True, default=str, ensure_ascii=False))


class Book:
    """All items; each is worked out by itself."""

    def __init__(self) -> None:
        self.items: dict[str, object] = {}
        self.seconds: dict[str, float] = {}

    def put(self, key: str, value) -> None:
        """A value; a dictionary, or a list of dictionaries, becomes an item for each entry."""
        import numpy as np

        if isinstance(value, dict):
            for name, part in value.items():
                self.put(f"{key}/{name}", part)
            if not value:
                self.put(key, "empty")
        elif isinstance(value, (list, tuple)) and any(isinstance(v, (dict, list, tuple, np.ndarray)) for v in value):
            for place, part in enumerate(value):
                self.put(f"{key}/{place:02d}", part)
        else:
            assert key not in self.items, f"twice: {key}"
            self.items[key] = plain(value)

    def item(self, key: str, make) -> bool:
        """What `make()` gives, or what it raises."""
        begin = time.perf_counter()
        try:
            value = make()
        except Exception as error:
            value = f"!{type(error).__name__}: {error}"
        good = not (isinstance(value, str) and value.startswith("!"))
        self.put(key, value)
        spent = time.perf_counter() - begin
        self.seconds[key] = spent
        if VERBOSE and spent > VERBOSE:
            print(f"{spent:7.2f} s  {key}  {'' if good else value[:150]}", file=sys.stderr, flush=True)
        return good


VERBOSE = 0.0


# -- what is run on: schemes and times of seven clients


@dataclass(frozen=True)
class World:
    """Schemes and client times by name."""

    schemes: dict
    times: dict
    importance: tuple


def world() -> World:
    import fedtempo as ft

    means = ["1", "2/3", "0.31", "5/4", "0.9", "2.2", "0.47"]
    f80, irregular = ft.FixedTimes.spread(7, 80), ft.FixedTimes(means)
    exponential = ft.ExponentialTimes(means)
    low, high = [f"{0.1 * (i + 1):.1f}" for i in range(7)], [f"{0.2 * i + 0.9:.1f}" for i in range(7)]
    jobs = [["1", "0.5"], ["0.7"], ["0.25", "2", "0.75"], ["2.25", "3.5"], ["1"], ["0.9", "1.1"], ["0.3"]]
    return World(
        schemes={
            "fedavg": ft.FedAvg(),
            "async": ft.AsyncFedAvg(),
            "fedfix-half": ft.FedFix("1/2"),
            "fedfix-fifth": ft.FedFix("1/5"),
            "staged": ft.StagedFedFix([("1/4", 12), ("1/2", None)]),
            "fedbuff-1": ft.FedBuff(1),
            "fedbuff-3": ft.FedBuff(3),
            "fedbuff-all": ft.FedBuff(7),
            "uniform-3": ft.UniformSampling(3),
            "multinomial-4": ft.MultinomialSampling(4),
            "fastest-3": ft.FastestSampling(3),
            "cured": ft.CuredSampling(ft.FastestSampling(3), window=8, biased=2),
        },
        times={
            "f80": f80,
            "irregular": irregular,
            "exponential": exponential,
            "coarse": ft.ExponentialTimes(means, resolution="1/10"),
            "lognormal": ft.LogNormalTimes(means, sigma=0.5),
            "uniform": ft.UniformTimes(low, high),
            "trace": ft.TraceTimes(jobs),
            "bootstrap": ft.TraceTimes(jobs, mode="bootstrap"),
            "failing": irregular.available(failure=[0.1, 0.2, 0, 0.3, 0, 0.05, 0.5]),
            "failing-exponential": exponential.available(failure=0.2),
            "on-off": exponential.available(on=10, off=5),
            "fixed-on-off": f80.available(failure=0.1, on=10, off=[5, 5, 5, 2, 2, 2, 1]),
            "period": f80.available(absences={3: [(8, 18)], 5: [(0, 2), (20, 22)]}, period=24),
            "joins": f80.available(absences={3: [(0, 12), (40, 60)], 6: [(25, None)]}),
        },
        importance=("1/4", "1/8", "1/8", "1/16", "3/16", "1/8", "1/8"),
    )


def own_rule(pause: str):
    """The example of a rule of one's own, examples/own_rule.py."""
    from fedtempo.rules import Close, WaitingRule, resend

    @dataclass(frozen=True)
    class Paced(WaitingRule):
        pause: Fraction

        @property
        def waits(self):
            return (self.pause,)

        def start(self, view):
            return view.now, tuple(sorted(view.clients))

        def deadline(self, state, view):
            return state if view.arrived and state >= view.now else None

        def decide(self, state, event, view):
            if (again := resend(event)) is not None:
                return state, again
            if view.arrived and view.now >= state:
                return view.now + int(self.pause / view.unit), Close(tuple(view.arrived.values()))
            return state, None

    return Paced(Fraction(pause))


def half_rule():
    """A rule of one's own without a state: a round ends when half of the clients have answered."""
    from fedtempo.rules import Close, WaitingRule, resend

    @dataclass(frozen=True)
    class Half(WaitingRule):
        def decide(self, state, event, view):
            if (again := resend(event)) is not None:
                return state, again
            if 2 * len(view.arrived) >= len(view.clients):
                return state, Close(tuple(view.arrived.values()))
            return state, None

    return Half()


def line_of(line) -> dict:
    """A timeline."""
    return {
        "unit": line.unit,
        "rounds": line.num_rounds,
        "updates": line.num_updates,
        "start": line.start,
        "duration": line.duration,
        "ends": digest(line.ends),
        "offsets": digest(line.offsets),
        "client": digest(line.client),
        "base": digest(line.base),
        "job": digest(line.job),
        "draws": None if line.draws is None else digest(line.draws),
        "live": digest(line.live_versions),
    }


# -- 1: timelines


def timelines(book: Book) -> None:
    import fedtempo as ft

    made = world()
    for name, times in made.times.items():
        for label, scheme in made.schemes.items():
            key = f"timelines/{name}/{label}"
            book.item(f"{key}/until 60", lambda t=times, s=scheme: line_of(ft.timeline(s, t, until=60)))
            book.item(
                f"{key}/120 rounds, seed 3",
                lambda t=times, s=scheme: line_of(ft.timeline(s, t, rounds=120, seed=3, importance=made.importance)),
            )
        book.item(f"timelines/{name}/draws", lambda t=times: _draws(t))
    one = ft.FixedTimes(["3/4"])
    book.item("timelines/one/centralized", lambda: line_of(ft.timeline(ft.Centralized(), one, until=30)))
    book.item("timelines/f80/centralized", lambda: line_of(ft.timeline(ft.Centralized(), made.times["f80"], until=30)))
    book.item(
        "timelines/f80/highest-loss",
        lambda: line_of(ft.timeline(ft.HighestLossSampling(2), made.times["f80"], until=30)),
    )
    hardware = ft.FixedTimes.hardware(
        step_seconds=["0.01", "0.02", "0.05"], steps=10, bytes_sent=10**6, bytes_per_second=[10**6, 10**7, 10**6]
    )
    book.item("timelines/hardware/async", lambda: line_of(ft.timeline(ft.AsyncFedAvg(), hardware, until=30)))
    windows = ft.StagedFedFix.over_windows(made.times["f80"], [("1/4", 2), ("1/2", 1), ("1", None)])
    book.item("timelines/f80/staged over windows/spec", windows.spec)
    book.item("timelines/f80/staged over windows", lambda: line_of(ft.timeline(windows, made.times["f80"], until=60)))
    for name in ("f80", "exponential", "trace", "on-off"):
        for label in ("async", "fedfix-half", "fedbuff-3", "uniform-3", "cured"):
            book.item(
                f"timelines/{name}/{label}/chunks",
                lambda t=made.times[name], s=made.schemes[label]: line_of(
                    ft.Timeline.joined(ft.timeline_chunks(s, t, until=200, seed=1))
                ),
            )
    for name in ("f80", "exponential", "failing", "joins"):
        book.item(
            f"timelines/{name}/own rule",
            lambda t=made.times[name]: line_of(
                ft.timeline(ft.Scheme(own_rule("1/2"), name="paced"), t, until=60, seed=2)
            ),
        )
        book.item(
            f"timelines/{name}/own half rule",
            lambda t=made.times[name]: line_of(ft.timeline(ft.Scheme(half_rule(), name="half"), t, until=60, seed=2)),
        )
    book.item("timelines/own rule/checked", lambda: str(_checked()))
    for label, scheme in made.schemes.items():
        book.item(f"timelines/schemes/{label}", lambda s=scheme: {"label": str(s), "repr": repr(s), "spec": s.spec()})
    half = Fraction(1, 2)
    for name, times in made.times.items():
        asked = {
            "repr": lambda t=times: repr(t),
            "unit": lambda t=times: t.unit,
            "described": lambda t=times: t.describe(),
            "means": lambda t=times: t.mean_time,
            "rounds needed": lambda t=times: t.expected_rounds(half),
            "survival": lambda t=times: t.survival(0.7),
            "longest": lambda t=times: t.longest(),
            "names": lambda t=times: t.names,
        }
        for what, make in asked.items():
            book.item(f"timelines/times/{name}/{what}", make)


def _checked():
    from fedtempo.testing import check_rule

    return check_rule(half_rule())


def _draws(times) -> dict:
    import numpy as np

    clients, jobs = np.arange(times.num_clients)[:, None], np.arange(50)[None, :]
    return {f"seed {seed}": digest(times.draw(clients, jobs, seed=seed)) for seed in (0, 3)}


# -- 2: the long run

EVERYTHING = ("f80", "irregular", "exponential", "trace", "joins")
"""Times whose long run is known without, or with a short run of the clock."""
PLANNED = {
    "coarse": ("async", "fedfix-half", "fedbuff-all"),
    "lognormal": ("fedavg", "async", "fedfix-half", "fedbuff-3", "multinomial-4", "cured"),
    "uniform": ("fedavg", "async", "fedfix-fifth", "fedbuff-all", "fastest-3"),
    "bootstrap": ("fedavg", "async", "fedfix-half", "uniform-3"),
    "failing": ("fedavg", "async", "fedfix-half", "fedbuff-3", "multinomial-4", "fastest-3"),
    "failing-exponential": ("fedavg", "fedfix-fifth", "fedbuff-3"),
    "on-off": ("fedavg", "async", "fedbuff-3"),
    "fixed-on-off": ("async", "fedfix-half", "fastest-3"),
    "period": ("fedavg", "async", "fedfix-half", "cured"),
}
"""Of the others, what is compared: these run the clock for long."""


def rules_of() -> dict:
    import fedtempo as ft

    return {
        "time-based": "time-based",
        "identical": "identical",
        "importance": "importance",
        "polynomial": ft.Discounted(ft.TimeBased(), ft.PolynomialDiscount(0.5)),
        "hinge": ft.Discounted(ft.Identical(), ft.HingeDiscount(10, 4)),
        "constant": ft.Discounted(ft.ImportanceOnly(), ft.ConstantDiscount(0.5)),
        "cutoff": ft.Discounted(ft.TimeBased(), ft.CutOff(2)),
        "normalised": ft.Normalised(ft.TimeBased(), (1, 2, 3, 4, 5, 6, 7)),
        "history": ft.ParticipationHistory(20),
        "mixing": ft.rivals.Mixing(0.6),
    }


def participation(found) -> dict:
    return {
        "share": [float(v).hex() for v in found.share],
        "exact": None if found.exact is None else [str(v) for v in found.exact],
        "source": found.source,
        "error": found.error,
        "taking part": found.taking_part,
        "updates": found.updates_per_round,
    }


def weights_of(found, line) -> dict:
    told = {
        "values": found.values[-1] if found.num_stages == 1 else found.values,
        "exact": [None if row is None else [str(v) for v in row] for row in found.exact][-1],
        "stages": found.num_stages,
        "first": found.first_rounds if found.first_times is None else [str(t) for t in found.first_times],
        "label": found.rule.label,
        "tracked": found.tracked,
        "repr": repr(found),
    }
    return told | {"applied": digest(found.applied(line))}


def longrun(book: Book) -> None:
    import fedtempo as ft

    made = world()
    uneven = made.importance
    for name in EVERYTHING:
        times = made.times[name]
        for label, scheme in made.schemes.items():
            key = f"longrun/{name}/{label}"
            book.item(
                f"{key}/participation",
                lambda t=times, s=scheme: participation(ft.participation_of(s, t, importance=uneven)),
            )
            if name != "joins" and not (name == "exponential" and label == "staged"):
                book.item(f"{key}/cycle", lambda t=times, s=scheme: _cycle(ft.limit_cycle(s, t, max_rounds=20_000)))
            line = None
            with contextlib.suppress(Exception):
                line = ft.timeline(scheme, times, rounds=100, importance=uneven)
            for called, rule in rules_of().items():
                book.item(
                    f"{key}/weights/{called}",
                    lambda t=times, s=scheme, r=rule, n=line: weights_of(
                        ft.weights(s, t, importance=uneven, rule=r), n
                    ),
                )
                quick = called in ("time-based", "identical", "importance", "normalised", "mixing")
                drawn = label in ("uniform-3", "multinomial-4")  # no cycle: a long run for each
                if quick or (name in ("f80", "trace") and called != "history" and not drawn):
                    book.item(
                        f"{key}/expected/{called}",
                        lambda t=times, s=scheme, r=rule: ft.expected_weights(s, t, importance=uneven, rule=r),
                    )
            if not (name == "exponential" and label in ("fedbuff-1", "fedbuff-3")):
                book.item(f"{key}/plan", lambda t=times, s=scheme: ft.compare(t, s).schemes[0].to_dict())
        book.item(
            f"longrun/{name}/document",
            lambda t=times: {k: v for k, v in ft.compare(t, []).to_dict().items() if k != "schemes"},
        )
    for name, labels in PLANNED.items():
        times = made.times[name]
        for label in labels:
            scheme = made.schemes[label]
            book.item(f"longrun/{name}/{label}/plan", lambda t=times, s=scheme: ft.compare(t, s).schemes[0].to_dict())
        book.item(
            f"longrun/{name}/document",
            lambda t=times: {k: v for k, v in ft.compare(t, []).to_dict().items() if k != "schemes"},
        )
    estimated = {"failing": "cured", "period": "fedbuff-3", "on-off": "fedfix-half"}
    for name, label in estimated.items():
        book.item(
            f"longrun/{name}/{label}/participation",
            lambda t=made.times[name], s=made.schemes[label]: participation(
                ft.participation_of(s, t, importance=uneven, seed=1)
            ),
        )
    closed = {"coarse": "async", "lognormal": "fedfix-fifth", "uniform": "fedfix-half", "bootstrap": "async"}
    closed |= {"failing": "fedfix-fifth", "failing-exponential": "fedbuff-3", "on-off": "async"}
    for name, label in closed.items():
        for called in ("time-based", "identical", "importance", "normalised"):
            times, scheme = made.times[name], made.schemes[label]
            line = ft.timeline(scheme, times, rounds=100)
            book.item(
                f"longrun/{name}/{label}/weights/{called}",
                lambda t=times, s=scheme, r=rules_of()[called], n=line: weights_of(
                    ft.weights(s, t, importance=uneven, rule=r), n
                ),
            )
    f80 = made.times["f80"]
    half = ft.Scheme(half_rule(), name="half")
    book.item("longrun/f80/own half rule/plan", lambda: ft.compare(f80, half).schemes[0].to_dict())
    book.item("longrun/f80/own half rule/cycle", lambda: _cycle(ft.limit_cycle(half, f80)))
    book.item(
        "longrun/f80/async/expected/history",
        lambda: ft.expected_weights(ft.AsyncFedAvg(), f80, rule=ft.ParticipationHistory(20)),
    )
    for called, rule in rules_of().items():
        book.item(
            f"longrun/f80/plan by {called}",
            lambda r=rule: ft.compare(
                f80, [ft.FedFix("1/2"), ft.FedBuff(3)], importance=uneven, weights=r, seed=2
            ).to_dict(),
        )
    for clients in (4, 9):
        times = ft.FixedTimes.spread(clients, 80)
        book.item(f"longrun/defaults/{clients} clients", lambda t=times: ft.compare(t).to_dict())
    many = ft.FixedTimes.spread(300, 60)
    book.item("longrun/many", lambda: ft.compare(many, [ft.FedAvg(), ft.FedFix("1/2"), ft.FedFix("1/3")]).to_dict())
    one = ft.FixedTimes(["3/4"])
    book.item("longrun/one/centralized", lambda: ft.compare(one, ft.Centralized()).to_dict())
    rivals = {
        "fedasync": ft.rivals.FedAsync(0.6, mu=0.1),
        "fedbuff": ft.rivals.FedBuff(3),
        "cutoff": ft.rivals.CutOff(ft.AsyncFedAvg(), 4),
        "fednova": ft.rivals.FedNova((1, 2, 3, 4, 5, 6, 7)),
        "fedau": ft.rivals.FedAU(ft.FedFix("1/2"), cutoff=20),
        "highest-loss": ft.HighestLossSampling(2),
        "cured highest-loss": ft.CuredSampling(ft.HighestLossSampling(2), window=8, biased=2),
    }
    for called, scheme in rivals.items():
        book.item(f"longrun/f80/{called}/plan", lambda s=scheme: ft.compare(f80, s).schemes[0].to_dict())
        book.item(f"longrun/f80/{called}/spec", lambda s=scheme: {"label": s.label, "spec": s.spec()})


def _cycle(cycle) -> dict | None:
    if cycle is None:
        return None
    return {
        "start": cycle.start,
        "length": cycle.length,
        "counts": cycle.counts,
        "duration": cycle.duration,
        "mean delay": cycle.mean_delay,
        "pace": cycle.rounds_per_time,
    }


# -- 3: theory


def expected_of(found) -> dict:
    names = ("rounds", "num_rounds", "co_participation", "weight_spread", "max_delay", "window", "source", "gamma")
    more = ("expected_weight", "normalised_run", "max_total_weight")
    return {"weights": digest(found.weights)} | {name: getattr(found, name) for name in (*names, *more)}


def ceiling_of(found) -> dict:
    told = {name: getattr(found, name) for name in ("printed", "largest", "binding", "corrected", "broken", "note")}
    conditions = {c.name: c.largest for c in found.conditions}
    return told | {
        "conditions": conditions,
        "corrected conditions": {c.name: c.largest for c in found.corrected_conditions},
    }


def bound_of(found) -> dict:
    told = {f"terms {name}": value for name, value in found.terms.items()}
    names = ("theorem_1", "theorem_2", "theorem_3", "theorem_3_gradient", "corollary_1", "notes", "gradient_bound")
    told |= {name: getattr(found, name) for name in names}
    return told | {
        "as printed": found.as_printed.total,
        "start": digest(found.start),
        "ceiling": found.ceiling.corrected,
    }


def residuals_of(found) -> dict:
    names = ("residual", "run_minimum", "sigma_1", "sigma_2", "sigma", "unfairness", "chi_squared", "heterogeneity")
    told = {name: getattr(found, name) for name in names}
    return told | {name: digest(getattr(found, name)) for name in ("run_optimum", "round_optima", "round_minima")}


def measured_of(found) -> dict:
    names = ("theorem_1", "theorem_2", "theorem_3", "unseen", "never_seen", "gradient_bound")
    return {name: getattr(found, name) for name in names}


def forecast_of(found) -> dict:
    names = ("lr", "time", "loss", "client_loss", "mean", "variance")
    return {name: getattr(found, name) for name in names}


def theory(book: Book) -> None:
    import numpy as np

    import fedtempo as ft

    th = ft.theory
    clients = 5
    all_times = {
        "f80": ft.FixedTimes.spread(clients, 80),
        "irregular": ft.FixedTimes(["1", "2/3", "0.5", "5/4", "2"]),
        "exponential": ft.ExponentialTimes(["1", "2/3", "0.5", "5/4", "2"]),
    }
    lognormal = ft.LogNormalTimes(["1", "2/3", "0.5", "5/4", "2"])
    away = all_times["f80"].available(failure=0.1)
    schemes = {
        "fedavg": ft.FedAvg(),
        "async": ft.AsyncFedAvg(),
        "fedfix-half": ft.FedFix("1/2"),
        "fedfix-fifth": ft.FedFix("1/5"),
        "staged": ft.StagedFedFix([("1/4", 12), ("1/2", None)]),
        "fedbuff-2": ft.FedBuff(2),
        "uniform-2": ft.UniformSampling(2),
        "multinomial-3": ft.MultinomialSampling(3),
        "fastest-2": ft.FastestSampling(2),
        "cured": ft.CuredSampling(ft.FastestSampling(2), window=8, biased=2),
        "with parts": ft.FedFix("1/2").using(server=ft.FedAdam()),
    }
    problem = ft.problems.quadratics(clients, dimension=3, noise=0.5, rows=[6, 9, 12, 5, 8], seed=1, importance="rows")
    p = problem.importance.exact
    types = list("aabbc")
    gentle = ft.LocalSGD(steps=3, lr=1e-4, batch_size=4)
    several = ft.LocalSGD(steps=2, lr=[0.02, 0.1], batch_size=4)
    for name, times in all_times.items():
        for label, scheme in schemes.items():
            key = f"theory/{name}/{label}"
            if name != "f80" and label == "with parts":
                continue
            drawn = name == "exponential" and label in ("uniform-2", "multinomial-3", "cured")  # long runs
            for rule in ("time-based", "identical"):
                book.item(
                    f"{key}/quantities/{rule}",
                    lambda t=times, s=scheme, r=rule: _quantities(
                        th.quantities(scheme=s, times=t, weights=r, importance=p, types=types)
                    ),
                )
            if not drawn:
                book.item(
                    f"{key}/quantities/until 30",
                    lambda t=times, s=scheme: th.quantities(
                        scheme=s, times=t, until=30, weights="importance"
                    ).to_dict(),
                )
            book.item(
                f"{key}/quantities/happened",
                lambda t=times, s=scheme: _happened(th, ft, s, t, p),
            )
            for called, rule in (("time-based", "time-based"), ("identical", "identical")):
                book.item(
                    f"{key}/expected/{called}",
                    lambda t=times, s=scheme, r=rule: expected_of(th.expected_from_scheme(s, t, p, r, rounds=50)),
                )
                book.item(
                    f"{key}/ceiling/{called}",
                    lambda t=times, s=scheme, r=rule: ceiling_of(
                        th.learning_rate_ceiling(
                            th.expected_from_scheme(s, t, p, r), smoothness=1.3, local_steps=4, server_lr=0.8
                        )
                    ),
                )
            for steps in (1, 5):
                slow = name == "exponential" and label in (
                    "fedfix-half",
                    "fedfix-fifth",
                    "fedbuff-2",
                    "async",
                    "staged",
                )
                if (slow or drawn) and steps == 5:
                    continue
                book.item(
                    f"{key}/stability/{steps} steps",
                    lambda t=times, s=scheme, k=steps: _limit(
                        th.stability_limit(np.linspace(0.5, 1.0, clients), s, t, local_steps=k, server_lr=0.9)
                    ),
                )
            if name != "exponential":
                book.item(
                    f"{key}/stability/problem",
                    lambda t=times, s=scheme: _limit(th.stability_limit(problem, s, t, weights="identical")),
                )
            book.item(
                f"{key}/bound/identical",
                lambda t=times, s=scheme: bound_of(
                    th.bound(
                        problem, scheme=s, times=t, local=gentle, until=30, weights="identical", gradient_bound=2.0
                    )
                ),
            )
            book.item(
                f"{key}/bound/law",
                lambda t=times, s=scheme: bound_of(th.bound(problem, scheme=s, times=t, local=gentle, rounds=60)),
            )
            book.item(f"{key}/bound/timeline", lambda t=times, s=scheme: _bound_met(ft, problem, s, t, gentle, p))
            book.item(
                f"{key}/assumptions",
                lambda t=times, s=scheme: [str(a) for a in th.assumptions(problem, scheme=s, times=t, local=gentle)],
            )
            book.item(
                f"{key}/forecast",
                lambda t=times, s=scheme: forecast_of(
                    th.forecast(
                        problem,
                        ft.timeline(s, t, until=12, importance=p),
                        ft.weights(s, t, importance=p),
                        local=several,
                        at=[3, 6, 12],
                    )
                ),
            )
            if not (name == "exponential" and label not in ("fedavg", "async", "fedbuff-2")):
                book.item(
                    f"{key}/stationary",
                    lambda t=times, s=scheme: forecast_of_stationary(th.stationary_loss(problem, s, t, local=several)),
                )
                book.item(f"{key}/rate", lambda t=times, s=scheme: digest(th.rate(problem, s, t, local=several)))
            book.item(f"{key}/regime", lambda t=times, s=scheme: _regime(th.regime(s, t, importance=p)))
            book.item(f"{key}/rounds in 40", lambda t=times, s=scheme: float(th.rounds_in(s, t, 40, importance=p)))
            book.item(
                f"{key}/remaining",
                lambda t=times, s=scheme: digest(th.remaining_times(ft.timeline(s, t, rounds=30, seed=2), t, seed=2)),
            )
            book.item(
                f"{key}/residuals",
                lambda t=times, s=scheme: residuals_of(
                    th.residuals(th.constants(problem, batch_size=4), th.expected_from_scheme(s, t, p))
                ),
            )
    for label in ("async", "fedfix-half", "fedbuff-2"):
        scheme = schemes[label]
        for name, times in (("lognormal", lognormal), ("failing", away)):
            key = f"theory/{name}/{label}"
            if (name, label) == ("lognormal", "fedbuff-2"):
                continue
            book.item(
                f"{key}/typical",
                lambda t=times, s=scheme: _limit(
                    th.stability_limit(np.ones(clients), s, t, sense="typical", rounds=1500)
                ),
            )
            book.item(
                f"{key}/bound",
                lambda t=times, s=scheme: bound_of(th.bound(problem, scheme=s, times=t, local=gentle, rounds=60)),
            )
            book.item(f"{key}/bound/timeline", lambda t=times, s=scheme: _bound_met(ft, problem, s, t, gentle, p))
            book.item(
                f"{key}/quantities",
                lambda t=times, s=scheme: th.quantities(
                    timeline=ft.timeline(s, t, until=30, seed=1), weights=np.ones(clients), times=t
                ).to_dict(),
            )
    matrices = np.stack([np.diag([1.0, 0.5]) + 0.1 * i * np.ones((2, 2)) for i in range(clients)])
    for label in ("fedavg", "async", "fedfix-half"):
        book.item(
            f"theory/matrices/{label}",
            lambda s=schemes[label]: _limit(th.stability_limit(matrices, s, all_times["f80"])),
        )
    logistic = ft.problems.digits(clients=3, partition=ft.Dirichlet(0.5), seed=0, l2=0.1)
    three = ft.FixedTimes(["1", "2/3", "1/2"])
    for called, given in (("quadratics", problem), ("digits", logistic)):
        for size in (4, None):
            book.item(
                f"theory/constants/{called}/batch {size}",
                lambda g=given, b=size: _constants(th.constants(g, batch_size=b)),
            )
        book.item(f"theory/optimum/{called}", lambda g=given: digest(th.optimum(g)))
        book.item(f"theory/types/{called}", lambda g=given: th.DataTypes.by_data(g).of_client)
    book.item(
        "theory/digits/fedfix-half/bound",
        lambda: bound_of(
            th.bound(logistic, scheme=ft.FedFix("1/2"), times=three, rounds=50, local=ft.LocalSGD(steps=2, lr=1e-5))
        ),
    )
    book.item(
        "theory/digits/assumptions",
        lambda: [str(a) for a in th.assumptions(logistic, scheme=ft.AsyncFedAvg(), times=three)],
    )
    book.item(
        "theory/too fast",
        lambda: bound_of(
            th.bound(problem, scheme=ft.FedAvg(), times=all_times["f80"], rounds=50, local=ft.LocalSGD(lr=5.0))
        ),
    )
    kinds = th.DataTypes(types)
    book.item("theory/type weights", lambda: th.type_weights(kinds, [0.5, 0.25, 1, 1, 0.1], p))
    book.item(
        "theory/lemma 1",
        lambda: th.lemma_1(
            th.Covariance(np.array([0.2, 0.3, 0.5]), np.array([0.1, 0.05, 0.2]), 0.7), np.arange(6.0).reshape(3, 2)
        ),
    )
    book.item("theory/exponents/converges", lambda: [th.converges(0.2, 0.1, c).failed for c in (0.1, 0.5, 1.0)])
    book.item("theory/exponents/best", lambda: [th.best_exponent(0, 0), th.best_exponent(0.3, 0.6)])
    book.item("theory/exponents/slowest", lambda: [th.slowest_exponent(0, 0, 0.5), th.slowest_exponent(0.3, 0.6, 0.8)])
    book.item(
        "theory/recommend/quadratics",
        lambda: _untimed(ft.recommend)(
            problem,
            all_times["f80"],
            until=100,
            local=ft.LocalSGD(steps=2, batch_size=4),
            schemes=[ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)],
            rates=[0.05, 0.1, 0.2, 0.5],
        ),
    )


def _untimed(recommend):
    """What it says, without the seconds that it took."""

    def said(*given, **named) -> dict:
        found = recommend(*given, **named).to_dict()
        return found | {"spent": {key: value for key, value in found["spent"].items() if key != "seconds"}}

    return said


def _quantities(found) -> dict:
    rows = {f"{place:02d} {name}": f"{symbol} {value}" for place, (symbol, name, value) in enumerate(found.rows())}
    return {"dict": found.to_dict(), "rows": rows}


def _happened(th, ft, scheme, times, importance) -> dict:
    line = ft.timeline(scheme, times, rounds=40, importance=importance, seed=1)
    weights = ft.weights(scheme, times, importance=importance)
    found = th.quantities(timeline=line, weights=weights, times=times, importance=importance)
    return found.to_dict() | {"expected": expected_of(th.expected_from_timeline(line, weights))}


def _limit(found) -> dict:
    return {"lr": found.lr, "error": found.error, "kind": found.kind, "coordinate": found.coordinate}


def _bound_met(ft, problem, scheme, times, local, importance) -> dict:
    line = ft.timeline(scheme, times, rounds=25, importance=importance, seed=1)
    weights = ft.weights(scheme, times, importance=importance)
    first = ft.theory.bound(problem, timeline=line, weights=weights, local=local)
    met = ft.theory.measure(first.left, line, weights, local, runs=2)
    whole = ft.theory.bound(problem, timeline=line, weights=weights, local=local, measured=met)
    return bound_of(whole) | {"measured": measured_of(met)}


def _regime(found) -> dict:
    import numpy as np

    pull = np.linspace(0.05, 0.3, 5 * 2).reshape(5, 2, 1)
    value, error = found.growth(pull)
    return {
        "kind": found.kind,
        "pace": found.rounds_per_time,
        "exact": found.exact,
        "growth": value.ravel(),
        "error": error.ravel(),
    }


def _constants(found) -> dict:
    names = ("how", "smoothness", "full_smoothness", "convexity", "optimal_loss", "heterogeneity", "rows_read", "noise")
    told = {name: getattr(found, name) for name in names}
    return told | {name: digest(getattr(found, name)) for name in ("optimum", "client_optima", "client_minima")}


def forecast_of_stationary(found) -> dict:
    return {name: getattr(found, name) for name in ("lr", "loss", "client_loss", "mean", "variance", "error")}


# -- 4: trained bits


def history_of(history, label: str) -> dict:
    """Every variable of a study's data set for one scheme, and its final model as one digest."""
    import numpy as np

    data = history.dataset.sel(scheme=[label])
    told = {}
    sha, total = hashlib.sha256(), 0.0
    for name in sorted(map(str, data.data_vars)):
        variable = data[name]
        told[name] = f"{','.join(map(str, variable.dims))} {digest(variable.values)}"
        if name.startswith("parameter:"):
            sha.update(np.ascontiguousarray(variable.values).tobytes())
            total += float(np.nansum(variable.values, dtype=np.float64))
    final = data["loss"].isel(time=-1).values.ravel()
    model = f"{sha.hexdigest()[:24]} ~{total:.6g}"
    return told | {"model": model, "final loss": final[:SHORT], "size": dict(map(_text, data.sizes.items()))}


def _text(entry):
    return str(entry[0]), int(entry[1])


def configuration_of(history, *, whole: bool = False) -> dict:
    """What a study says of itself; without versions, dates and hardware."""
    kept = ("format", "kind", "seeds", "engine", "dtype", "surrogate", "own_weights", "finished")
    told = {name: history.attrs[name] for name in kept if name in history.attrs}
    coords = {str(name): plain(c.values) for name, c in history.dataset.coords.items() if name != "scheme"}
    written = json.dumps(json.loads(history.attrs["configuration"]), sort_keys=True)
    return told | {"configuration": json.loads(written) if whole else written, "coords": coords}


def study(book: Book, key: str, schemes: dict, **options) -> None:
    """A study of several schemes together; one by one where together they cannot be run."""
    import fedtempo as ft

    def run(some):
        arguments = dict(options)
        return ft.simulate(arguments.pop("problem"), list(some.values()), arguments.pop("times"), **arguments)

    begin, used = time.perf_counter(), time.process_time()
    try:
        history = run(schemes)
    except Exception as error:
        if len(schemes) == 1:
            [label] = schemes
            book.put(f"{key}/{label}", f"!{type(error).__name__}: {error}")
            return
        for label, scheme in schemes.items():
            study(book, key, {label: scheme}, **options)
        return
    for label, scheme in schemes.items():
        book.item(f"{key}/{label}", lambda s=scheme: history_of(history, s.label))
    book.item(f"{key}/told/{' '.join(schemes)[:40]}", lambda: configuration_of(history, whole="settings" in key))
    if VERBOSE:
        spent = f"{time.perf_counter() - begin:7.2f} s {time.process_time() - used:7.2f} s"
        print(f"{spent}  study {key}", file=sys.stderr, flush=True)


def parts() -> dict:
    import fedtempo as ft

    return {
        "fedprox": {"correction": ft.FedProx(0.5)},
        "feddane": {"correction": ft.FedDANE(0.1)},
        "feddyn": {"correction": ft.FedDyn(1.0)},
        "scaffold": {"correction": ft.Scaffold()},
        "slowmo": {"server": ft.SlowMo(0.5)},
        "fedadam": {"server": ft.FedAdam()},
        "fedyogi": {"server": ft.FedYogi()},
        "fedadagrad": {"server": ft.FedAdaGrad()},
        "mixing": {"server": ft.MixModels()},
        "topk": {"compression": ft.TopK(0.5)},
        "topk forgetting": {"compression": ft.TopK(0.3, error_feedback=False)},
        "qsgd": {"compression": ft.QSGD(2)},
        "qsgd buckets": {"compression": ft.QSGD(4, bucket=2, norm="euclidean")},
        "lowrank": {"compression": ft.LowRank(1)},
        "by rate": {"compensate": "rate"},
        "by work": {"compensate": "work"},
        "rates": {"client_rates": (0.5, 1, 2)},
        "steps": {"client_steps": (1, 4, 2)},
        "own weights": {"weights": ft.Discounted(ft.TimeBased(), ft.CutOff(1))},
        "scaffold and slowmo": {"correction": ft.Scaffold(), "server": ft.SlowMo(0.5)},
        "feddyn and topk": {"correction": ft.FedDyn(1.0), "compression": ft.TopK(0.5)},
    }


def trained(book: Book) -> None:
    import numpy as np
    import optax

    import fedtempo as ft

    problems_of(book)
    quadratics = ft.problems.quadratics(4, dimension=5, noise=0.5, rows=[6, 9, 12, 7], seed=1, importance="rows")
    digits = ft.problems.digits(clients=5, partition=ft.Dirichlet(0.5), seed=0, l2=0.01)
    four, five = ft.FixedTimes(["1", "2/3", "1/2", "9/4"]), ft.FixedTimes.spread(5, 80)
    plain_schemes = {
        "fedavg": ft.FedAvg(),
        "async": ft.AsyncFedAvg(),
        "fedfix-half": ft.FedFix("1/2"),
        "fedfix-fifth": ft.FedFix("1/5"),
        "staged": ft.StagedFedFix([("1/4", 12), ("1/2", None)]),
        "fedbuff-1": ft.FedBuff(1),
        "fedbuff-2": ft.FedBuff(2),
        "fedbuff-4": ft.FedBuff(4),
        "uniform-2": ft.UniformSampling(2),
        "multinomial-3": ft.MultinomialSampling(3),
        "cured fastest": ft.CuredSampling(ft.FastestSampling(2), window=8, biased=2),
    }
    both = {"weights": ("time-based", "identical"), "seeds": [0, 1]}
    fast = {"fastest-2": ft.FastestSampling(2)}
    small = {"problem": quadratics, "times": four, "points": 4}
    local = ft.LocalSGD(steps=2, lr=[0.05, 0.2], batch_size=4)
    # every scheme, engine, two seeds, two rates, two weight rules
    for engine, until in (("events", 12), ("waves", 12), ("oracle", 3)):
        key = f"trained/quadratics/{engine}"
        given = small | {"until": until, "local": local, "engine": engine, "dtype": "float64"}
        study(book, key, plain_schemes, per_client=True, **both, **given)
        study(book, key, fast, weights="identical", seeds=[0, 1], **given)
    for engine, until in (("events", 6), ("waves", 6), ("oracle", 1)):
        key = f"trained/digits/{engine}"
        rates = ft.LocalSGD(steps=2, lr=[0.05, 0.2], batch_size=8)
        given = {"problem": digits, "times": five, "points": 3, "until": until, "local": rates, "engine": engine}
        some = ("async", "fedfix-fifth", "multinomial-3")
        some = plain_schemes if engine == "events" else {k: plain_schemes[k] for k in some}
        study(book, key, some, **both, **given)
    # random times, clients that come and go, a rule of one's own
    others = {
        "exponential": ft.ExponentialTimes(["1", "2/3", "1/2", "9/4"]),
        "trace": ft.TraceTimes([["1", "0.5"], ["0.7"], ["0.25", "2", "0.75"], ["2.25", "3.5"]]),
        "failing": four.available(failure=0.2),
        "joins": four.available(absences={1: [(0, 3)], 3: [(6, None)]}),
        "on-off": four.available(failure=0.1, on=8, off=2),
    }
    for name, times in others.items():
        for engine in ("events", "waves") if name in ("exponential", "failing", "joins") else ("events",):
            chosen = ("async",) if name == "on-off" else ("fedavg", "async", "fedfix-half", "uniform-2", "fedbuff-2")
            chosen = chosen[:4] if name == "failing" else chosen  # what else there is takes a long run of the clock
            some = {k: plain_schemes[k] for k in chosen}
            given = small | {"times": times, "until": 12, "local": ft.LocalSGD(lr=0.1, batch_size=4), "engine": engine}
            study(book, f"trained/{name}/{engine}", some, seeds=[0, 1], **given)
    for engine, until in (("events", 8), ("waves", 8), ("oracle", 4)):
        own = {"half": ft.Scheme(half_rule(), name="half")}
        study(book, f"trained/own rule/{engine}", own, local=local, engine=engine, **(small | {"until": until}))
    # each part, with two schemes
    three = ft.problems.quadratics(3, dimension=4, noise=0.5, rows=[6, 9, 12], seed=1)
    in_waves = ("scaffold", "feddyn and topk", "fedadam", "mixing", "qsgd", "steps")
    given = {"problem": three, "times": ft.FixedTimes(["1", "1/3", "1/3"]), "points": 2, "dtype": "float64"}
    for called, part in parts().items():
        some = {"async": ft.AsyncFedAvg().using(**part), "fedfix": ft.FedFix("1/4").using(**part)}
        for engine, until in (("events", 4), ("waves", 4), ("oracle", 2)):
            if engine == "waves" and called not in in_waves:
                continue
            rates = [0.05, 0.2] if engine != "oracle" else 0.1
            work = ft.LocalSGD(steps=2, lr=rates, batch_size=4)
            study(
                book,
                f"trained/parts/{called}/{engine}",
                some,
                until=until,
                local=work,
                engine=engine,
                seeds=[3],
                **given,
            )
    matrices = {k: v for k, v in parts().items() if k in ("lowrank", "fedadam")}
    some = {called: ft.FedBuff(2).using(**part) for called, part in matrices.items()}
    study(
        book,
        "trained/parts on digits/events",
        some,
        problem=digits,
        times=five,
        until=3,
        points=2,
        local=ft.LocalSGD(steps=2, lr=0.1, batch_size=8),
    )
    # rivals, and choice by losses
    rivals = {
        "fedasync": ft.rivals.FedAsync(0.6, mu=0.1),
        "fedasync hinge": ft.rivals.FedAsync(0.4, "hinge:10:2"),
        "fedbuff published": ft.rivals.FedBuff(2),
        "cutoff": ft.rivals.CutOff(ft.AsyncFedAvg(), 2),
        "fednova": ft.rivals.FedNova((1, 3, 2, 4)),
        "fedau": ft.rivals.FedAU(ft.AsyncFedAvg(), cutoff=6),
    }
    losses = {
        "highest-loss": ft.HighestLossSampling(2),
        "highest-loss of candidates": ft.HighestLossSampling(1, candidates=3),
    }
    cured = {"cured highest-loss": ft.CuredSampling(ft.HighestLossSampling(2), window=8, biased=2)}
    for engine, until in (("events", 8), ("waves", 8), ("oracle", 4)):
        given = small | {"until": until, "local": local, "engine": engine, "dtype": "float64"}
        some = {k: v for k, v in rivals.items() if engine != "waves" or k in ("fedasync", "fedau")}
        study(book, f"trained/rivals/{engine}", some, **given)
        study(book, f"trained/losses/{engine}", losses, weights="identical", seeds=[0, 1], **given)
        study(book, f"trained/losses/{engine}", cured, weights=("time-based", "identical"), **given)
    study(book, "trained/losses/refused", {"highest-loss": losses["highest-loss"]}, until=3, local=local, **small)
    # other local work and other settings
    solvers = {
        "momentum": ft.LocalSGD(steps=3, lr=[0.05, 0.1], batch_size=4, momentum=0.9),
        "adam": ft.LocalOptax(solver=optax.adam, steps=3, lr=0.05, batch_size=4, options={"b1": [0.5, 0.9]}),
        "clip": ft.LocalSGD(steps=2, lr=0.1, batch_size=4, clip=0.3),
        "epochs": ft.LocalSGD(steps=2, lr=0.1, batch_size=4, draw="epochs"),
        "horizon": ft.LocalSGD(steps=2, lr=1.0, batch_size=4, schedule="horizon"),
        "all rows": ft.LocalSGD(steps=[1, 2], lr=0.1, batch_size=None),
    }
    two = {"async": ft.AsyncFedAvg(), "fedfix": ft.FedFix("1/2")}
    for called, work in solvers.items():
        study(book, f"trained/solvers/{called}", two, until=8, local=work, **small)
    study(
        book,
        "trained/settings",
        two,
        until=8,
        measure_from=6,
        local=ft.LocalSGD(lr=[0.1, 0.3, 50.0], batch_size=4),
        server_lr=[0.5, 1.0],
        rates={"FedFix(1/2)": [0.1, 50.0]},
        weights=("time-based", "importance", ft.Discounted(ft.Identical(), ft.PolynomialDiscount())),
        surrogate=ft.FedFix("1/4"),
        bound=100.0,
        **small,
    )
    pooled = quadratics.pooled()
    study(
        book,
        "trained/centralized",
        {"centralized": ft.Centralized()},
        problem=pooled,
        times=ft.FixedTimes(["1/2"]),
        until=8,
        points=3,
        local=local,
    )
    book.item("trained/reading", lambda: _reading(ft, np, small | {"until": 8, "local": local}))
    book.item("trained/checkpoint", lambda: _resumed(ft, small | {"until": 8, "local": local}))


def problems_of(book: Book) -> None:
    """Rows, partitions and first models."""
    import jax
    import numpy as np

    import fedtempo as ft

    made = {
        "iid": lambda: ft.problems.digits(clients=4, partition=ft.IID(), seed=1),
        "dirichlet": lambda: ft.problems.digits(clients=4, partition=ft.Dirichlet(0.1), seed=0, importance="rows"),
        "dirichlet unequal": lambda: ft.problems.digits(clients=4, partition="dirichlet:0.5:unequal", seed=2),
        "dirichlet replacement": lambda: ft.problems.digits(clients=4, partition="dirichlet:0.5:replacement", seed=2),
        "shards": lambda: ft.problems.digits(clients=5, partition=ft.LabelShards(2), test=None, l2=0.1),
        "one-label": lambda: ft.problems.digits(clients=10, partition=ft.OneLabel()),
        "quadratics": lambda: ft.problems.quadratics(4, noise=0.3, rows=[3, 4, 5, 6], heterogeneity=2.0),
        "named": lambda: ft.problems.named({"name": "quadratics", "clients": 3, "dimension": 2}),
    }

    def told(problem) -> dict:
        first = problem.init(jax.random.key(3))
        rows = [[digest(x) for x in jax.tree.leaves(problem.client_data(i))] for i in range(problem.num_clients)]
        return {
            "rows": [" ".join(row) for row in rows],
            "sizes": np.asarray(problem.sizes),
            "importance": [str(v) for v in problem.importance.exact],
            "fingerprint": problem.fingerprint(),
            "spec": problem.spec(),
            "init": [digest(np.asarray(x)) for x in jax.tree.leaves(first)],
            "loss": float(problem.loss(first, problem.client_data(0))),
        }

    for name, make in made.items():
        book.item(f"trained/problems/{name}", lambda m=make: told(m()))


def _reading(ft, np, given) -> dict:
    """What a history says when it is asked."""
    given = dict(given)
    schemes = [ft.AsyncFedAvg(), ft.FedFix("1/2").using(compression=ft.TopK(0.5))]
    history = ft.simulate(
        given.pop("problem"), schemes, given.pop("times"), weights=("time-based", "identical"), seeds=[0, 1], **given
    )
    history.save("read.nc")
    again = ft.History.load("read.nc")
    model = history.model(scheme="AsyncFedAvg", weights="identical", local_lr=0.2, seed=1)
    model.save("model.npz")
    with np.load("model.npz") as saved:
        leaves = {name: digest(saved[name]) for name in saved.files}
    best = history.best("loss")
    table = history.to_dataframe()
    return {
        "measures": history.measures,
        "hyper": history.hyper,
        "best": {str(n): digest(v.values) for n, v in best.dataset.data_vars.items()},
        "best rates": best.dataset["local_lr"].values.ravel(),
        "final": history.final().values.ravel(),
        "time to": history.time_to(0.3).values.ravel(),
        "mean": digest(history.mean("loss")["loss"].values),
        "deviation": digest(history.deviation("loss")["loss"].values),
        "frame": [*map(str, table.columns), len(table)],
        "summary": str(history.summary()).splitlines(),
        "repr": repr(history).splitlines()[:4],
        "model": leaves,
        "loaded": {str(n): digest(v.values) for n, v in again.dataset.data_vars.items()},
        "finished": again.finished,
        "bytes": [part.num_bytes({"w": np.zeros((30, 8), "f4")}) for part in (ft.QSGD(4), ft.TopK(0.1), ft.LowRank(2))],
    }


def _resumed(ft, given) -> dict:
    """A study in a folder, stopped by its own progress, that goes on to the same bits."""
    given = dict(given)
    problem, times = given.pop("problem"), given.pop("times")
    schemes = [ft.AsyncFedAvg(), ft.FedAvg()]

    def run(folder, **more):
        return ft.simulate(problem, schemes, times, checkpoint=folder, save_every=0, **given, **more)

    whole = run("whole")
    again = run("whole")  # nothing is left to do
    files = sorted(p.relative_to("whole").as_posix() for p in Path("whole").rglob("*") if p.is_file())
    document = json.loads(Path("whole/study.json").read_text())
    try:
        ft.simulate(problem, ft.FedAvg(), times, checkpoint="whole", **given)
        conflict = "none"
    except ft.ResultsConflict as error:
        conflict = str(error)
    return {
        "bits": {str(n): digest(v.values) for n, v in whole.dataset.data_vars.items()},
        "again": all(bool(whole.dataset[n].identical(again.dataset[n])) for n in whole.dataset.data_vars),
        "files": files,
        "document": {k: v for k, v in document.items() if k not in ("versions", "version", "fedtempo")},
        "conflict": conflict,
    }


# -- 5: Flower, on the tests' fake grid and virtual time


def fake_grid():
    """The tests' module, wherever it lives."""
    import importlib
    import importlib.util

    for name in ("support.flower_fake", "flower_fake"):
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name) is not None:
                return importlib.import_module(name)
    raise ModuleNotFoundError(f"no flower_fake in {TESTS}; give --tests DIR")


def result_of(result) -> dict:
    """What a training has made, but for the seconds that it took."""
    import numpy as np

    rounds = result.rounds
    updates = [u for closed in rounds for u in closed.updates]
    columns = ("client", "job", "base", "sent", "arrived", "bytes_up")
    told = {
        "rounds": len(rounds),
        "updates": len(updates),
        "ends": digest(np.array([closed.end for closed in rounds])),
        "server rounds": digest(np.array([closed.server_round for closed in rounds])),
        "contributors": " | ".join(",".join(closed.contributors) for closed in rounds),
        "first rounds": [str(closed) for closed in rounds[:3]],
        "weights": digest(np.array([u.weight for u in updates])),
        "last weights": [u.weight for u in updates[-6:]],
        "clipped": digest(np.array([u.clipped for u in updates])),
        "columns": {name: digest(np.array([getattr(u, name) for u in updates])) for name in columns},
        "client times": dict(result.client_times),
        "errors": [f"{float(f.time)!r} {f}" for f in result.errors] or "none",
        "stopped": result.stopped,
        "calls": dict(result.carrier.calls),
        "summary": [line for line in result.summary().splitlines() if not line.startswith("Server:")],
        "arrays": {name: digest(array.numpy()) for name, array in result.arrays.items()},
        "values": {name: array.numpy().ravel()[:4] for name, array in result.arrays.items()},
    }
    metrics = result.train_metrics_clientapp
    return told | {"metrics": {str(n): json.dumps(dict(metrics[n])) for n in sorted(metrics)[:3]}}


def record_told(record) -> dict:
    """A record of a run."""
    return {
        "scheme": record.scheme.label,
        "timeline": line_of(record.timeline),
        "retold": record.retold().equals(record.timeline),
        "weights": digest(record.weights.values),
        "applied": digest(record.weights.applied(record.timeline)),
        "importance": list(record.importance),
        "names": list(record.names),
        "times": record.times.describe(),
        "server_lr": record.server_lr,
        "first": list(record.first),
        "told": digest_of_text(json.dumps([list(t) for t in record.told])),
        "first told": [" ".join(map(str, t)) for t in record.told[:4]],
        "sent": digest(record.sent),
        "arrived": digest(record.arrived),
        "bytes": digest(record.bytes_up),
        "faults": len(record.faults),
    }


def folder_told(folder: Path) -> dict:
    """What a run leaves on the disk: the journal, and the state from which it goes on."""
    import numpy as np

    lines = (folder / "rounds.jsonl").read_text().splitlines()
    told = {
        "files": sorted(p.name for p in folder.iterdir()),
        "lines": len(lines),
        "journal": digest_of_text("\n".join(lines)),
        "first lines": lines[:3],
    }
    with np.load(folder / "state.npz", allow_pickle=False) as saved:
        document = json.loads(saved["document"].tobytes())
        told["state"] = {name: digest(saved[name]) for name in sorted(saved.files) if name != "document"}
    told["document"] = {name: json.dumps(value, sort_keys=True) for name, value in document.items()}
    return told


def flower(book: Book) -> None:
    import logging

    import numpy as np
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    import fedtempo as ft
    import fedtempo.flower as fl

    logging.getLogger("flwr").setLevel(logging.CRITICAL + 1)
    fake = fake_grid()
    on, FakeGrid, record_of = fake.on, fake.FakeGrid, fake.record_of
    problem = ft.problems.quadratics(4, dimension=6, noise=0.5, rows=[6, 9, 12, 5], seed=1, importance="rows")
    local = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
    seconds = ["1", "0.7", "0.5", "2.25"]
    all_times = {
        "fixed": ft.FixedTimes(seconds),
        "exponential": ft.ExponentialTimes(seconds, resolution="0.001"),
        "trace": ft.TraceTimes([["1", "0.5"], ["0.7"], ["0.25", "2", "0.75"], ["2.25", "3.5"]]),
    }
    strategies = {
        "fedavg": lambda **o: fl.FedAvg(**o),
        "async": lambda **o: fl.AsyncFedAvg(**o),
        "fedfix": lambda **o: fl.FedFix(0.6, **o),
        "fedfix-long": lambda **o: fl.FedFix(2, **o),
        "fedbuff": lambda **o: fl.FedBuff(3, **o),
        "any": lambda **o: fl.TimedStrategy(ft.FedFix("0.6"), **o),
        "own rule": lambda **o: fl.TimedStrategy(ft.Scheme(half_rule(), name="half"), **o),
        "own rule with state": lambda **o: fl.TimedStrategy(ft.Scheme(own_rule("1/2"), name="paced"), **o),
        "fedasync": lambda **o: fl.TimedStrategy(ft.rivals.FedAsync(0.6), **o),
        "published fedbuff": lambda **o: fl.TimedStrategy(ft.rivals.FedBuff(2), **o),
        "uniform": lambda **o: fl.TimedStrategy(ft.UniformSampling(2), **o),
        "staged": lambda **o: fl.TimedStrategy(ft.StagedFedFix([("1/4", 12), ("1/2", None)]), **o),
    }

    def run(strategy, law="fixed", rounds=15, seed=3, folder=None, replayed=False, **options) -> dict:
        clients = fake.ProblemClients(problem, local, all_times[law], seed=seed)
        grid = clients.grid()
        if folder is not None:
            options["checkpoint"] = folder
        result = strategy(**on(grid, **options)).start(grid, clients.initial, num_rounds=rounds)
        told = result_of(result)
        try:
            record = fl.recorded(result)
        except ft.InputError as error:
            told["record"] = f"!{error}"
            return told
        told["record"] = record_told(record)
        if folder is not None:
            told["folder"] = folder_told(Path(folder))
            again = fl.recorded(folder)
            told["recorded"] = record_told(again)
        if replayed:
            told["replay"] = digest(np.asarray(fl.replay(problem, record, local, seed=seed)))
        return told

    for name, strategy in strategies.items():
        for times in all_times if name in ("fedavg", "async", "fedfix", "fedbuff") else ("fixed",):
            book.item(
                f"flower/{name}/{times}",
                lambda s=strategy, t=times, n=name: run(
                    s, t, server_lr=0.9, folder=f"run {n} {t}", replayed=n in ("async", "fedfix", "fedbuff")
                ),
            )
    by_name = lambda values: {f"node {100 + i}": value for i, value in enumerate(values)}  # noqa: E731
    given = {"times": by_name(seconds), "importance": by_name(problem.importance.values.tolist())}
    servers = {
        "slowmo": (ft.SlowMo(0.9), 0.1),
        "fedadam": (ft.FedAdam(), 0.05),
        "mixing": (ft.MixModels(), 0.8),
        "fedyogi": (ft.FedYogi(b1=0.8), 0.05),
        "fedadagrad": (ft.FedAdaGrad(), 0.05),
    }
    for name in ("fedavg", "async", "fedfix", "fedbuff"):
        book.item(f"flower/given times/{name}", lambda s=strategies[name]: run(s, rounds=10, **given))
        for called, (server, lr) in servers.items():
            if name == "fedfix" or called in ("fedadam", "mixing"):
                book.item(
                    f"flower/server {called}/{name}",
                    lambda s=strategies[name], v=server, r=lr, n=name, c=called: run(
                        s, rounds=8, server=v, server_lr=r, folder=f"server {n} {c}", replayed=n == "fedfix"
                    ),
                )
    rules = {
        "identical": "identical",
        "importance": "importance",
        "discounted": ft.Discounted(ft.TimeBased(), ft.PolynomialDiscount(0.5)),
        "history": ft.ParticipationHistory(10),
    }
    for called, rule in rules.items():
        book.item(f"flower/weights {called}/async", lambda r=rule: run(strategies["async"], rounds=10, weights=r))
    book.item(
        "flower/clipped/fedfix",
        lambda: run(lambda **o: fl.FedFix(0.8, **o), rounds=10, clip_norm=0.2, server_lr=0.5, replayed=True),
    )
    book.item("flower/long/async", lambda: run(strategies["async"], "exponential", rounds=120))

    # -- clients that fail, come, go and come back; names, evaluation, the end by time

    def shifting(grid, nodes, **more):
        for node, (step, lasts) in nodes.items():
            grid.connect(node, fake.shifting(step, lasts, examples=10 * (node % 100 + 1), **more))

    def failing(good, every: int):
        count = 0

        def behave(message):
            nonlocal count
            count += 1
            return [(10**8, fake.failure(message))] if count % every == 2 else good(message)

        return behave

    def spoiled(message):
        arrays = {name: np.full_like(array, np.nan) for name, array in fake.arrays_of(message).items()}
        return [(10**9, fake.answer(message, arrays, {"num-examples": 10}))]

    def trouble(strategy, folder, **more) -> dict:
        grid = FakeGrid()
        grid.connect(100, failing(fake.shifting(1, 1), 4))
        shifting(grid, {101: (1, 0.7), 102: (1, 2.25)})
        grid.connect(104, lambda message: [(10**8, fake.failure(message))])
        grid.connect(105, spoiled)
        grid.connect(106, lambda message: [])
        grid.at(6, lambda: grid.connect(103, fake.shifting(1, 1.4)))
        grid.at(14, lambda: grid.disconnect(101))
        grid.at(22, lambda: grid.connect(101, fake.shifting(1, 0.9)))
        options = on(grid, checkpoint=folder, retry_after=5, **more)
        result = strategy(**options).start(grid, record_of({"w": np.zeros(2)}), num_rounds=40, timeout=5)
        return result_of(result) | {"record": record_told(fl.recorded(folder)), "folder": folder_told(Path(folder))}

    for name in ("fedavg", "async", "fedfix", "fedbuff"):
        book.item(f"flower/trouble/{name}", lambda s=strategies[name], n=name: trouble(s, f"trouble {n}"))

    def named() -> dict:
        grid = FakeGrid()
        for node, (client, lasts) in {300: (2, 1), 100: (0, 2), 200: (1, 0.5)}.items():
            grid.connect(node, fake.shifting(client, lasts, site=client, work=lasts / 2))
        options = on(grid, identity_key="site", work_key="work", importance={"0": 1, "1": 2, "2": 5})
        result = fl.AsyncFedAvg(**options).start(grid, record_of({"w": np.zeros(2)}), num_rounds=20)
        record = fl.recorded(result)
        turned = record.numbered({"0": 0, "1": 1, "2": 2})
        return result_of(result) | {
            "record": record_told(record),
            "numbered": line_of(turned.timeline),
            "overhead": dict(result.carrier.round_trip_overhead),
        }

    book.item("flower/named", named)

    def evaluated() -> dict:
        grid = FakeGrid()
        shifting(grid, {100: (1, 1), 101: (2, 0.7), 102: (3, 2.25)})

        def measure(number, arrays):
            return MetricRecord({"first": float(arrays["w"].numpy()[0])})

        strategy = fl.FedFix(0.8, **on(grid, fraction_evaluate=1.0, min_evaluate_nodes=1))
        result = strategy.start(
            grid,
            record_of({"w": np.zeros(2)}),
            num_rounds=12,
            evaluate_fn=measure,
            train_config=ConfigRecord({"lr": 0.1}),
        )
        clients, server = result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp
        return {
            "arrays": digest(result.arrays["w"].numpy()),
            "clients": {str(n): json.dumps(dict(r)) for n, r in sorted(clients.items())},
            "first and last": [json.dumps(dict(server[n])) for n in (min(server), max(server))],
        }

    book.item("flower/evaluated", evaluated)

    def until() -> dict:
        grid = FakeGrid()
        shifting(grid, {100: (1, 1), 101: (2, 0.7)})
        model = {"w": np.zeros(2), "n": np.zeros(2, np.int64), "half": np.ones(3, np.float16)}
        result = fl.FedBuff(2, **on(grid)).start(grid, record_of(model), num_rounds=10**6, until=9.5)
        return result_of(result)

    book.item("flower/until", until)

    # -- killed, and gone on with

    def killed(strategy, folder, **more) -> dict:
        def world():
            grid = FakeGrid()
            shifting(grid, {100: (1, 1), 101: (-1, 0.7), 102: (2, 1.2)})
            return grid

        def start(grid):
            made = strategy(**on(grid, checkpoint=folder, **more))
            return made.start(grid, record_of({"w": np.zeros(3)}), num_rounds=12, resume=True)

        lives = 0
        for moment in (20, 35):
            grid = world()
            grid.kill_at = moment
            with contextlib.suppress(fake.Killed):
                start(grid)
            lives += 1
        result = start(world())
        return result_of(result) | {"record": record_told(fl.recorded(folder)), "folder": folder_told(Path(folder))}

    for name in ("async", "fedfix", "fedbuff"):
        book.item(f"flower/killed/{name}", lambda s=strategies[name], n=name: killed(s, f"killed {n}"))
    book.item("flower/killed/server fedadam", lambda: killed(strategies["fedfix"], "killed adam", server=ft.FedAdam()))
    book.item("flower/conflict", lambda: killed(strategies["fedavg"], "killed adam"))

    # -- compressed contributions, by Flower's own ClientApp

    def first_model():
        rng = np.random.default_rng(0)
        w = rng.normal(size=(30, 8)).astype(np.float32)
        return {"w": w, "b": np.zeros(8, np.float32), "seen": np.zeros((), np.int64)}

    def site(client: int, mods, lasts: float):
        config = {"partition-id": client}
        context = Context(run_id=7, node_id=2**40 + client, node_config=config, state=RecordDict(), run_config={})
        app = ClientApp(mods=mods)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            sent, aim = fake.arrays_of(message), np.random.default_rng(10 + client)
            new = {n: (0.5 * (sent[n] + aim.normal(size=sent[n].shape))).astype(np.float32) for n in ("w", "b")}
            new["seen"] = sent["seen"] + 1
            return fake.answer(message, new, {"num-examples": 10 * (client + 1), "loss": 1.0})

        def behave(message: Message):
            copy = Message(content=RecordDict(dict(message.content)), metadata=message.metadata)
            copy.content["arrays"] = ArrayRecord(dict(message.content["arrays"]))
            return [(int(lasts * 10**9), app(copy, context))]

        return behave

    def compressed(methods, strategy, folder, **more) -> dict:
        grid = FakeGrid()
        for i, (method, lasts) in enumerate(zip(methods, (1, 0.75, 2.5), strict=True)):
            grid.connect(100 + i, site(i, [] if method is None else [fl.compressing(method)], lasts))
        made = strategy(**on(grid, server_lr=0.7, checkpoint=folder, **more))
        result = made.start(grid, record_of(first_model()), num_rounds=15)
        return result_of(result) | {"record": record_told(fl.recorded(folder))}

    sets = {
        "topk": [ft.TopK(0.1)] * 3,
        "qsgd": [ft.QSGD(5), ft.QSGD(5, norm="euclidean"), ft.QSGD(3, bucket=32)],
        "lowrank": [ft.LowRank(2)] * 3,
        "mixed": [ft.TopK(0.1, error_feedback=False), None, ft.LowRank(1)],
        "none": [None] * 3,
    }
    for called, methods in sets.items():
        book.item(
            f"flower/compressed/{called}",
            lambda m=methods, c=called: compressed(m, lambda **o: fl.FedFix(0.8, **o), f"compressed {c}"),
        )
    book.item(
        "flower/compressed/async with fedadam",
        lambda: compressed([ft.TopK(0.1)] * 3, lambda **o: fl.AsyncFedAvg(**o), "compressed a", server=ft.FedAdam()),
    )

    # -- arguments that are refused, and what the commands make of a run's folder

    refused = {
        "correction": lambda: fl.FedFix(1, server=ft.Scaffold()),
        "compression": lambda: fl.TimedStrategy(ft.FedFix(1).using(compression=ft.TopK(0.1))),
        "rate": lambda: fl.TimedStrategy(ft.FedFix(1).using(compensate="rate")),
        "fraction": lambda: fl.FedAvg(fraction_train=0.5),
        "unknown": lambda: fl.FedAvg(server_rate=0.5),
        "scheme": lambda: fl.TimedStrategy("fedfix"),
        "no record": lambda: fl.recorded(fl.Result()),
        "no folder": lambda: fl.recorded("nowhere"),
    }
    for called, make in refused.items():
        book.item(f"flower/refused/{called}", lambda m=make: str(type(m()).__name__))
    for folder in ("run fedfix fixed", "trouble fedfix", "compressed mixed", "server fedfix fedadam"):
        book.item(f"flower/show/{folder}", lambda f=folder: spoken("show", f, "--out", "run.svg"))
    book.item(
        "flower/plan of a folder",
        lambda: spoken("plan", "--times", "trouble fedfix", "--scheme", "fedfix", "--wait", "0.8", "--details"),
    )
    book.item(
        "flower/plan from a record",
        lambda: ft.compare(fl.recorded("run fedfix trace").times, [ft.FedAvg(), ft.FedFix("0.6")]).to_dict(),
    )


# -- 6: the command line


def spoken(*words: str) -> dict:
    """Exit code, and what a command says, line by line."""
    import logging

    from fedtempo.cli import main

    if len(words) == 1:
        words = tuple(shlex.split(words[0]))
    root = logging.getLogger()
    kept = (sys.argv, root.level, list(root.handlers))
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["fedtempo", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv, level, root.handlers[:] = kept
        root.setLevel(level)
    said = {"code": code}
    text = out.getvalue()
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            return said | {"document": json.loads(text), "raw": digest_of_text(text)}
    lines = {f"{n:03d}": line for n, line in enumerate(text.splitlines(), 1)}
    wrong = [line for line in err.getvalue().splitlines() if line.startswith("fedtempo: ")]
    return said | {"out": lines or "nothing", "err": wrong or "nothing"}


STUDIES = {
    "every scheme": """
until = 4
points = 3
seeds = [0, 1]
weights = ["time-based", "identical"]
rates = { "FedAvg" = [0.1], "AsyncFedAvg" = [0.1, 0.3] }
surrogate = { name = "fedfix", wait = "1/2" }
per_client = true
bound = 1e5

[problem]
name = "digits"
clients = 5
partition = "dirichlet:0.5"
l2 = 0.01

[times]
times = [1, "2/3", 0.5, "0.3", 0.9]

[local]
lr = [0.1, 0.3]
batch_size = 8

[[schemes]]
name = "fedavg"

[[schemes]]
name = "async"

[[schemes]]
name = "fedfix"
wait = "1/2"

[[schemes]]
name = "fedbuff"
size = 2

[[schemes]]
name = "uniform"
size = 2

[[schemes]]
name = "multinomial"
size = 2

[[schemes]]
name = "fedfix-stages"
stages = [{ wait = "1/4", rounds = 4 }, { wait = "1/2" }]

[[schemes]]
name = "cured"
window = 8
biased = 2
criterion = { name = "fastest", size = 3 }
""",
    "every part": """
until = 3
points = 4
measure_from = 2
seeds = [2]
weights = "time-based"
server_lr = [0.5, 1.0]
dtype = "float64"
engine = "waves"

[problem]
name = "quadratics"
clients = 4
dimension = 3
noise = 0.2

[times]
times = "F80"
failure = 0.1

[local]
steps = 2
lr = 0.05
batch_size = "all"

[[schemes]]
name = "fedfix"
wait = "1/2"
correction = "scaffold"
server = "slowmo:0.9"
label = "both"

[[schemes]]
name = "async"
compression = "topk:0.5"

[[schemes]]
name = "fedavg"
compensate = "rate"

[[schemes]]
name = "fedasync"
mixing = 0.5

[[schemes]]
name = "fednova"
steps = [1, 2, 3, 4]
""",
    "other work": """
until = 3
points = 2
seeds = [0]
weights = ["identical", "importance"]

[problem]
name = "quadratics"
clients = 3
dimension = 2

[times]
times = [1, 2, "1/2"]
law = "lognormal"
spread = 0.4
resolution = "1/1000"

[local]
solver = "adam"
lr = 0.05
steps = 2
draw = "epochs"
clip = 1.0
schedule = "horizon"
batch_size = 4

[local.options]
b1 = [0.5, 0.9]

[[schemes]]
name = "fedavg"
server = { name = "fedadam", b1 = 0.8 }

[[schemes]]
name = "fedfix"
wait = 1
compression = { name = "qsgd", levels = 4 }
""",
    "rivals": """
until = 6
points = 2
seeds = [0]
weights = ["identical"]

[problem]
name = "quadratics"
clients = 3
dimension = 2

[times]
times = [1, 2, "1/2"]
failure = 0.1
on = 8
off = 2

[local]
lr = 0.1
steps = 2

[[schemes]]
name = "highest-loss"
size = 2
candidates = 3

[[schemes]]
name = "fedau"
cutoff = 10
scheme = { name = "async" }
""",
}

PLANS = (
    "plan --clients 20 --times F80",
    "plan --clients 6 --times F80 --details",
    "plan --times 1,2,2.5,7 --scheme fedfix --wait 1 --details",
    "plan --times 1,2,2.5,7 --law uniform --spread 0.4 --scheme fedfix --wait 2",
    "plan --times 1,1/2,1/3 --scheme stages --stage 1/4:3 --stage 1/2 --scheme uniform --scheme fastest --sample 2 "
    "--details --weights identical --discount polynomial:0.5",
    "plan --times trace.csv --scheme fedavg --scheme async --details",
    "plan --times 1,2,3 --failure 0.1 --scheme fedavg --scheme async",
    "plan --times 1,2,3 --absences away.csv --scheme async --scheme fedfix --wait 1 --details",
    "timeline --scheme async --times 1,2 --until 30",
    "timeline --scheme fedfix --wait 1/2 --times trace.csv --law bootstrap --until 6 --seed 2",
    "timeline --scheme fedbuff --buffer 2 --clients 5 --times F80 --until 6 --out timeline.svg",
    "theory --times F80 --clients 6 --scheme fedavg --scheme async --scheme fedfix --wait 1/2",
    "theory --times 1,2,5/2 --law exponential --scheme async --until 50 --problem quadratics --set noise=0.1 --set dimension=4",
    "plan --problem quadratics --times 1,2,3 --until 400 --scheme fedavg --scheme async --lr 0.05,0.1,0.2 --batch-size 8",
)
DOCUMENTS = (
    "plan --clients 5 --times F80 --json",
    "plan --times 1,2,2.5,7 --scheme fedfix --wait 0.5 --wait 1 --scheme async --json",
    "plan --times 1,2,2.5,7 --law exponential --scheme fedbuff --buffer 2 --json",
    "plan --times trace.csv --law bootstrap --scheme async --json",
    "plan --times 1,2,3 --importance 1/2,1/4,1/4 --weights importance --scheme multinomial --sample 2 --seed 4 --json",
    "plan --times 1,2,3 --failure 0.1 --scheme fedfix --wait 1 --json",
    "plan --problem quadratics --times 1,2,3 --until 60 --scheme fedavg --scheme fedfix --wait 1 --lr 0.05,0.1 --json",
    "timeline --scheme fedfix --wait 1/2 --times 1,0.5 --until 3/2 --json",
    "timeline --scheme multinomial --sample 4 --times 1,2,3 --until 9 --json",
    "timeline --scheme async --times 1,2,2.5,7 --law lognormal --spread 0.3 --until 12 --seed 1 --json",
    "timeline --scheme fedbuff --buffer 2 --times 1,2,3 --failure 0.2 --on 9 --off 2 --until 20 --json",
    "theory --times F80 --clients 5 --scheme fedavg --scheme async --scheme fedfix --wait 0.5 --json",
    "theory --times 1,2,5/2 --law exponential --scheme async --until 50 --json",
    "theory --times F80 --clients 4 --scheme fedfix --wait 0.5 --problem quadratics --set noise=0.1 --set dimension=4 "
    "--steps 3 --until 20 --json",
    "theory --times F80 --clients 4 --scheme fedfix --wait 0.5 --scheme uniform --sample 2 --problem quadratics "
    "--set noise=0.1 --set dimension=4 --until 20 --measure --json",
    "theory --times 1,2 --law lognormal --scheme async --scheme fedavg --problem quadratics --until 20 --json",
)
WRONG = (
    "plan --clients 0 --times F80",
    "plan --times F80",
    "plan --times 1,abc",
    "plan --times 1,2 --law exponentail",
    "plan --times 1,2 --scheme fedfx",
    "plan --times 1,2 --scheme fedbuff --buffer 3",
    "plan --times 1,2 --importance 0.5,0.6",
    "plan --times nowhere.csv",
    "plan",
    "timeline --times 1,2 --until 0.5 --scheme async",
    "timeline --times 1,2 --until 5 --scheme async --out x.bmp",
    "theory --times 1,2 --scheme async --problem quadratics --lr 1",
    "theory --times 1,2 --measure",
    "run nothere.toml",
    "run --lr abc",
    "run --engine oracle",
    "run --resume nothere",
    "show nothere",
    "reproduce fig99",
    "plam",
)


def command_line(book: Book) -> None:
    import fedtempo as ft

    Path("trace.csv").write_text("client,duration\nalice,1\nbob,2\nalice,3/2\ncarol,0.7\n")
    Path("away.csv").write_text("client,leaves,returns\n0,2,5\n1,0,1\n")
    for number, words in enumerate(PLANS, 1):
        book.item(f"cli/text {number:02d} {words[:60]}", lambda w=words: spoken(w))
    for number, words in enumerate(DOCUMENTS, 1):
        book.item(f"cli/json {number:02d} {words[:60]}", lambda w=words: spoken(w))
    for number, words in enumerate(WRONG, 1):
        book.item(f"cli/wrong {number:02d} {words[:60]}", lambda w=words: spoken(w))
    for command in ("", "plan", "timeline", "theory", "run", "show", "reproduce", "data"):
        book.item(f"cli/help {command}", lambda c=command: spoken(*c.split(), "--help"))
    for number, (called, text) in enumerate(STUDIES.items(), 1):
        file, folder = f"study{number}.toml", f"results/{number}"
        Path(file).write_text(text)
        key = f"cli/study {called}"
        if not book.item(f"{key}/run", lambda f=file, o=folder: spoken("run", f, "--out", o, "-q")):
            continue
        drawn = ("--out", "a.svg") if number > 2 else ()
        book.item(f"{key}/show", lambda o=folder, d=drawn: spoken("show", o, *d))
        book.item(f"{key}/history", lambda o=folder: _saved(ft, Path(o)))
        book.item(f"{key}/files", lambda o=folder: sorted(p.name for p in Path(o).iterdir()))
        book.item(f"{key}/again", lambda f=file, o=folder: spoken("run", f, "--out", o, "-q"))
        if number == 2:
            book.item(f"{key}/resume", lambda o=folder: spoken("run", "--resume", o, "-q"))
    first, third = "results/1", "results/3"
    book.item("cli/study shown/target", lambda: spoken("show", third, "--target", "0.2", "--out", "a.svg"))
    book.item("cli/study shown/measure", lambda: spoken("show", first, "--measure", "test_accuracy", "--out", "a.pdf"))
    book.item("cli/study shown/file", lambda: spoken("show", f"{third}/history.nc", "--out", "b.png"))
    flags = "--scheme async --lr 0.2 --seeds 2 --weights identical --times 1,2,3 --until 4 --steps 2 --batch-size all"
    more = (
        "--problem quadratics --clients 3 --correction fedprox:0.1 --server fedadam --compression topk:0.5 --points 3"
    )
    book.item("cli/study flags/run", lambda: spoken(f"run {flags} {more} --out results/flags -q"))
    book.item("cli/study flags/history", lambda: _saved(ft, Path("results/flags")))
    book.item("cli/module", _module)


def _saved(ft, folder: Path) -> dict:
    """The file and the description that a study leaves."""
    history = ft.History.load(folder / "history.nc")
    labels = [str(label) for label in history.dataset["scheme"].values]
    document = json.loads((folder / "study.json").read_text())
    told = {label: history_of(history, label) for label in labels}
    return told | {
        "told": configuration_of(history, whole=True),
        "description": document.get("description"),
        "keys": sorted(document),
    }


def _module() -> dict:
    """``python -m fedtempo``, in a process of its own."""
    import subprocess

    def run(*words):
        done = subprocess.run([sys.executable, "-m", "fedtempo", *words], capture_output=True, text=True, timeout=120)
        return f"{done.returncode} {digest_of_text(done.stdout)} {done.stderr.strip()}"

    return {
        "plan": run("plan", "--times", "1,2", "--scheme", "async"),
        "json": run("timeline", "--times", "1,2", "--until", "5", "--scheme", "async", "--json"),
        "wrong": run("plan", "--times", "1,abc"),
    }


# -- all together


def capture(sections, tests: Path | None) -> Book:
    global TESTS
    TESTS = tests
    book = Book()
    for section in sections:
        begin, used, before = time.perf_counter(), time.process_time(), len(book.items)
        try:
            globals()["command_line" if section == "cli" else section](book)
        except Exception as error:
            book.put(f"{section}/!whole section", f"!{type(error).__name__}: {error}")
        print(
            f"{section:10} {time.perf_counter() - begin:6.1f} s, {time.process_time() - used:6.1f} s of processor  {len(book.items) - before} items",
            file=sys.stderr,
            flush=True,
        )
    return book


TESTS: Path | None = None


def compare(first: Path, second: Path, ignored, most: int) -> int:
    """Prints what differs; 1 if anything does."""
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (first, second))
    left = [key for key in sorted(one.keys() | other.keys()) if not any(key.startswith(p) for p in ignored)]
    absent = [key for key in left if (key in one) != (key in other)]
    changed = [key for key in left if key in one and key in other and one[key] != other[key]]
    bits = [key for key in changed if _rough(one[key]) == _rough(other[key])]
    values = [key for key in changed if key not in set(bits)]
    for what, keys in (("missing on one side", absent), ("other values", values), ("other bits alone", bits)):
        if not keys:
            continue
        by_part: dict[str, int] = {}
        for key in keys:
            part = "/".join(key.split("/")[:3])
            by_part[part] = by_part.get(part, 0) + 1
        print(f"{what}: {len(keys)} items, in " + ", ".join(f"{k} ({n})" for k, n in list(by_part.items())[:12]))
        for key in keys[:most]:
            print(f"  {key}\n    - {one.get(key, '(absent)')}\n    + {other.get(key, '(absent)')}")
        if len(keys) > most:
            print(f"  … and {len(keys) - most} more (--most N)")
    raised = sum(isinstance(v, str) and v.startswith("!") for v in other.values())
    print(
        f"{len(left)} items compared, {len(left) - len(absent) - len(changed)} equal; {raised} of the items of {second.name} are exceptions"
    )
    return 1 if absent or changed else 0


_DIGEST = re.compile(r"\b[0-9a-f]{24}\b")
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?0x1\.[0-9a-f]+p[-+]\d+")


def _rough(value) -> str:
    """The value without digests, and with six digits of each float: what is left when last bits are not looked at."""

    def short(found: re.Match[str]) -> str:
        text = found.group()
        return f"{float.fromhex(text) if '0x' in text else float(text):.5g}"

    return _FLOAT.sub(short, _DIGEST.sub("", str(value)))


def main() -> int:
    global VERBOSE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tests", type=Path, help="the folder tests/ of the version that is run")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=None)
    parser.add_argument("--skip", nargs="+", choices=SECTIONS, default=())
    parser.add_argument("--verbose", type=float, default=0.0, metavar="SECONDS", help="tell items that take as long")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for compiled programs")
    parser.add_argument("--no-cache", action="store_true", help="compile everything anew")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"))
    parser.add_argument("--ignore", nargs="+", default=(), metavar="PREFIX", help="items that are not compared")
    parser.add_argument("--most", type=int, default=8, help="how many differing items are printed of each kind")
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare, asked.ignore, asked.most)
    if asked.out is None:
        parser.error("give --out FILE, or --compare A B")
    VERBOSE = asked.verbose
    out = asked.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)
    if not asked.no_cache:
        asked.cache = asked.cache.resolve()
        asked.cache.mkdir(parents=True, exist_ok=True)
        os.environ |= {
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_COMPILATION_CACHE_DIR": str(asked.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    if hasattr(os, "sched_setaffinity"):  # the number of cores decides how a study is cut into units
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    import fedtempo

    source = Path(fedtempo.__file__).resolve()
    tests = (asked.tests or source.parents[2] / "tests").resolve()
    print(f"fedtempo {fedtempo.__version__} of {source.parent}, tests {tests}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder, contextlib.chdir(folder):
        sys.path.insert(0, str(tests))
        begin = time.perf_counter()
        book = capture([s for s in asked.only or SECTIONS if s not in asked.skip], tests)
    out.write_text(json.dumps(book.items, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    if VERBOSE:
        spent: dict[str, float] = {}
        for key, seconds in book.seconds.items():
            part = "/".join(key.split("/")[:2])
            spent[part] = spent.get(part, 0.0) + seconds
        for part, seconds in sorted(spent.items(), key=lambda entry: -entry[1])[:40]:
            print(f"{seconds:7.2f} s  {part}", file=sys.stderr)
    raised = sum(isinstance(v, str) and v.startswith("!") for v in book.items.values())
    print(
        f"{len(book.items)} items ({raised} exceptions) in {time.perf_counter() - begin:.0f} s: {out}", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
