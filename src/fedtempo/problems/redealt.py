"""A problem whose data every seed of a study deals anew: D_i is that of the seed.

What is said of a data set should not be said of one way of dealing it. A run under seed s is then a run, under seed s,
of the problem that `make(s)` gives: another partition, or another draw. All of them have the same functions, as many
rows for each client and the same importance, so that they are trained together as the seeds of one problem are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.problems.mapped import any_mapped
from fedtempo.problems.naming import PROBLEMS, named
from fedtempo.problems.problem import Problem

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

EACH = "each"
"""The seed of a problem in a study file that every seed of the study deals anew."""


class Redealt(Problem):
    """The problem of the first of some seeds, and with it those of the others."""

    _by_seed: dict[int, Problem]

    @classmethod
    def of(cls, make: Callable[[int], Any], seeds: Sequence[int]) -> Self:
        """`make(seed)` for each of the seeds."""
        by_seed = {seed: make(seed) for seed in seeds}
        first = by_seed[seeds[0]]
        for seed, problem in by_seed.items():
            _check(seed, problem, seeds[0], first)
        made = cls.__new__(cls)
        made.__dict__ |= first._copy().__dict__
        made._by_seed = by_seed
        if made._arguments is not None:
            made._arguments["seed"] = EACH
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
        return self(0).num_clients


def problem_of(table: Mapping[str, Any], clients: int | None = None) -> Problem | EachSeed:
    """The problem of a table of a study file."""
    return EachSeed(table, clients) if table.get("seed") == EACH else named(table, clients)


def _check(seed: int, problem: Any, first_seed: int, first: Problem) -> None:
    """Refuse what cannot be trained together with the problem of the first seed."""
    if not isinstance(problem, Problem):
        raise InputError(
            f"problem: a function was given, and for seed {seed} it returns {problem!r}; let it return an ft.Problem"
        )
    if problem.framework != "jax" or any_mapped(problem.rows):
        raise InputError("problem: what each seed deals anew must be made of JAX functions and rows in memory")
    both = f"under the seeds {first_seed} and {seed}"
    cure = "deal equally many to each client, or run the partitions one by one as problems of their own"
    if problem.num_clients != first.num_clients:
        raise InputError(f"problem: {first.num_clients} and {problem.num_clients} clients {both}; make as many for all")
    for what, one, other in (
        ("rows", first.sizes, problem.sizes),
        ("test rows", _test_sizes(first), _test_sizes(problem)),
    ):
        if not np.array_equal(one, other):
            client = int(np.argmax(one != other)) if one.shape == other.shape else 0
            counts = f"{one[client]} and {other[client]} " if one.shape == other.shape else "other numbers of "
            raise InputError(f"problem: client {client} has {counts}{what} {both}; {cure}")
    if problem.importance.exact != first.importance.exact:
        raise InputError(f"problem: clients are not as important {both}; give the same importance")
    if _computed(problem) != _computed(first):
        raise InputError(f"problem: its functions compute something else {both}; only the rows may depend on the seed")


def _test_sizes(problem: Problem) -> NDArray[np.int64]:
    if problem.test is None:
        return np.zeros(0, dtype=np.int64)
    if problem.test_offsets is None:
        return np.array([len(jax.tree.leaves(problem.test)[0])])
    return np.diff(problem.test_offsets)


def _computed(problem: Problem) -> list[tuple[str, list[bytes]]]:
    """What its functions compute, with the numbers that they hold."""

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), tree)  # type: ignore[no-untyped-call]

    key = jax.eval_shape(lambda: jax.random.key(0))
    batch, model, state = shapes(problem.rows), problem.parameter_shapes, problem.state_shapes
    traced = [
        jax.make_jaxpr(problem.init)(key),
        jax.make_jaxpr(problem.form.training)(model, batch, key if problem.form.keyed else None, state),
        *(jax.make_jaxpr(f)(model, batch, state) for f in (problem.form.evaluation, *problem.metric_forms.values())),
    ]
    return [(_ADDRESS.sub("", str(one.jaxpr)), [np.asarray(x).tobytes() for x in one.consts]) for one in traced]
