"""Value types: memories, edges, entries, hits of an index, arm lists, rankings; protocols of readers and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from hybridmem.core.times import epoch, iso

__all__ = [
    "Activation",
    "ArmList",
    "Candidates",
    "Direction",
    "Edge",
    "Entry",
    "Graph",
    "Hits",
    "Memory",
    "MentionLink",
    "Ranking",
    "Reader",
    "SharedName",
    "Status",
]

Status = Literal["active", "superseded", "contradicted"]


@dataclass(frozen=True, slots=True)
class Memory:
    """One stored memory. Every field but `text` is optional.

    `source_id`: the document this is a chunk of; search returns only the best chunk of a document.
    `thread`: the conversation it belongs to; neighbours in a thread activate each other and are never collapsed.
    `speaker`: who said it, a name or a role such as "user"; without it, "Name: …" at the start of the text counts.
    `event_at`: when it happened, if that is not `created_at`; dates in questions and the half-life use it.
    `expires_at`: from this time on no search returns it.

    >>> Memory("Ana moved to Lisbon", subject="ana", tags=("home",))
    Memory('Ana moved to Lisbon', tags=('home',), subject='ana')
    """

    text: str
    id: str = ""
    title: str = ""
    tags: tuple[str, ...] = ()
    predicate: str = ""
    subject: str = ""
    source_id: str | None = None
    thread: str | None = None
    type: str = ""
    namespace: str = ""
    entities: tuple[str, ...] = ()
    created_at: datetime | None = None
    updated_at: datetime | None = None
    status: Status = "active"
    strength: float = 1.0
    confidence: float = 1.0
    access_count: int = 0
    last_accessed: datetime | None = None
    supersedes: str | None = None
    speaker: str = ""
    event_at: datetime | None = None
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The text and the fields that differ from their defaults."""
        others = [item for item in fields(self) if item.name != "text"]
        shown = [
            f"{item.name}={value!r}"
            for item in others
            if (value := getattr(self, item.name)) != item.default and value != {}
        ]
        return f"Memory({', '.join([repr(self.text), *shown])})"

    @property
    def embedded(self) -> str:
        """The text that is embedded: the title, if there is one, and the text."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON-ready data, times as ISO-8601 text; `HybridMemory.add` accepts it again."""
        result: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = list(value)
            elif name in _TIMES:
                seconds = epoch(value)
                value = None if seconds is None else iso(seconds)
            elif name == "metadata":
                value = dict(value)
            result[name] = value
        return result


_TIMES = frozenset({"created_at", "updated_at", "last_accessed", "event_at", "expires_at"})


class Edge(NamedTuple):
    """A link between two memories of one namespace; traversed in both directions."""

    a: str
    b: str
    relation: str = "related"
    weight: float = 1.0


class Entry(NamedTuple):
    """The fields of a memory that ranking needs, without its text. Times are epoch seconds (UTC)."""

    id: str
    source_id: str | None = None
    thread: str | None = None
    created_at: float | None = None
    updated_at: float | None = None
    status: Status = "active"
    strength: float = 1.0
    confidence: float = 1.0
    access_count: int = 0
    last_accessed: float | None = None
    words: int | None = None
    """Number of words of the text; None: not counted."""
    speaker: str | None = None
    """Who said it, in lower case: `Memory.speaker`, or the "Name:" at the start of the text; None: unknown."""
    cues: int = 0
    """Bits: the text asks a question (1), has a first-person word (2), has a time word (4); see `text.conversation`."""
    event_at: float | None = None
    expires_at: float | None = None


class Hits(NamedTuple):
    """Hits of an index: ids and raw scores of equal length, best first. Only real matches, no padding."""

    ids: list[str]
    scores: list[float]


class MentionLink(NamedTuple):
    """One candidate's text mentions another by name; positions are those of `Candidates.ids`."""

    source: int
    """−1 for the query, which may name a memory, too."""
    target: int
    weight: float
    name: str


class SharedName(NamedTuple):
    """A name that stands in the texts of several candidates and is not in the query; positions as in `MentionLink`."""

    name: str
    weight: float
    members: Sequence[int]


class Candidates(NamedTuple):
    """The pool of one query in columns: every arm's raw score of every candidate, and their places in threads."""

    ids: list[str]
    scores: Mapping[str, list[float]]
    """For each arm the raw score of each candidate; for BM25 0.0 means no match."""
    baseline: Mapping[str, float]
    """For each arm the raw score of an unrelated memory: 0.0 for BM25, mean − standard deviation for cosines."""
    window: list[float] | None = None
    """BM25 of each candidate together with two turns before and after; NaN without neighbours, None if none has any."""
    previous: list[int] | None = None
    """Position in `ids` of the turn before each candidate in its thread, −1 where it is not in the pool."""
    mentions: Sequence[MentionLink] = ()
    """Which candidates are mentioned by name in the query and in the texts of the best ones."""
    shared: Sequence[SharedName] = ()
    """Names that the texts of several of the best candidates share."""


class ArmList(NamedTuple):
    """Ranked list of one arm, input of a fusion: items best first, with raw scores where the arm has them.

    `items` are the objects to rank (documents, nodes, entries); only the `Reader` reads their fields.
    `notes` maps a key to a line for its receipt, such as a graph path.
    """

    name: str
    items: Sequence[Any]
    scores: Sequence[float] | None = None
    notes: Mapping[str, str] | None = None
    skipped: str | None = None
    """Why the arm was skipped (it failed or timed out and the policy is "skip"); None: it was not."""
    known: Mapping[str, float] | None = None
    """Raw scores of candidates that this arm did not list but can score, for recipes with `complete=True`."""
    baseline: float = 0.0
    """The raw score of an unrelated item, which the convex mode counts as 0."""


class Ranking(NamedTuple):
    """A ranked list in columns, best first. A stage returns a new one and never changes its input."""

    keys: list[str]
    items: list[Any]
    scores: list[float]


class Reader(Protocol):
    """Access to the fields of ranked items, one column of many items at a time."""

    def keys(self, items: Sequence[Any], /) -> list[str]:
        """The identity of each item: items with equal keys are the same result."""
        ...

    def column(self, items: Sequence[Any], name: str, /) -> list[Any]:
        """One field of each item, None where it has none.

        Names that stages use: text, source_id, thread, created_at, updated_at, status, strength, confidence,
        access_count, last_accessed, vector; any other name is looked up in the item's metadata.
        """
        ...


Direction = Literal["both", "forward", "backward"]
"""Which way edges are walked; forward is from the item that links to the one that is linked."""


class Activation(NamedTuple):
    """Activation of one memory: its value, the number of hops, and the path from its seed."""

    value: float
    hops: int
    path: tuple[str, ...]
    """Keys and edge labels alternate: ("m12", "entity Lisbon", "m40")."""


class Graph(Protocol):
    """An immutable snapshot of the graph, so that a fusion over it is a pure function."""

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> Mapping[str, float]:
        """Activation of each neighbour: the maximum over paths of seed · Π(edge weight · decay).

        A seed is in the result only with `include_seeds`, with the activation it receives from other seeds.
        """
        ...

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> Mapping[str, Activation]:
        """The path of highest activation to each target; slower than `spread`, used for receipts."""
        ...

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k keys of highest activation, seeds (scaled so that the best is 1) included: the graph as an arm."""
        ...

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The items of keys that no arm returned, so that a fusion can add them; None where unknown."""
        ...
