"""All that one needs to write a waiting rule of one's own: derive from `WaitingRule`, write `decide`.

`fedtempo.testing.check_rule` says whether it is lawful; ``fedtempo.Scheme(MyRule(), name="mine")`` makes it a scheme. A
`closed_form` that returns a `ClosedForm` gives it exact weights, windows and delays; without one they are found by
running it.
"""

from fedtempo.clock.closed_form import (
    ClosedForm,
    Draws,
    EachByItself,
    Everybody,
    OneAtATime,
    RoundLaw,
    UniformSubset,
)
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
    "ClosedForm",
    "Deadline",
    "Draws",
    "EachByItself",
    "Event",
    "Everybody",
    "Failed",
    "Job",
    "Joined",
    "Left",
    "OneAtATime",
    "RoundLaw",
    "Send",
    "State",
    "Tick",
    "UniformSubset",
    "View",
    "WaitingRule",
    "resend",
]
