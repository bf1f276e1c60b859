"""What programs do with retrievers beside calling them: subclasses, mocks, copies, changes in place."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
import time
from unittest.mock import AsyncMock, MagicMock

import bm25s
import pytest
import Stemmer
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate, RichPromptTemplate
from llama_index.core.retrievers import QueryFusionRetriever as OriginalFusion
from llama_index.core.schema import Document, IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever as OriginalBM25

from hybridmem.errors import ArmError, ConfigError, CorruptStoreError
from llamaindex_hybridmem import (
    BM25Retriever,
    FusedNode,
    FusionRetriever,
    GraphRetriever,
    HybridMemoryBlock,
    QueryFusionRetriever,
    VectorRetriever,
    memory_tools,
)
from tests.support.llama_fakes import Fixed, ids, scored

TEXTS = ["Ana moved to Lisbon", "Bo drinks tea", "Ana drinks coffee", "trams in Lisbon", "tea and coffee"]


def nodes():
    return [
        TextNode(text=text, id_=f"n{n}", metadata={"user": "ana" if n % 2 else "bo"}) for n, text in enumerate(TEXTS)
    ]


def vectors(texts):
    return [[text.count("a") + 0.1, text.count("o") + 0.1] for text in texts]


# --- overrides


def only_ana(results):
    return [one for one in results if one.node.metadata["user"] == "ana"]


class OwnBM25(BM25Retriever):
    def _retrieve(self, query_bundle):
        return only_ana(super()._retrieve(query_bundle))


class OwnVector(VectorRetriever):
    def _retrieve(self, query_bundle):
        return only_ana(super()._retrieve(query_bundle))


class OwnGraph(GraphRetriever):
    def _retrieve(self, query_bundle):
        return only_ana(super()._retrieve(query_bundle))


class OwnFusion(FusionRetriever):
    def _retrieve(self, query_bundle):
        return only_ana(super()._retrieve(query_bundle))


class OwnDropIn(QueryFusionRetriever):
    def _retrieve(self, query_bundle):
        return only_ana(super()._retrieve(query_bundle))


@pytest.mark.parametrize(
    "retriever",
    [
        OwnBM25(nodes(), similarity_top_k=5),
        OwnVector.from_nodes(nodes(), embed_model=vectors, similarity_top_k=5),
        OwnGraph(nodes(), similarity_top_k=5),
        OwnFusion([BM25Retriever(nodes(), similarity_top_k=5)]),
        OwnDropIn([BM25Retriever(nodes(), similarity_top_k=5)], num_queries=1, similarity_top_k=5),
    ],
    ids=["bm25", "vector", "graph", "fusion", "drop-in"],
)
def test_a_filter_in_an_overridden_search_holds_in_async_code_too(retriever):
    sync = retriever.retrieve("Ana coffee tea trams")
    assert sync
    assert {one.node.metadata["user"] for one in sync} == {"ana"}
    assert ids(asyncio.run(retriever.aretrieve("Ana coffee tea trams"))) == ids(sync)
    found = asyncio.run(FusionRetriever([retriever]).aretrieve("Ana coffee tea"))
    assert {one.node.metadata["user"] for one in found} == {"ana"}


@pytest.mark.parametrize("cls", [OriginalFusion, QueryFusionRetriever])
def test_a_drop_in_that_overrides_both_sides_runs_each_once(cls):
    class Both(cls):
        def _retrieve(self, query_bundle):
            return [*super()._retrieve(query_bundle), *scored("S")]

        async def _aretrieve(self, query_bundle):
            return [*await super()._aretrieve(query_bundle), *scored("T")]

    made = Both([Fixed(scored("A"))], llm=MockLLM(), num_queries=1)
    assert ids(made.retrieve("q")) == ["A", "S"]
    assert ids(asyncio.run(made.aretrieve("q"))) == ["A", "T"]


@pytest.mark.parametrize("cls", [OriginalFusion, QueryFusionRetriever])
@pytest.mark.parametrize(
    ("step", "mode"),
    [
        ("_reciprocal_rerank_fusion", "reciprocal_rerank"),
        ("_relative_score_fusion", "relative_score"),
        ("_relative_score_fusion", "dist_based_score"),
        ("_simple_fusion", "simple"),
    ],
)
def test_fusion_steps_of_a_subclass_are_used(cls, step, mode):
    seen = []

    def own(self, results, **kwargs):
        seen.append((sorted(results), kwargs))
        return [NodeWithScore(node=TextNode(text="own", id_="own"), score=0.25)]

    made = type("Own", (cls,), {step: own})([Fixed(scored("AB"))], llm=MockLLM(), mode=mode, num_queries=1)
    assert ids(made.retrieve("q")) == ids(asyncio.run(made.aretrieve("q"))) == ["own"]
    extra = {"dist_based": True} if mode == "dist_based_score" else {}
    assert seen == [([("q", 0)], extra)] * 2


@pytest.mark.parametrize("cls", [OriginalFusion, QueryFusionRetriever])
def test_query_steps_of_a_subclass_are_used(cls):
    steps = []
    fixed = {("q", 0): scored("A")}

    class Own(cls):
        def _run_sync_queries(self, queries):
            steps.append("sync")
            return fixed

        def _run_nested_async_queries(self, queries):
            steps.append("nested")
            return fixed

        async def _run_async_queries(self, queries):
            steps.append("async")
            return fixed

    made = Own([Fixed(scored("B"))], llm=MockLLM(), num_queries=1)
    assert ids(made.retrieve("q")) == ids(asyncio.run(made.aretrieve("q"))) == ["A"]
    made.use_async = False
    assert ids(made.retrieve("q")) == ["A"]
    assert steps == ["nested", "async", "sync"]


@pytest.mark.parametrize("cls", [OriginalFusion, QueryFusionRetriever])
def test_an_llm_set_by_a_subclass_makes_the_queries(cls):
    class Lines(MockLLM):
        def complete(self, prompt, formatted=False, **kwargs):
            answer = super().complete(prompt, formatted, **kwargs)
            answer.text = "one\ntwo"
            return answer

    class Own(cls):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._llm = Lines()

    asked = []
    arm = Fixed(scored("A"), lambda bundle: asked.append(bundle.query_str))
    Own([arm], llm=MockLLM(), num_queries=3, use_async=False).retrieve("q")
    assert asked == ["q", "one", "two"]


# --- the async side, threads and errors


class TwoSided(BaseRetriever):
    def __init__(self):
        super().__init__()
        self.sides = []

    def _retrieve(self, query_bundle):
        self.sides.append(("sync", threading.get_ident()))
        return scored("A")

    async def _aretrieve(self, query_bundle):
        self.sides.append(("async", None))
        return scored("A")


@pytest.mark.parametrize("cls", [OriginalFusion, QueryFusionRetriever])
def test_use_async_chooses_the_side(cls):
    arm = TwoSided()
    cls([arm], llm=MockLLM(), num_queries=1, use_async=True).retrieve("q")
    cls([arm], llm=MockLLM(), num_queries=1, use_async=False).retrieve("q")
    assert arm.sides == [("async", None), ("sync", threading.get_ident())]


async def test_use_async_works_inside_a_running_loop():
    arm = TwoSided()
    made = QueryFusionRetriever([arm], num_queries=1)
    assert ids(made.retrieve("q")) == ["A"]
    assert arm.sides == [("async", None)]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("make", [FusionRetriever, lambda arms: QueryFusionRetriever(arms, num_queries=1)])
def test_the_first_error_ends_the_call(make, later):
    hung = threading.Event()

    def fail(_):
        raise LookupError("gone")

    made = make([Fixed(scored("A"), lambda _: hung.wait(20)), Fixed(scored("B"), fail)])
    start = time.perf_counter()
    with pytest.raises((LookupError, ArmError), match="gone"):
        asyncio.run(made.aretrieve("q")) if later else made.retrieve("q")
    taken = time.perf_counter() - start
    hung.set()
    assert taken < 5


async def test_a_thousand_questions_stay_under_64_threads():
    most = 0

    def watch(_):
        nonlocal most
        most = max(most, threading.active_count())

    made = FusionRetriever([BM25Retriever(nodes()), Fixed(scored("A"), watch)])
    found = await asyncio.gather(*(made.aretrieve(f"Ana {n}") for n in range(1000)))
    assert len(found) == 1000
    assert 1 < most < 64


# --- classes of the user's own


class Marked(NodeWithScore):
    mark: str = "mine"


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"])
def test_results_keep_their_class(mode):
    given = [Marked(node=one.node, score=one.score, mark="yours") for one in scored("AB")]

    class Giving(BaseRetriever):
        def _retrieve(self, query_bundle):
            return given

    found = QueryFusionRetriever([Giving()], num_queries=1, mode=mode).retrieve("q")
    assert [type(one) for one in found] == [Marked, Marked]
    assert {one.mark for one in found} == {"yours"}
    assert [one.score for one in given] == [one.score for one in scored("AB")]


def test_receipts_survive_nesting():
    inner = FusionRetriever({"bm25": BM25Retriever(nodes())})
    for outer in (QueryFusionRetriever([inner], num_queries=1), FusionRetriever({"inner": inner})):
        found = outer.retrieve("Ana coffee")
        assert all(isinstance(one, FusedNode) for one in found)
        assert found[0].receipt.key == found[0].node_id
    again = pickle.loads(pickle.dumps(found[0]))
    assert again.receipt == found[0].receipt
    assert found[0].receipt is not None


def test_the_settings_of_as_retriever_are_passed_on():
    asked = []

    class Spy(VectorIndexRetriever):
        pass

    manager = CallbackManager([])
    index = VectorStoreIndex(nodes(), embed_model=_embedding(), callback_manager=manager)
    ours = VectorRetriever(
        index, node_ids=["n0", "n3"], similarity_top_k=9, alpha=0.3, sparse_top_k=7, hybrid_top_k=8, doc_ids=["d"]
    )
    assert sorted(ids(VectorRetriever(index, node_ids=["n0", "n3"], similarity_top_k=9).retrieve("Ana"))) == [
        "n0",
        "n3",
    ]
    assert ours.callback_manager is manager
    original = index.vector_store.query
    object.__setattr__(index.vector_store, "query", lambda query, **kw: asked.append(query) or original(query, **kw))
    ours.retrieve("Ana")
    assert (asked[0].alpha, asked[0].sparse_top_k, asked[0].hybrid_top_k) == (0.3, 7, 8)
    assert (asked[0].doc_ids, asked[0].node_ids) == (["d"], ["n0", "n3"])


def test_objects_of_an_index_are_followed():
    inner = Fixed(scored("Z"))
    index = VectorStoreIndex(
        objects=[IndexNode(text="Ana and Bo", index_id="inner", obj=inner)], embed_model=_embedding()
    )
    assert ids(index.as_retriever().retrieve("Ana")) == ["Z"]
    assert ids(VectorRetriever(index).retrieve("Ana")) == ["Z"]


def _embedding():
    from llama_index.core.embeddings import BaseEmbedding

    class Letters(BaseEmbedding):
        def _get_text_embedding(self, text):
            return vectors([text])[0]

        def _get_query_embedding(self, query):
            return vectors([query])[0]

        async def _aget_query_embedding(self, query):
            return vectors([query])[0]

    return Letters()


# --- mocks, prompts, changes, copies


@pytest.mark.parametrize(
    "make",
    [
        lambda arms: OriginalFusion(arms, llm=MockLLM(), num_queries=1),
        lambda arms: QueryFusionRetriever(arms, num_queries=1),
        FusionRetriever,
    ],
    ids=["original", "drop-in", "fusion"],
)
def test_mocks_are_arms(make):
    arm = MagicMock(spec=BaseRetriever)
    arm.retrieve.return_value = scored("AB")
    arm.aretrieve = AsyncMock(return_value=scored("AB"))
    made = make([arm])
    assert ids(made.retrieve("q")) == ids(asyncio.run(made.aretrieve("q"))) == ["A", "B"]


def test_an_object_with_an_async_side_alone_is_an_arm():
    class Later:
        async def aretrieve(self, query):
            return scored("A")

    made = FusionRetriever({"later": Later()})
    assert ids(made.retrieve("q")) == ids(asyncio.run(made.aretrieve("q"))) == ["A"]


@pytest.mark.parametrize(
    "prompt",
    [
        PromptTemplate("{num_queries} more like {query}"),
        RichPromptTemplate("{{ num_queries }} more like {{ query }}"),
    ],
    ids=["plain", "rich"],
)
def test_prompts_of_every_kind(prompt):
    made = QueryFusionRetriever([Fixed(scored("A"))], llm=MockLLM(), num_queries=3)
    made.update_prompts({"query_gen_prompt": prompt})
    assert made._query_prompt("tea") == "2 more like tea"
    assert made.get_prompts()["query_gen_prompt"].format(num_queries=2, query="tea") == "2 more like tea"
    given = QueryFusionRetriever([Fixed(scored("A"))], llm=MockLLM(), query_gen_prompt=prompt)
    assert given._query_prompt("tea") == "3 more like tea"


def test_retrievers_and_weights_changed_in_place_take_effect():
    made = QueryFusionRetriever([Fixed(scored("A")), Fixed(scored("B"))], num_queries=1, mode="reciprocal_rerank")
    made._retrievers.append(Fixed(scored("C")))
    made._retriever_weights = [0.1, 0.2, 0.7]
    assert ids(made.retrieve("q")) == ["C", "B"]


@pytest.mark.parametrize(
    "made",
    [
        FusionRetriever([BM25Retriever(nodes())]),
        QueryFusionRetriever([BM25Retriever(nodes())], num_queries=1),
        BM25Retriever(nodes()),
        BM25Retriever(nodes(), engine="bm25s"),
        VectorRetriever.from_nodes(nodes(), embed_model=vectors),
        GraphRetriever(nodes()),
    ],
    ids=lambda made: type(made).__name__,
)
def test_retrievers_can_be_copied_and_pickled(made):
    expected = [(one.node_id, one.score) for one in made.retrieve("Ana coffee")]
    assert expected
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert [(one.node_id, one.score) for one in again.retrieve("Ana coffee")] == expected


# --- BM25Retriever as LlamaIndex's

QUERIES = ["Ana", "coffee and tea", "trams moving", "nothing at all", "Lisbon Lisbon drinks"]


def same(ours, old, queries=QUERIES):
    for query in queries:
        mine, theirs = ours.retrieve(query), old.retrieve(query)
        assert [(one.node_id, one.score) for one in mine] == [(one.node_id, one.score) for one in theirs], query


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"similarity_top_k": 4},
        {"skip_stemming": True},
        {"token_pattern": r"\w+"},
        {"language": "de"},
        {"stemmer": Stemmer.Stemmer("german")},
        {"filters": MetadataFilters(filters=[MetadataFilter(key="user", value="bo")])},
        {"corpus_weight_mask": [1, 0, 1, 1, 0], "similarity_top_k": 3},
    ],
    ids=lambda settings: "-".join(settings) or "defaults",
)
def test_the_engine_of_the_original_gives_its_ranking(settings):
    old = OriginalBM25(nodes(), **settings)
    same(BM25Retriever(nodes(), engine="bm25s", **settings), old, QUERIES[:3])


def test_an_index_of_the_users_own():
    old = OriginalBM25(nodes(), similarity_top_k=3)
    old.bm25.corpus = old.corpus
    ours = BM25Retriever(existing_bm25=old.bm25, similarity_top_k=3)
    same(ours, OriginalBM25(existing_bm25=old.bm25, similarity_top_k=3))
    assert ours.bm25 is old.bm25
    assert [one["node_id"] for one in ours.corpus] == [f"n{n}" for n in range(5)]


def test_the_attributes_of_the_original():
    stemmer = Stemmer.Stemmer("english")
    ours = BM25Retriever(nodes(), stemmer, similarity_top_k=3)
    old = OriginalBM25(nodes(), stemmer, similarity_top_k=3)
    assert ours.corpus == old.corpus
    assert ours.stemmer is stemmer
    assert isinstance(ours.bm25, bm25s.BM25)
    assert ours.bm25.scores["num_docs"] == 5
    assert ours.get_persist_args() == old.get_persist_args()
    assert BM25Retriever.from_defaults(None, nodes(), None, stemmer, "en", 4).similarity_top_k == 4


def hits(retriever, query):
    return {one.node_id for one in retriever.retrieve(query) if one.score > 0}


@pytest.mark.parametrize("engine", [None, "bm25s"])
def test_words_can_be_changed_later(engine):
    ours = BM25Retriever(nodes(), engine=engine, similarity_top_k=5)
    assert ours.stemmer.stemWords(["drinking", "moved"]) == ["drink", "move"]
    assert hits(ours, "drink") == {"n1", "n2"}
    ours.skip_stemming = True
    assert hits(ours, "drink") == set()
    ours.skip_stemming, ours.stemmer, ours.token_pattern = False, Stemmer.Stemmer("english"), r"(?u)[a-z]+"
    assert ours.token_pattern == r"(?u)[a-z]+"
    assert hits(ours, "drinking") == {"n1", "n2"}
    ours.add_nodes([TextNode(text="drinks", id_="new")])
    assert hits(ours, "drink") == {"new", "n1", "n2"}


def test_an_index_can_be_set_later():
    other = bm25s.BM25(method="bm25+")
    other.index(bm25s.tokenize(TEXTS, show_progress=False), show_progress=False)
    ours, old = BM25Retriever(nodes()), OriginalBM25(nodes())
    ours.bm25 = old.bm25 = other
    same(ours, old, ["coffee and tea"])
    same(pickle.loads(pickle.dumps(ours)), old, ["coffee and tea"])


@pytest.mark.parametrize("engine", [None, "bm25s"])
def test_the_first_queries_may_come_at_the_same_time(engine):
    ours = BM25Retriever(nodes() * 200, engine=engine, similarity_top_k=3)

    async def ask():
        return await asyncio.gather(*(ours.aretrieve("coffee and tea") for _ in range(16)))

    found = [ids(one) for one in asyncio.run(ask())]
    assert found == [ids(ours.retrieve("coffee and tea"))] * 16


@pytest.mark.parametrize(
    "retriever",
    [BM25Retriever(nodes()), BM25Retriever(nodes(), engine="bm25s"), GraphRetriever(nodes())],
    ids=["bm25", "bm25s", "graph"],
)
def test_results_may_be_changed(retriever):
    """A postprocessor such as LlamaIndex's for sentence windows replaces the text of the nodes that it gets."""
    for _ in range(2):
        first = retriever.retrieve("trams")[0].node
        assert (first.text, first.metadata) == ("trams in Lisbon", {"user": "ana"})
        first.set_content("window")
        first.metadata["seen"] = True
        first.excluded_llm_metadata_keys.append("user")
    assert first.excluded_llm_metadata_keys == ["user"]


