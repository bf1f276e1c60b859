"""Stages that select results: dedup by source, one result for identical texts, packing to k or a token budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from hybridmem.core import validation
from hybridmem.core.times import epoch
from hybridmem.core.types import Ranking
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.merge import take
from hybridmem.fusion.stages.base import Context

__all__ = ["IdenticalTexts", "Pack", "SourceDedup", "count_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDedup:
    """Keep the best-ranked `max_per_source` items of each source; items without a source are never collapsed.

    `key` is a field or metadata key, or a callable from an item to its source. With `fill`, the next best items of
    collapsed sources fill what is left of k, below all others.
    """

    name: ClassVar[str] = "dedup"

    key: str | Callable[[Any], Hashable | None] = "source_id"
    max_per_source: int = 1
    fill: bool = False

    def __post_init__(self) -> None:
        if not callable(self.key):
            validation.text("dedup key", self.key, "the name of a field, or a function from an item to its source")
        validation.integer("max_per_source", self.max_per_source, "from 1 up", low=1)
        validation.flag("dedup fill", self.fill)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        items = ranking.items
        sources = list(map(self.key, items)) if callable(self.key) else context.reader.column(items, self.key)
        try:
            keep = self._first(sources) if self.max_per_source == 1 else self._some(sources)
        except TypeError as error:
            raise ConfigError(f"dedup by {self.key!r}: a source is a text or a number ({error})") from error
        if len(keep) == len(items):
            return ranking  # no source is repeated
        fill = self._filled(len(sources), keep, context)
        if context.trace is not None:
            self._trace(ranking, sources, keep, fill, context.k, context.trace)
        kept = take(ranking, keep)
        if not fill:
            return kept
        more = take(ranking, fill)
        least = kept.scores[-1]
        return Ranking(
            kept.keys + more.keys, kept.items + more.items, kept.scores + [min(s, least) for s in more.scores]
        )

    @staticmethod
    def _first(sources: list[Any]) -> list[int]:
        """The positions of the best of each source, and of what has no source."""
        seen: set[Any] = set()
        add = seen.add  # returns None
        return [i for i, source in enumerate(sources) if source is None or (source not in seen and add(source) is None)]

    def _some(self, sources: list[Any]) -> list[int]:
        taken: dict[Any, int] = {}
        keep = []
        for i, source in enumerate(sources):
            if source is not None:
                taken[source] = taken.get(source, 0) + 1
                if taken[source] > self.max_per_source:
                    continue
            keep.append(i)
        return keep

    def _filled(self, size: int, keep: list[int], context: Context) -> list[int]:
        """The positions of the collapsed items that fill what is left of k."""
        if not self.fill or not context.fill or context.k is None or len(keep) >= context.k:
            return []
        kept = set(keep)
        return [i for i in range(size) if i not in kept][: context.k - len(keep)]

    @staticmethod
    def _trace(
        ranking: Ranking, sources: list[Any], keep: list[int], fill: list[int], k: int | None, trace: Trace
    ) -> None:
        best: dict[Any, str] = {}
        kept, filled = set(keep), set(fill)
        for i, (key, source) in enumerate(zip(ranking.keys, sources, strict=True)):
            first = best.setdefault(source, key)
            if i in filled:
                trace.note("dedup", key, f"fills k: another chunk of source {source}")
            elif i not in kept:
                trace.drop("dedup", key, f"collapsed into {first} of source {source}")
            elif source is not None and first == key and sources.count(source) > 1:
                trace.note("dedup", key, f"best of source {source}")
        collapsed = len(sources) - len(keep)
        if k is not None and collapsed and len(keep) < k and not fill:
            trace.remark(f"{len(keep)} of {k}: {collapsed} chunks collapsed into {len(best)} sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdenticalTexts:
    """Results with the same normalised text are one result: the newest, at the rank of the best.

    Only the first `look_ahead` · k items are compared, because their texts have to be read.
    """

    name: ClassVar[str] = "duplicates"

    look_ahead: int = 2

    def __post_init__(self) -> None:
        validation.integer("look_ahead", self.look_ahead, "from 1 up", low=1)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        size = len(ranking.keys)
        head = size if context.k is None else min(size, self.look_ahead * context.k)
        groups: dict[str, list[int]] = {}
        places = self._with_equal_lengths(ranking.items[:head], context)
        # the first k will be read anyway: one read of the store instead of two
        read = dict.fromkeys([*places, *range(min(head, context.k or 0))]) if places else ()
        texts = context.reader.column([ranking.items[i] for i in read], "text") if places else []
        for i, text in zip(places, texts, strict=False):
            groups.setdefault(validation.normalized(text) if text else f"\0{i}", []).append(
                i
            )  # no text: never identical
        if len(groups) == len(places):
            return ranking
        keys, items, scores = (list(column) for column in ranking)
        dropped: set[int] = set()
        for group in groups.values():
            if len(group) > 1:
                newest = self._newest(ranking, group, context)
                keys[group[0]], items[group[0]] = ranking.keys[newest], ranking.items[newest]
                dropped.update(group[1:])
                self._trace([ranking.keys[i] for i in group], ranking.keys[newest], context.trace)
        return take(Ranking(keys, items, scores), [i for i in range(size) if i not in dropped])

    @staticmethod
    def _with_equal_lengths(items: list[Any], context: Context) -> list[int]:
        """The positions of items whose number of words is not unique: only their texts have to be read."""
        counts = context.reader.column(items, "words")
        if None in counts:
            return list(range(len(items)))
        repeated = Counter(counts)
        return [i for i, count in enumerate(counts) if repeated[count] > 1]

    @staticmethod
    def _newest(ranking: Ranking, group: list[int], context: Context) -> int:
        items = [ranking.items[i] for i in group]
        updated, created = (context.reader.column(items, name) for name in ("updated_at", "created_at"))
        times = [
            epoch(made if changed is None else changed) or 0.0 for changed, made in zip(updated, created, strict=True)
        ]
        return group[max(range(len(group)), key=lambda i: (times[i], -i))]

    @staticmethod
    def _trace(keys: list[str], newest: str, trace: Trace | None) -> None:
        if trace is None:
            return
        others = [key for key in keys if key != newest]
        trace.note("duplicates", newest, f"same text as {', '.join(others)}")
        for key in others:
            trace.drop("duplicates", key, f"same text as {newest}")


def count_tokens(text: str) -> int:
    """A quarter of the number of characters, rounded up: an estimate that needs no tokeniser."""
    return -(-len(text) // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Cut to k results or to a token budget, whichever comes first; results that do not fit are skipped."""

    tokens: int | None = None
    counter: Callable[[str], int] = count_tokens

    def __post_init__(self) -> None:
        if self.tokens is not None:
            validation.integer("tokens", self.tokens, "a budget from 1 up, or None", low=1)
        validation.function("pack counter", self.counter, "a function from a text to its number of tokens")

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        keys, items, scores = ranking
        k = len(keys) if context.k is None else context.k
        trace = context.trace
        if self.tokens is None:
            if trace is not None:
                for place, key in enumerate(keys[k:], start=k + 1):
                    trace.drop("", key, _beyond(place, k))
            return ranking if k >= len(keys) else Ranking(keys[:k], items[:k], scores[:k])
        left = self.tokens
        keep: list[int] = []
        for i, text in enumerate(context.reader.column(items, "text")):
            need = self.counter(str(text or ""))
            if len(keep) < k and need <= left:
                keep.append(i)
                left -= need
            elif trace is not None:
                full = _beyond(i + 1, k) if len(keep) >= k else self._too_long(need, left)
                trace.drop("", keys[i], full)
        return Ranking([keys[i] for i in keep], [items[i] for i in keep], [scores[i] for i in keep])

    def _too_long(self, need: int, left: int) -> str:
        return f"{need} tokens, and {left} of {self.tokens} are left"


def _beyond(rank: int, k: int) -> str:
    return f"rank {rank}, and only k={k} results are returned"
