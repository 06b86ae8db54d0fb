"""Random update times T_i: exponential, shifted exponential, log-normal, Pareto, uniform.

    T = ⌈F_i⁻¹(u)/r⌉ · r,    u = uniform(seed, client, job),    r the `resolution`

Rounding up keeps the clock exact. r is about a millionth of the smallest mean unless it is given, so that a mean moves
by less than a part in a million.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import Exact, exact, positive, text
from fedtempo.clock.times import MANY_CLIENTS, ClientTimes, Floats, Ints, Multiples, checked_ticks, per_client
from fedtempo.errors import InputError

_LEAST_SHAPE = Fraction(6, 5)  # of a Pareto law: below, integrals over its tail do not come to an end
_TERMS = 20_000  # of a sum over k of P(T > kΔt), before its tail is taken together
_FAR = 8.5  # deviations from which on a normal law's tail does not change a sum that is 1 or more
_BLOCK = 1 << 12  # clients whose terms are summed together
_NODES_A_SIGMA, _MOST_NODES = 200, 20_000  # mean times between which many clients are interpolated


def _scaled(ratio: Fraction) -> Fraction:
    """A power of ten at most `ratio`, and above a tenth of it."""
    power = math.floor(math.log10(ratio))
    return Fraction(10) ** power


class RandomTimes(ClientTimes):
    """Times drawn per (seed, client, job) from a law with a known inverse distribution."""

    def __init__(self, means: Sequence[Fraction], resolution: Exact | None) -> None:
        self._means = means if isinstance(means, Multiples) else tuple(means)
        self._floats = means.floats if isinstance(means, Multiples) else np.array([float(m) for m in means])
        self._clock_means: Floats | None = None
        smallest = means.least if isinstance(means, Multiples) else min(means)
        self._unit = _scaled(smallest) / 10**6 if resolution is None else positive(resolution, "resolution")
        if self._unit > smallest:
            raise InputError(f"resolution: {resolution} is longer than the shortest mean time; make it much smaller")

    @property
    def num_clients(self) -> int:
        return len(self._means)

    @property
    def unit(self) -> Fraction:
        return self._unit

    @property
    def mean_time(self) -> Floats:
        return self._floats

    def describe(self) -> list[str | float]:
        return [text(mean) for mean in self._means]

    def draw(self, client: Ints, job: Ints, *, seed: int = 0) -> Ints:
        client, job = np.broadcast_arrays(client, job)
        drawn = self.quantile(client, uniforms(stream_key("times", seed), client, job))
        return checked_ticks(np.ceil(drawn / float(self._unit)))

    @property
    def clock_mean_time(self) -> Floats:
        if self._clock_means is None:
            self._clock_means = self.rounds_of_law(self._unit) * float(self._unit)  # r·E⌈T/r⌉
        return self._clock_means

    def expected_rounds(self, wait: Fraction) -> Floats:
        """E⌈⌈T/r⌉r/Δt⌉: the law's own E⌈T/Δt⌉ if r divides Δt, else corrected term by term."""
        plain = self.rounds_of_law(wait)
        if wait % self._unit == 0:
            return plain
        terms = max(1, min(_TERMS, math.ceil(40 * float(self._floats.max() / float(wait)))))
        moments = [k * wait for k in range(terms)]
        return plain + sum(
            (self.survival(float(t // self._unit * self._unit)) - self.survival(float(t)) for t in moments),
            np.zeros(self.num_clients),
        )

    @property
    def alike(self) -> bool:
        """Whether clients differ in their mean times alone, T_i/τ_i having one law."""
        return False

    @abstractmethod
    def rounds_of_law(self, wait: Fraction) -> Floats:
        """E⌈T_i/Δt⌉ of the law itself, before rounding up to ticks."""

    @abstractmethod
    def quantile(self, client: Ints, share: Floats) -> Floats:
        """F_i⁻¹(share) for each client named."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._floats.tobytes(), self._unit))

    def _key(self) -> tuple[object, ...]:
        return (self._means, self._unit)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_clients} clients, mean {self._floats.mean():.4g})"


class ExponentialTimes(RandomTimes):
    """T_i exponential with the given means: memoryless jobs.

    `means` are one per client. Drawn times are rounded up to a tick, the `resolution`: a millionth of the smallest mean
    unless given.

    Example:
        >>> times = ft.ExponentialTimes([4, 2, 1])
        >>> times.survival(4).round(3)  # how likely a job takes longer than 4
        array([0.368, 0.135, 0.018])
        >>> np.asarray(ft.weights(ft.FedFix(1), times)).round(3)
        array([1.507, 0.847, 0.527])
    """

    law = "exponential"
    alike = True
    memoryless = True

    def __init__(self, means: Sequence[Exact], *, resolution: Exact | None = None) -> None:
        super().__init__(per_client(means, "mean time"), resolution)

    def with_means(self, means: Sequence[Exact]) -> ExponentialTimes:
        return ExponentialTimes(means)

    def only(self, clients: Sequence[int]) -> ExponentialTimes:
        return ExponentialTimes([self._means[i] for i in clients], resolution=self._unit)

    def quantile(self, client: Ints, share: Floats) -> Floats:
        return -self._floats[client] * np.log1p(-share)

    def rounds_of_law(self, wait: Fraction) -> Floats:
        return -1.0 / np.expm1(-float(wait) / self._floats)

    def survival(self, time: float) -> Floats:
        return np.asarray(np.exp(-max(time, 0.0) / self._floats), dtype=np.float64)

    def distribution(self, time: float) -> Floats:
        return -np.expm1(-max(time, 0.0) / self._floats)


class ShiftedExponentialTimes(RandomTimes):
    """T_i = s τ_i + an exponential time with mean (1 − s) τ_i: no job is shorter than s τ_i, and the
    rest is memoryless. τ_i are the given means, s is `shift`.

    The straggler model of Lee, Lam, Pedarsani, Papailiopoulos and Ramchandran, "Speeding up distributed machine
    learning using codes" (2018); their 1 + exponential of rate µ has the mean 1 + 1/µ and the shift µ/(1 + µ).

    Example:
        >>> times = ft.ShiftedExponentialTimes([4, 2, 1], shift=0.5)
        >>> times.survival(2).round(3)  # client 0 needs 2 at least
        array([1.   , 0.368, 0.05 ])
        >>> times.mean_time
        array([4., 2., 1.])
    """

    law = "shifted-exponential"
    alike = True

    def __init__(self, means: Sequence[Exact], *, shift: Exact = 0.5, resolution: Exact | None = None) -> None:
        super().__init__(per_client(means, "mean time"), resolution)
        self._shift = exact(shift, "shift")
        if not 0 < self._shift < 1:
            raise InputError(
                f"shift: {shift} must lie between 0 and 1, as a share of the mean; for 0 use ExponentialTimes, for 1 "
                "FixedTimes"
            )
        self._least = tuple(self._shift * mean for mean in self._means)
        self._from = np.array([float(least) for least in self._least])
        self._rest = np.array([float(mean * (1 - self._shift)) for mean in self._means])

    def with_means(self, means: Sequence[Exact]) -> ShiftedExponentialTimes:
        return ShiftedExponentialTimes(means, shift=self._shift)

    def only(self, clients: Sequence[int]) -> ShiftedExponentialTimes:
        means = [self._means[i] for i in clients]
        return ShiftedExponentialTimes(means, shift=self._shift, resolution=self._unit)

    def quantile(self, client: Ints, share: Floats) -> Floats:
        return np.asarray(self._from[client] - self._rest[client] * np.log1p(-share), dtype=np.float64)

    def survival(self, time: float) -> Floats:
        return np.asarray(np.exp(-np.maximum(time - self._from, 0.0) / self._rest), dtype=np.float64)

    def distribution(self, time: float) -> Floats:
        return np.asarray(-np.expm1(-np.maximum(time - self._from, 0.0) / self._rest), dtype=np.float64)

    def kinks(self) -> Floats:
        return np.unique(self._from)

    def rounds_of_law(self, wait: Fraction) -> Floats:
        """The terms with kΔt up to the shift are 1, the others a geometric series."""
        sure = [least // wait + 1 for least in self._least]
        beyond = np.array([float(n * wait - least) for n, least in zip(sure, self._least, strict=True)])
        series = np.exp(-beyond / self._rest) / -np.expm1(-float(wait) / self._rest)
        return np.asarray(np.array([float(n) for n in sure]) + series, dtype=np.float64)

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._shift)


class LogNormalTimes(RandomTimes):
    """T_i log-normal with the given means; `sigma` is the deviation of log T_i
    (0.5: one job in twelve takes over twice the median).

    Example:
        >>> times = ft.LogNormalTimes([4, 2, 1], sigma=0.5)
        >>> times.survival(4).round(3)
        array([0.401, 0.051, 0.001])
        >>> line = ft.timeline(ft.FedAvg(), times, rounds=1000, seed=0)
        >>> round(float(line.duration) / 1000, 2)  # a round waits for the slowest: longer than 4
        4.16
    """

    law = "lognormal"

    def __init__(
        self, means: Sequence[Exact], *, sigma: float | Sequence[float] = 0.5, resolution: Exact | None = None
    ) -> None:
        super().__init__(per_client(means, "mean time"), resolution)
        if np.ndim(sigma) == 0:
            widths = np.full(self.num_clients, float(exact(sigma, "sigma")))
        else:
            widths = np.array([float(exact(width, "sigma")) for width in sigma])  # type: ignore[union-attr]
        if widths.shape != (self.num_clients,):
            raise InputError(f"sigma: {widths.size} values for {self.num_clients} clients; give one, or one per client")
        if not (np.isfinite(widths).all() and (widths > 0).all() and (widths <= 5).all()):
            raise InputError(f"sigma: {sigma} must lie above 0 and be at most 5; for no spread use FixedTimes")
        self._sigma = widths
        self._mu = np.log(self._floats) - self._sigma**2 / 2

    def with_means(self, means: Sequence[Exact]) -> LogNormalTimes | None:
        return LogNormalTimes(means, sigma=float(self._sigma[0])) if np.ptp(self._sigma) == 0 else None

    def only(self, clients: Sequence[int]) -> LogNormalTimes:
        sigma = [float(self._sigma[i]) for i in clients]
        return LogNormalTimes([self._means[i] for i in clients], sigma=sigma, resolution=self._unit)

    def quantile(self, client: Ints, share: Floats) -> Floats:
        from scipy.special import ndtri

        return np.asarray(np.exp(self._mu[client] + self._sigma[client] * ndtri(share)), dtype=np.float64)

    def _score(self, time: float) -> Floats:
        return np.asarray((math.log(time) - self._mu) / self._sigma)

    def survival(self, time: float) -> Floats:
        from scipy.special import ndtr

        return np.asarray(ndtr(-self._score(time)), dtype=np.float64) if time > 0 else np.ones(self.num_clients)

    def distribution(self, time: float) -> Floats:
        from scipy.special import ndtr

        return np.asarray(ndtr(self._score(time)), dtype=np.float64) if time > 0 else np.zeros(self.num_clients)

    def kinks(self) -> Floats:
        narrow = self._sigma < 0.5  # narrow steps, which even panels in log time would miss
        return np.unique(np.exp(self._mu[narrow, None] + self._sigma[narrow, None] * np.arange(-8, 9)))

    def rounds_of_law(self, wait: Fraction) -> Floats:
        """Terms up to `count` are summed; the rest is the integral of the tail with Euler and Maclaurin's end terms.

        Of more than a million clients, they are interpolated between mean times, to about a part in 10¹⁰.
        """
        from scipy.special import ndtr

        if self.num_clients > MANY_CLIENTS and self.alike and (between := self._between(wait)) is not None:
            return between
        step = float(wait)
        count = max(64, min(_TERMS, math.ceil(200 * float(self._floats.max()) / step)))
        total = np.concatenate(
            [self._terms(slice(a, a + _BLOCK), step, count) for a in range(0, self.num_clients, _BLOCK)]
        )
        start = count * step
        score = self._score(start)
        beyond = self._floats * ndtr(self._sigma - score) - start * ndtr(-score)  # E[(T − start)⁺]
        density = np.exp(-(score**2) / 2) / (start * self._sigma * math.sqrt(2 * math.pi))
        return np.asarray(total + beyond / step + ndtr(-score) / 2 + step * density / 12, dtype=np.float64)

    def _terms(self, some: slice, step: float, count: int) -> Floats:
        """Σ_{k < count} P(T > k step) of some clients: terms of 1 are counted, those too small to show left out."""
        from scipy.special import ndtr

        mu, sigma = self._mu[some], self._sigma[some]
        sure, never = float((mu - _FAR * sigma).min()), float((mu + _FAR * sigma).max())
        first = min(count, 1 + (int(math.exp(sure) / step * (1 - 1e-9)) if sure > -700 else 0))
        last = min(count, 1 + math.ceil(math.exp(never) / step * (1 + 1e-9))) if never < 700 else count
        total = np.full(len(mu), float(first))
        for k in range(first, last):
            total += ndtr(-((math.log(k * step) - mu) / sigma))
        return total

    def _between(self, wait: Fraction) -> Floats | None:
        """As `rounds_of_law`, from mean times close together; None where too many would be needed."""
        from scipy.interpolate import CubicSpline

        logs, sigma = np.log(self._floats), float(self._sigma[0])
        gap = sigma / _NODES_A_SIGMA
        low, high = float(logs.min()) - gap, float(logs.max()) + gap
        nodes = 2 + math.ceil((high - low) / gap)
        if nodes > _MOST_NODES:
            return None
        means = np.exp(np.linspace(low, high, nodes))
        some = LogNormalTimes(means.tolist(), sigma=sigma, resolution=min(self._unit, Fraction(float(means[0]))))
        return np.asarray(CubicSpline(np.log(means), some.rounds_of_law(wait))(logs))

    @property
    def alike(self) -> bool:
        return bool((self._sigma == self._sigma[0]).all())

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), tuple(self._sigma.tolist()))


class ParetoTimes(RandomTimes):
    """T_i Pareto with the given means: P(T_i > t) = (t_min/t)^α from t_min = τ_i (α − 1)/α on; α is `shape`.

    The smaller α, the heavier the tail: at 2.5 one job in 20 takes over twice the mean, at 1.5 one in 15, and its
    variance is infinite up to α = 2.

    Example:
        >>> mild, heavy = ft.ParetoTimes([1] * 20, shape=2.5), ft.ParetoTimes([1] * 20, shape=1.5)
        >>> for times in (mild, heavy):
        ...     line = ft.timeline(ft.FedAvg(), times, rounds=1000)
        ...     print(round(float(line.duration) / 1000, 1))
        2.9
        5.9
    """

    law = "pareto"
    alike = True

    def __init__(self, means: Sequence[Exact], *, shape: Exact = 2.5, resolution: Exact | None = None) -> None:
        super().__init__(per_client(means, "mean time"), resolution)
        self._shape = exact(shape, "shape")
        if not _LEAST_SHAPE <= self._shape <= 20:
            raise InputError(
                f"shape: {shape} must lie between {float(_LEAST_SHAPE)} and 20: at 1 or below the mean is infinite, "
                "and just above 1 no run is long enough to estimate it"
            )
        self._least = tuple(mean * (self._shape - 1) / self._shape for mean in self._means)
        self._from = np.array([float(least) for least in self._least])

    def with_means(self, means: Sequence[Exact]) -> ParetoTimes:
        return ParetoTimes(means, shape=self._shape)

    def only(self, clients: Sequence[int]) -> ParetoTimes:
        return ParetoTimes([self._means[i] for i in clients], shape=self._shape, resolution=self._unit)

    def quantile(self, client: Ints, share: Floats) -> Floats:
        return np.asarray(self._from[client] * np.exp(-np.log1p(-share) / float(self._shape)), dtype=np.float64)

    def survival(self, time: float) -> Floats:
        return np.asarray((self._from / np.maximum(time, self._from)) ** float(self._shape), dtype=np.float64)

    def distribution(self, time: float) -> Floats:
        logarithm = np.log(self._from / np.maximum(time, self._from))
        return np.asarray(-np.expm1(float(self._shape) * logarithm), dtype=np.float64)

    def kinks(self) -> Floats:
        return np.unique(self._from)

    def rounds_of_law(self, wait: Fraction) -> Floats:
        """The terms with kΔt up to t_min are 1; those from n on are (t_min/Δt)^α ζ(α, n), with Hurwitz's zeta."""
        from scipy.special import zeta

        alpha = float(self._shape)
        sure = np.array([float(least // wait + 1) for least in self._least])
        ratio = np.array([float(least / wait) for least in self._least])
        return np.asarray(sure + zeta(alpha, sure) * ratio**alpha, dtype=np.float64)

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._shape)


class UniformTimes(RandomTimes):
    """T_i uniform between `low` and `high`, one of each per client.

    Drawn times are rounded up to a tick, the `resolution`: a millionth of the smallest mean unless given.

    Example:
        >>> times = ft.UniformTimes(low=[3, 1], high=[5, 3])
        >>> times.mean_time, times.survival(4)
        (array([4., 2.]), array([0.5, 0. ]))
        >>> ft.participation_of(ft.AsyncFedAvg(), times).share.round(3)
        array([0.333, 0.667])
    """

    law = "uniform"

    def __init__(self, low: Sequence[Exact], high: Sequence[Exact], *, resolution: Exact | None = None) -> None:
        self._low, self._high = per_client(low, "low time"), per_client(high, "high time")
        if len(self._low) != len(self._high):
            raise InputError(f"{len(self._low)} low and {len(self._high)} high times; give one of each per client")
        for i, (a, b) in enumerate(zip(self._low, self._high, strict=True)):
            if a >= b:
                raise InputError(f"client {i}: low time {a} is not below high time {b}; for fixed times use FixedTimes")
        super().__init__([(a + b) / 2 for a, b in zip(self._low, self._high, strict=True)], resolution)
        self._from = np.array([float(a) for a in self._low])
        self._width = np.array([float(b - a) for a, b in zip(self._low, self._high, strict=True)])

    def with_means(self, means: Sequence[Exact]) -> UniformTimes | None:
        widths = {(high - low) / (high + low) for low, high in zip(self._low, self._high, strict=True)}
        if len(widths) > 1:
            return None
        width, given = widths.pop(), [exact(mean, "mean time") for mean in means]
        return UniformTimes([m * (1 - width) for m in given], [m * (1 + width) for m in given])

    def only(self, clients: Sequence[int]) -> UniformTimes:
        low, high = ([bounds[i] for i in clients] for bounds in (self._low, self._high))
        return UniformTimes(low, high, resolution=self._unit)

    def quantile(self, client: Ints, share: Floats) -> Floats:
        return self._from[client] + self._width[client] * share

    def survival(self, time: float) -> Floats:
        return np.asarray(np.clip((self._from + self._width - time) / self._width, 0.0, 1.0))

    def distribution(self, time: float) -> Floats:
        return np.asarray(np.clip((time - self._from) / self._width, 0.0, 1.0))

    def kinks(self) -> Floats:
        return np.unique(np.concatenate([self._from, self._from + self._width]))

    def rounds_of_law(self, wait: Fraction) -> Floats:
        """The terms with kΔt below `low` are 1, those up to `high` an arithmetic series."""
        out = []
        for low, high in zip(self._low, self._high, strict=True):
            sure, last = -(-low // wait), -(-high // wait)  # terms equal to 1; terms above 0
            between = last - sure
            series = between * high - wait * Fraction(between * (sure + last - 1), 2)
            out.append(float(sure + series / (high - low)))
        return np.array(out)

    def longest(self) -> tuple[Fraction, ...]:
        unit = self._unit
        return tuple(-(-high // unit) * unit for high in self._high)

    def _key(self) -> tuple[object, ...]:
        return (self._low, self._high, self._unit)
