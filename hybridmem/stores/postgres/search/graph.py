"""The graph in the server: one statement fetches the neighbourhood of the seeds, and `GraphIndex` computes on it.

Names that texts mention are looked up word by word (`names_read`).

In a namespace with threads alone, the neighbourhood is a few memories before and after each seed. With links or
entities, the statement is recursive. Every memory within hops − 1 of a seed is fetched with all its edges, so that
activation is the same as over the whole graph.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from hybridmem.core.types import Activation, Direction, Edge, Entry, Hits
from hybridmem.filters.sql import SQL
from hybridmem.indexes.bm25.scoring import idf
from hybridmem.indexes.candidates import NamesRead
from hybridmem.indexes.entries import Entries, Extra
from hybridmem.indexes.graph.activation import GraphSnapshot, check_walk
from hybridmem.indexes.graph.index import GraphIndex, GraphSettings
from hybridmem.indexes.graph.names import (
    Names,
    name_information,
    shared_names,
    spotted_names,
    words_of,
)
from hybridmem.stores.postgres.search.bm25 import ENTRY, entry_of
from hybridmem.stores.postgres.search.engines import RunStatement
from hybridmem.stores.postgres.search.filters import FilterIds
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.conversation import ASKS

__all__ = ["DIRECTIONS", "ServerGraph", "along", "link_tables", "names_read", "neighbourhood", "thread_neighbours"]

MOST = 50_000
"""The most nodes that are fetched."""

_ID = 2
"""The column of an entry's id in `thread_neighbours`."""
_ASKS = f"(m.cues & {ASKS:d}) > 0 AS asks"
_VISIBLE = "m.live AND m.status <> 'superseded'"

DIRECTIONS = (("<", "DESC"), (">", "ASC"))
"""Backwards and forwards in a thread."""


def along(way: str, order: str, columns: str, limit: str) -> str:
    """The memories before (or after) a memory `w` in its thread, the nearest first."""
    return (
        f"SELECT {columns} FROM memories m WHERE m.namespace = w.namespace AND m.thread = w.thread AND {_VISIBLE} "
        f"AND m.thread IS NOT NULL AND (m.created_at, m.born) {way} (w.created_at, w.born) "
        f"ORDER BY m.created_at {order}, m.born {order} LIMIT {limit}"
    )


def _few(mention: str, most: int) -> str:
    """Whether an entity has at most `most` memories; counting stops beyond that."""
    return (
        f"(SELECT count(*) FROM (SELECT 1 FROM mentions c WHERE c.namespace = {mention}.namespace "
        f"AND c.entity = {mention}.entity LIMIT {most + 1:d}) c) <= {most:d}"
    )


def _steps(settings: GraphSettings) -> str:
    """The neighbours of a memory `w`: one SELECT for each source of edges with a weight."""
    steps = ["SELECT NULL::text AS id WHERE FALSE"]
    if settings.explicit > 0:
        steps.append("SELECT b FROM edges WHERE namespace = w.namespace AND a = w.id AND weight > 0")
        steps.append("SELECT a FROM edges WHERE namespace = w.namespace AND b = w.id AND weight > 0")
    if settings.metadata > 0:
        steps.append("SELECT target FROM pointers WHERE namespace = w.namespace AND id = w.id")
        steps.append("SELECT id FROM pointers WHERE namespace = w.namespace AND target = w.id")
    if settings.thread > 0:
        steps += [f"SELECT t.id FROM ({along(*way, 'm.id', '1')}) t" for way in DIRECTIONS]
    if settings.entities is not None and settings.shared > 0:
        steps.append(
            "SELECT o.id FROM mentions x CROSS JOIN LATERAL (SELECT o.id FROM mentions o WHERE o.namespace = "
            f"x.namespace AND o.entity = x.entity OFFSET 0) o WHERE x.namespace = w.namespace AND x.id = w.id "
            f"AND {_few('x', settings.max_fanout)}"
        )
    return " UNION ALL ".join(steps)


_TYPES = {"id": "text", "source_id": "text", "thread": "text", "status": "text", "words": "integer"}
_TYPES |= {"access_count": "bigint", "speaker": "text", "cues": "integer"}
_NO_NODE = ", ".join(
    f"NULL::{kind}" for kind in ("bigint", "boolean", *(_TYPES.get(name, "float8") for name in Entry._fields))
)
"""NULLs for the columns that only nodes have: born, asks and the entry."""

