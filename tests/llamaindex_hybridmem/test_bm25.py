"""LlamaIndex's BM25Retriever, ours: from nodes, an index, a docstore, Chroma or a memory; live, filtered, kept."""

from __future__ import annotations

import asyncio
import re

import chromadb
import pytest
import Stemmer
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import IndexNode, MetadataMode, NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.vector_stores.chroma import ChromaVectorStore

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.engines.rank_bm25 import RankBM25Index
from hybridmem.memory.memory import HybridMemory
from hybridmem.text.analyzer import Analyzer
from llamaindex_hybridmem.bm25 import BM25Retriever
from tests.support.llama_fakes import Letters, Reciting, node

TEXTS = ["Ana moved to Lisbon", "Bo drinks green tea", "Ana drinks coffee in Lisbon", "The invoice E0427 is due"]


def nodes():
    return [
        node(f"n{n}", text=text, metadata={"n": n}, excluded_embed_metadata_keys=["n"]) for n, text in enumerate(TEXTS)
    ]


def ids(found):
    return [one.node.id_ for one in found]


def filters(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


# --- asking


def test_finds_by_words_with_raw_scores_and_never_pads():
    retriever = BM25Retriever.from_defaults(nodes=nodes(), similarity_top_k=3)
    found = retriever.retrieve("Who moved to Lisbon?")
    assert ids(found) == ["n0", "n2"]
    index = BM25Index()
    index.add_many((f"n{n}", text) for n, text in enumerate(TEXTS))
    assert [one.score for one in found] == index.search("Who moved to Lisbon?", k=3).scores
    assert retriever.retrieve("zebra") == retriever.retrieve("") == []
    assert ids(retriever.retrieve(QueryBundle("e0427"))) == ["n3"]
    assert isinstance(retriever, BaseRetriever)
    assert BM25Retriever.from_nodes([]).retrieve("anything") == []


def test_top_k_and_filters_at_call_time():
    retriever = BM25Retriever.from_nodes(nodes(), filters=filters("n", 2, FilterOperator.LTE))
    assert ids(retriever.retrieve("lisbon", similarity_top_k=1)) == ["n0"]
    assert ids(retriever.retrieve("lisbon", filters=filters("n", 2))) == ["n2"]
    assert ids(retriever.retrieve("lisbon", filters={"n": {"$gt": 0}})) == ["n2"]
    assert retriever.retrieve("invoice") == []
    assert ids(retriever.retrieve("invoice", filters={"n": 3})) == ["n3"]
    retriever.similarity_top_k = 1
    assert retriever.similarity_top_k == 1
    assert len(retriever.retrieve("lisbon")) == 1


def test_async_gives_the_same():
    async def ask(retriever):
        alone = await retriever.aretrieve("who drinks tea in lisbon", similarity_top_k=3)
        several = await asyncio.gather(*(retriever.aretrieve("lisbon", filters={"n": n}) for n in range(3)))
        return alone, several

    for engine in ("hybridmem", "rank-bm25"):
        retriever = BM25Retriever.from_nodes(nodes(), engine=engine, language="english")
        alone, several = asyncio.run(ask(retriever))
        assert alone == retriever.retrieve("who drinks tea in lisbon", similarity_top_k=3)
        assert [ids(found)[:1] for found in several] == [["n0"], [], ["n2"]]


def test_what_an_embedder_sees_is_searched():
    one = TextNode(id_="a", text="a report", metadata={"city": "Lisbon", "secret": "Porto", "topics": ["sun"]})
    one.excluded_embed_metadata_keys = ["secret", "topics"]
    assert ids(BM25Retriever.from_nodes([one]).retrieve("lisbon")) == ["a"]
    assert BM25Retriever.from_nodes([one]).retrieve("porto") == []
    assert BM25Retriever.from_nodes([one], metadata_mode=MetadataMode.NONE).retrieve("lisbon") == []
    assert ids(BM25Retriever.from_nodes([one], fields={"tags": "topics"}).retrieve("sun")) == ["a"]


# --- ways in


def test_from_an_index_and_a_docstore():
    index = VectorStoreIndex(nodes(), embed_model=Letters())
    store = SimpleDocumentStore()
    store.add_documents(nodes())
    for retriever in (BM25Retriever.from_defaults(index=index), BM25Retriever.from_defaults(docstore=store)):
        assert ids(retriever.retrieve("green tea")) == ["n1"]
    assert ids(BM25Retriever.from_defaults(index, similarity_top_k=1).retrieve("lisbon")) == ["n0"]


def test_from_chroma_without_a_docstore():
    collection = chromadb.EphemeralClient().create_collection("bm25-words")
    vectors = ChromaVectorStore(chroma_collection=collection)
    VectorStoreIndex(nodes(), storage_context=StorageContext.from_defaults(vector_store=vectors), embed_model=Letters())
    index = VectorStoreIndex.from_vector_store(vectors, embed_model=Letters())
    for retriever in (BM25Retriever.from_defaults(index=index), BM25Retriever.from_defaults(vector_store=vectors)):
        assert ids(retriever.retrieve("green tea")) == ["n1"]
        assert ids(retriever.retrieve("lisbon", filters={"n": 2})) == ["n2"]


def test_exactly_one_source():
    for given in ({}, {"nodes": [], "docstore": SimpleDocumentStore()}):
        with pytest.raises(ConfigError, match="exactly one of index, nodes, docstore, vector_store"):
            BM25Retriever.from_defaults(**given)
    with pytest.raises(ConfigError, match="SimpleVectorStore cannot list its nodes"):
        BM25Retriever.from_defaults(vector_store=SimpleVectorStore())


# --- changing


def test_nodes_come_and_go():
    retriever = BM25Retriever.from_nodes(nodes())
    assert retriever.add_nodes([node("new", text="Cy moved to Porto"), node("n0", text="Ana moved to Oslo")]) == [
        "new",
        "n0",
    ]
    assert ids(retriever.retrieve("porto oslo", similarity_top_k=5)) == ["n0", "new"]
    assert ids(retriever.retrieve("lisbon")) == ["n2"]
    assert retriever.delete(["new", "unknown"]) == 1
    assert retriever.delete_nodes(["new"]) == 0
    assert retriever.retrieve("porto") == []
    assert len(retriever.nodes) == 4


def test_nodes_stay_in_a_folder(tmp_path):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc")}
    retriever = BM25Retriever.from_nodes([*nodes(), node("src", text="Porto", relationships=source)])
    retriever.persist(tmp_path / "words")
    again = BM25Retriever.from_persist_dir(tmp_path / "words", similarity_top_k=4)
    assert again.retrieve("lisbon tea") == retriever.retrieve("lisbon tea", similarity_top_k=4)
    assert again.retrieve("porto")[0].node.ref_doc_id == "doc"
    again.add_nodes([node("later", text="Porto again")])
    assert len(BM25Retriever.from_persist_dir(tmp_path / "words").retrieve("porto")) == 2
    with pytest.raises(CorruptStoreError, match="elsewhere"):
        BM25Retriever.from_persist_dir(tmp_path / "elsewhere")
    kept = BM25Retriever(nodes(), persist_path=tmp_path / "one.bm25")
    kept.delete(["n0"])
    assert len(BM25Retriever(persist_path=tmp_path / "one.bm25").nodes) == 3


# --- settings


def test_the_parameters_of_llamaindexs_own_class():
    walk = [node("a", text="She walked"), node("b", text="xy walks")]
    assert ids(BM25Retriever(walk, language="en").retrieve("walking")) == ["a", "b"]
    assert BM25Retriever(walk, skip_stemming=True).retrieve("walking") == []
    assert BM25Retriever(walk, skip_stemming=True)._nodes.index.analyzer == Analyzer(stem=False)
    own = BM25Retriever(walk, token_pattern=r"[a-z]+", stemmer=Stemmer.Stemmer("english"))
    assert sorted(ids(own.retrieve("walking"))) == ["a", "b"]
    assert ids(BM25Retriever(walk, token_pattern=r"\b\w\w+\b").retrieve("walking xy")) == ["b", "a"]
    assert BM25Retriever(walk, token_pattern=r"\w+", skip_stemming=True).retrieve("walking") == []
    assert ids(BM25Retriever(walk, preprocess_func=lambda text: re.findall("x", text)).retrieve("x")) == ["b"]
    assert isinstance(BM25Retriever(walk, bm25_variant="plus")._nodes.index, RankBM25Index)
    curved = BM25Retriever(walk, k1=2.0, bm25_params={"b": 0.3})._nodes.index
    assert (curved.k1, curved.b) == (2.0, 0.3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"similarity_top_k": -1}, "similarity_top_k = -1"),
        ({"typo": 1}, "typo.*similarity_top_k"),
        ({"engine": "lucene"}, "lucene.*fts5"),
        ({"fields": {"subject": "x"}}, "subject"),
        ({"filters": {"n": {"$near": 1}}}, "near"),
        ({"as_of": 5}, "only a memory"),
        ({"memory": object(), "k1": 2.0}, "memory"),
        ({"memory": object(), "nodes": []}, "memory"),
    ],
)
def test_bad_settings_name_the_value(settings, said):
    with pytest.raises(ConfigError, match=said):
        BM25Retriever(**settings)


