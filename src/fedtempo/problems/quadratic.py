"""Families of quadratics whose optimum, smoothness and noise are known.

    L_i(θ) = ½ Σ_k a_ik (θ_k − c_ik)² + const        argmin Σ_i w_i L_i = Σ_i w_i a_i c_i / Σ_i w_i a_i

A row of client i is (a_i, c_i + ξ), and the ξ of a client come in pairs ξ, −ξ, so that they sum to zero. The gradient
of a row differs from that of L_i by a_i ξ, at every θ: its variance is σ² = E‖a_i ξ‖². L, the largest a_ik, is
`smoothness`; μ, the smallest, is `convexity`; a is `curvatures`, c is `centers`, σ² is `noise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import exact, positive, positive_int
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.problems.partitions import check_seed
from fedtempo.problems.problem import Problem, Weighting
from fedtempo.problems.rows import Tree


class Quadratics(Problem):
    """A problem of quadratic clients, made by `quadratics`; parameters are one array θ that starts at zero.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[0.0], [1.0]])
        >>> problem.optimum(), problem.optimal_loss
        (array([0.5]), 0.125)
        >>> problem.optimum(weights=[0.25, 0.75])  # if client 1 counts for three times as much
        array([0.75])
        >>> problem.client_losses([0.0])
        array([0. , 0.5])
    """

    curvatures: Floats
    centers: Floats

    def optimum(self, weights: ArrayLike | None = None) -> Floats:
        """The minimiser of Σ w_i L_i, with p_i for w_i unless given."""
        pull = self._weights(weights)[:, None] * self.curvatures
        return np.asarray((pull * self.centers).sum(axis=0) / pull.sum(axis=0))

    def client_losses(self, params: ArrayLike) -> Floats:
        """L_i(θ), one per client."""
        point = np.asarray(params, dtype=np.float64)
        a, c = self.rows
        return self._means(0.5 * (a * (point - c) ** 2).sum(axis=1))

    @property
    def optimal_loss(self) -> float:
        """The smallest value of L = Σ p_i L_i."""
        return float(self.importance.values @ self.client_losses(self.optimum()))

    @property
    def smoothness(self) -> float:
        """L: every L_i has gradients that are L-Lipschitz."""
        return float(self.curvatures.max())

    @property
    def convexity(self) -> float:
        """μ: every L_i is μ-strongly convex."""
        return float(self.curvatures.min())

    @property
    def noise(self) -> float:
        """Σ p_i E‖∇ℓ − ∇L_i‖² at the optimum, for batches of one row; batches of B rows have 1/B of it."""
        a, c = self.rows
        gradients = a * (self.optimum() - c)
        means = np.repeat(self._means(gradients), self.sizes, axis=0)
        return float(self.importance.values @ self._means(((gradients - means) ** 2).sum(axis=1)))

    def pooled(self) -> Self:
        made = super().pooled()
        share = (self.sizes / self.num_rows)[:, None]
        made.curvatures = (share * self.curvatures).sum(axis=0, keepdims=True)
        made.centers = (share * self.curvatures * self.centers).sum(axis=0, keepdims=True) / made.curvatures
        return made

    def _means(self, values: Floats) -> Floats:
        """The mean over each client's rows."""
        sums = np.add.reduceat(values, self.offsets[:-1], axis=0)
        return np.asarray(sums / self.sizes.reshape(-1, *[1] * (values.ndim - 1)))

    def _weights(self, weights: ArrayLike | None) -> Floats:
        if weights is None:
            return self.importance.values
        found = np.asarray(weights, dtype=np.float64)
        if found.shape != (self.num_clients,):
            raise InputError(f"weights: shape {found.shape} for {self.num_clients} clients; give one per client")
        if not (np.isfinite(found).all() and (found >= 0).all() and found.sum() > 0):
            raise InputError(f"weights: {found.tolist()} must not be below zero, nor all zero")
        return found


