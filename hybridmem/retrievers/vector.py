"""Vector search over a TextCorpus, for retrievers without a memory: in this process, or in Chroma.

Both keep rows (id, text, metadata) and answer `search(query, k=…, filter=…, check=…)` with cosines. `filter` is in
hybridmem's language, or Chroma's own `where`; `check` is any function of a found row. k rows come back when k match.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from hybridmem.core.fanout import Job, Steps, apply_policy, in_thread
from hybridmem.core.forks import guard
from hybridmem.embedding.embedder import Embedder, Vector, check_same, unit
from hybridmem.errors import ConfigError
from hybridmem.filters.parse import Condition, Field, Not, Test, parse
from hybridmem.filters.predicate import compile_predicate, to_chroma
from hybridmem.indexes.vector.chroma import HNSW, connect, disconnect, similarity_in, translated
from hybridmem.indexes.vector.index import VectorIndex

__all__ = ["ChromaTextCorpus", "MemoryTextCorpus", "TextCorpus", "TextHit", "TextItem", "content_id", "open_corpus"]

_JSON, _NAME, _DIM, _RICH = "hybridmem:json", "hybridmem:embedder", "hybridmem:dimension", "hybridmem:rich"
_BATCH = 2000
DEEPER = 4


class TextItem(NamedTuple):
    """A text with id and metadata. `embedded` is the text to embed, where that differs; `vector`, if known."""

    id: str
    text: str
    metadata: Mapping[str, Any]
    embedded: str | None = None
    vector: Any = None


class TextHit(NamedTuple):
    """A text that was found, with its cosine."""

    id: str
    text: str
    metadata: dict[str, Any]
    score: float


Check = Callable[[TextHit], bool]


def content_id(text: str, metadata: Mapping[str, Any], /) -> str:
    """An id derived from the content, so that adding the same text again changes nothing.

    >>> content_id("a", {}) == content_id("a", {}), content_id("a", {}) == content_id("a", {"page": 1})
    (True, False)
    """
    content = json.dumps([text, metadata], sort_keys=True, default=str)
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class TextCorpus:
    """Base of both corpora: embeds items and queries."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def put(self, rows: Sequence[TextItem], /) -> list[str]:
        """Add items, or replace those of the same id; returns their ids."""
        last = {row.id: row for row in rows}
        for start in range(0, len(last), _BATCH):
            part = list(last.values())[start : start + _BATCH]
            self._store(part, self._vectors(part))
        return [row.id for row in rows]

    def _vectors(self, rows: Sequence[TextItem]) -> list[Vector]:
        bare = [row for row in rows if row.vector is None]
        made = iter(self.embedder.documents([row.text if row.embedded is None else row.embedded for row in bare]))
        return [next(made) if row.vector is None else unit(row.vector) for row in rows]

    def search(self, query: str, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[TextHit]:
        """The k items with the highest cosine that match the filter and pass the check."""
        return self.nearest(self.embedder.query(query), k=k, filter=filter, check=check)

    async def asearch(self, query: str, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[TextHit]:
        """The same without blocking the event loop."""
        vector = await self.embedder.aquery(query)
        return await in_thread(lambda: self.nearest(vector, k=k, filter=filter, check=check))

    def nearest(self, vector: Any, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[TextHit]:
        """The same for a vector."""
        raise NotImplementedError

    def remove(self, ids: Sequence[str], /) -> int:
        """Remove items; returns how many there were."""
        raise NotImplementedError

    def close(self) -> None:
        """Close files and connections."""

    def _store(self, rows: Sequence[TextItem], vectors: Sequence[Vector]) -> None:
        raise NotImplementedError


class MemoryTextCorpus(TextCorpus):
    """Items in this process: exact, not persisted."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__(embedder)
        self._index = VectorIndex()
        self._rows: dict[str, TextItem] = {}
        self._lock = guard(Lock())

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: everything but the lock."""
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"} | {"_rows": dict(self._rows)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=guard(Lock()))

    def _store(self, rows: Sequence[TextItem], vectors: Sequence[Vector]) -> None:
        with self._lock:
            for row, vector in zip(rows, vectors, strict=True):
                self._rows[row.id] = row
                self._index.add(row.id, vector)

    def remove(self, ids: Sequence[str], /) -> int:
        """Remove items; returns how many there were."""
        with self._lock:
            return sum(self._index.remove(key) and self._rows.pop(key, None) is not None for key in ids)

    def nearest(self, vector: Any, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[TextHit]:
        """The k items nearest to a vector that match the filter and pass the check."""
        with self._lock:
            rows = dict(self._rows)
        allowed = None
        if filter is not None or check is not None:
            matches = None if filter is None else compile_predicate(filter)
            allowed = {
                row.id
                for row in rows.values()
                if (matches is None or matches(_filter_view(row.id, row.text, row.metadata)))
                and (check is None or check(_hit(row, 0.0)))
            }
        hits = self._index.search(vector, k=k, allowed=allowed)
        pairs = zip(hits.ids, hits.scores, strict=True)
        return [_hit(rows[key], score) for key, score in pairs if key in rows]


class ChromaTextCorpus(TextCorpus):
    """Items in a Chroma collection, in a folder or on a server, which records the name of the embedder."""

    def __init__(
        self,
        embedder: Embedder,
        *,
        persist_directory: str | Path | None = None,
        host: str | None = None,
        port: int = 8000,
        ssl: bool = False,
        collection_name: str = "hybridmem",
    ) -> None:
        super().__init__(embedder)
        self._client = connect(path=persist_directory, host=host, port=port, ssl=ssl)
        with translated(f"open collection {collection_name!r}"):
            self._collection = self._client.get_or_create_collection(
                collection_name, embedding_function=None, configuration={"hnsw": HNSW}
            )
        note = self._collection.metadata or {}
        check_same(note.get(_NAME), note.get(_DIM), embedder)

    def __len__(self) -> int:
        with translated("count"):
            return int(self._collection.count())

    def _store(self, rows: Sequence[TextItem], vectors: Sequence[Vector]) -> None:
        with translated("store texts"):
            note = {k: v for k, v in (self._collection.metadata or {}).items() if not k.startswith("hnsw:")}
            rich = self._rich() | {
                k for row in rows for k, v in row.metadata.items() if v is not None and not _plain(v)
            }
            recorded = {_NAME: self.embedder.name, _DIM: len(vectors[0]), _RICH: json.dumps(sorted(rich))}
            if any(note.get(key) != value for key, value in recorded.items()):
                self._collection.modify(metadata=note | recorded)
            self._collection.upsert(
                ids=[row.id for row in rows],
                embeddings=list(vectors),
                documents=[_storable(row.text) for row in rows],
                metadatas=[_flat(row.metadata) for row in rows],
            )

    def _rich(self) -> set[str]:
        """Metadata keys that hold lists and the like, which Chroma cannot compare."""
        return set(json.loads((self._collection.metadata or {}).get(_RICH, "[]")))

    def remove(self, ids: Sequence[str], /) -> int:
        """Remove items; returns how many there were."""
        with translated("delete texts"):
            known = self._collection.get(ids=list(ids), include=[])["ids"] if ids else []
            if known:
                self._collection.delete(ids=known)
            return len(known)

    def nearest(self, vector: Any, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[TextHit]:
        """The k items nearest to a vector that match the filter and pass the check."""
        where, matches = _where(filter, self._rich())

        def passes(found: TextHit) -> bool:
            seen = matches is None or matches(_filter_view(found.id, found.text, found.metadata))
            return seen and (check is None or check(found))

        wide = k
        with translated("search"):
            while True:
                rows = self._query(vector, wide, where)
                found = [row for row in rows if passes(row)]
                if len(found) >= k or len(rows) < wide:
                    return found[:k]
                wide *= DEEPER

    def _query(self, vector: Any, k: int, where: dict[str, Any] | None) -> list[TextHit]:
        include = ["documents", "metadatas", "distances"]
        found = self._collection.query(query_embeddings=[unit(vector)], n_results=k, where=where, include=include)
        convert = similarity_in(self._collection)
        columns = (found["ids"][0], found["documents"][0], found["metadatas"][0], found["distances"][0])
        rows = [
            TextHit(key, text or "", _unflat(metadata or {}), min(1.0, max(-1.0, convert(distance))))
            for key, text, metadata, distance in zip(*columns, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row.score, row.id))

    def close(self) -> None:
        """Close the folder or the connection."""
        disconnect(self._client)


def search_deeper(request: Callable[[int], Job], k: int, check: Callable[[Any], bool] | None, /) -> Steps[list[Any]]:
    """The k best hits of a store that pass the check; it is asked ×4 deeper until k pass or it has no more.

    `request(depth)` is a job that returns a list of hits, best first.
    """
    depth = k
    while True:
        outcomes = yield [request(depth)]
        apply_policy(outcomes, wrap=False)
        hits = outcomes[0].value
        passing = hits if check is None else [hit for hit in hits if check(hit)]
        if check is None or len(passing) >= k or len(hits) < depth:
            return list(passing[:k])
        depth *= DEEPER


def open_corpus(embedder: Embedder, /, **where: Any) -> TextCorpus:
    """In Chroma when a place is given (persist_directory=, or host= and port=), else in this process."""
    if where.get("persist_directory") is None and where.get("host") is None:
        extra = sorted(name for name, value in where.items() if value is not None)
        if extra:
            raise ConfigError(f"{extra[0]} is for Chroma: give persist_directory=, or host= and port=, too")
        return MemoryTextCorpus(embedder)
    return ChromaTextCorpus(embedder, **{name: value for name, value in where.items() if value is not None})


def _hit(row: TextItem, score: float) -> TextHit:
    return TextHit(row.id, row.text, dict(row.metadata), score)


def _filter_view(key: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an item that a filter can name."""
    return {"id": key, "text": text, **metadata}


def _where(
    filter: Any, rich: AbstractSet[str]
) -> tuple[dict[str, Any] | None, Callable[[Mapping[str, Any]], bool] | None]:
    """The filter for Chroma and the predicate for its results. What we cannot parse is taken for Chroma's own."""
    if filter is None:
        return None, None
    try:
        condition = parse(filter)
    except ConfigError:
        return filter, None
    matches = compile_predicate(condition)
    if any(_needs_check(field, rich) for field in _fields(condition)):
        return None, matches
    try:
        return to_chroma(condition) or None, matches
    except ConfigError:
        return None, matches


def _needs_check(field: Field, rich: AbstractSet[str]) -> bool:
    """Whether Chroma cannot evaluate a test on this field as we mean it: it stores a time as text."""
    name = field.path[0] if field.path else field.name
    return field.type == "time" or name in rich or name in ("id", "text")


def _fields(condition: Condition) -> Iterator[Field]:
    if isinstance(condition, Test):
        yield condition.field
    elif isinstance(condition, Not):
        yield from _fields(condition.part)
    else:
        for part in condition.parts:
            yield from _fields(part)


def _flat(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as Chroma can store it: plain values as they are, the others as JSON under one key."""
    plain = {key: value for key, value in metadata.items() if _plain(value)}
    rest = {key: value for key, value in metadata.items() if key not in plain}
    if rest or not plain:  # Chroma refuses empty metadata
        plain[_JSON] = json.dumps(rest, default=str)
    return plain


def _unflat(metadata: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in metadata.items() if key != _JSON}
    return {**plain, **json.loads(metadata.get(_JSON, "{}"))}


def _plain(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, str) and value == _storable(value)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
