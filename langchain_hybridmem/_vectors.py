"""What a VectorRetriever does with one question: its settings, a store asked wider and wider, results as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from hybridmem.errors import ConfigError
from hybridmem.retrievers.vector import FoundText, Row, row_id
from langchain_hybridmem._conversion import to_document, with_metadata
from langchain_hybridmem._filtering import Check, check_of, store_filter
from langchain_hybridmem._scores import Scored

__all__ = ["Asked", "Wide", "shown_memories", "shown_texts", "to_row"]

_WIDER = 4


class Asked(NamedTuple):
    """One question's settings: what was said in the call, else what was set up."""

    k: int
    filter: Any
    score_threshold: float | None
    with_scores: bool
    as_of: Any
    namespace: str | None

    def to_memory(self) -> dict[str, Any]:
        """What a memory's arm is told."""
        told = {"k": self.k, "filter": self.filter, "as_of": self.as_of, "namespace": self.namespace}
        return {name: value for name, value in told.items() if value is not None}

    def for_texts(self) -> tuple[Any, Any]:
        """The filter in our language, or a function of the document as a check."""
        if not callable(self.filter):
            return self.filter, None
        check = self.filter
        return None, lambda found: check(_document(found))

    def shown(self, document: Document, score: float | None) -> Document:
        """The document, on a copy with its score when that was asked for."""
        if not self.with_scores or score is None:
            return document
        return with_metadata(document, {**document.metadata, "score": score})

    def passes(self, score: float | None) -> bool:
        """Whether a result is similar enough."""
        if self.score_threshold is None:
            return True
        if score is None:
            raise ConfigError(f"score_threshold = {self.score_threshold!r}: this vector store gives no scores")
        return score >= self.score_threshold


class Wide:
    """Asks a vector store wider and wider, while a filter that it does not know leaves fewer than k."""

    def __init__(self, vectorstore: VectorStore, asked: Asked, more: Mapping[str, Any]) -> None:
        self._asked = asked
        self._check: Check | None = None
        self._k, self.more = asked.k, True
        self._kept: Scored = []
        told: Any = None
        if asked.filter is not None and more.get("filter") is not None:
            self._check = check_of(asked.filter)  # the store's own filter stays in force: both must hold
        elif asked.filter is not None:
            told, self._check = store_filter(vectorstore, asked.filter)
        self._told = {**more, **({} if told is None else {"filter": told})}

    @property
    def keywords(self) -> dict[str, Any]:
        """What the store is asked with this time."""
        return {**self._told, "k": self._k}

    def take(self, found: Scored) -> None:
        """Keep what passes, and say whether it is worth asking wider."""
        check, asked = self._check, self._asked
        kept = [pair for pair in found if check is None or check(pair[0])]
        self.more = check is not None and len(kept) < asked.k and len(found) >= self._k
        self._k *= _WIDER
        self._kept = kept[: asked.k]

    @property
    def documents(self) -> list[Document]:
        """What was kept, as it is shown."""
        return [self._asked.shown(document, score) for document, score in self._kept if self._asked.passes(score)]


def shown_texts(found: Sequence[FoundText], asked: Asked, /) -> list[Document]:
    """What was found among our own texts, as documents."""
    return [asked.shown(_document(one), one.score) for one in found if asked.passes(one.score)]


def shown_memories(results: Sequence[Any], asked: Asked, /) -> list[Document]:
    """What a memory's arm found, as documents."""
    return [asked.shown(to_document(one.memory), one.score) for one in results if asked.passes(one.score)]


def _document(found: FoundText) -> Document:
    return Document(found.text, metadata=found.metadata, id=found.id)


def to_row(document: Document, /) -> Row:
    """A document as it is kept; one without an id gets one made of its content."""
    key = document.id or row_id(document.page_content, document.metadata)
    return Row(key, document.page_content, document.metadata)
