"""Which learning rate a comparison is made at (section 5.1).

    shared    tuned on identical weights, and used for every weight rule: the paper's way, an advantage to identical
    own       each scheme and weight rule at its own best rate

Tuned means the lowest final federated loss: mean over seeds of the mean over the last tenth of the time grid.
"""

from __future__ import annotations

from fedtempo.grid import RATE
from fedtempo.history import History


def at_shared_rate(history: History, *, tuned_on: str = "identical") -> History:
    """The runs of a history of one scheme at the rate that is best for the weight rule `tuned_on`."""
    rate = shared_rate(history, tuned_on=tuned_on)
    return history if rate is None else history.select(**{RATE: rate})


def shared_rate(history: History, *, tuned_on: str = "identical") -> float | None:
    """That rate; None if there is only one."""
    if RATE not in history.hyper:
        return None
    best = history.only().select(weights=tuned_on).best()
    return float(best.dataset[RATE].values.item())


def at_own_rates(history: History) -> History:
    """Every scheme and weight rule at its best rate."""
    return history.best()