def test_options_of_the_originals_files_are_ignored(tmp_path):
    BM25Retriever(nodes()).persist(tmp_path, allow_pickle=False, show_progress=False)
    assert ids(BM25Retriever.from_persist_dir(tmp_path, mmap=True).retrieve("trams")) == ["n3"]
    with pytest.raises(ConfigError, match=r"persist does not know 'mmapp' \(did you mean 'mmap'\?\)"):
        BM25Retriever(nodes()).persist(tmp_path, mmapp=True)


@pytest.mark.parametrize("language", ["en", "de", "zh", "ko", "fr"])
def test_language_codes_of_the_original(language):
    found = BM25Retriever([TextNode(text="我喜欢喝茶 tea"), TextNode(text="other")], language=language).retrieve("喝茶")
    assert len(found) == 1


def test_a_tokenizer_is_ignored_as_in_the_original(caplog):
    assert ids(BM25Retriever(nodes(), tokenizer=str.split).retrieve("TEA"))
    assert "tokenizer is ignored" in caplog.text


@pytest.mark.parametrize("engine", [None, "bm25s"])
def test_the_cases_that_the_original_is_tested_with(engine, tmp_path):
    """Positive scores for the hits, no more results than nodes, filters, and settings that survive a folder."""
    parts = SentenceSplitter(chunk_size=1024).get_nodes_from_documents(
        [Document(text=text, metadata={"author": author}) for text, author in zip(TEXTS, "ABABC", strict=True)]
    )
    hits = BM25Retriever.from_defaults(nodes=parts, similarity_top_k=2, engine=engine).retrieve("coffee tea")
    assert len(hits) == 2
    assert all(one.score > 0 for one in hits)
    assert len(BM25Retriever.from_defaults(nodes=parts, similarity_top_k=50, engine=engine).retrieve("author")) == 5
    only = MetadataFilters(filters=[MetadataFilter(key="author", value="A")])
    found = BM25Retriever.from_defaults(nodes=parts, similarity_top_k=5, filters=only, engine=engine).retrieve("author")
    assert [one.node.metadata["author"] for one in found] == ["A", "A"]
    made = BM25Retriever.from_defaults(
        nodes=parts, token_pattern=r"\w+", skip_stemming=True, language="en", engine=engine
    )
    made.persist(str(tmp_path))
    again = BM25Retriever.from_persist_dir(str(tmp_path))
    assert (again.token_pattern, again.skip_stemming, again.language) == (r"\w+", True, "en")
    assert again.retrieve("trams")[0].score == made.retrieve("trams")[0].score > 0


