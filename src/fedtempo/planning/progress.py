"""How far a race is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RaceProgress:
    """What `recommend` tells while it runs, several times a second."""

    done: float
    """Share of the budget that is spent, from 0 to 1; a race often ends before all of it is."""
    stage: str
    """What is going on, as "training to 1/16 of the time"."""
    cells: int
    """Cells (schemes at a learning rate) that are still in the race."""
    updates: int
    """Client updates so far."""
    seconds: float
    leader: str
    """The best so far, as "FedFix(1/4) at lr 0.5"; empty before there is one."""
