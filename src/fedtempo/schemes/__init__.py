"""A scheme is a waiting rule with options: the named ones, the published ones, and their timelines."""

from fedtempo import compat


def __getattr__(name: str) -> object:
    return compat.old_name(__name__, name)
