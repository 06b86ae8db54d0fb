"""Exact time: rationals, and whole ticks of one common unit.

    t = ticks × unit,    unit = gcd of all rationals that meet on one clock

Nothing here accumulates floats; a float that comes in means the decimal that Python prints for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral, Rational, Real

from fedtempo.errors import ClockOverflow, InputError

MAX_TICKS = 2**61
"""No moment and no duration may reach this many ticks, so that sums of two stay inside 64 bits."""

_MAX_DIGITS = 60

Exact = int | float | str | Fraction | Decimal
"""What is accepted where an exact number is wanted: 3, 0.2 (the decimal), "1/3", Fraction, Decimal."""


def exact(value: object, what: str = "number") -> Fraction:
    """The rational that `value` means; a float means its shortest decimal, so that 0.2 is 1/5."""
    refuse = InputError(f"{what}: {value!r} is not a number; write it as 3, 0.25, '1/3' or a Fraction")
    if isinstance(value, bool):
        raise refuse
    if isinstance(value, Integral):
        return Fraction(int(value))
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise InputError(f"{what}: {float(value)} is not finite; give a finite number")
        return Fraction(str(value))  # numpy scalars print their shortest decimal too
    if isinstance(value, Decimal):
        return _decimal(value, what)
    if isinstance(value, str):
        try:
            top, slash, bottom = value.strip().partition("/")
            over, under = Decimal(top), Decimal(bottom) if slash else Decimal(1)
        except InvalidOperation:
            raise refuse from None
        bottom_part = _decimal(under, what)
        if bottom_part == 0:
            raise refuse
        return _decimal(over, what) / bottom_part
    raise refuse


def _decimal(value: Decimal, what: str) -> Fraction:
    if not value.is_finite():
        raise InputError(f"{what}: {value} is not finite; give a finite number")
    _, digits, exponent = value.as_tuple()
    if len(digits) > _MAX_DIGITS or abs(int(exponent)) > _MAX_DIGITS:
        raise InputError(f"{what}: {str(value)[:40]} has too many digits or too large an exponent; round it")
    return Fraction(value)


def positive(value: object, what: str) -> Fraction:
    """As `exact`, and above zero."""
    number = exact(value, what)
    if number <= 0:
        raise InputError(f"{what}: {value} is not above zero; give a positive number")
    return number


def text(number: Fraction) -> str:
    """The exact text of a rational: "3" or "1/2"."""
    return str(number)


def common_unit(numbers: Iterable[Fraction]) -> Fraction:
    """The largest rational of which every given one is a whole multiple: gcd(p)/lcm(q) over p/q in lowest terms."""
    top, bottom = 0, 1
    for number in numbers:
        top = math.gcd(top, number.numerator)
        bottom = math.lcm(bottom, number.denominator)
        if bottom > MAX_TICKS:
            raise ClockOverflow(
                "these times have no common unit that 64-bit ticks can hold: their denominators share too little; "
                "round them to a common precision, say three decimals"
            )
    if top == 0:
        raise InputError("a clock needs at least one positive time")
    return Fraction(top, bottom)


def in_ticks(moment: Fraction, unit: Fraction, what: str = "time") -> int:
    """`moment` as a whole number of ticks, rounded down."""
    ticks = moment // unit
    if ticks >= MAX_TICKS:
        raise ClockOverflow(
            f"{what} {float(moment):g} is {float(ticks):.2g} ticks of {float(unit):.2g}, "
            "more than a 64-bit clock can count; "
            "round the times and waits to fewer digits, or ask for less time"
        )
    return int(ticks)
