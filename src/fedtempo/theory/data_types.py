"""Clients that share a data distribution (section 2.6): J types, Q_j the clients of type j.

    r_j = Σ_{i∈Q_j} p_i,   s_j(n) = Σ_{i∈Q_j} q_i(n),   s̃_j(n) = s_j(n)/Σ_j s_j(n),   W_n = {j : s_j(n) > 0}
    χ_n² = Σ_{j∈W_n} (r_j − s̃_j(n))²/s̃_j(n) (Theorem 2),        χ² = Σ_j (r_j − s̃_j)²/s̃_j (Theorem 3)

r_j is `type_importance`, s_j(n) `type_weights`, W_n `represented`. Empty rounds have χ_n² = 0 and no type in W_n.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact
from fedtempo.clock.times import Floats, Ints
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.theory.expected import Expected, shares

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem


class DataTypes:
    """Which clients share a distribution. ``DataTypes(["a", "a", "b"])``: one label per client, of any kind.

    Example:
        >>> types = ft.theory.DataTypes(["hospital", "phone", "phone"])
        >>> types.num_types, types.clients
        (2, ((0,), (1, 2)))
        >>> types.sums([0.5, 0.25, 0.25])
        array([0.5, 0.5])
    """

    def __init__(self, labels: Sequence[object]) -> None:
        if not len(labels):
            raise InputError("types: no labels; give one per client")
        number: dict[object, int] = {}
        self.of_client: Ints = np.array([number.setdefault(label, len(number)) for label in labels], dtype=np.int64)
        """[clients] the type of each client, numbered as they first appear."""
        self.labels = tuple(number)
        """[types] what was given for each type."""

    @classmethod
    def all_different(cls, num_clients: int) -> DataTypes:
        """Every client is a type of its own, so that s_j(n) = q_i(n): what the paper assumes unless stated."""
        return cls(range(num_clients))

    @classmethod
    def by_data(cls, problem: Problem) -> DataTypes:
        """Clients whose rows are the same ones in the same proportions, in whatever order, share a type."""
        import jax

        return cls([_digest(jax.tree.leaves(problem.client_data(i))) for i in range(problem.num_clients)])

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.of_client)

    @property
    def num_types(self) -> int:
        """J."""
        return len(self.labels)

    @property
    def clients(self) -> tuple[tuple[int, ...], ...]:
        """[types] Q_j, the clients of each type."""
        return tuple(tuple(np.flatnonzero(self.of_client == j).tolist()) for j in range(self.num_types))

    def sums(self, values: ArrayLike) -> Floats:
        """[…, types] sums over the clients of each type of values [..., clients]."""
        given = np.asarray(values, dtype=np.float64)
        if given.shape[-1:] != (self.num_clients,):
            raise InputError(f"types: labels of {self.num_clients} clients, but values of shape {given.shape}")
        return np.asarray(given @ (self.of_client[:, None] == np.arange(self.num_types)).astype(np.float64))

    def __repr__(self) -> str:
        return f"DataTypes({self.num_types} types of {self.num_clients} clients)"


@dataclass(frozen=True, eq=False, repr=False)
class TypeWeights(Brief):
    """How the types are represented, round by round and over a run.

    Example:
        >>> times = ft.FixedTimes([4, 1, 1])
        >>> types = ft.theory.DataTypes(["a", "b", "b"])
        >>> found = ft.theory.quantities(scheme=ft.AsyncFedAvg(), times=times, types=types, weights="identical")
        >>> found.by_type.type_importance.round(3), round(found.by_type.chi_squared_run, 3)
        (array([0.333, 0.667]), 0.5)
    """

    type_importance: Floats
    """[types] r_j."""
    weights: Floats
    """[kinds, types] s_j(n)."""
    expected_weight: Floats
    """[types] s_j."""

    @classmethod
    def of(cls, types: DataTypes, expected: Expected, importance: Floats) -> TypeWeights:
        """From the clients' q_i(n) and p_i."""
        return cls(types.sums(importance), types.sums(expected.weights), types.sums(expected.expected_weight))

    @cached_property
    def normalised(self) -> Floats:
        """[kinds, types] s̃_j(n); 0 in empty rounds."""
        return shares(self.weights)

    @cached_property
    def normalised_run(self) -> Floats:
        """[types] s̃_j."""
        return shares(self.expected_weight)

    @property
    def represented(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """[kinds, types] whether j is in W_n."""
        return self.weights > 0

    @cached_property
    def chi_squared(self) -> Floats:
        """[kinds] χ_n²."""
        here = self.normalised
        gap = np.divide((self.type_importance - here) ** 2, here, out=np.zeros_like(here), where=here > 0)
        return np.asarray(gap.sum(axis=1))

    @property
    def chi_squared_run(self) -> float:
        """χ²; infinite if a type never takes part."""
        share = self.normalised_run
        if not (share > 0).all():
            return float("inf")
        return float(((self.type_importance - share) ** 2 / share).sum())


def type_weights(types: DataTypes, share: ArrayLike, importance: Iterable[Exact] | Importance | None = None) -> Floats:
    """[clients] d_i = r_j / Σ_{k∈Q_j} share_k for i in Q_j, so that s_j = r_j: the type matters, not the client.

    One participating client a type is enough, and gets d_i = r_j/share_i. `share` is [clients] the share of rounds.

    Example:
        >>> types = ft.theory.DataTypes(["a", "b", "b"])
        >>> share = ft.participation_of(ft.AsyncFedAvg(), ft.FixedTimes([4, 1, 1])).share
        >>> ft.theory.type_weights(types, share)
        array([3.  , 0.75, 0.75])
    """
    p = Importance(importance.exact if isinstance(importance, Importance) else importance, types.num_clients)
    together = types.sums(share)
    if not (together > 0).all():
        never = types.labels[int(np.flatnonzero(~(together > 0))[0])]
        raise InputError(
            f"no client of type {never!r} ever takes part, so no weight can make the type count; let one of them take "
            "part"
        )
    return np.asarray((types.sums(p.values) / together)[types.of_client])


def _digest(leaves: list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]) -> str:
    """Of the distribution of rows: the different rows, with how often each comes, in lowest terms."""
    rows = [np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8) for leaf in leaves]
    together = np.ascontiguousarray(np.concatenate(rows, axis=1))
    different, counts = np.unique(together.view(np.dtype((np.void, together.shape[1]))).ravel(), return_counts=True)
    digest = blake2b(different.tobytes(), digest_size=16)
    digest.update((counts // np.gcd.reduce(counts)).astype("<i8").tobytes())
    return digest.hexdigest()
