"""What a local federation says when it cannot go on."""

from __future__ import annotations

from fedtempo.errors import FedtempoError


class FederationError(FedtempoError):
    """A federation on this machine did not do what was asked; the message ends with a log."""