def test_no_result_is_wanted_as_in_the_original():
    retriever = BM25Retriever(nodes(), similarity_top_k=0)
    assert retriever.similarity_top_k == 0
    assert retriever.retrieve("Where did Ana move to?") == []
    assert len(retriever.retrieve("Where did Ana move to?", similarity_top_k=1)) == 1


# --- where users put it


def test_in_a_query_engine():
    llm = Reciting(text="In Lisbon.")
    engine = RetrieverQueryEngine.from_args(BM25Retriever.from_nodes(nodes()), llm=llm)
    answer = engine.query("Where did Ana move to?")
    assert str(answer) == "In Lisbon."
    assert ids(answer.source_nodes)[0] == "n0"
    assert "Ana moved to Lisbon" in llm.prompts[0]
    assert str(asyncio.run(engine.aquery("Where did Ana move to?"))) == "In Lisbon."
    streaming = RetrieverQueryEngine.from_args(BM25Retriever.from_nodes(nodes()), llm=llm, streaming=True)
    assert "".join(streaming.query("Where did Ana move to?").response_gen).split() == ["In", "Lisbon."]


def test_as_an_agents_tool():
    tool = BM25Retriever.from_nodes(nodes()).as_tool(name="search", description="Looks things up.")
    assert "Bo drinks green tea" in tool.call("green tea").content
    assert "Bo drinks green tea" in asyncio.run(tool.acall("green tea")).content


