"""The options of a scheme beside its waiting rule: how clients work, what they send, what the server does with it.

    ft.FedFix("1/2").using(correction=ft.FedProx(0.1), server=ft.FedAdam(), compression=ft.TopK(0.01))

Each composes with every scheme; combinations that make no sense are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedtempo.errors import InputError
from fedtempo.registry import own_spec

if TYPE_CHECKING:
    from fedtempo.training.compression import Compression
    from fedtempo.training.corrections import Correction
    from fedtempo.training.server_rules import Server
    from fedtempo.weighting.weight_rules import WeightRule

Compensation = Literal["weights", "rate", "work"]
Step = Literal["stable", "paper", "proven"]


@dataclass(frozen=True)
class SchemeOptions:
    """What a scheme is used with; None: as in FedAvg."""

    weights: WeightRule | None = None
    """Its own weights, whatever rules a study compares."""
    correction: Correction | None = None
    server: Server | None = None
    compression: Compression | None = None
    compensate: Compensation | None = None
    """By what clients that come rarely count as they should: weights (None), local learning rates, or local steps."""
    client_steps: tuple[int, ...] | None = None
    """K(i), where clients differ in it."""
    client_rates: tuple[float, ...] | None = None
    """Factors of η_l, one a client."""
    step: Step | None = None
    """The server's step (weighting/steps.py), whatever the study's is."""

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.step is not None and self.step not in get_args(Step):
            raise InputError(f"step: {self.step!r} is not known; use stable, paper or proven")
        if self.compensate == "weights":
            object.__setattr__(self, "compensate", None)
        if self.compensate not in (None, *get_args(Compensation)):
            raise InputError(f"compensate: {self.compensate!r} is not known; use weights, rate or work")
        if self.compensate in ("rate", "work") and (self.weights or self.client_steps or self.client_rates):
            raise InputError(
                f"compensate: {self.compensate} already sets the clients' weights, rates and steps; leave out "
                "weights, client_steps and client_rates"
            )
        self._take("client_steps", Integral, "whole numbers of at least 1, one per client")
        self._take("client_rates", Real, "numbers above 0, one per client")

    def _take(self, name: str, kind: Any, what: str) -> None:
        given = getattr(self, name)
        if given is None:
            return
        listed: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
        good = [isinstance(v, kind) and not isinstance(v, bool) and 0 < v < float("inf") for v in listed]
        if not good or not all(good):
            raise InputError(f"{name}: {given!r} is not allowed; give {what}")
        plain = int if kind is Integral else float
        object.__setattr__(self, name, tuple(plain(v) for v in listed))

    def _check_kinds(self) -> None:
        """Each option is of its kind; weights may be named."""
        if self.weights is not None:
            from fedtempo.weighting.weight_rules import WeightRule, weight_rule

            given: Any = self.weights
            if not isinstance(given, (str, WeightRule)):
                raise InputError(f"weights: {given!r} is not a weight rule; give one, or its name, as 'identical'")
            object.__setattr__(self, "weights", weight_rule(given))
        if self.correction is not None:
            from fedtempo.training.corrections import Correction

            _of_kind("correction", self.correction, Correction, "ft.FedProx(0.1)")
        if self.server is not None:
            from fedtempo.training.server_rules import Server

            _of_kind("server", self.server, Server, "ft.FedAdam()")
        if self.compression is not None:
            from fedtempo.training.compression import Compression

            _of_kind("compression", self.compression, Compression, "ft.TopK(0.01)")

    @property
    def own_weights(self) -> WeightRule | None:
        """The weights that the options bring: time-based ones where rate or work stands for them."""
        if self.compensate in ("rate", "work"):
            from fedtempo.weighting.weight_rules import TimeBased

            return TimeBased()
        return self.weights

    @property
    def plain(self) -> bool:
        """Whether there are none."""
        return self == SchemeOptions()

    def words(self, known: SchemeOptions) -> list[str]:
        """The options that are there and not in `known`, in a few words each."""
        kinds = ("weights", "correction", "server", "compression")
        found = [getattr(self, kind) for kind in kinds if getattr(self, kind) != getattr(known, kind)]
        named = [option.label for option in found if option is not None]
        if self.compensate is not None and self.compensate != known.compensate:
            named.append(f"by {self.compensate}")
        if self.step is not None and self.step != known.step:
            named.append(f"{self.step} step")
        lists = [n for n in ("client_steps", "client_rates") if getattr(self, n) not in (None, getattr(known, n))]
        return named + [f"{name.removeprefix('client_')} by client" for name in lists]

    def spec(self) -> dict[str, object]:
        """The options that are there as JSON."""
        found: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name == "weights":
                written = own_spec(value)
                own = ":" in str(written["name"]) and not type(value).__module__.startswith("fedtempo.")
                value = written if own else value.identity
            elif hasattr(value, "spec"):
                value = value.spec()
            found[field.name] = list(value) if isinstance(value, tuple) else value
        return found


def _of_kind(name: str, given: object, kind: Any, example: str) -> None:
    if not isinstance(given, kind):
        raise InputError(f"{name}: {given!r} is not a {name} option; give an object such as {example}")