def quadratics(
    clients: int | None = None,
    *,
    dimension: int | None = None,
    smoothness: float = 1.0,
    convexity: float = 0.1,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    rows: int | Sequence[int] = 16,
    seed: int = 0,
    centers: ArrayLike | None = None,
    curvatures: ArrayLike | None = None,
    importance: Weighting = "uniform",
) -> Quadratics:
    """Quadratic clients (10 of dimension 20 unless given).

    Each client's curvatures run evenly from `convexity` to `smoothness` in a drawn order (all `smoothness` in dimension
    1). The clients' minimisers lie around a common point at distance 1 from the start, `heterogeneity` away from it
    (root mean square). `noise` is the variance of a row's gradient around its client's. `rows` is one number, or one
    per client. Explicit `centers` [clients, dimension], and `curvatures` (one number, or an array that broadcasts to
    their shape), make a chosen family.

    Example:
        >>> problem = ft.problems.quadratics(10, noise=0.5, heterogeneity=2)
        >>> problem.smoothness, problem.convexity, round(problem.optimal_loss, 2)
        (1.0, 0.1, 1.37)
        >>> ft.problems.quadratics(centers=[[0.0], [1.0]], importance=[0.75, 0.25]).optimum()
        array([0.25])
    """
    shape = _shape(clients, dimension, centers)
    count, length = shape
    steep, flat = float(positive(smoothness, "smoothness")), float(positive(convexity, "convexity"))
    if flat > steep:
        raise InputError(f"convexity {convexity} is above smoothness {smoothness}; it cannot be larger")
    sizes = [positive_int(rows, "rows")] * count if np.ndim(rows) == 0 else [positive_int(n, "rows") for n in rows]  # type: ignore[union-attr]
    if len(sizes) != count:
        raise InputError(f"rows: {len(sizes)} numbers for {count} clients; give one, or one per client")
    check_seed(seed)
    spread = _not_negative(heterogeneity, "heterogeneity")
    variance = _not_negative(noise, "noise")
    if variance and min(sizes) < 2:
        raise InputError(f"noise: {noise} needs at least two rows per client, so that it can sum to zero; give rows=2")
    a = _given(curvatures, shape, "curvatures") if curvatures is not None else _curvatures(shape, flat, steep, seed)
    if (a <= 0).any():
        raise InputError("curvatures must be above zero, else there is no unique optimum")
    c = _given(centers, shape, "centers") if centers is not None else _centers(shape, spread, seed)
    data = []
    for i, size in enumerate(sizes):
        offsets = _noise(a[i], size, variance, i, seed)
        data.append((np.broadcast_to(a[i], (size, length)), c[i] + offsets))

    def init(key: jax.Array) -> Tree:
        return jnp.zeros(length)

    arguments: dict[str, object] = {
        "clients": count,
        "dimension": length,
        "smoothness": smoothness,
        "convexity": convexity,
        "heterogeneity": heterogeneity,
        "noise": noise,
        "rows": rows if np.ndim(rows) == 0 else sizes,
        "seed": seed,
        "centers": None if centers is None else c.tolist(),
        "curvatures": None if curvatures is None else a.tolist(),
    }
    made = Quadratics(init, _loss, data, importance=importance, name="quadratics", arguments=arguments)
    made.curvatures, made.centers = a, c
    return made


def _loss(params: Tree, batch: Tree) -> jax.Array:
    a, c = batch
    return jnp.mean(jnp.sum(a * (params - c) ** 2, axis=-1)) / 2


def _shape(clients: int | None, dimension: int | None, centers: ArrayLike | None) -> tuple[int, int]:
    """(M, dimension), from the centers where they are given."""
    if centers is None:
        return (
            positive_int(10 if clients is None else clients, "clients"),
            positive_int(20 if dimension is None else dimension, "dimension"),
        )
    found = _numbers(centers, "centers").shape
    if len(found) != 2 or 0 in found:
        raise InputError(f"centers: shape {found}; give one list of coordinates per client, as [[0], [1]]")
    for what, given, real in (("clients", clients, found[0]), ("dimension", dimension, found[1])):
        if given is not None and given != real:
            raise InputError(f"{what}: {given}, but centers has shape {found}; leave {what} out")
    return int(found[0]), int(found[1])


def _numbers(values: ArrayLike, what: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: not a table of numbers; give lists of equal length, as [[0], [1]]") from error


def _given(values: ArrayLike, shape: tuple[int, int], what: str) -> Floats:
    found = _numbers(values, what)
    try:
        table = np.array(np.broadcast_to(found, shape))
    except ValueError as error:
        raise InputError(f"{what}: shape {found.shape} does not fit {shape[0]} clients × {shape[1]}") from error
    if not np.isfinite(table).all():
        raise InputError(f"{what} must be finite")
    return table


def _not_negative(value: float, what: str) -> float:
    number = float(exact(value, what))
    if number < 0:
        raise InputError(f"{what}: {value} is below zero; give zero or a positive number")
    return number


def _curvatures(shape: tuple[int, int], flat: float, steep: float, seed: int) -> Floats:
    levels = np.linspace(flat, steep, shape[1]) if shape[1] > 1 else np.array([steep])
    drawn = uniforms(stream_key("quadratics/curvatures", seed), np.arange(shape[0])[:, None], np.arange(shape[1]))
    return levels[np.argsort(drawn, axis=1, kind="stable")]


def _normals(name: str, a: ArrayLike, b: ArrayLike, seed: int) -> Floats:
    from scipy.special import ndtri

    return np.asarray(ndtri(uniforms(stream_key(f"quadratics/{name}", seed), a, b)))


def _centers(shape: tuple[int, int], spread: float, seed: int) -> Floats:
    common = np.full(shape, shape[1] ** -0.5)
    away = _normals("centers", np.arange(shape[0])[:, None], np.arange(shape[1]), seed)
    away = away - away.mean(axis=0)
    size = np.sqrt((away**2).sum(axis=1).mean())
    return common + away * (spread / size) if size > 0 else common


def _noise(curvature: Floats, size: int, variance: float, client: int, seed: int) -> Floats:
    """ξ of one client's rows: half drawn, half their negatives, a middle one zero; scaled to the asked variance."""
    half = size // 2
    counter = np.arange(half * len(curvature)).reshape(half, len(curvature))
    drawn = _normals("noise", client, counter, seed)
    offsets = np.concatenate([drawn, np.zeros((size % 2, len(curvature))), -drawn])
    found = ((curvature * offsets) ** 2).sum(axis=1).mean()
    return offsets * np.sqrt(variance / found) if found > 0 else offsets
