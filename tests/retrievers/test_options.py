"""Keywords that do not exist are refused with the name that was meant; what a subclass overrides is found."""

import pytest

from hybridmem.errors import ConfigError
from hybridmem.retrievers.options import overrides, refuse_keywords, refuse_settings, taken
from langchain_hybridmem import BM25Retriever

KNOWN = ("similarity_top_k", "filters", "retriever_weights")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("k", " (did you mean 'similarity_top_k'?)"),
        ("top_k", " (did you mean 'similarity_top_k'?)"),
        ("filter", " (did you mean 'filters'?)"),
        ("weights", " (did you mean 'retriever_weights'?)"),
        ("retreiver_weights", " (did you mean 'retriever_weights'?)"),
        ("colour", ""),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_name_that_was_meant(given, hint):
    names = "similarity_top_k, filters, retriever_weights"
    with pytest.raises(ConfigError) as refused:
        refuse_settings("FusionRetriever", [given], KNOWN)
    assert str(refused.value) == f"FusionRetriever has no setting {given!r}{hint}: the settings are {names}"
    with pytest.raises(ConfigError) as refused:
        refuse_keywords("retrieve", {"filters": None, given: 1}, iter(KNOWN))
    assert str(refused.value) == f"retrieve does not know {given!r}{hint}: it takes {names}"


def test_known_keywords_pass():
    refuse_settings("FusionRetriever", KNOWN, KNOWN)
    refuse_keywords("retrieve", {}, ())
    with pytest.raises(ConfigError, match="delete does not know 'x': it takes none"):
        refuse_keywords("delete", {"x": 1}, ())


def test_a_method_gets_the_keywords_that_it_takes():
    assert taken(lambda query, *, k: None, {"k": 1, "filter": 2}) == {"k": 1}
    assert taken(lambda query, **more: None, {"k": 1, "filter": 2}) == {"k": 1, "filter": 2}


def test_the_methods_of_a_users_subclass():
    class Own(BM25Retriever):
        def _get_relevant_documents(self, query):
            return []

    class Further(Own):
        pass

    for cls, expected in ((BM25Retriever, False), (Own, True), (Further, True)):
        assert overrides(cls, "_get_relevant_documents", "langchain_hybridmem") is expected
        assert overrides(cls, "_aget_relevant_documents", "langchain_hybridmem") is False