# Every look-up is a LATERAL with OFFSET 0, which forces an index scan for each node.
_WALK = f"""
WITH RECURSIVE walk (id, hop) AS (
  SELECT m.id, 0 FROM memories m WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND {_VISIBLE}
  UNION
  SELECT n.id, v.hop + 1 FROM walk v
  CROSS JOIN LATERAL (SELECT * FROM memories m WHERE m.namespace = ? AND m.id = v.id OFFSET 0) w
  CROSS JOIN LATERAL ({{steps}}) n (id)
  CROSS JOIN LATERAL (SELECT FROM memories m WHERE m.namespace = ? AND m.id = n.id AND {_VISIBLE} OFFSET 0) m
  WHERE v.hop < ?
), near AS MATERIALIZED (SELECT id, min(hop) AS hop FROM walk GROUP BY id ORDER BY 2, 1 LIMIT {MOST}),
inner_ AS MATERIALIZED (SELECT id FROM near WHERE hop < ?)
SELECT 'n', NULL, NULL, NULL, NULL::float8, m.* FROM near CROSS JOIN LATERAL (
  SELECT m.born, {_ASKS}, {ENTRY} FROM memories m WHERE m.namespace = ? AND m.id = near.id OFFSET 0) m"""
_EDGES = f"""
SELECT 'e', e.*, {_NO_NODE} FROM inner_ i CROSS JOIN LATERAL (
  SELECT a, b, relation, weight FROM edges WHERE namespace = ? AND {{end}} = i.id OFFSET 0) e"""
_POINTERS = f"""
SELECT 'p', p.id, p.target, NULL, NULL::float8, {_NO_NODE} FROM inner_ i CROSS JOIN LATERAL (
  SELECT id, target FROM pointers WHERE namespace = ? AND {{end}} = i.id OFFSET 0) p"""
_MENTIONS = f"""
SELECT 'm', o.id, o.entity, o.name, NULL::float8, {_NO_NODE} FROM (
  SELECT DISTINCT x.namespace, x.entity FROM inner_ i CROSS JOIN LATERAL (
    SELECT namespace, entity FROM mentions WHERE namespace = ? AND id = i.id OFFSET 0) x WHERE {{few}}) e
CROSS JOIN LATERAL (
  SELECT id, entity, name FROM mentions o WHERE o.namespace = e.namespace AND o.entity = e.entity OFFSET 0) o"""


def neighbourhood(namespace: str, seeds: Sequence[str], settings: GraphSettings, /, *, hops: int) -> SQL:
    """The statement: rows (kind, a, b, name, weight, born, asks, *entry) of nodes, edges, pointers and mentions."""
    parts = [_WALK.format(steps=_steps(settings))]
    bound: list[Any] = [namespace, list(seeds), namespace, namespace, hops, hops, namespace]
    if settings.explicit > 0:
        parts += [_EDGES.format(end=end) for end in ("a", "b")]
    if settings.metadata > 0:
        parts += [_POINTERS.format(end=end) for end in ("id", "target")]
    if settings.entities is not None and settings.shared > 0:
        parts.append(_MENTIONS.format(few=_few("x", settings.max_fanout)))
    return SQL(" UNION ALL ".join(parts), (*bound, *[namespace] * (len(parts) - 1)))


def thread_neighbours(namespace: str, seeds: Sequence[str], /, *, hops: int) -> SQL:
    """The statement for threads alone: rows (born, asks, *entry), some of them twice."""
    fields = f"m.born, {_ASKS}, {ENTRY}"
    both = [f"SELECT n.* FROM seeds w CROSS JOIN LATERAL ({along(*way, fields, '?')}) n" for way in DIRECTIONS]
    return SQL(
        "WITH seeds AS MATERIALIZED (SELECT m.* FROM memories m WHERE m.namespace = ? AND m.id = ANY(?::text[]) "
        f"AND {_VISIBLE}) SELECT {fields} FROM seeds m UNION ALL {' UNION ALL '.join(both)}",
        (namespace, list(seeds), hops, hops),
    )


def link_tables(settings: GraphSettings, /) -> list[str]:
    """The tables of links other than threads that have a weight."""
    tables = ["edges"] * (settings.explicit > 0) + ["pointers"] * (settings.metadata > 0)
    return tables + ["mentions"] * (settings.entities is not None and settings.shared > 0)


