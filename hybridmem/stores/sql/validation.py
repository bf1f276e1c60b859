"""Validation of memories, namespaces, views, links, ids and times, before a store takes a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from hybridmem.core import validation
from hybridmem.core.protocols import CheckEmbedder, Embed, View
from hybridmem.core.times import epoch
from hybridmem.core.types import Edge, Memory, Status
from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError

__all__ = [
    "Batch",
    "check_memory",
    "check_namespace",
    "check_restore",
    "check_view",
    "checked_batch",
    "checked_edge",
    "checked_edges",
    "checked_ids",
    "clock_seconds",
    "epoch_seconds",
]

_STATUSES: tuple[str, ...] = get_args(Status)
_TEXTS = ("text", "id", "title", "predicate", "subject", "type", "namespace", "speaker")
_OPTIONAL_TEXTS = ("source_id", "thread", "supersedes")
_OPTIONAL = (str, type(None))
_texts, _optional_texts = attrgetter(*_TEXTS), attrgetter(*_OPTIONAL_TEXTS)
_YEAR_9999 = 253_402_300_799.0
check_namespace = validation.namespace


def check_memory(memory: Memory, /, *, namespace: str) -> None:
    """Refuse a memory that this namespace cannot store: the error names the field, its value and what is allowed."""
    if not isinstance(memory, Memory):
        raise ConfigError(f"a store takes Memory objects, not {type(memory).__name__}")
    _check_texts(memory)
    if clean(memory.id) != memory.id:
        validation.refuse("Memory.id", memory.id, "encodable text")
    if memory.namespace not in ("", namespace):
        raise ConfigError(
            f"memory {memory.id!r} belongs to namespace {memory.namespace!r} and cannot be put into {namespace!r}: "
            "pass that namespace, or a copy with namespace=''"
        )
    if not isinstance(memory.status, str) or memory.status not in _STATUSES:
        validation.refuse("Memory.status", memory.status, ", ".join(_STATUSES))
    if not isinstance(memory.metadata, Mapping):
        validation.refuse("Memory.metadata", memory.metadata, "a mapping")
    if memory.supersedes and memory.supersedes == memory.id:
        raise ConfigError(f"memory {memory.id!r} cannot supersede itself: put it again to update it")
    _check_numbers(memory)


class Batch(NamedTuple):
    """The validated arguments of one `put`."""

    namespace: str
    memories: list[Memory]
    vectors: list[Any] | None
    base: list[Memory]
    """The memories as the caller read them; empty: not given."""
    unless_duplicate: bool = False
    """Do not write a memory whose normalized text and thread are already stored."""
    check_embedder: CheckEmbedder | None = None


def checked_batch(
    memories: Sequence[Memory],
    /,
    *,
    namespace: str,
    vectors: Sequence[Any] | Embed | None = None,
    base: Sequence[Memory] | None = None,
    unless_duplicate: bool = False,
    check_embedder: CheckEmbedder | None = None,
) -> Batch:
    """The arguments of `put`, validated before a lock is taken; a function for vectors is called."""
    check_namespace(namespace)
    new = validation.listed("memories", memories, "Memory objects")
    old = [] if base is None else validation.listed("base", base, "Memory objects, as they were read")
    for memory in (*new, *old):
        check_memory(memory, namespace=namespace)
    if callable(vectors):
        vectors = vectors(new) if new else None
    if vectors is not None:
        vectors = validation.listed("vectors", vectors, "vectors, one for each memory")
        if len(vectors) != len(new):
            raise ConfigError(f"put got {len(new)} memories but {len(vectors)} vectors: one each, or None")
    return Batch(namespace, new, vectors, old, unless_duplicate, check_embedder)


def check_restore(rows: Any, progress: Any, /) -> None:
    """Refuse anything but rows of an export and a progress function."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        validation.refuse("rows", rows, "the rows of an export")
    if progress is not None:
        validation.function("progress", progress, "a function of (done, total), or None")


def clock_seconds(clock: Callable[[], float], /) -> float:
    """The time of a clock; an error when it does not return a finite number of seconds."""
    now = clock()
    validation.number("the value of clock()", now, "epoch seconds: a finite number", low=-_YEAR_9999, high=_YEAR_9999)
    return float(now)


def check_view(view: View, /) -> None:
    """Refuse anything but a `View(namespace, as_of, superseded)`."""
    if not isinstance(view, View):
        validation.refuse("view", view, "View(namespace, as_of, superseded)")
    check_namespace(view.namespace)
    if view.as_of is not None and type(view.as_of) is not float:
        validation.number("View.as_of", view.as_of, "epoch seconds, or None")
    if view.superseded is not True and view.superseded is not False:
        validation.flag("View.superseded", view.superseded)


def _check_texts(memory: Memory) -> None:
    if set(map(type, _texts(memory))) == {str} and set(map(type, _optional_texts(memory))) <= set(_OPTIONAL):
        return
    for name in _TEXTS:  # a subclass of str, or an error
        if not isinstance(getattr(memory, name), str):
            validation.refuse(f"Memory.{name}", getattr(memory, name), "a str")
    for name in _OPTIONAL_TEXTS:
        if not isinstance(getattr(memory, name), _OPTIONAL):
            validation.refuse(f"Memory.{name}", getattr(memory, name), "a str or None")


def _check_numbers(memory: Memory) -> None:
    for name in ("strength", "confidence"):
        value = getattr(memory, name)
        if type(value) is not float or not 0 <= value <= 1:
            validation.number(f"Memory.{name}", value, "a number from 0 to 1", low=0, high=1)
    count = memory.access_count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**63:
        validation.refuse("Memory.access_count", count, "a whole number from 0 up")


def checked_edge(edge: Edge, /) -> Edge:
    """The edge as it is stored, or an error that names the wrong part."""
    if not isinstance(edge, tuple) or not 2 <= len(edge) <= 4:  # noqa: PLR2004 - a, b, relation, weight
        validation.refuse("edge", edge, "Edge(a, b, relation, weight)")
    edge = Edge(*edge)
    for name in ("a", "b", "relation"):
        value = getattr(edge, name)
        if not isinstance(value, str) or not value:
            validation.refuse(f"Edge.{name}", value, "a non-empty str")
    validation.number("Edge.weight", edge.weight, "a finite number from 0 up", low=0)
    return Edge(clean(edge.a), clean(edge.b), clean(edge.relation), float(edge.weight))


def checked_edges(edges: Sequence[Edge], /) -> list[Edge]:
    """Edges as they are stored."""
    return [checked_edge(edge) for edge in validation.listed("edges", edges, "Edge(a, b, relation, weight)")]


def checked_ids(ids: Sequence[str], /) -> list[str]:
    """Ids as they are stored; one str instead of a sequence is refused."""
    if type(ids) is not list:
        ids = validation.listed("ids", ids, "str")
    try:
        return [clean(id_) for id_ in ids]
    except (TypeError, AttributeError):
        for id_ in ids:
            validation.text("id", id_, "a str")
        raise


def epoch_seconds(value: Any, field: str, /) -> float | None:
    """A time field as epoch seconds; None stays None."""
    if value is None:
        return None
    result = epoch(value)
    if result is None:
        validation.refuse(field, value, "a datetime, date, ISO-8601 text or epoch number")
    return result
