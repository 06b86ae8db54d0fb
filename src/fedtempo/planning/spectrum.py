"""How a vector's energy lies over the curvatures of a loss, by Lanczos' quadrature.

    vᵀ f(H) v ≈ ‖v‖² Σ_j share_j f(curvature_j)            exact for polynomials f of degree 2m − 1

m products H·v are taken; H is the mean Hessian of a few rows. Its largest curvature is too large, since few rows agree
with each other by chance: `deflated` draws it towards what other rows say of the same direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedtempo.clock.times import Floats

SMALLEST = 1e-5
"""Of the largest curvature: what is smaller, or negative, is taken as this flat."""


class Spectrum(NamedTuple):
    """Energy over curvatures."""

    curvature: Floats
    """[nodes] ascending."""
    share: Floats
    """[nodes] of the energy; they sum to 1."""

    @property
    def mean(self) -> float:
        """The mean curvature, weighted by energy."""
        return float(self.curvature @ self.share)


class Lanczos(NamedTuple):
    """The quadrature, and the direction of the largest curvature that was found."""

    spectrum: Spectrum
    steepest: Floats


def lanczos(product: Callable[[Floats], Floats], vector: Floats, steps: int) -> Lanczos:
    """The spectrum of `vector` in at most `steps` products."""
    size = float(np.linalg.norm(vector))
    basis = [vector / size if size > 0 else _first_axis(len(vector))]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for known in basis:
            image = image - (image @ known) * known
        left = float(np.linalg.norm(image))
        if len(diagonal) >= steps or left <= 1e-8 * max(map(abs, diagonal)):
            break
        beside.append(left)
        basis.append(image / left)
    small = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    curvature, vectors = np.linalg.eigh(small)
    return Lanczos(Spectrum(curvature, vectors[0] ** 2), np.array(basis).T @ vectors[:, -1])


def deflated(spectrum: Spectrum, largest: float, factor: float) -> Spectrum:
    """Curvatures at `largest` times `factor`, smaller ones by less; none below the smallest that is told apart."""
    curvature = np.maximum(spectrum.curvature, SMALLEST * largest)
    return Spectrum(curvature * (1 - (1 - factor) * np.minimum(curvature / largest, 1)), spectrum.share)


def _first_axis(length: int) -> Floats:
    axis = np.zeros(length)
    axis[0] = 1.0
    return axis
