"""A problem whose data every seed of a study deals anew: D_i is that of the seed.

What is said of a data set should not be said of one way of dealing it. A run under seed s is then a run, under seed s,
of the problem that `make(s)` gives: another partition, or another draw. All of them have the same functions, as many
rows for each client and the same importance, so that they are trained together as the seeds of one problem are.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.problems.mapped import any_mapped
from fedtempo.problems.naming import EACH, PROBLEMS, named, num_clients
from fedtempo.problems.problem import Problem


class Redealt(Problem):
    """The problem of the first of some seeds, and with it those of the others."""

    _by_seed: dict[int, Problem]

    @classmethod
    def of(cls, make: Callable[[int], Any], seeds: Sequence[int]) -> Self:
        """`make(seed)` for each of the seeds."""
        _check_takes_seed(make)
        by_seed = {seed: make(seed) for seed in seeds}
        first = by_seed[seeds[0]]
        for seed, problem in by_seed.items():
            _check(seed, problem, seeds[0], first)
        made = cls.__new__(cls)
        made.__dict__ |= first._copy().__dict__
        made._by_seed = by_seed
        made._arguments = _arguments(by_seed)
        return made

    @property
    def deals(self) -> tuple[Problem, ...]:
        return tuple(self._by_seed.values())

    def for_seed(self, seed: int) -> Problem:
        return self._by_seed[seed]

    def deal_of(self, seeds: Sequence[int]) -> list[int]:
        places = {seed: k for k, seed in enumerate(self._by_seed)}
        return [places[seed] for seed in seeds]

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for seed, problem in self._by_seed.items():
            digest.update(f"{seed}:{problem.fingerprint()};".encode())
        return digest.hexdigest()

    def spec(self) -> dict[str, object]:
        found = super().spec()
        found.pop("description", None)  # of the first seed alone
        return found if "arguments" in found else {**found, "seed": EACH}

    def __reduce__(self) -> tuple[Any, ...]:
        return _joined_again, (dict(self._by_seed),)


def _arguments(by_seed: Mapping[int, Problem]) -> dict[str, Any] | None:
    """Those by which each is made again with its seed; None where they differ in something else too."""
    given = [problem._arguments for problem in by_seed.values()]
    first = given[0]
    if first is None or any(
        one is None or one.get("seed", 0) != seed for one, seed in zip(given, by_seed, strict=True)
    ):
        return None
    wanted = {**first, "seed": EACH}
    return wanted if all({**(one or {}), "seed": EACH} == wanted for one in given) else None


def _joined_again(by_seed: Mapping[int, Problem]) -> Redealt:
    return Redealt.of(by_seed.__getitem__, list(by_seed))


class EachSeed:
    """The problem of a table whose seed is "each", as a function of the seed."""

    def __init__(self, spec: Mapping[str, Any], clients: int | None = None) -> None:
        """`clients`: how many client times there are, if that is known."""
        if not PROBLEMS.takes(spec, "seed"):
            name = PROBLEMS.name_of(spec)
            raise InputError(f'problem: {name} takes no seed that could deal it anew; leave seed = "{EACH}" out')
        self._spec, self._clients = dict(spec), clients

    def __call__(self, seed: int) -> Problem:
        return named({**self._spec, "seed": seed}, self._clients)

    @cached_property
    def num_clients(self) -> int:
        """M."""
        return num_clients({**self._spec, "seed": 0}) if self._clients is None else self._clients


def problem_of(table: Mapping[str, Any], clients: int | None = None) -> Problem | EachSeed:
    """The problem of a table of a study file."""
    return EachSeed(table, clients) if table.get("seed") == EACH else named(table, clients)


def _check_takes_seed(make: Callable[[int], Any]) -> None:
    """Refuse a function of ours that was not called, and one that takes no seed."""
    if make in PROBLEMS.known.values():
        name = getattr(make, "__name__", "digits")
        call = f"ft.problems.{name}"
        raise InputError(f"problem: {name} was not called; give {call}(), or lambda seed: {call}(seed=seed)")
    try:
        inspect.signature(make).bind(0)
    except TypeError:
        raise InputError(
            "problem: the function takes no seed; call it, or give one from a seed to a problem, as "
            "lambda seed: ft.problems.digits(seed=seed)"
        ) from None
    except ValueError:  # it does not say what it takes
        return


def _check(seed: int, problem: Any, first_seed: int, first: Problem) -> None:
    """Refuse what cannot be trained together with the problem of the first seed."""
    if not isinstance(problem, Problem):
        raise InputError(
            f"problem: a function was given, and for seed {seed} it returns {problem!r}; let it return an ft.Problem"
        )
    if problem.framework != "jax" or any_mapped(problem.rows):
        raise InputError(
            "problem: what each seed deals anew must be made of JAX functions and rows in memory; give a function that "
            "makes such a problem, or one problem for all seeds"
        )
    both = f"under the seeds {first_seed} and {seed}"
    cure = "deal equally many to each client, or run the partitions one by one as problems of their own"
    if problem.num_clients != first.num_clients:
        raise InputError(f"problem: {first.num_clients} and {problem.num_clients} clients {both}; make as many for all")
    for what, one, other in (
        ("rows", first.sizes, problem.sizes),
        ("test rows", _test_sizes(first), _test_sizes(problem)),
    ):
        if one.shape != other.shape:
            raise InputError(f"problem: there are not as many {what} {both}; {cure}")
        if not np.array_equal(one, other):
            at = int(np.argmax(one != other))
            who = f"client {at} has" if len(one) == first.num_clients else "there are"
            raise InputError(f"problem: {who} {one[at]} and {other[at]} {what} {both}; {cure}")
    if problem.importance.exact != first.importance.exact:
        raise InputError(f"problem: clients are not as important {both}; give the same importance")
    if not _same_functions(first, problem):
        raise InputError(f"problem: its functions compute something else {both}; only the rows may depend on the seed")


def _test_sizes(problem: Problem) -> NDArray[np.int64]:
    if problem.test is None:
        return np.zeros(0, dtype=np.int64)
    if problem.test_offsets is None:
        return np.array([len(jax.tree.leaves(problem.test)[0])])
    return np.diff(problem.test_offsets)


def _same_functions(one: Problem, other: Problem) -> bool:
    if _shapes(one) != _shapes(other):
        return False
    mine, theirs = ({"init": p.init, "loss": p.loss, "state": p.state} | p.metrics for p in (one, other))
    same = all(function is theirs[name] for name, function in mine.items())
    return same or _programs(one) == _programs(other)


def _shapes(problem: Problem) -> tuple[Any, ...]:
    """The trees that its functions take and give, and the names of its metrics."""
    trees = (_two(problem.rows), problem.parameter_shapes, problem.state_shapes)
    return (str(jax.tree.flatten(trees)), list(problem.metrics), problem.form.keyed, problem.form.stateful)


def _programs(problem: Problem) -> list[str]:
    """The text of its functions as programs, in which the numbers stand that they hold; of the loss with its gradient,
    which may be one of its own.
    """
    form, key = problem.form, jax.eval_shape(lambda: jax.random.key(0))
    batch, model, state = _two(problem.rows), problem.parameter_shapes, problem.state_shapes

    def trained(*args: Any) -> Any:
        return jax.value_and_grad(form.training, has_aux=True)(*args)

    def first_model(key: Any) -> Any:
        return problem.init(key), problem.initial_state(key)

    texts = [jax.jit(first_model).lower(key), jax.jit(trained).lower(model, batch, key if form.keyed else None, state)]
    measured = (form.evaluation, *problem.metric_forms.values())
    texts += [jax.jit(function).lower(model, batch, state) for function in measured]
    return [text.as_text() for text in texts]


def _two(rows: Any) -> Any:
    """The shapes of two rows."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), rows)  # type: ignore[no-untyped-call]
