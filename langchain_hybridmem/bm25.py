"""BM25Retriever: exact BM25 over documents or a memory, with the parameters of LangChain's class of that name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from langchain_core.documents import Document
from pydantic import ConfigDict, Field
from typing_extensions import Unpack

from hybridmem.core import validation
from hybridmem.core.fanout import Job, Steps, in_thread, one_job
from hybridmem.errors import ConfigError
from hybridmem.indexes.engines.rank_bm25 import RankBM25Index
from hybridmem.retrievers.arms import memory_hits
from hybridmem.retrievers.lexical import EngineName, LexicalCorpus, LexicalHit, LexicalSettings, check_fields, fields_of
from hybridmem.retrievers.options import check_items, check_memory
from langchain_hybridmem._conversion import ScoredDocuments, to_document
from langchain_hybridmem._runs import SearchRetriever
from langchain_hybridmem._settings import (
    Built,
    FilterOption,
    HybridMemory,
    TimeOption,
    call_settings,
    clear_errors,
    documents_of_texts,
)
from langchain_hybridmem._vectorstores import check_of

if TYPE_CHECKING:
    from langchain_hybridmem._settings import BM25Settings, MemoryBM25Settings

__all__ = ["BM25Retriever", "CorpusScores", "Vectorizer"]

Self = TypeVar("Self", bound="BM25Retriever")
_CALL = ("k", "filter", "with_scores", "as_of", "namespace")
_LEXICAL = {
    "engine": "engine",
    "k1": "k1",
    "b": "b",
    "language": "language",
    "preprocess_func": "terms",
    "bm25_variant": "variant",
    "bm25_params": "params",
}
"""Settings of the lexical engine, and their names in LexicalSettings."""
_INDEXED = frozenset({*_LEXICAL, "documents", "fields", "persist_path", "memory"})
"""Fields that the index is made of."""

log = logging.getLogger(__name__)


class Vectorizer(Protocol):
    """What ranks a corpus, such as `rank_bm25.BM25Okapi`."""

    def get_scores(self, query: list[str], /) -> npt.NDArray[np.float64]:
        """The score of every document for these terms."""
        ...

    def get_top_n(self, query: list[str], documents: list[Any], n: int = 5) -> list[Any]:
        """The n best of the documents."""
        ...


class BM25Retriever(SearchRetriever):
    """Exact BM25 over documents, which can be added, deleted, filtered and kept in a file.

    >>> retriever = BM25Retriever.from_texts(["Ana moved to Lisbon", "Bo drinks tea"], k=1)
    >>> [document.page_content for document in retriever.invoke("Who moved?")]
    ['Ana moved to Lisbon']

    Changing the import from LangChain's class is enough. What differs: words are folded and stemmed, a document that
    shares no word with the query is not a result, and an empty corpus is allowed. `engine="rank-bm25"` gives the
    original's ranking exactly. `k`, `filter` and `with_scores` can be set here and again in `invoke(query, …)`.
    Unknown settings are ignored, as the original does, and logged.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    documents: list[Document] | None = Field(default=None, repr=False, exclude=True)
    """Documents to begin with; `add_documents` and `delete` change them later. `docs=` is another name for it."""
    memory: HybridMemory | None = None
    """A HybridMemory to search instead."""
    k: int = 4
    filter: FilterOption | None = None
    """`{"lang": "en"}` or a function of the document."""
    with_scores: bool = False
    """Put the BM25 score into `metadata["score"]`, on copies."""
    engine: EngineName | None = None
    """`hybridmem` (ours), `fts5` or `rank-bm25`. None: ours, unless `bm25_variant` or `bm25_params` need rank-bm25."""
    k1: float | None = None
    b: float | None = None
    if TYPE_CHECKING:  # never None in a retriever over documents
        preprocess_func: Callable[[str], list[str]] = Field(default=str.split)
    else:
        preprocess_func: Callable[[str], list[str]] | None = None
    """Text → terms, for documents and queries. None: our analyzer."""
    bm25_variant: Literal["okapi", "l", "plus"] | None = None
    """A class of rank-bm25: it chooses that engine. None: ours."""
    bm25_params: dict[str, Any] | None = None
    """`{"k1": 1.5, "b": 0.75}`; rank-bm25 knows `epsilon` and `delta` too."""
    language: str | None = None
    """Of the stemmer and the stop words: `english`, `german`, …; `none` for neither."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Metadata that is searched too: `{"title": "headline", "tags": "topics"}`. A title's words count twice."""
    persist_path: str | Path | None = None
    """A SQLite file that keeps the documents and the index; documents in it are loaded. For one process."""
    as_of: TimeOption = None
    namespace: str | None = None

    built: Built | None = Field(default=None, repr=False, exclude=True)
    """The index over `documents`, for a retriever that is made from this one's fields."""

    if TYPE_CHECKING:  # fields of the original, which are properties here
        docs: list[Document] = Field(default_factory=list)
        vectorizer: Vectorizer = Field(default=cast("Vectorizer", None))

    else:

        def __init__(self, **settings: Any) -> None:  # a wrong setting is a ConfigError, not pydantic's own error
            vectorizer = settings.pop("vectorizer", None)
            if "docs" in settings:
                settings["documents"] = settings.pop("docs")
            ignored = [name for name in settings if name not in type(self).model_fields]
            if ignored:
                log.warning("%s ignores unknown settings: %s", type(self).__name__, ", ".join(ignored))
            if "k" in settings:
                settings["k"] = _coerced(settings["k"])
            _checked(settings)
            with clear_errors():
                super().__init__(**settings)
            if vectorizer is not None:
                self._rank_by(vectorizer, self.documents or [], self.preprocess_func)
            elif self.memory is None:
                lexical = _checked({name: getattr(self, name) for name in BM25Retriever.model_fields})
                super()._change(
                    {"built": self._build(lexical), "preprocess_func": lexical.analyzer, "documents": None}
                )  # the index has the documents

    def _change(self, settings: Mapping[str, Any]) -> None:
        """Set fields; the documents are indexed again where their index depends on them."""
        before, documents = self.built, settings.get("documents")
        if _INDEXED.isdisjoint(settings) or (before is None and self.memory is None):  # else the index is made later
            super()._change(settings)
            return
        if before is not None and isinstance(before.index, _GivenVectorizer):
            super()._change({**settings, "documents": None})
            items = before.index.items if documents is None else documents
            self._rank_by(before.index.vectorizer, items, self.preprocess_func)
            return
        given = {name: getattr(self, name) for name in BM25Retriever.model_fields}
        if self.persist_path is not None or settings.get("persist_path") is not None:
            if documents is not None:
                raise ConfigError("documents in a file cannot be replaced as a whole: use add_documents and delete")
            given["documents"] = self.docs  # the file has them, and keeps them
        made = BM25Retriever(**{**given, **settings})
        super()._change({**settings, "built": made.built, "preprocess_func": made.preprocess_func, "documents": None})

    def _rank_by(
        self, vectorizer: Vectorizer, documents: Sequence[Document], terms: Callable[[str], list[str]] | None
    ) -> None:
        """Rank by a vectorizer of the user's own; terms are the original's by default."""
        terms = terms or str.split
        built = Built(_GivenVectorizer(vectorizer, documents, terms), ())
        super()._change({"built": built, "preprocess_func": terms, "documents": None})

    def _build(self, lexical: LexicalSettings) -> Built:
        before = None if self.documents is not None else self.built
        if before is not None and before.settings in ((), (lexical, self.fields)):
            return before
        path = self.persist_path if before is None else None
        corpus = LexicalCorpus.at(path, lexical, write=_plain, read=_document)
        corpus.begin(self._rows((self.documents or []) if before is None else before.index.items))
        return Built(corpus, (lexical, self.fields))

    # --- constructors

    @classmethod
    def from_texts(
        cls: type[Self],
        texts: Iterable[str],
        metadatas: Iterable[Mapping[str, Any]] | None = None,
        ids: Iterable[str | None] | None = None,
        bm25_params: dict[str, Any] | None = None,
        preprocess_func: Callable[[str], list[str]] | None = None,
        **settings: Unpack[BM25Settings],
    ) -> Self:
        """Over texts, with metadata and ids when given."""
        documents = documents_of_texts(texts, metadatas, ids)
        given: Any = {"bm25_params": bm25_params, "preprocess_func": preprocess_func, **settings}
        return cls(documents=documents, **given)

    @classmethod
    def from_documents(
        cls: type[Self],
        documents: Iterable[Document],
        *,
        bm25_params: dict[str, Any] | None = None,
        preprocess_func: Callable[[str], list[str]] | None = None,
        **settings: Unpack[BM25Settings],
    ) -> Self:
        """Over documents; two with the same id stay two."""
        given: Any = {"bm25_params": bm25_params, "preprocess_func": preprocess_func, **settings}
        return cls(documents=list(documents), **given)

    @classmethod
    def from_memory(cls: type[Self], memory: HybridMemory, /, **settings: Unpack[MemoryBM25Settings]) -> Self:
        """Over a HybridMemory: its BM25 arm alone, with raw scores."""
        return cls(memory=memory, **settings)

    # --- documents

    if not TYPE_CHECKING:  # type checkers read the fields above

        @property
        def docs(self) -> list[Document]:
            """All documents, in the order in which they were added."""
            if self.built is None:
                raise ConfigError("this BM25Retriever has no documents of its own: its memory has them")
            items: list[Document] = self.built.index.items
            return items

        @docs.setter
        def docs(self, documents: Iterable[Document]) -> None:
            self._change({"documents": list(documents)})

        @property
        def vectorizer(self) -> Vectorizer:
            """An object with rank-bm25's `get_scores(terms)` and `get_top_n(terms, documents, n)`, over `docs`.

            It is the one that was given or set, rank-bm25's own with that engine, else `CorpusScores` with our scores.
            """
            if self.built is None:
                raise ConfigError("this BM25Retriever has no documents of its own: its memory ranks them")
            index = self.built.index
            own: Vectorizer
            if isinstance(index, _GivenVectorizer):
                own = index.vectorizer
                return own
            if isinstance(index.index, RankBM25Index):
                own = index.index.vectorizer
                return own
            return CorpusScores(index)

        @vectorizer.setter
        def vectorizer(self, vectorizer: Vectorizer) -> None:
            self._rank_by(vectorizer, self.docs, _given_terms(self.preprocess_func, self.built))

    def add_documents(self, documents: Sequence[Document], /) -> list[str]:
        """Add documents, or replace those of the same id; returns the ids to delete them by."""
        return self._corpus().put(self._rows(documents))

    async def aadd_documents(self, documents: Sequence[Document], /) -> list[str]:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.add_documents(documents))

    def delete(self, ids: Sequence[str], /) -> bool:
        """Remove documents by their ids; False when none was there."""
        return self._corpus().remove(ids) > 0

    async def adelete(self, ids: Sequence[str], /) -> bool:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.delete(ids))

    def _corpus(self) -> LexicalCorpus[Document]:
        if self.built is None:
            raise ConfigError("this BM25Retriever has no documents of its own: change them in its memory")
        if isinstance(self.built.index, _GivenVectorizer):
            raise ConfigError("a BM25Retriever with a vectorizer of its own cannot be changed: set docs and vectorizer")
        corpus: LexicalCorpus[Document] = self.built.index
        return corpus

    def _rows(self, documents: Sequence[Document]) -> list[tuple[str | None, dict[str, str], Document]]:
        return [
            (document.id, fields_of(document.page_content, document.metadata, self.fields), document)
            for document in check_items("documents", documents, Document)
        ]

    # --- search

    def _found(self, query: str, given: Mapping[str, Any]) -> Steps[list[Document]]:
        call = call_settings(self, _CALL, given)
        k = validation.k(_coerced(call["k"]))
        if self.memory is not None:
            wanted = {"k": k, **{name: call[name] for name in ("filter", "as_of", "namespace")}}
            results = yield from memory_hits(self.memory, "bm25", query, wanted)
            scored = [(to_document(result.memory), result.score) for result in results]
        elif self.built is None:
            raise ConfigError("this BM25Retriever has neither documents nor a memory")
        else:
            index, check = self.built.index, None if call["filter"] is None else check_of(call["filter"])
            search, asearch = (partial(one, query, k=k, check=check) for one in (index.search, index.asearch))
            scored = yield from one_job(Job("bm25", search, asearch))
        return ScoredDocuments.of(scored, marked=call["with_scores"])


