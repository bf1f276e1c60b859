"""The live index of names."""

from hypothesis import given
from hypothesis import strategies as st

from hybridmem import Memory
from hybridmem.indexes.graph.names import Mention, Names, names_of


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


def test_names_are_live_in_both_directions_of_time():
    names = filled(a=Memory("Ed Wood was shown."))
    assert names.mentions("a", "Ed Wood was shown.") == []
    names.put("b", Memory("", title="Ed Wood"))
    names.put("c", Memory("", title="Ed Wood"))
    assert names.mentions("a", "Ed Wood was shown.") == [Mention("b", "ed wood", 2), Mention("c", "ed wood", 2)]
    names.put("b", Memory("", title="Another"))
    names.remove("c")
    assert names.mentions("a", "Ed Wood was shown.") == []


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
            now[id_] = Memory(text, title=title)
    fresh = filled(**dict(sorted(now.items())))
    for text in ("Ed Wood by Tim Burton", "Tim Burton films in the forest", "cafe muller [[Wood]]"):
        assert sorted(names.mentions("x", text)) == sorted(fresh.mentions("x", text))
    assert len(names) == len(fresh)
