"""Conversion between LangChain documents, rankings and memories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import BaseDocumentCompressor, Document

from hybridmem.core.fanout import in_thread
from hybridmem.core.inputs import from_metadata, to_metadata
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.fusion.stages.rerank import Scorer, scores_of_order
from hybridmem.retrievers.options import check_items
from langchain_hybridmem._settings import HybridMemory, IdKey

if TYPE_CHECKING:
    from hybridmem.memory.writing import OnDuplicate

__all__ = [
    "DocumentReader",
    "IdKey",
    "ScoredDocuments",
    "aadd_documents",
    "add_documents",
    "as_scorer",
    "to_document",
    "to_memory",
    "with_metadata",
]

_METADATA = attrgetter("metadata")
_SHOWN = ("score", "hybridmem", "degraded")
"""What retrievers add to a result: not part of the memory."""


class DocumentReader:
    """Reads the identity of documents, and fields from their metadata, for a fusion.

    Identity is `id_key`, else `Document.id`, else the text. `source_id` falls back to `source`, the name that
    LangChain's loaders use. A reader made by `over` knows all lists together: a document without an id takes the key
    of one with the same text, and a field that one copy of a document lacks is read from the others. Where one list has
    two texts under one `Document.id`, such as chunks that kept the id of their document, each text is a document.
    """

    __slots__ = ("_id_key", "_lists", "_merged", "_names", "_shared")

    def __init__(self, id_key: IdKey = None) -> None:
        self._id_key = id_key
        self._lists: list[Sequence[Document]] = []
        self._names: dict[str, str] = {}
        self._shared: dict[str, dict[str, str]] = {}
        """The keys of texts under an id that is not unique in one list."""
        self._merged: dict[str, dict[str, Any]] | None = None

    @classmethod
    def over(cls, lists: Iterable[Sequence[Document]], /, *, id_key: IdKey = None) -> DocumentReader:
        """A reader for these lists together."""
        reader = cls(id_key)
        reader._lists = list(lists)
        if id_key is None:
            reader._find_shared()
        own = [reader._own(documents) for documents in reader._lists]
        if not all(map(all, own)):  # an empty id is none
            for keys, documents in zip(own, reader._lists, strict=True):
                for key, document in zip(keys, documents, strict=True):
                    if key:
                        reader._names.setdefault(document.page_content, key)
        return reader

    def keys(self, items: Sequence[Document], /) -> list[str]:
        """The identity of each document."""
        keys = self._own(items)
        if all(keys):
            return keys  # type: ignore[return-value]
        names = self._names
        texts = [item.page_content for item in items]
        return [key or names.get(text, text) for key, text in zip(keys, texts, strict=True)]

    def _own(self, items: Sequence[Document]) -> list[str | None]:
        """Each document's own id, None or empty where it has none."""
        id_key = self._id_key
        if id_key is None:
            ids = [item.id for item in items]
            if not self._shared:
                return ids
            return [
                id_ if id_ is None or id_ not in self._shared else self._shared[id_][item.page_content]
                for id_, item in zip(ids, items, strict=True)
            ]
        given: list[Any] = (
            list(map(id_key, items)) if callable(id_key) else [item.metadata.get(id_key) for item in items]
        )
        return [item.id if key is None else str(key) for item, key in zip(items, given, strict=True)]

    def _find_shared(self) -> None:
        """Find ids that stand for several texts in one list, and give every text of such an id a key."""
        shared: set[str] = set()
        for documents in self._lists:
            ids = [item.id for item in documents if item.id]
            if len(set(ids)) == len(ids):
                continue
            texts: dict[str, str] = {}
            for item in documents:
                if item.id and texts.setdefault(item.id, item.page_content) != item.page_content:
                    shared.add(item.id)
        for item in (item for documents in self._lists for item in documents if item.id in shared):
            keys = self._shared.setdefault(item.id or "", {})
            keys.setdefault(item.page_content, f"{item.id}#{len(keys) + 1}" if keys else f"{item.id}")

    def column(self, items: Sequence[Document], name: str, /) -> list[Any]:
        """One field of each document, None where it has none."""
        if name == "text":
            return [item.page_content for item in items]
        values = [item.metadata.get(name) for item in items]
        also = "source" if name == "source_id" else name
        if all(values) or (also == name and not self._lists):
            return values
        known = [self._all()[key] for key in self.keys(items)] if self._lists else list(map(_METADATA, items))
        return [
            metadata.get(name, metadata.get(also)) if value is None else value
            for value, metadata in zip(values, known, strict=True)
        ]

    def id_of(self, item: Document, /) -> str | None:
        """The document's id, or that of its namesake in another list."""
        return item.id if item.id or self._id_key is not None else self._names.get(item.page_content)

    def metadata(self, keys: Iterable[str], /) -> dict[str, dict[str, Any]]:
        """For each of these keys a copy of the merged metadata of its documents; the first one has priority."""
        if self._merged is not None:
            return {key: dict(self._merged[key]) for key in keys}
        return self._gathered({key: {} for key in keys})

    def _all(self) -> dict[str, dict[str, Any]]:
        if self._merged is None:
            self._merged = self._gathered({key: {} for documents in self._lists for key in self.keys(documents)})
        return self._merged

    def _gathered(self, merged: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for documents in self._lists:
            for key, document in zip(self.keys(documents), documents, strict=True):
                known = merged.get(key)
                if known is not None:
                    merged[key] = {**document.metadata, **known}
        return merged


def with_metadata(document: Document, metadata: dict[str, Any], /, *, id: str | None = None) -> Document:
    """A copy with this metadata (and this id, where it has none); the original stays as it was."""
    if id is not None and not document.id:
        return document.model_copy(update={"metadata": metadata, "id": id})
    return document.model_copy(update={"metadata": metadata})


class ScoredDocuments(list[Document]):
    """A list of documents with their raw scores beside them, so that the documents' metadata stays as it is."""

    __slots__ = ("notes", "scores")

    def __init__(
        self,
        documents: Iterable[Document] = (),
        scores: Sequence[float | None] = (),
        notes: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        super().__init__(documents)
        self.scores: list[float] | None = None if None in scores else cast("list[float]", list(scores))
        self.notes = notes

    @classmethod
    def of(cls, scored: Sequence[tuple[Document, float | None]], /, *, marked: bool = False) -> ScoredDocuments:
        """The same for pairs of document and score; `marked`: copies with the score in `metadata["score"]`."""
        documents = [document for document, _ in scored]
        if marked:
            documents = [
                document if score is None else with_metadata(document, {**document.metadata, "score": score})
                for document, score in scored
            ]
        return cls(documents, [score for _, score in scored])

    def __reduce__(self) -> tuple[Any, ...]:
        return ScoredDocuments, (list(self), self.scores if self.scores is not None else [None])


def to_document(memory: Memory, /, **more: Any) -> Document:
    """A memory as a document: its fields that say something are metadata, times as ISO-8601 text in UTC.

    >>> to_document(Memory("Ana moved to Lisbon", id="m1", tags=("home",))).metadata
    {'tags': ['home']}
    """
    return Document(page_content=memory.text, id=memory.id or None, metadata={**to_metadata(memory), **more})


def to_memory(document: Document, /) -> Memory:
    """A document as a memory: metadata named like a memory's field becomes that field, the rest stays metadata."""
    return from_metadata(document.page_content, document.id or "", document.metadata, without=_SHOWN)


def add_documents(
    memory: HybridMemory,
    documents: Iterable[Document],
    /,
    *,
    ttl: float | timedelta | None = None,
    on_duplicate: OnDuplicate = "keep",
) -> list[str]:
    """Add documents to a memory, or replace those of the same id; returns their ids.

    Metadata named like a memory's field (`thread`, `tags`, `created_at`, …) becomes that field. `ttl` and
    `on_duplicate` are those of `HybridMemory.add_many`.
    """
    listed = check_items("documents", documents, Document)
    return memory.add_many([to_memory(document) for document in listed], ttl=ttl, on_duplicate=on_duplicate)


async def aadd_documents(
    memory: HybridMemory,
    documents: Iterable[Document],
    /,
    *,
    ttl: float | timedelta | None = None,
    on_duplicate: OnDuplicate = "keep",
) -> list[str]:
    """The same without blocking the event loop."""
    return await in_thread(lambda: add_documents(memory, documents, ttl=ttl, on_duplicate=on_duplicate))


def as_scorer(reranker: BaseDocumentCompressor | Scorer, /) -> Scorer:
    """A document compressor as a function `(query, texts) -> scores` for `Rerank`; a function is returned as it is.

    The first document that the compressor returns gets the highest score; those that it drops follow as they were.
    """
    if not isinstance(reranker, BaseDocumentCompressor):
        if not callable(reranker):
            raise ConfigError(f"rerank scorer = {reranker!r} is not allowed: a function or a document compressor")
        return reranker
    compressor = reranker

    def scores(query: str, texts: Sequence[str]) -> list[float]:
        documents = [
            Document(page_content=text, id=str(place), metadata={"place": place}) for place, text in enumerate(texts)
        ]
        kept = compressor.compress_documents(documents, query)
        return scores_of_order([int(document.metadata["place"]) for document in kept], len(texts))

    return scores
