"""Documents of lexical engines: fields, field weights, and validation shared by all engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import date, datetime
from typing import Any, NamedTuple, TypeAlias

from hybridmem.core import validation
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
    "checked_weights",
    "new_document",
    "query_terms",
    "readers",
    "stamp_of",
    "weigh",
]

WEIGHTS: Mapping[str, float] = {"text": 1.0, "title": 2.0, "tags": 1.0, "predicate": 0.5}
"""Field weights: they multiply the term frequency before saturation."""

ASKED, ANSWERED = -0.5, 1.0
"""What the words of a question add to the term frequencies of the turn that asks, and of the turn that answers."""

AnyAnalyzer: TypeAlias = Analyzer | Callable[[str], list[str]]
"""Our analyzer, or any function from text to terms."""


class Document(NamedTuple):
    """A document of a lexical index: its id, its searchable fields, and its last change in epoch seconds."""

    id: str
    fields: Mapping[str, str]
    stamp: float = float("-inf")
    asked: str = ""
    """Question sentences of the text, whose terms count by half: the next turn of the thread answers them."""
    previous: str = ""
    """Question sentences of the previous turn, which this text answers: they count as text, but not in the length."""

    @property
    def questions(self) -> tuple[tuple[str, float], ...]:
        """The question sentences with their weights relative to the text."""
        return tuple((text, weight) for text, weight in ((self.asked, ASKED), (self.previous, ANSWERED)) if text)


Source: TypeAlias = Memory | Document | tuple[str, str]
SOURCES = "memories, documents or (id, text) pairs"


def as_document(source: Source, /) -> Document:
    """A memory, a document, or an (id, text) pair as a document."""
    if isinstance(source, Document):
        return source
    if isinstance(source, Memory):
        fields = {"text": source.text} if source.text else {}
        if source.title:
            fields["title"] = source.title
        if source.predicate:
            fields["predicate"] = source.predicate
        if source.tags:
            fields["tags"] = " ".join(source.tags)
        return Document(source.id, fields, stamp_of(source.updated_at))
    if not isinstance(source, tuple | list) or len(source) != 2:  # noqa: PLR2004 - a pair
        validation.refuse("a document", source, "a Memory, a Document or an (id, text) pair")
    return new_document(source[0], {"text": source[1]})


def new_document(id: str, fields: Mapping[str, str], updated_at: Any = None, /) -> Document:
    """A validated document."""
    validation.text("id", id, "a str")
    for name, text in fields.items():
        validation.text(name, text, "a str")
    return Document(id, fields, stamp_of(updated_at))


def stamp_of(when: datetime | date | float | None, /) -> float:
    """A time as epoch seconds (naive is UTC); -inf for None, which sorts as oldest."""
    return float("-inf") if when is None else validation.time("updated_at", when)


def weigh(
    fields: Mapping[str, str],
    /,
    *,
    analyzer: AnyAnalyzer,
    weights: Mapping[str, float] = WEIGHTS,
    questions: Sequence[tuple[str, float]] = (),
) -> tuple[dict[str, float], float]:
    """Weighted frequency of each term, and the weighted length |D|: Σ over fields of weight · count.

    Stop words count in the frequencies, so that a query of only stop words has results, but not in the length.
    `questions` (see `Document`) change frequencies, never below 0, and not the length.
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
    for text, share in questions:
        for term in all_terms(text):
            frequencies[term] = frequencies.get(term, 0.0) + share * weights.get("text", 0.0)
    if questions:
        frequencies = {term: frequency for term, frequency in frequencies.items() if frequency > 0}
    return frequencies, length


def readers(analyzer: AnyAnalyzer, /) -> tuple[Callable[[str], list[str]], Callable[[str], bool]]:
    """The functions of an analyzer: text → all terms, and term → whether it is a stop word."""
    if isinstance(analyzer, Analyzer):
        return analyzer.all_terms, analyzer.is_stop
    return analyzer, lambda _term: False


def query_terms(query: str | Iterable[str], /, *, analyzer: AnyAnalyzer) -> dict[str, float]:
    """The distinct terms of a query and their counts. Terms given as a list are used unchanged."""
    if isinstance(query, str):
        terms: Iterable[str] = analyzer.query(query) if isinstance(analyzer, Analyzer) else analyzer(query)
    else:
        terms = validation.texts("query", query)
    counts: dict[str, float] = {}
    for term in terms:
        counts[term] = counts.get(term, 0.0) + 1.0
    return counts


def check_allowed(allowed: Any, /) -> Any:
    """Validate the allowed ids: a set, or a list of texts."""
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