async def test_queries_are_made_by_the_async_side_of_the_llm_in_async_code():
    class Later(MockLLM):
        def complete(self, prompt, formatted=False, **kwargs):
            raise AssertionError("the sync side was asked")

        async def acomplete(self, prompt, formatted=False, **kwargs):
            answer = MockLLM().complete(prompt)
            answer.text = "one\ntwo"
            return answer

    asked = []
    arm = Fixed(scored("A"), lambda bundle: asked.append(bundle.query_str))
    await QueryFusionRetriever([arm], llm=Later(), num_queries=3).aretrieve("q")
    assert sorted(asked) == ["one", "q", "two"]


def test_a_heavier_retriever_ranks_first_in_the_step_that_subclasses_call():
    made = QueryFusionRetriever(
        [Fixed(scored("A")), Fixed(scored("B"))], mode="reciprocal_rerank", retriever_weights=[0.1, 0.9], num_queries=1
    )
    fused = made._reciprocal_rerank_fusion({("q", 0): scored("A"), ("q", 1): scored("B")})
    assert [(one.node_id, one.score) for one in fused] == [
        ("B", pytest.approx(2 * 0.9 / 60)),
        ("A", pytest.approx(2 * 0.1 / 60)),
    ]


def test_a_folder_restores_its_settings(tmp_path):
    made = BM25Retriever(nodes(), similarity_top_k=4, language="german", k1=2.0, b=0.2, skip_stemming=True)
    made.persist(path=str(tmp_path / "one"))
    again = BM25Retriever.from_persist_dir(str(tmp_path / "one"))
    assert again.similarity_top_k == 4
    index = again._nodes.index
    assert (index.k1, index.b, index.analyzer) == (2.0, 0.2, made._nodes.index.analyzer)
    assert [(n.node_id, n.score) for n in again.retrieve("Ana")] == [(n.node_id, n.score) for n in made.retrieve("Ana")]
    again.add_nodes([TextNode(text="Ana again", id_="new")])
    assert len(BM25Retriever.from_persist_dir(tmp_path / "one").nodes) == 6


