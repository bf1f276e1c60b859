"""What happens to a memory, as hypothesis tells it: small words, few ids, every kind of change."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import strategies as st

from hybridmem.core.protocols import View

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


def embed(texts):
    """Every word pulls towards a direction of its own."""
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


def play(memory, steps, clock):
    for step in steps:
        clock.now += 10
        name, *args = step
        if name == "add":
            id_, text, fields = args
            fields = dict(fields)
            if fields.get("supersedes") == id_ or not memory.history(fields.get("supersedes", "")):
                fields.pop("supersedes", None)
            memory.add(text, id=id_, **fields)
        elif name == "forget":
            memory.forget(args[0])
        elif all(memory.store.get([end], view=View(memory.name, superseded=True))[0] for end in args[:2]):
            memory.link(*args[:2], relation=args[2], weight=args[3])
