"""The actions of the inspector page: each takes the JSON object of a request and returns that of the answer."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybridmem.core import validation
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case, judged_cases, load_cases
from hybridmem.evaluation.metrics import judge, mrr, recall
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.explain_html import score_parts
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.recipes import recipe_from_dict, recipe_to_dict
from hybridmem.fusion.stages.evidence import PARTS
from hybridmem.server.controls import changed_recipe, control_groups, python_source
from hybridmem.server.sources import K, Query, Source, matching_words

__all__ = ["Actions"]

MAX_CASES = 2_000
ARM_ROWS = 100
"""How many hits of an arm the page lists."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What the page can ask of a source. Nothing is kept between two requests."""

    source: Source

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The arms, the controls of the recipe, and what the source reports about itself."""
        recipe = self._recipe(request)
        return {
            "arms": list(self.source.arms),
            "parts": [name.replace("_", " ") for name in PARTS],
            "groups": control_groups(recipe, self.source.arms),
            **self.source.start(request.get("namespace")),
        }

    def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Each arm's list, the fused list with the parts of each score, and why the rest is left out."""
        query = self._query(request)
        began = time.perf_counter()
        explained = self.source.explain(query)
        took = time.perf_counter() - began
        texts = self.source.texts(explained, query)
        return {
            "arms": _arms(explained, self.source.arms),
            "results": _results(explained),
            "remarks": list(explained.remarks),
            "texts": texts,
            "words": matching_words(query.text, texts.values()),
            "paths": {key: list(activation.path) for key, activation in explained.activations.items()},
            "groups": control_groups(query.recipe, self.source.arms),
            "milliseconds": round(1000 * took, 1),
        }

    def why(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Why a key is or is not among the results, with its fields, history and thread."""
        query, key = self._query(request), _text(request, "key")
        explained = self.source.explain(query)
        ranks = {
            name: next(((n, hit.score) for n, hit in enumerate(hits, start=1) if hit.key == key), None)
            for name, hits in explained.hits.items()
        }
        return {
            "key": key,
            "why": explained.why_not(key),
            "text": self.source.texts(explained, query).get(key, ""),
            "ranks": {name: place and [place[0], _finite(place[1])] for name, place in ranks.items()},
            "result": next((one for one in _results(explained) if one["key"] == key), None),
            **self._wide(key, query, explained),
            "path": list(explained.activations[key].path) if key in explained.activations else [],
            **self.source.details(key, query),
        }

    def _wide(self, key: str, query: Query, explained: Explanation) -> dict[str, Any]:
        """The receipt of a key that a longer list would contain, beside the score of the last result."""
        wide = None
        if key in explained.dropped and explained.receipts:
            depth = query.recipe.depth_for(query.k)  # the same lists from the arms, so that the score is the same
            longer = self.source.explain(query._replace(k=depth, recipe=replace(query.recipe, depth=depth)))
            wide = next((one for one in _results(longer) if one["key"] == key), None)
        return {"wide": wide, "last": _finite(explained.receipts[-1].score) if explained.receipts else None}

    def cases(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The cases of a JSONL file that name a relevant id."""
        cases = judged_cases(load_cases(io.StringIO(_text(request, "text"))))
        if not cases:
            raise ConfigError('no case names a relevant id: a line is {"query": "…", "relevant": ["id"]}')
        if len(cases) > MAX_CASES:
            raise ConfigError(f"{len(cases)} cases are too many for the page: at most {MAX_CASES}")
        rows = [
            {
                "query": case.query,
                "relevant": dict(case.relevant),
                "category": case.category,
                "as_of": None if case.as_of is None else case.as_of.isoformat(),
            }
            for case in cases
        ]
        return {"cases": rows}

    def measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Recall and reciprocal rank at k for each of these cases, and which relevant ids are missing."""
        rows = validation.listed("cases", request.get("cases"), "cases")
        measured = []
        for row in rows:
            case = Case(_text(row, "query"), dict(row["relevant"]))
            query = self._query({**request, "query": case.query, "as_of": row.get("as_of") or request.get("as_of")})
            keys = self.source.ranking(query)
            judged = judge([keys], [case.relevant], depth=query.k)
            measured.append(
                {
                    "recall": float(recall(judged, query.k)[0]),
                    "rank": float(mrr(judged, query.k)[0]),
                    "missing": [key for key, grade in case.relevant.items() if grade > 0 and key not in keys],
                }
            )
        return {"measured": measured}

    def save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe as the text of a recipe file and as Python code."""
        recipe = self._recipe(request)
        return {"json": json.dumps(recipe_to_dict(recipe), indent=2) + "\n", "python": python_source(recipe)}

    def _query(self, request: Mapping[str, Any]) -> Query:
        return Query(
            text=_text(request, "query"),
            recipe=self._recipe(request),
            k=request.get("k", K),
            filter=request.get("filter") or None,
            as_of=request.get("as_of") or None,
            namespace=request.get("namespace"),
        )

    def _recipe(self, request: Mapping[str, Any]) -> Fusion:
        base = request.get("base")
        recipe = self.source.recipe if base is None else recipe_from_dict(base)
        changes = request.get("changes") or {}
        return changed_recipe(recipe, changes, self.source.arms) if changes else recipe


def _arms(explained: Explanation, names: Iterable[str]) -> list[dict[str, Any]]:
    """Every arm with its list, its summary, and why a hit of it is not a result."""
    reasons = {**explained.gated, **explained.dropped}
    rows = []
    for name in names:
        hits = explained.hits.get(name, ())
        listed = [
            {"key": hit.key, "score": _finite(hit.score), "reason": reasons.get(hit.key)} for hit in hits[:ARM_ROWS]
        ]
        rows.append({"name": name, "note": explained.arms.get(name, ""), "count": len(hits), "hits": listed})
    return rows


def _results(explained: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "key": receipt.key,
            "rank": receipt.rank,
            "score": _finite(receipt.score),
            "parts": [[part.name, _finite(part.value), part.text] for part in score_parts(receipt)],
            "degraded": receipt.degraded,
        }
        for receipt in explained.receipts
    ]


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    validation.text(name, value, "a text")
    return str(value)
