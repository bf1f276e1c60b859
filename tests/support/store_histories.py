"""Hypothesis strategies for histories of a memory: short texts, few ids, every kind of change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from hybridmem import HybridMemory
from hybridmem.core.protocols import View
from hybridmem.errors import ConfigError

WORDS = [
    "Ana",
    "Bob",
    "cat",
    "moved",
    "Lisbon",
    "lives",
    "exports",
    "E0427",
    "/v2/imports",
    "tea",
    "the",
    "who?",
    "東京都",
]


class Clock(Protocol):
    """A clock that a test moves by hand."""

    now: float


def embed(texts: Sequence[str]) -> list[Any]:
    """Vectors in which every word adds to one dimension of its own."""
    rows = []
    for text in texts:
        row = np.full(8, 0.01)
        for word in text.split():
            digest = hashlib.md5(word.encode("utf-8", "surrogatepass")).digest()
            row[digest[0] % 8] += 1 + digest[1] / 256
        rows.append(row)
    return rows


TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
ID = st.sampled_from([f"m{n}" for n in range(8)])
_fields = st.fixed_dictionaries(
    {},
    optional={
        "title": TEXT,
        "tags": st.lists(st.sampled_from(["home", "work trip"]), max_size=2).map(tuple),
        "predicate": st.sampled_from(["lives_in", "likes"]),
        "thread": st.sampled_from(["t1", "t2"]),
        "source_id": st.sampled_from(["s1", "s2"]),
        "entities": st.lists(st.sampled_from(["Ana", "ana ", "Lisbon", "Bob"]), max_size=2).map(tuple),
        "metadata": st.fixed_dictionaries({}, optional={"links": st.lists(ID, max_size=2), "n": st.integers(0, 3)}),
        "supersedes": ID,
        "created_at": st.integers(1_600_000_000, 1_600_000_005),
    },
)
STEP = st.one_of(
    st.tuples(st.just("add"), ID, TEXT, _fields),
    st.tuples(st.just("add"), ID, TEXT, _fields),
    st.tuples(st.just("forget"), ID),
    st.tuples(st.just("link"), ID, ID, st.sampled_from(["related", "contradicts"]), st.sampled_from([0.5, 1.0])),
)


def play(memory: HybridMemory, steps: Iterable[tuple[Any, ...]], clock: Clock) -> None:
    """Apply the steps to a memory, ten seconds apart."""
    for step in steps:
        clock.now += 10
        name, *args = step
        if name == "add":
            id_, text, fields = args
            fields = dict(fields)
            if fields.get("supersedes") == id_ or not memory.history(fields.get("supersedes", "")):
                fields.pop("supersedes", None)
            try:
                memory.add(text, id=id_, **fields)
            except ConfigError:  # a circle of supersedes
                memory.add(text, id=id_, **{name: value for name, value in fields.items() if name != "supersedes"})
        elif name == "forget":
            memory.forget(args[0])
        elif all(memory.store.get([end], view=View(memory.name, superseded=True))[0] for end in args[:2]):
            memory.link(args[0], args[1], relation=args[2], weight=args[3])
