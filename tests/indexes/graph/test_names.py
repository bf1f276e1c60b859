"""The live index of names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem import Memory
from hybridmem.indexes.graph.names import Mention, Names, name_key, names_of, shared_names, spotted_names


def filled(**memories):
    names = Names()
    for id_, memory in memories.items():
        names.put(id_, memory)
    return names


def test_a_title_an_alias_and_a_label_are_names():
    names = filled(
        wood=Memory("", title="Ed Wood (film)", metadata={"aliases": ["Edward D. Wood", 7]}),
        note=Memory("I loved [[Ed Wood|that biopic]]."),
    )
    assert names_of("A", {"aliases": "B"}) == ("a", "b")
    assert names.mentions("x", "He saw ed wood.") == [Mention("wood", "ed wood", 1)]
    assert names.mentions("x", "Edward D. Wood made films.") == [Mention("wood", "edward d wood", 1)]
    assert names.mentions("x", "That biopic again") == [Mention("wood", "that biopic", 1)]
    assert names.mentions("wood", "Ed Wood") == []


def test_a_link_reaches_a_short_name_that_a_mention_does_not():
    names = filled(it=Memory("", title="It"))
    assert names.mentions("x", "It was it.") == []
    assert names.mentions("x", "See [[It]].") == [Mention("it", "it", 1)]


@pytest.mark.parametrize(
    ("source", "link", "targets"),
    [
        ("note", "[[Work/Index]]", ["Work/Index"]),
        ("note", "[the list](people/Index.md#top)", ["People/Index"]),
        ("Work/plan", "[[Index]]", ["Work/Index"]),  # the one in its own folder
        ("Work/plan", "[home](../Index.md)", ["Index"]),
        ("Work/old/plan", "[[../../People/Index|them]]", ["People/Index"]),
        ("Work/plan", "[[/People/Index]] [[Index]]", ["People/Index", "Work/Index"]),
        ("note", "[[Elsewhere/Index]]", ["Index", "People/Index", "Work/Index"]),
    ],
)
def test_of_notes_with_one_name_a_link_means_the_one_in_its_folder(source, link, targets):
    notes = {id_: Memory("", title="Index") for id_ in ("Index", "People/Index", "Work/Index")}
    names = filled(**notes, **{source: Memory(f"See {link}.")})
    shared = 3 if len(targets) == 3 else 1
    assert names.mentions(source, f"See {link}.") == [Mention(id_, "index", shared) for id_ in targets]
    assert len(names.mentions(source, "The index.")) == 3


def test_names_are_live_in_both_directions_of_time():
    names = filled(a=Memory("Ed Wood was shown."))
    assert names.mentions("a", "Ed Wood was shown.") == []
    names.put("b", Memory("", title="Ed Wood"))
    names.put("c", Memory("", title="Ed Wood"))
    assert names.mentions("a", "Ed Wood was shown.") == [Mention("b", "ed wood", 2), Mention("c", "ed wood", 2)]
    names.put("b", Memory("", title="Another"))
    names.remove("c")
    assert names.mentions("a", "Ed Wood was shown.") == []


def test_a_text_that_was_read_is_not_needed_again():
    names = filled(x=Memory("", title="Tim Burton"))
    text = "Ed Wood by Tim Burton, with Martin Landau"
    assert not names.has_read("m")
    assert names.mentions("m", text) == [Mention("x", "tim burton", 1)] == names.mentions("m")
    assert names.has_read("m")
    assert names.spotted("m") == ["ed wood", "tim burton", "martin landau"]
    for n in range(200):  # more names come than are kept in the log of changes
        names.put(f"n{n}", Memory("", title=f"Other{n}"))
    names.put("y", Memory("", title="Ed Wood"))
    assert names.mentions("m") == [Mention("y", "ed wood", 1), Mention("x", "tim burton", 1)]
    names.remove("y")
    assert names.mentions("m") == [Mention("x", "tim burton", 1)]
    names.remove("m")  # its text changes
    assert not names.has_read("m")


def test_html_in_a_title_or_a_text_is_read():
    assert name_key("Eddie &quot;The Eagle&quot; Edwards") == "eddie the eagle edwards"
    names = filled(a=Memory("", title="Smith &amp; Wesson"))
    assert names.mentions("x", "A Smith & Wesson.") == names.mentions("y", "A Smith &amp; Wesson.") != []


def test_names_are_spotted_in_scripts_with_capital_letters():
    assert spotted_names("Встреча: Лев Толстой и Чехов") == ["встреча", "лев толстои", "чехов"]
    assert spotted_names("Ágnes Heller's book on É") == ["agnes heller"]  # one letter is no name
    assert spotted_names("no names here, AND none HERE") == []


def test_names_that_are_shared_are_in_several_texts_and_not_in_the_query():
    texts = [("a", ["ana silva", "lisbon"]), ("b", ["ana silva", "lisbon", "oslo"]), ("c", ["oslo"])]
    assert shared_names("Where is Lisbon?", texts) == {"ana silva": ["a", "b"], "oslo": ["b", "c"]}


TITLES = st.sampled_from(["", "Ed Wood", "Wood", "Tim Burton", "Tim Burton films", "Café Müller"])
TEXTS = st.sampled_from(["", "see [[Wood|the forest]]", "[x](Tim%20Burton.md)"])


@given(st.lists(st.tuples(st.sampled_from("abcd"), TITLES, TEXTS, st.booleans()), max_size=12))
def test_any_history_gives_what_a_fresh_index_gives(steps):
    names, now = Names(), {}
    for id_, title, text, gone in steps:
        if gone:
            names.remove(id_)
            now.pop(id_, None)
        else:
            names.put(id_, Memory(text, title=title))
            names.mentions(id_, "Ed Wood by Tim Burton")
            now[id_] = Memory(text, title=title)
    fresh = filled(**dict(sorted(now.items())))
    for text in ("Ed Wood by Tim Burton", "Tim Burton films in the forest", "cafe muller [[Wood]]"):
        assert names.mentions("x", text) == fresh.mentions("x", text)
    for id_ in filter(names.has_read, now):
        assert names.mentions(id_) == fresh.mentions(id_, "Ed Wood by Tim Burton")
    assert len(names) == len(fresh)
