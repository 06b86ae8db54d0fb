"""The command line: ``fedtempo plan``, ``fedtempo timeline``."""

from fedtempo.cli.app import main

__all__ = ["main"]
