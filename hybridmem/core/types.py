"""The values that flow: memories in, hits from an index, lists into a fusion, a ranking out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from hybridmem.fusion.explain import Trace

__all__ = [
    "Activation",
    "ArmList",
    "Context",
    "Edge",
    "Entry",
    "Graph",
    "Hits",
    "Memory",
    "Ranking",
    "Reader",
    "Stage",
    "Status",
]

Status = Literal["active", "superseded", "contradicted"]


@dataclass(frozen=True, slots=True)
class Memory:
    """One remembered thing. Every field but `text` is optional.

    `source_id` names the document this is a chunk of: only the best chunk of a document is returned.
    `thread` names the conversation it was said in: neighbours there remind of each other and are never collapsed.

    >>> Memory("Ana moved to Lisbon", subject="ana", tags=("home",)).status
    'active'
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
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def embedded(self) -> str:
        """What an embedder sees: the title, where there is one, and the text."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Edge(NamedTuple):
    """A link between two memories of one namespace; walked both ways."""

    a: str
    b: str
    relation: str = "related"
    weight: float = 1.0


class Entry(NamedTuple):
    """What ranking needs to know of a memory, without its text. Times are epoch seconds (UTC)."""

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
    """The length of the text; None: not counted."""


class Hits(NamedTuple):
    """What an index answers: ids and raw scores of equal length, best first. No padding: only real matches."""

    ids: list[str]
    scores: list[float]


class ArmList(NamedTuple):
    """One arm's answer on its way into a fusion: items best first, with raw scores where the arm has them.

    `items` are whatever the caller ranks (documents, nodes, entries): only the `Reader` looks inside.
    `notes` maps a key to a line for its receipt, such as a graph path.
    """

    name: str
    items: Sequence[Any]
    scores: Sequence[float] | None = None
    notes: Mapping[str, str] | None = None
    skipped: str | None = None
    """Why this arm brought nothing, when it failed or timed out and the policy was to go on."""
    known: Mapping[str, float] | None = None
    """Raw scores of candidates that this arm did not list but can score, for recipes with `complete=True`."""


class Ranking(NamedTuple):
    """A ranked list in columns, best first. Stages take one and give a new one; nobody changes one in place."""

    keys: list[str]
    items: list[Any]
    scores: list[float]


class Reader(Protocol):
    """How a fusion looks inside the items it ranks: one column of many items at a time."""

    def keys(self, items: Sequence[Any], /) -> list[str]:
        """The identity of each item: equal keys are the same result."""
        ...

    def column(self, items: Sequence[Any], name: str, /) -> list[Any]:
        """One field of each item, None where it has none.

        Names that stages ask for: text, source_id, thread, created_at, updated_at, status, strength, confidence,
        access_count, last_accessed, vector; any other name is looked up in the item's metadata.
        """
        ...


class Activation(NamedTuple):
    """What spreading brought to one memory: how much, over how many hops, and along which path from its seed."""

    value: float
    hops: int
    path: tuple[str, ...]
    """Keys and edge labels in turn: ("m12", "entity Lisbon", "m40")."""


class Graph(Protocol):
    """A still picture of who reminds of whom, so that a fusion over it stays a pure function."""

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> Mapping[str, float]:
        """What each neighbour receives: the best over paths of seed · Π(edge weight · decay).

        A seed is in the result only with `include_seeds`, and then with what OTHER seeds bring to it.
        """
        ...

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> Mapping[str, Activation]:
        """The winning path to each target: slower, for receipts only."""
        ...

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k most activated keys, seeds (scaled so that the best is 1) among them: the graph as an arm."""
        ...

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The items behind keys that no arm had found, so that a fusion can add them; None where unknown."""
        ...


@dataclass(slots=True)
class Context:
    """What every stage may know beside the ranking: the question, the clock, how to read items, the arms' lists."""

    query: str
    now: float
    reader: Reader
    lists: Sequence[ArmList] = ()
    k: int | None = None
    graph: Graph | None = None
    contradictions: Callable[[Sequence[str]], Iterable[tuple[str, str]]] | None = None
    """Which of these keys contradict each other; None: each item's own `contradicts` field tells."""
    trace: Trace | None = None


Stage = Callable[[Ranking, Context], Ranking]
"""A step of the path: a small frozen dataclass with `__call__`, or any function of this shape."""
