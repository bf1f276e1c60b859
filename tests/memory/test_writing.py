"""Duplicates on writing, and the administration of namespaces."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem import HybridMemory, Memory
from hybridmem.errors import ConfigError

embedded = []


def embed(texts):
    embedded.extend(texts)
    return [[float(len(text)), 1.0] for text in texts]


@pytest.fixture(params=["sqlite", "markdown"])
def memory(request, tmp_path):
    embedded.clear()
    path = tmp_path / "m.db" if request.param == "sqlite" else f"{tmp_path}/notes/"
    with HybridMemory(path, embedder=embed) as one:
        yield one


def test_duplicates_are_kept_unless_asked(memory):
    first, second = memory.add("A cat"), memory.add("A cat")
    assert first != second
    assert len(memory) == 2


def test_a_skipped_duplicate_gives_the_stored_id_and_costs_no_embedding(memory):
    first = memory.add("A  cat", thread="t")
    assert memory.add(" a CAT\n", thread="t", on_duplicate="skip") == first
    assert memory.add("a cat", thread="other", on_duplicate="skip") != first
    assert memory.add("a cat", on_duplicate="skip") != first
    assert memory.namespace("ana").add("A  cat", thread="t", on_duplicate="skip") != first
    assert embedded == ["A  cat", "a cat"]  # once more from the cache
    assert len(memory) == 3


def test_a_merged_duplicate_unites_tags_and_metadata_and_reinforces(memory):
    kept = Memory("a cat", id="a", tags=("x", "y"), entities=("Ana",), strength=0.5, metadata={"n": 1, "old": True})
    memory.add(kept)
    again = {"text": "A CAT", "tags": ["y", "z"], "entities": ["Bob"], "metadata": {"n": 2}}
    assert memory.add(again, on_duplicate="merge") == "a"
    merged = memory.get("a")
    assert (merged.text, merged.tags, merged.entities) == ("a cat", ("x", "y", "z"), ("Ana", "Bob"))
    assert merged.metadata == {"n": 2, "old": True}
    assert merged.strength == pytest.approx(0.5 + 0.1)
    assert len(memory.search_arm("vector", "a cat")) == 1  # its vector stays
    memory.add("a cat", on_duplicate="merge")
    for _ in range(9):
        memory.add("a cat", on_duplicate="merge")
    assert memory.get("a").strength == 1.0
    assert len(memory) == 1


@pytest.mark.parametrize("mode", ["skip", "merge"])
def test_duplicates_inside_one_batch(memory, mode):
    memory.add("one", id="a")
    found = memory.add_many(["two", "ONE", "two", {"text": "Two", "tags": ["t"]}, "three"], on_duplicate=mode)
    assert found[1] == "a"
    assert found[0] == found[2] == found[3] != found[4]
    assert len(memory) == 3
    assert memory.get(found[0]).tags == (("t",) if mode == "merge" else ())


def test_forgotten_superseded_and_expired_memories_are_no_duplicates(memory):
    memory.add("gone", id="a")
    memory.forget("a")
    memory.add("old", id="b")
    memory.add("new", id="c", supersedes="b")
    assert memory.add("gone", on_duplicate="skip") != "a"
    assert memory.add("old", on_duplicate="skip") != "b"


def test_writers_at_once_store_a_text_once(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(memory.add("the same", on_duplicate="skip"))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1
        assert len(memory) == 1


def test_unknown_ways_are_refused(memory):
    with pytest.raises(ConfigError, match="on_duplicate = 'drop' is not allowed: 'keep', 'skip', 'merge'"):
        memory.add("x", on_duplicate="drop")


def test_namespaces_clear_and_erase(memory):
    ana, bob = memory.namespace("ana"), memory.namespace("bob")
    ana.add_many([{"text": "a cat", "id": "a"}, {"text": "a dog", "id": "b", "thread": "t"}])
    ana.add("a bird", id="c", supersedes="a")
    ana.link("b", "c")
    bob.add("secret", id="a")
    assert memory.namespaces() == ["ana", "bob"]
    stats = ana.stats()
    assert (stats.memories, stats.superseded, stats.threads, stats.links, stats.sources) == (2, 1, 1, 1, 0)
    assert stats.to_dict()["arms"] == ["bm25", "vector"]
    assert "memories   2" in str(stats)
    assert memory.clear("ana") == 3
    assert (ana.search("dog"), len(ana), len(bob)) == ([], 0, 1)
    assert len(ana.history("a")) >= 2
    assert memory.erase(namespace="ana") == 3
    assert ana.history("a") == ana.history("b") == []
    assert memory.namespaces() == ["bob"]
    assert bob.clear() == 1
    assert bob.erase("a") == 1
    assert memory.erase(namespace="nobody") == 0


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["skip", "merge", "keep"]),
        st.sampled_from(["cat", "Cat ", "dog"]),
        st.sampled_from([None, "t"]),
    ),
    max_size=10,
)


@settings(max_examples=40)
@given(writes=WRITES)
def test_any_sequence_of_writes_stores_what_a_model_stores(writes):
    with HybridMemory(embedder=None) as memory:
        model = {}
        for mode, text, thread in writes:
            key = (text.strip().lower(), thread)
            id_ = memory.add(text, thread=thread, on_duplicate=mode)
            if mode == "keep" or key not in model:
                model.setdefault(key, []).append(id_)
            else:
                assert id_ in model[key]
        assert sorted(m.id for m in memory.list()) == sorted(id_ for ids in model.values() for id_ in ids)
