"""A Flower app on the exact clock: the unchanged ServerApp and ClientApp, in virtual time."""

from fedtempo.flower.virtual.grid import VirtualClock, VirtualGrid
from fedtempo.flower.virtual.simulate import simulate_app

__all__ = ["VirtualClock", "VirtualGrid", "simulate_app"]
