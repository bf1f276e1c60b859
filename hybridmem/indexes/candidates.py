"""The pool of candidates of one query: the hits of all arms and their neighbours in threads, scored by every arm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from hybridmem.core.protocols import ArmQuery
from hybridmem.core.types import Candidates, Hits, MentionLink, SharedName

__all__ = ["NO_SPREAD", "SAMPLE", "WINDOW", "NamesRead", "baseline_of", "candidates"]

SAMPLE = 128
"""The cosines of this many memories tell how similar an unrelated memory is."""
NO_SPREAD = 1e-6
"""Cosines whose standard deviation is at most this are equal: they differ by rounding."""
MENTIONING = 40
"""The texts of this many of the best hits are read for names of other memories."""
MENTIONED = 30
"""At most this many memories that no arm found join the pool because a text mentions them: those of the best texts."""
WINDOW = 2
"""A window has this many turns before and after a memory."""


class PoolLexicalIndex(Protocol):
    """BM25 of memories and of windows of memories, in this process or in a server."""

    def score(self, query: str, ids: Sequence[str], /) -> list[float]: ...
    def windows(
        self, query: str, ids: Sequence[str], around: Sequence[Sequence[str | None]], /
    ) -> tuple[list[float], list[float]]: ...


class PoolThreads(Protocol):
    """The order of memories in threads."""

    def around(self, ids: Sequence[str], hops: int, /) -> list[list[str | None]]: ...


class NamesRead(NamedTuple):
    """The names that were found in the query and in some texts."""

    links: Sequence[tuple[str | None, str, str, int]]
    """What mentions a memory by name: (id, None for the query; mentioned id; name; number of memories of that name)."""
    shared: Mapping[str, Sequence[str]]
    """Names in several of the texts, with the ids of these."""
    weigh: Callable[[Set[str]], Mapping[str, float]]
    """The weights of names, computed for those that a candidate has."""


def candidates(
    bm25: PoolLexicalIndex,
    vectors: Any,
    threads: PoolThreads,
    query: ArmQuery,
    hits: Mapping[str, Hits],
    /,
    *,
    baseline: Callable[[], float],
    seeds: int,
    hops: int,
    read_names: Callable[[str, Sequence[str]], NamesRead] | None = None,
) -> Candidates:
    """All hits plus `hops` turns on either side of the best `seeds`, scored by every arm (see `Candidates`).

    `baseline` is the cosine of an unrelated memory. `read_names` finds the names in the query and in the best
    `MENTIONING` hits; the memories that are mentioned belong to the pool, too.
    """
    lows = {arm: 0.0 if arm == "bm25" else baseline() for arm in hits}

    def scored(arm: str, ids: Sequence[str]) -> list[float]:
        if not ids:
            return []
        if arm == "bm25":
            return bm25.score(query.text, ids)
        return [lows[arm] if score is None else score for score in vectors.score(query.vector, ids)]

    ids = list(dict.fromkeys(chain.from_iterable(found.ids for found in hits.values())))
    scores: dict[str, list[float]] = {}
    for arm, found in hits.items():
        given = dict(zip(*found, strict=True))
        missing = [id_ for id_ in ids if id_ not in given]
        given.update(zip(missing, scored(arm, missing), strict=True))
        scores[arm] = list(map(given.__getitem__, ids))
    best = _best(ids, scores, lows, max(seeds, MENTIONING))
    names = _NO_NAMES if read_names is None else read_names(query.text, best[:MENTIONING])
    more = _new_ids(chain.from_iterable(threads.around(best[:seeds], hops)), ids, query.allowed)
    more += _new_ids((target for _, target, _, _ in names.links), [*ids, *more], query.allowed)[:MENTIONED]
    ids += more
    around = threads.around(ids, WINDOW)
    alone = [before is None and after is None for before, after in zip(around[0], around[1], strict=True)]
    separate = all(alone)
    single, together = ([], []) if separate else bm25.windows(query.text, ids, around)
    scores = {
        arm: known + (single[len(known) :] if arm == "bm25" and single else scored(arm, more))
        for arm, known in scores.items()
    }
    position = {id_: place for place, id_ in enumerate(ids)}
    links = [link for link in names.links if link[1] in position]
    weights = names.weigh({*names.shared, *(name for _, _, name, _ in links)})
    mentioned = [
        MentionLink(-1 if source is None else position[source], position[target], weights[name] / count, name)
        for source, target, name, count in links
    ]
    shared = [
        SharedName(name, weights[name], [position[id_] for id_ in members]) for name, members in names.shared.items()
    ]
    if separate:
        return Candidates(ids, scores, lows, mentions=mentioned, shared=shared)
    window = [math.nan if lone else score for lone, score in zip(alone, together, strict=True)]
    previous = [-1 if id_ is None else position.get(id_, -1) for id_ in around[0]]
    return Candidates(ids, scores, lows, window, previous, mentioned, shared)


_NO_NAMES = NamesRead((), {}, lambda _: {})


def baseline_of(cosines: Sequence[float] | Any, /) -> float:
    """The cosine of an unrelated memory: mean − standard deviation over a sample of the view's vectors.

    0 when the sample's cosines are equal, as those of one memory are: nothing tells how similar an unrelated one is.
    """
    deviation = float(np.std(cosines)) if len(cosines) else 0.0
    return float(np.mean(cosines)) - deviation if deviation > NO_SPREAD else 0.0


def _best(ids: list[str], scores: Mapping[str, list[float]], lows: Mapping[str, float], count: int) -> list[str]:
    """The best ids by the mean of the arms' scores, each scaled to 0 … 1 between its baseline and its best."""
    total = np.zeros(len(ids))
    for arm, values in scores.items():
        low = lows[arm]
        span = max(max(values, default=low) - low, 1e-9)
        total += np.maximum((np.array(values) - low) / span, 0.0)
    least = np.partition(total, -count)[-count] if count < len(ids) else -np.inf
    order = sorted((-total[place], ids[place]) for place in (total >= least).nonzero()[0].tolist())
    return [id_ for _, id_ in order[:count]]


def _new_ids(near: Iterable[str | None], ids: list[str], allowed: Set[str] | None) -> list[str]:
    known: set[str | None] = {None, *ids}
    found = dict.fromkeys(id_ for id_ in near if id_ not in known)
    return [id_ for id_ in found if id_ is not None and (allowed is None or id_ in allowed)]
