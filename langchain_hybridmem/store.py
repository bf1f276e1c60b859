"""HybridStore: LangGraph's `BaseStore` over a HybridMemory, with hybrid search and expiry."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.fanout import in_thread
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.memory.writing import LONGEST
from hybridmem.retrievers.options import check_memory
from hybridmem.stores.spanning import join_id, split_id

if find_spec("langgraph") is None or find_spec("langgraph.store") is None:
    raise MissingExtraError("langgraph", needs="langgraph-checkpoint")

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from langchain_hybridmem._store_items import (
    RESERVED,
    indexed_text,
    join_path,
    likely_filter,
    matcher,
    memory_id,
    split_path,
    to_item,
    to_search_item,
)

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["HybridStore"]

MINUTE = 60.0
SPANS = 4
"""How many prefixes keep their own indexes over several namespaces."""
REFRESH = 0.01
"""The share of a TTL that must have passed before a read refreshes it: not every read becomes a write."""
PAGE = 100
DEPTH = 100
"""How deep the arms search where the recipe does not say it: pages of one search must rank the same lists."""
_Path = tuple[str, ...]


class HybridStore(BaseStore):
    """A LangGraph store whose items are memories: found by words and meaning, kept in SQLite or PostgreSQL.

    >>> from hybridmem import HybridMemory
    >>> store = HybridStore(HybridMemory(embedder=None))
    >>> store.put(("users", "ana"), "cat", {"text": "Ana's cat is called Pixel"})
    >>> store.search(("users",), query="what is the cat called?")[0].key
    'cat'

    `fields` are the paths of a value that a query searches ("$": every text in it); `put(index=…)` overrides them.
    `ttl` is LangGraph's TTL configuration; an expired item is never returned, whether or not a sweep has run.
    The namespace ("users", "ana") is the memory's namespace "users/ana", below the view's own name if it has one.
    """

    supports_ttl = True

    def __init__(
        self, memory: HybridMemory, /, *, fields: Sequence[str] = ("$",), ttl: TTLConfig | None = None
    ) -> None:
        if isinstance(fields, str):
            raise ConfigError(f"fields = {fields!r} is not allowed: a list of paths such as ['text', 'tags[*]']")
        check_memory(memory)
        self.memory = memory
        self.ttl_config = ttl
        self._clock = memory.engine.clock
        self._fields = tuple(fields)
        # equal texts under two keys are two items
        self._depth = memory.recipe.depth or DEPTH
        self._recipe = replace(memory.recipe, duplicates=None, depth=self._depth)
        self._directory = _Directory(memory)
        self._spans: OrderedDict[str, HybridMemory] = OrderedDict()
        self._lock = threading.Lock()
        self._last = 0.0

    # --- LangGraph's interface

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: reads see the store as it was before the batch, then the last put of each key is written."""
        results: list[Result] = []
        puts: dict[tuple[_Path, str], PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts[tuple(op.namespace), op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(self._get(op))
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._list_namespaces(op))
            else:
                raise ConfigError(f"unknown operation {op!r}: GetOp, PutOp, SearchOp or ListNamespacesOp")
        self._write(puts)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations as `batch` does, without blocking the event loop."""
        listed = list(ops)
        results: list[Result] = await in_thread(lambda: self.batch(listed))
        return results

    def sweep_ttl(self) -> int:
        """Remove expired items from the memory's live view and return how many; reads do not need it."""
        return sum(self.memory.namespace(name).sweep() for name in self._directory.names(()))

    async def asweep_ttl(self) -> int:
        """The same without blocking the event loop."""
        removed: int = await in_thread(self.sweep_ttl)
        return removed

    # --- writing

    def _name(self, path: Sequence[str]) -> str:
        return join_path(path, self.memory.name)

    def _write(self, puts: dict[tuple[_Path, str], PutOp]) -> None:
        by_name: dict[str, list[PutOp]] = {}
        for (path, _), op in puts.items():
            by_name.setdefault(self._name(path), []).append(op)
        for name, ops in by_name.items():
            gone = [memory_id(op.key) for op in ops if op.value is None]
            kept = [op for op in ops if op.value is not None]
            if gone:
                self.memory.namespace(name).forget(*gone)
            if kept:
                self._keep(name, kept)

    def _keep(self, name: str, ops: Sequence[PutOp]) -> None:
        """Write items of one namespace. What no query may find is stored without a vector."""
        ids = [memory_id(op.key) for op in ops]
        standing = self.memory.store.get(ids, view=View(name, superseded=True))
        indexed: list[Memory] = []
        bare: list[Memory] = []
        for op, id_, old in zip(ops, ids, standing, strict=True):
            alive = old if old is not None and not _expired(old, self._clock()) else None
            memory = self._memory(op, id_, alive)
            (indexed if memory.text else bare).append(memory)
        if indexed:
            self.memory.namespace(name).add_many(indexed)
        if bare:
            self.memory.store.put(bare, namespace=name)

    def _memory(self, op: PutOp, id_: str, old: Memory | None) -> Memory:
        if not isinstance(op.value, Mapping):
            raise ConfigError(f"value = {op.value!r} is not allowed: a dict")
        value = dict(op.value)
        if RESERVED in value:
            raise ConfigError(f"the key {RESERVED!r} of a value is reserved for the store")
        paths = self._fields if op.index is None else op.index or ()
        now = self._moment()
        return Memory(
            indexed_text(value, paths),
            id=id_,
            created_at=now if old is None or old.created_at is None else old.created_at,
            updated_at=now,
            expires_at=None if op.ttl is None else self._in(op.ttl),
            metadata={**value, RESERVED: {} if op.ttl is None else {"ttl": op.ttl}},
        )

    def _moment(self) -> datetime:
        """The time now, later than every time given before: the order of creation is the order of items."""
        with self._lock:
            self._last = max(self._clock(), self._last + 2e-6)
            return datetime.fromtimestamp(self._last, timezone.utc)

    def _in(self, minutes: float) -> datetime:
        most = LONGEST / MINUTE
        validation.number("ttl", minutes, "minutes, 1,000 years at most", low=-most, high=most)
        return datetime.fromtimestamp(self._clock() + minutes * MINUTE, timezone.utc)

    # --- reading

    def _get(self, op: GetOp) -> Item | None:
        path, name = tuple(op.namespace), self._name(op.namespace)
        memory = self.memory.store.get([memory_id(op.key)], view=View(name))[0]
        if memory is None or _expired(memory, self._clock()):
            return None
        if op.refresh_ttl:
            self._refresh(name, [memory])
        return to_item(memory, path)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        wanted = op.offset + op.limit
        if op.limit <= 0 or wanted <= 0:
            return []
        if op.query and op.query.strip():
            found = self._ranked(op, wanted)
        else:
            found = [(memory, name, None) for memory, name in self._listed(op, wanted)]
        page = found[op.offset : wanted]
        if op.refresh_ttl:
            for name in dict.fromkeys(name for _, name, _ in page):
                self._refresh(name, [memory for memory, own, _ in page if own == name])
        return [to_search_item(memory, self._path(name), score) for memory, name, score in page]

    def _path(self, name: str) -> _Path:
        return split_path(name, self.memory.name) or ()

    def _listed(self, op: SearchOp, wanted: int) -> list[tuple[Memory, str]]:
        """Items in order of creation, namespace by namespace, until there are as many as wanted."""
        passes, now = matcher(op.filter or {}), self._clock()
        size = max(wanted, PAGE) if op.filter else wanted
        found: list[tuple[Memory, str]] = []
        for name, ids in self._directory.in_order(tuple(op.namespace_prefix)):
            if op.filter:
                likely = self.memory.store.ids(view=View(name), filter=likely_filter(op.filter))
                ids = [id_ for id_ in ids if id_ in likely]  # noqa: PLW2901 - the same list, shorter
            for start in range(0, len(ids), size):
                page = self.memory.store.get(ids[start : start + size], view=View(name))
                found += [(one, name) for one in page if one is not None and not _expired(one, now) and passes(one)]
                if len(found) >= wanted:
                    return found[:wanted]
        return found

    def _ranked(self, op: SearchOp, wanted: int) -> list[tuple[Memory, str, float | None]]:
        """The best items for a query: one list, ranked over all namespaces below the prefix."""
        names = self._directory.names(tuple(op.namespace_prefix))
        if not names:
            return []
        passing = self._passing(op.filter, names) if op.filter else None
        depth = self._depth
        if wanted <= depth:
            return self._search_memory(op, names, wanted, passing)
        # A deeper search ranks differently. Its new items follow the others, so that pages never overlap.
        found: dict[tuple[str, str], tuple[Memory, str, float | None]] = {}
        while len(found) < wanted:
            rows = self._search_memory(op, names, depth, passing)
            least = min((score or 0.0 for _, _, score in found.values()), default=1.0)
            for memory, name, score in rows:
                found.setdefault((name, memory.id), (memory, name, min(score or 0.0, least)))
            if len(rows) < depth:
                break
            depth *= 2
        return list(found.values())

    def _search_memory(
        self, op: SearchOp, names: Sequence[str], k: int, filter: dict[str, Any] | None
    ) -> list[tuple[Memory, str, float | None]]:
        if len(names) == 1:
            rows = self.memory.namespace(names[0]).search(op.query or "", k=k, filter=filter, recipe=self._recipe)
            return [(row.memory, names[0], row.score) for row in rows]
        found: list[tuple[Memory, str, float | None]] = []
        for row in self._span(self._name(op.namespace_prefix)).search(
            op.query or "", k=k, filter=filter, recipe=self._recipe
        ):
            name, id_ = split_id(row.id)
            found.append((replace(row.memory, id=id_), name, row.score))
        return found

    def _passing(self, filter: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """A filter that names the items that pass LangGraph's filter and have not expired."""
        passes, now = matcher(filter), self._clock()
        ids: list[str] = []
        for name in names:
            likely = self.memory.store.list(view=View(name), filter=likely_filter(filter))
            own = [memory.id for memory in likely if not _expired(memory, now) and passes(memory)]
            ids += own if len(names) == 1 else [join_id(name, id_) for id_ in own]
        return {"id": {"$in": ids}}

    def _span(self, name: str) -> HybridMemory:
        with self._lock:
            span = self._spans.pop(name, None) or self.memory.spanning(name)
            self._spans[name] = span
            while len(self._spans) > SPANS:
                self._spans.popitem(last=False)
        return span

    def _refresh(self, name: str, memories: Sequence[Memory]) -> None:
        """Begin the TTL of what was read anew; the text stays, so nothing is embedded again."""
        if self.ttl_config is not None and not self.ttl_config.get("refresh_on_read", True):
            return
        now = self._clock()
        due = [memory.id for memory in memories if _due(memory, now)]
        stored = self.memory.store.get(due, view=View(name)) if due else []
        fresh = [replace(one, expires_at=self._in(_ttl(one))) for one in stored if one is not None and _due(one, now)]
        if fresh:
            self.memory.store.put(fresh, namespace=name)

    # --- namespaces

    def _list_namespaces(self, op: ListNamespacesOp) -> list[_Path]:
        now = self._clock()
        paths = [self._path(name) for name in self._directory.names(()) if self._directory.ends(name) > now]
        for condition in op.match_conditions or ():
            paths = [path for path in paths if _matches(condition, path)]
        if op.max_depth is not None:
            paths = [path[: op.max_depth] for path in paths]
        return sorted(set(paths))[op.offset : op.offset + op.limit]


class _Order(NamedTuple):
    """The items of a namespace: when the first was created, when the last expires, the ids in order of creation."""

    first: float
    last: float
    ids: list[str]


class _Directory:
    """The namespaces of a memory and the order of their items, read again only where something has changed."""

    def __init__(self, memory: HybridMemory) -> None:
        self._store, self._base = memory.store, memory.name
        self._seen = -1
        self._paths: dict[str, _Path] = {}
        self._below: dict[_Path, list[str]] = {}
        self._order: dict[str, _Order] = {}
        self._lock = threading.Lock()

    def _follow(self) -> None:
        newest = self._store.last_seq()
        if newest == self._seen:
            return
        first = self._seen < 0
        for name in self._store.namespaces() if first else self._store.changed_namespaces(self._seen):
            self._order.pop(name, None)
            path = split_path(name, self._base)
            there = path is not None and (first or self._store.count(view=View(name)) > 0)
            if there == (name in self._paths):
                continue
            self._below.clear()
            if path is not None and there:
                self._paths[name] = path
            else:
                del self._paths[name]
        self._seen = newest

    def names(self, prefix: _Path) -> list[str]:
        """The namespaces that begin with a prefix."""
        depth = len(prefix)
        with self._lock:
            self._follow()
            found = self._below.get(prefix)
            if found is None:
                found = [name for name, path in self._paths.items() if path[:depth] == prefix]
                self._below[prefix] = found
            return found

    def in_order(self, prefix: _Path) -> list[tuple[str, list[str]]]:
        """The same with the ids of their items: the namespace with the oldest item first, each in order of creation."""
        orders = [(name, self._ordered(name)) for name in self.names(prefix)]
        orders.sort(key=lambda row: (row[1].first, row[0]))
        return [(name, order.ids) for name, order in orders if order.ids]

    def ends(self, name: str) -> float:
        """When the last item of a namespace expires; infinite where one does not."""
        return self._ordered(name).last

    def _ordered(self, name: str) -> _Order:
        with self._lock:
            order = self._order.get(name)
            if order is None:
                entries = self._store.entries(view=View(name))
                rows = sorted((entry.created_at or 0.0, entry.id) for entry in entries)
                last = max((math.inf if one.expires_at is None else one.expires_at for one in entries), default=0.0)
                order = _Order(rows[0][0] if rows else 0.0, last, [id_ for _, id_ in rows])
                self._order[name] = order
        return order


def _expired(memory: Memory, now: float) -> bool:
    return memory.expires_at is not None and memory.expires_at.timestamp() <= now


def _ttl(memory: Memory) -> float:
    """The minutes for which an item lives; 0 for one that does not expire."""
    return float((memory.metadata.get(RESERVED) or {}).get("ttl") or 0.0)


def _due(memory: Memory, now: float) -> bool:
    """Whether so much of a TTL has passed that reading begins it anew."""
    ttl = _ttl(memory) * MINUTE
    if not ttl or memory.expires_at is None:
        return False
    return now + ttl - memory.expires_at.timestamp() >= REFRESH * ttl


def _matches(condition: MatchCondition, path: _Path) -> bool:
    """Whether a namespace begins or ends with a pattern; "*" stands for any one label."""
    wanted = tuple(condition.path)
    if condition.match_type not in ("prefix", "suffix"):
        raise ConfigError(f"match_type = {condition.match_type!r} is not allowed: 'prefix' or 'suffix'")
    if len(path) < len(wanted):
        return False
    part = path[: len(wanted)] if condition.match_type == "prefix" else path[len(path) - len(wanted) :]
    return all(pattern in ("*", label) for pattern, label in zip(wanted, part, strict=True))
