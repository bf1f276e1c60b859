"""Names in texts: folded whole words, links, longest match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.indexes.graph.names import TextLink, links_in, mentions_in, name_key, words_of
from hybridmem.text.folding import fold


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Ed Wood (film)", "ed wood"),
        ("ÉLAN", "elan"),
        ("Straße", "strasse"),
        ("(What's the Story)", "what s the story"),  # nothing but brackets: they are the name
        ("東京", "東 京"),
        ("", ""),
        ("?!", ""),
        ("one two three four five six seven eight nine ten eleven twelve thirteen", ""),
    ],
)
def test_a_name_is_folded_words(name, key):
    assert name_key(name) == key


def test_links_of_notes():
    text = "See [[Ana]], [[people/Ben|my boss]], [[Plan#Goals]], [the log](../log/2024%2005.md#top) and ![x](y.md)."
    assert links_in(text) == [
        TextLink("Ana", ""),
        TextLink("Ben", "my boss", "people"),
        TextLink("Plan", ""),
        TextLink("2024 05", "the log", "../log"),
    ]
    assert links_in("[a](<other note.md#h>), [b](https://x.org/README.md), [c](<ftp://y/z.md>)") == [
        TextLink("other note", "a")
    ]
    assert links_in("![[Ana]] and [[Projects/Atlas#Plan|the plan]]") == [
        TextLink("Ana", ""),
        TextLink("Atlas", "the plan", "Projects"),
    ]


def test_the_longest_name_counts_and_each_counts_once():
    names = {"new york", "new york city", "york", "city"}
    lengths = {"new": (3, 2), "york": (1,), "city": (1,)}
    words = words_of("New York City, the city of York. New York City!")
    assert mentions_in(words, names, lengths) == ["new york city", "city", "york"]


@given(st.text(max_size=80), st.text(max_size=80))
def test_words_are_the_same_whatever_case_and_accents(one, two):
    text = f"{one} {two}"
    assert words_of(text) == words_of(fold(text))
    assert words_of(text) == [*words_of(one), *words_of(two)]