def test_a_folder_with_the_engine_of_the_original(tmp_path):
    made = BM25Retriever(nodes(), engine="bm25s", similarity_top_k=3)
    made.persist(tmp_path)
    same(BM25Retriever.from_persist_dir(tmp_path), made)


def test_a_folder_that_the_original_wrote(tmp_path):
    old = OriginalBM25(nodes(), similarity_top_k=3)
    old.persist(str(tmp_path))
    same(BM25Retriever.from_persist_dir(str(tmp_path), engine="bm25s"), old)
    ours = BM25Retriever.from_persist_dir(str(tmp_path))
    assert ours.similarity_top_k == 3
    assert [node.metadata for node in ours.nodes] == [node.metadata for node in nodes()]
    assert ids(ours.retrieve("trams")) == ["n3"]
    assert json.loads((tmp_path / "retriever.json").read_text())["similarity_top_k"] == 3
    with pytest.raises(CorruptStoreError, match="is not a folder"):
        BM25Retriever.from_persist_dir(tmp_path / "nowhere")


# --- messages


def test_messages_say_what_is_meant():
    made = BM25Retriever(nodes())
    for retriever in (made, FusionRetriever([made]), GraphRetriever(nodes())):
        with pytest.raises(ConfigError, match=r"retrieve does not know 'k' \(did you mean 'similarity_top_k'\?\)"):
            retriever.retrieve("Ana", k=3)
    with pytest.raises(ConfigError, match="mode = 'reciprocal_rerank' is not allowed: use 'rrf'"):
        FusionRetriever([made], mode="reciprocal_rerank")
    vector, drop_in = VectorRetriever.from_nodes(nodes(), embed_model=vectors), QueryFusionRetriever([made])
    for retriever in (made, FusionRetriever([made]), vector, drop_in, GraphRetriever(nodes())):
        with pytest.raises(ConfigError, match="query = None is not allowed: retrieve takes a str or a QueryBundle"):
            retriever.retrieve(None)
        with pytest.raises(ConfigError, match="query = None is not allowed"):
            asyncio.run(retriever.aretrieve(None))
        with pytest.raises(ConfigError, match=r"query_str=None.* is not allowed: retrieve"):
            retriever.retrieve(QueryBundle(None))
    assert ids(made.retrieve(QueryBundle("trams"))) == ["n3"]