def test_index_nodes_are_followed():
    inner = BM25Retriever.from_nodes([node("deep", text="Lisbon in depth")])
    door = IndexNode(text="all about Lisbon", index_id="inner", obj=inner)
    outer = BM25Retriever.from_nodes([door], objects=[door])
    assert ids(outer.retrieve("lisbon", similarity_top_k=1)) == ["deep"]


def test_over_a_memory():
    memory = HybridMemory(embedder=None)
    memory.add_many({"id": f"m{n}", "text": text, "type": "fact" if n % 2 else "event"} for n, text in enumerate(TEXTS))
    memory.namespace("bo").add("Bo moved to Lisbon", id="b")
    retriever = BM25Retriever.from_memory(memory, similarity_top_k=2)
    wanted = memory.search_arm("bm25", "lisbon", k=2)
    found = retriever.retrieve("lisbon")
    assert [(one.node.id_, one.score) for one in found] == [(result.id, result.score) for result in wanted]
    assert ids(asyncio.run(retriever.aretrieve("lisbon"))) == ["m0", "m2"]
    assert ids(retriever.retrieve("lisbon", namespace="bo")) == ["b"]
    assert ids(retriever.retrieve("drinks", filters={"type": "fact"})) == ["m1"]
    assert retriever.retrieve("lisbon", as_of="2001-01-01") == []
    for change in (lambda: retriever.nodes, lambda: retriever.add_nodes([]), lambda: retriever.persist("x")):
        with pytest.raises(ConfigError, match="memory"):
            change()
    memory.close()