class CorpusScores:
    """The scores of a corpus with the methods of rank-bm25: `get_scores`, `get_batch_scores` and `get_top_n`."""

    def __init__(self, corpus: LexicalCorpus[Document], /) -> None:
        self._corpus = corpus

    @property
    def corpus_size(self) -> int:
        """The number of documents."""
        return len(self._corpus)

    @property
    def doc_len(self) -> list[int]:
        """The number of words of each document, split at white space."""
        return [len(document.page_content.split()) for document in self._corpus.items]

    @property
    def avgdl(self) -> float:
        """The mean of `doc_len`."""
        lengths = self.doc_len
        return sum(lengths) / len(lengths) if lengths else 0.0

    def get_scores(self, query: Sequence[str]) -> npt.NDArray[np.float64]:
        """The score of every document for these terms, in the order of `docs`."""
        keys = self._corpus.keys
        hits = self._corpus.index.search(list(query), k=max(1, len(keys)))
        scores = dict(zip(hits.ids, hits.scores, strict=True))
        return np.array([scores.get(key, 0.0) for key in keys], dtype=np.float64)

    def get_batch_scores(self, query: Sequence[str], doc_ids: Sequence[int]) -> list[float]:
        """The scores of some documents, by their places in `docs`."""
        scores = self.get_scores(query)
        return [float(scores[place]) for place in doc_ids]

    def get_top_n(self, query: Sequence[str], documents: Sequence[Any], n: int = 5) -> list[Any]:
        """The n best of `documents`, which must be in the order of `docs`."""
        if len(documents) != self.corpus_size:
            raise ConfigError(f"{len(documents)} documents for an index of {self.corpus_size}")
        return [documents[place] for place in np.argsort(self.get_scores(query))[::-1][:n]]


