"""The loss at the horizon of each scheme and learning rate, from the pilot, without a run.

    L(T) − min L ≈ progress + noise + heterogeneity + drift               means over the last tenth of the time

Around the pilot's end the clients are quadratics with one curvature a coordinate, whose moments follow exactly along
the scheme's timeline (fedtempo.theory.forecast): coordinates that start away and decay (progress up to the pilot's
end), that are shaken by batches (noise), that are pulled apart by clients (heterogeneity). What lies beyond the pilot's
end decays as the flow does at s = N·σ(η_l): after a short pilot with the gradient's own curvatures, after a long one as
the curve of the path goes on,

    σ(η_l) = log(1 + a η_l K) / a,      L(s) = c + (L(0) − c) (1 + s/s_0)^{−γ},      −L'(s_e) = ‖∇L(θ_e)‖²

σ is how far K local steps lead along a client's own gradient, which they use up; a is its curvature, N the number of
rounds. Curves with all c, s_0 and γ from 1 to 5 are weighted by their likelihood under what the path, the end and the
gradient's square said; the excess at s ≥ s_e is the weighted mean of L(s) − c. The path's own noise, about
h·(variance of a step's gradient)/4 above the flow, is taken off first.

The drift of local work is first order in η_l, at most that of clients who get close to their own optima. Beyond the
pilot's end noise goes on falling with the loss as the spread of gradients did on the path, heterogeneity and drift as
its square (squares of means, not means of squares), and curvatures fall with the loss too; short pilots lean on what is
usual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.importance import Importance
from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Brief
from fedtempo.planning.pilot import Pilot
from fedtempo.planning.spectrum import Spectrum
from fedtempo.schemes.named import Scheme
from fedtempo.schemes.timelines import timeline, weights
from fedtempo.theory.ceiling import learning_rate_ceiling
from fedtempo.theory.expected import expected_from_timeline
from fedtempo.theory.forecasting import forecast
from fedtempo.theory.recursion import Coordinates
from fedtempo.training.solvers import LocalSGD
from fedtempo.weighting.weight_rules import WeightRule
from fedtempo.weighting.weights import Weights

_POWERS = (1.0, 1.5, 2.0, 3.0, 5.0)
_SCALES, _FLOORS = 24, 80
_NEARBY = 9
"""Steps over which the spread of the path's losses is averaged."""
_DOUBT = 0.3
"""Relative doubt in the gradient's square: it is that of a mean point, not of the flow."""


_LIKELY = 1e-6
"""Of the likeliest curve's weight: curves below are left out."""


class Curves(NamedTuple):
    """Likely curves of the excess."""

    weight: Floats
    height: Floats
    """L(0) − c."""
    scale: Floats
    power: Floats

    def at(self, time: ArrayLike) -> Floats:
        """[…] the mean excess at times s of the flow."""
        far = 1 + np.asarray(time, dtype=np.float64)[..., None] / self.scale
        return np.asarray((self.height * far**-self.power) @ self.weight)


def likely_curves(pilot: Pilot) -> Curves:
    """What the pilot's numbers say of L − min L along the flow."""
    path = pilot.path
    settled = -np.expm1(-2 * pilot.of_noise.mean * path.time)
    loss = path.loss - 1.1 * path.step * path.spread / (4 * path.rows) * settled
    jumps = np.diff(loss) ** 2 / 2
    near = min(_NEARBY, len(loss))
    deviation = np.sqrt(np.convolve(np.append(jumps, jumps[-1:]), np.ones(near) / near, "same")) + 1e-4
    first = pilot.start_loss
    lowest = 0.0 if first > 0 else 2 * first - 1  # losses below zero: some floor below the start
    powers, scales, floors = np.meshgrid(
        _POWERS,
        np.geomspace(0.3, 10 * max(3.0, pilot.start_curvature * float(path.time[-1])), _SCALES) / pilot.start_curvature,
        lowest + (first - lowest) * np.linspace(0, 0.99, _FLOORS),
        indexing="ij",
    )
    unlikely = np.zeros(powers.shape)
    for time, seen, error in zip(
        np.append(path.time[1:], pilot.end_time),
        np.append(loss[1:], pilot.end_loss),
        np.append(deviation[1:], max(pilot.end_loss_error, 1e-4)),
        strict=True,
    ):
        unlikely += ((floors + (first - floors) * (1 + time / scales) ** -powers - seen) / error) ** 2
    slope = powers * (first - floors) * (1 + pilot.end_time / scales) ** (-powers - 1) / scales
    error = pilot.gradient_square_error + _DOUBT * abs(pilot.gradient_square)
    unlikely += ((slope - pilot.gradient_square) / max(error, 1e-12)) ** 2
    weight = np.exp(-(unlikely - unlikely.min()) / 2)
    kept = weight > _LIKELY
    return Curves(weight[kept] / weight[kept].sum(), (first - floors)[kept], scales[kept], powers[kept])


