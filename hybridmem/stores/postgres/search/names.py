"""Names of memories mentioned in texts, looked up in the server."""

from __future__ import annotations

from collections.abc import Sequence

from hybridmem.filters.sql import SQL
from hybridmem.indexes.bm25.scoring import idf
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.graph.names import Mention, Names, name_weight
from hybridmem.stores.postgres.search.engines import Run
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.names import words_of

__all__ = ["mentions_of"]

_TEXTS = (
    "SELECT m.id, b.text FROM memories m JOIN bodies b ON b.seq = m.body WHERE m.namespace = ? "
    "AND m.id = ANY(?::text[]) AND m.live AND m.status <> 'superseded'"
)
_LABELLED = (
    "SELECT DISTINCT t.id, t.name FROM names l JOIN names t ON t.namespace = l.namespace AND t.name = l.target "
    "AND t.target = '' WHERE l.namespace = ? AND l.word = ANY(?::text[]) AND l.target <> ''"
)


def mentions_of(
    namespace: str, run: Run, ids: Sequence[str], graph: GraphSettings, analyzer: Analyzer, /
) -> list[tuple[str, str, float, str]]:
    """The memories that the texts of these mention by name: (id, mentioned id, weight, name)."""
    texts: dict[str, str] = dict(run(SQL(_TEXTS, (namespace, list(ids)))))
    words = sorted({word for text in texts.values() for word in words_of(text)})
    names = _names(namespace, run, words)
    found = [(id_, mention) for id_ in ids if id_ in texts for mention in names.mentions(id_, texts[id_])]
    few = [(id_, mention) for id_, mention in found if mention.shared <= graph.max_fanout]
    information = _information(namespace, run, [mention for _, mention in few], analyzer)
    return [
        (id_, mention.id, graph.mentions * name_weight(mention, information[mention.name]), mention.name)
        for id_, mention in few
    ]


def _names(namespace: str, run: Run, words: Sequence[str]) -> Names:
    """The names and labels whose longest word is one of these, and the names that the labels point to."""
    rows = run(
        SQL("SELECT id, name, target FROM names WHERE namespace = ? AND word = ANY(?::text[])", (namespace, words))
    )
    own: dict[str, dict[str, None]] = {}
    labels: dict[str, list[tuple[str, str]]] = {}
    for id_, name, target in rows:
        if target:
            labels.setdefault(id_, []).append((name, target))
        else:
            own.setdefault(id_, {})[name] = None
    if labels:
        for id_, name in run(SQL(_LABELLED, (namespace, words))):
            own.setdefault(id_, {})[name] = None
    names = Names()
    for id_ in sorted({*own, *labels}):
        names.set(id_, tuple(own.get(id_, ())), tuple(labels.get(id_, ())))
    return names


def _information(namespace: str, run: Run, mentions: Sequence[Mention], analyzer: Analyzer) -> dict[str, float]:
    """The IDF of the rarest term of each name."""
    terms = {mention.name: analyzer(mention.name) for mention in mentions}
    wanted = sorted({term for some in terms.values() for term in some})
    if not wanted:
        return dict.fromkeys(terms, 0.0)
    size = run(SQL("SELECT memories FROM spaces WHERE namespace = ?", (namespace,)))
    count = int(size[0][0]) if size else 0
    rows = run(SQL("SELECT term, n FROM terms WHERE namespace = ? AND term = ANY(?::text[])", (namespace, wanted)))
    frequency: dict[str, int] = dict(rows)
    return {
        name: max((idf(count, int(frequency.get(term, 0))) for term in some), default=0.0)
        for name, some in terms.items()
    }
