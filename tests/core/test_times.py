"""Every kind of time becomes the same epoch seconds; what cannot be read becomes None."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.times import as_datetime, epoch, from_epoch, has_passed, iso

DAY = 86_400.0
NOON = 1_714_564_800.0  # 2024-05-01T12:00:00Z


@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 5, 1, 12, tzinfo=timezone.utc),
        datetime(2024, 5, 1, 12),
        datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        "2024-05-01T12:00:00Z",
        "2024-05-01T12:00:00z",
        "2024-05-01t12:00:00Z",
        "2024-05-01 12:00",
        "2024-05-01T12",
        "20240501T120000Z",
        "2024-05-01T12:00:00.000000",
        "2024-05-01T12:00:00,0",
        "2024-05-01T14:00:00+02:00",
        "2024-05-01T14:00:00+0200",
        "2024-05-01T14+02",
        "2024-05-01T06:30:00-05:30",
        "  2024-05-01 12:00:00 Z  ",
        1_714_564_800,
        1_714_564_800.0,
        1_714_564_800_000,
        "1714564800",
        "1714564800000",
        "1714564800.0",
        np.int64(1_714_564_800),
        np.float64(1_714_564_800),
        np.datetime64("2024-05-01T12:00:00"),
        np.datetime64("2024-05-01T12:00:00", "ns"),
    ],
)
def test_one_moment_in_every_form(value):
    assert epoch(value) == NOON


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (date(1970, 1, 2), DAY),
        ("1970-01-02", DAY),
        ("19700102", DAY),
        ("1970-01-01T00:00:00.25Z", 0.25),
        ("1970-01-01T00:00:00.1234567Z", 0.123456),
        ("1969-12-31", -DAY),
        (0, 0.0),
        (-1, -1.0),
        (1e11, 1e11),
        (1.0e11 + 1, 1.0e8 + 0.001),
        (np.datetime64("1970-01-02"), DAY),
    ],
)
def test_worked_examples(value, seconds):
    assert epoch(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        np.bool_(True),
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        1e300,
        "",
        "soon",
        "12",
        "2024",
        "2024-13-01",
        "2024-02-30",
        "2024-05-0112",
        "2024-0501",
        "0000-01-01",
        "2024-05-01T24:00",
        "2024-05-01T12:60",
        "2024-05-01T12:00:61",
        "2024-05-01T12:00+99:00",
        "٢٠٢٤-٠٥-٠١",
        "9" * 500,
        "0001-01-01T00:00+01:00",
        [],
        {},
        object(),
        b"2024-05-01",
        Decimal(1),
        np.datetime64("NaT", "s"),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_unreadable_is_none(value):
    assert epoch(value) is None
    assert as_datetime(value) is None


def test_subclasses_are_read():
    class Text(str):
        __slots__ = ()

    class Broken(datetime):
        def timestamp(self):
            raise ValueError

    assert epoch(Text("1970-01-02")) == DAY
    assert epoch(Broken(2024, 1, 1)) is None


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(2200, 1, 1)))
def test_round_trips(when):
    aware = when.replace(tzinfo=timezone.utc)
    seconds = epoch(when)
    assert seconds == aware.timestamp()
    assert abs(from_epoch(seconds) - aware) <= timedelta(microseconds=8)  # a double's grain near year 1
    assert epoch(when.isoformat()) == pytest.approx(seconds, abs=1e-5)


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)))
def test_recent_times_round_trip_exactly(when):
    aware = when.replace(tzinfo=timezone.utc)
    assert as_datetime(when) == aware
    assert as_datetime(iso(aware.timestamp())) == aware


@given(st.text())
def test_any_text_is_read_or_none(text):
    seconds = epoch(text)
    assert seconds is None or math.isfinite(seconds)


@pytest.mark.parametrize(
    "value", [datetime.max, datetime.max.replace(tzinfo=timezone.utc), "9999-12-31T23:59:59.999999Z"]
)
def test_the_end_of_time_can_be_read(value):
    assert as_datetime(value).replace(microsecond=0) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
    assert epoch(value) > epoch("9999-12-31T23:59:59.9Z")
    assert epoch("9999-12-31T23:59:59-01:00") is None
    assert epoch(datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-1)))) is None


def test_a_time_has_passed_at_that_time_and_later():
    assert has_passed(1_700_000_000.0, 1_700_000_000.0)
    assert not has_passed(1_700_000_000.0, 1_700_000_000.0 - 1e-6)
    assert not has_passed(None, 1_700_000_000.0)
    assert not has_passed("soon", 1_700_000_000.0)
