"""The graph inside the server: one recursive statement fetches who is within reach of the seeds; the rest is pure.

The numbers are those of `GraphIndex`: it runs on the small piece of graph that came back. Everything within hops − 1
of a seed comes with all its edges, so what activation can reach is complete.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from hybridmem.filter_sql import SQL
from hybridmem.indexes.base import Change
from hybridmem.indexes.graph import GraphIndex, GraphSettings
from hybridmem.indexes.spreading import Picture
from hybridmem.stores.pg.chosen import Chosen
from hybridmem.times import from_epoch
from hybridmem.types import Activation, Edge, Hits, Memory

__all__ = ["ServerGraph", "neighbourhood"]

MOST = 50_000
"""No more nodes than this are fetched, whatever hangs together."""
Run = Callable[[SQL], Sequence[tuple[Any, ...]]]

_SHOWN = "m.live AND m.status <> 'superseded'"


def _thread(way: str, order: str) -> str:
    return (
        "SELECT t.id FROM (SELECT n.id FROM memories n WHERE n.namespace = w.namespace AND n.thread = w.thread "
        f"AND n.live AND n.status <> 'superseded' AND n.thread IS NOT NULL AND (n.created_at, n.born) {way} "
        f"(w.created_at, w.born) ORDER BY n.created_at {order}, n.born {order} LIMIT 1) t"
    )


def _steps(settings: GraphSettings) -> list[str]:
    """How to get from one memory `w` to its neighbours: one SELECT for each source of edges that counts."""
    steps = []
    if settings.explicit > 0:
        steps += ["SELECT b AS id FROM edges WHERE namespace = w.namespace AND a = w.id AND weight > 0",
                  "SELECT a FROM edges WHERE namespace = w.namespace AND b = w.id AND weight > 0"]  # fmt: skip
    if settings.metadata > 0:
        steps += ["SELECT target FROM pointers WHERE namespace = w.namespace AND id = w.id",
                  "SELECT id FROM pointers WHERE namespace = w.namespace AND target = w.id"]  # fmt: skip
    if settings.thread > 0:
        steps += [_thread("<", "DESC"), _thread(">", "ASC")]
    if settings.entities is not None and settings.shared > 0:
        few = "(SELECT count(*) FROM (SELECT 1 FROM mentions c WHERE c.namespace = w.namespace AND c.entity = x.entity LIMIT {most}) c) < {most}"
        steps.append(
            "SELECT o.id FROM mentions x JOIN mentions o ON o.namespace = x.namespace AND o.entity = x.entity "
            f"WHERE x.namespace = w.namespace AND x.id = w.id AND {few.format(most=settings.max_fanout + 1)}"
        )
    return steps


def neighbourhood(namespace: str, seeds: Sequence[str], settings: GraphSettings, /, *, hops: int) -> SQL:
    """The statement: rows (kind, a, b, name, number, number, flag) of nodes, edges, pointers and mentions."""
    steps = " UNION ALL ".join(_steps(settings)) or "SELECT NULL::text AS id WHERE FALSE"
    walk = f"""
