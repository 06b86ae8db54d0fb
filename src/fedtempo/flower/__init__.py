"""Asynchronous federated learning on Flower: fedtempo's schemes, weights and clock, Flower's transport and clients.

strategy = FedFix(wait=30.0, checkpoint="run/")
result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=200)
"""

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedtempo.flower needs Flower: pip install 'fedtempo[flower]'") from error

from fedtempo import compat
from fedtempo.flower.clock import Clock, TransportCosts, WallClock
from fedtempo.flower.compressing import compressing
from fedtempo.flower.faults import Fault
from fedtempo.flower.record import Record, recorded, replay
from fedtempo.flower.result import Result, RoundRecord, UpdateRecord
from fedtempo.flower.strategy import AsyncFedAvg, FedAvg, FedBuff, FedFix, TimedStrategy
from fedtempo.flower.telling import track_run
from fedtempo.flower.virtual.grid import MeasuredTimes, VirtualGrid
from fedtempo.flower.virtual.simulate import simulate_app

__all__ = [
    "AsyncFedAvg",
    "Clock",
    "Fault",
    "FedAvg",
    "FedBuff",
    "FedFix",
    "MeasuredTimes",
    "Record",
    "Result",
    "RoundRecord",
    "TimedStrategy",
    "TransportCosts",
    "UpdateRecord",
    "VirtualGrid",
    "WallClock",
    "compressing",
    "recorded",
    "replay",
    "simulate_app",
    "track_run",
]


def __getattr__(name: str) -> object:
    if name == "CarrierCosts":
        compat.warn("fedtempo.flower.CarrierCosts", "fedtempo.flower.TransportCosts")
        return TransportCosts
    raise AttributeError(f"module 'fedtempo.flower' has no attribute {name!r}")
