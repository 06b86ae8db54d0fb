"""Server rules that bear some hostile clients: the newest contribution of each client is kept, and the middle is taken.

    θ ← θ + η_g A robust(Δ_j of the clients j that are kept)        A = Σ ω_i(n) of the round

    median           coordinate by coordinate, the median
    trimmed mean     coordinate by coordinate, the mean without a share of each end
                     (Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates", 2018);
                     both of contributions mixed with those nearest to them, which clients that differ need
                     (Allouah et al., "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", 2023)
    Krum             the mean of those nearest to their neighbours
                     (Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent", 2017)
    norm clipping    θ ← θ + η_g Σ ω_i Δ_i min(1, c/‖Δ_i‖) instead, with c the middle norm of those that are kept
                     (Sun et al., "Can you really backdoor federated learning?", 2019)

A round of an asynchronous scheme has few contributions, of which no middle can be taken. So the newest one of each of
the `last` clients is kept: a client that comes often replaces its own, and has one voice. Voices count by importance
p_j; the weights of a round say how far it goes. Under time-based weights both together aim where the plain sum aims.

Until half of the places are taken, and at least `FEWEST`, the model stands still: the first to come may all be hostile.
The mass of these rounds, 1 at most, is added to the first step. A client that is silent while 20 × `last` updates come
is left out until it comes again.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedtempo.errors import InputError
from fedtempo.registry import own_label, own_spec
from fedtempo.training.corrections import plus, positive_number, zeros
from fedtempo.training.server_contract import Acc, Arrival, ServerRule
from fedtempo.training.solvers import Hyper, Params

FEWEST = 5
"""Clients without whom there is no middle to speak of."""
SILENT = 20
"""After how many updates for each place a client is left out."""
HOSTILE = 0.2
"""The share of hostile clients that the rules expect, unless told."""


class Latest(NamedTuple):
    """The newest contribution of each client that is kept, one a place."""

    client: jax.Array
    """[places] whose it is; −1 where a place is free."""
    came: jax.Array
    """[places] how many updates had come by then."""
    share: jax.Array
    """[places] p_i."""
    updates: jax.Array
    """How many have come."""
    change: Params
    """[places, …] Δ_i, where the rule needs more than its norm."""
    measured: Any
    """What the rule knows of contributions: squared distances [places, places], or norms [places]."""

    @property
    def there(self) -> jax.Array:
        """[places] whether its contribution counts."""
        return (self.client >= 0) & (self.updates - self.came < SILENT * len(self.client))

    @property
    def weights(self) -> jax.Array:
        """[places] p_i of those that count, normalised."""
        shares = jnp.where(self.there, self.share, 0)
        return _normalised(shares)


class Robust(NamedTuple):
    """What the server holds of the round in the making, and from round to round."""

    model: Params
    step: Params
    """The sum so far, where the rule goes along a sum."""
    mass: jax.Array
    """Σ ω_i so far."""
    waiting: jax.Array
    """Σ ω_i of the rounds in which the model stood still."""
    latest: Latest


@dataclass(frozen=True)
class RobustRule(ServerRule):
    """A step that no few clients decide, from what is kept of the clients' newest contributions."""

    name: ClassVar[str | None] = None
    """In `SERVERS`; None for one of the user's own."""
    last: int | None = None
    """The newest contribution of how many clients is kept; None: of all."""

    def __post_init__(self) -> None:
        if self.last is not None and (not _whole(self.last) or self.last < FEWEST):
            raise InputError(
                f"{type(self).__name__}: last={self.last!r} is too small or not a whole number; give at least "
                f"{FEWEST}, so that there is a middle, or leave it out for all clients"
            )

    @property
    def label(self) -> str:
        """The rule in a few words."""
        return own_label(self)

    def spec(self) -> dict[str, object]:
        """The rule as a JSON object, of which `SERVERS` makes it again."""
        if self.name is None:
            return own_spec(self)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": self.name, **{key: value for key, value in given.items() if value is not None}}

    def among(self, clients: int) -> Self:
        """The rule with a place for each of so many clients, or as many as were asked for; or why it cannot be."""
        if clients < FEWEST:
            raise InputError(
                f"{self.label}: {clients} clients are too few to tell hostile clients from the others; use {FEWEST} "
                "or more, or leave the rule out"
            )
        if self.last is not None and self.last > clients:
            raise InputError(
                f"{self.label}: {clients} clients never have {self.last} contributions to keep; give last={clients}, "
                "or leave it out"
            )
        return self if self.last is not None else replace(self, last=clients)

    def fits(self, updates: float, clients: int, who: str) -> None:
        """Refuse a scheme `who` whose rounds have so many updates, each of the newest model, if that makes no sense."""
        if self.last is None and updates < clients:
            least = max(FEWEST, round(updates))
            raise InputError(
                f"{self.label}: a round of {who} has {updates:g} updates; if one is kept per client, most come from "
                f"old models; give last={least}"
            )
        if self.last is not None and self.last < updates:
            raise InputError(
                f"{self.label}: a round of {who} has {updates:g} updates, but only {self.last} would be kept; give "
                f"last={round(updates)} or more"
            )

    @property
    def places(self) -> int:
        """How many contributions are kept."""
        assert self.last is not None, "among() says how many"
        return self.last

    @property
    def needed(self) -> int:
        """How many must be there for a step."""
        return max(FEWEST, -(-self.places // 2))

    # -- contributions

    def start(self, params: Params) -> Acc:
        places = self.places
        kind = jnp.result_type(*jax.tree.leaves(params))
        none = jnp.zeros((), kind)
        latest = Latest(
            client=jnp.full(places, -1, jnp.int32),
            came=jnp.zeros(places, jnp.int32),
            share=jnp.zeros(places, kind),
            updates=jnp.zeros((), jnp.int32),
            change=self.kept(params),
            measured=self.unmeasured(kind),
        )
        return Robust(params, self.no_step(params), none, none, latest)

    def kept(self, params: Params) -> Params:
        """[places, …] contributions, before any has come; nothing where the rule needs none."""
        return ()

    def no_step(self, params: Params) -> Params:
        """The sum of no contributions, where the rule goes along a sum."""
        return ()

    def unmeasured(self, kind: Any) -> Any:
        """What is known of contributions before any has come."""
        return ()

    def measure(self, measured: Any, change: Params, place: jax.Array, new: Params) -> Any:
        """What is known when a contribution has been put in its place among those that are kept."""
        return measured

    def enter(self, latest: Latest, arrival: Arrival) -> Latest:
        """The contribution takes its client's place, a free one, or the oldest one's; dropped updates take none."""
        client = jnp.asarray(arrival.client, jnp.int32)
        took = arrival.weight != 0
        order = jnp.where(latest.client == client, -2, jnp.where(latest.client < 0, -1, latest.came))
        place = jnp.argmin(order)
        updates = latest.updates + took

        def put(old: Any, value: Any) -> Any:
            return old.at[place].set(jnp.where(took, jnp.asarray(value).astype(old.dtype), old[place]))

        answer = arrival.answer.change
        change = jax.tree.map(put, latest.change, answer) if jax.tree.leaves(latest.change) else latest.change
        measured = self.measure(latest.measured, change, place, answer)
        return Latest(
            client=put(latest.client, client),
            came=put(latest.came, updates),
            share=put(latest.share, arrival.share),
            updates=updates.astype(jnp.int32),
            change=change,
            measured=jax.tree.map(lambda old, new: jnp.where(took, new, old), latest.measured, measured),
        )

    def remembered(self, acc: Acc) -> Any:
        return acc.waiting, acc.latest

    def recalled(self, acc: Acc, memory: Any) -> Acc:
        waiting, latest = memory
        return acc._replace(waiting=waiting, latest=latest)


@dataclass(frozen=True)
class MiddleRule(RobustRule):
    """A step towards the middle of the contributions that are kept, however it is found."""

    def kept(self, params: Params) -> Params:
        return jax.tree.map(lambda x: jnp.zeros((self.places, *x.shape), x.dtype), params)

    def unmeasured(self, kind: Any) -> Any:
        return jnp.zeros((self.places, self.places), kind)

    def measure(self, measured: Any, change: Params, place: jax.Array, new: Params) -> Any:
        apart = sum(
            jnp.square(x - x[place]).reshape(len(x), -1).sum(axis=1).astype(measured.dtype)
            for x in jax.tree.leaves(change)
        )
        return measured.at[place].set(apart).at[:, place].set(apart)

    @abstractmethod
    def direction(self, latest: Latest) -> Params:
        """What takes the place of the clients' mean contribution."""

    def add(self, acc: Acc, arrival: Arrival, hyper: Hyper) -> Acc:
        mass = acc.mass + arrival.weight.astype(acc.mass.dtype)
        return acc._replace(mass=mass, latest=self.enter(acc.latest, arrival))

    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        came = acc.mass != 0  # a round of dropped updates alone is no step
        moves = came & (acc.latest.there.sum() >= self.needed)
        mass = acc.mass + acc.waiting.astype(acc.mass.dtype)
        moved = plus(acc.model, self.direction(acc.latest), hyper["server_lr"] * mass)
        model = jax.tree.map(lambda new, old: jnp.where(moves, new, old), moved, acc.model)
        held = jnp.where(came, jnp.minimum(mass, 1), acc.waiting)
        waiting = jnp.where(moves, 0, held).astype(acc.waiting.dtype)
        return model, Robust(model, acc.step, jnp.zeros_like(acc.mass), waiting, acc.latest)


@dataclass(frozen=True)
class CoordinateMedian(MiddleRule):
    """Coordinate by coordinate the median of contributions, weighted by importance.

    With `mix`, of their means with the contributions nearest to them.

    The newest contributions of `last` clients are kept; None: of all.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[1.0], [1.1], [0.9], [1.0], [-50.0]])  # the last is hostile
        >>> schemes = [ft.FedAvg().using(server=server) for server in (None, ft.CoordinateMedian())]
        >>> history = ft.simulate(problem, schemes, ft.FixedTimes([1] * 5), until=100)
        >>> for scheme in schemes:
        ...     print(scheme, history.model(scheme=scheme.label).params.round(2))
        FedAvg [-9.2]
        FedAvg + CoordinateMedian [1.]
    """

    name = "median"
    mix: bool = True

    def direction(self, latest: Latest) -> Params:
        count = jnp.maximum(latest.there.sum(), 1)
        change = mixed(latest, int(HOSTILE * self.places + 1e-9)) if self.mix else latest.change
        return jax.tree.map(lambda x: middle(x, latest.weights, _most(count)), change)


@dataclass(frozen=True)
class TrimmedMean(MiddleRule):
    """Coordinate by coordinate the mean of contributions without `trim` of the weight at each end.

    With `mix`, of their means with the contributions nearest to them.

    The newest contributions of `last` clients are kept; None: of all.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[1.0], [1.1], [0.9], [1.0], [-50.0]])  # the last is hostile
        >>> schemes = [ft.FedAvg().using(server=server) for server in (None, ft.TrimmedMean(trim=0.2))]
        >>> history = ft.simulate(problem, schemes, ft.FixedTimes([1] * 5), until=100)
        >>> for scheme in schemes:
        ...     print(scheme, history.model(scheme=scheme.label).params.round(2))
        FedAvg [-9.2]
        FedAvg + TrimmedMean [1.]
    """

    name = "trimmed-mean"
    trim: float = HOSTILE
    mix: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        trim: object = self.trim
        if isinstance(trim, bool) or not isinstance(trim, (int, float)) or not 0 <= trim < 0.5:
            raise InputError(f"TrimmedMean: trim={trim!r} is not allowed; give a number from 0 to below 0.5")

    def direction(self, latest: Latest) -> Params:
        count = jnp.maximum(latest.there.sum(), 1)
        trim = jnp.minimum(self.trim * self.places / count, _most(count))  # whoever is missing may be honest
        change = mixed(latest, int(self.trim * self.places + 1e-9)) if self.mix else latest.change
        return jax.tree.map(lambda x: middle(x, latest.weights, trim), change)


@dataclass(frozen=True)
class Krum(MiddleRule):
    """The mean of the contributions that are nearest to their neighbours: with `chosen` = 1 the one nearest (Krum).

    `hostile` clients are expected, a fifth of all unless given. A contribution's score is the sum of its squared
    distances to the nearest others, as many as are honest for sure; the `chosen` ones have the least, all but `hostile`
    unless given (multi-Krum).

    The newest contributions of `last` clients are kept; None: of all.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[1.0], [1.1], [0.9], [1.0], [-50.0]])  # the last is hostile
        >>> schemes = [ft.FedAvg().using(server=server) for server in (None, ft.Krum(hostile=1))]
        >>> history = ft.simulate(problem, schemes, ft.FixedTimes([1] * 5), until=100)
        >>> for scheme in schemes:
        ...     print(scheme, history.model(scheme=scheme.label).params.round(2))
        FedAvg [-9.2]
        FedAvg + Krum(hostile=1) [1.]
    """

    name = "krum"
    hostile: int | None = None
    chosen: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, value, least in (("hostile", self.hostile, 0), ("chosen", self.chosen, 1)):
            if value is not None and (not _whole(value) or value < least):
                raise InputError(f"Krum: {what}={value!r} is not allowed; give a whole number of at least {least}")
        if self.last is not None:
            self._check()

    def _check(self) -> None:
        places, hostile = self.places, self.expected
        if places < 2 * hostile + 3:
            raise InputError(
                f"{self.label}: among {places} contributions at most {(places - 3) // 2} may be hostile (2·hostile + 3 "
                f"are needed); give hostile={(places - 3) // 2}, or last={2 * hostile + 3} or more"
            )
        if self.chosen is not None and self.chosen > places - hostile:
            raise InputError(
                f"{self.label}: {self.chosen} of {places} cannot be chosen without including one of {hostile} hostile "
                "ones; give "
                f"chosen={places - hostile} or less"
            )

    @property
    def expected(self) -> int:
        """How many hostile clients are expected."""
        return int(HOSTILE * self.places + 1e-9) if self.hostile is None else self.hostile

    @property
    def needed(self) -> int:
        return max(super().needed, 2 * self.expected + 3)

    def direction(self, latest: Latest) -> Params:
        there, places = latest.there, jnp.arange(self.places)
        count = there.sum()
        both = there[:, None] & there & (places[:, None] != places)
        nearest = jnp.sort(jnp.where(both, latest.measured, jnp.inf), axis=1)
        scores = jnp.where(places < count - self.expected - 2, nearest, 0).sum(axis=1)
        rank = jnp.argsort(jnp.argsort(jnp.where(there, scores, jnp.inf)))
        chosen = rank < (count - self.expected if self.chosen is None else self.chosen)
        weights = _normalised(jnp.where(chosen, latest.weights, 0))
        return jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1), latest.change)


