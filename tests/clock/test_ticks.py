"""Exact time: what a number means, what is refused, and the unit that many numbers share."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtempo.clock.ticks import MAX_TICKS, common_unit, exact, in_ticks, positive, text
from fedtempo.errors import ClockOverflow, InputError

cases = settings(derandomize=True, deadline=None, max_examples=300)

ratios = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**9)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (3, Fraction(3)),
        (0, Fraction(0)),
        (-2, Fraction(-2)),
        (10**25, Fraction(10**25)),
        (np.int8(-7), Fraction(-7)),
        (np.uint64(2**63), Fraction(2**63)),
        (0.2, Fraction(1, 5)),
        (-0.1, Fraction(-1, 10)),
        (1e-7, Fraction(1, 10**7)),
        (1e22, Fraction(10**22)),
        (0.1 + 0.2, Fraction(30000000000000004, 10**17)),
        (np.float64(0.2), Fraction(1, 5)),
        (np.float32(0.2), Fraction(1, 5)),
        (np.float16(0.2), Fraction(1, 5)),
        (np.float32(1e-3), Fraction(1, 1000)),
        ("1/3", Fraction(1, 3)),
        ("-2/6", Fraction(-1, 3)),
        (" 1 / 3 ", Fraction(1, 3)),
        ("0.5/0.25", Fraction(2)),
        ("0.25", Fraction(1, 4)),
        ("1e-3", Fraction(1, 1000)),
        ("1E3", Fraction(1000)),
        (" 7 ", Fraction(7)),
        ("+.5", Fraction(1, 2)),
        ("9" * 60, Fraction(10**60 - 1)),
        (Fraction(2, 6), Fraction(1, 3)),
        (Decimal("0.10"), Fraction(1, 10)),
        (Decimal("1E+2"), Fraction(100)),
    ],
)
def test_exact_is_the_number_that_is_meant(given, meant):
    found = exact(given)
    assert type(found) is Fraction
    assert found == meant
    assert type(found.numerator) is int
    assert type(found.denominator) is int


@cases
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_means_the_shortest_decimal_that_is_it(value):
    found = exact(value)
    assert found == Fraction(*Decimal(repr(value)).as_integer_ratio())
    assert float(found) == value


@cases
@given(st.floats(width=32, min_value=2.0**-120, max_value=2.0**120))
def test_a_float32_means_at_most_nine_digits_that_come_back_to_it(value):
    given_value = np.float32(value)
    found = exact(given_value)
    assert np.float32(float(found)) == given_value
    mantissa = Decimal(found.numerator * 10**60 // found.denominator).normalize().as_tuple().digits
    assert len(mantissa) <= 9


@cases
@given(st.integers(min_value=-(10**50), max_value=10**50))
def test_a_whole_number_means_itself_in_every_form(value):
    assert exact(value) == exact(str(value)) == exact(Decimal(value)) == exact(Fraction(value)) == value


@cases
@given(ratios)
def test_the_text_of_a_rational_means_it(value):
    assert exact(text(value)) == value


@cases
@given(ratios, st.integers(min_value=0, max_value=12))
def test_decimal_text_means_its_digits_over_a_power_of_ten(value, places):
    digits = math.floor(value * 10**places)
    sign, whole = ("-" if digits < 0 else ""), str(abs(digits)).zfill(places + 1)
    written = f"{sign}{whole[: len(whole) - places]}.{whole[len(whole) - places :]}"
    assert exact(written) == Fraction(digits, 10**places)


@pytest.mark.parametrize(
    "given",
    [
        True,
        False,
        np.True_,
        None,
        1j,
        b"3",
        [1],
        "",
        "   ",
        "abc",
        "0x10",
        "1,5",
        "1/0",
        "0/0",
        "1/2/3",
        "/",
        "1/",
        "nan",
        "inf",
        "-inf",
        "1/nan",
        "1/inf",
        float("nan"),
        float("inf"),
        -float("inf"),
        np.float32("nan"),
        Decimal("nan"),
        Decimal("-inf"),
        Decimal("1e99"),
        "1e999999999",
        "1e-999999999",
        "1/1e999999999",
        "1e99999999999999999999999",
    ],
)
def test_what_is_no_number_is_refused_and_named(given):
    with pytest.raises(InputError) as caught:
        exact(given, "wait")
    message = str(caught.value).lower()
    assert message.startswith("wait: ")
    assert str(given).lower() in message


@pytest.mark.parametrize(
    "given",
    ["9" * 61, "9" * 5000, "0." + "3" * 5000, "1/" + "7" * 5000, "9" * 10**6],
    ids=["61", "5000", "5000 decimals", "5000 below", "a million"],
)
def test_very_long_digits_are_refused_with_their_beginning(given):
    with pytest.raises(InputError) as caught:
        exact(given, "wait")
    assert given[:30] in str(caught.value)


@pytest.mark.parametrize(
    "given", ["1e999999999", "1e61", "9" * 61, "9" * 10**6], ids=["huge", "1e61", "61 digits", "a million digits"]
)
def test_text_with_too_many_digits_is_told_so_briefly(given):
    with pytest.raises(InputError, match="too many digits or too large an exponent") as caught:
        exact(given)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), Fraction(1, 10**5000)], ids=["huge", "hugely negative", "tiny"]
)
def test_a_number_too_long_to_print_is_an_input_error(value):
    with pytest.raises(InputError):
        positive(value, "wait")


@cases
@given(st.one_of(st.text(max_size=12), st.text(alphabet="0123456789/.eE+-_ nainfs", max_size=12)))
def test_any_text_is_a_rational_or_an_input_error_that_names_it(written):
    try:
        assert type(exact(written)) is Fraction
    except InputError as refusal:
        message = str(refusal)
    else:
        return
    assert repr(written) in message or written.strip() in message


@pytest.mark.parametrize("given", [0, -1, "0", "-1/2", -0.25, "-0"])
def test_positive_refuses_zero_and_below(given):
    with pytest.raises(InputError) as caught:
        positive(given, "time of client 4")
    assert str(caught.value).startswith(f"time of client 4: {given} is not above zero")


def test_positive_is_exact_above_zero():
    assert positive("1e-60", "wait") == Fraction(1, 10**60)


@pytest.mark.parametrize(("value", "written"), [(Fraction(3), "3"), (Fraction(1, 2), "1/2"), (Fraction(-4, 6), "-2/3")])
def test_text_is_in_lowest_terms(value, written):
    assert text(value) == written


def _largest_common_measure(numbers):
    """By trying min/1, min/2, min/3, … in turn."""
    smallest = min(numbers)
    parts = 1
    while any((n * parts / smallest).denominator != 1 for n in numbers):
        parts += 1
    return smallest / parts


@cases
@given(
    st.lists(
        st.builds(Fraction, st.integers(min_value=1, max_value=20), st.integers(min_value=1, max_value=6)),
        min_size=1,
        max_size=5,
    )
)
def test_the_common_unit_is_the_largest_that_divides_all(numbers):
    assert common_unit(iter(numbers)) == _largest_common_measure(numbers)
    assert common_unit([Fraction(0), *numbers]) == common_unit(numbers)


@pytest.mark.parametrize("numbers", [[], [Fraction(0)]])
def test_a_common_unit_of_nothing_is_refused(numbers):
    with pytest.raises(InputError, match="at least one positive time"):
        common_unit(numbers)


def test_denominators_that_share_too_little_overflow():
    primes = [p for p in range(2, 60) if all(p % q for q in range(2, p))]
    with pytest.raises(ClockOverflow, match="no common unit"):
        common_unit(Fraction(1, p) for p in primes)
    assert common_unit(Fraction(1, p) for p in primes[:15]) == Fraction(1, math.prod(primes[:15]))


def test_the_common_unit_reaches_just_to_the_limit():
    assert common_unit([Fraction(1, MAX_TICKS)]) == Fraction(1, MAX_TICKS)
    with pytest.raises(ClockOverflow):
        common_unit([Fraction(1, MAX_TICKS + 1)])


@cases
@given(st.fractions(min_value=0, max_value=10**6), st.fractions(min_value=Fraction(1, 10**6), max_value=100))
def test_ticks_are_rounded_down(moment, unit):
    ticks = in_ticks(moment, unit)
    assert type(ticks) is int
    assert ticks * unit <= moment < (ticks + 1) * unit


def test_the_last_tick_fits_and_the_next_overflows():
    assert in_ticks(Fraction(MAX_TICKS - 1, 3), Fraction(1, 3)) == MAX_TICKS - 1
    with pytest.raises(ClockOverflow, match=r"until 7\.68614e"):
        in_ticks(Fraction(MAX_TICKS, 3), Fraction(1, 3), "until")


@pytest.mark.parametrize("digits", [60, 308, 400])
def test_a_moment_of_any_size_overflows_as_a_clock_does(digits):
    with pytest.raises(ClockOverflow):
        in_ticks(Fraction(10**digits), Fraction(1, 1000))
