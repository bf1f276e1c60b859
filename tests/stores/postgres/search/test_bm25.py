"""BM25 by fewer postings: what leads is the same, whatever the commonest term of a question could have added."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres.search.bm25 import SPARE, Bm25

WORDS = {"name": 0.5, "make": 0.3, "day": 0.15, "trip": 0.1, "lake": 0.04, "boat": 0.01}
"""How many of the memories have each word."""


@pytest.fixture(scope="module")
def memory(pg_url, pg_schemas):
    rng, schema = random.Random(5), pg_schemas.take()
    with HybridMemory(pg_url, schema=schema, embedder=None) as memory:
        texts = []
        for _ in range(1500):
            words = [
                word for word, share in WORDS.items() for _ in range(rng.choice((1, 1, 3))) if rng.random() < share
            ]
            texts.append(" ".join([*words, *["filler"] * rng.randrange(9)]) or "none")
        memory.add_many([{"text": text, "id": f"m{n}"} for n, text in enumerate(texts)])
        yield memory
    pg_schemas.give(schema)


def ask(memory, start, rest):
    return memory.store._router.run(start._replace(text=f"{start.text} {rest}"))


LAW = settings(
    max_examples=int(os.environ.get("HYBRIDMEM_EXAMPLES", "60")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@LAW
@given(
    terms=st.dictionaries(st.sampled_from([*WORDS, "filler", "unheard"]), st.sampled_from([1.0, 2.0, 5.0]), min_size=1),
    k=st.integers(1, 120),
    k1=st.sampled_from([0.0, 0.6, 1.2, 3.0]),
    b=st.sampled_from([0.0, 0.75, 1.0]),
)
def test_what_leads_is_the_same(memory, terms, k, k1, b):
    bm25, best = Bm25("", k1, b), f"SELECT score, mem FROM hits ORDER BY score DESC LIMIT {k + SPARE}"
    some, all_ = ask(memory, bm25.leading(terms, k), best), ask(memory, bm25.hits(terms), best)
    assert [row[0] for row in some] == pytest.approx([row[0] for row in all_], abs=1e-12)
    above = [{mem for score, mem in rows if score > all_[-1][0] + 1e-9} for rows in (some, all_)]  # of equals, any
    assert above[0] == above[1]


def test_less_is_grouped_where_the_rest_decides(memory):
    """boat and lake decide who leads: name has 2.2 · ln(1 + (1500 − n + 0.5)/(n + 0.5)) to give at most."""
    terms, bm25 = {"boat": 1.0, "lake": 1.0, "name": 1.0}, Bm25("", 1.2, 0.75)
    counted = [
        ask(memory, start, "SELECT count(*) FROM hits")[0][0] for start in (bm25.leading(terms, 1), bm25.hits(terms))
    ]
    assert SPARE < counted[0] < counted[1] / 4
    alone = {"name": 1.0}  # nothing but the commonest: everything counts
    counted = [
        ask(memory, start, "SELECT count(*) FROM hits")[0][0] for start in (bm25.leading(alone, 1), bm25.hits(alone))
    ]
    assert counted[0] == counted[1] > SPARE