# --- settings that only the constructor reads


@pytest.mark.parametrize(
    ("retriever", "name", "value"),
    [
        (BM25Retriever(nodes()), "filters", {"user": "ana"}),
        (BM25Retriever(nodes()), "k1", 2.0),
        (VectorRetriever.from_nodes(nodes(), embed_model=vectors), "score_threshold", 0.5),
        (GraphRetriever(nodes()), "hops", 1),
        (FusionRetriever([BM25Retriever(nodes())]), "retriever_weights", [1.0]),
        (FusionRetriever([BM25Retriever(nodes())]), "mode", "relative"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_setting_that_would_have_no_effect_cannot_be_changed(retriever, name, value):
    with pytest.raises(ConfigError, match=f"{name} cannot be changed"):
        setattr(retriever, name, value)
    retriever.similarity_top_k = 1
    assert len(retriever.retrieve("Ana coffee tea trams")) == 1
    assert len(copy.deepcopy(retriever).retrieve("Ana coffee tea trams")) == 1


def test_arms_cannot_be_replaced_in_place():
    retriever = FusionRetriever({"words": BM25Retriever(nodes())})
    with pytest.raises(TypeError):
        retriever.retrievers["words"] = BM25Retriever(nodes())


def test_a_subclass_may_use_the_names_of_settings_itself():
    class Own(BM25Retriever):
        def __init__(self, given, filters):
            super().__init__(given)
            self.filters = filters

    assert Own(nodes(), "mine").filters == "mine"


def test_a_mask_that_does_not_fit_the_nodes_is_refused():
    retriever = BM25Retriever(nodes(), corpus_weight_mask=[1] * len(nodes()))
    assert retriever.retrieve("tea")
    retriever.add_nodes([TextNode(text="more tea", id_="new")])
    with pytest.raises(ConfigError, match="one for each node"):
        retriever.retrieve("tea")


@pytest.mark.parametrize(
    "use",
    [
        FusionRetriever.from_memory,
        BM25Retriever.from_memory,
        VectorRetriever.from_memory,
        GraphRetriever.from_memory,
        memory_tools,
        lambda memory: HybridMemoryBlock(memory=memory),
    ],
    ids=lambda use: use.__qualname__,
)
def test_a_path_is_not_a_memory(use):
    with pytest.raises(ConfigError, match=r"memory = 'm\.db' is not allowed: .*: HybridMemory\('m\.db'\) opens one"):
        use("m.db")


def test_messages_say_what_to_give_instead():
    index = VectorStoreIndex(nodes(), embed_model=MockEmbedding(embed_dim=2))
    with pytest.raises(ConfigError, match=r"is a VectorStoreIndex: .*; use its as_retriever\(\)"):
        FusionRetriever([index])
    with pytest.raises(ConfigError, match=r"index = .* is not allowed: a VectorStoreIndex; a store is vector_store="):
        VectorRetriever(index.vector_store)
    with pytest.raises(ConfigError, match=r"nodes\[1\] = 'b' is not allowed: a BaseNode is needed"):
        BM25Retriever([*nodes()[:1], "b"])
    with pytest.raises(ConfigError, match=r"language = \['the'\] is not allowed"):
        BM25Retriever(nodes(), language=["the"])
