"""Client times as they were published, by name: ``ft.devices.named("tifl", clients=50)``, ``--times tifl``.

Each entry of `CATALOGUE` says what its source has and what is made of it here. Which client is which device is drawn
by `seed` from a stream of its own, so that it is the same whatever the seeds of jobs and batches are. Nothing is
downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from fedtempo.clock.random_times import ExponentialTimes, LogNormalTimes
from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import positive_int
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats, Ints
from fedtempo.errors import InputError
from fedtempo.registry import nearest

__all__ = ["CATALOGUE", "Published", "named"]


@dataclass(frozen=True)
class Published:
    """Client times with their source; called with a number of clients it makes them.

    Example:
        >>> entry = ft.devices.CATALOGUE["quafl"]
        >>> entry.unit
        'the unit of its simulator; a job is one local step'
        >>> entry(20)
        ExponentialTimes(20 clients, mean 3.8)
    """

    name: str
    unit: str
    """What a time of 1 is."""
    found: str
    """What the source has."""
    derived: str
    """What is made of it."""
    source: str
    make: Callable[[int, int], ClientTimes] = field(repr=False)

    def __call__(self, clients: int, *, seed: int = 0) -> ClientTimes:
        """The times of so many clients; `seed` says which of them is which device."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise InputError(f"seed: {seed!r} is not a whole number; give 0")
        return self.make(positive_int(clients, "clients"), int(seed))


def named(name: str, clients: int, *, seed: int = 0) -> ClientTimes:
    """The times of `clients` devices of the catalogue: ``named("quafl", clients=20)``.

    `seed` says which client is which device. An unknown name is an InputError that names the nearest.

    Example:
        >>> times = ft.devices.named("quafl", clients=20)
        >>> times
        ExponentialTimes(20 clients, mean 3.8)
    """
    if name not in CATALOGUE:
        raise InputError(f"devices: {name!r} is not in the catalogue{nearest(name, list(CATALOGUE))}")
    return CATALOGUE[name](clients, seed=seed)


def _drawn(clients: int, seed: int) -> Floats:
    """One uniform number per client."""
    return uniforms(stream_key("devices", seed), np.arange(clients), 0)


def _even(kinds: int, clients: int, seed: int) -> Ints:
    """[clients] the kind of each, as many of one as of another, in random order."""
    kind = np.arange(clients) * kinds // clients
    return kind[np.argsort(_drawn(clients, seed), kind="stable")]


def _groups(cpus: Sequence[str]) -> Callable[[int, int], ClientTimes]:
    """Equal groups of clients with so many CPUs each."""
    times = [1 / Fraction(share) for share in cpus]
    return lambda clients, seed: FixedTimes([times[k] for k in _even(len(times), clients, seed)])


_FLASH_USERS = np.array([18820, 16428, 159])
"""In which proportion phones are taken for a slow, a middle and a fast one."""


def _flash(means: Sequence[str], deviations: Sequence[str]) -> Callable[[int, int], ClientTimes]:
    """Seconds a batch on a slow, a middle and a fast phone."""
    seconds = [Fraction(mean) / 1000 for mean in means]
    sigma = [
        math.sqrt(math.log1p(float(Fraction(d) / Fraction(m)) ** 2)) for m, d in zip(means, deviations, strict=True)
    ]
    edges = np.cumsum(_FLASH_USERS)[:-1] / _FLASH_USERS.sum()

    def make(clients: int, seed: int) -> ClientTimes:
        kind = np.searchsorted(edges, _drawn(clients, seed), side="right")
        return LogNormalTimes([seconds[k] for k in kind], sigma=[sigma[k] for k in kind])

    return make


_PHONE_TIMES = (
    "0.164 0.192 0.208 0.232 0.271 0.329 0.348 0.368 0.418 0.433 0.458 0.491 0.534 0.621 0.94 1.248 1.808 2.277 2.586 "
    "3.247 6.752"
)
"""Quantiles 0, 1/20, …, 1 of (1/score) over phones, divided by its mean."""


def _ai_benchmark(clients: int, seed: int) -> ClientTimes:
    quantiles = np.log([float(q) for q in _PHONE_TIMES.split()])
    drawn = np.exp(np.interp(_drawn(clients, seed), np.linspace(0.0, 1.0, len(quantiles)), quantiles))
    return FixedTimes([Fraction(round(1000 * time), 1000) for time in drawn.tolist()])


def _quafl(clients: int, seed: int) -> ClientTimes:
    slow = math.ceil(Fraction(3, 10) * clients)
    rank = np.argsort(np.argsort(_drawn(clients, seed), kind="stable"), kind="stable")
    return ExponentialTimes([8 if place < slow else 2 for place in rank.tolist()])


