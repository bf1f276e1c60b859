"""GraphRetriever over documents that mention each other: the same ids in both frameworks."""

from langchain_core.documents import Document
from llama_index.core.schema import TextNode

from langchain_hybridmem import GraphRetriever as LangChainGraph
from llamaindex_hybridmem import GraphRetriever as LlamaGraph

TEXTS = {
    "film": ("Ed Wood is a film that was directed by Tim Burton.", {"title": "Ed Wood (film)"}),
    "director": ("An artist, born in Burbank.", {"name": "Tim Burton"}),
    "city": ("In California.", {"file_name": "Burbank.md", "aliases": ["Media capital"]}),
    "diary": ("See the media capital and [[Tim Burton]].", {}),
    **{f"n{n}": (f"note {n} about gardening", {}) for n in range(40)},
}
QUESTION = "who directed the film Ed Wood"


def both(question, **settings):
    documents = [Document(text, id=id_, metadata=dict(more)) for id_, (text, more) in TEXTS.items()]
    nodes = [TextNode(text=text, id_=id_, metadata=dict(more)) for id_, (text, more) in TEXTS.items()]
    k = settings.pop("k", 4)
    one = LangChainGraph(documents=documents, k=k, **settings).invoke(question)
    two = LlamaGraph(nodes, similarity_top_k=k, **settings).retrieve(question)
    assert [document.id for document in one] == [found.node.id_ for found in two]
    return [document.id for document in one]


def test_titles_of_three_keys_are_followed_hop_by_hop():
    assert both(QUESTION, k=3) == ["film", "director", "city"]
    assert set(both("diary see", k=3)) == {"diary", "director", "city"}


def test_hops_and_title_key_limit_what_is_reached():
    assert both(QUESTION, hops=1) == ["film", "director"]
    assert both(QUESTION, title_key="heading") == ["film"]