WITH RECURSIVE walk (id, hop) AS (
  SELECT m.id, 0 FROM memories m WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND {_SHOWN}
  UNION
  SELECT n.id, v.hop + 1 FROM walk v JOIN memories w ON w.namespace = ? AND w.id = v.id
  CROSS JOIN LATERAL ({steps}) n (id) JOIN memories m ON m.namespace = w.namespace AND m.id = n.id AND {_SHOWN}
  WHERE v.hop < ?
), near AS MATERIALIZED (SELECT id, min(hop) AS hop FROM walk GROUP BY id ORDER BY 2, 1 LIMIT {MOST}),
inner_ AS (SELECT id FROM near WHERE hop < ?)
SELECT 'n', m.id, m.thread, NULL, m.created_at, m.born::float8, m.asks FROM near JOIN memories m ON m.namespace = ? AND m.id = near.id
"""
    parts = [walk]
    bound: list[Any] = [namespace, list(seeds), namespace, hops, hops, namespace]
    if settings.explicit > 0:
        for end in ("a", "b"):
            parts.append(f"SELECT 'e', a, b, relation, weight, NULL, NULL FROM edges WHERE namespace = ? AND {end} IN (SELECT id FROM inner_)")
            bound.append(namespace)
    if settings.metadata > 0:
        for end in ("id", "target"):
            parts.append(f"SELECT 'p', id, target, NULL, NULL, NULL, NULL FROM pointers WHERE namespace = ? AND {end} IN (SELECT id FROM inner_)")
            bound.append(namespace)
    if settings.entities is not None and settings.shared > 0:
        parts.append(
            "SELECT 'm', o.id, o.entity, o.name, NULL, NULL, NULL FROM (SELECT DISTINCT x.entity FROM mentions x JOIN inner_ ON "
            f"x.id = inner_.id WHERE x.namespace = ? AND (SELECT count(*) FROM (SELECT 1 FROM mentions c WHERE c.namespace = x.namespace AND c.entity = x.entity LIMIT {settings.max_fanout + 1}) c) <= {settings.max_fanout:d}) e "
            "JOIN mentions o ON o.namespace = ? AND o.entity = e.entity"
        )
        bound += [namespace, namespace]
    return SQL(" UNION ALL ".join(parts), tuple(bound))


def _picture(rows: Sequence[tuple[Any, ...]], settings: GraphSettings) -> Picture:
    """The piece of graph as an index, frozen."""
    mentions: dict[str, list[str]] = {}
    pointers: dict[str, list[str]] = {}
    edges: dict[tuple[str, str, str], Edge] = {}
    nodes = []
    for kind, a, b, name, first, second, flag in rows:
        if kind == "n":
            nodes.append((int(second), a, b, first, flag))
        elif kind == "e":
            edges[a, b, name] = Edge(a, b, name, first)
        elif kind == "p":
            pointers.setdefault(a, []).append(b)
        else:
            mentions.setdefault(a, []).append(name)
    key = settings.links_key
    index = GraphIndex(replace(settings, entities="own" if settings.entities is not None else None))
    changes = [
        Change(
            born,
            id_,
            Memory(
                "?" if asks else "",
                id=id_,
                thread=thread,
                entities=tuple(mentions.get(id_, ())),
                created_at=None if created is None else from_epoch(created),
                metadata={key: list(dict.fromkeys(pointers[id_]))} if id_ in pointers else {},
            ),
            born=born,
        )
        for born, id_, thread, created, asks in sorted(nodes, key=lambda node: node[0])
    ]
    index.apply([*changes, *(Change(0, "", edge=edge) for edge in edges.values())])
    return index.snapshot()


class ServerGraph:
    """A still picture of the graph around whatever seeds it is asked about; implements `hybridmem.types.Graph`."""

    def __init__(
        self,
        namespace: str,
        settings: GraphSettings,
        run: Run,
        /,
        *,
        items: Callable[[Sequence[str]], list[Any]],
        allowed: Set[str] | None = None,
    ) -> None:
        self._namespace, self._settings, self._run = namespace, settings, run
        self._items, self._allowed = items, allowed
        self._seen: dict[tuple[frozenset[str], int], Picture] = {}

    def _around(self, seeds: Mapping[str, float], hops: int) -> Picture:
        key = (frozenset(seeds), hops)
        found = self._seen.get(key)
        if found is None:
            rows = self._run(neighbourhood(self._namespace, sorted(seeds), self._settings, hops=hops))
            found = _picture(rows, self._settings)
            found = replace(found, fetch=self._items, allowed=self._choose([row[1] for row in rows if row[0] == "n"]))
            self._seen[key] = found
        return found

    def _choose(self, ids: Sequence[str]) -> Set[str] | None:
        """Which of these nodes may take part: a filter is asked in the server about these alone."""
        if not isinstance(self._allowed, Chosen):
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
        """What each neighbour receives: the best over paths of seed · Π(edge weight · decay)."""
        return self._around(seeds, hops).spread(seeds, hops=hops, decay=decay, include_seeds=include_seeds)

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> Mapping[str, Activation]:
        """The winning path to each target."""
        return self._around(seeds, hops).paths(seeds, targets, hops=hops, decay=decay)

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k most activated keys, seeds among them."""
        return self._around(seeds, hops).search(seeds, k=k, hops=hops, decay=decay)

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The entries behind keys that no arm had found."""
        return self._items(keys)
