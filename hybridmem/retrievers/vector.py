"""Texts searched by meaning, for retrievers that have no memory behind them: in this process, or in Chroma.

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

from hybridmem.core.fanout import in_thread
from hybridmem.core.forks import guard
from hybridmem.embedding.embedder import Embedder, Vector, check_same, unit
from hybridmem.errors import ConfigError
from hybridmem.filters.parse import Condition, Field, Not, Test, parse
from hybridmem.filters.predicate import compile_predicate, to_chroma
from hybridmem.indexes.vector.chroma import HNSW, connect, disconnect, similarity_in, translated
from hybridmem.indexes.vector.index import VectorIndex

__all__ = ["ChromaTexts", "FoundText", "Row", "Texts", "VectorTexts", "open_texts", "row_id"]

_JSON, _NAME, _DIM, _RICH = "hybridmem:json", "hybridmem:embedder", "hybridmem:dimension", "hybridmem:rich"
_BATCH = 2000
_WIDER = 4


class Row(NamedTuple):
    """One text to be found. `words` is what is embedded, when that is more than the text; `vector`, if it is known."""

    id: str
    text: str
    metadata: Mapping[str, Any]
    words: str | None = None
    vector: Any = None


class FoundText(NamedTuple):
    """One answer, with its cosine."""

    id: str
    text: str
    metadata: dict[str, Any]
    score: float


Check = Callable[[FoundText], bool]


def row_id(text: str, metadata: Mapping[str, Any], /) -> str:
    """An id made of the content, so that adding the same text again changes nothing.

    >>> row_id("a", {}) == row_id("a", {}), row_id("a", {}) == row_id("a", {"page": 1})
    (True, False)
    """
    content = json.dumps([text, metadata], sort_keys=True, default=str)
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Texts:
    """What both kinds share: embedding, and asking wider until k rows have passed the check."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def put(self, rows: Sequence[Row], /) -> list[str]:
        """Add rows, or replace those of the same id; gives their ids."""
        last = {row.id: row for row in rows}
        for start in range(0, len(last), _BATCH):
            part = list(last.values())[start : start + _BATCH]
            self._store(part, self._vectors(part))
        return [row.id for row in rows]

    def _vectors(self, rows: Sequence[Row]) -> list[Vector]:
        bare = [row for row in rows if row.vector is None]
        made = iter(self.embedder.documents([row.text if row.words is None else row.words for row in bare]))
        return [next(made) if row.vector is None else unit(row.vector) for row in rows]

    def search(self, query: str, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[FoundText]:
        """The k rows nearest in meaning that match the filter and pass the check."""
        return self.nearest(self.embedder.query(query), k=k, filter=filter, check=check)

    async def asearch(
        self, query: str, /, *, k: int, filter: Any = None, check: Check | None = None
    ) -> list[FoundText]:
        """The same without blocking the event loop."""
        vector = await self.embedder.aquery(query)
        found: list[FoundText] = await in_thread(lambda: self.nearest(vector, k=k, filter=filter, check=check))
        return found

    def nearest(self, vector: Any, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[FoundText]:
        """The same for a vector."""
        raise NotImplementedError

    def remove(self, ids: Sequence[str], /) -> int:
        """Take rows out; how many there were."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of files and connections."""

    def _store(self, rows: Sequence[Row], vectors: Sequence[Vector]) -> None:
        raise NotImplementedError


class VectorTexts(Texts):
    """In this process: exact, and gone with it."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__(embedder)
        self._index = VectorIndex()
        self._rows: dict[str, Row] = {}
        self._lock = guard(Lock())

    def __len__(self) -> int:
        return len(self._rows)

    def _store(self, rows: Sequence[Row], vectors: Sequence[Vector]) -> None:
        with self._lock:
            for row, vector in zip(rows, vectors, strict=True):
                self._rows[row.id] = row
                self._index.add(row.id, vector)

    def remove(self, ids: Sequence[str], /) -> int:
        """Take rows out; how many there were."""
        with self._lock:
            return sum(self._index.remove(key) and self._rows.pop(key, None) is not None for key in ids)

    def nearest(self, vector: Any, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[FoundText]:
        """The k rows nearest to a vector that match the filter and pass the check."""
        with self._lock:
            rows = dict(self._rows)
        allowed = None
        if filter is not None or check is not None:
            matches = None if filter is None else compile_predicate(filter)
            allowed = {
                row.id
                for row in rows.values()
                if (matches is None or matches(_seen(row.id, row.text, row.metadata)))
                and (check is None or check(_found(row, 0.0)))
            }
        hits = self._index.search(vector, k=k, allowed=allowed)
        pairs = zip(hits.ids, hits.scores, strict=True)
        return [_found(rows[key], score) for key, score in pairs if key in rows]


class ChromaTexts(Texts):
    """In a Chroma collection, of a folder or a server; the embedder's name is recorded there and compared."""

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

    def _store(self, rows: Sequence[Row], vectors: Sequence[Vector]) -> None:
        with translated("store texts"):
            note = {k: v for k, v in (self._collection.metadata or {}).items() if not k.startswith("hnsw:")}
            rich = self._rich() | {
                k for row in rows for k, v in row.metadata.items() if v is not None and not _plain(v)
            }
            told = {_NAME: self.embedder.name, _DIM: len(vectors[0]), _RICH: json.dumps(sorted(rich))}
            if any(note.get(key) != value for key, value in told.items()):
                self._collection.modify(metadata=note | told)
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
        """Take rows out; how many there were."""
        with translated("delete texts"):
            known = self._collection.get(ids=list(ids), include=[])["ids"] if ids else []
            if known:
                self._collection.delete(ids=known)
            return len(known)

    def nearest(self, vector: Any, /, *, k: int, filter: Any = None, check: Check | None = None) -> list[FoundText]:
        """The k rows nearest to a vector that match the filter and pass the check."""
        where, matches = _where(filter, self._rich())

        def passes(found: FoundText) -> bool:
            seen = matches is None or matches(_seen(found.id, found.text, found.metadata))
            return seen and (check is None or check(found))

        wide = k
        with translated("search"):
            while True:
                rows = self._query(vector, wide, where)
                found = [row for row in rows if passes(row)]
                if len(found) >= k or len(rows) < wide:
                    return found[:k]
                wide *= _WIDER

    def _query(self, vector: Any, k: int, where: dict[str, Any] | None) -> list[FoundText]:
        include = ["documents", "metadatas", "distances"]
        found = self._collection.query(query_embeddings=[unit(vector)], n_results=k, where=where, include=include)
        convert = similarity_in(self._collection)
        columns = (found["ids"][0], found["documents"][0], found["metadatas"][0], found["distances"][0])
        rows = [
            FoundText(key, text or "", _unflat(metadata or {}), min(1.0, max(-1.0, convert(distance))))
            for key, text, metadata, distance in zip(*columns, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row.score, row.id))

    def close(self) -> None:
        """Let go of the folder or the connection."""
        disconnect(self._client)


def open_texts(embedder: Embedder, /, **where: Any) -> Texts:
    """In Chroma when a place is given (persist_directory=, or host= and port=), else in this process."""
    if where.get("persist_directory") is None and where.get("host") is None:
        extra = sorted(name for name, value in where.items() if value is not None)
        if extra:
            raise ConfigError(f"{extra[0]} is for Chroma: give persist_directory=, or host= and port=, too")
        return VectorTexts(embedder)
    return ChromaTexts(embedder, **{name: value for name, value in where.items() if value is not None})


def _found(row: Row, score: float) -> FoundText:
    return FoundText(row.id, row.text, dict(row.metadata), score)


def _seen(key: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a filter sees it."""
    return {"id": key, "text": text, **metadata}


def _where(
    filter: Any, rich: AbstractSet[str]
) -> tuple[dict[str, Any] | None, Callable[[Mapping[str, Any]], bool] | None]:
    """What Chroma is told, and what is checked on its results. What we cannot read is taken for Chroma's own."""
    if filter is None:
        return None, None
    try:
        condition = parse(filter)
    except ConfigError:
        return filter, None
    matches = compile_predicate(condition)
    if any(_beyond(field, rich) for field in _fields(condition)):
        return None, matches
    try:
        return to_chroma(condition) or None, matches
    except ConfigError:
        return None, matches


def _beyond(field: Field, rich: AbstractSet[str]) -> bool:
    """Whether Chroma's metadata does not hold this as the filter means it: a time is only a text there."""
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
    """Metadata as Chroma can hold it: plain values as they are, the others as JSON under one key."""
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
