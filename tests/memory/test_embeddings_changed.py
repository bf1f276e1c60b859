"""Two processes and two embedders: the vectors of a store and the recorded embedder always belong together."""

import pytest

from hybridmem import HybridMemory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import EmbeddingError
from hybridmem.memory.embeddings import recorded

OLD = as_embedder(lambda texts: [[1.0, float(len(text))] for text in texts], name="old")
NEW = as_embedder(lambda texts: [[float(len(text)), -1.0] for text in texts], name="new")


@pytest.fixture(params=["sqlite", "markdown", "postgres"])
def opened(request, tmp_path):
    """Opens one store again and again, as several processes would."""
    where, options = {"sqlite": tmp_path / "m.db", "markdown": f"{tmp_path}/notes/"}.get(request.param), {}
    if where is None:
        where, options = request.getfixturevalue("pg_url"), {"schema": request.getfixturevalue("schema")}
    opened = []

    def one(embedder):
        opened.append(HybridMemory(where, embedder=embedder, **options))
        return opened[-1]

    yield one
    for memory in opened:
        memory.close()


def cosine(memory):
    return memory.search_arm("vector", "the cat", k=1)[0].score


def test_an_open_process_notices_another_embedder(opened):
    first, second = opened(OLD), opened(None)
    first.add("the cat", id="a")
    assert cosine(first) == pytest.approx(1.0)
    second.reindex(embedder=NEW)
    with pytest.raises(EmbeddingError, match=r"'new'.*'old'"):
        first.search("the cat")
    with pytest.raises(EmbeddingError, match=r"'new'.*'old'"):
        first.add("the dog")
    assert cosine(second) == pytest.approx(1.0)


def test_an_open_process_with_the_same_embedder_goes_on(opened):
    first, second = opened(OLD), opened(OLD)
    first.add("the cat", id="a")
    second.reindex()
    assert cosine(first) == pytest.approx(1.0)


def test_of_two_reindexes_at_once_the_later_wins(opened):
    """The second starts while the first embeds, and ends before the first goes on."""
    first, second = opened(None), opened(None)
    first.add("the cat", id="a")
    began = []

    def slow(texts):
        if list(texts) == ["the cat"] and not began:
            began.append(True)
            second.reindex(embedder=NEW)
        return [[1.0, float(len(text))] for text in texts]

    with pytest.raises(EmbeddingError, match="another reindex"):
        first.reindex(embedder=as_embedder(slow, name="slow"))
    assert recorded(second.store)["name"] == "new"
    assert cosine(second) == pytest.approx(1.0)
    assert first.arms == ("bm25",)
    assert [result.id for result in first.search("cat")] == ["a"]