class _Subgraph(NamedTuple):
    """The fetched neighbourhood: nodes (born, asks, entry) by age, and their links."""

    nodes: list[tuple[int, bool, Entry]]
    mentions: Mapping[str, list[str]] = MappingProxyType({})
    pointers: Mapping[str, list[str]] = MappingProxyType({})
    edges: Iterable[Edge] = ()


def _read_threads(rows: Iterable[Sequence[Any]]) -> _Subgraph:
    nodes = {row[_ID]: (row[0], row[1], entry_of(row[_ID:])) for row in rows}
    return _Subgraph(sorted(nodes.values(), key=itemgetter(0)))


def _read(rows: Iterable[Sequence[Any]]) -> _Subgraph:
    mentions: dict[str, list[str]] = {}
    pointers: dict[str, list[str]] = {}
    edges: dict[tuple[str, str, str], Edge] = {}
    nodes: list[tuple[int, bool, Entry]] = []
    for kind, a, b, name, weight, born, asks, *fields in rows:
        if kind == "n":
            nodes.append((born, asks, entry_of(fields)))
        elif kind == "e":
            edges[a, b, name] = Edge(a, b, name, weight)
        elif kind == "p":
            pointers.setdefault(a, []).append(b)
        else:
            mentions.setdefault(a, []).append(name)
    nodes.sort(key=itemgetter(0))
    return _Subgraph(nodes, mentions, pointers, edges.values())


def _snapshot(subgraph: _Subgraph, settings: GraphSettings) -> tuple[GraphSnapshot, list[Entry]]:
    """A snapshot of the index over the subgraph, and its nodes."""
    nodes, mentions, pointers, edges = subgraph
    index = GraphIndex(settings if settings.entities in ("own", None) else replace(settings, entities="own"))
    entries = Entries()
    for born, asks, entry in nodes:
        id_ = entry[0]
        links = pointers.get(id_)
        named = tuple(mentions.get(id_, ()))
        links = None if links is None else list(dict.fromkeys(links))
        entries.set_entry(id_, entry._replace(cues=ASKS if asks else 0), born, Extra(named, links))
    index.load(entries, edges)
    return index.snapshot(), [entry for _, _, entry in nodes]