def _plato(clients: int, seed: int) -> ClientTimes:
    share = _drawn(clients, seed)
    sleep = np.minimum(share / (1.0 - share), 30.0)  # P(more than s) = 1/(1 + s)
    return FixedTimes([10 + Fraction(round(100 * time), 100) for time in sleep.tolist()])


_TIFL = "Chai et al., TiFL: a tier-based federated learning system, HPDC 2020, section 5"
_FLASH = (
    "Yang et al., Characterizing impacts of heterogeneity in federated learning upon large-scale smartphone data, WWW "
    "2021; numbers from its code, PKU-Chengxu/FLASH, models/utils/device_util/device_util.py"
)
_FLASH_DERIVED = "each client's phone drawn in that proportion; jobs log-normal with the same mean and deviation"


def _of_flash(task: str, work: str, means: str, deviations: str) -> Published:
    return Published(
        f"flash-{task}",
        "a second; a job is one batch",
        f"measured on a slow, a middle and a fast phone, {work}: {means} ms per batch, deviation {deviations}; a phone "
        "of unknown model is taken for one of them in proportion 18820 : 16428 : 159",
        _FLASH_DERIVED,
        _FLASH,
        _flash(means.split(", "), deviations.split(", ")),
    )


_ENTRIES = (
    Published(
        "tifl",
        "the time on one CPU",
        "for CIFAR-10 and FEMNIST, five groups of clients of equal size have 4, 2, 1, 0.5 and 0.1 CPUs",
        "fixed times 1/CPUs, so 1/4 to 10; groups in random order",
        _TIFL,
        _groups(["4", "2", "1", "0.5", "0.1"]),
    ),
    Published(
        "tifl-mnist",
        "the time on one CPU",
        "for MNIST and Fashion-MNIST, five groups of clients of equal size have 2, 1, 0.75, 0.5 and 0.25 CPUs",
        "fixed times 1/CPUs, so 1/2 to 4; groups in random order",
        _TIFL,
        _groups(["2", "1", "0.75", "0.5", "0.25"]),
    ),
    _of_flash("femnist", "a CNN on FEMNIST", "1642, 588, 179", "99.5, 23.9, 2.3"),
    _of_flash("celeba", "a CNN on CelebA", "5392, 1355, 561", "982.5, 54.6, 20.3"),
    _of_flash("reddit", "an LSTM on Reddit", "2596, 916, 527.7", "335.5, 20.6, 49.0"),
    _of_flash(
        "shakespeare", "an LSTM on Shakespeare, 100 rows per batch", "28621, 13579, 10681", "1720.7, 104.6, 125.6"
    ),
    Published(
        "ai-benchmark",
        "the mean over phones",
        "floating-point CPU scores (CPU-F) of 333 phones, 105 to 4310, the ranking of January 2020",
        "fixed times in proportion to 1/score, drawn from their quantiles: 0.16 to 6.8, median 0.46. Each model of a "
        "phone counts once, however many people have it",
        "Ignatov et al., AI Benchmark: all about deep learning on smartphones in 2019, ICCV workshops 2019; ranking as "
        "in PKU-Chengxu/FLASH, models/utils/device_util/raw_ai_benchmark_list.json",
        _ai_benchmark,
    ),
    Published(
        "quafl",
        "the unit of its simulator; a job is one local step",
        "a local step takes an exponential time, with mean 2 for a fast client and 8 for a slow one; 30 % are slow",
        "the same, which clients are slow at random",
        "Zakerinia et al., QuAFL: federated averaging can be both asynchronous and communication-efficient, 2022; its "
        "code, ShayanTalaei/QuAFL, client.py and run.py",
        _quafl,
    ),
    Published(
        "plato",
        "a second; a job is one epoch",
        "an epoch takes 10 s, and as much more as the client sleeps: Pareto with shape 1 from 0 on, at most 30 s",
        "the same, fixed for each client: 10 to 40 s, median 11",
        "Plato's configuration of FedAsync, TL-System/plato, examples/async/fedasync/fedasync_MNIST_lenet5.yml",
        _plato,
    ),
)

CATALOGUE: Mapping[str, Published] = {entry.name: entry for entry in _ENTRIES}
"""Published client times by name; ``fedtempo times`` lists them with their sources.

Example:
    >>> sorted(ft.devices.CATALOGUE)[:4]
    ['ai-benchmark', 'flash-celeba', 'flash-femnist', 'flash-reddit']
    >>> ft.devices.CATALOGUE["tifl"].source
    'Chai et al., TiFL: a tier-based federated learning system, HPDC 2020, section 5'
"""
