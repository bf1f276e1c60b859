"""LangChain's BM25Retriever, ours: the old parameters work, and documents come, go, are filtered and stay in a file."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
import sqlite3
import warnings
from contextlib import closing
from datetime import date, datetime, timezone

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.engines.fts5 import FTS5Index
from hybridmem.indexes.engines.rank_bm25 import RankBM25Index
from hybridmem.memory.memory import HybridMemory
from hybridmem.text.analyzer import Analyzer
from langchain_hybridmem.bm25 import BM25Retriever

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_community.retrievers import BM25Retriever as OldRetriever

TEXTS = ["Ana moved to Lisbon", "Bo drinks green tea", "Ana drinks coffee in Lisbon", "The invoice E0427 is due"]


def documents():
    return [Document(text, id=f"d{n}", metadata={"n": n, "lang": "en"}) for n, text in enumerate(TEXTS)]


def texts(found):
    return [document.page_content for document in found]


def ids(found):
    return [document.id for document in found]


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return BM25Retriever

    @property
    def retriever_constructor_params(self):
        return {"documents": [Document(f"Ana said {n}", id=str(n)) for n in range(9)]}

    @property
    def retriever_query_example(self):
        return "What did Ana do?"


class TestStandardOverAMemory(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return BM25Retriever

    @property
    def retriever_constructor_params(self):
        memory = HybridMemory(embedder=None)
        memory.add_many({"id": str(n), "text": f"Ana said {n}"} for n in range(9))
        return {"memory": memory}

    @property
    def retriever_query_example(self):
        return "What did Ana do?"


class TestStandardOverFTS5(TestStandard):
    @property
    def retriever_constructor_params(self):
        return {**super().retriever_constructor_params, "engine": "fts5"}


class TestStandardOverRankBM25(TestStandard):
    @property
    def retriever_constructor_params(self):
        return {**super().retriever_constructor_params, "engine": "rank-bm25"}


# --- asking


def test_finds_by_words_and_returns_nothing_when_nothing_matches():
    retriever = BM25Retriever.from_texts(TEXTS, metadatas=[{"n": n} for n in range(4)], ids=list("abcd"), k=2)
    assert ids(retriever.invoke("Who moved to Lisbon?")) == ["a", "c"]
    assert retriever.invoke("Who moved to Lisbon?")[0].metadata == {"n": 0}
    assert retriever.invoke("zebra") == []
    assert retriever.invoke("") == []
    assert texts(retriever.invoke("e0427")) == [TEXTS[3]]
    assert retriever.docs[1].page_content == TEXTS[1]


def test_an_empty_corpus_is_legal():
    retriever = BM25Retriever.from_documents([])
    assert retriever.invoke("anything") == []
    assert BM25Retriever.from_texts([]).docs == []
    assert BM25Retriever().invoke("anything") == []


def test_k_filter_and_scores_at_call_time():
    retriever = BM25Retriever.from_documents(documents(), k=1, filter={"n": {"$lte": 2}})
    assert ids(retriever.invoke("lisbon")) == ["d0"]
    assert ids(retriever.invoke("lisbon", k=3)) == ["d0", "d2"]
    assert ids(retriever.invoke("lisbon", k=3, filter={"n": 2})) == ["d2"]
    assert ids(retriever.invoke("lisbon", k=3, filter=lambda document: document.metadata["n"] == 0)) == ["d0"]
    assert retriever.invoke("invoice") == []
    assert ids(retriever.invoke("invoice", filter={"lang": "en"})) == ["d3"]
    plain = retriever.invoke("lisbon")[0]
    scored = retriever.invoke("lisbon", with_scores=True)[0]
    assert plain.metadata == {"n": 0, "lang": "en"}
    assert set(scored.metadata) == {"n", "lang", "score"}
    index = BM25Index()
    index.add_many((str(n), text) for n, text in enumerate(TEXTS))
    assert scored.metadata["score"] == index.search("lisbon", k=1).scores[0]
    assert type(scored.metadata["score"]) is float
    assert retriever.docs[0].metadata == {"n": 0, "lang": "en"}
    retriever.k = 3
    assert len(retriever.invoke("lisbon")) == 2


def test_a_narrow_filter_still_fills_k():
    many = [Document("lisbon " * (1 + n % 7), id=str(n), metadata={"n": n}) for n in range(400)]
    retriever = BM25Retriever.from_documents(many)
    wanted = {"n": {"$in": [5, 111, 333, 399]}}
    everything = [
        document for document in retriever.invoke("lisbon", k=400) if document.metadata["n"] in wanted["n"]["$in"]
    ]
    assert len(everything) == 4
    assert retriever.invoke("lisbon", k=4, filter=wanted) == everything
    assert retriever.invoke("lisbon", k=2, filter=wanted) == everything[:2]
    assert retriever.invoke("lisbon", filter={"n": -1}) == []


def test_async_gives_the_same():
    async def ask(retriever):
        alone = await retriever.ainvoke("who drinks tea in lisbon", k=3, with_scores=True)
        several = await asyncio.gather(*(retriever.ainvoke("lisbon", filter={"n": n}) for n in range(3)))
        added = await retriever.aadd_documents([Document("Lisbon again", id="new")])
        gone = await retriever.adelete(["d0"])
        return alone, several, added, gone, await retriever.ainvoke("lisbon")

    for engine in ("hybridmem", "fts5"):
        retriever = BM25Retriever.from_documents(documents(), engine=engine)
        wanted = retriever.invoke("who drinks tea in lisbon", k=3, with_scores=True)
        alone, several, added, gone, after = asyncio.run(ask(retriever))
        assert alone == wanted
        assert [ids(found) for found in several] == [["d0"], [], ["d2"]]
        assert (added, gone) == (["new"], True)
        assert set(ids(after)) == {"new", "d2"}


def test_it_is_a_runnable():
    chain = BM25Retriever.from_documents(documents(), k=1) | RunnableLambda(texts)
    assert chain.invoke("green tea") == [TEXTS[1]]
    assert chain.batch(["green tea", "invoice"]) == [[TEXTS[1]], [TEXTS[3]]]


# --- changing


def test_documents_come_and_go():
    retriever = BM25Retriever.from_texts(["Ana moved to Lisbon"])
    [key] = retriever.add_documents([Document("Bo moved to Porto")])
    assert texts(retriever.invoke("porto")) == ["Bo moved to Porto"]
    assert retriever.add_documents([Document("Cy moved to Rome", id="cy")]) == ["cy"]
    retriever.add_documents([Document("Cy moved to Oslo", id="cy")])
    assert retriever.invoke("rome") == []
    assert ids(retriever.invoke("oslo")) == ["cy"]
    assert retriever.delete([key, "unknown"])
    assert not retriever.delete([key])
    assert retriever.invoke("porto") == []
    assert len(retriever.docs) == 2


def test_metadata_can_be_searched_too():
    document = Document("a report", id="r", metadata={"headline": "Lisbon", "topics": ["sun", "sea"]})
    retriever = BM25Retriever.from_documents([document], fields={"title": "headline", "tags": "topics"})
    assert ids(retriever.invoke("lisbon")) == ids(retriever.invoke("sea")) == ["r"]
    assert BM25Retriever.from_documents([document]).invoke("lisbon") == []


# --- the old parameters


def test_changing_the_import_is_enough():
    settings = {"metadatas": [{"n": n} for n in range(4)], "ids": list("abcd"), "bm25_params": {"k1": 1.5, "b": 0.6}}
    retriever = BM25Retriever.from_texts(TEXTS, preprocess_func=lambda text: text.lower().split(), k=2, **settings)
    index = retriever._corpus().index
    assert isinstance(index, BM25Index)
    assert (index.k1, index.b) == (1.5, 0.6)
    assert ids(retriever.invoke("MOVED")) == ["a"]
    assert ids(BM25Retriever.from_documents(documents(), k1=2.0, b=0.1).invoke("moved")) == ["d0"]


@pytest.mark.parametrize("seed", range(4))
def test_rank_bm25_reproduces_the_old_ranking(seed):
    rng = random.Random(seed)
    corpus = [
        " ".join(
            rng.choices(["Ana", "Bo", "tea", "Lisbon", "moved", "the", "a", "of", "E0427", "猫"], k=rng.randint(1, 7))
        )
        for _ in range(40)
    ]
    settings = {"bm25_params": {"k1": 1.1, "epsilon": 0.3}} if seed % 2 else {}
    old = OldRetriever.from_texts(corpus, k=6, **settings)
    new = BM25Retriever.from_texts(corpus, k=6, engine="rank-bm25", **settings)
    for query in ("Ana moved", "the a of", "tea Lisbon E0427", "zebra", "猫"):
        assert texts(new.invoke(query)) == texts(old.invoke(query))
    assert isinstance(new._corpus().index, RankBM25Index)


def test_settings_that_only_rank_bm25_has_choose_it():
    for settings in (
        {"bm25_variant": "plus"},
        {"bm25_variant": "okapi"},
        {"bm25_params": {"delta": 1.0}, "bm25_variant": "l"},
    ):
        index = BM25Retriever.from_texts(TEXTS, **settings)._corpus().index
        assert isinstance(index, RankBM25Index)
        assert index.variant == settings["bm25_variant"]
    assert (
        BM25Retriever.from_texts(TEXTS, bm25_variant="plus", language="english")._corpus().index.analyzer == Analyzer()
    )
    assert isinstance(BM25Retriever.from_texts(TEXTS, engine="fts5")._corpus().index, FTS5Index)


def test_language():
    retriever = BM25Retriever.from_texts(["Die Häuser am See"], language="german")
    assert len(retriever.invoke("Welches Haus?")) == 1
    assert BM25Retriever.from_texts(["walked"], language="none").invoke("walks") == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k": 0}, "k = 0"),
        ({"engine": "lucene"}, "lucene.*fts5"),
        ({"engine": "hybridmem", "bm25_variant": "plus"}, "bm25_variant='plus'.*rank-bm25"),
        ({"engine": "hybridmem", "bm25_params": {"epsilon": 0.1}}, "epsilon"),
        ({"engine": "fts5", "k1": 1.5}, "k1.*fts5"),
        ({"bm25_variant": "bm42"}, "bm42"),
        ({"fields": {"subject": "x"}}, "subject.*title, tags, predicate"),
        ({"filter": {"n": {"$near": 3}}}, r"\$near"),
        ({"as_of": 5}, "only a memory"),
        ({"memory": object(), "k1": 1.0}, "k1 does not go with a memory"),
        ({"memory": object(), "persist_path": "x"}, "persist_path does not go with a memory"),
    ],
)
def test_bad_settings_name_the_value(settings, said):
    with pytest.raises(ConfigError, match=said):
        BM25Retriever(**settings).invoke("x")


def test_bad_calls_name_the_value():
    retriever = BM25Retriever.from_documents(documents())
    for said in ({"limit": 3}, {"k": 0}, {"as_of": 5}, {"namespace": "ana"}):
        with pytest.raises(ConfigError):
            retriever.invoke("x", **said)
        with pytest.raises(ConfigError):
            asyncio.run(retriever.ainvoke("x", **said))
    with pytest.raises(ConfigError, match="2 texts, 1 metadatas"):
        BM25Retriever.from_texts(["a", "b"], metadatas=[{}])


# --- in a file


@pytest.mark.parametrize("engine", ["hybridmem", "fts5", "rank-bm25"])
def test_documents_stay_in_a_file(tmp_path, engine):
    path = tmp_path / "words.bm25"
    metadata = {"at": datetime(2024, 5, 1, tzinfo=timezone.utc), "day": date(2024, 5, 1), "deep": {"list": [1, None]}}
    retriever = BM25Retriever.from_documents(documents(), engine=engine, persist_path=path)
    retriever.add_documents([Document("Cy moved to Porto", metadata=metadata)])
    retriever.add_documents([Document("Ana moved to Oslo", id="d0")])
    retriever.delete(["d2"])
    again = BM25Retriever(engine=engine, persist_path=path)
    for query in ("porto", "oslo", "Ana drinks", "moved to"):
        assert again.invoke(query, with_scores=True) == retriever.invoke(query, with_scores=True)
    assert again.invoke("Porto", k=1)[0].metadata == metadata
    again.add_documents([Document("Di moved to Rome")])
    assert "Di moved to Rome" in texts(BM25Retriever(engine=engine, persist_path=str(path)).invoke("Rome"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["words.bm25"]


def test_naming_the_first_documents_at_every_start_adds_them_once(tmp_path):
    path = tmp_path / "words.bm25"
    first = [Document("tea"), Document("tea"), Document("coffee", id="c")]
    for _ in range(3):
        retriever = BM25Retriever.from_documents(first, persist_path=path)
        assert texts(retriever.docs)[:3] == ["tea", "tea", "coffee"]
    retriever.add_documents([Document("milk")])
    retriever = BM25Retriever.from_documents([*first[:2], Document("cocoa", id="c")], persist_path=path)
    assert texts(retriever.docs) == ["tea", "tea", "milk", "cocoa"]  # a replaced document comes last


def test_the_index_is_saved_again_after_many_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridmem.retrievers.lexical_file._SNAPSHOT_EVERY", 5)
    path = tmp_path / "words.bm25"
    retriever = BM25Retriever(persist_path=path)
    for n in range(40):
        retriever.add_documents([Document(f"tea number {n}", id=str(n))])
        if n % 3 == 0:
            retriever.delete([str(n)])
    again = BM25Retriever(persist_path=path)
    assert ids(again.docs) == [str(n) for n in range(40) if n % 3]
    assert again.invoke("tea number 7", k=50, with_scores=True) == retriever.invoke(
        "tea number 7", k=50, with_scores=True
    )


def test_other_settings_read_the_same_documents(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hybridmem.retrievers.lexical_file._SNAPSHOT_EVERY", 0)
    path = tmp_path / "words.bm25"
    BM25Retriever.from_texts(["Ana walked", "walks"], persist_path=path)
    curved = BM25Retriever(persist_path=path, k1=2.0, b=0.1)
    assert (curved._corpus().index.k1, curved._corpus().index.b) == (2.0, 0.1)
    assert not caplog.records
    bare = BM25Retriever(persist_path=path, language="none")
    assert texts(bare.invoke("walks")) == ["walks"]
    assert "rebuilt from the items" in caplog.text


def test_a_crash_in_mid_write_loses_only_what_was_not_acknowledged(tmp_path):
    path = tmp_path / "words.bm25"
    retriever = BM25Retriever.from_texts(["one"], persist_path=path)
    before = path.stat().st_size
    retriever.add_documents([Document("two", id="2")])
    whole = path.read_bytes()
    for size in range(before, len(whole)):
        path.write_bytes(whole[:size])
        again = BM25Retriever(persist_path=path)
        assert texts(again.docs) == ["one"]
        again.add_documents([Document("three", id="3")])
        assert texts(BM25Retriever(persist_path=path).docs) == ["one", "three"]


def test_damage_is_reported(tmp_path):
    path = tmp_path / "words.bm25"
    retriever = BM25Retriever.from_texts(["one", "two"], persist_path=path)
    retriever.add_documents([Document("three", id="3")])
    retriever.add_documents([Document("four", id="4")])
    whole = path.read_bytes()
    for place in (3, whole.index(b"three") + 1):
        bad = bytearray(whole)
        bad[place] ^= 4
        path.write_bytes(bytes(bad))
        with pytest.raises(CorruptStoreError, match=r"words\.bm25"):
            BM25Retriever(persist_path=path)
    path.write_bytes(b"")
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(CorruptStoreError, match="not a file of a BM25Retriever"):
        BM25Retriever(persist_path=path)


def test_a_damaged_index_is_built_again_from_the_documents(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("hybridmem.retrievers.lexical_file._SNAPSHOT_EVERY", 0)
    path = tmp_path / "words.bm25"
    BM25Retriever.from_texts(["one", "two"], persist_path=path)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE info SET value = x'00' WHERE name = 'index'")
    assert texts(BM25Retriever(persist_path=path).invoke("two")) == ["two"]
    assert "rebuilt from the items" in caplog.text


def test_what_cannot_be_written_is_refused_before_anything_changes(tmp_path):
    retriever = BM25Retriever.from_texts(["one"], persist_path=tmp_path / "words.bm25")
    with pytest.raises(ConfigError, match="object"):
        retriever.add_documents([Document("two", metadata={"x": object()})])
    assert retriever.invoke("two") == []
    assert texts(BM25Retriever(persist_path=tmp_path / "words.bm25").docs) == ["one"]


# --- over a memory


def test_over_a_memory():
    memory = HybridMemory(embedder=None)
    memory.add_many({"id": f"m{n}", "text": text, "type": "fact" if n % 2 else "event"} for n, text in enumerate(TEXTS))
    memory.namespace("bo").add("Bo moved to Lisbon", id="b")
    retriever = BM25Retriever.from_memory(memory, k=2)
    wanted = memory.search_arm("bm25", "lisbon", k=2)
    assert ids(retriever.invoke("lisbon")) == [result.id for result in wanted] == ["m0", "m2"]
    assert [d.metadata["score"] for d in retriever.invoke("lisbon", with_scores=True)] == [r.score for r in wanted]
    assert ids(asyncio.run(retriever.ainvoke("lisbon"))) == ["m0", "m2"]
    assert ids(retriever.invoke("lisbon", namespace="bo")) == ["b"]
    assert ids(retriever.invoke("drinks", filter={"type": "fact"})) == ["m1"]
    assert retriever.invoke("lisbon", as_of="2001-01-01") == []
    memory.forget("m0")
    assert ids(retriever.invoke("lisbon")) == ["m2"]
    for change in (lambda: retriever.docs, lambda: retriever.add_documents([]), lambda: retriever.delete(["m2"])):
        with pytest.raises(ConfigError, match="memory"):
            change()
    memory.close()


@pytest.mark.parametrize("engine", ["hybridmem", "fts5", "rank-bm25"])
def test_copies_and_pickles_find_the_same_and_go_their_own_way(engine, tmp_path):
    retriever = BM25Retriever.from_documents(documents(), engine=engine, with_scores=True)
    retriever.delete(["d1"])
    for again in (copy.deepcopy(retriever), pickle.loads(pickle.dumps(retriever))):
        assert again.invoke("Ana in Lisbon") == retriever.invoke("Ana in Lisbon")
        again.add_documents([Document("Ana, again", id="new")])
        assert len(again.docs) == len(retriever.docs) + 1
    kept = BM25Retriever.from_texts(TEXTS, persist_path=tmp_path / "words.bm25")
    assert texts(pickle.loads(pickle.dumps(kept)).docs) == TEXTS  # the file is opened again


def test_what_is_configured_at_the_call_leaves_the_documents_there(tmp_path):
    retriever = BM25Retriever.from_documents(documents(), persist_path=tmp_path / "words.bm25")
    flexible = retriever.configurable_fields(k=ConfigurableField(id="k"), fields=ConfigurableField(id="fields"))
    asked = {"configurable": {"k": 1}}
    assert texts(flexible.invoke("Ana in Lisbon", asked)) == texts(retriever.invoke("Ana in Lisbon", k=1))
    retriever.add_documents([Document("Lisbon, Lisbon", id="new")])
    assert ids(flexible.invoke("Lisbon", asked)) == ["new"]
    assert ids(asyncio.run(flexible.ainvoke("Lisbon", asked))) == ["new"]
    with_titles = {"configurable": {"fields": {"title": "lang"}}}
    assert retriever.invoke("en") == []
    assert len(flexible.invoke("en", with_titles)) == 4  # words of another kind: made anew
    assert retriever.invoke("en") == []
