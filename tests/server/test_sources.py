"""Sources of the inspector: example questions, matching words, details of a memory on SQLite and Markdown stores."""

from datetime import datetime, timezone

import pytest

from hybridmem import HybridMemory, Memory
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation
from hybridmem.server.sources import MemorySource, Query, example_questions, matching_words, source_of

NOTHING = Explanation("")
NOON = datetime(2025, 5, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(params=["sqlite", "markdown"])
def memory(request, tmp_path):
    path = ":memory:" if request.param == "sqlite" else tmp_path / "notes"
    if request.param == "markdown":
        path.mkdir()
    with HybridMemory(path, embedder=None) as opened:
        yield opened


def query(memory, text="cat", **settings):
    return Query(text, memory.recipe, 3, **settings)


def test_a_thread_is_shown_in_time_order_then_in_the_order_of_writing(memory):
    keys = ["z", "y", "x", "w", "v", "u", "t", "s"]
    memory.add_many(Memory(f"cat {key}", id=key, thread="talk", created_at=NOON) for key in keys)
    memory.add("first cat", id="early", thread="talk", created_at=NOON.replace(hour=1))
    memory.add("another cat", id="other", thread="elsewhere")
    source = source_of(memory, None)
    shown = source.details("w", query(memory), NOTHING)["thread"]
    assert [one["id"] for one in shown] == ["z", "y", "x", "w", "v", "u", "t"]  # three before, three after
    assert [one["id"] for one in shown if one["here"]] == ["w"]
    assert [one["id"] for one in source.details("z", query(memory), NOTHING)["thread"]] == ["early", "z", "y", "x", "w"]
    memory.add("no thread", id="alone")
    assert source.details("alone", query(memory), NOTHING)["thread"] == []


def test_details_have_the_fields_that_are_set_and_every_version(memory):
    memory.add("the cat", id="a", tags=("home", "pets"), metadata={"page": 3}, created_at=NOON)
    memory.update("a", text="the black cat")
    details = source_of(memory, None).details("a", query(memory), NOTHING)
    assert details["fields"]["tags"] == "home, pets"
    assert details["fields"]["created_at"] == "2025-05-01 12:00+00:00"
    assert details["fields"]["metadata"]["page"] == 3
    assert details["fields"]["status"] == "active"
    assert not {"title", "strength", "access_count"} & set(details["fields"])  # as by default
    assert [version["text"] for version in details["history"]] == ["the cat", "the black cat"]
    memory.forget("a")
    details = source_of(memory, None).details("a", query(memory), NOTHING)
    assert details == {"text": "", "fields": {}, "history": [], "thread": []}


def test_texts_of_everything_that_is_listed_are_known(memory):
    memory.add_many(Memory(f"cat number {n}", id=f"m{n}") for n in range(12))
    source, asked = source_of(memory, None), query(memory)
    explained = source.explain(asked)
    texts = source.texts(explained, asked)
    assert len(explained.receipts) == 3
    assert set(texts) == {f"m{n}" for n in range(12)}
    assert source.ranking(asked) == [receipt.key for receipt in explained.receipts]


def test_only_allowed_namespaces_are_opened(memory):
    memory.namespace("ana").add("her cat", id="hers")
    source = source_of(memory, ["ana", "ana"])
    assert isinstance(source, MemorySource)
    assert source.namespaces == ("", "ana")
    assert source.ranking(query(memory, namespace="ana")) == ["hers"]
    with pytest.raises(ConfigError, match="'ben' is not one of those"):
        source.ranking(query(memory, namespace="ben"))


def test_example_questions_come_from_questions_then_titles_then_first_words():
    talk = [Memory(f"Ana: Where is number {n} of the cats?") for n in range(50)]
    asked = example_questions(talk)
    assert len(asked) == 5
    assert asked[0] == "Where is number 0 of the cats?"
    assert asked[-1] == "Where is number 40 of the cats?"  # from everywhere in the store
    assert example_questions([Memory("Really? Yes.")]) == ["Really? Yes."]  # too short to be a question
    assert example_questions([Memory("text", title="The title")]) == ["The title"]
    assert example_questions([Memory("one two three four five six seven")]) == ["one two three four five six"]
    assert example_questions([]) == []


def test_matching_words_follow_the_analyzer():
    texts = ["The diagnosis was late", "POST /v2/exports", "Müller", "the of"]
    assert matching_words("diagnoses by Muller for exports", texts) == ["diagnosis", "exports", "müller"]
    assert matching_words("the", ["the cat"]) == ["the"]  # a query of stop words alone searches for them
    assert matching_words("", texts) == []
