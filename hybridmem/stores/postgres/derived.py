"""Derived rows for the search in the server: terms, entities, metadata links and vectors of visible memories."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridmem.embedding.embedder import unit
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.documents import WEIGHTS, weigh
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.graph.names import labels_of, names_of
from hybridmem.stores.postgres.connection import Raw, insert, insert_vectors
from hybridmem.stores.postgres.neighbours import ThreadNeighbours, TurnState
from hybridmem.stores.postgres.search.engines import DocumentTerms, Lexical
from hybridmem.stores.sql.log import Head
from hybridmem.stores.sql.read import BODY, decode_vector
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.entities import spot

__all__ = ["TERMS_TABLE", "DerivedChange", "DerivedChanges", "Deriver", "Stats", "recount_terms"]


TERMS_TABLE = """
CREATE TABLE IF NOT EXISTS terms (
  namespace text COLLATE "C" NOT NULL, term text COLLATE "C" NOT NULL, n bigint NOT NULL,
  PRIMARY KEY (namespace, term)) WITH (fillfactor = 70);
"""
_TERMS = "SELECT d.mem, unnest(d.terms) AS term FROM documents d WHERE d.namespace = %s AND d.mem = ANY(%s)"


def _count_terms(raw: Raw, namespace: str, terms: Iterable[str], /) -> None:
    """Count the terms of new postings."""
    counts = Counter(terms)
    ordered = sorted(counts)
    raw.execute(
        "INSERT INTO terms SELECT %s, * FROM unnest(%s::text[], %s::bigint[]) "
        "ON CONFLICT (namespace, term) DO UPDATE SET n = terms.n + excluded.n",
        (namespace, ordered, [counts[term] for term in ordered]),
    )


def _remove_postings(raw: Raw, namespace: str, mems: Sequence[int], /) -> None:
    """Remove the postings of memories and update the counts of their terms; unused terms are deleted."""
    raw.execute(
        f"WITH gone AS (DELETE FROM postings p USING ({_TERMS}) q WHERE p.namespace = %s AND p.term = q.term "  # noqa: S608
        "AND p.mem = q.mem RETURNING p.term) UPDATE terms t SET n = t.n - g.n FROM (SELECT term, count(*) AS n "
        "FROM gone GROUP BY term) g WHERE t.namespace = %s AND t.term = g.term",
        (namespace, mems, namespace, namespace),
    )
    raw.execute(
        "DELETE FROM terms WHERE namespace = %s AND term = ANY(ARRAY(SELECT DISTINCT unnest(d.terms) FROM documents d "
        "WHERE d.namespace = %s AND d.mem = ANY(%s))) AND n <= 0",
        (namespace, namespace, mems),
    )


def recount_terms(raw: Raw, /) -> None:
    """Rebuild the counts of terms from the postings."""
    raw.execute("DELETE FROM terms")
    raw.execute("INSERT INTO terms SELECT namespace, term, count(*) FROM postings GROUP BY 1, 2")


_PLACE = {name: place for place, name in enumerate(BODY)}


class Stats(NamedTuple):
    """The change of a namespace's statistics: N, Σ|D| and the number of vectors."""

    memories: int = 0
    length: float = 0.0
    vectors: int = 0


@dataclass(slots=True)
class DerivedChange:
    """The change of one memory's derived rows in a transaction."""

    head: Head
    visible: bool
    old: TurnState | None
    """Its state before the transaction, if it was visible then, so that it has derived rows to remove."""
    text: bool = False
    """Whether its terms change; otherwise only its vector does."""
    body: tuple[Any, ...] | None = None
    vector: bytes | None = None


