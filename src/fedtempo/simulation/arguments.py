"""What `simulate` is given, checked: each function gives back what it was given, or says what to give instead."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import isnan
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

import jax

from fedtempo.clock.ticks import Exact, exact
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.problems.batch_mean import check_batch_mean
from fedtempo.problems.mapped import any_mapped
from fedtempo.problems.problem import Problem
from fedtempo.problems.redealt import Redealt
from fedtempo.schemes.named import AsyncFedAvg, Scheme
from fedtempo.training.robust_rules import RobustRule
from fedtempo.training.solvers import LocalOptax, LocalRule, LocalSGD
from fedtempo.weighting.other_rules import Normalised
from fedtempo.weighting.weight_rules import WeightRule, weight_rule

EngineName = Literal["auto", "events", "waves", "oracle", "torch"]
ENGINES: tuple[EngineName, ...] = ("auto", "events", "waves", "oracle", "torch")
Choice = TypeVar("Choice", bound=str)
MOST_SEEDS = 10_000


def a_problem(given: object, seeds: tuple[int, ...] = ()) -> Problem:
    """A problem, with a loss that is a mean over the batch; a function gives one for each of the seeds."""
    if seeds and callable(given) and not isinstance(given, (Problem, type)):
        given = Redealt.of(given, seeds)
    if not isinstance(given, Problem):
        raise InputError(
            f"problem: {given!r} is not a problem; use ft.problems.digits() or ft.Problem(init, loss, data)"
        )
    check_batch_mean(given)
    return given


def by_name(kind: str, given: object) -> dict[str | None, Any]:
    """Several by their names, as {"F0": …, "F80": …}, or one without."""
    if not isinstance(given, Mapping):
        return {None: given}
    if not given:
        raise InputError(f"{kind}: none given; give at least one by name")
    for name in given:
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{kind}: {name!r} is not a name; give {{'F0': …, 'F80': …}}")
    return dict(given)


def client_times(given: object, num_clients: int) -> ClientTimes:
    """One time, or law of times, for each client of the problem."""
    if not isinstance(given, ClientTimes):
        raise InputError(f"times: {given!r} are not client times; give ft.FixedTimes([1, 2, 3]), or random ones")
    if given.num_clients != num_clients:
        raise InputError(
            f"times: {given.num_clients} clients, but the problem has {num_clients}; give one time per client"
        )
    return given


def some_schemes(given: object, num_clients: int) -> tuple[Scheme, ...]:
    """One scheme, or several that differ."""
    schemes = tuple(_listed(given))
    if not schemes:
        raise InputError("schemes: none given; give at least one, as ft.FedAvg()")
    for scheme in schemes:
        if not isinstance(scheme, Scheme):
            raise InputError(f"schemes: {scheme!r} is not a scheme; give ft.FedAvg(), ft.FedFix('1/2'), or several")
        scheme.waiting.check(num_clients)
    labels = [scheme.label for scheme in schemes]
    if len(set(labels)) < len(labels):
        raise InputError(f"schemes: {', '.join(labels)} names one twice; give each once, or labels that differ")
    return schemes


def fitting_options(schemes: tuple[Scheme, ...], local: LocalRule, num_clients: int) -> tuple[Scheme, ...]:
    """Schemes whose options fit the local work and the clients."""
    from fedtempo.training.server_rules import server_rule

    for scheme in schemes:
        options = scheme.options
        server_rule(options.correction, options.server, num_clients)
        if isinstance(options.server, RobustRule):
            _fitting_places(scheme, options.server, num_clients)
        if options.correction is not None:
            options.correction.check(local)
        for name in ("client_steps", "client_rates"):
            if (given := getattr(options, name)) is not None and len(given) != num_clients:
                raise InputError(
                    f"{scheme.label}: {name} has {len(given)} values for {num_clients} clients; give one each"
                )
        varied = options.client_steps is not None or options.compensate == "work"
        if varied and not (isinstance(local, LocalOptax) and local.draw == "uniform"):
            raise InputError(
                f"{scheme.label}: clients that differ in their steps need LocalSGD or LocalOptax with draw='uniform'"
            )
        if (options.compensate == "work" or isinstance(options.weights, Normalised)) and not local.plain:
            raise InputError(
                f"{scheme.label}: only with plain SGD does a contribution grow in proportion to its steps; use "
                "LocalSGD "
                "without momentum, clip and options, or compensate by weights or rate"
            )
        _fitting_rates(scheme, local)
    return schemes


def _fitting_places(scheme: Scheme, server: RobustRule, num_clients: int) -> None:
    """Refuse rounds with which a robust rule makes no sense."""
    waiting = scheme.waiting
    updates = waiting.draws_a_round(num_clients)
    if updates is None and waiting.synchronous:
        updates = Fraction(num_clients)
    if updates is not None:
        server.fits(float(updates), num_clients, scheme.label)
        if waiting.same_clients:
            server.among(int(updates))


def _fitting_rates(scheme: Scheme, local: LocalRule) -> None:
    """Refuse what a scheme's own rates and steps leave without a meaning."""
    options, axes = scheme.options, {axis.name: axis for axis in local.axes}
    if (options.compensate == "rate" or options.client_rates is not None) and RATE not in axes:
        raise InputError(f"{scheme.label}: clients differ in their learning rate, but {local!r} has none")
    if options.client_steps is None:
        return
    if len(axes["local_steps"].values) > 1:
        raise InputError(f"{scheme.label}: its clients have their own numbers of steps; give one number as steps")
    if isinstance(local, LocalOptax) and local.schedule != "constant":
        raise InputError(f"{scheme.label}: the schedule 1/√(KN) needs one K for all clients; use a constant rate")


