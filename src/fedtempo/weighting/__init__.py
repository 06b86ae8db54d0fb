"""What a contribution weighs: importance, long-run shares, weight rules, weights and windows."""

from fedtempo import compat


def __getattr__(name: str) -> object:
    return compat.old_name(__name__, name)
