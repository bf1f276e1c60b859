"""Spotting entities by shape."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.text.entities import spot


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # names
        ("I met Ana in Lisbon", ("Ana", "Lisbon")),
        ("Ana moved to Lisbon", ("Ana", "Lisbon")),
        ("The Eiffel Tower is in Paris.", ("Eiffel Tower", "Paris")),
        ("Yesterday Ana's Lisbon trip ended", ("Ana", "Lisbon")),
        ("Ana’s dog", ("Ana",)),
        ("the Bank of America and Rio de Janeiro", ("Bank of America", "Rio de Janeiro")),
        ("University of", ("University",)),
        ("We saw Ana, Bo and Cleo", ("Ana", "Bo", "Cleo")),
        ("Anna-Lena Müller-Lüdenscheidt ist in Köln", ("Anna-Lena Müller-Lüdenscheidt", "Köln")),
        ("Hey Mel! Wow, that's great. I think I'm fine", ("Mel",)),
        ("she works at NASA in the US", ("NASA", "US")),
        ("See you on Monday in May", ()),
        ("Москва - столица. Потом Анна уехала", ("Москва", "Потом Анна")),
        ("nothing to see here", ()),
        # identifiers
        ("fails with E0427 in getUserById", ("E0427", "getUserById")),
        ("set max_client_conn for VW123-platform-team", ("max_client_conn", "VW123-platform-team")),
        ("upgrade 18.12.1 to v2.0", ("18.12.1", "v2.0")),
        ("call POST /v2/exports, not /v2/imports.", ("POST", "/v2/exports", "/v2/imports")),
        ("mail ana@example.com or see https://x.io/a?b=1.", ("ana@example.com", "https://x.io/a?b=1")),
        ("at 10am in the 90s I ran 5km on the 3rd day", ()),
        # quoted terms and hashtags
        ('we call it "project blue" or “Plan B” or «plan c»', ("project blue", "Plan B", "plan c")),
        ("run `make test` 「東京タワー」", ("make test", "東京タワー")),
        ('a lone " and an empty "" and "  "', ()),
        ("so happy #adoption #2023goals c#", ("adoption", "2023goals")),
        # dates
        ("on 2023-05-07 and in 2023-06", ("2023-05-07", "2023-06")),
        ("on 7 May 2023", ("2023-05-07",)),
        ("on the 7th of May, 2023", ("2023-05-07",)),
        ("on May 7th, 2023", ("2023-05-07",)),
        ("since Sept. 2022", ("2022-09",)),
        ("on 25 December", ("December 25",)),
        ("december 25 again", ("December 25",)),
        ("you may 4 times march 3 miles", ()),
        ("the year 2023 and 1234-56-78", ()),
        # each once
        ("Lisbon, lisbon, LISBON and in Lisbon", ("Lisbon",)),
        ("", ()),
    ],
)
def test_what_is_spotted(text, expected):
    assert spot(text) == expected


def test_the_same_day_is_the_same_entity():
    assert spot("7 May 2023") == spot("May 7, 2023") == spot("2023-05-07") == spot("may 7th 2023")


def test_a_long_list_is_bounded():
    assert len(spot(" ".join(f"E{n}" for n in range(1000)))) == 64


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_legal_and_gives_entities_of_it(text):
    found = spot(text)
    assert found == spot(text)
    assert all(entity.strip() for entity in found)
    assert len({entity.casefold() for entity in found}) == len(found)


@given(st.lists(st.sampled_from(["Ana", "of", "7", "May", "2023", '"', "“", "/a", "#x1", ".", "E1_", "'s", "@", "-"])))
@settings(max_examples=200, deadline=None)
def test_any_mixture_of_shapes_is_legal(parts):
    for glue in ("", " ", "\n"):
        assert all(entity.strip() for entity in spot(glue.join(parts)))


@pytest.mark.parametrize(
    "hostile",
    [
        '"',
        "a-",
        "A",
        "A ",
        "/a",
        "a@",
        "a.",
        "1.",
        "may ",
        "“",
        "'",
        "a'",
        "_",
        "http://",
        "a@a.",
        "jan 1 ",
        "«ab",
        "#",
    ],
)
def test_hostile_texts_take_no_more_than_linear_time(hostile):
    started = time.process_time()
    spot((hostile * 200_000)[:200_000])
    assert time.process_time() - started < 20  # a quadratic shape would take minutes