_LAST = [Fraction(9, 10) + Fraction(k, 100) for k in range(11)]
_DRAWS = 8
"""Drawn directions in which clients may be pulled apart."""
_FARTHEST = 3.0
"""How far a client's own optimum may lie, in Newton steps."""
_APART = 0.25
"""Of the heterogeneity that the model makes of the pilot's: what was seen in training, over 99 settings."""
_USUAL_FALLING, _USUAL_FLATTENING, _USUAL_ROWS = 1.5, 1.0, 1000
"""Powers of the loss that are believed before anything is seen, and how many accesses they are worth."""
_SPECTRUM_ROWS, _SPECTRUM_LEAST = 5000, 0.2
"""Of what is to come beyond the pilot's end, the curvatures there say all after a short pilot, and a fifth after a long
one, the curve of the path the rest: halfway at so many accesses.
"""
_LEAST = 0.2
"""Below which share of the pilot's value nothing is extrapolated."""


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Brief):
    """Of one scheme, at each learning rate; losses are above the least one."""

    scheme: Scheme
    lr: Floats
    num_rounds: int
    num_updates: int
    progress: Floats
    noise: Floats
    heterogeneity: Floats
    drift: Floats
    proven_lr: float
    """The largest rate for which Theorem 1 is proved, with the pilot's curvature at the start for L."""
    proven_loss: float
    """Its ε_F alone at that rate, with the pilot's distance: Theorem 1 promises nothing below it."""
    step: float = 1.0
    """The server's, at which all this is predicted."""

    @property
    def excess(self) -> Floats:
        """[rates] predicted L(T) − min L; infinite where training is unstable."""
        with np.errstate(invalid="ignore"):
            total = self.progress + self.noise + self.heterogeneity + self.drift
        return np.where(np.isfinite(total), total, np.inf)

    @property
    def best(self) -> int:
        """Which rate has the lowest."""
        return int(np.argmin(self.excess))


