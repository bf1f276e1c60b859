"""Random filters in hybridmem's language over the metadata n, lang, topic, rare and part."""

from __future__ import annotations

import random
from typing import Any

SIZE = 120
"""Items of the corpora in which `n` counts from 0."""


def metadata(n: int, rng: random.Random) -> dict[str, Any]:
    """The metadata of item n: two of three have a topic, the last forty are rare."""
    made: dict[str, Any] = {"n": n, "lang": rng.choice(["en", "de", "pt"]), "part": round(rng.random(), 3)}
    if n % 3:
        made["topic"] = rng.choice(["tea", "sea"])
    if n >= SIZE - 40:
        made["rare"] = "yes"
    return made


def random_filter(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A filter with up to three levels."""
    kind = rng.randrange(9 if depth < 2 else 7)
    if kind == 0:
        return {"lang": rng.choice(["en", "de", "pt", "xx"])}
    if kind == 1:
        return {"lang": {rng.choice(["$ne", "$eq"]): rng.choice(["en", "de"])}}
    if kind == 2:
        return {"n": {rng.choice(["$gt", "$gte", "$lt", "$lte"]): rng.randrange(SIZE)}}
    if kind == 3:
        return {"topic": {"$exists": rng.random() < 0.5}}
    if kind == 4:
        return {"lang": {rng.choice(["$in", "$nin"]): rng.sample(["en", "de", "pt"], rng.randrange(1, 3))}}
    if kind == 5:
        return {"rare": "yes", "lang": rng.choice(["en", "de"])}
    if kind == 6:
        return {"part": {"$gte": rng.random()}}
    if kind == 7:
        return {rng.choice(["$and", "$or"]): [random_filter(rng, depth + 1) for _ in range(2)]}
    return {"$not": random_filter(rng, depth + 1)}
