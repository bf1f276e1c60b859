"""SpanningStore: a read-only store that presents several namespaces of another store as one namespace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from hybridmem.core.protocols import Change, Store, Version, View
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import StoreError
from hybridmem.filters.parse import Field, Test, parse

__all__ = ["SpanningStore", "join_id", "split_id"]

_list = list  # `SpanningStore.list` hides the builtin inside the class


def join_id(namespace: str, id: str, /) -> str:
    """The id of a memory within the spanning store: unique across namespaces and reversible.

    >>> join_id("users/ana", "m1"), split_id("9:users/anam1")
    ('9:users/anam1', ('users/ana', 'm1'))
    """
    return f"{len(namespace)}:{namespace}{id}"


def split_id(id: str, /) -> tuple[str, str]:
    """The namespace and the id behind an id of the spanning store."""
    length, _, rest = id.partition(":")
    size = int(length) if length.isdecimal() else 0
    return rest[:size], rest[size:]


class SpanningStore:
    """The namespaces of a store that `selects` accepts, as the namespace "" of a store that cannot be written to.

    Statistics, graph and ranking of a memory over it are those of all these namespaces together. Threads and sources
    of different namespaces stay apart.
    """

    def __init__(self, store: Store, selects: Callable[[str], bool], /) -> None:
        self._store = store
        self._selects = selects
        self._expiries: dict[str, float] = {}
        self._expiries_seq = -1

    # --- reading

    def _names(self) -> _list[str]:
        return [name for name in self._store.namespaces() if self._selects(name)]

    def _views(self, view: View) -> Iterator[View]:
        return (view._replace(namespace=name) for name in self._names())

    def last_seq(self) -> int:
        """The newest seq of the whole store."""
        return self._store.last_seq()

    def changes(self, since: int, /, *, view: View, vectors: bool = False) -> Iterator[Change]:
        """The changes of every namespace after `since`, oldest first."""
        names = self._names() if since == 0 else filter(self._selects, self._store.changed_namespaces(since))
        found: _list[Change] = []
        for name in names:
            inner = self._store.changes(since, view=view._replace(namespace=name), vectors=vectors)
            found += [_change(change, name) for change in inner]
        found.sort(key=lambda change: change.seq)
        return iter(found)

    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids, in their order; None where the view has none."""
        found: dict[str, Memory] = {}
        for name, own in _by_namespace(ids).items():
            for memory in self._store.get(own, view=view._replace(namespace=name)):
                if memory is not None:
                    found[join_id(name, memory.id)] = _memory(memory, name)
        return [found.get(id_) for id_ in ids]

    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]:
        """The stored vectors of some ids, in their order; None where there is none."""
        found: dict[str, Any] = {}
        for name, own in _by_namespace(ids).items():
            vectors = self._store.vectors(own, view=view._replace(namespace=name))
            found.update(zip([join_id(name, id_) for id_ in own], vectors, strict=True))
        return [found.get(id_) for id_ in ids]

    def ids(self, *, view: View, filter: Any = None) -> frozenset[str]:
        """The ids in view that match a filter; a filter on `id` alone names ids of this store."""
        condition = parse(filter)
        if isinstance(condition, Test) and condition.field == Field("id") and condition.op in ("$eq", "$in"):
            return frozenset(str(operand.value) for operand in condition.operands)
        return frozenset(
            join_id(one.namespace, id_) for one in self._views(view) for id_ in self._store.ids(view=one, filter=filter)
        )

    def list(self, *, view: View, filter: Any = None) -> Iterator[Memory]:
        """The memories in view, namespace by namespace."""
        for one in self._views(view):
            for memory in self._store.list(view=one, filter=filter):
                yield _memory(memory, one.namespace)

    def entries(self, *, view: View) -> _list[Entry]:
        """What ranking needs to know of every memory in view."""
        return [
            entry._replace(id=join_id(one.namespace, entry.id), thread=_named(one.namespace, entry.thread))
            for one in self._views(view)
            for entry in self._store.entries(view=one)
        ]

    def thread(self, name: str, /, *, view: View) -> _list[str]:
        """The ids of a thread in reading order; `name` has its namespace before it, as threads here do."""
        namespace, own = split_id(name)
        found = self._store.thread(own, view=view._replace(namespace=namespace))
        return [join_id(namespace, id_) for id_ in found]

    def edges(self, *, view: View) -> _list[Edge]:
        """The links of every namespace."""
        return [_edge(edge, one.namespace) for one in self._views(view) for edge in self._store.edges(view=one)]

    def count(self, *, view: View) -> int:
        """How many memories are in view."""
        return sum(self._store.count(view=one) for one in self._views(view))

    def history(self, id: str, /, *, namespace: str = "") -> _list[Version]:  # noqa: ARG002 - there is only ""
        """Every version of a memory, oldest first."""
        name, own = split_id(id)
        return self._store.history(own, namespace=name) if self._selects(name) else []

    def namespaces(self) -> _list[str]:
        """The one namespace of this store."""
        return [""]

    def changed_namespaces(self, since: int, /) -> _list[str]:
        """The one namespace of this store, when a selected one has changed."""
        return [""] if any(map(self._selects, self._store.changed_namespaces(since))) else []

    # --- side tables: snapshots of indexes over several namespaces are not kept

    def next_expiry(self, *, namespace: str | None = "") -> float | None:  # noqa: ARG002 - there is only ""
        """The earliest `expires_at` of the selected namespaces; None: none expires."""
        if self._store.next_expiry(namespace=None) is None:
            return None
        newest = self._store.last_seq()
        changed = self._names() if self._expiries_seq < 0 else self._store.changed_namespaces(self._expiries_seq)
        expiries = dict(self._expiries)
        for name in filter(self._selects, changed):
            earliest = self._store.next_expiry(namespace=name)
            expiries[name] = math.inf if earliest is None else earliest
        self._expiries, self._expiries_seq = expiries, newest
        return min(expiries.values(), default=None)

    def expire(self, *, now: float, namespace: str = "") -> int:  # noqa: ARG002 - there is only ""
        """Delete the expired memories of the selected namespaces; return how many."""
        due = [name for name, earliest in self._expiries.items() if earliest <= now]
        return sum(self._store.expire(now=now, namespace=name) for name in due)

    def get_meta(self, key: str, /) -> str | None:
        """A setting of the store."""
        return self._store.get_meta(key)

    def drop_snapshots(self, *, namespace: str = "") -> None:
        """Does nothing: no snapshots are kept."""

    def load_snapshot(self, _index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:  # noqa: ARG002
        """There is none."""
        return None

    def save_snapshot(self, _index: str, _watermark: int, _blob: bytes, /, *, namespace: str = "") -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Leave the store open: it belongs to the memory that was spanned."""

    # --- writing

    def put(self, *_args: Any, **_how: Any) -> NoReturn:
        """Refuse: a memory is written in its own namespace."""
        raise StoreError("a memory that spans namespaces is read-only: write through memory.namespace(name)")

    delete = erase = link = unlink = touch = reinforce = decay = set_vectors = set_meta = restore = put


def _by_namespace(ids: Sequence[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for id_ in ids:
        name, own = split_id(id_)
        grouped.setdefault(name, []).append(own)
    return grouped


def _named(namespace: str, name: str | None) -> str | None:
    return None if name is None else join_id(namespace, name)


def _memory(memory: Memory, name: str) -> Memory:
    thread, source = _named(name, memory.thread), _named(name, memory.source_id)
    return replace(memory, id=join_id(name, memory.id), namespace="", thread=thread, source_id=source)


def _edge(edge: Edge, name: str) -> Edge:
    return edge._replace(a=join_id(name, edge.a), b=join_id(name, edge.b))


def _change(change: Change, name: str) -> Change:
    if change.edge is not None:
        return change._replace(edge=_edge(change.edge, name))
    memory = None if change.memory is None else _memory(change.memory, name)
    return change._replace(id=join_id(name, change.id), memory=memory)