@dataclass(slots=True)
class DerivedChanges:
    """The changes of derived rows in one transaction, by memory."""

    by_memory: dict[int, DerivedChange] = field(default_factory=dict)

    def record(
        self,
        head: Head,
        /,
        *,
        visible: bool,
        old: TurnState | None,
        body: tuple[Any, ...] | None,
        vector: bytes | None,
        text: bool,
    ) -> None:
        """Record the latest state of a memory."""
        item = self.by_memory.setdefault(head.mem, DerivedChange(head, visible, old))
        item.head, item.visible = head, visible
        item.text = item.text or text
        item.body = body if body is not None else item.body
        item.vector = vector if vector is not None else (item.vector if head.vector is not None else None)


@dataclass(frozen=True, slots=True)
class Deriver:
    """Derives terms, entities and links from memories. Its settings are stored, since all clients must use the same."""

    analyzer: Analyzer = field(default_factory=Analyzer)
    links_key: str = "links"
    entities: str | Callable[[str], Iterable[str]] = "own"
    max_links: int = 256
    lexical: Lexical = field(default_factory=Lexical)

    @classmethod
    def of(cls, analyzer: Analyzer, graph: GraphSettings | None, /) -> Deriver:
        """The deriver for the settings of a memory."""
        if graph is None:
            return cls(analyzer)
        return cls(analyzer, graph.links_key, graph.entities or "own", graph.max_fanout)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; a function is represented by its name."""
        named = self.entities if isinstance(self.entities, str) else f"function {self.entities.__qualname__}"
        analyzer = self.analyzer.to_dict()
        return {
            "analyzer": analyzer,
            "weights": dict(WEIGHTS),
            "links_key": self.links_key,
            "entities": named,
            "max_links": self.max_links,
            "terms": "counted",
            "questions": "shared",
            **self.lexical.to_dict(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], /) -> Deriver:
        """The deriver of a stored record. A function cannot be stored: only clients that pass it can write."""
        analyzer = Analyzer.from_dict(record["analyzer"])
        entities = record["entities"]
        if entities.startswith("function "):
            entities = _missing_function(entities)
        return cls(analyzer, record["links_key"], entities, record["max_links"], Lexical.from_dict(record))

    def check_record(self, record: Mapping[str, Any] | None, /) -> None:
        """Refuse to write after another client has rebuilt the store with other settings."""
        if record is not None and record != self.to_dict():
            raise ConfigError("the store was rebuilt with other settings since it was opened here: open it again")

    # --- writing

    def write(self, raw: Raw, derived: DerivedChanges, /, *, rebuild: bool = False) -> dict[str, Stats]:
        """Update the derived rows of a transaction's memories; returns the change of each namespace's statistics.

        The documents of neighbours in threads are written again where they depend on a changed turn; a `rebuild`
        writes all documents anyway.
        """
        changes: dict[str, Stats] = {}
        by_space: dict[str, list[DerivedChange]] = defaultdict(list)
        for item in derived.by_memory.values():
            if item.visible or item.old:
                by_space[item.head.namespace].append(item)
        for namespace in sorted(by_space):
            changes[namespace] = self._write_space(raw, namespace, by_space[namespace], rebuild=rebuild)
        return changes

    def _write_space(self, raw: Raw, namespace: str, items: Sequence[DerivedChange], *, rebuild: bool) -> Stats:
        changed = [item for item in items if item.text and (item.visible or item.old)]
        turns = ThreadNeighbours(raw, namespace, changed, rebuild=rebuild)
        dependent = [DerivedChange(head, True, _UNCHANGED, text=True) for head in turns.dependent]
        old = [*(item for item in changed if item.old), *dependent]
        lost, lost_length = remove_terms(raw, namespace, old) if old else (0, 0.0)
        new = [*(item for item in changed if item.visible), *dependent]
        self._load_bodies(raw, new)
        length = self._add_terms(raw, namespace, new, turns) if new else 0.0
        _count_speakers(raw, namespace, changed)
        self.lexical.replace(raw, namespace, [item.head.mem for item in old], self._docs(new))
        return Stats(len(new) - lost, length - lost_length, self._vectors(raw, namespace, items))

    def _add_terms(self, raw: Raw, namespace: str, items: Sequence[DerivedChange], turns: ThreadNeighbours) -> float:
        documents: list[tuple[Any, ...]] = []
        postings: list[tuple[Any, ...]] = []
        mentions: list[tuple[Any, ...]] = []
        pointers: list[tuple[Any, ...]] = []
        names: list[tuple[Any, ...]] = []
        texts = {item.head.mem: item.body[-1] for item in items if item.body is not None}
        turns.load_texts(raw, texts)
        for item in sorted(items, key=lambda item: item.head.mem):
            body, mem, id_ = item.body, item.head.mem, item.head.id
            if body is None:
                continue
            words, length = weigh(_fields(body), analyzer=self.analyzer, questions=turns.questions(mem))
            documents.append((namespace, mem, length, list(words)))
            postings += [(namespace, term, mem, tf, length) for term, tf in words.items()]
            mentions += [(namespace, key, id_, name) for key, name in self._entities(body)]
            pointers += [(namespace, id_, target) for target in self._links(body) if target != id_]
            names += [(namespace, max(name.split(), key=len), id_, name, target) for name, target in _names(body)]
        insert(raw, "documents", ("text", "bigint", "real", "text[]"), documents)
        insert(raw, "postings", ("text", "text", "bigint", "real", "real"), sorted(postings))
        _count_terms(raw, namespace, [row[1] for row in postings])
        insert(raw, "mentions", ("text", "text", "text", "text"), mentions)
        insert(raw, "pointers", ("text", "text", "text"), pointers)
        insert(raw, "names", ("text", "text", "text", "text", "text"), names)
        return float(sum(row[2] for row in documents))

    def _docs(self, items: Sequence[DerivedChange]) -> list[DocumentTerms]:
        """The terms for a lexical engine that has its own table."""
        if self.lexical.engine_table is None:
            return []
        terms = self.analyzer.all_terms
        return [
            DocumentTerms(item.head.mem, {name: terms(text) for name, text in _fields(item.body).items() if text})
            for item in items
            if item.body is not None
        ]

    def _entities(self, body: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
        names: Iterable[str] = json.loads(body[_PLACE["entities"]] or "[]")
        if not names and self.entities != "own":
            find = spot if isinstance(self.entities, str) else self.entities
            names = find(body[_PLACE["text"]])
        found: dict[str, str] = {}
        for name in names:
            if name.strip():
                found.setdefault(" ".join(name.split()).casefold(), " ".join(name.split()))
        return iter(found.items())

    def _links(self, body: tuple[Any, ...]) -> list[str]:
        metadata = body[_PLACE["metadata"]]
        value = json.loads(metadata).get(self.links_key) if metadata else None
        if isinstance(value, str):
            return [value] if value else []
        if not isinstance(value, list):
            return []
        return list(dict.fromkeys(str(key) for key in value[: self.max_links]))

    # --- rows of earlier transactions

    @staticmethod
    def _load_bodies(raw: Raw, items: Sequence[DerivedChange]) -> None:
        missing = {item.head.body: item for item in items if item.body is None}
        if missing:
            query = f"SELECT seq, {', '.join(BODY)} FROM bodies WHERE seq = ANY(%s)"  # noqa: S608
            for seq, *body in raw.execute(query, (list(missing),)):
                missing[seq].body = tuple(body)

    @staticmethod
    def _vectors(raw: Raw, namespace: str, items: Sequence[DerivedChange]) -> int:
        """Replace changed vectors; returns by how many their number grows."""
        if not _has_embeddings(raw, items):
            return 0
        old = [item.head.mem for item in items if item.old]
        gone = raw.execute(
            "DELETE FROM embeddings WHERE namespace = %s AND mem = ANY(%s)", (namespace, sorted(old))
        ).rowcount if old else 0  # fmt: skip
        have = [item for item in items if item.visible and item.head.vector is not None]
        missing = {item.head.vector: item for item in have if item.vector is None}
        if missing:
            for seq, data in raw.execute("SELECT seq, data FROM vectors WHERE seq = ANY(%s)", (list(missing),)):
                missing[seq].vector = data
        rows = [(namespace, item.head.mem, *_embedding(item.vector)) for item in have if item.vector is not None]
        insert_vectors(raw, rows)
        return len(rows) - gone


_UNCHANGED = TurnState(None, None, 0, 0, None, named=False)


def _count_speakers(raw: Raw, namespace: str, items: Sequence[DerivedChange]) -> None:
    """Update the numbers of memories by speaker, given or by the "Name:" at the start of a text."""
    counts: dict[str, list[int]] = {}
    for item in items:
        states = [(item.old.speaker, item.old.named, -1)] if item.old else []
        if item.visible and item.body is not None:
            states.append((item.head.speaker, bool(item.body[_PLACE["speaker"]].strip()), 1))
        for speaker, named, change in states:
            if speaker is not None:
                counts.setdefault(speaker, [0, 0])[0 if named else 1] += change
    rows = sorted((speaker, *change) for speaker, change in counts.items() if any(change))
    if rows:
        raw.execute(
            "INSERT INTO speakers AS s SELECT %s, * FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) "
            "ON CONFLICT (namespace, speaker) DO UPDATE SET named = s.named + excluded.named, "
            "prefixed = s.prefixed + excluded.prefixed",
            (namespace, *([row[i] for row in rows] for i in range(3))),
        )
    fewer = sorted(speaker for speaker, change in counts.items() if min(change) < 0)
    if fewer:
        raw.execute(
            "DELETE FROM speakers WHERE namespace = %s AND speaker = ANY(%s) AND named <= 0 AND prefixed <= 0",
            (namespace, fewer),
        )


def remove_terms(raw: Raw, namespace: str, items: Sequence[DerivedChange], /) -> tuple[int, float]:
    """Remove the terms, entities and links of memories; returns how many had any, and their Σ|D|."""
    mems = sorted(item.head.mem for item in items)
    _remove_postings(raw, namespace, mems)
    lengths = raw.execute(
        "DELETE FROM documents WHERE namespace = %s AND mem = ANY(%s) RETURNING length", (namespace, mems)
    ).fetchall()
    ids = [item.head.id for item in items]
    for table in ("mentions", "pointers", "names"):
        raw.execute(f"DELETE FROM {table} WHERE namespace = %s AND id = ANY(%s)", (namespace, ids))  # noqa: S608
    return len(lengths), sum(row[0] for row in lengths)


def _missing_function(name: str) -> Callable[[str], Iterable[str]]:
    def refuse(_text: str) -> Iterable[str]:
        raise ConfigError(
            f"this store finds entities by your {name}: to write, open it with "
            "HybridMemory(graph=GraphSettings(entities=…))"
        )

    refuse.__qualname__ = name.removeprefix("function ")  # so that `to_dict` gives the stored name
    return refuse


def _fields(body: tuple[Any, ...]) -> Mapping[str, str]:
    tags = body[_PLACE["tags"]]
    fields = {name: body[_PLACE[name]] for name in ("text", "title", "predicate")}
    fields["tags"] = " ".join(json.loads(tags)) if tags else ""
    return fields


def _names(body: tuple[Any, ...]) -> set[tuple[str, str]]:
    """The names of a memory, with an empty target, and the labels of its links with the names of their targets."""
    metadata = body[_PLACE["metadata"]]
    own = names_of(body[_PLACE["title"]], json.loads(metadata) if metadata else {})
    return {*((name, "") for name in own), *labels_of(body[_PLACE["text"]])}


def _embedding(data: bytes | None) -> tuple[int, Any]:
    row = unit(decode_vector(data))
    return len(row), row


def _has_embeddings(raw: Raw, items: Sequence[DerivedChange]) -> bool:
    if any(item.vector is not None for item in items):
        return True
    if not any(item.old or item.head.vector is not None for item in items):
        return False
    return raw.execute("SELECT to_regclass('embeddings') IS NOT NULL").fetchone() == (True,)