@dataclass(frozen=True, eq=False, repr=False)
class Model(Brief):
    """The quadratic model that the pilot leads to."""

    pilot: Pilot
    importance: Importance
    local_steps: int
    batch_size: int | None
    curves: Curves
    """L − min L beyond the pilot's end."""
    falling: float
    """Power of the loss with which the spread of gradients falls."""
    flattening: float
    """Power of the loss with which curvatures fall."""

    @classmethod
    def of(cls, pilot: Pilot, importance: Importance, local_steps: int, batch_size: int | None) -> Model:
        """From what the pilot saw."""
        path = pilot.path
        third = max(1, len(path.time) // 3)
        middle, late, early = slice(third, 2 * third), slice(2 * third, None), slice(max(0, third - 2), third + 3)
        falling = _power(path.spread[middle].mean(), path.spread[late].mean(), path.loss[middle], path.loss[late], 3.0)
        # Flattening quickens as the loss falls: twice of what was seen, at most in proportion.
        flattening = 2 * _power(1.0, pilot.flattening, path.loss[early], np.array([pilot.end_loss]), 0.5)
        seen = pilot.budget / (pilot.budget + _USUAL_ROWS)
        falling = seen * falling + (1 - seen) * _USUAL_FALLING
        flattening = seen * flattening + (1 - seen) * _USUAL_FLATTENING
        return cls(pilot, importance, local_steps, batch_size, likely_curves(pilot), falling, flattening)

    @property
    def remaining(self) -> float:
        """L(θ_e) − min L: by the curves, but not above ½ ∇Lᵀ H⁻¹ ∇L with the gradient's square at its upper end."""
        pilot = self.pilot
        square = max(pilot.gradient_square, 0.0) + 2 * pilot.gradient_square_error
        most = square / 2 * float((pilot.of_gradient.share / pilot.of_gradient.curvature).sum())
        found = min(float(self.curves.at(pilot.end_time)), most)
        if not found > 0:
            return 0.0
        return found**2 / (found + pilot.end_loss_error)  # less is believed of what is near the error

    @property
    def least_loss(self) -> float:
        """The pilot's guess of min L."""
        return self.pilot.end_loss - self.remaining

    @property
    def left(self) -> float:
        """The least loss over that at the pilot's end."""
        return float(np.clip(self.least_loss / self.pilot.end_loss, _LEAST, 1.0)) if self.pilot.end_loss > 0 else 1.0

    @property
    def flat(self) -> float:
        """Curvatures where training ends, over those at the pilot's end."""
        return float(self.left**self.flattening)

    @property
    def final_curvature(self) -> float:
        """The largest where training ends."""
        return self.flat * self.pilot.largest_curvature

    def moved(self, lr: Floats) -> Floats:
        """[rates] σ: how far along the flow one round leads."""
        own = self.pilot.own_curvature
        if own is None:
            return lr * self.local_steps
        return np.log1p(own * lr * self.local_steps) / own

    def predict(
        self,
        scheme: Scheme,
        times: ClientTimes,
        *,
        until: Fraction,
        lr: Floats,
        rule: str | WeightRule = "time-based",
        step: str = "paper",
        server_lr: float = 1.0,
        seed: int = 0,
    ) -> Prediction:
        """The loss of a scheme at each learning rate."""
        pilot, steps = self.pilot, self.local_steps
        line = timeline(scheme, times, until=until, importance=self.importance.exact, seed=seed)
        weight = weights(scheme, times, importance=self.importance.exact, rule=rule, seed=seed, step=step)
        made = 1.0 if weight.steps is None else weight.steps[-1]
        weight, server_lr = replace(weight, steps=None), server_lr * made
        moved = self.moved(lr) * server_lr
        flow = moved * line.num_rounds * 0.95  # the mean over the last tenth
        flat, fall = self.flat, self.left**self.falling
        local = LocalSGD(steps=steps, lr=lr.tolist(), batch_size=None)
        at = [until * part for part in _LAST]
        still = forecast(self._pulled(flat), line, weight, local=local, server_lr=server_lr, at=at).mean
        shaken = forecast(self._shaken(flat), line, weight, local=local, server_lr=server_lr, at=at).variance
        nodes, beyond = len(pilot.way.curvature), np.maximum(flow, pilot.end_time)
        with np.errstate(over="ignore", invalid="ignore"):  # unstable rates are infinite
            square = (still**2).mean(axis=1)
            kept = square[:, :nodes] ** (moved / (lr * steps * server_lr))[:, None]
            way = kept @ (pilot.way.share * pilot.way_energy / pilot.way.curvature) / 2
            short = _SPECTRUM_ROWS / (_SPECTRUM_ROWS + pilot.budget)
            curved = _SPECTRUM_LEAST + (1 - _SPECTRUM_LEAST) * short
            decay = _decay(pilot.of_gradient, beyond - pilot.end_time) ** curved
            decay = decay * (self.curves.at(beyond) / self.curves.at(pilot.end_time)) ** (1 - curved)
            pulled = square[:, nodes:].reshape(len(lr), _DRAWS, -1).mean(axis=1)
            apart = pulled @ (flat * pilot.of_heterogeneity.curvature * pilot.of_heterogeneity.share) / 2
            noise = shaken.mean(axis=1) @ (flat * pilot.of_noise.curvature * pilot.of_noise.share) / 2
            return Prediction(
                scheme=scheme,
                lr=lr,
                num_rounds=line.num_rounds,
                num_updates=line.num_updates,
                progress=way + self.remaining * decay,
                noise=noise * fall * (0.0 if self.batch_size is None else pilot.mean_noise / self.batch_size),
                heterogeneity=_APART * apart * pilot.mean_heterogeneity * fall**2,
                drift=self._drift(lr) * fall**2,
                step=made,
                **self._proven(line, weight, server_lr),
            )

    def _proven(self, line: Timeline, weight: Weights, server_lr: float) -> dict[str, float]:
        law = expected_from_timeline(line, weight)
        known = {"smoothness": self.pilot.start_curvature, "local_steps": self.local_steps, "server_lr": server_lr}
        rate = learning_rate_ceiling(law, **known).corrected  # type: ignore[arg-type]
        loss = self.pilot.distance**2 / (rate * server_lr * self.local_steps * line.num_rounds)
        return {"proven_lr": rate, "proven_loss": loss}

    def _shaken(self, flat: float) -> Coordinates:
        """At rest, with batch noise of mean 1 over clients."""
        curvature = flat * self.pilot.of_noise.curvature
        clients = len(self.importance.values)
        noise = np.ones(clients)
        noise[self.pilot.clients] = self.pilot.noise / max(self.pilot.noise.mean(), 1e-30)
        none = np.zeros((clients, len(curvature)))
        return Coordinates(none + curvature, none, none + noise[:, None], np.zeros(len(curvature)), self.importance)

    def _pulled(self, flat: float) -> Coordinates:
        """Coordinates that start at 1 and are drawn to 0; then, for each draw, clients that pull with mean force 1."""
        clients, p = len(self.importance.values), self.importance.values
        size = np.ones(clients)
        found = self.pilot.heterogeneity
        if found.mean() > 0:
            size[self.pilot.clients] = found / found.mean()
        angle = 2 * np.pi * uniforms(stream_key("pulls", 0), np.arange(clients)[:, None], np.arange(_DRAWS)[None, :])
        force = np.sqrt(2 * size)[:, None] * np.cos(angle)
        force = force - p @ force
        way, apart = flat * self.pilot.way.curvature, flat * self.pilot.of_heterogeneity.curvature
        curvature = np.concatenate([way, np.tile(apart, _DRAWS)])
        center = np.concatenate(
            [np.zeros((clients, len(way))), (force[:, :, None] / apart).reshape(clients, -1)], axis=1
        )
        start = np.concatenate([np.ones(len(way)), np.zeros(center.shape[1] - len(way))])
        return Coordinates(np.zeros_like(center) + curvature, center, np.zeros_like(center), start, self.importance)

    def _drift(self, lr: Floats) -> Floats:
        own = self.pilot.own_curvature
        if own is None:
            return np.zeros(len(lr))
        moved = self.moved(lr)
        reach = np.minimum((lr * self.local_steps - moved) / (own * moved), _FARTHEST / own)
        pulled = self.pilot.drift_square * (1 - 1 / self.local_steps) ** 2  # the first of K steps does not drift
        return np.asarray(0.5 * pulled / max(self.pilot.of_heterogeneity.mean, 1e-30) * reach**2)


def _power(before: float, after: float, early: Floats, late: Floats, most: float) -> float:
    """The power of the loss with which something fell while losses went from `early` to `late`; 0 if none did."""
    losses = float(early.mean()), float(late.mean())
    if not 0 < losses[1] < losses[0] or not 0 < after < before:
        return 0.0
    return float(min(np.log(after / before) / np.log(losses[1] / losses[0]), most))


def _decay(spectrum: Spectrum, time: Floats) -> Floats:
    """Share of the loss ½ gᵀH⁻¹g that is left after a time of the flow."""
    energy = spectrum.share / spectrum.curvature
    return np.asarray(np.exp(-2 * np.multiply.outer(time, spectrum.curvature)) @ energy / energy.sum())
