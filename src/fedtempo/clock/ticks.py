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

_MAX_DIGITS = 60  # of a decimal, and its largest exponent
_MAX_BITS = 1100  # of a numerator or denominator: as many as the largest float has

Exact = int | float | str | Fraction | Decimal
"""What is accepted where an exact number is wanted: 3, 0.2 (the decimal), "1/3", Fraction, Decimal."""


def exact(value: object, what: str = "number") -> Fraction:
    """The rational that `value` means; a float means its shortest decimal, so that 0.2 is 1/5."""
    number = _rational(value)
    if isinstance(number, str):
        raise InputError(f"{what}: {_shown(value)} {number}")
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MAX_BITS:
        raise InputError(f"{what}: {_shown(value)} {_TOO_LONG}")
    return number


_NO_NUMBER = "is not a number; write it as 3, 0.25, '1/3' or a Fraction"
_NOT_FINITE = "is not finite; give a finite number"
_TOO_LONG = "has too many digits or too large an exponent; round it"


def _rational(value: object) -> Fraction | str:
    """The rational, or what is wrong with the value."""
    if isinstance(value, bool):
        return _NO_NUMBER
    if isinstance(value, Integral):
        return Fraction(int(value))
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, Decimal):
        return _of_decimal(value)
    if isinstance(value, Real):
        return Fraction(str(value)) if math.isfinite(value) else _NOT_FINITE  # numpy scalars print short decimals too
    if not isinstance(value, str):
        return _NO_NUMBER
    top, slash, bottom = value.strip().partition("/")
    try:
        over, under = _of_decimal(Decimal(top)), _of_decimal(Decimal(bottom if slash else 1))
    except InvalidOperation:
        return _NO_NUMBER
    if isinstance(over, str) or isinstance(under, str):
        return over if isinstance(over, str) else str(under)
    return over / under if under else _NO_NUMBER


def _of_decimal(value: Decimal) -> Fraction | str:
    if not value.is_finite():
        return _NOT_FINITE
    if abs(value.adjusted()) > _MAX_DIGITS or len(value.as_tuple().digits) > _MAX_DIGITS:
        return _TOO_LONG
    return Fraction(value)


def _shown(value: object) -> str:
    """What was given, shortened, and never longer to print than to read."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "a number"
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        return "a fraction"
    written = repr(value) if isinstance(value, str) else str(value)
    return written if len(written) <= 120 else f"{written[:60]}…"


def positive(value: object, what: str) -> Fraction:
    """As `exact`, and above zero."""
    number = exact(value, what)
    if number <= 0:
        raise InputError(f"{what}: {_shown(value).strip(chr(39))} is not above zero; give a positive number")
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
    """`step` as a whole number of ticks, rounded down."""
    ticks = moment // unit
    if ticks >= MAX_TICKS:
        raise ClockOverflow(
            f"{what} {_roughly(moment)} is {_roughly(Fraction(ticks))} ticks of {_roughly(unit)}, "
            "more than a 64-bit clock can count; "
            "round the times and waits to fewer digits, or ask for less time"
        )
    return int(ticks)


def _roughly(number: Fraction) -> str:
    """A few digits of a rational of any size."""
    return f"{Decimal(number.numerator) / Decimal(number.denominator):.6g}"


def positive_int(value: object, what: str) -> int:
    """A whole number of at least 1."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < 1:
        raise InputError(f"{what}: {value!r} is not a whole number of at least 1")
    return number
