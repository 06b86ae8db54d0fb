"""All that one needs to write a waiting rule of one's own: derive from `WaitingRule`, write `decide`.

`fedtempo.testing.check_rule` says whether it is lawful; ``fedtempo.Scheme(MyRule(), name="mine")`` makes it a scheme.
"""

from fedtempo.clock.events import (
    Action,
    Arrived,
    Close,
    Deadline,
    Event,
    Failed,
    Job,
    Joined,
    Left,
    Send,
    Tick,
    View,
)
from fedtempo.clock.waiting import State, WaitingRule, resend

__all__ = [
    "Action",
    "Arrived",
    "Close",
    "Deadline",
    "Event",
    "Failed",
    "Job",
    "Joined",
    "Left",
    "Send",
    "State",
    "Tick",
    "View",
    "WaitingRule",
    "resend",
]
