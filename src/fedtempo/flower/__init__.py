"""Asynchronous federated learning on Flower: fedtempo's schemes, weights and clock, Flower's transport and clients.

strategy = FedFix(wait=30.0, checkpoint="run/")
result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=200)
"""

import warnings as _warnings

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedtempo.flower needs Flower: pip install 'fedtempo[flower]'") from error

from fedtempo.flower.clock import Clock, TransportCosts, WallClock
from fedtempo.flower.compressing import compressing
from fedtempo.flower.faults import Fault
from fedtempo.flower.record import Record, recorded, replay
from fedtempo.flower.result import Result, RoundRecord, UpdateRecord
from fedtempo.flower.strategy import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy

__all__ = [
    "AsyncFedAvg",
    "Clock",
    "Fault",
    "FedAvg",
    "FedBuff",
    "FedFix",
    "Record",
    "Result",
    "RoundRecord",
    "TimedStrategy",
    "TransportCosts",
    "UpdateRecord",
    "WallClock",
    "compressing",
    "recorded",
    "replay",
]


def __getattr__(name: str) -> object:
    """Names that were others in earlier versions."""
    if name == "CarrierCosts":
        _warnings.warn("fedtempo.flower.CarrierCosts is called TransportCosts", FutureWarning, stacklevel=2)
        return TransportCosts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
