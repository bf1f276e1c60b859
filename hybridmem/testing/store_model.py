"""Reference model of a store: dictionaries, copied after every write."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from hybridmem.core.times import epoch, from_epoch
from hybridmem.core.types import Edge, Memory

DAY = 86_400.0
NAMESPACES = ("", "ana")
States = dict[str, tuple[dict[str, Memory], dict[tuple[str, str, str], float]]]
"""Namespace → memories by id and weights of links."""
IDS = ("a", "b", "c", "d")


class Clock:
    """A clock that stands still until told."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Model:
    """Namespace → id → Memory, and the day each was last decayed; `log` holds (at, state) after every write."""

    memories: dict[str, dict[str, Memory]] = field(default_factory=lambda: {n: {} for n in NAMESPACES})
    vectors: dict[tuple[str, str], tuple[float, ...] | None] = field(default_factory=dict)
    decayed: dict[tuple[str, str], float] = field(default_factory=dict)
    edges: dict[str, dict[tuple[str, str, str], float]] = field(default_factory=lambda: {n: {} for n in NAMESPACES})
    known: set[tuple[str, str]] = field(default_factory=set)
    log: list[tuple[float, States]] = field(default_factory=list)

    def apply(self, op: tuple[Any, ...], now: float) -> None:
        getattr(self, op[0])(now, *op[1:])
        states = {n: (dict(self.memories[n]), dict(self.edges[n])) for n in NAMESPACES}
        self.log.append((now, states))

    def as_of(self, moment: float) -> States:
        found: States = {n: ({}, {}) for n in NAMESPACES}
        for at, states in self.log:
            if at <= moment:
                found = states
        return found

    def allowed(self, n: str, id_: str, supersedes: str | None) -> str | None:
        """What a memory may supersede: a known one, and not one that supersedes it directly or over others."""
        if supersedes is None or (n, supersedes) not in self.known:
            return None
        chain, last = {id_}, supersedes
        while last not in chain:
            chain.add(last)
            memory = self.memories[n].get(last)
            if memory is None or memory.supersedes is None:
                return supersedes
            last = memory.supersedes
        return None if last == id_ else supersedes

    def put(self, now: float, n: str, id_: str, text: str, vector, supersedes: str | None) -> None:
        supersedes = self.allowed(n, id_, supersedes)
        old, at = self.memories[n].get(id_), from_epoch(now)
        if old is None:
            memory = Memory(text, id_, namespace=n, created_at=at, updated_at=at, supersedes=supersedes)
            self.vectors[n, id_] = vector
            self.decayed[n, id_] = now
        else:
            memory = replace(old, text=text, updated_at=at, status="active", supersedes=supersedes)
            if vector is not None or text != old.text:
                self.vectors[n, id_] = vector
        self.memories[n][id_] = memory
        self.known.add((n, id_))
        if supersedes is not None:
            hidden = self.memories[n].get(supersedes)
            if hidden is not None:
                self.memories[n][supersedes] = replace(hidden, status="superseded")

    def delete(self, now: float, n: str, id_: str) -> None:
        self.memories[n].pop(id_, None)
        self.edges[n] = {key: weight for key, weight in self.edges[n].items() if id_ not in key[:2]}

    def touch(self, now: float, n: str, id_: str) -> None:
        old = self.memories[n].get(id_)
        if old is not None:
            at = from_epoch(now)
            self.memories[n][id_] = replace(old, access_count=old.access_count + 1, last_accessed=at)

    def reinforce(self, now: float, n: str, id_: str) -> None:
        old = self.memories[n].get(id_)
        if old is not None:
            self.memories[n][id_] = replace(old, strength=min(1.0, old.strength + 0.1))

    def decay(self, now: float, n: str) -> None:
        for id_, old in self.memories[n].items():
            days = math.floor((now - self.decayed[n, id_]) / DAY)
            if days >= 1:
                self.memories[n][id_] = replace(old, strength=old.strength * math.exp(-0.01 * days))
                self.decayed[n, id_] += days * DAY

    def link(self, now: float, n: str, a: str, b: str, weight: float) -> None:
        if a in self.memories[n] and b in self.memories[n]:
            self.edges[n][a, b, "related"] = weight

    def unlink(self, now: float, n: str, a: str, b: str) -> None:
        self.edges[n].pop((a, b, "related"), None)
        self.edges[n].pop((b, a, "related"), None)


def run(store, model: Model, op: tuple[Any, ...]) -> None:
    """The same operation on a real store; operations on what is not there are left out, as the model does."""
    name, n, *args = op
    here = model.memories[n]
    if name == "put":
        id_, text, vector, old = args
        old = model.allowed(n, id_, old)
        store.put([Memory(text, id=id_, supersedes=old)], namespace=n, vectors=[vector])
    elif name == "link":
        if args[0] in here and args[1] in here:
            store.link([Edge(args[0], args[1], weight=args[2])], namespace=n)
    elif name == "unlink":
        store.unlink([Edge(*args)], namespace=n)
    elif name == "reinforce":
        if args[0] in here:
            store.reinforce(args[0], namespace=n)
    elif name == "decay":
        store.decay(namespace=n)
    else:
        getattr(store, name)(args, namespace=n)


def visible(memories: dict[str, Memory], *, superseded: bool) -> dict[str, Memory]:
    return {id_: m for id_, m in memories.items() if superseded or m.status != "superseded"}


def close(a: Memory, b: Memory) -> bool:
    """Equal but for the last digits of a decayed strength."""
    return math.isclose(a.strength, b.strength, rel_tol=1e-9) and replace(a, strength=b.strength) == b


def drawn(dice: random.Random, /) -> tuple[tuple[Any, ...], float]:
    """One random operation and the seconds before it, as in `STEPS`."""
    n, id_, other = dice.choice(NAMESPACES), dice.choice(IDS), dice.choice(IDS)
    kind = dice.choice(("put", "put", "put", "delete", "touch", "reinforce", "decay", "link", "link", "unlink"))
    rest: dict[str, tuple[Any, ...]] = {
        "put": (
            id_,
            dice.choice(("tea", "coffee", "Lisbon")),
            dice.choice((None, (1.0, 0.0), (0.5, 0.25))),
            dice.choice((None, other)),
        ),
        "decay": (),
        "link": (id_, other, dice.choice((0.5, 1.0))),
        "unlink": (id_, other),
    }
    return (kind, n, *rest.get(kind, (id_,))), dice.choice((0.0, 1.0, DAY / 2, DAY))


_ns, _id = st.sampled_from(NAMESPACES), st.sampled_from(IDS)
_text = st.sampled_from(["tea", "coffee", "Lisbon"])
_vector = st.none() | st.sampled_from([(1.0, 0.0), (0.5, 0.25)])
OPS = st.one_of(
    st.tuples(st.just("put"), _ns, _id, _text, _vector, st.none() | _id),
    st.tuples(st.just("put"), _ns, _id, _text, _vector, st.none()),
    st.tuples(st.sampled_from(["delete", "touch", "reinforce"]), _ns, _id),
    st.tuples(st.just("decay"), _ns),
    st.tuples(st.just("link"), _ns, _id, _id, st.sampled_from([0.5, 1.0])),
    st.tuples(st.just("unlink"), _ns, _id, _id),
)
STEPS = st.lists(st.tuples(OPS, st.sampled_from([0.0, 1.0, DAY / 2, DAY, 3 * DAY])), max_size=25)

__all__ = ["DAY", "IDS", "NAMESPACES", "OPS", "STEPS", "Clock", "Model", "close", "drawn", "epoch", "run", "visible"]
