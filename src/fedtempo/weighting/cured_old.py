"""What cured sampling does in the long run, from what its criterion and FedAvg do.

    participation_i = (W_c s_i + W − W_c)/W        s_i the criterion's
    rounds in a unit of time = W / (W_c/r + (W − W_c)/r')        r the criterion's, r' FedAvg's

W is `window`, W_c `biased`.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from fedtempo.clock.rules import CuredSample

if TYPE_CHECKING:
    from fedtempo.weighting.long_run import Participation

Pace = TypeVar("Pace", Fraction, float)


def cured_participation(rule: CuredSample, criterion: Participation) -> Participation:
    """Share of rounds of each client under the cured rule, from that under the criterion alone."""
    by, others = Fraction(rule.biased, rule.window), Fraction(rule.window - rule.biased, rule.window)
    part, rest = float(by), float(others)
    return replace(
        criterion,
        share=part * criterion.share + rest,
        exact=None if criterion.exact is None else tuple(by * s + others for s in criterion.exact),
        error=None if criterion.error is None else part * criterion.error,
        taking_part=None if criterion.taking_part is None else part * criterion.taking_part + rest,
    )


def cured_pace(rule: CuredSample, criterion: Pace, everybody: Pace) -> Pace:
    """Rounds in a unit of time, from those of the criterion alone and of FedAvg."""
    return rule.window / (rule.biased / criterion + (rule.window - rule.biased) / everybody)