class ServerGraph:
    """The graph of one namespace, fetched around the seeds of each call; implements `hybridmem.core.types.Graph`."""

    def __init__(
        self,
        namespace: str,
        settings: GraphSettings,
        run: RunStatement,
        /,
        *,
        items: Callable[[Sequence[str]], list[Any]],
        cache: Callable[[Iterable[Entry]], None],
        beyond_threads: bool,
        allowed: Set[str] | None = None,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        check_walk(direction, weights)
        self._walk = direction, weights
        self._namespace, self._settings, self._run = namespace, settings, run
        self._items, self._cache, self._beyond_threads, self._allowed = items, cache, beyond_threads, allowed
        self._seen: dict[tuple[frozenset[str], int], GraphSnapshot] = {}

    def _around(self, seeds: Mapping[str, float], hops: int) -> GraphSnapshot:
        key = (frozenset(seeds), hops)
        found = self._seen.get(key)
        if found is None:
            found, nodes = _snapshot(self._fetch(sorted(seeds), hops), self._settings)
            self._cache(nodes)
            allowed = self._allowed_ids([node.id for node in nodes])
            found = replace(found, fetch=self._items, allowed=allowed).walked(*self._walk)
            self._seen[key] = found
        return found

    def _fetch(self, seeds: Sequence[str], hops: int) -> _Subgraph:
        if self._beyond_threads:
            return _read(self._run(neighbourhood(self._namespace, seeds, self._settings, hops=hops)))
        if self._settings.thread > 0:
            return _read_threads(self._run(thread_neighbours(self._namespace, seeds, hops=hops)))
        return _Subgraph([])

    def _allowed_ids(self, ids: Sequence[str]) -> Set[str] | None:
        """Those of these nodes that match the filter, which the server evaluates for them alone."""
        if not isinstance(self._allowed, FilterIds):
            return self._allowed
        text, parameters = self._allowed.condition
        return frozenset(
            row[0]
            for row in self._run(
                SQL(
                    "SELECT m.id FROM memories m JOIN bodies b ON b.seq = m.body WHERE m.namespace = ? "
                    f"AND m.id = ANY(?::text[]) AND {text}",
                    (self._namespace, list(ids), *parameters),
                )
            )
        )

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> Mapping[str, float]:
        """The activation of each neighbour: the maximum over paths of seed · Π(edge weight · decay)."""
        return self._around(seeds, hops).spread(seeds, hops=hops, decay=decay, include_seeds=include_seeds)

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> Mapping[str, Activation]:
        """The best path to each target."""
        return self._around(seeds, hops).paths(seeds, targets, hops=hops, decay=decay)

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k most activated keys, seeds among them."""
        return self._around(seeds, hops).search(seeds, k=k, hops=hops, decay=decay)

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The entries of keys that no arm returned."""
        return self._items(keys)


# --- names in texts

_TEXTS = (
    "SELECT m.id, b.text, EXISTS (SELECT FROM names n WHERE n.namespace = m.namespace AND n.id = m.id "
    "AND n.target = '') FROM memories m JOIN bodies b ON b.seq = m.body WHERE m.namespace = ? "
    "AND m.id = ANY(?::text[]) AND m.live AND m.status <> 'superseded'"
)
_NAMES = (
    "SELECT id, name, target FROM names WHERE namespace = ? AND word = ANY(?::text[]) UNION "
    "SELECT t.id, t.name, '' FROM names l JOIN names t ON t.namespace = l.namespace AND t.name = l.target "
    "AND t.target = '' WHERE l.namespace = ? AND l.word = ANY(?::text[]) AND l.target <> ''"
)
_FREQUENCIES = (
    "SELECT q.term, t.n, (SELECT memories FROM spaces WHERE namespace = ?) FROM unnest(?::text[]) AS q (term) "
    "LEFT JOIN terms t ON t.namespace = ? AND t.term = q.term"
)


def names_read(
    namespace: str, run: RunStatement, query: str, ids: Sequence[str], graph: GraphSettings, analyzer: Analyzer, /
) -> NamesRead:
    """The names in a query and in the texts of these memories."""
    texts = {id_: (text, named) for id_, text, named in run(SQL(_TEXTS, (namespace, list(ids))))}
    words = {word for text, _ in texts.values() for word in words_of(text)} | set(words_of(query))
    names = _names(namespace, run, sorted(words))
    sources: list[str | None] = [None, *(id_ for id_ in ids if id_ in texts)]
    found = [
        (id_, mention)
        for id_ in sources
        for mention in names.mentions(id_ or "", query if id_ is None else texts[id_][0])
        if mention.shared <= graph.max_fanout
    ]
    spotted = [(id_, spotted_names(texts[id_][0])) for id_ in ids if id_ in texts and texts[id_][1]]
    shared = shared_names(query, spotted)

    def weigh(wanted: Set[str]) -> dict[str, float]:
        information = _information(namespace, run, wanted, analyzer)
        return {name: graph.mentions * information[name] for name in wanted}

    return NamesRead([(id_, *mention) for id_, mention in found], shared, weigh)


def _names(namespace: str, run: RunStatement, words: Sequence[str]) -> Names:
    """The names and labels whose longest word is one of these, and the names that the labels point to."""
    own: dict[str, dict[str, None]] = {}
    labels: dict[str, list[tuple[str, str]]] = {}
    for id_, name, target in run(SQL(_NAMES, (namespace, words) * 2)):
        if target:
            labels.setdefault(id_, []).append((name, target))
        else:
            own.setdefault(id_, {})[name] = None
    names = Names()
    for id_ in sorted({*own, *labels}):
        names.set(id_, tuple(own.get(id_, ())), tuple(labels.get(id_, ())))
    return names


def _information(namespace: str, run: RunStatement, names: Iterable[str], analyzer: Analyzer) -> dict[str, float]:
    """How much each name tells, from 0 to 1."""
    terms = {name: analyzer(name) for name in names}
    wanted = sorted({term for some in terms.values() for term in some})
    if not wanted:
        return dict.fromkeys(terms, 0.0)
    rows = run(SQL(_FREQUENCIES, (namespace, wanted, namespace)))
    information = {term: idf(int(count or 0), int(n or 0)) for term, n, count in rows}
    memories = max(int(count or 0) for _, _, count in rows)
    return {name: name_information(some, information.__getitem__, memories) for name, some in terms.items()}
