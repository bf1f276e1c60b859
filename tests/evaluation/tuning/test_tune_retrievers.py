"""Tuning the retrievers of both frameworks: their arms are recorded, and the tuned recipe goes back into them."""

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from hybridmem import HybridMemory, SourceDedup
from hybridmem.evaluation.evaluate import Case
from hybridmem.evaluation.tuning.tune import tune
from langchain_hybridmem import FusionRetriever
from llamaindex_hybridmem import FusionRetriever as NodeFusion
from tests.support.llama_fakes import Fixed, scored

CASES = [Case(f"q{number}", {f"right{number}": 1.0}) for number in range(30)]


def keys(query, arm):
    """The good arm has the answer at 1, 2 and 3 in turn; the bad arm never."""
    number = int(query[1:])
    if arm == "bad":
        return [f"noise{number}-{place}" for place in range(6)]
    return [f"right{number}" if place == number % 3 else f"other{number}-{place}" for place in range(6)]


def langchain_arm(arm):
    return RunnableLambda(
        lambda query: [Document(key, id=key, metadata={"source": "same"}) for key in keys(query, arm)]
    )


def llama_arm(arm):
    return Fixed({case.query: scored(keys(case.query, arm)) for case in CASES})


@pytest.mark.parametrize(
    "retriever",
    [
        FusionRetriever(
            retrievers={"good": langchain_arm("good"), "bad": langchain_arm("bad")}, weights={"good": 0.2, "bad": 0.8}
        ),
        NodeFusion({"good": llama_arm("good"), "bad": llama_arm("bad")}, retriever_weights={"good": 0.2, "bad": 0.8}),
    ],
    ids=["langchain", "llamaindex"],
)
def test_a_retriever_is_tuned(retriever):
    tuned = tune(retriever, CASES, folds=3, repeats=1)
    assert tuned.accepted
    assert tuned.recipe.weights["good"] > tuned.recipe.weights["bad"]
    # the good arm alone: the answer stands at 1, 2, 3 in turn, so nDCG is the mean of 1, 1/log2(3) and 1/2
    assert tuned.arms == pytest.approx({"good": (1 + 0.6309297535714575 + 0.5) / 3, "bad": 0.0})


def test_stages_read_the_fields_of_documents():
    arms = {"good": langchain_arm("good"), "bad": langchain_arm("bad")}
    retriever = FusionRetriever(retrievers=arms, dedup=SourceDedup(key="source"))
    tuned = tune(retriever, CASES, folds=3, repeats=1)
    assert tuned.before < 0.4  # one chunk of the source survives: the answer only when it is first


def test_a_retriever_over_a_memory_tunes_the_memory():
    with HybridMemory(embedder=None, recipe="rrf") as memory:
        for number in range(12):
            memory.add(f"We went to town{number}.", id=f"trip{number}", thread=f"t{number}")
            memory.add("All was closed.", id=f"answer{number}", thread=f"t{number}")
        cases = [Case(f"Who saw town{number}?", {f"answer{number}": 1.0}) for number in range(12)]
        assert tune(FusionRetriever.from_memory(memory), cases, folds=3, repeats=1).curve is not None