class _GivenVectorizer:
    """Documents ranked by the vectorizer of the user, as the original does: by `get_scores`, the last first in ties."""

    def __init__(self, vectorizer: Vectorizer, items: Sequence[Document], terms: Callable[[str], list[str]]) -> None:
        self.vectorizer, self.items, self._terms = vectorizer, list(items), terms

    def search(self, query: str, /, *, k: int, check: Callable[[Document], bool] | None = None) -> list[LexicalHit]:
        """The k best documents that pass the check."""
        scores = self.vectorizer.get_scores(list(self._terms(query)))
        hits = [LexicalHit(self.items[place], float(scores[place])) for place in np.argsort(scores)[::-1]]
        return [hit for hit in hits if check is None or check(hit.item)][:k]

    async def asearch(
        self, query: str, /, *, k: int, check: Callable[[Document], bool] | None = None
    ) -> list[LexicalHit]:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.search(query, k=k, check=check))


def _coerced(k: Any) -> Any:
    """A number of results given as text or as a numpy number, as pydantic would read it."""
    if isinstance(k, str) and k.strip().isdecimal():
        return int(k)
    return k.item() if isinstance(k, np.generic) else k


def _plain(document: Document) -> dict[str, Any]:
    return {"text": document.page_content, "metadata": document.metadata, "id": document.id}


