"""What programs do with retrievers beside calling them: subclasses, mocks, wrappers, copies, changes in place."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest
from langchain_classic.retrievers import EnsembleRetriever as OriginalEnsemble
from langchain_community.retrievers import BM25Retriever as OriginalBM25
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from rank_bm25 import BM25Okapi

from hybridmem.errors import ArmError, ConfigError
from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem import (
    BM25Retriever,
    EnsembleRetriever,
    FusionRetriever,
    GraphRetriever,
    HybridStore,
    HybridVectorStore,
    MemoryMiddleware,
    VectorRetriever,
    add_documents,
    memory_tools,
)
from tests.support.langchain_fakes import Axes, doc, docs, plain, texts

TEXTS = ["Ana moved to Lisbon", "Bo drinks tea", "Ana drinks coffee", "trams in Lisbon"]


def axes(texts):
    return [[text.count("a") + 0.1, text.count("o") + 0.1] for text in texts]


# --- overrides


class OwnBM25(BM25Retriever):
    def _get_relevant_documents(self, query, *, run_manager, **kwargs):
        found = super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)
        return [document for document in found if document.metadata.get("user") == "ana"]


class OwnVector(VectorRetriever):
    def _get_relevant_documents(self, query, *, run_manager, **kwargs):
        found = super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)
        return [document for document in found if document.metadata.get("user") == "ana"]


class OwnGraph(GraphRetriever):
    def _get_relevant_documents(self, query, *, run_manager, **kwargs):
        found = super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)
        return [document for document in found if document.metadata.get("user") == "ana"]


USERS = [doc(text, id=str(n), user="ana" if n % 2 else "bo") for n, text in enumerate(TEXTS)]


@pytest.mark.parametrize(
    "retriever",
    [
        OwnBM25.from_documents(USERS, k=4),
        OwnVector.from_documents(USERS, axes, k=4),
        OwnGraph.from_documents(USERS, k=4),
    ],
    ids=["bm25", "vector", "graph"],
)
def test_a_filter_in_an_overridden_search_holds_in_async_code_too(retriever):
    sync = retriever.invoke("Ana Lisbon coffee tea")
    assert sync
    assert {document.metadata["user"] for document in sync} == {"ana"}
    assert asyncio.run(retriever.ainvoke("Ana Lisbon coffee tea")) == sync
    fusion = FusionRetriever(retrievers=[retriever])
    for found in (fusion.invoke("Ana tea"), asyncio.run(fusion.ainvoke("Ana tea"))):
        assert {document.metadata["user"] for document in found} == {"ana"}


class OwnFusion(FusionRetriever):
    def _get_relevant_documents(self, query, *, run_manager, **kwargs):
        found = super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)
        return [document for document in found if document.metadata.get("user") == "ana"]


class OwnAsyncFusion(FusionRetriever):
    async def _aget_relevant_documents(self, query, *, run_manager, **kwargs):
        found = await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)
        return [document for document in found if document.metadata.get("user") == "ana"]


@pytest.mark.parametrize("cls", [OwnFusion, OwnAsyncFusion])
def test_an_overridden_search_of_a_fusion_is_not_bypassed(cls):
    seen = []

    def arm(_query, config):
        seen.append(config["configurable"]["tenant"])
        return USERS

    memory = HybridMemory(embedder=None)
    memory.add_many([{"text": one.page_content, "id": one.id, "metadata": one.metadata} for one in USERS])
    config = {"configurable": {"tenant": "t1"}}
    for retriever in (cls(retrievers=[RunnableLambda(arm)]), cls.from_memory(memory)):
        answers = [asyncio.run(retriever.ainvoke("Ana Bo trams", config, k=4))]
        if cls is OwnFusion:
            answers.append(retriever.invoke("Ana Bo trams", config, k=4))
            answers.append(FusionRetriever(retrievers=[retriever]).invoke("Ana Bo trams", config))
        answers.append(asyncio.run(FusionRetriever(retrievers=[retriever]).ainvoke("Ana Bo trams", config)))
        for found in answers:
            assert sorted(document.id for document in found) == ["1", "3"]
    assert set(seen) == {"t1"}  # the config reaches the arms


def test_an_overridden_search_without_keywords_or_run_manager():
    class Bare(BM25Retriever):
        def _get_relevant_documents(self, query):
            return [Document("fixed")]

    made = Bare.from_texts(TEXTS)
    assert texts(made.invoke("Ana", k=1)) == texts(asyncio.run(made.ainvoke("Ana", k=1))) == ["fixed"]


@pytest.mark.parametrize("manager", [True, False], ids=["run_manager", "query alone"])
def test_an_overridden_search_of_a_fusion_gets_the_keywords_that_it_takes(manager):
    if manager:

        class Own(FusionRetriever):
            def _get_relevant_documents(self, query, *, run_manager):
                return [Document(run_manager.run_id.hex[:0] + "fixed")]

        class OwnAsync(FusionRetriever):
            async def _aget_relevant_documents(self, query, *, run_manager):
                return [Document(run_manager.run_id.hex[:0] + "fixed")]
    else:

        class Own(FusionRetriever):
            def _get_relevant_documents(self, query):
                return [Document("fixed")]

        class OwnAsync(FusionRetriever):
            async def _aget_relevant_documents(self, query):
                return [Document("fixed")]

    own, later = (cls(retrievers=[plain("a")]) for cls in (Own, OwnAsync))
    assert texts(own.invoke("?", k=1)) == texts(FusionRetriever(retrievers=[own], k=1).invoke("?")) == ["fixed"]
    for one in (own, later):
        assert texts(asyncio.run(one.ainvoke("?", k=1))) == ["fixed"]
        assert texts(asyncio.run(FusionRetriever(retrievers=[one], k=1).ainvoke("?"))) == ["fixed"]


def test_an_override_of_both_sides_may_call_the_base():
    class Both(OwnBM25):
        async def _aget_relevant_documents(self, query, *, run_manager, **kwargs):
            return [*await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs), Document("more")]

    made = Both.from_documents(USERS)
    assert texts(asyncio.run(made.ainvoke("Ana tea"))) == [*texts(made.invoke("Ana tea")), "more"]


def test_a_subclass_is_gated_by_its_scores():
    arm = OwnBM25.from_documents([doc("tea", user="ana"), doc("tea tea and much more than tea", user="ana")])
    best = arm.invoke("tea", with_scores=True)[0].metadata["score"]
    fusion = FusionRetriever(retrievers={"bm25": arm}, gate={"bm25": best})
    assert texts(fusion.invoke("tea")) == [arm.invoke("tea")[0].page_content]


# --- threads and errors


@pytest.mark.parametrize("cls", [EnsembleRetriever, FusionRetriever])
def test_one_at_a_time_runs_in_the_callers_thread_in_order(cls):
    turns = []
    arms = [RunnableLambda(lambda _, n=n: turns.append((n, threading.get_ident())) or [n]) for n in "abc"]
    cls(retrievers=arms).invoke("?", config={"max_concurrency": 1})
    assert turns == [(n, threading.get_ident()) for n in "abc"]


@pytest.mark.parametrize("cls", [EnsembleRetriever, FusionRetriever])
@pytest.mark.parametrize("later", [False, True])
def test_the_first_error_ends_the_call(cls, later):
    hung = threading.Event()

    def fail(_):
        raise LookupError("gone")

    made = cls(retrievers=[RunnableLambda(lambda _: hung.wait(20) and []), RunnableLambda(fail)])

    async def ask():
        start = time.perf_counter()
        with pytest.raises((LookupError, ArmError), match="gone"):
            await made.ainvoke("?") if later else made.invoke("?")
        taken = time.perf_counter() - start
        hung.set()
        return taken

    assert asyncio.run(ask()) < 5


def test_a_thousand_questions_stay_under_64_threads():
    most = 0

    class Watched(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            nonlocal most
            most = max(most, threading.active_count())
            return [Document(query)]

    arms = [BM25Retriever.from_texts(TEXTS), Watched()]
    for made in (EnsembleRetriever(retrievers=arms), FusionRetriever(retrievers=arms)):
        found = asyncio.run(made.abatch([f"Ana {n}" for n in range(1000)]))
        assert len(found) == 1000
    assert 1 < most < 64


# --- mocks, ducks and wrappers


@pytest.mark.parametrize("cls", [OriginalEnsemble, EnsembleRetriever, FusionRetriever])
def test_mocks_are_arms(cls):
    arm = MagicMock(spec=BaseRetriever)
    arm.invoke.return_value = docs("ab")
    arm.ainvoke = AsyncMock(return_value=docs("ab"))
    made = cls(retrievers=[arm, arm], weights=[0.5, 0.5])
    assert texts(made.invoke("?")) == texts(asyncio.run(made.ainvoke("?"))) == ["a", "b"]
    assert arm.invoke.call_count == 2


def test_an_applications_own_class_named_base_retriever_keeps_its_async_side():
    sides = []

    def make():
        class BaseRetriever(globals()["BaseRetriever"]):
            def _get_relevant_documents(self, query, *, run_manager):
                sides.append("sync")
                return docs("a")

            async def _aget_relevant_documents(self, query, *, run_manager):
                sides.append("async")
                return docs("a")

        return BaseRetriever()

    for cls in (EnsembleRetriever, FusionRetriever):
        asyncio.run(cls(retrievers=[make()]).ainvoke("?"))
    assert sides == ["async", "async"]


def test_plain_objects_with_invoke_or_ainvoke_are_arms_of_a_fusion():
    class Now:
        def invoke(self, query, config=None):
            return docs("a")

    class Later:
        async def ainvoke(self, query, config=None):
            return docs("b")

    made = FusionRetriever(retrievers={"now": Now(), "later": Later()})
    assert sorted(texts(made.invoke("?"))) == sorted(texts(asyncio.run(made.ainvoke("?")))) == ["a", "b"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda arm: arm.with_config(tags=["x"]),
        lambda arm: arm.with_retry(stop_after_attempt=2),
        lambda arm: arm.with_fallbacks([arm]),
        lambda arm: arm.with_config(tags=["x"]).with_retry(),
    ],
    ids=["config", "retry", "fallbacks", "both"],
)
def test_wrapped_arms_are_named_and_gated_like_the_arm_inside(wrap):
    store = InMemoryVectorStore(Axes())
    store.add_texts(["1,0", "1,1", "0,1"])
    for arm in (
        store.as_retriever(),
        VectorRetriever(vectorstore=store),
        BM25Retriever.from_texts(["1,0 x", "1,0 1,0"]),
    ):
        bare = FusionRetriever(retrievers=[arm], gate=0.6, k=3)
        wrapped = FusionRetriever(retrievers=[wrap(arm)], gate=0.6, k=3)
        assert wrapped.explain("1,0").arms.keys() == bare.explain("1,0").arms.keys()
        assert wrapped.invoke("1,0") == bare.invoke("1,0")
        assert asyncio.run(wrapped.ainvoke("1,0")) == bare.invoke("1,0")


# --- changes in place


def test_retrievers_and_weights_changed_in_place_take_effect():
    for cls in (EnsembleRetriever, FusionRetriever):
        made = cls(retrievers=[plain("ab"), plain("cd")], weights=[1.0, 0.5])
        assert texts(made.invoke("?"))[0] == "a"
        made.weights[0] = 0.1
        assert texts(made.invoke("?"))[0] == "c"
        made.retrievers[1] = plain("ef")
        assert texts(made.invoke("?"))[0] == "e"
    made.weights[:] = [0.1, 0.2, 0.3]
    with pytest.raises(ConfigError, match="3 weights for 2 arms"):
        made.invoke("?")


def test_a_subclass_may_keep_its_retrievers_in_a_dict():
    class Named(EnsembleRetriever):
        retrievers: dict[str, BaseRetriever]

    made = Named(retrievers={"a": plain("ab"), "b": plain("bc")}, weights=[0.5, 0.5])
    assert texts(made.invoke("?")) == texts(EnsembleRetriever(retrievers=[plain("ab"), plain("bc")]).invoke("?"))


def test_configurable_fields_over_a_memory():
    with HybridMemory(embedder=None) as memory:
        memory.add("Ana drinks tea", id="m1")
        memory.add("Bo drinks tea", id="m2")
        for cls in (FusionRetriever, BM25Retriever, GraphRetriever):
            made = cls.from_memory(memory, k=2).configurable_fields(k=ConfigurableField(id="k"))
            assert len(made.invoke("tea")) == 2
            assert len(made.with_config(configurable={"k": 1}).invoke("tea")) == 1


# --- copies and pickles


@pytest.mark.parametrize(
    "made",
    [
        EnsembleRetriever(retrievers=[BM25Retriever.from_texts(TEXTS)]),
        FusionRetriever(retrievers=[BM25Retriever.from_texts(TEXTS)], k=2),
        BM25Retriever.from_texts(TEXTS),
        VectorRetriever.from_texts(TEXTS, axes),
        GraphRetriever.from_documents(docs(TEXTS)),
    ],
    ids=lambda made: type(made).__name__,
)
def test_retrievers_can_be_copied_and_pickled(made):
    expected = made.invoke("Ana tea")
    assert expected
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.model_copy()):
        assert again.invoke("Ana tea") == expected


def test_results_can_be_pickled_with_their_scores():
    found = BM25Retriever.from_texts(TEXTS).invoke("Ana tea")
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.scores == found.scores
    assert copy.deepcopy(found) == found


def test_without_scores_the_users_own_score_key_stays():
    own = [doc("tea", id="1", score="A+"), doc("coffee and tea", id="2", score="B")]
    arm = BM25Retriever.from_documents(own)
    found = FusionRetriever(retrievers={"bm25": arm}, with_scores=False, gate={"bm25": 0.01}).invoke("tea")
    assert [document.metadata["score"] for document in found] == ["A+", "B"]
    assert [document.metadata["score"] for document in arm.invoke("tea")] == ["A+", "B"]


# --- BM25Retriever as LangChain's


def test_the_fields_of_the_original():
    ours, old = (cls.from_texts(TEXTS, k=2) for cls in (BM25Retriever, OriginalBM25))
    assert texts(ours.docs) == texts(old.docs)
    terms = ours.preprocess_func("Lisbon trams")
    scores = ours.vectorizer.get_scores(terms)
    assert scores.shape == (4,)
    assert int(np.argmax(scores)) == 3
    assert ours.vectorizer.get_batch_scores(terms, [3, 0]) == [scores[3], scores[0]]
    assert ours.vectorizer.get_top_n(terms, ours.docs, n=1) == [ours.docs[3]]
    assert ours.vectorizer.corpus_size == old.vectorizer.corpus_size == 4
    assert ours.vectorizer.doc_len == old.vectorizer.doc_len == [4, 3, 3, 3]
    assert ours.vectorizer.avgdl == old.vectorizer.avgdl == 13 / 4
    assert BM25Retriever.from_texts(TEXTS, bm25_params={"epsilon": 10}).vectorizer.epsilon == 10
    assert TEXTS[0] not in repr(ours)
    exact = BM25Retriever.from_texts(TEXTS, engine="rank-bm25")
    assert isinstance(exact.vectorizer, BM25Okapi)
    assert list(exact.vectorizer.get_scores(["Ana"])) == list(old.vectorizer.get_scores(["Ana"]))


def test_a_vectorizer_of_the_users_own():
    documents = docs(TEXTS)
    vectorizer = BM25Okapi([text.split() for text in TEXTS], k1=2.0)
    for query in ("Ana", "drinks tea", "nothing"):
        old = OriginalBM25(vectorizer=vectorizer, docs=documents, k=3).invoke(query)
        ours = BM25Retriever(vectorizer=vectorizer, docs=documents, k=3)
        assert ours.invoke(query) == asyncio.run(ours.ainvoke(query)) == old
    assert ours.vectorizer is vectorizer
    with pytest.raises(ConfigError, match="cannot be changed"):
        ours.add_documents(docs("x"))


def test_docs_and_vectorizer_can_be_set_later():
    ours, old = (cls.from_texts(TEXTS, k=3) for cls in (BM25Retriever, OriginalBM25))
    for made in (ours, old):
        made.docs = docs([*TEXTS, "new words"])
        made.vectorizer = BM25Okapi([document.page_content.lower().split() for document in made.docs])
        made.preprocess_func = lambda text: text.lower().split()
    for query in ("NEW ana", "Drinks tea"):
        assert texts(ours.invoke(query)) == texts(old.invoke(query))
    ours = BM25Retriever.from_texts(TEXTS)
    ours.vectorizer = BM25Okapi([text.split() for text in TEXTS])
    assert ours.preprocess_func is str.split  # not our analyzer, whose terms it does not know


HOUSES = [doc("die Häuser der Stadt", id="b"), doc("green tea", id="c")]


@pytest.mark.parametrize(
    "change",
    [
        lambda made: setattr(made, "language", "german") or made,
        lambda made: made.model_copy(update={"language": "german"}),
        lambda made: made.configurable_fields(language=ConfigurableField(id="language")).with_config(
            configurable={"language": "german"}
        ),
    ],
    ids=["set", "copied", "configured"],
)
def test_what_the_index_depends_on_can_be_changed_later(change):
    made = BM25Retriever.from_documents(HOUSES)
    assert made.invoke("Haus") == []
    assert texts(change(made).invoke("Haus")) == ["die Häuser der Stadt"]


def test_a_change_keeps_the_documents_and_their_file(tmp_path):
    path = tmp_path / "bm25.db"
    made = BM25Retriever.from_documents(HOUSES)
    made.persist_path = path
    made.k1 = 2.0
    made.add_documents([doc("white tea", id="d")])
    with pytest.raises(ConfigError, match=r"k1 = -1\.0 is not allowed"):
        made.k1 = -1.0
    assert made.k1 == 2.0
    with pytest.raises(ConfigError, match="documents in a file cannot be replaced as a whole"):
        made.docs = []
    assert texts(BM25Retriever.from_documents([], persist_path=path).docs) == texts(made.docs)
    assert len(made.docs) == 3
    made = BM25Retriever.from_documents(HOUSES)
    made.docs = USERS
    assert texts(made.invoke("coffee")) == ["Ana drinks coffee"]


def test_a_seed_can_be_changed_later():
    made = GraphRetriever.from_documents(USERS, hops=0)
    assert texts(made.invoke("coffee")) == ["Ana drinks coffee"]
    made.seed = RunnableLambda(lambda query: [USERS[3]])
    assert texts(made.invoke("coffee")) == [TEXTS[3]]
    other = made.model_copy(update={"seed": RunnableLambda(lambda query: [USERS[0]])})
    assert texts(other.invoke("coffee")) == [TEXTS[0]]
    made.documents = USERS[:3]
    assert made.invoke("coffee") == []
    for broken in (lambda: setattr(made, "hops", -1), lambda: made.model_copy(update={"hops": -1})):
        with pytest.raises(ConfigError, match="hops = -1 is not allowed"):
            broken()
    with pytest.raises(ConfigError, match="has no setting 'hop'"):
        made.model_copy(update={"hop": 1})
    with pytest.raises(ConfigError, match="search_type = 'nearest' is not allowed"):
        VectorRetriever.from_texts(TEXTS, axes).search_type = "nearest"


def test_settings_that_the_original_ignores_are_ignored_and_logged(caplog):
    made = BM25Retriever.from_documents(docs(TEXTS), search_kwargs={"k": 2}, nonsense=1)
    assert texts(made.invoke("tea")) == ["Bo drinks tea"]
    assert "ignores unknown settings: search_kwargs, nonsense" in caplog.text


@pytest.mark.parametrize("k", ["2", np.int64(2), np.int32(2)])
def test_k_is_coerced(k):
    made = BM25Retriever.from_texts(TEXTS, k=k)
    assert made.k == 2
    assert len(made.invoke("Ana Lisbon drinks")) == 2


def test_the_positional_order_of_the_original():
    metadatas, ids = [{"n": n} for n in range(4)], list("abcd")
    made = BM25Retriever.from_texts(TEXTS, metadatas, ids, {"k1": 2.0}, str.split)
    assert [(d.id, d.metadata) for d in made.docs] == list(zip(ids, metadatas, strict=True))
    assert made.preprocess_func is str.split
    assert made._corpus().index.k1 == 2.0


def test_two_documents_with_the_same_id_stay_two_and_an_empty_id_is_none():
    made = BM25Retriever.from_documents(
        [doc("tea one", id="x"), doc("tea two", id="x"), doc("tea", id=""), doc("tea", id="")]
    )
    assert len(made.docs) == len(made.invoke("tea", k=9)) == 4


# --- messages


def test_messages_say_what_is_meant():
    made = BM25Retriever.from_texts(TEXTS)
    with pytest.raises(ConfigError, match=r"mode = 'reciprocal_rerank' is not allowed.*'rrf'"):
        FusionRetriever(retrievers=[made], mode="reciprocal_rerank")
    for cls in (EnsembleRetriever, FusionRetriever):
        with pytest.raises(ConfigError, match="query = None is not allowed: invoke takes the query as a str"):
            cls(retrievers=[made]).invoke(None)
    for retriever in (made, VectorRetriever.from_texts(TEXTS, axes), GraphRetriever.from_documents(USERS)):
        for query in (None, ["Ana"]):
            with pytest.raises(ConfigError, match="is not allowed: invoke takes the query as a str"):
                retriever.invoke(query)
            with pytest.raises(ConfigError, match="is not allowed: invoke takes the query as a str"):
                asyncio.run(retriever.ainvoke(query))


@pytest.mark.parametrize(
    "use",
    [
        FusionRetriever.from_memory,
        BM25Retriever.from_memory,
        VectorRetriever.from_memory,
        GraphRetriever.from_memory,
        HybridStore,
        HybridVectorStore,
        MemoryMiddleware,
        memory_tools,
    ],
    ids=lambda use: use.__qualname__,
)
def test_a_path_is_not_a_memory(use):
    with pytest.raises(ConfigError, match=r"memory = 'm\.db' is not allowed: .*: HybridMemory\('m\.db'\) opens one"):
        use("m.db")


def test_messages_say_what_to_give_instead():
    store = InMemoryVectorStore(Axes())
    with pytest.raises(ConfigError, match=r"is a InMemoryVectorStore: .*; use its as_retriever\(\)"):
        FusionRetriever(retrievers=[store])
    with HybridMemory(embedder=None) as memory:
        with pytest.raises(ConfigError, match=r"is a HybridMemory: .*; use FusionRetriever\.from_memory\(memory\)"):
            FusionRetriever(retrievers=[memory])
        with pytest.raises(ConfigError, match=r"documents\[1\] = 'b' is not allowed: a Document is needed"):
            add_documents(memory, [doc("a"), "b"])
    with pytest.raises(ConfigError, match=r"documents\[0\] = 'b' is not allowed: a Document is needed"):
        BM25Retriever.from_texts(TEXTS).add_documents(["b"])


def test_two_texts_under_one_id_stay_two_documents():
    """Chunks that keep the id of their document are not one document, and do not share metadata."""
    chunks = [doc("the first part", id="d", page=1), doc("the second part", id="d", page=2), doc("other", id="e")]
    again = [doc("the second part", id="d", shelf=7), doc("a third part", id="d")]
    arms = [RunnableLambda(lambda _: chunks), RunnableLambda(lambda _: again)]
    retriever = FusionRetriever(retrievers=arms, k=None)
    found = retriever.invoke("?")
    assert [(one.page_content, one.id) for one in found] == [
        ("the second part", "d"),
        ("the first part", "d"),
        ("a third part", "d"),
        ("other", "e"),
    ]
    assert found[0].metadata == {"page": 2, "shelf": 7, "score": found[0].metadata["score"]}
    assert found[0].metadata["score"] == pytest.approx((1 / 62 + 1 / 61) / (2 / 61))
    assert "shelf" not in found[1].metadata
    assert [one.key for one in retriever.explain("?").receipts] == ["d#2", "d", "d#3", "e"]
    assert texts(FusionRetriever(retrievers=arms, id_key=lambda one: one.id).invoke("?")) == ["the first part", "other"]