def surrogate_scheme(given: object, num_clients: int) -> Scheme:
    """The scheme whose shares of rounds weight the surrogate loss."""
    scheme = AsyncFedAvg() if given is None else given
    if not isinstance(scheme, Scheme):
        raise InputError(f"surrogate: {scheme!r} is not a scheme; give ft.AsyncFedAvg(), or leave it out")
    scheme.waiting.check(num_clients)
    return scheme


def local_rule(given: object) -> LocalRule:
    """The clients' work."""
    rule = LocalSGD() if given is None else given
    if not isinstance(rule, LocalRule):
        raise InputError(f"local: {rule!r} is not a local solver; give ft.LocalSGD(steps=5, lr=0.1), or leave it out")
    return rule


def weight_rules(given: object) -> tuple[WeightRule, ...]:
    """One weight rule, or several that differ."""
    rules = tuple(weight_rule(one) for one in _listed(given))
    if len({rule.label for rule in rules}) < max(1, len(rules)):
        raise InputError(f"weights: {given!r} is empty or repeats a rule; give at least one, and each once")
    return rules


def rates_by_scheme(given: object, schemes: object, local: LocalRule) -> dict[str, tuple[float, ...]]:
    """By the label of a scheme, some of the local learning rates; nothing for schemes that are run at all."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"rates: {given!r} is not a table; give {{'FedAvg': [0.1, 0.2]}}")
    labels = [scheme.label for scheme in _listed(schemes)]
    known = [value for axis in local.axes if axis.name == RATE for value in axis.values]
    found: dict[str, tuple[float, ...]] = {}
    for label, rates in given.items():
        chosen = tuple(_listed(rates))
        if label not in labels:
            raise InputError(f"rates: there is no scheme {label!r}; the schemes are {', '.join(labels)}")
        if not chosen or not all(rate in known for rate in chosen):
            raise InputError(f"rates: {label} has {list(chosen)}; give some of the local learning rates {known}")
        found[str(label)] = tuple(float(rate) for rate in chosen)
    return found


def some_seeds(given: object, stored: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """A number says how many seeds, 0, 1, 2, …; a list says which.

    `stored`: those of the study that goes on. A number may have meant a seed's own number when it was begun.
    """
    if _whole(given):
        return _counted_seeds(int(given), stored)  # type: ignore[call-overload]
    seeds = _listed(given)
    for seed in seeds:
        if not _whole(seed) or abs(int(seed)) >= 2**63:
            raise InputError(f"seeds: {seed!r} is not a whole number of 64 bits; give a list of numbers, as range(5)")
    if len(set(seeds)) < max(1, len(seeds)):
        raise InputError(f"seeds: {seeds} is empty or repeats a seed; give at least one, and each once")
    return tuple(int(seed) for seed in seeds)


def _counted_seeds(number: int, stored: tuple[int, ...] | None) -> tuple[int, ...]:
    if stored == (number,):
        return stored
    if not 1 <= number <= MOST_SEEDS:
        raise InputError(
            f"seeds: {number} given. A number says how many, from 1 to {MOST_SEEDS}; a list says which, as "
            f"seeds=[{number}]"
        )
    which = "seed 0" if number == 1 else f"seeds 0 to {number - 1}"
    warnings.warn(
        f"seeds={number} runs {which}. Up to 0.6 it was seed number {number}. To silence this warning give a list: "
        f"[{', '.join(map(str, range(min(number, 3))))}{', …' * (number > 3)}], or [{number}] for that one seed",
        FutureWarning,
        stacklevel=4,
    )
    return tuple(range(number))


def grid_points(given: Any) -> int:
    """How many times are measured."""
    if not _whole(given) or given < 2:
        raise InputError(f"points: {given!r} is not a whole number of at least 2 (time 0 and the end); give one")
    return int(given)


def first_measure(given: Exact, until: Exact) -> Fraction:
    """When it is measured first: a time from 0 on, before the end."""
    start = exact(given, "measure_from")
    if not 0 <= start < exact(until, "until"):
        raise InputError(f"measure_from: {given} is not between 0 and the end, {until}; give an earlier time")
    return start


def real(name: str, given: Any, *, above: bool = True) -> float:
    """A number above zero (infinity is one), or from zero on."""
    fits = isinstance(given, Real) and not isinstance(given, bool)
    value = float(given) if fits else float("nan")
    if isnan(value) or value < 0 or (above and value == 0):
        raise InputError(f"{name}: {given!r} is not allowed; give a number {'above' if above else 'of at least'} zero")
    return value


def gigabytes(name: str, given: Any, engine: EngineName) -> float | None:
    """Bytes of models in memory, which are given in gigabytes; None for all."""
    if given is not None and engine in ("waves", "oracle"):
        raise InputError(
            f"{name}: the engine {engine!r} has all models in memory; use engine='events', or leave it out"
        )
    return None if given is None else 1e9 * real(name, given)


def engine_name(given: EngineName, problem: Problem) -> EngineName:
    """The engine for a problem of JAX functions, chosen for the hardware where that is left open."""
    chosen = one_of("engine", given, ENGINES)
    if chosen == "torch":
        raise InputError(
            f"engine: 'torch' runs PyTorch modules, and {problem.name} is made of JAX functions; use 'auto', or "
            "ft.torch.problem"
        )
    if any_mapped(problem.rows):
        if chosen == "waves":
            raise InputError(
                "engine: 'waves' needs all rows on the device, and those of this problem stay on disk; use 'events', "
                "or read them into memory with np.array"
            )
        return "events" if chosen == "auto" else chosen
    if chosen == "auto":
        return "events" if jax.default_backend() == "cpu" else "waves"
    return chosen


def engine_for(given: EngineName, problem: Problem, local: LocalRule, dtype: str) -> tuple[EngineName, Problem]:
    """The engine, and the problem as it runs it: a PyTorch module is compiled where that can be done and is faster."""
    if problem.framework != "torch":
        return engine_name(given, problem), problem
    from fedtempo.problems.torch.choice import chosen
    from fedtempo.problems.torch.problem import TorchProblem

    assert isinstance(problem, TorchProblem)
    sizes = [axis.values for axis in local.axes if axis.name == "batch_size"]
    batch = next((int(size) for values in sizes for size in values if size is not None), 64)
    asked = one_of("engine", given, ENGINES)
    found = chosen(problem, asked, torch_work=local.framework == "torch", dtype=dtype, batch_size=batch)
    return ("torch", problem) if found is problem else (engine_name(asked, found), found)


def fitting_local(local: LocalRule, engine: EngineName) -> LocalRule:
    """Local work that the engine can run."""
    if local.framework == "torch" and engine != "torch":
        raise InputError(
            f"local: {local!r} is a PyTorch solver, which the engine {engine!r} cannot run; give ft.LocalSGD or "
            "ft.LocalOptax, or an ft.torch.problem and engine='torch'"
        )
    return local


def one_of(name: str, given: Choice, known: Sequence[Choice]) -> Choice:
    """One of a few words."""
    if given not in known:
        raise InputError(f"{name}: {given!r} is not known; use one of {', '.join(known)}")
    return given


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