def _document(value: Any) -> Document:
    return Document(value["text"], metadata=value["metadata"], id=value["id"])


def _given_terms(terms: Callable[[str], list[str]] | None, built: Built | None) -> Callable[[str], list[str]] | None:
    """The user's function to terms; None for the default, which a retriever has in `preprocess_func` too."""
    lexical: LexicalSettings | None = built.settings[0] if built is not None and built.settings else None
    return None if lexical is not None and lexical.terms is None and terms == lexical.analyzer else terms


def _checked(settings: Mapping[str, Any]) -> LexicalSettings:
    given = {name: settings[name] for name in _LEXICAL if settings.get(name) is not None}
    if settings.get("memory") is not None:
        own = [*given, *(name for name in ("documents", "fields", "persist_path") if settings.get(name))]
        if own:
            raise ConfigError(f"{own[0]} does not go with a memory, which has a lexical index of its own")
        check_memory(settings["memory"])
    if "k" in settings:
        validation.k(settings["k"])
    check_fields(settings.get("fields"))
    if settings.get("filter") is not None and not callable(settings["filter"]):
        check_of(settings["filter"])
    terms = _given_terms(given.pop("preprocess_func", None), settings.get("built"))
    lexical = LexicalSettings(**{_LEXICAL[name]: value for name, value in given.items()}, pad=True)
    if terms is None:
        return lexical
    return LexicalSettings(**{_LEXICAL[name]: value for name, value in given.items()}, terms=terms, pad=True)
