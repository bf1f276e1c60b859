from datetime import date, datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.text.dates import DateRange, dates_in

NOW = datetime(2023, 8, 16, 12, tzinfo=timezone.utc).timestamp()  # a Wednesday


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What did Ana find on 1 February, 2023?", "1 February 2023"),
        ("What did Ana find on the 1st of February?", "1 February"),
        ("what happened on July 7, 2023", "7 July 2023"),
        ("what happened July 7th?", "7 July"),
        ("Who came in August 2022?", "August 2022"),
        ("Who came during Sept. 2022?", "September 2022"),
        ("Who came in May?", "May"),
        ("logs of 2024-03-09", "9 March 2024"),
        ("logs of 2024-03", "March 2024"),
        ("delivered by 12/25/2023", "until 25 December 2023"),
        ("on 25.12.2023", "25 December 2023"),
        ("What happened in 2022?", "1 January 2022 to 31 December 2022"),
        ("since 2021", "from 1 January 2021"),
        ("before June 2023", "until 31 May 2023"),
        ("before June", "until 31 May 2023"),  # the most recent June
        ("after October", "from 1 November 2022"),  # October 2023 has not begun
        ("until 5 July 2023", "until 5 July 2023"),
        ("the week before 5 July 2023", "until 5 July 2023"),  # often told on that day
        ("after 5 July 2023", "from 6 July 2023"),
        ("between May and July 2023", "1 May 2023 to 31 July 2023"),
        ("between November and February 2023", "1 November 2022 to 28 February 2023"),
        ("between 3 May and 9 May 2023", "3 May 2023 to 9 May 2023"),
        ("from June to August", "1 June to 31 August"),
        ("from 3 to 7 June", "3 June to 7 June"),
        ("between the meetings of 3 and 7 June 2023", "3 June 2023 to 7 June 2023"),
        ("June 3-7, 2023", "3 June 2023 to 7 June 2023"),
        ("in November last year", "November 2022"),
        ("on 5 May last year", "5 May 2022"),
        ("before May of last year", "until 30 April 2022"),
        ("tonight", "16 August 2023"),
        ("today", "16 August 2023"),
        ("Who called yesterday?", "15 August 2023"),
        ("the day before yesterday", "14 August 2023"),
        ("tomorrow", "17 August 2023"),
        ("last week", "7 August 2023 to 13 August 2023"),
        ("last weekend", "12 August 2023 to 13 August 2023"),
        ("this month", "August 2023"),
        ("next year", "1 January 2024 to 31 December 2024"),
        ("two months ago", "1 June 2023 to 1 July 2023"),  # 16 June ± 15 days
        ("a couple of days ago", "14 August 2023"),
        ("3 weeks ago", "23 July 2023 to 29 July 2023"),
        ("a year ago", "1 January 2022 to 31 December 2022"),
        ("in the last 10 days", "6 August 2023 to 16 August 2023"),
        ("in the past two years", "16 August 2021 to 16 August 2023"),
        ("last Tuesday", "15 August 2023"),
        ("on Wednesday", "9 August 2023"),
        ("next Wednesday", "23 August 2023"),
        ("last May", "May 2023"),
        ("last September", "September 2022"),
        ("next May", "May 2024"),
        ("next September", "September 2023"),
    ],
)
def test_dates_that_a_question_names(question, expected):
    assert [str(one) for one in dates_in(question, NOW)] == [expected]


@pytest.mark.parametrize(
    "question",
    [
        "",
        "May I ask who may come?",
        "a march of 20 people",
        "version 2024-13-40",
        "on 45 June",
        "from 29 to 31 June",
        "room 12",
        "Wer rief an?",
    ],
)
def test_no_date(question):
    assert dates_in(question, NOW) == []


def test_several_dates_are_all_named():
    named = dates_in("Was it on 3 May 2023 or in July 2023?", NOW)
    assert [str(one) for one in named] == ["3 May 2023", "July 2023"]


def at(*parts):
    return datetime(*parts, 9, tzinfo=timezone.utc)


def test_nearness_to_a_day():
    day = DateRange(date(2023, 7, 7), date(2023, 7, 7))
    near = [day.nearness(at(2023, 7, n)) for n in (5, 6, 7, 8, 9, 14, 15)]
    assert near == [0, 0.4, 1, 0.8, 0.5 - 0.05 * 2, pytest.approx(0.5 - 0.05 * 7), 0]


def test_nearness_to_a_month_of_any_year():
    (july,) = dates_in("in July", NOW)
    assert [july.nearness(at(2021, 7, 31)), july.nearness(at(2022, 8, 7)), july.nearness(at(2022, 8, 8))] == [1, 0.4, 0]
    (december,) = dates_in("in December", NOW)
    assert december.nearness(at(2023, 1, 3)) == 0.4  # the week after the December of the year before


def test_nearness_to_an_open_range():
    (before,) = dates_in("before June 2023", NOW)
    assert [before.nearness(at(*day)) for day in ((2023, 6, 1), (2023, 5, 31), (2023, 4, 30), (2023, 4, 29))] == [
        0, 1, 1, 0.5,
    ]  # fmt: skip
    (after,) = dates_in("since June 2023", NOW)
    assert [after.nearness(at(*day)) for day in ((2023, 5, 31), (2023, 6, 1), (2023, 9, 1))] == [0, 1, 0.5]


def test_a_leap_day_of_any_year():
    (leap,) = dates_in("on 29 February", NOW)
    assert leap.nearness(at(2024, 2, 29)) == 1
    assert leap.nearness(at(2023, 2, 28)) == 1  # the last day of that month


@given(st.text(max_size=60), st.floats(-6e10, 2.5e11))
def test_any_text_and_any_clock(question, now):
    for one in dates_in(f"{question} 999 weeks ago, last May, in 1900", now):
        assert 0 <= one.nearness(at(2023, 1, 1)) <= 1
        assert str(one)