@dataclass(frozen=True)
class NormClipping(RobustRule):
    """The weighted sum of contributions, none longer than `factor` times the median norm of those that are kept.

    Norms are kept, not models. Updates that come while the model stands still are measured, and leave no other trace.

    The newest contributions of `last` clients are kept; None: of all.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[1.0], [1.1], [0.9], [1.0], [-50.0]])  # the last is hostile
        >>> schemes = [ft.FedAvg().using(server=server) for server in (None, ft.NormClipping())]
        >>> history = ft.simulate(problem, schemes, ft.FixedTimes([1] * 5), until=100)
        >>> for scheme in schemes:
        ...     print(scheme, history.model(scheme=scheme.label).params.round(2))
        FedAvg [-9.2]
        FedAvg + NormClipping [0.96]
    """

    name = "norm-clipping"
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_number("NormClipping: factor", self.factor)

    def no_step(self, params: Params) -> Params:
        return zeros(params)

    def unmeasured(self, kind: Any) -> Any:
        return jnp.zeros(self.places, kind)

    def measure(self, measured: Any, change: Params, place: jax.Array, new: Params) -> Any:
        squares = sum(jnp.square(x).sum().astype(measured.dtype) for x in jax.tree.leaves(new))
        return measured.at[place].set(jnp.sqrt(squares))

    def add(self, acc: Acc, arrival: Arrival, hyper: Hyper) -> Acc:
        latest = self.enter(acc.latest, arrival)
        count = jnp.maximum(latest.there.sum(), 1)
        bound = self.factor * middle(latest.measured, latest.weights, _most(count))
        norm = jnp.where(latest.client == arrival.client, latest.measured, 0).max()
        shortened = jnp.where(norm > bound, bound / jnp.where(norm > 0, norm, 1), 1)
        weight = jnp.where(count >= self.needed, arrival.weight, 0).astype(acc.mass.dtype)
        step = plus(acc.step, arrival.answer.change, weight * shortened)
        return acc._replace(step=step, mass=acc.mass + weight, latest=latest)

    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        model = plus(acc.model, acc.step, hyper["server_lr"])
        return model, Robust(model, zeros(model), jnp.zeros_like(acc.mass), acc.waiting, acc.latest)


