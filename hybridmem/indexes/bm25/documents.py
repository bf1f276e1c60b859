"""What all lexical engines share: the fields of a document, their weights, and the checks of what a caller hands in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import date, datetime, timezone
from typing import Any, NamedTuple, TypeAlias

from hybridmem.core import validation
from hybridmem.core.times import epoch
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.text.analyzer import Analyzer

__all__ = [
    "WEIGHTS",
    "AnyAnalyzer",
    "Document",
    "Source",
    "as_document",
    "check_allowed",
    "check_k",
    "checked_weights",
    "new_document",
    "query_terms",
    "readers",
    "stamp_of",
    "weigh",
]

WEIGHTS: Mapping[str, float] = {"text": 1.0, "title": 2.0, "tags": 1.0, "predicate": 0.5}
"""How much a field counts: its weight multiplies the term frequency before saturation."""

AnyAnalyzer: TypeAlias = Analyzer | Callable[[str], list[str]]
"""Our analyzer, or any function from text to terms."""


class Document(NamedTuple):
    """What a lexical index keeps of a memory: its id, its searchable fields, and when it was last changed."""

    id: str
    fields: Mapping[str, str]
    stamp: float = float("-inf")


Source: TypeAlias = Memory | Document | tuple[str, str]
SOURCES = "memories, documents or (id, text) pairs"


def as_document(source: Source, /) -> Document:
    """A memory, a document, or an (id, text) pair as a document."""
    if isinstance(source, Document):
        return source
    if isinstance(source, Memory):
        fields = {"text": source.text, "title": source.title, "predicate": source.predicate}
        if source.tags:
            fields["tags"] = " ".join(source.tags)
        return Document(source.id, {name: text for name, text in fields.items() if text}, stamp_of(source.updated_at))
    if not isinstance(source, tuple | list) or len(source) != 2:  # noqa: PLR2004 - a pair
        validation.refuse("a document", source, "a Memory, a Document or an (id, text) pair")
    return new_document(source[0], {"text": source[1]})


def new_document(id: str, fields: Mapping[str, str], updated_at: Any = None, /) -> Document:
    """A document of a caller's own words."""
    validation.text("id", id, "a str")
    for name, text in fields.items():
        validation.text(name, text, "a str")
    return Document(id, fields, stamp_of(updated_at))


def stamp_of(when: datetime | date | float | None, /) -> float:
    """A time as epoch seconds (naive is UTC); a missing one is older than any other."""
    if when is None:
        return float("-inf")
    if isinstance(when, datetime):
        return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(when, date):
        return datetime(when.year, when.month, when.day, tzinfo=timezone.utc).timestamp()
    seconds = epoch(when)
    if seconds is None:
        validation.refuse("updated_at", when, "a datetime, date, ISO-8601 text or epoch number")
    return seconds


def weigh(
    fields: Mapping[str, str], /, *, analyzer: AnyAnalyzer, weights: Mapping[str, float] = WEIGHTS
) -> tuple[dict[str, float], float]:
    """Weighted frequency of each term, and the weighted length |D|: Σ over fields of weight · count.

    Stop words are in the frequencies, so that a query of nothing but them finds something, but not in the length.
    """
    frequencies: dict[str, float] = {}
    length = 0.0
    all_terms, is_stop = readers(analyzer)
    for name, weight in weights.items():
        text = fields.get(name)
        if not text or not weight:
            continue
        terms = all_terms(text)
        counts: dict[str, int] = {}
        for term in terms:
            counts[term] = counts.get(term, 0) + 1
        for term, count in counts.items():
            frequencies[term] = frequencies.get(term, 0.0) + weight * count
        length += weight * sum(1 for term in terms if not is_stop(term))
    return frequencies, length


def readers(analyzer: AnyAnalyzer, /) -> tuple[Callable[[str], list[str]], Callable[[str], bool]]:
    """How to get all terms of a text, and how to know a stop word, with any kind of analyzer."""
    if isinstance(analyzer, Analyzer):
        return analyzer.all_terms, analyzer.is_stop
    return analyzer, lambda _term: False


def query_terms(query: str | Iterable[str], /, *, analyzer: AnyAnalyzer) -> dict[str, float]:
    """The distinct terms of a query and how often each was said. Terms given as a list are taken as they are."""
    if isinstance(query, str):
        terms: Iterable[str] = analyzer.query(query) if isinstance(analyzer, Analyzer) else analyzer(query)
    else:
        terms = validation.texts("query", query)
    counts: dict[str, float] = {}
    for term in terms:
        counts[term] = counts.get(term, 0.0) + 1.0
    return counts


def check_k(k: Any, /) -> int:
    """The number of results as it must be: a whole number from 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"k={validation.display(k)} must be a whole number of at least 1")
    return k


def check_allowed(allowed: Any, /) -> Any:
    """The ids that may be found, as they must be: a set of them, or at least a list."""
    return allowed if isinstance(allowed, Set) else validation.texts("allowed", allowed)


def checked_weights(weights: Mapping[str, float] | None, /) -> dict[str, float]:
    """Field weights in their fixed order; unknown fields and negative or infinite weights are errors."""
    chosen = WEIGHTS if weights is None else weights
    if not isinstance(chosen, Mapping):
        validation.refuse("weights", chosen, f"a mapping from fields to numbers; the fields are {', '.join(WEIGHTS)}")
    unknown = sorted(set(chosen) - set(WEIGHTS), key=str)
    if unknown:
        raise ConfigError(f"weights name unknown fields {unknown}; allowed: {', '.join(WEIGHTS)}")
    for name, weight in chosen.items():
        validation.number(f"weights[{name!r}]", weight, "a finite number of at least 0", low=0)
    return {name: float(chosen[name]) for name in WEIGHTS if chosen.get(name)}
