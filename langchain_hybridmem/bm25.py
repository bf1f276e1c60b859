"""BM25Retriever: exact, live BM25 over documents or a memory, with the parameters of LangChain's class of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from hybridmem.core.fanout import in_thread
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.documents import WEIGHTS, check_k
from hybridmem.retrievers.lexical import Engine, Shelf, Words
from langchain_hybridmem._conversion import to_document, with_metadata
from langchain_hybridmem._filtering import check_of
from langchain_hybridmem._settings import Kept, asked_of, clear_errors, documents_of_texts, refuse_unknown

__all__ = ["BM25Retriever"]

Self = TypeVar("Self", bound="BM25Retriever")
_CALL = ("k", "filter", "with_scores", "as_of", "namespace")
_OF_MEMORY = ("as_of", "namespace")


class BM25Retriever(BaseRetriever):
    """Words, exact and live: documents can be added, deleted, filtered and kept in a file.

    >>> retriever = BM25Retriever.from_texts(["Ana moved to Lisbon", "Bo drinks tea"], k=1)
    >>> [document.page_content for document in retriever.invoke("Who moved?")]
    ['Ana moved to Lisbon']

    Changing the import from LangChain's class is enough. What differs: words are folded and stemmed, a document that
    shares no word with the query is not a result, and an empty corpus is legal. `engine="rank-bm25"` gives the old
    ranking exactly. `k`, `filter` and `with_scores` can be set here and said again in `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    documents: list[Document] | None = Field(default=None, repr=False, exclude=True)
    """Documents to begin with; `add_documents` and `delete` change them later."""
    memory: Any = None
    """A HybridMemory to ask instead."""
    k: int = 4
    filter: Any = None
    """`{"lang": "en"}` or a function of the document."""
    with_scores: bool = False
    """Put the BM25 score into `metadata["score"]`, on copies."""
    engine: Engine | None = None
    """`hybridmem` (ours), `fts5` or `rank-bm25`. None: ours, unless `bm25_variant` or `bm25_params` need rank-bm25."""
    k1: float | None = None
    b: float | None = None
    preprocess_func: Callable[[str], list[str]] | None = None
    """Text → terms, for documents and queries. None: our analyzer."""
    bm25_variant: Literal["okapi", "l", "plus"] = "okapi"
    bm25_params: dict[str, Any] | None = None
    """`{"k1": 1.5, "b": 0.75}`; rank-bm25 knows `epsilon` and `delta` too."""
    language: str | None = None
    """Of the stemmer and the stop words: `english`, `german`, …; `none` for neither."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Metadata that is searched too: `{"title": "headline", "tags": "topics"}`. A title's words count twice."""
    persist_path: str | Path | None = None
    """A file that keeps the documents and the index; what it holds already is there again. For one process."""
    as_of: Any = None
    namespace: str | None = None

    kept: Kept | None = Field(default=None, repr=False, exclude=True)
    """What `documents` became, for a retriever that is made from this one's fields."""

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:
            """Check every setting with a ConfigError, before pydantic would wrap it into its own."""
            words = _checked(type(self), settings)
            with clear_errors():
                super().__init__(**settings)
            if self.memory is None:
                self.kept = self._shelved(words)
                self.documents = None  # the shelf has them

    def _shelved(self, words: Words) -> Kept:
        known, how = None if self.documents is not None else self.kept, (words, self.fields)
        if known is not None and known.how == how:
            return known
        path = self.persist_path if known is None else None
        shelf = Shelf.at(path, words, write=_plain, read=_document)
        shelf.begin(self._rows((self.documents or []) if known is None else known.things.items))
        return Kept(shelf, how)

    # --- ways in

    @classmethod
    def from_texts(
        cls: type[Self],
        texts: Iterable[str],
        metadatas: Iterable[Mapping[str, Any]] | None = None,
        ids: Iterable[str | None] | None = None,
        **settings: Any,
    ) -> Self:
        """Over texts, with metadata and ids when given."""
        return cls(documents=documents_of_texts(texts, metadatas, ids), **settings)

    @classmethod
    def from_documents(cls: type[Self], documents: Iterable[Document], **settings: Any) -> Self:
        """Over documents; one with the id of an earlier one replaces it."""
        return cls(documents=list(documents), **settings)

    @classmethod
    def from_memory(cls: type[Self], memory: Any, /, **settings: Any) -> Self:
        """Over a HybridMemory: its BM25 arm alone, with raw scores."""
        return cls(memory=memory, **settings)

    # --- changing the documents

    @property
    def docs(self) -> list[Document]:
        """All documents, in the order in which they came."""
        return self._own().items

    def add_documents(self, documents: Sequence[Document], /) -> list[str]:
        """Add documents, or replace those of the same id; the next query sees them. Gives the ids to delete them by."""
        return self._own().put(self._rows(documents))

    async def aadd_documents(self, documents: Sequence[Document], /) -> list[str]:
        """The same without blocking the event loop."""
        added: list[str] = await in_thread(lambda: self.add_documents(documents))
        return added

    def delete(self, ids: Sequence[str], /) -> bool:
        """Take documents out by their ids; False when none was there."""
        return self._own().remove(ids) > 0

    async def adelete(self, ids: Sequence[str], /) -> bool:
        """The same without blocking the event loop."""
        deleted: bool = await in_thread(lambda: self.delete(ids))
        return deleted

    def _own(self) -> Shelf[Document]:
        if self.kept is None:
            raise ConfigError("this BM25Retriever has no documents of its own: change them in its memory")
        shelf: Shelf[Document] = self.kept.things
        return shelf

    def _rows(self, documents: Sequence[Document]) -> list[tuple[str | None, dict[str, str], Document]]:
        return [(document.id, self._words(document), document) for document in documents]

    def _words(self, document: Document) -> dict[str, str]:
        texts = {"text": document.page_content}
        for field, name in self.fields.items():
            value = document.metadata.get(name)
            if value is not None:
                texts[field] = " ".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)
        return texts

    # --- asking

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
        filter: Any = None,
        with_scores: bool | None = None,
        as_of: Any = None,
        namespace: str | None = None,
        **unknown: Any,
    ) -> list[Document]:
        said = {"k": k, "filter": filter, "with_scores": with_scores, "as_of": as_of, "namespace": namespace}
        asked = self._asked({**unknown, **said})
        if self.memory is not None:
            return _from_memory(self.memory.search_arm("bm25", query, **_how(asked)), asked)
        found = self._own().search(query, k=asked["k"], check=_check(asked))
        return [_shown(item, score, asked) for item, score in found]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
        **said: Any,
    ) -> list[Document]:
        asked = self._asked({**said, "k": k})
        if self.memory is not None:
            memory = self.memory
            return _from_memory(await memory.asearch_arm("bm25", query, **_how(asked)), asked)
        found = await self._own().asearch(query, k=asked["k"], check=_check(asked))
        return [_shown(item, score, asked) for item, score in found]

    def _asked(self, said: dict[str, Any]) -> dict[str, Any]:
        asked = asked_of(self, _CALL, said)
        check_k(asked["k"])
        return asked


def _how(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a memory's arm is told."""
    return {name: asked[name] for name in ("k", "filter", *_OF_MEMORY) if asked[name] is not None}


def _check(asked: Mapping[str, Any]) -> Callable[[Document], bool] | None:
    return None if asked["filter"] is None else check_of(asked["filter"])


def _shown(document: Document, score: float, asked: Mapping[str, Any]) -> Document:
    return with_metadata(document, {**document.metadata, "score": score}) if asked["with_scores"] else document


def _from_memory(results: Sequence[Any], asked: Mapping[str, Any]) -> list[Document]:
    return [
        to_document(result.memory, **({"score": result.score} if asked["with_scores"] else {})) for result in results
    ]


def _plain(document: Document) -> dict[str, Any]:
    return {"text": document.page_content, "metadata": document.metadata, "id": document.id}


def _document(value: Any) -> Document:
    return Document(value["text"], metadata=value["metadata"], id=value["id"])


_OF_WORDS = {
    "engine": "engine",
    "k1": "k1",
    "b": "b",
    "language": "language",
    "preprocess_func": "terms",
    "bm25_variant": "variant",
    "bm25_params": "params",
}


def _checked(cls: type[BM25Retriever], settings: Mapping[str, Any]) -> Words:
    refuse_unknown(cls, settings)
    words = {ours: settings[name] for name, ours in _OF_WORDS.items() if settings.get(name) is not None}
    if settings.get("memory") is not None:
        own = [*(name for name in _OF_WORDS if settings.get(name) is not None)]
        own += [name for name in ("documents", "fields", "persist_path") if settings.get(name)]
        if own:
            raise ConfigError(f"{own[0]} does not go with a memory, which has its own words")
    check_k(settings.get("k", 4))
    for field in settings.get("fields") or ():
        if field not in WEIGHTS or field == "text":
            raise ConfigError(f"fields names {field!r}; allowed: title, tags, predicate")
    if settings.get("filter") is not None and not callable(settings["filter"]):
        check_of(settings["filter"])
    return Words(**words, pad=True)  # with rank-bm25, the very ranking that its users know
