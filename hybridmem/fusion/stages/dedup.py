"""Source dedup: at most `max_per_source` results of one document."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from hybridmem.core import validation
from hybridmem.core.types import Ranking
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.stages.base import Context, take

__all__ = ["SourceDedup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDedup:
    """Keep the best-ranked `max_per_source` items of each source; items without a source are never collapsed.

    `key` is a field or metadata key, or a callable from an item to its source.
    """

    name: ClassVar[str] = "dedup"

    key: str | Callable[[Any], Hashable | None] = "source_id"
    max_per_source: int = 1

    def __post_init__(self) -> None:
        if not callable(self.key):
            validation.text("dedup key", self.key, "the name of a field, or a function from an item to its source")
        validation.integer("max_per_source", self.max_per_source, "from 1 up", low=1)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        items = ranking.items
        sources = list(map(self.key, items)) if callable(self.key) else context.reader.column(items, self.key)
        try:
            different = len(set(sources))
        except TypeError as error:
            raise ConfigError(f"dedup by {self.key!r}: a source is a text or a number ({error})") from error
        if context.trace is None and different == len(sources):
            return ranking  # no source is repeated
        keep = self._once(sources) if self.max_per_source == 1 else self._some(sources)
        if context.trace is not None:
            self._trace(ranking, sources, set(keep), context.trace)
        return ranking if len(keep) == len(items) else take(ranking, keep)

    def _once(self, sources: list[Any]) -> list[int]:
        size = len(sources)
        first = dict(zip(reversed(sources), range(size - 1, -1, -1), strict=True))  # the best rank of each source
        return self._some(sources) if None in first else sorted(first.values())

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

    @staticmethod
    def _trace(ranking: Ranking, sources: list[Any], keep: set[int], trace: Trace) -> None:
        best: dict[Any, str] = {}
        for i, (key, source) in enumerate(zip(ranking.keys, sources, strict=True)):
            first = best.setdefault(source, key)
            if i not in keep:
                trace.drop("dedup", key, f"collapsed into {first} of source {source}")
            elif source is not None and first == key and sources.count(source) > 1:
                trace.note("dedup", key, f"best of source {source}")