def middle(values: jax.Array, weights: jax.Array, trim: Any) -> jax.Array:
    """The mean of values [places, …] along the first axis without `trim` of the weight at each end; Σ weights = 1.

    A value that is cut counts with what is left of its weight, so that the mean moves smoothly with the weights. What
    is left by rounding alone is nothing: it may be of any size.
    """
    each = jnp.broadcast_to(weights.astype(values.dtype).reshape(-1, *(1,) * (values.ndim - 1)), values.shape)
    ordered, each = jax.lax.sort((values, each), dimension=0, num_keys=1)
    upto = jnp.cumsum(each, axis=0)
    trim = jnp.asarray(trim).astype(values.dtype)
    kept = jnp.minimum(upto, 1 - trim) - jnp.maximum(upto - each, trim)
    rounding = min(len(weights) * float(np.finfo(values.dtype).eps), 0.1 / len(weights))
    kept = jnp.where(kept > rounding, kept, 0)
    return (kept * ordered).sum(axis=0) / kept.sum(axis=0)


def mixed(latest: Latest, hostile: int) -> Params:
    """[places, …] the mean of each contribution and those nearest to it, all but `hostile` of them, by importance."""
    there = latest.there
    apart = jnp.where(there[:, None] & there, latest.measured, jnp.inf)
    near = jnp.argsort(jnp.argsort(apart, axis=1), axis=1) < there.sum() - hostile
    weights = jax.vmap(_normalised)(jnp.where(near, latest.weights, 0))
    return jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1), latest.change)


def _most(count: Any) -> Any:
    """What to cut at each end for the median of so many: of equal weights the one in the middle is left, or two."""
    return 0.5 - 0.5 / count


def _normalised(weights: jax.Array) -> jax.Array:
    total = weights.sum()
    return weights / jnp.where(total > 0, total, 1)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
