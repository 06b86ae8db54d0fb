"""The paper's clients are always there: what follows from that refuses clients that come, go or fail."""

from __future__ import annotations

from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError

_INSTEAD = "give timeline= for what happened, or times.always for the same clients always there"


def check_always_there(times: ClientTimes | None, what: str, instead: str = _INSTEAD) -> None:
    """Refuse times whose clients come and go, with what to do instead."""
    if times is not None and times.availability is not None:
        raise InputError(
            f"{what} holds for clients that are always there, and these come, go or fail ({times.availability}); "
            f"{instead}"
        )
