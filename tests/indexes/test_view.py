"""Opening: what is read from snapshots is what following the log from its start would have built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem import Fusion, GraphSettings, HybridMemory, Memory
from hybridmem.core.protocols import View
from hybridmem.errors import EmbeddingError
from hybridmem.indexes.view import IndexSettings, LocalView

WORDS = ["cat", "dog", "lisbon", "porto", "sofa", "blue"]


def toy(texts):
    return [[float(text.count(word)) for word in WORDS] + [0.1] for text in texts]


def answers(memory, **how):
    """Everything a memory says about every word, on every arm."""
    arms = [(arm, word) for arm in ("bm25", "vector", "graph") for word in WORDS]
    seen = {key: [(r.id, round(r.score, 5)) for r in memory.search_arm(*key, k=20, **how)] for key in arms}
    return seen | {word: [(r.id, round(r.score, 5)) for r in memory.search(word, k=20, **how)] for word in WORDS}


def rebuilt(path, clock):
    """The same file, every index built from the log."""
    memory = HybridMemory(path, embedder=toy, clock=clock)
    memory.store.save_snapshot("bm25", 0, b"")
    return memory


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcdef"), st.sampled_from(WORDS), st.sampled_from([None, "t", "u"])),
        st.tuples(st.just("forget"), st.sampled_from("abcdef"), st.just(""), st.none()),
        st.tuples(st.just("link"), st.sampled_from("abcdef"), st.sampled_from("abcdef"), st.none()),
        st.tuples(st.just("save"), st.just(""), st.just(""), st.none()),
    ),
    max_size=14,
)


@given(STEPS)
def test_opening_from_what_was_written_down_equals_following_the_log(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("space") / "m.db"
    clock = lambda: 1000.0
    with HybridMemory(path, embedder=toy, clock=clock) as memory:
        for verb, key, word, thread in steps:
            present = {m.id for m in memory.list()}
            if verb == "add":
                more = {"links": ["a"]} if word == "cat" else {}
                memory.add(f"{word} thing?", id=key, thread=thread, entities=[word], metadata=more)
            elif verb == "forget":
                memory.forget(key)
            elif verb == "link" and {key, word} <= present and key != word:
                memory.link(key, word, "contradicts")
            elif verb == "save":
                memory.search("cat")
                memory._engine.save()
        memory._engine._views.clear()  # as after a crash: nothing more is written down
    with HybridMemory(path, embedder=toy, clock=clock) as opened:
        got = answers(opened)
        pairs = opened._engine.search_view(View()).contradictions(list("abcdef"))
    with rebuilt(path, clock) as fresh:
        assert answers(fresh) == got
        assert fresh._engine.search_view(View()).contradictions(list("abcdef")) == pairs


@pytest.mark.parametrize("lost", ["entries", "bm25"])
def test_one_snapshot_without_the_other_loses_nothing(tmp_path, lost, caplog):
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        memory.add_many([Memory(f"{word} on the sofa?", id=word, thread="t") for word in WORDS])
        memory.forget("dog")
        before = answers(memory)
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        memory.store.save_snapshot(lost, 3, b"torn")
        assert answers(memory) == before
        assert f"the saved {lost} index cannot be read and will be rebuilt" in caplog.text
        assert memory._engine.search_view(View()).count() == len(WORDS) - 1


def test_a_few_changes_are_not_worth_writing_everything_down_again(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        memory.add_many([Memory(f"cat {n}", id=str(n)) for n in range(250)])
        memory.search("cat")
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        written = memory.store.load_snapshot("entries")[0]
        memory.add("one more cat", id="more")
        assert memory.search("more")[0].id == "more"
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        assert memory.store.load_snapshot("entries")[0] == written == 250
        assert memory.search("more")[0].id == "more"
        memory.add("and another", id="another")
        memory.search("another")
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        assert memory.store.load_snapshot("entries")[0] == 252
        assert memory.search("another")[0].id == "another"


def test_a_graph_that_reads_texts_is_built_from_them(tmp_path):
    settings = GraphSettings(entities="spot")
    rows = [
        Memory("We met Carla Moreira there", id="a"),
        Memory("Then Carla Moreira left", id="b"),
        Memory("rain", id="c"),
    ]
    with HybridMemory(tmp_path / "m.db", embedder=None, graph=settings) as memory:
        memory.add_many(rows)
        before = [r.id for r in memory.search_arm("graph", "left")]
        assert set(before) == {"a", "b"}
    with HybridMemory(tmp_path / "m.db", embedder=None, graph=settings) as memory:
        assert [r.id for r in memory.search_arm("graph", "left")] == before


def test_other_settings_build_the_text_index_again(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        memory.add_many(["the cat", "the cat and the dog and more of them"])
        old = memory.search_arm("bm25", "cat")[1].score
    with HybridMemory(tmp_path / "m.db", embedder=None, b=0.0) as memory:
        assert memory.search_arm("bm25", "cat")[1].score > old


def test_vectors_of_two_dimensions_are_reported(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        memory.add_many([Memory("the cat", id="a"), Memory("the dog", id="b")])
        memory.search("cat")
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        memory.store.set_vectors({"a": [1.0, 2.0]})
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory, pytest.raises(EmbeddingError, match=r"dimension"):
        memory.search("cat")


def test_vectors_that_others_stored_are_scaled(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        memory.add_many([Memory("the cat", id="a"), Memory("the dog", id="b")])
        memory.search("cat")
        memory.store.set_vectors({"a": [9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9]})
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        assert memory.search_arm("vector", "cat")[0].score == pytest.approx(1.0, abs=1e-6)


def test_a_space_answers_for_what_it_has(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        memory.add("the cat", id="a")
        space = LocalView(memory.store, View(), IndexSettings(graph=None, vectors=False))
        space.refresh()
        from hybridmem.core.protocols import ArmQuery

        assert space.search("vector", ArmQuery("cat"), k=3).ids == []
        assert space.score("vector", ArmQuery("cat"), ["a"]) == [None]
        assert space.coverage(ArmQuery("cat"), ["a", "zz"]) == [1.0, 0.0]
        assert space.graph() is None
        assert space.count() == 1
        assert space.contradictions(["a"]) == []
        assert memory.search("cat", recipe=Fusion())[0].id == "a"


def test_indexes_are_saved_also_when_the_last_change_was_an_erasure(tmp_path):
    """Else every opening would build them again until something is written."""
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        memory.add_many([{"text": f"cat {n}", "id": f"m{n}"} for n in range(5)])
        memory.erase("m4")
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        assert len(memory.search("cat")) == 4
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        assert memory.store.load_snapshot("entries")[0] == memory.store.last_seq()
        assert len(memory.search("cat")) == 4
        assert memory.check() == []
        memory.add("cat 5", id="m5")
        assert len(memory.search("cat")) == 5
