"""Quantities as people read them: the unit follows from what is shown, a column has one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.units import TIME, parse, show_change, show_rate, show_rates, show_time, show_times


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (2.132e-14, "0 ns"),
        (-2.132e-14, "0 ns"),
        (0.99999, "1 s"),
        (0.9996, "999.6 ms"),
        (0.00099999, "1 ms"),
        (12345.0, "12345 s"),
        (0.0101, "10.1 ms"),
        (-2e-5, "-20 us"),
    ],
)
def test_one_time(seconds: float, shown: str) -> None:
    assert show_time(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ([0.002691, 0.0004034], ["2.691 ms", "0.403 ms"]),
        ([0.7031, 0.8147], ["703.1 ms", "814.7 ms"]),
        ([0.99999, 1.0], ["1 s", "1 s"]),
        ([12.34, 0.0005], ["12340.0 ms", "0.5 ms"]),
        ([None, 0.1], ["-", "100 ms"]),
        ([1e-14, 0.5], ["0 ms", "500 ms"]),
        ([0.0, 0.0], ["0 s", "0 s"]),
        ([None], ["-"]),
        ([], []),
    ],
)
def test_a_column_of_times(seconds: list[float | None], shown: list[str]) -> None:
    assert show_times(seconds) == shown


@pytest.mark.parametrize(("text", "expected"), [("10 m", r"a time with a unit \(s, "), ("1e400 s", "a time .*finite")])
def test_what_is_no_quantity_is_refused_with_what_would_be_one(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}"):
        parse(text, TIME, "a time")


def test_rates() -> None:
    assert show_rate(999.97e6) == "1 Gbit/s"
    assert show_rates([999.7e6, 1e9]) == ["1 Gbit/s", "1 Gbit/s"]
    assert show_rates([985.3e6, 1e9]) == ["0.985 Gbit/s", "1.000 Gbit/s"]


def test_changes() -> None:
    assert [show_change(share, 2) for share in (0.0042, -0.0042, 1e-9, -1e-9, 0.0)] == [
        "+0.42%",
        "-0.42%",
        "0.00%",
        "0.00%",
        "0.00%",
    ]


times = st.floats(-1e5, 1e5, allow_nan=False)


@given(times)
def test_any_time_has_no_exponent_and_says_what_it_is(seconds: float) -> None:
    number, unit = show_time(seconds).split()
    assert "e" not in number
    assert number != "-0"
    assert number != "1000" or unit == "s"
    assert float(number) * TIME[unit] == pytest.approx(seconds, rel=1e-3, abs=1e-12)


@given(st.lists(times, min_size=1, max_size=20))
def test_any_column_has_one_unit_and_is_right_to_a_thousandth_of_its_largest(seconds: list[float]) -> None:
    shown = [text.split() for text in show_times(seconds)]
    assert len({unit for _, unit in shown}) == 1
    assert len({len(number.partition(".")[2]) for number, _ in shown}) == 1
    largest = max(map(abs, seconds))
    for (number, unit), asked in zip(shown, seconds, strict=True):
        assert "e" not in number
        assert float(number) * TIME[unit] == pytest.approx(asked, abs=max(1e-3 * largest, 1e-12))


def test_both_letters_for_micro_are_read() -> None:
    for letter in ("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}"):
        assert parse(f"21.7 {letter}s", TIME, "a time") == parse("21.7 us", TIME, "a time")
