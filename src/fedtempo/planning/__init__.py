"""Which scheme and wait: `compare` from clients' times alone; `recommend` with a learning rate too, after a pilot."""

from fedtempo.planning.compare import Plan, SchemePlan, compare

__all__ = ["Plan", "SchemePlan", "compare"]
