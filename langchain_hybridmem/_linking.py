"""Documents as a graph sees them: with the ids, threads and entities that join them; and results as documents again."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.documents import Document

from hybridmem.core.types import Memory
from hybridmem.indexes.graph.index import ids_in
from hybridmem.retrievers.graph import Found, Linked
from langchain_hybridmem._arms import Brought
from langchain_hybridmem._conversion import DocumentReader, IdKey, to_memory, with_metadata

__all__ = ["bare", "linked", "pointing", "shown"]


def pointing(documents: Sequence[Document], /, *, id_key: IdKey, links_key: str | Sequence[str]) -> list[Linked]:
    """Documents with the ids they list: all that counts where neighbours are fetched."""
    keys = DocumentReader(id_key).keys(documents)
    return [
        Linked(Memory("", id=key, metadata=_links(document, links_key)), document)
        for key, document in zip(keys, documents, strict=True)
    ]


def linked(
    documents: Sequence[Document], /, *, id_key: IdKey, thread_key: str, links_key: str | Sequence[str]
) -> list[Linked]:
    """Documents with all that the graph and BM25 need to know of them."""
    found = []
    for key, document in zip(DocumentReader(id_key).keys(documents), documents, strict=True):
        memory, thread = to_memory(document), document.metadata.get(thread_key)
        node = Memory(
            memory.text,
            id=key,
            title=memory.title,
            tags=memory.tags,
            thread=None if thread is None else str(thread),
            entities=memory.entities,
            created_at=memory.created_at,
            metadata=_links(document, links_key),
        )
        found.append(Linked(node, document))
    return found


def _links(document: Document, links_key: str | Sequence[str]) -> dict[str, list[str]]:
    names = [links_key] if isinstance(links_key, str) else links_key
    links = [one for name in names for one in ids_in(document.metadata.get(name))]
    return {"links": links} if links else {}


def bare(brought: Brought, /) -> list[Document]:
    """A seed's documents without the score we asked it to put into the metadata."""
    if not brought.marked:
        return brought.documents
    hidden = ("score", "hybridmem")
    return [
        with_metadata(document, {name: value for name, value in document.metadata.items() if name not in hidden})
        for document in brought.documents
    ]


def shown(found: Sequence[Found], /, *, with_scores: bool) -> list[Document]:
    """What was found, on copies that tell activation and path when that was asked for."""
    if not with_scores:
        return [one.item for one in found]
    return [
        with_metadata(
            document,
            {
                **document.metadata,
                "score": won.value,
                "hybridmem": {
                    "activation": won.value,
                    "hops": won.hops,
                    "path": list(won.path),
                    "line": line,
                },
            },
        )
        for document, won, line in found
    ]
