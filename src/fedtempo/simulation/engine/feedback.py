"""Rounds whose clients are chosen by the trained model: selection and training alternate.

    losses of θ^n → S_n chosen → its jobs come in → θ^{n+1} trained → losses of θ^{n+1} → …

The rule must be synchronous: what a round takes is then known before the rule is asked whom to choose next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from fractions import Fraction
from typing import Any

from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Event, Round, Tick
from fedtempo.clock.generate import make_server, packed
from fedtempo.clock.server import Server
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.waiting import check_needs
from fedtempo.errors import InputError

Losses = Callable[[], NDArray[Any]]
"""[clients] L_i of the newest model."""


def chosen_rounds(config: ClockConfig, until: Fraction, losses: Losses) -> Iterator[Timeline]:
    """The rounds that end by `until`, one by one; each must be trained before the next is asked for."""
    rule = config.rule
    check_needs(rule, ("loss", *config.measures()), "a simulation", "let the rule choose by one of these")
    if not rule.synchronous:
        raise InputError(
            f"{rule!r} chooses by measures of trained models, which only rules that wait for every client they sent "
            "to (synchronous = True) can get"
        )
    last = config.ticks(until)
    server, transport, start = make_server(config)
    _note(server, losses())
    transport.send(server.start(start))
    begin = 0
    while True:
        now, events = transport.wait(server.deadline)
        if now < 0 or now > last:
            return
        for event in events:
            if (closing := _coming(server, event, now)) is not None:
                yield packed(config, [closing], begin)
                begin = now
                _note(server, losses())
            _, jobs = server.handle(event, now)
            transport.send(jobs)


def _coming(server: Server, event: Event, now: Tick) -> Round | None:
    """The round that an event would end, found out on a copy: whom it would choose next is not looked at."""
    return deepcopy(server).handle(event, now)[0] if len(server.in_flight) <= 1 else None


def _note(server: Server, losses: NDArray[Any]) -> None:
    for client, loss in enumerate(losses.tolist()):
        server.note("loss", client, loss)
